/*
 * What can be asked of arrays and mipmaps, and mapping tile-pool memory into those that own none.
 *
 * Memory mapped into an array stays alive until it is unmapped or the array ends; which tiles it
 * shows is not computed, only the list of mappings is kept.
 */
#include "sim_array.h"
#include "sim_vmm.h"

#include <stdlib.h>
#include <string.h>

static CUresult describe(CUarray handle, CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    sim_lock_take();
    const struct sim_array *array = sim_array_of(handle);
    if (array)
        *desc = array->desc;
    sim_lock_drop();
    return array ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *pArrayDescriptor, CUarray hArray)
{
    SIM_ENTER(cuArrayGetDescriptor);
    CUDA_ARRAY3D_DESCRIPTOR desc;
    CUresult rc = pArrayDescriptor ? describe(hArray, &desc) : CUDA_ERROR_INVALID_VALUE;

    if (rc == CUDA_SUCCESS)
        *pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR_v1){.Width = (unsigned int)desc.Width,
                                                       .Height = (unsigned int)desc.Height,
                                                       .Format = desc.Format,
                                                       .NumChannels = desc.NumChannels};
    return rc;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    SIM_ENTER(cuArrayGetDescriptor_v2);
    CUDA_ARRAY3D_DESCRIPTOR desc;
    CUresult rc = pArrayDescriptor ? describe(hArray, &desc) : CUDA_ERROR_INVALID_VALUE;

    if (rc == CUDA_SUCCESS)
        *pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR){.Width = desc.Width,
                                                    .Height = desc.Height,
                                                    .Format = desc.Format,
                                                    .NumChannels = desc.NumChannels};
    return rc;
}

CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *pArrayDescriptor, CUarray hArray)
{
    SIM_ENTER(cuArray3DGetDescriptor);
    CUDA_ARRAY3D_DESCRIPTOR desc;
    CUresult rc = pArrayDescriptor ? describe(hArray, &desc) : CUDA_ERROR_INVALID_VALUE;

    if (rc == CUDA_SUCCESS)
        *pArrayDescriptor = (CUDA_ARRAY3D_DESCRIPTOR_v1){.Width = (unsigned int)desc.Width,
                                                         .Height = (unsigned int)desc.Height,
                                                         .Depth = (unsigned int)desc.Depth,
                                                         .Format = desc.Format,
                                                         .NumChannels = desc.NumChannels,
                                                         .Flags = desc.Flags};
    return rc;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    SIM_ENTER(cuArray3DGetDescriptor_v2);
    CUDA_ARRAY3D_DESCRIPTOR desc;
    CUresult rc = pArrayDescriptor ? describe(hArray, &desc) : CUDA_ERROR_INVALID_VALUE;

    if (rc == CUDA_SUCCESS)
        *pArrayDescriptor = desc;
    return rc;
}

/* --- sizes ------------------------------------------------------------------------------ */

