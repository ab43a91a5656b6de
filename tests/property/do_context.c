/*
 * Contexts, created and primary, their limits, and what programs are told about memory.
 */
#include "tests/property/property.h"
#include "tests/property/worker.h"

static const CUlimit limits[LIMITS] = {CU_LIMIT_STACK_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE,
                                       CU_LIMIT_MALLOC_HEAP_SIZE};

/* Its limits before anybody sets them, and a stream; it is current. */
static int settle_in(struct actor *a, struct context *c)
{
    for (unsigned i = 0; i < LIMITS; i++) {
        size_t value = 0;

        GOOD(api.cuCtxGetLimit(&value, limits[i]));
        c->initial[i] = c->value[i] = value;
    }
    GOOD(api.cuStreamCreate(&c->stream, CU_STREAM_NON_BLOCKING));
    return 0;
}

int do_context_create(struct actor *a)
{
    static const char *const calls[] = {"cuCtxCreate_v2", "cuCtxCreate", "cuCtxCreate_v3",
                                        "cuCtxCreate_v4", NULL};
    CUcontext context = (CUcontext)(uintptr_t)POISON, popped;
    CUdevice card = draw(a, 3) == 0;
    CUresult result;
    bool hit;

    if (a->contexts == CONTEXTS)
        return do_context_destroy(a);
    arm(a, calls);
    switch (draw(a, 4)) {
    case 0:
        result = api.cuCtxCreate(&context, 0, card);
        break;
    case 1:
        result = api.cuCtxCreate_v3(&context, NULL, 0, 0, card);
        break;
    case 2:
        result = api.cuCtxCreate_v4(&context, NULL, 0, card);
        break;
    default:
        result = api.cuCtxCreate_v2(&context, 0, card);
    }
    hit = struck(a);
    if (result != CUDA_SUCCESS) {
        EXPECT(context == (CUcontext)(uintptr_t)POISON);
        return hit ? 0 : judge(a, (int)result, (unsigned)card, CONTEXT_BYTES);
    }
    a->current = ++a->contexts;
    a->context[a->current] = (struct context){.handle = context, .card = (unsigned)card};
    if (settle_in(a, here(a)) != 0)
        return 1;
    /* the thread's stack of contexts stays one deep */
    GOOD(api.cuCtxPopCurrent_v2(&popped));
    GOOD(api.cuCtxSetCurrent(context));
    return 0;
}

int do_context_use(struct actor *a)
{
    a->current = draw(a, a->contexts + 1);
    GOOD(api.cuCtxSetCurrent(here(a)->handle));
    return 0;
}

static void forget(struct actor *a, unsigned at)
{
    things_gone(a, a->context[at].handle);
    a->context[at] = a->context[a->contexts--];
    if (a->current == a->contexts + 1)
        a->current = at;
    else if (a->current == at)
        a->current = 0;
}

int context_end(struct actor *a, unsigned at)
{
    unsigned keep = a->current == at ? 0 : a->current;

    GOOD(api.cuCtxSetCurrent(a->context[keep].handle));
    GOOD(api.cuCtxDestroy_v2(a->context[at].handle));
    a->current = keep;
    forget(a, at);
    GOOD(api.cuCtxSetCurrent(here(a)->handle));
    return 0;
}

/* With all that is in it: linear, pitched and managed memory, arrays, external and opened memory, limits. */
int do_context_destroy(struct actor *a)
{
    static const char *const calls[] = {"cuCtxDestroy_v2", "cuCtxDestroy", NULL};
    unsigned at = a->contexts == 0 ? 0 : 1 + draw(a, a->contexts), keep;
    CUresult result;
    bool hit;

    if (at == 0)
        return 0;
    keep = a->current == at ? 0 : a->current;
    GOOD(api.cuCtxSetCurrent(a->context[keep].handle));
    a->current = keep;
    arm(a, calls);
    result = chance(a, 50) ? api.cuCtxDestroy_v2(a->context[at].handle)
                           : api.cuCtxDestroy(a->context[at].handle);
    hit = struck(a);
    if (result == CUDA_SUCCESS) {
        forget(a, at);
        loosen(a); /* pools look again at the next synchronise */
    } else {
        EXPECT(hit);
    }
    GOOD(api.cuCtxSetCurrent(here(a)->handle));
    return 0;
}

/* Retains the second card's primary context once more.  False: refused, which only one that was reset may be:
 * it is made anew.  *rc: 1 if it may not. */
static bool retain_again(struct actor *a, CUcontext *context, int *rc)
{
    bool lives = primary_lives(1);
    CUresult result = api.cuDevicePrimaryCtxRetain(context, 1);

    *rc = result == CUDA_SUCCESS ? 0
          : lives ? wrong(a, "a context that lives is retained: gave %d", (int)result)
                  : judge(a, (int)result, 1, CONTEXT_BYTES);
    return result == CUDA_SUCCESS;
}

