/*
 * External memory of the simulated driver: its size on the card, its buffers and mipmaps, its end.
 */
#define _GNU_SOURCE
#include "test_sim_support.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NO_CONTEXT "VRAMCAP_SIM_CARDS=1024;VRAMCAP_SIM_CONTEXT_MIB=0"

static CUDA_EXTERNAL_MEMORY_HANDLE_DESC opaque(int fd, uint64_t size)
{
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc;

    memset(&desc, 0, sizeof desc);
    desc.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    desc.handle.fd = fd;
    desc.size = size;
    return desc;
}

static int life(void)
{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC part = {.offset = 5000, .size = 3 * MIB};
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc;
    CUexternalMemory memory = NULL, second = NULL;
    CUdeviceptr buffer = 0, other = 0;
    CUcontext context = NULL;
    unsigned char text[4] = {1, 2, 3, 4}, seen[4] = {0};
    int fd = memfd_create("vulkan", MFD_CLOEXEC), view = dup(fd);

    CHECK(sim_begin(&context) == 0 && ftruncate(fd, 100 * MIB) == 0);
    CHECK(pwrite(fd, text, 4, 5000) == 4);
    desc = opaque(fd, 100 * MIB);
    OK(cuImportExternalMemory(&memory, &desc));
    CHECK(fcntl(fd, F_GETFD) == -1); /* the driver's now */
    CHECK(sim_test_used(0) == 100 * MIB && sim_test_alloc(0) == 100 * MIB);
    OK(cuExternalMemoryGetMappedBuffer(&buffer, memory, &part));
    OK(cuExternalMemoryGetMappedBuffer(&other, memory, &part));
    CHECK(sim_test_used(0) == 100 * MIB && buffer != other);
    OK(cuMemcpyDtoH_v2(seen, buffer, 4));
    CHECK(memcmp(seen, text, 4) == 0);
    OK(cuMemsetD8_v2(other + 4, 9, 1));
    CHECK(pread(view, seen, 1, 5004) == 1 && seen[0] == 9);
    CHECK(cuMemsetD8_v2(buffer + 3 * MIB, 9, 1) == CUDA_ERROR_INVALID_VALUE);
    part.offset = 98 * MIB;
    CHECK(cuExternalMemoryGetMappedBuffer(&other, memory, &part) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(buffer));
    CHECK(cuMemFree_v2(buffer) == CUDA_ERROR_INVALID_VALUE);
    CHECK(sim_test_used(0) == 100 * MIB);
    OK(cuDestroyExternalMemory(memory));
    CHECK(sim_test_used(0) == 0);
    CHECK(cuDestroyExternalMemory(memory) == CUDA_ERROR_INVALID_HANDLE);
    OK(cuMemFree_v2(other)); /* outlives the import, as documented */
    /* any descriptor will do; what has no room is not taken */
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    desc = opaque(fd, 1025 * MIB);
    CHECK(cuImportExternalMemory(&memory, &desc) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(fcntl(fd, F_GETFD) != -1);
    desc = opaque(fd, 3 * MIB);
    OK(cuImportExternalMemory(&second, &desc));
    CHECK(sim_test_used(0) == 4 * MIB);
    OK(cuCtxDestroy_v2(context));
    CHECK(sim_test_used(0) == 0);
    OK(cuCtxCreate_v2(&context, 0, 0));
    CHECK(cuDestroyExternalMemory(second) == CUDA_ERROR_INVALID_HANDLE);
    desc = opaque(-1, MIB);
    CHECK(cuImportExternalMemory(&memory, &desc) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void external_memory_counts_from_import_to_destroy(void **state)
{
    (void)state;
    assert_int_equal(sim_run(life, NO_CONTEXT), 0);
}

static int mipmapped(void)
{
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC desc;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC import;
    CUexternalMemory memory = NULL;
    CUmipmappedArray mipmap = NULL;
    CUarray level = NULL;
    CUcontext context = NULL;
    unsigned char byte = 7, seen = 0;
    int fd = memfd_create("vulkan", MFD_CLOEXEC), view = dup(fd);

    CHECK(sim_begin(&context) == 0 && ftruncate(fd, 8 * MIB) == 0);
    import = opaque(fd, 8 * MIB);
    OK(cuImportExternalMemory(&memory, &import));
    memset(&desc, 0, sizeof desc);
    desc.offset = 1000;
    desc.arrayDesc = (CUDA_ARRAY3D_DESCRIPTOR){
        .Width = 64, .Height = 64, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    desc.numLevels = 2;
    OK(cuExternalMemoryGetMappedMipmappedArray(&mipmap, memory, &desc));
    CHECK(sim_test_used(0) == 8 * MIB);
    OK(cuMipmappedArrayGetLevel(&level, mipmap, 1));
    OK(cuMemcpyHtoA_v2(level, 10, &byte, 1));
    CHECK(pread(view, &seen, 1, 1000 + 64 * 64 + 10) == 1 && seen == 7);
    OK(cuMipmappedArrayDestroy(mipmap));
    CHECK(sim_test_used(0) == 8 * MIB);
    desc.offset = 8 * MIB - 64;
    CHECK(cuExternalMemoryGetMappedMipmappedArray(&mipmap, memory, &desc) ==
          CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void a_mipmap_over_external_memory_is_its_bytes(void **state)
{
    (void)state;
    assert_int_equal(sim_run(mipmapped, NO_CONTEXT), 0);
}

static int uncounted(void)
{
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = opaque(open("/dev/null", O_RDWR), 4096 * MIB);
    CUexternalMemory memory = NULL;
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    OK(cuImportExternalMemory(&memory, &desc));
    CHECK(sim_test_used(0) == 0);
    OK(cuDestroyExternalMemory(memory));
    CHECK(sim_test_used(0) == 0);
    return 0;
}

static void the_card_need_not_count_it(void **state)
{
    (void)state;
    assert_int_equal(sim_run(uncounted, NO_CONTEXT ";VRAMCAP_SIM_EXTERNAL=0"), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, sim_test_setup, sim_test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(external_memory_counts_from_import_to_destroy),
        TEST(a_mipmap_over_external_memory_is_its_bytes),
        TEST(the_card_need_not_count_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
