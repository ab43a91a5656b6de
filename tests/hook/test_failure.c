/*
 * Configurations and ledgers that cannot be used: one line, VRAMCAP_ON_ERROR decides, never a wider
 * ceiling, and programs without CUDA notice nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/hook/scenario.h"

static int device_memory_is_denied(void)
{
    CUdeviceptr pointer = 0x77;
    size_t pitch = 0x55, free_bytes, total;

    OK(begin(0)); /* cuInit and contexts go on working */
    REFUSED(api.cuMemAlloc_v2(&pointer, 1));
    REFUSED(api.cuMemAllocPitch_v2(&pointer, &pitch, 4, 4, 4));
    REFUSED(api.cuMemAllocManaged(&pointer, 1, CU_MEM_ATTACH_GLOBAL));
    SAME(pointer, 0x77);
    SAME(pitch, 0x55);
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    SAME(free_bytes, 0);
    OK(api.cuMemFree_v2(0));
    return 0;
}

static int device_memory_is_the_drivers(void)
{
    CUdeviceptr pointer;
    size_t total;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 4096 * MIB));
    OK(api.cuDeviceTotalMem_v2(&total, 0));
    SAME(total, 24576 * MIB);
    OK(api.cuMemFree_v2(pointer));
    return 0;
}

static int a_ceiling_is_in_force(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 1024 * MIB));
    REFUSED(api.cuMemAlloc_v2(&pointer, 1));
    return 0;
}

/* What the cause must be called; deny, then allow. */
static void denies_and_allows(const struct fixture *f, const char *environment, const char *cause)
{
    static struct child_output output;
    char more[1024];

    scenario_run(f, "device_memory_is_denied", environment, &output);
    if (output.status != 0 || strstr(output.err, cause) == NULL)
        fprintf(stderr, "---- %s\n%s----\n", environment, output.err);
    assert_int_equal(output.status, 0);
    assert_non_null(strstr(output.err, cause));
    assert_int_equal(count_lines(output.err, "GPU memory is denied to this process"), 1);
    assert_int_equal(count_lines(output.err, "vramcap: "), count_lines(output.err, NULL));
    assert_in_range(count_lines(output.err, NULL), 1, 6);
    assert_int_equal(output.out_length, 0);

    snprintf(more, sizeof(more), "%s;VRAMCAP_ON_ERROR=allow", environment);
    scenario_run(f, "device_memory_is_the_drivers", more, &output);
    if (output.status != 0)
        fprintf(stderr, "---- %s\n%s----\n", more, output.err);
    assert_int_equal(output.status, 0);
    assert_int_equal(count_lines(output.err, NULL), 1);
    assert_non_null(strstr(output.err, "no ceiling is in force in this process"));
}

/* The same environment in a program that knows no CUDA. */
static void leaves_others_alone(const struct fixture *f, const char *variable)
{
    static const char *const argv[] = {"/bin/echo", "hello", NULL};
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", variable, NULL};
    static struct child_output output;

    if (fixture_only_own_programs())
        return;
    child_run(f, argv, extra, &output);
    assert_int_equal(output.status, 0);
    assert_string_equal(output.out, "hello\n");
    assert_string_equal(output.err, "");
}

static void values_that_do_not_parse_are_errors(void **state)
{
    static const char *const values[] = {"VRAMCAP_MEMORY_MIB=abc",
                                         "VRAMCAP_MEMORY_MIB=-1",
                                         "VRAMCAP_MEMORY_MIB=1.5G",
                                         "VRAMCAP_MEMORY_MIB=50%",
                                         "VRAMCAP_MEMORY_MIB=0=1024,",
                                         "VRAMCAP_MEMORY_MIB=99999999999999999999",
                                         "VRAMCAP_MEMORY_MIB=",
                                         "VRAMCAP_ENABLE=yes",
                                         "VRAMCAP_MANAGED=perhaps",
                                         "VRAMCAP_CONTEXT_MIB=some",
                                         "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=\342\200\2351G"};
    const struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        char name[64];

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(values[i], "="), values[i]);
        denies_and_allows(f, values[i], name);
        leaves_others_alone(f, values[i]);
    }
}

