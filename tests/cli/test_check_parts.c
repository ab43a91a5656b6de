/*
 * Parts of `vramcap check` where the system does not give them what they ask for, or whom they ask does not
 * answer: each says so.  The system's functions are linked in front of the C library's (--wrap).
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/agent/probe.h"
#include "enforcer/cli/check.h"

static int pipe_error, fork_error, poll_error; /* errno of the next call; 0: as it is */
static pid_t silent;                           /* whoever looks at it gets no answer */
static int child_errors[4];                    /* of the next questions; 0: as it is */
static unsigned questions;

int __real_pipe2(int ends[2], int flags);
int __wrap_pipe2(int ends[2], int flags);
pid_t __real_fork(void);
pid_t __wrap_fork(void);
int __real_poll(struct pollfd *list, nfds_t count, int wait);
int __wrap_poll(struct pollfd *list, nfds_t count, int wait);
int __real_vcap_probe(pid_t pid, int (*work)(void *job), void (*undo)(void *job), void *job,
                      size_t size);
int __wrap_vcap_probe(pid_t pid, int (*work)(void *job), void (*undo)(void *job), void *job,
                      size_t size);
int __real_vcap_check_child(const struct vcap_check_question *question, const void *wish,
                            void *answer, size_t size);
int __wrap_vcap_check_child(const struct vcap_check_question *question, const void *wish,
                            void *answer, size_t size);

/* So much passes from one look at a clock to the next. */
static int64_t step_ns, passed_ns;
int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = __real_clock_gettime(clock, now);
    passed_ns += step_ns;
    const int64_t all = now->tv_nsec + passed_ns;
    now->tv_sec += (time_t)(all / 1000000000);
    now->tv_nsec = (long)(all % 1000000000);
    return result;
}

/* A cgroup of version 2, which not every machine has. */
FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);

FILE *__wrap_fopen(const char *path, const char *mode)
{
    static char text[] = "0::/pod\n";
    char own[64];
    (void)snprintf(own, sizeof own, "/proc/%d/cgroup", (int)getpid());
    return strcmp(path, own) == 0 ? fmemopen(text, strlen(text), "r") : __real_fopen(path, mode);
}

static bool fails(int *error)
{
    if (*error == 0)
        return false;
    errno = *error;
    *error = 0;
    return true;
}

int __wrap_pipe2(int ends[2], int flags)
{
    return fails(&pipe_error) ? -1 : __real_pipe2(ends, flags);
}

pid_t __wrap_fork(void)
{
    return fails(&fork_error) ? -1 : __real_fork();
}

int __wrap_poll(struct pollfd *list, nfds_t count, int wait)
{
    return fails(&poll_error) ? -1 : __real_poll(list, count, wait);
}

int __wrap_vcap_probe(pid_t pid, int (*work)(void *job), void (*undo)(void *job), void *job,
                      size_t size)
{
    return pid == silent ? -ETIMEDOUT : __real_vcap_probe(pid, work, undo, job, size);
}

int __wrap_vcap_check_child(const struct vcap_check_question *question, const void *wish,
                            void *answer, size_t size)
{
    int error = questions < 4 ? child_errors[questions] : 0;
    questions++;
    return error != 0 ? error : __real_vcap_check_child(question, wish, answer, size);
}

static struct vcap_check check; /* large */

static int setup(void **state)
{
    (void)state;
    memset(&check, 0, sizeof check);
    memset(child_errors, 0, sizeof child_errors);
    questions = 0;
    pipe_error = fork_error = poll_error = 0;
    silent = 0;
    check.self = true;
    check.pid = getpid();
    return 0;
}

static const struct vcap_check_line *only_line(void)
{
    if (check.count != 1)
        fail_msg("%u lines, the first '%s'", check.count, check.line[0].text);
    return &check.line[0];
}

/* ---- children ---- */

static void answer_seven(const void *wish, void *answer)
{
    *(int *)answer = *(const int *)wish + 1;
}

static void end(const void *wish, void *answer)
{
    (void)wish;
    (void)answer;
    _exit(0);
}

static void never(const void *wish, void *answer)
{
    *(int *)answer = *(const int *)wish;
    for (;;)
        (void)pause();
}

