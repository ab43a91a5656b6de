/*
 * Lines: where they go, what they look like, and what they must not do to the process.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/kernel.h"
#include "enforcer/log.h"

/* A directory of the test's own, and stdout and stderr of the process as files in it. */
static char folder[64];
static int saved_out, saved_err;

static const char *in_folder(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void redirect(int fd, const char *name)
{
    int file = open(in_folder(name), O_RDWR | O_CREAT | O_TRUNC, 0600);

    dup2(file, fd);
    close(file);
}

static const char *content(const char *name)
{
    static char text[65536];
    int fd = open(in_folder(name), O_RDONLY);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;

    if (fd >= 0)
        close(fd);
    text[length > 0 ? length : 0] = '\0';
    return text;
}

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/vramcap-log-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    fflush(NULL);
    saved_out = dup(STDOUT_FILENO);
    saved_err = dup(STDERR_FILENO);
    redirect(STDOUT_FILENO, "out");
    redirect(STDERR_FILENO, "err");
    vcap_log_setup(VCAP_LOG_WARN, NULL);
    return 0;
}

static int tear_down(void **state)
{
    static const char *const names[] = {"out", "err", "log", "fifo"};

    (void)state;
    fflush(NULL);
    dup2(saved_out, STDOUT_FILENO);
    dup2(saved_err, STDERR_FILENO);
    close(saved_out);
    close(saved_err);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unlink(in_folder(names[i]));
    return rmdir(folder);
}

