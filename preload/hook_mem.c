/*
 * Linear, pitched and managed memory, and its release, in both ABIs.  Each body reserves before the
 * driver is called (charge.h); a release takes the record out before the driver is called and puts
 * it back if the driver fails.  The v1 functions have 32-bit sizes and pointers.
 */
#include <string.h>

#include "enforcer/rules.h"
#include "preload/charge.h"
#include "preload/fault.h"
#include "preload/pool.h"

static CUresult free_v1(uint64_t pointer)
{
    return real.cuMemFree((CUdeviceptr_v1)pointer);
}

static CUresult free_v2(uint64_t pointer)
{
    return real.cuMemFree_v2((CUdeviceptr)pointer);
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    uint64_t bytes = vcap_rule_linear(bytesize);
    CUdeviceptr pointer = 0;
    struct vcap_charge c;
    CUresult result;

    VCAP_ENTER(cuMemAlloc_v2, (dptr, bytesize));
    result = vcap_charge_begin(&c, VCAP_ROW_cuMemAlloc_v2, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = VCAP_CALL(cuMemAlloc_v2, dptr != NULL ? &pointer : NULL, bytesize);
    result = vcap_charge_end(&c, result, pointer, bytes, free_v2);
    if (result == CUDA_SUCCESS && dptr != NULL)
        *dptr = pointer;
    return result;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
    uint64_t bytes = vcap_rule_linear(bytesize);
    CUdeviceptr_v1 pointer = 0;
    struct vcap_charge c;
    CUresult result;

    VCAP_ENTER(cuMemAlloc, (dptr, bytesize));
    result = vcap_charge_begin(&c, VCAP_ROW_cuMemAlloc, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = VCAP_CALL(cuMemAlloc, dptr != NULL ? &pointer : NULL, bytesize);
    result = vcap_charge_end(&c, result, pointer, bytes, free_v1);
    if (result == CUDA_SUCCESS && dptr != NULL)
        *dptr = pointer;
    return result;
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes,
                                    size_t Height, unsigned int ElementSizeBytes)
{
    CUdeviceptr pointer = 0;
    size_t pitch = 0;
    struct vcap_charge c;
    CUresult result;

    VCAP_ENTER(cuMemAllocPitch_v2, (dptr, pPitch, WidthInBytes, Height, ElementSizeBytes));
    result = vcap_charge_begin(&c, VCAP_ROW_cuMemAllocPitch_v2,
                               vcap_rule_pitched_least(WidthInBytes, Height));
    if (result != CUDA_SUCCESS)
        return result;
    result = VCAP_CALL(cuMemAllocPitch_v2, dptr != NULL ? &pointer : NULL,
                       pPitch != NULL ? &pitch : NULL, WidthInBytes, Height, ElementSizeBytes);
    result = vcap_charge_end(&c, result, pointer, vcap_rule_pitched(pitch, Height), free_v2);
    if (result == CUDA_SUCCESS && dptr != NULL)
        *dptr = pointer;
    if (result == CUDA_SUCCESS && pPitch != NULL)
        *pPitch = pitch;
    return result;
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch,
                                 unsigned int WidthInBytes, unsigned int Height,
                                 unsigned int ElementSizeBytes)
{
    CUdeviceptr_v1 pointer = 0;
    unsigned int pitch = 0;
    struct vcap_charge c;
    CUresult result;

    VCAP_ENTER(cuMemAllocPitch, (dptr, pPitch, WidthInBytes, Height, ElementSizeBytes));
    result = vcap_charge_begin(&c, VCAP_ROW_cuMemAllocPitch,
                               vcap_rule_pitched_least(WidthInBytes, Height));
    if (result != CUDA_SUCCESS)
        return result;
    result = VCAP_CALL(cuMemAllocPitch, dptr != NULL ? &pointer : NULL,
                       pPitch != NULL ? &pitch : NULL, WidthInBytes, Height, ElementSizeBytes);
    result = vcap_charge_end(&c, result, pointer, vcap_rule_pitched(pitch, Height), free_v1);
    if (result == CUDA_SUCCESS && dptr != NULL)
        *dptr = pointer;
    if (result == CUDA_SUCCESS && pPitch != NULL)
        *pPitch = pitch;
    return result;
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    uint64_t bytes = vcap_rule_linear(bytesize);
    CUdeviceptr pointer = 0;
    struct vcap_charge c;
    CUresult result;

    VCAP_ENTER(cuMemAllocManaged, (dptr, bytesize, flags));
    if (vcap_process.config.managed == VCAP_MANAGED_IGNORE && vcap_mode_now() != VCAP_MODE_DENY)
        return VCAP_CALL(cuMemAllocManaged, dptr, bytesize, flags);
    result = vcap_charge_begin(&c, VCAP_ROW_cuMemAllocManaged, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    c.unsure = true;
    result = VCAP_CALL(cuMemAllocManaged, dptr != NULL ? &pointer : NULL, bytesize, flags);
    result = vcap_charge_end(&c, result, pointer, bytes, free_v2);
    if (result == CUDA_SUCCESS && dptr != NULL)
        *dptr = pointer;
    return result;
}

/* Takes the record out before the driver is asked; false: not ours. */
static bool release_begin(CUdeviceptr dptr, struct vcap_live *record)
{
    bool ours = vcap_live_take(dptr, record);

    if (ours && record->pool != NULL)
        vcap_pool_call_begin(record->pool);
    return ours;
}

static CUresult release_end(CUresult result, bool ours, const struct vcap_live *record,
                            unsigned row)
{
    vcap_release_seen(result, ours, row);
    if (!ours || record->pool == NULL)
        return vcap_release_end(result, ours, record);
    result = vcap_pool_free_end(result, record);
    /* this free waits for the device, so the pool may have given memory back */
    if (result == CUDA_SUCCESS)
        vcap_pools_settle(row);
    return result;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr)
{
    struct vcap_live record;
    bool ours;

    VCAP_ENTER(cuMemFree_v2, (dptr));
    ours = release_begin(dptr, &record);
    return release_end(VCAP_CALL(cuMemFree_v2, dptr), ours, &record, VCAP_ROW_cuMemFree_v2);
}

CUresult CUDAAPI cuMemFree(CUdeviceptr_v1 dptr)
{
    struct vcap_live record;
    bool ours;

    VCAP_ENTER(cuMemFree, (dptr));
    ours = release_begin(dptr, &record);
    return release_end(VCAP_CALL(cuMemFree, dptr), ours, &record, VCAP_ROW_cuMemFree);
}
