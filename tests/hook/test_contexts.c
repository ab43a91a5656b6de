/*
 * What goes with a context when it goes, and what a context costs (VRAMCAP_CONTEXT_MIB).
 */
#include <dlfcn.h>
#include <pthread.h>

#include "tests/hook/scenario.h"

#define BIG (800 * MIB)

/* 800 MiB in the current context, then `end`, then 800 MiB again in a context that `again` makes.
 */
#define TWICE(again, end)                                                                          \
    do {                                                                                           \
        CUdeviceptr pointer_;                                                                      \
        OK(again);                                                                                 \
        OK(api.cuMemAlloc_v2(&pointer_, BIG));                                                     \
        REFUSED(api.cuMemAlloc_v2(&pointer_, BIG));                                                \
        OK(end);                                                                                   \
        SAME(charged(0), 0);                                                                       \
        SAME(sim_alloc_bytes(&self, 0), 0);                                                        \
        OK(again);                                                                                 \
        OK(api.cuMemAlloc_v2(&pointer_, BIG));                                                     \
        SAME(charged(0), BIG);                                                                     \
    } while (0)

static CUcontext context;

static CUresult make(void)
{
    return api.cuCtxCreate_v2(&context, 0, 0);
}

static CUresult retain(void)
{
    CUresult result = api.cuDevicePrimaryCtxRetain(&context, 0);

    return result == CUDA_SUCCESS ? api.cuCtxSetCurrent(context) : result;
}

static int destroy_gives_its_memory_back(void)
{
    OK(api.cuInit(0));
    TWICE(make(), api.cuCtxDestroy_v2(context));
    OK(api.cuCtxDestroy(context)); /* the first ABI */
    SAME(charged(0), 0);
    return 0;
}

static int detach_gives_back_at_the_last_use_only(void)
{
    CUdeviceptr pointer;
    CUcontext attached;

    OK(api.cuInit(0));
    TWICE(make(), api.cuCtxDetach(context));
    OK(api.cuCtxAttach(&attached, 0));
    OK(api.cuCtxDetach(context));
    SAME(charged(0), BIG);
    OK(api.cuCtxDetach(context));
    SAME(charged(0), 0);
    OK(make());
    OK(api.cuMemAlloc_v2(&pointer, BIG));
    return 0;
}

static int last_release_gives_back_in_both_abis(void)
{
    OK(api.cuInit(0));
    TWICE(retain(), api.cuDevicePrimaryCtxRelease_v2(0));
    OK(api.cuDevicePrimaryCtxRelease(0));
    SAME(charged(0), 0);
    TWICE(retain(), api.cuDevicePrimaryCtxRelease(0));
    return 0;
}

static int reset_gives_back_in_both_abis(void)
{
    OK(api.cuInit(0));
    TWICE(retain(), api.cuDevicePrimaryCtxReset_v2(0));
    OK(api.cuDevicePrimaryCtxReset(0));
    SAME(charged(0), 0);
    TWICE(retain(), api.cuDevicePrimaryCtxReset(0));
    return 0;
}

static int releases_before_the_last_keep_the_charge(void)
{
    CUdeviceptr pointer;

    OK(api.cuInit(0));
    for (int i = 0; i < 3; i++)
        OK(retain());
    OK(api.cuMemAlloc_v2(&pointer, BIG));
    OK(api.cuDevicePrimaryCtxRelease_v2(0));
    OK(api.cuDevicePrimaryCtxRelease(0));
    SAME(charged(0), BIG);
    OK(api.cuDevicePrimaryCtxRelease_v2(0));
    SAME(charged(0), 0);
    GIVES(api.cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
    return 0;
}

static int only_that_contexts_memory_goes(void)
{
    CUcontext first, second, primary, other;
    CUdeviceptr pointer;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&first, 0, 0));
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    OK(api.cuCtxCreate_v4(&second, NULL, 0, 0));
    OK(api.cuMemAlloc_v2(&pointer, 200 * MIB));
    OK(api.cuDevicePrimaryCtxRetain(&primary, 0));
    OK(api.cuCtxSetCurrent(primary));
    OK(api.cuMemAlloc_v2(&pointer, 300 * MIB));
    OK(api.cuCtxCreate_v3(&other, NULL, 0, 0, 1));
    OK(api.cuMemAlloc_v2(&pointer, 400 * MIB));
    OK(api.cuCtxDestroy_v2(first));
    SAME(charged(0), 500 * MIB);
    OK(api.cuDevicePrimaryCtxReset_v2(0));
    SAME(charged(0), 200 * MIB);
    OK(api.cuCtxDestroy(second));
    SAME(charged(0), 0);
    SAME(charged(1), 400 * MIB);
    return 0;
}

