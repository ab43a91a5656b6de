/*
 * Contexts: created ones, one primary per device, and each thread's stack of them.
 *
 * A handle is the address of a record that is never unmapped, so a destroyed context
 * that some thread still has current is found out (CONTEXT_IS_DESTROYED), not followed.
 * Records are used again only after many others. A live context costs
 * VRAMCAP_SIM_CONTEXT_MIB of its card; ending one frees its linear, pitched and managed
 * memory, never the device's own (stream-ordered memory, physical handles).
 */
#define _GNU_SOURCE
#include "sim_internal.h"
#include "sim_mps.h"

#include <stdlib.h>
#include <string.h>

#define STACK_DEPTH 32U
#define CHUNK 64U
#define MAX_CHUNKS 256U
#define REUSE_AFTER 256U

static struct sim_context primary[SIM_MAX_CARDS];
static struct sim_owner device_owner[SIM_MAX_CARDS];

/* All under sim_lock. */
static struct sim_context *chunk[MAX_CHUNKS];
static unsigned int chunks, chunk_used = CHUNK;
static struct sim_context *free_oldest, *free_newest;
static unsigned int free_count;
static uint64_t next_id = 1;

static __thread SIM_TLS struct sim_context *stack[STACK_DEPTH];
static __thread SIM_TLS unsigned int depth;

static void record_start(struct sim_context *context, CUdevice device, unsigned int flags,
                         unsigned int api_version)
{
    context->device = device;
    context->flags = flags;
    context->api_version = api_version;
    context->id = next_id++;
    memcpy(context->limit, sim_limit_default, sizeof context->limit);
    context->limit_bytes = 0;
    context->alias_of = NULL;
    context->cache_config = CU_FUNC_CACHE_PREFER_NONE;
    context->shared_config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
    context->owner.card = sim_device_card[device];
    context->owner.context = context;
}

void sim_contexts_initialise(void)
{
    for (unsigned int d = 0; d < sim_device_count; d++) {
        primary[d].primary = true;
        record_start(&primary[d], (CUdevice)d, primary[d].flags, 3020);
        device_owner[d].card = sim_device_card[d];
    }
}

struct sim_owner *sim_device_owner(CUdevice device)
{
    return &device_owner[device];
}

struct sim_context *sim_primary(CUdevice device)
{
    return &primary[device];
}

static bool is_alive(const struct sim_context *context)
{
    return __atomic_load_n(&context->alive, __ATOMIC_ACQUIRE) == 1;
}

/* With sim_lock held: the record behind a handle, dead or alive; NULL for any other address. */
static struct sim_context *record_of(CUcontext handle)
{
    uintptr_t address = (uintptr_t)handle;

    for (unsigned int d = 0; d < sim_device_count; d++)
        if (address == (uintptr_t)&primary[d])
            return &primary[d];
    for (unsigned int c = 0; c < chunks; c++) {
        uintptr_t first = (uintptr_t)chunk[c];

        if (address >= first && address < first + CHUNK * sizeof(struct sim_context) &&
            (address - first) % sizeof(struct sim_context) == 0)
            return &chunk[c][(address - first) / sizeof(struct sim_context)];
    }
    return NULL;
}

static CUresult context_from(CUcontext handle, struct sim_context **context)
{
    sim_lock_take();
    struct sim_context *record = record_of(handle);
    sim_lock_drop();
    if (!record)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!is_alive(record))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *context = record;
    return CUDA_SUCCESS;
}

struct sim_context *sim_context_from(CUcontext handle)
{
    struct sim_context *context = NULL;

    if (context_from(handle, &context) != CUDA_SUCCESS)
        return NULL;
    return context->alias_of ? context->alias_of : context;
}

CUresult sim_context_current(struct sim_context **context)
{
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!is_alive(stack[depth - 1]))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *context = stack[depth - 1];
    if ((*context)->alias_of)
        *context = (*context)->alias_of;
    return is_alive(*context) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* With sim_lock held. `sms`: asked for by execution affinity, or 0. */
static CUresult context_begin(struct sim_context *context, unsigned int sms)
{
    CUresult rc = sim_mps_context_enter(context->owner.card);

    if (rc != CUDA_SUCCESS)
        return rc;
    context->sms = sim_mps_context_sms(sms);
    context->cost_bytes = sim_mps_context_bytes(context->sms);
    int64_t bytes = (int64_t)context->cost_bytes;
    rc = sim_card_take(context->owner.card, (struct sim_delta){.used = bytes, .context = bytes});
    if (rc == CUDA_SUCCESS)
        __atomic_store_n(&context->alive, 1U, __ATOMIC_RELEASE);
    else
        sim_mps_context_leave(context->owner.card);
    return rc;
}

