/*
 * Stream-ordered pools: explicit ones of this actor and the devices' own, which all threads share.
 */
#include "tests/property/property.h"

#include <string.h>

static const char *const queries[] = {"cuMemPoolGetAttribute", "cuMemPoolTrimTo",
                                      "cuThreadExchangeStreamCaptureMode", NULL};

int do_pool_create(struct actor *a)
{
    static const char *const calls[] = {"cuMemPoolCreate", NULL};
    CUmemoryPool pool = (CUmemoryPool)(uintptr_t)POISON;
    CUmemPoolProps properties;
    unsigned pools = 0;
    CUresult result;
    bool hit;

    for (struct thing *t = a->things; t != NULL; t = t->next)
        pools += t->kind == POOL && !t->destroyed;
    if (pools >= 3)
        return do_pool_destroy(a);
    memset(&properties, 0, sizeof(properties));
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = (int)here(a)->card;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    arm(a, calls);
    result = api.cuMemPoolCreate(&pool, &properties);
    hit = struck(a);
    if (result == CUDA_SUCCESS)
        thing_add(a, POOL, here(a)->card, (uintptr_t)pool, 0);
    else
        EXPECT(hit);
    return 0;
}

static bool lends(struct actor *a, const struct thing *pool)
{
    for (struct thing *t = a->things; t != NULL; t = t->next)
        if (t->home == pool && t->lent != 0)
            return true;
    return false;
}

static struct thing *pick_pool(struct actor *a)
{
    struct thing *pool = thing_pick(a, POOL);

    return pool == NULL || pool->destroyed ? NULL : pool;
}

/* Its pointers may live on. */
int do_pool_destroy(struct actor *a)
{
    static const char *const calls[] = {"cuMemPoolDestroy", "cuMemPoolGetAttribute", NULL};
    struct thing *pool = pick_pool(a);
    CUresult result;
    bool hit;

    if (pool == NULL || lends(a, pool))
        return 0;
    pool->size = pool_reserved((CUmemoryPool)(uintptr_t)pool->number);
    arm(a, calls);
    result = api.cuMemPoolDestroy((CUmemoryPool)(uintptr_t)pool->number);
    hit = struck(a);
    if (result != CUDA_SUCCESS) {
        EXPECT(hit);
        return 0;
    }
    pool->destroyed = true;
    if (pool->pointers == 0)
        thing_drop(a, pool);
    return 0;
}

int do_pool_trim(struct actor *a)
{
    static const char *const calls[] = {"cuMemPoolTrimTo", "cuMemPoolGetAttribute", NULL};
    struct thing *pool = pick_pool(a);

    if (pool == NULL)
        return 0;
    arm(a, calls);
    api.cuMemPoolTrimTo((CUmemoryPool)(uintptr_t)pool->number, draw(a, 8) * MIB);
    if (struck(a))
        loosen(a);
    return 0;
}

int do_pool_threshold(struct actor *a)
{
    static const char *const calls[] = {"cuMemPoolSetAttribute", "cuMemPoolGetAttribute", NULL};
    cuuint64_t threshold = chance(a, 50) ? 0 : 8 * MIB;
    struct thing *pool = pick_pool(a);
    CUmemoryPool handle = NULL;

    if (pool != NULL)
        handle = (CUmemoryPool)(uintptr_t)pool->number;
    else
        GOOD(api.cuDeviceGetDefaultMemPool(&handle, (CUdevice)here(a)->card));
    arm(a, calls);
    api.cuMemPoolSetAttribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    if (struck(a))
        loosen(a);
    return 0;
}

static CUstream some_stream(struct actor *a)
{
    return chance(a, 30) ? NULL : here(a)->stream;
}

/* What the device's own pool has charged is the world's, not a thing's. */
int do_alloc_async(struct actor *a)
{
    static const char *const calls[] = {"cuMemAllocAsync", "cuMemPoolGetAttribute",
                                        "cuThreadExchangeStreamCaptureMode", "cuStreamIsCapturing",
                                        NULL};
    uint64_t size = 1 + draw_size(a);
    CUdeviceptr pointer = POISON;
    struct thing *t;
    CUresult result;
    bool hit;

    if (!room_for(a, whole_pages(size)))
        return do_free_async(a);
    arm(a, calls);
    result = api.cuMemAllocAsync(&pointer, size, some_stream(a));
    hit = struck(a);
    if (hit)
        loosen(a);
    if (result == CUDA_SUCCESS) {
        t = thing_add(a, POOL_POINTER, here(a)->card, pointer, 0);
        t->size = size;
        return 0;
    }
    EXPECT(pointer == POISON);
    return hit ? 0 : judge(a, (int)result, here(a)->card, whole_pages(size));
}

