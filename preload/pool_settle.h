/*
 * What pool.c and pool_settle.c share: the inside of a pool, and its settling.
 */
#ifndef VRAMCAP_PRELOAD_POOL_SETTLE_H
#define VRAMCAP_PRELOAD_POOL_SETTLE_H

#include "enforcer/lock.h"
#include "preload/account.h"
#include "preload/pool.h"

#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(element) ((element)->lost = true)
#include <uthash.h>

struct vcap_pool {
    CUmemoryPool handle;
    enum vcap_pool_kind kind;
    bool capped, managed;
    uint32_t refs;         /* atomic */
    struct vcap_lock lock; /* of what follows, up to live_bytes */
    struct vcap_account account;
    uint64_t sequence;
    unsigned in_flight; /* driver calls that may move it */
    unsigned undecided; /* allocations that have not charged their growth yet */
    uint64_t flying;    /* bytes reserved by the allocations among them */
    uint64_t begun;     /* bytes reserved by all there ever were, going round */
    uint64_t bookings;  /* going round */
    unsigned queries;   /* threads asking the driver about it */
    bool kept;          /* when last looked at it held idle memory below its threshold */
    bool closing;       /* no more queries: it is being destroyed */
    bool orphan;        /* destroyed */
    uint64_t live_bytes;
    bool lost; /* this and hh under the table's lock */
    UT_hash_handle hh;
};

/* Where it is; -1: not known yet.  Set once, by whoever allocates first from a pool that came without one. */
static inline CUdevice vcap_pool_ordinal(const struct vcap_pool *pool)
{
    return __atomic_load_n(&pool->account.ordinal, __ATOMIC_RELAXED);
}

/* One of the driver's figures about a pool, read in relaxed mode.  False: it does not say. */
bool vcap_pool_attribute(CUmemoryPool handle, CUmemPool_attribute which, uint64_t *value);

/* Around questions to the driver about a pool.  False: its handle is dead or dying, it must not be asked.
 * sequence: NULL, or the pool's number then. */
bool vcap_pool_query_begin(struct vcap_pool *pool, uint64_t *sequence);
void vcap_pool_query_end(struct vcap_pool *pool);

/*
 * Reads what the pool has reserved and books it.  call: an allocation whose reservation is in the account and
 * ends with it, or NULL; nothing_taken: it failed in the driver.  Without force CUDA_ERROR_OUT_OF_MEMORY if the
 * pool grew by what has no room: the account is then unchanged.  With it, growth is left to the allocations that
 * are undecided.
 */
CUresult vcap_pool_settle_for(struct vcap_pool *pool, unsigned row, struct vcap_pool_call *call,
                              bool nothing_taken, bool force);

#endif
