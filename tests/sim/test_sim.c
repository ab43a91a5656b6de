/*
 * The simulated driver by itself: resolver, memory and its exact accounting, contexts,
 * old ABIs, copies, devices. What needs several processes is in test_sim_process.c.
 *
 * No preload: a failure here is the simulator's own.
 */
#define _GNU_SOURCE
#include "test_sim_support.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONTEXT (64 * MIB) /* the default cost */

static uint64_t used(void)
{
    struct sim_state *state = sim_state_open(NULL);
    uint64_t bytes = sim_card_used(state, 0);

    sim_state_close(state);
    return bytes;
}

static uint64_t alloc_used(void)
{
    struct sim_state *state = sim_state_open(NULL);
    uint64_t bytes = sim_card_alloc_used(state, 0);

    sim_state_close(state);
    return bytes;
}

/* --- resolver ------------------------------------------------------------------ */

static int requests(void)
{
    char name[128], expected[128];
    int version = 0, lines = 0;
    unsigned long long flags = 0;
    void *self = dlopen(SIM_DIR "/libcuda.so.1", RTLD_NOW);
    FILE *file = fopen(SIM_REQUESTS, "r");

    CHECK(self && file);
    while (fscanf(file, "%127s %d %llu %127s", name, &version, &flags, expected) == 4) {
        void *address = &version, *plain = &version;
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
        bool absent = strcmp(expected, "NOT_FOUND") == 0;

        lines++;
        OK(cuGetProcAddress_v2(name, &address, version, flags, &status));
        if (absent ? address != NULL || status != CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
                   : address == NULL || address != dlsym(self, expected)) {
            (void)fprintf(stderr, "%s %d %llu is not %s\n", name, version, flags, expected);
            return 1;
        }
        CHECK(cuGetProcAddress(name, &plain, version, flags) ==
              (absent ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS));
        CHECK(plain == address);
    }
    (void)fclose(file);
    CHECK(lines == 439);
    return 0;
}

static void every_request_of_the_runtime_gets_its_symbol(void **state)
{
    (void)state;
    assert_int_equal(sim_run(requests, NULL), 0);
}

