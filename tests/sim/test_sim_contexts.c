/*
 * What takes memory, or is memory's owner, beside plain contexts: limits, green contexts, MIG slices.
 */
#define _GNU_SOURCE
#include "test_sim_support.h"

#include <stdlib.h>
#include <string.h>

#define CONTEXT (64 * MIB) /* the default cost */

static uint64_t context_used(void)
{
    struct sim_state *state = sim_state_open(NULL);
    struct sim_file *copy = calloc(1, sizeof *copy);
    uint64_t bytes = 0;

    if (state && copy && sim_state_snapshot(state, copy) == 0)
        bytes = copy->card[0].now.context;
    free(copy);
    sim_state_close(state);
    return bytes;
}

/* --- limits ------------------------------------------------------------------------------ */

static int limits(void)
{
    const uint64_t stack = 132 * 2048; /* bytes of the card per byte of stack */
    CUcontext context = NULL, primary = NULL;
    size_t value = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    CHECK(value == 1024);
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    CHECK(sim_test_used(0) == CONTEXT + 3072 * stack && context_used() == sim_test_used(0));
    CHECK(sim_test_alloc(0) == 0);
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2000));
    OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    CHECK(value == 2000 && sim_test_used(0) < CONTEXT + 3072 * stack);
    /* over the card: nothing changes */
    uint64_t before = sim_test_used(0);
    CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16384) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024 * 1024) == CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    CHECK(value == 2000 && sim_test_used(0) == before);
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 512)); /* below the default saves nothing */
    CHECK(sim_test_used(0) == CONTEXT);
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 108 * MIB));
    OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 11 * MIB));
    CHECK(sim_test_used(0) == CONTEXT + 110 * MIB);
    OK(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048 + 1024));
    CHECK(sim_test_used(0) == CONTEXT + 114 * MIB);
    CHECK(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 4) == CUDA_ERROR_UNSUPPORTED_LIMIT);
    OK(cuCtxDestroy_v2(context));
    CHECK(sim_test_used(0) == 0);
    /* a reset primary context starts from the defaults */
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 108 * MIB));
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK(sim_test_used(0) == 0);
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxGetLimit(&value, CU_LIMIT_MALLOC_HEAP_SIZE));
    CHECK(value == 8 * MIB && sim_test_used(0) == CONTEXT);
    return 0;
}

static int depth(void)
{
    CUcontext context = NULL;
    int major = 0, minor = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    OK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
    CHECK(major == 8 && minor == 6);
    OK(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 4));
    CHECK(sim_test_used(0) == CONTEXT + 64 * MIB);
    CHECK(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 25) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void limits_take_card_memory_and_give_it_back(void **state)
{
    (void)state;
    assert_int_equal(sim_run(limits, "VRAMCAP_SIM_CARDS=2048"), 0);
    assert_int_equal(sim_run(depth, "VRAMCAP_SIM_CC=86"), 0);
}

/* --- green contexts ---------------------------------------------------------------------- */

