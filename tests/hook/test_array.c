/*
 * Arrays and mipmapped arrays in all ABIs: charged at a bound that is never below what the card loses,
 * whatever the description says.
 */
#include "tests/hook/scenario.h"

#include <string.h>

#define UNTOUCHED ((CUarray)(uintptr_t)0x77)

static CUDA_ARRAY3D_DESCRIPTOR box(size_t width, size_t height, size_t depth, unsigned flags)
{
    CUDA_ARRAY3D_DESCRIPTOR d;

    memset(&d, 0, sizeof(d));
    d.Width = width;
    d.Height = height;
    d.Depth = depth;
    d.Format = CU_AD_FORMAT_FLOAT;
    d.NumChannels = 1;
    d.Flags = flags;
    return d;
}

static int four_gib_do_not_pass_through_depth_zero(void)
{
    CUDA_ARRAY3D_DESCRIPTOR quarter = box(8192, 8192, 0, 0);
    CUarray array[16];
    unsigned made = 0;

    OK(begin(0));
    for (unsigned i = 0; i < 16; i++) {
        array[i] = UNTOUCHED;
        if (api.cuArray3DCreate_v2(&array[i], &quarter) == CUDA_SUCCESS)
            made++;
        else
            CHECK(array[i] == UNTOUCHED);
    }
    SAME(made, 4); /* and none of the four was refused */
    SAME(charged(0), 1024 * MIB);
    SAME(gpu_row(0).refusals, 12);
    for (unsigned i = 0; i < made; i++)
        OK(api.cuArrayDestroy(array[i]));
    SAME(charged(0), 0);
    SAME(sim_alloc_bytes(&self, 0), 0);
    return 0;
}

static int four_gib_do_not_pass_through_height_zero(void)
{
    CUDA_ARRAY3D_DESCRIPTOR row = box(131072, 0, 0, 0);
    CUarray array;
    unsigned made = 0;

    row.NumChannels = 4;
    OK(begin(0));
    while (made < 4096 && api.cuArray3DCreate_v2(&array, &row) == CUDA_SUCCESS)
        made++;
    CHECK(made >= 16 && made <= 512);
    CHECK(sim_alloc_bytes(&self, 0) <= 1024 * MIB);
    CHECK(charged(0) >= sim_alloc_bytes(&self, 0));
    return 0;
}

static int a_size_in_bits_is_not_taken_for_bytes(void)
{
    CUDA_ARRAY_DESCRIPTOR flat = {8192, 8192, CU_AD_FORMAT_FLOAT, 1};
    CUarray array = NULL;

    OK(begin(0));
    OK(api.cuArrayCreate_v2(&array, &flat)); /* a quarter GiB; 2 GiB if 32 bits were 32 bytes */
    SAME(charged(0), 256 * MIB);
    flat.Format = CU_AD_FORMAT_UNSIGNED_INT8;
    OK(api.cuArrayCreate_v2(&array, &flat));
    SAME(charged(0), 320 * MIB);
    return 0;
}

static int all_abis_are_charged_alike(void)
{
    CUDA_ARRAY_DESCRIPTOR flat = {2048, 1024, CU_AD_FORMAT_HALF, 4};
    CUDA_ARRAY_DESCRIPTOR_v1 old_flat = {2048, 1024, CU_AD_FORMAT_HALF, 4};
    CUDA_ARRAY3D_DESCRIPTOR deep = {2048, 1024, 0, CU_AD_FORMAT_HALF, 4, 0};
    CUDA_ARRAY3D_DESCRIPTOR_v1 old_deep = {2048, 1024, 0, CU_AD_FORMAT_HALF, 4, 0};
    CUarray array[4];
    CUmipmappedArray mipmap;

    OK(begin(0));
    OK(api.cuArrayCreate(&array[0], &old_flat));
    SAME(charged(0), 16 * MIB);
    OK(api.cuArrayCreate_v2(&array[1], &flat));
    SAME(charged(0), 32 * MIB);
    OK(api.cuArray3DCreate(&array[2], &old_deep));
    SAME(charged(0), 48 * MIB);
    OK(api.cuArray3DCreate_v2(&array[3], &deep));
    SAME(charged(0), 64 * MIB);
    OK(api.cuMipmappedArrayCreate(&mipmap, &deep, 1));
    SAME(charged(0), 80 * MIB);
    for (unsigned i = 0; i < 4; i++)
        OK(api.cuArrayDestroy(array[i]));
    SAME(charged(0), 16 * MIB);
    OK(api.cuMipmappedArrayDestroy(mipmap));
    SAME(charged(0), 0);
    return 0;
}