static void what_becomes_of_a_question(void **state)
{
    static const struct vcap_check_question good = {answer_seven, 60000, true},
                                            ends = {end, 60000, true}, hangs = {never, 50, true};
    char why[VCAP_CHECK_WHY];
    int six = 6, answer = 0;
    (void)state;
    assert_int_equal(vcap_check_child(&good, &six, &answer, sizeof answer), 0);
    assert_int_equal(answer, 7);
    poll_error = EINTR; /* is asked again */
    answer = 0;
    assert_int_equal(vcap_check_child(&good, &six, &answer, sizeof answer), 0);
    assert_int_equal(answer, 7);
    assert_int_equal(vcap_check_child(&ends, &six, &answer, sizeof answer), -ECHILD);
    assert_int_equal(answer, 0); /* and nothing is left of what was there */
    assert_string_equal(vcap_check_child_why(&ends, -ECHILD, why), "ended the process that asked");
    assert_int_equal(vcap_check_child(&hangs, &six, &answer, sizeof answer), -ETIMEDOUT);
    assert_string_equal(vcap_check_child_why(&good, -ETIMEDOUT, why), "did not answer within 60 s");
    pipe_error = EMFILE;
    assert_int_equal(vcap_check_child(&good, &six, &answer, sizeof answer), -EMFILE);
    fork_error = EAGAIN;
    assert_int_equal(vcap_check_child(&good, &six, &answer, sizeof answer), -EAGAIN);
    poll_error = ENOMEM;
    assert_int_equal(vcap_check_child(&good, &six, &answer, sizeof answer), -ENOMEM);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* none is left */
    assert_int_equal(errno, ECHILD);
}

/* ---- who cannot be asked is said ---- */

static void nvml_that_cannot_be_asked(void **state)
{
    int *const errors[] = {&pipe_error, &fork_error, &poll_error};
    static const int numbers[] = {EMFILE, EAGAIN, ENOMEM};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char words[200];
        (void)setup(NULL);
        check.have_driver = true;
        check.driver.device_count = 1;
        *errors[i] = numbers[i];
        vcap_check_nvml(&check);
        (void)snprintf(words, sizeof words,
                       "NVML could not be asked, for lack of a child to do it: %s",
                       strerror(numbers[i]));
        assert_string_equal(only_line()->id, "nvml-limit");
        assert_int_equal(only_line()->state, VCAP_CHECK_UNKNOWN);
        assert_string_equal(only_line()->text, words);
    }
    (void)setup(NULL);
    check.have_driver = true;
    check.driver.device_count = 1;
    check.pid = INT32_MAX; /* nobody */
    vcap_check_nvml(&check);
    assert_string_equal(only_line()->text,
                        "not asked: /proc/2147483647/cgroup: No such file or directory");
}

static void a_driver_that_cannot_be_asked(void **state)
{
    (void)state;
    fork_error = EAGAIN;
    vcap_check_ask_driver(&check);
    vcap_check_driver_lines(&check);
    assert_int_equal(only_line()->state, VCAP_CHECK_UNKNOWN);
    assert_non_null(
        strstr(only_line()->text, "the driver could not be asked, for lack of a child "));
    (void)setup(NULL);
    check.have_driver = true;
    check.driver.device_count = 1;
    check.config.toolkit_set = true;
    check.config.toolkit_bytes = 1 << 20;
    fork_error = EAGAIN;
    vcap_check_self_test(&check);
    assert_string_equal(only_line()->id, "self-test");
    assert_int_equal(only_line()->state, VCAP_CHECK_UNKNOWN);
    assert_non_null(strstr(only_line()->text, "not made: the driver could not be asked, for lack"));
}

/* ---- processes that do not answer ---- */

