/*
 * cuMemAlloc and cuMemFree in both ABIs: what is charged, when, and what a refusal looks like.
 */
#include <pthread.h>
#include <string.h>

#include "tests/hook/scenario.h"

static int sizes_are_charged_by_the_rule_and_given_back(void)
{
    static const size_t sizes[] = {1,       511,     512,     513,     1048575,
                                   1048576, 1048577, 2097152, 2097153, 10 * MIB + 1};

    OK(begin(0));
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        CUdeviceptr pointer = 0;
        CUdeviceptr_v1 old = 0;

        OK(api.cuMemAlloc_v2(&pointer, sizes[i]));
        SAME(charged(0), cost(sizes[i]));
        OK(api.cuMemAlloc(&old, (unsigned)sizes[i]));
        SAME(charged(0), 2 * cost(sizes[i]));
        OK(api.cuMemFree_v2(pointer));
        SAME(charged(0), cost(sizes[i]));
        OK(api.cuMemFree(old));
        SAME(charged(0), 0);
    }
    SAME(gpu_row(0).peak_bytes, 2 * cost(10 * MIB + 1));
    SAME(sim_alloc_bytes(&self, 0), 0);
    return 0;
}

static int many_just_above_a_mebibyte_do_not_fit_twice_over(void)
{
    unsigned granted = 0;
    CUdeviceptr pointer;
    CUresult result;

    OK(begin(0));
    while ((result = api.cuMemAlloc_v2(&pointer, MIB + 512)) == CUDA_SUCCESS)
        granted++;
    REFUSED(result);
    SAME(granted, 512); /* 1 GiB of whole pages */
    CHECK(sim_alloc_bytes(&self, 0) <= 1024 * MIB);
    return 0;
}

static int size_zero_goes_to_the_driver(void)
{
    CUdeviceptr pointer = 0x1234;
    CUdeviceptr_v1 old = 0x1234;

    OK(begin(0));
    GIVES(api.cuMemAlloc_v2(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemAlloc(&old, 0), CUDA_ERROR_INVALID_VALUE);
    SAME(pointer, 0x1234);
    SAME(old, 0x1234);
    SAME(journal_count("cuMemAlloc_v2"), 1);
    SAME(journal_count("cuMemAlloc"), 1);
    return 0;
}

static int the_last_byte_is_granted_and_the_next_refused(void)
{
    CUdeviceptr most, rest, more = 0x77;
    CUdeviceptr_v1 old = 0x77;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&most, 1023 * MIB - MIB));
    OK(api.cuMemAlloc_v2(&rest, MIB));
    OK(api.cuMemAlloc_v2(&rest, MIB - 512));
    REFUSED(api.cuMemAlloc_v2(&more, 513));
    OK(api.cuMemAlloc_v2(&rest, 512));
    SAME(charged(0), 1024 * MIB);
    REFUSED(api.cuMemAlloc_v2(&more, 1));
    REFUSED(api.cuMemAlloc(&old, 1));
    SAME(more, 0x77);
    SAME(old, 0x77);
    SAME(gpu_row(0).refusals, 3);
    SAME(gpu_row(0).refused_bytes, 1024 + 512 + 512);
    OK(api.cuMemFree_v2(rest));
    OK(api.cuMemAlloc(&old, 1));
    return 0;
}

static int a_refusal_never_reaches_the_driver(void)
{
    CUdeviceptr pointer = 0x77;

    OK(begin(0));
    REFUSED(api.cuMemAlloc_v2(&pointer, 1025 * MIB));
    REFUSED(api.cuMemAlloc_v2(&pointer, SIZE_MAX));
    REFUSED(api.cuMemAlloc_v2(&pointer, SIZE_MAX - 4096));
    SAME(pointer, 0x77);
    SAME(journal_count("cuMemAlloc_v2"), 0);
    SAME(ledger_events(self.ledger, VCAP_LF_EVENT_REFUSAL), 3);
    return 0;
}

static int null_and_unknown_pointers_go_to_the_driver(void)
{
    OK(begin(0));
    OK(api.cuMemFree_v2(0));
    OK(api.cuMemFree(0));
    GIVES(api.cuMemFree_v2(0x123456789000), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemFreeAsync(0x123456789000, NULL), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemAlloc_v2(NULL, MIB), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemAlloc(NULL, 4096), CUDA_ERROR_INVALID_VALUE);
    SAME(journal_count("cuMemFree_v2"), 2);
    SAME(journal_count("cuMemAlloc_v2"), 1);
    SAME(charged(0), 0);
    return 0;
}

static int a_second_free_is_the_drivers_error_and_takes_nothing_off(void)
{
    CUdeviceptr kept, pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&kept, 6 * MIB));
    OK(api.cuMemAlloc_v2(&pointer, 4 * MIB));
    OK(api.cuMemFree_v2(pointer));
    GIVES(api.cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
    SAME(charged(0), 6 * MIB);
    return 0;
}

