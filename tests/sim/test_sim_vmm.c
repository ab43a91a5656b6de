/*
 * Generic allocation handles of the simulated driver: what they cost the card, in every order of
 * release, unmap and export; addresses; multicast; many threads. Between processes:
 * test_sim_share.c.
 */
#define _GNU_SOURCE
#include "test_sim_support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT (64 * MIB) /* the default cost */

static CUmemAllocationProp on_device(int device)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

static CUmemAccessDesc access_of(int device, CUmemAccess_flags flags)
{
    return (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                             .flags = flags};
}

/* --- what is charged to which card ------------------------------------------------------ */

static int created_without_a_context(void)
{
    CUmemAllocationProp prop = on_device(1);
    CUmemGenericAllocationHandle handle = 7, host = 0;
    size_t granularity = 0;

    OK(cuInit(0));
    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(granularity == 2 * MIB);
    OK(cuMemCreate(&handle, 32 * MIB, &prop, 0));
    CHECK(sim_test_used(0) == 0 && sim_test_used(1) == 32 * MIB);
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
    prop.location.id = 77;
    OK(cuMemCreate(&host, 64 * MIB, &prop, 0));
    OK(cuMemRelease(host));
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CHECK(cuMemCreate(&host, 64 * MIB, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    prop.location.id = 0;
    OK(cuMemCreate(&host, 64 * MIB, &prop, 0));
    CHECK(sim_test_used(0) == 0 && sim_test_used(1) == 32 * MIB);
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    CHECK(cuMemCreate(&host, 64 * MIB, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(handle));
    CHECK(sim_test_used(1) == 0);
    return 0;
}

static void memory_is_the_locations_and_needs_no_context(void **state)
{
    (void)state;
    assert_int_equal(sim_run(created_without_a_context, "VRAMCAP_SIM_CARDS=1024,1024"), 0);
}

static int wrong_arguments(void)
{
    CUmemAllocationProp prop = on_device(0), other = on_device(3);
    CUmemGenericAllocationHandle handle = 7;
    size_t granularity = 0;

    OK(cuInit(0));
    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    CHECK(granularity == 65536);
    CHECK(cuMemCreate(&handle, 65536 + 4096, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemCreate(&handle, 0, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemCreate(&handle, 65536, &prop, 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemCreate(NULL, 65536, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemCreate(&handle, 65536, NULL, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemCreate(&handle, 65536, &other, 0) == CUDA_ERROR_INVALID_DEVICE);
    CHECK(cuMemCreate(&handle, 1025 * MIB, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemRelease(7) == CUDA_ERROR_INVALID_VALUE);
    CHECK(handle == 7 && sim_test_used(0) == 0);
    OK(cuMemCreate(&handle, 65536, &prop, 0));
    CHECK(sim_test_used(0) == 65536);
    OK(cuMemRelease(handle));
    CHECK(cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void wrong_arguments_change_nothing(void **state)
{
    (void)state;
    assert_int_equal(sim_run(wrong_arguments, "VRAMCAP_SIM_CARDS=1024;"
                                              "VRAMCAP_SIM_GRANULARITY_KIB=64"),
                     0);
}

/* --- references ------------------------------------------------------------------------- */

static int every_order(void)
{
    CUmemAllocationProp prop = on_device(0), read;
    CUmemGenericAllocationHandle handle = 0, again = 0;
    CUdeviceptr base = 0;
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAddressReserve(&base, 64 * MIB, 0, 0, 0));
    /* released while mapped */
    OK(cuMemCreate(&handle, 4 * MIB, &prop, 0));
    OK(cuMemGetAllocationPropertiesFromHandle(&read, handle));
    CHECK(read.location.type == CU_MEM_LOCATION_TYPE_DEVICE && read.location.id == 0);
    OK(cuMemMap(base, 4 * MIB, 0, handle, 0));
    OK(cuMemMap(base + 8 * MIB, 4 * MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    CHECK(cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemMap(base + 16 * MIB, 4 * MIB, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(sim_test_used(0) == CONTEXT + 4 * MIB);
    OK(cuMemUnmap(base, 4 * MIB));
    CHECK(sim_test_used(0) == CONTEXT + 4 * MIB);
    /* brought back by the address of the other mapping */
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(base + 9 * MIB)));
    CHECK(again == handle);
    OK(cuMemUnmap(base + 8 * MIB, 4 * MIB));
    CHECK(sim_test_used(0) == CONTEXT + 4 * MIB);
    OK(cuMemRelease(again));
    CHECK(sim_test_used(0) == CONTEXT);
    /* memory survives the context */
    OK(cuMemCreate(&handle, 4 * MIB, &prop, 0));
    OK(cuCtxDestroy_v2(context));
    CHECK(sim_test_used(0) == 4 * MIB);
    OK(cuMemRelease(handle));
    CHECK(sim_test_used(0) == 0);
    CHECK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)base) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(base, 64 * MIB));
    return 0;
}

static void memory_lives_until_its_last_handle_and_mapping(void **state)
{
    (void)state;
    assert_int_equal(sim_run(every_order, NULL), 0);
}

/* --- addresses -------------------------------------------------------------------------- */

static int mappings(void)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle[3];
    CUdeviceptr base = 0, other = 0;
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    CHECK(cuMemAddressReserve(&base, 64 * MIB, 3, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressReserve(&base, 64 * MIB, 64 * MIB, 0, 0));
    CHECK(base % (64 * MIB) == 0);
    OK(cuMemAddressReserve(&other, 2 * MIB, 0, base + 128 * MIB, 0));
    for (int i = 0; i < 3; i++)
        OK(cuMemCreate(&handle[i], 4 * MIB, &prop, 0));
    CHECK(cuMemMap(base + MIB, 4 * MIB, 0, handle[0], 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemMap(base, 4 * MIB, 2 * MIB, handle[0], 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemMap(base, 6 * MIB, 0, handle[0], 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemMap(base + 62 * MIB, 4 * MIB, 0, handle[0], 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemMap(base + 1024 * MIB, 4 * MIB, 0, handle[0], 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(base, 4 * MIB, 0, handle[0], 0));
    CHECK(cuMemMap(base + 2 * MIB, 4 * MIB, 0, handle[1], 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(base + 4 * MIB, 4 * MIB, 0, handle[1], 0));
    OK(cuMemMap(base + 10 * MIB, 2 * MIB, 0, handle[2], 0)); /* a gap before it */
    for (int i = 0; i < 3; i++)
        OK(cuMemRelease(handle[i]));
    CHECK(cuMemAddressFree(base, 64 * MIB) == CUDA_ERROR_INVALID_VALUE);
    /* what is partial, or reaches over the gap, changes nothing */
    CHECK(cuMemUnmap(base, 2 * MIB) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(base + 2 * MIB, 6 * MIB) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(base, 6 * MIB) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(base, 12 * MIB) == CUDA_ERROR_INVALID_VALUE);
    CHECK(sim_test_used(0) == CONTEXT + 12 * MIB);
    OK(cuMemUnmap(base, 8 * MIB));
    CHECK(sim_test_used(0) == CONTEXT + 4 * MIB);
    OK(cuMemUnmap(base + 10 * MIB, 2 * MIB));
    CHECK(sim_test_used(0) == CONTEXT);
    CHECK(cuMemAddressFree(base, 62 * MIB) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree_v2(base) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(base, 64 * MIB));
    OK(cuMemAddressFree(other, 2 * MIB));
    CHECK(cuMemAddressFree(base, 64 * MIB) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void only_whole_mappings_are_unmapped(void **state)
{
    (void)state;
    assert_int_equal(sim_run(mappings, NULL), 0);
}

static int bytes_shared(void)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle first = 0, second = 0;
    CUmemAccessDesc write = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    unsigned long long flags = 99;
    unsigned char buffer[64];
    CUdeviceptr base = 0, range = 0;
    size_t size = 0;
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAddressReserve(&base, 16 * MIB, 0, 0, 0));
    OK(cuMemCreate(&first, 4 * MIB, &prop, 0));
    OK(cuMemCreate(&second, 4 * MIB, &prop, 0));
    OK(cuMemMap(base, 4 * MIB, 0, first, 0));
    OK(cuMemMap(base + 4 * MIB, 4 * MIB, 0, second, 0));
    OK(cuMemMap(base + 8 * MIB, 4 * MIB, 0, first, 0));            /* an alias */
    CHECK(cuMemsetD8_v2(base, 1, 16) == CUDA_ERROR_INVALID_VALUE); /* no access yet */
    CHECK(cuMemSetAccess(base + 2 * MIB, 4 * MIB, &write, 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemSetAccess(base, 16 * MIB, &write, 1) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemSetAccess(base, 12 * MIB, &write, 1));
    OK(cuMemGetAccess(&flags, &write.location, base + 5 * MIB));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    /* across the border between two memories */
    OK(cuMemsetD8_v2(base + 4 * MIB - 8, 0x5a, 16));
    memset(buffer, 0, sizeof buffer);
    OK(cuMemcpyDtoH_v2(buffer, base + 4 * MIB - 8, 16));
    CHECK(buffer[0] == 0x5a && buffer[15] == 0x5a);
    OK(cuMemcpyDtoH_v2(buffer, base + 12 * MIB - 8, 8));
    CHECK(buffer[7] == 0x5a);
    OK(cuMemsetD8_v2(base + 8 * MIB, 0x17, 4));
    OK(cuMemcpyDtoH_v2(buffer, base, 4));
    CHECK(buffer[3] == 0x17);
    CHECK(cuMemcpyDtoH_v2(buffer, base + 12 * MIB - 8, 16) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetAddressRange_v2(&range, &size, base + 5 * MIB));
    CHECK(range == base + 4 * MIB && size == 4 * MIB);
    /* mapped again: the bytes are the memory's, the access is gone */
    OK(cuMemUnmap(base, 4 * MIB));
    OK(cuMemMap(base, 4 * MIB, 0, second, 0));
    OK(cuMemGetAccess(&flags, &write.location, base));
    CHECK(flags == 0 && cuMemcpyDtoH_v2(buffer, base, 8) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemSetAccess(base, 4 * MIB, &write, 1));
    OK(cuMemcpyDtoH_v2(buffer, base, 8));
    CHECK(buffer[7] == 0x5a);
    write.location.id = 1;
    CHECK(cuMemSetAccess(base, 4 * MIB, &write, 1) == CUDA_ERROR_INVALID_DEVICE);
    return 0;
}

static void aliases_share_their_bytes(void **state)
{
    (void)state;
    assert_int_equal(sim_run(bytes_shared, NULL), 0);
}

static int touch(void)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    CUmemAccessDesc write = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUdeviceptr base = 0;

    OK(cuInit(0));
    OK(cuMemAddressReserve(&base, 2 * MIB, 0, 0, 0));
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    OK(cuMemMap(base, 2 * MIB, 0, handle, 0));
    OK(cuMemSetAccess(base, 2 * MIB, &write, 1));
    return *(volatile int *)(uintptr_t)base;
}

static void a_host_touch_of_a_mapped_address_faults(void **state)
{
    (void)state;
    assert_int_not_equal(sim_run(touch, NULL), 0);
}

/* --- multicast -------------------------------------------------------------------------- */

static int multicast(void)
{
    CUmulticastObjectProp object_prop = {.numDevices = 2, .size = 8 * MIB};
    CUmemAllocationProp prop = on_device(0), read;
    CUmemGenericAllocationHandle object = 0, memory[2] = {0, 0};
    CUdeviceptr base = 0;
    size_t granularity = 0;

    OK(cuInit(0));
    OK(cuMulticastGetGranularity(&granularity, &object_prop, CU_MULTICAST_GRANULARITY_MINIMUM));
    CHECK(granularity == 2 * MIB);
    OK(cuMulticastCreate(&object, &object_prop));
    CHECK(sim_test_used(0) == 0 && sim_test_used(1) == 0);
    for (int d = 0; d < 2; d++) {
        prop.location.id = d;
        OK(cuMemCreate(&memory[d], 4 * MIB, &prop, 0));
    }
    OK(cuMemAddressReserve(&base, 8 * MIB, 0, 0, 0));
    OK(cuMulticastAddDevice(object, 0));
    CHECK(cuMulticastAddDevice(object, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMulticastBindMem(object, 0, memory[0], 0, 4 * MIB, 0) == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(cuMemMap(base, 8 * MIB, 0, object, 0) == CUDA_ERROR_ILLEGAL_STATE);
    OK(cuMulticastAddDevice(object, 1));
    OK(cuMulticastBindMem(object, 0, memory[0], 0, 4 * MIB, 0));
    CHECK(cuMulticastBindMem(object, 0, memory[0], 0, 4 * MIB, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMulticastBindMem(object, 6 * MIB, memory[1], 0, 4 * MIB, 0) ==
          CUDA_ERROR_INVALID_VALUE);
    OK(cuMulticastBindMem(object, 0, memory[1], 0, 4 * MIB, 0));
    OK(cuMemMap(base, 8 * MIB, 0, object, 0));
    CHECK(cuMemGetAllocationPropertiesFromHandle(&read, object) == CUDA_ERROR_INVALID_VALUE);
    /* what is bound lives on */
    OK(cuMemRelease(memory[0]));
    OK(cuMemRelease(memory[1]));
    CHECK(sim_test_used(0) == 4 * MIB && sim_test_used(1) == 4 * MIB);
    OK(cuMulticastUnbind(object, 0, 0, 4 * MIB));
    CHECK(sim_test_used(0) == 0 && sim_test_used(1) == 4 * MIB);
    OK(cuMemRelease(object));
    CHECK(sim_test_used(1) == 4 * MIB); /* still mapped */
    OK(cuMemUnmap(base, 8 * MIB));
    CHECK(sim_test_used(1) == 0);
    return 0;
}

static void a_multicast_object_has_no_bytes_and_keeps_what_is_bound(void **state)
{
    (void)state;
    assert_int_equal(sim_run(multicast, "VRAMCAP_SIM_CARDS=2x1024"), 0);
}

static int multicast_by_address(void)
{
    CUmulticastObjectProp object_prop = {.numDevices = 1, .size = 8 * MIB};
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle object = 0, memory = 0;
    CUdeviceptr base = 0, async = 0, linear = 0;
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    OK(cuMulticastCreate(&object, &object_prop));
    OK(cuMulticastAddDevice(object, 0));
    OK(cuMemCreate(&memory, 4 * MIB, &prop, 0));
    OK(cuMemAddressReserve(&base, 4 * MIB, 0, 0, 0));
    OK(cuMemMap(base, 4 * MIB, 0, memory, 0));
    OK(cuMemRelease(memory));
    OK(cuMulticastBindAddr(object, 0, base, 4 * MIB, 0));
    OK(cuMemAllocAsync(&async, 4 * MIB, NULL));
    OK(cuMulticastBindAddr(object, 4 * MIB, async, 4 * MIB, 0));
    OK(cuMemAlloc_v2(&linear, 4 * MIB));
    OK(cuMulticastUnbind(object, 0, 4 * MIB, 4 * MIB));
    CHECK(cuMulticastBindAddr(object, 4 * MIB, linear, 4 * MIB, 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(base, 4 * MIB));
    CHECK(sim_test_used(0) == CONTEXT + 12 * MIB);
    OK(cuMemRelease(object));
    CHECK(sim_test_used(0) == CONTEXT + 8 * MIB);
    return 0;
}

static void memory_is_bound_by_its_address(void **state)
{
    (void)state;
    assert_int_equal(sim_run(multicast_by_address, "VRAMCAP_SIM_POOL_CHUNK_MIB=4"), 0);
}

/* --- threads ---------------------------------------------------------------------------- */

#define THREADS 8
#define ROUNDS 2500 /* of 8 handles each: 20,000 a thread */

static void *create_and_release(void *failed)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle[8];

    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 8; i++)
            if (cuMemCreate(&handle[i], 2 * MIB, &prop, 0) != CUDA_SUCCESS)
                *(int *)failed = 1;
        for (int i = 0; i < 8; i++)
            if (cuMemRelease(handle[i]) != CUDA_SUCCESS)
                *(int *)failed = 1;
    }
    return NULL;
}

static void *map_and_unmap(void *failed)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemAccessDesc write = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUdeviceptr base = 0;
    CUresult rc = cuMemAddressReserve(&base, 8 * MIB, 0, 0, 0);

    for (int round = 0; round < 200 && rc == CUDA_SUCCESS; round++) {
        CUmemGenericAllocationHandle handle = 0;

        rc = cuMemCreate(&handle, 4 * MIB, &prop, 0);
        if (rc == CUDA_SUCCESS)
            rc = cuMemMap(base, 4 * MIB, 0, handle, 0);
        if (rc == CUDA_SUCCESS)
            rc = cuMemMap(base + 4 * MIB, 4 * MIB, 0, handle, 0);
        if (rc == CUDA_SUCCESS)
            rc = cuMemRelease(handle);
        if (rc == CUDA_SUCCESS)
            rc = cuMemSetAccess(base, 8 * MIB, &write, 1);
        if (rc == CUDA_SUCCESS)
            rc = cuMemUnmap(base, 8 * MIB);
    }
    *(int *)failed = rc != CUDA_SUCCESS;
    return NULL;
}

static int threads_run(void *(*body)(void *))
{
    pthread_t thread[THREADS];
    int failed[THREADS] = {0};
    struct sim_state *state;

    OK(cuInit(0));
    for (int t = 0; t < THREADS; t++)
        CHECK(pthread_create(&thread[t], NULL, body, &failed[t]) == 0);
    for (int t = 0; t < THREADS; t++)
        CHECK(pthread_join(thread[t], NULL) == 0 && !failed[t]);
    state = sim_state_open(NULL);
    CHECK(state && sim_card_used(state, 0) == 0 && sim_card_alloc_used(state, 0) == 0);
    CHECK(sim_card_peak(state, 0) <= 8 * THREADS * 2 * MIB);
    sim_state_close(state);
    return 0;
}

static int threads_create(void)
{
    return threads_run(create_and_release);
}

static int threads_map(void)
{
    return threads_run(map_and_unmap);
}

static void eight_threads_leave_nothing_behind(void **state)
{
    (void)state;
    assert_int_equal(sim_run(threads_create, NULL), 0);
    assert_int_equal(sim_run(threads_map, NULL), 0);
}

/* Handles by the thousand, as an expandable segment has them. */
static int many(void)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemAccessDesc write = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUdeviceptr base = 0;
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAddressReserve(&base, 27648 * MIB, 0, 0, 0));
    for (uint64_t i = 0; i < 2000; i++) {
        CUmemGenericAllocationHandle handle = 0;

        OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
        OK(cuMemMap(base + i * 2 * MIB, 2 * MIB, 0, handle, 0));
        OK(cuMemRelease(handle));
    }
    OK(cuMemSetAccess(base, 4000 * MIB, &write, 1));
    CHECK(sim_test_used(0) == CONTEXT + 4000 * MIB);
    OK(cuMemsetD8_v2(base + 3998 * MIB - 1, 1, 2));
    OK(cuMemUnmap(base, 4000 * MIB));
    CHECK(sim_test_used(0) == CONTEXT);
    return 0;
}

static void thousands_of_mappings_go_in_one_call(void **state)
{
    (void)state;
    assert_int_equal(sim_run(many, NULL), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, sim_test_setup, sim_test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(memory_is_the_locations_and_needs_no_context),
        TEST(wrong_arguments_change_nothing),
        TEST(memory_lives_until_its_last_handle_and_mapping),
        TEST(only_whole_mappings_are_unmapped),
        TEST(aliases_share_their_bytes),
        TEST(a_host_touch_of_a_mapped_address_faults),
        TEST(a_multicast_object_has_no_bytes_and_keeps_what_is_bound),
        TEST(memory_is_bound_by_its_address),
        TEST(eight_threads_leave_nothing_behind),
        TEST(thousands_of_mappings_go_in_one_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
