/*
 * Processes of every kind, under the hooks: whichever way one comes to be or ends, it has a slot of its own for
 * what it allocates itself, nothing of its parent's, and what it held comes back with it.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/hook/scenario.h"
#include "tests/support/skip.h"

static int ended(pid_t pid)
{
    int status;

    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A process that has said that it is there, and lives until it is told to go. */
struct other {
    pid_t pid;
    int in, out;
};

static bool says(int fd, char word)
{
    return write(fd, &word, 1) == 1;
}

static bool hears(int fd, char word)
{
    char got = 0;

    return read(fd, &got, 1) == 1 && got == word;
}

/* Forked before the driver is initialised: body allocates, and what it returns is said as a digit. */
static bool other_start(struct other *o, int (*body)(struct other *o))
{
    int in[2], out[2];

    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        return false;
    o->pid = fork();
    if (o->pid == 0) {
        close(in[1]);
        close(out[0]);
        o->in = in[0];
        o->out = out[1];
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(body(o));
    }
    close(in[0]);
    close(out[1]);
    o->in = in[1];
    o->out = out[0];
    return o->pid > 0;
}

static int ten_mebibytes(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 10 * MIB));
    SAME(ledger_charged_by(self.ledger, 0, getpid()), 10 * MIB);
    return 0;
}

static char *const again[] = {(char *)(uintptr_t) "test", (char *)(uintptr_t) "--scenario",
                              (char *)(uintptr_t) "ten_mebibytes", NULL};

/* What every scenario here ends with: 600 of 1024 are this process's, and its own to give back. */
static int still_ours(CUdeviceptr pointer)
{
    CUdeviceptr more = 0x77;

    SAME(charged(0), 600 * MIB);
    SAME(ledger_charged_by(self.ledger, 0, getpid()), 600 * MIB);
    SAME(ledger_processes(self.ledger), 1);
    REFUSED(api.cuMemAlloc_v2(&more, 500 * MIB));
    OK(api.cuMemFree_v2(pointer));
    SAME(charged(0), 0);
    return 0;
}

/* ---- how they begin ---- */

static int vforked(void)
{
    CUdeviceptr pointer;
    pid_t pid;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    pid = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork): it is what is tested */
    if (pid == 0)
        _exit(7);
    SAME(ended(pid), 7);
    SAME(charged(0), 600 * MIB);
    pid = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork) */
    if (pid == 0) {
        execve("/proc/self/exe", again, environ);
        _exit(8);
    }
    SAME(ended(pid), 0);
    return still_ours(pointer);
}

static int spawned(void)
{
    CUdeviceptr pointer;
    pid_t pid;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    for (int i = 0; i < 3; i++) {
        SAME(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, again, environ), 0);
        SAME(ended(pid), 0);
    }
    return still_ours(pointer);
}

static int forked_and_executed(void)
{
    CUdeviceptr pointer;
    pid_t pid;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    pid = fork();
    if (pid == 0) {
        execve("/proc/self/exe", again, environ);
        _exit(8);
    }
    SAME(ended(pid), 0);
    return still_ours(pointer);
}

/* clone(2) without the C library, which then calls no handler of fork. */
static int cloned(void)
{
    CUdeviceptr pointer, none = 0x77;
    pid_t pid;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        int result = (int)api.cuMemAlloc_v2(&none, 10 * MIB);

        api.cuMemFree_v2(pointer);
        syscall(SYS_exit_group, result == CUDA_ERROR_NOT_INITIALIZED && none == 0x77 ? 9 : 1);
    }
    SAME(ended(pid), 9);
    return still_ours(pointer);
}

/* As daemon(3) does it: the one that stays is nobody's child. */
static int daemon_main(struct other *o)
{
    CUdeviceptr pointer;
    pid_t pid = fork();

    if (pid != 0)
        return pid < 0;
    setsid();
    pid = fork();
    if (pid != 0)
        _exit(pid < 0);
    if (begin(0) != CUDA_SUCCESS || api.cuMemAlloc_v2(&pointer, 400 * MIB) != CUDA_SUCCESS ||
        ledger_charged_by(self.ledger, 0, getpid()) != 400 * MIB || !says(o->out, 'd'))
        return 1;
    (void)hears(o->in, 'e');
    return says(o->out, 'e') ? 0 : 1;
}

static int daemonised(void)
{
    struct other o;
    CUdeviceptr pointer, more = 0x77;
    char end;

    CHECK(other_start(&o, daemon_main));
    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    SAME(ended(o.pid), 0);
    CHECK(hears(o.out, 'd'));
    SAME(charged(0), 1000 * MIB);
    REFUSED(api.cuMemAlloc_v2(&more, 25 * MIB));
    CHECK(says(o.in, 'e') && hears(o.out, 'e'));
    CHECK(read(o.out, &end, 1) == 0); /* it has closed its end: it is gone, or going */
    for (int i = 0; charged(0) != 600 * MIB && i < 6000; i++)
        usleep(10000);
    return still_ours(pointer);
}

/* ---- what they do to descriptors and threads ---- */

static int everything_closed(void)
{
    CUdeviceptr pointer;
    pid_t pid;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    SAME(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, again, environ), 0);
    SAME(ended(pid), 0); /* has looked for the dead and left us alone */
    return still_ours(pointer);
}

static void *allocate(void *arg)
{
    CUcontext context = NULL;

    if (api.cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        api.cuCtxSetCurrent(context) != CUDA_SUCCESS ||
        api.cuMemAlloc_v2(arg, 600 * MIB) != CUDA_SUCCESS)
        *(CUdeviceptr *)arg = 0;
    return NULL;
}

