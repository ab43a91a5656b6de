/*
 * The file: made whole, opened or refused, made anew when nobody lives in it, never two of them.
 */
#include "test_ledger_box.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/time.h>

#define WHOLE 40

static struct vcap_ledger ledger;

static int open_with_key(struct vcap_ledger *l, const char *key, uint32_t what)
{
    return vcap_ledger_open(l, box_path, key, what, VCAP_LF_MODE_ENFORCE, box_why, sizeof(box_why));
}

static ino_t inode(void)
{
    struct stat st;

    return stat(box_path, &st) == 0 ? st.st_ino : 0;
}

static void a_new_ledger_is_whole_whatever_the_umask(void **state)
{
    mode_t before = umask(0777);
    struct stat st;
    int rc;

    (void)state;
    rc = vcap_ledger_create(box_path, NULL, 0, "key", "name");
    umask(before);
    assert_int_equal(rc, 0);
    assert_int_equal(stat(box_path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0666);
    assert_true((uint64_t)st.st_blocks * 512 >= (uint64_t)st.st_size);
    assert_int_equal(vcap_ledger_create(box_path, NULL, 0, "key", "name"), -EEXIST);
    assert_int_equal(open_with_key(&ledger, "key", VCAP_OPEN_CLAIM), 0);
    assert_int_equal(ledger.gpu_count, VCAP_LF_GPUS_DEFAULT);
    assert_int_equal(ledger.slot_count, VCAP_LF_SLOTS_DEFAULT);
    assert_int_equal(ledger.event_count, VCAP_LF_EVENTS_DEFAULT);
    assert_string_equal(vcap_ledger_header(&ledger)->container, "name");
    vcap_ledger_close(&ledger);
}

static void sizes_beyond_the_format_are_refused(void **state)
{
    const struct vcap_ledger_size wrong[] = {{VCAP_LF_GPUS_MAX + 1, 1, 1},
                                             {1, VCAP_LF_SLOTS_MAX + 1, 1},
                                             {1, 1, VCAP_LF_EVENTS_MAX + 1}};
    const struct vcap_ledger_size most = {VCAP_LF_GPUS_MAX, VCAP_LF_SLOTS_MAX, 16};

    (void)state;
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(vcap_ledger_create(box_path, &wrong[i], 0, NULL, NULL), -EINVAL);
    assert_int_equal(access(box_path, F_OK), -1);
    assert_int_equal(vcap_ledger_create(box_path, &most, 0, NULL, NULL), 0);
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), 0);
    vcap_ledger_close(&ledger);
}

static void a_missing_file_is_made_only_where_that_was_asked_for(void **state)
{
    (void)state;
    assert_int_equal(box_open(&ledger, VCAP_OPEN_VIEW), -ENOENT);
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), -ENOENT);
    assert_int_equal(access(box_path, F_OK), -1);
    assert_int_equal(box_open(&ledger, VCAP_OPEN_MAKE | VCAP_OPEN_CLAIM), 0);
    assert_true(vcap_ledger_owns(&ledger));
    vcap_ledger_close(&ledger);
    assert_int_equal(box_open(&ledger, VCAP_OPEN_VIEW), 0);
    assert_false(vcap_ledger_owns(&ledger));
    vcap_ledger_close(&ledger);
}

static int open_descriptors(void)
{
    int count = 0;

    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void no_descriptor_is_left_and_errno_is_kept(void **state)
{
    int before = open_descriptors();

    (void)state;
    errno = EXDEV;
    assert_true(box_make(4, WHOLE));
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), 0);
    assert_int_equal(box_charge(&ledger, WHOLE + 1), -EDQUOT);
    assert_int_equal(vcap_ledger_claim(&ledger, VCAP_LF_MODE_ENFORCE), 0);
    assert_int_equal(open_descriptors(), before);
    errno = EXDEV;
    assert_int_equal(box_charge(&ledger, WHOLE + 1), -EDQUOT);
    assert_int_equal(vcap_ledger_create(box_path, NULL, 0, NULL, NULL), -EEXIST);
    assert_int_equal(errno, EXDEV);
    vcap_ledger_close(&ledger);
}

static void a_path_that_is_too_long_is_refused(void **state)
{
    char path[VCAP_LEDGER_PATH_MAX + 8];

    (void)state;
    memset(path, 'a', sizeof(path));
    path[0] = '/';
    path[sizeof(path) - 1] = 0;
    assert_int_equal(vcap_ledger_open(&ledger, path, NULL, VCAP_OPEN_MAKE, VCAP_LF_MODE_ENFORCE,
                                      box_why, sizeof(box_why)),
                     -ENAMETOOLONG);
}

