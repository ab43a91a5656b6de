/*
 * Memory of Vulkan, OpenGL, Direct3D or NvSci: charged at the size that its import names, in the
 * current context, until it is destroyed or its context is.  What is mapped of it is a view: a
 * mapped buffer that cuMemFree gets is unknown to us and goes to the driver.
 */
#include "enforcer/rules.h"
#include "preload/charge.h"
#include "preload/fault.h"

static CUresult give_back(uint64_t external)
{
    return real.cuDestroyExternalMemory((CUexternalMemory)(uintptr_t)external);
}

CUresult CUDAAPI cuImportExternalMemory(CUexternalMemory *extMem_out,
                                        const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *memHandleDesc)
{
    CUexternalMemory external = NULL;
    struct vcap_charge c;
    uint64_t bytes;
    CUresult result;

    VCAP_ENTER(cuImportExternalMemory, (extMem_out, memHandleDesc));
    bytes = memHandleDesc == NULL ? 0 : vcap_rule_external(memHandleDesc->size);
    result = vcap_charge_begin(&c, VCAP_ROW_cuImportExternalMemory, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    c.unsure = true;
    result =
        VCAP_CALL(cuImportExternalMemory, extMem_out != NULL ? &external : NULL, memHandleDesc);
    result =
        vcap_charge_end_as(&c, result, VCAP_LIVE_EXTERNAL, (uintptr_t)external, bytes, give_back);
    if (result == CUDA_SUCCESS && extMem_out != NULL)
        *extMem_out = external;
    return result;
}

CUresult CUDAAPI cuDestroyExternalMemory(CUexternalMemory extMem)
{
    struct vcap_live record;
    CUresult result;
    bool ours;

    VCAP_ENTER(cuDestroyExternalMemory, (extMem));
    ours = vcap_live_take(vcap_live_key(VCAP_LIVE_EXTERNAL, (uintptr_t)extMem), &record);
    result = VCAP_CALL(cuDestroyExternalMemory, extMem);
    vcap_release_seen(result, ours, VCAP_ROW_cuDestroyExternalMemory);
    return vcap_release_end(result, ours, &record);
}
