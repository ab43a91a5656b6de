/*
 * What frameworks do when they meet the ceiling, as the calls that they make: docs/frameworks.md says where
 * each of these ways is described. Their caches, fractions and retries are written down here as they are
 * there; nothing of theirs runs. (Real clients are in tests/clients; what else NCCL, llama.cpp and the like
 * call is in test_vmm.c, test_import.c, test_pool.c and test_capture.c.)
 */
#include <pthread.h>
#include <string.h>

#include "tests/hook/pair.h"
#include "tests/hook/scenario.h"

#define SEGMENT (20 * MIB) /* PyTorch's segment for requests of 1 to 10 MiB */
#define MOST 128

typedef CUmemGenericAllocationHandle physical_handle;

static CUresult create(physical_handle *handle, size_t bytes)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return api.cuMemCreate(handle, bytes, &prop, 0);
}

/* ---- PyTorch ---- */

/* Segments stay cached when their tensors go; a refusal empties the cache, and the request is made again. */
static int a_cache_is_emptied_and_the_request_made_again(void)
{
    CUdeviceptr segment[MOST], large;
    unsigned count = 0;

    OK(begin(0));
    while (count < MOST && api.cuMemAlloc_v2(&segment[count], SEGMENT) == CUDA_SUCCESS)
        count++;
    SAME(count, 51);
    REFUSED(api.cuMemAlloc_v2(&large, 600 * MIB));
    for (unsigned i = 20; i < count; i++)
        OK(api.cuMemFree_v2(segment[i]));
    OK(api.cuMemAlloc_v2(&large, 600 * MIB));
    SAME(charged(0), 1000 * MIB);
    SAME(gpu_row(0).refusals, 2);
    return 0;
}

struct segment {
    CUdeviceptr range;
    physical_handle handle[MOST];
    unsigned mapped;
};

static CUresult grow(struct segment *s, unsigned parts)
{
    CUmemAccessDesc access;
    unsigned before = s->mapped;
    CUresult result = CUDA_SUCCESS;

    memset(&access, 0, sizeof(access));
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    for (; s->mapped < before + parts; s->mapped++) {
        CUdeviceptr at = s->range + s->mapped * SEGMENT;

        result = create(&s->handle[s->mapped], SEGMENT);
        if (result != CUDA_SUCCESS)
            break;
        result = api.cuMemMap(at, SEGMENT, 0, s->handle[s->mapped], 0);
        if (result == CUDA_SUCCESS)
            result = api.cuMemSetAccess(at, SEGMENT, &access, 1);
        if (result != CUDA_SUCCESS)
            return result; /* the tests know of no such case */
    }
    if (result == CUDA_SUCCESS)
        return result;
    while (s->mapped > before) { /* a growth that fails leaves nothing behind */
        s->mapped--;
        if (api.cuMemUnmap(s->range + s->mapped * SEGMENT, SEGMENT) != CUDA_SUCCESS ||
            api.cuMemRelease(s->handle[s->mapped]) != CUDA_SUCCESS)
            return CUDA_ERROR_UNKNOWN;
    }
    return result;
}

