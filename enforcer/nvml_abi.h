/*
 * The few declarations of NVML that vramcap needs, by hand: the toolkit has no nvml.h.  Source: NVIDIA's
 * NVML API reference, versions 12 and 13 (nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t).  Unsuffixed names
 * are the oldest ABI.
 */
#ifndef VRAMCAP_ENFORCER_NVML_ABI_H
#define VRAMCAP_ENFORCER_NVML_ABI_H

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef int nvmlReturn_t; /* an enumeration there */

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_LIBRARY_NOT_FOUND = 12,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
};

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

/* ---- what the agent asks: devices and their processes ---- */

#define NVML_VALUE_NOT_AVAILABLE (~0ULL)
enum { NVML_PROCESS_MODE_COMPUTE = 0, NVML_PROCESS_MODE_GRAPHICS = 1, NVML_PROCESS_MODE_MPS = 2 };

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory; /* NVML_VALUE_NOT_AVAILABLE: not known */
} nvmlProcessInfo_v1_t;

typedef struct { /* of _v2 and _v3 */
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
    unsigned int version; /* sizeof | 1 << 24 */
    unsigned int mode;
    unsigned int numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;

_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16, "nvmlProcessInfo_v1_t");
_Static_assert(sizeof(nvmlProcessInfo_v2_t) == 24, "nvmlProcessInfo_v2_t");
_Static_assert(sizeof(nvmlProcessDetail_v1_t) == 32, "nvmlProcessDetail_v1_t");
_Static_assert(sizeof(nvmlProcessDetailList_v1_t) == 24, "nvmlProcessDetailList_v1_t");

typedef nvmlReturn_t (*nvml_plain)(void);
typedef nvmlReturn_t (*nvml_count)(unsigned int *count);
typedef nvmlReturn_t (*nvml_by_index)(unsigned int index, nvmlDevice_t *device);
typedef nvmlReturn_t (*nvml_processes_v1)(nvmlDevice_t device, unsigned int *count,
                                          nvmlProcessInfo_v1_t *infos);
typedef nvmlReturn_t (*nvml_processes_v2)(nvmlDevice_t device, unsigned int *count,
                                          nvmlProcessInfo_v2_t *infos);
typedef nvmlReturn_t (*nvml_process_details)(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list);
typedef nvmlReturn_t (*nvml_by_uuid)(const char *uuid, nvmlDevice_t *device);
typedef nvmlReturn_t (*nvml_mig_count)(nvmlDevice_t device, unsigned int *count);
typedef nvmlReturn_t (*nvml_mig_by_index)(nvmlDevice_t device, unsigned int index,
                                          nvmlDevice_t *mig);

/* ---- limits of cgroups, driver r615 and newer (docs.nvidia.com/deploy/nvml-api) ---- */

typedef struct {
    const char *nameSpace;                                /* path of a cgroup, version 2 */
    unsigned long long softLimit, hardLimit, currentUsed; /* bytes */
} nvmlGetMemoryLimits_v1_t;
#define NVML_DEVICE_MEMORY_LIMIT_MAX (~0ULL) /* no limit */

_Static_assert(sizeof(nvmlGetMemoryLimits_v1_t) == 32, "nvmlGetMemoryLimits_v1_t");

typedef nvmlReturn_t (*nvml_memory_limits)(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits);

#endif
