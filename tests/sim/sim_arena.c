/*
 * Device addresses and the card memory behind them.
 *
 * A region is a PROT_NONE reservation that hands out addresses in blocks of 2 MiB, and
 * a second one, readable and writable, at a fixed distance: the bytes. A host touch of a
 * device address faults; untouched bytes cost nothing (MAP_NORESERVE). Managed memory
 * is its own bytes: its addresses are made accessible while they are allocated. The LOW
 * region lies below 4 GiB, for the 32-bit functions.
 *
 * Over 1 MiB, an allocation takes whole pages of the card; up to 1 MiB, 512-byte units of
 * a 2 MiB slab of its owner, which goes back to the card with its last allocation.
 * Everything is under sim_lock. Invariant: this process's row of the state file is the
 * sum of its extents, slabs, contexts and physical handles.
 */
#define _GNU_SOURCE
#include "sim_internal.h"
#include "sim_share.h"
#include "sim_window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCK (UINT64_C(1) << 21)
#define UNIT UINT64_C(512)
#define SLAB_UNITS (BLOCK / UNIT)
#define SMALL_LIMIT (UINT64_C(1) << 20)
#define LOW_BYTES (UINT64_C(256) << 20)

struct sim_slab {
    struct sim_extent *extent;
    struct sim_slab *next, *previous;
    unsigned int free_units;
    uint64_t used[SLAB_UNITS / 64];
    uint32_t bytes[SLAB_UNITS]; /* by first unit: size asked for; 0 elsewhere */
};

struct sim_extent {
    uint64_t base, span; /* address space, multiple of BLOCK */
    size_t bytes;        /* asked for */
    struct sim_delta cost;
    struct sim_owner *owner;
    struct sim_extent *next, *previous;
    struct sim_slab *slab; /* NULL: one allocation */
    enum sim_region_id region;
    bool touched;
    uint64_t share; /* its bytes and its cost are in a share (cuIpcGetMemHandle); 0: they are not */
};

struct region {
    uint64_t base, size, bytes_base; /* size 0: not reserved yet */
    size_t blocks, lowest_free;
    uint64_t *used;              /* a bit per block */
    struct sim_extent **extents; /* per block */
};

static struct region region[SIM_REGIONS];

/* --- runs of clear bits ----------------------------------------------------- */

static bool bit_get(const uint64_t *bits, size_t at)
{
    return (bits[at / 64] >> (at % 64)) & 1;
}

static void bits_set(uint64_t *bits, size_t from, size_t count, bool value)
{
    while (count > 0) {
        size_t low = from % 64, here = 64 - low < count ? 64 - low : count;
        uint64_t mask = (here == 64 ? ~UINT64_C(0) : (UINT64_C(1) << here) - 1) << low;

        bits[from / 64] = value ? bits[from / 64] | mask : bits[from / 64] & ~mask;
        from += here;
        count -= here;
    }
}

/* First position >= from whose bit is `value`, or size. */
static size_t bit_next(const uint64_t *bits, size_t size, size_t from, bool value)
{
    while (from < size) {
        uint64_t word = (value ? bits[from / 64] : ~bits[from / 64]) >> (from % 64);

        if (word != 0) {
            from += (size_t)__builtin_ctzll(word);
            return from < size ? from : size;
        }
        from = (from / 64 + 1) * 64;
    }
    return size;
}

/* Start of the first run of `count` clear bits, or size. */
static size_t bits_find(const uint64_t *bits, size_t size, size_t from, size_t count)
{
    for (;;) {
        from = bit_next(bits, size, from, false);
        if (from >= size || size - from < count)
            return size;
        size_t end = bit_next(bits, from + count, from, true);
        if (end == from + count)
            return from;
        from = end;
    }
}

/* --- regions ------------------------------------------------------------------ */

