/*
 * Open addressing with linear steps; see sim_handles.h.
 */
#include "sim_handles.h"

#include <stdlib.h>

#define TAKEN UINT64_C(1)

static size_t start_of(const struct sim_handles *set, uint64_t key)
{
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (set->room - 1);
}

static void place(struct sim_handles *set, uint64_t key, void *record)
{
    size_t at = start_of(set, key);

    while (set->slot[at].key > TAKEN)
        at = (at + 1) & (set->room - 1);
    set->filled += set->slot[at].key == 0;
    set->slot[at] = (struct sim_handle){key, record};
    set->live++;
}

bool sim_handles_put(struct sim_handles *set, uint64_t key, void *record)
{
    if (set->filled * 4 >= set->room * 3) {
        struct sim_handles bigger = {.room = 64};

        while (bigger.room < set->live * 4)
            bigger.room *= 2;
        bigger.slot = calloc(bigger.room, sizeof *bigger.slot);
        if (!bigger.slot)
            return false;
        for (size_t i = 0; i < set->room; i++)
            if (set->slot[i].key > TAKEN)
                place(&bigger, set->slot[i].key, set->slot[i].record);
        free(set->slot);
        *set = bigger;
    }
    place(set, key, record);
    return true;
}

static struct sim_handle *slot_of(const struct sim_handles *set, uint64_t key)
{
    if (set->room == 0 || key < SIM_HANDLE_LOWEST)
        return NULL;
    for (size_t at = start_of(set, key); set->slot[at].key != 0; at = (at + 1) & (set->room - 1))
        if (set->slot[at].key == key)
            return &set->slot[at];
    return NULL;
}

void *sim_handles_get(const struct sim_handles *set, uint64_t key)
{
    const struct sim_handle *slot = slot_of(set, key);

    return slot ? slot->record : NULL;
}

void sim_handles_take(struct sim_handles *set, uint64_t key)
{
    struct sim_handle *slot = slot_of(set, key);

    if (slot) {
        slot->key = TAKEN;
        slot->record = NULL;
        set->live--;
    }
}
