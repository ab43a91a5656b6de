/*
 * Ledgers that are not what a program hopes for, beyond those of hook_failure: permissions, odd kinds of
 * files, locks and leases of others, file systems with a mind of their own, truncation and garbage under
 * a running program.  For each: what VRAMCAP_ON_ERROR gives, one line that names the cause, and no harm to
 * programs without CUDA.
 */
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/skip.h"

#include "enforcer/ledger.h"
#include "tests/sim/sim.h"
#include "tests/support/fixture.h"

static struct child_output output;
static unsigned tried;
static struct fixture_copies copies; /* for somebody, too */

#define AS_SOMEBODY "setpriv --reuid=12345 --regid=12345 --clear-groups "

/* A client that asks for 2 MiB under a ledger at path; prefix: words before it, each with a blank behind. */
static void ask(const struct fixture *f, const char *path, const char *on_error, const char *prefix)
{
    char ledger[300], policy[64], command[600];
    const char *const extra[] = {
        "LD_PRELOAD", copies.library, copies.sim, "VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=300",
        ledger,       policy,         NULL};
    const char *const argv[] = {"sh", "-c", command, NULL};

    snprintf(ledger, sizeof(ledger), "VRAMCAP_LEDGER=%s", path);
    snprintf(policy, sizeof(policy), "VRAMCAP_ON_ERROR=%s", on_error);
    snprintf(
        command, sizeof(command),
        "printf 'init\\nctx create 0\\nalloc 2m\\nalloc 302m\\n' | %s%s --by=getproc; /bin/true",
        prefix, copies.client);
    child_run(f, argv, extra, &output);
}

/* deny and allow, each with its one line about the cause. */
static void is_unusable(const struct fixture *f, const char *path, const char *cause,
                        const char *prefix)
{
    tried++;
    ask(f, path, "deny", prefix);
    if (strncmp(output.out, "0\n0\n2 0x0\n2 0x0\n", 16) != 0 || strstr(output.err, cause) == NULL)
        fail_msg("%s, deny: %s%s", path, output.out, output.err);
    assert_int_equal(count_lines(output.err, "GPU memory is denied to this process"), 1);
    ask(f, path, "allow", prefix);
    if (strncmp(output.out, "0\n0\n0 ", 6) != 0 || strstr(output.err, cause) == NULL)
        fail_msg("%s, allow: %s%s", path, output.out, output.err);
    assert_int_equal(count_lines(output.err, NULL), 1);
}

static void is_usable(const struct fixture *f, const char *path, const char *prefix)
{
    tried++;
    ask(f, path, "deny", prefix);
    if (strncmp(output.out, "0\n0\n0 ", 6) != 0 || strstr(output.out, "\n2 0x0\n") == NULL)
        fail_msg("%s: %s%s", path, output.out, output.err);
}

static void make(const char *path, mode_t mode)
{
    assert_int_equal(vcap_ledger_create(path, NULL, 0, NULL, NULL), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static void needs_root(void)
{
    if (geteuid() != 0)
        SKIP_BECAUSE("needs root");
}

/* Somebody else's container user: the folder and the machine are open to him, the ledger is not. */
static void permissions_of_others_are_a_line_and_no_ceiling_is_widened(void **state)
{
    const struct fixture *f = *state;
    char path[256];

    needs_root();
    assert_int_equal(chmod(f->directory, 0777), 0);
    snprintf(path, sizeof(path), "%s", fixture_path(f, "mode"));
    make(path, 0600);
    is_unusable(f, path, "Permission denied", AS_SOMEBODY);
    assert_int_equal(chmod(path, 0000), 0);
    (void)unlink(f->sim);
    is_unusable(f, path, "Permission denied", AS_SOMEBODY);
    assert_int_equal(chmod(path, 0444), 0);
    (void)unlink(f->sim);
    is_unusable(f, path, "Permission denied", AS_SOMEBODY);
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(chown(path, 4711, 4711), 0); /* a foreign owner is no obstacle */
    (void)unlink(f->sim);
    is_usable(f, path, AS_SOMEBODY);
}

static void devices_and_sockets_are_no_ledgers(void **state)
{
    const struct fixture *f = *state;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    char path[100];
    int fd;

    is_unusable(f, "/dev/null", "not a regular file", "");
    is_unusable(f, "/dev/full", "not a regular file", "");
    snprintf(path, sizeof(path), "%s", fixture_path(f, "socket"));
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(name.sun_path, path, strlen(path) + 1);
    assert_int_equal(bind(fd, (struct sockaddr *)(void *)&name, sizeof(name)), 0);
    is_unusable(f, path, "not a regular file", "");
    close(fd);
}

static void a_hard_link_is_the_same_ledger(void **state)
{
    const struct fixture *f = *state;
    char path[256], other[256];

    snprintf(path, sizeof(path), "%s", fixture_path(f, "one"));
    snprintf(other, sizeof(other), "%s", fixture_path(f, "two"));
    make(path, 0666);
    assert_int_equal(link(path, other), 0);
    is_usable(f, path, "");
    is_usable(f, other, "");
    assert_true(ledger_charged(path, 0) == ledger_charged(other, 0));
}

/* The holder of a lease is asked to let go, and does not: nobody waits for the kernel's 45 seconds. */
static void a_lease_on_it_does_not_hang_anybody(void **state)
{
    const struct fixture *f = *state;
    struct timespec before, after;
    char path[256];
    int fd;

    snprintf(path, sizeof(path), "%s", fixture_path(f, "leased"));
    make(path, 0666);
    signal(SIGIO, SIG_IGN);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fcntl(fd, F_SETLEASE, F_WRLCK) != 0) {
        if (fd >= 0)
            close(fd);
        SKIP_BECAUSE("no leases on this file system");
    }
    clock_gettime(CLOCK_MONOTONIC, &before);
    is_unusable(f, path, "holds a lease", "");
    clock_gettime(CLOCK_MONOTONIC, &after);
    assert_in_range(after.tv_sec - before.tv_sec, 0, 20);
    close(fd);
    is_usable(f, path, "");
}

/* 5,000 locks of a stranger, on bytes of no slot: joining and reaping go on. */
static void thousands_of_foreign_locks_only_cost_time(void **state)
{
    const struct fixture *f = *state;
    char path[256];
    int fd;

    snprintf(path, sizeof(path), "%s", fixture_path(f, "locked"));
    make(path, 0666);
    fd = open(path, O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 5000; i++) {
        struct flock one = {
            .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)i * 2, .l_len = 1};

        if (fcntl(fd, F_OFD_SETLK, &one) != 0) {
            close(fd);
            SKIP_BECAUSE("only %d locks can be had", i);
        }
    }
    is_usable(f, path, "");
    close(fd);
}

