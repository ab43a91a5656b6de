/*
 * Crowds (enforcer/agent/crowd.h) of real processes: what a process does to itself does not get it into another.
 */
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/agent/crowd.h"
#include "tests/support/skip.h"

/* Processes of a tree, by their numbers here; each a child of the one before, or of the test. */
struct tree {
    pid_t first; /* to be killed and waited for, as all below it then end */
    pid_t pids[3];
};

/* In a new PID namespace `new_at[i]` or the parent's; the last says its number, as the test sees it, through
 * the pipe of each level. */
static void descend(const int *namespaces, int depth, int level, int report)
{
    if (namespaces[level] && unshare(CLONE_NEWPID) != 0)
        _exit(77);
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (level + 1 < depth)
            descend(namespaces, depth, level + 1, report);
        else
            (void)!write(report, "x", 1);
        for (;;)
            (void)pause();
    }
    if (pid < 0)
        _exit(78);
}

static pid_t child_of(pid_t pid)
{
    char path[96];
    long child = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *file = fopen(path, "re");
    if (!file || fscanf(file, "%ld", &child) != 1)
        child = 0;
    if (file)
        (void)fclose(file);
    return (pid_t)child;
}

/* 0; 77: that cannot be done here. */
static int grow(struct tree *t, const int *namespaces, int depth, uid_t user)
{
    int report[2], status;
    char byte;
    assert_int_equal(pipe(report), 0);
    t->first = fork();
    if (t->first == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (user != 0 && setresuid(user, user, user) != 0)
            _exit(77);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (depth > 0)
            descend(namespaces, depth, 0, report[1]);
        else
            (void)!write(report[1], "x", 1);
        for (;;)
            (void)pause();
    }
    (void)close(report[1]);
    ssize_t n = read(report[0], &byte, 1);
    (void)close(report[0]);
    if (n != 1) {
        (void)kill(t->first, SIGKILL);
        (void)waitpid(t->first, &status, 0);
        return 77;
    }
    pid_t pid = t->first;
    for (int i = 0; i < depth; i++) {
        pid = child_of(pid);
        assert_true(pid > 0);
        t->pids[i] = pid;
    }
    return 0;
}

static void fell(const struct tree *t)
{
    (void)kill(t->first, SIGKILL);
    (void)waitpid(t->first, NULL, 0);
}

static void a_container_stays_one_crowd_whatever_it_makes_below_it(void **state)
{
    static const int nested[] = {1, 1, 1}, plain[] = {1, 0, 0};
    struct tree a, b;
    uint64_t crowd[2][3];
    (void)state;
    if (grow(&a, nested, 3, 0) != 0)
        SKIP_BECAUSE("no PID namespace can be made here");
    assert_int_equal(grow(&b, plain, 3, 0), 0);
    for (int i = 0; i < 3; i++) {
        crowd[0][i] = vcap_crowd_of(a.pids[i]);
        crowd[1][i] = vcap_crowd_of(b.pids[i]);
    }
    uint64_t starter = vcap_crowd_of(a.first), own = vcap_crowd_of(getpid());
    fell(&a);
    fell(&b);
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(crowd[0][i], 0);
        assert_int_equal(crowd[0][i], crowd[0][0]);
        assert_int_equal(crowd[1][i], crowd[1][0]);
    }
    assert_int_not_equal(crowd[0][0], crowd[1][0]);
    assert_int_equal(starter, own); /* it is not in the namespace that it made */
    assert_int_not_equal(own, crowd[0][0]);
}

static void processes_beside_the_caller_are_told_by_their_user(void **state)
{
    struct tree root, one, other;
    (void)state;
    if (geteuid() != 0)
        SKIP_BECAUSE("needs root: processes of several users");
    assert_int_equal(grow(&root, NULL, 0, 0), 0);
    assert_int_equal(grow(&one, NULL, 0, 65533), 0); /* not dumpable: /proc/PID is root's */
    assert_int_equal(grow(&other, NULL, 0, 65534), 0);
    uint64_t crowds[] = {vcap_crowd_of(root.first), vcap_crowd_of(one.first),
                         vcap_crowd_of(other.first)};
    fell(&root);
    fell(&one);
    fell(&other);
    assert_int_equal(crowds[0], vcap_crowd_of(getpid()));
    assert_int_not_equal(crowds[1], crowds[0]);
    assert_int_not_equal(crowds[2], crowds[0]);
    assert_int_not_equal(crowds[1], crowds[2]);
}

static void one_that_is_gone_is_in_none(void **state)
{
    (void)state;
    assert_int_equal(vcap_crowd_of(INT32_MAX), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_container_stays_one_crowd_whatever_it_makes_below_it),
        cmocka_unit_test(processes_beside_the_caller_are_told_by_their_user),
        cmocka_unit_test(one_that_is_gone_is_in_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
