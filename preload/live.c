/*
 * Records in shards, each with a lock, an open-addressing index and a slab of its own.  The index has 8 bytes
 * a slot (32 bits of hash, number of the entry), linear probing, and deletion that moves later entries up, so
 * that no tombstones pile up; a look-up touches one or two cache lines of it and the entry.  Entries never
 * move: they lie in chunks, each as large as all before it together, and are used again last freed first.
 * Memory is asked for only when a shard grows, and given back when a large one is empty.
 * Invariants, under the shard's lock:
 *   - every entry that is USED is in the index once, and no other one is;
 *   - the index has at least one empty slot, where every search ends.
 * uthash was here before: 160 bytes a record instead of 77, and three times the time of a pair (bench/).
 */
#include "preload/live.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/lock.h"

#define SHARD_BITS 4u
#define SHARDS (1u << SHARD_BITS)
#define FIRST_BITS 4u /* the first chunk and the first index have 16 */
#define CHUNKS 24u    /* 2^28 entries a shard */
#define GIVE_BACK_BITS 10u

enum entry_state { FREE, USED, LEAVING /* out of the index, kept by a sweep */ };

/* A record as it is kept: a cache line's worth.  Only pool and context share a place. */
struct entry {
    uint64_t key;
    uint64_t bytes;
    uint64_t pool_bytes;
    uint64_t mine;
    uint64_t birth; /* LEAVING: the next one of the sweep */
    void *owner;    /* the context; of a pool's pointer: the pool */
    uint64_t imported;
    uint32_t opens; /* FREE: the next free one, + 1 */
    uint8_t device;
    uint8_t state;
    bool exported : 1, pooled : 1, unsure : 1;
};
_Static_assert(sizeof(struct entry) == 64,
               "a live allocation costs at most 80 bytes with its index");

struct slot {
    uint32_t hash;
    uint32_t entry; /* number + 1; 0: empty */
};

struct shard {
    struct vcap_lock lock;
    struct slot *slots; /* 1 << bits; NULL: none yet */
    uint32_t bits;
    uint32_t held; /* entries that are not FREE */
    uint32_t free; /* the list's first, + 1 */
    uint32_t made; /* entries ever used since the slab was empty */
    struct entry *chunk[CHUNKS];
} __attribute__((aligned(64)));

static struct shard shards[SHARDS];
static uint64_t sweep_number; /* fetch-and-add by sweeps, read when a record is entered */

/* Pointers differ above bit 8; a multiplication spreads them: the top bits choose the shard, those below
 * them the slot. */