static int memory_freed_elsewhere_before_is_not_given_back_twice(void)
{
    CUcontext first, second;
    CUdeviceptr a, b;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&first, 0, 0));
    OK(api.cuMemAlloc_v2(&a, 100 * MIB));
    OK(api.cuCtxCreate(&second, 0, 0));
    OK(api.cuMemAlloc_v2(&b, 200 * MIB));
    OK(api.cuMemFree_v2(a)); /* the other context is current */
    SAME(charged(0), 200 * MIB);
    OK(api.cuCtxDestroy_v2(first));
    SAME(charged(0), 200 * MIB);
    SAME(gpu_row(0).peak_bytes, 300 * MIB);
    return 0;
}

static void *allocate(void *arg)
{
    CUdeviceptr pointer;

    if (api.cuCtxSetCurrent(arg) != CUDA_SUCCESS ||
        api.cuMemAlloc_v2(&pointer, 400 * MIB) != CUDA_SUCCESS)
        return NULL;
    return arg;
}

static int another_threads_memory_goes_with_the_context(void)
{
    CUdeviceptr pointer;
    pthread_t thread;
    void *done;

    OK(api.cuInit(0));
    OK(make());
    OK(api.cuMemAlloc_v2(&pointer, 400 * MIB));
    CHECK(pthread_create(&thread, NULL, allocate, context) == 0);
    pthread_join(thread, &done);
    CHECK(done != NULL);
    SAME(charged(0), BIG);
    OK(api.cuCtxDestroy_v2(context));
    SAME(charged(0), 0);
    return 0;
}

static int a_failed_destroy_keeps_the_charge(void)
{
    CUdeviceptr pointer;

    OK(api.cuInit(0));
    OK(make());
    OK(api.cuMemAlloc_v2(&pointer, BIG));
    GIVES(api.cuCtxDestroy_v2(context), CUDA_ERROR_LAUNCH_FAILED);
    SAME(charged(0), BIG);
    OK(api.cuCtxDestroy_v2(context));
    SAME(charged(0), 0);
    return 0;
}

static int auto_charges_nothing_and_calls_overhead_unknown(void)
{
    CUdeviceptr pointer;

    OK(api.cuInit(0));
    OK(make());
    OK(api.cuMemAlloc_v2(&pointer, MIB));
    SAME(charged(0), MIB);
    SAME(gpu_row(0).overhead_bytes, VCAP_UNKNOWN);
    return 0;
}

/* ---- VRAMCAP_CONTEXT_MIB=100 ---- */

static int a_fixed_cost_is_charged_and_shown_as_overhead(void)
{
    CUcontext more[4];
    CUdeviceptr pointer;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&more[0], 0, 0));
    SAME(charged(0), 100 * MIB);
    SAME(gpu_row(0).overhead_bytes, 100 * MIB);
    OK(api.cuCtxCreate(&more[1], 0, 0));
    OK(api.cuCtxCreate_v3(&more[2], NULL, 0, 0, 0));
    OK(api.cuCtxCreate_v4(&more[3], NULL, 0, 0));
    SAME(charged(0), 400 * MIB);
    OK(retain());
    OK(retain());
    SAME(charged(0), 500 * MIB);
    OK(api.cuMemAlloc_v2(&pointer, 24 * MIB));
    SAME(charged(0), 524 * MIB);
    SAME(gpu_row(0).overhead_bytes, 500 * MIB);
    REFUSED(api.cuMemAlloc_v2(&pointer, 502 * MIB));
    OK(api.cuDevicePrimaryCtxRelease_v2(0));
    SAME(charged(0), 524 * MIB);
    OK(api.cuDevicePrimaryCtxRelease(0));
    SAME(charged(0), 400 * MIB);
    for (int i = 0; i < 4; i++)
        OK(api.cuCtxDestroy_v2(more[i]));
    SAME(charged(0), 0);
    SAME(gpu_row(0).overhead_bytes, 0);
    return 0;
}

