/*
 * The few driver calls that `vramcap check` makes, by hand: enforcer/ includes no CUDA header.  Source:
 * NVIDIA's CUDA Driver API reference, versions 11 to 13.  CUresult and CUdevice are ints there, handles
 * are pointers, CUdeviceptr has 64 bits.
 */
#ifndef VRAMCAP_ENFORCER_CLI_DRIVER_ABI_H
#define VRAMCAP_ENFORCER_CLI_DRIVER_ABI_H

#include <stddef.h>

enum {
    DRIVER_SUCCESS = 0,
    DRIVER_OUT_OF_MEMORY = 2,         /* CUDA_ERROR_OUT_OF_MEMORY */
    DRIVER_ATTRIBUTE_SM_COUNT = 16,   /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
    DRIVER_ATTRIBUTE_INTEGRATED = 18, /* CU_DEVICE_ATTRIBUTE_INTEGRATED */
    DRIVER_ATTRIBUTE_MPS = 133        /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, CUDA 12.2 */
};

struct driver {
    int (*init)(unsigned flags);                               /* cuInit */
    int (*version)(int *version);                              /* cuDriverGetVersion */
    int (*count)(int *count);                                  /* cuDeviceGetCount */
    int (*attribute)(int *value, int attribute, int device);   /* cuDeviceGetAttribute */
    int (*uuid)(unsigned char uuid[16], int device);           /* cuDeviceGetUuid */
    int (*uuid_v2)(unsigned char uuid[16], int device);        /* cuDeviceGetUuid_v2; may be NULL */
    int (*total)(size_t *bytes, int device);                   /* cuDeviceTotalMem_v2 */
    int (*pci)(char *text, int size, int device);              /* cuDeviceGetPCIBusId */
    int (*create)(void **context, unsigned flags, int device); /* cuCtxCreate_v2 */
    int (*destroy)(void *context);                             /* cuCtxDestroy_v2 */
    int (*info)(size_t *free, size_t *total);                  /* cuMemGetInfo_v2 */
    int (*alloc)(unsigned long long *pointer, size_t bytes);   /* cuMemAlloc_v2 */
    int (*release)(unsigned long long pointer);                /* cuMemFree_v2 */
};

#endif
