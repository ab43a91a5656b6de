/*
 * What is derived from nvml_api.def: the handled NVML functions of the real library, bound like the
 * driver's when libnvidia-ml.so.1 is met first.  NVML may be absent, half there or failing: that never
 * changes anything else.
 */
#ifndef VRAMCAP_PRELOAD_NVML_API_H
#define VRAMCAP_PRELOAD_NVML_API_H

#include <stdbool.h>
#include <stdint.h>

#include "enforcer/nvml_abi.h"

/* Written by vcap_nvml_bind_now, always with the same values; NULL: this library lacks it. */
struct vcap_real_nvml {
    nvml_memory_info nvmlDeviceGetMemoryInfo;
    nvml_memory_info_v2 nvmlDeviceGetMemoryInfo_v2;
    nvml_uuid nvmlDeviceGetUUID;   /* a call of our own */
    nvml_index nvmlDeviceGetIndex; /* a call of our own */
    uintptr_t low, high;           /* span of the library */
    uint32_t bound;                /* 1; release-stored after the rest */
};
extern struct vcap_real_nvml vcap_real_nvml;
#define real_nvml vcap_real_nvml

#pragma GCC visibility push(default)
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
#pragma GCC visibility pop

bool vcap_nvml_bind_now(void);

/* False: libnvidia-ml.so.1 is not loaded. */
static inline bool vcap_nvml_bind(void)
{
    return __atomic_load_n(&vcap_real_nvml.bound, __ATOMIC_ACQUIRE) == 1 || vcap_nvml_bind_now();
}

/* True if a call from this return address is NVML's own: it passes straight through. */
static inline bool vcap_is_nvml_inner_call(const void *return_address)
{
    return (uintptr_t)return_address - vcap_real_nvml.low <
           vcap_real_nvml.high - vcap_real_nvml.low;
}

#endif
