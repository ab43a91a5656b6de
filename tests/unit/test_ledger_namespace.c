/*
 * Slots where file locks or process numbers are not what they seem: overlayfs, a /proc of another PID
 * namespace, start times of another time namespace, a frozen owner.  Needs root; skips without.
 */
#include "test_ledger_box.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#include "enforcer/ledger_host.h"

#define WHOLE 40
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080 /* Linux 5.6 */
#endif

static struct vcap_ledger ledger;

/* /proc is still that of the namespace outside, where our number is another process's. */
static int start_time_without_our_own_proc(void *arg)
{
    struct vcap_ledger l;
    pid_t pid;

    (void)arg;
    if (unshare(CLONE_NEWPID) != 0)
        return 77;
    pid = fork();
    if (pid == 0) {
        uint64_t own = box_start_time("/proc/self/stat");

        if (box_open(&l, VCAP_OPEN_CLAIM) != 0)
            _exit(1);
        _exit(l.slots[l.slot].start_time == own || l.slots[l.slot].start_time == 0 ? 0 : 2);
    }
    return box_end(pid);
}

static void a_start_time_is_never_read_from_another_namespaces_proc(void **state)
{
    int rc;

    (void)state;
    assert_true(box_make(4, WHOLE));
    rc = box_run(start_time_without_our_own_proc, NULL);
    if (rc == 77)
        SKIP_BECAUSE("needs root");
    assert_int_equal(rc, 0);
}

static int in_overlay(const char *format, ...) __attribute__((format(printf, 1, 2)));

static int in_overlay(const char *format, ...)
{
    char command[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    return system(command); /* NOLINT: the words are ours */
}

/* On overlayfs a mapping does not keep a lock: the slot must be of kind PID, and still be reaped.
 */
static int fall_back_on_overlayfs(void *arg)
{
    uint64_t units = 30;

    (void)arg;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", box_folder, "tmpfs", 0, "size=16m") != 0 ||
        in_overlay("cd %s && mkdir lower upper work merged && mount -t overlay overlay -o "
                   "lowerdir=lower,upperdir=upper,workdir=work merged 2>/dev/null",
                   box_folder) != 0)
        return 77;
    snprintf(box_path, sizeof(box_path), "%s/merged/ledger", box_folder);
    if (!box_make(8, WHOLE) || box_open(&ledger, VCAP_OPEN_CLAIM) != 0)
        return 1;
    if (vcap_lf_state_kind(ledger.slots[ledger.slot].state) == VCAP_LF_KIND_LOCK)
        return 78; /* this kernel's overlayfs keeps locks */
    if (vcap_lf_state_kind(ledger.slots[ledger.slot].state) != VCAP_LF_KIND_PID)
        return 2;
    {
        pid_t pid = box_start(box_stay, &units);

        if (!box_await(0, 1))
            return 3;
        if (box_charge(&ledger, 11) != -EDQUOT) /* alive, though without a lock */
            return 4;
        kill(pid, SIGKILL);
        box_end(pid);
    }
    if (box_charge(&ledger, WHOLE) != 0)
        return 5;
    return box_run(box_charge_and_die, &units) == 2 ? 0 : 6;
}

static void without_working_locks_slots_are_judged_by_pid(void **state)
{
    int rc;

    (void)state;
    rc = box_run(fall_back_on_overlayfs, NULL);
    if (rc == 77 || rc == 78)
        SKIP_BECAUSE("needs root, overlayfs, and / to be a mount point");
    assert_int_equal(rc, 0);
}

/* ---- kind PID in a PID namespace that is gone ---- */

static int die_in_a_namespace_of_its_own(void *arg)
{
    pid_t pid;

    if (unshare(CLONE_NEWPID) != 0)
        return 77;
    pid = fork();
    if (pid == 0) {
        /* its own /proc, so that it has a start time to be judged by */
        if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            mount("proc", "/proc", "proc", 0, NULL) != 0)
            _exit(3);
        _exit(box_charge_and_die(arg));
    }
    return box_end(pid);
}

static bool in_initial_user_namespace(void)
{
    struct stat st;

    return stat("/proc/self/ns/user", &st) == 0 && st.st_ino == 4026531837; /* PROC_USER_INIT_INO */
}

