/*
 * The host's word in /etc/vramcap/container.conf.  The container is a bubblewrap sandbox with an /etc and
 * a /run of its own.
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

static struct child_output output;

static void host_writes(const struct fixture *f, const char *text)
{
    FILE *file;

    (void)mkdir(fixture_path(f, "etc"), 0755);
    file = fopen(fixture_path(f, "etc/container.conf"), "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(fixture_path(f, "etc/container.conf"), 0644), 0);
}

/* The sandbox is killed; the client in it dies when the kernel comes to it. */
static void end(struct child *c, const struct fixture *f)
{
    child_kill(c, SIGKILL);
    for (int i = 0; i < 2000 && ledger_processes(fixture_path(f, "shared")) != 0; i++)
        usleep(10000);
}

static void needs_bwrap(const struct fixture *f)
{
    const char *const argv[] = {"bwrap", "--bind", "/", "/", "--tmpfs", "/etc", "true", NULL};
    const char *const bare[] = {"LD_PRELOAD", NULL};

    if (geteuid() != 0)
        SKIP_BECAUSE("needs root: the file must be its");
    child_run(f, argv, bare, &output);
    if (output.status != 0)
        SKIP_BECAUSE("bubblewrap does not work here (in a chroot, / must be a mount point): %s",
                     output.err);
}

/* more: further words of bwrap's, before the client. */
static void enter(struct child *c, const struct fixture *f, const char *const *extra,
                  const char *const *more)
{
    const char *argv[32] = {"bwrap",
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
                            "--tmpfs",
                            "/etc",
                            "--ro-bind",
                            fixture_path(f, "etc"),
                            "/etc/vramcap",
                            "--die-with-parent"};
    unsigned n = 17;

    while (more != NULL && *more != NULL)
        argv[n++] = *more++;
    argv[n++] = CLIENT;
    argv[n] = "--by=getproc";
    assert_true(child_start(c, f, argv, extra));
    assert_int_equal(client_result(c, "init"), 0);
    assert_int_equal(client_result(c, "ctx create 0"), 0);
}

static void no_environment_widens_what_the_file_says(void **state)
{
    const struct fixture *f = *state;
    const char *const environments[][5] = {
        {NULL},
        {"VRAMCAP_ENABLE=0", NULL},
        {"VRAMCAP_ENABLE=audit", NULL},
        {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=8000", NULL},
        {"VRAMCAP_MANAGED=ignore", "VRAMCAP_ON_ERROR=allow", "VRAMCAP_CONTEXT_MIB=0", NULL},
    };
    char text[256];

    needs_bwrap(f);
    snprintf(text, sizeof(text), "# the host\nVRAMCAP_LEDGER=%s\nVRAMCAP_MEMORY_MIB=300\n",
             fixture_path(f, "shared"));
    host_writes(f, text);
    for (unsigned i = 0; i < sizeof(environments) / sizeof(environments[0]); i++) {
        struct vcap_snapshot_gpu gpu;
        struct child c;

        enter(&c, f, environments[i], NULL);
        assert_int_equal(client_result(&c, "alloc 302m"), 2);
        assert_int_equal(client_result(&c, "managed 302m"), 2);
        assert_int_equal(client_result(&c, "alloc 300m"), 0);
        assert_true(ledger_gpu(fixture_path(f, "shared"), 0, &gpu));
        assert_int_equal(gpu.ceiling_bytes, 300 * MIB);
        assert_int_equal(gpu.ceiling_source, VCAP_LF_SOURCE_CONF);
        assert_int_equal(access(f->ledger, F_OK), -1); /* the environment's own */
        end(&c, f);
    }
}

static void the_environment_may_ask_for_less(void **state)
{
    const struct fixture *f = *state;
    const char *const less[] = {"VRAMCAP_MEMORY_MIB=100", NULL};
    char text[256];
    struct child low, other;

    needs_bwrap(f);
    snprintf(text, sizeof(text), "VRAMCAP_LEDGER=%s\nVRAMCAP_MEMORY_MIB=300\n",
             fixture_path(f, "shared"));
    host_writes(f, text);
    enter(&low, f, less, NULL);
    enter(&other, f, NULL, NULL);
    assert_int_equal(client_result(&low, "alloc 102m"), 2);
    assert_int_equal(client_result(&low, "alloc 100m"), 0);
    assert_int_equal(client_result(&other, "alloc 202m"), 2);
    assert_int_equal(client_result(&other, "alloc 200m"), 0);
    child_kill(&low, SIGKILL);
    child_kill(&other, SIGKILL);
}

static void a_file_that_says_nothing_clear_denies(void **state)
{
    static const char *const texts[] = {"VRAMCAP_MEMORY_MIB=300%\n", "VRAMCAP_MEMORY=300\n",
                                        "VRAMCAP_MEMORY_MIB=\n", "rubbish"};
    const struct fixture *f = *state;
    const char *const allow[] = {"VRAMCAP_ON_ERROR=allow", NULL};

    needs_bwrap(f);
    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct child c;

        host_writes(f, texts[i]);
        enter(&c, f, allow, NULL);
        assert_int_equal(client_result(&c, "alloc 2m"), 2);
        child_kill(&c, SIGKILL);
    }
    /* and one that users of the container could have written */
    host_writes(f, "VRAMCAP_MEMORY_MIB=300\n");
    assert_int_equal(chmod(fixture_path(f, "etc/container.conf"), 0666), 0);
    {
        struct child c;

        enter(&c, f, allow, NULL);
        assert_int_equal(client_result(&c, "alloc 2m"), 2);
        child_kill(&c, SIGKILL);
    }
}

