/*
 * Physical memory: charged at cuMemCreate on the device that the properties name, until its last
 * handle reference and its last mapping are gone.
 */
#include <pthread.h>
#include <string.h>

#include "tests/hook/lost_slot.h"
#include "tests/hook/scenario.h"

#define GRANULE (2 * MIB)

typedef CUmemGenericAllocationHandle physical_handle;

static CUmemAllocationProp on_device(CUdevice device)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

static CUresult create(physical_handle *handle, size_t bytes, CUdevice device)
{
    CUmemAllocationProp prop = on_device(device);

    return api.cuMemCreate(handle, bytes, &prop, 0);
}

static CUresult reserve(CUdeviceptr *range, size_t bytes)
{
    return api.cuMemAddressReserve(range, bytes, 0, 0, 0);
}

/* Both books at once: what the ledger says and what the card has. */
#define HELD(card, bytes)                                                                          \
    do {                                                                                           \
        SAME(charged(card), bytes);                                                                \
        SAME(sim_alloc_bytes(&self, card), bytes);                                                 \
    } while (0)

static int a_handle_is_charged_until_it_is_released(void)
{
    physical_handle first, second;

    OK(api.cuInit(0));
    OK(create(&first, 600 * MIB, 0));
    OK(create(&second, 424 * MIB, 0));
    HELD(0, 1024 * MIB);
    OK(api.cuMemRelease(first));
    HELD(0, 424 * MIB);
    OK(api.cuMemRelease(second));
    HELD(0, 0);
    SAME(gpu_row(0).peak_bytes, 1024 * MIB);
    return 0;
}

static int above_the_ceiling_it_is_refused_and_the_handle_untouched(void)
{
    physical_handle held, handle = 0x77;

    OK(api.cuInit(0));
    OK(create(&held, 600 * MIB, 0));
    REFUSED(create(&handle, 600 * MIB, 0));
    REFUSED(create(&handle, 4096 * MIB, 0));
    REFUSED(create(&handle, SIZE_MAX - 1, 0));
    SAME(handle, 0x77);
    SAME(journal_count("cuMemCreate"), 1);
    SAME(gpu_row(0).refusals, 3);
    OK(create(&handle, 424 * MIB, 0));
    return 0;
}

/* Every order in which two references and two mappings of one memory can go. */
static int the_charge_goes_with_the_last_of_handles_and_mappings(void)
{
    OK(api.cuInit(0));
    for (unsigned order = 0; order < 24; order++) {
        unsigned left[4] = {0, 1, 2, 3}, rest = order;
        physical_handle handle, again;
        CUdeviceptr range;

        OK(create(&handle, 8 * GRANULE, 0));
        OK(reserve(&range, 32 * GRANULE));
        OK(api.cuMemMap(range, 8 * GRANULE, 0, handle, 0));
        OK(api.cuMemMap(range + 16 * GRANULE, 8 * GRANULE, 0, handle, 0));
        OK(api.cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(range + GRANULE)));
        for (unsigned count = 4; count > 0; count--) {
            unsigned pick = rest % count, what = left[pick];

            HELD(0, 8 * GRANULE);
            rest /= count;
            left[pick] = left[count - 1];
            if (what < 2)
                OK(api.cuMemRelease(what == 0 ? handle : again));
            else
                OK(api.cuMemUnmap(what == 2 ? range : range + 16 * GRANULE, 8 * GRANULE));
        }
        HELD(0, 0);
        OK(api.cuMemAddressFree(range, 32 * GRANULE));
    }
    return 0;
}

static int four_gibibytes_by_create_map_release_do_not_fit_one(void)
{
    CUdeviceptr range;
    CUresult result = CUDA_SUCCESS;
    physical_handle handle;
    unsigned granted = 0;

    OK(api.cuInit(0));
    OK(reserve(&range, 4096 * MIB));
    for (unsigned i = 0; i < 64 && result == CUDA_SUCCESS; i++) {
        result = create(&handle, 64 * MIB, 0);
        if (result != CUDA_SUCCESS)
            break;
        OK(api.cuMemMap(range + i * 64 * MIB, 64 * MIB, 0, handle, 0));
        OK(api.cuMemRelease(handle));
        granted++;
    }
    REFUSED(result);
    SAME(granted, 16);
    HELD(0, 1024 * MIB);
    OK(api.cuMemUnmap(range, 1024 * MIB));
    HELD(0, 0);
    return 0;
}

