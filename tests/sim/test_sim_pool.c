/*
 * Stream-ordered pools of the simulated driver: what they reserve, what they give back and
 * when, what is left of a destroyed one, who may reuse a freed block, sharing.
 *
 * Amounts are read from the shared state file, as another program sees them.
 */
#define _GNU_SOURCE
#include "test_sim_support.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONTEXT (64 * MIB)

static uint64_t held(void)
{
    struct sim_state *state = sim_state_open(NULL);
    uint64_t bytes = sim_card_used(state, 0);

    sim_state_close(state);
    return bytes - CONTEXT;
}

static uint64_t get(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    uint64_t value = 0;

    return cuMemPoolGetAttribute(pool, attribute, &value) == CUDA_SUCCESS ? value : UINT64_MAX;
}

#define RESERVED(pool) get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
#define USED(pool) get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)

static CUmemPoolProps device_pool(void)
{
    CUmemPoolProps properties;

    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return properties;
}

/* --- reserved and used ---------------------------------------------------------- */

static int grows_and_shrinks(void)
{
    CUcontext context = NULL;
    CUmemoryPool pool = NULL, current = NULL;
    CUstream stream = NULL;
    CUdeviceptr a = 0, b = 0;
    uint64_t chunk = strtoull(getenv("VRAMCAP_SIM_POOL_CHUNK_MIB"), NULL, 10) * MIB;
    uint64_t zero = 0, one = 1;

    CHECK(sim_begin(&context) == 0);
    OK(cuStreamCreate(&stream, 0));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuDeviceGetMemPool(&current, 0));
    CHECK(current == pool && RESERVED(pool) == 0 && held() == 0);
    OK(cuMemAllocAsync(&a, 100, stream));
    CHECK(RESERVED(pool) == chunk && USED(pool) == 512 && held() == chunk);
    OK(cuMemAllocAsync(&b, MIB, stream));
    CHECK(b == a + 512 && RESERVED(pool) == chunk && USED(pool) == 512 + MIB);
    OK(cuMemcpyHtoD_v2(a, "bytes", 6));
    CHECK(cuMemcpyHtoD_v2(a + 99, "no", 2) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeAsync(a, stream));
    OK(cuMemFreeAsync(b, stream));
    CHECK(cuMemFreeAsync(b, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemcpyHtoD_v2(a, "gone", 4) == CUDA_ERROR_INVALID_VALUE);
    CHECK(RESERVED(pool) == chunk && USED(pool) == 0 && held() == chunk);
    OK(cuStreamSynchronize(stream));
    CHECK(RESERVED(pool) == 0 && held() == 0);
    CHECK(get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == chunk);
    CHECK(get(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 512 + MIB);
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one) ==
          CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    CHECK(get(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
    CHECK(cuMemAllocAsync(&a, 0, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAllocAsync(&a, 24576 * MIB, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(held() == 0);
    return 0;
}

static void a_pool_reserves_in_chunks_and_gives_back_at_a_wait(void **state)
{
    (void)state;
    assert_int_equal(sim_run(grows_and_shrinks, "VRAMCAP_SIM_POOL_CHUNK_MIB=32"), 0);
    assert_int_equal(sim_run(grows_and_shrinks, "VRAMCAP_SIM_POOL_CHUNK_MIB=2"), 0);
    assert_int_equal(
        sim_run(grows_and_shrinks, "VRAMCAP_SIM_POOL_CHUNK_MIB=64;VRAMCAP_SIM_PAGE_KIB=64"), 0);
}

static int threshold(void)
{
    CUcontext context = NULL;
    CUmemoryPool pool = NULL;
    CUevent event = NULL;
    CUdeviceptr a = 0, again = 0, other = 0;
    uint64_t keep = 800 * MIB;

    CHECK(sim_begin(&context) == 0);
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    OK(cuMemAllocAsync(&a, 700 * MIB, NULL));
    OK(cuMemFreeAsync(a, NULL));
    OK(cuCtxSynchronize());
    CHECK(RESERVED(pool) == 704 * MIB);
    OK(cuMemAllocAsync(&again, 700 * MIB, NULL)); /* a card of 1 GiB: no second chunk fits */
    CHECK(again == a);
    OK(cuMemAllocAsync(&other, 192 * MIB, NULL));
    CHECK(held() == (704 + 192) * MIB);
    OK(cuMemFreeAsync(other, NULL));
    OK(cuMemFreeAsync(again, NULL));
    OK(cuEventCreate(&event, 0));
    OK(cuEventRecord(event, NULL));
    OK(cuEventSynchronize(event));
    CHECK(held() == (704 + 192) * MIB); /* less would be below the threshold */
    OK(cuMemPoolTrimTo(pool, 500 * MIB));
    CHECK(held() == 704 * MIB);
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK(held() == 0);
    return 0;
}

static void what_is_below_the_threshold_stays_until_a_trim(void **state)
{
    (void)state;
    assert_int_equal(sim_run(threshold, "VRAMCAP_SIM_CARDS=1024"), 0);
}

static int short_of_room(void)
{
    CUcontext context = NULL;
    CUmemoryPool pool = NULL;
    CUstream first = NULL, second = NULL;
    CUdeviceptr a = 0, b = 0, c = 77;
    int off = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuStreamCreate(&first, 0));
    OK(cuStreamCreate(&second, 0));
    OK(cuMemAllocAsync(&a, 400 * MIB, first));
    OK(cuMemAllocAsync(&b, 400 * MIB, first));
    CHECK(cuMemAllocAsync(&c, 200 * MIB, first) == CUDA_ERROR_OUT_OF_MEMORY && c == 77);
    CHECK(held() == 832 * MIB);
    OK(cuMemAllocAsync(&c, 127 * MIB, first)); /* less than a chunk of growth is left: 128 MiB */
    CHECK(held() == 960 * MIB);
    OK(cuMemFreeAsync(a, first));
    OK(cuMemAllocAsync(&a, 400 * MIB, second)); /* by a dependency the driver makes itself */
    OK(cuMemFreeAsync(a, first));
    OK(cuMemFreeAsync(b, first));
    OK(cuMemAllocAsync(&a, 800 * MIB, first)); /* two idle chunks for one */
    CHECK(held() == (128 + 800) * MIB);
    OK(cuMemFreeAsync(a, first));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &off));
    OK(cuMemAllocAsync(&a, 800 * MIB, second));
    return 0;
}

static void a_pool_short_of_room_reuses_before_it_refuses(void **state)
{
    (void)state;
    assert_int_equal(sim_run(short_of_room, "VRAMCAP_SIM_CARDS=1024"), 0);
}

/* --- streams ------------------------------------------------------------------------ */

static int reuse(void)
{
    CUcontext context = NULL;
    CUmemoryPool pool = NULL;
    CUstream first = NULL, second = NULL;
    CUevent event = NULL;
    CUdeviceptr a = 0, b = 0;
    uint64_t keep = UINT64_MAX;

    CHECK(sim_begin(&context) == 0);
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    OK(cuStreamCreate(&first, 0));
    OK(cuStreamCreate(&second, 0));
    OK(cuEventCreate(&event, 0));
    OK(cuMemAllocAsync(&a, 64 * MIB, first));
    OK(cuMemFreeAsync(a, first));
    OK(cuMemAllocAsync(&b, 64 * MIB, second));
    CHECK(b != a && RESERVED(pool) == 128 * MIB);
    OK(cuMemAllocAsync(&a, 64 * MIB, first));
    CHECK(RESERVED(pool) == 128 * MIB);
    OK(cuMemFreeAsync(a, first));
    OK(cuMemFreeAsync(b, second));
    OK(cuEventRecord(event, first));
    OK(cuStreamWaitEvent(second, event, 0));
    OK(cuMemAllocAsync(&b, 64 * MIB, second));
    CHECK(b == a || RESERVED(pool) == 128 * MIB);
    OK(cuMemAllocAsync(&a, 64 * MIB, second)); /* one by order, one by the event */
    CHECK(RESERVED(pool) == 128 * MIB);
    OK(cuMemFreeAsync(a, second));
    OK(cuMemAllocAsync(&a, 64 * MIB, first));
    CHECK(RESERVED(pool) == 192 * MIB);
    OK(cuStreamSynchronize(second));
    OK(cuMemFreeAsync(b, second));
    OK(cuMemAllocAsync(&b, 64 * MIB, first)); /* the one that was waited for */
    CHECK(RESERVED(pool) == 192 * MIB);
    OK(cuStreamSynchronize(first));
    OK(cuMemFreeAsync(a, first));
    OK(cuStreamSynchronize(second)); /* waiting for one says nothing about the other */
    OK(cuMemAllocAsync(&a, 64 * MIB, second));
    CHECK(RESERVED(pool) == 192 * MIB);
    OK(cuMemAllocAsync(&a, 64 * MIB, second));
    CHECK(RESERVED(pool) == 256 * MIB);
    return 0;
}

static void a_freed_block_is_for_its_stream_until_somebody_waits(void **state)
{
    (void)state;
    assert_int_equal(sim_run(reuse, NULL), 0);
}

static int observed(void)
{
    CUcontext context = NULL;
    CUmemoryPool pool = NULL;
    CUdeviceptr a = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&a, 64 * MIB, NULL));
    OK(cuMemFreeAsync(a, NULL));
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK(held() == (getenv("VRAMCAP_SIM_POOL_OBSERVED") ? 64 * MIB : 0));
    OK(cuCtxSynchronize());
    CHECK(held() == 0);
    return 0;
}

