/*
 * The table of pools, and what a pool goes through (pool_settle.c settles one).  Invariants:
 *   - a pool's account is never below what the driver has reserved for it, but while a call that grew it
 *     is in flight, which then charges the growth or gives it back; until it has decided (undecided) no
 *     other settling books growth that has no room, or the ceiling would be passed and nobody refused;
 *   - sequence is raised before and after every driver call that may move a pool, and when less is booked: a
 *     synchronise, which is no such call, may have given memory back.  A reading is the pool's figure only if
 *     nothing was in flight and the number stayed the same over the query.  Else it stands together with the
 *     reservations of all calls that the driver may have served since, and if somebody else booked in
 *     between, whose reading may be the later one, the account is not lowered.  A failed reading keeps the
 *     figure;
 *   - a handle is not asked about while or after it is destroyed;
 *   - the live map's record of a pool's pointer holds one reference to the pool, the table one.
 * Order of locks: a pool's, then the accounts'.  The table's is taken alone.
 */
#include "preload/pool.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "enforcer/log.h"
#include "enforcer/rules.h"
#include "preload/charge.h"
#include "preload/graph.h"
#include "preload/pool_settle.h"
#include "preload/relaxed.h"

uint32_t vcap_pools_unsettled;
static struct vcap_lock table_lock;
static struct vcap_pool *table;
static uint32_t known; /* in the table; stored under its lock, looked at without */

/* ---- life ---- */

enum vcap_pool_kind vcap_pool_kind(const struct vcap_pool *pool)
{
    return pool->kind;
}

static struct vcap_pool *make(CUmemoryPool handle, enum vcap_pool_kind kind, CUdevice ordinal,
                              bool capped)
{
    struct vcap_pool *pool = calloc(1, sizeof(*pool));

    if (pool == NULL)
        return NULL;
    pool->handle = handle;
    pool->managed = kind == VCAP_POOL_MANAGED;
    pool->kind = pool->managed ? VCAP_POOL_CHARGED : kind;
    pool->account.ordinal = ordinal;
    pool->capped = capped;
    pool->refs = 1;
    return pool;
}

static void hold(struct vcap_pool *pool)
{
    __atomic_fetch_add(&pool->refs, 1, __ATOMIC_RELAXED);
}

void vcap_pool_put(struct vcap_pool *pool)
{
    /* the last one sees what all the others did */
    if (pool != NULL && __atomic_sub_fetch(&pool->refs, 1, __ATOMIC_ACQ_REL) == 0) {
        vcap_account_set(&pool->account, VCAP_ROW_cuMemPoolDestroy, 0, true);
        free(pool);
    }
}

static struct vcap_pool *find(CUmemoryPool handle)
{
    struct vcap_pool *found = NULL;

    HASH_FIND_PTR(table, &handle, found);
    return found;
}

/* Into the table, with its lock held; false: no memory. */
static bool put_in(struct vcap_pool *pool)
{
    HASH_ADD_PTR(table, handle, pool);
    __atomic_store_n(&known, HASH_COUNT(table), __ATOMIC_RELAXED);
    return !pool->lost;
}

/* Out of the table, if it is in it; the table's reference goes with it. */
static void take_out(struct vcap_pool *pool)
{
    bool in;

    vcap_lock_take(&table_lock);
    in = find(pool->handle) == pool;
    if (in)
        HASH_DEL(table, pool);
    __atomic_store_n(&known, HASH_COUNT(table), __ATOMIC_RELAXED);
    vcap_lock_drop(&table_lock);
    if (in)
        vcap_pool_put(pool);
}

struct vcap_pool *vcap_pool_get(CUmemoryPool handle)
{
    struct vcap_pool *found;

    vcap_lock_take(&table_lock);
    found = find(handle);
    if (found != NULL)
        hold(found);
    vcap_lock_drop(&table_lock);
    return found;
}

/* Destroyed: charged its live pointers from now on. */
static void orphaned(struct vcap_pool *pool)
{
    vcap_lock_take(&pool->lock);
    pool->orphan = true;
    vcap_account_set(&pool->account, VCAP_ROW_cuMemPoolDestroy, pool->live_bytes, true);
    vcap_lock_drop(&pool->lock);
}

void vcap_pool_enter(CUmemoryPool handle, enum vcap_pool_kind kind, CUdevice ordinal, bool capped)
{
    struct vcap_pool *fresh = make(handle, kind, ordinal, capped), *stale;

    stale =
        vcap_pool_get(handle); /* destroyed behind our back, or by a call that has not returned */
    if (stale != NULL) {
        take_out(stale);
        orphaned(stale); /* NOLINT(clang-analyzer-unix.Malloc): stale has a reference of its own */
        vcap_pool_put(stale);
    }
    if (fresh == NULL)
        return; /* met again, as memory of a device, at its first allocation */
    vcap_lock_take(&table_lock);
    if (find(handle) == NULL && put_in(fresh))
        fresh = NULL;
    vcap_lock_drop(&table_lock);
    vcap_pool_put(fresh);
}

