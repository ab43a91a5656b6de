/*
 * What programs do with pools: make and destroy them, ask and set attributes, say which
 * one is current for a device or place, trim, and set access.
 *
 * Every place (location and allocation type) has a default pool, made at first use. A
 * handle is looked for in the list before it is followed, so a dead one is INVALID_VALUE.
 * Access is remembered, not obeyed.
 */
#define _GNU_SOURCE
#include "sim_pool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sim_pool *sim_pools;

struct place {
    CUmemLocation location;
    CUmemAllocationType type;
    struct sim_pool *standard, *current;
    struct place *next;
};

static struct place *places;
static uint64_t identities;

static CUmemoryPool handle_of(struct sim_pool *pool)
{
    return (CUmemoryPool)(void *)pool;
}

struct sim_pool *sim_pool_from(CUmemoryPool handle)
{
    for (struct sim_pool *pool = sim_pools; pool; pool = pool->next)
        if (handle_of(pool) == handle && !pool->orphan)
            return pool;
    return NULL;
}

CUmemoryPool sim_pool_handle(struct sim_owner *owner)
{
    struct sim_pool *pool = sim_pool_of(owner);

    return pool ? handle_of(pool) : NULL;
}

struct sim_pool *sim_pool_new(const CUmemPoolProps *properties)
{
    struct sim_pool *pool = calloc(1, sizeof *pool);

    if (!pool)
        return NULL;
    pool->properties = *properties;
    pool->file = -1;
    pool->identity = ++identities;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    sim_pool_owner_start(pool);
    pool->next = sim_pools;
    sim_pools = pool;
    return pool;
}

void sim_pool_delete(struct sim_pool *pool)
{
    struct sim_pool **at = &sim_pools;

    while (*at != pool)
        at = &(*at)->next;
    *at = pool->next;
    while (pool->chunks)
        sim_pool_chunk_free(pool, pool->chunks);
    if (pool->file >= 0)
        (void)close(pool->file);
    free(pool);
}

/* --- places --------------------------------------------------------------------- */

static bool location_known(const CUmemLocation *location, CUmemAllocationType type)
{
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return false;
    switch ((int)location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return sim_device_valid(location->id);
    case CU_MEM_LOCATION_TYPE_HOST:
        return true;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return location->id >= 0;
    case CU_MEM_LOCATION_TYPE_NONE:
        return type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    default:
        return false;
    }
}

static bool same_place(const CUmemLocation *a, const CUmemLocation *b)
{
    return a->type == b->type && (a->id == b->id || (a->type != CU_MEM_LOCATION_TYPE_DEVICE &&
                                                     a->type != CU_MEM_LOCATION_TYPE_HOST_NUMA));
}

/* The place's record, made if need be; NULL without memory. */
static struct place *place_of(const CUmemLocation *location, CUmemAllocationType type)
{
    struct place *place;

    for (place = places; place; place = place->next)
        if (place->type == type && same_place(&place->location, location))
            return place;
    CUmemPoolProps properties;
    memset(&properties, 0, sizeof properties);
    properties.allocType = type;
    properties.location = *location;
    place = calloc(1, sizeof *place);
    struct sim_pool *pool = place ? sim_pool_new(&properties) : NULL;
    if (!pool) {
        free(place);
        return NULL;
    }
    pool->standard = true;
    *place = (struct place){
        .location = *location, .type = type, .standard = pool, .current = pool, .next = places};
    places = place;
    return place;
}

struct sim_pool *sim_pool_current(CUdevice device)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};

    location.id = device;
    struct place *place = place_of(&location, CU_MEM_ALLOCATION_TYPE_PINNED);
    return place ? place->current : NULL;
}

static CUresult place_get(CUmemoryPool *handle, const CUmemLocation *location,
                          CUmemAllocationType type, bool standard)
{
    if (!handle || !location || !location_known(location, type))
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    struct place *place = place_of(location, type);
    if (place)
        *handle = handle_of(standard ? place->standard : place->current);
    sim_lock_drop();
    return place ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult place_set(const CUmemLocation *location, CUmemAllocationType type,
                          CUmemoryPool handle)
{
    CUresult rc = CUDA_ERROR_INVALID_VALUE;

    if (!location || !location_known(location, type))
        return rc;
    sim_lock_take();
    struct sim_pool *pool = sim_pool_from(handle);
    struct place *place = place_of(location, type);
    if (pool && place && !pool->imported && pool->properties.allocType == type &&
        same_place(&pool->properties.location, location)) {
        place->current = pool;
        rc = CUDA_SUCCESS;
    }
    sim_lock_drop();
    return rc;
}

static CUresult device_get(CUmemoryPool *handle, CUdevice device, bool standard)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};

    location.id = device;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_device_valid(device)
               ? place_get(handle, &location, CU_MEM_ALLOCATION_TYPE_PINNED, standard)
               : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetDefaultMemPool);
    return device_get(pool_out, dev, true);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetMemPool);
    return device_get(pool, dev, false);
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    SIM_ENTER(cuDeviceSetMemPool);
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};

    location.id = dev;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    return place_set(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                CUmemAllocationType type)
{
    SIM_ENTER(cuMemGetDefaultMemPool);
    return place_get(pool_out, location, type, true);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    SIM_ENTER(cuMemGetMemPool);
    return place_get(pool, location, type, false);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    SIM_ENTER(cuMemSetMemPool);
    return place_set(location, type, pool);
}

