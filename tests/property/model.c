/*
 * The model: what things cost, and whether an answer is one that the rules allow.
 */
#include "tests/property/property.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/property/worker.h"

/* ---- drawing ---- */

uint32_t draw(struct actor *a, uint32_t below)
{
    a->random = a->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return below == 0 ? 0 : (uint32_t)((a->random >> 33) % below);
}

bool chance(struct actor *a, uint32_t percent)
{
    return draw(a, 100) < percent;
}

uint64_t draw_size(struct actor *a)
{
    static const uint32_t most[] = {600, 70000, 1u << 20, 3u << 20, 8u << 20, 16u << 20};
    uint32_t sort = draw(a, 6);

    if (chance(a, 10)) /* the edges */
        return (1u << 20) + draw(a, 3) - 1;
    return 1 + draw(a, most[sort]);
}

/* ---- what things cost ---- */

uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

uint64_t cost_linear(uint64_t bytes)
{
    return bytes <= MIB ? (bytes + 511) / 512 * 512 : whole_pages(bytes);
}

struct thing *thing_add(struct actor *a, enum kind kind, unsigned card, uint64_t number,
                        uint64_t bytes)
{
    struct thing *t = calloc(1, sizeof(*t));

    if (t == NULL)
        abort();
    t->kind = kind;
    t->card = card;
    t->number = number;
    t->bytes = bytes;
    t->next = a->things;
    a->things = t;
    a->count++;
    a->granted++;
    return t;
}

void thing_drop(struct actor *a, struct thing *thing)
{
    for (struct thing **at = &a->things; *at != NULL; at = &(*at)->next)
        if (*at == thing) {
            *at = thing->next;
            a->count--;
            free(thing);
            return;
        }
    abort();
}

struct thing *thing_pick(struct actor *a, enum kind kind)
{
    struct thing *found = NULL;
    uint32_t seen = 0;

    for (struct thing *t = a->things; t != NULL; t = t->next)
        if (t->kind == kind && (t->lent == 0 || kind == PHYSICAL) && draw(a, ++seen) == 0)
            found = t;
    return found;
}

void things_gone(struct actor *a, CUcontext context)
{
    struct thing *t, *next;

    for (t = a->things; t != NULL; t = next) {
        next = t->next;
        if (t->context == context)
            thing_drop(a, t);
    }
}

struct context *here(struct actor *a)
{
    return &a->context[a->current];
}

bool room_for(struct actor *a, uint64_t bytes)
{
    uint64_t sum = bytes;

    if (a->count > 150)
        return false;
    if (a->world->quota == 0)
        return true;
    for (const struct thing *t = a->things; t != NULL; t = t->next)
        sum += t->kind == POOL_POINTER ? whole_pages(t->size)
               : t->kind == GRAPH      ? t->sum
                                       : t->bytes;
    return sum <= a->world->quota;
}

uint64_t pool_reserved(CUmemoryPool pool)
{
    cuuint64_t bytes = 0;

    return api.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) == 0
               ? bytes
               : UINT64_MAX / 4;
}

static uint64_t reserved_by_device(unsigned card)
{
    CUmemoryPool pool = NULL;
    cuuint64_t graphs = 0;

    if (api.cuDeviceGetDefaultMemPool(&pool, (CUdevice)card) != CUDA_SUCCESS ||
        api.cuDeviceGetGraphMemAttribute((CUdevice)card, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                         &graphs) != CUDA_SUCCESS)
        return UINT64_MAX / 4;
    return pool_reserved(pool) + graphs;
}

bool primary_lives(unsigned card)
{
    unsigned flags = 0;
    int active = 0;

    return api.cuDevicePrimaryCtxGetState((CUdevice)card, &flags, &active) == CUDA_SUCCESS &&
           active != 0;
}

/* For whoever looks into a failure: PROPERTY_TRACE=FILE has the pools after each step. */
void trace(struct actor *a, uint64_t ledger, uint64_t model, unsigned card)
{
    static FILE *to;

    if (to == NULL)
        to = fopen(getenv("PROPERTY_TRACE"), "a");
    if (to == NULL)
        return;
    fprintf(to,
            "%llu %s card %u ledger %llu model %llu devices %llu:", (unsigned long long)a->steps,
            a->doing, card, (unsigned long long)ledger, (unsigned long long)model,
            (unsigned long long)reserved_by_device(card));
    for (const struct thing *t = a->things; t != NULL; t = t->next)
        if (t->kind == POOL && t->card == card)
            fprintf(to, " %s%llx=%llu/%llu", t->destroyed ? "-" : "", (unsigned long long)t->number,
                    (unsigned long long)(t->destroyed
                                             ? 0
                                             : pool_reserved((CUmemoryPool)(uintptr_t)t->number)),
                    (unsigned long long)t->live);
    fprintf(to, "\n");
    fflush(to);
}

static uint64_t cost_of(const struct thing *t)
{
    if (t->kind != POOL)
        return t->bytes;
    return t->destroyed ? t->live : pool_reserved((CUmemoryPool)(uintptr_t)t->number);
}