static int a_context_without_room_is_refused(void)
{
    CUcontext untouched = (CUcontext)(uintptr_t)0x77;
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 900 * MIB));
    REFUSED(api.cuCtxCreate_v2(&untouched, 0, 0));
    REFUSED(api.cuCtxCreate(&untouched, 0, 0));
    REFUSED(api.cuCtxCreate_v3(&untouched, NULL, 0, 0, 0));
    REFUSED(api.cuCtxCreate_v4(&untouched, NULL, 0, 0));
    REFUSED(api.cuDevicePrimaryCtxRetain(&untouched, 0));
    CHECK(untouched == (CUcontext)(uintptr_t)0x77);
    SAME(charged(0), 1000 * MIB);
    SAME(gpu_row(0).refusals, 5);
    SAME(journal_count("cuCtxCreate_v2"), 1);
    SAME(journal_count("cuDevicePrimaryCtxRetain"), 0);
    return 0;
}

static int a_retain_that_fails_leaves_the_ledger_as_it_was(void)
{
    CUcontext untouched = (CUcontext)(uintptr_t)0x77;

    OK(api.cuInit(0));
    GIVES(api.cuDevicePrimaryCtxRetain(&untouched, 0), CUDA_ERROR_LAUNCH_FAILED);
    CHECK(untouched == (CUcontext)(uintptr_t)0x77);
    SAME(charged(0), 0);
    SAME(gpu_row(0).overhead_bytes, 0);
    GIVES(api.cuCtxCreate_v2(&untouched, 0, 0), CUDA_ERROR_LAUNCH_FAILED);
    CHECK(untouched == (CUcontext)(uintptr_t)0x77);
    SAME(charged(0), 0);
    OK(retain());
    SAME(charged(0), 100 * MIB);
    return 0;
}

static int null_and_bad_devices_are_the_drivers(void)
{
    CUcontext untouched = (CUcontext)(uintptr_t)0x77;

    OK(api.cuInit(0));
    GIVES(api.cuCtxCreate_v2(NULL, 0, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuDevicePrimaryCtxRetain(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuCtxCreate_v2(&untouched, 0, 9), CUDA_ERROR_INVALID_DEVICE);
    GIVES(api.cuDevicePrimaryCtxRetain(&untouched, -3), CUDA_ERROR_INVALID_DEVICE);
    GIVES(api.cuDevicePrimaryCtxRelease_v2(77), CUDA_ERROR_INVALID_DEVICE);
    GIVES(api.cuDevicePrimaryCtxReset_v2(77), CUDA_ERROR_INVALID_DEVICE);
    CHECK(untouched == (CUcontext)(uintptr_t)0x77);
    CHECK(charged(0) == 0);
    return 0;
}

static pthread_barrier_t barrier;

static void *retain_at_once(void *arg)
{
    CUcontext mine;

    (void)arg;
    pthread_barrier_wait(&barrier);
    return (void *)(uintptr_t)api.cuDevicePrimaryCtxRetain(&mine, 0);
}

static int two_threads_that_retain_at_once_are_charged_once(void)
{
    OK(api.cuInit(0));
    for (int round = 0; round < 50; round++) {
        pthread_t thread[2];
        void *result[2];

        pthread_barrier_init(&barrier, NULL, 2);
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&thread[i], NULL, retain_at_once, NULL) == 0);
        for (int i = 0; i < 2; i++)
            pthread_join(thread[i], &result[i]);
        OK((uintptr_t)result[0]);
        OK((uintptr_t)result[1]);
        SAME(charged(0), 100 * MIB);
        OK(api.cuDevicePrimaryCtxRelease_v2(0));
        OK(api.cuDevicePrimaryCtxRelease_v2(0));
        SAME(charged(0), 0);
    }
    return 0;
}

