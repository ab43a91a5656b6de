/*
 * The running agent among files that mean it harm: every one of the list at once, names with anything in
 * them, thousands of files, ledgers as large as can be or replaced while they are read; full file systems
 * and closed descriptors for its own.  It says what it sees, exports nothing twice, and everybody else's
 * figures are there all the while.  test_agent_process.c has processes that mean it harm.
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
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/ledger.h"
#include "tests/agent/running.h"
#include "tests/cli/hostile_files.h"
#include "tests/cli/ledger_image.h"
#include "tests/support/skip.h"

#define PEAK (HOSTILE_PEAK_MIB * (double)IMAGE_MIB)
#define MANY_FILES 10000
#define LARGEST 8 /* as many as one container may have looked at */
#define SLOW_CLIENTS 20
#define SLICE_RECORDS 32 /* by which the state file grows */

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
    hostile_end();
    running_teardown(&r);
    return 0;
}

static void put(const char *name)
{
    assert_true(running_put(&r, name, &image));
}

static void metrics_are_sound(void)
{
    char why[256];
    if (!running_sound(&r, why, sizeof why))
        fail_msg("%s", why);
}

/* On a busy machine a round may take longer than a client waits, which is told it (503). */
static void is_served(const char *page)
{
    int status = 503;
    for (int tries = 0; tries < 10 && status == 503; tries++)
        status = running_get(&r, page);
    assert_int_equal(status, 200);
}

/* ---- files ---- */

static const json_t *of_container(const json_t *all, const char *label)
{
    const json_t *one;
    size_t i;
    json_array_foreach(json_object_get(all, "containers"), i, one)
    {
        if (!strcmp(json_string_value(json_object_get(one, "container")), label))
            return one;
    }
    return NULL;
}

static bool is_made[256];

static void check_state(const json_t *all, const struct hostile_file *f)
{
    const json_t *c = of_container(all, f->name);
    const char *found = json_string_value(json_object_get(c, "state"));
    const char *reason = json_string_value(json_object_get(c, "reason"));
    /* with thousands of locks it is read less often */
    bool good = found && (!strcmp(found, "ok") || !strcmp(found, "late"));
    if (f->reason
            ? !found || strcmp(found, "untrusted") != 0 || !reason || !strstr(reason, f->reason)
            : !good)
        fail_msg("%s: %s, '%s'", f->name, found ? found : "not there", reason ? reason : "");
}

static void every_hostile_file_is_reported_and_delays_nobody(void **state)
{
    (void)state;
    unsigned made = 0;
    put("good");
    assert_true(hostile_file_count < sizeof is_made / sizeof *is_made);
    for (size_t i = 0; i < hostile_file_count; i++) {
        int status = hostile_make(&hostile_files[i], running_ledger(&r, hostile_files[i].name));
        assert_true(status >= 0);
        is_made[i] = status == 0;
        made += is_made[i];
    }
    assert_true(made >= hostile_file_count - 4); /* devices, a foreign owner, a lease */
    assert_int_equal(mkdir(running_ledger(&r, "through"), 0755), 0);
    assert_int_equal(symlink("/etc/passwd", running_ledger(&r, "through/ledger")), 0);
    assert_true(running_start(&r, true, NULL, NULL));

    json_t *all = running_json(&r);
    assert_non_null(all);
    for (size_t i = 0; i < hostile_file_count; i++)
        if (is_made[i])
            check_state(all, &hostile_files[i]);
    check_state(all, &(struct hostile_file){"through", "symbolic link", NULL, NULL});
    check_state(all, &(struct hostile_file){"good", NULL, NULL, NULL});
    json_decref(all);

    metrics_are_sound();
    for (size_t i = 0; i < hostile_file_count; i++) {
        const struct hostile_file *f = &hostile_files[i];
        char errors[96], peak[96];
        if (!is_made[i])
            continue;
        (void)snprintf(errors, sizeof errors, "\nvramcap_ledger_errors_total{container=\"%s\"} 0\n",
                       f->name);
        (void)snprintf(peak, sizeof peak, "\nvramcap_peak_bytes{container=\"%s\",", f->name);
        if ((strstr(r.body, errors) == NULL) != (f->reason != NULL) ||
            (strstr(r.body, peak) == NULL) != (f->reason != NULL))
            fail_msg("metrics of %s", f->name);
        (void)snprintf(peak, sizeof peak, "container=%s ", f->name);
        if (f->reason && running_lines(&r, "event=ledger-untrusted", peak) != 1)
            fail_msg("%u lines about %s", running_lines(&r, "event=ledger-untrusted", peak),
                     f->name);
    }
    assert_true(running_value(&r, "vramcap_peak_bytes", "good") == PEAK);

    /* a good one that comes now is there, in spite of all the others */
    image.header.created_ns++;
    put("late-comer");
    assert_true(running_until(&r, "vramcap_peak_bytes", "late-comer", PEAK));
    assert_int_equal(running_get(&r, "/healthz"), 200);
    /* and a bad one that is replaced by a good one is believed */
    assert_int_equal(unlink(running_ledger(&r, "fifo")), 0);
    put("fifo");
    assert_true(running_until_line(&r, "event=ledger-good-again container=fifo", ""));
    assert_int_equal(running_stop(&r, SIGTERM), 0);
}