static int the_thread_that_allocated_has_ended(void)
{
    CUdeviceptr pointer = 0;
    CUcontext context;
    pthread_t thread;

    OK(api.cuInit(0));
    CHECK(pthread_create(&thread, NULL, allocate, &pointer) == 0);
    pthread_join(thread, NULL);
    CHECK(pointer != 0);
    OK(api.cuDevicePrimaryCtxRetain(&context, 0));
    OK(api.cuCtxSetCurrent(context));
    return still_ours(pointer);
}

static CUdeviceptr from_main;
static CUcontext of_main;

/* Of the main thread: by its name in /proc, for no sanitizer knows a join of it. */
static bool has_ended(void)
{
    char path[64], text[256] = "", *at;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)getpid());
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    if (fgets(text, sizeof(text), file) == NULL)
        text[0] = 0;
    fclose(file);
    at = strrchr(text, ')');
    return at != NULL && at[1] == ' ' && at[2] == 'Z';
}

static void *go_on(void *arg)
{
    int rc;

    while (arg == NULL && !has_ended())
        usleep(1000);
    rc = api.cuCtxSetCurrent(of_main) == CUDA_SUCCESS ? still_ours(from_main) : 1;

    exit(rc); /* NOLINT(concurrency-mt-unsafe): the last thread */
}

static int main_ends_first(void)
{
    pthread_t thread;

    OK(begin(0));
    OK(api.cuCtxGetCurrent(&of_main));
    OK(api.cuMemAlloc_v2(&from_main, 600 * MIB));
    CHECK(pthread_create(&thread, NULL, go_on, NULL) == 0);
    pthread_exit(NULL);
}

/* ---- namespaces: one ledger, whatever the processes see of each other ---- */

static int hold_300(struct other *o)
{
    CUdeviceptr pointer, more = 0x77;

    if (begin(0) != CUDA_SUCCESS || api.cuMemAlloc_v2(&pointer, 300 * MIB) != CUDA_SUCCESS ||
        !says(o->out, 'h') || !hears(o->in, 'a') ||
        api.cuMemAlloc_v2(&more, 2 * MIB) != CUDA_ERROR_OUT_OF_MEMORY || !says(o->out, 'r'))
        return 1;
    (void)hears(o->in, 'e');
    return 0;
}

static int in_a_user_namespace(struct other *o)
{
    return unshare(CLONE_NEWUSER) == 0 ? hold_300(o) : 77;
}

/* Process 1 of a namespace of its own; o->pid is its parent, which waits for it. */
static int in_a_pid_namespace(struct other *o)
{
    pid_t pid;

    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0)
        return 77;
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(getpid() == 1 ? hold_300(o) : 1);
    }
    close(o->out);
    return ended(pid);
}

static int namespace(int (*body)(struct other *o), unsigned others)
{
    struct other o[2];
    CUdeviceptr pointer, more = 0x77;

    for (unsigned i = 0; i < others; i++)
        CHECK(other_start(&o[i], body));
    for (unsigned i = 0; i < others; i++)
        if (!hears(o[i].out, 'h'))
            return ended(o[i].pid);
    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 1024 * MIB - others * 300 * MIB));
    SAME(charged(0), 1024 * MIB);
    SAME(ledger_processes(self.ledger), others + 1);
    /* each looks for the dead before it is refused, and finds none */
    REFUSED(api.cuMemAlloc_v2(&more, 2 * MIB));
    for (unsigned i = 0; i < others; i++)
        CHECK(says(o[i].in, 'a') && hears(o[i].out, 'r'));
    SAME(charged(0), 1024 * MIB);
    for (unsigned i = 0; i < others; i++) {
        CHECK(says(o[i].in, 'e'));
        SAME(ended(o[i].pid), 0);
        OK(api.cuMemAlloc_v2(&more, 300 * MIB));
    }
    SAME(ledger_charged_by(self.ledger, 0, getpid()), 1024 * MIB);
    SAME(ledger_processes(self.ledger), 1);
    return 0;
}

static int beside_a_user_namespace(void)
{
    return namespace(in_a_user_namespace, 1);
}

static int beside_two_pid_namespaces(void)
{
    return namespace(in_a_pid_namespace, 2);
}

static void shares(const struct fixture *f, const char *scenario)
{
    static struct child_output output;

#ifdef __SANITIZE_THREAD__ /* has a thread of its own in every process, and then no namespace can be made */
    skip();
#endif
    scenario_run(f, scenario, NULL, &output);
    if (output.status == 77)
        SKIP_BECAUSE("no user and PID namespaces here (none can be made in a chroot)");
    if (output.status != 0)
        fprintf(stderr, "%s", output.err);
    assert_int_equal(output.status, 0);
}

static void a_process_of_another_user_namespace_shares_the_ceiling(void **state)
{
    shares(*state, "beside_a_user_namespace");
}

static void processes_number_1_of_two_pid_namespaces_share_the_ceiling(void **state)
{
    shares(*state, "beside_two_pid_namespaces");
}

static const struct scenario scenarios[] = {
    HIDDEN(ten_mebibytes, NULL),
    SCENARIO(vforked, NULL),
    SCENARIO(spawned, NULL),
    SCENARIO(forked_and_executed, NULL),
    SCENARIO(cloned, NULL),
    SCENARIO(daemonised, NULL),
    SCENARIO(everything_closed, NULL),
    SCENARIO(the_thread_that_allocated_has_ended, NULL),
    SCENARIO(main_ends_first, NULL),
    HIDDEN(beside_a_user_namespace, NULL),
    HIDDEN(beside_two_pid_namespaces, NULL),
};

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_process_of_another_user_namespace_shares_the_ceiling),
    cmocka_unit_test(processes_number_1_of_two_pid_namespaces_share_the_ceiling),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