struct vcap_pool *vcap_pool_meet(CUmemoryPool handle, CUdevice ordinal)
{
    struct vcap_pool *pool = vcap_pool_get(handle), *fresh;

    if (pool == NULL) {
        fresh = make(handle, VCAP_POOL_CHARGED, ordinal, false);
        vcap_lock_take(&table_lock);
        pool = find(handle);
        if (pool == NULL && fresh != NULL && put_in(fresh)) {
            pool = fresh;
            fresh = NULL;
        }
        if (pool != NULL)
            hold(pool);
        vcap_lock_drop(&table_lock);
        vcap_pool_put(fresh);
    }
    if (pool != NULL && pool->kind == VCAP_POOL_CHARGED && vcap_pool_ordinal(pool) < 0) {
        vcap_lock_take(&pool->lock);
        if (pool->account.ordinal < 0)
            __atomic_store_n(&pool->account.ordinal, ordinal, __ATOMIC_RELAXED);
        vcap_lock_drop(&pool->lock);
    }
    return pool;
}

void vcap_pool_call_begin(struct vcap_pool *pool)
{
    vcap_lock_take(&pool->lock);
    pool->sequence++;
    pool->in_flight++;
    vcap_lock_drop(&pool->lock);
}

void vcap_pool_call_end(struct vcap_pool *pool)
{
    vcap_lock_take(&pool->lock);
    pool->sequence++;
    pool->in_flight--;
    vcap_lock_drop(&pool->lock);
}

/* ---- allocation ---- */

/* The pool's lock is held. */
static void undecided(struct vcap_pool_call *call)
{
    call->undecided = true;
    call->pool->undecided++;
}

static void decided(struct vcap_pool_call *call)
{
    if (!call->undecided)
        return;
    vcap_lock_take(&call->pool->lock);
    call->pool->undecided--;
    vcap_lock_drop(&call->pool->lock);
    call->undecided = false;
}

void vcap_pool_alloc_unasked(struct vcap_pool_call *call)
{
    vcap_lock_take(&call->pool->lock);
    undecided(call);
    call->pool->sequence++;
    call->pool->in_flight++;
    vcap_lock_drop(&call->pool->lock);
}

/* The driver has answered. */
static void landed(struct vcap_pool_call *call)
{
    struct vcap_pool *pool = call->pool;

    vcap_lock_take(&pool->lock);
    pool->sequence++;
    pool->in_flight--;
    pool->flying -= call->reserved;
    call->bookings = pool->bookings;
    vcap_lock_drop(&pool->lock);
}

/* Room for the bytes, if there is, is taken together with the beginning of the call: nobody lowers the
 * account in between. */
static bool reserve(struct vcap_pool_call *call)
{
    struct vcap_pool *pool = call->pool;
    uint64_t target;
    bool done;

    vcap_lock_take(&pool->lock);
    done = !__builtin_add_overflow(pool->account.bytes, call->bytes, &target) &&
           vcap_account_try(&pool->account, call->row, target) == CUDA_SUCCESS;
    if (done) {
        call->reserved = call->bytes;
        pool->flying += call->bytes;
        pool->begun += call->bytes;
        undecided(call);
        pool->sequence++;
        pool->in_flight++;
    }
    vcap_lock_drop(&pool->lock);
    return done;
}

/* Does the pool hold this much that nobody uses? */
static bool may_serve(struct vcap_pool *pool, uint64_t bytes)
{
    uint64_t reserved = 0, used = 0;
    bool read;

    if (!vcap_pool_query_begin(pool, NULL))
        return false;
    read = vcap_pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) &&
           vcap_pool_attribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    vcap_pool_query_end(pool);
    return read && reserved >= used && reserved - used >= bytes;
}

CUresult vcap_pool_alloc_begin(struct vcap_pool_call *call)
{
    struct vcap_device *device = vcap_device(call->pool->account.ordinal);

    call->reserved = 0;
    if (device == NULL && vcap_process.config.on_error != VCAP_ON_ERROR_ALLOW)
        return vcap_deny(call->row);
    for (int tries = 0; tries < 2; tries++) {
        if (reserve(call))
            return CUDA_SUCCESS;
        if (may_serve(call->pool, call->bytes)) {
            vcap_pool_alloc_unasked(call);
            return CUDA_SUCCESS;
        }
        if (tries == 0) {
            vcap_last_resort(call->pool->account.ordinal, call->row, 0);
        }
    }
    if (vcap_mode_now() ==
        VCAP_MODE_DENY) /* since now: the slot is gone, and no other is to be had */
        return vcap_deny(call->row);
    return vcap_refuse(device, call->pool->account.ordinal, call->row, call->bytes);
}