static void enabled_without_a_ceiling_is_an_error(void **state)
{
    denies_and_allows(*state, "VRAMCAP_MEMORY_MIB", "no ceiling");
}

static void a_bad_failure_policy_denies(void **state)
{
    static struct child_output output;

    scenario_run(*state, "device_memory_is_denied", "VRAMCAP_ON_ERROR=maybe", &output);
    assert_int_equal(output.status, 0);
    assert_non_null(strstr(output.err, "VRAMCAP_ON_ERROR"));
}

static void without_any_configuration_the_driver_is_untouched_and_silent(void **state)
{
    static struct child_output output;

    scenario_run(*state, "device_memory_is_the_drivers", "VRAMCAP_ENABLE;VRAMCAP_MEMORY_MIB",
                 &output);
    assert_int_equal(output.status, 0);
    assert_string_equal(output.err, "");
    assert_int_equal(output.out_length, 0);
    assert_int_not_equal(access(((const struct fixture *)*state)->ledger, F_OK), 0);
}

static void put_file(const char *path, const void *bytes, size_t length)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    assert_true(fd >= 0);
    assert_true(write(fd, bytes, length) == (ssize_t)length);
    close(fd);
}

static void unusable(const struct fixture *f, const char *path, const char *cause)
{
    char environment[512];

    snprintf(environment, sizeof(environment), "VRAMCAP_LEDGER=%s", path);
    denies_and_allows(f, environment, cause);
    leaves_others_alone(f, environment);
}

static void a_missing_directory_is_an_error(void **state)
{
    unusable(*state, fixture_path(*state, "no/such/ledger"), "No such file");
}

static void a_foreign_file_is_an_error_and_left_alone(void **state)
{
    const char *path = fixture_path(*state, "foreign");
    char copy[256], back[64] = "";
    int fd;

    snprintf(copy, sizeof(copy), "%s", path);
    put_file(copy, "somebody's thesis\n", 18);
    unusable(*state, copy, "ledger");
    fd = open(copy, O_RDONLY);
    assert_int_equal(read(fd, back, sizeof(back)), 18);
    close(fd);
    assert_string_equal(back, "somebody's thesis\n");
    put_file(copy, "", 0);
    unusable(*state, copy, "ledger");
}

static void a_directory_a_fifo_and_a_symlink_are_errors(void **state)
{
    const struct fixture *f = *state;
    char path[256], target[256];

    unusable(f, f->directory, "ledger");
    snprintf(path, sizeof(path), "%s", fixture_path(f, "fifo"));
    assert_int_equal(mkfifo(path, 0666), 0);
    unusable(f, path, "ledger");
    snprintf(target, sizeof(target), "%s", fixture_path(f, "target"));
    snprintf(path, sizeof(path), "%s", fixture_path(f, "link"));
    assert_int_equal(symlink(target, path), 0);
    unusable(f, path, "ledger");
    assert_int_not_equal(access(target, F_OK), 0);
}

/* Makes a real ledger and changes it: truncated, another version, another byte order. */
static void damaged_and_foreign_versions_are_errors(void **state)
{
    const struct fixture *f = *state;
    static struct child_output output;
    uint32_t word = 2;
    struct stat st = {.st_size = 0};
    int fd;

    scenario_run(f, "a_ceiling_is_in_force", NULL, &output);
    assert_int_equal(output.status, 0);
    fd = open(f->ledger, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pwrite(fd, &word, 4, offsetof(struct vcap_lf_header, version)), 4);
    unusable(f, f->ledger, "version");
    word = VCAP_LF_VERSION;
    assert_int_equal(pwrite(fd, &word, 4, offsetof(struct vcap_lf_header, version)), 4);
    scenario_run(f, "a_ceiling_is_in_force", NULL, &output);
    assert_int_equal(output.status, 0);
    word = 0x04030201;
    assert_int_equal(pwrite(fd, &word, 4, offsetof(struct vcap_lf_header, byte_order)), 4);
    unusable(f, f->ledger, "byte order");
    word = VCAP_LF_BYTE_ORDER;
    assert_int_equal(pwrite(fd, &word, 4, offsetof(struct vcap_lf_header, byte_order)), 4);
    assert_int_equal(ftruncate(fd, st.st_size / 2), 0);
    unusable(f, f->ledger, "ledger");
    close(fd);
}

