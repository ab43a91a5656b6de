/*
 * Windows of device addresses outside the arena: see sim_window.h.
 */
#define _GNU_SOURCE
#include "sim_window.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct sim_spans windows; /* sim_lock */

size_t sim_spans_from(const struct sim_spans *spans, uint64_t address)
{
    size_t low = 0, high = spans->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (spans->at[middle]->base + spans->at[middle]->bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct sim_span *sim_spans_find(const struct sim_spans *spans, uint64_t address)
{
    size_t index = sim_spans_from(spans, address);

    return index < spans->count && spans->at[index]->base <= address ? spans->at[index] : NULL;
}

bool sim_spans_free(const struct sim_spans *spans, uint64_t base, size_t bytes)
{
    size_t index = sim_spans_from(spans, base);

    return index == spans->count || spans->at[index]->base >= base + bytes;
}

bool sim_spans_add(struct sim_spans *spans, struct sim_span *span)
{
    size_t index = sim_spans_from(spans, span->base);

    if (spans->count == spans->room) {
        size_t room = spans->room == 0 ? 64 : spans->room * 2;
        struct sim_span **at = realloc(spans->at, room * sizeof(struct sim_span *));

        if (!at)
            return false;
        spans->at = at;
        spans->room = room;
    }
    memmove(&spans->at[index + 1], &spans->at[index],
            (spans->count - index) * sizeof(struct sim_span *));
    spans->at[index] = span;
    spans->count++;
    return true;
}

void sim_spans_remove(struct sim_spans *spans, const struct sim_span *span)
{
    size_t index = sim_spans_from(spans, span->base);

    if (index == spans->count || spans->at[index] != span)
        return;
    spans->count--;
    memmove(&spans->at[index], &spans->at[index + 1],
            (spans->count - index) * sizeof(struct sim_span *));
}

static unsigned char *reserve(uint64_t hint, size_t bytes)
{
    void *map = mmap((void *)(uintptr_t)hint, bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return map == MAP_FAILED ? NULL : map;
}

/* An aligned reservation without the rest that alignment costs. */
static unsigned char *reserve_aligned(size_t bytes, size_t alignment)
{
    if (bytes > SIZE_MAX - alignment)
        return NULL;
    unsigned char *map = reserve(0, bytes + alignment);
    if (!map)
        return NULL;
    size_t before = (alignment - (uintptr_t)map % alignment) % alignment;
    if (before > 0)
        (void)munmap(map, before);
    if (alignment > before)
        (void)munmap(map + before + bytes, alignment - before);
    return map + before;
}

struct sim_window *sim_window_new(enum sim_window_kind kind, size_t bytes, size_t alignment,
                                  uint64_t hint, struct sim_owner *owner)
{
    struct sim_window *window = calloc(1, sizeof *window);
    unsigned char *base = NULL;
    size_t block = alignment < 4096 ? 4096 : alignment, whole = (bytes + 4095) / 4096 * 4096;

    if (!window || whole < bytes)
        goto failed;
    if (hint != 0 && hint % block == 0) {
        base = reserve(hint, whole);
        if (base && (uintptr_t)base != hint) {
            (void)munmap(base, whole);
            base = NULL;
        }
    }
    if (!base)
        base = reserve_aligned(whole, block);
    unsigned char *shadow = base ? reserve(0, whole) : NULL;
    if (!shadow)
        goto failed;
    *window = (struct sim_window){.span = {(uintptr_t)base, whole},
                                  .kind = kind,
                                  .shadow = shadow,
                                  .asked = bytes,
                                  .owner = owner};
    if (sim_spans_add(&windows, &window->span))
        return window;
    (void)munmap(shadow, whole);
failed:
    if (base)
        (void)munmap(base, whole);
    free(window);
    return NULL;
}

void sim_window_delete(struct sim_window *window)
{
    sim_spans_remove(&windows, &window->span);
    (void)munmap(window->shadow, window->span.bytes);
    (void)munmap((void *)(uintptr_t)window->span.base, window->span.bytes);
    free(window);
}

struct sim_window *sim_window_at(CUdeviceptr address)
{
    /* The span is the first member. */
    return (struct sim_window *)(void *)sim_spans_find(&windows, address);
}

void sim_window_wipe(const struct sim_window *window, CUdeviceptr address, size_t bytes)
{
    (void)mmap(sim_window_shadow(window, address), bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

bool sim_window_find(CUdeviceptr address, struct sim_allocation *found)
{
    const struct sim_window *window = sim_window_at(address);

    if (!window)
        return false;
    if (window->kind == SIM_WINDOW_RESERVED)
        return sim_vmm_find(address, found);
    *found = (struct sim_allocation){
        .base = window->span.base, .bytes = window->asked, .owner = window->owner};
    return address - found->base < found->bytes;
}

unsigned char *sim_window_bytes(CUdeviceptr address, size_t bytes)
{
    const struct sim_window *window = sim_window_at(address);

    if (!window)
        return NULL;
    if (window->kind == SIM_WINDOW_RESERVED) {
        /* Mappings of one reservation lie side by side in the shadow too. */
        if (bytes > window->span.bytes - (address - window->span.base) ||
            !sim_vmm_accessible(address, bytes))
            return NULL;
    } else if (address - window->span.base >= window->asked ||
               bytes > window->asked - (address - window->span.base)) {
        return NULL;
    }
    return sim_window_shadow(window, address);
}

bool sim_window_free(CUdeviceptr address)
{
    const struct sim_window *window = sim_window_at(address);

    if (!window || !window->holder || window->pointer != address)
        return false;
    sim_resource_end(window->holder);
    return true;
}