static int one_unmap_covers_several_maps_and_a_part_changes_nothing(void)
{
    CUdeviceptr range;
    physical_handle handle[4];

    OK(api.cuInit(0));
    OK(reserve(&range, 4 * 4 * GRANULE));
    for (unsigned i = 0; i < 4; i++) {
        OK(create(&handle[i], 4 * GRANULE, 0));
        OK(api.cuMemMap(range + i * 4 * GRANULE, 4 * GRANULE, 0, handle[i], 0));
        OK(api.cuMemRelease(handle[i]));
    }
    GIVES(api.cuMemUnmap(range, 3 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemUnmap(range, 6 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemUnmap(range + 2 * GRANULE, 6 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemUnmap(range, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemUnmap(range, 5 * 4 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    HELD(0, 4 * 4 * GRANULE);
    OK(api.cuMemUnmap(range + 4 * GRANULE, 8 * GRANULE));
    HELD(0, 2 * 4 * GRANULE);
    GIVES(api.cuMemUnmap(range, 4 * 4 * GRANULE), CUDA_ERROR_INVALID_VALUE); /* a hole in it */
    HELD(0, 2 * 4 * GRANULE);
    OK(api.cuMemUnmap(range, 4 * GRANULE));
    OK(api.cuMemUnmap(range + 12 * GRANULE, 4 * GRANULE));
    HELD(0, 0);
    return 0;
}

static int host_memory_costs_nothing_and_needs_no_context(void)
{
    static const CUmemLocationType types[] = {CU_MEM_LOCATION_TYPE_HOST,
                                              CU_MEM_LOCATION_TYPE_HOST_NUMA,
                                              CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT};
    CUmemAllocationProp prop = on_device(0);
    unsigned given = 0;

    OK(api.cuInit(0));
    for (unsigned i = 0; i < 3; i++) {
        CUdeviceptr range;
        physical_handle handle = 0x77;
        CUresult result;

        prop.location.type = types[i];
        prop.location.id = 0;
        result = api.cuMemCreate(&handle, 4096 * MIB, &prop, 0);
        if (result != CUDA_SUCCESS) { /* not every driver has each; never ours */
            GIVES(result, CUDA_ERROR_INVALID_VALUE);
            SAME(handle, 0x77);
            continue;
        }
        given++;
        OK(reserve(&range, 4096 * MIB));
        OK(api.cuMemMap(range, 4096 * MIB, 0, handle, 0));
        OK(api.cuMemRelease(handle));
        OK(api.cuMemUnmap(range, 4096 * MIB));
    }
    CHECK(given >= 2);
    CHECK(charged(0) == 0 || charged(0) == UINT64_MAX);
    return 0;
}

static void *create_on_the_second(void *arg)
{
    physical_handle handle;

    (void)arg;
    return (void *)(intptr_t)create(&handle, 8 * MIB, 1);
}

static int threads_without_a_context_charge_the_device_they_name(void)
{
    pthread_t thread[4];
    void *result;

    OK(api.cuInit(0));
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&thread[i], NULL, create_on_the_second, NULL) == 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], &result);
        OK((intptr_t)result);
    }
    HELD(1, 32 * MIB);
    CHECK(charged(0) == 0 || charged(0) == UINT64_MAX);
    return 0;
}

static int the_device_is_the_properties_not_the_contexts(void)
{
    physical_handle handle;

    OK(begin(0));
    OK(create(&handle, 100 * MIB, 1));
    SAME(charged(1), 100 * MIB);
    CHECK(charged(0) == 0 || charged(0) == UINT64_MAX);
    OK(api.cuMemRelease(handle));
    SAME(charged(1), 0);
    GIVES(create(&handle, 100 * MIB, 7), CUDA_ERROR_INVALID_DEVICE);
    GIVES(create(&handle, 100 * MIB, -1), CUDA_ERROR_INVALID_DEVICE);
    return 0;
}

static int what_the_driver_refuses_leaves_no_charge(void)
{
    CUmemAllocationProp prop = on_device(0);
    physical_handle handle = 0x77;

    OK(api.cuInit(0));
    GIVES(api.cuMemCreate(&handle, 64 * MIB, &prop, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    SAME(charged(0), 0);
    GIVES(api.cuMemCreate(&handle, MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemCreate(&handle, 64 * MIB, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemCreate(NULL, 64 * MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemCreate(&handle, 64 * MIB, &prop, 1), CUDA_ERROR_INVALID_VALUE);
    SAME(handle, 0x77);
    SAME(charged(0), 0);
    OK(create(&handle, 1024 * MIB, 0));
    return 0;
}

static int a_release_or_unmap_that_fails_keeps_the_charge(void)
{
    CUdeviceptr range;
    physical_handle handle;

    OK(api.cuInit(0));
    OK(create(&handle, 64 * MIB, 0));
    GIVES(api.cuMemRelease(handle), CUDA_ERROR_LAUNCH_FAILED);
    SAME(charged(0), 64 * MIB);
    OK(reserve(&range, 64 * MIB));
    GIVES(api.cuMemMap(range, 64 * MIB, 0, handle, 0), CUDA_ERROR_LAUNCH_FAILED);
    OK(api.cuMemMap(range, 64 * MIB, 0, handle, 0));
    OK(api.cuMemRelease(handle));
    SAME(charged(0), 64 * MIB);
    GIVES(api.cuMemUnmap(range, 64 * MIB), CUDA_ERROR_LAUNCH_FAILED);
    SAME(charged(0), 64 * MIB);
    GIVES(api.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)range),
          CUDA_ERROR_LAUNCH_FAILED);
    OK(api.cuMemUnmap(range, 64 * MIB));
    HELD(0, 0);
    return 0;
}

static int unknown_handles_and_addresses_go_to_the_driver(void)
{
    physical_handle handle = 0x77;

    OK(api.cuInit(0));
    GIVES(api.cuMemRelease(0x123456), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemUnmap(0x7000000000, GRANULE), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemRetainAllocationHandle(&handle, (void *)0x7000000000), CUDA_ERROR_INVALID_VALUE);
    SAME(handle, 0x77);
    OK(create(&handle, 64 * MIB, 0));
    OK(api.cuMemRelease(handle));
    GIVES(api.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    SAME(charged(0), 0);
    return 0;
}

static int a_multicast_object_carries_no_bytes(void)
{
    CUmulticastObjectProp prop;
    physical_handle object, memory;

    memset(&prop, 0, sizeof(prop));
    prop.numDevices = 1;
    prop.size = 4096 * MIB;
    OK(begin(0));
    OK(create(&memory, 100 * MIB, 0));
    OK(api.cuMulticastCreate(&object, &prop));
    SAME(charged(0), 100 * MIB);
    OK(api.cuMemRelease(object));
    SAME(charged(0), 100 * MIB);
    OK(api.cuMemRelease(memory));
    SAME(charged(0), 0);
    return 0;
}

static int it_survives_contexts_that_go(void)
{
    CUcontext context;
    physical_handle handle, more = 0x77;

    OK(begin(0));
    OK(api.cuCtxGetCurrent(&context));
    OK(create(&handle, 700 * MIB, 0));
    OK(api.cuCtxDestroy_v2(context));
    HELD(0, 700 * MIB);
    REFUSED(create(&more, 700 * MIB, 0));
    OK(api.cuDevicePrimaryCtxRetain(&context, 0));
    OK(api.cuDevicePrimaryCtxReset_v2(0));
    HELD(0, 700 * MIB);
    OK(api.cuDevicePrimaryCtxRelease_v2(0));
    HELD(0, 700 * MIB);
    REFUSED(create(&more, 700 * MIB, 0));
    SAME(more, 0x77);
    OK(api.cuMemRelease(handle));
    OK(create(&more, 700 * MIB, 0));
    return 0;
}

/* PyTorch's expandable segments: one large range, granules mapped at its end as it grows and
 * unmapped anywhere in it, each handle released when its part goes. */
static int an_expandable_segment_grows_and_gives_back_parts(void)
{
    enum { PARTS = 40 };
    physical_handle handle[PARTS];
    CUdeviceptr range;

    OK(begin(0));
    OK(reserve(&range, 9 * 1024 * MIB / 8));
    for (unsigned i = 0; i < PARTS; i++) {
        OK(create(&handle[i], 20 * MIB, 0));
        OK(api.cuMemMap(range + i * 20 * MIB, 20 * MIB, 0, handle[i], 0));
    }
    HELD(0, PARTS * 20 * MIB);
    for (unsigned i = 1; i < PARTS; i += 2) {
        OK(api.cuMemUnmap(range + i * 20 * MIB, 20 * MIB));
        OK(api.cuMemRelease(handle[i]));
    }
    HELD(0, PARTS / 2 * 20 * MIB);
    for (unsigned i = 1; i < PARTS; i += 2) {
        OK(create(&handle[i], 20 * MIB, 0));
        OK(api.cuMemMap(range + i * 20 * MIB, 20 * MIB, 0, handle[i], 0));
    }
    OK(api.cuMemUnmap(range, PARTS * 20 * MIB));
    HELD(0, PARTS * 20 * MIB);
    for (unsigned i = 0; i < PARTS; i++)
        OK(api.cuMemRelease(handle[i]));
    HELD(0, 0);
    return 0;
}

/* vLLM's sleep mode: the addresses stay, the memory goes and comes back. */
static int a_sleeping_engine_gives_its_memory_to_others(void)
{
    physical_handle handle, other;
    CUdeviceptr range;

    OK(begin(0));
    OK(reserve(&range, 900 * MIB));
    for (unsigned i = 0; i < 3; i++) {
        OK(create(&handle, 900 * MIB, 0));
        OK(api.cuMemMap(range, 900 * MIB, 0, handle, 0));
        REFUSED(create(&other, 900 * MIB, 0));
        OK(api.cuMemUnmap(range, 900 * MIB));
        OK(api.cuMemRelease(handle));
        OK(create(&other, 900 * MIB, 0));
        OK(api.cuMemRelease(other));
    }
    HELD(0, 0);
    OK(api.cuMemAddressFree(range, 900 * MIB));
    return 0;
}

#define EACH 8

static void *create_and_release(void *arg)
{
    unsigned rounds = *(const unsigned *)arg;
    physical_handle handle[EACH], again;
    CUdeviceptr range;

    if (reserve(&range, EACH * GRANULE) != CUDA_SUCCESS)
        return (void *)1;
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < EACH; i++) {
            if (create(&handle[i], GRANULE, 0) != CUDA_SUCCESS)
                return (void *)2;
            if (round % 4 == 0 &&
                (api.cuMemMap(range + i * GRANULE, GRANULE, 0, handle[i], 0) != CUDA_SUCCESS ||
                 api.cuMemRetainAllocationHandle(
                     &again, (void *)(uintptr_t)(range + i * GRANULE)) != CUDA_SUCCESS ||
                 api.cuMemRelease(again) != CUDA_SUCCESS))
                return (void *)3;
        }
        for (unsigned i = 0; i < EACH; i++)
            if (api.cuMemRelease(handle[i]) != CUDA_SUCCESS)
                return (void *)4;
        if (round % 4 == 0 && api.cuMemUnmap(range, EACH * GRANULE) != CUDA_SUCCESS)
            return (void *)5;
    }
    return NULL;
}

static int threads_that_create_and_release_end_at_nothing(void)
{
    unsigned rounds = 20000 / EACH; /* a thread */
    pthread_t thread[8];
    void *failed;

    OK(api.cuInit(0));
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&thread[i], NULL, create_and_release, &rounds) == 0);
    for (int i = 0; i < 8; i++) {
        pthread_join(thread[i], &failed);
        SAME((uintptr_t)failed, 0);
    }
    HELD(0, 0);
    CHECK(gpu_row(0).peak_bytes <= 8 * EACH * GRANULE);
    return 0;
}

static void *create_to_the_brim(void *arg)
{
    uintptr_t granted = 0;
    physical_handle handle;

    (void)arg;
    while (create(&handle, 8 * MIB, 0) == CUDA_SUCCESS)
        granted++;
    return (void *)granted;
}

static int threads_together_get_exactly_the_ceiling(void)
{
    pthread_t thread[8];
    uintptr_t sum = 0;
    void *granted;

    OK(api.cuInit(0));
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&thread[i], NULL, create_to_the_brim, NULL) == 0);
    for (int i = 0; i < 8; i++) {
        pthread_join(thread[i], &granted);
        sum += (uintptr_t)granted;
    }
    SAME(sum, 128);
    HELD(0, 1024 * MIB);
    return 0;
}