int do_alloc_from_pool(struct actor *a)
{
    static const char *const calls[] = {"cuMemAllocFromPoolAsync", "cuMemPoolGetAttribute",
                                        "cuThreadExchangeStreamCaptureMode", NULL};
    uint64_t size = 1 + draw_size(a);
    struct thing *pool = pick_pool(a), *t;
    CUdeviceptr pointer = POISON;
    CUresult result;
    bool hit;

    if (pool == NULL)
        return do_pool_create(a);
    if (!room_for(a, whole_pages(size)) || pool->card != here(a)->card)
        return do_free_async(a);
    arm(a, calls);
    result = api.cuMemAllocFromPoolAsync(&pointer, size, (CUmemoryPool)(uintptr_t)pool->number,
                                         some_stream(a));
    hit = struck(a);
    if (hit)
        loosen(a);
    if (result == CUDA_SUCCESS) {
        t = thing_add(a, POOL_POINTER, pool->card, pointer, 0);
        t->size = size;
        t->home = pool;
        pool->pointers++;
        pool->live += (size + 511) / 512 * 512;
        return 0;
    }
    EXPECT(pointer == POISON);
    return hit ? 0 : judge(a, (int)result, pool->card, whole_pages(size));
}

void pool_pointer_gone(struct thing *pool, uint64_t size)
{
    if (pool == NULL)
        return;
    pool->pointers--;
    pool->live -= (size + 511) / 512 * 512;
}

/* A pool's pointer, by cuMemFree or on a stream. */
int do_free_async(struct actor *a)
{
    static const char *const calls[] = {"cuMemFreeAsync", "cuMemFree_v2", "cuMemPoolGetAttribute",
                                        NULL};
    struct thing *t = thing_pick(a, POOL_POINTER), *pool;
    CUresult result;
    bool hit;

    if (t == NULL)
        return do_free(a);
    pool = t->home;
    arm(a, calls);
    result =
        chance(a, 50) ? api.cuMemFreeAsync(t->number, some_stream(a)) : api.cuMemFree_v2(t->number);
    hit = struck(a);
    if (hit)
        loosen(a);
    if (result != CUDA_SUCCESS) {
        EXPECT(hit);
        return 0;
    }
    pool_pointer_gone(pool, t->size);
    thing_drop(a, t);
    if (pool != NULL && pool->destroyed && pool->pointers == 0)
        thing_drop(a, pool);
    return 0;
}

static int capture(struct actor *a)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    CUstream stream = a->context[0].stream;
    CUdeviceptr pointer = 0;
    CUgraph graph = NULL;

    GOOD(api.cuStreamBeginCapture_v2(stream, modes[draw(a, 2)]));
    GOOD(api.cuMemAllocAsync(&pointer, (1 + draw(a, 64)) * MIB, stream));
    if (chance(a, 70))
        GOOD(api.cuMemFreeAsync(pointer, stream));
    GOOD(api.cuStreamEndCapture(stream, &graph));
    GOOD(api.cuGraphDestroy(graph));
    return 0;
}

/* What is captured costs nothing, and the capture outlives it. */
int do_capture(struct actor *a)
{
    int rc;

    if (a->current != 0)
        return 0;
    pthread_rwlock_rdlock(&a->world->captures);
    rc = capture(a);
    pthread_rwlock_unlock(&a->world->captures);
    return rc;
}

int do_synchronize(struct actor *a)
{
    pthread_rwlock_t *captures = &a->world->captures;

    switch (draw(a, 4)) {
    case 0:
        pthread_rwlock_wrlock(captures);
        arm(a, queries);
        api.cuCtxSynchronize();
        pthread_rwlock_unlock(captures);
        break;
    case 1:
        GOOD(api.cuEventRecord(a->event, a->context[0].stream));
        arm(a, queries);
        api.cuEventSynchronize(a->event);
        break;
    case 2:
        pthread_rwlock_wrlock(captures);
        arm(a, queries);
        api.cuCtxSynchronize_v2(here(a)->handle);
        pthread_rwlock_unlock(captures);
        break;
    default:
        arm(a, queries);
        api.cuStreamSynchronize(here(a)->stream);
    }
    if (struck(a))
        loosen(a);
    return 0;
}