void vcap_pool_live_add(struct vcap_pool *pool, uint64_t bytes)
{
    hold(pool);
    vcap_lock_take(&pool->lock);
    pool->live_bytes += bytes;
    vcap_lock_drop(&pool->lock);
}

void vcap_pool_live_remove(struct vcap_pool *pool, uint64_t bytes)
{
    vcap_lock_take(&pool->lock);
    pool->live_bytes -= bytes;
    if (pool->orphan)
        vcap_account_set(&pool->account, VCAP_ROW_cuMemPoolDestroy, pool->live_bytes, true);
    vcap_lock_drop(&pool->lock);
    vcap_pool_put(pool);
}

/* Takes the pointer back that the driver gave for a call that is refused after all. */
static CUresult undo(struct vcap_pool_call *call, CUdeviceptr pointer)
{
    struct vcap_pool *pool = call->pool;
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the caller has a reference until the call's end */
    CUdevice ordinal = pool->account.ordinal;
    struct vcap_relaxed r;

    vcap_pool_call_begin(pool);
    r = vcap_relaxed_begin();
    call->give_back(pointer, call->stream);
    vcap_relaxed_end(r);
    vcap_pool_call_end(pool);
    decided(call);
    vcap_pools_touched();
    vcap_pools_trim(ordinal, call->row);
    vcap_pool_settle_for(pool, call->row, call, true, true);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vcap_pool_alloc_end(struct vcap_pool_call *call, CUresult result, CUdeviceptr pointer)
{
    struct vcap_pool *pool = call->pool;
    CUdevice ordinal = pool->account.ordinal;
    struct vcap_live stale, record = {.key = pointer,
                                      .device = (uint32_t)ordinal,
                                      .pool = pool,
                                      .pool_bytes = vcap_rule_orphan_pointer(call->bytes)};

    landed(call);
    if (result != CUDA_SUCCESS) {
        decided(call);
        vcap_pool_settle_for(pool, call->row, call, true, true);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && !pool->capped && vcap_device(ordinal) != NULL)
            vcap_device_full(vcap_device(ordinal), ordinal, call->row, call->bytes);
        return result;
    }
    vcap_pool_live_add(pool, record.pool_bytes);
    if (vcap_live_enter(&record, &stale) != 0) {
        vcap_log(VCAP_LOG_ERROR, "no memory to keep a record of %s: the allocation is given back",
                 vcap_row_symbol(call->row));
        vcap_pool_live_remove(pool, record.pool_bytes);
        return undo(call, pointer);
    }
    if (stale.key != 0)
        vcap_record_release(&stale);
    for (int tries = 0; tries < 2; tries++) {
        CUresult settled = vcap_pool_settle_for(pool, call->row, call, false, false);

        if (settled == CUDA_SUCCESS) {
            decided(call);
            return result;
        }
        if (tries == 0) { /* it grew by more than was asked for: idle memory may make up for it */
            vcap_last_resort(ordinal, call->row, 0);
        }
    }
    if (vcap_live_take(pointer, &record))
        vcap_pool_live_remove(pool, record.pool_bytes);
    undo(call, pointer);
    return vcap_refuse(vcap_device(ordinal), ordinal, call->row, call->bytes);
}

/* ---- pointers that go ---- */

void vcap_pool_pointer_gone(const struct vcap_live *record)
{
    vcap_pool_live_remove(record->pool, record->pool_bytes);
}

CUresult vcap_pool_free_end(CUresult result, const struct vcap_live *record)
{
    struct vcap_live stale;

    vcap_pool_call_end(record->pool);
    if (result == CUDA_SUCCESS) {
        vcap_pools_touched();
        vcap_record_release(record);
        return result;
    }
    if (vcap_live_enter(record, &stale) == 0 && stale.key != 0)
        vcap_record_release(&stale);
    if (record->mine != 0 && record->mine != vcap_ledger_mine(vcap_ledger_now()))
        vcap_record_follow(record->key);
    return result;
}

/* ---- destruction ---- */

