/*
 * Random damage: the reader and both faces of `vramcap dump` on 2,000 corruptions of a valid image,
 * then on a file that another process damages, truncates and extends while it is read.  Never a
 * crash, a hang, a sanitizer's complaint, or a number that cannot be.  Built with ASan and UBSan
 * whatever the rest of the build has.  Arguments: [SEED]; it is printed.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/cli/dump.h"
#include "enforcer/ledger_read.h"
#include "tests/cli/ledger_image.h"

#define ROUNDS 2000
#define RACED_ROUNDS 500
#define SEEN_LEAST 20 /* good and untrusted snapshots, or the race says nothing */
#define AMOUNT_MAX (VCAP_LF_UNITS_MAX * VCAP_LF_UNIT_BYTES)
#define SLOW_S 5.0 /* for one read; a tenth of a second is what lock checks may take */

static uint64_t random_state;
static FILE *sink;
static unsigned good, untrusted;

static uint64_t next_random(void) /* xorshift64 */
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static uint64_t below(uint64_t limit)
{
    return next_random() % limit;
}

static void make_image(struct image *m)
{
    image_init(m);
    image_gpu(m, 0, 4096, VCAP_LF_SOURCE_ENV);
    image_gpu(m, 1, UINT64_MAX, VCAP_LF_SOURCE_NONE);
    image_gpu(m, 3, 8192, VCAP_LF_SOURCE_HOST);
    image_process(m, 0, 0, 100, "a");
    image_process(m, 2, 0, 200, "b");
    image_process(m, 2, 3, 300, "b");
    image_process(m, 7, 1, 400, "c");
    for (int i = 0; i < 30; i++)
        (void)image_event(m, (enum vcap_lf_event_kind)(1 + i % 9), "cuMemAlloc_v2");
}

static uint64_t interesting(void)
{
    static const uint64_t values[] = {0,          1,          2,          UINT64_MAX, INT64_MAX,
                                      1ull << 63, 0xffffffff, 1ull << 32, 4095,       4097};
    uint64_t v = values[below(sizeof values / sizeof *values)];
    return below(3) ? v : next_random() >> below(64);
}

static void damage(unsigned char *bytes, size_t size)
{
    for (uint64_t n = 1 + below(8); n > 0; n--) {
        uint64_t value = interesting();
        size_t at = below(4) ? below(size - 8) & ~(size_t)7 : below(256) & ~(size_t)7;
        switch (below(4)) {
        case 0:
            bytes[below(size)] = (unsigned char)value;
            break;
        case 1:
            memcpy(bytes + at + (below(2) ? 4 : 0), &value, 4);
            break;
        case 2:
            memcpy(bytes + at, &value, 8);
            break;
        case 3:
            bytes[at + below(8)] ^= (unsigned char)(1u << below(8));
            break;
        }
    }
}

static bool is_text(const char *text, size_t size)
{
    size_t n = strnlen(text, size);
    for (size_t i = 0; i < n; i++)
        if (text[i] < 0x20 || text[i] > 0x7e)
            return false;
    return n < size;
}

static const char *what_cannot_be(const struct vcap_snapshot *s)
{
    for (uint32_t i = 0; i < s->gpu_count; i++) {
        const struct vcap_snapshot_gpu *g = &s->gpus[i];
        if (g->charged_bytes > AMOUNT_MAX || g->peak_bytes > AMOUNT_MAX ||
            (g->ceiling_bytes != VCAP_NO_LIMIT && g->free_bytes > g->ceiling_bytes))
            return "an amount of a GPU";
    }
    for (uint32_t i = 0; i < s->process_count; i++) {
        const struct vcap_snapshot_process *p = &s->processes[i];
        if (!is_text(p->command, sizeof p->command))
            return "a command";
        for (uint32_t k = 0; k < p->charge_count; k++)
            if (p->charges[k].gpu >= s->gpu_count)
                return "a GPU number";
    }
    for (uint32_t i = 0; i < s->event_count; i++)
        if (!is_text(s->events[i].name, sizeof s->events[i].name) ||
            (s->events[i].gpu != UINT32_MAX && s->events[i].gpu >= s->gpu_count) ||
            (i > 0 && s->events[i].sequence <= s->events[i - 1].sequence))
            return "an event";
    if (s->events_lost > s->event_next)
        return "the number of lost events";
    return NULL;
}