static int open_descriptors(void)
{
    int count = 0;

    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void a_line_goes_to_stderr_and_nothing_to_stdout(void **state)
{
    (void)state;
    vcap_log(VCAP_LOG_WARN, "refused %s of %.1f MiB", "cuMemAlloc_v2", 1536.0);
    assert_string_equal(content("err"), "vramcap: refused cuMemAlloc_v2 of 1536.0 MiB\n");
    assert_string_equal(content("out"), "");
}

static void only_lines_up_to_the_level_are_written(void **state)
{
    (void)state;
    assert_true(vcap_log_wants(VCAP_LOG_ERROR));
    assert_true(vcap_log_wants(VCAP_LOG_WARN));
    assert_false(vcap_log_wants(VCAP_LOG_INFO));
    vcap_log(VCAP_LOG_INFO, "not this");
    vcap_log(VCAP_LOG_ERROR, "this");
    assert_string_equal(content("err"), "vramcap: this\n");
    vcap_log_setup(VCAP_LOG_ERROR, NULL);
    vcap_log(VCAP_LOG_WARN, "nor this");
    vcap_log_setup(VCAP_LOG_DEBUG, "");
    vcap_log(VCAP_LOG_DEBUG, "and this");
    assert_string_equal(content("err"), "vramcap: this\nvramcap: and this\n");
}

static void a_file_is_appended_to_and_not_held_open(void **state)
{
    char path[128];
    int before;

    (void)state;
    snprintf(path, sizeof(path), "%s", in_folder("log"));
    vcap_log_setup(VCAP_LOG_WARN, path);
    path[1] = 'x'; /* it was copied */
    before = open_descriptors();
    vcap_log(VCAP_LOG_WARN, "one");
    assert_int_equal(open_descriptors(), before);
    vcap_log(VCAP_LOG_WARN, "two");
    assert_string_equal(content("log"), "vramcap: one\nvramcap: two\n");
    assert_string_equal(content("err"), "");
    assert_string_equal(content("out"), "");
}

static void a_file_that_cannot_be_opened_gives_way_to_stderr(void **state)
{
    (void)state;
    vcap_log_setup(VCAP_LOG_WARN, "/nonexistent/folder/log");
    vcap_log(VCAP_LOG_WARN, "lost file");
    assert_string_equal(content("err"), "vramcap: lost file\n");
}

static void a_fifo_without_a_reader_does_not_hang_the_process(void **state)
{
    (void)state;
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    vcap_log_setup(VCAP_LOG_WARN, in_folder("fifo"));
    vcap_log(VCAP_LOG_WARN, "nobody reads");
    assert_string_equal(content("err"), "vramcap: nobody reads\n");
}

static void errno_is_kept_when_writing_works_and_when_it_fails(void **state)
{
    (void)state;
    errno = ENOTTY;
    vcap_log(VCAP_LOG_WARN, "works");
    assert_int_equal(errno, ENOTTY);
    vcap_log_setup(VCAP_LOG_WARN, "/nonexistent/folder/log");
    vcap_log(VCAP_LOG_WARN, "cannot open");
    assert_int_equal(errno, ENOTTY);
    close(STDERR_FILENO);
    vcap_log(VCAP_LOG_WARN, "cannot write");
    assert_int_equal(errno, ENOTTY);
}

static void a_long_line_is_cut_at_1000_bytes(void **state)
{
    char text[3000];
    const char *line;

    (void)state;
    memset(text, 'a', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    vcap_log(VCAP_LOG_WARN, "%s", text);
    line = content("err");
    assert_int_equal(strlen(line), 1000);
    assert_string_equal(line + 995, "a...\n");

    /* the longest that is not cut, and one byte more */
    redirect(STDERR_FILENO, "err");
    vcap_log(VCAP_LOG_WARN, "%.990s", text);
    assert_int_equal(strlen(content("err")), 1000);
    assert_string_equal(content("err") + 997, "aa\n");
    redirect(STDERR_FILENO, "err");
    vcap_log(VCAP_LOG_WARN, "%.991s", text);
    assert_int_equal(strlen(content("err")), 1000);
    assert_string_equal(content("err") + 995, "a...\n");
}

static void a_line_is_one_line_whatever_is_in_it(void **state)
{
    (void)state;
    vcap_log(VCAP_LOG_WARN, "ends in newlines\n\n");
    vcap_log(VCAP_LOG_WARN, "a\nvramcap: b\x1b[1m\x7f");
    vcap_log(VCAP_LOG_WARN, "%s", "");
    assert_string_equal(content("err"),
                        "vramcap: ends in newlines\nvramcap: a?vramcap: b?[1m?\nvramcap: \n");
}

static void a_reader_that_is_gone_kills_nobody(void **state)
{
    sigset_t pending, mask;
    int ends[2];

    (void)state;
    signal(SIGPIPE, SIG_DFL);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    close(ends[0]);
    vcap_log(VCAP_LOG_WARN, "nobody there");
    sigprocmask(SIG_BLOCK, NULL, &mask);
    sigpending(&pending);
    assert_false(sigismember(&pending, SIGPIPE));
    assert_false(sigismember(&mask, SIGPIPE));
    assert_false(sigismember(&mask, SIGXFSZ));
}

static void a_signal_that_was_pending_before_stays_pending(void **state)
{
    sigset_t blocked, pending;
    int ends[2];
    int number;

    (void)state;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGPIPE);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    raise(SIGPIPE);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    close(ends[0]);
    vcap_log(VCAP_LOG_WARN, "nobody there");
    sigpending(&pending);
    assert_true(sigismember(&pending, SIGPIPE));
    sigwait(&blocked, &number);
    sigprocmask(SIG_UNBLOCK, &blocked, NULL);
}

static void a_file_at_its_size_limit_kills_nobody(void **state)
{
    struct rlimit limit, none = {0, 0};

    (void)state;
    signal(SIGXFSZ, SIG_DFL);
    getrlimit(RLIMIT_FSIZE, &limit);
    none.rlim_max = limit.rlim_max;
    vcap_log_setup(VCAP_LOG_WARN, in_folder("log"));
    setrlimit(RLIMIT_FSIZE, &none);
    vcap_log(VCAP_LOG_WARN, "no room");
    setrlimit(RLIMIT_FSIZE, &limit);
    assert_string_equal(content("log"), "");
}

static void a_reader_that_does_not_read_does_not_hang_the_process(void **state)
{
    int ends[2];

    (void)state;
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    alarm(20);
    for (int i = 0; i < 20000; i++)
        vcap_log(VCAP_LOG_WARN, "line %d", i);
    alarm(0);
    close(ends[0]);
}

static void the_first_five_pass_and_then_one_a_second(void **state)
{
    struct vcap_log_limit limit = {0};
    uint32_t held = 77;

    (void)state;
    for (int i = 0; i < 5; i++) {
        held = 77;
        assert_true(vcap_log_allow(&limit, &held));
        assert_int_equal(held, 0);
    }
    held = 77;
    for (int i = 0; i < 100; i++)
        assert_false(vcap_log_allow(&limit, &held));
    assert_int_equal(held, 77);
    limit.next_ns -= UINT64_C(1000000000); /* a second goes by */
    assert_true(vcap_log_allow(&limit, &held));
    assert_int_equal(held, 100);
    assert_false(vcap_log_allow(&limit, &held));
    limit.next_ns -= UINT64_C(1000000000);
    assert_true(vcap_log_allow(&limit, &held));
    assert_int_equal(held, 1);
}

#define RACERS 2
#define ROUNDS 5000
#define CALLS 8

static struct vcap_log_limit shared_limits[ROUNDS];
static uint32_t shared_passed[ROUNDS], at_the_line[ROUNDS];

/* Both start each round at once: they spin, for waking up takes longer than the race. */
static void *race_for_every_limit(void *unused)
{
    uint32_t held;

    for (int round = 0; round < ROUNDS; round++) {
        __atomic_fetch_add(&at_the_line[round], 1, __ATOMIC_ACQ_REL);
        for (int spins = 0; __atomic_load_n(&at_the_line[round], __ATOMIC_ACQUIRE) < RACERS;
             spins++)
            if (spins > 1000)
                sched_yield();
        for (int i = 0; i < CALLS; i++)
            if (vcap_log_allow(&shared_limits[round], &held))
                __atomic_fetch_add(&shared_passed[round], 1, __ATOMIC_RELAXED);
    }
    return unused;
}

static void threads_that_race_pass_five_together(void **state)
{
    pthread_t threads[RACERS];

    (void)state;
    for (int i = 0; i < RACERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race_for_every_limit, NULL), 0);
    for (int i = 0; i < RACERS; i++)
        pthread_join(threads[i], NULL);
    for (int round = 0; round < ROUNDS; round++) {
        assert_int_equal(shared_passed[round], 5);
        assert_int_equal(shared_limits[round].held_back, RACERS * CALLS - 5);
    }
}

