/*
 * Rows with threads or processes, and memory.  Children are forked before this process touches the driver
 * and make their own way to it; they end when this process does (PR_SET_PDEATHSIG) or closes the gate.
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/driver.h"

#define LIVE_EACH 100
#define PAIRS_EACH 200000

/* Shared with the children. */
struct gate {
    uint32_t ready, open;
};

static void pause_a_little(void)
{
    const struct timespec t = {0, 200000};

    nanosleep(&t, NULL);
}

static void wait_for(const uint32_t *word, uint32_t value)
{
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value)
        pause_a_little();
}

static struct gate *new_gate(void)
{
    struct gate *gate =
        mmap(NULL, sizeof(*gate), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (gate == MAP_FAILED)
        bench_fail("mmap", -1);
    return gate;
}

static void pairs(unsigned long count)
{
    CUdeviceptr pointer;

    while (count-- > 0) {
        bench_check("cuMemAlloc_v2", bench_driver.alloc(&pointer, BENCH_BYTES));
        bench_check("cuMemFree_v2", bench_driver.free(pointer));
    }
}

static void hold(unsigned long count)
{
    CUdeviceptr pointer;

    while (count-- > 0)
        bench_check("cuMemAlloc_v2", bench_driver.alloc(&pointer, BENCH_BYTES));
}

/* The cores that n workers can keep busy. */
static double cores_for(unsigned long n)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    return cores > 0 && (unsigned long)cores < n ? (double)cores : (double)n;
}

/* ---- threads and processes that allocate at once: nanoseconds of a core per pair ---- */

static struct gate *thread_gate;
static CUcontext shared_context;

static void *thread_body(void *arg)
{
    (void)arg;
    bench_check("cuCtxSetCurrent", bench_driver.current(shared_context));
    hold(LIVE_EACH);
    __atomic_fetch_add(&thread_gate->ready, 1, __ATOMIC_ACQ_REL);
    wait_for(&thread_gate->open, 1);
    pairs(PAIRS_EACH);
    return NULL;
}

static void row_threads(unsigned long count)
{
    pthread_t thread[64];
    double begin;

    if (count == 0 || count > 64)
        bench_fail("threads 1..64", -1);
    thread_gate = new_gate();
    bench_driver_start();
    bench_check("cuCtxGetCurrent", ((CUresult(*)(CUcontext *))bench_driver_symbol(
                                       "cuCtxGetCurrent"))(&shared_context));
    for (unsigned long i = 0; i < count; i++)
        if (pthread_create(&thread[i], NULL, thread_body, NULL) != 0)
            bench_fail("pthread_create", -1);
    wait_for(&thread_gate->ready, (uint32_t)count);
    begin = bench_now_ns();
    __atomic_store_n(&thread_gate->open, 1, __ATOMIC_RELEASE);
    for (unsigned long i = 0; i < count; i++)
        pthread_join(thread[i], NULL);
    printf("%.2f\n", (bench_now_ns() - begin) * cores_for(count) / (double)(count * PAIRS_EACH));
}

/* A child that is given up when its parent ends. */
static bool child(void)
{
    pid_t parent = getpid(), pid = fork();

    if (pid < 0)
        bench_fail("fork", -1);
    if (pid != 0)
        return false;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    return true;
}

static void row_processes(unsigned long count)
{
    struct gate *gate = new_gate();
    double begin;

    for (unsigned long i = 0; i < count; i++) {
        if (!child())
            continue;
        bench_driver_start();
        hold(LIVE_EACH);
        pairs(1000);
        __atomic_fetch_add(&gate->ready, 1, __ATOMIC_ACQ_REL);
        wait_for(&gate->open, 1);
        pairs(PAIRS_EACH);
        _exit(0);
    }
    wait_for(&gate->ready, (uint32_t)count);
    begin = bench_now_ns();
    __atomic_store_n(&gate->open, 1, __ATOMIC_RELEASE);
    for (unsigned long i = 0; i < count; i++) {
        int status = 0;

        if (wait(&status) < 0 || status != 0)
            bench_fail("a process failed", status);
    }
    printf("%.2f\n", (bench_now_ns() - begin) * cores_for(count) / (double)(count * PAIRS_EACH));
}

/*
 * The floor of the row before: what the processor takes to move one word twice, with nothing else done.
 * recorded: each process also writes a word of its own after a move and reads that of whoever moved the
 * total before it, as the ledger must so that a process killed in between costs nobody a byte.
 */
static void floor_pairs(struct gate *shared, unsigned long me, bool recorded)
{
    uint64_t *total = (uint64_t *)(void *)((char *)shared + 4096);
    uint64_t *own = total + 64; /* a cache line apart each */

    for (unsigned long i = 0; i < 2ul * PAIRS_EACH; i++) {
        uint64_t seen = __atomic_load_n(total, __ATOMIC_ACQUIRE), next;

        do {
            if (recorded)
                (void)__atomic_load_n(&own[seen % 64 * 16], __ATOMIC_ACQUIRE);
            next = ((seen >> 6) + (i % 2 == 0 ? 1 : (uint64_t)-1)) << 6 | me;
        } while (!__atomic_compare_exchange_n(total, &seen, next, false, __ATOMIC_SEQ_CST,
                                              __ATOMIC_ACQUIRE));
        if (recorded)
            __atomic_store_n(&own[me * 16], i, __ATOMIC_RELEASE);
    }
}

