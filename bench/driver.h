/*
 * The driver that the loader finds, by dlopen and dlsym as programs without a link to it do: the simulated
 * one, bare or with libvramcap.so in front of it.  Whatever fails ends the benchmark with exit code 2 and
 * one line: a row that was not measured must not look like one that was.
 */
#ifndef VRAMCAP_BENCH_DRIVER_H
#define VRAMCAP_BENCH_DRIVER_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

#define BENCH_BYTES                                                                                \
    4096 /* of every small allocation: the size that the simulated driver is cheap for */

struct bench_driver {
    void *handle;
    CUresult (*init)(unsigned int);
    CUresult (*context)(CUcontext *, unsigned int, CUdevice);
    CUresult (*current)(CUcontext);
    CUresult (*alloc)(CUdeviceptr *, size_t);
    CUresult (*free)(CUdeviceptr);
    CUresult (*alloc_async)(CUdeviceptr *, size_t, CUstream);
    CUresult (*free_async)(CUdeviceptr, CUstream);
    CUresult (*info)(size_t *, size_t *);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*array_create)(CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
    CUresult (*array_destroy)(CUarray);
    CUresult (*stream_create)(CUstream *, unsigned int);
    CUresult (*stream_synchronize)(CUstream);
    CUresult (*module_load)(CUmodule *, const void *);
    CUresult (*function)(CUfunction *, CUmodule, const char *);
    CUresult (*launch)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
                       unsigned int, unsigned int, unsigned int, CUstream, void **, void **);
    CUresult (*graph_create)(CUgraph *, unsigned int);
    CUresult (*graph_instantiate)(CUgraphExec *, CUgraph, unsigned long long);
    CUresult (*graph_launch)(CUgraphExec, CUstream);
};
extern struct bench_driver bench_driver;

/* Loads the driver, initialises it and makes a context; may be called once in a process. */
void bench_driver_start(void);

void *bench_driver_symbol(const char *name);

_Noreturn void bench_fail(const char *what, int code);

static inline void bench_check(const char *what, CUresult result)
{
    if (__builtin_expect(result != CUDA_SUCCESS, 0))
        bench_fail(what, (int)result);
}

double bench_now_ns(void);

/* The median of count values, which are sorted. */
double bench_median(double *values, size_t count);

__attribute__((noinline)) void bench_counted(void (*operation)(unsigned long count),
                                             unsigned long count);

/* ---- the rows, each a number (or two) on stdout: calls.c, crowd.c, start.c ---- */

/* A name and its arguments; false: no such row there. */
bool bench_calls(const char *name, char **argument, unsigned long fixed);
bool bench_crowd(const char *name, char **argument);
bool bench_start(const char *name, char **argument);

#endif