/* ---- what is no ledger ---- */

static void put(uint64_t at, const void *bytes, size_t size)
{
    int fd = open(box_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, size, (off_t)at), (ssize_t)size);
    close(fd);
}

static void assert_refused(void)
{
    const uint32_t ways[] = {VCAP_OPEN_VIEW, VCAP_OPEN_CLAIM, VCAP_OPEN_CLAIM | VCAP_OPEN_MAKE};
    ino_t before = inode();

    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(box_open(&ledger, ways[i]), -EINVAL);
        assert_true(box_why[0] != 0);
        assert_null(ledger.base);
    }
    assert_int_equal(inode(), before);
}

static void links_pipes_and_folders_are_refused_without_waiting(void **state)
{
    char target[128];

    (void)state;
    snprintf(target, sizeof(target), "%s/target", box_folder);
    assert_int_equal(vcap_ledger_create(target, NULL, 0, NULL, NULL), 0);
    assert_int_equal(symlink(target, box_path), 0);
    assert_refused();
    unlink(box_path);
    assert_int_equal(symlink("/nowhere", box_path), 0);
    assert_refused();
    unlink(box_path);
    assert_int_equal(mkfifo(box_path, 0666), 0);
    assert_refused();
    unlink(box_path);
    assert_int_equal(mkdir(box_path, 0777), 0);
    assert_refused();
    rmdir(box_path);
}

static void short_long_and_foreign_files_are_refused(void **state)
{
    static const int lengths[] = {0, 1, 8, 4095, 4096, 8192, -1, 4096 + 1};
    const uint32_t version = 2, order = 0x04030201;
    struct stat st;

    (void)state;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        unlink(box_path);
        assert_true(box_make(4, WHOLE));
        assert_int_equal(stat(box_path, &st), 0);
        /* -1: a byte short; the last: longer than it says */
        assert_int_equal(truncate(box_path, lengths[i] == -1     ? st.st_size - 1
                                            : lengths[i] == 4097 ? st.st_size + 1
                                                                 : lengths[i]),
                         0);
        assert_refused();
    }
    unlink(box_path);
    assert_true(box_make(4, WHOLE));
    put(8, &version, 4);
    assert_refused();
    assert_non_null(strstr(box_why, "version 2"));
    unlink(box_path);
    assert_true(box_make(4, WHOLE));
    put(16, &order, 4);
    assert_refused();
    unlink(box_path);
    assert_true(box_make(4, WHOLE));
    put(0, "HAMiREGN", 8);
    assert_refused();
}

static void a_bad_file_under_our_own_name_is_made_anew(void **state)
{
    const uint32_t version = 2;

    (void)state;
    assert_true(box_make(4, WHOLE));
    put(8, &version, 4);
    assert_int_equal(
        open_with_key(&ledger, "mine",
                      VCAP_OPEN_MAKE | VCAP_OPEN_RENEW | VCAP_OPEN_REPLACE | VCAP_OPEN_CLAIM),
        0);
    assert_string_equal(vcap_ledger_header(&ledger)->key, "mine");
    vcap_ledger_close(&ledger);
}

static void a_bad_file_that_somebody_lives_in_stays(void **state)
{
    const uint32_t version = 2;
    uint64_t units = 3;
    pid_t pid;

    (void)state;
    assert_true(box_make(4, WHOLE));
    pid = box_start(box_stay, &units);
    assert_true(box_await(0, 1));
    put(8, &version, 4);
    assert_int_equal(
        box_open(&ledger, VCAP_OPEN_MAKE | VCAP_OPEN_RENEW | VCAP_OPEN_REPLACE | VCAP_OPEN_CLAIM),
        -EINVAL);
    assert_int_equal(access(box_path, F_OK), 0);
    kill(pid, SIGKILL);
    box_end(pid);
    assert_int_equal(
        box_open(&ledger, VCAP_OPEN_MAKE | VCAP_OPEN_RENEW | VCAP_OPEN_REPLACE | VCAP_OPEN_CLAIM),
        0);
    vcap_ledger_close(&ledger);
}

