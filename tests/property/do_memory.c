/*
 * Linear, 32-bit, pitched and managed memory, arrays, mipmaps, external memory.
 */
#include "tests/property/property.h"

#include <string.h>
#include <unistd.h>

/* Books the answer to an allocation in the current context. */
static int answered(struct actor *a, CUresult result, bool hit, enum kind kind, uint64_t number,
                    uint64_t bytes, uint64_t needed)
{
    struct context *c = here(a);
    struct thing *t;

    if (result == CUDA_SUCCESS) {
        t = thing_add(a, kind, c->card, number, bytes);
        t->context = c->handle;
        return 0;
    }
    EXPECT(number == POISON || number == 0);
    return hit ? 0 : judge(a, (int)result, c->card, needed);
}

int do_linear(struct actor *a)
{
    static const char *const calls[] = {"cuMemAlloc_v2", NULL};
    uint64_t size = draw_size(a);
    CUdeviceptr pointer = POISON;
    CUresult result;

    if (!room_for(a, cost_linear(size)))
        return do_free(a);
    arm(a, calls);
    result = api.cuMemAlloc_v2(&pointer, size);
    return answered(a, result, struck(a), LINEAR, pointer, cost_linear(size), cost_linear(size));
}

int do_old_linear(struct actor *a)
{
    static const char *const calls[] = {"cuMemAlloc", NULL};
    uint64_t size = draw_size(a);
    CUdeviceptr_v1 pointer = POISON;
    CUresult result;

    if (!room_for(a, cost_linear(size)))
        return do_free(a);
    arm(a, calls);
    result = api.cuMemAlloc(&pointer, (unsigned)size);
    return answered(a, result, struck(a), OLD_LINEAR, pointer, cost_linear(size),
                    cost_linear(size));
}

int do_pitched(struct actor *a)
{
    static const char *const calls[] = {"cuMemAllocPitch_v2", "cuMemAllocPitch", NULL};
    uint64_t width = 1 + draw(a, 5000), rows = 1 + draw(a, 1000), pitch = POISON;
    uint64_t grain = fixture_draw()->pitch,
             needed = cost_linear((width + grain - 1) / grain * grain * rows);
    unsigned old_pitch = POISON;
    CUdeviceptr_v1 old = POISON;
    CUdeviceptr pointer = POISON;
    bool is_old = chance(a, 30);
    CUresult result;

    if (!room_for(a, needed))
        return do_free(a);
    arm(a, calls);
    if (is_old) {
        result = api.cuMemAllocPitch(&old, &old_pitch, (unsigned)width, (unsigned)rows, 4);
        pitch = old_pitch;
        pointer = old;
    } else {
        result = api.cuMemAllocPitch_v2(&pointer, &pitch, width, rows, 4);
    }
    if (result != CUDA_SUCCESS)
        EXPECT(pitch == POISON);
    return answered(a, result, struck(a), is_old ? OLD_LINEAR : LINEAR, pointer,
                    cost_linear(pitch * rows), needed);
}

int do_managed(struct actor *a)
{
    static const char *const calls[] = {"cuMemAllocManaged", NULL};
    uint64_t size = draw_size(a);
    CUdeviceptr pointer = POISON;
    CUresult result;

    if (!room_for(a, cost_linear(size)))
        return do_free(a);
    arm(a, calls);
    result = api.cuMemAllocManaged(&pointer, size, CU_MEM_ATTACH_GLOBAL);
    return answered(a, result, struck(a), LINEAR, pointer, cost_linear(size), cost_linear(size));
}

static struct thing *take_handed(struct world *w)
{
    struct thing *t;

