/*
 * Stream-ordered allocation: the calls, on top of the pools.
 *
 * It belongs to the device, not to a context, and so outlives it. The pool is that of the
 * stream's device, whatever context is current. A free takes any pointer that cuMemFree
 * takes but NULL; memory of no pool is freed at once.
 */
#include "sim_pool.h"

static CUresult alloc_in(struct sim_pool *pool, CUdeviceptr *dptr, size_t bytes, CUstream stream,
                         const struct sim_context *context)
{
    CUdeviceptr address = 0;

    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = sim_pool_alloc(pool, bytes, sim_stream_identity(stream, context), &address);
    if (rc == CUDA_SUCCESS)
        *dptr = address;
    return rc;
}

static CUresult async_alloc(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
    struct sim_context *context = NULL;

    if (!dptr)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = sim_stream_context(stream, &context);
    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    rc = alloc_in(sim_pool_current(context->device), dptr, bytes, stream, context);
    sim_lock_drop();
    return rc;
}

static CUresult pool_alloc(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    struct sim_context *context = NULL;

    if (!dptr)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = sim_stream_context(stream, &context);
    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    rc = alloc_in(sim_pool_from(pool), dptr, bytes, stream, context);
    sim_lock_drop();
    return rc;
}

static CUresult async_free(CUdeviceptr dptr, CUstream stream)
{
    struct sim_context *context = NULL;
    struct sim_allocation found;
    bool freed = false;
    CUresult rc = sim_stream_context(stream, &context);

    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    if (sim_arena_find(dptr, &found) && found.base == dptr) {
        struct sim_pool *pool = sim_pool_of(found.owner);

        freed = pool ? sim_pool_free(pool, dptr, sim_stream_identity(stream, context))
                     : sim_arena_free(dptr);
    }
    sim_lock_drop();
    return freed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    SIM_ENTER(cuMemAllocAsync);
    return async_alloc(dptr, bytesize, hStream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    SIM_ENTER(cuMemAllocAsync_ptsz);
    return async_alloc(dptr, bytesize, sim_stream_twin(hStream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                 CUstream hStream)
{
    SIM_ENTER(cuMemAllocFromPoolAsync);
    return pool_alloc(dptr, bytesize, pool, hStream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                      CUstream hStream)
{
    SIM_ENTER(cuMemAllocFromPoolAsync_ptsz);
    return pool_alloc(dptr, bytesize, pool, sim_stream_twin(hStream));
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    SIM_ENTER(cuMemFreeAsync);
    return async_free(dptr, hStream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
    SIM_ENTER(cuMemFreeAsync_ptsz);
    return async_free(dptr, sim_stream_twin(hStream));
}
