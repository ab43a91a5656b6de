/*
 * The memory of a pool: chunks from the card, blocks in chunks.
 *
 * A block that no live stream may still be using is free for SIM_ANYONE; the others
 * belong to the stream that freed them, and to streams that waited for it. Neighbours of
 * one standing are merged. Growth is by VRAMCAP_SIM_POOL_CHUNK_MIB, by less where that
 * does not fit; before OUT_OF_MEMORY come blocks that other streams freed (internal
 * dependencies) and the exchange of idle chunks for a new one, as NVIDIA says the driver
 * does by remapping.
 */
#define _GNU_SOURCE
#include "sim_pool.h"

#include <stdlib.h>

/* Stream `waiter` has waited for what `source` did up to `sequence`. */
struct follows {
    uint64_t waiter, source, sequence;
    struct follows *next;
};

static struct follows *follows;
static uint64_t sequence = 1;

static bool owner_find(struct sim_owner *owner, CUdeviceptr address, struct sim_allocation *found)
{
    return sim_pool_find((struct sim_pool *)(void *)owner, address, found);
}

static bool owner_free(struct sim_owner *owner, CUdeviceptr address)
{
    return sim_pool_free((struct sim_pool *)(void *)owner, address, SIM_ANYONE);
}

static const struct sim_owner_operations operations = {.find = owner_find, .free = owner_free};

struct sim_pool *sim_pool_of(struct sim_owner *owner)
{
    return owner && owner->operations == &operations ? (struct sim_pool *)(void *)owner : NULL;
}

static struct sim_chunk *chunk_of(struct sim_pool *pool, uint64_t address)
{
    for (struct sim_chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        if (address - chunk->base < chunk->span)
            return chunk;
    return NULL;
}

static struct sim_block *block_of(struct sim_chunk *chunk, uint64_t address)
{
    struct sim_block *block = chunk ? chunk->blocks : NULL;

