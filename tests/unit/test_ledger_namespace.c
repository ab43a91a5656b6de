/*
 * Slots where file locks or process numbers are not what they seem: overlayfs, a /proc of another PID
 * namespace.  Needs root; skips without.
 */
#include "test_ledger_box.h"

#include <sched.h>
#include <sys/mount.h>

#define WHOLE 40

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
        SKIP_BECAUSE("needs root and overlayfs");
    assert_int_equal(rc, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOX_TEST(a_start_time_is_never_read_from_another_namespaces_proc),
        BOX_TEST(without_working_locks_slots_are_judged_by_pid),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
