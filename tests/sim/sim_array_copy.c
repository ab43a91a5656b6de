/*
 * Copies between arrays and linear memory that take an offset in bytes. It counts from the array's
 * first byte, rows without padding. Boxes of arrays are in sim_copy.c.
 */
#include "sim_array.h"

#include <string.h>

/* `bytes` bytes of the array from `offset` on, which may be several whole rows. */
static unsigned char *array_part(CUarray array, size_t offset, size_t bytes)
{
    static const size_t origin[3] = {0, 0, 0}, nothing[3] = {0, 0, 0};
    size_t pitch = 0, height = 0;
    unsigned char *first = sim_array_bytes(array, origin, nothing, &pitch, &height);
    size_t all = 0;

    sim_lock_take();
    const struct sim_array *found = sim_array_of(array);
    if (found)
        all = found->shape.row * found->shape.rows * found->shape.slices;
    sim_lock_drop();
    return first && offset <= all && bytes <= all - offset ? first + offset : NULL;
}

static CUresult move(unsigned char *to, const unsigned char *from, size_t bytes, CUstream stream)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    if (rc != CUDA_SUCCESS || bytes == 0)
        return rc;
    if (!to || !from)
        return CUDA_ERROR_INVALID_VALUE;
    memmove(to, from, bytes);
    return CUDA_SUCCESS;
}

static CUresult host_to_array(CUarray to, size_t offset, const void *from, size_t bytes,
                              CUstream stream)
{
    return move(array_part(to, offset, bytes),
                from ? sim_bytes((uintptr_t)from, bytes, true) : NULL, bytes, stream);
}

static CUresult array_to_host(void *to, CUarray from, size_t offset, size_t bytes, CUstream stream)
{
    return move(to ? sim_bytes((uintptr_t)to, bytes, true) : NULL, array_part(from, offset, bytes),
                bytes, stream);
}

static CUresult device_to_array(CUarray to, size_t offset, CUdeviceptr from, size_t bytes)
{
    return move(array_part(to, offset, bytes), sim_bytes(from, bytes, false), bytes, NULL);
}

static CUresult array_to_device(CUdeviceptr to, CUarray from, size_t offset, size_t bytes)
{
    return move(sim_bytes(to, bytes, false), array_part(from, offset, bytes), bytes, NULL);
}

static CUresult array_to_array(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                               size_t bytes)
{
    return move(array_part(to, to_offset, bytes), array_part(from, from_offset, bytes), bytes,
                NULL);
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

COPY(cuMemcpyHtoA,
     (CUarray dstArray, unsigned int dstOffset, const void *srcHost, unsigned int ByteCount),
     host_to_array(dstArray, dstOffset, srcHost, ByteCount, NULL))
COPY(cuMemcpyAtoH,
     (void *dstHost, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount),
     array_to_host(dstHost, srcArray, srcOffset, ByteCount, NULL))
COPY(cuMemcpyHtoAAsync,
     (CUarray dstArray, unsigned int dstOffset, const void *srcHost, unsigned int ByteCount,
      CUstream hStream),
     host_to_array(dstArray, dstOffset, srcHost, ByteCount, hStream))
COPY(cuMemcpyAtoHAsync,
     (void *dstHost, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount,
      CUstream hStream),
     array_to_host(dstHost, srcArray, srcOffset, ByteCount, hStream))
COPY(cuMemcpyDtoA,
     (CUarray dstArray, unsigned int dstOffset, CUdeviceptr_v1 srcDevice, unsigned int ByteCount),
     device_to_array(dstArray, dstOffset, srcDevice, ByteCount))
COPY(cuMemcpyAtoD,
     (CUdeviceptr_v1 dstDevice, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount),
     array_to_device(dstDevice, srcArray, srcOffset, ByteCount))
COPY(cuMemcpyAtoA,
     (CUarray dstArray, unsigned int dstOffset, CUarray srcArray, unsigned int srcOffset,
      unsigned int ByteCount),
     array_to_array(dstArray, dstOffset, srcArray, srcOffset, ByteCount))

COPY_TWIN(cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds,
          (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount),
          host_to_array(dstArray, dstOffset, srcHost, ByteCount, NULL))
COPY_TWIN(cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds,
          (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount),
          array_to_host(dstHost, srcArray, srcOffset, ByteCount, NULL))
COPY_TWIN(cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz,
          (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount,
           CUstream hStream),
          host_to_array(dstArray, dstOffset, srcHost, ByteCount, hStream))
COPY_TWIN(cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz,
          (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream),
          array_to_host(dstHost, srcArray, srcOffset, ByteCount, hStream))
COPY_TWIN(cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds,
          (CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount),
          device_to_array(dstArray, dstOffset, srcDevice, ByteCount))
COPY_TWIN(cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds,
          (CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount),
          array_to_device(dstDevice, srcArray, srcOffset, ByteCount))
COPY_TWIN(cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds,
          (CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
           size_t ByteCount),
          array_to_array(dstArray, dstOffset, srcArray, srcOffset, ByteCount))
