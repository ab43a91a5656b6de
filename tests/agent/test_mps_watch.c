/*
 * The watch over the MPS control daemon, with a script as control program: answers, silence, rubbish,
 * death and return, and that nothing of it makes the loop wait.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/agent/mps_watch.h"

/*
 * The watch is told what time it is: here it is the time that has passed, plus what a test lets pass at
 * once.  So a try may take as long as a busy machine needs for it, and one that hangs costs no waiting.
 */
#define TRY_MS 60000
#define PATIENCE_NS UINT64_C(60000000000)
#define EVENTS 64

static char folder[64], path[160];
static struct {
    enum vcap_mps_event kind;
    char text[VCAP_MPS_TEXT];
} events[EVENTS];
static unsigned event_count;
static uint64_t longest_step_ns, passed_ns;

static void heard(void *arg, enum vcap_mps_event kind, const char *text)
{
    assert_ptr_equal(arg, folder);
    assert_true(event_count < EVENTS);
    events[event_count].kind = kind;
    (void)snprintf(events[event_count++].text, VCAP_MPS_TEXT, "%s", text);
}

static unsigned count(enum vcap_mps_event kind)
{
    unsigned n = 0;
    for (unsigned i = 0; i < event_count; i++)
        n += events[i].kind == kind;
    return n;
}

static uint64_t real_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void)
{
    return real_ns() + passed_ns;
}

static void let_pass(uint64_t ms)
{
    passed_ns += ms * 1000000u;
}

static const char *in_folder(const char *name)
{
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(in_folder(name), "w");
    assert_non_null(f);
    assert_true(fprintf(f, "%s\n", text) > 0);
    assert_int_equal(fclose(f), 0);
}

/* The file's text in a buffer that the next call uses again; "" if there is none. */
static const char *text_of(const char *name)
{
    static char text[4096];
    FILE *f = fopen(in_folder(name), "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = '\0';
    if (f)
        (void)fclose(f);
    return text;
}

static unsigned lines_of(const char *name)
{
    unsigned n = 0;
    for (const char *p = text_of(name); *p; p++)
        n += *p == '\n';
    return n;
}

static int setup(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%.40s/mps-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder) || mkfifo(in_folder("control"), 0600) != 0)
        return -1;
    write_text("mode", "up");
    event_count = 0;
    longest_step_ns = passed_ns = 0;
    return 0;
}

