/*
 * `vramcap dump`: table and JSON of ledgers made by hand, with living owners simulated by their
 * locks; untrusted files; --watch.
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/cli/hostile_files.h"
#include "tests/cli/ledger_image.h"
#include "tests/cli/tool.h"

static struct tool t;
static struct image image;
static char folder[64], path[128];
static int lock = -1;

/* GPU 0: alive 1000 + gone 500 of 4096, GPU 1: no ceiling, GPU 2: over. */
static int setup(void **state)
{
    (void)state;
    if (!image_folder(folder))
        return -1;
    (void)snprintf(path, sizeof path, "%s/ledger", folder);
    image_init(&image);
    image_gpu(&image, 0, 4096, VCAP_LF_SOURCE_ENV);
    image_gpu(&image, 1, UINT64_MAX, VCAP_LF_SOURCE_NONE);
    image_gpu(&image, 2, 100, VCAP_LF_SOURCE_HOST);
    image.gpus[0].peak_bytes = 1700 * IMAGE_MIB;
    image.gpus[0].refusals = 9;
    image_process(&image, 1, 0, 1000, "serve");
    image_process(&image, 1, 2, 150, "serve");
    image.cells[1][2].overhead_bytes = 30 * IMAGE_MIB;
    image_process(&image, 5, 0, 500, "worker");
    (void)image_event(&image, VCAP_LF_EVENT_GAP, "cuFancyAlloc");
    (void)image_event(&image, VCAP_LF_EVENT_GAP, "cuFancyAlloc");
    image.slots[1].gaps = 1;
    if (image_write(&image, sizeof image, path) != 0)
        return -1;
    lock = image_live(path, 1);
    return lock < 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    (void)close(lock);
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* The line of the output that holds text, blanks squeezed. */
static const char *line_with(const char *text)
{
    static char line[512];
    size_t n = 0;
    const char *at = strstr(t.out, text);
    if (!at)
        fail_msg("no '%s' in:\n%s", text, t.out);
    while (at > t.out && at[-1] != '\n')
        at--;
    for (; *at && *at != '\n' && n + 1 < sizeof line; at++)
        if (*at != ' ' || (n > 0 && line[n - 1] != ' '))
            line[n++] = *at;
    line[n] = '\0';
    return line;
}

static void the_table_shows_gpus_and_processes(void **state)
{
    (void)state;
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("dump", path)), 0);
    assert_string_equal(t.err, "");
    assert_string_equal(line_with("GPU-0001"),
                        "0 GPU-00010203-0405-0607-0809-0a0b0c0d0e0f 4096.0 env "
                        "1000.0 - 3096.0 1700.0 9");
    assert_string_equal(line_with("GPU-1011"),
                        "1 GPU-10111213-1415-1617-1819-1a1b1c1d1e1f none - 0.0 "
                        "0.0 - 0.0 0");
    assert_string_equal(line_with("GPU-2021"),
                        "2 GPU-20212223-2425-2627-2829-2a2b2c2d2e2f 100.0 host "
                        "120.0 30.0 0.0 0.0 0 OVER");
    assert_string_equal(line_with("serve"), "101 serve alive enforce 0 1000.0 - 1000.0 0.0");
    assert_string_equal(line_with("30.0   150.0"),
                        "101 serve alive enforce 2 120.0 30.0 150.0 0.0");
    assert_string_equal(line_with("worker"), "105 worker gone enforce 0 500.0 - 500.0 0.0");
    assert_string_equal(line_with("of gone"),
                        "GPU 0: 500.0 MiB of gone processes, free for the next that needs room");
    assert_string_equal(line_with("not accounted"), "not accounted, but used: cuFancyAlloc");
    assert_string_equal(line_with("events lost"), "events lost: 0");
    assert_null(strstr(t.out, "\033"));
    assert_null(strstr(t.out, " \n"));
}

static void has_exactly(const json_t *object, const char *keys)
{
    char have[512] = "";
    const char *key;
    json_t *value;
    assert_true(json_is_object(object));
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        (void)snprintf(have + strlen(have), sizeof have - strlen(have), "%s%s", *have ? " " : "",
                       key);
    }
    assert_string_equal(have, keys);
}