static void another_containers_file_is_refused_and_left_as_it_is(void **state)
{
    const struct vcap_ledger_size size = {1, 4, 8};

    (void)state;
    assert_int_equal(vcap_ledger_create(box_path, &size, 0, "theirs", NULL), 0);
    assert_int_equal(open_with_key(&ledger, "mine", VCAP_OPEN_CLAIM), -EPERM);
    assert_int_equal(
        open_with_key(&ledger, "mine",
                      VCAP_OPEN_MAKE | VCAP_OPEN_RENEW | VCAP_OPEN_REPLACE | VCAP_OPEN_CLAIM),
        -EPERM);
    assert_int_equal(open_with_key(&ledger, "theirs", VCAP_OPEN_CLAIM), 0);
    assert_string_equal(vcap_ledger_header(&ledger)->key, "theirs");
    vcap_ledger_close(&ledger);
    unlink(box_path);
    /* the host's word needs no key */
    assert_int_equal(vcap_ledger_create(box_path, &size, VCAP_LF_HOST_MADE, "theirs", NULL), 0);
    assert_int_equal(open_with_key(&ledger, "mine", VCAP_OPEN_CLAIM), 0);
    vcap_ledger_close(&ledger);
}

/* ---- making anew ---- */

#define RENEW (VCAP_OPEN_MAKE | VCAP_OPEN_RENEW | VCAP_OPEN_REPLACE | VCAP_OPEN_CLAIM)

static void a_file_is_made_anew_only_when_nobody_lives_in_it(void **state)
{
    uint64_t units = 30;
    pid_t pid;

    (void)state;
    assert_true(box_make(4, WHOLE));
    pid = box_start(box_stay, &units);
    assert_true(box_await(0, 1));
    assert_int_equal(box_open(&ledger, RENEW), 0);
    assert_int_equal(box_held(&ledger), 30);
    vcap_ledger_close(&ledger);
    kill(pid, SIGKILL);
    box_end(pid);
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM),
                     0); /* not asked to: the dead are still in it */
    assert_int_equal(box_held(&ledger), 30);
    vcap_ledger_close(&ledger);
    assert_int_equal(box_open(&ledger, RENEW), 0);
    assert_int_equal(box_held(&ledger), 0);
    assert_int_equal(ledger.gpus[0].claim, 0); /* with its ceilings */
    assert_int_equal(ledger.gpus[0].ceiling, 0);
    vcap_ledger_close(&ledger);
}

static void a_file_that_the_host_made_is_never_made_anew(void **state)
{
    const struct vcap_ledger_size size = {1, 4, 8};
    const uint8_t uuid[16] = {1};
    uint64_t units = 30;
    uint32_t gpu;

    (void)state;
    assert_int_equal(vcap_ledger_create(box_path, &size, VCAP_LF_HOST_MADE, NULL, NULL), 0);
    assert_int_equal(box_open(&ledger, VCAP_OPEN_MAKE), 0);
    assert_int_equal(vcap_ledger_gpu(&ledger, uuid, 0, 0, 0, &gpu), 0);
    vcap_ledger_propose_ceiling(&ledger, 0, WHOLE * UNIT, VCAP_LF_SOURCE_HOST);
    vcap_ledger_close(&ledger);
    assert_int_equal(box_run(box_charge_and_die, &units), 0);
    assert_int_equal(box_open(&ledger, RENEW), 0);
    assert_int_equal(vcap_ceiling_bytes(ledger.gpus[0].ceiling), WHOLE * UNIT);
    assert_int_equal(box_held(&ledger), 30);
    assert_int_equal(box_charge(&ledger, WHOLE), 0);
    vcap_ledger_close(&ledger);
}

#define JOINERS 8

static int join_at_a_signal(void *arg)
{
    size_t me = *(const size_t *)arg;
    const uint8_t uuid[16] = {1, 2, 3};
    struct vcap_ledger l;
    uint32_t gpu;

    box_add(0, 1);
    while (box_get(1) == 0)
        sched_yield();
    if (box_open(&l, RENEW) != 0 || vcap_ledger_gpu(&l, uuid, 0, 0, 0, &gpu) != 0)
        return 1;
    vcap_ledger_propose_ceiling(&l, gpu, JOINERS * UNIT, VCAP_LF_SOURCE_ENV);
    if (box_charge(&l, 1) != 0)
        return 2;
    box_put(16 + me, (uint64_t)l.inode);
    box_put(32 + me, (uint64_t)l.slot + 1);
    box_add(2, 1);
    if (!box_await(2, JOINERS))
        return 3;
    /* all are in: nobody's slot was wiped, all charges are in the one total */
    if (!vcap_ledger_owns(&l) || box_held(&l) != JOINERS || box_charge(&l, 1) != -EDQUOT)
        return 4;
    if (l.slots[l.slot].pid != (uint32_t)getpid()) /* somebody wrote into a slot that was not his */
        return 6;
    box_add(3, 1);
    return box_await(3, JOINERS) ? 0 : 5;
}

