/*
 * The host's word beats the environment: a ledger of the host's making, mounted at /run/vramcap,
 * caps every process of the container, whatever its environment says or leaves out.  The container
 * is a bubblewrap sandbox with its own /run.
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

#include "enforcer/ledger.h"
#include "tests/sim/sim.h"
#include "tests/support/fixture.h"

/* A host ledger with a ceiling of `mib` for card 0. */
static void host_makes_a_ledger(const struct fixture *f, uint32_t flags, uint64_t mib)
{
    static struct vcap_ledger l;
    unsigned char uuid[16];
    char why[160];
    uint32_t gpu;

    assert_int_equal(mkdir(fixture_path(f, "run"), 0755), 0);
    assert_int_equal(vcap_ledger_create(fixture_path(f, "run/ledger"), NULL,
                                        VCAP_LF_HOST_MADE | flags, NULL, "box"),
                     0);
    /* opened as a process opens it: VCAP_OPEN_MAKE maps it writable */
    assert_int_equal(vcap_ledger_open(&l, fixture_path(f, "run/ledger"), NULL, VCAP_OPEN_MAKE,
                                      VCAP_LF_MODE_ENFORCE, why, sizeof(why)),
                     0);
    sim_card_uuid(0, uuid);
    assert_int_equal(vcap_ledger_gpu(&l, uuid, 0, 0, 0, &gpu), 0);
    vcap_ledger_propose_ceiling(&l, gpu, mib * MIB, VCAP_LF_SOURCE_HOST);
    vcap_ledger_close(&l);
}

static bool enter(struct child *c, const struct fixture *f, const char *const *extra)
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
                                "--tmpfs",
                                "/run",
                                "--bind",
                                fixture_path(f, "run"),
                                "/run/vramcap",
                                "--die-with-parent",
                                CLIENT,
                                "--by=getproc",
                                NULL};

    return child_start(c, f, argv, extra);
}

/* The sandbox is killed; the client in it dies when the kernel comes to it. */
static void end(struct child *c, const struct fixture *f)
{
    child_kill(c, SIGKILL);
    for (int i = 0; i < 2000 && ledger_processes(fixture_path(f, "run/ledger")) != 0; i++)
        usleep(10000);
}

static void needs_bwrap(const struct fixture *f)
{
    const char *const argv[] = {"bwrap", "--bind", "/", "/", "--tmpfs", "/run", "true", NULL};
    const char *const bare[] = {"LD_PRELOAD", NULL};
    static struct child_output output;

    child_run(f, argv, bare, &output);
    if (output.status != 0)
        SKIP_BECAUSE("bubblewrap does not work here (in a chroot, / must be a mount point): %s",
                     output.err);
}

static void no_environment_no_way_around(void **state)
{
    const struct fixture *f = *state;
    const char *const environments[][5] = {
        {"VRAMCAP_LEDGER", NULL}, /* nothing at all, as ssh or su leave it */
        {"VRAMCAP_LEDGER", "VRAMCAP_ENABLE=0", NULL},
        {"VRAMCAP_LEDGER", "VRAMCAP_ENABLE=audit", NULL},
        {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=8000", NULL}, /* and a ledger of its own */
        {"VRAMCAP_LEDGER", "VRAMCAP_ENABLE=0", "VRAMCAP_MANAGED=ignore", "VRAMCAP_ON_ERROR=allow",
         NULL},
    };

    needs_bwrap(f);
    host_makes_a_ledger(f, 0, 300);
    for (unsigned i = 0; i < sizeof(environments) / sizeof(environments[0]); i++) {
        struct child c;

        assert_true(enter(&c, f, environments[i]));
        assert_int_equal(client_result(&c, "init"), 0);
        assert_int_equal(client_result(&c, "ctx create 0"), 0);
        assert_int_equal(client_result(&c, "alloc 302m"), 2);
        assert_int_equal(client_result(&c, "managed 302m"), 2);
        assert_int_equal(client_result(&c, "alloc 300m"), 0);
        assert_int_equal(ledger_charged(fixture_path(f, "run/ledger"), 0), 300 * MIB);
        assert_int_equal(access(f->ledger, F_OK), -1);
        end(&c, f);
    }
}

static void a_lower_environment_still_binds(void **state)
{
    const struct fixture *f = *state;
    const char *const lower[] = {"VRAMCAP_LEDGER", "VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=100",
                                 NULL};
    struct child c;

    needs_bwrap(f);
    host_makes_a_ledger(f, 0, 300);
    assert_true(enter(&c, f, lower));
    assert_int_equal(client_result(&c, "init"), 0);
    assert_int_equal(client_result(&c, "ctx create 0"), 0);
    assert_int_equal(client_result(&c, "alloc 102m"), 2);
    assert_int_equal(client_result(&c, "alloc 100m"), 0);
    child_kill(&c, SIGKILL);
}

static void the_host_may_audit(void **state)
{
    const struct fixture *f = *state;
    const char *const none[] = {"VRAMCAP_LEDGER", NULL};
    struct child c;

    needs_bwrap(f);
    host_makes_a_ledger(f, VCAP_LF_AUDIT, 300);
    assert_true(enter(&c, f, none));
    assert_int_equal(client_result(&c, "init"), 0);
    assert_int_equal(client_result(&c, "ctx create 0"), 0);
    assert_int_equal(client_result(&c, "alloc 302m"), 0);
    assert_int_equal(ledger_charged(fixture_path(f, "run/ledger"), 0), 302 * MIB);
    child_kill(&c, SIGKILL);
}

static void a_host_ledger_that_is_none_denies(void **state)
{
    const struct fixture *f = *state;
    const char *const allow[] = {"VRAMCAP_LEDGER", "VRAMCAP_ON_ERROR=allow", NULL};
    struct child c;

    needs_bwrap(f);
    host_makes_a_ledger(f, 0, 300);
    assert_int_equal(truncate(fixture_path(f, "run/ledger"), 5000), 0);
    assert_true(enter(&c, f, allow));
    assert_int_equal(client_result(&c, "init"), 0);
    assert_int_equal(client_result(&c, "ctx create 0"), 0);
    assert_int_equal(client_result(&c, "alloc 2m"), 2);
    child_kill(&c, SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_environment_no_way_around, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(a_lower_environment_still_binds, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(the_host_may_audit, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_host_ledger_that_is_none_denies, fixture_setup,
                                        fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
