/*
 * Rows of one process and one thread.  An operation is timed in batches of some 50 microseconds, by the
 * thread's own processor time, and the figure is the median of the batches: what else runs on the machine
 * disturbs it little.  Nothing here waits, so that processor time is all the time there is.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/driver.h"

#define BATCHES_MAX 10000
#define BATCH_NS 50000.0
#define ROW_NS 2.5e8

static double thread_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* tests/cost has callgrind count what happens in this function. */
void bench_counted(void (*operation)(unsigned long count), unsigned long count)
{
    operation(count);
    __asm__ volatile(""); /* no tail call: the end of it all is the end of this function */
}

static void report(void (*operation)(unsigned long count), unsigned long fixed)
{
    static double batch_ns[BATCHES_MAX];
    unsigned long per_batch = 1;
    size_t batches = 0;
    double begin, until;

    operation(1); /* what only the first call costs */
    if (fixed != 0) {
        bench_counted(operation, fixed);
        return;
    }
    for (double took = 0; took < BATCH_NS && per_batch < 1000000; per_batch *= 2) {
        begin = thread_ns();
        operation(per_batch);
        took = thread_ns() - begin;
    }
    per_batch = per_batch > 1 ? per_batch / 2 : 1;
    until = thread_ns() + ROW_NS;
    do {
        begin = thread_ns();
        operation(per_batch);
        batch_ns[batches++] = (thread_ns() - begin) / (double)per_batch;
    } while (batches < BATCHES_MAX && thread_ns() < until);
    printf("%.2f\n", bench_median(batch_ns, batches));
}

/* ---- alloc + free ---- */

static CUdeviceptr *held; /* LIVE - 1 pointers */
static unsigned long held_count, held_at;
static uint64_t dice = 88172645463325252u;

static void pair_lifo(unsigned long count)
{
    CUdeviceptr pointer;

    while (count-- > 0) {
        bench_check("cuMemAlloc_v2", bench_driver.alloc(&pointer, BENCH_BYTES));
        bench_check("cuMemFree_v2", bench_driver.free(pointer));
    }
}

static void pair_fifo(unsigned long count)
{
    while (count-- > 0) {
        CUdeviceptr *oldest = &held[held_at], pointer;

        held_at = held_at + 1 == held_count ? 0 : held_at + 1;
        bench_check("cuMemAlloc_v2", bench_driver.alloc(&pointer, BENCH_BYTES));
        bench_check("cuMemFree_v2", bench_driver.free(*oldest));
        *oldest = pointer;
    }
}

static void pair_random(unsigned long count)
{
    while (count-- > 0) {
        CUdeviceptr *any, pointer;

        dice ^= dice << 13; /* xorshift: the same sequence in every run */
        dice ^= dice >> 7;
        dice ^= dice << 17;
        any = &held[(unsigned long)(dice >> 33) % held_count];
        bench_check("cuMemAlloc_v2", bench_driver.alloc(&pointer, BENCH_BYTES));
        bench_check("cuMemFree_v2", bench_driver.free(*any));
        *any = pointer;
    }
}

static void row_pair(char **argument, unsigned long fixed)
{
    const char *order = argument[0];
    unsigned long live = strtoul(argument[1], NULL, 10);

    bench_driver_start();
    held_count = live - 1;
    held = calloc(held_count + 1, sizeof(*held));
    if (held == NULL || live == 0)
        bench_fail("pair ORDER LIVE", -1);
    for (unsigned long i = 0; i < held_count; i++)
        bench_check("cuMemAlloc_v2", bench_driver.alloc(&held[i], BENCH_BYTES));
    report(held_count == 0 || strcmp(order, "lifo") == 0 ? pair_lifo
           : strcmp(order, "fifo") == 0                  ? pair_fifo
                                                         : pair_random,
           fixed);
}

/* ---- other memory ---- */

static CUstream stream;
static CUdeviceptr range;
static CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                         .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
#define PHYSICAL_BYTES ((size_t)2 << 20)

static void async_pair(unsigned long count)
{
    CUdeviceptr pointer;

    while (count-- > 0) {
        bench_check("cuMemAllocAsync", bench_driver.alloc_async(&pointer, BENCH_BYTES, stream));
        bench_check("cuMemFreeAsync", bench_driver.free_async(pointer, stream));
    }
}

static void vmm_round(unsigned long count)
{
    CUmemGenericAllocationHandle handle;

    while (count-- > 0) {
        bench_check("cuMemCreate", bench_driver.create(&handle, PHYSICAL_BYTES, &properties, 0));
        bench_check("cuMemMap", bench_driver.map(range, PHYSICAL_BYTES, 0, handle, 0));
        bench_check("cuMemUnmap", bench_driver.unmap(range, PHYSICAL_BYTES));
        bench_check("cuMemRelease", bench_driver.release(handle));
    }
}

