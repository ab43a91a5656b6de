/*
 * What is derived from cuda_api.def: ids of rows, typed pointers to the driver's functions, and the
 * look-ups that resolve.c answers with.  No function here calls libc; cuda_api.c is compiled
 * without sanitizers and builtins, because sanitised programs call dlsym before libc is ready.
 */
#ifndef VRAMCAP_PRELOAD_CUDA_API_H
#define VRAMCAP_PRELOAD_CUDA_API_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/cuda_abi.h"

/* The newest CUDA version whose names and ABIs the table was checked against. */
#define VCAP_TABLE_CUDA_VERSION 13050

#define VCAP_FLAG_PER_THREAD 2u /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

enum vcap_row {
#define HOOK(base, since, suffix, rule) VCAP_ROW_##base##suffix,
#define HOOK_STREAM(base, since, suffix, rule)                                                     \
    VCAP_ROW_##base##suffix, VCAP_ROW_##base##suffix##_ptsz,
#define PASS(base, since, suffix, why) VCAP_ROW_##base##suffix,
#define PASS_STREAM(base, since, suffix, why)                                                      \
    VCAP_ROW_##base##suffix, VCAP_ROW_##base##suffix##_ptsz,
#define PASS_PTDS(base, since, suffix, why) VCAP_ROW_##base##suffix, VCAP_ROW_##base##suffix##_ptds,
#define GAP(base, since, suffix, lost) VCAP_ROW_##base##suffix,
#define GAP_STREAM(base, since, suffix, lost)                                                      \
    VCAP_ROW_##base##suffix, VCAP_ROW_##base##suffix##_ptsz,
#include "preload/cuda_api.def"
    VCAP_ROWS
};

/* The driver's functions, one pointer per row in the order of enum vcap_row; NULL: this driver
 * lacks it, or the row is a PASS and nobody asks.  Written once, by vcap_bind. */
struct vcap_real {
#define HOOK(base, since, suffix, rule) PFN_##base##_v##since base##suffix;
#define HOOK_STREAM(base, since, suffix, rule)                                                     \
    PFN_##base##_v##since base##suffix;                                                            \
    PFN_##base##_v##since base##suffix##_ptsz; /* its own PFN name has 7000 where since is older */
#define PASS(base, since, suffix, why) void *base##suffix;
#define PASS_STREAM(base, since, suffix, why) void *base##suffix, *base##suffix##_ptsz;
#define PASS_PTDS(base, since, suffix, why) void *base##suffix, *base##suffix##_ptds;
#define GAP(base, since, suffix, lost) void *base##suffix;
#define GAP_STREAM(base, since, suffix, lost) void *base##suffix, *base##suffix##_ptsz;
#include "preload/cuda_api.def"
};
extern struct vcap_real vcap_real;
#define real vcap_real

_Static_assert(sizeof(struct vcap_real) == VCAP_ROWS * sizeof(void *), "one pointer per row");

/* Calls that hooks make on their own account (the list of reference/driver-api.md that is allowed).
 */
