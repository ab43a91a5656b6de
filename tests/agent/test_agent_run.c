/*
 * The running agent: what it finds, what it says, and that it goes on.  Ledgers are made by hand, living
 * owners simulated by their locks.
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/cli/host_record.h"
#include "tests/agent/running.h"
#include "tests/cli/ledger_image.h"
#include "tests/support/skip.h"

#define DAMAGED 8

static struct running r;
static struct image image;

static int setup(void **state)
{
    (void)state;
    if (!running_setup(&r))
        return -1;
    image_init(&image);
    image_gpu(&image, 0, 4096, VCAP_LF_SOURCE_ENV);
    image_process(&image, 1, 0, 1000, "serve");
    image.gpus[0].peak_bytes = 1700 * IMAGE_MIB;
    image.gpus[0].refusals = 9;
    image.gpus[0].refused_bytes = 900;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    running_teardown(&r);
    return 0;
}

/* Puts the image in place as a file of its own, as whoever makes ledgers does. */
static void put(const char *name)
{
    assert_true(running_put(&r, name, &image));
}

static void start(void)
{
    assert_true(running_start(&r, true, NULL, NULL));
}

static void a_ledger_s_numbers_are_exported(void **state)
{
    (void)state;
    put("web.ledger");
    int lock = image_live(running_ledger(&r, "web.ledger"), 1);
    start();
    assert_true(running_value(&r, "vramcap_ceiling_bytes", "web") == 4096.0 * IMAGE_MIB);
    assert_true(running_value(&r, "vramcap_charged_bytes", "web") == 1000.0 * IMAGE_MIB);
    assert_true(running_value(&r, "vramcap_peak_bytes", "web") == 1700.0 * IMAGE_MIB);
    assert_true(running_value(&r, "vramcap_overhead_bytes", "web") == -1); /* unknown */
    assert_true(running_value(&r, "vramcap_refusals_total", "web") == 9);
    assert_true(running_value(&r, "vramcap_refused_bytes_total", "web") == 900);
    assert_true(running_value(&r, "vramcap_processes", "web") == 1);
    assert_true(running_value(&r, "vramcap_unaccounted_bytes", "web") == -1); /* no driver */
    assert_true(running_value(&r, "vramcap_unprotected_processes", "web") == -1);
    assert_true(running_metric(&r, "vramcap_build_info{version=\"" VRAMCAP_VERSION "\"}") == 1);
    assert_non_null(strstr(r.body, "vramcap_process_charged_bytes{container=\"web\",gpu_uuid=\"GPU-"
                                   "00010203-0405-0607-0809-0a0b0c0d0e0f\",gpu=\"0\",pid=\"101@"
                                   "4242/1\"} 1048576000\n"));
    (void)close(lock); /* the process dies */
    assert_true(running_until(&r, "vramcap_charged_bytes", "web", 0));
    assert_true(running_value(&r, "vramcap_processes", "web") == 0);
    assert_int_equal(running_stop(&r, SIGTERM), 0);
    assert_int_not_equal(access(r.socket, F_OK), 0); /* the socket's name is gone */
}

static void a_ledger_without_a_ceiling_shows_none(void **state)
{
    (void)state;
    image_gpu(&image, 0, UINT64_MAX, VCAP_LF_SOURCE_NONE);
    put("web");
    start();
    assert_true(running_value(&r, "vramcap_ceiling_bytes", "web") == -1);
    assert_true(running_value(&r, "vramcap_charged_bytes", "web") == 0);
}

#define CARD "vramcap_card_bytes{gpu_uuid=\"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f\",gpu=\"0\"}"

