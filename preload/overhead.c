/*
 * Measuring and booking.  Invariants:
 *   - what is booked is never more than is certain.  Memory of which nobody says whether MPS counts it
 *     (managed: NVIDIA's guide speaks of pinned device memory only; imported; external) gives the measure a
 *     lower and an upper bound, and the booked figure moves only when it is outside;
 *   - nothing is measured while a call that takes memory is under way in this process (allocations, contexts,
 *     their limits, openings of another process's memory), for then charges and driver do not agree.  A release that is just being booked makes the figure too low until the next
 *     measuring, never too high;
 *   - the limit is the variable's.  A lower one of the server, or none, cannot be seen from here: figures
 *     that do not fit end the measuring, and the overhead is unknown from then on;
 *   - it is booked without asking for room: it has been taken already, and the GPU may be over.
 */
#include "preload/overhead.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "enforcer/kernel.h"
#include "enforcer/lock.h"
#include "enforcer/log.h"
#include "enforcer/rules.h"
#include "preload/context.h"
#include "preload/graph.h"
#include "preload/pool.h"
#include "preload/relaxed.h"
#include "preload/renew.h"

#define LOOK_NS UINT64_C(100000000)
#define TRIES 3

struct measured {
    bool known;     /* something was measured since the first context came */
    uint64_t bytes; /* booked */
    uint64_t mine;  /* the place in the ledger that bytes are charged in */
};

static struct vcap_lock lock; /* of table; the ledger's own locks are below it */
static struct measured table[VCAP_DEVICES_MAX];
uint32_t vcap_overhead_any, vcap_overhead_opening;

static CUdevice ordinal_of(const struct vcap_device *device)
{
    return (CUdevice)(device - vcap_process.device);
}

static bool booking(void)
{
    enum vcap_mode mode = vcap_mode_now();

    return mode == VCAP_MODE_ENFORCE || mode == VCAP_MODE_AUDIT;
}

void vcap_overhead_measure_from(struct vcap_device *device, uint64_t bytes)
{
    __atomic_store_n(&device->mps_bytes, bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&vcap_overhead_any, 1, __ATOMIC_RELAXED);
}

void vcap_overhead_unsure(struct vcap_device *device, int64_t delta)
{
    __atomic_fetch_add(&device->unsure_bytes, (uint64_t)delta, __ATOMIC_RELAXED);
}

/* ---- booking ---- */

/* 0, -ESTALE, -EOVERFLOW; the lock is held. */
static int book_here(struct measured *m, const struct vcap_device *device, uint64_t bytes)
{
    struct vcap_ledger *l = vcap_ledger_now();
    uint64_t here = vcap_ledger_mine(l), old = m->mine == here ? m->bytes : 0;
    bool above = false;
    int rc = 0;

    if (bytes > old)
        rc = vcap_ledger_charge_in(l, here, device->gpu, bytes - old, device->limit_bytes,
                                   VCAP_BOOK_ABOVE, &above);
    else if (!vcap_ledger_holds(l, here))
        rc = -ESTALE;
    if (rc != 0)
        return rc;
    vcap_ledger_note_overhead(l, device->gpu, (int64_t)(bytes - old));
    if (bytes < old)
        vcap_ledger_release_in(l, here, device->gpu, old - bytes);
    if (above && vcap_mode_now() != VCAP_MODE_AUDIT)
        vcap_ledger_over(l, device->gpu, bytes - old, "overhead");
    m->bytes = bytes;
    m->mine = here;
    m->known = true;
    return 0;
}

/* The booked figure becomes the nearest one between least and most. */
static bool book(struct vcap_device *device, uint64_t least, uint64_t most)
{
    struct measured *m = &table[ordinal_of(device)];

    for (int tries = 0;; tries++) {
        uint64_t bytes;
        int rc;

        vcap_lock_take(&lock);
        bytes = !m->known || m->bytes < least ? least : m->bytes > most ? most : m->bytes;
        rc = book_here(m, device, bytes);
        vcap_lock_drop(&lock);
        if (rc != -ESTALE || tries == TRIES || !vcap_slot_renew())
            return rc == 0;
    }
}