struct vcap_own {
    PFN_cuCtxGetCurrent_v4000 cuCtxGetCurrent;
    PFN_cuCtxGetDevice_v2000 cuCtxGetDevice;
    PFN_cuCtxGetLimit_v3010 cuCtxGetLimit;
    PFN_cuDeviceGetAttribute_v2000 cuDeviceGetAttribute;
    PFN_cuDeviceGetCount_v2000 cuDeviceGetCount;
    PFN_cuDeviceGetPCIBusId_v4010 cuDeviceGetPCIBusId;
    PFN_cuDeviceGetUuid_v9020 cuDeviceGetUuid;
    PFN_cuDeviceGetUuid_v11040 cuDeviceGetUuid_v2;
    PFN_cuDevicePrimaryCtxGetState_v7000 cuDevicePrimaryCtxGetState;
    PFN_cuMemGetAllocationPropertiesFromHandle_v10020 cuMemGetAllocationPropertiesFromHandle;
    /* between two changes of the capture mode (relaxed.h) */
    PFN_cuThreadExchangeStreamCaptureMode_v10010 cuThreadExchangeStreamCaptureMode;
    PFN_cuStreamIsCapturing_v10000 cuStreamIsCapturing;
    PFN_cuStreamGetCtx_v9020 cuStreamGetCtx;
    PFN_cuStreamGetDevice_v12080 cuStreamGetDevice;
    PFN_cuDeviceGetDefaultMemPool_v11020 cuDeviceGetDefaultMemPool;
    PFN_cuDeviceGetMemPool_v11020 cuDeviceGetMemPool;
    PFN_cuMemPoolGetAttribute_v11020 cuMemPoolGetAttribute;
    PFN_cuMemPoolTrimTo_v11020 cuMemPoolTrimTo;
    PFN_cuMemGetAddressRange_v3020 cuMemGetAddressRange_v2;
    PFN_cuGraphGetNodes_v10000 cuGraphGetNodes;
    PFN_cuGraphNodeGetType_v10000 cuGraphNodeGetType;
    PFN_cuGraphChildGraphNodeGetGraph_v10000 cuGraphChildGraphNodeGetGraph;
    PFN_cuGraphMemAllocNodeGetParams_v11040 cuGraphMemAllocNodeGetParams;
    PFN_cuDeviceGetGraphMemAttribute_v11040 cuDeviceGetGraphMemAttribute;
    PFN_cuDeviceGraphMemTrim_v11040 cuDeviceGraphMemTrim;
};
extern struct vcap_own vcap_own;

/* The twins are not declared by cuda.h. */
#pragma GCC visibility push(default)
#define HOOK_STREAM(base, since, suffix, rule) extern __typeof__(base##suffix) base##suffix##_ptsz;
#include "preload/cuda_api.def"
#pragma GCC visibility pop

enum vcap_row_kind { VCAP_KIND_HOOK, VCAP_KIND_PASS, VCAP_KIND_GAP };
enum vcap_row_kind vcap_row_kind(unsigned row);
const char *vcap_row_symbol(unsigned row);

/* ---- resolve.c ---- */

#define VCAP_BOUND UINT32_MAX
struct vcap_binding {
    uint32_t state; /* 0 not bound, VCAP_BOUND, else the pid that is at it; futex */
    uintptr_t driver_low, driver_high, own_low, own_high; /* spans of libcuda and of this library */
};
extern struct vcap_binding vcap_binding;

bool vcap_bind_now(void);

/*
 * Finds libcuda.so.1 among the loaded modules and fills vcap_real, once.  False: it is not loaded.
 */
static inline bool vcap_bind(void)
{
    return __builtin_expect(__atomic_load_n(&vcap_binding.state, __ATOMIC_ACQUIRE) == VCAP_BOUND,
                            1) ||
           vcap_bind_now();
}

/* True if a call from this return address is the driver's own (or a tail call of it through our
 * names): such calls pass straight through, what they cost is charged where they began. */
static inline bool vcap_is_inner_call(const void *return_address)
{
    uintptr_t at = (uintptr_t)return_address;

    return at - vcap_binding.driver_low < vcap_binding.driver_high - vcap_binding.driver_low ||
           at - vcap_binding.own_low < vcap_binding.own_high - vcap_binding.own_low;
}

/* The hook or counting stub to hand out instead of address, or address itself. */
void *vcap_answer(const char *name, void *address, int version, uint64_t flags);

/* First call of a GAP entry point: warns, counts, returns the driver's function. */
void *vcap_gap_first(uint32_t gap);

/* ---- hook_init.c ---- */
void vcap_gap_met(unsigned row);
/* Counted in this process's slot and put into the event ring. */
void vcap_gap_note(const char *name, uint32_t code);

#endif