static void a_card_s_size_is_the_least_that_a_ledger_says_and_unknown_is_no_series(void **state)
{
    (void)state;
    put("unknown");
    start();
    assert_true(running_value(&r, "vramcap_refusals_total", "unknown") == 9);
    assert_true(running_metric(&r, CARD) == -1);
    image.gpus[0].card_bytes = 24576 * IMAGE_MIB;
    put("one");
    image.gpus[0].card_bytes = 16384 * IMAGE_MIB;
    put("other");
    assert_true(running_until_metric(&r, CARD, 16384.0 * IMAGE_MIB));
    unsigned series = 0;
    for (const char *at = r.body; (at = strstr(at, "\nvramcap_card_bytes{")); at++)
        series++;
    assert_int_equal(series, 1); /* one card, however many containers */
    assert_int_equal(unlink(running_ledger(&r, "other")), 0);
    assert_true(running_until_metric(&r, CARD, 24576.0 * IMAGE_MIB));
    assert_int_equal(unlink(running_ledger(&r, "one")), 0);
    assert_true(running_until_metric(&r, CARD, -1)); /* only what is there says it */
}

static void both_layouts_of_the_directory_are_found(void **state)
{
    (void)state;
    assert_int_equal(mkdir(running_ledger(&r, "box"), 0755), 0);
    assert_int_equal(mkdir(running_ledger(&r, "empty"), 0755), 0);
    put("box/ledger");
    put("web");
    put("later.new-77"); /* not yet finished */
    start();
    assert_true(running_value(&r, "vramcap_peak_bytes", "box") > 0);
    assert_true(running_value(&r, "vramcap_peak_bytes", "web") > 0);
    json_t *all = running_json(&r);
    assert_int_equal(json_array_size(json_object_get(all, "containers")), 2);
    json_decref(all);
}

static void containers_come_go_and_come_back(void **state)
{
    (void)state;
    start();
    assert_true(running_value(&r, "vramcap_peak_bytes", "web") == -1);
    put("web");
    assert_true(running_until(&r, "vramcap_refusals_total", "web", 9));
    assert_int_equal(unlink(running_ledger(&r, "web")), 0);
    assert_true(running_until(&r, "vramcap_ceiling_bytes", "web", -1));
    assert_true(running_value(&r, "vramcap_refusals_total", "web") == 9); /* the last state */
    json_t *gone = running_container(&r, "web");
    assert_string_equal(json_string_value(json_object_get(gone, "state")), "gone");
    assert_int_equal(json_array_size(json_object_get(gone, "processes")), 1);
    json_decref(gone);
    image.gpus[0].refusals = 2; /* the next container of this name */
    image.header.created_ns++;
    put("web");
    assert_true(running_until(&r, "vramcap_refusals_total", "web", 11));
    assert_true(running_value(&r, "vramcap_ceiling_bytes", "web") == 4096.0 * IMAGE_MIB);
}

static void what_is_gone_is_forgotten_after_a_while(void **state)
{
    (void)state;
    put("web");
    assert_true(running_start(&r, true, NULL, RUNNING_ARGS("--keep", "0.3")));
    assert_int_equal(unlink(running_ledger(&r, "web")), 0);
    assert_true(running_until(&r, "vramcap_refusals_total", "web", -1));
    json_t *all = running_json(&r);
    assert_int_equal(json_array_size(json_object_get(all, "containers")), 0);
    json_decref(all);
    put("web"); /* a new one, and no memory of the old */
    assert_true(running_until(&r, "vramcap_refusals_total", "web", 9));
}

/* ---- bad ledgers: test_agent_hostile.c has most ---- */

/* Damages each of the files in turn, for ever. */
static _Noreturn void damage(void)
{
    int fds[DAMAGED];
    char name[32];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < DAMAGED; i++) {
        (void)snprintf(name, sizeof name, "bad%d", i);
        fds[i] = open(running_ledger(&r, name), O_RDWR | O_CLOEXEC);
    }
    for (unsigned i = 0;; i++) {
        int fd = fds[i % DAMAGED];
        (void)!ftruncate(fd, (off_t)(i * 7919 % (2 * sizeof image)));
        (void)!pwrite(fd, &image, sizeof image, 0);
        (void)!pwrite(fd, &i, sizeof i, (off_t)(i * 104729 % sizeof image));
    }
}

