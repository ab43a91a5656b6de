/*
 * A set of handles that are alive: from a number (or an address) to the record behind it, so that
 * a stale handle is found out and not followed. Needs sim_lock held.
 */
#ifndef VRAMCAP_SIM_HANDLES_H
#define VRAMCAP_SIM_HANDLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_handle {
    uint64_t key; /* 0: free, 1: was taken */
    void *record;
};
struct sim_handles {
    struct sim_handle *slot;
    size_t room, filled, live; /* room: 0 or a power of two; filled counts taken ones too */
};

#define SIM_HANDLE_LOWEST UINT64_C(2)

bool sim_handles_put(struct sim_handles *set, uint64_t key, void *record); /* false: no memory */
void *sim_handles_get(const struct sim_handles *set, uint64_t key);        /* NULL: unknown */
void sim_handles_take(struct sim_handles *set, uint64_t key);

#endif
