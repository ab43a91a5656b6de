/*
 * An NVML of which only one query is there: no UUID, so that nothing can be known about the device.
 */
#include "enforcer/nvml_abi.h"

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    (void)device;
    *memory = (nvmlMemory_t){24ull << 30, 20ull << 30, 4ull << 30};
    return NVML_SUCCESS;
}
