/*
 * The kernel's dmem limit as a ceiling of the container, alone and beside others. The container is a
 * bubblewrap sandbox whose /sys/fs/cgroup has a dmem.max of ours; the simulated driver keeps no limit
 * of its own here, so that what is refused is refused by the library.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/skip.h"

#include "tests/sim/sim.h"
#include "tests/support/fixture.h"

#define CARD_0 "nvidia/00000000:10:00.0/vidmem"
#define CARD_1 "nvidia/00000000:11:00.0/vidmem"

static void kernel_says(const struct fixture *f, const char *text)
{
    FILE *file;

    (void)mkdir(fixture_path(f, "cgroup"), 0755);
    file = fopen(fixture_path(f, "cgroup/dmem.max"), "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void enter(struct child *c, const struct fixture *f, const char *const *extra)
{
    const char *const argv[] = {"bwrap",
                                "--bind",
                                "/",
                                "/",
                                "--dev-bind",
                                "/dev",
                                "/dev",
                                "--proc",
                                "/proc",
                                "--bind",
                                fixture_path(f, "cgroup"),
                                "/sys/fs/cgroup",
                                "--die-with-parent",
                                CLIENT,
                                "--by=getproc",
                                NULL};

    assert_true(child_start(c, f, argv, extra));
    assert_int_equal(client_result(c, "init"), 0);
    assert_int_equal(client_result(c, "ctx create 0"), 0);
}

static void needs_bwrap(const struct fixture *f)
{
    const char *const argv[] = {"bwrap",   "--bind",         "/",    "/",
                                "--tmpfs", "/sys/fs/cgroup", "true", NULL};
    const char *const bare[] = {"LD_PRELOAD", NULL};
    static struct child_output output;

    child_run(f, argv, bare, &output);
    if (output.status != 0)
        SKIP_BECAUSE("bubblewrap does not work here: %s", output.err);
}

static void row_is(const struct fixture *f, uint64_t mib, enum vcap_lf_source source)
{
    struct vcap_snapshot_gpu gpu;

    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.ceiling_bytes, mib * MIB);
    assert_int_equal(gpu.ceiling_source, source);
}

static void the_kernels_limit_alone_is_enough(void **state)
{
    const struct fixture *f = *state;
    const char *const enabled[] = {"VRAMCAP_ENABLE=1", NULL};
    struct vcap_snapshot_gpu gpu;
    struct child a, b;

    needs_bwrap(f);
    kernel_says(f, CARD_1 " 104857600\n" CARD_0 " 524288000\n");
    enter(&a, f, enabled);
    enter(&b, f, enabled);
    assert_int_equal(client_result(&a, "alloc 300m"), 0);
    assert_int_equal(client_result(&b, "alloc 202m"), 2);
    assert_int_equal(client_result(&b, "managed 202m"), 2);
    assert_int_equal(client_result(&b, "alloc 200m"), 0);
    row_is(f, 500, VCAP_LF_SOURCE_DMEM);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.source_bytes[VCAP_LF_SOURCE_DMEM - VCAP_LF_SOURCE_FIRST], 500 * MIB);
    assert_int_equal(gpu.source_bytes[VCAP_LF_SOURCE_ENV - VCAP_LF_SOURCE_FIRST], VCAP_UNKNOWN);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

static void the_lowest_source_holds_and_all_are_recorded(void **state)
{
    static const struct {
        const char *memory, *mps, *toolkit;
        uint64_t mib;
        enum vcap_lf_source source;
    } cases[] = {
        {"VRAMCAP_MEMORY_MIB=400", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=700M",
         "NVIDIA_GPU_MEMORY_LIMIT=800", 400, VCAP_LF_SOURCE_ENV},
        {"VRAMCAP_MEMORY_MIB=900", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=300M",
         "NVIDIA_GPU_MEMORY_LIMIT=800", 300, VCAP_LF_SOURCE_MPS},
        {"VRAMCAP_MEMORY_MIB=900", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=700M",
         "NVIDIA_GPU_MEMORY_LIMIT=200", 200, VCAP_LF_SOURCE_TOOLKIT},
        {"VRAMCAP_MEMORY_MIB=900", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=700M",
         "NVIDIA_GPU_MEMORY_LIMIT=800", 500, VCAP_LF_SOURCE_DMEM},
    };
    const struct fixture *f = *state;

    needs_bwrap(f);
    kernel_says(f, CARD_0 " 524288000\n");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const extra[] = {"VRAMCAP_ENABLE=1", cases[i].memory, cases[i].mps,
                                     cases[i].toolkit, NULL};
        struct vcap_snapshot_gpu gpu;
        char command[32];
        struct child c;

        enter(&c, f, extra);
        snprintf(command, sizeof(command), "alloc %um", (unsigned)cases[i].mib + 2);
        assert_int_equal(client_result(&c, command), 2);
        snprintf(command, sizeof(command), "alloc %um", (unsigned)cases[i].mib);
        assert_int_equal(client_result(&c, command), 0);
        row_is(f, cases[i].mib, cases[i].source);
        assert_true(ledger_gpu(f->ledger, 0, &gpu));
        for (unsigned source = VCAP_LF_SOURCE_ENV; source <= VCAP_LF_SOURCE_LAST; source++)
            if (source == VCAP_LF_SOURCE_ENV || source == VCAP_LF_SOURCE_MPS ||
                source == VCAP_LF_SOURCE_DMEM || source == VCAP_LF_SOURCE_TOOLKIT)
                assert_int_not_equal(gpu.source_bytes[source - VCAP_LF_SOURCE_FIRST], VCAP_UNKNOWN);
        child_kill(&c, SIGKILL);
    }
}

static void the_toolkits_limit_alone_is_enough(void **state)
{
    const struct fixture *f = *state;
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "NVIDIA_GPU_MEMORY_LIMIT=200", NULL};
    struct child c;

    assert_true(client_start(&c, f, "getproc", extra));
    assert_int_equal(client_result(&c, "init"), 0);
    assert_int_equal(client_result(&c, "ctx create 0"), 0);
    assert_int_equal(client_result(&c, "alloc 202m"), 2);
    assert_int_equal(client_result(&c, "alloc 200m"), 0);
    row_is(f, 200, VCAP_LF_SOURCE_TOOLKIT);
    child_kill(&c, SIGKILL);
}

/* "max" everywhere, another card's limit, a line that is not understood: none of them is a ceiling, and
 * enabled without one is an error. */
static void what_is_no_limit_is_no_ceiling(void **state)
{
    static const char *const texts[] = {"", CARD_0 " max\n", CARD_0 " lots\n",
                                        "drm/0000:03:00.0/vram0 1048576\n"};
    const char *const enabled[] = {"VRAMCAP_ENABLE=1", NULL};
    const char *const capped[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=300", NULL};
    const struct fixture *f = *state;
    struct child c;

    needs_bwrap(f);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        kernel_says(f, texts[i]);
        enter(&c, f, enabled);
        assert_int_equal(client_result(&c, "alloc 2m"), 2);
        child_kill(&c, SIGKILL);
        enter(&c, f, capped);
        assert_int_equal(client_result(&c, "alloc 302m"), 2);
        assert_int_equal(client_result(&c, "alloc 300m"), 0);
        row_is(f, 300, VCAP_LF_SOURCE_ENV);
        child_kill(&c, SIGKILL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_kernels_limit_alone_is_enough, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(the_lowest_source_holds_and_all_are_recorded, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(the_toolkits_limit_alone_is_enough, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(what_is_no_limit_is_no_ceiling, fixture_setup,
                                        fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