static void context_end(struct sim_context *context)
{
    __atomic_store_n(&context->alive, 0U, __ATOMIC_RELEASE);
    sim_objects_clear(context);
    sim_resources_clear(context);
    sim_owner_clear(&context->owner);
    int64_t bytes = (int64_t)(context->cost_bytes + context->limit_bytes);
    sim_card_give(context->owner.card, (struct sim_delta){.used = bytes, .context = bytes});
    sim_mps_context_leave(context->owner.card);
    memcpy(context->limit, sim_limit_default, sizeof context->limit);
    context->limit_bytes = 0;
}

static struct sim_context *record_new(void)
{
    struct sim_context *record = NULL;

    if (free_count > REUSE_AFTER) {
        record = free_oldest;
        free_oldest = record->next_free;
        free_count--;
    } else {
        if (chunk_used == CHUNK) {
            if (chunks == MAX_CHUNKS)
                return NULL;
            chunk[chunks] = calloc(CHUNK, sizeof **chunk);
            if (!chunk[chunks])
                return NULL;
            chunks++;
            chunk_used = 0;
        }
        record = &chunk[chunks - 1][chunk_used++];
    }
    record->next_free = NULL;
    return record;
}

static void record_free(struct sim_context *record)
{
    if (free_count == 0)
        free_oldest = record;
    else
        free_newest->next_free = record;
    free_newest = record;
    free_count++;
}