static int async_free_gives_a_linear_charge_back(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    OK(api.cuMemFreeAsync(pointer, NULL));
    SAME(charged(0), 0);
    return 0;
}

static int a_free_on_another_devices_context_takes_off_the_right_device(void)
{
    CUdeviceptr first, second;
    CUcontext other;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&first, 100 * MIB));
    OK(api.cuCtxCreate_v2(&other, 0, 1));
    OK(api.cuMemAlloc_v2(&second, 60 * MIB));
    SAME(charged(0), 100 * MIB);
    SAME(charged(1), 60 * MIB);
    OK(api.cuMemFree_v2(first));
    SAME(charged(0), 0);
    SAME(charged(1), 60 * MIB);
    return 0;
}

static int a_free_that_fails_keeps_its_charge(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    GIVES(api.cuMemFree_v2(pointer), CUDA_ERROR_LAUNCH_FAILED);
    SAME(charged(0), 100 * MIB);
    OK(api.cuMemFree_v2(pointer));
    SAME(charged(0), 0);
    return 0;
}

static int an_error_of_the_driver_leaves_no_charge_and_no_value(void)
{
    CUdeviceptr pointer = 0x77;

    OK(begin(0));
    GIVES(api.cuMemAlloc_v2(&pointer, 100 * MIB), CUDA_ERROR_ILLEGAL_ADDRESS);
    SAME(pointer, 0x77);
    SAME(charged(0), 0);
    SAME(gpu_row(0).refusals, 0);
    OK(api.cuMemAlloc_v2(&pointer, 1024 * MIB));
    return 0;
}

static int without_a_context_the_driver_answers(void)
{
    CUdeviceptr pointer = 0x77;

    GIVES(api.cuMemAlloc_v2(&pointer, MIB), CUDA_ERROR_NOT_INITIALIZED);
    OK(api.cuInit(0));
    GIVES(api.cuMemAlloc_v2(&pointer, MIB), CUDA_ERROR_INVALID_CONTEXT);
    SAME(pointer, 0x77);
    return 0;
}

static void *allocate_to_the_brim(void *arg)
{
    CUdeviceptr pointer;
    uintptr_t granted = 0;

    if (api.cuCtxSetCurrent(arg) != CUDA_SUCCESS)
        return NULL;
    while (api.cuMemAlloc_v2(&pointer, 2 * MIB) == CUDA_SUCCESS)
        granted++;
    return (void *)granted;
}

static int threads_together_get_exactly_the_ceiling(void)
{
    pthread_t thread[8];
    CUcontext context;
    uintptr_t sum = 0;

    OK(begin(0));
    OK(api.cuCtxGetCurrent(&context));
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&thread[i], NULL, allocate_to_the_brim, context) == 0);
    for (int i = 0; i < 8; i++) {
        void *granted;

        pthread_join(thread[i], &granted);
        sum += (uintptr_t)granted;
    }
    SAME(sum, 512);
    SAME(charged(0), 1024 * MIB);
    return 0;
}

static int zero_means_no_device_memory_at_all(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    REFUSED(api.cuMemAlloc_v2(&pointer, 1));
    SAME(gpu_row(0).ceiling_bytes, 0);
    return 0;
}

#define JOURNAL "VRAMCAP_SIM_JOURNAL=@/journal"

static const struct scenario scenarios[] = {
    SCENARIO(sizes_are_charged_by_the_rule_and_given_back, NULL),
    SCENARIO(many_just_above_a_mebibyte_do_not_fit_twice_over, "VRAMCAP_LOG_FILE=@/log"),
    SCENARIO(size_zero_goes_to_the_driver, JOURNAL),
    SCENARIO(the_last_byte_is_granted_and_the_next_refused, NULL),
    SCENARIO(a_refusal_never_reaches_the_driver, JOURNAL),
    SCENARIO(null_and_unknown_pointers_go_to_the_driver, JOURNAL),
    SCENARIO(a_second_free_is_the_drivers_error_and_takes_nothing_off, NULL),
    SCENARIO(async_free_gives_a_linear_charge_back, NULL),
    SCENARIO(a_free_on_another_devices_context_takes_off_the_right_device,
             "VRAMCAP_SIM_CARDS=2x24576"),
    SCENARIO(a_free_that_fails_keeps_its_charge, "VRAMCAP_SIM_FAIL=cuMemFree_v2:1:719"),
    SCENARIO(an_error_of_the_driver_leaves_no_charge_and_no_value,
             "VRAMCAP_SIM_FAIL=cuMemAlloc_v2:1:700"),
    SCENARIO(without_a_context_the_driver_answers, NULL),
    SCENARIO(threads_together_get_exactly_the_ceiling, NULL),
    SCENARIO(zero_means_no_device_memory_at_all, "VRAMCAP_MEMORY_MIB=0"),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