/* In a mount namespace of this test program, so that nothing stays behind. */
static bool may_mount(const char *where, const char *options, unsigned long flags)
{
    const char *must = getenv("VRAMCAP_MUST_WORK");
    static bool apart;

    if (!apart && unshare(CLONE_NEWNS) == 0)
        apart = mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
    if (apart && mkdir(where, 0755) == 0 && mount("none", where, "tmpfs", flags, options) == 0)
        return true;
    if (must != NULL && strcmp(must, "1") == 0)
        fail_msg("no tmpfs can be mounted here (%s); in a chroot, / must be a mount point",
                 strerror(errno));
    return false;
}

static void a_read_only_file_system_is_an_error(void **state)
{
    const struct fixture *f = *state;
    char where[256], path[300];

    snprintf(where, sizeof(where), "%s", fixture_path(f, "ro"));
    if (!may_mount(where, "size=1m", MS_RDONLY))
        skip();
    snprintf(path, sizeof(path), "%s/ledger", where);
    unusable(f, path, "Read-only");
    umount2(where, MNT_DETACH);
}

static void a_full_file_system_is_an_error(void **state)
{
    const struct fixture *f = *state;
    char where[256], path[300];

    snprintf(where, sizeof(where), "%s", fixture_path(f, "full"));
    if (!may_mount(where, "size=16k", 0))
        skip();
    snprintf(path, sizeof(path), "%s/ledger", where);
    unusable(f, path, "No space left");
    assert_int_not_equal(access(path, F_OK), 0);
    umount2(where, MNT_DETACH);
}

static void a_read_only_ledger_is_an_error(void **state)
{
    const struct fixture *f = *state;
    static struct child_output output;
    char where[256], path[300];

    snprintf(where, sizeof(where), "%s", fixture_path(f, "once"));
    if (!may_mount(where, "size=8m", 0))
        skip();
    snprintf(path, sizeof(path), "VRAMCAP_LEDGER=%s/ledger", where);
    scenario_run(f, "a_ceiling_is_in_force", path, &output);
    assert_int_equal(output.status, 0);
    assert_int_equal(mount("none", where, "tmpfs", MS_REMOUNT | MS_RDONLY, "size=8m"), 0);
    unusable(f, path + strlen("VRAMCAP_LEDGER="), "Read-only");
    umount2(where, MNT_DETACH);
}

static void a_log_file_takes_the_lines(void **state)
{
    const struct fixture *f = *state;
    static struct child_output output;
    char text[4096];
    ssize_t got;
    int fd;

    scenario_run(f, "device_memory_is_denied", "VRAMCAP_MEMORY_MIB;VRAMCAP_LOG_FILE=@/log",
                 &output);
    assert_int_equal(output.status, 0);
    assert_string_equal(output.err, "");
    fd = open(fixture_path(f, "log"), O_RDONLY);
    got = read(fd, text, sizeof(text) - 1);
    close(fd);
    assert_true(got > 0);
    text[got] = 0;
    assert_int_equal(count_lines(text, "GPU memory is denied"), 1);
}

static const struct scenario scenarios[] = {
    HIDDEN(device_memory_is_denied, NULL),
    HIDDEN(device_memory_is_the_drivers, NULL),
    HIDDEN(a_ceiling_is_in_force, NULL),
};

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(values_that_do_not_parse_are_errors),
    cmocka_unit_test(enabled_without_a_ceiling_is_an_error),
    cmocka_unit_test(a_bad_failure_policy_denies),
    cmocka_unit_test(without_any_configuration_the_driver_is_untouched_and_silent),
    cmocka_unit_test(a_missing_directory_is_an_error),
    cmocka_unit_test(a_foreign_file_is_an_error_and_left_alone),
    cmocka_unit_test(a_directory_a_fifo_and_a_symlink_are_errors),
    cmocka_unit_test(damaged_and_foreign_versions_are_errors),
    cmocka_unit_test(a_read_only_file_system_is_an_error),
    cmocka_unit_test(a_full_file_system_is_an_error),
    cmocka_unit_test(a_read_only_ledger_is_an_error),
    cmocka_unit_test(a_log_file_takes_the_lines),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