static void a_trim_may_be_told_to_take_only_what_was_waited_for(void **state)
{
    (void)state;
    assert_int_equal(sim_run(observed, NULL), 0);
    assert_int_equal(sim_run(observed, "VRAMCAP_SIM_POOL_OBSERVED=1"), 0);
}

static int per_thread(void)
{
    CUcontext context = NULL;
    CUmemoryPool pool = NULL;
    CUdeviceptr a = 0, b = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync_ptsz(&a, 32 * MIB, NULL));
    OK(cuMemFreeAsync_ptsz(a, NULL));
    OK(cuMemAllocAsync(&b, 32 * MIB, CU_STREAM_PER_THREAD));
    CHECK(a == b); /* the same stream by its other name */
    OK(cuMemFreeAsync(b, CU_STREAM_PER_THREAD));
    OK(cuMemAllocFromPoolAsync(&b, 32 * MIB, pool, NULL));
    CHECK(a != b && RESERVED(pool) == 64 * MIB);
    OK(cuMemAllocFromPoolAsync_ptsz(&b, 32 * MIB, pool, NULL));
    CHECK(a == b);
    return 0;
}

static void the_twins_mean_the_threads_own_stream(void **state)
{
    (void)state;
    assert_int_equal(sim_run(per_thread, NULL), 0);
}