static int a_reset_then_use_again_is_charged_once(void)
{
    CUdeviceptr pointer;

    OK(api.cuInit(0));
    OK(retain());
    OK(api.cuMemAlloc_v2(&pointer, 200 * MIB));
    OK(api.cuDevicePrimaryCtxReset_v2(0));
    SAME(charged(0), 0);
    OK(retain());
    OK(api.cuMemAlloc_v2(&pointer, 200 * MIB));
    SAME(charged(0), 300 * MIB);
    return 0;
}

static int a_context_made_behind_the_hooks_is_booked_not_refused(void)
{
    /* a later library's RTLD_NEXT passes us by, as the runtime's own tables do */
    void *plugin = dlopen(TEST_BEHIND, RTLD_NOW | RTLD_LOCAL);
    void *(*next)(const char *);
    PFN_cuDevicePrimaryCtxRetain_v7000 behind;
    CUcontext first, second;

    CHECK(plugin != NULL);
    next = (void *(*)(const char *))(uintptr_t)dlsym(plugin, "plugin_next");
    CHECK(next != NULL);
    behind = (PFN_cuDevicePrimaryCtxRetain_v7000)(uintptr_t)next("cuDevicePrimaryCtxRetain");
    CHECK(behind != NULL);
    OK(api.cuInit(0));
    OK(behind(&first, 0));
    OK(api.cuDevicePrimaryCtxRetain(&second,
                                    0)); /* exists already: the driver takes nothing more */
    CHECK(first == second);
    SAME(charged(0), 100 * MIB); /* under 50 */
    CHECK(gpu_row(0).over);
    OK(api.cuDevicePrimaryCtxRelease(0));
    SAME(charged(0), 100 * MIB);
    OK(api.cuDevicePrimaryCtxRelease_v2(0));
    SAME(charged(0), 0);
    return 0;
}

#define FIXED "VRAMCAP_CONTEXT_MIB=100"

static const struct scenario scenarios[] = {
    SCENARIO(destroy_gives_its_memory_back, NULL),
    SCENARIO(detach_gives_back_at_the_last_use_only, NULL),
    SCENARIO(last_release_gives_back_in_both_abis, NULL),
    SCENARIO(reset_gives_back_in_both_abis, NULL),
    SCENARIO(releases_before_the_last_keep_the_charge, NULL),
    SCENARIO(only_that_contexts_memory_goes, "VRAMCAP_SIM_CARDS=2x24576"),
    SCENARIO(memory_freed_elsewhere_before_is_not_given_back_twice, NULL),
    SCENARIO(another_threads_memory_goes_with_the_context, NULL),
    SCENARIO(a_failed_destroy_keeps_the_charge, "VRAMCAP_SIM_FAIL=cuCtxDestroy_v2:1:719"),
    SCENARIO(auto_charges_nothing_and_calls_overhead_unknown, NULL),
    SCENARIO(a_fixed_cost_is_charged_and_shown_as_overhead, FIXED),
    SCENARIO(a_context_without_room_is_refused, FIXED ";VRAMCAP_SIM_JOURNAL=@/journal"),
    SCENARIO(a_retain_that_fails_leaves_the_ledger_as_it_was,
             FIXED ";VRAMCAP_SIM_FAIL=cuDevicePrimaryCtxRetain:1:719,cuCtxCreate_v2:1:719"),
    SCENARIO(null_and_bad_devices_are_the_drivers, FIXED),
    SCENARIO(two_threads_that_retain_at_once_are_charged_once,
             FIXED ";VRAMCAP_SIM_DELAY_US=cuDevicePrimaryCtxRetain:2000"),
    {"two_threads_that_retain_at_once_both_fit_where_one_context_does",
     two_threads_that_retain_at_once_are_charged_once,
     "VRAMCAP_CONTEXT_MIB=100;VRAMCAP_MEMORY_MIB=150;VRAMCAP_SIM_DELAY_US=cuDevicePrimaryCtxRetain:"
     "2000",
     false},
    SCENARIO(a_reset_then_use_again_is_charged_once, FIXED),
    SCENARIO(a_context_made_behind_the_hooks_is_booked_not_refused,
             "VRAMCAP_CONTEXT_MIB=100;VRAMCAP_MEMORY_MIB=50"),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
