/*
 * Arrays and mipmapped arrays of the simulated driver: what each description takes of the card at
 * the tile that was set, views, what owns nothing, bytes, and the end of the context.
 */
#define _GNU_SOURCE
#include "test_sim_support.h"

#include <stdlib.h>
#include <string.h>

/* No padding, so that sizes can be said by hand; small pages. */
#define EXACT "VRAMCAP_SIM_ARRAY_TILE=1x1;VRAMCAP_SIM_PAGE_KIB=4;VRAMCAP_SIM_CONTEXT_MIB=0"

static CUDA_ARRAY3D_DESCRIPTOR shape(size_t width, size_t height, size_t depth, unsigned int flags)
{
    return (CUDA_ARRAY3D_DESCRIPTOR){.Width = width,
                                     .Height = height,
                                     .Depth = depth,
                                     .Format = CU_AD_FORMAT_FLOAT,
                                     .NumChannels = 4,
                                     .Flags = flags};
}

/* Bytes an array of this description takes, UINT64_MAX if it is refused. */
static uint64_t cost_of(CUDA_ARRAY3D_DESCRIPTOR desc)
{
    CUarray array = NULL;
    uint64_t before = sim_test_used(0), bytes = 0;

    if (cuArray3DCreate_v2(&array, &desc) != CUDA_SUCCESS)
        return UINT64_MAX;
    bytes = sim_test_used(0) - before;
    if (sim_test_alloc(0) != sim_test_used(0) || cuArrayDestroy(array) != CUDA_SUCCESS ||
        sim_test_used(0) != before)
        return UINT64_MAX - 1;
    return bytes;
}

#define PAGES(bytes) (((uint64_t)(bytes) + 4095) / 4096 * 4096)
#define REFUSED UINT64_MAX

