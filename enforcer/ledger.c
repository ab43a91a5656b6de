/*
 * Charging and releasing.  Invariants:
 *   - total never passes the ceiling by a charge that returns 0 without VCAP_BOOK_ABOVE;
 *   - intent is stored before the move of total it describes, charged after it; whoever overwrites a
 *     move in total before it is settled in charged sets ack first (ledger_word.h);
 *   - one thread of a process moves a row's total at a time: the process-private lock.  It is held for
 *     some ten nanoseconds, never over a call to the driver or the kernel.
 * Memory order: sequentially consistent but for the two plain stores argued below.
 */
#include "enforcer/ledger.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "enforcer/kernel.h"
#include "enforcer/ledger_near.h"
#include "enforcer/ledger_reap.h"
#include "enforcer/ledger_word.h"
#include "enforcer/lock.h"

static __thread uint32_t my_tid __attribute__((tls_model("initial-exec")));

static inline uint32_t tid(void)
{
    if (__builtin_expect(my_tid == 0, 0))
        my_tid = (uint32_t)syscall(SYS_gettid);
    return my_tid;
}

void vcap_ledger_thread_renew(void)
{
    my_tid = 0;
}

/*
 * Where this thread's frame that holds (or tries for) a row's lock lies; set before the lock is taken.
 * A holder with our own tid is either a frame further up that a signal handler of ours has interrupted,
 * or one that longjmp has left for good.  Stacks grow down: seen from the same stack, a frame that is
 * not above us is gone.
 */
static __thread uintptr_t my_frame __attribute__((tls_model("initial-exec")));

static __attribute__((noinline)) bool holder_is_gone(uintptr_t frame)
{
    stack_t alternate = {.ss_flags = SS_ONSTACK};

    return frame >= my_frame && syscall(SYS_sigaltstack, NULL, &alternate) == 0 &&
           (alternate.ss_flags & SS_ONSTACK) == 0;
}

/*
 * The lock is another thread's.  Sleeps only after a while, and no longer than VCAP_LOCK_SLEEP_NS at a
 * time: letting go misses who goes to sleep at that very instant (lock.h says why).
 */
static __attribute__((noinline)) void wait_for_row(struct vcap_ledger_local *local, uint32_t seen,
                                                   uint32_t spins)
{
    if (spins < VCAP_LOCK_SPINS) {
        vcap_stand_back(spins);
        return;
    }
    __atomic_fetch_add(&local->waiters, 1, __ATOMIC_SEQ_CST);
    vcap_sys_futex_sleep(&local->lock, seen, VCAP_LOCK_SLEEP_NS);
    __atomic_fetch_sub(&local->waiters, 1, __ATOMIC_RELAXED);
}

/*
 * 0: taken.  1: taken over from a frame of this thread that is gone; what it left is to be cleared up.
 * -EDEADLK: we are in a signal handler that interrupted the holder.  frame: of the function that holds it;
 * *outer: for unlock_row.
 */
static inline int lock_row(struct vcap_ledger_local *local, uintptr_t frame, uintptr_t *outer)
{
    uint32_t me = tid(), seen;

    *outer = my_frame;
    for (uint32_t spins = 0;; spins++) {
        seen = __atomic_load_n(&local->lock, __ATOMIC_RELAXED);
        if (__builtin_expect(seen == me, 0))
            return holder_is_gone(frame) ? 1 : -EDEADLK;
        my_frame = frame;
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        seen = 0;
        if (__builtin_expect(__atomic_compare_exchange_n(&local->lock, &seen, me, false,
                                                         __ATOMIC_ACQUIRE, __ATOMIC_RELAXED),
                             1))
            return 0;
        my_frame = *outer;
        wait_for_row(local, seen, spins);
    }
}

static inline void unlock_row(struct vcap_ledger_local *local, uintptr_t outer)
{
    __atomic_store_n(&local->lock, 0, __ATOMIC_RELEASE);
    /* not before: a handler in between would take the holder for gone, and we would then let go a lock
     * that is another's */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    my_frame = outer;
    if (__builtin_expect(__atomic_load_n(&local->waiters, __ATOMIC_RELAXED) != 0, 0))
        vcap_lock_wake(&local->lock);
}

static void raise_to(uint64_t *word, uint64_t value)
{
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);

    while (seen < value && !__atomic_compare_exchange_n(word, &seen, value, true, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED))
        ;
}

struct move {
    uint32_t gpu;
    uint64_t mine;        /* the place it is charged in */
    uint32_t slot;        /* its slot */
    uint64_t limit_units; /* this process's own ceiling */
    enum vcap_force force;
    uint64_t after_units; /* out: the container's amount after the move */
    bool above;           /* out */
};

