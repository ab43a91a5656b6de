/*
 * An NVML of which only one query is there: no UUID, so that nothing can be known about the device.
 * HALF_NVML_FAILS=N:CODE: from the N-th call on (1: the first) it gives CODE.
 */
#include <stdio.h>
#include <stdlib.h>

#include "enforcer/nvml_abi.h"

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    static unsigned calls;
    const char *fails = getenv("HALF_NVML_FAILS");
    unsigned from = 0, code = 0;

    (void)device;
    if (fails != NULL && sscanf(fails, "%u:%u", &from, &code) == 2 && ++calls >= from)
        return (nvmlReturn_t)code;
    *memory = (nvmlMemory_t){24ull << 30, 20ull << 30, 4ull << 30};
    return NVML_SUCCESS;
}