static void names_with_anything_in_them_are_labels_of_their_own(void **state)
{
    (void)state;
    char longest[256];
    memset(longest, 'n', 255);
    longest[255] = '\0';
    const char *const names[] = {"a \"quoted\" name",
                                 "a\nline\n# HELP x",
                                 "back\\slash\\n",
                                 "Gr\xc3\xb6\xc3\x9fz",
                                 "\xff\xfe broken \xc3",
                                 "tab\tcr\r",
                                 "a=\"1\",b",
                                 "{}",
                                 "$(reboot)",
                                 "-",
                                 longest,
                                 "a__quoted__name"};
    const size_t count = sizeof names / sizeof *names;
    for (size_t i = 0; i < count; i++)
        put(names[i]);
    put("plain");
    assert_true(running_start(&r, true, NULL, NULL));
    metrics_are_sound();
    unsigned series = 0;
    for (const char *at = r.body; (at = strstr(at, "\nvramcap_ceiling_bytes{")); at++)
        series++;
    assert_int_equal(series, count + 1); /* none is missing, none is taken for another */
    json_t *all = running_json(&r);      /* is JSON, in UTF-8 */
    assert_int_equal(json_array_size(json_object_get(all, "containers")), count + 1);
    json_decref(all);
    assert_int_equal(running_get(&r, "/v1/report"), 200);
    json_t *report = json_loads(r.body, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(report);
    json_decref(report);
    /* each is one line of the log, whatever is in its name */
    assert_int_equal(running_lines(&r, "event=ledger-found", "time="), count + 1);
    assert_int_equal(running_lines(&r, "# HELP", ""), running_lines(&r, "# HELP", "time="));
}

static void thousands_of_files_are_too_many_and_it_says_so(void **state)
{
    (void)state;
    const char bytes[] = "no ledger";
    char first[300], command[256];
    (void)snprintf(first, sizeof first, "%s/.first", r.ledgers);
    assert_int_equal(image_write(bytes, sizeof bytes, first), 0);
    for (int i = 0; i < MANY_FILES; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "f%05d", i);
        assert_int_equal(link(first, running_ledger(&r, name)), 0);
    }
    assert_true(running_start(&r, true, NULL, NULL));
    assert_true(running_until_line(&r, "event=ledger-dir", "more entries than the 4096"));
    assert_int_equal(running_lines(&r, "event=ledger-untrusted", ""), 4096);
    for (int i = 0; i < 3; i++)
        is_served("/metrics");
    is_served("/healthz");
    assert_int_equal(running_lines(&r, "event=ledger-dir", ""), 1); /* said once */
    (void)snprintf(command, sizeof command, "find '%s' -name 'f*' -delete", r.ledgers);
    assert_int_equal(system(command), 0);
    put("web"); /* they are gone, and give way though they are still shown as such */
    assert_true(running_until(&r, "vramcap_peak_bytes", "web", PEAK));
}

