/*
 * What arrays cost: every format, every dimension, worked out by hand.  The numbers are bytes of whole
 * pages of 2 MiB, so that each case is chosen large enough to tell a wrong factor.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "preload/array_format.h"

#define MIB (UINT64_C(1) << 20)

static CUDA_ARRAY3D_DESCRIPTOR description(CUarray_format format, unsigned channels, size_t width,
                                           size_t height, size_t depth, unsigned flags)
{
    CUDA_ARRAY3D_DESCRIPTOR d;

    memset(&d, 0, sizeof(d));
    d.Format = format;
    d.NumChannels = channels;
    d.Width = width;
    d.Height = height;
    d.Depth = depth;
    d.Flags = flags;
    return d;
}

static uint64_t cost(CUarray_format format, unsigned channels, size_t width, size_t height,
                     size_t depth, unsigned flags, unsigned levels)
{
    CUDA_ARRAY3D_DESCRIPTOR d = description(format, channels, width, height, depth, flags);

    return vcap_array_cost(&d, levels);
}

/* Bits per element of the whole format; 4096 x 4096 elements are 2 MiB a bit. */
static const struct {
    CUarray_format format;
    unsigned channels, bits;
} formats[] = {
    {CU_AD_FORMAT_UNSIGNED_INT8, 1, 8},
    {CU_AD_FORMAT_UNSIGNED_INT8, 2, 16},
    {CU_AD_FORMAT_UNSIGNED_INT8, 4, 32},
    {CU_AD_FORMAT_UNSIGNED_INT16, 1, 16},
    {CU_AD_FORMAT_UNSIGNED_INT16, 4, 64},
    {CU_AD_FORMAT_UNSIGNED_INT32, 1, 32},
    {CU_AD_FORMAT_UNSIGNED_INT32, 4, 128},
    {CU_AD_FORMAT_SIGNED_INT8, 1, 8},
    {CU_AD_FORMAT_SIGNED_INT16, 2, 32},
    {CU_AD_FORMAT_SIGNED_INT32, 2, 64},
    {CU_AD_FORMAT_HALF, 1, 16},
    {CU_AD_FORMAT_HALF, 4, 64},
    {CU_AD_FORMAT_FLOAT, 1, 32},
    {CU_AD_FORMAT_FLOAT, 4, 128},
    {CU_AD_FORMAT_UNORM_INT8X1, 1, 8},
    {CU_AD_FORMAT_UNORM_INT8X2, 2, 16},
    {CU_AD_FORMAT_UNORM_INT8X4, 4, 32},
    {CU_AD_FORMAT_UNORM_INT16X1, 1, 16},
    {CU_AD_FORMAT_UNORM_INT16X2, 2, 32},
    {CU_AD_FORMAT_UNORM_INT16X4, 4, 64},
    {CU_AD_FORMAT_SNORM_INT8X1, 1, 8},
    {CU_AD_FORMAT_SNORM_INT8X2, 2, 16},
    {CU_AD_FORMAT_SNORM_INT8X4, 4, 32},
    {CU_AD_FORMAT_SNORM_INT16X1, 1, 16},
    {CU_AD_FORMAT_SNORM_INT16X2, 2, 32},
    {CU_AD_FORMAT_SNORM_INT16X4, 4, 64},
    {CU_AD_FORMAT_UNORM_INT_101010_2, 4, 32},
    {CU_AD_FORMAT_BC1_UNORM, 4, 4},
    {CU_AD_FORMAT_BC1_UNORM_SRGB, 4, 4},
    {CU_AD_FORMAT_BC2_UNORM, 4, 8},
    {CU_AD_FORMAT_BC2_UNORM_SRGB, 4, 8},
    {CU_AD_FORMAT_BC3_UNORM, 4, 8},
    {CU_AD_FORMAT_BC3_UNORM_SRGB, 4, 8},
    {CU_AD_FORMAT_BC4_UNORM, 1, 4},
    {CU_AD_FORMAT_BC4_SNORM, 1, 4},
    {CU_AD_FORMAT_BC5_UNORM, 2, 8},
    {CU_AD_FORMAT_BC5_SNORM, 2, 8},
    {CU_AD_FORMAT_BC6H_UF16, 3, 8},
    {CU_AD_FORMAT_BC6H_SF16, 3, 8},
    {CU_AD_FORMAT_BC7_UNORM, 4, 8},
    {CU_AD_FORMAT_BC7_UNORM_SRGB, 4, 8},
    {CU_AD_FORMAT_NV12, 3, 12},
    {CU_AD_FORMAT_P010, 3, 24},
    {CU_AD_FORMAT_P016, 3, 24},
    {CU_AD_FORMAT_NV16, 3, 16},
    {CU_AD_FORMAT_P210, 3, 32},
    {CU_AD_FORMAT_P216, 3, 32},
    {CU_AD_FORMAT_YUY2, 2, 16},
    {CU_AD_FORMAT_Y210, 2, 32},
    {CU_AD_FORMAT_Y216, 2, 32},
    {CU_AD_FORMAT_AYUV, 4, 32},
    {CU_AD_FORMAT_Y410, 4, 32},
    {CU_AD_FORMAT_Y416, 4, 64},
    {CU_AD_FORMAT_Y444_PLANAR8, 3, 24},
    {CU_AD_FORMAT_Y444_PLANAR10, 3, 48},
    {CU_AD_FORMAT_YUV444_8bit_SemiPlanar, 3, 24},
    {CU_AD_FORMAT_YUV444_16bit_SemiPlanar, 3, 48},
    /* of CUDA 13.5: UINT8_PACKED_422 and 444, SEMIPLANAR of 8 and 16 bits 420, 422, 444, PLANAR the same */
    {(CUarray_format)0x51, 4, 16},
    {(CUarray_format)0x52, 4, 32},
    {(CUarray_format)0x53, 3, 12},
    {(CUarray_format)0x54, 3, 24},
    {(CUarray_format)0x55, 3, 16},
    {(CUarray_format)0x56, 3, 32},
    {(CUarray_format)0x57, 3, 24},
    {(CUarray_format)0x58, 3, 48},
    {(CUarray_format)0x59, 3, 12},
    {(CUarray_format)0x5a, 3, 24},
    {(CUarray_format)0x5b, 3, 16},
    {(CUarray_format)0x5c, 3, 32},
    {(CUarray_format)0x5d, 3, 24},
    {(CUarray_format)0x5e, 3, 48},
};

