/*
 * The driver for the programs of tests/gpu: opened by name, every function by dlsym, so that one binary runs
 * on any driver, bare and under vramcap. A function that the driver lacks is NULL.
 */
#ifndef VRAMCAP_TESTS_GPU_DRIVER_H
#define VRAMCAP_TESTS_GPU_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#define GPU_FUNCTIONS(F)                                                                           \
    F(cuInit)                                                                                      \
    F(cuDriverGetVersion) F(cuDeviceGet) F(cuDeviceGetCount) F(cuDeviceGetName) F(cuDeviceGetUuid) \
        F(cuDeviceGetUuid_v2) F(cuDeviceGetAttribute) F(cuDeviceTotalMem_v2)                       \
            F(cuDevicePrimaryCtxRetain) F(cuCtxCreate_v2) F(cuCtxDestroy_v2) F(cuCtxSetCurrent)    \
                F(cuCtxGetCurrent) F(cuCtxSynchronize) F(cuMemGetInfo_v2) F(cuMemAlloc_v2)         \
                    F(cuMemFree_v2) F(cuMemAllocPitch_v2) F(cuMemAllocManaged) F(cuMemsetD8_v2)    \
                        F(cuMemCreate) F(cuMemRelease) F(cuMemGetAllocationGranularity)            \
                            F(cuMemAllocAsync) F(cuMemFreeAsync) F(cuDeviceGetDefaultMemPool)      \
                                F(cuMemPoolGetAttribute) F(cuMemPoolTrimTo) F(cuStreamCreate)      \
                                    F(cuStreamDestroy_v2) F(cuStreamSynchronize)                   \
                                        F(cuArray3DCreate_v2) F(cuArrayDestroy)                    \
                                            F(cuModuleLoadData) F(cuModuleUnload)                  \
                                                F(cuModuleGetFunction) F(cuLaunchKernel)           \
                                                    F(cuMemcpyHtoDAsync_v2)                        \
                                                        F(cuMemcpyDtoHAsync_v2)                    \
                                                            F(cuMemAllocHost_v2) F(cuMemFreeHost)  \
                                                                F(cuGetProcAddress)

struct gpu_driver {
    void *library;
#define MEMBER(name) __typeof__(name) *name;
    GPU_FUNCTIONS(MEMBER)
#undef MEMBER
};

extern struct gpu_driver gpu;
extern const char gpu_empty_kernel[]; /* PTX of `nothing`, a kernel that returns at once */

bool gpu_open(void);
void gpu_folder(char *folder, size_t size); /* of libcuda */
void gpu_uuid_text(CUdevice device, char text[64]);

#endif