    pthread_mutex_lock(&w->lock);
    t = w->handed;
    if (t != NULL) {
        w->handed = t->next;
        __atomic_sub_fetch(&w->handed_count, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&w->lock);
    return t;
}

/* By either ABI or the asynchronous free; now and then a pointer that another thread allocated. */
int do_free(struct actor *a)
{
    static const char *const calls[] = {"cuMemFree_v2", "cuMemFree", "cuMemFreeAsync", NULL};
    struct thing *t = chance(a, 30) ? take_handed(a->world) : NULL;
    CUresult result;
    bool hit;

    if (t != NULL) {
        t->next = a->things;
        a->things = t;
        a->count++;
    }
    if (t == NULL)
        t = thing_pick(a, chance(a, 20) ? OLD_LINEAR : LINEAR);
    if (t == NULL)
        return 0;
    arm(a, calls);
    if (t->kind == OLD_LINEAR)
        result = api.cuMemFree((CUdeviceptr_v1)t->number);
    else if (chance(a, 20))
        result = api.cuMemFreeAsync(t->number, here(a)->stream);
    else
        result = api.cuMemFree_v2(t->number);
    hit = struck(a);
    if (result == CUDA_SUCCESS)
        thing_drop(a, t);
    else
        EXPECT(hit);
    return 0;
}

/* Frees that the driver refuses or ignores. */
int do_free_odd(struct actor *a)
{
    struct thing *t = thing_pick(a, LINEAR);

    GOOD(api.cuMemFree_v2(0));
    EXPECT(api.cuMemFree_v2(0x1234567) != CUDA_SUCCESS);
    if (t != NULL && t->bytes > MIB)
        EXPECT(api.cuMemFree_v2(t->number + 512) != CUDA_SUCCESS);
    return 0;
}

/* Memory of the shared context, for another thread to free. */
int do_hand_over(struct actor *a)
{
    struct thing *t = thing_pick(a, chance(a, 20) ? OLD_LINEAR : LINEAR), **at;

    if (t == NULL || t->context != a->context[0].handle ||
        __atomic_load_n(&a->world->handed_count, __ATOMIC_RELAXED) > 32)
        return 0;
    for (at = &a->things; *at != t; at = &(*at)->next)
        ;
    *at = t->next;
    a->count--;
    pthread_mutex_lock(&a->world->lock);
    t->next = a->world->handed;
    a->world->handed = t;
    __atomic_add_fetch(&a->world->handed_count, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&a->world->lock);
    return 0;
}

/* ---- arrays: a block is 64 bytes x 128 rows (8 where there is but one), volumes 16 slices deep ---- */

static uint64_t up(uint64_t value, uint64_t grain)
{
    return (value + grain - 1) / grain * grain;
}

static uint64_t half(uint64_t extent, unsigned level)
{
    return extent >> level == 0 ? 1 : extent >> level;
}

/* One plane of `unit` bytes an element (a 4 x 4 block where compressed) at all levels. */
static uint64_t plane(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels, uint64_t unit,
                      unsigned block, unsigned subsampled)
{
    bool layers = (d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    uint64_t sum = 0;

    for (unsigned l = 0; l < levels; l++) {
        uint64_t width = half(d->Width, l), rows = half(d->Height, l), slices = 1, deep = 1;

        width = up(up(up(width, 1u << subsampled) >> subsampled, block) / block * unit, 64);
        rows = up(up(up(rows, 1u << subsampled) >> subsampled, block) / block,
                  d->Height == 0 ? 8 : 128);
        if (layers) {
            slices = d->Depth == 0 ? 1 : d->Depth;
        } else if (d->Depth > 1) {
            slices = half(d->Depth, l);
            while (deep < slices && deep < 16)
                deep *= 2;
            slices = up(slices, deep);
        }
        sum += width * rows * slices;
    }
    return sum;
}

static uint64_t array_cost(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    uint64_t sum, longest = d->Width > d->Height ? d->Width : d->Height;
    bool layers = (d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    unsigned most = 1;

    if ((d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0)
        return 0;
    if (!layers && d->Depth > longest)
        longest = d->Depth;
    for (; longest > 1; longest /= 2)
        most++;
    levels = levels < most ? levels : most;
    switch ((int)d->Format) {
    case CU_AD_FORMAT_FLOAT:
        sum = plane(d, levels, 4ull * d->NumChannels, 1, 0);
        break;
    case CU_AD_FORMAT_UNSIGNED_INT8:
        sum = plane(d, levels, d->NumChannels, 1, 0);
        break;
    case CU_AD_FORMAT_BC1_UNORM:
        sum = plane(d, levels, 8, 4, 0);
        break;
    default: /* NV12: luminance, then both chrominances at a quarter */
        sum = plane(d, levels, 1, 1, 0) + plane(d, levels, 2, 1, 1);
    }
    return whole_pages(up(sum, 64 << 10));
}

static CUDA_ARRAY3D_DESCRIPTOR describe(struct actor *a, bool mipmap)
{
    CUDA_ARRAY3D_DESCRIPTOR d;

    memset(&d, 0, sizeof(d));
    d.Format = chance(a, 60) ? CU_AD_FORMAT_FLOAT : CU_AD_FORMAT_UNSIGNED_INT8;
    d.NumChannels = 1u << draw(a, 3);
    d.Width = 1 + draw(a, 700);
    switch (draw(a, 6)) {
    case 0: /* 1D */
        break;
    case 1: /* 3D */
        d.Height = 1 + draw(a, 100);
        d.Depth = 1 + draw(a, 20);
        break;
    case 2: /* layers */
        d.Height = 1 + draw(a, 200);
        d.Depth = 1 + draw(a, 5);
        d.Flags = CUDA_ARRAY3D_LAYERED;
        break;
    case 3: /* a cube */
        d.Height = d.Width = 1 + draw(a, 200);
        d.Depth = 6;
        d.Flags = CUDA_ARRAY3D_CUBEMAP;
        break;
    case 4: /* formats of their own */
        d.Width = 4 * (1 + draw(a, 150));
        d.Height = 4 * (1 + draw(a, 150));
        d.Format = chance(a, 50) && !mipmap ? CU_AD_FORMAT_NV12 : CU_AD_FORMAT_BC1_UNORM;
        d.NumChannels = d.Format == CU_AD_FORMAT_NV12 ? 3 : 4;
        break;
    default: /* 2D, Depth 0 */
        d.Height = 1 + draw(a, 700);
    }
    return d;
}

int do_array(struct actor *a)
{
    static const char *const calls[] = {"cuArray3DCreate_v2", "cuArrayCreate_v2", NULL};
    CUDA_ARRAY3D_DESCRIPTOR d = describe(a, false);
    CUDA_ARRAY_DESCRIPTOR flat = {
        .Width = d.Width, .Height = d.Height, .Format = d.Format, .NumChannels = d.NumChannels};
    CUarray array = (CUarray)(uintptr_t)POISON;
    uint64_t bytes = array_cost(&d, 1);
    CUresult result;
    bool hit;

    if (!room_for(a, bytes))
        return do_array_destroy(a);
    arm(a, calls);
    result = d.Depth == 0 && chance(a, 50) ? api.cuArrayCreate_v2(&array, &flat)
                                           : api.cuArray3DCreate_v2(&array, &d);
    hit = struck(a);
    if (result == CUDA_ERROR_INVALID_VALUE && !hit) /* this driver does not make such a one */
        return 0;
    return answered(a, result, hit, ARRAY, (uintptr_t)array, bytes, bytes);
}

int do_mipmap(struct actor *a)
{
    static const char *const calls[] = {"cuMipmappedArrayCreate", NULL};
    CUDA_ARRAY3D_DESCRIPTOR d = describe(a, true);
    CUmipmappedArray array = (CUmipmappedArray)(uintptr_t)POISON;
    unsigned levels = 1 + draw(a, 12);
    uint64_t bytes = array_cost(&d, levels);
    CUresult result;
    bool hit;

    if (!room_for(a, bytes))
        return do_array_destroy(a);
    arm(a, calls);
    result = api.cuMipmappedArrayCreate(&array, &d, levels);
    hit = struck(a);
    if (result == CUDA_ERROR_INVALID_VALUE && !hit)
        return 0;
    return answered(a, result, hit, MIPMAP, (uintptr_t)array, bytes, bytes);
}

int do_array_destroy(struct actor *a)
{
    static const char *const calls[] = {"cuArrayDestroy", "cuMipmappedArrayDestroy", NULL};
    struct thing *t = thing_pick(a, chance(a, 50) ? ARRAY : MIPMAP);
    CUresult result;
    bool hit;

    if (t == NULL)
        return 0;
    arm(a, calls);
    result = t->kind == ARRAY ? api.cuArrayDestroy((CUarray)(uintptr_t)t->number)
                              : api.cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)t->number);
    hit = struck(a);
    if (result == CUDA_SUCCESS)
        thing_drop(a, t);
    else
        EXPECT(hit);
    return 0;
}

/* ---- memory of other APIs ---- */

int do_external(struct actor *a)
{
    static const char *const calls[] = {"cuImportExternalMemory", NULL};
    CUexternalMemory external = (CUexternalMemory)(uintptr_t)POISON;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC d;
    CUresult result;

    memset(&d, 0, sizeof(d));
    d.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    d.size = (1 + draw(a, 8)) * MIB;
    if (!room_for(a, d.size))
        return do_external_destroy(a);
    d.handle.fd = dup(2);
    arm(a, calls);
    result = api.cuImportExternalMemory(&external, &d);
    if (result != CUDA_SUCCESS)
        close(d.handle.fd);
    return answered(a, result, struck(a), EXTERNAL, (uintptr_t)external, d.size, d.size);
}

int do_external_destroy(struct actor *a)
{
    static const char *const calls[] = {"cuDestroyExternalMemory", NULL};
    struct thing *t = thing_pick(a, EXTERNAL);
    CUresult result;
    bool hit;

    if (t == NULL)
        return 0;
    arm(a, calls);
    result = api.cuDestroyExternalMemory((CUexternalMemory)(uintptr_t)t->number);
    hit = struck(a);
    if (result == CUDA_SUCCESS)
        thing_drop(a, t);
    else
        EXPECT(hit);
    return 0;
}
