/*
 * Stream-ordered memory: allocation, release, and the calls that make, shrink, share and destroy pools.
 * What costs is what a pool has reserved (pool.h).  A call on a stream that captures makes a node, which
 * costs nothing here; a stream that cannot be asked is the driver's to judge.  No hook synchronises or
 * changes an argument.  The _ptsz twins read the default stream as the thread's own.
 */
#include <string.h>

#include "enforcer/rules.h"
#include "preload/charge.h"
#include "preload/context.h"
#include "preload/fault.h"
#include "preload/location.h"
#include "preload/overhead.h"
#include "preload/pool.h"
#include "preload/relaxed.h"
#include "preload/renew.h"
#include "preload/share.h"

/* ---- where a stream is ---- */

/* Its context, and that context's device; -1: cannot be had. */
static CUdevice ask_device(CUstream stream, CUcontext *context)
{
    CUcontext current = NULL, owner = NULL;
    CUdevice ordinal = -1;

    vcap_own.cuCtxGetCurrent(&current);
    if ((uintptr_t)stream <= 2 || vcap_own.cuStreamGetCtx == NULL) /* a default stream */
        owner = current;
    else if (vcap_own.cuStreamGetCtx(stream, &owner) != CUDA_SUCCESS)
        return -1;
    *context = owner;
    if (owner == NULL)
        return -1;
    if (owner == current)
        return vcap_own.cuCtxGetDevice(&ordinal) == CUDA_SUCCESS ? ordinal : -1;
    if (vcap_own.cuStreamGetDevice != NULL &&
        vcap_own.cuStreamGetDevice(stream, &ordinal) == CUDA_SUCCESS)
        return ordinal;
    return vcap_context_ordinal(owner);
}

/* ---- allocation ---- */

struct request {
    unsigned row;
    CUstream stream; /* by its plain name */
    size_t bytes;
    CUmemoryPool named; /* NULL: the current pool of the stream's device */
    CUresult (*give_back)(CUdeviceptr pointer, CUstream stream);
};

/* A pool that nobody entered: a default pool says where it is. */
static CUdevice ask_pool(CUmemoryPool pool, CUdevice otherwise)
{
    for (CUdevice ordinal = 0; ordinal < VCAP_DEVICES_MAX; ordinal++) {
        CUmemoryPool standard = NULL;

        if (vcap_own.cuDeviceGetDefaultMemPool == NULL ||
            vcap_own.cuDeviceGetDefaultMemPool(&standard, ordinal) != CUDA_SUCCESS)
            break;
        if (standard == pool)
            return ordinal;
    }
    return otherwise;
}

/* The pool that a request draws from, or NULL: the driver's answer is the answer. */
static struct vcap_pool *pool_of(const struct request *q, CUdevice ordinal)
{
    CUmemoryPool handle = q->named;
    struct vcap_pool *pool;

    if (handle == NULL && (vcap_own.cuDeviceGetMemPool == NULL || ordinal < 0 ||
                           vcap_own.cuDeviceGetMemPool(&handle, ordinal) != CUDA_SUCCESS))
        return NULL;
    if (q->named != NULL) {
        pool = vcap_pool_get(handle);
        if (pool == NULL)
            ordinal = ask_pool(handle, ordinal);
        vcap_pool_put(pool);
    }
    return ordinal < 0 ? NULL : vcap_pool_meet(handle, ordinal);
}

struct plan {
    enum vcap_stream_doing doing;
    struct vcap_pool_call call; /* pool NULL: nothing to charge */
};