static void row_floor(unsigned long count, bool recorded)
{
    const size_t bytes = 4096 + 64 * 16 * 8 + 4096;
    struct gate *gate =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double begin;

    if (gate == MAP_FAILED || count == 0 || count > 63)
        bench_fail("floor 1..63", -1);
    for (unsigned long i = 0; i < count; i++) {
        if (!child())
            continue;
        __atomic_fetch_add(&gate->ready, 1, __ATOMIC_ACQ_REL);
        wait_for(&gate->open, 1);
        floor_pairs(gate, i, recorded);
        _exit(0);
    }
    wait_for(&gate->ready, (uint32_t)count);
    begin = bench_now_ns();
    __atomic_store_n(&gate->open, 1, __ATOMIC_RELEASE);
    for (unsigned long i = 0; i < count; i++)
        (void)wait(NULL);
    printf("%.2f\n", (bench_now_ns() - begin) * cores_for(count) / (double)(count * PAIRS_EACH));
}

/* ---- in a ledger that others live in ---- */

/* count processes with a context and one allocation each, idle until this one ends. */
static void residents(unsigned long count)
{
    struct gate *gate = new_gate();

    for (unsigned long i = 0; i < count; i++) {
        if (!child())
            continue;
        bench_driver_start();
        hold(1);
        __atomic_fetch_add(&gate->ready, 1, __ATOMIC_ACQ_REL);
        for (;;)
            pause();
    }
    for (unsigned long waited = 0;
         __atomic_load_n(&gate->ready, __ATOMIC_ACQUIRE) < (uint32_t)count; waited++) {
        if (waitpid(-1, NULL, WNOHANG) > 0 || waited > 300000)
            bench_fail("a resident failed", -1);
        pause_a_little();
    }
}

/* More than the card has: refused by whoever stands in front, else by the driver. */
static void row_refusal(unsigned long count, unsigned long times)
{
    static double ns[4096];
    CUdeviceptr pointer;
    size_t done;

    residents(count - 1);
    bench_driver_start();
    hold(1);
    if (times > 4096)
        times = 4096;
    for (done = 0; done < times; done++) {
        double begin = bench_now_ns();
        CUresult result = bench_driver.alloc(&pointer, (size_t)1 << 40);

        ns[done] = bench_now_ns() - begin;
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            bench_fail("a refusal", (int)result);
    }
    printf("%.1f\n", bench_median(ns, done));
}

/* From cuInit to the first allocation's end, in a process that is the count-th in the ledger. */
static void row_attach(unsigned long count)
{
    static double ns[64];
    char self[400], command[600];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    size_t done = 0;

    if (length <= 0)
        bench_fail("/proc/self/exe", -1);
    self[length] = 0;
    snprintf(command, sizeof(command), "exec '%s' attach-once", self);
    residents(count - 1);
    for (; done < 15; done++) {
        FILE *answer;

        answer = popen(command, "r");
        if (answer == NULL || fscanf(answer, "%lf", &ns[done]) != 1 || pclose(answer) != 0)
            bench_fail("attach-once", -1);
    }
    printf("%.0f\n", bench_median(ns, done));
}

static void row_attach_once(void)
{
    double begin = bench_now_ns();

    bench_driver_start();
    hold(1);
    printf("%.0f\n", bench_now_ns() - begin);
}

/* ---- memory ---- */

/* Bytes that this process alone has: not those of files that it maps, unless it wrote its own copy. */
static double private_bytes(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[200];
    double kib, sum = 0;

    if (file == NULL) {
        bench_fail("/proc/self/smaps_rollup", -1);
        return 0;
    }
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "Anonymous: %lf", &kib) == 1)
            sum += kib * 1024;
    fclose(file);
    return sum;
}

/* "process allocation": bytes of a process with one allocation, and per further one. */
static void row_memory(unsigned long live)
{
    double first, all;

    bench_driver_start();
    hold(1);
    pairs(1);
    first = private_bytes();
    hold(live);
    all = private_bytes();
    printf("%.0f %.2f\n", first, (all - first) / (double)live);
}

bool bench_crowd(const char *name, char **argument)
{
    unsigned long count = argument[0] == NULL ? 1 : strtoul(argument[0], NULL, 10);

    if (strcmp(name, "threads") == 0)
        row_threads(count);
    else if (strcmp(name, "processes") == 0)
        row_processes(count);
    else if (strcmp(name, "floor") == 0 || strcmp(name, "floor-recorded") == 0)
        row_floor(count, strcmp(name, "floor") != 0);
    else if (strcmp(name, "refusal") == 0)
        row_refusal(count, argument[0] == NULL || argument[1] == NULL
                               ? 2000
                               : strtoul(argument[1], NULL, 10));
    else if (strcmp(name, "attach") == 0)
        row_attach(count);
    else if (strcmp(name, "attach-once") == 0)
        row_attach_once();
    else if (strcmp(name, "memory") == 0)
        row_memory(count);
    else
        return false;
    return true;
}