static void joiners_that_race_a_renewal_are_all_in_one_file(void **state)
{
    uint64_t units = 30;

    (void)state;
    for (int round = 0; round < 40; round++) {
        const uint32_t version = 2;
        pid_t pids[JOINERS];
        int wrong = 0;

        memset(box_shared, 0, 64 * sizeof(uint64_t));
        unlink(box_path);
        if (round % 4 != 3) { /* every fourth: no file at all */
            assert_true(box_make(16, WHOLE));
            assert_int_equal(box_run(box_charge_and_die, &units), 0);
        }
        if (round % 4 == 2) /* and one that is bad: it is replaced, not made anew in place */
            put(8, &version, 4);
        for (size_t p = 0; p < JOINERS; p++)
            pids[p] = box_start(join_at_a_signal, &p);
        assert_true(box_await(0, JOINERS));
        box_put(1, 1);
        for (size_t p = 0; p < JOINERS; p++) {
            int rc = box_end(pids[p]);

            if (rc != 0) {
                print_message("round %d: joiner %zu ended with %d\n", round, p, rc);
                wrong++;
            }
        }
        assert_int_equal(wrong, 0);
        for (size_t p = 0; p < JOINERS; p++) {
            assert_int_equal(box_get(16 + p), (uint64_t)inode());
            for (size_t q = 0; q < p; q++)
                assert_true(box_get(32 + p) != box_get(32 + q));
        }
    }
}

static int keep_the_init_byte(void *arg)
{
    int fd = open(box_path, O_RDWR | O_CLOEXEC);

    (void)arg;
    /* refused where the mapping of those who have it open keeps them from it, which is as good */
    vcap_sys_lock(fd, F_WRLCK, VCAP_LF_LOCK_INIT);
    box_add(0, 1);
    usleep(50000);
    return 0;
}

/* A forked child that never charges has the file mapped; its parent is dead. */
static int leave_a_child_behind(void *arg)
{
    struct vcap_ledger l;
    pid_t pid;

    (void)arg;
    if (box_open(&l, VCAP_OPEN_CLAIM) != 0)
        return 1;
    pid = fork();
    if (pid == 0) {
        box_put(5, (uint64_t)getpid());
        box_add(0, 1);
        for (;;)
            pause();
    }
    return box_await(0, 1) ? 0 : 2;
}

static void a_child_that_a_dead_process_left_behind_does_not_hold_up_newcomers(void **state)
{
    long slept;
    int rc;

    (void)state;
    assert_true(box_make(4, WHOLE));
    assert_int_equal(box_run(leave_a_child_behind, NULL), 0);
    slept = box_sleeps();
    rc = box_open(&ledger, RENEW);
    slept = box_sleeps() - slept;
    kill((pid_t)box_get(5), SIGKILL);
    assert_int_equal(rc, 0);
    assert_int_equal(slept, 0);
    vcap_ledger_close(&ledger);
}

static void a_claim_waits_while_somebody_makes_the_file_anew(void **state)
{
    pid_t pid;

    (void)state;
    assert_true(box_make(4, WHOLE));
    assert_int_equal(box_open(&ledger, VCAP_OPEN_MAKE), 0);
    pid = box_start(keep_the_init_byte, NULL);
    assert_true(box_await(0, 1));
    assert_int_equal(vcap_ledger_claim(&ledger, VCAP_LF_MODE_ENFORCE), 0);
    box_end(pid);
    vcap_ledger_close(&ledger);
}

static void a_claim_in_a_file_that_was_replaced_is_stale(void **state)
{
    (void)state;
    assert_true(box_make(4, WHOLE));
    assert_int_equal(box_open(&ledger, VCAP_OPEN_MAKE), 0);
    unlink(box_path);
    assert_int_equal(vcap_ledger_claim(&ledger, VCAP_LF_MODE_ENFORCE), -ESTALE);
    assert_true(box_make(4, WHOLE));
    assert_int_equal(vcap_ledger_claim(&ledger, VCAP_LF_MODE_ENFORCE), -ESTALE);
    vcap_ledger_close(&ledger);
}

/* ---- file systems ---- */

static void ignore_alarm(int number)
{
    (void)number;
}