static uint64_t ceiling_units(const struct vcap_ledger *l, const struct move *m)
{
    uint64_t word = vcap_load(&l->gpus[m->gpu].ceiling);
    uint64_t units = word == 0 ? VCAP_LF_UNITS_MAX : vcap_lf_ceiling_units(word);

    return units < m->limit_units ? units : m->limit_units;
}

/* Moves total by delta in this process's name.  0, -EDQUOT, -EOVERFLOW. */
static inline int move_total(struct vcap_ledger *l, struct move *m, int64_t delta, uint64_t op)
{
    uint64_t *total = &l->gpus[m->gpu].total;
    uint32_t me = m->slot;

    for (unsigned tries = 0;; tries++) {
        uint64_t t = vcap_load(total);
        uint64_t units = vcap_lf_total_units(t);

        m->above = false;
        if (delta > 0) {
            if ((uint64_t)delta > VCAP_LF_UNITS_MAX - units)
                return -EOVERFLOW;
            m->after_units = units + (uint64_t)delta;
            m->above = m->after_units > ceiling_units(l, m);
            if (m->above && m->force == VCAP_REFUSE_ABOVE)
                return -EDQUOT;
        } else {
            m->after_units = units > (uint64_t)-delta ? units - (uint64_t)-delta : 0;
        }
        if (vcap_word_acknowledge(l, m->gpu, me, t) &&
            vcap_cas(total, t, vcap_lf_total(m->after_units, me, op))) {
            if (delta < 0 && units < (uint64_t)-delta)
                vcap_ledger_anomaly(l, m->gpu, ((uint64_t)-delta - units) * VCAP_LF_UNIT_BYTES,
                                    "total below a release");
            return 0;
        }
        vcap_stand_back(tries);
    }
}

/* One whole operation, the row's lock held.  Inlined where it is hot: delta's sign is known there. */
static inline __attribute__((always_inline)) int operate_here(struct vcap_ledger *l, struct move *m,
                                                              int64_t delta)
{
    struct vcap_lf_cell *cell = vcap_ledger_cell(l, m->slot, m->gpu);
    uint64_t c = vcap_load(&cell->charged);
    uint64_t op = vcap_lf_next_op(vcap_lf_op(c));
    uint64_t units;
    int rc;

    /* release is enough: the CAS on total that follows publishes it, and a reaper looks only after
     * our death, when every store of ours has been made */
    __atomic_store_n(&cell->intent, vcap_lf_intent(delta, op), __ATOMIC_RELEASE);
    rc = move_total(l, m, delta, op);
    if (rc != 0)
        return rc;
    units = (uint64_t)((int64_t)vcap_lf_charged_units(c) + delta);
    /* release is enough: an acknowledger that still sees the old value writes an ack that is late
     * but names this operation only, and the next one clears it */
    __atomic_store_n(&cell->charged, vcap_lf_charged(units, op), __ATOMIC_RELEASE);
    if (__atomic_load_n(&cell->ack, __ATOMIC_RELAXED) != 0)
        __atomic_store_n(&cell->ack, 0, __ATOMIC_SEQ_CST);
    if (units * VCAP_LF_UNIT_BYTES > cell->peak_bytes)
        __atomic_store_n(&cell->peak_bytes, units * VCAP_LF_UNIT_BYTES, __ATOMIC_RELAXED);
    if (delta > 0)
        raise_to(&l->gpus[m->gpu].peak_bytes, m->after_units * VCAP_LF_UNIT_BYTES);
    return 0;
}

static __attribute__((noinline)) int operate(struct vcap_ledger *l, struct move *m, int64_t delta)
{
    return operate_here(l, m, delta);
}

static inline __attribute__((always_inline)) void
release_units_here(struct vcap_ledger *l, uint32_t slot, uint32_t gpu, uint64_t units)
{
    struct vcap_lf_cell *cell = vcap_ledger_cell(l, slot, gpu);
    uint64_t have = vcap_lf_charged_units(vcap_load(&cell->charged));
    struct move m = {.gpu = gpu, .slot = slot};

    if (__builtin_expect(units > have, 0)) {
        vcap_ledger_anomaly(l, gpu, (units - have) * VCAP_LF_UNIT_BYTES,
                            "release above the charge");
        units = have;
    }
    if (units != 0)
        operate_here(l, &m, -(int64_t)units);
}

static __attribute__((noinline)) void release_units(struct vcap_ledger *l, uint32_t slot,
                                                    uint32_t gpu, uint64_t units)
{
    release_units_here(l, slot, gpu, units);
}