/* What was booked is given back, and the overhead is unknown from here on. */
static void give_up(struct vcap_device *device, uint64_t free_bytes)
{
    struct vcap_ledger *l = vcap_ledger_now();
    struct measured *m = &table[ordinal_of(device)];
    uint64_t limit = __atomic_exchange_n(&device->mps_bytes, 0, __ATOMIC_RELAXED);
    struct vcap_event event = {.kind = VCAP_LF_EVENT_MPS,
                               .gpu = device->gpu,
                               .bytes = limit,
                               .limit = vcap_device_ceiling(device),
                               .name = "free memory does not fit the limit"};

    if (limit == 0)
        return; /* another thread has */
    vcap_lock_take(&lock);
    if (m->known && m->mine == vcap_ledger_mine(l))
        vcap_ledger_release_in(l, m->mine, device->gpu, m->bytes);
    vcap_ledger_forget_overhead(l, device->gpu);
    m->bytes = 0;
    m->known = false;
    vcap_lock_drop(&lock);
    vcap_ledger_event(l, &event);
    vcap_log(
        VCAP_LOG_WARN,
        "GPU %d (%s): %llu MiB are free, which does not fit MPS's limit of %llu MiB; another one "
        "is in force, or none: overhead is unknown and not counted, vramcap's ceiling holds",
        (int)ordinal_of(device), device->name, (unsigned long long)(free_bytes >> 20),
        (unsigned long long)(limit >> 20));
}

/* ---- measuring ---- */

static bool quiet(const struct vcap_device *device, unsigned own)
{
    return __atomic_load_n(&device->in_flight, __ATOMIC_SEQ_CST) == own &&
           __atomic_load_n(&vcap_overhead_opening, __ATOMIC_SEQ_CST) == 0 &&
           !vcap_pools_busy(ordinal_of(device)) && !vcap_graphs_busy(ordinal_of(device));
}

static uint64_t charged_word(const struct vcap_device *device)
{
    const struct vcap_ledger *l = vcap_ledger_now();
    uint32_t slot = vcap_mine_slot(vcap_ledger_mine(l));

    return __atomic_load_n(&vcap_ledger_cell(l, slot, device->gpu)->charged, __ATOMIC_SEQ_CST);
}

