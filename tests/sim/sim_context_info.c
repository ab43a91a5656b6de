/*
 * What can be asked of, or set in, a context: its device, version, id, flags, cache
 * preferences, priorities; peer access. Limits are in sim_limits.c.
 *
 * Calls without a context argument work on the current one.
 */
#include "sim_capture.h"
#include "sim_mps.h"

static CUresult device_of(CUcontext ctx, CUdevice *device)
{
    struct sim_context *context = NULL;
    CUresult rc = CUDA_SUCCESS;

    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!ctx)
        rc = sim_context_current(&context);
    else if (!(context = sim_context_from(ctx)))
        rc = CUDA_ERROR_INVALID_CONTEXT;
    if (rc == CUDA_SUCCESS)
        *device = context->device;
    return rc;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    SIM_ENTER(cuCtxGetDevice);
    return device_of(NULL, device);
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    SIM_ENTER(cuCtxGetDevice_v2);
    return device_of(ctx, device);
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    SIM_ENTER(cuCtxGetApiVersion);
    struct sim_context *context = NULL;

    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    if (ctx)
        context = sim_context_from(ctx);
    else
        (void)sim_context_current(&context);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *version = context->api_version;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    SIM_ENTER(cuCtxGetId);
    struct sim_context *context = NULL;

    if (!ctxId)
        return CUDA_ERROR_INVALID_VALUE;
    if (ctx)
        context = sim_context_from(ctx);
    else
        (void)sim_context_current(&context);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *ctxId = context->id;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetExecAffinitySupport);
    if (!pi || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    *pi = sim_mps_is_client();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *pExecAffinity, CUexecAffinityType type)
{
    SIM_ENTER(cuCtxGetExecAffinity);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (!pExecAffinity)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT || !sim_mps_is_client())
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    pExecAffinity->type = type;
    pExecAffinity->param.smCount.val = context->sms;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    SIM_ENTER(cuCtxGetFlags);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc == CUDA_SUCCESS) {
        sim_lock_take();
        *flags = context->flags;
        sim_lock_drop();
    }
    return rc;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
    SIM_ENTER(cuCtxSetFlags);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (rc == CUDA_SUCCESS) {
        sim_lock_take();
        context->flags = flags;
        sim_lock_drop();
    }
    return rc;
}

static CUresult synchronize(CUcontext ctx)
{
    CUdevice device = 0;

    return device_of(ctx, &device);
}

static CUresult synchronize_all(CUcontext ctx)
{
    struct sim_context *context = NULL;
    CUresult rc = synchronize(ctx);

    if (rc == CUDA_SUCCESS && ctx)
        context = sim_context_from(ctx);
    else if (rc == CUDA_SUCCESS)
        rc = sim_context_current(&context);
    if (rc == CUDA_SUCCESS)
        rc = sim_capture_wait(NULL, context, true);
    if (rc == CUDA_SUCCESS)
        sim_pools_synchronised(0, UINT64_MAX);
    return rc;
}

CUresult cuCtxSynchronize(void)
{
    SIM_ENTER(cuCtxSynchronize);
    return synchronize_all(NULL);
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    SIM_ENTER(cuCtxSynchronize_v2);
    return synchronize_all(ctx);
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
    SIM_ENTER(cuCtxGetCacheConfig);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (!pconfig)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc == CUDA_SUCCESS) {
        sim_lock_take();
        *pconfig = context->cache_config;
        sim_lock_drop();
    }
    return rc;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    SIM_ENTER(cuCtxSetCacheConfig);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (rc == CUDA_SUCCESS) {
        sim_lock_take();
        context->cache_config = config;
        sim_lock_drop();
    }
    return rc;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *pConfig)
{
    SIM_ENTER(cuCtxGetSharedMemConfig);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (!pConfig)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc == CUDA_SUCCESS) {
        sim_lock_take();
        *pConfig = context->shared_config;
        sim_lock_drop();
    }
    return rc;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    SIM_ENTER(cuCtxSetSharedMemConfig);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (rc == CUDA_SUCCESS) {
        sim_lock_take();
        context->shared_config = config;
        sim_lock_drop();
    }
    return rc;
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    SIM_ENTER(cuCtxGetStreamPriorityRange);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (rc != CUDA_SUCCESS)
        return rc;
    if (leastPriority)
        *leastPriority = 0;
    if (greatestPriority)
        *greatestPriority = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
    SIM_ENTER(cuCtxResetPersistingL2Cache);
    return synchronize(NULL);
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    SIM_ENTER(cuCtxEnablePeerAccess);
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_context_from(peerContext) ? synchronize(NULL) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    SIM_ENTER(cuCtxDisablePeerAccess);
    return sim_context_from(peerContext) ? synchronize(NULL) : CUDA_ERROR_INVALID_CONTEXT;
}