static void a_memory_map_that_does_not_answer(void **state)
{
    (void)state;
    check.self = false;
    child_errors[0] = -ETIMEDOUT;
    vcap_check_look(&check);
    assert_int_equal(questions, 1); /* the environment would take as long */
    assert_true(check.unseen);
    assert_int_equal(only_line()->state, VCAP_CHECK_UNKNOWN);
    assert_string_equal(only_line()->id, "process");
    assert_non_null(strstr(only_line()->text, "memory map and environment of process "));
    assert_non_null(
        strstr(only_line()->text,
               " cannot be looked at: it makes its readers wait (no answer within 3 s); "
               "its library, ledger, configuration and container are not known"));
    /* and nothing is said that would need it */
    vcap_check_library(&check);
    vcap_check_find_ledger(&check);
    vcap_check_ledger_lines(&check);
    vcap_check_others(&check);
    (void)only_line();
}

/* A busy machine: the end of a long memory map is come to all the same, however long it takes. */
static void a_long_memory_map_is_read_to_its_end(void **state)
{
    enum { PAGES = 4000, PAGE = 4096 };
    char path[] = "/tmp/libvramcap.so.XXXXXX", text[PAGE] = "";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text), sizeof text);
    /* every other page has another protection; the file is at the end, as far up as it goes */
    char *pages =
        mmap(NULL, (PAGES + 1) * (size_t)PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(pages, MAP_FAILED);
    for (size_t i = 0; i < PAGES; i += 2)
        assert_int_equal(mprotect(pages + i * PAGE, PAGE, PROT_NONE), 0);
    assert_ptr_not_equal(
        mmap(pages + PAGES * (size_t)PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0),
        MAP_FAILED);
    step_ns = 30000000;
    vcap_check_look(&check);
    step_ns = 0;
    (void)munmap(pages, (PAGES + 1) * (size_t)PAGE);
    (void)close(fd);
    (void)unlink(path);
    assert_int_equal(check.map.error, 0);
    assert_true(check.map.process.library);
}

static pid_t start_other(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            (void)pause();
    }
    return pid;
}

/* One that never answers is not among those that are said to be harmless. */
static void a_process_beside_it_that_does_not_answer(void **state)
{
    (void)state;
    vcap_check_look(&check);
    assert_int_equal(check.map.error, 0);
    pid_t other = start_other();
    struct vcap_processes all = {0};
    silent = other;
    while (!vcap_processes_scan(&all, UINT64_C(100000000)))
        continue;
    assert_int_equal(all.unanswered, 1);
    while (!vcap_processes_scan(&all, UINT64_C(100000000)))
        continue;
    assert_int_equal(all.unanswered, 1); /* of the last pass */
    vcap_check_others(&check);
    silent = 0;
    while (!vcap_processes_scan(&all, UINT64_C(100000000)))
        continue;
    size_t after = all.unanswered;
    vcap_processes_free(&all);
    vcap_probe_end();
    (void)kill(other, SIGKILL);
    (void)waitpid(other, NULL, 0);
    assert_int_equal(after, 0);
    for (uint32_t i = 0; i < check.count; i++)
        if (!strcmp(check.line[i].id, "unprotected") || !strcmp(check.line[i].id, "passive"))
            skip(); /* of this machine's, which says more */
    assert_string_equal(only_line()->id, "processes");
    assert_int_equal(only_line()->state, VCAP_CHECK_UNKNOWN);
    if (!strstr(only_line()->text, "not all of /proc could be looked at"))
        assert_string_equal(only_line()->text,
                            "1 process could not be looked at (they make their readers wait); none "
                            "of the others uses the driver without the ceiling");
}

static void hidden_processes_that_cannot_be_counted(void **state)
{
    (void)state;
    vcap_check_look(&check);
    child_errors[0] = -ETIMEDOUT;
    vcap_check_others(&check);
    for (uint32_t i = 0; i < check.count; i++)
        if (!strcmp(check.line[i].id, "unprotected") || !strcmp(check.line[i].id, "passive"))
            skip();
    assert_int_equal(only_line()->state, VCAP_CHECK_UNKNOWN);
    assert_string_equal(only_line()->text,
                        "not all of /proc could be looked at: some process makes "
                        "its readers wait");
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_becomes_of_a_question),
        TEST(nvml_that_cannot_be_asked),
        TEST(a_driver_that_cannot_be_asked),
        TEST(a_memory_map_that_does_not_answer),
        TEST(a_long_memory_map_is_read_to_its_end),
        TEST(a_process_beside_it_that_does_not_answer),
        TEST(hidden_processes_that_cannot_be_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
