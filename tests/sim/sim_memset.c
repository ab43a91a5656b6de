/*
 * Memset of 8, 16 and 32 bits, in one and two dimensions.
 *
 * Zeroing many whole pages of device memory drops them instead of writing: that is what
 * makes 24 GiB of zeroed memory cost nothing. Only for device addresses: pinned memory
 * may be the program's own shared mapping.
 */
#define _GNU_SOURCE
#include "sim_capture.h"

#include <string.h>
#include <sys/mman.h>

#define DROP_FROM ((size_t)1 << 20)
#define PAGE ((size_t)1 << 16) /* a multiple of every page size */

static void zero(unsigned char *at, size_t bytes, bool device)
{
    size_t head = (PAGE - (uintptr_t)at % PAGE) % PAGE;

    if (!device || bytes < DROP_FROM) {
        memset(at, 0, bytes);
        return;
    }
    size_t whole = (bytes - head) / PAGE * PAGE;
    memset(at, 0, head);
    if (madvise(at + head, whole, MADV_DONTNEED) != 0)
        memset(at + head, 0, whole);
    memset(at + head + whole, 0, bytes - head - whole);
}

static void fill(unsigned char *at, uint32_t value, size_t width, size_t count, bool device)
{
    if (value == 0)
        zero(at, count * width, device);
    else if (width == 1)
        memset(at, (int)value, count);
    else
        for (size_t i = 0; i < count; i++)
            memcpy(at + i * width, &value, width); /* little-endian: the low bytes */
}

static CUresult set_now(CUdeviceptr to, size_t pitch, uint32_t value, size_t width, size_t count,
                        size_t rows)
{
    if (count == 0 || rows == 0)
        return CUDA_SUCCESS;
    if (to % width != 0 || count > SIZE_MAX / 4 / width || (rows > 1 && pitch < count * width))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned char *at = sim_bytes(to, (rows - 1) * pitch + count * width, false);
    if (!at)
        return CUDA_ERROR_INVALID_VALUE;
    bool device = sim_is_device_address(to);
    for (size_t y = 0; y < rows; y++)
        fill(at + y * pitch, value, width, count, device);
    return CUDA_SUCCESS;
}

CUresult sim_memset_run(const CUDA_MEMSET_NODE_PARAMS_v2 *set)
{
    if (set->elementSize != 1 && set->elementSize != 2 && set->elementSize != 4)
        return CUDA_ERROR_INVALID_VALUE;
    return set_now(set->dst, set->pitch, set->value, set->elementSize, set->width, set->height);
}

static CUresult set(CUdeviceptr to, size_t pitch, uint32_t value, size_t width, size_t count,
                    size_t rows, CUstream stream)
{
    struct sim_context *context = NULL;
    CUgraphNodeParams params;
    CUresult rc = sim_stream_context(stream, &context);

    if (rc != CUDA_SUCCESS)
        return rc;
    if (sim_gate_is_capturing()) {
        memset(&params, 0, sizeof params);
        params.type = CU_GRAPH_NODE_TYPE_MEMSET;
        params.memset = (CUDA_MEMSET_NODE_PARAMS_v2){.dst = to,
                                                     .pitch = pitch,
                                                     .value = value,
                                                     .elementSize = (unsigned int)width,
                                                     .width = count,
                                                     .height = rows};
        if (sim_capture_node(stream, context, &params, &rc))
            return rc;
    }
    return set_now(to, pitch, value, width, count, rows);
}

#define SET(symbol, parameters, call)                                                              \
    CUresult symbol parameters                                                                     \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        return call;                                                                               \
    }

/* All ten functions of one width. */
#define SETS(bits, type)                                                                           \
    SET(cuMemsetD##bits, (CUdeviceptr_v1 dstDevice, type value, unsigned int N),                   \
        set(dstDevice, 0, value, sizeof(type), N, 1, NULL))                                        \
    SET(cuMemsetD##bits##_v2, (CUdeviceptr dstDevice, type value, size_t N),                       \
        set(dstDevice, 0, value, sizeof(type), N, 1, NULL))                                        \
    SET(cuMemsetD##bits##_v2_ptds, (CUdeviceptr dstDevice, type value, size_t N),                  \
        set(dstDevice, 0, value, sizeof(type), N, 1, NULL))                                        \
    SET(cuMemsetD##bits##Async, (CUdeviceptr dstDevice, type value, size_t N, CUstream hStream),   \
        set(dstDevice, 0, value, sizeof(type), N, 1, hStream))                                     \
    SET(cuMemsetD##bits##Async_ptsz,                                                               \
        (CUdeviceptr dstDevice, type value, size_t N, CUstream hStream),                           \
        set(dstDevice, 0, value, sizeof(type), N, 1, hStream))                                     \
    SET(cuMemsetD2D##bits,                                                                         \
        (CUdeviceptr_v1 dstDevice, unsigned int dstPitch, type value, unsigned int Width,          \
         unsigned int Height),                                                                     \
        set(dstDevice, dstPitch, value, sizeof(type), Width, Height, NULL))                        \
    SET(cuMemsetD2D##bits##_v2,                                                                    \
        (CUdeviceptr dstDevice, size_t dstPitch, type value, size_t Width, size_t Height),         \
        set(dstDevice, dstPitch, value, sizeof(type), Width, Height, NULL))                        \
    SET(cuMemsetD2D##bits##_v2_ptds,                                                               \
        (CUdeviceptr dstDevice, size_t dstPitch, type value, size_t Width, size_t Height),         \
        set(dstDevice, dstPitch, value, sizeof(type), Width, Height, NULL))                        \
    SET(cuMemsetD2D##bits##Async,                                                                  \
        (CUdeviceptr dstDevice, size_t dstPitch, type value, size_t Width, size_t Height,          \
         CUstream hStream),                                                                        \
        set(dstDevice, dstPitch, value, sizeof(type), Width, Height, hStream))                     \
    SET(cuMemsetD2D##bits##Async_ptsz,                                                             \
        (CUdeviceptr dstDevice, size_t dstPitch, type value, size_t Width, size_t Height,          \
         CUstream hStream),                                                                        \
        set(dstDevice, dstPitch, value, sizeof(type), Width, Height, hStream))

SETS(8, unsigned char)
SETS(16, unsigned short)
SETS(32, unsigned int)