static int teardown(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static struct vcap_mps_watch *new_watch(const char *on_down, uint32_t timeout_ms, bool in_outage)
{
    struct vcap_mps_watch_config config = {
        .pipe_directory = folder,
        .program = FAKE_MPS_CONTROL,
        .on_down = on_down,
        .in_outage = in_outage,
        .timeout_ms = timeout_ms,
        .retry_ms = 10,
        .period_ms = 20,
        .event = heard,
        .arg = folder,
    };
    struct vcap_mps_watch *w = vcap_mps_watch_new(&config);
    assert_non_null(w);
    return w;
}

static void one_round(struct vcap_mps_watch *w, int at_most_ms)
{
    struct pollfd fds[VCAP_MPS_POLLFDS];
    int timeout_ms = at_most_ms;
    size_t n = vcap_mps_watch_pollfds(w, fds, VCAP_MPS_POLLFDS, now_ns(), &timeout_ms);
    assert_true(timeout_ms >= 0 && timeout_ms <= at_most_ms);
    (void)poll(fds, (nfds_t)n, timeout_ms);
    uint64_t before = real_ns();
    vcap_mps_watch_step(w, now_ns());
    uint64_t took = real_ns() - before;
    if (took > longest_step_ns)
        longest_step_ns = took;
}

/* Drives the watch until it is in that state. */
static void drive_to(struct vcap_mps_watch *w, enum vcap_mps_watch_state wanted)
{
    const uint64_t until = real_ns() + PATIENCE_NS;
    while (vcap_mps_watch_status(w)->state != wanted) {
        if (real_ns() > until)
            fail_msg("still %s (%s: %s), not %s",
                     vcap_mps_watch_state_name(vcap_mps_watch_status(w)->state),
                     vcap_mps_reason_name(vcap_mps_watch_status(w)->reason),
                     vcap_mps_watch_status(w)->detail, vcap_mps_watch_state_name(wanted));
        one_round(w, 50);
    }
}

static void drive_calls(struct vcap_mps_watch *w, unsigned more)
{
    const uint64_t until = real_ns() + PATIENCE_NS;
    const unsigned wanted = lines_of("calls") + more;
    while (lines_of("calls") < wanted && real_ns() < until)
        one_round(w, 50);
    assert_true(lines_of("calls") >= wanted);
}

static void drive_events(struct vcap_mps_watch *w, enum vcap_mps_event kind, unsigned wanted)
{
    const uint64_t until = real_ns() + PATIENCE_NS;
    while (count(kind) < wanted && real_ns() < until)
        one_round(w, 50);
    assert_int_equal(count(kind), wanted);
}

static void drive_lines(struct vcap_mps_watch *w, const char *name)
{
    const uint64_t until = real_ns() + PATIENCE_NS;
    while (lines_of(name) == 0 && real_ns() < until)
        one_round(w, 20);
    assert_int_equal(lines_of(name), 1);
}

static void a_daemon_that_answers_is_up_with_its_servers(void **state)
{
    (void)state;
    struct vcap_mps_watch *w = new_watch(NULL, TRY_MS, false);
    const struct vcap_mps_status *s = vcap_mps_watch_status(w);
    assert_int_equal(s->state, VCAP_MPS_UNKNOWN);
    drive_to(w, VCAP_MPS_UP);
    assert_int_equal(s->server_count, 2);
    assert_int_equal(s->servers[0], 4711);
    assert_int_equal(s->servers[1], 4712);
    assert_int_equal(s->reason, VCAP_MPS_OK);
    assert_string_equal(s->detail, "");
    assert_true(s->answered_ns > 0 && s->answer_took_ns > 0);
    assert_int_equal(count(VCAP_MPS_EVENT_UP), 1);
    write_text("mode", "empty");
    drive_calls(w, 3);
    assert_int_equal(s->state, VCAP_MPS_UP);
    assert_int_equal(s->server_count, 0);
    assert_int_equal(event_count, 1);
    vcap_mps_watch_free(w);
}

static void an_outage_runs_the_command_once_and_recovery_is_noticed(void **state)
{
    char command[400];
    (void)state;
    (void)snprintf(command, sizeof command,
                   "echo \"$VRAMCAP_MPS_REASON|$VRAMCAP_MPS_TRIES|$VRAMCAP_MPS_PIPE_DIRECTORY|"
                   "$VRAMCAP_MPS_DETAIL\" >>'%s/down'; exit 5",
                   folder);
    struct vcap_mps_watch *w = new_watch(command, TRY_MS, false);
    const struct vcap_mps_status *s = vcap_mps_watch_status(w);
    drive_to(w, VCAP_MPS_UP);
    write_text("mode", "nobody");
    drive_to(w, VCAP_MPS_DOWN);
    assert_int_equal(s->reason, VCAP_MPS_REFUSED);
    assert_int_equal(s->failed_tries, 3);
    drive_calls(w, 6); /* two more rounds of the same outage */
    drive_events(w, VCAP_MPS_EVENT_COMMAND_ENDED, 1);
    assert_int_equal(lines_of("down"), 1);
    char wanted[400];
    (void)snprintf(wanted, sizeof wanted,
                   "refused|3|%s|the control program ended with status 1 and said: Cannot find MPS "
                   "control daemon process\n",
                   folder);
    assert_string_equal(text_of("down"), wanted);
    assert_int_equal(count(VCAP_MPS_EVENT_DOWN), 1);
    assert_int_equal(s->outages, 1);
    assert_int_equal(s->commands, 1);

    write_text("mode", "up");
    drive_to(w, VCAP_MPS_UP);
    assert_int_equal(count(VCAP_MPS_EVENT_RECOVERED), 1);
    assert_int_equal(count(VCAP_MPS_EVENT_UP), 1);
    assert_int_equal(s->failed_tries, 0);

    write_text("mode", "crash");
    drive_to(w, VCAP_MPS_DOWN);
    drive_events(w, VCAP_MPS_EVENT_COMMAND_ENDED, 2);
    assert_int_equal(lines_of("down"), 2);
    assert_int_equal(s->outages, 2);
    vcap_mps_watch_free(w);
}

static void two_failed_tries_are_no_outage(void **state)
{
    (void)state;
    write_text("mode", "flaky");
    struct vcap_mps_watch *w = new_watch("exit 0", TRY_MS, false);
    drive_to(w, VCAP_MPS_UP);
    drive_calls(w, 9);
    assert_int_equal(vcap_mps_watch_status(w)->outages, 0);
    assert_int_equal(count(VCAP_MPS_EVENT_DOWN), 0);
    vcap_mps_watch_free(w);
}

static bool runs(long pid)
{
    char stat_path[64], text[512];
    (void)snprintf(stat_path, sizeof stat_path, "/proc/%ld/stat", pid);
    FILE *f = fopen(stat_path, "r");
    if (!f)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    return end && end[2] != 'Z' && end[2] != 'X';
}

static void a_daemon_that_hangs_is_down_and_the_loop_never_waits(void **state)
{
    long pids[2];
    (void)state;
    write_text("mode", "stubborn");
    struct vcap_mps_watch *w = new_watch(NULL, TRY_MS, false);
    const struct vcap_mps_status *s = vcap_mps_watch_status(w);
    for (unsigned failed = 0; failed < 3; failed++) {
        (void)unlink(in_folder("pids"));
        drive_lines(w, "pids"); /* it hangs, and its child too */
        assert_int_equal(sscanf(text_of("pids"), "%ld %ld", &pids[0], &pids[1]), 2);
        assert_int_equal(s->failed_tries, failed);
        let_pass(TRY_MS - 1000);
        one_round(w, 0); /* a moment before its time is over */
        assert_int_equal(s->failed_tries, failed);
        let_pass(1000);
        one_round(w, 0);
        assert_int_equal(s->failed_tries, failed + 1);
        const uint64_t until = real_ns() + PATIENCE_NS;
        while ((runs(pids[0]) || runs(pids[1])) && real_ns() < until)
            (void)poll(NULL, 0, 5);
        assert_false(runs(pids[0]));
        assert_false(runs(pids[1]));
    }
    assert_int_equal(s->state, VCAP_MPS_DOWN);
    assert_int_equal(s->reason, VCAP_MPS_TIMEOUT);
    assert_non_null(strstr(events[0].text, "60000 ms"));
    if (longest_step_ns > UINT64_C(20000000000)) /* what hangs would be waited for for ever */
        fail_msg("a step took %llu ms", (unsigned long long)(longest_step_ns / 1000000));
    write_text("mode", "up");
    drive_to(w, VCAP_MPS_UP);
    assert_int_equal(count(VCAP_MPS_EVENT_RECOVERED), 1);
    vcap_mps_watch_free(w);
}

static void what_is_no_list_of_servers_is_no_answer(void **state)
{
    static const char *const modes[] = {"polite", "flood"};
    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        write_text("mode", modes[i]);
        struct vcap_mps_watch *w = new_watch(NULL, TRY_MS, false);
        const struct vcap_mps_status *s = vcap_mps_watch_status(w);
        const uint64_t until = real_ns() + PATIENCE_NS;
        while (s->failed_tries == 0 && real_ns() < until)
            one_round(w, 50);
        assert_int_equal(s->reason,
                         VCAP_MPS_GARBLED); /* one that takes long to die spoils the next */
        drive_to(w, VCAP_MPS_DOWN);
        vcap_mps_watch_free(w);
    }
    assert_non_null(strstr(events[0].text, "Cannot find MPS control daemon process"));
}

