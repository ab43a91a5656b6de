/*
 * Which ledger `vramcap dump` shows when nobody says.  /dev/shm and /run are this program's own (a mount
 * namespace), so that nothing of the machine is in the way.  Needs root; skips without.
 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/skip.h"

#include "enforcer/cli/run_ledger.h"
#include "enforcer/ledger.h"
#include "enforcer/ledger_path.h"
#include "tests/cli/tool.h"

static struct tool t;
static char key_path[128], run_path[VCAP_LEDGER_PATH_MAX];
static struct vcap_ledger live;
static bool apart;

static int setup(void **state)
{
    char key[VCAP_KEY_MAX];

    (void)state;
    apart = apart ||
            (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    if (!apart || mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=16m") != 0 ||
        mount("tmpfs", "/run", "tmpfs", 0, "size=16m") != 0)
        return 0; /* the test says so */
    if (vcap_key_compute("/proc", "/sys/fs/cgroup", key) < 0)
        return -1;
    (void)snprintf(key_path, sizeof key_path, "%s%s", VCAP_LEDGER_SHM_PREFIX, key);
    if (vcap_ledger_create(key_path, NULL, 0, key, NULL) != 0)
        return -1;
    return vcap_run_ledger_make(VCAP_RUN_LEDGER_FOLDER, run_path, sizeof run_path);
}

static int teardown(void **state)
{
    (void)state;
    if (live.base != NULL)
        vcap_ledger_close(&live);
    (void)umount2("/dev/shm", MNT_DETACH);
    (void)umount2("/run", MNT_DETACH);
    return 0;
}

static void live_in(const char *path)
{
    char why[160];

    assert_int_equal(
        vcap_ledger_open(&live, path, NULL, VCAP_OPEN_CLAIM, VCAP_LF_MODE_ENFORCE, why, sizeof why),
        0);
}

static void shows(const char *path)
{
    char start[VCAP_LEDGER_PATH_MAX + 16];
    int status = tool_run(&t, NULL, TOOL_ARGS("dump"));

    if (status != 0)
        fail_msg("status %d: %s", status, t.err);
    (void)snprintf(start, sizeof start, "ledger %s,", path);
    if (strncmp(t.out, start, strlen(start)) != 0)
        fail_msg("not '%s' but: %.120s", start, t.out);
}

static void needs_mounts(void)
{
    if (!apart)
        SKIP_BECAUSE("needs root, and / to be a mount point");
}

static void one_that_somebody_lives_in_comes_before_an_abandoned_one(void **state)
{
    (void)state;
    needs_mounts();
    live_in(run_path);
    shows(run_path);
}

static void the_containers_own_comes_first_when_somebody_lives_in_it(void **state)
{
    static struct vcap_ledger other;
    char why[160];

    (void)state;
    needs_mounts();
    live_in(key_path);
    assert_int_equal(vcap_ledger_open(&other, run_path, NULL, VCAP_OPEN_CLAIM, VCAP_LF_MODE_ENFORCE,
                                      why, sizeof why),
                     0);
    shows(key_path);
    vcap_ledger_close(&other);
}

static void where_nobody_lives_the_containers_own_is_shown(void **state)
{
    (void)state;
    needs_mounts();
    shows(key_path);
}

static void the_hosts_comes_before_both(void **state)
{
    (void)state;
    needs_mounts();
    live_in(run_path);
    assert_int_equal(mkdir("/run/vramcap", 0755), 0);
    assert_int_equal(vcap_ledger_create(VCAP_LEDGER_HOST_PATH, NULL, VCAP_LF_HOST_MADE, NULL, NULL),
                     0);
    shows(VCAP_LEDGER_HOST_PATH);
}

/* What is there and cannot be read is not passed over. */
static void a_damaged_one_of_the_container_is_reported(void **state)
{
    (void)state;
    needs_mounts();
    live_in(run_path);
    assert_int_equal(truncate(key_path, 5000), 0);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("dump")), 1);
    assert_non_null(strstr(t.err, key_path));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(one_that_somebody_lives_in_comes_before_an_abandoned_one),
        TEST(the_containers_own_comes_first_when_somebody_lives_in_it),
        TEST(where_nobody_lives_the_containers_own_is_shown),
        TEST(the_hosts_comes_before_both),
        TEST(a_damaged_one_of_the_container_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
