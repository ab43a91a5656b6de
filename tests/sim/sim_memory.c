/*
 * Linear, pitched and managed memory, and what can be asked about it.
 *
 * Old functions (no suffix) have 32-bit sizes and addresses: their memory comes from
 * the region below 4 GiB. Freeing needs a current context, not the one that allocated.
 * VRAMCAP_SIM_BENCH: small linear memory costs next to nothing (sim_bench.c).
 */
#define _GNU_SOURCE
#include "sim_bench.h"
#include "sim_internal.h"
#include "sim_bounds.h"

#include <limits.h>
#include <string.h>

static CUresult allocate(enum sim_region_id region, size_t bytes, CUdeviceptr *address)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (rc != CUDA_SUCCESS)
        return rc;
    if (sim_config.bench && region == SIM_REGION_MAIN && bytes == SIM_BENCH_BYTES &&
        sim_bench_take(address))
        return CUDA_SUCCESS;
    sim_lock_take();
    rc = sim_arena_alloc(&context->owner, region, bytes, address);
    sim_lock_drop();
    return rc;
}

static CUresult release(CUdeviceptr address)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (rc != CUDA_SUCCESS || address == 0)
        return rc;
    if (sim_config.bench && sim_bench_give(address))
        return CUDA_SUCCESS;
    sim_lock_take();
    bool freed = sim_arena_free(address);
    sim_lock_drop();
    return freed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    SIM_ENTER(cuMemAlloc_v2);
    CUdeviceptr address = 0;

    if (!dptr)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = allocate(SIM_REGION_MAIN, bytesize, &address);
    if (rc == CUDA_SUCCESS)
        *dptr = address;
    return rc;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
    SIM_ENTER(cuMemAlloc);
    CUdeviceptr address = 0;

    if (!dptr)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = allocate(SIM_REGION_LOW, bytesize, &address);
    if (rc == CUDA_SUCCESS)
        *dptr = (CUdeviceptr_v1)address;
    return rc;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    SIM_ENTER(cuMemFree_v2);
    void *inner = sim_inner("cuCtxSynchronize");
    if (inner) {
        CUresult (*wait)(void) = NULL;
        memcpy(&wait, &inner, sizeof wait);
        (void)wait();
    }
    return release(dptr);
}

CUresult cuMemFree(CUdeviceptr_v1 dptr)
{
    SIM_ENTER(cuMemFree);
    return release(dptr);
}

