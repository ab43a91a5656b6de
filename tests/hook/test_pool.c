/*
 * Stream-ordered pools: what they reserve is what is charged, per pool and GPU.
 */
#include "tests/hook/scenario.h"

#include <string.h>

#define CHUNK (32 * MIB) /* the simulator's, unless a scenario sets another */

static CUmemoryPool make_pool(CUmemLocationType type, int id, CUmemAllocationType kind)
{
    CUmemPoolProps properties;
    CUmemoryPool pool = NULL;

    memset(&properties, 0, sizeof(properties));
    properties.allocType = kind;
    properties.location.type = type;
    properties.location.id = id;
    return api.cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS ? pool : NULL;
}

static CUmemoryPool device_pool(int device)
{
    return make_pool(CU_MEM_LOCATION_TYPE_DEVICE, device, CU_MEM_ALLOCATION_TYPE_PINNED);
}

static uint64_t reserved(CUmemoryPool pool)
{
    cuuint64_t bytes = 0;

    return api.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) ==
                   CUDA_SUCCESS
               ? bytes
               : UINT64_MAX;
}

static CUresult keep(CUmemoryPool pool)
{
    cuuint64_t all = UINT64_MAX;

    return api.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
}

static int reserve_is_charged_and_a_synchronise_settles_it(void)
{
    CUdeviceptr pointer;
    CUstream stream;
    CUevent event;

    OK(begin(0));
    OK(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(api.cuEventCreate(&event, 0));
    for (int way = 0; way < 4; way++) {
        CUcontext context;

        OK(api.cuCtxGetCurrent(&context));
        OK(api.cuMemAllocAsync(&pointer, 40 * MIB, stream));
        SAME(charged(0), 2 * CHUNK);
        SAME(charged(0), sim_alloc_bytes(&self, 0));
        OK(api.cuMemFreeAsync(pointer, stream));
        OK(api.cuEventRecord(event, stream));
        SAME(charged(0), 2 * CHUNK);
        OK(way == 0   ? api.cuStreamSynchronize(stream)
           : way == 1 ? api.cuEventSynchronize(event)
           : way == 2 ? api.cuCtxSynchronize()
                      : api.cuCtxSynchronize_v2(context));
        SAME(charged(0), 0);
        SAME(sim_alloc_bytes(&self, 0), 0);
    }
    return 0;
}

static int explicit_pools_are_charged_each(void)
{
    CUmemoryPool a, b;
    CUdeviceptr one, two, more = 0x77;

    OK(begin(0));
    CHECK((a = device_pool(0)) != NULL && (b = device_pool(0)) != NULL);
    SAME(charged(0), 0);
    OK(api.cuMemAllocFromPoolAsync(&one, 480 * MIB, a, NULL));
    OK(api.cuMemAllocFromPoolAsync(&two, 480 * MIB, b, NULL));
    SAME(charged(0), 960 * MIB);
    REFUSED(api.cuMemAllocFromPoolAsync(&more, 480 * MIB, a, NULL));
    REFUSED(api.cuMemAllocAsync(&more, 480 * MIB, NULL));
    SAME(more, 0x77);
    OK(api.cuMemFree_v2(one));
    OK(api.cuMemPoolTrimTo(a, 0));
    SAME(charged(0), 480 * MIB);
    OK(api.cuMemPoolDestroy(a));
    OK(api.cuMemFreeAsync(two, NULL));
    OK(api.cuMemPoolDestroy(b));
    SAME(charged(0), 0);
    SAME(sim_alloc_bytes(&self, 0), 0);
    SAME(gpu_row(0).refusals, 2);
    return 0;
}

static int a_freed_block_is_used_again_at_any_threshold(void)
{
    CUmemoryPool pool;
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuDeviceGetDefaultMemPool(&pool, 0));
    for (int round = 0; round < 2; round++) {
        OK(api.cuMemAllocAsync(&pointer, 700 * MIB, NULL));
        OK(api.cuMemFreeAsync(pointer, NULL));
        OK(api.cuMemAllocAsync(&pointer, 700 * MIB, NULL));
        OK(api.cuMemFreeAsync(pointer, NULL));
        SAME(charged(0), reserved(pool));
        OK(keep(pool));
    }
    SAME(gpu_row(0).refusals, 0);
    return 0;
}