static int in_a_new_slot_it_is_charged_again(void)
{
    CUdeviceptr range;
    physical_handle handle, mapped, more;

    OK(api.cuInit(0));
    OK(create(&handle, 300 * MIB, 0));
    OK(create(&mapped, 200 * MIB, 0));
    OK(reserve(&range, 200 * MIB));
    OK(api.cuMemMap(range, 200 * MIB, 0, mapped, 0));
    OK(api.cuMemRelease(mapped));
    CHECK(lose_slot());
    OK(create(&more, 100 * MIB, 0));
    SAME(charged(0), 600 * MIB);
    REFUSED(create(&more, 500 * MIB, 0));
    OK(api.cuMemUnmap(range, 200 * MIB));
    SAME(charged(0), 400 * MIB);
    OK(api.cuMemRelease(handle));
    SAME(charged(0), 100 * MIB);
    return 0;
}

static int denied_without_a_usable_ceiling(void)
{
    CUmemAllocationProp prop = on_device(0);
    physical_handle handle = 0x77;

    OK(api.cuInit(0));
    REFUSED(create(&handle, 64 * MIB, 0));
    SAME(handle, 0x77);
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
    OK(api.cuMemCreate(&handle, 64 * MIB, &prop, 0));
    OK(api.cuMemRelease(handle));
    return 0;
}

