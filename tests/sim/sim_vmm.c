/*
 * Generic allocation handles: create, release, retain, properties, export and import.
 *
 * Nothing here needs a context: the device is in the properties. Memory goes back to the card when
 * its handles, its mappings and every exported or imported copy are gone. Every import makes a
 * handle value of its own, as the documentation allows, so that no one can tell from values that
 * two handles are one memory. Handles of host memory and of multicast objects cost the card
 * nothing.
 */
#define _GNU_SOURCE
#include "sim_vmm.h"
#include "sim_handles.h"
#include "sim_share.h"
#include "sim_window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KNOWN_TYPES                                                                                \
    ((unsigned int)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |                                      \
     (unsigned int)CU_MEM_HANDLE_TYPE_FABRIC)
#define FABRIC_MAGIC UINT64_C(0x6c62616663617601)

static struct sim_handles physicals; /* sim_lock */
static CUmemGenericAllocationHandle next_handle = 0x1000;

/* What an importer gets to know (sim_share_info.note). */
struct note {
    CUmemAllocationProp prop;
    uint64_t size;
    uint32_t multicast_devices; /* 0: memory */
};
_Static_assert(sizeof(struct note) <= SIM_SHARE_NOTE, "the note must fit");

struct fabric {
    uint64_t magic, id;
};
_Static_assert(sizeof(struct fabric) <= sizeof(CUmemFabricHandle), "the handle must fit");

struct sim_physical *sim_physical_of(CUmemGenericAllocationHandle handle)
{
    struct sim_physical *physical = sim_handles_get(&physicals, handle);

    return physical && physical->references > 0 ? physical : NULL;
}

struct sim_physical *sim_physical_new(size_t size, const CUmemAllocationProp *prop)
{
    struct sim_physical *physical = calloc(1, sizeof *physical);

    if (!physical)
        return NULL;
    physical->handle = next_handle;
    physical->prop = *prop;
    physical->size = size;
    physical->references = 1;
    if (!sim_handles_put(&physicals, physical->handle, physical)) {
        free(physical);
        return NULL;
    }
    next_handle++;
    return physical;
}

void sim_physical_settle(struct sim_physical *physical)
{
    if (physical->references > 0 || physical->uses > 0)
        return;
    sim_handles_take(&physicals, physical->handle);
    if (physical->multicast)
        sim_multicast_end(physical->multicast);
    if (physical->bytes)
        (void)munmap(physical->bytes, physical->size);
    if (physical->share != 0)
        sim_share_drop(sim_state, physical->share);
    sim_card_give(physical->card, physical->cost);
    free(physical);
}

CUresult sim_physical_share(struct sim_physical *physical)
{
    struct sim_share_info info = {.card = physical->card, .bytes = physical->size};
    struct note note;
    struct sim_amounts cost = {.used = (uint64_t)physical->cost.used,
                               .alloc = (uint64_t)physical->cost.alloc};

    if (physical->share != 0)
        return CUDA_SUCCESS;
    memset(&note, 0, sizeof note);
    note.prop = physical->prop;
    note.size = physical->size;
    if (physical->multicast)
        note.multicast_devices = sim_multicast_devices(physical->multicast);
    memcpy(info.note, &note, sizeof note);
    int rc = sim_share_new(sim_state, &info, cost, &physical->share);
    if (rc != 0)
        return rc == -ENOTSUP ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OUT_OF_MEMORY;
    physical->cost = (struct sim_delta){0, 0, 0, 0};
    return CUDA_SUCCESS;
}