static int read_once(const char *path, unsigned round)
{
    struct vcap_snapshot snapshot;
    struct timespec start, end;
    char why[256] = "";
    (void)clock_gettime(CLOCK_MONOTONIC, &start);
    const struct vcap_read_wish wish = {.taken_only = round % 2 != 0, .events_from = round % 7};
    int fd = vcap_ledger_read_open(path, why, sizeof why);
    int error = fd < 0 ? fd : vcap_snapshot_read_wish(fd, &wish, &snapshot, why, sizeof why);
    if (fd >= 0)
        (void)close(fd);
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    double took = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
    const char *problem = took > SLOW_S ? "the time it took" : NULL;
    if (error == 0) {
        good++;
        if (!problem)
            problem = what_cannot_be(&snapshot);
        if (vcap_dump_table(&snapshot, path, sink, false) != 0 ||
            vcap_dump_json(&snapshot, sink, true) != 0)
            problem = "the output";
        vcap_snapshot_free(&snapshot);
    } else if (error == -EINVAL && *why && is_text(why, sizeof why)) {
        untrusted++;
    } else {
        problem = "the answer";
    }
    if (problem)
        (void)printf("round %u: %s (%d %s)\n", round, problem, error, why);
    return problem ? 1 : 0;
}

/* Damages the file in place, its length too, and lets slots change hands, until it is killed. */
static void vandal(const char *path, const struct image *clean)
{
    static struct image m;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    for (;;) {
        m = *clean;
        for (unsigned i = 0; i < IMAGE_SLOTS; i++)
            m.slots[i].pid = 100 + i;
        if (below(8) == 0)
            damage((unsigned char *)&m, sizeof m);
        (void)!pwrite(fd, &m, sizeof m, 0);
        for (unsigned i = 0; i < 200; i++) {
            enum vcap_lf_status status = (enum vcap_lf_status)below(3);
            uint64_t state = vcap_lf_state(below(1000), VCAP_LF_KIND_LOCK, status);
            off_t at = (off_t)offsetof(struct image, slots) + 128 * (off_t)(i % IMAGE_SLOTS);
            (void)!pwrite(fd, &state, sizeof state, at);
        }
        if (below(8) == 0)
            (void)!ftruncate(fd, (off_t)below(2 * sizeof m));
        (void)!ftruncate(fd, sizeof m);
    }
}

int main(int argc, char **argv)
{
    static struct image clean, damaged;
    char folder[64], path[128];
    int failures = 0;
    random_state = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
    random_state += random_state == 0;
    (void)printf("seed %llu\n", (unsigned long long)random_state);
    (void)fflush(stdout);
    (void)alarm(100); /* a hang is a failure */
    sink = fopen("/dev/null", "w");
    if (!sink || !image_folder(folder))
        return 2;
    (void)snprintf(path, sizeof path, "%s/ledger", folder);
    make_image(&clean);

    for (unsigned round = 0; round < ROUNDS; round++) {
        damaged = clean;
        if (round > 0)
            damage((unsigned char *)&damaged, sizeof damaged);
        size_t size = below(20) ? sizeof damaged : below(sizeof damaged);
        if (image_write(&damaged, size, path) != 0)
            return 2;
        int lock = size == sizeof damaged && below(2) ? image_live(path, 2) : -1;
        failures += read_once(path, round);
        if (lock >= 0)
            (void)close(lock);
    }
    (void)printf("%u good, %u untrusted\n", good, untrusted);
    if (good < 100 || untrusted < 100) {
        (void)printf("the damage is too small or too large to say anything\n");
        failures++;
    }

    const unsigned calm_good = good, calm_untrusted = untrusted;
    (void)image_write(&clean, sizeof clean, path);
    pid_t pid = fork();
    if (pid == 0)
        vandal(path, &clean);
    /* on a busy machine the vandal may sleep for long in one state: go on until both were seen */
    for (unsigned round = 0; round < RACED_ROUNDS || (round < 40 * RACED_ROUNDS &&
                                                      (good - calm_good < SEEN_LEAST ||
                                                       untrusted - calm_untrusted < SEEN_LEAST));
         round++)
        failures += read_once(path, ROUNDS + round);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    (void)printf("%u good, %u untrusted, with a vandal\n", good - calm_good,
                 untrusted - calm_untrusted);
    if (good - calm_good < SEEN_LEAST || untrusted - calm_untrusted < SEEN_LEAST) {
        (void)printf("the vandal is too lazy or too thorough to say anything\n");
        failures++;
    }
    (void)fclose(sink);
    (void)unlink(path);
    (void)rmdir(folder);
    return failures ? 1 : 0;
}
