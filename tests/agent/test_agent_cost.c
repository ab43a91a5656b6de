/*
 * What a scrape costs: 200 ledgers of the usual size with 8 living processes each, then 1,000.  Asserted
 * are processor time, which a busy machine does not lengthen by much, memory, and that five times the
 * ledgers cost no more than some eight times.  What was measured is printed; the bars that are for a
 * quiet machine are those of bench/table.py, which asks for the figures alone.
 *
 *     test_agent_cost [ROUNDS]
 *     test_agent_cost --figures [ROUNDS]
 *
 * prints, for 200 ledgers and then for 1,000: ns from request to answer, ns of processor time, bytes of
 * memory (the most resident so far); medians of ROUNDS scrapes.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/ledger.h"
#include "tests/agent/running.h"
#include "tests/cli/ledger_image.h"
#include "tests/support/skip.h"

#define PROCESSES 8u
#define SOME 200u
#define ALL 1000u
#define BOUND_MS 60.0 /* three times what a quiet machine must answer in */
#define MEMORY_KIB 20480.0
#define ROUNDS_MAX 200u

static struct running r;
static unsigned rounds = 20;
static bool figures_alone;

/* A ledger in which eight processes live, each with 100 MiB on one GPU.  Its locks end with this test. */
static bool make(unsigned number)
{
    char name[32];
    (void)snprintf(name, sizeof name, "c%u", number);
    const char *path = running_ledger(&r, name);
    if (vcap_ledger_create(path, NULL, 0, "", name) != 0)
        return false;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0)
        return false;
    char *m = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (m == MAP_FAILED)
        return false;
    const struct vcap_lf_header *h = (const void *)m;
    struct vcap_lf_gpu *gpu = (void *)(m + h->gpu_offset);
    gpu->claim = 1;
    gpu->ceiling = vcap_lf_ceiling(IMAGE_UNITS(4096), VCAP_LF_SOURCE_ENV);
    for (unsigned i = 0; i < 16; i++)
        gpu->uuid[i] = (uint8_t)i;
    for (uint32_t s = 0; s < PROCESSES; s++) {
        struct vcap_lf_slot *slot = (void *)(m + h->slot_offset + (size_t)s * h->slot_stride);
        struct vcap_lf_cell *cell =
            (void *)(m + h->cell_offset + (size_t)s * h->gpu_count * h->cell_stride);
        slot->state = vcap_lf_state(1, VCAP_LF_KIND_LOCK, VCAP_LF_LIVE);
        slot->pid = 100 + s;
        slot->pidns = IMAGE_OTHER_PIDNS;
        slot->index_mask = 1;
        cell->charged = vcap_lf_charged(IMAGE_UNITS(100), 5);
        cell->intent = vcap_lf_intent(1, 5);
        cell->overhead_bytes = cell->limit_bytes = UINT64_MAX;
        gpu->total = vcap_lf_total(IMAGE_UNITS(100) * (s + 1), s, 5);
        struct flock lock = {.l_type = F_WRLCK,
                             .l_whence = SEEK_SET,
                             .l_start = VCAP_LF_LOCK_SLOT + (off_t)s,
                             .l_len = 1};
        if (fcntl(fd, F_OFD_SETLK, &lock) != 0)
            return false;
    }
    (void)munmap(m, (size_t)st.st_size);
    return true; /* and fd stays open: the processes live */
}

/* Processor time of all of the agent's threads so far, those that have ended included, in ms. */
static double busy_ms(void)
{
    clockid_t clock;
    struct timespec t = {0};
    if (clock_getcpuclockid(r.pid, &clock) == 0)
        (void)clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static double resident_kib(void)
{
    char path[64], text[8192];
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)r.pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        (void)close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *at = strstr(text, "VmHWM:");
    return at ? strtod(at + 6, NULL) : 0;
}

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int smaller(const void *left, const void *right)
{
    const double *a = left, *b = right;
    return *a < *b ? -1 : *a > *b;
}

/* One scrape's processor time, the median of `rounds`; that of the answer's duration in *answer_ms. */
static double cost_of_scrape(double *answer_ms)
{
    double busy[ROUNDS_MAX] = {0}, took[ROUNDS_MAX] = {0};
    assert_int_equal(running_get(&r, "/metrics"), 200); /* the first one makes room */
    for (unsigned i = 0; i < rounds; i++) {
        (void)usleep(60000); /* so that none is answered with the text of the one before */
        double busy_before = busy_ms(), begin = now_ms();
        assert_int_equal(running_get(&r, "/metrics"), 200);
        took[i] = now_ms() - begin;
        (void)usleep(2000);
        busy[i] = busy_ms() - busy_before;
    }
    qsort(busy, rounds, sizeof *busy, smaller);
    qsort(took, rounds, sizeof *took, smaller);
    *answer_ms = took[rounds / 2];
    return busy[rounds / 2];
}

struct figures {
    double answer_ms, busy_ms, kib;
    size_t bytes; /* of the answer */
};

/* Makes ledgers up to count and measures; false: there is no room for them. */
static bool measure(unsigned from, unsigned count, struct figures *f)
{
    for (unsigned i = from; i < count; i++)
        if (!make(i))
            return false;
    if (!r.pid)
        assert_true(running_start(&r, true, NULL, RUNNING_ARGS("--interval", "3600")));
    f->busy_ms = cost_of_scrape(&f->answer_ms);
    f->kib = resident_kib();
    f->bytes = r.body_length;
    unsigned lines = 0;
    for (const char *at = r.body; (at = strstr(at, "\nvramcap_process_charged_bytes{")); at++)
        lines++;
    assert_int_equal(lines, count * PROCESSES); /* of every one of them */
    return true;
}

static void report(unsigned count, const struct figures *f)
{
    if (figures_alone)
        (void)printf("%.0f %.0f %.0f\n", f->answer_ms * 1e6, f->busy_ms * 1e6, f->kib * 1024);
    else
        print_message("%u ledgers x %u processes: answered in %.2f ms, %.2f ms of processor time, "
                      "%.1f MiB, %zu bytes\n",
                      count, PROCESSES, f->answer_ms, f->busy_ms, f->kib / 1024, f->bytes);
}

static void a_scrape_of_many_ledgers_is_cheap(void **state)
{
    (void)state;
    struct rlimit files;
    struct figures some, all;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max < ALL + 50)
        SKIP_BECAUSE("%u open files are needed", ALL + 50);
    if (!measure(0, SOME, &some))
        SKIP_BECAUSE("no room for %u ledgers", SOME);
    report(SOME, &some);
    if (!measure(SOME, ALL, &all))
        SKIP_BECAUSE("no room for %u ledgers", ALL);
    report(ALL, &all);
    if (figures_alone) /* whoever asked for them judges them */
        return;
    assert_true(some.busy_ms < BOUND_MS);
    assert_true(some.kib < MEMORY_KIB);
    assert_true(all.busy_ms < some.busy_ms * 8 * ALL / SOME / 5);
}

static int setup(void **state)
{
    (void)state;
    /* ledgers of the usual size want memory, not a disk */
    (void)setenv("TMPDIR", "/dev/shm", 0);
    return running_setup(&r) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    running_teardown(&r);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_scrape_of_many_ledgers_is_cheap, setup, teardown),
    };
    figures_alone = argc > 1 && !strcmp(argv[1], "--figures");
    if (argc > 1 + figures_alone)
        rounds = (unsigned)strtoul(argv[1 + figures_alone], NULL, 10);
    if (rounds == 0 || rounds > ROUNDS_MAX)
        rounds = ROUNDS_MAX;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