static void *reserve(void *hint, uint64_t size, int protection)
{
    void *map = mmap(hint, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return map == MAP_FAILED ? NULL : map;
}

static uint64_t reserve_low(void)
{
    /* Clear of non-PIE programs, and of the sanitizers' shadow (from 2 GiB up). */
    for (uint64_t at = UINT64_C(0x20000000); at <= UINT64_C(0x60000000);
         at += UINT64_C(0x08000000)) {
        void *map = reserve((void *)(uintptr_t)at, LOW_BYTES, PROT_NONE);

        if (map && (uintptr_t)map % BLOCK == 0 &&
            (uintptr_t)map + LOW_BYTES <= UINT64_C(0x80000000))
            return (uintptr_t)map;
        if (map)
            (void)munmap(map, LOW_BYTES);
    }
    return 0;
}

static uint64_t reserve_aligned(uint64_t size, int protection)
{
    void *map = reserve(NULL, size + BLOCK, protection);

    return map ? ((uintptr_t)map + BLOCK - 1) / BLOCK * BLOCK : 0;
}

/* Twice the memory of the cards seen, so that holes between allocations never refuse; or what was asked
 * for: an emulator keeps a note of every page that is reserved. */
static uint64_t region_bytes(void)
{
    uint64_t sum = 0;

    if (sim_config.address_bytes != 0)
        return sim_config.address_bytes;
    for (unsigned int d = 0; d < sim_device_count; d++)
        sum += sim_state->file->card[sim_device_card[d]].total;
    sum = (2 * sum + BLOCK - 1) / BLOCK * BLOCK;
    return sum < 64 * BLOCK ? 64 * BLOCK : sum;
}

static bool region_ready(enum sim_region_id id)
{
    struct region *r = &region[id];

    if (r->size != 0)
        return true;
    uint64_t size = id == SIM_REGION_LOW ? LOW_BYTES : region_bytes();
    size_t blocks = (size_t)(size / BLOCK);
    if (!r->used)
        r->used = calloc((blocks + 63) / 64, sizeof *r->used);
    if (!r->extents)
        r->extents = calloc(blocks, sizeof(struct sim_extent *));
    if (!r->used || !r->extents)
        return false;
    if (r->base == 0)
        r->base = id == SIM_REGION_LOW ? reserve_low() : reserve_aligned(size, PROT_NONE);
    if (r->base == 0)
        return false;
    r->bytes_base =
        id == SIM_REGION_MANAGED ? r->base : reserve_aligned(size, PROT_READ | PROT_WRITE);
    if (r->bytes_base == 0)
        return false;
    (void)madvise((void *)(uintptr_t)r->bytes_base, size, MADV_NOHUGEPAGE);
    (void)madvise((void *)(uintptr_t)r->bytes_base, size, MADV_DONTDUMP);
    r->blocks = blocks;
    r->size = size;
    return true;
}

static struct sim_extent *extent_at(CUdeviceptr address)
{
    for (unsigned int id = 0; id < SIM_REGIONS; id++)
        if (address - region[id].base < region[id].size)
            return region[id].extents[(address - region[id].base) / BLOCK];
    return NULL;
}

bool sim_is_device_address(CUdeviceptr address)
{
    bool inside = false;

    sim_lock_take();
    inside = sim_window_at(address) != NULL;
    for (unsigned int id = 0; id < SIM_REGIONS; id++)
        inside = inside || address - region[id].base < region[id].size;
    sim_lock_drop();
    return inside;
}

/* --- card memory ---------------------------------------------------------------- */

CUresult sim_card_take(unsigned int card, struct sim_delta delta)
{
    int rc = sim_state_move(sim_state, card, delta);

    if (rc == 0)
        return CUDA_SUCCESS;
    return rc == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
}

void sim_card_give(unsigned int card, struct sim_delta delta)
{
    (void)sim_state_move(
        sim_state, card,
        (struct sim_delta){-delta.used, -delta.alloc, -delta.context, -delta.managed});
}

/* --- extents ---------------------------------------------------------------------- */

/* A new extent of `span` bytes, its cost taken from the card. */
static CUresult extent_new(struct sim_owner *owner, enum sim_region_id id, uint64_t span,
                           struct sim_delta cost, struct sim_extent **made)
{
    struct region *r = &region[id];

    if (!region_ready(id))
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t count = (size_t)(span / BLOCK);
    size_t first = bits_find(r->used, r->blocks, r->lowest_free, count);
    if (first == r->blocks)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_extent *extent = calloc(1, sizeof *extent);
    if (!extent)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = sim_card_take(owner->card, cost);
    uint64_t base = r->base + first * BLOCK;
    if (rc == CUDA_SUCCESS && id == SIM_REGION_MANAGED &&
        mprotect((void *)(uintptr_t)base, span, PROT_READ | PROT_WRITE) != 0) {
        sim_card_give(owner->card, cost);
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (rc != CUDA_SUCCESS) {
        free(extent);
        return rc;
    }
    *extent = (struct sim_extent){.base = base,
                                  .span = span,
                                  .cost = cost,
                                  .owner = owner,
                                  .next = owner->extents,
                                  .region = id};
    if (owner->extents)
        owner->extents->previous = extent;
    owner->extents = extent;
    bits_set(r->used, first, count, true);
    for (size_t b = 0; b < count; b++)
        r->extents[first + b] = extent;
    if (first == r->lowest_free)
        r->lowest_free = first + count;
    *made = extent;
    return CUDA_SUCCESS;
}

static void extent_delete(struct sim_extent *extent)
{
    struct region *r = &region[extent->region];
    size_t first = (size_t)((extent->base - r->base) / BLOCK),
           count = (size_t)(extent->span / BLOCK);
    void *bytes = (void *)(uintptr_t)(extent->base - r->base + r->bytes_base);

    /* The next allocation here must read as fresh memory, and the pages go back. */
    if (extent->region == SIM_REGION_MANAGED)
        (void)mmap(bytes, extent->span, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    else if (extent->share != 0)
        (void)mmap(bytes, extent->span, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    else if (extent->touched)
        (void)madvise(bytes, extent->span, MADV_DONTNEED);
    bits_set(r->used, first, count, false);
    memset(&r->extents[first], 0, count * sizeof r->extents[0]);
    if (first < r->lowest_free)
        r->lowest_free = first;
    if (extent->previous)
        extent->previous->next = extent->next;
    else
        extent->owner->extents = extent->next;
    if (extent->next)
        extent->next->previous = extent->previous;
    if (extent->share != 0)
        sim_share_drop(sim_state, extent->share);
    sim_card_give(extent->owner->card, extent->cost);
    free(extent->slab);
    free(extent);
}

static void slab_unlink(struct sim_slab *slab, struct sim_owner *owner)
{
    if (slab->previous)
        slab->previous->next = slab->next;
    else
        owner->slabs = slab->next;
    if (slab->next)
        slab->next->previous = slab->previous;
}

static CUresult slab_new(struct sim_owner *owner, enum sim_region_id id, struct sim_delta cost,
                         struct sim_slab **made)
{
    struct sim_extent *extent = NULL;
    struct sim_slab *slab = calloc(1, sizeof *slab);

    if (!slab)
        return CUDA_ERROR_OUT_OF_MEMORY;
    cost.used = (int64_t)BLOCK;
    CUresult rc = extent_new(owner, id, BLOCK, cost, &extent);
    if (rc != CUDA_SUCCESS) {
        free(slab);
        return rc;
    }
    /* The extent keeps the slab's own cost; each small allocation brings its share of `alloc`. */
    extent->cost.alloc = 0;
    extent->slab = slab;
    slab->extent = extent;
    slab->free_units = SLAB_UNITS;
    slab->next = owner->slabs;
    if (owner->slabs)
        owner->slabs->previous = slab;
    owner->slabs = slab;
    *made = slab;
    return CUDA_SUCCESS;
}

static CUresult small_alloc(struct sim_owner *owner, enum sim_region_id id, size_t bytes,
                            CUdeviceptr *address)
{
    size_t units = (size_t)((bytes + UNIT - 1) / UNIT), at = SLAB_UNITS;
    struct sim_delta cost = {.alloc = (int64_t)(units * UNIT)};
    struct sim_slab *slab = owner->slabs;
    CUresult rc;

    for (; slab; slab = slab->next) {
        if (slab->extent->region != id || slab->free_units < units)
            continue;
        at = bits_find(slab->used, SLAB_UNITS, 0, units);
        if (at != SLAB_UNITS)
            break;
    }
    if (slab) {
        rc = sim_card_take(owner->card, cost);
    } else {
        rc = slab_new(owner, id, cost, &slab);
        at = 0;
    }
    if (rc != CUDA_SUCCESS)
        return rc;
    bits_set(slab->used, at, units, true);
    slab->free_units -= (unsigned int)units;
    slab->bytes[at] = (uint32_t)bytes;
    *address = slab->extent->base + at * UNIT;
    return CUDA_SUCCESS;
}

CUresult sim_arena_alloc(struct sim_owner *owner, enum sim_region_id id, size_t bytes,
                         CUdeviceptr *address)
{
    struct sim_extent *extent = NULL;
    uint64_t page = sim_config.page_bytes;

    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > UINT64_C(1) << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes <= SMALL_LIMIT && id != SIM_REGION_MANAGED)
        return small_alloc(owner, id, bytes, address);
    int64_t pages = (int64_t)((bytes + page - 1) / page * page);
    struct sim_delta cost = {.used = pages, .alloc = pages};
    if (id == SIM_REGION_MANAGED)
        cost = (struct sim_delta){.managed = pages};
    CUresult rc = extent_new(owner, id, (bytes + BLOCK - 1) / BLOCK * BLOCK, cost, &extent);
    if (rc == CUDA_SUCCESS) {
        extent->bytes = bytes;
        *address = extent->base;
    }
    return rc;
}

/* First unit of the small allocation that holds `unit`, or SLAB_UNITS. */
static size_t slab_first(const struct sim_slab *slab, size_t unit)
{
    if (!bit_get(slab->used, unit))
        return SLAB_UNITS;
    while (slab->bytes[unit] == 0)
        unit--;
    return unit;
}

bool sim_arena_find(CUdeviceptr address, struct sim_allocation *found)
{
    struct sim_extent *extent = extent_at(address);

    if (!extent)
        return sim_window_find(address, found);
    *found = (struct sim_allocation){.base = extent->base,
                                     .bytes = extent->bytes,
                                     .owner = extent->owner,
                                     .managed = extent->region == SIM_REGION_MANAGED};
    if (extent->owner->operations)
        return extent->owner->operations->find(extent->owner, address, found);
    if (extent->slab) {
        size_t first = slab_first(extent->slab, (size_t)((address - extent->base) / UNIT));

        if (first == SLAB_UNITS)
            return false;
        found->base = extent->base + first * UNIT;
        found->bytes = extent->slab->bytes[first];
    }
    return address - found->base < found->bytes;
}

bool sim_arena_free(CUdeviceptr address)
{
    struct sim_extent *extent = extent_at(address);

    if (!extent)
        return sim_window_free(address);
    if (extent->owner->operations)
        return extent->owner->operations->free(extent->owner, address);
    if (!extent->slab) {
        if (address != extent->base)
            return false;
        extent_delete(extent);
        return true;
    }
    struct sim_slab *slab = extent->slab;
    struct sim_owner *owner = extent->owner;
    size_t unit = (size_t)((address - extent->base) / UNIT);
    if ((address - extent->base) % UNIT != 0 || slab->bytes[unit] == 0)
        return false;
    size_t units = (size_t)((slab->bytes[unit] + UNIT - 1) / UNIT);
    int64_t cost = (int64_t)(units * UNIT);
    bits_set(slab->used, unit, units, false);
    slab->bytes[unit] = 0;
    slab->free_units += (unsigned int)units;
    if (slab->free_units == SLAB_UNITS) {
        slab_unlink(slab, owner);
        extent->cost.alloc = cost; /* both in one move */
        extent_delete(extent);
    } else {
        sim_card_give(owner->card, (struct sim_delta){.alloc = cost});
    }
    return true;
}

CUresult sim_arena_reserve(struct sim_owner *owner, enum sim_region_id id, size_t bytes,
                           CUdeviceptr *address)
{
    struct sim_extent *extent = NULL;
    CUresult rc = extent_new(owner, id, (bytes + BLOCK - 1) / BLOCK * BLOCK,
                             (struct sim_delta){.used = 0}, &extent);

    if (rc == CUDA_SUCCESS) {
        extent->bytes = bytes;
        *address = extent->base;
    }
    return rc;
}

unsigned char *sim_arena_extent_bytes(CUdeviceptr address)
{
    struct sim_extent *extent = extent_at(address);
    struct region *r = extent ? &region[extent->region] : NULL;

    return r ? (unsigned char *)(uintptr_t)(address - r->base + r->bytes_base) : NULL;
}

bool sim_arena_extent_free(CUdeviceptr address)
{
    struct sim_extent *extent = extent_at(address);

    if (!extent || extent->slab || extent->base != address)
        return false;
    extent_delete(extent);
    return true;
}

void sim_owner_clear(struct sim_owner *owner)
{
    while (owner->extents) {
        struct sim_extent *extent = owner->extents;

        if (extent->slab) {
            size_t live = SLAB_UNITS - extent->slab->free_units;

            slab_unlink(extent->slab, owner);
            extent->cost.alloc = (int64_t)(live * UNIT);
        }
        extent_delete(extent);
    }
}

unsigned char *sim_arena_bytes(CUdeviceptr address, size_t bytes)
{
    struct sim_allocation found;

    if (!extent_at(address))
        return sim_window_bytes(address, bytes);
    if (!sim_arena_find(address, &found) || bytes > found.bytes - (address - found.base))
        return NULL;
    struct sim_extent *extent = extent_at(address);
    struct region *r = &region[extent->region];
    extent->touched = true;
    return (unsigned char *)(uintptr_t)(address - r->base + r->bytes_base);
}

unsigned char *sim_bytes(CUdeviceptr address, size_t bytes, bool any_host)
{
    bool device = sim_is_device_address(address);
    unsigned char *at = NULL;

    sim_lock_take();
    if (device) {
        at = sim_arena_bytes(address, bytes);
    } else if (address != 0 && !any_host) {
        struct sim_host_range *range = sim_host_find((uintptr_t)address);

        if (range && bytes <= range->bytes - ((uintptr_t)address - range->base))
            at = (unsigned char *)(uintptr_t)address;
    } else if (address != 0) {
        at = (unsigned char *)(uintptr_t)address;
    }
    sim_lock_drop();
    return at;
}

/* Copies what is not zero, so that untouched memory stays unmade. */
static void bytes_copy(unsigned char *to, const unsigned char *from, size_t bytes)
{
    static const unsigned char zero[4096];

    for (size_t at = 0; at < bytes; at += sizeof zero)
        if (memcmp(from + at, zero, sizeof zero) != 0)
            memcpy(to + at, from + at, sizeof zero);
}

CUresult sim_arena_share(CUdeviceptr address, uint64_t *share, uint64_t *offset)
{
    struct sim_extent *extent = extent_at(address);

    if (extent->share == 0) {
        struct sim_share_info info = {.card = extent->owner->card, .bytes = extent->span};
        struct sim_amounts cost = {.used = (uint64_t)extent->cost.used,
                                   .alloc = (uint64_t)extent->cost.alloc};
        unsigned char *bytes = sim_arena_extent_bytes(extent->base);
        uint64_t id = 0;

        int rc = sim_share_new(sim_state, &info, cost, &id);
        if (rc != 0)
            return rc == -ENOTSUP ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OUT_OF_MEMORY;
        extent->share = id;
        extent->cost = (struct sim_delta){0, 0, 0, 0};
        unsigned char *shared = sim_share_map(sim_state, id, extent->span, NULL);
        if (!shared)
            return CUDA_ERROR_MAP_FAILED;
        if (extent->touched)
            bytes_copy(shared, bytes, extent->span);
        (void)munmap(shared, extent->span);
        if (!sim_share_map(sim_state, id, extent->span, bytes))
            return CUDA_ERROR_MAP_FAILED;
    }
    *share = extent->share;
    *offset = address - extent->base;
    return CUDA_SUCCESS;
}
