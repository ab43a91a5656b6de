/*
 * cuMemAllocManaged: charged in full when it is allocated, or not at all with
 * VRAMCAP_MANAGED=ignore.
 */
#include "tests/hook/scenario.h"

static int managed_memory_is_charged_in_full(void)
{
    CUdeviceptr pointer, more = 0x77;

    OK(begin(0));
    OK(api.cuMemAllocManaged(&pointer, 700 * MIB - 5, CU_MEM_ATTACH_GLOBAL));
    SAME(charged(0), 700 * MIB);
    REFUSED(api.cuMemAllocManaged(&more, 400 * MIB, CU_MEM_ATTACH_GLOBAL));
    REFUSED(api.cuMemAlloc_v2(&more, 400 * MIB));
    SAME(more, 0x77);
    OK(api.cuMemFree_v2(pointer));
    SAME(charged(0), 0);
    SAME(sim_managed_bytes(&self, 0), 0);
    return 0;
}

static int ignored_managed_memory_is_not_charged_nor_released(void)
{
    CUdeviceptr managed, linear;

    OK(begin(0));
    OK(api.cuMemAllocManaged(&managed, 4096 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(api.cuMemAlloc_v2(&linear, 600 * MIB));
    SAME(charged(0), 600 * MIB);
    OK(api.cuMemFree_v2(managed));
    SAME(charged(0), 600 * MIB);
    return 0;
}

static int null_and_bad_flags_are_the_drivers(void)
{
    CUdeviceptr pointer = 0x77;

    OK(begin(0));
    GIVES(api.cuMemAllocManaged(NULL, MIB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemAllocManaged(&pointer, MIB, 0x80), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMemAllocManaged(&pointer, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
    SAME(pointer, 0x77);
    SAME(charged(0), 0);
    return 0;
}

static const struct scenario scenarios[] = {
    SCENARIO(managed_memory_is_charged_in_full, NULL),
    SCENARIO(ignored_managed_memory_is_not_charged_nor_released, "VRAMCAP_MANAGED=ignore"),
    SCENARIO(null_and_bad_flags_are_the_drivers, NULL),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
