/*
 * Stream-ordered pools, as their own files share them. sim_pool.c has what programs call,
 * sim_pool_blocks.c the memory, sim_pool_share.c what crosses process borders.
 *
 * A pool takes chunks from the card and hands out blocks of them. What counts on the card
 * is the chunks (`reserved`), not the blocks (`used`). A freed block is at once free for the
 * stream it was freed on, for others after a wait that they or the host made. A pool with
 * live blocks outlives its destruction, out of reach of its handle; a default pool lives
 * for ever. Everything here is under sim_lock.
 */
#ifndef VRAMCAP_SIM_POOL_H
#define VRAMCAP_SIM_POOL_H

#include "sim_internal.h"

#define SIM_POOL_UNIT UINT64_C(512)
#define SIM_POOL_GRAIN (UINT64_C(1) << 21) /* chunks are multiples of it */

struct sim_block {
    uint64_t base, span;               /* span: multiple of SIM_POOL_UNIT */
    size_t bytes;                      /* asked for; 0: free */
    uint64_t stream;                   /* free: who may have it now, SIM_ANYONE after a wait */
    uint64_t sequence;                 /* free: when it was freed */
    struct sim_block *next, *previous; /* by address */
};
#define SIM_ANYONE UINT64_C(0)

struct sim_chunk {
    uint64_t base, span;
    uint64_t file_at; /* of a pool that can be exported: where in its file */
    struct sim_block *blocks;
    struct sim_chunk *next;
};

struct sim_pool {
    struct sim_owner owner; /* first: an owner with operations is a pool */
    CUmemPoolProps properties;
    bool standard; /* a default pool */
    bool imported; /* holds no memory: chunks are windows on another process's */
    bool orphan;   /* destroyed, blocks still live */
    int file;      /* memfd of a pool that can be exported or is imported, else -1 */
    uint64_t file_end;
    uint64_t identity;
    uint64_t threshold, reserved, reserved_high, used, used_high;
    uint64_t live; /* blocks that are not free */
    int reuse[3];  /* follow events, opportunistic, internal dependencies */
    CUmemAccess_flags peer[SIM_MAX_CARDS];
    struct sim_chunk *chunks;
    struct sim_pool *next;
};

extern struct sim_pool *sim_pools; /* all but the destroyed; orphans too */

static inline bool sim_pool_on_card(const struct sim_pool *pool)
{
    return pool->properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

/* --- sim_pool.c --- */

/* NULL unless it is a live handle. */
struct sim_pool *sim_pool_from(CUmemoryPool handle);
/* The current pool of a device. */
struct sim_pool *sim_pool_current(CUdevice device);
struct sim_pool *sim_pool_new(const CUmemPoolProps *properties);
/* A pool nobody uses any more: off the list, memory given back. */
void sim_pool_delete(struct sim_pool *pool);

/* --- sim_pool_blocks.c --- */

CUresult sim_pool_alloc(struct sim_pool *pool, size_t bytes, uint64_t stream, CUdeviceptr *address);
/* Frees the block that starts at `address`, for `stream`; SIM_ANYONE: for everybody. May
 * delete the pool, if that was the last block of an orphan. */
bool sim_pool_free(struct sim_pool *pool, CUdeviceptr address, uint64_t stream);
bool sim_pool_find(struct sim_pool *pool, CUdeviceptr address, struct sim_allocation *found);
/* Gives idle chunks back as long as `keep` bytes stay reserved. */
void sim_pool_release(struct sim_pool *pool, uint64_t keep);
void sim_pool_chunk_free(struct sim_pool *pool, struct sim_chunk *chunk);
/* Makes the owner of a new pool one: its card, how to find and free in it. */
void sim_pool_owner_start(struct sim_pool *pool);
/* The pool of a chunk's owner, NULL for any other owner. */
struct sim_pool *sim_pool_of(struct sim_owner *owner);

/* --- sim_pool_share.c --- */

/* A memfd for a pool whose properties ask for one. */
CUresult sim_pool_file_make(struct sim_pool *pool);
/* Puts [file_at, +span) of the pool's file behind the chunk, or fresh bytes again. */
bool sim_pool_file_map(struct sim_pool *pool, struct sim_chunk *chunk);
void sim_pool_file_unmap(struct sim_pool *pool, struct sim_chunk *chunk);

#endif
