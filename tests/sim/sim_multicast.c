/*
 * Multicast objects: a handle that shows the memory of several devices at one address.
 *
 * The object itself has no bytes and costs the card nothing; what is bound to it stays alive until
 * it is unbound or the object ends. Its mapping can be touched, but shows bytes of its own: nothing
 * here computes. Where the real calls wait for devices that another process has yet to add, these
 * answer ILLEGAL_STATE.
 */
#include "sim_vmm.h"
#include "sim_share.h"

#include <stdlib.h>
#include <string.h>

struct binding {
    struct sim_physical *memory; /* NULL: stream-ordered memory, which has no handle */
    CUdevice device;
    size_t offset, size;
    struct binding *next;
};

struct sim_multicast {
    unsigned int devices; /* of the team */
    unsigned int added;   /* by this process, while the object is not shared */
    bool has[SIM_MAX_CARDS];
    struct binding *bindings;
};

static size_t granularity(void)
{
    return sim_config.granularity_bytes;
}

static bool is_aligned(size_t size, size_t offset)
{
    return size > 0 && size % granularity() == 0 && offset % granularity() == 0;
}

static CUresult properties_check(const CUmulticastObjectProp *prop)
{
    unsigned long long known = (unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
                               (unsigned long long)CU_MEM_HANDLE_TYPE_FABRIC;

    if (!prop || prop->numDevices == 0 || prop->flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return (prop->handleTypes & ~known) != 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

unsigned int sim_multicast_devices(const struct sim_multicast *multicast)
{
    return multicast->devices;
}

bool sim_multicast_ready(const struct sim_physical *physical)
{
    unsigned int added = physical->share != 0 ? sim_share_count(sim_state, physical->share, 0)
                                              : physical->multicast->added;

    return added >= physical->multicast->devices;
}

CUresult sim_multicast_import(struct sim_physical *physical, unsigned int devices)
{
    physical->multicast = calloc(1, sizeof *physical->multicast);
    if (!physical->multicast)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->multicast->devices = devices;
    return CUDA_SUCCESS;
}

static void unbind(struct binding **at)
{
    struct binding *binding = *at;

    *at = binding->next;
    if (binding->memory) {
        binding->memory->uses--;
        sim_physical_settle(binding->memory);
    }
    free(binding);
}

void sim_multicast_end(struct sim_multicast *multicast)
{
    while (multicast->bindings)
        unbind(&multicast->bindings);
    free(multicast);
}

CUresult cuMulticastGetGranularity(size_t *granularity_, const CUmulticastObjectProp *prop,
                                   CUmulticastGranularity_flags option)
{
    SIM_ENTER(cuMulticastGetGranularity);
    if (!granularity_ || (unsigned int)option > CU_MULTICAST_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = properties_check(prop);
    if (rc == CUDA_SUCCESS)
        *granularity_ = granularity();
    return rc;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle,
                           const CUmulticastObjectProp *prop)
{
    SIM_ENTER(cuMulticastCreate);
    CUresult rc = properties_check(prop);

    if (!mcHandle || rc != CUDA_SUCCESS)
        return rc != CUDA_SUCCESS ? rc : CUDA_ERROR_INVALID_VALUE;
    if (!is_aligned(prop->size, 0))
        return CUDA_ERROR_INVALID_VALUE;
    CUmemAllocationProp shown;
    memset(&shown, 0, sizeof shown);
    shown.requestedHandleTypes = (CUmemAllocationHandleType)prop->handleTypes;
    sim_lock_take();
    struct sim_physical *physical = sim_physical_new(prop->size, &shown);
    rc = physical ? sim_multicast_import(physical, prop->numDevices) : CUDA_ERROR_OUT_OF_MEMORY;
    if (rc == CUDA_SUCCESS) {
        *mcHandle = physical->handle;
    } else if (physical) {
        physical->references = 0;
        sim_physical_settle(physical);
    }
    sim_lock_drop();
    return rc;
}

/* With sim_lock held: the multicast object of a handle, or NULL. */
static struct sim_physical *object_of(CUmemGenericAllocationHandle handle)
{
    struct sim_physical *physical = sim_physical_of(handle);

    return physical && physical->multicast ? physical : NULL;
}

/* With sim_lock held. */
static CUresult device_add(struct sim_physical *object, CUdevice dev)
{
    struct sim_multicast *multicast = object->multicast;
    bool shareable = object->prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;

    if (multicast->has[dev] || sim_multicast_ready(object))
        return CUDA_ERROR_INVALID_VALUE;
    /* Counted where every process of the team sees it. */
    if (shareable) {
        CUresult rc = sim_physical_share(object);

        if (rc != CUDA_SUCCESS)
            return rc;
        (void)sim_share_count(sim_state, object->share, 1);
    }
    multicast->added++;
    multicast->has[dev] = true;
    return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle mcHandle, CUdevice dev)
{
    SIM_ENTER(cuMulticastAddDevice);
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    sim_lock_take();
    struct sim_physical *object = object_of(mcHandle);
    CUresult rc = object ? device_add(object, dev) : CUDA_ERROR_INVALID_VALUE;
    sim_lock_drop();
    return rc;
}

/* With sim_lock held. `memory` is NULL for stream-ordered memory. */
static CUresult bind(struct sim_physical *object, size_t offset, struct sim_physical *memory,
                     CUdevice device, size_t size)
{
    if (size > object->size || offset > object->size - size || !is_aligned(size, offset))
        return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || !object->multicast->has[device])
        return CUDA_ERROR_INVALID_DEVICE;
    if (!sim_multicast_ready(object))
        return CUDA_ERROR_ILLEGAL_STATE;
    if (memory && object->prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
        memory->prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    for (const struct binding *b = object->multicast->bindings; b; b = b->next)
        if (b->device == device && offset < b->offset + b->size && b->offset < offset + size)
            return CUDA_ERROR_INVALID_VALUE;
    struct binding *binding = calloc(1, sizeof *binding);
    if (!binding)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *binding = (struct binding){memory, device, offset, size, object->multicast->bindings};
    object->multicast->bindings = binding;
    if (memory)
        memory->uses++;
    return CUDA_SUCCESS;
}

static CUdevice device_of(const struct sim_physical *memory)
{
    return memory->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? memory->prop.location.id
                                                                     : CU_DEVICE_INVALID;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                            CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                            unsigned long long flags)
{
    SIM_ENTER(cuMulticastBindMem);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;

    sim_lock_take();
    struct sim_physical *object = object_of(mcHandle), *memory = sim_physical_of(memHandle);
    if (object && memory && !memory->multicast && flags == 0 && size <= memory->size &&
        memOffset <= memory->size - size && memOffset % granularity() == 0)
        rc = bind(object, mcOffset, memory, device_of(memory), size);
    sim_lock_drop();
    return rc;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                             CUdeviceptr memptr, size_t size, unsigned long long flags)
{
    SIM_ENTER(cuMulticastBindAddr);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    struct sim_allocation found;
    size_t left = 0;

    sim_lock_take();
    struct sim_physical *object = object_of(mcHandle), *memory = sim_physical_at(memptr, &left);
    if (object && flags == 0 && memory && !memory->multicast && size <= left) {
        rc = bind(object, mcOffset, memory, device_of(memory), size);
    } else if (object && flags == 0 && sim_arena_find(memptr, &found) && found.owner &&
               !found.owner->context && size <= found.bytes - (memptr - found.base)) {
        CUdevice device = CU_DEVICE_INVALID;

        for (unsigned int d = 0; d < sim_device_count; d++)
            if (sim_device_card[d] == found.owner->card)
                device = (CUdevice)d;
        rc = bind(object, mcOffset, NULL, device, size);
    }
    sim_lock_drop();
    return rc;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                           size_t size)
{
    SIM_ENTER(cuMulticastUnbind);
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    sim_lock_take();
    struct sim_physical *object = object_of(mcHandle);
    bool ok = object && is_aligned(size, mcOffset) && size <= object->size &&
              mcOffset <= object->size - size;
    struct binding **at = ok ? &object->multicast->bindings : NULL;
    while (at && *at) {
        if ((*at)->device == dev && (*at)->offset >= mcOffset &&
            (*at)->offset + (*at)->size <= mcOffset + size)
            unbind(at);
        else
            at = &(*at)->next;
    }
    sim_lock_drop();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