/* As root of the host, in the initial namespace: nobody is left in the other one. */
static int reset_by_the_host(void *arg)
{
    const struct vcap_ledger_size size = {.gpus = 2, .slots = 8, .events = 64};
    uint64_t units = 30;
    char why[200] = "";
    int rc;

    (void)arg;
    (void)unlink(box_path);
    if (vcap_ledger_create(box_path, &size, 0, NULL, NULL) != 0 ||
        box_open(&ledger, VCAP_OPEN_WRITE) != 0)
        return 5;
    {
        const uint8_t uuid[16] = {1, 2, 3};
        uint32_t gpu;

        if (vcap_ledger_gpu(&ledger, uuid, 0, 0, 0, &gpu) != 0)
            return 6;
        vcap_ledger_propose_ceiling(&ledger, 0, WHOLE * UNIT, VCAP_LF_SOURCE_HOST);
        vcap_ledger_close(&ledger);
    }
    rc = box_run(die_in_a_namespace_of_its_own, &units);
    if (rc != 0)
        return 20 + rc;
    rc = vcap_host_reset(box_path, why, sizeof(why));
    /* we do not see everybody either; a root of another user namespace sees them all, but may not look at
     * those that live in PID namespaces of others */
    if (vcap_pidns_inode() != UINT64_C(4026531836) ||
        (rc == -EBUSY && !in_initial_user_namespace()))
        return rc == -EBUSY && strstr(why, "cannot be seen") != NULL ? 0 : 7;
    if (rc != 0 || box_open(&ledger, VCAP_OPEN_WRITE) != 0)
        return 8;
    return box_held(&ledger) == 0 && vcap_ceiling_bytes(ledger.gpus[0].ceiling) == WHOLE * UNIT ? 0
                                                                                                : 9;
}

/*
 * A container on overlayfs ended and starts again on the same file.  From inside nobody can see whether a
 * slot of another PID namespace lives, so it counts as alive, and the ceiling holds; the host can see it.
 */
static int a_container_starts_again_on_overlayfs(void *arg)
{
    uint64_t units = 30;
    char why[200] = "";
    int rc;

    (void)arg;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", box_folder, "tmpfs", 0, "size=16m") != 0 ||
        in_overlay("cd %s && mkdir lower upper work merged && mount -t overlay overlay -o "
                   "lowerdir=lower,upperdir=upper,workdir=work merged 2>/dev/null",
                   box_folder) != 0)
        return 77;
    snprintf(box_path, sizeof(box_path), "%s/merged/ledger", box_folder);
    if (!box_make(8, WHOLE))
        return 1;
    rc = box_run(die_in_a_namespace_of_its_own, &units);
    if (rc != 0)
        return rc == 77 ? 77 : 10 + rc;
    if (box_open(&ledger, VCAP_OPEN_CLAIM) != 0)
        return 2;
    if (vcap_lf_state_kind(ledger.slots[ledger.slot].state) != VCAP_LF_KIND_PID)
        return 78;
    if (box_charge(&ledger, 11) != -EDQUOT || box_charge(&ledger, 10) != 0)
        return 3;
    if (vcap_host_reset(box_path, why, sizeof(why)) != -EBUSY)
        return 4; /* we live in it */
    vcap_ledger_close(&ledger);
    return box_run(reset_by_the_host, NULL);
}

static void a_pid_slot_of_a_gone_namespace_counts_until_the_host_resets(void **state)
{
    int rc;

    (void)state;
    rc = box_run(a_container_starts_again_on_overlayfs, NULL);
    if (rc == 77 || rc == 78)
        SKIP_BECAUSE("needs root, overlayfs, and / to be a mount point");
    assert_int_equal(rc, 0);
}

/* ---- time namespaces ---- */

/* In a time namespace start times are others: those who compare them across it kill the living. */
static int charge_in_a_time_namespace(void *arg)
{
    int fd;
    pid_t pid;

    if (unshare(CLONE_NEWTIME) != 0)
        return 77;
    fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "boottime 100000 0\n", 18) != 18)
        return 77;
    close(fd);
    pid = fork();
    if (pid == 0) {
        const uint64_t *units = arg;
        struct vcap_ledger l;

        usleep(1100000); /* start times are looked at once a second */
        if (box_open(&l, VCAP_OPEN_CLAIM) != 0)
            _exit(3);
        _exit(box_charge(&l, *units) == -EDQUOT ? 0 : 4);
    }
    return box_end(pid);
}

static void nobody_is_taken_for_dead_because_of_another_time_namespace(void **state)
{
    uint64_t units = 30, more = 11;
    pid_t pid;
    int rc;

    (void)state;
    assert_true(box_make(4, WHOLE));
    pid = box_start(box_stay, &units);
    assert_true(box_await(0, 1));
    rc = box_run(charge_in_a_time_namespace, &more);
    kill(pid, SIGKILL);
    box_end(pid);
    if (rc == 77)
        SKIP_BECAUSE("needs root and time namespaces (Linux 5.6)");
    assert_int_equal(rc, 0);
}