/* CUDA_SUCCESS: the driver is to be called. */
static CUresult alloc_begin(struct plan *plan, const struct request *q)
{
    CUcontext context = NULL;
    struct vcap_pool *pool = NULL;
    struct vcap_relaxed r;
    CUdevice ordinal;
    CUresult result = CUDA_SUCCESS;

    memset(plan, 0, sizeof(*plan));
    if (vcap_mode_now() == VCAP_MODE_DENY)
        return vcap_deny(q->row);
    if (q->bytes == 0 || vcap_own.cuCtxGetCurrent == NULL || vcap_own.cuCtxGetDevice == NULL)
        return CUDA_SUCCESS;
    r = vcap_relaxed_begin();
    plan->doing = vcap_stream_ask(q->stream);
    if (plan->doing != VCAP_STREAM_CAPTURING) {
        ordinal = ask_device(q->stream, &context);
        pool = pool_of(q, ordinal);
        if (pool != NULL && context != NULL && ordinal >= 0)
            vcap_context_met(context, ordinal);
    }
    vcap_relaxed_end(r);
    if (pool == NULL)
        return CUDA_SUCCESS;
    if (vcap_pool_kind(pool) != VCAP_POOL_CHARGED) {
        vcap_pool_put(pool);
        return CUDA_SUCCESS;
    }
    plan->call = (struct vcap_pool_call){.pool = pool,
                                         .row = q->row,
                                         .stream = q->stream,
                                         .bytes = q->bytes,
                                         .give_back = q->give_back};
    if (plan->doing == VCAP_STREAM_NORMAL)
        result = vcap_pool_alloc_begin(&plan->call);
    else
        vcap_pool_alloc_unasked(&plan->call); /* settled if the driver allocates after all */
    if (result != CUDA_SUCCESS)
        vcap_pool_put(pool);
    return result;
}

static CUresult alloc_end(struct plan *plan, CUresult result, CUdeviceptr pointer)
{
    if (plan->call.pool == NULL)
        return result;
    result = vcap_pool_alloc_end(&plan->call, result, pointer);
    vcap_pool_put(plan->call.pool);
    return result;
}

static CUresult give_back(CUdeviceptr pointer, CUstream stream)
{
    return real.cuMemFreeAsync == NULL ? CUDA_ERROR_NOT_SUPPORTED
                                       : real.cuMemFreeAsync(pointer, stream);
}

/* One body for the four: `driver` is the driver's call with its own argument list. */
#define ALLOCATE(function, plain_stream, pool_, driver)                                            \
    const struct request request = {.row = VCAP_ROW_##function,                                    \
                                    .stream = plain_stream,                                        \
                                    .bytes = bytesize,                                             \
                                    .named = pool_,                                                \
                                    .give_back = give_back};                                       \
    CUdeviceptr pointer = 0;                                                                       \
    struct plan plan;                                                                              \
    CUresult result = alloc_begin(&plan, &request);                                                \
                                                                                                   \
    if (result != CUDA_SUCCESS)                                                                    \
        return result;                                                                             \
    result = driver;                                                                               \
    result = alloc_end(&plan, result, pointer);                                                    \
    if (result == CUDA_SUCCESS && dptr != NULL)                                                    \
        *dptr = pointer;                                                                           \
    return result

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    VCAP_ENTER(cuMemAllocAsync, (dptr, bytesize, hStream));
    ALLOCATE(cuMemAllocAsync, hStream, NULL,
             VCAP_CALL(cuMemAllocAsync, dptr != NULL ? &pointer : NULL, bytesize, hStream));
}

CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    VCAP_ENTER(cuMemAllocAsync_ptsz, (dptr, bytesize, hStream));
    ALLOCATE(cuMemAllocAsync_ptsz, vcap_stream_of_thread(hStream), NULL,
             VCAP_CALL(cuMemAllocAsync_ptsz, dptr != NULL ? &pointer : NULL, bytesize, hStream));
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                         CUstream hStream)
{
    VCAP_ENTER(cuMemAllocFromPoolAsync, (dptr, bytesize, pool, hStream));
    ALLOCATE(cuMemAllocFromPoolAsync, hStream, pool,
             VCAP_CALL(cuMemAllocFromPoolAsync, dptr != NULL ? &pointer : NULL, bytesize, pool,
                       hStream));
}

CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                              CUstream hStream)
{
    VCAP_ENTER(cuMemAllocFromPoolAsync_ptsz, (dptr, bytesize, pool, hStream));
    ALLOCATE(cuMemAllocFromPoolAsync_ptsz, vcap_stream_of_thread(hStream), pool,
             VCAP_CALL(cuMemAllocFromPoolAsync_ptsz, dptr != NULL ? &pointer : NULL, bytesize, pool,
                       hStream));
}

/* ---- release ---- */

/* Takes the record out; false: not ours, or a node that frees when its graph is launched. */
static bool free_begin(CUdeviceptr dptr, CUstream stream, struct vcap_live *record)
{
    if (vcap_stream_doing(stream) == VCAP_STREAM_CAPTURING || !vcap_live_take(dptr, record))
        return false;
    if (record->pool != NULL)
        vcap_pool_call_begin(record->pool);
    return true;
}

static CUresult free_end(CUresult result, bool ours, const struct vcap_live *record, unsigned row)
{
    vcap_release_seen(result, ours, row);
    return ours && record->pool != NULL ? vcap_pool_free_end(result, record)
                                        : vcap_release_end(result, ours, record);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    struct vcap_live record;
    bool ours;

    VCAP_ENTER(cuMemFreeAsync, (dptr, hStream));
    ours = free_begin(dptr, hStream, &record);
    return free_end(VCAP_CALL(cuMemFreeAsync, dptr, hStream), ours, &record,
                    VCAP_ROW_cuMemFreeAsync);
}

CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
    struct vcap_live record;
    bool ours;

    VCAP_ENTER(cuMemFreeAsync_ptsz, (dptr, hStream));
    ours = free_begin(dptr, vcap_stream_of_thread(hStream), &record);
    return free_end(VCAP_CALL(cuMemFreeAsync_ptsz, dptr, hStream), ours, &record,
                    VCAP_ROW_cuMemFreeAsync_ptsz);
}

/* ---- the life of a pool ---- */

/* What of a pool in this place is charged. */
static enum vcap_pool_kind kind_of(const CUmemLocation *place, CUmemAllocationType type)
{
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return vcap_process.config.managed == VCAP_MANAGED_IGNORE ? VCAP_POOL_FREE
                                                                  : VCAP_POOL_MANAGED;
    return vcap_location_is_device(place) ? VCAP_POOL_CHARGED : VCAP_POOL_FREE;
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    CUmemoryPool made = NULL;
    CUresult result;

    VCAP_ENTER(cuMemPoolCreate, (pool, poolProps));
    result = VCAP_CALL(cuMemPoolCreate, pool != NULL ? &made : NULL, poolProps);
    if (result != CUDA_SUCCESS || pool == NULL)
        return result;
    vcap_pool_enter(made, kind_of(&poolProps->location, poolProps->allocType),
                    vcap_location_device(&poolProps->location), poolProps->maxSize != 0);
    *pool = made;
    return result;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    struct vcap_pool *known;
    CUresult result;

    VCAP_ENTER(cuMemPoolDestroy, (pool));
    known = vcap_pool_get(pool);
    if (known != NULL)
        vcap_pool_destroy_begin(known);
    result = VCAP_CALL(cuMemPoolDestroy, pool);
    if (known != NULL)
        vcap_pool_destroy_end(known, result == CUDA_SUCCESS);
    vcap_pool_put(known);
    return result;
}

static struct vcap_pool *change_begin(CUmemoryPool handle)
{
    struct vcap_pool *pool = vcap_pool_get(handle);

    if (pool != NULL)
        vcap_pool_call_begin(pool);
    return pool;
}

