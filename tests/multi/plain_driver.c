/*
 * A driver that only starts: for measuring what the ledger adds to the start of many processes.  The
 * simulated machine's books, which each of its calls takes a lock for, would be most of such a figure.
 * cuInit takes PLAIN_INIT_MS, waiting, as a real one waits for the device; nothing else takes time.
 */
#define __CUDA_API_VERSION_INTERNAL /* every name as it is exported */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORTED __attribute__((visibility("default")))
#define PLAIN_INIT_MS 100

static __thread CUcontext current;

EXPORTED CUresult CUDAAPI cuInit(unsigned int flags)
{
    const struct timespec wait = {0, PLAIN_INIT_MS * 1000000L};

    (void)flags;
    nanosleep(&wait, NULL);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    if (device != 0)
        return CUDA_ERROR_INVALID_DEVICE;
    memset(uuid, 0x5a, sizeof(*uuid));
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    *bytes = (size_t)24576 << 20;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORTED CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    (void)flags;
    (void)device;
    *context = current = malloc(16);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return current != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORTED CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    static size_t next = (size_t)1 << 32;

    *pointer = __atomic_fetch_add(&next, bytes, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemFree_v2(CUdeviceptr pointer)
{
    (void)pointer;
    return CUDA_SUCCESS;
}