static json_t *get(const json_t *object, const char *key)
{
    return json_object_get(object, key);
}

static void is_number(const json_t *object, const char *key, uint64_t value)
{
    if (!json_is_integer(get(object, key)) ||
        (uint64_t)json_integer_value(get(object, key)) != value)
        fail_msg("%s is not %llu", key, (unsigned long long)value);
}

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json)
        fail_msg("line %d: %s in:\n%s", error.line, error.text, text);
    return json;
}

static void the_json_has_exactly_the_promised_keys(void **state)
{
    (void)state;
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("dump", "--json", path)), 0);
    json_t *json = parse(t.out);
    has_exactly(json, "version container gpus processes events_lost host_made audit pass_through "
                      "default_ceiling_bytes near_percent host_changes anomalies");
    is_number(json, "version", 1);
    is_number(json, "events_lost", 0);
    assert_true(json_is_null(get(json, "container")));
    const json_t *gpus = get(json, "gpus"), *processes = get(json, "processes");
    assert_int_equal(json_array_size(gpus), 3);
    const json_t *g = json_array_get(gpus, 0);
    has_exactly(g,
                "uuid index ceiling_bytes ceiling_source charged_bytes overhead_bytes free_bytes "
                "peak_bytes refusals over card_bytes refused_bytes audit_refusals device_full "
                "over_peak_bytes near sources");
    is_number(g, "ceiling_bytes", 4096 * IMAGE_MIB);
    is_number(g, "charged_bytes", 1000 * IMAGE_MIB);
    is_number(g, "free_bytes", 3096 * IMAGE_MIB);
    is_number(g, "refusals", 9);
    assert_true(json_is_null(get(g, "overhead_bytes")));
    assert_true(json_is_false(get(g, "over")));
    assert_string_equal(json_string_value(get(g, "ceiling_source")), "env");
    g = json_array_get(gpus, 1);
    assert_true(json_is_null(get(g, "ceiling_bytes")));
    assert_true(json_is_null(get(g, "free_bytes")));
    assert_string_equal(json_string_value(get(g, "ceiling_source")), "none");
    g = json_array_get(gpus, 2);
    assert_true(json_is_true(get(g, "over")));
    is_number(g, "free_bytes", 0);
    is_number(g, "overhead_bytes", 30 * IMAGE_MIB);
    assert_int_equal(json_array_size(processes), 2);
    const json_t *p = json_array_get(processes, 0);
    has_exactly(p, "pid host_pid command state gpus mode uid refusals anomalies gaps fault");
    is_number(p, "pid", 101);
    assert_true(json_is_null(get(p, "host_pid")));
    assert_string_equal(json_string_value(get(p, "command")), "serve");
    assert_string_equal(json_string_value(get(p, "state")), "alive");
    assert_int_equal(json_array_size(get(p, "gpus")), 2);
    const json_t *c = json_array_get(get(p, "gpus"), 1);
    has_exactly(c, "uuid charged_bytes imported_bytes overhead_bytes peak_bytes own_ceiling_bytes");
    is_number(c, "overhead_bytes", 30 * IMAGE_MIB);
    assert_string_equal(json_string_value(get(json_array_get(processes, 1), "state")), "gone");
    json_decref(json);
}

static void hostile_contents_still_make_valid_json(void **state)
{
    (void)state;
    memset(image.slots[1].command, '\xff', sizeof image.slots[1].command);
    memset(image.header.container, '"', 3);
    image.gpus[0].refusals = UINT64_MAX;
    image.gpus[0].index = UINT32_MAX;
    image.header.event_next = UINT64_MAX;
    assert_int_equal(image_write(&image, sizeof image, path), 0);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("dump", "--json", path)), 0);
    json_t *json = parse(t.out);
    assert_string_equal(json_string_value(get(json, "container")), "\"\"\"");
    is_number(json_array_get(get(json, "gpus"), 0), "refusals", INT64_MAX);
    json_decref(json);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("dump", path)), 0);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("events", path)), 0);
}

/* A process in a PID namespace of its own: pid 1 there.  Returns its pid here, or 0 without the
 * right. */
