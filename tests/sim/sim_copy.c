/*
 * Copies. They move the bytes before they return, on whatever stream.
 *
 * A device argument must lie in one live allocation (or in pinned host memory), else
 * INVALID_VALUE: a copy past the end is found, not performed. The unified functions take
 * any host address too.
 */
#include "sim_array.h"
#include "sim_capture.h"

#include <string.h>

static CUresult move(unsigned char *to, const unsigned char *from, size_t bytes)
{
    if (!to || !from)
        return CUDA_ERROR_INVALID_VALUE;
    memmove(to, from, bytes);
    return CUDA_SUCCESS;
}

/* True if the copy is not to be done now: a capture has taken it, or *rc says why not. */
static bool taken(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, CUresult *rc)
{
    struct sim_context *context = NULL;

    *rc = sim_stream_context(stream, &context);
    return *rc != CUDA_SUCCESS || sim_capture_copy(stream, context, to, from, bytes, rc) ||
           bytes == 0;
}

static CUresult to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    CUresult rc;

    if (taken(to, (uintptr_t)from, bytes, stream, &rc))
        return rc;
    return move(sim_bytes(to, bytes, false), from ? sim_bytes((uintptr_t)from, bytes, true) : NULL,
                bytes);
}

static CUresult to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    CUresult rc;

    if (taken((uintptr_t)to, from, bytes, stream, &rc))
        return rc;
    return move(to ? sim_bytes((uintptr_t)to, bytes, true) : NULL, sim_bytes(from, bytes, false),
                bytes);
}

static CUresult in_device(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    CUresult rc;

    if (taken(to, from, bytes, stream, &rc))
        return rc;
    return move(sim_bytes(to, bytes, false), sim_bytes(from, bytes, false), bytes);
}

static CUresult unified(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    CUresult rc;

    if (taken(to, from, bytes, stream, &rc))
        return rc;
    return move(sim_bytes(to, bytes, true), sim_bytes(from, bytes, true), bytes);
}

#define COPY(symbol, parameters, call)                                                             \
    CUresult symbol parameters                                                                     \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        return call;                                                                               \
    }
#define COPY_TWIN(symbol, twin, parameters, call)                                                  \
    COPY(symbol, parameters, call)                                                                 \
    COPY(twin, parameters, call)

COPY(cuMemcpyHtoD, (CUdeviceptr_v1 dstDevice, const void *srcHost, unsigned int ByteCount),
     to_device(dstDevice, srcHost, ByteCount, NULL))
COPY(cuMemcpyDtoH, (void *dstHost, CUdeviceptr_v1 srcDevice, unsigned int ByteCount),
     to_host(dstHost, srcDevice, ByteCount, NULL))
COPY(cuMemcpyDtoD, (CUdeviceptr_v1 dstDevice, CUdeviceptr_v1 srcDevice, unsigned int ByteCount),
     in_device(dstDevice, srcDevice, ByteCount, NULL))
COPY(cuMemcpyHtoDAsync,
     (CUdeviceptr_v1 dstDevice, const void *srcHost, unsigned int ByteCount, CUstream hStream),
     to_device(dstDevice, srcHost, ByteCount, hStream))
COPY(cuMemcpyDtoHAsync,
     (void *dstHost, CUdeviceptr_v1 srcDevice, unsigned int ByteCount, CUstream hStream),
     to_host(dstHost, srcDevice, ByteCount, hStream))
COPY(cuMemcpyDtoDAsync,
     (CUdeviceptr_v1 dstDevice, CUdeviceptr_v1 srcDevice, unsigned int ByteCount, CUstream hStream),
     in_device(dstDevice, srcDevice, ByteCount, hStream))

COPY_TWIN(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds,
          (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount),
          to_device(dstDevice, srcHost, ByteCount, NULL))