static void every_format_of_cuda_13_has_its_size(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        uint64_t is = cost(formats[i].format, formats[i].channels, 4096, 4096, 0, 0, 1);

        if (is != formats[i].bits * 2 * MIB)
            print_error("format %#x x %u\n", (unsigned)formats[i].format, formats[i].channels);
        assert_int_equal(is, formats[i].bits * 2 * MIB);
    }
}

static void an_unknown_format_is_the_widest(void **state)
{
    (void)state;
    for (unsigned id = 0; id < 0x400; id++) {
        bool known = false;

        for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
            known = known || (unsigned)formats[i].format == id;
        if (!known)
            assert_int_equal(cost((CUarray_format)id, 1, 4096, 4096, 0, 0, 1), 256 * MIB);
    }
    assert_int_equal(cost(CU_AD_FORMAT_MAX, 1, 4096, 4096, 0, 0, 1), 256 * MIB);
}

static void channels_that_no_driver_takes_are_no_size(void **state)
{
    (void)state;
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 0, 4096, 4096, 0, 0, 1), 64 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 3, 4096, 4096, 0, 0, 1), 192 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, UINT32_MAX, 4096, 4096, 0, 0, 1), 256 * MIB);
    /* fixed by the format's name */
    assert_int_equal(cost(CU_AD_FORMAT_UNORM_INT8X4, 1, 4096, 4096, 0, 0, 1), 64 * MIB);
}