/* The pitch of a row of `width` bytes; 0 if the arguments are wrong. */
static size_t pitch_of(size_t width, size_t height, unsigned int element)
{
    size_t pitch = sim_config.pitch_bytes;

    if (width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
        return 0;
    if (width > SIZE_MAX / 2 || height > (SIZE_MAX / 2) / ((width + pitch - 1) / pitch * pitch))
        return 0;
    return (width + pitch - 1) / pitch * pitch;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes)
{
    SIM_ENTER(cuMemAllocPitch_v2);
    CUdeviceptr address = 0;
    size_t pitch = pitch_of(WidthInBytes, Height, ElementSizeBytes);
    CUresult rc;

    if (!dptr || !pPitch || pitch == 0)
        return CUDA_ERROR_INVALID_VALUE;
    void *inner = sim_inner("cuMemAlloc_v2");
    if (inner) {
        CUresult (*alloc)(CUdeviceptr *, size_t) = NULL;
        memcpy(&alloc, &inner, sizeof alloc);
        rc = alloc(&address, pitch * Height);
    } else {
        rc = allocate(SIM_REGION_MAIN, pitch * Height, &address);
    }
    if (rc == CUDA_SUCCESS) {
        *dptr = address;
        *pPitch = pitch;
    }
    return rc;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes,
                         unsigned int Height, unsigned int ElementSizeBytes)
{
    SIM_ENTER(cuMemAllocPitch);
    CUdeviceptr address = 0;
    size_t pitch = pitch_of(WidthInBytes, Height, ElementSizeBytes);

    if (!dptr || !pPitch || pitch == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = allocate(SIM_REGION_LOW, pitch * Height, &address);
    if (rc == CUDA_SUCCESS) {
        *dptr = (CUdeviceptr_v1)address;
        *pPitch = (unsigned int)pitch;
    }
    return rc;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    SIM_ENTER(cuMemAllocManaged);
    CUdeviceptr address = 0;
    unsigned int attach = flags & ~(unsigned int)CU_MEM_ATTACH_SINGLE;

    if (!dptr || (attach != CU_MEM_ATTACH_GLOBAL && attach != CU_MEM_ATTACH_HOST &&
                  flags != CU_MEM_ATTACH_SINGLE))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = allocate(SIM_REGION_MANAGED, bytesize, &address);
    if (rc == CUDA_SUCCESS)
        *dptr = address;
    return rc;
}

static CUresult info_get(uint64_t *free_bytes, uint64_t *total_bytes)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (rc == CUDA_SUCCESS &&
        sim_bounds_view(sim_state, context->owner.card, free_bytes, total_bytes) != 0)
        rc = CUDA_ERROR_UNKNOWN;
    return rc;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    SIM_ENTER(cuMemGetInfo_v2);
    uint64_t left = 0, all = 0;
    CUresult rc = info_get(&left, &all);

    if (rc == CUDA_SUCCESS && free)
        *free = left;
    if (rc == CUDA_SUCCESS && total)
        *total = all;
    return rc;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    SIM_ENTER(cuMemGetInfo);
    uint64_t left = 0, all = 0;
    CUresult rc = info_get(&left, &all);

    if (rc == CUDA_SUCCESS && free)
        *free = left > UINT_MAX ? UINT_MAX : (unsigned int)left;
    if (rc == CUDA_SUCCESS && total)
        *total = all > UINT_MAX ? UINT_MAX : (unsigned int)all;
    return rc;
}

static CUresult range_get(CUdeviceptr address, struct sim_allocation *found)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    bool inside = sim_arena_find(address, found);
    sim_lock_drop();
    return inside ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    SIM_ENTER(cuMemGetAddressRange_v2);
    struct sim_allocation found;
    CUresult rc = range_get(dptr, &found);

    if (rc == CUDA_SUCCESS && pbase)
        *pbase = found.base;
    if (rc == CUDA_SUCCESS && psize)
        *psize = found.bytes;
    return rc;
}

CUresult cuMemGetAddressRange(CUdeviceptr_v1 *pbase, unsigned int *psize, CUdeviceptr_v1 dptr)
{
    SIM_ENTER(cuMemGetAddressRange);
    struct sim_allocation found;
    CUresult rc = range_get(dptr, &found);

    if (rc == CUDA_SUCCESS && pbase)
        *pbase = (CUdeviceptr_v1)found.base;
    if (rc == CUDA_SUCCESS && psize)
        *psize = (unsigned int)found.bytes;
    return rc;
}

/* Advice moves nothing here: managed bytes live in host memory all the time. */
static CUresult advise(CUdeviceptr address, size_t bytes)
{
    return sim_bytes(address, bytes, false) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
    SIM_ENTER(cuMemAdvise);
    (void)advice;
    (void)device;
    return advise(devPtr, count);
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                        CUmemLocation location)
{
    SIM_ENTER(cuMemAdvise_v2);
    (void)advice;
    (void)location;
    return advise(devPtr, count);
}

#define PREFETCH(symbol)                                                                           \
    CUresult symbol(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream)        \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        (void)dstDevice;                                                                           \
        (void)hStream;                                                                             \
        return advise(devPtr, count);                                                              \
    }
PREFETCH(cuMemPrefetchAsync)
PREFETCH(cuMemPrefetchAsync_ptsz)

#define PREFETCH_V2(symbol)                                                                        \
    CUresult symbol(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,  \
                    CUstream hStream)                                                              \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        (void)location;                                                                            \
        (void)flags;                                                                               \
        (void)hStream;                                                                             \
        return advise(devPtr, count);                                                              \
    }
PREFETCH_V2(cuMemPrefetchAsync_v2)
PREFETCH_V2(cuMemPrefetchAsync_v2_ptsz)