/* --- explicit pools ------------------------------------------------------------------- */

static int explicit_pools(void)
{
    CUcontext context = NULL;
    CUmemoryPool pool = NULL, standard = NULL, current = NULL;
    CUmemPoolProps properties = device_pool();
    CUdeviceptr a = 0, b = 0;
    CUmemoryPool of = NULL;

    CHECK(sim_begin(&context) == 0);
    properties.maxSize = 100 * MIB;
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuDeviceGetDefaultMemPool(&standard, 0));
    OK(cuDeviceSetMemPool(0, pool));
    OK(cuDeviceGetMemPool(&current, 0));
    CHECK(current == pool && current != standard);
    OK(cuMemAllocAsync(&a, 60 * MIB, NULL));
    CHECK(RESERVED(pool) == 64 * MIB && RESERVED(standard) == 0);
    OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a));
    CHECK(of == pool);
    CHECK(cuMemAllocAsync(&b, 60 * MIB, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAllocAsync(&b, 36 * MIB, NULL)); /* maxSize leaves no room for a whole chunk more */
    CHECK(RESERVED(pool) == 100 * MIB);
    CHECK(cuMemPoolDestroy(standard) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeAsync(b, NULL));
    OK(cuMemPoolDestroy(pool));
    CHECK(held() == 64 * MIB);
    OK(cuDeviceGetMemPool(&current, 0));
    CHECK(current == standard);
    CHECK(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
    CHECK(RESERVED(pool) == UINT64_MAX);
    CHECK(cuMemPoolTrimTo(pool, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAllocFromPoolAsync(&b, MIB, pool, NULL) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemcpyHtoD_v2(a, "alive", 6));
    OK(cuCtxDestroy_v2(context));
    CHECK(held() + CONTEXT == 64 * MIB); /* outlives the context, too */
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemFree_v2(a));
    CHECK(held() == 0);
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemAllocFromPoolAsync(&a, 50 * MIB, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&b, 20 * MIB, pool, NULL));
    OK(cuMemPoolDestroy(pool));
    CHECK(held() == 96 * MIB);
    OK(cuMemFreeAsync(a, NULL)); /* not the last: only its own chunk goes */
    CHECK(held() == 32 * MIB);
    OK(cuMemcpyHtoD_v2(b, "alive", 6));
    OK(cuMemFreeAsync(b, NULL));
    CHECK(held() == 0);
    properties.location.id = 9;
    CHECK(cuMemPoolCreate(&pool, &properties) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void a_destroyed_pool_stays_until_its_last_pointer(void **state)
{
    (void)state;
    assert_int_equal(sim_run(explicit_pools, NULL), 0);
}

static int places(void)
{
    CUcontext context = NULL;
    CUmemoryPool pool = NULL, standard = NULL;
    CUmemPoolProps properties = device_pool();
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST},
                  device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUdeviceptr a = 0;
    struct sim_state *state = sim_state_open(NULL);

    CHECK(sim_begin(&context) == 0);
    properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemAllocFromPoolAsync(&a, 100 * MIB, pool, NULL));
    CHECK(held() == 0 && RESERVED(pool) == 128 * MIB);
    *(volatile char *)(uintptr_t)a = 1;
    OK(cuMemGetDefaultMemPool(&standard, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    OK(cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
    CHECK(cuMemSetMemPool(&device, CU_MEM_ALLOCATION_TYPE_PINNED, pool) ==
          CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetMemPool(&standard, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    CHECK(standard == pool);
    OK(cuMemPoolGetAccess(&access, pool, &host));
    CHECK(access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemGetDefaultMemPool(&standard, &device, CU_MEM_ALLOCATION_TYPE_PINNED));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    CHECK(standard == pool);
    OK(cuMemGetMemPool(&pool, &device, CU_MEM_ALLOCATION_TYPE_MANAGED));
    CHECK(standard != pool);
    OK(cuMemAllocFromPoolAsync(&a, 100 * MIB, pool, NULL));
    CHECK(held() == 0 && sim_card_managed(state, 0) == 128 * MIB);
    *(volatile char *)(uintptr_t)a = 1;
    host.type = CU_MEM_LOCATION_TYPE_NONE;
    OK(cuMemGetMemPool(&pool, &host, CU_MEM_ALLOCATION_TYPE_MANAGED));
    CHECK(cuMemGetMemPool(&pool, &host, CU_MEM_ALLOCATION_TYPE_PINNED) == CUDA_ERROR_INVALID_VALUE);
    sim_state_close(state);
    return 0;
}

static void host_and_managed_pools_take_nothing_of_the_card(void **state)
{
    (void)state;
    assert_int_equal(sim_run(places, NULL), 0);
}

static int devices(void)
{
    CUcontext first = NULL, second = NULL;
    CUstream stream = NULL;
    CUmemoryPool pool = NULL;
    CUdeviceptr a = 0;
    struct sim_state *state = sim_state_open(NULL);

    CHECK(sim_begin(&first) == 0);
    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuStreamCreate(&stream, 0));
    OK(cuCtxSetCurrent(first));
    OK(cuMemAllocAsync(&a, 32 * MIB, stream)); /* the stream's device, not the current one */
    CHECK(sim_card_alloc_used(state, 0) == 0 && sim_card_alloc_used(state, 1) == 32 * MIB);
    OK(cuDeviceGetMemPool(&pool, 0));
    OK(cuMemAllocFromPoolAsync(&a, 32 * MIB, pool, stream)); /* the pool's own */
    CHECK(sim_card_alloc_used(state, 0) == 32 * MIB);
    CHECK(cuDeviceGetMemPool(&pool, 2) == CUDA_ERROR_INVALID_DEVICE);
    sim_state_close(state);
    return 0;
}

static void memory_comes_from_the_streams_device(void **state)
{
    (void)state;
    assert_int_equal(sim_run(devices, "VRAMCAP_SIM_CARDS=2x1024"), 0);
}

/* --- sharing ------------------------------------------------------------------------------ */

static int to_importer[2], to_exporter[2];

static int export(void)
{
    CUcontext context = NULL;
    CUmemoryPool pool = NULL;
    CUmemPoolProps properties = device_pool();
    CUmemPoolPtrExportData data;
    CUdeviceptr before = 0, a = 0;
    char text[8] = {0};
    int fd = -1;

    CHECK(sim_begin(&context) == 0);
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemAllocFromPoolAsync(&before, 1000, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&a, 10 * MIB, pool, NULL));
    OK(cuMemcpyHtoD_v2(a, "export", 7));
    OK(cuMemPoolExportPointer(&data, a));
    CHECK(write(to_importer[1], &fd, sizeof fd) == sizeof fd &&
          write(to_importer[1], &data, sizeof data) == sizeof data);
    CHECK(read(to_exporter[0], text, 1) == 1);
    OK(cuMemcpyDtoH_v2(text, a, 7));
    CHECK(strcmp(text, "import") == 0);
    OK(cuMemFree_v2(a));
    OK(cuMemFree_v2(before));
    OK(cuMemPoolDestroy(pool));
    return 0;
}

static pid_t exporter;

static int import(void)
{
    CUcontext context = NULL;
    CUmemoryPool pool = NULL;
    CUmemPoolPtrExportData data;
    CUdeviceptr a = 0, none = 0;
    char text[8] = {0}, path[64];
    int fd = -1;

    CHECK(read(to_importer[0], &fd, sizeof fd) == sizeof fd &&
          read(to_importer[0], &data, sizeof data) == sizeof data);
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)exporter, fd);
    fd = open(path, O_RDWR | O_CLOEXEC); /* as good as a descriptor that was sent */
    CHECK(fd >= 0 && sim_begin(&context) == 0);
    uint64_t before = held();
    OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    (void)close(fd);
    CHECK(cuMemAllocFromPoolAsync(&none, MIB, pool, NULL) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuDeviceSetMemPool(0, pool) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPoolImportPointer(&a, pool, &data));
    CHECK(held() == before);
    OK(cuMemcpyDtoH_v2(text, a, 7));
    CHECK(strcmp(text, "export") == 0);
    OK(cuMemcpyHtoD_v2(a, "import", 7));
    CHECK(cuMemcpyHtoD_v2(a + 10 * MIB, "x", 1) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPoolDestroy(pool));
    OK(cuMemFreeAsync(a, NULL));
    CHECK(cuMemFree_v2(a) == CUDA_ERROR_INVALID_VALUE);
    data.reserved[0] = (unsigned char)~data.reserved[0];
    CHECK(cuMemPoolImportPointer(&a, pool, &data) == CUDA_ERROR_INVALID_VALUE);
    CHECK(write(to_exporter[1], "k", 1) == 1);
    return 0;
}

static void an_imported_pointer_is_the_exporters_memory_and_costs_nothing(void **state)
{
    (void)state;
    assert_int_equal(pipe2(to_importer, O_CLOEXEC) | pipe2(to_exporter, O_CLOEXEC), 0);
    exporter = sim_start(export, NULL);
    assert_int_equal(sim_run(import, NULL), 0);
    assert_int_equal(sim_wait(exporter), 0);
}

/* --- threads --------------------------------------------------------------------------------- */

static CUcontext shared;
static CUdeviceptr slot[64]; /* atomic: blocks that any thread may free */

static void *hammer(void *number)
{
    unsigned int seed = (unsigned int)(uintptr_t)number;
    CUstream stream = NULL;

    if (cuCtxSetCurrent(shared) != CUDA_SUCCESS || cuStreamCreate(&stream, 0) != CUDA_SUCCESS)
        return "no stream";
    for (int i = 0; i < 1500; i++) {
        CUdeviceptr fresh = 0;

        seed = seed * 1664525U + 1013904223U;
        if (cuMemAllocAsync(&fresh, (seed >> 10) % (3 * MIB) + 1, stream) != CUDA_SUCCESS)
            return "allocation failed";
        if (cuMemsetD8Async(fresh, (unsigned char)i, 1, stream) != CUDA_SUCCESS)
            return "memset failed";
        CUdeviceptr old = __atomic_exchange_n(&slot[(seed >> 4) % 64], fresh, __ATOMIC_ACQ_REL);
        if (old != 0 &&
            (i % 7 == 0 ? cuMemFree_v2(old) : cuMemFreeAsync(old, stream)) != CUDA_SUCCESS)
            return "free failed";
        if (i % 50 == 0 && cuStreamSynchronize(stream) != CUDA_SUCCESS)
            return "wait failed";
    }
    return NULL;
}

static int threads(void)
{
    pthread_t thread[4];
    CUmemoryPool pool = NULL;

    CHECK(sim_begin(&shared) == 0);
    OK(cuDeviceGetMemPool(&pool, 0));
    for (uintptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&thread[i], NULL, hammer, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++) {
        void *complaint = NULL;

        (void)pthread_join(thread[i], &complaint);
        if (complaint)
            (void)fprintf(stderr, "%s\n", (char *)complaint);
        CHECK(complaint == NULL);
    }
    CHECK(held() == RESERVED(pool) && USED(pool) <= RESERVED(pool));
    for (int i = 0; i < 64; i++)
        if (slot[i] != 0)
            OK(cuMemFreeAsync(slot[i], NULL));
    CHECK(USED(pool) == 0);
    OK(cuCtxSynchronize());
    CHECK(held() == 0 && RESERVED(pool) == 0);
    return 0;
}

static void threads_free_each_others_blocks(void **state)
{
    (void)state;
    assert_int_equal(sim_run(threads, NULL), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, sim_test_setup, sim_test_teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(a_pool_reserves_in_chunks_and_gives_back_at_a_wait),
        TEST(what_is_below_the_threshold_stays_until_a_trim),
        TEST(a_pool_short_of_room_reuses_before_it_refuses),
        TEST(a_freed_block_is_for_its_stream_until_somebody_waits),
        TEST(a_trim_may_be_told_to_take_only_what_was_waited_for),
        TEST(the_twins_mean_the_threads_own_stream),
        TEST(a_destroyed_pool_stays_until_its_last_pointer),
        TEST(host_and_managed_pools_take_nothing_of_the_card),
        TEST(memory_comes_from_the_streams_device),
        TEST(an_imported_pointer_is_the_exporters_memory_and_costs_nothing),
        TEST(threads_free_each_others_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
