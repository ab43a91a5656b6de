/*
 * cuMemAllocPitch in both ABIs: charged at the pitch that the driver chose, whatever it chose.
 */
#include "tests/hook/scenario.h"

static int thin_rows_are_charged_at_the_drivers_pitch(void)
{
    const uint64_t rows = 8 * MIB;
    CUdeviceptr pointer = 0;
    size_t pitch = 0;

    OK(begin(0));
    OK(api.cuMemAllocPitch_v2(&pointer, &pitch, 4, rows, 4));
    SAME(charged(0), pitch * rows);
    SAME(charged(0), sim_alloc_bytes(&self, 0));
    OK(api.cuMemFree_v2(pointer));
    SAME(charged(0), 0);
    return 0;
}

static int both_abis_are_charged_alike(void)
{
    CUdeviceptr pointer;
    CUdeviceptr_v1 old;
    size_t pitch;
    unsigned old_pitch;

    OK(begin(0));
    OK(api.cuMemAllocPitch_v2(&pointer, &pitch, 700, 10000, 8));
    SAME(charged(0), cost(pitch * 10000));
    OK(api.cuMemAllocPitch(&old, &old_pitch, 700, 10000, 8));
    SAME(old_pitch, pitch);
    SAME(charged(0), 2 * cost(pitch * 10000));
    OK(api.cuMemFree(old));
    OK(api.cuMemFree_v2(pointer));
    SAME(charged(0), 0);
    OK(api.cuMemAllocPitch_v2(&pointer, &pitch, 100, 3, 4)); /* small: by 512 bytes */
    SAME(charged(0), cost(pitch * 3));
    return 0;
}

static int a_difference_without_room_is_given_back_and_refused(void)
{
    CUdeviceptr pointer = 0x77;
    CUdeviceptr_v1 old = 0x77;
    unsigned old_pitch = 0x55;
    size_t pitch = 0x55;

    OK(begin(0));
    /* at 512 bytes a row this is 512 MiB, at 4096 it is 4 GiB */
    REFUSED(api.cuMemAllocPitch_v2(&pointer, &pitch, 4, MIB, 4));
    SAME(pointer, 0x77);
    SAME(pitch, 0x55);
    SAME(charged(0), 0);
    SAME(sim_alloc_bytes(&self, 0), 0);
    SAME(journal_count("cuMemAllocPitch_v2"), 1);
    SAME(journal_count("cuMemFree_v2"), 1);
    OK(api.cuMemAlloc_v2(&pointer, 900 * MIB));
    REFUSED(api.cuMemAllocPitch(&old, &old_pitch, 4, 32 * 1024,
                                4)); /* 16 MiB at least, 128 in the end */
    SAME(old, 0x77);
    SAME(old_pitch, 0x55);
    SAME(charged(0), 900 * MIB);
    SAME(sim_alloc_bytes(&self, 0), 900 * MIB);
    SAME(journal_count("cuMemFree"), 1);
    SAME(gpu_row(0).refusals, 2);
    return 0;
}

static int rows_that_cannot_fit_are_refused_before_the_driver(void)
{
    CUdeviceptr pointer = 0x77;
    size_t pitch = 0x55;

    OK(begin(0));
    REFUSED(api.cuMemAllocPitch_v2(&pointer, &pitch, 4, 8 * MIB, 4));
    REFUSED(api.cuMemAllocPitch_v2(&pointer, &pitch, SIZE_MAX - 5, SIZE_MAX - 5, 4));
    REFUSED(api.cuMemAllocPitch_v2(&pointer, &pitch, 1ull << 40, 1ull << 40, 4));
    SAME(pointer, 0x77);
    SAME(pitch, 0x55);
    SAME(journal_count("cuMemAllocPitch_v2"), 0);
    return 0;
}

static int null_outputs_and_bad_arguments_are_the_drivers(void)
{
    CUdeviceptr pointer = 0x77;
    size_t pitch = 0x55;
    unsigned old_pitch = 0x55;
    CUdeviceptr_v1 old = 0x77;

    OK(begin(0));
    GIVES(api.cuMemAllocPitch_v2(NULL, &pitch, 512, 4, 4), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemAllocPitch_v2(&pointer, NULL, 512, 4, 4), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemAllocPitch_v2(&pointer, &pitch, 0, 4, 4), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemAllocPitch_v2(&pointer, &pitch, 512, 0, 4), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemAllocPitch_v2(&pointer, &pitch, 512, 4, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemAllocPitch(NULL, &old_pitch, 512, 4, 4), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemAllocPitch(&old, NULL, 512, 4, 4), CUDA_ERROR_INVALID_VALUE);
    SAME(pointer, 0x77);
    SAME(pitch, 0x55);
    SAME(old, 0x77);
    SAME(old_pitch, 0x55);
    SAME(charged(0), 0);
    return 0;
}

#define JOURNAL "VRAMCAP_SIM_JOURNAL=@/journal"

static const struct scenario scenarios[] = {
    SCENARIO(thin_rows_are_charged_at_the_drivers_pitch,
             "VRAMCAP_MEMORY_MIB=8192;VRAMCAP_SIM_PITCH=512"),
    SCENARIO(both_abis_are_charged_alike, "VRAMCAP_SIM_PITCH=512"),
    {"both_abis_are_charged_alike_at_1024", both_abis_are_charged_alike, "VRAMCAP_SIM_PITCH=1024",
     false},
    {"both_abis_are_charged_alike_at_4096", both_abis_are_charged_alike, "VRAMCAP_SIM_PITCH=4096",
     false},
    SCENARIO(a_difference_without_room_is_given_back_and_refused,
             JOURNAL ";VRAMCAP_SIM_PITCH=4096"),
    SCENARIO(rows_that_cannot_fit_are_refused_before_the_driver, JOURNAL),
    SCENARIO(null_outputs_and_bad_arguments_are_the_drivers, NULL),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
