/*
 * uthash tables, one per shard, each with a lock of its own on its own cache line.  Every table
 * holds one sentinel, because uthash frees a table with its last element and makes it again with
 * the next; records that go are kept for the next ones, up to SPARES a shard.  HASH_NONFATAL_OOM:
 * by default uthash calls exit(-1) when memory is short.
 */
#include "preload/live.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(element) ((element)->lost = true)
#include <uthash.h>

#define SHARDS 16u
#define SPARES 64u

struct entry {
    struct vcap_live record;
    bool lost;
    UT_hash_handle hh;
};

struct shard {
    pthread_mutex_t lock;
    struct entry *table;
    struct entry *spare; /* linked by hh.next */
    unsigned spares;
    struct entry sentinel;
} __attribute__((aligned(64)));

static struct shard shards[SHARDS] = {
    [0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER},
};
static uint64_t sweep_number; /* fetch-and-add by sweeps, read when a record is entered */

/* Pointers differ above bit 8; a multiplication spreads them over shards (top bits) and buckets. */
static uint32_t hash_key(uint64_t key)
{
    return (uint32_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

static struct shard *shard_of(uint32_t hash)
{
    return &shards[hash >> 28];
}

static struct entry *find(struct shard *shard, uint64_t key, uint32_t hash)
{
    struct entry *found = NULL;

    HASH_FIND_BYHASHVALUE(hh, shard->table, &key, sizeof(key), hash, found);
    return found;
}

/* The shard's lock is held.  False: no memory for a table. */
static bool have_table(struct shard *shard)
{
    struct entry *sentinel = &shard->sentinel;

    if (shard->table != NULL)
        return true;
    memset(sentinel, 0, sizeof(*sentinel));
    sentinel->record.key = UINT64_MAX;   /* no device pointer */
    sentinel->record.birth = UINT64_MAX; /* no sweep takes it */
    HASH_ADD_BYHASHVALUE(hh, shard->table, record.key, sizeof(sentinel->record.key), 0, sentinel);
    if (sentinel->lost)
        shard->table = NULL;
    return !sentinel->lost;
}

static struct entry *get_entry(struct shard *shard)
{
    struct entry *entry = shard->spare;

    if (entry == NULL)
        return malloc(sizeof(*entry));
    shard->spare = entry->hh.next;
    shard->spares--;
    return entry;
}

static void put_entry(struct shard *shard, struct entry *entry)
{
    if (shard->spares == SPARES) {
        free(entry);
        return;
    }
    entry->hh.next = shard->spare;
    shard->spare = entry;
    shard->spares++;
}

int vcap_live_enter(const struct vcap_live *record, struct vcap_live *stale)
{
    uint32_t hash = hash_key(record->key);
    struct shard *shard = shard_of(hash);
    struct entry *entry = NULL, *old;
    int rc = 0;

    stale->key = 0;
    pthread_mutex_lock(&shard->lock);
    old = find(shard, record->key, hash);
    if (old != NULL)
        *stale = old->record;
    else if (have_table(shard))
        entry = get_entry(shard);
    if (old == NULL && entry == NULL) {
        rc = -ENOMEM;
        goto out;
    }
    (old != NULL ? old : entry)->record = *record;
    (old != NULL ? old : entry)->record.birth = __atomic_load_n(&sweep_number, __ATOMIC_ACQUIRE);
    if (old == NULL) {
        entry->lost = false;
        HASH_ADD_BYHASHVALUE(hh, shard->table, record.key, sizeof(entry->record.key), hash, entry);
        if (entry->lost) {
            put_entry(shard, entry);
            rc = -ENOMEM;
        }
    }
out:
    pthread_mutex_unlock(&shard->lock);
    return rc;
}

bool vcap_live_take(uint64_t key, struct vcap_live *record)
{
    uint32_t hash = hash_key(key);
    struct shard *shard = shard_of(hash);
    struct entry *entry;

    if (key == UINT64_MAX)
        return false;
    pthread_mutex_lock(&shard->lock);
    entry = find(shard, key, hash);
    if (entry != NULL) {
        *record = entry->record;
        HASH_DELETE(hh, shard->table, entry);
        put_entry(shard, entry);
    }
    pthread_mutex_unlock(&shard->lock);
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

void vcap_live_sweep(uint64_t before, bool (*match)(const struct vcap_live *, void *arg),
                     void (*taken)(const struct vcap_live *, void *arg), void *arg)
{
    for (unsigned s = 0; s < SHARDS; s++) {
        struct entry *entry, *next, *out = NULL;

        pthread_mutex_lock(&shards[s].lock);
        HASH_ITER(hh, shards[s].table, entry, next) {
            if (entry->record.birth >= before || !match(&entry->record, arg))
                continue;
            HASH_DELETE(hh, shards[s].table, entry);
            entry->hh.next = out;
            out = entry;
        }
        pthread_mutex_unlock(&shards[s].lock);
        for (; out != NULL; out = next) {
            next = out->hh.next;
            taken(&out->record, arg);
            free(out);
        }
    }
}

void vcap_live_each(void (*visit)(struct vcap_live *, void *arg), void *arg)
{
    for (unsigned s = 0; s < SHARDS; s++) {
        struct entry *entry, *next;

        pthread_mutex_lock(&shards[s].lock);
        HASH_ITER(hh, shards[s].table, entry, next) {
            if (entry != &shards[s].sentinel)
                visit(&entry->record, arg);
        }
        pthread_mutex_unlock(&shards[s].lock);
    }
}

void vcap_live_with(uint64_t key, void (*visit)(struct vcap_live *, void *arg), void *arg)
{
    uint32_t hash = hash_key(key);
    struct shard *shard = shard_of(hash);
    struct entry *entry;

    pthread_mutex_lock(&shard->lock);
    entry = find(shard, key, hash);
    if (entry != NULL)
        visit(&entry->record, arg);
    pthread_mutex_unlock(&shard->lock);
}

void vcap_live_forget(void)
{
    const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

    /* the entries stay where they are: the parent's allocator may have been in the middle of
     * anything */
    for (unsigned s = 0; s < SHARDS; s++) {
        memcpy(&shards[s].lock, &fresh, sizeof(fresh));
        shards[s].table = NULL;
        shards[s].spare = NULL;
        shards[s].spares = 0;
    }
}