static void without_a_control_program_nothing_is_said_about_the_daemon(void **state)
{
    (void)state;
    struct vcap_mps_watch_config config = {.pipe_directory = folder,
                                           .program = "/nowhere/nvidia-cuda-mps-control",
                                           .on_down = "exit 0",
                                           .period_ms = 1,
                                           .event = heard,
                                           .arg = folder};
    struct vcap_mps_watch *w = vcap_mps_watch_new(&config);
    for (int i = 0; i < 20; i++)
        one_round(w, 20);
    assert_int_equal(vcap_mps_watch_status(w)->state, VCAP_MPS_UNKNOWN);
    assert_int_equal(vcap_mps_watch_status(w)->reason, VCAP_MPS_NO_PROGRAM);
    assert_int_equal(count(VCAP_MPS_EVENT_CANNOT_ASK), 1);
    assert_int_equal(event_count, 1);
    vcap_mps_watch_free(w);
}

static void a_pipe_directory_that_never_was_is_absent_and_one_that_went_is_an_outage(void **state)
{
    char missing[96];
    (void)state;
    (void)snprintf(missing, sizeof missing, "%s/sub", folder);
    struct vcap_mps_watch_config config = {.pipe_directory = missing,
                                           .program = FAKE_MPS_CONTROL,
                                           .timeout_ms = TRY_MS,
                                           .retry_ms = 5,
                                           .period_ms = 5,
                                           .event = heard,
                                           .arg = folder};
    struct vcap_mps_watch *w = vcap_mps_watch_new(&config);
    for (int i = 0; i < 10; i++)
        one_round(w, 20);
    assert_int_equal(vcap_mps_watch_status(w)->state, VCAP_MPS_ABSENT);
    assert_int_equal(event_count, 0);

    assert_int_equal(mkdir(missing, 0700), 0); /* there now, but no control pipe in it */
    drive_to(w, VCAP_MPS_DOWN);
    assert_int_equal(vcap_mps_watch_status(w)->reason, VCAP_MPS_NO_CONTROL);
    write_text("sub/control", "");
    write_text("sub/mode", "up");
    drive_to(w, VCAP_MPS_UP);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r '%s'", missing);
    assert_int_equal(system(command), 0);
    drive_to(w, VCAP_MPS_DOWN);
    assert_int_equal(vcap_mps_watch_status(w)->reason, VCAP_MPS_NO_PIPE);
    assert_int_equal(vcap_mps_watch_status(w)->outages, 2);
    vcap_mps_watch_free(w);

    config.required = true;
    w = vcap_mps_watch_new(&config);
    drive_to(w, VCAP_MPS_DOWN);
    vcap_mps_watch_free(w);
}

