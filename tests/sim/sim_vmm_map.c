/*
 * Addresses for physical memory: reserve, map, set access, unmap.
 *
 * A reservation is a window; a mapping is a span inside one that shows one physical memory from its
 * first byte. Mappings never overlap, and one call unmaps any number of whole ones or none. The
 * copy functions may touch a mapping only once some location was given access to it.
 */
#define _GNU_SOURCE
#include "sim_vmm.h"
#include "sim_window.h"

#include <stdlib.h>
#include <string.h>

struct mapping {
    struct sim_span span;
    struct sim_physical *physical;
    unsigned char access[SIM_MAX_CARDS]; /* CUmemAccess_flags, by device */
    unsigned char host_access;
};

static struct sim_spans mappings; /* sim_lock */

static struct mapping *mapping_index(size_t index)
{
    return (struct mapping *)(void *)mappings.at[index];
}

static struct mapping *mapping_at(CUdeviceptr address)
{
    return (struct mapping *)(void *)sim_spans_find(&mappings, address);
}

struct sim_physical *sim_physical_at(CUdeviceptr address, size_t *left)
{
    const struct mapping *mapping = mapping_at(address);

    if (!mapping)
        return NULL;
    if (left)
        *left = mapping->span.bytes - (address - mapping->span.base);
    return mapping->physical;
}

bool sim_vmm_find(CUdeviceptr address, struct sim_allocation *found)
{
    const struct mapping *mapping = mapping_at(address);

    if (!mapping)
        return false;
    const CUmemLocation *location = &mapping->physical->prop.location;
    *found = (struct sim_allocation){.base = mapping->span.base, .bytes = mapping->span.bytes};
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        found->owner = sim_device_owner(location->id);
    return true;
}

static bool has_access(const struct mapping *mapping)
{
    bool any = mapping->host_access != CU_MEM_ACCESS_FLAGS_PROT_NONE;

    for (unsigned int d = 0; d < sim_device_count; d++)
        any = any || mapping->access[d] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return any;
}

/* The mappings that [address, +bytes) consists of: first index and one past the last. */
struct run {
    size_t first, end;
};

/* False unless mappings cover the range without a gap. With `whole`, none sticks out of it. */
static bool run_find(CUdeviceptr address, size_t bytes, bool whole, struct run *run)
{
    run->first = run->end = sim_spans_from(&mappings, address);
    uint64_t at = address, end = address + bytes;

    if (bytes == 0 || end < address)
        return false;
    while (at < end) {
        const struct mapping *mapping = run->end < mappings.count ? mapping_index(run->end) : NULL;

        if (!mapping || mapping->span.base > at || (whole && mapping->span.base != at))
            return false;
        at = mapping->span.base + mapping->span.bytes;
        run->end++;
    }
    return !whole || at == end;
}

