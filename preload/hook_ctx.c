/*
 * Contexts: their overhead when they come, what the driver frees when they go.  Creation reserves
 * the overhead first and is refused if it has no room; a destroying call is looked at only after
 * the driver has answered, since only the driver knows whether it was the last reference.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "preload/charge.h"
#include "preload/compute.h"
#include "preload/context.h"
#include "preload/fault.h"
#include "preload/graph.h"
#include "preload/overhead.h"
#include "preload/pool.h"
#include "preload/relaxed.h"

static void make_room(CUdevice ordinal, unsigned row)
{
    uint64_t cost = vcap_context_cost();

    if (cost != 0 && vcap_mode_now() != VCAP_MODE_DENY && vcap_device(ordinal) != NULL)
        vcap_make_room(ordinal, row, cost);
}

/* Reserves the overhead of one context.  *device stays NULL where there is nothing to reserve. */
static CUresult reserve(CUdevice ordinal, unsigned row, struct vcap_device **device, uint64_t *cost)
{
    vcap_compute_again();
    *device = NULL;
    *cost = vcap_context_cost();
    if (vcap_mode_now() == VCAP_MODE_DENY)
        return CUDA_SUCCESS; /* allocations are denied, contexts are not */
    *device = vcap_device(ordinal);
    if (*device == NULL || *cost == 0)
        return CUDA_SUCCESS;
    return vcap_overhead_charge(*device, row, *cost, false);
}

static CUresult created(CUresult result, CUcontext context, CUdevice ordinal, unsigned row,
                        struct vcap_device *device, uint64_t cost, bool counted)
{
    bool made = result == CUDA_SUCCESS && context != NULL;

    if (device == NULL)
        return result;
    if (made)
        vcap_context_enter(context, ordinal, VCAP_CONTEXT_CREATED, cost);
    /* not before: whoever measures counts the contexts that are known */
    vcap_overhead_call_end(device, counted);
    if (made) {
        vcap_context_size(context, ordinal);
        return result;
    }
    if (cost != 0)
        vcap_overhead_release(device, cost);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        vcap_device_full(device, ordinal, row, cost);
    return result;
}