static void an_outage_that_the_last_agent_saw_is_not_announced_again(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof command, "echo down >>'%s/down'", folder);
    write_text("mode", "nobody");
    struct vcap_mps_watch *w = new_watch(command, TRY_MS, true);
    drive_to(w, VCAP_MPS_DOWN);
    drive_calls(w, 4);
    assert_int_equal(event_count, 0);
    assert_int_equal(lines_of("down"), 0);
    write_text("mode", "up");
    drive_to(w, VCAP_MPS_UP);
    assert_int_equal(count(VCAP_MPS_EVENT_RECOVERED), 1);
    vcap_mps_watch_free(w);
}

static void a_command_that_hangs_holds_nothing_up_and_is_not_started_twice(void **state)
{
    (void)state;
    write_text("mode", "nobody");
    char command[200];
    (void)snprintf(command, sizeof command, "echo $$ >>'%s/down'; exec sleep 1000", folder);
    struct vcap_mps_watch *w = new_watch(command, TRY_MS, false);
    drive_to(w, VCAP_MPS_DOWN);
    write_text("mode", "up");
    drive_to(w, VCAP_MPS_UP);
    write_text("mode", "nobody");
    drive_to(w, VCAP_MPS_DOWN);
    assert_int_equal(vcap_mps_watch_status(w)->outages, 2);
    assert_int_equal(vcap_mps_watch_status(w)->commands, 1);
    const char *last = events[event_count - 1].text;
    assert_non_null(strstr(last, "still runs"));
    drive_lines(w, "down");
    vcap_mps_watch_free(w);
    long pid = strtol(text_of("down"), NULL, 10);
    assert_true(pid > 1 && runs(pid)); /* it goes on without the watch */
    assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
}

static void nothing_is_preloaded_into_the_control_program(void **state)
{
    (void)state;
    assert_int_equal(setenv("LD_PRELOAD", "libvramcap-that-is-nowhere.so", 1), 0);
    struct vcap_mps_watch *w = new_watch(NULL, TRY_MS, false);
    drive_to(w, VCAP_MPS_UP);
    assert_int_equal(unsetenv("LD_PRELOAD"), 0);
    assert_string_equal(text_of("calls"), "get_server_list preload=none\n");
    vcap_mps_watch_free(w);
}