static int beyond_the_ceiling_every_name_gives_2_and_touches_nothing(void)
{
    CUDA_ARRAY_DESCRIPTOR flat = {32768, 16384, CU_AD_FORMAT_FLOAT, 1};
    CUDA_ARRAY_DESCRIPTOR_v1 old_flat = {32768, 16384, CU_AD_FORMAT_FLOAT, 1};
    CUDA_ARRAY3D_DESCRIPTOR deep = {1024, 1024, 512, CU_AD_FORMAT_FLOAT, 1, 0};
    CUDA_ARRAY3D_DESCRIPTOR_v1 old_deep = {1024, 1024, 512, CU_AD_FORMAT_FLOAT, 1, 0};
    CUarray array = UNTOUCHED;
    CUmipmappedArray mipmap = (CUmipmappedArray)(uintptr_t)0x77;

    OK(begin(0));
    REFUSED(api.cuArrayCreate(&array, &old_flat));
    REFUSED(api.cuArrayCreate_v2(&array, &flat));
    REFUSED(api.cuArray3DCreate(&array, &old_deep));
    REFUSED(api.cuArray3DCreate_v2(&array, &deep));
    REFUSED(api.cuMipmappedArrayCreate(&mipmap, &deep, 1));
    deep = box(16384, 16384, 0, 0);
    REFUSED(api.cuMipmappedArrayCreate(&mipmap, &deep, 15)); /* the levels are what is too much */
    CHECK(array == UNTOUCHED);
    CHECK(mipmap == (CUmipmappedArray)(uintptr_t)0x77);
    SAME(charged(0), 0);
    SAME(gpu_row(0).refusals, 6);
    SAME(journal_count("cuArray3DCreate_v2"), 0);
    OK(api.cuMipmappedArrayCreate(&mipmap, &deep, 1));
    SAME(charged(0), 1024 * MIB);
    return 0;
}

static int layers_and_faces_are_counted(void)
{
    CUDA_ARRAY3D_DESCRIPTOR layers = box(1024, 1024, 100, CUDA_ARRAY3D_LAYERED),
                            faces = box(1024, 1024, 6, CUDA_ARRAY3D_CUBEMAP);
    CUarray array;

    OK(begin(0));
    OK(api.cuArray3DCreate_v2(&array, &layers));
    SAME(charged(0), 400 * MIB);
    OK(api.cuArray3DCreate_v2(&array, &faces));
    SAME(charged(0), 424 * MIB);
    layers.Depth = 200;
    REFUSED(api.cuArray3DCreate_v2(&array, &layers));
    return 0;
}

static int sparse_and_deferred_arrays_own_nothing(void)
{
    CUDA_ARRAY3D_DESCRIPTOR sparse = box(16384, 16384, 0, CUDA_ARRAY3D_SPARSE),
                            deferred = box(16384, 16384, 0, CUDA_ARRAY3D_DEFERRED_MAPPING);
    CUarray array[2];
    CUmipmappedArray mipmap;

    OK(begin(0));
    OK(api.cuArray3DCreate_v2(&array[0], &sparse));
    OK(api.cuArray3DCreate_v2(&array[1], &deferred));
    OK(api.cuMipmappedArrayCreate(&mipmap, &sparse, 3));
    SAME(gpu_row(0).charged_bytes, 0);
    OK(api.cuArrayDestroy(array[0]));
    OK(api.cuArrayDestroy(array[1]));
    OK(api.cuMipmappedArrayDestroy(mipmap));
    SAME(gpu_row(0).charged_bytes, 0);
    return 0;
}

static int levels_and_planes_are_not_charged_again(void)
{
    CUDA_ARRAY3D_DESCRIPTOR deep = box(2048, 1024, 0, 0),
                            video = {1920, 1080, 0, CU_AD_FORMAT_NV12, 3, 0};
    CUmipmappedArray mipmap;
    CUarray array, level, plane;
    uint64_t before;

    OK(begin(0));
    OK(api.cuMipmappedArrayCreate(&mipmap, &deep, 4));
    OK(api.cuArray3DCreate_v2(&array, &video));
    before = charged(0);
    OK(api.cuMipmappedArrayGetLevel(&level, mipmap, 1));
    OK(api.cuArrayGetPlane(&plane, array, 1));
    SAME(charged(0), before);
    CHECK(api.cuArrayDestroy(level) != CUDA_SUCCESS);
    CHECK(api.cuArrayDestroy(plane) != CUDA_SUCCESS);
    SAME(charged(0), before);
    OK(api.cuMipmappedArrayDestroy(mipmap));
    OK(api.cuArrayDestroy(array));
    SAME(charged(0), 0);
    return 0;
}

