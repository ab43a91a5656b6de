/*
 * The running agent and MPS: an outage that spans its own end and beginning, and what the settings of a
 * container's processes come to in the JSON and the log.  A script stands in for the control program.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/agent/running.h"
#include "tests/cli/ledger_image.h"

#define GPU0 "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
#define MPS_UP "vramcap_mps_up"

static struct running r;
static struct image image;
static char pipe_folder[128], command[256], nvml[160];

static const char *in_pipe(const char *name)
{
    static char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", pipe_folder, name);
    return path;
}

/* What the control program does from now on. */
static void mode(const char *text)
{
    char next[160];
    (void)snprintf(next, sizeof next, "%s", in_pipe("mode.next"));
    assert_int_equal(image_write(text, strlen(text), next), 0);
    assert_int_equal(rename(next, in_pipe("mode")), 0); /* never read half-written */
}

static unsigned lines_of(const char *name)
{
    unsigned n = 0;
    FILE *f = fopen(in_pipe(name), "r");
    for (int c = 0; f && (c = getc(f)) != EOF;)
        n += c == '\n';
    if (f)
        (void)fclose(f);
    return n;
}

/* Until the file has so many lines; what it has then. */
static unsigned until_lines(const char *name, unsigned wanted)
{
    for (int i = 0; i < 6000 && lines_of(name) < wanted; i++)
        (void)usleep(10000);
    return lines_of(name);
}

static int setup(void **state)
{
    (void)state;
    if (!running_setup(&r))
        return -1;
    (void)snprintf(pipe_folder, sizeof pipe_folder, "%s/mps", r.folder);
    (void)snprintf(command, sizeof command, "echo \"$VRAMCAP_MPS_REASON\" >>'%s/down'",
                   pipe_folder);
    (void)snprintf(nvml, sizeof nvml, "FAKE_NVML=%s/nvml", r.folder);
    if (mkdir(pipe_folder, 0755) != 0 || mkfifo(in_pipe("control"), 0600) != 0)
        return -1;
    mode("up\n");
    image_init(&image);
    image_gpu(&image, 0, 1024, VCAP_LF_SOURCE_ENV);
    image_process(&image, 1, 0, 100, "serve");
    return image_write(&image, sizeof image, running_ledger(&r, "web"));
}

static int teardown(void **state)
{
    (void)state;
    running_teardown(&r);
    return 0;
}

static void start(bool with_state)
{
    assert_true(
        running_start(&r, with_state, NULL,
                      RUNNING_ARGS("--mps-pipe", pipe_folder, "--mps-control", FAKE_MPS_CONTROL,
                                   "--mps-interval", "0.05", "--on-mps-down", command)));
}

/* ---- outages ---- */

static void an_outage_that_spans_a_restart_is_announced_once(void **state)
{
    (void)state;
    start(true);
    assert_true(running_until_metric(&r, MPS_UP, 1));
    mode("nobody\n");
    assert_int_equal(until_lines("down", 1), 1);
    assert_true(running_until_metric(&r, MPS_UP, 0));
    assert_int_equal(running_stop(&r, SIGKILL), 256 + SIGKILL);

    start(true); /* the same outage goes on */
    assert_true(running_until_metric(&r, MPS_UP, 0));
    const unsigned asked = lines_of("calls");
    assert_true(until_lines("calls", asked + 9) >= asked + 9); /* three rounds more */
    assert_int_equal(lines_of("down"), 1);
    assert_int_equal(running_lines(&r, "event=mps-down", ""), 1);
    assert_int_equal(running_lines(&r, "event=mps-recovered", ""), 0);

    mode("up\n"); /* and this agent sees it end */
    assert_true(running_until_line(&r, "event=mps-recovered", ""));
    assert_true(running_until_metric(&r, MPS_UP, 1));
    mode("crash\n"); /* the next one is another outage */
    assert_int_equal(until_lines("down", 2), 2);
    assert_int_equal(running_stop(&r, SIGTERM), 0);
    assert_int_equal(running_lines(&r, "event=mps-down", ""), 2);
}

static void a_recovery_while_no_agent_looked_is_noticed_by_the_next(void **state)
{
    (void)state;
    mode("nobody\n");
    start(true);
    assert_int_equal(until_lines("down", 1), 1);
    assert_int_equal(running_stop(&r, SIGTERM), 0);
    mode("up\n");
    start(true);
    assert_true(running_until_line(&r, "event=mps-recovered", ""));
    assert_int_equal(running_stop(&r, SIGKILL), 256 + SIGKILL);
    mode("nobody\n"); /* and the one after that knows that it had ended */
    start(true);
    assert_int_equal(until_lines("down", 2), 2);
    assert_int_equal(running_lines(&r, "event=mps-recovered", ""), 1);
}

static void without_a_state_file_every_agent_announces_what_it_finds(void **state)
{
    (void)state;
    mode("nobody\n");
    start(false);
    assert_int_equal(until_lines("down", 1), 1);
    assert_int_equal(running_stop(&r, SIGKILL), 256 + SIGKILL);
    start(false);
    assert_int_equal(until_lines("down", 2), 2);
}

/* ---- settings ---- */

