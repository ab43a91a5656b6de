/*
 * Times one cuMemAlloc_v2 + cuMemFree_v2 pair with LIVE other allocations held, in nanoseconds,
 * through whatever driver the loader finds: the simulated one, bare or with libvramcap.so in front
 * of it.
 *
 *     alloc_pair LIVE PAIRS [info]
 *
 * Prints one number: the mean over PAIRS pairs (or calls of cuMemGetInfo_v2).  bench/run.sh runs it
 * alternately with and without the library and takes medians.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *driver;

static void *entry(const char *name)
{
    void *found = dlsym(driver, name);

    if (found == NULL) {
        fprintf(stderr, "alloc_pair: %s: %s\n", name, dlerror());
        exit(2);
    }
    return found;
}

static void check(const char *what, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "alloc_pair: %s: error %d\n", what, (int)result);
        exit(2);
    }
}

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    CUresult (*init)(unsigned int), (*create)(CUcontext *, unsigned int, CUdevice);
    CUresult (*alloc)(CUdeviceptr *, size_t), (*release)(CUdeviceptr), (*info)(size_t *, size_t *);
    unsigned long live = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    unsigned long pairs = argc > 2 ? strtoul(argv[2], NULL, 10) : 1000000;
    CUdeviceptr pointer;
    size_t free_bytes, total_bytes;
    CUcontext context;
    double begin;

    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "alloc_pair: %s\n", dlerror());
        return 2;
    }
    init = (CUresult(*)(unsigned int))entry("cuInit");
    create = (CUresult(*)(CUcontext *, unsigned int, CUdevice))entry("cuCtxCreate_v2");
    alloc = (CUresult(*)(CUdeviceptr *, size_t))entry("cuMemAlloc_v2");
    release = (CUresult(*)(CUdeviceptr))entry("cuMemFree_v2");
    info = (CUresult(*)(size_t *, size_t *))entry("cuMemGetInfo_v2");
    check("cuInit", init(0));
    check("cuCtxCreate_v2", create(&context, 0, 0));
    for (unsigned long i = 0; i + 1 < live; i++)
        check("cuMemAlloc_v2", alloc(&pointer, 4096)); /* held until the end */
    begin = now_ns();
    if (argc > 3 && strcmp(argv[3], "info") == 0) {
        for (unsigned long i = 0; i < pairs; i++)
            check("cuMemGetInfo_v2", info(&free_bytes, &total_bytes));
    } else {
        for (unsigned long i = 0; i < pairs; i++) {
            check("cuMemAlloc_v2", alloc(&pointer, 4096));
            check("cuMemFree_v2", release(pointer));
        }
    }
    printf("%.1f\n", (now_ns() - begin) / (double)pairs);
    return 0;
}