/*
 * Clears up after a frame of this thread that longjmp has left in the middle of an operation: what it
 * moved is settled; its charge is taken back, for nobody will use it; its release is made.
 */
static __attribute__((noinline)) void clear_up(struct vcap_ledger *l, uint32_t slot, uint32_t gpu)
{
    struct vcap_lf_cell *cell = vcap_ledger_cell(l, slot, gpu);
    uint64_t c = vcap_load(&cell->charged), i = vcap_load(&cell->intent), t;
    uint64_t op = vcap_lf_next_op(vcap_lf_op(c));
    int64_t delta = vcap_lf_intent_delta(i);
    struct move m = {.gpu = gpu, .slot = slot};
    bool done;

    if (vcap_lf_op(i) != op)
        return;
    t = vcap_load(&l->gpus[gpu].total);
    done = (vcap_lf_total_slot(t) == slot && vcap_lf_op(t) == op) || vcap_load(&cell->ack) == op;
    if (done) {
        uint64_t units = (uint64_t)((int64_t)vcap_lf_charged_units(c) + delta);

        __atomic_store_n(&cell->charged, vcap_lf_charged(units, op), __ATOMIC_SEQ_CST);
        if (delta > 0)
            operate(l, &m, -delta);
    } else if (delta < 0) {
        operate(l, &m, delta);
    }
}

/* Takes a row's lock and clears up if need be.  0, or -EDEADLK.  frame: see lock_row. */
static inline int enter_row(struct vcap_ledger *l, uint64_t mine, uint32_t gpu, uintptr_t frame,
                            uintptr_t *outer)
{
    int rc = lock_row(&l->local[gpu], frame, outer);

    if (__builtin_expect(rc == 0, 1))
        return 0;
    if (rc == 1 && vcap_ledger_holds(l, mine))
        clear_up(l, vcap_mine_slot(mine), gpu);
    return rc < 0 ? rc : 0;
}

static inline bool has_deferred(const struct vcap_ledger_local *local)
{
    return __builtin_expect(__atomic_load_n(&local->deferred, __ATOMIC_RELAXED) != 0, 0);
}

/* Makes the releases that handlers of this thread have put off; the row is held. */
static __attribute__((noinline)) void make_deferred(struct vcap_ledger *l, uint64_t mine,
                                                    uint32_t gpu)
{
    if (vcap_ledger_holds(l, mine))
        release_units(l, vcap_mine_slot(mine), gpu,
                      __atomic_exchange_n(&l->local[gpu].deferred, 0, __ATOMIC_ACQ_REL));
}

/* A handler put a release off between the look and the unlock; the row is not held. */
static __attribute__((noinline)) void finish_late(struct vcap_ledger *l, uint64_t mine,
                                                  uint32_t gpu)
{
    struct vcap_ledger_local *local = &l->local[gpu];
    uintptr_t frame = (uintptr_t)__builtin_frame_address(0), outer;

    while (has_deferred(local) && vcap_ledger_holds(l, mine) &&
           enter_row(l, mine, gpu, frame, &outer) == 0) {
        make_deferred(l, mine, gpu);
        unlock_row(local, outer);
    }
}

/* Lets the row go, with nothing put off that can be made. */
static inline void finish_row(struct vcap_ledger *l, uint64_t mine, uint32_t gpu, uintptr_t outer)
{
    struct vcap_ledger_local *local = &l->local[gpu];

    if (has_deferred(local))
        make_deferred(l, mine, gpu);
    unlock_row(local, outer);
    if (has_deferred(local))
        finish_late(l, mine, gpu);
}

/*
 * The host has lowered the ceiling since it was read: the charge just made is one of those that must not
 * return.  Taken off, and once more, until it is refused or fits.  The row is held.
 */
static __attribute__((noinline)) int charge_lowered(struct vcap_ledger *l, struct move *m,
                                                    uint64_t units)
{
    int rc;

    do {
        operate(l, m, -(int64_t)units);
        rc = vcap_ledger_holds(l, m->mine) ? operate(l, m, (int64_t)units) : -ESTALE;
    } while (rc == 0 && m->after_units > ceiling_units(l, m));
    return rc;
}