void vcap_pool_destroy_begin(struct vcap_pool *pool)
{
    const struct timespec pause = {.tv_nsec = 200000};
    bool asking = true;

    /* The driver answers a query in well under a microsecond.  Bounded, because a signal handler may have
     * jumped out of one. */
    for (int i = 0; asking && i < 5000; i++) {
        vcap_lock_take(&pool->lock);
        pool->closing = true;
        asking = pool->queries != 0;
        vcap_lock_drop(&pool->lock);
        if (asking && i < 100)
            sched_yield();
        else if (asking)
            nanosleep(&pause, NULL);
    }
}

void vcap_pool_destroy_end(struct vcap_pool *pool, bool destroyed)
{
    if (destroyed) {
        orphaned(pool);
        take_out(pool);
        return;
    }
    vcap_lock_take(&pool->lock);
    pool->closing = false;
    vcap_lock_drop(&pool->lock);
}

/* ---- all of them ---- */

/* Calls visit for each pool that is charged, without the table's lock.  True: one of them said so, or there
 * was no memory to look at them. */
static bool each(bool (*visit)(struct vcap_pool *pool, CUdevice ordinal, unsigned row),
                 CUdevice ordinal, unsigned row)
{
    struct vcap_pool **list, *pool, *next;
    size_t count = 0;
    bool any;

    vcap_lock_take(&table_lock);
    list = calloc(HASH_COUNT(table) + 1u, sizeof(struct vcap_pool *));
    HASH_ITER(hh, table, pool, next) {
        if (list != NULL && pool->kind == VCAP_POOL_CHARGED) {
            hold(pool);
            list[count++] = pool;
        }
    }
    vcap_lock_drop(&table_lock);
    any = list == NULL;
    for (size_t i = 0; i < count; i++) {
        any = visit(list[i], ordinal, row) || any;
        vcap_pool_put(list[i]);
    }
    free(list);
    return any;
}

/*
 * One synchronise gives back what its own stream freed; what other streams freed goes with theirs.  So
 * while a pool holds idle memory above its threshold the next synchronise looks again.  Asked ahead of the
 * reading that is booked: what another thread gives back after that was idle then, or freed since and said so.
 */
static bool settle_one(struct vcap_pool *pool, CUdevice ordinal, unsigned row)
{
    uint64_t reserved = 0, used = 0, threshold = 0, sequence;
    bool read;

    (void)ordinal;
    if (vcap_pool_query_begin(pool, &sequence)) {
        read = vcap_pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) &&
               vcap_pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) &&
               vcap_pool_attribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
        vcap_lock_take(&pool->lock);
        pool->queries--;
        pool->kept = !read || reserved > used || sequence != pool->sequence;
        vcap_lock_drop(&pool->lock);
        if (!read || (reserved > threshold && reserved > used))
            vcap_pools_touched();
    }
    vcap_pool_settle(pool, row);
    return false;
}

void vcap_pools_settle(unsigned row)
{
    __atomic_store_n(&vcap_pools_unsettled, 0, __ATOMIC_RELAXED);
    each(settle_one, -1, row);
}

static bool trim_one(struct vcap_pool *pool, CUdevice ordinal, unsigned row)
{
    struct vcap_relaxed r;

    if (vcap_pool_ordinal(pool) != ordinal)
        return false;
    if (vcap_own.cuMemPoolTrimTo != NULL && vcap_pool_query_begin(pool, NULL)) {
        vcap_pool_call_begin(pool);
        r = vcap_relaxed_begin();
        vcap_own.cuMemPoolTrimTo(pool->handle, 0);
        vcap_relaxed_end(r);
        vcap_pool_call_end(pool);
        vcap_pool_query_end(pool);
        vcap_pools_touched();
    }
    vcap_pool_settle(pool, row);
    return false;
}

static bool is_busy(struct vcap_pool *pool, CUdevice ordinal, unsigned row)
{
    bool busy;

    (void)row;
    vcap_lock_take(&pool->lock);
    busy = pool->account.ordinal == ordinal && (pool->in_flight != 0 || pool->undecided != 0 ||
                                                (pool->managed && pool->account.bytes != 0));
    vcap_lock_drop(&pool->lock);
    return busy;
}

bool vcap_pools_exist(void)
{
    /* a hint: a pool that another thread enters at this moment holds nothing yet */
    return __atomic_load_n(&known, __ATOMIC_RELAXED) != 0;
}

bool vcap_pools_busy(CUdevice ordinal)
{
    return vcap_pools_exist() && each(is_busy, ordinal, 0);
}

void vcap_pools_trim(CUdevice ordinal, unsigned row)
{
    each(trim_one, ordinal, row);
}

void vcap_pools_forget(void)
{
    /* the pools stay where they are: the parent's allocator may have been in the middle of anything */
    vcap_lock_forget(&table_lock);
    table = NULL;
    known = 0;
    vcap_pools_unsettled = 0;
}
