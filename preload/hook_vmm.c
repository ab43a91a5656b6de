/*
 * Virtual memory management.  cuMemCreate charges the device that the properties name, never that of
 * a context; the charge ends with the last handle reference and the last mapping (vmm.h).  Contexts
 * that go do not touch it.  A handle or address that vmm.h does not know is host memory or a
 * multicast object, which carries no bytes: the call passes.
 */
#include <stdlib.h>
#include <string.h>

#include "enforcer/log.h"
#include "enforcer/rules.h"
#include "preload/charge.h"
#include "preload/fault.h"
#include "preload/location.h"
#include "preload/overhead.h"
#include "preload/share.h"
#include "preload/vmm.h"

/* No record could be kept: the driver gets its memory back and the caller a refusal. */
static CUresult unrecorded(unsigned row)
{
    vcap_log(VCAP_LOG_ERROR, "no memory to keep a record of %s: refused", vcap_row_symbol(row));
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult give_back(uint64_t physical)
{
    return real.cuMemRelease(((struct vcap_physical *)(uintptr_t)physical)->handle);
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                             const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUmemGenericAllocationHandle created = 0;
    struct vcap_physical *physical;
    struct vcap_charge c;
    CUresult result;

    VCAP_ENTER(cuMemCreate, (handle, size, prop, flags));
    if (prop == NULL || !vcap_location_is_device(&prop->location))
        return VCAP_CALL(cuMemCreate, handle, size, prop, flags);
    physical = vcap_physical_new();
    if (physical == NULL)
        return unrecorded(VCAP_ROW_cuMemCreate);
    result = vcap_charge_begin_on(&c, VCAP_ROW_cuMemCreate, vcap_location_device(&prop->location),
                                  vcap_rule_physical(size));
    if (result == CUDA_SUCCESS) {
        result = VCAP_CALL(cuMemCreate, handle != NULL ? &created : NULL, size, prop, flags);
        physical->handle = created;
        physical->ordinal = vcap_location_device(&prop->location);
        physical->size = size;
        result = vcap_charge_end_as(&c, result, VCAP_LIVE_HANDLE, (uintptr_t)physical,
                                    vcap_rule_physical(size), give_back);
        if (result == CUDA_SUCCESS && !vcap_handle_enter(created, physical)) {
            real.cuMemRelease(created);
            result = unrecorded(VCAP_ROW_cuMemCreate);
        }
    }
    if (result != CUDA_SUCCESS)
        vcap_physical_unhold(physical);
    else if (handle != NULL)
        *handle = created;
    return result;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct vcap_physical *physical;
    CUresult result;

    VCAP_ENTER(cuMemRelease, (handle));
    physical = vcap_handle_take(handle);
    result = VCAP_CALL(cuMemRelease, handle);
    vcap_release_seen(result, physical != NULL, VCAP_ROW_cuMemRelease);
    if (physical == NULL)
        return result;
    if (result == CUDA_SUCCESS)
        vcap_physical_unhold(physical);
    else
        vcap_handle_enter(handle, physical); /* without memory for it the hold stays */
    return result;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    CUmemGenericAllocationHandle retained = 0;
    struct vcap_physical *physical;
    CUresult result;

    VCAP_ENTER(cuMemRetainAllocationHandle, (handle, addr));
    physical = vcap_mapping_hold((uintptr_t)addr);
    result = VCAP_CALL(cuMemRetainAllocationHandle, handle != NULL ? &retained : NULL, addr);
    if (result == CUDA_SUCCESS && physical != NULL && !vcap_handle_enter(retained, physical)) {
        real.cuMemRelease(retained);
        result = unrecorded(VCAP_ROW_cuMemRetainAllocationHandle);
    }
    if (result != CUDA_SUCCESS && physical != NULL)
        vcap_physical_unhold(physical);
    if (result == CUDA_SUCCESS && handle != NULL)
        *handle = retained;
    return result;
}

/* ---- what other processes made ---- */

CUresult CUDAAPI cuMemExportToShareableHandle(void *shareableHandle,
                                              CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType handleType,
                                              unsigned long long flags)
{
    struct vcap_physical *physical;
    CUresult result;

    VCAP_ENTER(cuMemExportToShareableHandle, (shareableHandle, handle, handleType, flags));
    physical = vcap_handle_hold(handle);
    result = VCAP_CALL(cuMemExportToShareableHandle, shareableHandle, handle, handleType, flags);
    if (physical == NULL)
        return result;
    if (result == CUDA_SUCCESS && physical->size != 0)
        vcap_export_note(vcap_live_key(VCAP_LIVE_HANDLE, (uintptr_t)physical), physical->size,
                         handleType == CU_MEM_HANDLE_TYPE_FABRIC
                             ? vcap_export_hash(shareableHandle, sizeof(CUmemFabricHandle))
                             : 0);
    vcap_physical_unhold(physical);
    return result;
}

/* Device memory behind a handle that was imported; -1: host memory, or no memory at all. */
static CUdevice device_of(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    if (vcap_own.cuMemGetAllocationPropertiesFromHandle == NULL ||
        vcap_own.cuMemGetAllocationPropertiesFromHandle(&prop, handle) != CUDA_SUCCESS)
        return -1;
    return vcap_location_device(&prop.location);
}

/* False: no memory.  The driver may give out the same value for the same memory again. */
static bool imported(CUmemGenericAllocationHandle handle, uint64_t hash)
{
    struct vcap_physical *physical = vcap_handle_hold(handle);
    CUdevice ordinal;

    if (physical == NULL) {
        ordinal = device_of(handle);
        if (ordinal < 0)
            return true;
        physical = vcap_physical_new();
        if (physical == NULL)
            return false;
        physical->handle = handle;
        physical->ordinal = ordinal;
        physical->imported = true;
        physical->hash = hash;
    }
    if (vcap_handle_enter(handle, physical))
        return true;
    vcap_physical_unhold(physical);
    return false;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                                void *osHandle,
                                                CUmemAllocationHandleType shHandleType)
{
    CUmemGenericAllocationHandle created = 0;
    uint64_t hash = 0;
    CUresult result;

    VCAP_ENTER(cuMemImportFromShareableHandle, (handle, osHandle, shHandleType));
    if (shHandleType == CU_MEM_HANDLE_TYPE_FABRIC && osHandle != NULL)
        hash = vcap_export_hash(osHandle, sizeof(CUmemFabricHandle));
    result = VCAP_CALL(cuMemImportFromShareableHandle, handle != NULL ? &created : NULL, osHandle,
                       shHandleType);
    if (result == CUDA_SUCCESS && !imported(created, hash)) {
        real.cuMemRelease(created);
        result = unrecorded(VCAP_ROW_cuMemImportFromShareableHandle);
    }
    if (result == CUDA_SUCCESS && handle != NULL)
        *handle = created;
    return result;
}

/* An import shows its size with its first mapping: from then on it is somebody's. */
struct sizing {
    struct vcap_charge c;
    bool charged, shown;
    CUdevice shown_on;
    struct vcap_physical *origin;
};

static CUresult sizing_begin(struct sizing *s, const struct vcap_physical *physical, uint64_t size)
{
    CUresult result;

    memset(s, 0, sizeof(*s));
    s->shown_on = physical->ordinal;
    s->shown = vcap_export_by_others(&s->shown_on, size, physical->hash);
    if (s->shown)
        return CUDA_SUCCESS;
    s->origin = vcap_export_by_us(physical->ordinal, size, physical->hash);
    if (s->origin != NULL)
        return CUDA_SUCCESS;
    s->charged = true;
    result =
        vcap_charge_begin_on(&s->c, VCAP_ROW_cuMemMap, physical->ordinal, vcap_rule_physical(size));
    s->c.unsure = true;
    return result;
}

static CUresult nothing_to_give_back(uint64_t handle)
{
    (void)handle; /* the caller unmaps */
    return CUDA_SUCCESS;
}

static CUresult sizing_end(struct sizing *s, CUresult result, struct vcap_physical *physical,
                           uint64_t size)
{
    uint64_t object = (uintptr_t)physical;

    if (result != CUDA_SUCCESS || !vcap_physical_grow(physical, size, s->origin)) {
        if (s->origin != NULL)
            vcap_physical_unhold(s->origin);
        if (s->charged) /* failed, or another thread has mapped it meanwhile */
            vcap_charge_end_as(&s->c, result != CUDA_SUCCESS ? result : CUDA_ERROR_UNKNOWN,
                               VCAP_LIVE_HANDLE, object, 0, nothing_to_give_back);
        return result;
    }
    if (s->shown)
        vcap_import_enter(VCAP_LIVE_HANDLE, object, NULL, s->shown_on, size);
    if (s->charged)
        result = vcap_charge_end_as(&s->c, result, VCAP_LIVE_HANDLE, object,
                                    vcap_rule_physical(size), nothing_to_give_back);
    return result;
}

/* ---- mappings ---- */

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct vcap_physical *physical;
    struct vcap_mapping *mapping;
    struct sizing sizing;
    bool sizes;
    CUresult result, drivers;

    VCAP_ENTER(cuMemMap, (ptr, size, offset, handle, flags));
    physical = vcap_handle_hold(handle);
    if (physical == NULL)
        return VCAP_CALL(cuMemMap, ptr, size, offset, handle, flags);
    mapping = calloc(1, sizeof(*mapping));
    if (mapping == NULL) {
        result = unrecorded(VCAP_ROW_cuMemMap);
        goto out;
    }
    mapping->low = ptr;
    mapping->high = ptr + size;
    mapping->physical = physical;
    sizes = physical->imported && size > __atomic_load_n(&physical->size, __ATOMIC_RELAXED);
    result = sizes ? sizing_begin(&sizing, physical, size) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        goto out;
    if (sizes)
        vcap_overhead_open_begin();
    result = drivers = VCAP_CALL(cuMemMap, ptr, size, offset, handle, flags);
    if (sizes) {
        result = sizing_end(&sizing, result, physical, size);
        vcap_overhead_open_end();
    }
    if (result == CUDA_SUCCESS && !vcap_mapping_enter(mapping))
        result = unrecorded(VCAP_ROW_cuMemMap);
    if (result != CUDA_SUCCESS && drivers == CUDA_SUCCESS)
        real.cuMemUnmap(ptr, size);
out:
    if (result != CUDA_SUCCESS) {
        free(mapping);
        vcap_physical_unhold(physical);
    }
    return result;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    struct vcap_mapping *list;
    CUresult result;

    VCAP_ENTER(cuMemUnmap, (ptr, size));
    list = vcap_mappings_take(ptr, ptr + size);
    result = VCAP_CALL(cuMemUnmap, ptr, size);
    if (result == CUDA_SUCCESS)
        vcap_mappings_end(list);
    else
        vcap_mappings_return(list);
    return result;
}