static void array_pair(unsigned long count)
{
    const CUDA_ARRAY_DESCRIPTOR descriptor = {
        .Width = 64, .Height = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CUarray array;

    while (count-- > 0) {
        bench_check("cuArrayCreate_v2", bench_driver.array_create(&array, &descriptor));
        bench_check("cuArrayDestroy", bench_driver.array_destroy(array));
    }
}

static void memory_info(unsigned long count)
{
    size_t free_bytes, total_bytes;

    while (count-- > 0)
        bench_check("cuMemGetInfo_v2", bench_driver.info(&free_bytes, &total_bytes));
}

/* ---- what is not memory ---- */

static CUfunction function;
static CUgraphExec graph_exec;
static void *libc;

static void launch(unsigned long count)
{
    while (count-- > 0)
        bench_check("cuLaunchKernel",
                    bench_driver.launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

static void graph_launch(unsigned long count)
{
    while (count-- > 0)
        bench_check("cuGraphLaunch", bench_driver.graph_launch(graph_exec, stream));
}

static void synchronize(unsigned long count)
{
    while (count-- > 0)
        bench_check("cuStreamSynchronize", bench_driver.stream_synchronize(stream));
}

static void plain_dlsym(unsigned long count)
{
    while (count-- > 0)
        if (dlsym(libc, "strlen") == NULL)
            bench_fail("strlen", -1);
}

static void prepare(void)
{
    CUmodule module;
    CUgraph graph;

    bench_driver_start();
    bench_check("cuStreamCreate", bench_driver.stream_create(&stream, CU_STREAM_NON_BLOCKING));
    bench_check("cuMemAddressReserve", bench_driver.reserve(&range, PHYSICAL_BYTES, 0, 0, 0));
    bench_check("cuModuleLoadData", bench_driver.module_load(&module, "simulated"));
    bench_check("cuModuleGetFunction", bench_driver.function(&function, module, "kernel"));
    bench_check("cuGraphCreate", bench_driver.graph_create(&graph, 0));
    bench_check("cuGraphInstantiate", bench_driver.graph_instantiate(&graph_exec, graph, 0));
    libc = dlopen("libc.so.6", RTLD_LAZY);
    if (libc == NULL)
        bench_fail("libc.so.6", -1);
}

/* ---- the look-ups of a runtime at its start ---- */

struct request {
    char name[120];
    int version;
    unsigned long long flags;
};

/* libcudart's requests, as recorded (tests/data), in a process that has asked for nothing yet. */
static void row_lookups(char **argument, unsigned long fixed)
{
    static struct request requests[1024];
    CUresult (*resolve)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    FILE *file = argument[0] == NULL ? NULL : fopen(argument[0], "r");
    size_t count = 0;
    void *handle, *found;
    double begin;

    if (file == NULL)
        bench_fail("lookups FILE", -1);
    while (count < 1024 && fscanf(file, "%119s %d %llu %*s", requests[count].name,
                                  &requests[count].version, &requests[count].flags) == 3)
        count++;
    fclose(file);
    handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (handle == NULL || count == 0)
        bench_fail("no driver or no requests", -1);
    begin = bench_now_ns();
    resolve = (__typeof__(resolve))dlsym(handle, "cuGetProcAddress_v2");
    if (resolve == NULL)
        bench_fail("cuGetProcAddress_v2", -1);
    for (size_t i = 0; i < (fixed == 0 || fixed > count ? count : fixed); i++)
        resolve(requests[i].name, &found, requests[i].version, requests[i].flags, NULL);
    printf("%.0f\n", bench_now_ns() - begin);
}

bool bench_calls(const char *name, char **argument, unsigned long fixed)
{
    static const struct {
        const char *name;
        void (*operation)(unsigned long count);
    } rows[] = {{"async", async_pair}, {"vmm", vmm_round},    {"array", array_pair},
                {"info", memory_info}, {"launch", launch},    {"graph", graph_launch},
                {"sync", synchronize}, {"dlsym", plain_dlsym}};

    if (strcmp(name, "pair") == 0 && argument[0] != NULL && argument[1] != NULL) {
        row_pair(argument, fixed);
        return true;
    }
    if (strcmp(name, "lookups") == 0) {
        row_lookups(argument, fixed);
        return true;
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(name, rows[i].name) != 0)
            continue;
        prepare();
        report(rows[i].operation, fixed);
        return true;
    }
    return false;
}