/* ---- the freezer ---- */

static bool write_word(const char *folder, const char *name, const char *word)
{
    char path[256];
    int fd;
    bool ok;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    ok = fd >= 0 && write(fd, word, strlen(word)) == (ssize_t)strlen(word);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* The freezer of either hierarchy, with a group of ours in it: group's path and names. */
struct freezer {
    char group[160];
    const char *members, *switch_name, *on, *off;
};

static bool find_freezer(struct freezer *z)
{
    char where[128];

    snprintf(where, sizeof(where), "%s/freezer", box_folder);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mkdir(where, 0755) != 0)
        return false;
    snprintf(z->group, sizeof(z->group), "%s/vramcap-%d", where, (int)getpid());
    if (mount("cgroup", where, "cgroup", 0, "freezer") == 0) {
        z->members = "tasks";
        z->switch_name = "freezer.state";
        z->on = "FROZEN";
        z->off = "THAWED";
        return mkdir(z->group, 0755) == 0;
    }
    z->members = "cgroup.procs";
    z->switch_name = "cgroup.freeze";
    z->on = "1";
    z->off = "0";
    return mount("cgroup2", where, "cgroup2", 0, NULL) == 0 && mkdir(z->group, 0755) == 0;
}

/* Charges and releases without end, so that it is frozen in the middle of something. */
static int charge_for_ever(void *arg)
{
    struct vcap_ledger l;

    (void)arg;
    if (box_open(&l, VCAP_OPEN_CLAIM) != 0 || box_charge(&l, 10) != 0)
        return 1;
    box_add(0, 1);
    for (;;) {
        if (box_charge(&l, 5) == 0)
            vcap_ledger_release(&l, 0, 5 * UNIT);
    }
}

static int nobody_waits_for_the_frozen(void *arg)
{
    struct freezer z;
    uint64_t worst = 0;
    char number[16];
    int wrong = 0;
    long sleeps = 0;
    pid_t pid;

    (void)arg;
    if (!find_freezer(&z))
        return 77;
    pid = box_start(charge_for_ever, NULL);
    if (!box_await(0, 1) || box_open(&ledger, VCAP_OPEN_CLAIM) != 0)
        return 1;
    snprintf(number, sizeof(number), "%d", (int)pid);
    if (!write_word(z.group, z.members, number))
        return 2;
    for (int i = 0; i < 200 && wrong == 0; i++) {
        uint64_t before, took;
        long slept;

        if (!write_word(z.group, z.switch_name, z.on))
            return 3;
        usleep(500);
        before = box_clock_ns();
        slept = box_sleeps();
        if (box_charge(&ledger, 25) != 0) /* 10 to 15 are the other's */
            wrong = 4;
        else
            vcap_ledger_release(&ledger, 0, 25 * UNIT);
        if (wrong == 0 && box_charge(&ledger, 31) != -EDQUOT) /* frozen is not dead */
            wrong = 5;
        sleeps += box_sleeps() - slept;
        took = box_clock_ns() - before;
        worst = took > worst ? took : worst;
        (void)write_word(z.group, z.switch_name, z.off);
    }
    kill(pid, SIGKILL);
    box_end(pid);
    (void)rmdir(z.group);
    print_message("200 freezes, worst charge and refusal %llu us, %ld sleeps\n",
                  (unsigned long long)worst / 1000, sleeps);
    if (wrong == 0 && sleeps != 0)
        wrong = 6;
    return wrong != 0 ? wrong : box_charge(&ledger, WHOLE) == 0 ? 0 : 7;
}

static void nobody_waits_for_a_process_in_the_freezer(void **state)
{
    int rc;

    (void)state;
    assert_true(box_make(4, WHOLE));
    rc = box_run(nobody_waits_for_the_frozen, NULL);
    if (rc == 77)
        SKIP_BECAUSE("needs root, a cgroup freezer, and / to be a mount point");
    assert_int_equal(rc, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOX_TEST(a_start_time_is_never_read_from_another_namespaces_proc),
        BOX_TEST(without_working_locks_slots_are_judged_by_pid),
        BOX_TEST(a_pid_slot_of_a_gone_namespace_counts_until_the_host_resets),
        BOX_TEST(nobody_is_taken_for_dead_because_of_another_time_namespace),
        BOX_TEST(nobody_waits_for_a_process_in_the_freezer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