/* Only of what gets its memory later. */
static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUdevice device,
                             const CUDA_ARRAY3D_DESCRIPTOR *desc, const struct sim_format *format,
                             unsigned int levels)
{
    if (!sim_device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if ((desc->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, sizeof *out);
    out->size = sim_array_card_bytes(desc, format, levels);
    out->alignment = sim_config.page_bytes;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                      CUarray array, CUdevice device)
{
    SIM_ENTER(cuArrayGetMemoryRequirements);
    CUresult rc = CUDA_ERROR_INVALID_HANDLE;

    if (!memoryRequirements)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    const struct sim_array *found = sim_array_of(array);
    if (found)
        rc = requirements(memoryRequirements, device, &found->desc, &found->format, 1);
    sim_lock_drop();
    return rc;
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                               CUmipmappedArray mipmap, CUdevice device)
{
    SIM_ENTER(cuMipmappedArrayGetMemoryRequirements);
    CUresult rc = CUDA_ERROR_INVALID_HANDLE;

    if (!memoryRequirements)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    const struct sim_mipmap *found = sim_mipmap_of(mipmap);
    if (found)
        rc = requirements(memoryRequirements, device, &found->desc, &found->format, found->levels);
    sim_lock_drop();
    return rc;
}

/* A tile has 64 KiB, and is as square as that allows. */
static CUresult sparse_properties(CUDA_ARRAY_SPARSE_PROPERTIES *out,
                                  const CUDA_ARRAY3D_DESCRIPTOR *desc,
                                  const struct sim_format *format, unsigned int levels)
{
    unsigned int units = 65536U / format->plane[0].unit_bytes, width = 1, height = 1;

    if ((desc->Flags & CUDA_ARRAY3D_SPARSE) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    while (width * height < units) {
        if (width <= height)
            width *= 2;
        else
            height *= 2;
    }
    memset(out, 0, sizeof *out);
    out->tileExtent.width = width * format->block;
    out->tileExtent.height = height * format->block;
    out->tileExtent.depth = 1;
    while (out->miptailFirstLevel < levels) {
        CUDA_ARRAY3D_DESCRIPTOR at = sim_level_of(desc, out->miptailFirstLevel);

        if (at.Width < out->tileExtent.width || at.Height < out->tileExtent.height)
            break;
        out->miptailFirstLevel++;
    }
    if (out->miptailFirstLevel < levels) {
        CUDA_ARRAY3D_DESCRIPTOR tail = sim_level_of(desc, out->miptailFirstLevel);

        out->miptailSize = sim_array_card_bytes(&tail, format, levels - out->miptailFirstLevel);
    }
    return CUDA_SUCCESS;
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties, CUarray array)
{
    SIM_ENTER(cuArrayGetSparseProperties);
    CUresult rc = CUDA_ERROR_INVALID_HANDLE;

    if (!sparseProperties)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    const struct sim_array *found = sim_array_of(array);
    if (found)
        rc = sparse_properties(sparseProperties, &found->desc, &found->format, 1);
    sim_lock_drop();
    return rc;
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties,
                                             CUmipmappedArray mipmap)
{
    SIM_ENTER(cuMipmappedArrayGetSparseProperties);
    CUresult rc = CUDA_ERROR_INVALID_HANDLE;

    if (!sparseProperties)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    const struct sim_mipmap *found = sim_mipmap_of(mipmap);
    if (found)
        rc = sparse_properties(sparseProperties, &found->desc, &found->format, found->levels);
    sim_lock_drop();
    return rc;
}

/* --- tile-pool memory ------------------------------------------------------------------- */

struct sim_pages {
    struct sim_physical *memory;
    CUarrayMapInfo at;
    struct sim_pages *next;
};

static void pages_end(struct sim_pages **at)
{
    struct sim_pages *pages = *at;

    *at = pages->next;
    pages->memory->uses--;
    sim_physical_settle(pages->memory);
    free(pages);
}

void sim_pages_clear(struct sim_pages **list)
{
    while (*list)
        pages_end(list);
}

/* The list and the description of what an entry is about; NULL unless it is sparse or deferred. */
static struct sim_pages **list_of(const CUarrayMapInfo *info, CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    struct sim_pages **list = NULL;

    if (info->resourceType == CU_RESOURCE_TYPE_ARRAY) {
        struct sim_array *array = sim_array_of(info->resource.array);

        if (array && !array->view) {
            list = &array->mapped;
            *desc = array->desc;
        }
    } else if (info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
        struct sim_mipmap *mipmap = sim_mipmap_of(info->resource.mipmap);

        if (mipmap) {
            list = &mipmap->mapped;
            *desc = mipmap->desc;
        }
    }
    if (list && (desc->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0)
        list = NULL;
    return list;
}

static bool same_place(const CUarrayMapInfo *a, const CUarrayMapInfo *b, unsigned int flags)
{
    if ((flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0) /* it is mapped as a whole */
        return true;
    if (a->subresourceType != b->subresourceType)
        return false;
    return a->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL
               ? a->subresource.miptail.layer == b->subresource.miptail.layer &&
                     a->subresource.miptail.offset == b->subresource.miptail.offset
               : memcmp(&a->subresource.sparseLevel, &b->subresource.sparseLevel,
                        sizeof a->subresource.sparseLevel) == 0;
}

/* With sim_lock held. */
static CUresult pages_map(const CUarrayMapInfo *info)
{
    CUDA_ARRAY3D_DESCRIPTOR desc;
    struct sim_pages **list = list_of(info, &desc);
    bool map = info->memOperationType == CU_MEM_OPERATION_TYPE_MAP;
    struct sim_physical *memory = map ? sim_physical_of(info->memHandle.memHandle) : NULL;

    if (!list || info->flags != 0 || __builtin_popcount(info->deviceBitMask) != 1 ||
        (!map && info->memOperationType != CU_MEM_OPERATION_TYPE_UNMAP) ||
        (map && (!memory || memory->multicast || info->offset >= memory->size)))
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_pages *pages = map ? calloc(1, sizeof *pages) : NULL;
    if (map && !pages)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (map) /* before anything ends: it may be the same memory */
        memory->uses++;
    for (struct sim_pages **at = list; *at;) {
        if (same_place(&(*at)->at, info, desc.Flags))
            pages_end(at);
        else
            at = &(*at)->next;
    }
    if (map) {
        *pages = (struct sim_pages){memory, *info, *list};
        *list = pages;
    }
    return CUDA_SUCCESS;
}

static CUresult map_arrays(const CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    if (!list && count > 0)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    for (unsigned int i = 0; i < count && rc == CUDA_SUCCESS; i++)
        rc = pages_map(&list[i]);
    sim_lock_drop();
    return rc;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
    SIM_ENTER(cuMemMapArrayAsync);
    return map_arrays(mapInfoList, count, hStream);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
    SIM_ENTER(cuMemMapArrayAsync_ptsz);
    return map_arrays(mapInfoList, count, hStream);
}