uint64_t model_bytes(struct world *w, unsigned card)
{
    uint64_t sum = reserved_by_device(card);

    sum += primary_lives(card) ? CONTEXT_BYTES : 0;
    for (unsigned n = 0; n < w->threads; n++) {
        const struct actor *a = &actors[n];

        for (const struct thing *t = a->things; t != NULL; t = t->next)
            sum += t->card == card ? cost_of(t) : 0;
        for (unsigned c = 1; c <= a->contexts; c++)
            sum += a->context[c].card == card ? CONTEXT_BYTES + limits_model(&a->context[c]) : 0;
    }
    for (const struct thing *t = w->handed; t != NULL; t = t->next)
        sum += t->card == card ? t->bytes : 0;
    return sum;
}

/* What the driver may hold of destroyed pools beyond their live pointers: the rest of their chunks. */
uint64_t model_slack(struct world *w, unsigned card)
{
    uint64_t sum = 0;

    for (unsigned n = 0; n < w->threads; n++)
        for (const struct thing *t = actors[n].things; t != NULL; t = t->next)
            sum += t->kind == POOL && t->destroyed && t->card == card ? t->size - t->live : 0;
    return sum;
}

uint64_t model_imported(struct world *w, unsigned card)
{
    uint64_t sum = 0;

    for (unsigned n = 0; n < w->threads; n++)
        for (const struct thing *t = actors[n].things; t != NULL; t = t->next)
            sum += t->card == card ? t->imported : 0;
    return sum;
}

/* ---- failures ---- */

static bool (*fail_next)(const char *symbol, unsigned nth, int code);

bool failures_find(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

    if (driver == NULL)
        driver = dlopen("libcuda.so.1", RTLD_NOW);
    fail_next = (bool (*)(const char *, unsigned, int))(uintptr_t)dlsym(driver, "vcapsim_fail");
    return fail_next != NULL;
}

void arm(struct actor *a, const char *const *symbols)
{
    static const int codes[] = {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
                                CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_UNKNOWN};
    unsigned count = 0, at;

    a->armed = false;
    if (!a->world->failures || !chance(a, 12))
        return;
    while (symbols[count] != NULL)
        count++;
    at = draw(a, count);
    a->armed = true;
    a->armed_symbol = symbols[at];
    fail_next(symbols[at], at == 0 ? 1 : 1 + draw(a, 3), codes[draw(a, 4)]);
}

void loosen(struct actor *a)
{
    __atomic_store_n(&a->world->loose, true, __ATOMIC_RELAXED);
}

void not_read(struct actor *a, uint64_t bytes)
{
    __atomic_fetch_add(&a->world->unread, bytes, __ATOMIC_RELAXED);
}

bool struck(struct actor *a)
{
    bool hit = a->armed && fail_next(NULL, 0, 0);

    a->armed = false;
    a->struck += hit;
    if (hit)
        not_read(a, 2 * MIB);
    return hit;
}

/* ---- judgement ---- */

int wrong(struct actor *a, const char *format, ...)
{
    va_list arguments;
    char text[512];

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    a->failed = true;
    fprintf(stderr, "seed %llu thread %u step %llu (%s%s%s): %s\n",
            (unsigned long long)a->world->seed, a->number, (unsigned long long)a->steps, a->doing,
            a->armed_symbol != NULL ? ", armed last: " : "",
            a->armed_symbol != NULL ? a->armed_symbol : "", text);
    return 1;
}

static void give_idle_back(struct actor *a, unsigned card)
{
    CUmemoryPool pool = NULL;

    if (api.cuDeviceGetDefaultMemPool(&pool, (CUdevice)card) == CUDA_SUCCESS)
        api.cuMemPoolTrimTo(pool, 0);
    for (struct thing *t = a->things; t != NULL; t = t->next)
        if (t->kind == POOL && !t->destroyed && t->card == card)
            api.cuMemPoolTrimTo((CUmemoryPool)(uintptr_t)t->number, 0);
    api.cuDeviceGraphMemTrim((CUdevice)card);
}

int judge(struct actor *a, int result, unsigned card, uint64_t needed)
{
    struct world *w = a->world;
    struct vcap_snapshot_gpu gpu;

    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return wrong(a, "gave %d, which nobody injected", result);
    a->refused++;
    if (w->quota != 0)
        return wrong(a, "refused %llu bytes on card %u though there is room for everybody",
                     (unsigned long long)needed, card);
    if (!w->alone)
        return 0;
    give_idle_back(a, card); /* whatever the program had idle must have been tried */
    if (!ledger_gpu(w->ledger, card, &gpu))
        return wrong(a, "no ledger");
    if (gpu.refusals <= w->refusals[card])
        return wrong(a, "refused, and not counted");
    w->refusals[card] = gpu.refusals;
    if (!w->loose && gpu.held_bytes + needed <= w->ceiling[card])
        return wrong(a, "false refusal: card %u holds %llu of %llu, asked for %llu", card,
                     (unsigned long long)gpu.held_bytes, (unsigned long long)w->ceiling[card],
                     (unsigned long long)needed);
    return 0;
}