static int an_idle_pool_makes_room_for_another_kind_of_memory(void)
{
    CUmemoryPool pool, other;
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuDeviceGetDefaultMemPool(&pool, 0));
    OK(keep(pool));
    CHECK((other = device_pool(0)) != NULL);
    OK(api.cuMemAllocAsync(&pointer, 700 * MIB, NULL));
    OK(api.cuMemFreeAsync(pointer, NULL));
    OK(api.cuStreamSynchronize(NULL));
    CHECK(charged(0) >= 700 * MIB);
    OK(api.cuMemAlloc_v2(&pointer, 700 * MIB));
    SAME(charged(0), 700 * MIB);
    OK(api.cuMemFree_v2(pointer));
    OK(api.cuMemAllocAsync(&pointer, 700 * MIB, NULL));
    OK(api.cuMemFreeAsync(pointer, NULL));
    OK(api.cuMemAllocFromPoolAsync(&pointer, 700 * MIB, other, NULL));
    SAME(charged(0), sim_alloc_bytes(&self, 0));
    SAME(gpu_row(0).refusals, 0);
    return 0;
}

/* Two streams free; the first synchronise sees only its own. */
static int the_second_streams_memory_is_released_with_its_own_synchronise(void)
{
    CUstream a, b;
    CUdeviceptr one, two;

    OK(begin(0));
    OK(api.cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(api.cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(api.cuMemAllocAsync(&one, 64 * MIB, a));
    OK(api.cuMemAllocAsync(&two, 64 * MIB, b));
    OK(api.cuMemFreeAsync(one, a));
    OK(api.cuMemFreeAsync(two, b));
    OK(api.cuStreamSynchronize(a));
    SAME(charged(0), 64 * MIB);
    OK(api.cuStreamSynchronize(b));
    SAME(charged(0), 0);
    return 0;
}

static int a_thousand_times_ten_under_a_hundred(void)
{
    CUmemoryPool pool;
    CUdeviceptr pointer;

    OK(begin(0));
    CHECK((pool = device_pool(0)) != NULL);
    for (int i = 0; i < 1000; i++) {
        OK(i % 2 == 0 ? api.cuMemAllocAsync(&pointer, 10 * MIB, NULL)
                      : api.cuMemAllocFromPoolAsync(&pointer, 10 * MIB, pool, NULL));
        OK(i % 3 == 0 ? api.cuMemFree_v2(pointer) : api.cuMemFreeAsync(pointer, NULL));
    }
    OK(api.cuCtxSynchronize());
    SAME(charged(0), 0);
    return 0;
}

/* Field case HAMi-core #93: create, 40, free, gone. */
static int a_pools_pointer_is_freed_by_either_free(void)
{
    CUmemoryPool pool;
    CUdeviceptr pointer;

    OK(begin(0));
    CHECK((pool = device_pool(0)) != NULL);
    OK(api.cuMemAllocFromPoolAsync(&pointer, 40 * MIB, pool, NULL));
    SAME(charged(0), 40 * MIB);
    OK(api.cuMemFree_v2(pointer));
    OK(api.cuCtxSynchronize());
    SAME(charged(0), 0);
    GIVES(api.cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemFreeAsync(pointer, NULL), CUDA_ERROR_INVALID_VALUE);
    SAME(charged(0), 0);
    return 0;
}

static int a_destroyed_pool_is_charged_its_live_pointers(void)
{
    CUmemoryPool pool;
    CUdeviceptr one, two, more = 0x77;

    OK(begin(0));
    CHECK((pool = device_pool(0)) != NULL);
    OK(api.cuMemAllocFromPoolAsync(&one, 700 * MIB, pool, NULL));
    OK(api.cuMemPoolDestroy(pool));
    SAME(charged(0), 700 * MIB);
    CHECK((pool = device_pool(0)) != NULL);
    REFUSED(api.cuMemAllocFromPoolAsync(&more, 700 * MIB, pool, NULL));
    SAME(more, 0x77);
    OK(api.cuMemAllocFromPoolAsync(&two, 100 * MIB, pool, NULL));
    OK(api.cuMemPoolDestroy(pool));
    SAME(charged(0), 800 * MIB);
    OK(api.cuMemFreeAsync(one, NULL));
    SAME(charged(0), 100 * MIB);
    OK(api.cuMemFree_v2(two));
    SAME(charged(0), 0);
    SAME(sim_alloc_bytes(&self, 0), 0);
    return 0;
}

/* Four times a gigabyte through a new pool each time. */
static int pools_made_and_destroyed_do_not_pass_the_ceiling(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    for (int i = 0; i < 4; i++) {
        CUmemoryPool pool = device_pool(0);

        CHECK(pool != NULL);
        GIVES(api.cuMemAllocFromPoolAsync(&pointer, 1000 * MIB, pool, NULL),
              i == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
        OK(api.cuMemPoolDestroy(pool));
    }
    SAME(charged(0), 1000 * MIB);
    return 0;
}

static int pool_memory_outlives_contexts(void)
{
    CUmemoryPool pool;
    CUdeviceptr pointer, more = 0x77;
    CUcontext context;

    OK(begin(0));
    CHECK((pool = device_pool(0)) != NULL);
    OK(api.cuMemAllocFromPoolAsync(&pointer, 700 * MIB, pool, NULL));
    OK(api.cuCtxGetCurrent(&context));
    OK(api.cuCtxDestroy_v2(context));
    SAME(charged(0), sim_alloc_bytes(&self, 0));
    OK(api.cuDevicePrimaryCtxRetain(&context, 0));
    OK(api.cuCtxSetCurrent(context));
    REFUSED(api.cuMemAllocAsync(&more, 700 * MIB, NULL));
    OK(api.cuDevicePrimaryCtxReset_v2(0));
    SAME(charged(0), sim_alloc_bytes(&self, 0));
    OK(api.cuDevicePrimaryCtxRelease_v2(0));
    CHECK(charged(0) >= 700 * MIB);
    SAME(more, 0x77);
    return 0;
}

/* The room is enough for what is asked, not for what the driver then takes. */
static int growth_without_room_goes_back(void)
{
    CUdeviceptr linear, pointer = 0x77;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&linear, 1000 * MIB));
    REFUSED(api.cuMemAllocAsync(&pointer, 10 * MIB, NULL));
    SAME(pointer, 0x77);
    SAME(charged(0), 1000 * MIB);
    SAME(sim_alloc_bytes(&self, 0), 1000 * MIB);
    OK(api.cuMemFree_v2(linear));
    OK(api.cuMemAllocAsync(&pointer, 10 * MIB, NULL));
    return 0;
}

static int the_pool_of_a_stream_is_that_of_its_device(void)
{
    CUcontext zero, one;
    CUmemoryPool pool;
    CUstream stream;
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuCtxGetCurrent(&zero));
    OK(api.cuCtxCreate_v2(&one, 0, 1));
    OK(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK((pool = device_pool(1)) != NULL);
    OK(api.cuCtxSetCurrent(zero));
    OK(api.cuMemAllocAsync(&pointer, 32 * MIB, stream));
    SAME(charged(1), 32 * MIB);
    CHECK(charged(0) == 0 || charged(0) == UINT64_MAX);
    OK(api.cuMemAllocFromPoolAsync(&pointer, 64 * MIB, pool, NULL));
    SAME(charged(1), 96 * MIB);
    OK(api.cuMemAllocAsync(&pointer, 32 * MIB, NULL));
    SAME(charged(0), 32 * MIB);
    /* a default pool that nobody entered tells its device */
    OK(api.cuDeviceGetDefaultMemPool(&pool, 1));
    OK(api.cuMemAllocFromPoolAsync(&pointer, 32 * MIB, pool, NULL));
    SAME(charged(0), sim_alloc_bytes(&self, 0));
    SAME(charged(1), sim_alloc_bytes(&self, 1));
    return 0;
}

static int the_current_pool_is_the_one_that_is_set(void)
{
    CUmemoryPool pool;
    CUdeviceptr pointer, more;

    OK(begin(0));
    CHECK((pool = device_pool(0)) != NULL);
    OK(api.cuDeviceSetMemPool(0, pool));
    OK(api.cuMemAllocAsync(&pointer, 700 * MIB, NULL));
    OK(api.cuMemPoolDestroy(pool)); /* the default pool is current again */
    SAME(charged(0), 700 * MIB);
    REFUSED(api.cuMemAllocAsync(&more, 700 * MIB, NULL));
    OK(api.cuMemFreeAsync(pointer, NULL));
    SAME(charged(0), 0);
    return 0;
}

static int host_pools_cost_nothing(void)
{
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    CUmemoryPool pools[3];
    CUdeviceptr pointer;

    OK(begin(0));
    pools[0] = make_pool(CU_MEM_LOCATION_TYPE_HOST, 0, CU_MEM_ALLOCATION_TYPE_PINNED);
    pools[1] = make_pool(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, CU_MEM_ALLOCATION_TYPE_PINNED);
    OK(api.cuMemGetDefaultMemPool(&pools[2], &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    for (int i = 0; i < 3; i++) {
        CHECK(pools[i] != NULL);
        OK(api.cuMemAllocFromPoolAsync(&pointer, 1500 * MIB, pools[i], NULL));
        CHECK(charged(0) == 0 || charged(0) == UINT64_MAX);
        OK(api.cuMemFreeAsync(pointer, NULL));
    }
    return 0;
}

static int managed_pools(uint64_t factor)
{
    CUmemLocation none = {.type = CU_MEM_LOCATION_TYPE_NONE};
    CUmemoryPool made, given;
    CUdeviceptr pointer;

    OK(begin(0));
    made = make_pool(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ALLOCATION_TYPE_MANAGED);
    CHECK(made != NULL);
    OK(api.cuMemGetMemPool(&given, &none, CU_MEM_ALLOCATION_TYPE_MANAGED));
    OK(api.cuMemAllocFromPoolAsync(&pointer, 320 * MIB, made, NULL));
    CHECK(charged(0) == 320 * MIB * factor || charged(0) == UINT64_MAX);
    OK(api.cuMemAllocFromPoolAsync(&pointer, 320 * MIB, given, NULL));
    CHECK(charged(0) == 640 * MIB * factor || charged(0) == UINT64_MAX);
    CHECK(factor == 0 || charged(0) != UINT64_MAX);
    return 0;
}

static int managed_pools_are_charged(void)
{
    return managed_pools(1);
}

static int managed_pools_can_be_ignored(void)
{
    return managed_pools(0);
}

static int imported_memory_is_shown_and_not_charged(void)
{
    CUmemPoolProps properties;
    CUmemPoolPtrExportData data;
    CUmemoryPool pool, imported;
    CUdeviceptr pointer, window;
    struct vcap_snapshot snapshot;
    uint64_t shown = 0;
    int fd = -1;

    memset(&properties, 0, sizeof(properties));
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(begin(0));
    OK(api.cuMemPoolCreate(&pool, &properties));
    OK(api.cuMemAllocFromPoolAsync(&pointer, 64 * MIB, pool, NULL));
    OK(api.cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            0));
    OK(api.cuMemPoolExportPointer(&data, pointer));
    OK(api.cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(api.cuMemPoolImportPointer(&window, imported, &data));
    SAME(charged(0), 64 * MIB);
    CHECK(ledger_read(self.ledger, &snapshot));
    for (uint32_t i = 0; i < snapshot.process_count; i++)
        shown += snapshot.processes[i].charges[0].imported_bytes;
    vcap_snapshot_free(&snapshot);
    SAME(shown, 64 * MIB);
    OK(api.cuMemFree_v2(window));
    SAME(charged(0), 64 * MIB);
    OK(api.cuMemPoolDestroy(imported));
    SAME(charged(0), 64 * MIB);
    OK(api.cuMemFree_v2(pointer));
    OK(api.cuMemPoolDestroy(pool));
    SAME(charged(0), 0);
    return 0;
}

/* The query after a good allocation fails: the higher figure stays until the next good one. */
static int a_failed_query_leaks_neither_memory_nor_charge(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAllocAsync(&pointer, 10 * MIB, NULL));
    SAME(charged(0), 10 * MIB);
    OK(api.cuMemFreeAsync(pointer, NULL));
    OK(api.cuCtxSynchronize());
    SAME(charged(0), 0);
    SAME(sim_alloc_bytes(&self, 0), 0);
    return 0;
}

static int queries_that_always_fail_do_not_stop_a_program(void)
{
    CUdeviceptr pointer;
    unsigned refused = 0;

    OK(begin(0));
    for (int i = 0; i < 200; i++) {
        CUresult result = api.cuMemAllocAsync(&pointer, 10 * MIB, NULL);

        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        refused += result != CUDA_SUCCESS;
        if (result == CUDA_SUCCESS)
            OK(api.cuMemFreeAsync(pointer, NULL));
    }
    CHECK(refused > 0); /* what cannot be known is taken for held */
    OK(api.cuCtxSynchronize());
    SAME(sim_alloc_bytes(&self, 0), 0);
    return 0;
}

static int a_driver_that_has_no_memory_is_charged_nothing(void)
{
    CUdeviceptr pointer = 0x77;

    OK(begin(0));
    REFUSED(api.cuMemAllocAsync(&pointer, 10 * MIB, NULL));
    SAME(pointer, 0x77);
    CHECK(charged(0) == 0);
    SAME(gpu_row(0).refusals, 0);
    OK(api.cuMemAllocAsync(&pointer, 10 * MIB, NULL));
    SAME(charged(0), CHUNK);
    return 0;
}

static int a_stream_that_cannot_be_asked_is_no_way_round(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    for (int i = 0; i < 6; i++)
        if (api.cuMemAllocAsync(&pointer, 256 * MIB, NULL) != CUDA_SUCCESS)
            break;
    CHECK(sim_alloc_bytes(&self, 0) <= 1024 * MIB);
    SAME(charged(0), sim_alloc_bytes(&self, 0));
    return 0;
}

static int odd_arguments_are_the_drivers(void)
{
    CUdeviceptr pointer = 0x77;

    OK(begin(0));
    GIVES(api.cuMemAllocAsync(NULL, MIB, NULL), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemAllocAsync(&pointer, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    REFUSED(api.cuMemAllocAsync(&pointer, SIZE_MAX, NULL));
    GIVES(api.cuMemPoolCreate(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    SAME(pointer, 0x77);
    CHECK(charged(0) == 0);
    return 0;
}

static int no_pool_call_is_asked_for_when_nothing_was_freed(void)
{
    CUdeviceptr pointer;
    unsigned before;

    OK(begin(0));
    OK(api.cuMemAllocAsync(&pointer, MIB, NULL));
    before = journal_count("cuMemPoolGetAttribute");
    OK(api.cuStreamSynchronize(NULL));
    SAME(journal_count("cuMemPoolGetAttribute"), before);
    SAME(journal_count("cuStreamSynchronize"), 1);
    SAME(journal_count("cuMemPoolTrimTo"), 0);
    return 0;
}

static int audit_lets_everything_through_and_counts_it(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAllocAsync(&pointer, 1500 * MIB, NULL));
    SAME(charged(0), sim_alloc_bytes(&self, 0));
    SAME(gpu_row(0).refusals, 0);
    CHECK(gpu_row(0).audit_refusals >= 1);
    OK(api.cuMemFreeAsync(pointer, NULL));
    OK(api.cuCtxSynchronize());
    SAME(charged(0), 0);
    return 0;
}

static const struct scenario scenarios[] = {
    SCENARIO(reserve_is_charged_and_a_synchronise_settles_it, NULL),
    SCENARIO(explicit_pools_are_charged_each, NULL),
    SCENARIO(a_freed_block_is_used_again_at_any_threshold, NULL),
    SCENARIO(an_idle_pool_makes_room_for_another_kind_of_memory, NULL),
    SCENARIO(the_second_streams_memory_is_released_with_its_own_synchronise,
             "VRAMCAP_SIM_POOL_OBSERVED=1"),
    SCENARIO(a_thousand_times_ten_under_a_hundred, "VRAMCAP_MEMORY_MIB=100"),
    SCENARIO(a_pools_pointer_is_freed_by_either_free,
             "VRAMCAP_MEMORY_MIB=100;VRAMCAP_SIM_POOL_CHUNK_MIB=2"),
    SCENARIO(a_destroyed_pool_is_charged_its_live_pointers, "VRAMCAP_SIM_POOL_CHUNK_MIB=2"),
    SCENARIO(pools_made_and_destroyed_do_not_pass_the_ceiling, NULL),
    SCENARIO(pool_memory_outlives_contexts, NULL),
    SCENARIO(growth_without_room_goes_back, NULL),
    SCENARIO(the_pool_of_a_stream_is_that_of_its_device, "VRAMCAP_SIM_CARDS=2x24576"),
    SCENARIO(the_current_pool_is_the_one_that_is_set, NULL),
    SCENARIO(host_pools_cost_nothing, NULL),
    SCENARIO(managed_pools_are_charged, NULL),
    SCENARIO(managed_pools_can_be_ignored, "VRAMCAP_MANAGED=ignore"),
    SCENARIO(imported_memory_is_shown_and_not_charged, "VRAMCAP_SIM_POOL_CHUNK_MIB=2"),
    SCENARIO(a_failed_query_leaks_neither_memory_nor_charge,
             "VRAMCAP_SIM_FAIL=cuMemPoolGetAttribute:1:999"),
    SCENARIO(queries_that_always_fail_do_not_stop_a_program,
             "VRAMCAP_SIM_FAIL=cuMemPoolGetAttribute:0:999"),
    SCENARIO(a_driver_that_has_no_memory_is_charged_nothing,
             "VRAMCAP_SIM_FAIL=cuMemAllocAsync:1:2"),
    SCENARIO(a_stream_that_cannot_be_asked_is_no_way_round,
             "VRAMCAP_SIM_FAIL=cuStreamIsCapturing:0:906"),
    SCENARIO(odd_arguments_are_the_drivers, NULL),
    SCENARIO(no_pool_call_is_asked_for_when_nothing_was_freed, "VRAMCAP_SIM_JOURNAL=@/journal"),
    SCENARIO(audit_lets_everything_through_and_counts_it, "VRAMCAP_ENABLE=audit"),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
