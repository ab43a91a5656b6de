/*
 * This process's live allocations: device pointer -> what was charged for it.  Sharded; every
 * function is thread-safe and takes one shard's lock for the time of a hash look-up, never over a
 * driver call.
 */
#ifndef VRAMCAP_PRELOAD_LIVE_H
#define VRAMCAP_PRELOAD_LIVE_H

#include <stdbool.h>
#include <stdint.h>

/* What a handle is of; part of the key, so that a host address and a device pointer never meet. */
enum vcap_live_kind {
    VCAP_LIVE_MEMORY = 0, /* device pointers */
    VCAP_LIVE_ARRAY,
    VCAP_LIVE_MIPMAP,
    VCAP_LIVE_EXTERNAL, /* imported external memory */
    VCAP_LIVE_OPENED,   /* cuIpcOpenMemHandle: never cuMemFree's */
    VCAP_LIVE_HANDLE    /* physical memory, by the address of its object (vmm.h) */
};
static inline uint64_t vcap_live_key(enum vcap_live_kind kind, uint64_t handle)
{
    return handle ^ (uint64_t)kind << 60; /* user addresses have at most 57 bits */
}

struct vcap_pool;

struct vcap_live {
    uint64_t key; /* vcap_live_key; a device pointer is its own key */
    uint64_t bytes;
    uint64_t mine;  /* the place in the ledger (vcap_ledger_mine) that this is charged in */
    uint64_t birth; /* vcap_live_sweep_number() when it was entered */
    void *context;
    uint64_t imported; /* bytes that another process is charged for */
    uint32_t device;   /* ordinal in this process */
    uint32_t opens;    /* VCAP_LIVE_OPENED: opens less closes */
    bool unsure;       /* overhead.h: charged, and MPS may not count it */
    bool exported;     /* share.h has exports under this key */
    /* memory of a pool: bytes is 0, for the pool is charged (pool.h), unless that is another process's and
     * nobody here is charged for it; else NULL */
    struct vcap_pool *pool;
    uint64_t pool_bytes;
};

/*
 * Enters an allocation.  A record already there under this key is stale (the driver would not hand
 * out an address that is in use): it is replaced and returned in *stale, for its charge to be
 * released; stale->key is 0 if there was none.  -ENOMEM: not entered.
 */
int vcap_live_enter(const struct vcap_live *record, struct vcap_live *stale);

/* Takes a record out, before the driver is asked to free it: afterwards another thread may be
 * handed the same address at once.  False: not ours. */
bool vcap_live_take(uint64_t key, struct vcap_live *record);

/*
 * A context is about to go.  Number to be drawn before the driver is called; what is entered after
 * the driver has destroyed the context has a birth of at least this number, so a later sweep spares
 * it.
 */
uint64_t vcap_live_sweep_begin(void);

/* Takes out the records with birth < before that match(record, arg) accepts, one call of taken
 * each. */
void vcap_live_sweep(uint64_t before, bool (*match)(const struct vcap_live *, void *arg),
                     void (*taken)(const struct vcap_live *, void *arg), void *arg);

/* Calls visit on every record, its shard locked; visit may change anything but key and
 * birth. */
void vcap_live_each(void (*visit)(struct vcap_live *, void *arg), void *arg);

/* One record by key, its shard locked; nothing happens if it has been taken. */
void vcap_live_with(uint64_t key, void (*visit)(struct vcap_live *, void *arg), void *arg);

uint64_t vcap_live_sweep_number(void);

/* In a forked child: nothing of the parent's is ours. */
void vcap_live_forget(void);

#endif