static pid_t start_in_namespace(void)
{
    int ready[2];
    if (pipe(ready) != 0)
        return 0;
    pid_t outer = fork();
    if (outer == 0) {
        if (unshare((getuid() ? CLONE_NEWUSER : 0) | CLONE_NEWPID) != 0)
            _exit(1);
        pid_t inner = fork();
        if (inner == 0) {
            (void)close(ready[0]);
            (void)close(ready[1]);
            for (;;)
                (void)pause();
        }
        (void)!write(ready[1], &inner, sizeof inner);
        (void)waitpid(inner, NULL, 0);
        _exit(0);
    }
    (void)close(ready[1]);
    pid_t inner = 0;
    if (read(ready[0], &inner, sizeof inner) != sizeof inner)
        inner = 0;
    (void)close(ready[0]);
    return inner;
}

static void the_host_pid_is_found_through_the_namespace(void **state)
{
    (void)state;
    char ns[64];
    struct stat st;
    pid_t pid = start_in_namespace();
    if (pid == 0) {
        const char *must = getenv("VRAMCAP_MUST_WORK");
        if (must && !strcmp(must, "1"))
            fail_msg("no PID namespace can be made");
        skip();
    }
    (void)snprintf(ns, sizeof ns, "/proc/%d/ns/pid", (int)pid);
    int looked = stat(ns, &st);
    image.slots[1].pid = 1;
    image.slots[1].pidns = st.st_ino;
    (void)image_write(&image, sizeof image, path);
    int status = tool_run(&t, NULL, TOOL_ARGS("dump", "--json", path));
    (void)kill(pid, SIGKILL);
    assert_int_equal(looked, 0);
    assert_int_equal(status, 0);
    json_t *json = parse(t.out);
    is_number(json_array_get(get(json, "processes"), 0), "host_pid", (uint64_t)pid);
    json_decref(json);
}

static void every_untrusted_file_is_a_finding(void **state)
{
    (void)state;
    char bad[128], command[400];
    (void)snprintf(bad, sizeof bad, "%s/bad", folder);
    for (size_t i = 0; i < hostile_file_count; i++) {
        const struct hostile_file *f = &hostile_files[i];
        int made = hostile_make(f, bad);
        assert_true(made >= 0);
        for (int events = 0; made == 0 && events < 2; events++) {
            int status = tool_run(&t, NULL, TOOL_ARGS(events ? "events" : "dump", bad));
            if (f->reason ? status != 1 || *t.out || !strstr(t.err, "untrusted ledger") ||
                                !strstr(t.err, f->reason)
                          : status != 0 || (!events && !strstr(t.out, "1700.0")))
                fail_msg("%s: status %d, '%s%s'", f->name, status, t.out, t.err);
        }
        if (made == 0 && !f->reason) {
            assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("dump", "--json", bad)), 0);
            json_decref(parse(t.out));
        }
        hostile_end();
        (void)snprintf(command, sizeof command, "rm -rf '%s' '%s/.good' '%s/.other'", bad, folder,
                       folder);
        assert_int_equal(system(command), 0);
    }
    const char *const files[] = {folder, "/dev/zero", "/dev/null", "/etc/passwd"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (int events = 0; events < 2; events++) {
            int status = tool_run(&t, NULL, TOOL_ARGS(events ? "events" : "dump", files[i]));
            if (status != 1 || *t.out || !strstr(t.err, "untrusted ledger"))
                fail_msg("%s: status %d, '%s'", files[i], status, t.err);
        }
    assert_int_equal(truncate(path, sizeof image - 1), 0);
    assert_int_equal(tool_run(&t, TOOL_ARGS("VRAMCAP_LEDGER=/nowhere"), TOOL_ARGS("dump", path)),
                     1);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("dump", "--json", path)), 1);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("dump", "--watch", path)), 1);
}

static void the_environment_names_the_default_ledger(void **state)
{
    (void)state;
    char variable[160];
    (void)snprintf(variable, sizeof variable, "VRAMCAP_LEDGER=%s", path);
    assert_int_equal(tool_run(&t, TOOL_ARGS(variable), TOOL_ARGS("dump")), 0);
    assert_non_null(strstr(t.out, "serve"));
}

