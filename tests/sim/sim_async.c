/*
 * Stream-ordered allocation: the calls, on top of the pools.
 *
 * It belongs to the device, not to a context, and so outlives it. The pool is that of the
 * stream's device, whatever context is current. A free takes any pointer that cuMemFree
 * takes but NULL; memory of no pool is freed at once. On a capturing stream both become
 * nodes, and a free takes only what a graph allocates.
 */
#include "sim_capture.h"
#include "sim_pool.h"

#include <string.h>

/* In a capture the properties of the pool become those of a node. */
static bool alloc_captured(const CUmemPoolProps *properties, size_t bytes, CUstream stream,
                           struct sim_context *context, CUdeviceptr *dptr, CUresult *rc)
{
    CUgraphNodeParams params;

    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    params.alloc.poolProps = *properties;
    params.alloc.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    params.alloc.bytesize = bytes;
    if (!sim_capture_node(stream, context, &params, rc))
        return false;
    if (*rc == CUDA_SUCCESS)
        *dptr = params.alloc.dptr;
    return true;
}

/* With sim_lock held. `current`: that of the stream's device, whatever the handle. */
static struct sim_pool *pool_for(bool current, CUmemoryPool handle,
                                 const struct sim_context *context)
{
    return current ? sim_pool_current(context->device) : sim_pool_from(handle);
}

static CUresult async_alloc(CUdeviceptr *dptr, size_t bytes, bool current, CUmemoryPool handle,
                            CUstream stream)
{
    struct sim_context *context = NULL;
    CUdeviceptr address = 0;

    if (!dptr)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = sim_stream_context(stream, &context);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (sim_gate_is_capturing()) {
        CUmemPoolProps properties;

        sim_lock_take();
        struct sim_pool *model = pool_for(current, handle, context);
        if (model)
            properties = model->properties;
        sim_lock_drop();
        if (!model)
            return CUDA_ERROR_INVALID_VALUE;
        if (alloc_captured(&properties, bytes, stream, context, dptr, &rc))
            return rc;
    }
    sim_lock_take();
    struct sim_pool *pool = pool_for(current, handle, context);
    rc = pool ? sim_pool_alloc(pool, bytes, sim_stream_identity(stream, context), &address)
              : CUDA_ERROR_INVALID_VALUE;
    sim_lock_drop();
    if (rc == CUDA_SUCCESS)
        *dptr = address;
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
    if (sim_gate_is_capturing()) {
        CUgraphNodeParams params;

        memset(&params, 0, sizeof params);
        params.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
        params.free.dptr = dptr;
        if (sim_capture_node(stream, context, &params, &rc))
            return rc;
    }
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
    return async_alloc(dptr, bytesize, true, NULL, hStream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    SIM_ENTER(cuMemAllocAsync_ptsz);
    return async_alloc(dptr, bytesize, true, NULL, sim_stream_twin(hStream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                 CUstream hStream)
{
    SIM_ENTER(cuMemAllocFromPoolAsync);
    return async_alloc(dptr, bytesize, false, pool, hStream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                      CUstream hStream)
{
    SIM_ENTER(cuMemAllocFromPoolAsync_ptsz);
    return async_alloc(dptr, bytesize, false, pool, sim_stream_twin(hStream));
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