/* The second card's primary context, which comes and goes; only where no other thread is in it. */
int do_primary(struct actor *a)
{
    static const char *const calls[] = {"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2",
                                        NULL};
    struct world *w = a->world;
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    CUresult result;
    bool hit;
    int rc;

    if (w->threads != 1)
        return 0;
    arm(a, calls);
    if (!w->primary[1]) {
        result = api.cuDevicePrimaryCtxRetain(&context, 1);
        hit = struck(a);
        if (result != CUDA_SUCCESS)
            return hit ? 0 : judge(a, (int)result, 1, CONTEXT_BYTES);
        w->primary[1] = true;
        GOOD(api.cuCtxSetCurrent(context));
        result = api.cuMemAlloc_v2(&pointer, 3 * MIB); /* which goes with it */
        if (result != CUDA_SUCCESS && judge(a, (int)result, 1, 4 * MIB) != 0)
            return 1;
        if (result == CUDA_SUCCESS)
            thing_add(a, LINEAR, 1, pointer, 4 * MIB)->context = context;
        GOOD(api.cuCtxSetCurrent(here(a)->handle));
        return 0;
    }
    if (chance(a, 30)) {
        struck(a);
        if (!retain_again(a, &context, &rc)) /* once more and back changes nothing */
            return rc;
        GOOD(api.cuDevicePrimaryCtxRelease(1));
        return 0;
    }
    struck(a);
    if (!retain_again(a, &context, &rc))
        return rc;
    GOOD(api.cuDevicePrimaryCtxRelease_v2(1));
    if (chance(a, 30)) {
        GOOD(api.cuDevicePrimaryCtxReset_v2(1));
        things_gone(a, context);
        loosen(a);
    }
    arm(a, calls);
    result = api.cuDevicePrimaryCtxRelease_v2(1);
    hit = struck(a);
    if (result == CUDA_SUCCESS) {
        things_gone(a, context);
        w->primary[1] = false;
        loosen(a);
    } else {
        EXPECT(hit);
    }
    return 0;
}

/* ---- limits ---- */

static const uint64_t unit_most[LIMITS] = {64, 24 * MIB, 24 * MIB};

static uint64_t unit_of(unsigned limit)
{
    return limit == 0 ? 132 * 2048 : 1; /* the simulated card's threads */
}

static uint64_t limit_cost(const struct context *c, unsigned limit, uint64_t value)
{
    return value <= c->initial[limit] ? 0
                                      : whole_pages((value - c->initial[limit]) * unit_of(limit));
}

/* Of contexts that are this thread's alone. */
int do_limit(struct actor *a)
{
    static const char *const calls[] = {"cuCtxSetLimit", "cuCtxGetLimit", NULL};
    struct context *c = here(a);
    unsigned limit = draw(a, LIMITS);
    uint64_t value;
    size_t is = 0;
    CUresult result;
    bool hit;

    if (a->current == 0)
        return do_context_use(a);
    value = chance(a, 30) ? c->initial[limit]
                          : c->initial[limit] + draw(a, 1 + (uint32_t)unit_most[limit]);
    arm(a, calls);
    result = api.cuCtxSetLimit(limits[limit], value);
    hit = struck(a);
    if (hit) { /* a stack is rounded up to 16 bytes a thread */
        loosen(a);
        not_read(a, 6 * MIB);
    }
    GOOD(api.cuCtxGetLimit(&is, limits[limit]));
    if (result != CUDA_SUCCESS && is != c->value[limit])
        return wrong(a, "a limit changed from %llu to %llu by a call that gave %d",
                     (unsigned long long)c->value[limit], (unsigned long long)is, (int)result);
    c->value[limit] = is;
    if (result == CUDA_SUCCESS || hit)
        return 0;
    if (value <= is)
        return wrong(a, "a limit of %llu was not set to %llu: gave %d", (unsigned long long)is,
                     (unsigned long long)value, (int)result);
    if (limit == 0) /* a stack: whole 16 bytes */
        value = (value + 15) / 16 * 16;
    return judge(a, (int)result, c->card, limit_cost(c, limit, value) - limit_cost(c, limit, is));
}

uint64_t limits_model(const struct context *c)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < LIMITS; i++)
        sum += limit_cost(c, i, c->value[i]);
    return sum;
}

/* Sets each limit to what it is, which is never refused: the hooks read it once more. */
int limits_again(struct actor *a)
{
    for (unsigned at = 1; at <= a->contexts; at++) {
        struct context *c = &a->context[at];

        GOOD(api.cuCtxSetCurrent(c->handle));
        for (unsigned i = 0; i < LIMITS; i++)
            GOOD(api.cuCtxSetLimit(limits[i], c->value[i]));
    }
    GOOD(api.cuCtxSetCurrent(here(a)->handle));
    return 0;
}

/* ---- views ---- */

int do_views(struct actor *a)
{
    struct world *w = a->world;
    unsigned card = here(a)->card;
    size_t free_bytes = 0, total = 0, whole = 0;
    uint64_t held;

    GOOD(api.cuMemGetInfo_v2(&free_bytes, &total));
    GOOD(api.cuDeviceTotalMem_v2(&whole, (CUdevice)card));
    EXPECT(total == w->ceiling[card] && whole == total && free_bytes <= total);
    held = ledger_charged(w->ledger, card);
    if (w->alone && held != UINT64_MAX && free_bytes != (held < total ? total - held : 0))
        return wrong(a, "free is %zu, the ledger holds %llu of %zu", free_bytes,
                     (unsigned long long)held, total);
    return 0;
}
