/*
 * One of many that start at once: starter REPORT GO STAY
 *
 * Waits until descriptor GO is at its end, then cuInit, a context, one allocation; writes the nanoseconds
 * that took (8 bytes, 0: something failed) and those of processor time (8 bytes) to descriptor REPORT, and stays until STAY is at its end.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void await(int fd)
{
    char byte;

    while (read(fd, &byte, 1) > 0)
        ;
}

int main(int argc, char **argv)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*init)(unsigned int);
    CUresult (*create)(CUcontext *, unsigned int, CUdevice);
    CUresult (*alloc)(CUdeviceptr *, size_t);
    CUcontext context;
    CUdeviceptr pointer;
    uint64_t took[2];

    if (argc != 4 || driver == NULL)
        return 2;
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&create = dlsym(driver, "cuCtxCreate_v2");
    *(void **)&alloc = dlsym(driver, "cuMemAlloc_v2");
    await(atoi(argv[2]));
    took[0] = now(CLOCK_MONOTONIC);
    took[1] = now(CLOCK_PROCESS_CPUTIME_ID);
    if (init(0) != CUDA_SUCCESS || create(&context, 0, 0) != CUDA_SUCCESS ||
        alloc(&pointer, 2 << 20) != CUDA_SUCCESS)
        took[0] = 0;
    else
        took[0] = now(CLOCK_MONOTONIC) - took[0];
    took[1] = now(CLOCK_PROCESS_CPUTIME_ID) - took[1];
    if (write(atoi(argv[1]), took, sizeof(took)) != (ssize_t)sizeof(took))
        return 1;
    await(atoi(argv[3]));
    return 0;
}
