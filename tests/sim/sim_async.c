/*
 * Stream-ordered allocation: the calls, on top of the pools. Physical handles in their
 * simplest form: nothing can be mapped.
 *
 * Both belong to the device, not to a context, and so outlive it. The pool is that of the
 * stream's device, whatever context is current. A free takes any pointer that cuMemFree
 * takes but NULL; memory of no pool is freed at once.
 */
#include "sim_pool.h"

#include <stdlib.h>

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

/* --- physical handles ------------------------------------------------------- */

#define GRANULARITY (UINT64_C(1) << 21)

struct physical {
    CUmemGenericAllocationHandle handle;
    unsigned int card;
    struct sim_delta cost;
    struct physical *next;
};

/* sim_lock */
static struct physical *physicals;
static CUmemGenericAllocationHandle next_handle = 0x1000;

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    SIM_ENTER(cuMemGetAllocationGranularity);
    if (!granularity || !prop || (unsigned int)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

/* Needs no context: the device is in the properties. Host locations cost the card nothing. */
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    SIM_ENTER(cuMemCreate);
    if (!handle || !prop || flags != 0 || size == 0 || size % GRANULARITY != 0 || size > INT64_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    bool device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (device && !sim_device_valid(prop->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    struct physical *physical = calloc(1, sizeof *physical);
    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (device) {
        physical->card = sim_device_card[prop->location.id];
        physical->cost = (struct sim_delta){.used = (int64_t)size, .alloc = (int64_t)size};
    }
    sim_lock_take();
    CUresult rc = sim_card_take(physical->card, physical->cost);
    if (rc == CUDA_SUCCESS) {
        physical->handle = next_handle++;
        physical->next = physicals;
        physicals = physical;
        *handle = physical->handle;
    }
    sim_lock_drop();
    if (rc != CUDA_SUCCESS)
        free(physical);
    return rc;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(cuMemRelease);
    struct physical *found = NULL;

    sim_lock_take();
    for (struct physical **at = &physicals; *at; at = &(*at)->next) {
        if ((*at)->handle == handle) {
            found = *at;
            *at = found->next;
            sim_card_give(found->card, found->cost);
            break;
        }
    }
    sim_lock_drop();
    free(found);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