static void the_second_is_a_real_one(void **state)
{
    struct vcap_log_limit limit;
    uint64_t began;
    uint32_t held;
    bool early;

    (void)state;
    do { /* again where the machine stood still through the second */
        limit = (struct vcap_log_limit){0};
        began = vcap_clock_ns(CLOCK_MONOTONIC);
        for (int i = 0; i < 5; i++)
            assert_true(vcap_log_allow(&limit, &held));
        usleep(500000);
        early = vcap_log_allow(&limit, &held);
    } while (vcap_clock_ns(CLOCK_MONOTONIC) - began >= UINT64_C(1000000000));
    assert_false(early);
    usleep(700000);
    assert_true(vcap_log_allow(&limit, &held));
    assert_int_equal(held, 1);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_line_goes_to_stderr_and_nothing_to_stdout),
        TEST(only_lines_up_to_the_level_are_written),
        TEST(a_file_is_appended_to_and_not_held_open),
        TEST(a_file_that_cannot_be_opened_gives_way_to_stderr),
        TEST(a_fifo_without_a_reader_does_not_hang_the_process),
        TEST(errno_is_kept_when_writing_works_and_when_it_fails),
        TEST(a_long_line_is_cut_at_1000_bytes),
        TEST(a_line_is_one_line_whatever_is_in_it),
        TEST(a_reader_that_is_gone_kills_nobody),
        TEST(a_signal_that_was_pending_before_stays_pending),
        TEST(a_file_at_its_size_limit_kills_nobody),
        TEST(a_reader_that_does_not_read_does_not_hang_the_process),
        cmocka_unit_test(the_first_five_pass_and_then_one_a_second),
        cmocka_unit_test(threads_that_race_pass_five_together),
        cmocka_unit_test(the_second_is_a_real_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
