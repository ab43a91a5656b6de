/*
 * Arrays and mipmapped arrays: charged before the driver is called, at an upper bound computed from the
 * description (enforcer/rules_array.h); the driver has no way to tell the size of an array that owns
 * memory.  Levels and planes are parts of an array and are never in the live map.  Arrays of external
 * memory and of graphics resources come from other calls and are not charged here, so that destroying
 * one releases nothing.
 */
#include <string.h>

#include "preload/array_format.h"
#include "preload/charge.h"
#include "preload/fault.h"

static CUresult give_back_array(uint64_t handle)
{
    return real.cuArrayDestroy((CUarray)(uintptr_t)handle);
}

static CUresult give_back_mipmap(uint64_t handle)
{
    return real.cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)handle);
}

/* The four ABIs say the same in structures of their own; NULL: nothing, the driver answers. */
static uint64_t cost_2d(const CUDA_ARRAY_DESCRIPTOR *d)
{
    CUDA_ARRAY3D_DESCRIPTOR all;

    if (d == NULL)
        return 0;
    memset(&all, 0, sizeof(all));
    all.Width = d->Width;
    all.Height = d->Height;
    all.Format = d->Format;
    all.NumChannels = d->NumChannels;
    return vcap_array_cost(&all, 1);
}

static uint64_t cost_2d_v1(const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
    CUDA_ARRAY_DESCRIPTOR wide;

    if (d == NULL)
        return 0;
    memset(&wide, 0, sizeof(wide));
    wide.Width = d->Width;
    wide.Height = d->Height;
    wide.Format = d->Format;
    wide.NumChannels = d->NumChannels;
    return cost_2d(&wide);
}

static uint64_t cost_3d_v1(const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
    CUDA_ARRAY3D_DESCRIPTOR wide;

    if (d == NULL)
        return 0;
    memset(&wide, 0, sizeof(wide));
    wide.Width = d->Width;
    wide.Height = d->Height;
    wide.Depth = d->Depth;
    wide.Format = d->Format;
    wide.NumChannels = d->NumChannels;
    wide.Flags = d->Flags;
    return vcap_array_cost(&wide, 1);
}

/* One body for all: `call` is the driver's call, which writes the local `handle`. */
#define CREATE(function, out, bytes_, kind, give_back, call)                                       \
    uint64_t bytes = bytes_;                                                                       \
    struct vcap_charge c;                                                                          \
    CUresult result = vcap_charge_begin(&c, VCAP_ROW_##function, bytes);                           \
                                                                                                   \
    if (result != CUDA_SUCCESS)                                                                    \
        return result;                                                                             \
    result = call;                                                                                 \
    result = vcap_charge_end_as(&c, result, kind, (uint64_t)(uintptr_t)handle, bytes, give_back);  \
    if (result == CUDA_SUCCESS && (out) != NULL)                                                   \
        *(out) = handle;                                                                           \
    return result

CUresult CUDAAPI cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray)
{
    CUarray handle = NULL;

    VCAP_ENTER(cuArrayCreate, (pHandle, pAllocateArray));
    CREATE(cuArrayCreate, pHandle, cost_2d_v1(pAllocateArray), VCAP_LIVE_ARRAY, give_back_array,
           VCAP_CALL(cuArrayCreate, pHandle != NULL ? &handle : NULL, pAllocateArray));
}

CUresult CUDAAPI cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    CUarray handle = NULL;

    VCAP_ENTER(cuArrayCreate_v2, (pHandle, pAllocateArray));
    CREATE(cuArrayCreate_v2, pHandle, cost_2d(pAllocateArray), VCAP_LIVE_ARRAY, give_back_array,
           VCAP_CALL(cuArrayCreate_v2, pHandle != NULL ? &handle : NULL, pAllocateArray));
}

CUresult CUDAAPI cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray)
{
    CUarray handle = NULL;

    VCAP_ENTER(cuArray3DCreate, (pHandle, pAllocateArray));
    CREATE(cuArray3DCreate, pHandle, cost_3d_v1(pAllocateArray), VCAP_LIVE_ARRAY, give_back_array,
           VCAP_CALL(cuArray3DCreate, pHandle != NULL ? &handle : NULL, pAllocateArray));
}

CUresult CUDAAPI cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    CUarray handle = NULL;

    VCAP_ENTER(cuArray3DCreate_v2, (pHandle, pAllocateArray));
    CREATE(cuArray3DCreate_v2, pHandle,
           pAllocateArray == NULL ? 0 : vcap_array_cost(pAllocateArray, 1), VCAP_LIVE_ARRAY,
           give_back_array,
           VCAP_CALL(cuArray3DCreate_v2, pHandle != NULL ? &handle : NULL, pAllocateArray));
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
                                        const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                        unsigned int numMipmapLevels)
{
    CUmipmappedArray handle = NULL;

    VCAP_ENTER(cuMipmappedArrayCreate, (pHandle, pMipmappedArrayDesc, numMipmapLevels));
    CREATE(cuMipmappedArrayCreate, pHandle,
           pMipmappedArrayDesc == NULL ? 0 : vcap_array_cost(pMipmappedArrayDesc, numMipmapLevels),
           VCAP_LIVE_MIPMAP, give_back_mipmap,
           VCAP_CALL(cuMipmappedArrayCreate, pHandle != NULL ? &handle : NULL, pMipmappedArrayDesc,
                     numMipmapLevels));
}

CUresult CUDAAPI cuArrayDestroy(CUarray hArray)
{
    struct vcap_live record;
    CUresult result;
    bool ours;

    VCAP_ENTER(cuArrayDestroy, (hArray));
    ours = vcap_live_take(vcap_live_key(VCAP_LIVE_ARRAY, (uint64_t)(uintptr_t)hArray), &record);
    result = VCAP_CALL(cuArrayDestroy, hArray);
    vcap_release_seen(result, ours, VCAP_ROW_cuArrayDestroy);
    return vcap_release_end(result, ours, &record);
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
    struct vcap_live record;
    CUresult result;
    bool ours;

    VCAP_ENTER(cuMipmappedArrayDestroy, (hMipmappedArray));
    ours = vcap_live_take(vcap_live_key(VCAP_LIVE_MIPMAP, (uint64_t)(uintptr_t)hMipmappedArray),
                          &record);
    result = VCAP_CALL(cuMipmappedArrayDestroy, hMipmappedArray);
    vcap_release_seen(result, ours, VCAP_ROW_cuMipmappedArrayDestroy);
    return vcap_release_end(result, ours, &record);
}