COPY_TWIN(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds,
          (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
          to_host(dstHost, srcDevice, ByteCount, NULL))
COPY_TWIN(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds,
          (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount),
          in_device(dstDevice, srcDevice, ByteCount, NULL))
COPY_TWIN(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz,
          (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
          to_device(dstDevice, srcHost, ByteCount, hStream))
COPY_TWIN(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz,
          (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
          to_host(dstHost, srcDevice, ByteCount, hStream))
COPY_TWIN(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz,
          (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
          in_device(dstDevice, srcDevice, ByteCount, hStream))
COPY_TWIN(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount),
          unified(dst, src, ByteCount, NULL))
COPY_TWIN(cuMemcpyAsync, cuMemcpyAsync_ptsz,
          (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
          unified(dst, src, ByteCount, hStream))
COPY_TWIN(cuMemcpyPeer, cuMemcpyPeer_ptds,
          (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
           size_t ByteCount),
          ((void)dstContext, (void)srcContext, in_device(dstDevice, srcDevice, ByteCount, NULL)))
COPY_TWIN(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz,
          (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
           size_t ByteCount, CUstream hStream),
          ((void)dstContext, (void)srcContext, in_device(dstDevice, srcDevice, ByteCount, hStream)))

/* --- boxes ---------------------------------------------------------------------- */

struct side {
    CUmemorytype type;
    uintptr_t host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z, pitch, height;
};

/* The first byte of the box on this side, NULL if any of it is out of bounds. */
static unsigned char *side_bytes(struct side *side, size_t width, size_t rows, size_t layers)
{
    CUdeviceptr base = side->type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)side->host : side->device;

    if (side->type == CU_MEMORYTYPE_ARRAY) {
        const size_t at[3] = {side->x, side->y, side->z}, extent[3] = {width, rows, layers};

        return sim_array_bytes(side->array, at, extent, &side->pitch, &side->height);
    }
    if (side->pitch == 0)
        side->pitch = side->x + width;
    if (side->height == 0)
        side->height = side->y + rows;
    if (base == 0 || side->pitch < width)
        return NULL;
    size_t first = (side->z * side->height + side->y) * side->pitch + side->x;
    size_t span = ((layers - 1) * side->height + rows - 1) * side->pitch + width;
    return sim_bytes(base + first, span, side->type != CU_MEMORYTYPE_DEVICE);
}

static CUresult box_move(struct side to, struct side from, size_t width, size_t rows, size_t layers)
{
    if (width == 0 || rows == 0 || layers == 0)
        return CUDA_SUCCESS;
    unsigned char *target = side_bytes(&to, width, rows, layers);
    const unsigned char *source = side_bytes(&from, width, rows, layers);
    if (!target || !source)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t z = 0; z < layers; z++)
        for (size_t y = 0; y < rows; y++)
            memmove(target + (z * to.height + y) * to.pitch,
                    source + (z * from.height + y) * from.pitch, width);
    return CUDA_SUCCESS;
}

/* A box into the parameters of a node. */
static bool box_taken(const struct side *to, const struct side *from, size_t width, size_t rows,
                      size_t layers, CUstream stream, CUresult *rc)
{
    struct sim_context *context = NULL;
    CUgraphNodeParams params;

    *rc = sim_stream_context(stream, &context);
    if (*rc != CUDA_SUCCESS)
        return true;
    if (!sim_gate_is_capturing())
        return false;
    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    params.memcpy.copyParams = (CUDA_MEMCPY3D){.srcMemoryType = from->type,
                                               .srcHost = (const void *)from->host,
                                               .srcDevice = from->device,
                                               .srcArray = from->array,
                                               .srcXInBytes = from->x,
                                               .srcY = from->y,
                                               .srcZ = from->z,
                                               .srcPitch = from->pitch,
                                               .srcHeight = from->height,
                                               .dstMemoryType = to->type,
                                               .dstHost = (void *)to->host,
                                               .dstDevice = to->device,
                                               .dstArray = to->array,
                                               .dstXInBytes = to->x,
                                               .dstY = to->y,
                                               .dstZ = to->z,
                                               .dstPitch = to->pitch,
                                               .dstHeight = to->height,
                                               .WidthInBytes = width,
                                               .Height = rows,
                                               .Depth = layers};
    return sim_capture_node(stream, context, &params, rc);
}

static CUresult box(struct side to, struct side from, size_t width, size_t rows, size_t layers,
                    CUstream stream)
{
    CUresult rc;

    return box_taken(&to, &from, width, rows, layers, stream, &rc)
               ? rc
               : box_move(to, from, width, rows, layers);
}

#define SIDE_2D(c, which)                                                                          \
    (struct side)                                                                                  \
    {                                                                                              \
        .type = (c)->which##MemoryType, .host = (uintptr_t)(c)->which##Host,                       \
        .device = (c)->which##Device, .array = (c)->which##Array, .x = (c)->which##XInBytes,       \
        .y = (c)->which##Y, .pitch = (c)->which##Pitch                                             \
    }
#define SIDE_3D(c, which)                                                                          \
    (struct side)                                                                                  \
    {                                                                                              \
        .type = (c)->which##MemoryType, .host = (uintptr_t)(c)->which##Host,                       \
        .device = (c)->which##Device, .array = (c)->which##Array, .x = (c)->which##XInBytes,       \
        .y = (c)->which##Y, .z = (c)->which##Z, .pitch = (c)->which##Pitch,                        \
        .height = (c)->which##Height                                                               \
    }
#define BOX_2D(stream)                                                                             \
    (pCopy ? box(SIDE_2D(pCopy, dst), SIDE_2D(pCopy, src), pCopy->WidthInBytes, pCopy->Height, 1,  \
                 stream)                                                                           \
           : CUDA_ERROR_INVALID_VALUE)
#define BOX_3D(stream)                                                                             \
    (pCopy ? box(SIDE_3D(pCopy, dst), SIDE_3D(pCopy, src), pCopy->WidthInBytes, pCopy->Height,     \
                 pCopy->Depth, stream)                                                             \
           : CUDA_ERROR_INVALID_VALUE)

CUresult sim_copy_run(const CUDA_MEMCPY3D *copy)
{
    return box_move(SIDE_3D(copy, dst), SIDE_3D(copy, src), copy->WidthInBytes, copy->Height,
                    copy->Depth);
}

COPY(cuMemcpy2D, (const CUDA_MEMCPY2D_v1 *pCopy), BOX_2D(NULL))
COPY(cuMemcpy2DUnaligned, (const CUDA_MEMCPY2D_v1 *pCopy), BOX_2D(NULL))
COPY(cuMemcpy2DAsync, (const CUDA_MEMCPY2D_v1 *pCopy, CUstream hStream), BOX_2D(hStream))
COPY(cuMemcpy3D, (const CUDA_MEMCPY3D_v1 *pCopy), BOX_3D(NULL))
COPY(cuMemcpy3DAsync, (const CUDA_MEMCPY3D_v1 *pCopy, CUstream hStream), BOX_3D(hStream))
COPY_TWIN(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D *pCopy), BOX_2D(NULL))
COPY_TWIN(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D *pCopy),
          BOX_2D(NULL))
COPY_TWIN(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz,
          (const CUDA_MEMCPY2D *pCopy, CUstream hStream), BOX_2D(hStream))
COPY_TWIN(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, (const CUDA_MEMCPY3D *pCopy), BOX_3D(NULL))
COPY_TWIN(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz,
          (const CUDA_MEMCPY3D *pCopy, CUstream hStream), BOX_3D(hStream))
COPY_TWIN(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, (const CUDA_MEMCPY3D_PEER *pCopy), BOX_3D(NULL))
COPY_TWIN(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz,
          (const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream), BOX_3D(hStream))
