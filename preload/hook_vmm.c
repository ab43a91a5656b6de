/*
 * Virtual memory management.  cuMemCreate charges the device that the properties name, never that of
 * a context; the charge ends with the last handle reference and the last mapping (vmm.h).  Contexts
 * that go do not touch it.  A handle or address that vmm.h does not know is host memory or a
 * multicast object, which carries no bytes: the call passes.
 */
#include <stdlib.h>

#include "enforcer/log.h"
#include "enforcer/rules.h"
#include "preload/charge.h"
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
    if (prop == NULL || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return real.cuMemCreate(handle, size, prop, flags);
    physical = vcap_physical_new();
    if (physical == NULL)
        return unrecorded(VCAP_ROW_cuMemCreate);
    result =
        vcap_charge_begin_on(&c, VCAP_ROW_cuMemCreate, prop->location.id, vcap_rule_physical(size));
    if (result == CUDA_SUCCESS) {
        result = real.cuMemCreate(handle != NULL ? &created : NULL, size, prop, flags);
        physical->handle = created;
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
    result = real.cuMemRelease(handle);
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
    result = real.cuMemRetainAllocationHandle(handle != NULL ? &retained : NULL, addr);
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

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct vcap_physical *physical;
    struct vcap_mapping *mapping;
    CUresult result;

    VCAP_ENTER(cuMemMap, (ptr, size, offset, handle, flags));
    physical = vcap_handle_hold(handle);
    if (physical == NULL)
        return real.cuMemMap(ptr, size, offset, handle, flags);
    mapping = calloc(1, sizeof(*mapping));
    if (mapping == NULL) {
        result = unrecorded(VCAP_ROW_cuMemMap);
        goto out;
    }
    mapping->low = ptr;
    mapping->high = ptr + size;
    mapping->physical = physical;
    result = real.cuMemMap(ptr, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && !vcap_mapping_enter(mapping)) {
        real.cuMemUnmap(ptr, size);
        result = unrecorded(VCAP_ROW_cuMemMap);
    }
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
    result = real.cuMemUnmap(ptr, size);
    if (result == CUDA_SUCCESS)
        vcap_mappings_end(list);
    else
        vcap_mappings_return(list);
    return result;
}
