/*
 * Asking the driver what a pool has reserved, and booking it.  pool.c has the invariants.  No lock is held over
 * a question.
 */
#include "preload/pool_settle.h"

#include "enforcer/ledger_format.h"
#include "enforcer/rules.h"
#include "preload/charge.h"
#include "preload/relaxed.h"

/* ---- asking the driver ---- */

bool vcap_pool_attribute(CUmemoryPool handle, CUmemPool_attribute which, uint64_t *value)
{
    struct vcap_relaxed r;
    cuuint64_t bytes = 0;
    CUresult result;

    if (vcap_own.cuMemPoolGetAttribute == NULL)
        return false;
    r = vcap_relaxed_begin();
    result = vcap_own.cuMemPoolGetAttribute(handle, which, &bytes);
    vcap_relaxed_end(r);
    *value = bytes;
    return result == CUDA_SUCCESS;
}

/* False: the handle is dead or dying, the driver must not be asked.  The pool's lock is held. */
static bool query_begin(struct vcap_pool *pool)
{
    if (pool->closing || pool->orphan)
        return false;
    pool->queries++;
    return true;
}

bool vcap_pool_query_begin(struct vcap_pool *pool, uint64_t *sequence)
{
    bool may;

    vcap_lock_take(&pool->lock);
    may = query_begin(pool);
    if (sequence != NULL)
        *sequence = pool->sequence;
    vcap_lock_drop(&pool->lock);
    return may;
}

void vcap_pool_query_end(struct vcap_pool *pool)
{
    vcap_lock_take(&pool->lock);
    pool->queries--;
    vcap_lock_drop(&pool->lock);
}

/* ---- settling ---- */

/* What the driver said about a pool, and what happened meanwhile. */
struct reading {
    bool valid;
    bool exact;       /* nothing happened */
    bool latest;      /* nobody has booked since it was begun */
    uint64_t bytes;   /* reserved for the pool */
    uint64_t overlap; /* reserved in the account by calls that may have grown the pool since */
};

/* What the reading makes of the account: *most holds whatever those calls do; *least is to be had in any
 * case.  The pool's lock is held. */
static void judge(const struct vcap_pool *pool, const struct reading *r,
                  const struct vcap_pool_call *call, bool nothing_taken, uint64_t *least,
                  uint64_t *most)
{
    uint64_t now = pool->account.bytes;

    if (!r->valid && nothing_taken && call->bookings == pool->bookings)
        *least = *most = now > call->reserved ? now - call->reserved : 0;
    else if (
        !r->valid) /* one that had no room reserved may have grown the pool by what it asked for */
        *least = *most = now + (call != NULL && !nothing_taken && call->reserved == 0
                                    ? vcap_round_up(call->bytes, VCAP_LF_UNIT_BYTES)
                                    : 0);
    else if (r->exact)
        *least = *most = r->bytes;
    else if (!r->latest)
        *least = *most = r->bytes > now ? r->bytes : now;
    else if (__builtin_add_overflow(r->bytes, r->overlap, most) || *most > now)
        *least = r->bytes > now ? r->bytes : now;
    else
        *least = *most;
    /* the reading may include what those calls took already: only where there is room for both */
    if (*most <= *least || !vcap_account_room(pool->account.ordinal, *most > now ? *most - now : 0))
        *most = *least;
}

/*
 * Books a reading; the pool's lock is held.  call: ours, whose reservation is in the account and ends with it,
 * or NULL; nothing_taken: it failed in the driver.  Without force CUDA_ERROR_OUT_OF_MEMORY if the pool grew by
 * what has no room: the account is then unchanged.  With it, growth is left to the allocations that are
 * undecided.
 */
static CUresult book(struct vcap_pool *pool, unsigned row, const struct reading *r,
                     struct vcap_pool_call *call, bool nothing_taken, bool force)
{
    uint64_t now = pool->account.bytes, before = call != NULL ? call->reserved : 0, least, most;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    judge(pool, r, call, nothing_taken, &least, &most);
    /* once it grew it is above its threshold, perhaps, with idle memory that was below it before */
    if (!r->exact || (pool->kept && least > (now > before ? now - before : 0)))
        vcap_pools_touched();
    if (most > least)
        result = vcap_account_try(&pool->account, row, most);
    if (result != CUDA_SUCCESS && (least <= now || (force && pool->undecided == 0)))
        result = vcap_account_set(&pool->account, row, least, true);
    else if (result != CUDA_SUCCESS)
        result = vcap_account_try(&pool->account, row, least);
    pool->bookings++;
    pool->sequence += pool->account.bytes < now; /* a higher reading from before is none any more */
    if (result != CUDA_SUCCESS && force) {
        vcap_pools_touched();
        result = CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS && call != NULL)
        call->reserved = 0;
    return result;
}

CUresult vcap_pool_settle_for(struct vcap_pool *pool, unsigned row, struct vcap_pool_call *call,
                              bool nothing_taken, bool force)
{
    CUresult result = CUDA_SUCCESS;

    /* made ready here: with the pool's lock held nobody calls the driver */
    if (pool->kind != VCAP_POOL_CHARGED || vcap_device(vcap_pool_ordinal(pool)) == NULL)
        return result;
    for (int tries = 0;; tries++) {
        uint64_t sequence, begun, bookings;
        struct reading r = {.bytes = 0};
        bool quiet, again, asked;

        vcap_lock_take(&pool->lock);
        if (pool->orphan) {
            vcap_account_set(&pool->account, row, pool->live_bytes, true);
            if (call != NULL)
                call->reserved = 0;
            vcap_lock_drop(&pool->lock);
            return CUDA_SUCCESS;
        }
        asked = query_begin(pool);
        sequence = pool->sequence;
        quiet = pool->in_flight == 0;
        bookings = pool->bookings;
        begun = pool->begun;
        r.overlap = pool->flying;
        vcap_lock_drop(&pool->lock);
        r.valid = asked &&
                  vcap_pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &r.bytes);
        vcap_lock_take(&pool->lock);
        if (asked)
            pool->queries--;
        r.exact = r.valid && quiet && sequence == pool->sequence && pool->in_flight == 0;
        r.latest = bookings == pool->bookings;
        r.overlap += pool->begun - begun;
        /* a call came in between and is over, or its figure: read again rather than keep one too high */
        again = pool->orphan ||
                (r.valid && !r.exact && (pool->in_flight == 0 || !r.latest) && tries < 3);
        if (!again)
            result = book(pool, row, &r, call, nothing_taken, force);
        vcap_lock_drop(&pool->lock);
        if (!again)
            return result;
    }
}

void vcap_pool_settle(struct vcap_pool *pool, unsigned row)
{
    vcap_pool_settle_for(pool, row, NULL, false, true);
}
