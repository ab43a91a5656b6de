/*
 * Device addresses that are not of the arena: reservations of cuMemAddressReserve, opened IPC
 * memory, mapped external memory.
 *
 * A window is a range of addresses that fault when the host touches them (PROT_NONE), and a
 * second range of the same size at `shadow`: the bytes, accessible where something is mapped.
 * All functions need sim_lock held.
 */
#ifndef VRAMCAP_SIM_WINDOW_H
#define VRAMCAP_SIM_WINDOW_H

#include "sim_internal.h"

/* Ranges without overlap, in order of address. First member of what is kept in them. */
struct sim_span {
    uint64_t base;
    size_t bytes;
};
struct sim_spans {
    struct sim_span **at;
    size_t count, room;
};

/* Index of the first span that ends behind `address`. */
size_t sim_spans_from(const struct sim_spans *spans, uint64_t address);
/* The span that holds the address, or NULL. */
struct sim_span *sim_spans_find(const struct sim_spans *spans, uint64_t address);
bool sim_spans_free(const struct sim_spans *spans, uint64_t base, size_t bytes);
bool sim_spans_add(struct sim_spans *spans, struct sim_span *span); /* false: no memory */
void sim_spans_remove(struct sim_spans *spans, const struct sim_span *span);

enum sim_window_kind { SIM_WINDOW_RESERVED, SIM_WINDOW_IPC, SIM_WINDOW_EXTERNAL };

struct sim_window {
    struct sim_span span;
    enum sim_window_kind kind;
    unsigned char *shadow;
    size_t asked;            /* bytes that were asked for; the span has whole blocks */
    struct sim_owner *owner; /* NULL for a reservation */
    /* External memory: cuMemFree of `pointer` ends the holder, which deletes the window. */
    struct sim_resource *holder;
    CUdeviceptr pointer;
};

/* A window of at least `bytes` bytes, aligned to `alignment` (a power of two of at least a page),
 * at `hint` if that is free. NULL without address space. */
struct sim_window *sim_window_new(enum sim_window_kind kind, size_t bytes, size_t alignment,
                                  uint64_t hint, struct sim_owner *owner);
void sim_window_delete(struct sim_window *window);
struct sim_window *sim_window_at(CUdeviceptr address);
/* Takes the bytes of [address, +bytes) away: nothing is mapped there any more. */
void sim_window_wipe(const struct sim_window *window, CUdeviceptr address, size_t bytes);
static inline unsigned char *sim_window_shadow(const struct sim_window *window, CUdeviceptr address)
{
    return window->shadow + (address - window->span.base);
}

/* For sim_arena.c, which asks here about addresses that are not its own. */
bool sim_window_find(CUdeviceptr address, struct sim_allocation *found);
unsigned char *sim_window_bytes(CUdeviceptr address, size_t bytes);
bool sim_window_free(CUdeviceptr address);

/* sim_vmm_map.c: the mapping in a reservation, and whether a range of it may be touched. */
bool sim_vmm_find(CUdeviceptr address, struct sim_allocation *found);
bool sim_vmm_accessible(CUdeviceptr address, size_t bytes);

#endif
