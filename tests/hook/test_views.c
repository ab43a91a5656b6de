/*
 * What cuMemGetInfo and cuDeviceTotalMem tell, in both ABIs: the truth under the ceiling.
 */
#include <limits.h>
#include <signal.h>

#include "tests/hook/scenario.h"

#define CARD (24576 * MIB)

static int both_surfaces_agree_under_a_ceiling(void)
{
    size_t free_bytes, total, device;
    unsigned free_old, total_old, device_old;
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    SAME(total, 1024 * MIB);
    SAME(free_bytes, 1024 * MIB);
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    OK(api.cuMemGetInfo(&free_old, &total_old));
    OK(api.cuDeviceTotalMem_v2(&device, 0));
    OK(api.cuDeviceTotalMem(&device_old, 0));
    SAME(total, 1024 * MIB);
    SAME(total_old, 1024 * MIB);
    SAME(device, 1024 * MIB);
    SAME(device_old, 1024 * MIB);
    SAME(free_bytes, 924 * MIB);
    SAME(free_old, 924 * MIB);
    OK(api.cuMemAlloc_v2(&pointer, free_bytes)); /* what is called free can be had */
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    SAME(free_bytes, 0);
    SAME(total, 1024 * MIB);
    return 0;
}

static int nulls_are_forwarded_and_bad_calls_the_drivers(void)
{
    size_t free_bytes = 0x77, total = 0x77;
    unsigned old = 0x77;

    OK(api.cuInit(0));
    GIVES(api.cuMemGetInfo_v2(&free_bytes, &total), CUDA_ERROR_INVALID_CONTEXT);
    SAME(free_bytes, 0x77);
    SAME(total, 0x77);
    OK(begin(0));
    OK(api.cuMemGetInfo_v2(NULL, &total));
    SAME(total, 1024 * MIB);
    OK(api.cuMemGetInfo_v2(&free_bytes, NULL));
    SAME(free_bytes, 1024 * MIB);
    OK(api.cuMemGetInfo_v2(NULL, NULL));
    OK(api.cuMemGetInfo(NULL, &old));
    SAME(old, 1024 * MIB);
    OK(api.cuMemGetInfo(&old, NULL));
    SAME(old, 1024 * MIB);
    OK(api.cuMemGetInfo(NULL, NULL));
    GIVES(api.cuDeviceTotalMem_v2(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuDeviceTotalMem(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    total = 0x77;
    GIVES(api.cuDeviceTotalMem_v2(&total, 9), CUDA_ERROR_INVALID_DEVICE);
    SAME(total, 0x77);
    return 0;
}

static int a_ceiling_above_the_card_shows_the_card(void)
{
    size_t free_bytes, total, device;

    OK(begin(0));
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    OK(api.cuDeviceTotalMem_v2(&device, 0));
    SAME(total, CARD);
    SAME(device, CARD);
    SAME(free_bytes, CARD - fixture_draw()->context_mib * MIB);
    return 0;
}

static int what_the_driver_lacks_is_not_free(void)
{
    size_t free_bytes, total;

    OK(begin(0)); /* card 1000, ceiling 900, this context 300 */
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    SAME(total, 900 * MIB);
    SAME(free_bytes, 700 * MIB);
    return 0;
}

static int passive_is_untouched(void)
{
    size_t free_bytes, total, device;
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    OK(api.cuDeviceTotalMem_v2(&device, 0));
    SAME(total, CARD);
    SAME(device, CARD);
    SAME(free_bytes, CARD - fixture_draw()->context_mib * MIB);
    OK(api.cuMemAlloc_v2(&pointer, 2048 * MIB));
    return 0;
}

static int old_views_saturate_above_four_gibibytes(void)
{
    unsigned free_old, total_old, device_old;

    OK(begin(0)); /* ceiling 8192 MiB */
    OK(api.cuMemGetInfo(&free_old, &total_old));
    OK(api.cuDeviceTotalMem(&device_old, 0));
    SAME(total_old, UINT_MAX);
    SAME(device_old, UINT_MAX);
    SAME(free_old, UINT_MAX);
    return 0;
}

static int the_view_is_of_the_current_contexts_device(void)
{
    size_t free_bytes, total;
    CUdeviceptr pointer;
    CUcontext second;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    OK(api.cuCtxCreate_v2(&second, 0, 1));
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    SAME(total, 512 * MIB);
    SAME(free_bytes, 512 * MIB);
    OK(api.cuDeviceTotalMem_v2(&total, 0));
    SAME(total, 1024 * MIB);
    OK(api.cuDeviceTotalMem_v2(&total, 1));
    SAME(total, 512 * MIB);
    return 0;
}

/* ---- several processes ---- */

static const char *const under[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};

static void others_allocations_lower_what_is_free(void **state)
{
    const struct fixture *f = *state;
    struct child a, b;
    char answer[128];

    assert_true(client_start(&a, f, "getproc", under));
    assert_true(client_start(&b, f, "link", under));
    assert_int_equal(client_result(&a, "init"), 0);
    assert_int_equal(client_result(&a, "ctx create 0"), 0);
    assert_int_equal(client_result(&b, "init"), 0);
    assert_int_equal(client_result(&b, "ctx create 0"), 0);
    assert_int_equal(client_result(&b, "alloc 300m"), 0);
    assert_string_equal(client_ask(&a, answer, sizeof(answer), "info"), "0 759169024 1073741824");
    child_kill(&b, SIGKILL);
    /* at most 10 ms later a view has noticed; a charge notices at once */
    assert_int_equal(client_result(&a, "sleep 20"), 0);
    assert_string_equal(client_ask(&a, answer, sizeof(answer), "info"), "0 1073741824 1073741824");
    child_kill(&a, SIGKILL);
}

static bool set_ceiling(const char *path, uint64_t bytes)
{
    struct vcap_lf_header header;
    FILE *file = fopen(path, "r+");
    uint64_t word = vcap_lf_ceiling(bytes / VCAP_LF_UNIT_BYTES, VCAP_LF_SOURCE_HOST);
    bool ok = file != NULL && fread(&header, sizeof(header), 1, file) == 1 &&
              fseek(file, (long)(header.gpu_offset + offsetof(struct vcap_lf_gpu, ceiling)),
                    SEEK_SET) == 0 &&
              fwrite(&word, sizeof(word), 1, file) == 1;

    if (file != NULL && fclose(file) != 0)
        ok = false;
    return ok;
}

static void a_ceiling_lowered_below_use_shows_nothing_free(void **state)
{
    const struct fixture *f = *state;
    struct vcap_snapshot_gpu gpu;
    struct child a;
    char answer[128];

    assert_true(client_start(&a, f, "dlsym", under));
    assert_int_equal(client_result(&a, "init"), 0);
    assert_int_equal(client_result(&a, "ctx create 0"), 0);
    assert_int_equal(client_result(&a, "alloc 346m"), 0);
    assert_true(set_ceiling(f->ledger, 300 * MIB));
    assert_string_equal(client_ask(&a, answer, sizeof(answer), "info"), "0 0 314572800");
    assert_string_equal(client_ask(&a, answer, sizeof(answer), "info 1"), "0 0 314572800");
    assert_string_equal(client_ask(&a, answer, sizeof(answer), "total 0"), "0 314572800");
    assert_int_equal(client_result(&a, "alloc 1"), 2);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_true(gpu.over);
    assert_true(gpu.free_bytes == 0);
    child_kill(&a, SIGKILL);
}

static const struct scenario scenarios[] = {
    SCENARIO(both_surfaces_agree_under_a_ceiling, NULL),
    SCENARIO(nulls_are_forwarded_and_bad_calls_the_drivers, NULL),
    SCENARIO(a_ceiling_above_the_card_shows_the_card, "VRAMCAP_MEMORY_MIB=30000"),
    SCENARIO(what_the_driver_lacks_is_not_free,
             "VRAMCAP_MEMORY_MIB=900;VRAMCAP_SIM_CARDS=1000;VRAMCAP_SIM_CONTEXT_MIB=300"),
    SCENARIO(passive_is_untouched, "VRAMCAP_ENABLE=0"),
    {"audit_is_untouched", passive_is_untouched, "VRAMCAP_ENABLE=audit", false},
    SCENARIO(old_views_saturate_above_four_gibibytes, "VRAMCAP_MEMORY_MIB=8192"),
    SCENARIO(the_view_is_of_the_current_contexts_device,
             "VRAMCAP_SIM_CARDS=2x24576;VRAMCAP_MEMORY_MIB=0=1024,1=512"),
};

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(others_allocations_lower_what_is_free),
    cmocka_unit_test(a_ceiling_lowered_below_use_shows_nothing_free),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
