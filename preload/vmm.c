/*
 * Handles in a hash table, mappings in a tree (tsearch) whose comparison calls overlapping ranges
 * equal: any address finds the mapping it lies in.  Invariants:
 *   - an object's holds are at least its references in the handle table plus its mappings in the tree;
 *   - no two mappings in the tree overlap.
 * Where a record cannot be put back for lack of memory its hold stays, and with it the charge: less
 * room than there is, never more.
 */
#include "preload/vmm.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/lock.h"
#include "preload/charge.h"
#include "preload/live.h"

#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(element) ((element)->lost = true)
#include <uthash.h>

struct handle {
    uint64_t value;
    struct vcap_physical *physical;
    uint64_t references;
    bool lost;
    UT_hash_handle hh;
};

static struct vcap_lock lock;
static struct handle *handles;
static void *mappings; /* of struct vcap_mapping */

struct vcap_physical *vcap_physical_new(void)
{
    struct vcap_physical *physical = calloc(1, sizeof(*physical));

    if (physical != NULL)
        physical->holds = 1;
    return physical;
}

static void unhold(struct vcap_physical *physical, uint64_t count)
{
    struct vcap_live record;
    bool last;

    vcap_lock_take(&lock);
    physical->holds -= count;
    last = physical->holds == 0;
    vcap_lock_drop(&lock);
    if (!last)
        return;
    if (vcap_live_take(vcap_live_key(VCAP_LIVE_HANDLE, (uintptr_t)physical), &record))
        vcap_record_release(&record);
    if (physical->origin != NULL)
        vcap_physical_unhold(physical->origin);
    free(physical);
}

bool vcap_physical_hold(struct vcap_physical *physical)
{
    bool held;

    vcap_lock_take(&lock);
    held = physical->holds != 0;
    physical->holds += held;
    vcap_lock_drop(&lock);
    return held;
}

bool vcap_physical_grow(struct vcap_physical *physical, uint64_t size, struct vcap_physical *origin)
{
    struct vcap_physical *old = NULL;
    bool grown;

    vcap_lock_take(&lock);
    grown = size > physical->size;
    if (grown) {
        __atomic_store_n(&physical->size, size, __ATOMIC_RELAXED); /* read by the map hook */
        old = physical->origin;
        physical->origin = origin;
    }
    vcap_lock_drop(&lock);
    if (old != NULL)
        vcap_physical_unhold(old);
    return grown;
}

void vcap_physical_unhold(struct vcap_physical *physical)
{
    unhold(physical, 1);
}

/* ---- handles ---- */

static struct handle *find(CUmemGenericAllocationHandle value)
{
    uint64_t key = value;
    struct handle *found = NULL;

    HASH_FIND(hh, handles, &key, sizeof(key), found);
    return found;
}

bool vcap_handle_enter(CUmemGenericAllocationHandle value, struct vcap_physical *physical)
{
    struct handle *entry, *fresh = calloc(1, sizeof(*fresh));
    struct vcap_physical *stale = NULL;
    uint64_t stale_references = 0;
    bool entered = true;

    vcap_lock_take(&lock);
    entry = find(value);
    if (entry != NULL && entry->physical == physical) {
        entry->references++;
    } else if (entry != NULL) { /* its last release went past the hooks */
        stale = entry->physical;
        stale_references = entry->references;
        entry->physical = physical;
        entry->references = 1;
    } else if (fresh != NULL) {
        fresh->value = value;
        fresh->physical = physical;
        fresh->references = 1;
        HASH_ADD(hh, handles, value, sizeof(fresh->value), fresh);
        entered = !fresh->lost;
        if (entered)
            fresh = NULL;
    } else {
        entered = false;
    }
    vcap_lock_drop(&lock);
    free(fresh);
    if (stale != NULL)
        unhold(stale, stale_references);
    return entered;
}

struct vcap_physical *vcap_handle_hold(CUmemGenericAllocationHandle value)
{
    struct vcap_physical *physical = NULL;
    const struct handle *entry;

    vcap_lock_take(&lock);
    entry = find(value);
    if (entry != NULL) {
        physical = entry->physical;
        physical->holds++;
    }
    vcap_lock_drop(&lock);
    return physical;
}

struct vcap_physical *vcap_handle_take(CUmemGenericAllocationHandle value)
{
    struct vcap_physical *physical = NULL;
    struct handle *entry, *out = NULL;

    vcap_lock_take(&lock);
    entry = find(value);
    if (entry != NULL) {
        physical = entry->physical;
        if (--entry->references == 0) {
            out = entry;
            HASH_DEL(handles, out);
        }
    }
    vcap_lock_drop(&lock);
    free(out);
    return physical;
}

/* ---- mappings ---- */

static int compare(const void *left, const void *right)
{
    const struct vcap_mapping *a = left, *b = right;

    return a->high <= b->low ? -1 : a->low >= b->high ? 1 : 0;
}

/* A mapping that has a byte of [low, high); the lock is held. */
static struct vcap_mapping *overlapping(uint64_t low, uint64_t high)
{
    const struct vcap_mapping range = {.low = low, .high = high};
    struct vcap_mapping **node = tfind(&range, &mappings, compare);

    return node == NULL ? NULL : *node;
}

struct vcap_physical *vcap_mapping_hold(uint64_t address)
{
    struct vcap_physical *physical = NULL;
    const struct vcap_mapping *mapping;

    if (address == UINT64_MAX)
        return NULL;
    vcap_lock_take(&lock);
    mapping = overlapping(address, address + 1);
    if (mapping != NULL) {
        physical = mapping->physical;
        physical->holds++;
    }
    vcap_lock_drop(&lock);
    return physical;
}

bool vcap_mapping_enter(struct vcap_mapping *mapping)
{
    struct vcap_mapping *stale = NULL, *old;
    bool entered;

    vcap_lock_take(&lock);
    /* the driver maps nothing over a mapping: what we have there was unmapped past the hooks */
    while ((old = overlapping(mapping->low, mapping->high)) != NULL) {
        tdelete(old, &mappings, compare);
        old->next = stale;
        stale = old;
    }
    entered = tsearch(mapping, &mappings, compare) != NULL;
    vcap_lock_drop(&lock);
    vcap_mappings_end(stale);
    return entered;
}

struct vcap_mapping *vcap_mappings_take(uint64_t low, uint64_t high)
{
    struct vcap_mapping *list = NULL, *at;

    if (low >= high)
        return NULL;
    vcap_lock_take(&lock);
    /* those that stick out hold the first or the last byte */
    at = overlapping(low, low + 1);
    if (at == NULL || (at->low == low && at->high <= high))
        at = overlapping(high - 1, high);
    if (at == NULL || (at->low >= low && at->high == high))
        while ((at = overlapping(low, high)) != NULL) {
            tdelete(at, &mappings, compare);
            at->next = list;
            list = at;
        }
    vcap_lock_drop(&lock);
    return list;
}

void vcap_mappings_end(struct vcap_mapping *list)
{
    struct vcap_mapping *next;

    for (; list != NULL; list = next) {
        next = list->next;
        unhold(list->physical, 1);
        free(list);
    }
}

void vcap_mappings_return(struct vcap_mapping *list)
{
    struct vcap_mapping *next;

    for (; list != NULL; list = next) {
        next = list->next;
        if (!vcap_mapping_enter(list))
            free(list); /* its hold stays */
    }
}

void vcap_physical_forget(void)
{
    vcap_lock_forget(&lock);
    handles = NULL; /* not freed: the parent's allocator may have been in the middle of anything */
    mappings = NULL;
}