static int statuses(void)
{
    void *address = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;

    CHECK(cuGetProcAddress_v2("", &address, 0, 0, NULL) == CUDA_ERROR_NOT_FOUND);
    OK(cuGetProcAddress_v2("cuMemAllocAsync", &address, 11000, 0, &status));
    CHECK(address == NULL && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    OK(cuGetProcAddress_v2("cuMemAlloc_v2", &address, 13000, 0, &status));
    CHECK(address == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK(cuGetProcAddress_v2("cuInit", &address, 13000, 8, &status) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGetProcAddress_v2("cuInit", NULL, 13000, 0, &status) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGetProcAddress_v2("cuInit", &address, 13000, 2, NULL));
    CHECK(address == (void *)(uintptr_t)cuInit);
    return 0;
}

static void resolver_statuses_are_the_drivers(void **state)
{
    (void)state;
    assert_int_equal(sim_run(statuses, NULL), 0);
}

static int aliases(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    void *address = NULL;
    CUresult (*allocate)(CUdeviceptr *, size_t) = NULL;

    CHECK(sim_begin(&context) == 0);
    OK(cuGetProcAddress_v2("cuMemAlloc", &address, 13000, 0, NULL));
    CHECK(address != (void *)(uintptr_t)cuMemAlloc_v2);
    memcpy(&allocate, &address, sizeof allocate);
    OK(allocate(&pointer, 4 * MIB));
    CHECK(used() == CONTEXT + 4 * MIB);
    return 0;
}

static void alias_mode_hands_out_other_addresses_that_work(void **state)
{
    (void)state;
    assert_int_equal(sim_run(aliases, "VRAMCAP_SIM_ALIAS=1"), 0);
}

static int newer(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    void *known = NULL, *unknown = NULL;
    CUresult (*allocate)(CUdeviceptr *, size_t, unsigned long long) = NULL;

    CHECK(sim_begin(&context) == 0);
    OK(cuGetProcAddress_v2("cuMemAlloc", &known, 13000, 0, NULL));
    OK(cuGetProcAddress_v2("cuMemAlloc", &unknown, 13090, 0, NULL));
    CHECK(known == (void *)(uintptr_t)cuMemAlloc_v2 && unknown != known);
    memcpy(&allocate, &unknown, sizeof allocate);
    OK(allocate(&pointer, 4 * MIB, 7));
    return 0;
}

static void newer_mode_has_a_variant_no_header_knows(void **state)
{
    (void)state;
    assert_int_equal(sim_run(newer, "VRAMCAP_SIM_NEWER=1;VRAMCAP_SIM_VERSION=13090"), 0);
}

static int older(void)
{
    void *address = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    int version = 0;

    OK(cuDriverGetVersion(&version));
    CHECK(version == 12000);
    OK(cuGetProcAddress_v2("cuGraphAddNode", &address, 13000, 0, &status));
    CHECK(address == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(cuInit(0));
    CHECK(cuCtxCreate_v4(NULL, NULL, 0, 0) == CUDA_ERROR_NOT_SUPPORTED);
    return 0;
}

static int variants(void)
{
    void *first = dlopen(SIM_DIR "/variants/v11_0/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *second = dlopen(SIM_DIR "/variants/v11_5/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    CHECK(first && second);
    CHECK(dlsym(first, "cuMemAlloc_v2") && !dlsym(first, "cuGetProcAddress") &&
          !dlsym(first, "cuMemAllocAsync"));
    CHECK(dlsym(second, "cuGetProcAddress") && !dlsym(second, "cuGetProcAddress_v2"));
    return 0;
}

static void older_drivers_lack_newer_symbols(void **state)
{
    (void)state;
    assert_int_equal(sim_run(older, "VRAMCAP_SIM_VERSION=12000"), 0);
    assert_int_equal(sim_run(variants, NULL), 0);
}

/* --- memory ---------------------------------------------------------------------- */

static int small_and_large(void)
{
    CUcontext context = NULL;
    CUdeviceptr small[3], large = 0, managed = 0;
    size_t free_bytes = 0, total = 0;
    uint64_t page = strtoull(getenv("VRAMCAP_SIM_PAGE_KIB"), NULL, 10) << 10;

    CHECK(sim_begin(&context) == 0);
    CHECK(used() == CONTEXT);
    OK(cuMemAlloc_v2(&small[0], 1));
    OK(cuMemAlloc_v2(&small[1], 513));
    CHECK(used() == CONTEXT + 2 * MIB && alloc_used() == 512 + 1024);
    OK(cuMemAlloc_v2(&small[2], MIB));
    CHECK(used() == CONTEXT + 2 * MIB);
    OK(cuMemAlloc_v2(&large, MIB + 1));
    CHECK(used() == CONTEXT + 2 * MIB + (MIB + page) / page * page);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(total == 24576 * MIB && free_bytes == total - used());
    OK(cuMemAllocManaged(&managed, 100 * MIB, CU_MEM_ATTACH_GLOBAL));
    CHECK(free_bytes == total - used());
    *(volatile char *)(uintptr_t)managed = 1;
    OK(cuMemFree_v2(managed));
    for (int i = 0; i < 3; i++)
        OK(cuMemFree_v2(small[i]));
    CHECK(cuMemFree_v2(small[0]) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree_v2(large + 512) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeAsync(large, NULL));
    OK(cuMemFree_v2(0));
    CHECK(used() == CONTEXT && alloc_used() == 0);
    CHECK(cuMemAlloc_v2(&large, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAlloc_v2(&large, 24576 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAlloc_v2(&large, SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(used() == CONTEXT);
    return 0;
}

static void used_is_the_sum_of_what_lives(void **state)
{
    (void)state;
    assert_int_equal(sim_run(small_and_large, "VRAMCAP_SIM_PAGE_KIB=2048"), 0);
    assert_int_equal(sim_run(small_and_large, "VRAMCAP_SIM_PAGE_KIB=64"), 0);
}

static int pitch(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    size_t bytes = 0, range = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAllocPitch_v2(&pointer, &bytes, 1, 1000000, 4));
    CHECK(bytes == 256);
    OK(cuMemGetAddressRange_v2(NULL, &range, pointer + 5));
    CHECK(range == 256 * 1000000);
    CHECK(cuMemAllocPitch_v2(&pointer, &bytes, 1, 1, 3) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void pitched_alloc_uses_the_pitch_that_was_set(void **state)
{
    (void)state;
    assert_int_equal(sim_run(pitch, "VRAMCAP_SIM_PITCH=256"), 0);
    assert_int_equal(sim_run(pitch, "VRAMCAP_SIM_PITCH=256;VRAMCAP_SIM_INNER=1"), 0);
}

static int old_abi(void)
{
    CUcontext context = NULL;
    CUdeviceptr_v1 pointer = 0, pitched = 0, base = 0;
    unsigned int step = 0, size = 0, free_bytes = 0, total = 0;
    char text[6] = {0};

    OK(cuInit(0));
    OK(cuCtxCreate(&context, 0, 0));
    OK(cuMemAlloc(&pointer, 1000));
    OK(cuMemAllocPitch(&pitched, &step, 100, 30, 4));
    CHECK(step == 512);
    OK(cuMemcpyHtoD(pointer, "hello", 6));
    OK(cuMemcpyDtoD(pitched, pointer, 6));
    OK(cuMemcpyDtoH(text, pitched, 6));
    CHECK(strcmp(text, "hello") == 0);
    OK(cuMemGetAddressRange(&base, &size, pointer + 999));
    CHECK(base == pointer && size == 1000);
    OK(cuMemGetInfo(&free_bytes, &total));
    CHECK(total == UINT32_MAX);
    OK(cuMemFree(pointer));
    OK(cuMemFree(pitched));
    OK(cuCtxDestroy(context));
    CHECK(used() == 0);
    return 0;
}

static void old_abi_has_32_bit_addresses_that_work(void **state)
{
    (void)state;
    assert_int_equal(sim_run(old_abi, NULL), 0);
}

static int bytes_move(void)
{
    CUcontext context = NULL;
    CUdeviceptr a = 0, b = 0;
    unsigned int words[64];
    CUDA_MEMCPY2D copy;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAlloc_v2(&a, 20000 * MIB)); /* costs nothing: only touched bytes exist */
    OK(cuMemAlloc_v2(&b, 4096));
    OK(cuMemsetD8_v2(a, 0, 20000 * MIB));
    OK(cuMemsetD32_v2(a + 10000 * MIB, 0x01020304, 16));
    OK(cuMemsetD2D32_v2(b, 64, 9, 4, 4));
    memset(words, 0xff, sizeof words);
    OK(cuMemcpyDtoH_v2(words, a + 10000 * MIB, sizeof words));
    CHECK(words[0] == 0x01020304 && words[15] == 0x01020304 && words[16] == 0);
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = b;
    copy.srcPitch = 64;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = words;
    copy.dstPitch = 16;
    copy.WidthInBytes = 16;
    copy.Height = 4;
    OK(cuMemcpy2D_v2(&copy));
    CHECK(words[0] == 9 && words[15] == 9);
    OK(cuMemcpyAsync(b, a + 10000 * MIB, 8, NULL));
    CHECK(cuMemcpyHtoD_v2(b + 4000, words, 200) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemcpyDtoH_v2(words, b + 8192, 4) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(a));
    OK(cuMemAlloc_v2(&a, 20000 * MIB));
    OK(cuMemcpyDtoH_v2(words, a + 10000 * MIB, 4));
    CHECK(words[0] == 0); /* a freed page does not come back with its old bytes */
    return 0;
}

static void copies_move_bytes_and_mind_the_bounds(void **state)
{
    (void)state;
    assert_int_equal(sim_run(bytes_move, NULL), 0);
}

static int touch(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAlloc_v2(&pointer, 4 * MIB));
    (void)close(2); /* a sanitizer's report of the fault is no news */
    return *(volatile char *)(uintptr_t)pointer;
}

static void host_touch_of_device_memory_faults(void **state)
{
    (void)state;
    assert_int_not_equal(sim_run(touch, NULL), 0);
}

/* --- contexts ---------------------------------------------------------------------- */

static int destroyed(void)
{
    CUcontext context = NULL, other = NULL, current = NULL;
    CUdeviceptr pointer = 0;
    CUstream stream = NULL;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    size_t bytes = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuCtxCreate_v3(&other, NULL, 0, 0, 0));
    CHECK(used() == 2 * CONTEXT);
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    OK(cuMemAlloc_v2(&pointer, 10));
    OK(cuMemAllocPitch_v2(&pointer, &bytes, 100, 100000, 4));
    OK(cuMemAllocManaged(&pointer, 10 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuStreamCreate(&stream, 0));
    OK(cuMemCreate(&handle, 4 * MIB, &properties, 0));
    OK(cuMemAllocAsync(&pointer, 2 * MIB, stream));
    OK(cuCtxDestroy_v2(other));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == context);
    CHECK(used() == CONTEXT + 6 * MIB); /* what belongs to the device stays */
    CHECK(cuCtxSetCurrent(other) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuMemFree_v2(pointer));
    OK(cuCtxSynchronize()); /* a pool gives back at a wait */
    OK(cuMemRelease(handle));
    CHECK(cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE);
    CUcontext attached = NULL;
    OK(cuCtxAttach(&attached, 0));
    OK(cuCtxDetach(context));
    CHECK(used() == CONTEXT);
    OK(cuCtxDetach(context));
    CHECK(used() == 0);
    CHECK(cuMemAlloc_v2(&pointer, 1) == CUDA_ERROR_INVALID_CONTEXT);
    return 0;
}

static void destroying_a_context_frees_what_is_its_own(void **state)
{
    (void)state;
    assert_int_equal(sim_run(destroyed, "VRAMCAP_SIM_POOL_CHUNK_MIB=2"), 0);
}

static int primary(void)
{
    CUcontext first = NULL, second = NULL;
    CUdeviceptr pointer = 0;
    unsigned int flags = 0;
    int active = 1;

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 0 && used() == 0);
    for (int i = 0; i < 3; i++)
        OK(cuDevicePrimaryCtxRetain(&first, 0));
    CHECK(used() == CONTEXT);
    OK(cuCtxSetCurrent(first));
    OK(cuMemAlloc_v2(&pointer, 2 * MIB));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK(used() == CONTEXT + 2 * MIB);
    OK(cuDevicePrimaryCtxRelease(0));
    CHECK(used() == 0);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuMemAlloc_v2(&pointer, 1) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuDevicePrimaryCtxRetain(&second, 0));
    CHECK(second == first);
    OK(cuMemAlloc_v2(&pointer, 2 * MIB));
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 0 && used() == 0);
    OK(cuDevicePrimaryCtxRelease(0));
    return 0;
}

static void primary_context_is_counted_and_its_handle_stable(void **state)
{
    (void)state;
    assert_int_equal(sim_run(primary, NULL), 0);
}

static CUcontext shared_context;

static void *hammer(void *unused)
{
    unsigned int seed = (unsigned int)(uintptr_t)unused;
    CUdeviceptr held[16] = {0};

    if (cuCtxSetCurrent(shared_context) != CUDA_SUCCESS)
        return "no context";
    for (int i = 0; i < 1000; i++) {
        seed = seed * 1664525U + 1013904223U;
        unsigned int at = (seed >> 8) % 16;

        if (held[at] != 0 && cuMemFree_v2(held[at]) != CUDA_SUCCESS)
            return "free failed";
        held[at] = 0;
        if (cuMemAlloc_v2(&held[at], (seed >> 12) % (4 * MIB) + 1) != CUDA_SUCCESS)
            return "allocation failed";
        if (cuMemsetD8_v2(held[at], (unsigned char)i, 1) != CUDA_SUCCESS)
            return "memset failed";
    }
    for (int at = 0; at < 16; at++)
        if (cuMemFree_v2(held[at]) != CUDA_SUCCESS)
            return "last free failed";
    return NULL;
}

static int threads(void)
{
    pthread_t thread[4];

    CHECK(sim_begin(&shared_context) == 0);
    for (uintptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&thread[i], NULL, hammer, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++) {
        void *complaint = NULL;

        (void)pthread_join(thread[i], &complaint);
        if (complaint)
            (void)fprintf(stderr, "%s\n", (char *)complaint);
        CHECK(complaint == NULL);
    }
    CHECK(used() == CONTEXT && alloc_used() == 0);
    return 0;
}

static void threads_leave_the_card_as_they_found_it(void **state)
{
    (void)state;
    assert_int_equal(sim_run(threads, NULL), 0);
}

static int bench(void)
{
    CUdeviceptr pointer = 0, again = 0;

    CHECK(sim_begin(&shared_context) == 0);
    OK(cuMemAlloc_v2(&pointer, 4096));
    OK(cuMemFree_v2(pointer));
    OK(cuMemAlloc_v2(&again, 4096));
    CHECK(again == pointer);
    OK(cuMemFree_v2(again));
    CHECK(used() == 0); /* nothing of it is in the shared state */
    return 0;
}

static void bench_mode_is_private(void **state)
{
    (void)state;
    assert_int_equal(sim_run(bench, "VRAMCAP_SIM_BENCH=1"), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, sim_test_setup, sim_test_teardown)

static const struct CMUnitTest tests[] = {
    TEST(every_request_of_the_runtime_gets_its_symbol),
    TEST(resolver_statuses_are_the_drivers),
    TEST(alias_mode_hands_out_other_addresses_that_work),
    TEST(newer_mode_has_a_variant_no_header_knows),
    TEST(older_drivers_lack_newer_symbols),
    TEST(used_is_the_sum_of_what_lives),
    TEST(pitched_alloc_uses_the_pitch_that_was_set),
    TEST(old_abi_has_32_bit_addresses_that_work),
    TEST(copies_move_bytes_and_mind_the_bounds),
    TEST(host_touch_of_device_memory_faults),
    TEST(destroying_a_context_frees_what_is_its_own),
    TEST(primary_context_is_counted_and_its_handle_stable),
    TEST(threads_leave_the_card_as_they_found_it),
    TEST(bench_mode_is_private),
};

int main(void)
{
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    return failed + _cmocka_run_group_tests("processes", sim_process_tests, sim_process_test_count,
                                            NULL, NULL);
}