static inline __attribute__((always_inline)) int charge_here(struct vcap_ledger *l, struct move *m,
                                                             uint64_t units, uintptr_t frame)
{
    uintptr_t outer;
    int rc = enter_row(l, m->mine, m->gpu, frame, &outer);

    if (rc != 0)
        return rc;
    rc = vcap_ledger_holds(l, m->mine) ? operate_here(l, m, (int64_t)units) : -ESTALE;
    if (__builtin_expect(
            rc == 0 && m->force != VCAP_BOOK_ABOVE && m->after_units > ceiling_units(l, m), 0)) {
        struct move lowered = *m; /* a copy, so that *m itself stays in registers */

        rc = charge_lowered(l, &lowered, units);
        m->after_units = lowered.after_units;
        m->above = lowered.above;
    }
    finish_row(l, m->mine, m->gpu, outer);
    return rc;
}

static __attribute__((noinline)) int charge_once(struct vcap_ledger *l, struct move *m,
                                                 uint64_t units)
{
    return charge_here(l, m, units, (uintptr_t)__builtin_frame_address(0));
}

/* How far above the ceiling a booking went; the host may have raised it since. */
static void note_over(struct vcap_ledger *l, const struct move *m)
{
    uint64_t ceiling = ceiling_units(l, m);

    if (m->after_units > ceiling)
        raise_to(&l->gpus[m->gpu].over_bytes, (m->after_units - ceiling) * VCAP_LF_UNIT_BYTES);
}

static uint64_t round_to_units(uint64_t bytes)
{
    return bytes / VCAP_LF_UNIT_BYTES + (bytes % VCAP_LF_UNIT_BYTES != 0);
}

int vcap_ledger_charge(struct vcap_ledger *l, uint32_t gpu, uint64_t bytes, uint64_t limit,
                       enum vcap_force force, bool *above)
{
    return vcap_ledger_charge_in(l, vcap_ledger_mine(l), gpu, bytes, limit, force, above);
}

int vcap_ledger_charge_in(struct vcap_ledger *l, uint64_t mine, uint32_t gpu, uint64_t bytes,
                          uint64_t limit, enum vcap_force force, bool *above)
{
    struct move m = {.gpu = gpu, .mine = mine, .slot = vcap_mine_slot(mine)};
    uint64_t units = round_to_units(bytes);
    int rc;

    m.limit_units = limit / VCAP_LF_UNIT_BYTES;
    if (units > VCAP_LF_UNITS_MAX)
        return -EOVERFLOW;
    if (units == 0)
        return vcap_ledger_holds(l, mine) ? 0 : -ESTALE;
    rc = charge_once(l, &m, units);
    if (rc == -EDQUOT) {
        if (force == VCAP_REFUSE_ABOVE)
            vcap_ledger_reap_all(l);
        else
            vcap_ledger_reap_sometimes(l);
        rc = charge_once(l, &m, units);
    }
    if (rc == -EDQUOT && force == VCAP_BOOK_ABOVE) {
        m.force = VCAP_BOOK_ABOVE;
        rc = charge_once(l, &m, units);
        if (rc == 0 && m.above)
            note_over(l, &m);
    }
    if (rc == 0) {
        vcap_near_after_charge(l, gpu, m.after_units);
        if (above != NULL)
            *above = m.above;
    }
    return rc;
}

bool vcap_ledger_try_in(struct vcap_ledger *l, uint64_t mine, uint32_t gpu, uint64_t bytes,
                        uint64_t limit)
{
    struct move m = {.gpu = gpu,
                     .mine = mine,
                     .slot = vcap_mine_slot(mine),
                     .limit_units = limit / VCAP_LF_UNIT_BYTES,
                     .force = VCAP_REFUSE_ABOVE};
    uint64_t units = round_to_units(bytes);

    if (units == 0 || units > VCAP_LF_UNITS_MAX ||
        charge_here(l, &m, units, (uintptr_t)__builtin_frame_address(0)) != 0)
        return false;
    vcap_near_after_charge(l, gpu, m.after_units);
    return true;
}

int vcap_ledger_release(struct vcap_ledger *l, uint32_t gpu, uint64_t bytes)
{
    return vcap_ledger_release_in(l, vcap_ledger_mine(l), gpu, bytes);
}

int vcap_ledger_release_in(struct vcap_ledger *l, uint64_t mine, uint32_t gpu, uint64_t bytes)
{
    struct vcap_ledger_local *local = &l->local[gpu];
    uint64_t units = round_to_units(bytes);
    uintptr_t frame = (uintptr_t)__builtin_frame_address(0), outer;
    int rc = 0;

    if (units == 0)
        return 0;
    if (enter_row(l, mine, gpu, frame, &outer) !=
        0) { /* our own thread's lock: it takes this off when it lets go */
        __atomic_fetch_add(&local->deferred, units, __ATOMIC_ACQ_REL);
        return 0;
    }
    if (vcap_ledger_holds(l, mine))
        release_units_here(l, vcap_mine_slot(mine), gpu, units);
    else
        rc = -ESTALE;
    finish_row(l, mine, gpu, outer);
    vcap_near_after_release(l, gpu);
    return rc;
}