static int dimensions(void)
{
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    CHECK(cost_of(shape(1000, 0, 0, 0)) == PAGES(16000));
    CHECK(cost_of(shape(1000, 1000, 0, 0)) == PAGES(16000000));
    CHECK(cost_of(shape(100, 100, 100, 0)) == PAGES(16000000));
    CHECK(cost_of(shape(1000, 0, 100, CUDA_ARRAY3D_LAYERED)) == PAGES(1600000));
    CHECK(cost_of(shape(100, 100, 7, CUDA_ARRAY3D_LAYERED)) == PAGES(1120000));
    CHECK(cost_of(shape(100, 100, 6, CUDA_ARRAY3D_CUBEMAP)) == PAGES(960000));
    CHECK(cost_of(shape(100, 100, 12, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED)) ==
          PAGES(1920000));
    CHECK(cost_of(shape(0, 0, 0, 0)) == REFUSED);
    CHECK(cost_of(shape(10, 0, 10, 0)) == REFUSED);
    CHECK(cost_of(shape(100, 99, 6, CUDA_ARRAY3D_CUBEMAP)) == REFUSED);
    CHECK(cost_of(shape(100, 100, 12, CUDA_ARRAY3D_CUBEMAP)) == REFUSED);
    CHECK(cost_of(shape(100, 0, 0, CUDA_ARRAY3D_LAYERED)) == REFUSED);
    CHECK(cost_of(shape(131073, 0, 0, 0)) == REFUSED);
    CHECK(cost_of(shape(100, 0, 0, 0x200)) == REFUSED);
    /* what owns no memory */
    CHECK(cost_of(shape(1024, 1024, 0, CUDA_ARRAY3D_SPARSE)) == 0);
    CHECK(cost_of(shape(1024, 1024, 0, CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0);
    return 0;
}

static void every_dimension_counts_and_a_zero_is_no_zero_size(void **state)
{
    (void)state;
    assert_int_equal(sim_run(dimensions, EXACT), 0);
}

static int formats(void)
{
    /* bytes of 128 x 64 elements */
    static const struct {
        CUarray_format format;
        unsigned int channels, bytes;
    } rows[] = {
        {CU_AD_FORMAT_UNSIGNED_INT8, 1, 8192},
        {CU_AD_FORMAT_SIGNED_INT16, 2, 32768},
        {CU_AD_FORMAT_HALF, 4, 65536},
        {CU_AD_FORMAT_UNORM_INT8X4, 4, 32768},
        {CU_AD_FORMAT_SNORM_INT16X4, 4, 65536},
        {CU_AD_FORMAT_UNORM_INT_101010_2, 4, 32768},
        {CU_AD_FORMAT_BC1_UNORM, 4, 4096},
        {CU_AD_FORMAT_BC4_SNORM, 1, 4096},
        {CU_AD_FORMAT_BC7_UNORM_SRGB, 4, 8192},
        {CU_AD_FORMAT_BC6H_SF16, 3, 8192},
        {CU_AD_FORMAT_NV12, 3, 12288},
        {CU_AD_FORMAT_P010, 3, 24576},
        {CU_AD_FORMAT_NV16, 3, 16384},
        {CU_AD_FORMAT_P216, 3, 32768},
        {CU_AD_FORMAT_YUY2, 2, 16384},
        {CU_AD_FORMAT_Y210, 2, 32768},
        {CU_AD_FORMAT_AYUV, 4, 32768},
        {CU_AD_FORMAT_Y416, 4, 65536},
        {CU_AD_FORMAT_Y444_PLANAR8, 3, 24576},
        {CU_AD_FORMAT_Y444_PLANAR10, 3, 49152},
        {CU_AD_FORMAT_YUV444_8bit_SemiPlanar, 3, 24576},
        {CU_AD_FORMAT_YUV444_16bit_SemiPlanar, 3, 49152},
    };
    CUDA_ARRAY3D_DESCRIPTOR desc = shape(128, 64, 0, 0);
    CUcontext context = NULL;
    unsigned int known = 0;

    CHECK(sim_begin(&context) == 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        desc.Format = rows[i].format;
        desc.NumChannels = rows[i].channels;
        if (cost_of(desc) != rows[i].bytes) {
            (void)fprintf(stderr, "format 0x%x takes %llu\n", (unsigned int)rows[i].format,
                          (unsigned long long)cost_of(desc));
            return 1;
        }
    }
    /* all of CUarray_format, and no other number */
    desc.NumChannels = 2;
    for (unsigned int format = 0; format < 0x200; format++) {
        desc.Format = (CUarray_format)format;
        uint64_t bytes = cost_of(desc);
        known += bytes != REFUSED;
        CHECK(bytes == REFUSED || (bytes >= 4096 && bytes <= 65536));
    }
    CHECK(known == 51);
    desc.Format = CU_AD_FORMAT_FLOAT;
    desc.NumChannels = 3;
    CHECK(cost_of(desc) == REFUSED);
    desc.NumChannels = 0;
    CHECK(cost_of(desc) == REFUSED);
    return 0;
}

static void every_format_has_its_own_size(void **state)
{
    (void)state;
    assert_int_equal(sim_run(formats, EXACT), 0);
}

static int tiles(void)
{
    CUDA_ARRAY_DESCRIPTOR flat = {
        .Width = 1, .Height = 1, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    CUDA_ARRAY_DESCRIPTOR_v1 old = {
        .Width = 2, .Height = 2, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    CUDA_ARRAY3D_DESCRIPTOR_v1 old_box = {.Width = 2,
                                          .Height = 2,
                                          .Depth = 100,
                                          .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                          .NumChannels = 1};
    CUarray array[3] = {NULL, NULL, NULL};
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    OK(cuArrayCreate_v2(&array[0], &flat));
    CHECK(sim_test_used(0) == 256 * 1024); /* one tile is a page of 256 KiB at most */
    OK(cuArrayCreate(&array[1], &old));
    CHECK(sim_test_used(0) == 512 * 1024);
    OK(cuArray3DCreate(&array[2], &old_box));
    CHECK(sim_test_used(0) == 512 * 1024 + 7 * 256 * 1024); /* 100 * 512 * 32: 6.25 pages */
    CHECK(cost_of(shape(33, 33, 0, 0)) == 256 * 1024);      /* 1024 bytes a row, 64 rows */
    CHECK(cost_of(shape(16384, 0, 0, 0)) == 256 * 1024);
    CHECK(cost_of(shape(16384, 33, 0, 0)) == 16384 * 16 * 64);
    for (int i = 0; i < 3; i++)
        OK(cuArrayDestroy(array[i]));
    CHECK(cuArrayDestroy(array[0]) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(sim_test_used(0) == 0);
    return 0;
}

static void rows_and_widths_are_padded_to_the_tile_and_the_sum_to_the_page(void **state)
{
    (void)state;
    assert_int_equal(sim_run(tiles, "VRAMCAP_SIM_ARRAY_TILE=512x32;VRAMCAP_SIM_PAGE_KIB=256;"
                                    "VRAMCAP_SIM_CONTEXT_MIB=0"),
                     0);
}

/* --- mipmaps and views ------------------------------------------------------------------ */

static int levels(void)
{
    CUDA_ARRAY3D_DESCRIPTOR desc = shape(64, 32, 0, 0), read;
    CUmipmappedArray mipmap = NULL, layered = NULL;
    CUarray level = NULL, again = NULL;
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    OK(cuMipmappedArrayCreate(&mipmap, &desc, 99));
    /* 64x32, 32x16, 16x8, 8x4, 4x2, 2x1, 1x1 */
    CHECK(sim_test_used(0) == PAGES(16 * (2048 + 512 + 128 + 32 + 8 + 2 + 1)));
    OK(cuMipmappedArrayGetLevel(&level, mipmap, 2));
    OK(cuMipmappedArrayGetLevel(&again, mipmap, 2));
    CHECK(level == again);
    OK(cuArray3DGetDescriptor_v2(&read, level));
    CHECK(read.Width == 16 && read.Height == 8 && read.Depth == 0);
    CHECK(cuMipmappedArrayGetLevel(&again, mipmap, 7) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuArrayDestroy(level) == CUDA_ERROR_INVALID_HANDLE);
    desc = shape(64, 32, 5, CUDA_ARRAY3D_LAYERED);
    uint64_t before = sim_test_used(0);
    OK(cuMipmappedArrayCreate(&layered, &desc, 2));
    CHECK(sim_test_used(0) - before == PAGES(16 * 5 * (2048 + 512)));
    OK(cuMipmappedArrayDestroy(mipmap));
    OK(cuMipmappedArrayDestroy(layered));
    CHECK(sim_test_used(0) == 0);
    CHECK(cuMipmappedArrayDestroy(mipmap) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuArray3DGetDescriptor_v2(&read, level) == CUDA_ERROR_INVALID_HANDLE);
    return 0;
}

static void a_mipmap_costs_its_levels_and_a_level_nothing(void **state)
{
    (void)state;
    assert_int_equal(sim_run(levels, EXACT), 0);
}

static int planes(void)
{
    CUDA_ARRAY3D_DESCRIPTOR desc = shape(128, 64, 0, 0), read;
    CUarray array = NULL, plane = NULL;
    CUcontext context = NULL;
    unsigned char byte = 0;

    CHECK(sim_begin(&context) == 0);
    desc.Format = CU_AD_FORMAT_NV12;
    desc.NumChannels = 3;
    OK(cuArray3DCreate_v2(&array, &desc));
    OK(cuArrayGetPlane(&plane, array, 1));
    OK(cuArray3DGetDescriptor_v2(&read, plane));
    CHECK(read.Width == 64 && read.Height == 32 && read.NumChannels == 2 &&
          read.Format == CU_AD_FORMAT_UNSIGNED_INT8);
    byte = 99;
    OK(cuMemcpyHtoA_v2(plane, 4095, &byte, 1));
    CHECK(cuMemcpyHtoA_v2(plane, 4096, &byte, 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuArrayGetPlane(&plane, array, 2) == CUDA_ERROR_INVALID_VALUE);
    CHECK(sim_test_used(0) == 12288);
    OK(cuArrayDestroy(array));
    desc.Format = CU_AD_FORMAT_FLOAT;
    desc.NumChannels = 1;
    OK(cuArray3DCreate_v2(&array, &desc));
    CHECK(cuArrayGetPlane(&plane, array, 0) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void a_plane_is_a_view(void **state)
{
    (void)state;
    assert_int_equal(sim_run(planes, EXACT), 0);
}

/* --- memory that comes later ------------------------------------------------------------ */

static int later(void)
{
    CUDA_ARRAY3D_DESCRIPTOR desc = shape(1024, 1024, 0, CUDA_ARRAY3D_SPARSE);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                .allocFlags = {.usage = CU_MEM_CREATE_USAGE_TILE_POOL}};
    CUDA_ARRAY_SPARSE_PROPERTIES sparse_properties;
    CUDA_ARRAY_MEMORY_REQUIREMENTS need;
    CUmemGenericAllocationHandle pool = 0;
    CUarray sparse = NULL, deferred = NULL, plain = NULL;
    CUmipmappedArray mipmap = NULL;
    CUarrayMapInfo info;
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    OK(cuArray3DCreate_v2(&sparse, &desc));
    OK(cuMipmappedArrayCreate(&mipmap, &desc, 20));
    desc.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
    OK(cuArray3DCreate_v2(&deferred, &desc));
    desc.Flags = 0;
    CHECK(sim_test_used(0) == 0);
    OK(cuArrayGetMemoryRequirements(&need, deferred, 0));
    CHECK(need.size == 16 * MIB && need.alignment == 4096);
    OK(cuArrayGetSparseProperties(&sparse_properties, sparse));
    CHECK(sparse_properties.tileExtent.width * sparse_properties.tileExtent.height == 4096);
    OK(cuMipmappedArrayGetSparseProperties(&sparse_properties, mipmap));
    CHECK(sparse_properties.miptailFirstLevel == 5 && sparse_properties.miptailSize > 0);
    CHECK(cuArrayGetSparseProperties(&sparse_properties, deferred) == CUDA_ERROR_INVALID_VALUE);

    OK(cuMemCreate(&pool, 16 * MIB, &prop, 0));
    memset(&info, 0, sizeof info);
    info.resourceType = CU_RESOURCE_TYPE_ARRAY;
    info.resource.array = deferred;
    info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    info.memHandle.memHandle = pool;
    info.deviceBitMask = 1;
    OK(cuMemMapArrayAsync(&info, 1, NULL));
    OK(cuMemRelease(pool));
    CHECK(sim_test_used(0) == 16 * MIB); /* the mapping keeps it */
    info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
    info.memHandle.memHandle = 0;
    OK(cuMemMapArrayAsync(&info, 1, NULL));
    CHECK(sim_test_used(0) == 0);
    OK(cuArray3DCreate_v2(&plain, &desc));
    info.resource.array = plain;
    CHECK(cuMemMapArrayAsync(&info, 1, NULL) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuArrayGetMemoryRequirements(&need, plain, 0) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void sparse_and_deferred_arrays_own_nothing(void **state)
{
    (void)state;
    assert_int_equal(sim_run(later, EXACT), 0);
}

/* --- bytes and contexts ----------------------------------------------------------------- */

static int boxes(void)
{
    CUDA_ARRAY3D_DESCRIPTOR desc = shape(8, 4, 0, 0);
    CUDA_MEMCPY2D copy;
    unsigned char in[4][8], out[4][8], flat[32];
    CUarray array = NULL;
    CUdeviceptr linear = 0;
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    desc.Format = CU_AD_FORMAT_UNSIGNED_INT8;
    desc.NumChannels = 1;
    OK(cuArray3DCreate_v2(&array, &desc));
    OK(cuMemAlloc_v2(&linear, 32));
    for (unsigned char i = 0; i < 32; i++)
        in[i / 8][i % 8] = i;
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = in;
    copy.srcPitch = 8;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.WidthInBytes = 8;
    copy.Height = 4;
    OK(cuMemcpy2D_v2(&copy));
    OK(cuMemcpyAtoH_v2(flat, array, 0, 32));
    CHECK(memcmp(flat, in, 32) == 0);
    OK(cuMemcpyAtoD_v2(linear, array, 8, 16));
    OK(cuMemcpyDtoA_v2(array, 0, linear, 8));
    OK(cuMemcpyAtoH_v2(flat, array, 0, 8));
    CHECK(memcmp(flat, in[1], 8) == 0);
    CHECK(cuMemcpyAtoH_v2(flat, array, 25, 8) == CUDA_ERROR_INVALID_VALUE);
    memset(&copy, 0, sizeof copy);
    memset(out, 0, sizeof out);
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = array;
    copy.srcXInBytes = 2;
    copy.srcY = 2;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = out;
    copy.dstPitch = 8;
    copy.WidthInBytes = 3;
    copy.Height = 2;
    OK(cuMemcpy2D_v2(&copy));
    CHECK(out[0][0] == 18 && out[1][2] == 28 && out[0][3] == 0);
    copy.srcXInBytes = 6;
    CHECK(cuMemcpy2D_v2(&copy) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void copies_move_the_bytes_of_arrays(void **state)
{
    (void)state;
    assert_int_equal(sim_run(boxes, EXACT), 0);
}

static int ends_with_its_context(void)
{
    CUDA_ARRAY3D_DESCRIPTOR desc = shape(1024, 1024, 0, 0);
    CUcontext first = NULL, second = NULL, primary = NULL;
    CUmipmappedArray mipmap = NULL;
    CUarray array = NULL, kept = NULL, refused = (CUarray)(uintptr_t)5;

    OK(cuInit(0));
    CHECK(cuArray3DCreate_v2(&array, &desc) == CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxCreate_v2(&first, 0, 0));
    OK(cuArray3DCreate_v2(&array, &desc));
    OK(cuMipmappedArrayCreate(&mipmap, &desc, 1));
    OK(cuMipmappedArrayGetLevel(&refused, mipmap, 0));
    OK(cuCtxCreate_v2(&second, 0, 0));
    OK(cuArray3DCreate_v2(&kept, &desc));
    CHECK(sim_test_used(0) == 48 * MIB);
    OK(cuCtxDestroy_v2(first));
    CHECK(sim_test_used(0) == 16 * MIB);
    CHECK(cuArrayDestroy(array) == CUDA_ERROR_INVALID_HANDLE);
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    OK(cuArray3DCreate_v2(&array, &desc));
    OK(cuArrayDestroy(kept)); /* from another context */
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK(sim_test_used(0) == 0);
    OK(cuCtxSetCurrent(second));
    refused = (CUarray)(uintptr_t)5;
    desc = shape(16384, 16384, 0, 0);
    CHECK(cuArray3DCreate_v2(&refused, &desc) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(refused == (CUarray)(uintptr_t)5);
    return 0;
}

static void arrays_end_with_their_context(void **state)
{
    (void)state;
    assert_int_equal(sim_run(ends_with_its_context, EXACT ";VRAMCAP_SIM_CARDS=1024"), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, sim_test_setup, sim_test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_dimension_counts_and_a_zero_is_no_zero_size),
        TEST(every_format_has_its_own_size),
        TEST(rows_and_widths_are_padded_to_the_tile_and_the_sum_to_the_page),
        TEST(a_mipmap_costs_its_levels_and_a_level_nothing),
        TEST(a_plane_is_a_view),
        TEST(sparse_and_deferred_arrays_own_nothing),
        TEST(copies_move_the_bytes_of_arrays),
        TEST(arrays_end_with_their_context),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