CUresult sim_physical_map(struct sim_physical *physical, void *at, size_t bytes)
{
    /* What may be exported later has its bytes in the state file from the first mapping on. */
    if (physical->prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE && !physical->multicast &&
        sim_state->fd >= 0) {
        CUresult rc = sim_physical_share(physical);

        if (rc != CUDA_SUCCESS)
            return rc;
        return sim_share_map(sim_state, physical->share, bytes, at) ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!physical->bytes) {
        void *map = mmap(NULL, physical->size, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (map == MAP_FAILED)
            return CUDA_ERROR_OUT_OF_MEMORY;
        physical->bytes = map;
    }
    /* An old size of 0 on shared memory maps it a second time. */
    return mremap(physical->bytes, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED
               ? CUDA_ERROR_OUT_OF_MEMORY
               : CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    SIM_ENTER(cuMemGetAllocationGranularity);
    if (!granularity || !prop || (unsigned int)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && !sim_device_valid(prop->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    *granularity = sim_config.granularity_bytes;
    return CUDA_SUCCESS;
}

static CUresult properties_check(const CUmemAllocationProp *prop)
{
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (((unsigned int)prop->requestedHandleTypes & ~KNOWN_TYPES) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    switch ((int)prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return sim_device_valid(prop->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
        return prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return prop->location.id >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: /* HOST_NUMA_CURRENT too: documented for pools and prefetching, not for this */
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    SIM_ENTER(cuMemCreate);
    if (!handle || !prop || flags != 0 || size == 0 || size % sim_config.granularity_bytes != 0 ||
        size > INT64_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    CUmemAllocationProp whole = *prop;
    whole.location = sim_location(prop->location);
    prop = &whole;
    CUresult rc = properties_check(prop);
    if (rc != CUDA_SUCCESS)
        return rc;
    unsigned int card = 0;
    struct sim_delta cost = {0, 0, 0, 0};
    if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        card = sim_device_card[prop->location.id];
        cost = (struct sim_delta){.used = (int64_t)size, .alloc = (int64_t)size};
    }
    sim_lock_take();
    rc = sim_card_take(card, cost);
    if (rc == CUDA_SUCCESS) {
        struct sim_physical *physical = sim_physical_new(size, prop);

        if (physical) {
            physical->card = card;
            physical->cost = cost;
            *handle = physical->handle;
        } else {
            sim_card_give(card, cost);
            rc = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    sim_lock_drop();
    return rc;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(cuMemRelease);
    sim_lock_take();
    struct sim_physical *physical = sim_physical_of(handle);
    if (physical) {
        physical->references--;
        sim_physical_settle(physical);
    }
    sim_lock_drop();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    SIM_ENTER(cuMemRetainAllocationHandle);
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    struct sim_physical *physical = sim_physical_at((uintptr_t)addr, NULL);
    if (physical) {
        physical->references++;
        *handle = physical->handle;
    }
    sim_lock_drop();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(cuMemGetAllocationPropertiesFromHandle);
    if (!prop)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    const struct sim_physical *physical = sim_physical_of(handle);
    if (physical && !physical->multicast)
        *prop = physical->prop;
    else
        physical = NULL;
    sim_lock_drop();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- between processes ------------------------------------------------------------------ */

/* With sim_lock held. */
static CUresult export_as(struct sim_physical *physical, CUmemAllocationHandleType type, void *out)
{
    CUresult rc = sim_physical_share(physical);

    if (rc != CUDA_SUCCESS)
        return rc;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        struct fabric fabric = {FABRIC_MAGIC, physical->share};

        memset(out, 0, sizeof(CUmemFabricHandle));
        memcpy(out, &fabric, sizeof fabric);
        return CUDA_SUCCESS;
    }
    int fd = sim_share_token(sim_state, physical->share);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(out, &fd, sizeof fd);
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType,
                                      unsigned long long flags)
{
    SIM_ENTER(cuMemExportToShareableHandle);
    if (!shareableHandle || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
        handleType != CU_MEM_HANDLE_TYPE_FABRIC)
        return CUDA_ERROR_NOT_SUPPORTED;
    sim_lock_take();
    struct sim_physical *physical = sim_physical_of(handle);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    if (physical &&
        ((unsigned int)physical->prop.requestedHandleTypes & (unsigned int)handleType) != 0)
        rc = export_as(physical, handleType, shareableHandle);
    sim_lock_drop();
    return rc;
}

/* The share that a shareable handle means; one more hold of it. */
static CUresult import_hold(void *handle, CUmemAllocationHandleType type,
                            struct sim_share_info *info, uint64_t *id)
{
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        struct fabric fabric;

        if (!handle)
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(&fabric, handle, sizeof fabric);
        if (fabric.magic != FABRIC_MAGIC)
            return CUDA_ERROR_INVALID_VALUE;
        *id = fabric.id;
    } else if (sim_share_of_token(sim_state, (int)(intptr_t)handle, id) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int rc = sim_share_hold(sim_state, *id, info);
    if (rc != 0)
        return rc == -ENOENT ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

static CUdevice device_of_card(unsigned int card)
{
    for (unsigned int d = 0; d < sim_device_count; d++)
        if (sim_device_card[d] == card)
            return (CUdevice)d;
    return CU_DEVICE_INVALID;
}

/* With sim_lock held. */
static CUresult import_record(const struct sim_share_info *info, uint64_t id,
                              CUmemGenericAllocationHandle *handle)
{
    struct note note;

    memcpy(&note, info->note, sizeof note);
    if (note.prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        note.prop.location.id =
            device_of_card(info->card); /* the exporter may number differently */
        if (note.prop.location.id == CU_DEVICE_INVALID)
            return CUDA_ERROR_INVALID_DEVICE;
    }
    struct sim_physical *physical = sim_physical_new(note.size, &note.prop);
    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->card = info->card;
    if (note.multicast_devices > 0) {
        CUresult rc = sim_multicast_import(physical, note.multicast_devices);

        if (rc != CUDA_SUCCESS) {
            physical->references = 0;
            sim_physical_settle(physical);
            return rc;
        }
    }
    physical->share = id;
    *handle = physical->handle;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType)
{
    SIM_ENTER(cuMemImportFromShareableHandle);
    struct sim_share_info info;
    uint64_t id = 0;

    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
        shHandleType != CU_MEM_HANDLE_TYPE_FABRIC)
        return CUDA_ERROR_NOT_SUPPORTED;
    sim_lock_take();
    CUresult rc = import_hold(osHandle, shHandleType, &info, &id);
    if (rc == CUDA_SUCCESS) {
        rc = import_record(&info, id, handle);
        if (rc != CUDA_SUCCESS)
            sim_share_drop(sim_state, id);
    }
    sim_lock_drop();
    return rc;
}