static void watching_ends_cleanly_on_a_signal(void **state)
{
    (void)state;
    const int signals[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < 2; i++) {
        tool_start(&t, TOOL_PIPE, NULL, TOOL_ARGS("dump", "--watch=0.05", path));
        bool first = tool_expect(&t, "events lost");
        t.out[0] = '\0';
        bool second = tool_expect(&t, "--- 20") && tool_expect(&t, "serve");
        (void)kill(t.pid, signals[i]);
        assert_int_equal(tool_wait(&t), 0);
        assert_true(first && second);
        assert_string_equal(t.err, "");
    }
}

static void watching_as_json_is_one_document_a_line(void **state)
{
    (void)state;
    tool_start(&t, TOOL_PIPE, NULL, TOOL_ARGS("dump", "-j", "-w0.05", path));
    bool twice = tool_expect(&t, "}\n{");
    (void)kill(t.pid, SIGINT);
    assert_int_equal(tool_wait(&t), 0);
    assert_true(twice);
    *strchr(t.out, '\n') = '\0';
    json_decref(parse(t.out));
}

static void watching_ends_even_when_nobody_reads(void **state)
{
    (void)state;
    tool_start(&t, TOOL_PIPE, NULL, TOOL_ARGS("dump", "--watch=0.05", path));
    assert_true(fcntl(t.out_fd, F_SETPIPE_SZ, 4096) > 0);
    int there = -1, before;
    do { /* until no more comes: it waits in write() */
        before = there;
        (void)usleep(300000);
        assert_int_equal(ioctl(t.out_fd, FIONREAD, &there), 0);
    } while (there < 2048 || there != before);
    (void)kill(t.pid, SIGINT);
    pid_t ended = 0;
    for (int i = 0; i < 3000 && ended == 0; i++) {
        ended = waitpid(t.pid, &t.status, WNOHANG);
        (void)usleep(10000);
    }
    assert_int_equal(ended, t.pid);
    assert_true(WIFEXITED(t.status) && WEXITSTATUS(t.status) == 0);
    (void)close(t.out_fd);
    (void)close(t.err_fd);
}

static void watching_stops_when_the_output_is_lost(void **state)
{
    (void)state;
    tool_start(&t, TOOL_FULL, NULL, TOOL_ARGS("dump", "--watch", path));
    assert_int_equal(tool_wait(&t), 2);
    tool_start(&t, TOOL_CLOSED, NULL, TOOL_ARGS("dump", path));
    assert_int_equal(tool_wait(&t), 2);
}

static void colours_are_for_terminals_without_no_color(void **state)
{
    (void)state;
    const struct {
        const char *variable;
        bool coloured;
    } cases[] = {{"TERM=xterm", true}, {"TERM=dumb", false}, {"TERM", false}};
    for (size_t i = 0; i < 3; i++) {
        tool_start(&t, TOOL_TERMINAL, TOOL_ARGS(cases[i].variable), TOOL_ARGS("dump", path));
        assert_int_equal(tool_wait(&t), 0);
        assert_non_null(strstr(t.out, "OVER"));
        assert_int_equal(strstr(t.out, "\033[") != NULL, cases[i].coloured);
    }
    tool_start(&t, TOOL_TERMINAL, TOOL_ARGS("TERM=xterm", "NO_COLOR=1"), TOOL_ARGS("dump", path));
    assert_int_equal(tool_wait(&t), 0);
    assert_null(strstr(t.out, "\033["));
    tool_start(&t, TOOL_TERMINAL, TOOL_ARGS("TERM=xterm"), TOOL_ARGS("dump", "--watch=0.05", path));
    bool cleared = tool_expect(&t, "\033[H\033[2J");
    (void)kill(t.pid, SIGINT);
    assert_int_equal(tool_wait(&t), 0);
    assert_true(cleared);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_table_shows_gpus_and_processes),
        TEST(the_json_has_exactly_the_promised_keys),
        TEST(hostile_contents_still_make_valid_json),
        TEST(the_host_pid_is_found_through_the_namespace),
        TEST(every_untrusted_file_is_a_finding),
        TEST(the_environment_names_the_default_ledger),
        TEST(watching_ends_cleanly_on_a_signal),
        TEST(watching_as_json_is_one_document_a_line),
        TEST(watching_ends_even_when_nobody_reads),
        TEST(watching_stops_when_the_output_is_lost),
        TEST(colours_are_for_terminals_without_no_color),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