static int audit_lets_it_through(void)
{
    physical_handle first, second;

    OK(api.cuInit(0));
    OK(create(&first, 800 * MIB, 0));
    OK(create(&second, 800 * MIB, 0));
    HELD(0, 1600 * MIB);
    SAME(gpu_row(0).audit_refusals, 1);
    OK(api.cuMemRelease(first));
    OK(api.cuMemRelease(second));
    HELD(0, 0);
    return 0;
}

#define TWO "VRAMCAP_SIM_CARDS=2x24576"

static const struct scenario scenarios[] = {
    SCENARIO(a_handle_is_charged_until_it_is_released, NULL),
    SCENARIO(above_the_ceiling_it_is_refused_and_the_handle_untouched,
             "VRAMCAP_SIM_JOURNAL=@/journal"),
    SCENARIO(the_charge_goes_with_the_last_of_handles_and_mappings, NULL),
    SCENARIO(four_gibibytes_by_create_map_release_do_not_fit_one, NULL),
    SCENARIO(one_unmap_covers_several_maps_and_a_part_changes_nothing, NULL),
    SCENARIO(host_memory_costs_nothing_and_needs_no_context, NULL),
    SCENARIO(threads_without_a_context_charge_the_device_they_name, TWO),
    {"threads_whose_context_cannot_be_asked_for_charge_the_device_they_name",
     threads_without_a_context_charge_the_device_they_name,
     TWO ";VRAMCAP_SIM_FAIL=cuCtxGetDevice:0:201,cuCtxGetCurrent:0:201", false},
    SCENARIO(the_device_is_the_properties_not_the_contexts, TWO),
    SCENARIO(what_the_driver_refuses_leaves_no_charge, "VRAMCAP_SIM_FAIL=cuMemCreate:1:700"),
    SCENARIO(a_release_or_unmap_that_fails_keeps_the_charge,
             "VRAMCAP_SIM_FAIL=cuMemRelease:1:719,cuMemMap:1:719,cuMemUnmap:1:719,"
             "cuMemRetainAllocationHandle:1:719"),
    SCENARIO(unknown_handles_and_addresses_go_to_the_driver, NULL),
    SCENARIO(a_multicast_object_carries_no_bytes, NULL),
    SCENARIO(it_survives_contexts_that_go, NULL),
    SCENARIO(an_expandable_segment_grows_and_gives_back_parts, NULL),
    SCENARIO(a_sleeping_engine_gives_its_memory_to_others, NULL),
    SCENARIO(threads_that_create_and_release_end_at_nothing, NULL),
    SCENARIO(threads_together_get_exactly_the_ceiling, NULL),
    SCENARIO(in_a_new_slot_it_is_charged_again, NULL),
    SCENARIO(denied_without_a_usable_ceiling, "VRAMCAP_MEMORY_MIB=many"),
    SCENARIO(audit_lets_it_through, "VRAMCAP_ENABLE=audit"),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
