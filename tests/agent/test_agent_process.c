/*
 * The running agent among processes that mean it harm: those that make their readers wait, that vanish, that
 * say they are one, and containers that map more ledgers than one can have.
 */
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/agent/hanging.h"
#include "tests/agent/running.h"
#include "tests/cli/hostile_files.h"
#include "tests/cli/ledger_image.h"
#include "tests/support/skip.h"

#define PEAK (HOSTILE_PEAK_MIB * (double)IMAGE_MIB)

static struct running r;
static struct image image;

static int setup(void **state)
{
    (void)state;
    hostile_good(&image);
    return running_setup(&r) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    running_teardown(&r);
    return 0;
}

static void put(const char *name)
{
    assert_true(running_put(&r, name, &image));
}

static const char *state_of(const char *label)
{
    static char text[32];
    json_t *c = running_container(&r, label);
    (void)snprintf(text, sizeof text, "%s",
                   c ? json_string_value(json_object_get(c, "state")) : "not there");
    json_decref(c);
    return text;
}

static bool until_state(const char *label, const char *wanted)
{
    for (int i = 0; i < 1500; i++) {
        if (!strcmp(state_of(label), wanted))
            return true;
        (void)usleep(20000);
    }
    (void)fprintf(stderr, "%s is %s, not %s\n", label, state_of(label), wanted);
    return false;
}

/* Before and after it begins to: with a ledger that nothing but it leads to, and without one. */
static void a_process_that_makes_its_readers_wait_stops_nobody_else(void **state)
{
    (void)state;
    struct hanging h;
    struct stat st;
    char hidden[128], label[64], command[600];
    (void)snprintf(hidden, sizeof hidden, "%s/hidden", r.folder);
    for (int with_ledger = 0; with_ledger < 2; with_ledger++) {
        image.gpus[0].refusals = 9;
        image.header.created_ns++;
        put("web");
        assert_int_equal(image_write(&image, sizeof image, hidden), 0);
        assert_int_equal(stat(hidden, &st), 0);
        (void)snprintf(label, sizeof label, "ledger-%llu", (unsigned long long)st.st_ino);
        int status = hanging_start(r.folder, with_ledger ? hidden : NULL, &h);
        if (status == 1)
            SKIP_BECAUSE("FUSE cannot be mounted here");
        assert_int_equal(status, 0);
        if (with_ledger) { /* else it hangs before the agent has ever seen it */
            assert_true(running_start(&r, false, NULL, RUNNING_ARGS("--scan-interval", "0.05")));
            assert_true(until_state(label, "ok"));
        }
        if (hanging_go(&h) != 0) {
            hanging_stop(&h);
            SKIP_BECAUSE("this kernel makes nobody wait");
        }
        if (!with_ledger)
            assert_true(running_start(&r, false, NULL, RUNNING_ARGS("--scan-interval", "0.05")));
        for (unsigned n = 10; n < 15; n++) { /* others are read, round after round */
            image.gpus[0].refusals = n;
            image.header.created_ns++;
            double before = running_value(&r, "vramcap_refusals_total", "web");
            put("web");
            assert_true(running_until(&r, "vramcap_refusals_total", "web", before + n));
        }
        if (with_ledger) {
            assert_true(until_state(label, "unreadable"));
            assert_int_equal(running_lines(&r, "event=ledger-unreadable", "wait"), 1);
        }
        (void)kill(r.pid, SIGHUP); /* a look at everything, which is patient */
        assert_true(running_until_line(&r, "event=reload", ""));
        assert_int_equal(running_get(&r, "/v1/containers"), 200);
        assert_int_equal(running_get(&r, "/healthz"), 200);
        /* a leak detector cannot stop the thread that hangs */
        (void)snprintf(command, sizeof command,
                       "ASAN_OPTIONS=detect_leaks=0 timeout 60 '%s' --once --nvml none "
                       "--ledger-dir '%s' >/dev/null 2>&1",
                       VRAMCAP_AGENT, r.ledgers);
        int once = system(command);
        hanging_stop(&h);
        assert_int_equal(WEXITSTATUS(once) & ~1, 0);
        if (with_ledger) /* and is gone with it */
            assert_true(running_until(&r, "vramcap_ceiling_bytes", label, -1));
        assert_int_equal(running_stop(&r, SIGTERM), 0);
    }
}