/* The most that one ledger can say: every slot of the largest number in use on every GPU. */
static void make_largest(const char *name)
{
    const struct vcap_ledger_size most = {VCAP_LF_GPUS_MAX, VCAP_LF_SLOTS_MAX, VCAP_LF_EVENTS_MAX};
    const char *path = running_ledger(&r, name);
    struct stat st;
    assert_int_equal(vcap_ledger_create(path, &most, 0, "", name), 0);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(fstat(fd, &st), 0);
    char *m = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(m != MAP_FAILED);
    const struct vcap_lf_header *h = (const void *)m;
    for (uint32_t g = 0; g < h->gpu_count; g++) {
        struct vcap_lf_gpu *gpu = (void *)(m + h->gpu_offset + (size_t)g * h->gpu_stride);
        gpu->claim = g + 1;
        gpu->uuid[0] = (uint8_t)(g + 1);
        gpu->index = g;
        gpu->ceiling = vcap_lf_ceiling(VCAP_LF_UNITS_MAX - 1, VCAP_LF_SOURCE_ENV);
        gpu->total = vcap_lf_total(IMAGE_UNITS(h->slot_count), 0, 5);
        for (uint32_t s = 0; s < h->slot_count; s++) {
            struct vcap_lf_slot *slot = (void *)(m + h->slot_offset + (size_t)s * h->slot_stride);
            struct vcap_lf_cell *cell =
                (void *)(m + h->cell_offset + ((size_t)s * h->gpu_count + g) * h->cell_stride);
            slot->state = vcap_lf_state(1, VCAP_LF_KIND_PID, VCAP_LF_LIVE);
            slot->pid = 100 + s;
            slot->pidns = IMAGE_OTHER_PIDNS;
            slot->index_mask |= 1u << g;
            cell->charged = vcap_lf_charged(IMAGE_UNITS(1), 5);
            cell->intent = vcap_lf_intent(1, 5);
            cell->overhead_bytes = cell->limit_bytes = UINT64_MAX;
        }
    }
    (void)munmap(m, (size_t)st.st_size);
    (void)close(fd);
}

/* Of the agent: the most so far. */
static double memory_mib(void)
{
    char path[64], line[256];
    double kib = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)r.pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, "VmHWM:", 6))
            kib = strtod(line + 6, NULL);
    (void)fclose(f);
    return kib / 1024;
}

static void ledgers_that_say_all_they_can_fit_into_its_memory(void **state)
{
    (void)state;
    put("web");
    for (int i = 0; i < LARGEST; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "large%d", i);
        make_largest(name);
    }
    assert_true(running_start(&r, true, NULL, NULL));
    static const char *const pages[] = {"/metrics", "/v1/containers", "/v1/report"};
    for (int i = 0; i < 9; i++) /* each is cut by this test's own room */
        is_served(pages[i % 3]);
    print_message("%d ledgers of %u slots x %u GPUs: %.1f MiB\n", LARGEST, VCAP_LF_SLOTS_MAX,
                  VCAP_LF_GPUS_MAX, memory_mib());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(memory_mib() < 200); /* the unit has 256 MiB */
#endif
    assert_int_equal(running_get(&r, "/healthz"), 200);
}

/* Each asks for a text of its own and reads one byte of it. */
static void clients_that_do_not_read_hold_no_more_than_the_unit_has(void **state)
{
    static const char request[] = "GET /v1/containers HTTP/1.1\r\nHost: x\r\n\r\n";
    int clients[SLOW_CLIENTS];
    char byte;
    (void)state;
    for (int i = 0; i < LARGEST; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "large%d", i);
        make_largest(name);
    }
    assert_true(running_start(&r, true, NULL, NULL));
    for (int i = 0; i < SLOW_CLIENTS; i++) {
        clients[i] = running_connect(&r);
        assert_true(clients[i] >= 0);
        assert_int_equal(send(clients[i], request, strlen(request), MSG_NOSIGNAL), strlen(request));
        assert_int_equal(recv(clients[i], &byte, 1, 0), 1);
        (void)usleep(60000); /* the next one's text is another */
    }
    print_message("%d clients that do not read: %.1f MiB\n", SLOW_CLIENTS, memory_mib());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(memory_mib() < 240); /* the unit has 256 MiB */
