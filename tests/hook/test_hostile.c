/*
 * Programs that are unkind without knowing it: at the loader's lock, with cancelled threads, with no
 * descriptor, room, slot or terminal left.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/ledger.h"
#include "tests/hook/scenario.h"

#define TIB (UINT64_C(1) << 40)
#define HANGS_S 5u /* what is stuck is ended by SIGALRM */

static int64_t now_ms(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Exit status of a child, 128 + signal, 256 + signal that stopped it, -1: none in time (and it is
 * killed). */
static int end_of(pid_t pid, int64_t deadline_ms)
{
    int64_t end = now_ms() + deadline_ms;
    pid_t got;
    int status = 0;

    while ((got = waitpid(pid, &status, WNOHANG | WUNTRACED)) == 0 && now_ms() < end)
        usleep(1000);
    if (got != pid || WIFSTOPPED(status)) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return got == pid ? 256 + WSTOPSIG(status) : -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- the loader ---- */

static void names_are_looked_up_while_libraries_come_and_go(void **state)
{
    static const char *const argv[] = {TEST_CHURN,  TEST_PLUGIN, TEST_LEAF_1,
                                       TEST_LEAF_2, TEST_LEAF_3, NULL};
    static const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};
    static struct child_output output;

    child_run(*state, argv, extra, &output);
    assert_string_equal(output.err, "");
    assert_int_equal(output.status, 0);
}

static void *load_slow_start(void *unused)
{
    (void)unused;
    return dlopen(TEST_SLOW_START, RTLD_NOW);
}

static int a_constructor_may_ask_for_the_driver_while_another_thread_binds(void)
{
    pthread_t thread;
    void *handle = NULL;
    CUdeviceptr pointer;

    alarm(HANGS_S);
    CHECK(pthread_create(&thread, NULL, load_slow_start, NULL) == 0);
    usleep(100 * 1000); /* the constructor sleeps longer */
    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, MIB));
    CHECK(pthread_join(thread, &handle) == 0);
    CHECK(handle != NULL);
    return 0;
}

/* ---- another process holds memory ---- */