static void ledgers_damaged_while_they_are_read_are_survived(void **state)
{
    (void)state;
    char name[32];
    for (int i = 0; i < DAMAGED; i++) {
        (void)snprintf(name, sizeof name, "bad%d", i);
        put(name);
    }
    put("good");
    start();
    pid_t pid = fork();
    if (pid == 0)
        damage();
    /* until enough of its readings were of a damaged one */
    for (double errors = 0, i = 0; i < 20 || errors < 50; i++) {
        assert_true(i < 1000);
        assert_true(running_value(&r, "vramcap_peak_bytes", "good") == 1700.0 * IMAGE_MIB);
        json_decref(running_json(&r));
        errors = 0;
        for (int k = 0; k < DAMAGED; k++) {
            (void)snprintf(name, sizeof name, "bad%d", k);
            errors += running_value(&r, "vramcap_ledger_errors_total", name);
        }
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    for (int i = 0; i < DAMAGED; i++) {
        (void)snprintf(name, sizeof name, "bad%d", i);
        assert_int_equal(image_write(&image, sizeof image, running_ledger(&r, name)), 0);
        assert_true(running_until(&r, "vramcap_peak_bytes", name, 1700.0 * IMAGE_MIB));
    }
}

static void nothing_in_a_ledger_is_changed_or_locked(void **state)
{
    (void)state;
    static unsigned char after[sizeof image];
    put("web");
    start();
    for (int i = 0; i < 50; i++)
        (void)running_get(&r, "/metrics");
    int fd = open(running_ledger(&r, "web"), O_RDWR | O_CLOEXEC);
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    for (int i = 0; i < 200; i++) {
        assert_int_equal(fcntl(fd, F_OFD_SETLK, &all), 0);
        all.l_type = all.l_type == F_WRLCK ? F_UNLCK : F_WRLCK;
    }
    assert_int_equal(pread(fd, after, sizeof after, 0), sizeof after);
    assert_memory_equal(after, &image, sizeof image);
    (void)close(fd);
}

/* ---- once, textfile, service ---- */

static void once_prints_and_ends(void **state)
{
    (void)state;
    char command[1024];
    put("web");
    (void)snprintf(command, sizeof command,
                   "'%s' --once --json --no-proc --nvml none --ledger-dir '%s' >'%s/out' 2>'%s'",
                   VRAMCAP_AGENT, r.ledgers, r.folder, r.log);
    assert_int_equal(system(command), 0);
    (void)snprintf(command, sizeof command, "%s/out", r.folder);
    json_t *json = json_load_file(command, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(json, "containers")), 1);
    assert_int_equal(json_integer_value(json_object_get(json, "version")), 1);
    json_decref(json);
    assert_string_equal(running_log(&r), "");
    assert_int_equal(truncate(running_ledger(&r, "web"), 5), 0);
    (void)snprintf(command, sizeof command,
                   "'%s' --once --no-proc --nvml none --ledger-dir '%s' --textfile '%s/x.prom'",
                   VRAMCAP_AGENT, r.ledgers, r.folder);
    assert_int_equal(system(command), 0);
    (void)snprintf(command, sizeof command,
                   "grep -q 'vramcap_ledger_errors_total{container=\"web\"} 1' '%s/x.prom'",
                   r.folder);
    assert_int_equal(system(command), 0);
    (void)snprintf(command, sizeof command,
                   "'%s' --once --no-proc --nvml none --ledger-dir '%s' >/dev/null 2>&1",
                   VRAMCAP_AGENT, r.ledgers);
    assert_int_equal(WEXITSTATUS(system(command)), 1); /* not to be trusted */
    (void)snprintf(command, sizeof command,
                   "'%s' --once --no-proc --nvml none --ledger-dir '%s' >/dev/full 2>/dev/null",
                   VRAMCAP_AGENT, r.ledgers);
    assert_int_equal(WEXITSTATUS(system(command)), 2);
}

static void wrong_options_are_said_in_one_line(void **state)
{
    (void)state;
    const char *const wrong[] = {"--listen 9478",
                                 "--listen localhost:1",
                                 "--interval 0",
                                 "--keep never",
                                 "--json",
                                 "--once --json -t x",
                                 "extra",
                                 "--nonsense",
                                 "--state",
                                 "--state /nowhere/x --once",
                                 "--listen 203.0.113.1:9 --state ''"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char command[512];
        (void)unlink(r.log);
        (void)snprintf(command, sizeof command, "'%s' --nvml none --no-mps --no-proc %s 2>'%s'",
                       VRAMCAP_AGENT, wrong[i], r.log);
        int status = WEXITSTATUS(system(command));
        const char *said = running_log(&r);
        const char *line = strchr(said, '\n');
        if (status != 2 || strncmp(said, "vramcap-agent: ", 15) != 0 || !line || line[1])
            fail_msg("%s: status %d, '%s'", wrong[i], status, said);
    }
}

