/*
 * Green contexts: a part of a device's multiprocessors under the primary context.
 *
 * A green context retains the primary one and costs nothing more. The context that
 * cuCtxFromGreenCtx gives has a handle of its own; whatever is done with it current is done in
 * the primary context. It is gone when its green context is.
 */
#include "sim_handles.h"
#include "sim_internal.h"
#include "sim_mps.h"

#include <stdlib.h>
#include <string.h>

#define PARTITION 8U /* multiprocessors that go together */

struct green {
    CUdevice device;
    unsigned int sms;
    uint64_t id;
    struct sim_context *context;
};

struct description {
    unsigned int sms;
};

static struct sim_handles greens, descriptions; /* sim_lock */
static uint64_t next_id = 1;

static void resource_fill(CUdevResource *resource, unsigned int sms)
{
    memset(resource, 0, sizeof *resource);
    resource->type = CU_DEV_RESOURCE_TYPE_SM;
    resource->sm.smCount = sms;
    resource->sm.minSmPartitionSize = PARTITION;
    resource->sm.smCoscheduledAlignment = PARTITION;
}

/* --- resources --------------------------------------------------------------------------- */

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    SIM_ENTER(cuDeviceGetDevResource);
    if (!resource)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    resource_fill(resource, sim_mps_sms());
    return CUDA_SUCCESS;
}

/* With sim_lock held: the green context whose context this is, or NULL. */
static struct green *green_behind(CUcontext handle)
{
    for (size_t i = 0; i < greens.room; i++) {
        struct green *green = greens.slot[i].record;

        if (green && sim_context_handle(green->context) == handle)
            return green;
    }
    return NULL;
}

CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource *resource, CUdevResourceType type)
{
    SIM_ENTER(cuCtxGetDevResource);
    if (!resource)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_context *context = sim_context_from(hCtx);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    sim_lock_take();
    const struct green *green = green_behind(hCtx);
    resource_fill(resource, green ? green->sms : context->sms);
    sim_lock_drop();
    return CUDA_SUCCESS;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups,
                                     const CUdevResource *input, CUdevResource *remaining,
                                     unsigned int useFlags, unsigned int minCount)
{
    SIM_ENTER(cuDevSmResourceSplitByCount);
    const unsigned int known = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING |
                               CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
    unsigned int step =
        (useFlags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) != 0 ? 2 : PARTITION;

    if (!nbGroups || !input || (useFlags & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (input->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (minCount > input->sm.smCount)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    unsigned int size = minCount == 0 ? step : (minCount + step - 1) / step * step;
    unsigned int groups = input->sm.smCount / size, all = input->sm.smCount;
    if (groups == 0)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (result && *nbGroups < groups)
        groups = *nbGroups;
    for (unsigned int g = 0; result && g < groups; g++)
        resource_fill(&result[g], size);
    *nbGroups = groups;
    if (remaining) {
        resource_fill(remaining, all - groups * size);
        if (remaining->sm.smCount == 0)
            memset(remaining, 0, sizeof *remaining);
    }
    return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources,
                                   unsigned int nbResources)
{
    SIM_ENTER(cuDevResourceGenerateDesc);
    unsigned int sms = 0;

    if (!phDesc || !resources || nbResources == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int r = 0; r < nbResources; r++) {
        if (resources[r].type != CU_DEV_RESOURCE_TYPE_SM)
            return CUDA_ERROR_INVALID_RESOURCE_TYPE;
        sms += resources[r].sm.smCount;
    }
    if (sms == 0 || sms > sim_mps_sms())
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    /* There is no call that ends a description: it stays, as in the driver. */
    struct description *description = malloc(sizeof *description);
    sim_lock_take();
    bool kept = description && sim_handles_put(&descriptions, (uintptr_t)description, description);
    sim_lock_drop();
    if (!kept) {
        free(description);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    description->sms = sms;
    *phDesc = (CUdevResourceDesc)(void *)description;
    return CUDA_SUCCESS;
}

/* --- green contexts ---------------------------------------------------------------------- */

static struct green *green_of(CUgreenCtx handle)
{
    return sim_handles_get(&greens, (uintptr_t)handle);
}

/* With sim_lock held. */
static CUresult green_new(CUdevice device, unsigned int sms, struct green **made)
{
    struct green *green = calloc(1, sizeof *green);
    struct sim_context *primary = NULL;

    if (!green)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = sim_primary_retain(device, &primary);
    if (rc != CUDA_SUCCESS) {
        free(green);
        return rc;
    }
    green->device = device;
    green->sms = sms;
    green->context = sim_context_alias(device);
    if (!green->context || !sim_handles_put(&greens, (uintptr_t)green, green)) {
        if (green->context)
            sim_context_alias_end(green->context);
        (void)sim_primary_release(device);
        free(green);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    green->id = next_id++;
    *made = green;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
                          unsigned int flags)
{
    SIM_ENTER(cuGreenCtxCreate);
    struct green *green = NULL;
    CUresult rc = CUDA_ERROR_INVALID_VALUE;

    if (!phCtx || flags != CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    sim_lock_take();
    const struct description *description = sim_handles_get(&descriptions, (uintptr_t)desc);
    if (description)
        rc = green_new(dev, description->sms, &green);
    sim_lock_drop();
    if (rc == CUDA_SUCCESS)
        *phCtx = (CUgreenCtx)(void *)green;
    return rc;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    SIM_ENTER(cuGreenCtxDestroy);
    sim_lock_take();
    struct green *green = green_of(hCtx);
    if (green) {
        sim_handles_take(&greens, (uintptr_t)green);
        sim_context_alias_end(green->context);
        (void)sim_primary_release(green->device);
    }
    sim_lock_drop();
    free(green);
    return green ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
    SIM_ENTER(cuCtxFromGreenCtx);
    if (!pContext)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    const struct green *green = green_of(hCtx);
    if (green)
        *pContext = sim_context_handle(green->context);
    sim_lock_drop();
    return green ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource *resource, CUdevResourceType type)
{
    SIM_ENTER(cuGreenCtxGetDevResource);
    if (!resource)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    sim_lock_take();
    const struct green *green = green_of(hCtx);
    if (green)
        resource_fill(resource, green->sms);
    sim_lock_drop();
    return green ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long *greenCtxId)
{
    SIM_ENTER(cuGreenCtxGetId);
    if (!greenCtxId)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    const struct green *green = green_of(greenCtx);
    if (green)
        *greenCtxId = green->id;
    sim_lock_drop();
    return green ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags,
                                int priority)
{
    SIM_ENTER(cuGreenCtxStreamCreate);
    struct sim_context *primary = NULL;

    if (!phStream || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    const struct green *green = green_of(greenCtx);
    if (green)
        primary = sim_primary(green->device);
    sim_lock_drop();
    if (!primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct sim_object *object = sim_object_new(primary, SIM_STREAM);
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->flags = flags;
    object->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    *phStream = (CUstream)(void *)object;
    return CUDA_SUCCESS;
}

/* All work is done when it is asked for: there is nothing to record or to wait for. */
static CUresult event_check(CUgreenCtx handle, CUevent event)
{
    const struct sim_object *object = (const struct sim_object *)(const void *)event;

    sim_lock_take();
    const struct green *green = green_of(handle);
    sim_lock_drop();
    if (!green)
        return CUDA_ERROR_INVALID_CONTEXT;
    return object && object->kind == SIM_EVENT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    SIM_ENTER(cuGreenCtxRecordEvent);
    return event_check(hCtx, hEvent);
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    SIM_ENTER(cuGreenCtxWaitEvent);
    return event_check(hCtx, hEvent);
}