void vcap_overhead_ask_begin(struct vcap_overhead_reading *reading, struct vcap_device *device,
                             unsigned own)
{
    reading->device = NULL;
    if (device == NULL || !vcap_overhead_is_measured(device) || !booking() || !quiet(device, own))
        return;
    reading->device = device;
    reading->charged = charged_word(device);
    reading->own = own;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

bool vcap_overhead_ask_end(const struct vcap_overhead_reading *reading, uint64_t free_bytes,
                           uint64_t total)
{
    struct vcap_device *device = reading->device;
    const struct vcap_ledger *l = vcap_ledger_now();
    const struct vcap_lf_cell *cell;
    uint64_t limit, used, charged, booked, unsure, imported, least, most, sane;
    const struct measured *m;
    unsigned contexts;
    bool known, whole;

    if (device == NULL || !vcap_ledger_owns(l))
        return false;
    m = &table[ordinal_of(device)];
    cell = vcap_ledger_cell(l, vcap_mine_slot(vcap_ledger_mine(l)), device->gpu);
    limit = __atomic_load_n(&device->mps_bytes, __ATOMIC_RELAXED);
    if (limit == 0)
        return false;
    /* MPS shows the whole card as total; a limit of the kernel's shows as less, and in what is free too */
    if (free_bytes > limit || total < device->card_bytes) {
        give_up(device, free_bytes);
        return false;
    }
    unsure = __atomic_load_n(&device->unsure_bytes, __ATOMIC_RELAXED);
    imported = __atomic_load_n(&cell->imported_bytes, __ATOMIC_RELAXED);
    vcap_lock_take(&lock);
    known = m->known;
    booked = m->bytes;
    /* in a new slot the overhead is charged again after everything else */
    whole = !known || m->mine == vcap_ledger_mine(l);
    vcap_lock_drop(&lock);
    if (!whole)
        return false;
    /* last: whatever moved meanwhile, the figures above may not belong together */
    if (charged_word(device) != reading->charged || !quiet(device, reading->own))
        return false;
    used = limit - free_bytes;
    charged = less(vcap_lf_charged_units(reading->charged) * VCAP_LF_UNIT_BYTES, booked);
    least = vcap_round_up(less(less(used, charged), imported), VCAP_LF_UNIT_BYTES);
    most = vcap_round_up(less(used, less(charged, unsure)), VCAP_LF_UNIT_BYTES);
    contexts = vcap_context_count(ordinal_of(device));
    sane = vcap_multiply(contexts == 0 ? 1 : contexts, VCAP_CONTEXT_MOST);
    if (least > (known ? sane + VCAP_MODULES_MOST : sane)) {
        give_up(device, free_bytes);
        return false;
    }
    return book(device, least, most);
}

bool vcap_overhead_look(CUdevice ordinal, unsigned own)
{
    struct vcap_overhead_reading reading;
    struct vcap_device *device;
    CUdevice current = -1;
    struct vcap_relaxed r;
    bool done = false;

    if (__builtin_expect(__atomic_load_n(&vcap_overhead_any, __ATOMIC_RELAXED) == 0, 1) ||
        ordinal < 0 || ordinal >= VCAP_DEVICES_MAX)
        return false;
    device = &vcap_process.device[ordinal];
    if (__atomic_load_n(&device->state, __ATOMIC_ACQUIRE) != 1 ||
        !vcap_overhead_is_measured(device) || real.cuMemGetInfo_v2 == NULL ||
        vcap_own.cuCtxGetDevice == NULL || vcap_own.cuCtxGetDevice(&current) != CUDA_SUCCESS ||
        current != ordinal)
        return false;
    r = vcap_relaxed_begin();
    for (int tries = 0; !done && tries < TRIES; tries++) {
        size_t free_bytes = 0, total = 0;

        vcap_overhead_ask_begin(&reading, device, own);
        if (reading.device == NULL || real.cuMemGetInfo_v2(&free_bytes, &total) != CUDA_SUCCESS)
            break;
        done = vcap_overhead_ask_end(&reading, free_bytes, total);
    }
    vcap_relaxed_end(r);
    return done;
}

void vcap_overhead_look_now(void)
{
    static uint64_t last_ns; /* CAS by whoever looks next */
    uint64_t now = vcap_clock_ns(CLOCK_MONOTONIC_COARSE);
    uint64_t last = __atomic_load_n(&last_ns, __ATOMIC_RELAXED);
    enum vcap_mode mode = vcap_mode_if_started();
    CUdevice current = -1;

    if ((mode != VCAP_MODE_ENFORCE && mode != VCAP_MODE_AUDIT) || now - last < LOOK_NS ||
        !__atomic_compare_exchange_n(&last_ns, &last, now, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return;
    if (vcap_own.cuCtxGetDevice != NULL && vcap_own.cuCtxGetDevice(&current) == CUDA_SUCCESS)
        vcap_overhead_look(current, 0);
}

/* ---- contexts ---- */

bool vcap_overhead_context_came(CUdevice ordinal, uint64_t *share)
{
    uint64_t before, after;

    vcap_lock_take(&lock);
    before = table[ordinal].bytes;
    vcap_lock_drop(&lock);
    if (!vcap_overhead_look(ordinal, 0))
        return false;
    vcap_lock_take(&lock);
    after = table[ordinal].bytes;
    vcap_lock_drop(&lock);
    *share = less(after, before);
    return true;
}

void vcap_overhead_contexts_went(CUdevice ordinal, unsigned left, uint64_t share)
{
    struct vcap_device *device = &vcap_process.device[ordinal];
    uint64_t rest;
    bool known;

    if (!vcap_overhead_is_measured(device) || !booking() ||
        (left != 0 && vcap_overhead_look(ordinal, 0)))
        return;
    vcap_lock_take(&lock);
    known = table[ordinal].known;
    rest = left == 0 ? 0 : less(table[ordinal].bytes, share);
    vcap_lock_drop(&lock);
    if (known)
        book(device, rest, rest);
    if (left == 0) {
        vcap_lock_take(&lock);
        table[ordinal].known = false; /* the next context's figures are judged as the first one's */
        vcap_lock_drop(&lock);
    }
}

/* ---- a new slot, a forked child ---- */

void vcap_overhead_charge_again(void)
{
    vcap_lock_take(&lock);
    for (CUdevice i = 0; i < VCAP_DEVICES_MAX; i++) {
        const struct vcap_device *device = &vcap_process.device[i];
        struct measured *m = &table[i];

        if (m->known && m->mine != vcap_ledger_mine(vcap_ledger_now()))
            book_here(m, device, m->bytes);
    }
    vcap_lock_drop(&lock);
}

void vcap_overhead_forget(void)
{
    vcap_lock_forget(&lock);
    vcap_overhead_opening = 0;
    for (CUdevice i = 0; i < VCAP_DEVICES_MAX; i++) {
        table[i].known = false;
        table[i].bytes = 0;
        vcap_process.device[i].in_flight = 0;
        vcap_process.device[i].unsure_bytes = 0;
    }
}