static void signals_do_not_keep_a_ledger_from_being_made(void **state)
{
    struct sigaction action = {.sa_handler = ignore_alarm}, old; /* no SA_RESTART */
    const struct itimerval often = {{0, 30}, {0, 30}}, never = {{0, 0}, {0, 0}};
    const struct vcap_ledger_size size = {VCAP_LF_GPUS_MAX, VCAP_LF_SLOTS_MAX, VCAP_LF_EVENTS_MAX};
    int interrupted = 0, failed = 0;

    (void)state;
    sigaction(SIGALRM, &action, &old);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 40; i++) {
        int rc = vcap_ledger_create(box_path, &size, 0, NULL, NULL);

        interrupted += rc == -EINTR;
        failed += rc != 0 && rc != -EINTR;
        if (rc == 0)
            rc = box_open(&ledger, VCAP_OPEN_CLAIM);
        failed += rc != 0 && rc != -EINTR;
        vcap_ledger_close(&ledger);
        unlink(box_path);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &old, NULL);
    assert_int_equal(failed, 0);
    assert_int_equal(interrupted, 0);
}

static int make_on_a_full_tmpfs(void *arg)
{
    int rc;

    (void)arg;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", box_folder, "tmpfs", 0, "size=64k") != 0)
        return 77;
    rc = vcap_ledger_create(box_path, NULL, 0, NULL, NULL);
    if (rc != -ENOSPC)
        return 1;
    rc = box_open(&ledger, VCAP_OPEN_MAKE | VCAP_OPEN_CLAIM);
    if (rc != -ENOSPC || access(box_path, F_OK) == 0)
        return 2;
    return 0;
}

static void a_full_file_system_says_so_when_the_ledger_is_made(void **state)
{
    int rc;

    (void)state;
    rc = box_run(make_on_a_full_tmpfs, NULL);
    if (rc == 77)
        SKIP_BECAUSE("needs root, and / to be a mount point");
    assert_int_equal(rc, 0);
}

static int open_as_somebody_else(void *arg)
{
    struct vcap_ledger l;

    (void)arg;
    if (setgid(12345) != 0 || setuid(12345) != 0)
        return 77;
    if (box_open(&l, RENEW) != 0)
        return 1;
    return box_charge(&l, 4) == 0 && l.slots[l.slot].uid == 12345 ? 0 : 2;
}

static void another_uid_of_the_container_uses_the_same_file(void **state)
{
    int rc;

    (void)state;
    assert_int_equal(chmod(box_folder, 0755), 0);
    assert_true(box_make(4, WHOLE));
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), 0);
    rc = box_run(open_as_somebody_else, NULL);
    if (rc == 77)
        SKIP_BECAUSE("needs root");
    assert_int_equal(rc, 0);
    assert_int_equal(box_held(&ledger), 4);
    assert_int_equal(box_charge(&ledger, WHOLE), 0);
    vcap_ledger_close(&ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOX_TEST(a_new_ledger_is_whole_whatever_the_umask),
        BOX_TEST(sizes_beyond_the_format_are_refused),
        BOX_TEST(a_missing_file_is_made_only_where_that_was_asked_for),
        BOX_TEST(no_descriptor_is_left_and_errno_is_kept),
        BOX_TEST(a_path_that_is_too_long_is_refused),
        BOX_TEST(links_pipes_and_folders_are_refused_without_waiting),
        BOX_TEST(short_long_and_foreign_files_are_refused),
        BOX_TEST(a_bad_file_under_our_own_name_is_made_anew),
        BOX_TEST(a_bad_file_that_somebody_lives_in_stays),
        BOX_TEST(another_containers_file_is_refused_and_left_as_it_is),
        BOX_TEST(a_file_is_made_anew_only_when_nobody_lives_in_it),
        BOX_TEST(a_file_that_the_host_made_is_never_made_anew),
        BOX_TEST(joiners_that_race_a_renewal_are_all_in_one_file),
        BOX_TEST(a_child_that_a_dead_process_left_behind_does_not_hold_up_newcomers),
        BOX_TEST(a_claim_waits_while_somebody_makes_the_file_anew),
        BOX_TEST(a_claim_in_a_file_that_was_replaced_is_stale),
        BOX_TEST(signals_do_not_keep_a_ledger_from_being_made),
        BOX_TEST(a_full_file_system_says_so_when_the_ledger_is_made),
        BOX_TEST(another_uid_of_the_container_uses_the_same_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
