/*
 * Arrays and mipmapped arrays: create and destroy, their levels and planes.
 *
 * They belong to the context that was current, and end with it. SPARSE and DEFERRED_MAPPING ones
 * own no memory. A level or a plane is a view: it costs nothing, asking twice gives the same
 * handle, and it ends with what it is a view of (destroying one is INVALID_HANDLE).
 */
#define _GNU_SOURCE
#include "sim_array.h"
#include "sim_handles.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct sim_handles arrays, mipmaps; /* sim_lock */

struct sim_array *sim_array_of(CUarray handle)
{
    return sim_handles_get(&arrays, (uintptr_t)handle);
}

struct sim_mipmap *sim_mipmap_of(CUmipmappedArray handle)
{
    return sim_handles_get(&mipmaps, (uintptr_t)handle);
}

static bool is_unbacked(const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    return (desc->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
}

static struct sim_delta delta_of(int64_t bytes)
{
    return (struct sim_delta){.used = bytes, .alloc = bytes};
}

static void storage_end(struct sim_storage *storage)
{
    if (storage->bytes)
        (void)munmap(storage->bytes - storage->before, storage->before + storage->size);
    storage->bytes = NULL;
}

static unsigned char *storage_bytes(struct sim_storage *storage)
{
    if (!storage->bytes && !storage->unbacked) {
        void *map = mmap(NULL, storage->size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        storage->bytes = map == MAP_FAILED ? NULL : map;
    }
    return storage->bytes;
}

static void views_end(struct sim_array *array)
{
    for (unsigned int p = 0; p < SIM_ARRAY_PLANES; p++) {
        if (array->plane[p]) {
            sim_handles_take(&arrays, (uintptr_t)array->plane[p]);
            free(array->plane[p]);
        }
    }
}

static void array_end(struct sim_resource *resource)
{
    struct sim_array *array = (struct sim_array *)(void *)resource;

    views_end(array);
    sim_pages_clear(&array->mapped);
    sim_handles_take(&arrays, (uintptr_t)array);
    storage_end(&array->own);
    sim_card_give(array->card, delta_of(array->cost));
    free(array);
}

static void mipmap_end(struct sim_resource *resource)
{
    struct sim_mipmap *mipmap = (struct sim_mipmap *)(void *)resource;

    for (unsigned int l = 0; l < mipmap->levels; l++) {
        if (mipmap->level[l]) {
            views_end(mipmap->level[l]);
            sim_handles_take(&arrays, (uintptr_t)mipmap->level[l]);
            free(mipmap->level[l]);
        }
    }
    sim_pages_clear(&mipmap->mapped);
    sim_handles_take(&mipmaps, (uintptr_t)mipmap);
    storage_end(&mipmap->own);
    sim_card_give(mipmap->card, delta_of(mipmap->cost));
    free(mipmap->level);
    free(mipmap);
}

struct sim_array *sim_array_view(const CUDA_ARRAY3D_DESCRIPTOR *desc,
                                 const struct sim_format *format, struct sim_storage *storage,
                                 uint64_t offset, bool of_level)
{
    struct sim_array *array = calloc(1, sizeof *array);

    if (!array)
        return NULL;
    array->desc = *desc;
    array->format = *format;
    array->storage = storage;
    array->offset = offset;
    array->shape = sim_shape_of(desc, format, 0, 0);
    array->view = true;
    array->of_level = of_level;
    if (!sim_handles_put(&arrays, (uintptr_t)array, array)) {
        free(array);
        return NULL;
    }
    return array;
}

/* With sim_lock held. */
static CUresult array_new(struct sim_context *context, const CUDA_ARRAY3D_DESCRIPTOR *desc,
                          const struct sim_format *format, struct sim_array **made)
{
    int64_t cost = is_unbacked(desc) ? 0 : (int64_t)sim_array_card_bytes(desc, format, 1);
    CUresult rc = sim_card_take(context->owner.card, delta_of(cost));

    if (rc != CUDA_SUCCESS)
        return rc;
    struct sim_array *array = sim_array_view(desc, format, NULL, 0, false);
    if (!array) {
        sim_card_give(context->owner.card, delta_of(cost));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    array->view = false;
    array->cost = cost;
    array->card = context->owner.card;
    array->own.size = sim_array_plain_bytes(desc, format, 1);
    array->own.unbacked = is_unbacked(desc);
    array->storage = &array->own;
    sim_resource_add(context, &array->resource, array_end);
    *made = array;
    return CUDA_SUCCESS;
}

static CUresult array_create(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    struct sim_context *context = NULL;
    struct sim_array *array = NULL;
    struct sim_format format;
    CUresult rc = sim_context_current(&context);

    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = sim_array_check(desc, false, &format);
    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    rc = array_new(context, desc, &format, &array);
    if (rc == CUDA_SUCCESS)
        *handle = (CUarray)(void *)array;
    sim_lock_drop();
    return rc;
}

#define FLAT(d)                                                                                    \
    (CUDA_ARRAY3D_DESCRIPTOR)                                                                      \
    {                                                                                              \
        .Width = (d)->Width, .Height = (d)->Height, .Format = (d)->Format,                         \
        .NumChannels = (d)->NumChannels                                                            \
    }
#define CREATE(symbol, type, description)                                                          \
    CUresult symbol(CUarray *pHandle, const type *pAllocateArray)                                  \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        if (!pAllocateArray)                                                                       \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        CUDA_ARRAY3D_DESCRIPTOR desc = description;                                                \
        return array_create(pHandle, &desc);                                                       \
    }
CREATE(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, FLAT(pAllocateArray))
CREATE(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, FLAT(pAllocateArray))
CREATE(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1,
       ((CUDA_ARRAY3D_DESCRIPTOR){
           .Width = pAllocateArray->Width,
           .Height = pAllocateArray->Height,
           .Depth = pAllocateArray->Depth,
           .Format = pAllocateArray->Format,
           .NumChannels = pAllocateArray->NumChannels,
           .Flags = pAllocateArray->Flags,
       }))
CREATE(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, *pAllocateArray)

CUresult cuArrayDestroy(CUarray hArray)
{
    SIM_ENTER(cuArrayDestroy);
    sim_lock_take();
    struct sim_array *array = sim_array_of(hArray);
    bool ok = array && !array->view;
    if (ok)
        sim_resource_end(&array->resource);
    sim_lock_drop();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* --- mipmaps ---------------------------------------------------------------------------- */

/* With sim_lock held; without a cost and without bytes. */
static struct sim_mipmap *mipmap_new(struct sim_context *context,
                                     const CUDA_ARRAY3D_DESCRIPTOR *desc,
                                     const struct sim_format *format, unsigned int levels)
{
    struct sim_mipmap *mipmap = calloc(1, sizeof *mipmap);
    struct sim_array **level = calloc(levels, sizeof(struct sim_array *));

    if (!mipmap || !level || !sim_handles_put(&mipmaps, (uintptr_t)mipmap, mipmap)) {
        free(level);
        free(mipmap);
        return NULL;
    }
    mipmap->desc = *desc;
    mipmap->format = *format;
    mipmap->levels = levels;
    mipmap->level = level;
    mipmap->card = context->owner.card;
    mipmap->own.size = sim_array_plain_bytes(desc, format, levels);
    mipmap->own.unbacked = is_unbacked(desc);
    sim_resource_add(context, &mipmap->resource, mipmap_end);
    return mipmap;
}

static unsigned int levels_clamped(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
    unsigned int most = sim_levels_most(desc);

    return levels < 1 ? 1 : levels > most ? most : levels;
}

CUresult sim_mipmap_over(struct sim_context *context, const CUDA_ARRAY3D_DESCRIPTOR *desc,
                         unsigned int levels, unsigned char *map, size_t before,
                         CUmipmappedArray *handle)
{
    struct sim_format format;
    CUresult rc = sim_array_check(desc, true, &format);

    if (rc != CUDA_SUCCESS)
        return rc;
    struct sim_mipmap *mipmap = mipmap_new(context, desc, &format, levels_clamped(desc, levels));
    if (!mipmap)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mipmap->own.bytes = map + before;
    mipmap->own.before = before;
    *handle = (CUmipmappedArray)(void *)mipmap;
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
                                const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                unsigned int numMipmapLevels)
{
    SIM_ENTER(cuMipmappedArrayCreate);
    const CUDA_ARRAY3D_DESCRIPTOR *desc = pMipmappedArrayDesc;
    struct sim_context *context = NULL;
    struct sim_format format;
    CUresult rc = sim_context_current(&context);

    if (!pHandle || !desc)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc == CUDA_SUCCESS)
        rc = sim_array_check(desc, true, &format);
    if (rc != CUDA_SUCCESS)
        return rc;
    unsigned int levels = levels_clamped(desc, numMipmapLevels);
    int64_t cost = is_unbacked(desc) ? 0 : (int64_t)sim_array_card_bytes(desc, &format, levels);
    sim_lock_take();
    rc = sim_card_take(context->owner.card, delta_of(cost));
    struct sim_mipmap *mipmap =
        rc == CUDA_SUCCESS ? mipmap_new(context, desc, &format, levels) : NULL;
    if (mipmap) {
        mipmap->cost = cost;
        *pHandle = (CUmipmappedArray)(void *)mipmap;
    } else if (rc == CUDA_SUCCESS) {
        sim_card_give(context->owner.card, delta_of(cost));
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock_drop();
    return rc;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
    SIM_ENTER(cuMipmappedArrayDestroy);
    sim_lock_take();
    struct sim_mipmap *mipmap = sim_mipmap_of(hMipmappedArray);
    if (mipmap)
        sim_resource_end(&mipmap->resource);
    sim_lock_drop();
    return mipmap ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* With sim_lock held. */
static struct sim_array *level_view(struct sim_mipmap *mipmap, unsigned int level)
{
    if (!mipmap->level[level]) {
        CUDA_ARRAY3D_DESCRIPTOR desc = sim_level_of(&mipmap->desc, level);

        mipmap->level[level] =
            sim_array_view(&desc, &mipmap->format, &mipmap->own,
                           sim_array_plain_bytes(&mipmap->desc, &mipmap->format, level), true);
    }
    return mipmap->level[level];
}

CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray,
                                  unsigned int level)
{
    SIM_ENTER(cuMipmappedArrayGetLevel);
    CUresult rc = CUDA_ERROR_INVALID_HANDLE;

    if (!pLevelArray)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    struct sim_mipmap *mipmap = sim_mipmap_of(hMipmappedArray);
    if (mipmap && level >= mipmap->levels) {
        rc = CUDA_ERROR_INVALID_VALUE;
    } else if (mipmap) {
        struct sim_array *view = level_view(mipmap, level);

        if (view)
            *pLevelArray = (CUarray)(void *)view;
        rc = view ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock_drop();
    return rc;
}

/* --- planes ----------------------------------------------------------------------------- */

/* With sim_lock held. */
static struct sim_array *plane_view(struct sim_array *array, unsigned int index)
{
    const struct sim_plane *plane = &array->format.plane[index];
    CUDA_ARRAY3D_DESCRIPTOR desc = array->desc;
    struct sim_format format;
    uint64_t offset = array->offset;

    if (array->plane[index])
        return array->plane[index];
    for (unsigned int p = 0; p < index; p++) {
        struct sim_shape shape = sim_shape_of(&array->desc, &array->format, p, 0);

        offset += (uint64_t)shape.row * shape.rows * shape.slices;
    }
    desc.Width = desc.Width >> plane->shift_x == 0 ? 1 : desc.Width >> plane->shift_x;
    if (desc.Height > 0)
        desc.Height = desc.Height >> plane->shift_y == 0 ? 1 : desc.Height >> plane->shift_y;
    desc.Format = plane->format;
    desc.NumChannels = plane->channels;
    if (sim_format_find(desc.Format, desc.NumChannels, &format))
        array->plane[index] = sim_array_view(&desc, &format, array->storage, offset, true);
    return array->plane[index];
}

CUresult cuArrayGetPlane(CUarray *pPlaneArray, CUarray hArray, unsigned int planeIdx)
{
    SIM_ENTER(cuArrayGetPlane);
    CUresult rc = CUDA_ERROR_INVALID_HANDLE;

    if (!pPlaneArray)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    struct sim_array *array = sim_array_of(hArray);
    if (array && (array->format.planes == 1 || planeIdx >= array->format.planes)) {
        rc = CUDA_ERROR_INVALID_VALUE;
    } else if (array) {
        struct sim_array *view = plane_view(array, planeIdx);

        if (view)
            *pPlaneArray = (CUarray)(void *)view;
        rc = view ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock_drop();
    return rc;
}

/* --- bytes ------------------------------------------------------------------------------ */

static bool inside(size_t at, size_t extent, size_t end)
{
    return at <= end && extent <= end - at;
}

unsigned char *sim_array_bytes(CUarray handle, const size_t at[3], const size_t extent[3],
                               size_t *pitch, size_t *height)
{
    unsigned char *found = NULL;

    sim_lock_take();
    struct sim_array *array = sim_array_of(handle);
    if (array && inside(at[0], extent[0], array->shape.row) &&
        inside(at[1], extent[1], array->shape.rows) &&
        inside(at[2], extent[2], array->shape.slices)) {
        unsigned char *bytes = storage_bytes(array->storage);
        uint64_t row = at[2] * array->shape.rows + at[1];

        if (bytes)
            found = bytes + array->offset + row * array->shape.row + at[0];
        *pitch = array->shape.row;
        *height = array->shape.rows;
    }
    sim_lock_drop();
    return found;
}
