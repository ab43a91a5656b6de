/*
 * Physical memory: handles, retains and mappings in every order; it costs its size until all are gone.
 */
#include "tests/property/property.h"

#include <string.h>

#define GRANULE (2 * MIB)

static CUmemAllocationProp on(unsigned card)
{
    CUmemAllocationProp p;

    memset(&p, 0, sizeof(p));
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = (int)card;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return p;
}

int do_physical(struct actor *a)
{
    static const char *const calls[] = {"cuMemCreate", NULL};
    uint64_t size = (1 + draw(a, 5)) * GRANULE;
    unsigned card = draw(a, 4) == 0; /* without a context */
    CUmemAllocationProp p = on(card);
    CUmemGenericAllocationHandle handle = POISON;
    struct thing *t;
    CUresult result;
    bool hit;

    if (chance(a, 30)) { /* a locality domain of it, where the driver knows them */
        p.location.type = (CUmemLocationType)6;
        memset((unsigned char *)&p.location + sizeof(p.location.type), (int)card, 1);
    }
    if (!room_for(a, size))
        return do_release(a);
    arm(a, calls);
    result = api.cuMemCreate(&handle, size, &p, 0);
    hit = struck(a);
    if (result == CUDA_SUCCESS) {
        t = thing_add(a, PHYSICAL, card, 0, size);
        t->size = size;
        t->handle[t->handles++] = handle;
        return 0;
    }
    EXPECT(handle == POISON);
    return hit ? 0 : judge(a, (int)result, card, size);
}

/* Of the host: nothing. */
int do_physical_host(struct actor *a)
{
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp p = on(0);

    p.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    GOOD(api.cuMemCreate(&handle, 8 * GRANULE, &p, 0));
    GOOD(api.cuMemRelease(handle));
    return 0;
}

static struct thing *pick(struct actor *a)
{
    return thing_pick(a, chance(a, 25) ? BORROWED : PHYSICAL);
}

int do_map(struct actor *a)
{
    static const char *const calls[] = {"cuMemMap", NULL};
    struct thing *t = pick(a);
    CUdeviceptr range = 0;
    CUresult result;
    bool hit;

    if (t == NULL || t->handles == 0 || t->maps == REFERENCES)
        return 0;
    GOOD(api.cuMemAddressReserve(&range, t->size, 0, 0, 0));
    arm(a, calls);
    result = api.cuMemMap(range, t->size, 0, t->handle[draw(a, t->handles)], 0);
    hit = struck(a);
    if (result == CUDA_SUCCESS) {
        t->map[t->maps++] = range;
        if (t->kind == BORROWED)
            t->imported = t->size;
        return 0;
    }
    EXPECT(hit);
    GOOD(api.cuMemAddressFree(range, t->size));
    return 0;
}

static bool over_yet(const struct thing *t)
{
    return t->handles == 0 && t->maps == 0;
}

static int ended(struct actor *a, struct thing *t)
{
    if (!over_yet(t))
        return 0;
    if (t->lent != 0)
        return wrong(a, "lent memory has ended");
    return t->kind == BORROWED ? share_end(a, t) : (thing_drop(a, t), 0);
}

int do_unmap(struct actor *a)
{
    static const char *const calls[] = {"cuMemUnmap", NULL};
    struct thing *t = pick(a);
    CUresult result;
    unsigned at;
    bool hit;

    if (t == NULL || t->maps == 0 || (t->lent != 0 && t->handles + t->maps == 1))
        return 0;
    at = draw(a, t->maps);
    if (t->size > GRANULE && chance(a, 30)) /* a part: refused, and nothing changes */
        EXPECT(api.cuMemUnmap(t->map[at], GRANULE) == CUDA_ERROR_INVALID_VALUE);
    arm(a, calls);
    result = api.cuMemUnmap(t->map[at], t->size);
    hit = struck(a);
    if (result != CUDA_SUCCESS) {
        EXPECT(hit);
        return 0;
    }
    GOOD(api.cuMemAddressFree(t->map[at], t->size));
    t->map[at] = t->map[--t->maps];
    return ended(a, t);
}

int do_retain(struct actor *a)
{
    static const char *const calls[] = {"cuMemRetainAllocationHandle", NULL};
    CUmemGenericAllocationHandle handle = POISON;
    struct thing *t = pick(a);
    CUresult result;
    bool hit;

    if (t == NULL || t->maps == 0 || t->handles == REFERENCES)
        return 0;
    arm(a, calls);
    result = api.cuMemRetainAllocationHandle(
        &handle, (void *)(uintptr_t)(t->map[draw(a, t->maps)] + draw(a, 3) * 4096));
    hit = struck(a);
    if (result == CUDA_SUCCESS) {
        t->handle[t->handles++] = handle;
        return 0;
    }
    EXPECT(hit && handle == POISON);
    return 0;
}

int do_release(struct actor *a)
{
    static const char *const calls[] = {"cuMemRelease", NULL};
    struct thing *t = pick(a);
    CUresult result;
    unsigned at;
    bool hit;

    if (t == NULL || t->handles == 0 || (t->lent != 0 && t->handles + t->maps == 1))
        return 0;
    at = draw(a, t->handles);
    arm(a, calls);
    result = api.cuMemRelease(t->handle[at]);
    hit = struck(a);
    if (result != CUDA_SUCCESS) {
        EXPECT(hit);
        return 0;
    }
    t->handle[at] = t->handle[--t->handles];
    return ended(a, t);
}

int physical_end(struct actor *a, struct thing *t)
{
    while (t->maps > 0) {
        GOOD(api.cuMemUnmap(t->map[t->maps - 1], t->size));
        GOOD(api.cuMemAddressFree(t->map[--t->maps], t->size));
    }
    while (t->handles > 0)
        GOOD(api.cuMemRelease(t->handle[--t->handles]));
    return ended(a, t);
}