static int green(void)
{
    CUdevResource all, groups[3], rest;
    CUdevResourceDesc desc = NULL;
    CUgreenCtx first = NULL, second = NULL;
    CUcontext context = NULL, current = NULL, primary = NULL;
    CUstream stream = NULL;
    CUdeviceptr pointer = 0, async = 0;
    CUdevice device = 9;
    unsigned int count = 3, flags = 0;
    int active = 1;

    OK(cuInit(0));
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(all.sm.smCount == 132);
    OK(cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 0, 30));
    CHECK(count == 4);
    count = 3;
    OK(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 30));
    CHECK(count == 3 && groups[2].sm.smCount == 32 && rest.sm.smCount == 36);
    OK(cuDevResourceGenerateDesc(&desc, groups, 1));
    CHECK(cuGreenCtxCreate(&first, desc, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGreenCtxCreate(&first, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuGreenCtxCreate(&second, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    CHECK(sim_test_used(0) == CONTEXT); /* the primary context's */
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 1);
    CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == NULL);
    OK(cuCtxFromGreenCtx(&context, first));
    OK(cuCtxSetCurrent(context));
    OK(cuCtxGetCurrent(&current));
    OK(cuCtxGetDevice(&device));
    CHECK(current == context && device == 0);
    OK(cuCtxGetDevResource(context, &all, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(all.sm.smCount == 32);
    OK(cuMemAlloc_v2(&pointer, 4 * MIB));
    OK(cuGreenCtxStreamCreate(&stream, first, CU_STREAM_NON_BLOCKING, 0));
    OK(cuMemAllocAsync(&async, 4 * MIB, stream));
    OK(cuMemFreeAsync(async, stream));
    OK(cuStreamDestroy_v2(stream));
    CHECK(cuCtxDestroy_v2(context) == CUDA_ERROR_INVALID_CONTEXT);
    OK(cuGreenCtxDestroy(first));
    CHECK(cuGreenCtxDestroy(first) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuMemAlloc_v2(&async, 4 * MIB) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    /* memory is the primary context's, which the second one keeps */
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    OK(cuMemcpyDtoH_v2(&active, pointer, 4));
    CHECK(primary != context);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuGreenCtxDestroy(second));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 0);
    return 0;
}

static void a_green_context_is_a_part_of_the_primary_one(void **state)
{
    (void)state;
    assert_int_equal(sim_run(green, NULL), 0);
}

/* --- MIG --------------------------------------------------------------------------------- */

static int slice(void)
{
    unsigned char own[16], gpu[16];
    CUuuid first, second;
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    size_t total = 0;
    int count = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuDeviceGetCount(&count));
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(count == 1 && total == 2048 * MIB);
    OK(cuDeviceGetUuid(&first, 0));
    OK(cuDeviceGetUuid_v2(&second, 0));
    sim_card_uuid(1, own);
    sim_card_uuid(SIM_MAX_CARDS + 3, gpu);
    CHECK(memcmp(second.bytes, own, 16) == 0 && memcmp(first.bytes, gpu, 16) == 0);
    OK(cuMemAlloc_v2(&pointer, 4 * MIB));
    CHECK(sim_test_used(1) == CONTEXT + 4 * MIB && sim_test_used(0) == 0);
    return 0;
}

static int whole(void)
{
    CUuuid first, second;
    int count = 0;

    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    OK(cuDeviceGetUuid(&first, 0));
    OK(cuDeviceGetUuid_v2(&second, 0));
    CHECK(count == 2 && memcmp(first.bytes, second.bytes, 16) == 0);
    return 0;
}

static int none(void)
{
    return cuInit(0) == CUDA_ERROR_NO_DEVICE ? 0 : 1;
}

static void a_mig_slice_has_two_identities_and_is_chosen_by_its_own(void **state)
{
    unsigned char uuid[16];
    char text[48], environment[200];

    (void)state;
#define MIG "VRAMCAP_SIM_CARDS=1024,2048,4096;VRAMCAP_SIM_MIG=1:3"
    assert_int_equal(sim_run(whole, MIG), 0);
    sim_card_uuid(1, uuid);
    sim_uuid_text(uuid, text);
    (void)snprintf(environment, sizeof environment, MIG ";CUDA_VISIBLE_DEVICES=MIG-%s", text + 4);
    assert_int_equal(sim_run(slice, environment), 0);
    (void)snprintf(environment, sizeof environment, MIG ";CUDA_VISIBLE_DEVICES=1,0");
    assert_int_equal(sim_run(slice, environment), 0);
    (void)snprintf(environment, sizeof environment, MIG ";CUDA_VISIBLE_DEVICES=%s", text);
    assert_int_equal(sim_run(none, environment), 0);
    sim_card_uuid(0, uuid);
    sim_uuid_text(uuid, text);
    (void)snprintf(environment, sizeof environment, MIG ";CUDA_VISIBLE_DEVICES=MIG-%s", text + 4);
    assert_int_equal(sim_run(none, environment), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, sim_test_setup, sim_test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(limits_take_card_memory_and_give_it_back),
        TEST(a_green_context_is_a_part_of_the_primary_one),
        TEST(a_mig_slice_has_two_identities_and_is_chosen_by_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