    while (block && address - block->base >= block->span)
        block = block->next;
    return block;
}

bool sim_pool_find(struct sim_pool *pool, CUdeviceptr address, struct sim_allocation *found)
{
    struct sim_block *block = block_of(chunk_of(pool, address), address);

    if (!block || block->bytes == 0)
        return false;
    found->base = block->base;
    found->bytes = block->bytes;
    return address - block->base < block->bytes;
}

/* --- chunks ------------------------------------------------------------------- */

static enum sim_region_id region_of(const struct sim_pool *pool)
{
    /* Managed and host memory are touched by the host. */
    return pool->properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED || !sim_pool_on_card(pool)
               ? SIM_REGION_MANAGED
               : SIM_REGION_MAIN;
}

static CUresult chunk_new(struct sim_pool *pool, uint64_t span)
{
    struct sim_chunk *chunk = calloc(1, sizeof *chunk);
    struct sim_block *block = calloc(1, sizeof *block);
    CUdeviceptr base = 0;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;

    if (chunk && block) {
        if (pool->properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED || sim_pool_on_card(pool))
            rc = sim_arena_alloc(&pool->owner, region_of(pool), span, &base);
        else
            rc = sim_arena_reserve(&pool->owner, region_of(pool), span, &base);
    }
    if (rc != CUDA_SUCCESS) {
        free(chunk);
        free(block);
        return rc;
    }
    *block = (struct sim_block){.base = base, .span = span};
    *chunk = (struct sim_chunk){.base = base,
                                .span = span,
                                .file_at = pool->file_end,
                                .blocks = block,
                                .next = pool->chunks};
    if (pool->file >= 0 && !sim_pool_file_map(pool, chunk)) {
        (void)sim_arena_extent_free(base);
        free(chunk);
        free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->chunks = chunk;
    pool->reserved += span;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

void sim_pool_chunk_free(struct sim_pool *pool, struct sim_chunk *chunk)
{
    struct sim_chunk **at = &pool->chunks;

    while (*at != chunk)
        at = &(*at)->next;
    *at = chunk->next;
    if (pool->file >= 0)
        sim_pool_file_unmap(pool, chunk);
    if (!pool->imported)
        pool->reserved -= chunk->span;
    (void)sim_arena_extent_free(chunk->base);
    while (chunk->blocks) {
        struct sim_block *block = chunk->blocks;

        chunk->blocks = block->next;
        free(block);
    }
    free(chunk);
}

/* Nothing in it is live. A free block whose stream nobody has waited for counts as idle,
 * for work is done when a call returns, unless VRAMCAP_SIM_POOL_OBSERVED says otherwise. */
static bool chunk_idle(const struct sim_chunk *chunk)
{
    for (const struct sim_block *block = chunk->blocks; block; block = block->next)
        if (block->bytes != 0 || (sim_config.pool_observed && block->stream != SIM_ANYONE))
            return false;
    return true;
}

void sim_pool_release(struct sim_pool *pool, uint64_t keep)
{
    for (struct sim_chunk *chunk = pool->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        if (pool->reserved >= chunk->span && pool->reserved - chunk->span >= keep &&
            chunk_idle(chunk))
            sim_pool_chunk_free(pool, chunk);
    }
}

/* --- blocks ---------------------------------------------------------------------- */

enum reach { OWN, FOLLOWED, ALL };

static bool usable(const struct sim_pool *pool, const struct sim_block *block, uint64_t stream,
                   enum reach reach)
{
    if (block->stream == SIM_ANYONE || block->stream == stream || reach == ALL)
        return true;
    if (reach == OWN || !pool->reuse[0])
        return false;
    for (const struct follows *f = follows; f; f = f->next)
        if (f->waiter == stream && f->source == block->stream && block->sequence <= f->sequence)
            return true;
    return false;
}

static struct sim_block *best_fit(struct sim_pool *pool, uint64_t span, uint64_t stream,
                                  enum reach reach)
{
    struct sim_block *best = NULL;

    for (struct sim_chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        for (struct sim_block *block = chunk->blocks; block; block = block->next)
            if (block->bytes == 0 && block->span >= span && (!best || block->span < best->span) &&
                usable(pool, block, stream, reach))
                best = block;
    return best;
}

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* A free block of a new chunk, NULL if the card or maxSize has no room. */
static struct sim_block *grow(struct sim_pool *pool, uint64_t span)
{
    uint64_t least = round_up(span, SIM_POOL_GRAIN),
             wish = round_up(span, sim_config.pool_chunk_bytes);
    uint64_t limit = pool->properties.maxSize;
    uint64_t room = (limit == 0 ? UINT64_MAX : round_up(limit, SIM_POOL_GRAIN)) - pool->reserved;

    if (wish <= room && chunk_new(pool, wish) == CUDA_SUCCESS)
        return pool->chunks->blocks;
    if (least < wish && least <= room && chunk_new(pool, least) == CUDA_SUCCESS)
        return pool->chunks->blocks;
    return NULL;
}

static struct sim_block *block_for(struct sim_pool *pool, uint64_t span, uint64_t stream)
{
    struct sim_block *block = best_fit(pool, span, stream, OWN);

    if (!block)
        block = best_fit(pool, span, stream, FOLLOWED);
    if (!block)
        block = grow(pool, span);
    if (!block && pool->reuse[2])
        block = best_fit(pool, span, stream, ALL);
    if (!block) {
        sim_pool_release(pool, 0); /* idle chunks for one that is large enough */
        block = grow(pool, span);
    }
    return block;
}

CUresult sim_pool_alloc(struct sim_pool *pool, size_t bytes, uint64_t stream, CUdeviceptr *address)
{
    if (bytes == 0 || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > UINT64_C(1) << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t span = round_up(bytes, SIM_POOL_UNIT);
    struct sim_block *rest = calloc(1, sizeof *rest);
    struct sim_block *block = rest ? block_for(pool, span, stream) : NULL;
    if (!block) {
        free(rest);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (block->span > span) {
        *rest = *block;
        rest->base += span;
        rest->span -= span;
        rest->previous = block;
        if (rest->next)
            rest->next->previous = rest;
        block->next = rest;
        block->span = span;
    } else {
        free(rest);
    }
    block->bytes = bytes;
    pool->live++;
    pool->used += span;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    *address = block->base;
    return CUDA_SUCCESS;
}

/* Takes the right neighbour in, where both are free and of one standing. */
static void merge_right(struct sim_block *block)
{
    struct sim_block *right = block->next;

    if (!right || block->bytes != 0 || right->bytes != 0 || block->stream != right->stream)
        return;
    if (right->sequence > block->sequence)
        block->sequence = right->sequence;
    block->span += right->span;
    block->next = right->next;
    if (block->next)
        block->next->previous = block;
    free(right);
}

bool sim_pool_free(struct sim_pool *pool, CUdeviceptr address, uint64_t stream)
{
    struct sim_chunk *chunk = chunk_of(pool, address);
    struct sim_block *block = block_of(chunk, address);

    if (!block || block->bytes == 0 || block->base != address)
        return false;
    block->bytes = 0;
    block->stream = stream;
    block->sequence = sequence++;
    pool->live--;
    if (pool->imported) {
        sim_pool_chunk_free(pool, chunk);
    } else {
        pool->used -= block->span;
        merge_right(block);
        if (block->previous)
            merge_right(block->previous);
    }
    if (pool->orphan && pool->live == 0)
        sim_pool_delete(pool);
    else if (pool->orphan)
        sim_pool_release(pool, 0);
    return true;
}

/* --- waiting ------------------------------------------------------------------------ */

/* What `stream` (SIM_ANYONE: every one) freed up to `until` is everybody's. */
static void observe(struct sim_pool *pool, uint64_t stream, uint64_t until)
{
    for (struct sim_chunk *chunk = pool->chunks; chunk; chunk = chunk->next) {
        for (struct sim_block *block = chunk->blocks; block; block = block->next)
            if (block->bytes == 0 && (stream == SIM_ANYONE || block->stream == stream) &&
                block->sequence <= until)
                block->stream = SIM_ANYONE;
        for (struct sim_block *block = chunk->blocks; block; block = block->next)
            while (block->next && block->bytes == 0 && block->next->bytes == 0 &&
                   block->stream == block->next->stream)
                merge_right(block);
    }
}

void sim_pools_synchronised(uint64_t stream, uint64_t until)
{
    sim_lock_take();
    for (struct sim_pool *pool = sim_pools; pool; pool = pool->next) {
        observe(pool, stream, until);
        if (!pool->imported)
            sim_pool_release(pool, pool->threshold);
    }
    sim_lock_drop();
}

uint64_t sim_pools_sequence(void)
{
    sim_lock_take();
    uint64_t now = sequence - 1;
    sim_lock_drop();
    return now;
}

void sim_pools_follow(uint64_t waiter, uint64_t source, uint64_t until)
{
    struct follows *found;

    if (waiter == source || source == SIM_ANYONE)
        return;
    sim_lock_take();
    for (found = follows; found; found = found->next)
        if (found->waiter == waiter && found->source == source)
            break;
    if (!found && (found = calloc(1, sizeof *found)) != NULL) {
        found->waiter = waiter;
        found->source = source;
        found->next = follows;
        follows = found;
    }
    if (found && found->sequence < until)
        found->sequence = until;
    sim_lock_drop();
}

void sim_pool_owner_start(struct sim_pool *pool)
{
    pool->owner.operations = &operations;
    pool->owner.card =
        sim_pool_on_card(pool) ? sim_device_card[pool->properties.location.id] : sim_device_card[0];
}
