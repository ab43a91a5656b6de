/*
 * Calls that may not come back (enforcer/agent/probe.h), with calls that wait for this test.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/agent/probe.h"
#include "enforcer/kernel.h"

#define ME 1001

struct job {
    int number;
    bool waits;
};

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; /* held by the test: who waits, waits */
static unsigned undone;                                  /* written by the threads, atomically */
static pid_t last_thread; /* so it is, and so it may be left while a late one is under way */

/* Linked in front of the C library's (--wrap): what the clocks say, and how far ahead of the truth. */
static time_t ahead_s;
int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = __real_clock_gettime(clock, now);
    now->tv_sec += ahead_s;
    return result;
}

/* By number, for the processes of this test are none. */
static unsigned of_one_crowd = 1;
uint64_t __wrap_vcap_crowd_of(pid_t pid);

uint64_t __wrap_vcap_crowd_of(pid_t pid)
{
    return 1 + (unsigned)(pid - 1) / of_one_crowd;
}

static int work(void *argument)
{
    struct job *job = argument;
    __atomic_store_n(&last_thread, gettid(), __ATOMIC_RELAXED);
    if (job->waits) {
        (void)pthread_mutex_lock(&gate);
        (void)pthread_mutex_unlock(&gate);
    }
    job->number++;
    return job->number;
}

static void undo(void *argument)
{
    const struct job *job = argument;
    __atomic_add_fetch(&undone, job->number == 8 ? 1 : 1000, __ATOMIC_RELAXED);
}

static int ask(pid_t pid, bool waits)
{
    struct job job = {.number = 7, .waits = waits};
    int result = vcap_probe(pid, work, undo, &job, sizeof job);
    assert_int_equal(job.number, result < 0 ? 7 : 8); /* untouched where nothing came back */
    return result;
}

/* Those that were let go have come to their end. */
static void until_undone(unsigned wanted)
{
    for (int i = 0; i < 3000 && __atomic_load_n(&undone, __ATOMIC_RELAXED) != wanted; i++)
        (void)usleep(10000);
    assert_int_equal(__atomic_load_n(&undone, __ATOMIC_RELAXED), wanted);
}

/* Until the pid is asked again. */
static int until_asked(pid_t pid)
{
    int result = -ETIMEDOUT;
    for (int i = 0; i < 3000 && result < 0; i++) {
        result = ask(pid, false);
        if (result < 0)
            (void)usleep(10000);
    }
    return result;
}

static int setup(void **state)
{
    (void)state;
    __atomic_store_n(&undone, 0, __ATOMIC_RELAXED);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    vcap_probe_end();
    return 0;
}

static void a_call_is_made_in_one_thread_that_is_not_this(void **state)
{
    (void)state;
    assert_int_equal(until_asked(ME), 8);
    const pid_t first = __atomic_load_n(&last_thread, __ATOMIC_RELAXED);
    assert_int_not_equal(first, gettid());
    for (int i = 0; i < 100; i++)
        assert_int_equal(until_asked(ME), 8);
    /* on a busy machine one may have been late */
    if (__atomic_load_n(&undone, __ATOMIC_RELAXED) == 0)
        assert_int_equal(first, __atomic_load_n(&last_thread, __ATOMIC_RELAXED));
}

static void one_that_does_not_come_back_is_left_and_its_process_shunned(void **state)
{
    (void)state;
    (void)pthread_mutex_lock(&gate);
    assert_int_equal(ask(ME, true), -ETIMEDOUT);
    uint64_t before = vcap_clock_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(ask(ME, false), -ETIMEDOUT); /* at once: it is not even asked */
    /* a thousand times the wait would be minutes */
    assert_true(vcap_clock_ns(CLOCK_MONOTONIC) - before < UINT64_C(30000000000));
    assert_int_equal(ask(ME + 1, false), 8); /* others are */
    ahead_s = 86400; /* nor later: one that is asked again and again would be all that may hang */
    int later = ask(ME, false);
    ahead_s = 0;
    assert_int_equal(later, -ETIMEDOUT);
    (void)pthread_mutex_unlock(&gate);
    until_undone(1);                      /* what it got after all is given back */
    assert_int_equal(until_asked(ME), 8); /* and it is asked again */
}

static void a_crowd_has_a_share_of_the_places(void **state)
{
    (void)state;
    of_one_crowd = VCAP_PROBE_SHARE + 1; /* as many pids are of each */
    (void)pthread_mutex_lock(&gate);
    for (unsigned i = 0; i < VCAP_PROBE_SHARE; i++)
        assert_int_equal(ask((pid_t)i + 1, true), -ETIMEDOUT);
    assert_int_equal(ask(VCAP_PROBE_SHARE + 1, false), -EBUSY); /* whoever it is */
    assert_int_equal(ask(1, false), -ETIMEDOUT);
    const pid_t another = VCAP_PROBE_SHARE + 2;
    assert_int_equal(ask(another, false), 8);         /* others are asked */
    assert_int_equal(ask(another, true), -ETIMEDOUT); /* and may hang themselves */
    assert_int_equal(ask(another + 1, false), 8);     /* without a word about the first */
    (void)pthread_mutex_unlock(&gate);
    until_undone(VCAP_PROBE_SHARE + 1);
    for (unsigned i = 0; i < VCAP_PROBE_SHARE + 1;
         i++) /* what came back has given its place back */
        assert_int_equal(until_asked((pid_t)i + 1), 8);
}

static void when_too_many_hang_nobody_is_asked(void **state)
{
    (void)state;
    of_one_crowd = 1; /* a crowd of its own each */
    (void)pthread_mutex_lock(&gate);
    for (unsigned i = 0; i < VCAP_PROBE_HANGING; i++)
        assert_int_equal(ask((pid_t)(ME + i), true), -ETIMEDOUT);
    assert_int_equal(ask(ME + 999, false), -EBUSY);
    (void)pthread_mutex_unlock(&gate);
    until_undone(VCAP_PROBE_HANGING);
    assert_int_equal(until_asked(ME + 999), 8);
    for (unsigned i = 0; i < VCAP_PROBE_HANGING; i++)
        assert_int_equal(until_asked((pid_t)(ME + i)), 8);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_call_is_made_in_one_thread_that_is_not_this),
        TEST(one_that_does_not_come_back_is_left_and_its_process_shunned),
        TEST(a_crowd_has_a_share_of_the_places),
        TEST(when_too_many_hang_nobody_is_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