#endif
    assert_int_equal(running_get(&r, "/healthz"), 200);
    int status = 0; /* though they are all still there: those in the way are cut off */
    for (int i = 0; i < 300 && status != 200; i++) {
        status = running_get(&r, "/v1/containers");
        (void)usleep(100000);
    }
    assert_int_equal(status, 200);
    for (int i = 0; i < SLOW_CLIENTS; i++)
        (void)close(clients[i]);
}

/* Another file under the same name again and again, as containers that restart do it, only faster. */
static void a_ledger_replaced_while_it_is_read_is_one_or_the_other(void **state)
{
    (void)state;
    put("web");
    assert_true(running_start(&r, true, NULL, NULL));
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (unsigned i = 1;; i++) {
            image.header.created_ns++;
            image_gpu(&image, 0, i % 2 ? 4096 : 2048, VCAP_LF_SOURCE_ENV);
            put("web");      /* the last of it may be killed in the middle */
            if (i % 16 == 0) /* or is not there, or is something else */
                (void)unlink(running_ledger(&r, "web"));
            if (i % 64 == 0)
                (void)!symlink("/etc/passwd", running_ledger(&r, "web"));
        }
    }
    double refusals = 0;
    bool counted = true, known = true; /* asserted when the other process has ended */
    for (int i = 0; i < 3000 && (i < 30 || refusals < 9 * 5); i++) { /* until five were seen */
        double ceiling = running_value(&r, "vramcap_ceiling_bytes", "web");
        known = known &&
                (ceiling == 4096.0 * IMAGE_MIB || ceiling == 2048.0 * IMAGE_MIB || ceiling == -1);
        double now = running_value(&r, "vramcap_refusals_total", "web");
        counted = counted && now >= refusals; /* a counter, whatever becomes of the files */
        refusals = now;
        (void)usleep(10000);
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    assert_true(known);
    assert_true(counted);
    assert_true(refusals >= 9 * 5);
    metrics_are_sound();
    (void)unlink(running_ledger(&r, "web"));
    put("web");
    assert_true(running_until(&r, "vramcap_peak_bytes", "web", PEAK));
}

/* ---- the agent's own files ---- */

static void log_lines_never_go_into_another_file(void **state)
{
    (void)state;
    /* the first file that is opened would get the number: of the last one, it is the state's */
    static const char *const closed[] = {"2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"};
    char command[700];
    put("web");
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
        (void)unlink(r.state);
        (void)snprintf(command, sizeof command,
                       "'%s' --once --no-proc --nvml none --ledger-dir '%s' --state '%s' "
                       "--textfile '%s/x.prom' %s",
                       VRAMCAP_AGENT, r.ledgers, r.state, r.folder, closed[i]);
        assert_int_equal(system(command), 0);
        (void)snprintf(command, sizeof command, "grep -aq 'event=' '%s' '%s/x.prom' '%s'/*",
                       r.state, r.folder, r.ledgers);
        assert_int_equal(WEXITSTATUS(system(command)), 1);
    }
    assert_true(running_start(&r, true, NULL, NULL)); /* and finds its state as it was left */
    assert_int_equal(running_lines(&r, "event=state", ""), 0);
}