/* All slots' bytes locked by a stranger: nobody can take one, and it is said. */
static void foreign_locks_on_every_slot_are_as_if_all_were_taken(void **state)
{
    const struct fixture *f = *state;
    struct flock all = {.l_type = F_WRLCK,
                        .l_whence = SEEK_SET,
                        .l_start = VCAP_LF_LOCK_SLOT,
                        .l_len = VCAP_LF_SLOTS_MAX};
    char path[256];
    int fd;

    snprintf(path, sizeof(path), "%s", fixture_path(f, "slots"));
    make(path, 0666);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &all), 0);
    is_unusable(f, path, "slot", "");
    close(fd);
    is_usable(f, path, "");
}

static bool mount_apart(const char *where, const char *options, unsigned long flags)
{
    static bool apart;

    apart = apart ||
            (unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    return apart && mkdir(where, 0755) == 0 && mount("none", where, "tmpfs", flags, options) == 0;
}

static void a_file_system_without_exec_is_as_good_as_any(void **state)
{
    const struct fixture *f = *state;
    char where[200], path[256];

    snprintf(where, sizeof(where), "%s", fixture_path(f, "noexec"));
    if (!mount_apart(where, "size=8m", MS_NOEXEC | MS_NOSUID | MS_NODEV))
        SKIP_BECAUSE("needs root, for a mount");
    snprintf(path, sizeof(path), "%s/ledger", where);
    is_usable(f, path, "");
    umount2(where, MNT_DETACH);
}

/* A file system in an image, in which the folder `small` takes 64 KiB and no more.  In a mount namespace of its
 * own already, which mount_apart has seen to. */
static bool mount_btrfs_with_a_quota(const struct fixture *f, const char *where)
{
    char command[1600];

    snprintf(
        command, sizeof(command),
        "PATH=$PATH:/usr/sbin:/sbin; cd %s && truncate -s 128M image && mkfs.btrfs -q -f image "
        ">/dev/null && "
        "mount -o loop image %s && btrfs quota enable %s && btrfs -q subvolume create %s/small && "
        "btrfs qgroup limit 64k %s/small",
        f->directory, where, where, where, where);
    return system(command) == 0; /* NOLINT(cert-env33-c,concurrency-mt-unsafe): tools, no threads */
}

static void a_quota_that_is_used_up_is_an_error(void **state)
{
    const struct fixture *f = *state;
    char where[200], path[256];
    const char *folder = "";

    snprintf(where, sizeof(where), "%s", fixture_path(f, "quota"));
    if (!mount_apart(where, "size=8m,usrquota,usrquota_block_hardlimit=16k", 0)) {
        folder = "/small";
        if (!mount_btrfs_with_a_quota(f, where)) {
            umount2(where, MNT_DETACH);
            print_message(
                "no quota on tmpfs here (Linux 6.6 with CONFIG_TMPFS_QUOTA), and no btrfs in an "
                "image (root, loop devices, btrfs-progs)\n");
            skip(); /* a kernel's feature, which no package brings */
        }
    }
    snprintf(path, sizeof(path), "%s%s", where, folder);
    assert_int_equal(chmod(path, 0777), 0);
    assert_int_equal(chmod(f->directory, 0777), 0);
    snprintf(path, sizeof(path), "%s%s/ledger", where, folder);
    is_unusable(f, path, "quota", AS_SOMEBODY);
    assert_int_not_equal(access(path, F_OK), 0);
    umount2(where, MNT_DETACH);
}

/* Every field of every table is garbage, the header is whole: nothing is granted above the ceiling, and
 * nothing crashes. */
static void garbage_in_every_table_ends_nobody(void **state)
{
    const struct fixture *f = *state;
    uint64_t seed = fixture_draw()->seed | 1;
    char path[256];

    snprintf(path, sizeof(path), "%s", fixture_path(f, "garbage"));
    for (int round = 0; round < 9; round++) {
        static uint64_t words[64];
        struct stat st = {.st_size = 0};
        int fd;

        (void)unlink(path);
        make(path, 0666);
        fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        for (off_t at = 4096; at < st.st_size; at += (off_t)sizeof(words)) {
            for (size_t i = 0; i < 64; i++) {
                seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                words[i] = round % 3 == 0 ? UINT64_MAX : round % 3 == 1 ? seed : seed >> 60;
            }
            assert_true(pwrite(fd, words, sizeof(words), at) > 0);
        }
        assert_int_equal(ftruncate(fd, st.st_size), 0);
        close(fd);
        ask(f, path, "deny", "");
        tried++;
        /* it answered all four, whatever it granted, and was not ended by a signal */
        if (count_lines(output.out, NULL) != 4 || output.status != 0)
            fail_msg("round %d: %s%s", round, output.out, output.err);
    }
}

/* A program that has the file mapped cannot be protected from its truncation without a signal handler,
 * which is not ours to set; who comes afterwards, and every reader, says what it is. */
static void truncated_under_a_program_newcomers_and_readers_say_so(void **state)
{
    const struct fixture *f = *state;
    const char *const dump[] = {TOOL, "dump", fixture_path(f, "cut"), NULL};
    const char *const bare[] = {"LD_PRELOAD", NULL};
    const char *const capped[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=300", NULL};
    char path[256], other[300];
    struct child c;

    snprintf(path, sizeof(path), "%s", fixture_path(f, "cut"));
    snprintf(other, sizeof(other), "VRAMCAP_LEDGER=%s", path);
    {
        const char *const extra[] = {capped[0], capped[1], other, NULL};

        assert_true(client_start(&c, f, "getproc", extra));
    }
    assert_int_equal(client_result(&c, "init"), 0);
    assert_int_equal(client_result(&c, "ctx create 0"), 0);
    assert_int_equal(truncate(path, 5000), 0);
    is_unusable(f, path, "truncated", "");
    child_run(f, dump, bare, &output);
    assert_int_equal(output.status, 1);
    assert_non_null(strstr(output.err, "truncated"));
    child_kill(&c, SIGKILL);
}

static void programs_without_cuda_notice_nothing_of_any_of_them(void **state)
{
    static const char *const paths[] = {"/dev/null", "/dev/full", "/", "/nowhere/at/all",
                                        "/etc/passwd"};
    const struct fixture *f = *state;

    if (fixture_only_own_programs())
        return;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        char ledger[64];
        const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1", ledger, NULL};
        const char *const argv[] = {"/bin/echo", "hello", NULL};

        snprintf(ledger, sizeof(ledger), "VRAMCAP_LEDGER=%s", paths[i]);
        child_run(f, argv, extra, &output);
        assert_int_equal(output.status, 0);
        assert_string_equal(output.out, "hello\n");
        assert_string_equal(output.err, "");
    }
}

static int setup(void **state)
{
    return fixture_setup(state) == 0 && fixture_copies(*state, &copies) ? 0 : -1;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(permissions_of_others_are_a_line_and_no_ceiling_is_widened),
        TEST(devices_and_sockets_are_no_ledgers),
        TEST(a_hard_link_is_the_same_ledger),
        TEST(a_lease_on_it_does_not_hang_anybody),
        TEST(thousands_of_foreign_locks_only_cost_time),
        TEST(foreign_locks_on_every_slot_are_as_if_all_were_taken),
        TEST(a_file_system_without_exec_is_as_good_as_any),
        TEST(a_quota_that_is_used_up_is_an_error),
        TEST(garbage_in_every_table_ends_nobody),
        TEST(truncated_under_a_program_newcomers_and_readers_say_so),
        TEST(programs_without_cuda_notice_nothing_of_any_of_them),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    print_message("%u bad and odd files tried\n", tried);
    return failed;
}
