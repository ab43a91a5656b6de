/*
 * The table of contexts.  Invariants:
 *   - an entry's overhead is charged exactly once, and released when the entry goes;
 *   - an entry or a record that was made after a destroying call reached the driver (birth not below the
 *     number drawn before that call) outlives the sweep of that call;
 *   - VMM handles and pool memory do not belong to a context and are not touched here.
 */
#include "preload/context.h"

#include <stdlib.h>
#include <string.h>

#include "enforcer/lock.h"
#include "enforcer/log.h"
#include "preload/charge.h"
#include "preload/limits.h"
#include "preload/live.h"
#include "preload/overhead.h"
#include "preload/renew.h"

#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(element) ((element)->lost = true)
#include <uthash.h>

struct context {
    CUcontext handle;
    CUdevice ordinal;
    enum vcap_context_kind kind;
    uint64_t overhead;
    bool sized;     /* measured when it came (overhead.h) */
    uint64_t share; /* of the measured overhead */
    uint64_t birth; /* of the last time the driver handed it out */
    bool lost;
    UT_hash_handle hh;
};

static struct vcap_lock lock;
static struct context *table;
uint64_t vcap_context_removals;
__thread struct vcap_context_met vcap_context_last;

uint64_t vcap_context_cost(void)
{
    uint64_t bytes = vcap_process.config.context_bytes;

    return bytes == VCAP_CONTEXT_AUTO ? 0 : bytes;
}

static struct context *find(CUcontext handle)
{
    struct context *found = NULL;

    HASH_FIND_PTR(table, &handle, found);
    return found;
}

/* Takes an entry out; the lock is held.  The caller frees it. */
static uint64_t take_out(struct context *c)
{
    HASH_DEL(table, c);
    __atomic_add_fetch(&vcap_context_removals, 1, __ATOMIC_ACQ_REL);
    return c->overhead;
}

/* True: entered with this overhead.  False: known already (or no memory for it), overhead not taken
 * over. */
static bool enter(CUcontext handle, CUdevice ordinal, enum vcap_context_kind kind,
                  uint64_t overhead)
{
    struct context *c, *fresh = calloc(1, sizeof(*fresh));
    uint64_t stale_overhead = 0;
    bool entered = false;
    CUdevice stale_ordinal = 0;

    vcap_lock_take(&lock);
    c = find(handle);
    if (c != NULL &&
        (c->ordinal != ordinal || c->kind != kind)) { /* an old handle given out again */
        stale_overhead = c->overhead;
        stale_ordinal = c->ordinal;
        take_out(c);
        free(c);
        c = NULL;
    }
    if (c != NULL) {
        c->birth = vcap_live_sweep_number();
    } else if (fresh != NULL) {
        fresh->handle = handle;
        fresh->ordinal = ordinal;
        fresh->kind = kind;
        fresh->overhead = overhead;
        fresh->birth = vcap_live_sweep_number();
        HASH_ADD_PTR(table, handle, fresh);
        entered = !fresh->lost;
        if (entered)
            fresh = NULL;
    }
    vcap_lock_drop(&lock);
    free(fresh);
    if (stale_overhead != 0)
        vcap_overhead_release(&vcap_process.device[stale_ordinal], stale_overhead);
    return entered;
}

void vcap_context_enter(CUcontext context, CUdevice ordinal, enum vcap_context_kind kind,
                        uint64_t overhead)
{
    vcap_ledger_follow_if_used();
    if (!enter(context, ordinal, kind, overhead) && overhead != 0)
        vcap_overhead_release(&vcap_process.device[ordinal], overhead);
}

bool vcap_context_is_primary(CUcontext context)
{
    const struct context *c;
    bool primary;

    vcap_lock_take(&lock);
    c = find(context);
    primary = c == NULL || c->kind != VCAP_CONTEXT_CREATED;
    vcap_lock_drop(&lock);
    return primary;
}

static unsigned count(CUdevice ordinal) /* the lock is held */
{
    const struct context *c, *next;
    unsigned found = 0;

    HASH_ITER(hh, table, c, next)
        found += c->ordinal == ordinal && c->kind != VCAP_CONTEXT_GREEN;
    return found;
}

unsigned vcap_context_count(CUdevice ordinal)
{
    unsigned found;

    vcap_lock_take(&lock);
    found = count(ordinal);
    vcap_lock_drop(&lock);
    return found;
}

/* True: nothing is left to be measured of this context. */
static bool size(CUcontext handle, CUdevice ordinal)
{
    struct context *c;
    uint64_t share = 0;
    bool sized;

    vcap_lock_take(&lock);
    c = find(handle);
    sized = c == NULL || c->sized;
    vcap_lock_drop(&lock);
    if (sized)
        return true;
    if (!vcap_overhead_context_came(ordinal, &share))
        return false;
    vcap_lock_take(&lock);
    c = find(handle);
    if (c != NULL && !c->sized) {
        c->sized = true;
        c->share = share;
    }
    vcap_lock_drop(&lock);
    return true;
}

void vcap_context_size(CUcontext context, CUdevice ordinal)
{
    const struct vcap_device *device = vcap_device(ordinal);

    if (device != NULL && vcap_overhead_is_measured(device))
        size(context, ordinal);
}