static int null_arguments_and_bad_descriptions_are_the_drivers(void)
{
    CUDA_ARRAY_DESCRIPTOR flat = {64, 64, CU_AD_FORMAT_FLOAT, 3};
    CUDA_ARRAY3D_DESCRIPTOR deep = box(64, 64, 0, 0);
    CUarray array = UNTOUCHED;
    CUmipmappedArray mipmap = (CUmipmappedArray)(uintptr_t)0x77;

    OK(begin(0));
    GIVES(api.cuArrayCreate(&array, NULL), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuArrayCreate_v2(&array, NULL), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuArray3DCreate(&array, NULL), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuArray3DCreate_v2(&array, NULL), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMipmappedArrayCreate(&mipmap, NULL, 1), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuArrayCreate_v2(&array, &flat), CUDA_ERROR_INVALID_VALUE); /* three channels */
    GIVES(api.cuArray3DCreate_v2(NULL, &deep), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuMipmappedArrayCreate(NULL, &deep, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK(array == UNTOUCHED);
    CHECK(mipmap == (CUmipmappedArray)(uintptr_t)0x77);
    CHECK(api.cuArrayDestroy(UNTOUCHED) != CUDA_SUCCESS);
    CHECK(api.cuMipmappedArrayDestroy(mipmap) != CUDA_SUCCESS);
    SAME(charged(0), 0);
    return 0;
}

static int a_failed_destroy_keeps_the_charge(void)
{
    CUDA_ARRAY3D_DESCRIPTOR deep = box(1024, 1024, 0, 0);
    CUarray array;

    OK(begin(0));
    OK(api.cuArray3DCreate_v2(&array, &deep));
    GIVES(api.cuArrayDestroy(array), 400);
    SAME(charged(0), 4 * MIB);
    OK(api.cuArrayDestroy(array));
    SAME(charged(0), 0);
    return 0;
}

static int a_driver_that_fails_costs_nothing(void)
{
    CUDA_ARRAY3D_DESCRIPTOR deep = box(1024, 1024, 0, 0);
    CUarray array = UNTOUCHED;

    OK(begin(0));
    REFUSED(api.cuArray3DCreate_v2(&array, &deep));
    CHECK(array == UNTOUCHED);
    SAME(charged(0), 0);
    SAME(gpu_row(0).refusals, 0);
    return 0;
}

static int destroying_the_context_gives_arrays_back(void)
{
    CUDA_ARRAY3D_DESCRIPTOR deep = box(8192, 8192, 0, 0);
    CUcontext context, other, primary;
    CUmipmappedArray mipmap;
    CUarray array;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&context, 0, 0));
    OK(api.cuArray3DCreate_v2(&array, &deep));
    deep.Height = 4096;
    OK(api.cuMipmappedArrayCreate(&mipmap, &deep, 14));
    OK(api.cuCtxCreate_v2(&other, 0, 0));
    deep = box(1024, 1024, 0, 0);
    OK(api.cuArray3DCreate_v2(&array, &deep));
    OK(api.cuCtxDestroy_v2(context));
    SAME(charged(0), 4 * MIB);
    OK(api.cuCtxDestroy_v2(other));
    SAME(charged(0), 0);
    OK(api.cuDevicePrimaryCtxRetain(&primary, 0));
    OK(api.cuCtxSetCurrent(primary));
    OK(api.cuArray3DCreate_v2(&array, &deep));
    OK(api.cuMipmappedArrayCreate(&mipmap, &deep, 1));
    SAME(charged(0), 8 * MIB);
    OK(api.cuDevicePrimaryCtxReset_v2(0));
    SAME(charged(0), 0);
    OK(api.cuDevicePrimaryCtxRelease_v2(0));
    return 0;
}

