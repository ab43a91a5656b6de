/*
 * The stream-ordered pools of this process and what each has reserved of its device, which is what is
 * charged (rules.h, CHARGE_POOL).  A pool is known by its handle from its creation, or from the first
 * allocation from it, until it is destroyed; with live pointers it lives on as an orphan, charged their
 * sum, until the last one is freed.  Thread-safe; no lock is held over a driver call.
 */
#ifndef VRAMCAP_PRELOAD_POOL_H
#define VRAMCAP_PRELOAD_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/cuda_api.h"
#include "preload/live.h"

enum vcap_pool_kind {
    VCAP_POOL_CHARGED,
    VCAP_POOL_MANAGED, /* charged too, though MPS may not count it; vcap_pool_kind says CHARGED */
    VCAP_POOL_FREE,    /* host memory, or managed memory that is ignored */
    VCAP_POOL_IMPORTED /* another process's memory */
};

/* A pool that the driver has just handed out.  ordinal -1: that of the first stream that allocates.
 * capped: it has a largest size of its own. */
void vcap_pool_enter(CUmemoryPool handle, enum vcap_pool_kind kind, CUdevice ordinal, bool capped);

/* A known pool, to be put back; NULL: not known. */
struct vcap_pool *vcap_pool_get(CUmemoryPool handle);

/* The same; one that is not known is entered as memory of the device.  NULL: no memory for it. */
struct vcap_pool *vcap_pool_meet(CUmemoryPool handle, CUdevice ordinal);

void vcap_pool_put(struct vcap_pool *pool);
enum vcap_pool_kind vcap_pool_kind(const struct vcap_pool *pool);

/* ---- allocation: begin, the driver's call, end ---- */

struct vcap_pool_call {
    struct vcap_pool *pool;
    unsigned row;
    CUstream stream;
    uint64_t bytes;
    uint64_t reserved; /* the part of the pool's charge that this call put there */
    bool undecided;    /* counted in the pool: its growth may have to go back */
    uint64_t bookings; /* of the pool when the driver had answered */
    CUresult (*give_back)(CUdeviceptr pointer, CUstream stream);
};

/*
 * CUDA_SUCCESS: there is room, or the pool may serve it from what it holds; the driver is to be called.
 * CUDA_ERROR_OUT_OF_MEMORY: refused, said, counted.  Fills reserved.
 */
CUresult vcap_pool_alloc_begin(struct vcap_pool_call *call);

/* The same without asking for room: what the pool grows by is judged at the end. */
void vcap_pool_alloc_unasked(struct vcap_pool_call *call);

/* Enters the pointer and settles the pool.  If it grew by what has no room, the pointer goes back. */
CUresult vcap_pool_alloc_end(struct vcap_pool_call *call, CUresult result, CUdeviceptr pointer);

/* ---- any other call that may move what a pool holds: begin, the driver's call, end ---- */

void vcap_pool_call_begin(struct vcap_pool *pool);
void vcap_pool_call_end(struct vcap_pool *pool);

/* Reads what the pool has reserved now and books it. */
void vcap_pool_settle(struct vcap_pool *pool, unsigned row);

/* After the driver's answer for a pointer of a pool, whose record was taken out and whose pool a call was
 * begun for. */
CUresult vcap_pool_free_end(CUresult result, const struct vcap_live *record);

/* A pointer of the pool lives, or no more: what an orphan is charged. */
void vcap_pool_live_add(struct vcap_pool *pool, uint64_t bytes);
void vcap_pool_live_remove(struct vcap_pool *pool, uint64_t bytes);

/* The pool's part of giving up a pointer's record: vcap_record_release does the rest. */
void vcap_pool_pointer_gone(const struct vcap_live *record);

/* Between these no other thread asks the driver about the pool: its handle may die. */
void vcap_pool_destroy_begin(struct vcap_pool *pool);
void vcap_pool_destroy_end(struct vcap_pool *pool, bool destroyed);

/* A pointer of another process's pool: shown where its export is on record (hash), else charged.
 * CUDA_ERROR_OUT_OF_MEMORY: refused, said, counted; the caller gives the pointer back. */
CUresult vcap_pool_imported(struct vcap_pool *pool, unsigned row, CUdeviceptr pointer,
                            CUdevice ordinal, uint64_t bytes, uint64_t hash);

/* ---- all pools ---- */

/* Not 0: this process freed to a pool or trimmed one since the last settling.  Relaxed: a hint that
 * costs one load; whoever sets it has nothing to publish. */
extern uint32_t vcap_pools_unsettled;

static inline bool vcap_pools_may_shrink(void)
{
    return __builtin_expect(__atomic_load_n(&vcap_pools_unsettled, __ATOMIC_RELAXED) != 0, 0);
}
static inline void vcap_pools_touched(void)
{
    if (__atomic_load_n(&vcap_pools_unsettled, __ATOMIC_RELAXED) == 0)
        __atomic_store_n(&vcap_pools_unsettled, 1, __ATOMIC_RELAXED);
}

void vcap_pools_settle(unsigned row);

/* Has this process met a pool? */
bool vcap_pools_exist(void);

/* Is a call under way that may move what a pool of this device holds, or is managed memory in one?  Then
 * charges do not tell what the driver has taken. */
bool vcap_pools_busy(CUdevice ordinal);

/* On the way to a refusal: gives back what this process's pools on a device hold idle. */
void vcap_pools_trim(CUdevice ordinal, unsigned row);

/* In a forked child: the pools are the parent's. */
void vcap_pools_forget(void);

#endif