CUresult sim_context_create(CUcontext *handle, unsigned int flags, CUdevice device,
                            unsigned int api_version, unsigned int sms)
{
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (depth == STACK_DEPTH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_lock_take();
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_context *record = record_new();
    if (record) {
        record_start(record, device, flags, api_version);
        record->references = 1;
        rc = context_begin(record, sms);
        if (rc != CUDA_SUCCESS)
            record_free(record);
    }
    sim_lock_drop();
    if (rc != CUDA_SUCCESS)
        return rc;
    stack[depth++] = record;
    *handle = sim_context_handle(record);
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    SIM_ENTER(cuCtxCreate_v2);
    CUresult rc = sim_context_create(pctx, flags, dev, 3020, 0);

    SIM_LEAVE(cuCtxCreate_v2);
    return rc;
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    SIM_ENTER(cuCtxCreate);
    void *inner = sim_inner("cuCtxCreate_v2");
    if (inner) {
        CUresult (*create)(CUcontext *, unsigned int, CUdevice) = NULL;
        memcpy(&create, &inner, sizeof create);
        return create(pctx, flags, dev);
    }
    return sim_context_create(pctx, flags, dev, 3010, 0);
}

/* Multiprocessors asked for; of two parameters the last one counts. Only MPS knows execution
 * affinity (cuda.h, cuCtxCreate). */
static CUresult affinity_read(const CUexecAffinityParam *params, int count, unsigned int *sms)
{
    if (count < 0 || (count > 0 && !params))
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < count; i++) {
        if (params[i].type != CU_EXEC_AFFINITY_TYPE_SM_COUNT || !sim_mps_is_client())
            return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
        if (params[i].param.smCount.val == 0)
            return CUDA_ERROR_INVALID_VALUE;
        *sms = params[i].param.smCount.val;
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                        unsigned int flags, CUdevice dev)
{
    SIM_ENTER(cuCtxCreate_v3);
    unsigned int sms = 0;
    CUresult rc = affinity_read(paramsArray, numParams, &sms);
    return rc == CUDA_SUCCESS ? sim_context_create(pctx, flags, dev, 3020, sms) : rc;
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                        CUdevice dev)
{
    SIM_ENTER(cuCtxCreate_v4);
    unsigned int sms = 0;
    CUresult rc = CUDA_SUCCESS;

    if (ctxCreateParams && ctxCreateParams->cigParams)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (ctxCreateParams)
        rc = affinity_read(ctxCreateParams->execAffinityParams,
                           ctxCreateParams->numExecAffinityParams, &sms);
    return rc == CUDA_SUCCESS ? sim_context_create(pctx, flags, dev, 3020, sms) : rc;
}

/* Ends a created context and takes it off the calling thread's stack if it is on top. */
static CUresult context_destroy(struct sim_context *context)
{
    sim_lock_take();
    if (!is_alive(context)) {
        sim_lock_drop();
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    context_end(context);
    record_free(context);
    sim_lock_drop();
    if (depth > 0 && stack[depth - 1] == context)
        depth--;
    return CUDA_SUCCESS;
}

static CUresult destroy_by_handle(CUcontext ctx)
{
    struct sim_context *context = NULL;
    CUresult rc = context_from(ctx, &context);

    if (rc != CUDA_SUCCESS)
        return rc;
    return context->primary || context->alias_of ? CUDA_ERROR_INVALID_CONTEXT
                                                 : context_destroy(context);
}

CUresult cuCtxDestroy(CUcontext ctx)
{
    SIM_ENTER(cuCtxDestroy);
    return destroy_by_handle(ctx);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    SIM_ENTER(cuCtxDestroy_v2);
    return destroy_by_handle(ctx);
}

CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    SIM_ENTER(cuCtxAttach);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (!pctx || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    if (context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    sim_lock_take();
    context->references++;
    sim_lock_drop();
    *pctx = sim_context_handle(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext ctx)
{
    SIM_ENTER(cuCtxDetach);
    struct sim_context *context = NULL;
    CUresult rc = context_from(ctx, &context);

    if (rc != CUDA_SUCCESS)
        return rc;
    if (context->primary || context->alias_of || depth == 0 || stack[depth - 1] != context)
        return CUDA_ERROR_INVALID_CONTEXT;
    sim_lock_take();
    bool last = --context->references == 0;
    sim_lock_drop();
    return last ? context_destroy(context) : CUDA_SUCCESS;
}

static CUresult push(CUcontext ctx)
{
    struct sim_context *context = NULL;
    CUresult rc = context_from(ctx, &context);

    if (rc != CUDA_SUCCESS)
        return rc;
    if (depth == STACK_DEPTH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *pctx)
{
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (pctx)
        *pctx = sim_context_handle(stack[depth]);
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
    SIM_ENTER(cuCtxPushCurrent);
    return push(ctx);
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    SIM_ENTER(cuCtxPushCurrent_v2);
    return push(ctx);
}

CUresult cuCtxPopCurrent(CUcontext *pctx)
{
    SIM_ENTER(cuCtxPopCurrent);
    return pop(pctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    SIM_ENTER(cuCtxPopCurrent_v2);
    return pop(pctx);
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    SIM_ENTER(cuCtxSetCurrent);
    struct sim_context *context = NULL;

    if (!ctx) {
        depth -= depth > 0;
        return CUDA_SUCCESS;
    }
    CUresult rc = context_from(ctx, &context);
    if (rc != CUDA_SUCCESS)
        return rc;
    depth += depth == 0;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    SIM_ENTER(cuCtxGetCurrent);
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = depth > 0 ? sim_context_handle(stack[depth - 1]) : NULL;
    return CUDA_SUCCESS;
}

/* --- primary contexts ------------------------------------------------------ */

CUresult sim_primary_retain(CUdevice device, struct sim_context **context)
{
    *context = &primary[device];
    CUresult rc = is_alive(*context) ? CUDA_SUCCESS : context_begin(*context, 0);
    if (rc == CUDA_SUCCESS)
        (*context)->references++;
    return rc;
}

CUresult sim_primary_release(CUdevice device)
{
    struct sim_context *context = &primary[device];

    if (context->references == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--context->references == 0 && is_alive(context))
        context_end(context);
    return CUDA_SUCCESS;
}

struct sim_context *sim_context_alias(CUdevice device)
{
    struct sim_context *record = record_new();

    if (record) {
        record_start(record, device, 0, 3020);
        record->alias_of = &primary[device];
        __atomic_store_n(&record->alive, 1U, __ATOMIC_RELEASE);
    }
    return record;
}

void sim_context_alias_end(struct sim_context *alias)
{
    __atomic_store_n(&alias->alive, 0U, __ATOMIC_RELEASE);
    record_free(alias);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    SIM_ENTER(cuDevicePrimaryCtxRetain);
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    struct sim_context *context = NULL;
    sim_lock_take();
    CUresult rc = sim_primary_retain(dev, &context);
    sim_lock_drop();
    if (rc == CUDA_SUCCESS)
        *pctx = sim_context_handle(context);
    SIM_LEAVE(cuDevicePrimaryCtxRetain);
    return rc;
}

static CUresult primary_release(CUdevice dev)
{
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    sim_lock_take();
    CUresult rc = sim_primary_release(dev);
    sim_lock_drop();
    return rc;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    SIM_ENTER(cuDevicePrimaryCtxRelease_v2);
    return primary_release(dev);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    SIM_ENTER(cuDevicePrimaryCtxRelease);
    void *inner = sim_inner("cuDevicePrimaryCtxRelease_v2");
    if (inner) {
        CUresult (*release)(CUdevice) = NULL;
        memcpy(&release, &inner, sizeof release);
        return release(dev);
    }
    return primary_release(dev);
}

/* Everything in it is gone; who retained it still has to release it. */
static CUresult primary_reset(CUdevice dev)
{
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    sim_lock_take();
    if (is_alive(&primary[dev]))
        context_end(&primary[dev]);
    sim_lock_drop();
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    SIM_ENTER(cuDevicePrimaryCtxReset);
    return primary_reset(dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    SIM_ENTER(cuDevicePrimaryCtxReset_v2);
    return primary_reset(dev);
}

static CUresult primary_flags(CUdevice dev, unsigned int flags)
{
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    sim_lock_take();
    primary[dev].flags = flags;
    sim_lock_drop();
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    SIM_ENTER(cuDevicePrimaryCtxSetFlags);
    return primary_flags(dev, flags);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    SIM_ENTER(cuDevicePrimaryCtxSetFlags_v2);
    return primary_flags(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    SIM_ENTER(cuDevicePrimaryCtxGetState);
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    sim_lock_take();
    *flags = primary[dev].flags;
    *active = is_alive(&primary[dev]);
    sim_lock_drop();
    return CUDA_SUCCESS;
}