/* A row of everything that is made, with the card after each. */
static int the_charge_is_never_below_what_the_card_loses(void)
{
    static const unsigned flags[] = {0, CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_CUBEMAP,
                                     CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP};
    uint32_t draw = fixture_draw()->seed | 1;
    CUmipmappedArray mipmap;
    CUarray array;
    unsigned made = 0;

    OK(begin(0));
    for (unsigned i = 0; i < 1500; i++) {
        CUDA_ARRAY3D_DESCRIPTOR d;
        bool levels = (i & 1) != 0;
        CUresult result;

        memset(&d, 0, sizeof(d));
        draw = draw * 1664525 + 1013904223;
        d.Format = (CUarray_format)(draw >> 24);
        d.NumChannels = 1u << (draw >> 20) % 3;
        d.Flags = flags[(draw >> 16) % 4];
        draw = draw * 1664525 + 1013904223;
        d.Width = (draw >> 8) % 2500 + 1;
        d.Height = (draw >> 20) % 3 == 0 ? 0 : (draw >> 4) % 1500 + 1;
        draw = draw * 1664525 + 1013904223;
        d.Depth = (draw >> 20) % 3 == 0 ? 0 : (draw >> 12) % 20 + 1;
        if ((d.Flags & CUDA_ARRAY3D_CUBEMAP) != 0) {
            d.Height = d.Width = d.Width % 300 + 1;
            d.Depth = (d.Flags & CUDA_ARRAY3D_LAYERED) != 0 ? 12 : 6;
        }
        result = levels ? api.cuMipmappedArrayCreate(&mipmap, &d, (draw >> 5) % 14)
                        : api.cuArray3DCreate_v2(&array, &d);
        if (result != CUDA_SUCCESS)
            continue;
        made++;
        if (charged(0) < sim_alloc_bytes(&self, 0)) {
            fprintf(stderr, "format %#x x %u, %zu x %zu x %zu, flags %#x: %llu below %llu\n",
                    (unsigned)d.Format, d.NumChannels, d.Width, d.Height, d.Depth, d.Flags,
                    (unsigned long long)charged(0), (unsigned long long)sim_alloc_bytes(&self, 0));
            return 1;
        }
        if (levels)
            OK(api.cuMipmappedArrayDestroy(mipmap));
        else
            OK(api.cuArrayDestroy(array));
        SAME(charged(0), 0);
    }
    CHECK(made > 50);
    return 0;
}

#define JOURNAL "VRAMCAP_SIM_JOURNAL=@/journal"
#define NEVER_BELOW(name, settings)                                                                \
    {                                                                                              \
        "the_charge_is_never_below_what_the_card_loses_" name,                                     \
            the_charge_is_never_below_what_the_card_loses, "VRAMCAP_MEMORY_MIB=20480;" settings,   \
            false                                                                                  \
    }

static const struct scenario scenarios[] = {
    SCENARIO(four_gib_do_not_pass_through_depth_zero, NULL),
    SCENARIO(four_gib_do_not_pass_through_height_zero, NULL),
    SCENARIO(a_size_in_bits_is_not_taken_for_bytes, NULL),
    SCENARIO(all_abis_are_charged_alike, NULL),
    SCENARIO(beyond_the_ceiling_every_name_gives_2_and_touches_nothing, JOURNAL),
    SCENARIO(layers_and_faces_are_counted, NULL),
    SCENARIO(sparse_and_deferred_arrays_own_nothing, NULL),
    SCENARIO(levels_and_planes_are_not_charged_again, NULL),
    SCENARIO(null_arguments_and_bad_descriptions_are_the_drivers, NULL),
    SCENARIO(a_failed_destroy_keeps_the_charge, "VRAMCAP_SIM_FAIL=cuArrayDestroy:1:400"),
    SCENARIO(a_driver_that_fails_costs_nothing, "VRAMCAP_SIM_FAIL=cuArray3DCreate_v2:1:2"),
    SCENARIO(destroying_the_context_gives_arrays_back, NULL),
    NEVER_BELOW("by_gobs", "VRAMCAP_SIM_ARRAY_TILE=64x8"),
    NEVER_BELOW("by_blocks", "VRAMCAP_SIM_ARRAY_TILE=64x128"),
    NEVER_BELOW("by_large_pages", "VRAMCAP_SIM_ARRAY_TILE=64x32;VRAMCAP_SIM_PAGE_KIB=2048"),
    NEVER_BELOW("by_small_pages", "VRAMCAP_SIM_ARRAY_TILE=16x4;VRAMCAP_SIM_PAGE_KIB=64"),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