static bool notified(int fd, const char *what)
{
    char text[256];
    for (int i = 0; i < 100; i++) {
        ssize_t n = recv(fd, text, sizeof text - 1, 0); /* SO_RCVTIMEO */
        if (n < 0)
            return false;
        text[n] = '\0';
        if (strstr(text, what))
            return true;
    }
    return false;
}

static void systemd_is_told_of_readiness_and_life(void **state)
{
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval limit = {.tv_sec = 30};
    char variable[160];
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", r.folder);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)snprintf(variable, sizeof variable, "NOTIFY_SOCKET=%s", address.sun_path);
    assert_true(running_start(&r, false, RUNNING_ARGS(variable, "WATCHDOG_USEC=400000"), NULL));
    assert_true(notified(fd, "READY=1"));
    assert_true(notified(fd, "WATCHDOG=1"));
    int status;
    (void)kill(r.pid, SIGSTOP); /* a stopped agent is silent, */
    assert_int_equal(waitpid(r.pid, &status, WUNTRACED), r.pid);
    assert_true(WIFSTOPPED(status));
    char rest[256];
    while (recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0)
        continue;
    (void)usleep(500000);
    assert_true(recv(fd, rest, sizeof rest, MSG_DONTWAIT) < 0);
    (void)kill(r.pid, SIGCONT); /* and comes back */
    assert_true(notified(fd, "WATCHDOG=1"));
    assert_int_equal(running_stop(&r, SIGTERM), 0);
    assert_true(notified(fd, "STOPPING=1"));
    (void)close(fd);
}

static void a_hangup_looks_everywhere_anew(void **state)
{
    (void)state;
    put("web");
    start();
    (void)kill(r.pid, SIGHUP);
    assert_true(running_until_line(&r, "event=reload", ""));
    assert_true(running_value(&r, "vramcap_refusals_total", "web") == 9);
    assert_int_equal(running_stop(&r, SIGINT), 0);
}

static void times_are_utc_wherever_it_runs(void **state)
{
    (void)state;
    put("web");
    for (int i = 0; i < 2; i++) {
        char before[32], after[32], said[32] = "";
        time_t now = time(NULL);
        struct tm utc;
        (void)strftime(before, sizeof before, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now, &utc));
        assert_true(running_start(
            &r, false, RUNNING_ARGS(i ? "TZ=Pacific/Kiritimati" : "TZ=:/etc/passwd"), NULL));
        json_t *all = running_json(&r);
        const char *text = json_string_value(json_object_get(all, "time"));
        assert_non_null(text);
        (void)snprintf(said, sizeof said, "%.19s", text);
        assert_string_equal(text + strlen(text) - 1, "Z");
        json_decref(all);
        now = time(NULL);
        (void)strftime(after, sizeof after, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now, &utc));
        assert_true(strcmp(before, said) <= 0 && strcmp(said, after) <= 0);
        assert_int_equal(running_stop(&r, SIGTERM), 0);
    }
}

static void two_agents_do_not_share_a_state_file(void **state)
{
    (void)state;
    char command[512];
    start();
    (void)snprintf(command, sizeof command,
                   "'%s' --nvml none --no-proc --once --state '%s' 2>&1 | grep -q 'another agent'",
                   VRAMCAP_AGENT, r.state);
    assert_int_equal(system(command), 0);
}

/* ---- through processes ---- */