static CUresult shrink(struct segment *s, unsigned parts)
{
    for (unsigned i = 0; i < parts; i++) {
        CUresult result;

        s->mapped--;
        result = api.cuMemUnmap(s->range + s->mapped * SEGMENT, SEGMENT);
        if (result == CUDA_SUCCESS)
            result = api.cuMemRelease(s->handle[s->mapped]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

static int an_expandable_segment_meets_the_ceiling_and_grows_later(void)
{
    static struct segment first, second;
    size_t free_bytes, total;

    OK(begin(0));
    OK(api.cuMemGetInfo_v2(&free_bytes,
                           &total)); /* a range of 1.125 times the card is reserved for each */
    OK(api.cuMemAddressReserve(&first.range, total / 8 * 9, 0, 0, 0));
    OK(api.cuMemAddressReserve(&second.range, total / 8 * 9, 0, 0, 0));
    OK(grow(&first, 30));
    OK(grow(&second, 15));
    SAME(charged(0), 45 * SEGMENT);
    REFUSED(grow(&second, 10)); /* six of the ten fit */
    SAME(charged(0), 45 * SEGMENT);
    SAME(sim_alloc_bytes(&self, 0), 45 * SEGMENT);
    OK(shrink(&first, 10)); /* cached parts of another stream's segment go back */
    OK(grow(&second, 10));
    SAME(charged(0), 45 * SEGMENT);
    OK(shrink(&first, 20));
    OK(shrink(&second, 25));
    SAME(charged(0), 0);
    return 0;
}

/* The cudaMallocAsync backend keeps all it ever had (threshold UINT64_MAX). A refusal goes up to the program, which
 * empties the cache (a trim) and asks again. Its own books have to fit between what is free and the total. */
static int a_pool_that_keeps_everything_is_trimmed_and_asked_again(void)
{
    cuuint64_t keep = UINT64_MAX;
    CUdeviceptr block[8], large;
    CUmemoryPool pool;
    CUstream stream;
    size_t free_bytes, total;

    OK(begin(0));
    OK(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(api.cuDeviceGetDefaultMemPool(&pool, 0));
    OK(api.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    for (unsigned i = 0; i < 8; i++)
        OK(api.cuMemAllocAsync(&block[i], 120 * MIB, stream));
    for (unsigned i = 1; i < 8; i++)
        OK(api.cuMemFreeAsync(block[i], stream));
    OK(api.cuStreamSynchronize(stream));
    CHECK(charged(0) >= 8 * 120 * MIB); /* nothing went back */
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(free_bytes + 120 * MIB <= total); /* cacheInfo() asserts it: one block lives */
    REFUSED(api.cuMemAllocAsync(&large, 1000 * MIB, stream));
    OK(api.cuMemPoolTrimTo(pool, 0));
    CHECK(charged(0) < 256 * MIB);
    OK(api.cuMemAllocAsync(&large, 700 * MIB, stream));
    REFUSED(api.cuMemAllocAsync(&large, 700 * MIB, stream));
    return 0;
}

/* ---- JAX and TensorFlow ---- */

/* Three quarters of the total in one block at the start; a block that is refused is asked for again at nine
 * tenths, until one is granted. */
static CUresult preallocate(uint64_t *granted)
{
    size_t free_bytes, total;
    CUdeviceptr block;
    CUresult result = api.cuMemGetInfo_v2(&free_bytes, &total);

    *granted = total / 4 * 3;
    while (result == CUDA_SUCCESS && *granted > MIB) {
        result = api.cuMemAlloc_v2(&block, *granted);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            return result;
        *granted = *granted / 10 * 9;
        result = CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static int second_preallocator(void)
{
    uint64_t granted;

    AWAIT();
    OK(begin(0));
    OK(preallocate(&granted));
    CHECK(granted <= 256 * MIB && granted > 200 * MIB);
    TELL();
    AWAIT();
    return 0;
}

static int a_second_preallocating_process_gets_what_is_left(void)
{
    uint64_t granted;

    CHECK(pair_start(second_preallocator));
    OK(begin(0));
    OK(preallocate(&granted));
    SAME(granted, 768 * MIB); /* of the ceiling, not of the card */
    TELL();
    AWAIT();
    CHECK(charged(0) <= 1024 * MIB);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

/* ---- vLLM ---- */

/* A fraction of the total is the engine's; less than that free at the start, and it does not start. What a
 * profiling run leaves is the cache's. */
#define FRACTION(total) ((total) / 10 * 9)

static int second_engine(void)
{
    size_t free_bytes, total;

    AWAIT();
    OK(begin(0));
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(free_bytes < FRACTION(total)); /* refuses to start, by its own words */
    TELL();
    AWAIT();
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(free_bytes >= FRACTION(total));
    return 0;
}

/* Field case HAMi 1381: on GPU 1 of the machine, profiling must see what was allocated. */
static int an_engine_that_plans_by_fractions_fits(void)
{
    size_t free_bytes, before, total;
    CUdeviceptr weights, activations, cache;

    CHECK(pair_start(second_engine));
    OK(begin(0));
    OK(api.cuMemGetInfo_v2(&before, &total));
    SAME(total, 1024 * MIB);
    CHECK(before >= FRACTION(total));
    OK(api.cuMemAlloc_v2(&weights, 400 * MIB));
    OK(api.cuMemAlloc_v2(&activations, 100 * MIB));
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    SAME(before - free_bytes, 500 * MIB);
    OK(api.cuMemFree_v2(activations));
    OK(api.cuMemAlloc_v2(&cache, FRACTION(total) - 500 * MIB));
    OK(api.cuMemAlloc_v2(&activations, 100 * MIB)); /* as it works */
    SAME(charged(1), 400 * MIB + 100 * MIB + cost(FRACTION(total) - 500 * MIB));
    TELL();
    AWAIT();
    OK(api.cuMemFree_v2(cache));
    OK(api.cuMemFree_v2(weights));
    OK(api.cuMemFree_v2(activations));
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

static int guest_of_a_sleeper(void)
{
    physical_handle handle;

    OK(api.cuInit(0));
    AWAIT();
    OK(create(&handle, 800 * MIB));
    TELL();
    AWAIT();
    OK(api.cuMemRelease(handle));
    TELL();
    return 0;
}

/* Sleep mode: addresses stay, memory goes; who took it meanwhile has it, and waking up is an ordinary
 * out-of-memory error until it is free again. */
static int waking_up_is_refused_while_another_has_the_memory(void)
{
    physical_handle handle;
    CUdeviceptr range;

    CHECK(pair_start(guest_of_a_sleeper));
    OK(begin(0));
    OK(api.cuMemAddressReserve(&range, 900 * MIB, 0, 0, 0));
    OK(create(&handle, 900 * MIB));
    OK(api.cuMemMap(range, 900 * MIB, 0, handle, 0));
    OK(api.cuMemUnmap(range, 900 * MIB));
    OK(api.cuMemRelease(handle));
    SAME(charged(0), 0);
    TELL();
    AWAIT();
    REFUSED(create(&handle, 900 * MIB));
    TELL();
    AWAIT();
    OK(create(&handle, 900 * MIB));
    OK(api.cuMemMap(range, 900 * MIB, 0, handle, 0)); /* where it was */
    SAME(charged(0), 900 * MIB);
    SAME(pair_wait(), 0);
    return 0;
}

/* ---- others that plan by what is free ---- */

#define THREADS 8

static CUcontext context;
static uint64_t reserved[THREADS];

/* Field case HAMi 2375 (Paddle): every thread has an allocator of its own, which reserves 92 % of free. */
static void *reserve_most(void *mine)
{
    CUdeviceptr block;
    size_t free_bytes, total;
    CUresult result;

    if (api.cuCtxSetCurrent(context) != CUDA_SUCCESS ||
        api.cuMemGetInfo_v2(&free_bytes, &total) != CUDA_SUCCESS || total != 1024 * MIB)
        return (void *)1;
    free_bytes = free_bytes / 100 * 92;
    result = free_bytes == 0 ? CUDA_ERROR_OUT_OF_MEMORY : api.cuMemAlloc_v2(&block, free_bytes);
    *(uint64_t *)mine = result == CUDA_SUCCESS ? free_bytes : 0;
    return result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY ? NULL : (void *)2;
}

static int threads_that_each_reserve_most_of_what_is_free(void)
{
    pthread_t thread[THREADS];
    uint64_t sum = 0;
    void *failed;

    OK(begin(0));
    OK(api.cuCtxGetCurrent(&context));
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, reserve_most, &reserved[i]) == 0);
    for (unsigned i = 0; i < THREADS; i++) {
        CHECK(pthread_join(thread[i], &failed) == 0 && failed == NULL);
        sum += cost(reserved[i]);
    }
    SAME(charged(0), sum);
    CHECK(sum >= 900 * MIB && sum <= 1024 * MIB);
    return 0;
}

/* Field case HAMi 332: a burn-in asks for nine tenths of what is free, and must be told of the ceiling. */
static int a_burn_in_takes_nine_tenths_of_the_ceiling(void)
{
    size_t free_bytes, total;
    CUdeviceptr block, more;

    OK(begin(0));
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    SAME(total, 1024 * MIB);
    SAME(free_bytes, 1024 * MIB);
    OK(api.cuMemAlloc_v2(&block, free_bytes / 10 * 9));
    REFUSED(api.cuMemAlloc_v2(&more, 2000 * MIB));
    return 0;
}

/* ---- calls that must arrive as they were made ---- */

/* FlashInfer needs device memory where it asks for it, and managed memory nowhere else (nvshare 29): no call is
 * exchanged for another, none is made twice, none is made up. */
static int the_driver_gets_the_calls_that_were_made_and_no_others(void)
{
    static const char *const allocating[] = {
        "cuMemAlloc_v2",  "cuMemAllocPitch_v2",      "cuMemAllocManaged", "cuMemCreate",
        "cuMemAllocHost", "cuMemAllocFromPoolAsync", "cuMemAllocAsync",   "cuMemHostAlloc"};
    CUdeviceptr linear, pitched, ordered, managed, refused;
    physical_handle handle;
    size_t pitch;

    OK(begin(0));
    for (size_t i = 0; i < sizeof(allocating) / sizeof(allocating[0]); i++)
        SAME(journal_count(allocating[i]), 0);
    OK(api.cuMemAlloc_v2(&linear, 100 * MIB));
    OK(api.cuMemAllocPitch_v2(&pitched, &pitch, 1000, 1000, 4));
    OK(api.cuMemAllocAsync(&ordered, 10 * MIB, NULL));
    OK(create(&handle, 100 * MIB));
    REFUSED(api.cuMemAlloc_v2(&refused, 2000 * MIB));
    SAME(journal_count("cuMemAlloc_v2"), 1);
    SAME(journal_count("cuMemAllocPitch_v2"), 1);
    SAME(journal_count("cuMemAllocAsync"), 1);
    SAME(journal_count("cuMemCreate"), 1);
    SAME(journal_count("cuMemAllocManaged"), 0);
    OK(api.cuMemAllocManaged(&managed, 100 * MIB, CU_MEM_ATTACH_GLOBAL));
    SAME(journal_count("cuMemAllocManaged"), 1);
    SAME(journal_count("cuMemAllocHost") + journal_count("cuMemHostAlloc"), 0);
    SAME(journal_count("cuMemAllocFromPoolAsync"), 0);
    OK(api.cuMemFreeAsync(ordered, NULL));
    OK(api.cuMemFree_v2(linear));
    SAME(journal_count("cuMemFreeAsync"), 1);
    SAME(journal_count("cuMemFree_v2"), 1);
    return 0;
}

/* A server that looks at the devices, prints its help and ends (Olares 2687: with a limit of 0m), takes no
 * memory: it gets every answer but that of an allocation. */
static int a_program_that_only_looks_at_its_devices_goes_on_under_a_ceiling_of_nothing(void)
{
    int version, count, value;
    size_t total;

    OK(api.cuDriverGetVersion(&version));
    OK(api.cuInit(0));
    OK(api.cuDeviceGetCount(&count));
    SAME(count, 1);
    OK(api.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    OK(api.cuDeviceTotalMem_v2(&total, 0));
    SAME(total, 0);
    CHECK(charged(0) == 0 || charged(0) == UINT64_MAX);
    return 0;
}

static const struct scenario scenarios[] = {
    SCENARIO(a_cache_is_emptied_and_the_request_made_again, NULL),
    SCENARIO(an_expandable_segment_meets_the_ceiling_and_grows_later, NULL),
    SCENARIO(a_pool_that_keeps_everything_is_trimmed_and_asked_again, NULL),
    SCENARIO(a_second_preallocating_process_gets_what_is_left, NULL),
    SCENARIO(an_engine_that_plans_by_fractions_fits,
             "VRAMCAP_SIM_CARDS=2x24576;CUDA_VISIBLE_DEVICES=1"),
    SCENARIO(waking_up_is_refused_while_another_has_the_memory, NULL),
    SCENARIO(threads_that_each_reserve_most_of_what_is_free, NULL),
    SCENARIO(a_burn_in_takes_nine_tenths_of_the_ceiling, NULL),
    SCENARIO(the_driver_gets_the_calls_that_were_made_and_no_others,
             "VRAMCAP_SIM_JOURNAL=@/journal"),
    SCENARIO(a_program_that_only_looks_at_its_devices_goes_on_under_a_ceiling_of_nothing,
             "VRAMCAP_MEMORY_MIB=0m"),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