/* --- life -------------------------------------------------------------------------- */

static bool properties_good(const CUmemPoolProps *properties)
{
    int handles = (int)properties->handleTypes;
    bool numa_or_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ||
                          properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;

    for (size_t i = 0; i < sizeof properties->reserved; i++)
        if (properties->reserved[i] != 0)
            return false;
    if (handles != CU_MEM_HANDLE_TYPE_NONE &&
        (handles != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !numa_or_device ||
         properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED))
        return false;
    return !properties->win32SecurityAttributes &&
           location_known(&properties->location, properties->allocType);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    SIM_ENTER(cuMemPoolCreate);
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    CUmemPoolProps whole;

    if (!pool || !poolProps)
        return CUDA_ERROR_INVALID_VALUE;
    whole = *poolProps;
    whole.location = sim_location(poolProps->location);
    poolProps = &whole;
    if (!properties_good(poolProps))
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    struct sim_pool *made = sim_pool_new(poolProps);
    if (made)
        rc = poolProps->handleTypes == CU_MEM_HANDLE_TYPE_NONE ? CUDA_SUCCESS
                                                               : sim_pool_file_make(made);
    if (made && rc != CUDA_SUCCESS)
        sim_pool_delete(made);
    if (rc == CUDA_SUCCESS)
        *pool = handle_of(made);
    sim_lock_drop();
    return rc;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    SIM_ENTER(cuMemPoolDestroy);
    sim_lock_take();
    struct sim_pool *found = sim_pool_from(pool);
    if (!found || found->standard) {
        sim_lock_drop();
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (struct place *place = places; place; place = place->next)
        if (place->current == found)
            place->current = place->standard;
    found->orphan = true;
    if (found->live == 0)
        sim_pool_delete(found);
    else
        sim_pool_release(found, 0);
    sim_lock_drop();
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    SIM_ENTER(cuMemPoolTrimTo);
    sim_lock_take();
    struct sim_pool *found = sim_pool_from(pool);
    if (found && !found->imported)
        sim_pool_release(found, minBytesToKeep);
    sim_lock_drop();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- attributes ----------------------------------------------------------------------- */

static CUresult attribute_get(const struct sim_pool *pool, CUmemPool_attribute attribute,
                              void *value)
{
    cuuint64_t *wide = value;

    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *wide = pool->threshold;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *wide = pool->reserved;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *wide = pool->reserved_high;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *wide = pool->used;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *wide = pool->used_high;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult attribute_set(struct sim_pool *pool, CUmemPool_attribute attribute,
                              const void *value)
{
    const cuuint64_t *wide = value;

    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] =
            *(const int *)value != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *wide;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*wide != 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
            pool->reserved_high = pool->reserved;
        else
            pool->used_high = pool->used;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SIM_ENTER(cuMemPoolGetAttribute);
    sim_lock_take();
    struct sim_pool *found = value ? sim_pool_from(pool) : NULL;
    CUresult rc = found ? attribute_get(found, attr, value) : CUDA_ERROR_INVALID_VALUE;
    sim_lock_drop();
    SIM_LEAVE(cuMemPoolGetAttribute);
    return rc;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SIM_ENTER(cuMemPoolSetAttribute);
    sim_lock_take();
    struct sim_pool *found = value ? sim_pool_from(pool) : NULL;
    CUresult rc = found ? attribute_set(found, attr, value) : CUDA_ERROR_INVALID_VALUE;
    sim_lock_drop();
    return rc;
}

/* --- access ----------------------------------------------------------------------------- */

/* Only devices other than the pool's own can be granted or denied anything. */
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    SIM_ENTER(cuMemPoolSetAccess);
    CUresult rc = CUDA_SUCCESS;

    sim_lock_take();
    struct sim_pool *found = map && count > 0 ? sim_pool_from(pool) : NULL;
    for (size_t i = 0; found && rc == CUDA_SUCCESS && i < count; i++) {
        bool device = map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        bool own = device && same_place(&map[i].location, &found->properties.location);

        if (!device || (own && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
            rc = CUDA_ERROR_INVALID_VALUE;
        else if (!sim_device_valid(map[i].location.id))
            rc = CUDA_ERROR_INVALID_DEVICE;
    }
    for (size_t i = 0; found && rc == CUDA_SUCCESS && i < count; i++)
        found->peer[map[i].location.id] = map[i].flags;
    sim_lock_drop();
    return found ? rc : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    SIM_ENTER(cuMemPoolGetAccess);
    bool device = location && location->type == CU_MEM_LOCATION_TYPE_DEVICE;

    if (!flags || !location || (device && !sim_device_valid(location->id)))
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    struct sim_pool *found = sim_pool_from(memPool);
    if (found && (same_place(location, &found->properties.location) ||
                  (!device && !sim_pool_on_card(found))))
        *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    else if (found)
        *flags = device ? found->peer[location->id] : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    sim_lock_drop();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