/* Adds to a figure that is shown, from 0 if it was unknown, never below 0. */
static void note(uint64_t *word, int64_t delta)
{
    uint64_t seen = vcap_load(word), base;

    do {
        base = seen == UINT64_MAX ? 0 : seen;
        base = delta < 0 && base < (uint64_t)-delta ? 0 : base + (uint64_t)delta;
    } while (
        !__atomic_compare_exchange_n(word, &seen, base, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
}

void vcap_ledger_note_overhead(struct vcap_ledger *l, uint32_t gpu, int64_t delta)
{
    note(&vcap_ledger_cell(l, vcap_mine_slot(vcap_ledger_mine(l)), gpu)->overhead_bytes, delta);
}

void vcap_ledger_forget_overhead(struct vcap_ledger *l, uint32_t gpu)
{
    __atomic_store_n(&vcap_ledger_cell(l, vcap_mine_slot(vcap_ledger_mine(l)), gpu)->overhead_bytes,
                     UINT64_MAX, __ATOMIC_SEQ_CST);
}

void vcap_ledger_note_imported(struct vcap_ledger *l, uint64_t mine, uint32_t gpu, int64_t delta)
{
    if (vcap_ledger_holds(l, mine))
        note(&vcap_ledger_cell(l, vcap_mine_slot(mine), gpu)->imported_bytes, delta);
}

static uint64_t uuid_claim(const uint8_t uuid[16])
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a, 64 bits */

    for (int i = 0; i < 16; i++)
        hash = (hash ^ uuid[i]) * UINT64_C(0x100000001b3);
    return hash == 0 ? 1 : hash;
}

int vcap_ledger_gpu(struct vcap_ledger *l, const uint8_t uuid[16], uint32_t flags, uint32_t index,
                    uint64_t card_bytes, uint32_t *gpu)
{
    uint64_t claim = uuid_claim(uuid), words[2];

    memcpy(words, uuid, sizeof(words));
    /* everybody looks from the first row on and takes the first free one, so no UUID gets two rows */
    for (uint32_t g = 0; g < l->gpu_count;) {
        struct vcap_lf_gpu *row = &l->gpus[g];
        uint64_t seen = vcap_load(&row->claim);
        uint64_t *stored = (uint64_t *)(void *)row->uuid;
        bool mine_to_number = seen == 0;

        if (seen == 0 && !vcap_cas(&row->claim, 0, claim))
            continue;
        if (seen != 0 && seen != claim) {
            g++;
            continue;
        }
        /* whoever finds the row writes the same: its first claimer may have died before it did */
        __atomic_store_n(&stored[0], words[0], __ATOMIC_RELAXED);
        __atomic_store_n(&stored[1], words[1], __ATOMIC_RELAXED);
        /* a place that the host gave it counts what the host named; the first process knows better */
        mine_to_number |= (__atomic_exchange_n(&row->flags, flags, __ATOMIC_RELAXED) & ~flags &
                           VCAP_LF_GPU_NAMED) != 0;
        if (mine_to_number)
            __atomic_store_n(&row->index, index, __ATOMIC_RELAXED);
        if (card_bytes != 0)
            __atomic_store_n(&row->card_bytes, card_bytes, __ATOMIC_RELAXED);
        *gpu = g;
        return 0;
    }
    return -ENOSPC;
}

uint64_t vcap_ledger_propose_ceiling(struct vcap_ledger *l, uint32_t gpu, uint64_t bytes,
                                     enum vcap_lf_source source)
{
    uint64_t *word = &l->gpus[gpu].ceiling;
    uint64_t units = bytes == VCAP_NO_LIMIT ? VCAP_LF_UNITS_MAX : bytes / VCAP_LF_UNIT_BYTES;

    if (units > VCAP_LF_UNITS_MAX)
        units = VCAP_LF_UNITS_MAX;
    vcap_cas(word, 0, vcap_lf_ceiling(units, source));
    return vcap_load(word);
}

uint32_t vcap_ledger_holders(const struct vcap_ledger *l, uint32_t gpu)
{
    uint32_t holders = 0;

    for (uint32_t s = 0; s < l->slot_count; s++)
        holders += vcap_lf_state_status(vcap_load(&l->slots[s].state)) == VCAP_LF_LIVE &&
                   vcap_lf_charged_units(vcap_load(&vcap_ledger_cell(l, s, gpu)->charged)) != 0;
    return holders;
}