static void a_zero_height_or_depth_is_one(void **state)
{
    (void)state;
    /* one row, of the 8 that a block has at least */
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 4, 131072, 0, 0, 0, 1), 16 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 8192, 8192, 0, 0, 1), 256 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 1024, 1024, 64, 0, 1), 256 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_UNSIGNED_INT8, 1, 1, 0, 0, 0, 1), 2 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, 0, 0, 0, 1), 2 * MIB);
}

static void layers_and_faces_count(void **state)
{
    (void)state;
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 1024, 1024, 37, CUDA_ARRAY3D_LAYERED, 1),
                     148 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 131072, 0, 16, CUDA_ARRAY3D_LAYERED, 1), 64 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 1024, 1024, 6, CUDA_ARRAY3D_CUBEMAP, 1), 24 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 1024, 1024, 0, CUDA_ARRAY3D_CUBEMAP, 1), 24 * MIB);
    assert_int_equal(
        cost(CU_AD_FORMAT_FLOAT, 1, 1024, 1024, 12, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED, 1),
        48 * MIB);
    /* thin layers: each is a whole block of 64 bytes x 128 rows */
    assert_int_equal(cost(CU_AD_FORMAT_UNSIGNED_INT8, 1, 1, 1, 2048, CUDA_ARRAY3D_LAYERED, 1),
                     16 * MIB);
}

static void width_rows_and_slices_are_padded_to_blocks(void **state)
{
    (void)state;
    /* 65 bytes: 128 wide; 129 rows: 256 */
    assert_int_equal(cost(CU_AD_FORMAT_UNSIGNED_INT8, 1, 65, 65536, 0, 0, 1), 8 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 4, 65536, 129, 0, 0, 1), 256 * MIB);
    /* a volume of 17 slices has blocks 16 deep, one of 3 has blocks 4 deep */
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 1024, 1024, 17, 0, 1), 128 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 1024, 1024, 3, 0, 1), 16 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 1024, 1024, 1, 0, 1), 4 * MIB);
    /* 65537 x 512 pixels of BC1 are 16385 x 128 blocks of 8 bytes, padded to 131136 bytes */
    assert_int_equal(cost(CU_AD_FORMAT_BC1_UNORM, 4, 65537, 512, 0, 0, 1), 18 * MIB);
}

static void subsampled_planes_round_up(void **state)
{
    struct vcap_array_format nv12 = vcap_array_format(CU_AD_FORMAT_NV12, 3);
    struct vcap_array_shape odd = {.width = 1025, .height = 1025, .levels = 1};

    (void)state;
    assert_int_equal(nv12.planes, 2);
    /* 1088 x 1152, and 513 pairs: 1088 bytes x 640 rows */
    assert_int_equal(vcap_array_plane_bytes(&nv12.plane[0], &odd, 0), 1088 * 1152);
    assert_int_equal(vcap_array_plane_bytes(&nv12.plane[1], &odd, 0), 1088 * 640);
}

static void each_level_is_rounded_by_itself(void **state)
{
    struct vcap_array_format bytes = vcap_array_format(CU_AD_FORMAT_UNSIGNED_INT8, 1);
    struct vcap_array_shape flat = {.width = 100, .height = 300, .levels = 1},
                            deep = {.width = 64, .height = 128, .depth = 20, .levels = 1},
                            layers = {.width = 64, .height = 128, .depth = 20, .layered = true};

    (void)state;
    assert_int_equal(vcap_array_plane_bytes(&bytes.plane[0], &flat, 0), 128 * 384);
    assert_int_equal(vcap_array_plane_bytes(&bytes.plane[0], &flat, 1), 64 * 256);
    assert_int_equal(vcap_array_plane_bytes(&bytes.plane[0], &flat, 8), 64 * 128);
    assert_int_equal(vcap_array_plane_bytes(&bytes.plane[0], &flat, 70), 64 * 128);
    assert_int_equal(vcap_array_plane_bytes(&bytes.plane[0], &deep, 0), 64 * 128 * 32);
    assert_int_equal(vcap_array_plane_bytes(&bytes.plane[0], &deep, 1), 64 * 128 * 16);
    assert_int_equal(vcap_array_plane_bytes(&bytes.plane[0], &deep, 2), 64 * 128 * 8);
    assert_int_equal(vcap_array_plane_bytes(&bytes.plane[0], &layers, 3), 64 * 128 * 20);
    /* a chain of 4096 x 4096 floats: 64 + 16 + 4 + 1 MiB, then 512: 256 KiB, 256, 128: 64 KiB ... */
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 4096, 4096, 0, 0, 4), 86 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 4096, 4096, 0, 0, 2), 80 * MIB);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 4096, 4096, 0, 0, 13), 86 * MIB);
}