bool sim_vmm_accessible(CUdeviceptr address, size_t bytes)
{
    struct run run;

    if (!run_find(address, bytes == 0 ? 1 : bytes, false, &run))
        return false;
    for (size_t i = run.first; i < run.end; i++)
        if (!has_access(mapping_index(i)))
            return false;
    return true;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
    SIM_ENTER(cuMemAddressReserve);
    size_t granularity = sim_config.granularity_bytes;

    if (!ptr || size == 0 || size % granularity != 0 || flags != 0 ||
        (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    const struct sim_window *window = sim_window_new(
        SIM_WINDOW_RESERVED, size, alignment < granularity ? granularity : alignment, addr, NULL);
    if (window)
        *ptr = window->span.base;
    sim_lock_drop();
    return window ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    SIM_ENTER(cuMemAddressFree);
    sim_lock_take();
    struct sim_window *window = sim_window_at(ptr);
    bool ok = window && window->kind == SIM_WINDOW_RESERVED && window->span.base == ptr &&
              window->asked == size && sim_spans_free(&mappings, ptr, size);
    if (ok)
        sim_window_delete(window);
    sim_lock_drop();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* With sim_lock held. */
static CUresult map(const struct sim_window *window, CUdeviceptr ptr, size_t size,
                    struct sim_physical *physical)
{
    struct mapping *mapping = calloc(1, sizeof *mapping);

    if (!mapping)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mapping->span = (struct sim_span){ptr, size};
    mapping->physical = physical;
    CUresult rc = sim_physical_map(physical, sim_window_shadow(window, ptr), size);
    if (rc == CUDA_SUCCESS && !sim_spans_add(&mappings, &mapping->span)) {
        sim_window_wipe(window, ptr, size);
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (rc == CUDA_SUCCESS)
        physical->uses++;
    else
        free(mapping);
    return rc;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    SIM_ENTER(cuMemMap);
    size_t granularity = sim_config.granularity_bytes;
    CUresult rc = CUDA_ERROR_INVALID_VALUE;

    if (flags != 0 || offset != 0 || size == 0 || size % granularity != 0 || ptr % granularity != 0)
        return rc;
    sim_lock_take();
    struct sim_physical *physical = sim_physical_of(handle);
    const struct sim_window *window = sim_window_at(ptr);
    if (physical && size <= physical->size && window && window->kind == SIM_WINDOW_RESERVED &&
        size <= window->span.bytes - (ptr - window->span.base) &&
        sim_spans_free(&mappings, ptr, size)) {
        if (physical->multicast && !sim_multicast_ready(physical))
            rc = CUDA_ERROR_ILLEGAL_STATE; /* the real call waits for the other devices */
        else
            rc = map(window, ptr, size, physical);
    }
    sim_lock_drop();
    SIM_LEAVE(cuMemMap);
    return rc;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    SIM_ENTER(cuMemUnmap);
    struct run run;

    sim_lock_take();
    bool ok = run_find(ptr, size, true, &run);
    for (size_t left = ok ? run.end - run.first : 0; left > 0; left--) {
        struct mapping *mapping = mapping_index(run.first);

        sim_window_wipe(sim_window_at(mapping->span.base), mapping->span.base, mapping->span.bytes);
        sim_spans_remove(&mappings, &mapping->span);
        mapping->physical->uses--;
        sim_physical_settle(mapping->physical);
        free(mapping);
    }
    sim_lock_drop();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Where the access of a location is kept, NULL if this mapping cannot have it. */
static unsigned char *access_of(struct mapping *mapping, const CUmemLocation *location)
{
    CUmemLocationType memory = mapping->physical->prop.location.type;

    switch ((int)location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return sim_device_valid(location->id) ? &mapping->access[location->id] : NULL;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return memory == CU_MEM_LOCATION_TYPE_HOST || memory == CU_MEM_LOCATION_TYPE_HOST_NUMA
                   ? &mapping->host_access
                   : NULL;
    default:
        return NULL;
    }
}

static bool flags_valid(CUmemAccess_flags flags)
{
    return flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
           flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    SIM_ENTER(cuMemSetAccess);
    struct run run;

    if (!desc || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!flags_valid(desc[i].flags))
            return CUDA_ERROR_INVALID_VALUE;
        if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            !sim_device_valid(desc[i].location.id))
            return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_lock_take();
    bool ok = run_find(ptr, size, true, &run);
    for (int write = 0; ok && write < 2; write++) /* all or nothing */
        for (size_t m = run.first; ok && m < run.end; m++)
            for (size_t i = 0; ok && i < count; i++) {
                unsigned char *access = access_of(mapping_index(m), &desc[i].location);

                ok = access != NULL;
                if (ok && write)
                    *access = (unsigned char)desc[i].flags;
            }
    sim_lock_drop();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    SIM_ENTER(cuMemGetAccess);
    if (!flags || !location)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    struct mapping *mapping = mapping_at(ptr);
    const unsigned char *access = mapping ? access_of(mapping, location) : NULL;
    if (access)
        *flags = *access;
    sim_lock_drop();
    return access ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
