/*
 * The few declarations of NVML that vramcap needs, by hand: the toolkit has no nvml.h.  Source: NVIDIA's
 * NVML API reference, versions 12 and 13 (nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t).  Unsuffixed names
 * are the oldest ABI.
 */
#ifndef VRAMCAP_ENFORCER_NVML_ABI_H
#define VRAMCAP_ENFORCER_NVML_ABI_H

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef int nvmlReturn_t; /* an enumeration there */

enum { NVML_SUCCESS = 0, NVML_ERROR_LIBRARY_NOT_FOUND = 12, NVML_ERROR_FUNCTION_NOT_FOUND = 13 };

#define NVML_DEVICE_UUID_V2_BUFFER_SIZE 96

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version; /* sizeof | 2 << 24; checked by the driver */
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

_Static_assert(sizeof(nvmlMemory_t) == 24, "nvmlMemory_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");

typedef nvmlReturn_t (*nvml_memory_info)(nvmlDevice_t device, nvmlMemory_t *memory);
typedef nvmlReturn_t (*nvml_memory_info_v2)(nvmlDevice_t device, nvmlMemory_v2_t *memory);
typedef nvmlReturn_t (*nvml_uuid)(nvmlDevice_t device, char *uuid, unsigned int length);
typedef nvmlReturn_t (*nvml_index)(nvmlDevice_t device, unsigned int *index);

#endif