static void levels_are_clamped_as_the_driver_does(void **state)
{
    struct vcap_array_shape flat = {.width = 4096, .height = 10, .levels = 99},
                            deep = {.width = 4, .height = 4, .depth = 65, .levels = 99},
                            layers = {.width = 4,
                                      .height = 4,
                                      .depth = 65,
                                      .layered = true,
                                      .levels = 99};

    (void)state;
    assert_int_equal(vcap_array_levels(&flat), 13);
    assert_int_equal(vcap_array_levels(&deep), 7);
    assert_int_equal(vcap_array_levels(&layers), 3);
    flat.levels = 0;
    assert_int_equal(vcap_array_levels(&flat), 1);
    flat.levels = 5;
    assert_int_equal(vcap_array_levels(&flat), 5);
    flat.width = UINT64_MAX;
    flat.levels = UINT32_MAX;
    assert_int_equal(vcap_array_levels(&flat), 64);
}

static void sparse_and_deferred_arrays_cost_nothing(void **state)
{
    (void)state;
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 4096, 4096, 0, CUDA_ARRAY3D_SPARSE, 1), 0);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 4096, 4096, 0, CUDA_ARRAY3D_DEFERRED_MAPPING, 1),
                     0);
    assert_int_equal(
        cost(CU_AD_FORMAT_FLOAT, 1, 4096, 4096, 8, CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SPARSE, 3),
        0);
    /* all other flags leave the size alone */
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 1, 4096, 4096, 0, 0x13a, 1), 64 * MIB);
}

static void sizes_beyond_all_memory_do_not_wrap(void **state)
{
    (void)state;
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 4, SIZE_MAX, SIZE_MAX, SIZE_MAX, 0, 1), UINT64_MAX);
    assert_int_equal(cost(CU_AD_FORMAT_FLOAT, 4, SIZE_MAX, 0, 0, 0, 1), UINT64_MAX);
    assert_int_equal(cost(CU_AD_FORMAT_UNSIGNED_INT8, 1, 1, SIZE_MAX, 0, 0, 99), UINT64_MAX);
    assert_int_equal(cost(CU_AD_FORMAT_UNSIGNED_INT8, 1, 1, 1, SIZE_MAX, CUDA_ARRAY3D_LAYERED, 1),
                     UINT64_MAX);
    assert_int_equal(
        cost(CU_AD_FORMAT_UNSIGNED_INT8, 1, UINT64_C(1) << 32, UINT64_C(1) << 32, 0, 0, 64),
        UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_of_cuda_13_has_its_size),
        cmocka_unit_test(an_unknown_format_is_the_widest),
        cmocka_unit_test(channels_that_no_driver_takes_are_no_size),
        cmocka_unit_test(a_zero_height_or_depth_is_one),
        cmocka_unit_test(layers_and_faces_count),
        cmocka_unit_test(width_rows_and_slices_are_padded_to_blocks),
        cmocka_unit_test(subsampled_planes_round_up),
        cmocka_unit_test(each_level_is_rounded_by_itself),
        cmocka_unit_test(levels_are_clamped_as_the_driver_does),
        cmocka_unit_test(sparse_and_deferred_arrays_cost_nothing),
        cmocka_unit_test(sizes_beyond_all_memory_do_not_wrap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