bool vcap_primary_is_known(CUdevice ordinal)
{
    const struct context *c, *next;
    bool known = false;

    vcap_lock_take(&lock);
    HASH_ITER(hh, table, c, next)
        known = known || (c->ordinal == ordinal && c->kind != VCAP_CONTEXT_CREATED);
    vcap_lock_drop(&lock);
    return known;
}

/* The cost of a device's primary context, if a green one holds it; it is the caller's then. */
static uint64_t take_from_green(CUdevice ordinal)
{
    struct context *c, *next;
    uint64_t overhead = 0;

    vcap_lock_take(&lock);
    HASH_ITER(hh, table, c, next) {
        if (c->ordinal != ordinal || c->kind != VCAP_CONTEXT_GREEN)
            continue;
        overhead += c->overhead;
        c->overhead = 0;
    }
    vcap_lock_drop(&lock);
    return overhead;
}

void vcap_context_meet(CUcontext context, CUdevice ordinal)
{
    uint64_t seen = __atomic_load_n(&vcap_context_removals, __ATOMIC_ACQUIRE),
             cost = vcap_context_cost();
    struct vcap_device *device;
    bool known;

    vcap_lock_take(&lock);
    known = find(context) != NULL;
    vcap_lock_drop(&lock);
    device = vcap_device(ordinal);
    if (!known && device != NULL) {
        uint64_t charged = cost == 0 ? 0 : take_from_green(ordinal);

        if (charged != 0)
            cost = charged;
        else if (cost != 0 && vcap_overhead_charge(device, VCAP_ROW_cuDevicePrimaryCtxRetain, cost,
                                                   true) != CUDA_SUCCESS)
            cost = 0;
        vcap_context_enter(context, ordinal, VCAP_CONTEXT_PRIMARY, cost);
    }
    /* one that could not be measured (not current here, a call under way) is met again */
    if (device != NULL && vcap_overhead_is_measured(device) && !size(context, ordinal))
        return;
    vcap_context_last.context = context;
    vcap_context_last.removals = seen;
}

CUdevice vcap_context_ordinal(CUcontext context)
{
    const struct context *c;
    CUdevice ordinal;

    vcap_lock_take(&lock);
    c = find(context);
    ordinal = c == NULL ? -1 : c->ordinal;
    vcap_lock_drop(&lock);
    return ordinal;
}

/* ---- going ---- */

struct going {
    CUcontext context; /* NULL: the primary one of ordinal */
    CUdevice ordinal;
};

static bool belongs(const struct vcap_live *record, void *arg)
{
    const struct going *going = arg;

    if (record->context == NULL) /* memory of a pool, physical memory: no context's */
        return false;
    if (going->context != NULL)
        return record->context == going->context;
    return record->device == (uint32_t)going->ordinal && vcap_context_is_primary(record->context);
}

static void freed(const struct vcap_live *record, void *arg)
{
    (void)arg;
    vcap_record_release(record);
}

static void remove_entry(const struct going *going, uint64_t before)
{
    struct context *c, *next, *out = NULL;
    uint64_t overhead = 0, share = 0;
    unsigned left;

    vcap_lock_take(&lock);
    HASH_ITER(hh, table, c, next) {
        bool it = going->context != NULL
                      ? c->handle == going->context
                      : c->ordinal == going->ordinal && c->kind != VCAP_CONTEXT_CREATED;

        if (!it || c->birth >= before)
            continue;
        overhead += take_out(c);
        share += c->share;
        c->hh.next = out;
        out = c;
    }
    left = count(going->ordinal);
    vcap_lock_drop(&lock);
    if (out != NULL)
        vcap_overhead_contexts_went(going->ordinal, left, share);
    for (; out != NULL; out = next) {
        next = out->hh.next;
        free(out);
    }
    if (overhead != 0)
        vcap_overhead_release(&vcap_process.device[going->ordinal], overhead);
}

void vcap_context_gone(CUcontext context, uint64_t before)
{
    struct going going = {.context = context};
    const struct context *c;

    vcap_live_sweep(before, belongs, freed, &going);
    vcap_limits_gone(context, -1, before);
    vcap_lock_take(&lock);
    c = find(context);
    going.ordinal = c == NULL ? 0 : c->ordinal;
    vcap_lock_drop(&lock);
    if (c != NULL)
        remove_entry(&going, before);
}

void vcap_primary_gone(CUdevice ordinal, uint64_t before, bool keeps_context)
{
    struct going going = {.context = NULL, .ordinal = ordinal};

    vcap_live_sweep(before, belongs, freed, &going);
    vcap_limits_gone(NULL, ordinal, before);
    if (!keeps_context)
        remove_entry(&going, before);
    else
        vcap_overhead_look(ordinal, 0);
}

void vcap_context_charge_again(void)
{
    struct context *c, *next;

    vcap_lock_take(&lock);
    HASH_ITER(hh, table, c, next) {
        const struct vcap_device *d = &vcap_process.device[c->ordinal];

        if (c->overhead != 0 && vcap_ledger_charge(vcap_ledger_now(), d->gpu, c->overhead,
                                                   VCAP_NO_LIMIT, VCAP_BOOK_ABOVE, NULL) == 0)
            vcap_ledger_note_overhead(vcap_ledger_now(), d->gpu, (int64_t)c->overhead);
    }
    vcap_lock_drop(&lock);
}

void vcap_context_forget(void)
{
    vcap_lock_forget(&lock);
    table = NULL; /* not freed: the parent's allocator may have been in the middle of anything */
    vcap_context_last.context = NULL;
    vcap_context_removals++;
}