static CUresult change_end(struct vcap_pool *pool, CUresult result, unsigned row)
{
    if (pool == NULL)
        return result;
    vcap_pool_call_end(pool);
    vcap_pools_touched();
    vcap_pool_settle(pool, row);
    vcap_pool_put(pool);
    return result;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    struct vcap_pool *known;

    VCAP_ENTER(cuMemPoolTrimTo, (pool, minBytesToKeep));
    known = change_begin(pool);
    return change_end(known, VCAP_CALL(cuMemPoolTrimTo, pool, minBytesToKeep),
                      VCAP_ROW_cuMemPoolTrimTo);
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct vcap_pool *known;

    VCAP_ENTER(cuMemPoolSetAttribute, (pool, attr, value));
    known = change_begin(pool);
    return change_end(known, VCAP_CALL(cuMemPoolSetAttribute, pool, attr, value),
                      VCAP_ROW_cuMemPoolSetAttribute);
}

/* ---- pools that are handed out for a place: host and managed ones are known by no other call ---- */

static void met(CUmemoryPool handle, const CUmemLocation *location, CUmemAllocationType type)
{
    struct vcap_pool *known = vcap_pool_get(handle);

    if (known == NULL)
        vcap_pool_enter(handle, kind_of(location, type), vcap_location_device(location), false);
    vcap_pool_put(known);
}

CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                        CUmemAllocationType type)
{
    CUresult result;

    VCAP_ENTER(cuMemGetDefaultMemPool, (pool_out, location, type));
    result = VCAP_CALL(cuMemGetDefaultMemPool, pool_out, location, type);
    if (result == CUDA_SUCCESS && pool_out != NULL && location != NULL)
        met(*pool_out, location, type);
    return result;
}

CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                 CUmemAllocationType type)
{
    CUresult result;

    VCAP_ENTER(cuMemGetMemPool, (pool, location, type));
    result = VCAP_CALL(cuMemGetMemPool, pool, location, type);
    if (result == CUDA_SUCCESS && pool != NULL && location != NULL)
        met(*pool, location, type);
    return result;
}

/* ---- another process's pool ---- */

CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                                    CUmemAllocationHandleType handleType,
                                                    unsigned long long flags)
{
    CUmemoryPool made = NULL;
    CUresult result;

    VCAP_ENTER(cuMemPoolImportFromShareableHandle, (pool_out, handle, handleType, flags));
    result = VCAP_CALL(cuMemPoolImportFromShareableHandle, pool_out != NULL ? &made : NULL, handle,
                       handleType, flags);
    if (result != CUDA_SUCCESS || pool_out == NULL)
        return result;
    vcap_pool_enter(made, VCAP_POOL_IMPORTED, -1, false);
    *pool_out = made;
    return result;
}

/* Where and how large memory of a pool is: neither the handle nor the data says it. */
static bool ask_pointer(CUdeviceptr pointer, CUdevice *ordinal, size_t *bytes)
{
    struct vcap_relaxed r = vcap_relaxed_begin();
    CUdeviceptr base = 0;
    bool told = vcap_own.cuMemGetAddressRange_v2 != NULL && vcap_own.cuCtxGetDevice != NULL &&
                vcap_own.cuMemGetAddressRange_v2(&base, bytes, pointer) == CUDA_SUCCESS &&
                vcap_own.cuCtxGetDevice(ordinal) == CUDA_SUCCESS;

    vcap_relaxed_end(r);
    return told;
}

CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr)
{
    CUdevice ordinal = -1;
    size_t bytes = 0;
    CUresult result;

    VCAP_ENTER(cuMemPoolExportPointer, (shareData_out, ptr));
    result = VCAP_CALL(cuMemPoolExportPointer, shareData_out, ptr);
    if (result == CUDA_SUCCESS && shareData_out != NULL && ask_pointer(ptr, &ordinal, &bytes))
        vcap_export_note(ptr, bytes, vcap_export_hash(shareData_out, sizeof(*shareData_out)));
    return result;
}

CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool,
                                        CUmemPoolPtrExportData *shareData)
{
    CUdeviceptr pointer = 0;
    struct vcap_pool *known;
    struct vcap_relaxed r;
    CUdevice ordinal = -1;
    size_t bytes = 0;
    CUresult result;
    bool made;

    VCAP_ENTER(cuMemPoolImportPointer, (ptr_out, pool, shareData));
    if (vcap_mode_now() == VCAP_MODE_DENY)
        return vcap_deny(VCAP_ROW_cuMemPoolImportPointer);
    /* ahead of the driver's call: a pool that is destroyed meanwhile is still an imported one */
    known = vcap_pool_get(pool);
    vcap_overhead_open_begin();
    result = VCAP_CALL(cuMemPoolImportPointer, ptr_out != NULL ? &pointer : NULL, pool, shareData);
    made = result == CUDA_SUCCESS && ptr_out != NULL;
    if (made && known != NULL && vcap_pool_kind(known) == VCAP_POOL_IMPORTED &&
        ask_pointer(pointer, &ordinal, &bytes))
        result = vcap_pool_imported(known, VCAP_ROW_cuMemPoolImportPointer, pointer, ordinal, bytes,
                                    vcap_export_hash(shareData, sizeof(*shareData)));
    vcap_overhead_open_end();
    vcap_pool_put(known);
    if (!made)
        return result;
    if (result == CUDA_SUCCESS) {
        *ptr_out = pointer;
        return result;
    }
    r = vcap_relaxed_begin();
    if (real.cuMemFree_v2 != NULL)
        real.cuMemFree_v2(pointer);
    vcap_relaxed_end(r);
    return result;
}

/* ---- waiting: where pools give back what is above their threshold ---- */

/*
 * One load, and the driver; only a process that freed to a pool or trimmed one goes on.  A driver that waits for
 * itself through our names comes the same short way, and only what would be begun after the wait is left out for it
 * (vcap_after_wait, vcap_overhead_look_sometimes), so that others pay nothing for being told apart.  A fault that
 * it sees is kept: the program's own call will be told the same.
 */
#define SYNCHRONISE(function, arguments)                                                           \
    do {                                                                                           \
        CUresult result;                                                                           \
                                                                                                   \
        if (!vcap_pools_may_shrink()) {                                                            \
            if (__builtin_expect(!vcap_bind(), 0))                                                 \
                return CUDA_ERROR_NO_DEVICE;                                                       \
            if (__builtin_expect(real.function == NULL, 0))                                        \
                return CUDA_ERROR_NOT_SUPPORTED;                                                   \
            result = real.function arguments;                                                      \
            vcap_after_wait(__builtin_return_address(0));                                          \
            vcap_overhead_look_sometimes(__builtin_return_address(0));                             \
            return vcap_fault_seen(result, VCAP_ROW_##function);                                   \
        }                                                                                          \
        VCAP_ENTER(function, arguments);                                                           \
        result = real.function arguments;                                                          \
        vcap_after_wait(__builtin_return_address(0));                                              \
        if (vcap_fault_seen(result, VCAP_ROW_##function) == CUDA_SUCCESS)                          \
            vcap_pools_settle(VCAP_ROW_##function);                                                \
        vcap_overhead_look_sometimes(__builtin_return_address(0));                                 \
        return result;                                                                             \
    } while (0)

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream)
{
    SYNCHRONISE(cuStreamSynchronize, (hStream));
}

CUresult CUDAAPI cuStreamSynchronize_ptsz(CUstream hStream)
{
    SYNCHRONISE(cuStreamSynchronize_ptsz, (hStream));
}

CUresult CUDAAPI cuEventSynchronize(CUevent hEvent)
{
    SYNCHRONISE(cuEventSynchronize, (hEvent));
}

CUresult CUDAAPI cuCtxSynchronize(void)
{
    SYNCHRONISE(cuCtxSynchronize, ());
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx)
{
    SYNCHRONISE(cuCtxSynchronize_v2, (ctx));
}
