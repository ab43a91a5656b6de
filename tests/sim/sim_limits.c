/*
 * Limits of a context, which take card memory: the context's cost is VRAMCAP_SIM_CONTEXT_MIB plus
 * what its limits need beyond their defaults.
 *
 * The rule is this simulator's own: the stack times all threads that the card can hold at once, the
 * bytes of the printf buffer and of the heap, 32 MiB per level of synchronisation, 4 KiB per pending
 * launch, per-block memory times all blocks; the sum to the page. A limit below its default saves nothing. One that finds no room
 * leaves the old value.
 */
#include "sim_internal.h"

#define THREADS_PER_SM UINT64_C(2048)
#define STACK_LARGEST ((size_t)512 << 10)
#define DEPTH_LARGEST ((size_t)24)
#define BYTES_PER_LEVEL (UINT64_C(32) << 20)
#define BYTES_PER_LAUNCH (UINT64_C(4) << 10)
#define LIMIT_PER_BLOCK 10 /* CU_LIMIT_PER_BLOCK_MEMORY_SIZE, since 13.5 */
#define BLOCKS_PER_SM UINT64_C(32)

const size_t sim_limit_default[SIM_LIMITS] = {
    [CU_LIMIT_STACK_SIZE] = 1024,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
    [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 128,
};

/* Bytes per unit of the limit. */
static uint64_t unit_of(unsigned int limit)
{
    switch (limit) {
    case CU_LIMIT_STACK_SIZE:
        return SIM_SM_COUNT * THREADS_PER_SM;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
    case CU_LIMIT_MALLOC_HEAP_SIZE:
        return 1;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
        return BYTES_PER_LEVEL;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
        return BYTES_PER_LAUNCH;
    case LIMIT_PER_BLOCK:
        return SIM_SM_COUNT * BLOCKS_PER_SM;
    default:
        return 0;
    }
}

/* What all limits need beyond their defaults; UINT64_MAX if that is more than any card has. */
static uint64_t extra_of(const size_t values[SIM_LIMITS])
{
    uint64_t sum = 0, page = sim_config.page_bytes;

    for (unsigned int l = 0; l < SIM_LIMITS; l++) {
        uint64_t part = 0;

        if (values[l] <= sim_limit_default[l])
            continue;
        if (__builtin_mul_overflow((uint64_t)(values[l] - sim_limit_default[l]), unit_of(l),
                                   &part) ||
            part > UINT64_C(1) << 46)
            return UINT64_MAX;
        sum += part;
    }
    return (sum + page - 1) / page * page;
}

/* Makes `value` what the hardware takes. */
static CUresult value_fit(CUlimit limit, size_t *value)
{
    switch ((int)limit) {
    case CU_LIMIT_STACK_SIZE:
        *value = *value > STACK_LARGEST ? *value : (*value + 15) / 16 * 16;
        return *value > STACK_LARGEST ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
        if (sim_config.capability >= 90)
            return CUDA_ERROR_UNSUPPORTED_LIMIT;
        return *value > DEPTH_LARGEST ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
        *value = *value > 128 ? 128 : *value;
        return CUDA_SUCCESS;
    default:
        return CUDA_SUCCESS;
    }
}

static bool limit_known(CUlimit limit)
{
    return (unsigned int)limit < (sim_config.version >= 13050 ? SIM_LIMITS : LIMIT_PER_BLOCK);
}

CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
    SIM_ENTER(cuCtxGetLimit);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (!pvalue)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    if (!limit_known(limit) ||
        (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH && sim_config.capability >= 90))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    sim_lock_take();
    *pvalue = context->limit[limit];
    sim_lock_drop();
    SIM_LEAVE(cuCtxGetLimit);
    return CUDA_SUCCESS;
}

/* With sim_lock held. */
static CUresult limit_set(struct sim_context *context, CUlimit limit, size_t value)
{
    size_t old = context->limit[limit];

    context->limit[limit] = value;
    uint64_t extra = extra_of(context->limit);
    int64_t more = (int64_t)(extra - context->limit_bytes);
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (extra != UINT64_MAX)
        rc = sim_card_take(context->owner.card, (struct sim_delta){.used = more, .context = more});
    if (rc == CUDA_SUCCESS)
        context->limit_bytes = extra;
    else
        context->limit[limit] = old;
    return rc;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    SIM_ENTER(cuCtxSetLimit);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (rc != CUDA_SUCCESS)
        return rc;
    if (!limit_known(limit))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    rc = value_fit(limit, &value);
    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    rc = limit_set(context, limit, value);
    sim_lock_drop();
    return rc;
}