/* A child with a context and bytes allocated; it stays until it is killed. */
static pid_t holder(uint64_t bytes)
{
    int ends[2];
    char byte;
    pid_t pid;
    bool there;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    pid = fork();
    if (pid == 0) {
        CUdeviceptr pointer;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        if (begin(0) != CUDA_SUCCESS || api.cuMemAlloc_v2(&pointer, bytes) != CUDA_SUCCESS ||
            write(ends[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    there = pid > 0 && read(ends[0], &byte, 1) == 1; /* its end closes the pipe */
    close(ends[0]);
    return there ? pid : -1;
}

static atomic_bool go;
static CUcontext shared_context;
static atomic_int thread_result;

static void *refused_with_a_cancel_pending(void *unused)
{
    CUdeviceptr pointer;

    (void)unused;
    api.cuCtxSetCurrent(shared_context);
    while (!atomic_load(&go))
        continue;
    atomic_store(&thread_result, (int)api.cuMemAllocAsync(&pointer, 4096 * MIB, NULL));
    pthread_testcancel();
    return NULL;
}

static int a_cancelled_thread_leaves_no_lock_behind(void)
{
    CUdeviceptr pointer;
    pthread_t thread;
    void *result = NULL;
    pid_t other;

    alarm(2 * HANGS_S);
    CHECK((other = holder(MIB)) > 0);
    OK(begin(0));
    OK(api.cuCtxGetCurrent(&shared_context));
    OK(api.cuMemAllocAsync(&pointer, MIB, NULL));
    CHECK(pthread_create(&thread, NULL, refused_with_a_cancel_pending, NULL) == 0);
    usleep(20 * 1000);
    CHECK(pthread_cancel(thread) == 0);
    atomic_store(&go, true);
    CHECK(pthread_join(thread, &result) == 0);
    alarm(HANGS_S);
    OK(api.cuMemAllocAsync(&pointer, MIB, NULL));
    OK(api.cuMemAlloc_v2(&pointer, MIB));
    CHECK(result == PTHREAD_CANCELED);
    GIVES(atomic_load(&thread_result), CUDA_ERROR_OUT_OF_MEMORY);
    kill(other, SIGKILL);
    CHECK(end_of(other, FIXTURE_DEADLINE_MS) == 128 + SIGKILL);
    return 0;
}

static int the_dead_are_found_without_a_descriptor(void)
{
    struct rlimit before, none;
    CUdeviceptr pointer;
    CUresult result;
    pid_t other;

    CHECK((other = holder(600 * MIB)) > 0);
    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, MIB));
    REFUSED(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    kill(other, SIGKILL);
    CHECK(end_of(other, FIXTURE_DEADLINE_MS) == 128 + SIGKILL);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK(dup(2) < 0);
    result = api.cuMemAlloc_v2(&pointer, 600 * MIB);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    OK(result);
    return 0;
}

/* ---- limits and terminals ---- */

static int makes_the_simulated_machine(void)
{
    return (int)begin(0);
}

static int is_denied_with_files_of_64_kib(void)
{
    const struct rlimit small = {65536, 65536};
    CUdeviceptr pointer;

    CHECK(access(self.sim, F_OK) == 0);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    begin(0);
    CHECK(api.cuMemAlloc_v2(&pointer, MIB) != CUDA_SUCCESS);
    CHECK(api.cuMemAlloc_v2(&pointer, MIB) != CUDA_SUCCESS);
    CHECK(access(self.ledger, F_OK) != 0);
    return 0;
}

static void a_ledger_above_the_file_size_limit_denies_and_kills_nobody(void **state)
{
    static struct child_output output;

    scenario_run(*state, "makes_the_simulated_machine", "VRAMCAP_ENABLE=0", &output);
    assert_int_equal(output.status, 0);
    scenario_run(*state, "is_denied_with_files_of_64_kib", NULL, &output);
    if (output.status != 0)
        fprintf(stderr, "%s", output.err);
    assert_int_equal(output.status, 0);
    assert_int_equal(count_lines(output.err, "GPU memory is denied to this process"), 1);
}

static int refused_in_the_background(int terminal)
{
    CUdeviceptr pointer;

    setpgid(0, 0);
    dup2(terminal, 2);
    alarm(HANGS_S);
    OK(begin(0));
    REFUSED(api.cuMemAlloc_v2(&pointer, 2048 * MIB));
    return 0;
}

/* A session of its own, in front of the terminal, with a process behind it. */
static int in_a_session(const char *name)
{
    struct termios settings;
    int terminal;
    pid_t pid;

    if (setsid() < 0)
        return 2;
    terminal = open(name, O_RDWR); /* becomes the controlling one */
    if (terminal < 0 || tcgetattr(terminal, &settings) != 0)
        return 3;
    settings.c_lflag |= TOSTOP;
    if (tcsetattr(terminal, TCSANOW, &settings) != 0 || tcgetpgrp(terminal) != getpid())
        return 4;
    pid = fork();
    if (pid == 0)
        _exit(refused_in_the_background(terminal));
    switch (end_of(pid, HANGS_S * 1000)) {
    case 0:
        return 0;
    case 256 + SIGTTOU:
        return 5;
    default:
        return 6;
    }
}

static int a_refusal_does_not_stop_a_background_process(void)
{
    char text[4096];
    ssize_t length;
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    pid_t pid;

    CHECK(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(in_a_session(ptsname(master)));
    }
    GIVES(end_of(pid, 2 * HANGS_S * 1000), 0);
    length = read(master, text, sizeof(text) - 1);
    CHECK(length > 0);
    text[length] = 0;
    CHECK(strstr(text, "refused") != NULL);
    return 0;
}

/* ---- slots ---- */

static int holds_a_slot(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, MIB));
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}

static int is_denied_until_a_slot_is_free(void)
{
    int64_t end;
    CUdeviceptr pointer;
    char line[16];

    begin(0);
    CHECK(api.cuMemAlloc_v2(&pointer, MIB) != CUDA_SUCCESS);
    puts("denied");
    fflush(stdout);
    CHECK(fgets(line, sizeof(line), stdin) != NULL);
    end = now_ms() + FIXTURE_DEADLINE_MS / 2; /* a second, where the machine is quiet */
    do {
        usleep(50 * 1000);
        if (begin(0) == CUDA_SUCCESS && api.cuMemAlloc_v2(&pointer, MIB) == CUDA_SUCCESS) {
            CHECK(ledger_charged_by(self.ledger, 0, getpid()) >= MIB);
            return 0;
        }
    } while (now_ms() < end);
    fprintf(stderr, "still denied\n");
    return 1;
}

static void a_full_ledger_denies_only_while_it_is_full(void **state)
{
    const struct vcap_ledger_size size = {.gpus = 4, .slots = 2, .events = 16};
    const struct fixture *f = *state;
    struct child holders[2], late;
    char line[64];
    bool full, denied;

    assert_int_equal(vcap_ledger_create(f->ledger, &size, 0, NULL, NULL), 0);
    full = true;
    for (int i = 0; i < 2; i++)
        full = scenario_start(f, "holds_a_slot", NULL, &holders[i]) &&
               child_line(&holders[i], line, sizeof(line), FIXTURE_DEADLINE_MS) && full;
    denied = scenario_start(f, "is_denied_until_a_slot_is_free", NULL, &late) &&
             child_line(&late, line, sizeof(line), FIXTURE_DEADLINE_MS) &&
             strcmp(line, "denied") == 0;
    for (int i = 0; i < 2; i++)
        child_kill(&holders[i], SIGKILL);
    assert_true(full);
    assert_true(denied);
    assert_true(child_say(&late, "go"));
    assert_int_equal(child_wait(&late, FIXTURE_DEADLINE_MS), 0);
}

/* ---- sizes ---- */

static int eight_tebibytes_and_more(void)
{
    CUdeviceptr pointer = 0x77;

    OK(begin(0));
    REFUSED(api.cuMemAlloc_v2(&pointer, 9 * TIB));
    SAME(gpu_row(0).refusals, 1);
    OK(api.cuMemAllocAsync(&pointer, MIB, NULL)); /* a pool exists from here on */
    sleep(1);                                     /* a line a second */
    REFUSED(api.cuMemAlloc_v2(&pointer, 9 * TIB));
    REFUSED(api.cuMemAlloc_v2(&pointer, 10 * TIB));
    SAME(gpu_row(0).refusals, 3);
    return 0;
}

static void refusals_of_any_size_are_counted_and_said(void **state)
{
    static struct child_output output;

    scenario_run(*state, "eight_tebibytes_and_more", NULL, &output);
    if (output.status != 0)
        fprintf(stderr, "%s", output.err);
    assert_int_equal(output.status, 0);
    assert_true(count_lines(output.err, "refused") >= 2);
}

static const struct scenario scenarios[] = {
    /* linked: the first call binds, no look-up before it */
    SCENARIO(a_constructor_may_ask_for_the_driver_while_another_thread_binds, "SCENARIO_BY=link"),
    SCENARIO(a_cancelled_thread_leaves_no_lock_behind, NULL),
    SCENARIO(the_dead_are_found_without_a_descriptor, NULL),
    SCENARIO(a_refusal_does_not_stop_a_background_process, NULL),
    HIDDEN(makes_the_simulated_machine, NULL),
    HIDDEN(is_denied_with_files_of_64_kib, NULL),
    HIDDEN(holds_a_slot, NULL),
    HIDDEN(is_denied_until_a_slot_is_free, NULL),
    HIDDEN(eight_tebibytes_and_more, NULL),
};

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(names_are_looked_up_while_libraries_come_and_go),
    cmocka_unit_test(a_ledger_above_the_file_size_limit_denies_and_kills_nobody),
    cmocka_unit_test(a_full_ledger_denies_only_while_it_is_full),
    cmocka_unit_test(refusals_of_any_size_are_counted_and_said),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
