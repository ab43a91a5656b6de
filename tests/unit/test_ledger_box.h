/*
 * What the tests of the ledger share: a directory for each test, processes that do one thing and
 * say how it went in their exit status (children never assert), and a page that all of them see.
 */
#ifndef VRAMCAP_TESTS_UNIT_TEST_LEDGER_BOX_H
#define VRAMCAP_TESTS_UNIT_TEST_LEDGER_BOX_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/skip.h"

#include "enforcer/kernel.h"
#include "enforcer/ledger.h"
#include "enforcer/ledger_reap.h"

#define UNIT UINT64_C(512)
#define BOX_SHARED_WORDS 512

static char box_folder[64], box_path[96], box_why[160];
static uint64_t *box_shared; /* zeroed for each test */

static inline int box_remove(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static inline unsigned long long box_queued_ns(void)
{
    unsigned long long ran = 0, queued = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "re");

    if (file != NULL && fscanf(file, "%llu %llu", &ran, &queued) != 2)
        queued = 0;
    if (file != NULL)
        fclose(file);
    return queued;
}

/* What passed for this thread, less the time in which it could run and others had the processor: what is left
 * it worked or waited for somebody, however busy the machine is. */
static inline uint64_t box_clock_ns(void)
{
    unsigned long long queued, again = box_queued_ns();
    uint64_t now;

    do {
        queued = again;
        now = vcap_clock_ns(CLOCK_MONOTONIC);
        again = box_queued_ns();
    } while (again != queued);
    return now - queued;
}

static inline int box_set_up(void **state)
{
    (void)state;
    snprintf(box_folder, sizeof(box_folder), "%s/vramcap-test-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (mkdtemp(box_folder) == NULL)
        return -1;
    snprintf(box_path, sizeof(box_path), "%s/ledger", box_folder);
    box_shared = mmap(NULL, BOX_SHARED_WORDS * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return box_shared == MAP_FAILED ? -1 : 0;
}

static inline int box_tear_down(void **state)
{
    (void)state;
    munmap(box_shared, BOX_SHARED_WORDS * sizeof(uint64_t));
    return nftw(box_folder, box_remove, 16, FTW_DEPTH | FTW_PHYS);
}

static inline uint64_t box_get(size_t word)
{
    return __atomic_load_n(&box_shared[word], __ATOMIC_SEQ_CST);
}

static inline void box_put(size_t word, uint64_t value)
{
    __atomic_store_n(&box_shared[word], value, __ATOMIC_SEQ_CST);
}

static inline uint64_t box_add(size_t word, uint64_t value)
{
    return __atomic_add_fetch(&box_shared[word], value, __ATOMIC_SEQ_CST);
}

/* How often this thread has slept so far.  Who waits for somebody does, on a fast and on a slow machine. */
static inline long box_sleeps(void)
{
    struct rusage usage;

    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

/* Waits up to 20 s for a word of the shared page. */
static inline bool box_await(size_t word, uint64_t at_least)
{
    for (int i = 0; i < 200000; i++) {
        if (box_get(word) >= at_least)
            return true;
        usleep(100);
    }
    return false;
}

static inline int box_open(struct vcap_ledger *l, uint32_t what)
{
    return vcap_ledger_open(l, box_path, NULL, what, VCAP_LF_MODE_ENFORCE, box_why,
                            sizeof(box_why));
}

static inline int box_charge(struct vcap_ledger *l, uint64_t units)
{
    return vcap_ledger_charge(l, 0, units * UNIT, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, NULL);
}

static inline uint64_t box_held(const struct vcap_ledger *l)
{
    return vcap_ledger_held(l, 0) / UNIT;
}

static inline uint64_t box_charged(const struct vcap_ledger *l)
{
    return vcap_lf_charged_units(
        __atomic_load_n(&vcap_ledger_cell(l, (uint32_t)l->slot, 0)->charged, __ATOMIC_SEQ_CST));
}

/* A ledger with one GPU in row 0 under a ceiling; left closed.  Slots and events as given. */
static inline bool box_make(uint32_t slots, uint64_t ceiling_units)
{
    const struct vcap_ledger_size size = {.gpus = 2, .slots = slots, .events = 64};
    const uint8_t uuid[16] = {1, 2, 3};
    struct vcap_ledger l;
    uint32_t gpu = 99;

    if (vcap_ledger_create(box_path, &size, 0, NULL, NULL) != 0 ||
        box_open(&l, VCAP_OPEN_MAKE) != 0)
        return false;
    if (vcap_ledger_gpu(&l, uuid, 0, 0, 0, &gpu) != 0 || gpu != 0)
        return false;
    vcap_ledger_propose_ceiling(&l, 0, ceiling_units * UNIT, VCAP_LF_SOURCE_ENV);
    vcap_ledger_close(&l);
    return true;
}

typedef int (*box_body)(void *arg);

/* A child that runs body and exits with what it returns; it dies with us. */
static inline pid_t box_start(box_body body, void *arg)
{
    pid_t pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        vcap_ledger_thread_renew();
        _exit(body(arg));
    }
    return pid;
}

/* Its exit status; 1000 + signal if it was killed. */
static inline int box_end(pid_t pid)
{
    int status = 0;

    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static inline int box_run(box_body body, void *arg)
{
    return box_end(box_start(body, arg));
}

/* Opens, takes a slot, charges *(uint64_t *)arg units and dies. */
static inline int box_charge_and_die(void *arg)
{
    struct vcap_ledger l;

    if (box_open(&l, VCAP_OPEN_CLAIM) != 0)
        return 1;
    return box_charge(&l, *(const uint64_t *)arg) == 0 ? 0 : 2;
}

/* Field 22 of a stat file of /proc. */
static inline uint64_t box_start_time(const char *path)
{
    char text[512] = "";
    const char *at;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        if (read(fd, text, sizeof(text) - 1) < 0)
            text[0] = 0;
        close(fd);
    }
    at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

/* Takes a slot, charges *(uint64_t *)arg units, raises word 0 and stays.  Word 10: why not. */
static inline int box_stay(void *arg)
{
    struct vcap_ledger l;
    const uint64_t *units = arg;
    int rc = box_open(&l, VCAP_OPEN_CLAIM);

    if (rc != 0) {
        box_put(10, (uint64_t)-rc);
        box_add(0, 1);
        return 1;
    }
    if (*units != 0 && box_charge(&l, *units) != 0)
        return 2;
    box_add(0, 1);
    for (;;)
        pause();
}

#define BOX_TEST(name) cmocka_unit_test_setup_teardown(name, box_set_up, box_tear_down)

#endif