static uint32_t hash_key(uint64_t key)
{
    return (uint32_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

static struct shard *shard_of(uint32_t hash)
{
    return &shards[hash >> (32 - SHARD_BITS)];
}

static uint32_t home(const struct shard *shard, uint32_t hash)
{
    return (hash << SHARD_BITS) >> (32 - shard->bits);
}

static unsigned chunk_of(uint32_t number, uint32_t *within)
{
    uint32_t at = number + (1u << FIRST_BITS);
    unsigned top = 31u - (unsigned)__builtin_clz(at);

    /* chunk 0 holds numbers 0..15, chunk k the next 16 << k */
    *within = at - (1u << top);
    return top - FIRST_BITS;
}

static struct entry *entry_at(const struct shard *shard, uint32_t number)
{
    uint32_t within;
    unsigned chunk = chunk_of(number, &within);

    return &shard->chunk[chunk][within];
}

/* The slot of a key, or the empty one where its search ends.  The shard has an index. */
static struct slot *search(const struct shard *shard, uint64_t key, uint32_t hash,
                           struct entry **found)
{
    uint32_t mask = (1u << shard->bits) - 1;

    for (uint32_t at = home(shard, hash);; at = (at + 1) & mask) {
        struct slot *slot = &shard->slots[at];

        *found = NULL;
        if (slot->entry == 0)
            return slot;
        if (slot->hash != hash)
            continue;
        *found = entry_at(shard, slot->entry - 1);
        if ((*found)->key == key)
            return slot;
    }
}

static struct entry *find(const struct shard *shard, uint64_t key, uint32_t hash)
{
    struct entry *found = NULL;

    if (shard->slots != NULL)
        search(shard, key, hash, &found);
    return found;
}

/* Empties a slot and moves up what its place was keeping from home. */
static void remove_slot(struct shard *shard, struct slot *slot)
{
    uint32_t mask = (1u << shard->bits) - 1, hole = (uint32_t)(slot - shard->slots);

    for (uint32_t at = (hole + 1) & mask; shard->slots[at].entry != 0; at = (at + 1) & mask) {
        uint32_t from_home = (at - home(shard, shard->slots[at].hash)) & mask;

        if (from_home >= ((at - hole) & mask)) {
            shard->slots[hole] = shard->slots[at];
            hole = at;
        }
    }
    shard->slots[hole].entry = 0;
}

/* An index of twice the size; the old one stays if there is no memory. */
static void grow_index(struct shard *shard)
{
    struct shard larger = {.bits = shard->slots == NULL ? FIRST_BITS : shard->bits + 1};
    uint32_t old = shard->slots == NULL ? 0 : 1u << shard->bits, mask = (1u << larger.bits) - 1;

    if (larger.bits > 32 - SHARD_BITS)
        return;
    larger.slots = calloc((size_t)1 << larger.bits, sizeof(*larger.slots));
    if (larger.slots == NULL)
        return;
    for (uint32_t i = 0; i < old; i++) {
        uint32_t at = home(&larger, shard->slots[i].hash);

        if (shard->slots[i].entry == 0)
            continue;
        while (larger.slots[at].entry != 0)
            at = (at + 1) & mask;
        larger.slots[at] = shard->slots[i];
    }
    free(shard->slots);
    shard->slots = larger.slots;
    shard->bits = larger.bits;
}

/* Room in the index for one more: at most 7 of 8 slots are in use, but for want of memory. */
static bool have_room(struct shard *shard)
{
    if (shard->slots == NULL || shard->held + 1 > (7u << shard->bits) / 8)
        grow_index(shard);
    return shard->slots != NULL && shard->held + 1 < 1u << shard->bits;
}

/* An entry's number, + 1; 0: no memory. */
static uint32_t get_entry(struct shard *shard)
{
    uint32_t number = shard->free, within;
    unsigned chunk;

    if (number != 0) {
        shard->free = entry_at(shard, number - 1)->opens;
        return number;
    }
    chunk = chunk_of(shard->made, &within);
    if (chunk >= CHUNKS)
        return 0;
    if (shard->chunk[chunk] == NULL)
        shard->chunk[chunk] =
            malloc(((size_t)1 << (FIRST_BITS + chunk)) * sizeof(*shard->chunk[chunk]));
    return shard->chunk[chunk] == NULL ? 0 : ++shard->made;
}

static void put_entry(struct shard *shard, struct entry *entry, uint32_t number)
{
    entry->state = FREE;
    entry->opens = shard->free;
    shard->free = number;
    shard->held--;
    if (__builtin_expect(shard->held == 0 && shard->bits > GIVE_BACK_BITS, 0)) {
        for (unsigned i = 0; i < CHUNKS; i++) {
            free(shard->chunk[i]);
            shard->chunk[i] = NULL;
        }
        free(shard->slots);
        shard->slots = NULL;
        shard->bits = shard->free = shard->made = 0;
    }
}

static void pack(struct entry *e, const struct vcap_live *record)
{
    e->bytes = record->bytes;
    e->pool_bytes = record->pool_bytes;
    e->mine = record->mine;
    e->owner = record->pool != NULL ? (void *)record->pool : record->context;
    e->imported = record->imported;
    e->opens = record->opens;
    e->device = (uint8_t)record->device;
    e->exported = record->exported;
    e->unsure = record->unsure;
    e->pooled = record->pool != NULL;
}

static void unpack(struct vcap_live *record, const struct entry *e)
{
    record->key = e->key;
    record->bytes = e->bytes;
    record->mine = e->mine;
    record->birth = e->birth;
    record->context = e->pooled ? NULL : e->owner;
    record->imported = e->imported;
    record->device = e->device;
    record->opens = e->opens;
    record->exported = e->exported;
    record->unsure = e->unsure;
    record->pool = e->pooled ? e->owner : NULL;
    record->pool_bytes = e->pool_bytes;
}

int vcap_live_enter(const struct vcap_live *record, struct vcap_live *stale)
{
    uint32_t hash = hash_key(record->key), number = 0;
    struct shard *shard = shard_of(hash);
    struct entry *entry = NULL;
    struct slot *slot = NULL;

    stale->key = 0;
    vcap_lock_take(&shard->lock);
    if (have_room(shard))
        slot = search(shard, record->key, hash, &entry);
    else
        entry = find(shard, record->key, hash);
    if (entry != NULL) {
        unpack(stale, entry);
    } else if (slot != NULL && (number = get_entry(shard)) != 0) {
        entry = entry_at(shard, number - 1);
        entry->key = record->key;
        entry->state = USED;
        *slot = (struct slot){hash, number};
        shard->held++;
    }
    if (entry != NULL) {
        pack(entry, record);
        entry->birth = __atomic_load_n(&sweep_number, __ATOMIC_ACQUIRE);
    }
    vcap_lock_drop(&shard->lock);
    return entry == NULL ? -ENOMEM : 0;
}

bool vcap_live_take(uint64_t key, struct vcap_live *record)
{
    uint32_t hash = hash_key(key);
    struct shard *shard = shard_of(hash);
    struct entry *entry = NULL;
    struct slot *slot;

    vcap_lock_take(&shard->lock);
    if (shard->slots != NULL) {
        slot = search(shard, key, hash, &entry);
        if (entry != NULL) {
            uint32_t number = slot->entry;

            unpack(record, entry);
            remove_slot(shard, slot);
            put_entry(shard, entry, number);
        }
    }
    vcap_lock_drop(&shard->lock);
    return entry != NULL;
}

uint64_t vcap_live_sweep_begin(void)
{
    return __atomic_add_fetch(&sweep_number, 1, __ATOMIC_ACQ_REL);
}

uint64_t vcap_live_sweep_number(void)
{
    return __atomic_load_n(&sweep_number, __ATOMIC_ACQUIRE);
}

/* Takes what matches out of one shard's index: the numbers, + 1, chained by birth. */
static uint64_t sweep_out(struct shard *shard, uint64_t before,
                          bool (*match)(const struct vcap_live *, void *arg), void *arg)
{
    uint64_t out = 0;

    for (uint32_t number = 0; number < shard->made; number++) {
        struct entry *entry = entry_at(shard, number), *found;
        struct vcap_live record;

        if (entry->state != USED || entry->birth >= before)
            continue;
        unpack(&record, entry);
        if (!match(&record, arg))
            continue;
        remove_slot(shard, search(shard, entry->key, hash_key(entry->key), &found));
        entry->state = LEAVING;
        entry->birth = out;
        out = number + 1;
    }
    return out;
}

void vcap_live_sweep(uint64_t before, bool (*match)(const struct vcap_live *, void *arg),
                     void (*taken)(const struct vcap_live *, void *arg), void *arg)
{
    for (unsigned s = 0; s < SHARDS; s++) {
        struct shard *shard = &shards[s];
        uint64_t out;

        vcap_lock_take(&shard->lock);
        out = sweep_out(shard, before, match, arg);
        while (out != 0) {
            struct entry *entry = entry_at(shard, (uint32_t)out - 1);
            uint32_t number = (uint32_t)out;
            struct vcap_live record;

            unpack(&record, entry);
            out = entry->birth;
            put_entry(shard, entry, number);
            vcap_lock_drop(&shard->lock); /* taken may come back to this map */
            taken(&record, arg);
            vcap_lock_take(&shard->lock);
        }
        vcap_lock_drop(&shard->lock);
    }
}

static void visit_entry(struct entry *entry, void (*visit)(struct vcap_live *, void *arg),
                        void *arg)
{
    struct vcap_live record;

    unpack(&record, entry);
    visit(&record, arg);
    pack(entry, &record);
}

void vcap_live_each(void (*visit)(struct vcap_live *, void *arg), void *arg)
{
    for (unsigned s = 0; s < SHARDS; s++) {
        struct shard *shard = &shards[s];

        vcap_lock_take(&shard->lock);
        for (uint32_t number = 0; number < shard->made; number++)
            if (entry_at(shard, number)->state == USED)
                visit_entry(entry_at(shard, number), visit, arg);
        vcap_lock_drop(&shard->lock);
    }
}

void vcap_live_with(uint64_t key, void (*visit)(struct vcap_live *, void *arg), void *arg)
{
    uint32_t hash = hash_key(key);
    struct shard *shard = shard_of(hash);
    struct entry *entry;

    vcap_lock_take(&shard->lock);
    entry = find(shard, key, hash);
    if (entry != NULL)
        visit_entry(entry, visit, arg);
    vcap_lock_drop(&shard->lock);
}

void vcap_live_forget(void)
{
    /* the memory stays where it is: the parent's allocator may have been in the middle of anything */
    for (unsigned s = 0; s < SHARDS; s++)
        memset(&shards[s], 0, sizeof(shards[s]));
}