/* Thousands of processes that begin and end while /proc is gone through, with all that it looks for. */
static void processes_that_vanish_are_no_trouble(void **state)
{
    (void)state;
    char hidden[128];
    (void)snprintf(hidden, sizeof hidden, "%s/hidden", r.folder);
    assert_int_equal(image_write(&image, sizeof image, hidden), 0);
    put("web");
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        int fd = open(hidden, O_RDWR | O_CLOEXEC);
        (void)mmap(NULL, sizeof image, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        (void)mmap(NULL, 4096, PROT_NONE, MAP_SHARED, fd, 0);
        for (;;) { /* each child has it mapped too, for a moment */
            pid_t child = fork();
            if (child == 0)
                _exit(0);
            (void)waitpid(child, NULL, 0);
        }
    }
    assert_true(running_start(&r, true, NULL, RUNNING_ARGS("--scan-interval", "0.05")));
    for (int i = 0; i < 20; i++) {
        assert_int_equal(running_get(&r, "/v1/containers"), 200);
        assert_true(running_value(&r, "vramcap_peak_bytes", "web") == PEAK);
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    assert_int_equal(running_lines(&r, "event=ledger-untrusted container=ledger-", "hidden"), 0);
    assert_int_equal(running_stop(&r, SIGTERM), 0);
}

/* Two slots that both say they are one process: its number is the name of one series only. */
static void two_slots_of_one_process_are_two_series(void **state)
{
    (void)state;
    put("web");
    pid_t pid = running_client(running_ledger(&r, "web"), NULL);
    assert_true(pid > 0);
    int fd = open(running_ledger(&r, "web"), O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &image, sizeof image, 0), sizeof image);
    for (uint32_t s = 3; s < 6; s++) {
        image_process(&image, s, 0, 10, "again");
        image.slots[s].pid = image.slots[1].pid;
        image.slots[s].pidns = image.slots[1].pidns;
    }
    assert_int_equal(pwrite(fd, &image, sizeof image, 0), sizeof image);
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = VCAP_LF_LOCK_SLOT + 3, .l_len = 3};
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), 0);
    assert_true(running_start(&r, true, NULL, RUNNING_ARGS("--scan-interval", "0.05")));
    char why[256];
    if (!running_sound(&r, why, sizeof why))
        fail_msg("%s", why);
    unsigned series = 0;
    for (const char *at = r.body;
         (at = strstr(at, "\nvramcap_process_charged_bytes{container=\"web\",")); at++)
        series++;
    assert_int_equal(series, 4);
    (void)close(fd);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

/* One process in a mount namespace of its own that maps ledgers as the library does, file after file. */
static pid_t map_many(const char *folder, int count)
{
    int ready[2];
    char byte;
    if (pipe(ready) != 0)
        return -1;
    pid_t pid = fork();
    for (int child = 0; pid == 0 && child < count / 4; child++) { /* four a process are looked at */
        if (child == 0 && unshare(CLONE_NEWNS) != 0)
            _exit(77);
        pid_t more = fork();
        if (more != 0)
            continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < 4; i++) {
            char path[256];
            (void)snprintf(path, sizeof path, "%s/many-%d", folder, child * 4 + i);
            (void)image_write(&image, sizeof image, path);
            int fd = open(path, O_RDWR | O_CLOEXEC);
            if (mmap(NULL, sizeof image, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ||
                mmap(NULL, 4096, PROT_NONE, MAP_SHARED, fd, 0) == MAP_FAILED)
                _exit(1);
        }
        (void)!write(ready[1], "x", 1);
        for (;;)
            (void)pause();
    }
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            (void)pause();
    }
    (void)close(ready[1]);
    for (int i = 0; i < count / 4; i++)
        if (read(ready[0], &byte, 1) != 1)
            pid = -1;
    (void)close(ready[0]);
    return pid;
}

static void one_container_cannot_take_the_places_of_all(void **state)
{
    (void)state;
    if (geteuid() != 0)
        SKIP_BECAUSE("needs root, for a mount namespace");
    pid_t pid = map_many(r.folder, 40);
    assert_true(pid > 0);
    put("web");
    assert_true(running_start(&r, true, NULL, RUNNING_ARGS("--scan-interval", "0.05")));
    json_t *all = running_json(&r), *one;
    size_t i, found = 0;
    json_array_foreach(json_object_get(all, "containers"), i, one)
    {
        const char *ledger = json_string_value(json_object_get(one, "ledger"));
        found += ledger && !strncmp(ledger, "many-", 5);
    }
    json_decref(all);
    assert_int_equal(found, 8);
    assert_int_equal(running_lines(&r, "event=ledgers", "8 of a container"), 1);
    assert_true(running_value(&r, "vramcap_peak_bytes", "web") == PEAK);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    running_client_main(argc, argv);
    hanging_main(argc, argv);
    const struct CMUnitTest tests[] = {
        TEST(a_process_that_makes_its_readers_wait_stops_nobody_else),
        TEST(processes_that_vanish_are_no_trouble),
        TEST(two_slots_of_one_process_are_two_series),
        TEST(one_container_cannot_take_the_places_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