static unsigned open_descriptors(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void descriptors_and_children_are_given_back(void **state)
{
    (void)state;
    const unsigned before = open_descriptors();
    for (int i = 0; i < 20; i++) {
        write_text("mode", i % 2 ? "up" : "hang");
        struct vcap_mps_watch *w = new_watch(NULL, 150, false);
        for (int k = 0; k < 4; k++)
            one_round(w, 20);
        vcap_mps_watch_free(w);
    }
    assert_int_equal(open_descriptors(), before);
}

/* ---- with the stand-in for the daemon and its command (tests/sim/mps_control.c) ---- */

static pid_t start_daemon(const char *directory)
{
    int ready;
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)setenv("CUDA_MPS_PIPE_DIRECTORY", directory, 1);
        (void)setenv("CUDA_MPS_LOG_DIRECTORY", directory, 1);
        (void)setenv("VRAMCAP_SIM_STATE", in_folder("sim-state"), 1);
        (void)execl(SIM_MPS_CONTROL, "nvidia-cuda-mps-control", "-f", (char *)NULL);
        _exit(9);
    }
    (void)snprintf(path, sizeof path, "%s/control", directory);
    for (ready = 0; ready < 6000 && access(path, F_OK) != 0; ready++)
        (void)poll(NULL, 0, 10);
    assert_true(ready < 6000);
    return pid;
}

static void a_daemon_that_hangs_dies_and_comes_back_is_seen(void **state)
{
    char directory[96];
    (void)state;
    (void)snprintf(directory, sizeof directory, "%s/mps", folder);
    assert_int_equal(mkdir(directory, 0755), 0);
    assert_int_equal(setenv("VRAMCAP_SIM_STATE", in_folder("sim-state"), 1), 0);
    pid_t daemon = start_daemon(directory);
    struct vcap_mps_watch_config config = {.pipe_directory = directory,
                                           .program = SIM_MPS_CONTROL,
                                           .timeout_ms = TRY_MS,
                                           .retry_ms = 10,
                                           .period_ms = 20,
                                           .event = heard,
                                           .arg = folder};
    struct vcap_mps_watch *w = vcap_mps_watch_new(&config);
    const struct vcap_mps_status *s = vcap_mps_watch_status(w);
    drive_to(w, VCAP_MPS_UP);
    assert_int_equal(s->server_count, 0); /* the first client starts one */

    write_text("mps/sim_behaviour", "hang");
    const uint64_t until = real_ns() + PATIENCE_NS;
    while (s->state != VCAP_MPS_DOWN && real_ns() < until) {
        one_round(w, 20);
        let_pass(s->state == VCAP_MPS_UP ? TRY_MS / 2 : 0);
    }
    assert_int_equal(s->state, VCAP_MPS_DOWN);
    assert_int_equal(s->reason, VCAP_MPS_TIMEOUT);
    write_text("mps/sim_behaviour", "answer");
    drive_to(w, VCAP_MPS_UP);
    assert_int_equal(count(VCAP_MPS_EVENT_RECOVERED), 1);

    assert_int_equal(kill(daemon, SIGKILL), 0);
    assert_int_equal(waitpid(daemon, NULL, 0), daemon);
    drive_to(w, VCAP_MPS_DOWN);
    assert_int_equal(s->reason, VCAP_MPS_REFUSED); /* its socket is still there */
    assert_non_null(strstr(s->detail, "Cannot find MPS control daemon process"));
    daemon = start_daemon(directory);
    drive_to(w, VCAP_MPS_UP);
    assert_int_equal(count(VCAP_MPS_EVENT_RECOVERED), 2);
    assert_int_equal(s->outages, 2);
    vcap_mps_watch_free(w);
    assert_int_equal(kill(daemon, SIGTERM), 0);
    assert_int_equal(waitpid(daemon, NULL, 0), daemon);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(a_daemon_that_answers_is_up_with_its_servers),
        TEST(an_outage_runs_the_command_once_and_recovery_is_noticed),
        TEST(two_failed_tries_are_no_outage),
        TEST(a_daemon_that_hangs_is_down_and_the_loop_never_waits),
        TEST(what_is_no_list_of_servers_is_no_answer),
        TEST(without_a_control_program_nothing_is_said_about_the_daemon),
        TEST(a_pipe_directory_that_never_was_is_absent_and_one_that_went_is_an_outage),
        TEST(an_outage_that_the_last_agent_saw_is_not_announced_again),
        TEST(a_command_that_hangs_holds_nothing_up_and_is_not_started_twice),
        TEST(nothing_is_preloaded_into_the_control_program),
        TEST(descriptors_and_children_are_given_back),
        TEST(a_daemon_that_hangs_dies_and_comes_back_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