static pid_t client(const char *limit)
{
    char pipe_variable[160], limit_variable[96];
    (void)snprintf(pipe_variable, sizeof pipe_variable, "CUDA_MPS_PIPE_DIRECTORY=%s", pipe_folder);
    (void)snprintf(limit_variable, sizeof limit_variable, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=%s",
                   limit);
    return running_client(running_ledger(&r, "web"), RUNNING_ARGS(pipe_variable, limit_variable,
                                                                  "NVIDIA_VISIBLE_DEVICES=all"));
}

static void end_client(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* The container's findings of that name about that process; -1: it was not looked at. */
static int findings(const char *name, pid_t pid, char *evidence, size_t size)
{
    json_t *c = running_container(&r, "web");
    const json_t *settings = json_object_get(c, "mps_settings"), *one;
    int found = json_is_object(settings) ? 0 : -1;
    size_t i;
    json_array_foreach(json_object_get(settings, "findings"), i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "finding")), name) != 0 ||
            json_integer_value(json_object_get(one, "host_pid")) != pid)
            continue;
        found++;
        (void)snprintf(evidence, size, "%s %s", json_string_value(json_object_get(one, "severity")),
                       json_string_value(json_object_get(one, "evidence")));
    }
    json_decref(c);
    return found;
}

static bool enforced_by(const char *what)
{
    json_t *c = running_container(&r, "web");
    const json_t *gpu = json_array_get(json_object_get(c, "gpus"), 0), *one;
    bool found = false;
    size_t i;
    json_array_foreach(json_object_get(gpu, "enforced_by"), i, one)
    {
        found = found || !strcmp(json_string_value(one), what);
    }
    json_decref(c);
    return found;
}

static bool until_enforced_by_mps(bool wanted)
{
    for (int i = 0; i < 1500; i++) {
        if (enforced_by("mps") == wanted)
            return true;
        (void)usleep(20000);
    }
    return false;
}

static bool until_finding(const char *name, pid_t pid, int wanted, char *evidence, size_t size)
{
    for (int i = 0; i < 1500; i++) {
        if (findings(name, pid, evidence, size) == wanted)
            return true;
        (void)usleep(20000);
    }
    return false;
}

static void start_with_driver(void)
{
    static const char text[] = "gpu " GPU0 " 17179869184 0\n";
    char path[96];
    (void)snprintf(path, sizeof path, "%s/nvml", r.folder);
    assert_int_equal(image_write(text, sizeof text - 1, path), 0);
    assert_true(
        running_start(&r, true, RUNNING_ARGS(nvml),
                      RUNNING_ARGS("--mps-pipe", pipe_folder, "--mps-control", FAKE_MPS_CONTROL,
                                   "--mps-interval", "0.05", "--scan-interval", "0.05", "--nvml",
                                   FAKE_NVML, "--nvml-interval", "0.05")));
}

static void settings_that_drop_every_limit_are_a_finding(void **state)
{
    (void)state;
    char evidence[300] = "", pid_text[32];
    start_with_driver();
    assert_int_equal(findings("", 0, evidence, sizeof evidence), -1); /* nobody lives there: null */
    pid_t pid = client("0=512M,1=512M");                              /* of one GPU */
    assert_true(pid > 0);
    assert_true(until_finding("entry_for_invisible_gpu", pid, 1, evidence, sizeof evidence));
    assert_int_equal(strncmp(evidence, "error ", 6), 0);
    assert_true(enforced_by("vramcap"));
    assert_false(enforced_by("mps"));
    (void)snprintf(pid_text, sizeof pid_text, "host_pid=%d ", (int)pid);
    assert_true(running_until_line(
        &r, "event=mps-setting container=web finding=entry_for_invisible_gpu severity=error",
        pid_text));
    const unsigned said = running_lines(&r, "finding=entry_for_invisible_gpu", "");
    (void)kill(r.pid, SIGHUP); /* looks again, and finds the same */
    assert_true(running_until_line(&r, "event=reload", ""));
    assert_int_equal(findings("entry_for_invisible_gpu", pid, evidence, sizeof evidence), 1);
    assert_int_equal(running_lines(&r, "finding=entry_for_invisible_gpu", ""), said);
    end_client(pid);
    pid = client("0=512M"); /* another process with better ones */
    assert_true(until_finding("limit_below_ceiling", pid, 1, evidence, sizeof evidence));
    assert_int_equal(findings("entry_for_invisible_gpu", pid, evidence, sizeof evidence), 0);
    end_client(pid);
}

static void a_limit_is_in_force_only_while_the_daemon_is_up(void **state)
{
    (void)state;
    start_with_driver();
    pid_t pid = client("0=512M");
    assert_true(pid > 0);
    assert_true(until_enforced_by_mps(true));
    mode("nobody\n");
    assert_true(running_until_metric(&r, MPS_UP, 0));
    assert_true(until_enforced_by_mps(false)); /* long before a minute is over */
    mode("up\n");
    assert_true(until_enforced_by_mps(true));
    end_client(pid);
    assert_true(until_enforced_by_mps(false)); /* nobody is a client any more */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    running_client_main(argc, argv);
    const struct CMUnitTest tests[] = {
        TEST(an_outage_that_spans_a_restart_is_announced_once),
        TEST(a_recovery_while_no_agent_looked_is_noticed_by_the_next),
        TEST(without_a_state_file_every_agent_announces_what_it_finds),
        TEST(settings_that_drop_every_limit_are_a_finding),
        TEST(a_limit_is_in_force_only_while_the_daemon_is_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
