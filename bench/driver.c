/*
 * Loads the driver's entry points by name.  See driver.h.
 */
#include "bench/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct bench_driver bench_driver;

void bench_fail(const char *what, int code)
{
    fprintf(stderr, "bench: %s: %d\n", what, code);
    exit(2);
}

void *bench_driver_symbol(const char *name)
{
    void *found = dlsym(bench_driver.handle, name);

    if (found == NULL)
        bench_fail(name, -1);
    return found;
}

void bench_driver_start(void)
{
    struct bench_driver *d = &bench_driver;
    CUcontext context;

    d->handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (d->handle == NULL)
        bench_fail("libcuda.so.1 cannot be loaded", -1);
#define ENTRY(member, name) d->member = (__typeof__(d->member))bench_driver_symbol(name)
    ENTRY(init, "cuInit");
    ENTRY(context, "cuCtxCreate_v2");
    ENTRY(current, "cuCtxSetCurrent");
    ENTRY(alloc, "cuMemAlloc_v2");
    ENTRY(free, "cuMemFree_v2");
    ENTRY(alloc_async, "cuMemAllocAsync");
    ENTRY(free_async, "cuMemFreeAsync");
    ENTRY(info, "cuMemGetInfo_v2");
    ENTRY(reserve, "cuMemAddressReserve");
    ENTRY(create, "cuMemCreate");
    ENTRY(map, "cuMemMap");
    ENTRY(unmap, "cuMemUnmap");
    ENTRY(release, "cuMemRelease");
    ENTRY(array_create, "cuArrayCreate_v2");
    ENTRY(array_destroy, "cuArrayDestroy");
    ENTRY(stream_create, "cuStreamCreate");
    ENTRY(stream_synchronize, "cuStreamSynchronize");
    ENTRY(module_load, "cuModuleLoadData");
    ENTRY(function, "cuModuleGetFunction");
    ENTRY(launch, "cuLaunchKernel");
    ENTRY(graph_create, "cuGraphCreate");
    ENTRY(graph_instantiate, "cuGraphInstantiateWithFlags");
    ENTRY(graph_launch, "cuGraphLaunch");
#undef ENTRY
    bench_check("cuInit", d->init(0));
    bench_check("cuCtxCreate_v2", d->context(&context, 0, 0));
}

double bench_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double bench_median(double *values, size_t count)
{
    if (count == 0)
        bench_fail("nothing was measured", -1);
    qsort(values, count, sizeof(*values), ascending);
    return values[count / 2];
}