static const char *string_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static void a_ledger_without_a_mount_is_found_through_its_processes(void **state)
{
    (void)state;
    char path[128], label[64], series[256];
    struct stat st;
    (void)snprintf(path, sizeof path, "%s/hidden", r.folder);
    assert_int_equal(image_write(&image, sizeof image, path), 0);
    assert_int_equal(stat(path, &st), 0);
    int kept =
        open(path, O_RDONLY | O_CLOEXEC); /* or its inode is somebody else's the next moment */
    (void)snprintf(label, sizeof label, "ledger-%llu", (unsigned long long)st.st_ino);
    pid_t pid = running_client(path, NULL);
    assert_true(pid > 0);
    assert_true(running_start(&r, true, NULL, RUNNING_ARGS("--scan-interval", "0.1")));
    json_t *c = running_container(&r, label);
    if (!c && getuid() != 0)
        SKIP_BECAUSE("/proc/PID/map_files is for root");
    /* on a busy machine a reading may take long, and is then "late" */
    for (int i = 0; i < 600 && c && strcmp(string_of(c, "state"), "ok") != 0; i++) {
        (void)usleep(50000);
        json_decref(c);
        c = running_container(&r, label);
    }
    assert_non_null(c);
    assert_string_equal(string_of(c, "state"), "ok");
    const json_t *process = json_array_get(json_object_get(c, "processes"), 0);
    assert_int_equal(json_integer_value(json_object_get(process, "host_pid")), pid);
    json_decref(c);
    (void)snprintf(series, sizeof series,
                   "vramcap_process_charged_bytes{container=\"%s\",gpu_uuid=\"GPU-00010203-0405-"
                   "0607-0809-0a0b0c0d0e0f\",gpu=\"0\",pid=\"%d\"}",
                   label, (int)pid);
    assert_true(running_metric(&r, series) == 1000.0 * IMAGE_MIB);
    /* its name is gone, and it can still be read */
    assert_int_equal(unlink(path), 0);
    assert_true(running_value(&r, "vramcap_charged_bytes", label) == 1000.0 * IMAGE_MIB);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    assert_true(running_until(&r, "vramcap_ceiling_bytes", label, -1));
    assert_true(running_value(&r, "vramcap_refusals_total", label) == 9);
    (void)close(kept);
}

static void what_both_ways_find_is_one_container(void **state)
{
    (void)state;
    put("web");
    pid_t pid = running_client(running_ledger(&r, "web"), NULL);
    assert_true(pid > 0);
    assert_true(running_start(&r, true, NULL, RUNNING_ARGS("--scan-interval", "0.1")));
    for (int passes = 0; passes < 2; passes++) {
        const unsigned before = running_lines(&r, "event=reload", "");
        (void)kill(r.pid, SIGHUP); /* goes through all of /proc */
        for (int i = 0; i < 3000 && running_lines(&r, "event=reload", "") == before; i++)
            (void)usleep(10000);
    }
    json_t *all = running_json(&r), *one;
    size_t i, found = 0;
    json_array_foreach(json_object_get(all, "containers"), i, one)
    {
        const char *label = json_string_value(json_object_get(one, "container"));
        found += !strncmp(label, "web", 3);
    }
    assert_int_equal(found, 1);
    json_decref(all);
    json_t *c = running_container(&r, "web");
    const json_t *process = json_array_get(json_object_get(c, "processes"), 0);
    if (getuid() == 0)
        assert_int_equal(json_integer_value(json_object_get(process, "host_pid")), pid);
    json_decref(c);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    running_client_main(argc, argv);
    const struct CMUnitTest tests[] = {
        TEST(a_ledger_s_numbers_are_exported),
        TEST(a_ledger_without_a_ceiling_shows_none),
        TEST(a_card_s_size_is_the_least_that_a_ledger_says_and_unknown_is_no_series),
        TEST(both_layouts_of_the_directory_are_found),
        TEST(containers_come_go_and_come_back),
        TEST(what_is_gone_is_forgotten_after_a_while),
        TEST(ledgers_damaged_while_they_are_read_are_survived),
        TEST(nothing_in_a_ledger_is_changed_or_locked),
        TEST(once_prints_and_ends),
        TEST(wrong_options_are_said_in_one_line),
        TEST(systemd_is_told_of_readiness_and_life),
        TEST(a_hangup_looks_everywhere_anew),
        TEST(times_are_utc_wherever_it_runs),
        TEST(two_agents_do_not_share_a_state_file),
        TEST(a_ledger_without_a_mount_is_found_through_its_processes),
        TEST(what_both_ways_find_is_one_container),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
