/*
 * The calls that a capture in mode GLOBAL or THREAD_LOCAL forbids.
 *
 * NVIDIA names cudaMalloc as the example of a "potentially unsafe" call and gives no list.
 * Here are those known from the field to fail with CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
 * and their like: synchronous allocation and free, pinned host memory, pool management,
 * questions about memory, waiting. Physical handles and mappings are not among them:
 * PyTorch's expandable segments make those calls while capturing. What belongs here is a
 * claim until a GPU has answered.
 */
#include "sim_capture.h"

#include <string.h>

static const char *const unsafe[] = {
    /* allocation and free */
    "cuMemAlloc",
    "cuMemAlloc_v2",
    "cuMemAllocPitch",
    "cuMemAllocPitch_v2",
    "cuMemAllocManaged",
    "cuMemFree",
    "cuMemFree_v2",
    "cuMemAllocHost",
    "cuMemAllocHost_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    /* arrays */
    "cuArrayCreate",
    "cuArrayCreate_v2",
    "cuArray3DCreate",
    "cuArray3DCreate_v2",
    "cuArrayDestroy",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    /* pools and graph memory */
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolTrimTo",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemPoolSetAccess",
    "cuMemPoolExportToShareableHandle",
    "cuMemPoolImportFromShareableHandle",
    "cuMemPoolExportPointer",
    "cuMemPoolImportPointer",
    "cuDeviceGraphMemTrim",
    "cuDeviceGetGraphMemAttribute",
    "cuDeviceSetGraphMemAttribute",
    /* questions */
    "cuMemGetInfo",
    "cuMemGetInfo_v2",
    /* sharing */
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuIpcCloseMemHandle",
    "cuImportExternalMemory",
    "cuDestroyExternalMemory",
    "cuExternalMemoryGetMappedBuffer",
    "cuExternalMemoryGetMappedMipmappedArray",
    /* contexts and modules */
    "cuCtxCreate",
    "cuCtxCreate_v2",
    "cuCtxCreate_v3",
    "cuCtxCreate_v4",
    "cuGLCtxCreate",
    "cuGLCtxCreate_v2",
    "cuVDPAUCtxCreate",
    "cuVDPAUCtxCreate_v2",
    "cuCtxDestroy",
    "cuCtxDestroy_v2",
    "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxReset_v2",
    "cuCtxSetLimit",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuModuleUnload",
    /* waiting and asking whether something is done */
    "cuCtxSynchronize",
    "cuCtxSynchronize_v2",
    "cuStreamSynchronize",
    "cuStreamSynchronize_ptsz",
    "cuStreamQuery",
    "cuStreamQuery_ptsz",
    "cuEventSynchronize",
    "cuEventQuery",
};

bool sim_capture_unsafe(const char *symbol)
{
    for (size_t i = 0; i < sizeof unsafe / sizeof unsafe[0]; i++)
        if (strcmp(unsafe[i], symbol) == 0)
            return true;
    return false;
}
