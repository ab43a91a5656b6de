/*
 * Processes and threads that charge and release at random and are killed at random, for
 * VRAMCAP_STORM_SECONDS (15), from VRAMCAP_SEED (printed).
 *
 * Shown: no snapshot of total is over the ceiling; what was really granted (an oracle beside the
 * ledger, raised after a charge has returned and lowered before a release is called, so never too
 * high) is never over it either and always in total; no number goes wrong; in the end a last
 * process gets the whole.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "enforcer/kernel.h"
#include "enforcer/ledger.h"

#define UNIT UINT64_C(512)
#define CEILING 64 /* units */
#define WORKERS 6
#define THREADS 3
#define MOST 12 /* units that one thread holds: WORKERS x THREADS x MOST is above the ceiling */

struct shared {
    uint64_t granted[WORKERS][THREADS]; /* of the worker that now has this place */
    uint64_t seed;
    int stop;
    int failed; /* a line number */
    uint64_t charges, refusals, snapshots, kills;
};

static struct shared *shared;
static char folder[64], path[96];
static struct vcap_ledger ledger;
static int place;

static void fail(int line)
{
    int none = 0;

    __atomic_compare_exchange_n(&shared->failed, &none, line, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int open_ledger(struct vcap_ledger *l, uint32_t what)
{
    char why[160];

    return vcap_ledger_open(l, path, NULL, what, VCAP_LF_MODE_ENFORCE, why, sizeof(why));
}

static int charge(struct vcap_ledger *l, uint64_t units)
{
    return vcap_ledger_charge(l, 0, units * UNIT, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, NULL);
}

static void *charge_and_release(void *arg)
{
    int thread = (int)(intptr_t)arg;
    uint64_t *granted = &shared->granted[place][thread];
    uint64_t random = shared->seed ^ (uint64_t)getpid() << 20 ^ (uint64_t)(thread + 1) << 8;
    uint64_t have = 0, charges = 0, refusals = 0;

    while (!__atomic_load_n(&shared->stop, __ATOMIC_RELAXED)) {
        uint64_t units = 1 + next_random(&random) % 4;

        if (have + units <= MOST && next_random(&random) % 2 == 0) {
            int rc = charge(&ledger, units);

            if (rc == 0) {
                have += units;
                __atomic_store_n(granted, have, __ATOMIC_SEQ_CST);
                charges++;
            } else if (rc == -EDQUOT) {
                refusals++;
            } else {
                fail(__LINE__);
                break;
            }
        } else if (have != 0) {
            units = 1 + next_random(&random) % have;
            have -= units;
            __atomic_store_n(granted, have, __ATOMIC_SEQ_CST);
            if (vcap_ledger_release(&ledger, 0, units * UNIT) != 0) {
                fail(__LINE__);
                break;
            }
        }
        if (charges + refusals > 1000) {
            __atomic_fetch_add(&shared->charges, charges, __ATOMIC_RELAXED);
            __atomic_fetch_add(&shared->refusals, refusals, __ATOMIC_RELAXED);
            charges = refusals = 0;
        }
    }
    return NULL;
}

static void worker(void)
{
    pthread_t threads[THREADS];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (open_ledger(&ledger, VCAP_OPEN_CLAIM) != 0) {
        fail(__LINE__);
        _exit(1);
    }
    for (int t = 1; t < THREADS; t++)
        if (pthread_create(&threads[t], NULL, charge_and_release, (void *)(intptr_t)t) != 0)
            _exit(1);
    charge_and_release((void *)0);
    for (int t = 1; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    _exit(0);
}

static pid_t start_watcher(const struct vcap_ledger *view)
{
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (!__atomic_load_n(&shared->stop, __ATOMIC_RELAXED)) {
        if (vcap_ledger_held(view, 0) > CEILING * UNIT)
            fail(__LINE__);
        shared->snapshots++;
    }
    _exit(0);
}

static pid_t start_worker(int where)
{
    pid_t pid;

    for (int t = 0; t < THREADS; t++)
        __atomic_store_n(&shared->granted[where][t], 0, __ATOMIC_SEQ_CST);
    pid = fork();
    if (pid == 0) {
        place = where;
        vcap_ledger_fork_child();
        vcap_ledger_thread_renew();
        worker();
    }
    return pid;
}

/* Everybody is stopped: what the oracle has was granted, and all of it is in total. */
static void compare_with_oracle(const struct vcap_ledger *view)
{
    uint64_t sum = 0;

    for (int w = 0; w < WORKERS; w++)
        for (int t = 0; t < THREADS; t++)
            sum += __atomic_load_n(&shared->granted[w][t], __ATOMIC_SEQ_CST);
    if (sum > CEILING)
        fail(__LINE__);
    if (sum * UNIT > vcap_ledger_held(view, 0))
        fail(__LINE__);
}

static void stop_and_compare(const pid_t pids[WORKERS], const struct vcap_ledger *view)
{
    for (int w = 0; w < WORKERS; w++)
        kill(pids[w], SIGSTOP);
    for (int w = 0; w < WORKERS; w++) {
        int status;

        while (waitpid(pids[w], &status, WUNTRACED) == pids[w] && !WIFSTOPPED(status))
            if (WIFEXITED(status) || WIFSIGNALED(status)) {
                fail(__LINE__);
                break;
            }
    }
    compare_with_oracle(view);
    for (int w = 0; w < WORKERS; w++)
        kill(pids[w], SIGCONT);
}

static int last_process(void)
{
    int rc = open_ledger(&ledger, VCAP_OPEN_CLAIM);

    if (rc != 0) {
        fprintf(stderr, "storm: the last process has no slot (%d)\n", rc);
        return 1;
    }
    rc = charge(&ledger, CEILING);
    if (rc != 0 || charge(&ledger, 1) != -EDQUOT || vcap_ledger_header(&ledger)->anomalies != 0) {
        fprintf(stderr,
                "storm: the last process gets %d for the whole, %llu units held, %llu anomalies\n",
                rc, (unsigned long long)(vcap_ledger_held(&ledger, 0) / UNIT),
                (unsigned long long)vcap_ledger_header(&ledger)->anomalies);
        return 1;
    }
    return 0;
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

int main(void)
{
    const struct vcap_ledger_size size = {.gpus = 1, .slots = WORKERS + 2, .events = 64};
    const uint8_t uuid[16] = {7};
    struct vcap_ledger view;
    pid_t pids[WORKERS], watcher;
    uint32_t gpu;
    uint64_t random, end;
    int bad;

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(folder, sizeof(folder), "%s/vramcap-storm-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (shared == MAP_FAILED || mkdtemp(folder) == NULL)
        return 2;
    snprintf(path, sizeof(path), "%s/ledger", folder);
    shared->seed = random = number_from("VRAMCAP_SEED", vcap_clock_ns(CLOCK_REALTIME) % 1000000007);
    printf("seed %llu\n", (unsigned long long)random);
    fflush(stdout);
    if (vcap_ledger_create(path, &size, 0, NULL, NULL) != 0 ||
        open_ledger(&view, VCAP_OPEN_MAKE) != 0 ||
        vcap_ledger_gpu(&view, uuid, 0, 0, 0, &gpu) != 0 || gpu != 0)
        return 2;
    vcap_ledger_propose_ceiling(&view, 0, CEILING * UNIT, VCAP_LF_SOURCE_ENV);
    for (int w = 0; w < WORKERS; w++)
        pids[w] = start_worker(w);
    watcher = start_watcher(&view);
    end = vcap_clock_ns(CLOCK_MONOTONIC) +
          number_from("VRAMCAP_STORM_SECONDS", 15) * UINT64_C(1000000000);
    while (vcap_clock_ns(CLOCK_MONOTONIC) < end &&
           __atomic_load_n(&shared->failed, __ATOMIC_SEQ_CST) == 0) {
        int victim = (int)(next_random(&random) % WORKERS);

        usleep((useconds_t)(next_random(&random) % 1500));
        kill(pids[victim], SIGKILL);
        waitpid(pids[victim], NULL, 0);
        pids[victim] = start_worker(victim);
        if (++shared->kills % 16 == 0)
            stop_and_compare(pids, &view);
    }
    __atomic_store_n(&shared->stop, 1, __ATOMIC_SEQ_CST);
    waitpid(watcher, NULL, 0);
    for (int w = 0; w < WORKERS; w++) {
        kill(pids[w], SIGKILL);
        waitpid(pids[w], NULL, 0);
    }
    bad = shared->failed != 0;
    if (bad)
        fprintf(stderr, "storm: failed at line %d\n", shared->failed);
    vcap_ledger_close(&view);
    bad |= last_process();
    printf("%llu kills, %llu charges, %llu refusals, %llu snapshots, %llu reaps and other events\n",
           (unsigned long long)shared->kills, (unsigned long long)shared->charges,
           (unsigned long long)shared->refusals, (unsigned long long)shared->snapshots,
           (unsigned long long)vcap_ledger_header(&ledger)->event_next);
    unlink(path);
    rmdir(folder);
    return bad;
}