/* One body for all that create one: `call` is the driver's call with its own argument list. */
#define CREATE(function, pctx, ordinal, call)                                                      \
    struct vcap_device *device;                                                                    \
    CUcontext context = NULL;                                                                      \
    uint64_t cost;                                                                                 \
    CUresult result;                                                                               \
    bool counted;                                                                                  \
                                                                                                   \
    make_room(ordinal, VCAP_ROW_##function);                                                       \
    result = reserve(ordinal, VCAP_ROW_##function, &device, &cost);                                \
                                                                                                   \
    if (result != CUDA_SUCCESS)                                                                    \
        return result;                                                                             \
    counted = device != NULL && vcap_overhead_call_begin(device);                                  \
    result = call;                                                                                 \
    result = created(result, context, ordinal, VCAP_ROW_##function, device, cost, counted);        \
    if (result == CUDA_SUCCESS && (pctx) != NULL)                                                  \
        *(pctx) = context;                                                                         \
    return result

CUresult CUDAAPI cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    VCAP_ENTER(cuCtxCreate, (pctx, flags, dev));
    CREATE(cuCtxCreate, pctx, dev,
           VCAP_CALL(cuCtxCreate, pctx != NULL ? &context : NULL, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    VCAP_ENTER(cuCtxCreate_v2, (pctx, flags, dev));
    CREATE(cuCtxCreate_v2, pctx, dev,
           VCAP_CALL(cuCtxCreate_v2, pctx != NULL ? &context : NULL, flags, dev));
}

/*
 * The caller's execution affinity with every count above the compute ceiling cut to it, in a copy that is
 * the caller's to free; NULL: as it is (nothing is above, or no memory for a copy: the driver cuts it too).
 */
static CUexecAffinityParam *clamped(const CUexecAffinityParam *params, int count, CUdevice ordinal)
{
    unsigned most = count > 0 && params != NULL ? vcap_compute_most(ordinal) : 0;
    CUexecAffinityParam *copy = NULL;

    for (int i = 0; most != 0 && i < count; i++) {
        if (params[i].type != CU_EXEC_AFFINITY_TYPE_SM_COUNT || params[i].param.smCount.val <= most)
            continue;
        if (copy == NULL) {
            copy = calloc((size_t)count, sizeof(*copy));
            if (copy == NULL)
                return NULL;
            memcpy(copy, params, (size_t)count * sizeof(*copy));
        }
        copy[i].param.smCount.val = most;
    }
    return copy;
}

static CUresult create_v3(CUcontext *pctx, CUexecAffinityParam *params, int count,
                          unsigned int flags, CUdevice dev)
{
    CREATE(cuCtxCreate_v3, pctx, dev,
           VCAP_CALL(cuCtxCreate_v3, pctx != NULL ? &context : NULL, params, count, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                                unsigned int flags, CUdevice dev)
{
    CUexecAffinityParam *cut;
    CUresult result;

    VCAP_ENTER(cuCtxCreate_v3, (pctx, paramsArray, numParams, flags, dev));
    cut = clamped(paramsArray, numParams, dev);
    result = create_v3(pctx, cut != NULL ? cut : paramsArray, numParams, flags, dev);
    free(cut);
    return result;
}

static CUresult create_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned int flags,
                          CUdevice dev)
{
    CREATE(cuCtxCreate_v4, pctx, dev,
           VCAP_CALL(cuCtxCreate_v4, pctx != NULL ? &context : NULL, params, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams,
                                unsigned int flags, CUdevice dev)
{
    CUctxCreateParams params;
    CUexecAffinityParam *cut = NULL;
    CUresult result;

    VCAP_ENTER(cuCtxCreate_v4, (pctx, ctxCreateParams, flags, dev));
    if (ctxCreateParams != NULL)
        cut = clamped(ctxCreateParams->execAffinityParams, ctxCreateParams->numExecAffinityParams,
                      dev);
    if (cut != NULL) {
        params = *ctxCreateParams;
        params.execAffinityParams = cut;
        ctxCreateParams = &params;
    }
    result = create_v4(pctx, ctxCreateParams, flags, dev);
    free(cut);
    return result;
}

CUresult CUDAAPI cuGLCtxCreate(CUcontext *pCtx, unsigned int Flags, CUdevice device_)
{
    VCAP_ENTER(cuGLCtxCreate, (pCtx, Flags, device_));
    CREATE(cuGLCtxCreate, pCtx, device_,
           VCAP_CALL(cuGLCtxCreate, pCtx != NULL ? &context : NULL, Flags, device_));
}

CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *pCtx, unsigned int Flags, CUdevice device_)
{
    VCAP_ENTER(cuGLCtxCreate_v2, (pCtx, Flags, device_));
    CREATE(cuGLCtxCreate_v2, pCtx, device_,
           VCAP_CALL(cuGLCtxCreate_v2, pCtx != NULL ? &context : NULL, Flags, device_));
}

CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *pCtx, unsigned int flags, CUdevice device_,
                                  unsigned int vdpDevice, void *vdpGetProcAddress)
{
    VCAP_ENTER(cuVDPAUCtxCreate, (pCtx, flags, device_, vdpDevice, vdpGetProcAddress));
    CREATE(cuVDPAUCtxCreate, pCtx, device_,
           VCAP_CALL(cuVDPAUCtxCreate, pCtx != NULL ? &context : NULL, flags, device_, vdpDevice,
                     vdpGetProcAddress));
}

CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *pCtx, unsigned int flags, CUdevice device_,
                                     unsigned int vdpDevice, void *vdpGetProcAddress)
{
    VCAP_ENTER(cuVDPAUCtxCreate_v2, (pCtx, flags, device_, vdpDevice, vdpGetProcAddress));
    CREATE(cuVDPAUCtxCreate_v2, pCtx, device_,
           VCAP_CALL(cuVDPAUCtxCreate_v2, pCtx != NULL ? &context : NULL, flags, device_, vdpDevice,
                     vdpGetProcAddress));
}

/* Pools keep their memory; the next synchronise looks whether they gave some back. */
static void context_gone(CUcontext ctx, uint64_t before)
{
    vcap_context_gone(ctx, before);
    if (vcap_pools_exist())
        vcap_pools_touched();
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx)
{
    uint64_t before;
    CUresult result;

    VCAP_ENTER(cuCtxDestroy_v2, (ctx));
    before = vcap_live_sweep_begin();
    result = VCAP_CALL(cuCtxDestroy_v2, ctx);
    if (result == CUDA_SUCCESS)
        context_gone(ctx, before);
    return result;
}

CUresult CUDAAPI cuCtxDestroy(CUcontext ctx)
{
    uint64_t before;
    CUresult result;

    VCAP_ENTER(cuCtxDestroy, (ctx));
    before = vcap_live_sweep_begin();
    result = VCAP_CALL(cuCtxDestroy, ctx);
    if (result == CUDA_SUCCESS)
        context_gone(ctx, before);
    return result;
}

/* Must be current to the calling thread; if it is not any more afterwards, that was the last
 * reference. */
CUresult CUDAAPI cuCtxDetach(CUcontext ctx)
{
    CUcontext current = NULL;
    uint64_t before;
    CUresult result;

    VCAP_ENTER(cuCtxDetach, (ctx));
    before = vcap_live_sweep_begin();
    result = VCAP_CALL(cuCtxDetach, ctx);
    if (result == CUDA_SUCCESS && vcap_own.cuCtxGetCurrent != NULL &&
        vcap_own.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != ctx)
        context_gone(ctx, before);
    return result;
}

/* 1 active, 0 not, -1 the driver does not say. */
static int primary_is_active(CUdevice dev)
{
    unsigned int flags = 0;
    int active = 0;

    if (vcap_own.cuDevicePrimaryCtxGetState == NULL ||
        vcap_own.cuDevicePrimaryCtxGetState(dev, &flags, &active) != CUDA_SUCCESS)
        return -1;
    return active != 0;
}

/*
 * Threads that retain a primary context at once make one context between them: the first reserves
 * its cost, the others come along, and the first to succeed hands the reservation over to the table
 * of contexts.
 */
static pthread_mutex_t retain_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    unsigned retaining; /* threads between begin and end */
    uint64_t reserved;  /* bytes; 0 = nothing, or handed over */
} primaries[VCAP_DEVICES_MAX];

void vcap_primaries_forget(void)
{
    const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

    memcpy(&retain_lock, &fresh, sizeof(fresh));
    memset(primaries, 0, sizeof(primaries));
}

static CUresult retain_begin(CUdevice dev, unsigned row)
{
    struct vcap_device *device;
    bool active = primary_is_active(dev) == 1; /* then nothing new is made, whoever made it */
    CUresult result = CUDA_SUCCESS;
    uint64_t cost = 0;

    if (!active)
        make_room(dev, row); /* calls the driver: without the lock */
    pthread_mutex_lock(&retain_lock);
    if (primaries[dev].retaining == 0 && !active && !vcap_primary_is_known(dev)) {
        result = reserve(dev, row, &device, &cost);
        primaries[dev].reserved = device != NULL && result == CUDA_SUCCESS ? cost : 0;
    }
    primaries[dev].retaining += result == CUDA_SUCCESS;
    pthread_mutex_unlock(&retain_lock);
    return result;
}

static void retain_end(CUresult result, CUcontext context, enum vcap_context_kind kind,
                       CUdevice dev, unsigned row)
{
    struct vcap_device *device = vcap_device(dev);
    uint64_t cost, left = 0;

    pthread_mutex_lock(&retain_lock);
    cost = primaries[dev].reserved;
    if (result == CUDA_SUCCESS && context != NULL && cost != 0) {
        primaries[dev].reserved = 0;
        vcap_context_enter(context, dev, kind, cost);
    }
    if (--primaries[dev].retaining == 0) {
        left = primaries[dev].reserved;
        primaries[dev].reserved = 0;
    }
    pthread_mutex_unlock(&retain_lock);
    if (left != 0 && device != NULL)
        vcap_overhead_release(device, left);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && cost != 0 && device != NULL)
        vcap_device_full(device, dev, row, cost);
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    struct vcap_device *device;
    CUcontext context = NULL;
    CUresult result = CUDA_SUCCESS;
    bool priced, counted;

    VCAP_ENTER(cuDevicePrimaryCtxRetain, (pctx, dev));
    vcap_compute_again();
    /* a device that the driver does not know has no price; making it ready asks the driver, without a lock */
    device =
        vcap_context_cost() != 0 || vcap_mode_now() != VCAP_MODE_DENY ? vcap_device(dev) : NULL;
    priced = vcap_context_cost() != 0 && device != NULL;
    if (priced)
        result = retain_begin(dev, VCAP_ROW_cuDevicePrimaryCtxRetain);
    if (result != CUDA_SUCCESS)
        return result;
    counted = device != NULL && vcap_overhead_call_begin(device);
    result = VCAP_CALL(cuDevicePrimaryCtxRetain, pctx != NULL ? &context : NULL, dev);
    if (priced)
        retain_end(result, context, VCAP_CONTEXT_PRIMARY, dev, VCAP_ROW_cuDevicePrimaryCtxRetain);
    if (result == CUDA_SUCCESS && context != NULL && vcap_mode_now() != VCAP_MODE_DENY)
        vcap_context_met(context, dev);
    if (counted) {
        vcap_overhead_call_end(device, counted);
        vcap_context_size(context, dev);
    }
    if (result == CUDA_SUCCESS && pctx != NULL)
        *pctx = context;
    return result;
}

static void reread_default(CUdevice ordinal, unsigned row)
{
    struct vcap_pool *pool = NULL;
    CUmemoryPool handle = NULL;
    struct vcap_relaxed r;

    if (vcap_own.cuDeviceGetDefaultMemPool == NULL || !vcap_pools_exist())
        return;
    r = vcap_relaxed_begin();
    if (vcap_own.cuDeviceGetDefaultMemPool(&handle, ordinal) == CUDA_SUCCESS)
        pool = vcap_pool_get(handle);
    vcap_relaxed_end(r);
    if (pool != NULL)
        vcap_pool_settle(pool, row);
    vcap_pool_put(pool);
}

/* Memory of pools outlives a context; only the device's default pool may have given some back. */
static void gone(CUdevice dev, uint64_t before, bool keeps_context, unsigned row)
{
    vcap_primary_gone(dev, before, keeps_context);
    reread_default(dev, row);
}

static CUresult primary_released(CUresult result, CUdevice dev, uint64_t before, unsigned row)
{
    if (result == CUDA_SUCCESS && primary_is_active(dev) == 0)
        gone(dev, before, false, row);
    return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    uint64_t before;

    VCAP_ENTER(cuDevicePrimaryCtxRelease_v2, (dev));
    before = vcap_live_sweep_begin();
    return primary_released(VCAP_CALL(cuDevicePrimaryCtxRelease_v2, dev), dev, before,
                            VCAP_ROW_cuDevicePrimaryCtxRelease_v2);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev)
{
    uint64_t before;

    VCAP_ENTER(cuDevicePrimaryCtxRelease, (dev));
    before = vcap_live_sweep_begin();
    return primary_released(VCAP_CALL(cuDevicePrimaryCtxRelease, dev), dev, before,
                            VCAP_ROW_cuDevicePrimaryCtxRelease);
}

static CUresult primary_reset(CUresult result, CUdevice dev, uint64_t before, unsigned row)
{
    if (result == CUDA_SUCCESS)
        gone(dev, before, primary_is_active(dev) != 0, row);
    return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    uint64_t before;

    VCAP_ENTER(cuDevicePrimaryCtxReset_v2, (dev));
    before = vcap_live_sweep_begin();
    return primary_reset(VCAP_CALL(cuDevicePrimaryCtxReset_v2, dev), dev, before,
                         VCAP_ROW_cuDevicePrimaryCtxReset_v2);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev)
{
    uint64_t before;

    VCAP_ENTER(cuDevicePrimaryCtxReset, (dev));
    before = vcap_live_sweep_begin();
    return primary_reset(VCAP_CALL(cuDevicePrimaryCtxReset, dev), dev, before,
                         VCAP_ROW_cuDevicePrimaryCtxReset);
}

/*
 * A green context retains its device's primary context and adds nothing that is counted.  What is
 * allocated with it current belongs to the primary one.
 */
CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
                                  unsigned int flags)
{
    CUgreenCtx green = NULL;
    CUresult result = CUDA_SUCCESS;
    bool priced;

    VCAP_ENTER(cuGreenCtxCreate, (phCtx, desc, dev, flags));
    priced = vcap_context_cost() != 0 && vcap_device(dev) != NULL;
    if (priced)
        result = retain_begin(dev, VCAP_ROW_cuGreenCtxCreate);
    if (result != CUDA_SUCCESS)
        return result;
    result = VCAP_CALL(cuGreenCtxCreate, phCtx != NULL ? &green : NULL, desc, dev, flags);
    if (priced)
        retain_end(result, (CUcontext)(void *)green, VCAP_CONTEXT_GREEN, dev,
                   VCAP_ROW_cuGreenCtxCreate);
    if (priced && result == CUDA_SUCCESS && green != NULL) /* no cost if it has not brought it up */
        vcap_context_enter((CUcontext)(void *)green, dev, VCAP_CONTEXT_GREEN, 0);
    if (result == CUDA_SUCCESS && phCtx != NULL)
        *phCtx = green;
    return result;
}

/* Its context is one more handle of the primary one: known from here on, without a cost of its own. */
CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
    CUcontext context = NULL;
    CUdevice dev;
    CUresult result;

    VCAP_ENTER(cuCtxFromGreenCtx, (pContext, hCtx));
    result = VCAP_CALL(cuCtxFromGreenCtx, pContext != NULL ? &context : NULL, hCtx);
    dev = result == CUDA_SUCCESS ? vcap_context_ordinal((CUcontext)(void *)hCtx) : -1;
    if (dev >= 0)
        vcap_context_enter(context, dev, VCAP_CONTEXT_PRIMARY, 0);
    if (result == CUDA_SUCCESS && pContext != NULL)
        *pContext = context;
    return result;
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    uint64_t before;
    CUresult result;

    VCAP_ENTER(cuGreenCtxDestroy, (hCtx));
    before = vcap_live_sweep_begin();
    result = VCAP_CALL(cuGreenCtxDestroy, hCtx);
    /* whose it was is not asked: where the primary context lives nothing is given back */
    for (CUdevice dev = 0; result == CUDA_SUCCESS && dev < VCAP_DEVICES_MAX; dev++)
        if (__atomic_load_n(&vcap_process.device[dev].state, __ATOMIC_ACQUIRE) == 1 &&
            primary_is_active(dev) == 0)
            gone(dev, before, false, VCAP_ROW_cuGreenCtxDestroy);
    return result;
}