static void one_line_names_what_was_ignored(void **state)
{
    const struct fixture *f = *state;
    const char *const loose[] = {"VRAMCAP_ENABLE=0", "VRAMCAP_ON_ERROR=allow",
                                 "VRAMCAP_MANAGED=ignore", "VRAMCAP_CONTEXT_MIB=1", NULL};
    char text[256];

    needs_bwrap(f);
    snprintf(text, sizeof(text),
             "VRAMCAP_LEDGER=%s\nVRAMCAP_MEMORY_MIB=300\nVRAMCAP_CONTEXT_MIB=200\n",
             fixture_path(f, "shared"));
    host_writes(f, text);
    {
        const char *const argv[] = {
            "bwrap", "--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--tmpfs",
            "/run", "--tmpfs", "/etc", "--ro-bind", fixture_path(f, "etc"), "/etc/vramcap", "sh",
            "-c",
            /* NOLINTNEXTLINE(bugprone-suspicious-missing-comma): one command */
            "echo init | " CLIENT " --by=getproc", NULL};

        child_run(f, argv, loose, &output);
    }
    assert_int_equal(output.status, 0);
    assert_int_equal(count_lines(output.err, "ignored from the environment: VRAMCAP_LEDGER "
                                             "VRAMCAP_ENABLE VRAMCAP_ON_ERROR VRAMCAP_MANAGED "
                                             "VRAMCAP_CONTEXT_MIB"),
                     1);
    assert_int_equal(count_lines(output.err, NULL), 1);
    assert_int_equal(ledger_events(fixture_path(f, "shared"), VCAP_LF_EVENT_CONFIG), 1);
}

/* In a rootless container the file's owner is somebody that its users are not. */
static void an_owner_that_the_user_namespace_does_not_know_is_the_host(void **state)
{
    const struct fixture *f = *state;
    const char *const user[] = {"--unshare-user", "--uid", "1000", NULL};
    const char *const probe[] = {"bwrap", "--unshare-user", "--bind", "/", "/", "true", NULL};
    const char *const bare[] = {"LD_PRELOAD", NULL};
    char text[256];
    struct child c;

    needs_bwrap(f);
    child_run(f, probe, bare, &output);
    if (output.status != 0)
        SKIP_BECAUSE("no user namespaces here (none can be made in a chroot): %s", output.err);
    snprintf(text, sizeof(text), "VRAMCAP_LEDGER=%s\nVRAMCAP_MEMORY_MIB=300\n",
             fixture_path(f, "shared"));
    host_writes(f, text);
    /* outside, a file of an unknown user is nobody's word; inside, one of the namespace's own is not */
    assert_int_equal(chown(fixture_path(f, "etc"), 4242, 4242), 0);
    assert_int_equal(chown(fixture_path(f, "etc/container.conf"), 4242, 4242), 0);
    enter(&c, f, NULL, NULL);
    assert_int_equal(client_result(&c, "alloc 2m"), 2);
    child_kill(&c, SIGKILL);
    enter(&c, f, NULL, user);
    assert_int_equal(client_result(&c, "alloc 302m"), 2);
    assert_int_equal(client_result(&c, "alloc 300m"), 0);
    child_kill(&c, SIGKILL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(no_environment_widens_what_the_file_says),
        TEST(the_environment_may_ask_for_less),
        TEST(a_file_that_says_nothing_clear_denies),
        TEST(one_line_names_what_was_ignored),
        TEST(an_owner_that_the_user_namespace_does_not_know_is_the_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