/* A file system of so many KiB, in this test's own mount namespace; false: cannot be had here. */
static bool small_folder(char path[128], unsigned kib)
{
    static bool apart;
    char options[32];
    (void)snprintf(path, 128, "%s/small", r.folder);
    (void)snprintf(options, sizeof options, "size=%uk", kib);
    apart = apart ||
            (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    return apart && mkdir(path, 0755) == 0 && mount("tmpfs", path, "tmpfs", 0, options) == 0;
}

static void without_room_for_its_state_it_goes_on(void **state)
{
    (void)state;
    char folder[128], file[160];
    const int containers = SLICE_RECORDS + 8;
    if (!small_folder(folder, 256))
        SKIP_BECAUSE("needs root, for a mount");
    (void)snprintf(file, sizeof file, "%s/state", folder);
    for (int i = 0; i < containers; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "c%d", i);
        put(name);
    }
    for (int restart = 0; restart < 2; restart++) {
        assert_true(running_start(&r, false, NULL, RUNNING_ARGS("--state", file)));
        for (int i = 0; i < containers; i++) {
            char name[32];
            (void)snprintf(name, sizeof name, "c%d", i);
            assert_true(running_value(&r, "vramcap_refusals_total", name) == 9);
        }
        assert_int_equal(running_lines(&r, "event=state", "no room for"), restart + 1);
        assert_int_equal(running_stop(&r, SIGKILL), 256 + SIGKILL);
    }
    /* those that had a place are remembered: their event was logged once, the others' twice */
    unsigned once = 0, twice = 0;
    for (int i = 0; i < containers; i++) {
        char words[32];
        (void)snprintf(words, sizeof words, "container=c%d seq=1 ", i);
        unsigned lines = running_lines(&r, "event=refusal", words);
        once += lines == 1;
        twice += lines == 2;
    }
    (void)umount2(folder, MNT_DETACH);
    assert_int_equal(once, SLICE_RECORDS);
    assert_int_equal(twice, 8);
}

static void a_text_file_that_cannot_be_written_is_said_once_and_tried_again(void **state)
{
    (void)state;
    char folder[128], file[160], filler[160], command[400];
    if (!small_folder(folder, 64))
        SKIP_BECAUSE("needs root, for a mount");
    (void)snprintf(file, sizeof file, "%s/x.prom", folder);
    (void)snprintf(filler, sizeof filler, "%s/filler", folder);
    (void)snprintf(command, sizeof command, "head -c 65536 /dev/zero >'%s' 2>/dev/null; true",
                   filler);
    assert_int_equal(system(command), 0);
    put("web");
    assert_true(running_start(&r, false, NULL, RUNNING_ARGS("--textfile", file)));
    assert_true(running_until_line(&r, "event=textfile", "No space left on device"));
    assert_true(running_value(&r, "vramcap_peak_bytes", "web") == PEAK);
    assert_int_not_equal(access(file, F_OK), 0);
    assert_int_equal(unlink(filler), 0);
    (void)snprintf(command, sizeof command, "grep -q '^vramcap_peak_bytes' '%s' 2>/dev/null", file);
    bool written = false;
    for (int i = 0; i < 3000 && !written; i++) { /* within five seconds, as a rule */
        (void)usleep(10000);
        written = system(command) == 0;
    }
    assert_true(written);
    assert_int_equal(running_lines(&r, "event=textfile", ""), 1);
    (void)snprintf(command, sizeof command, "test \"$(ls -A '%s')\" = x.prom", folder);
    assert_int_equal(running_stop(&r, SIGTERM), 0);
    int left = system(command);
    (void)umount2(folder, MNT_DETACH);
    assert_int_equal(left, 0); /* no piece of an attempt is left behind */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_hostile_file_is_reported_and_delays_nobody),
        TEST(names_with_anything_in_them_are_labels_of_their_own),
        TEST(thousands_of_files_are_too_many_and_it_says_so),
        TEST(ledgers_that_say_all_they_can_fit_into_its_memory),
        TEST(clients_that_do_not_read_hold_no_more_than_the_unit_has),
        TEST(a_ledger_replaced_while_it_is_read_is_one_or_the_other),
        TEST(log_lines_never_go_into_another_file),
        TEST(without_room_for_its_state_it_goes_on),
        TEST(a_text_file_that_cannot_be_written_is_said_once_and_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
