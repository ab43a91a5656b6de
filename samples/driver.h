/*
 * The CUDA Driver API as the samples use it: libcuda.so.1 opened at run time and looked up by name,
 * as most frameworks do, so that the same binary runs on a GPU and on the simulated one.
 */
#ifndef VRAMCAP_SAMPLES_DRIVER_H
#define VRAMCAP_SAMPLES_DRIVER_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define MIB ((size_t)1 << 20)

/* cuda.h renames several of these to the newest ABI; the look-up below then asks for that name. */
#define DRIVER_FUNCTIONS(F)                                                                        \
    F(cuInit)                                                                                      \
    F(cuDeviceGetCount)                                                                            \
    F(cuDeviceGet)                                                                                 \
    F(cuDeviceGetName)                                                                             \
    F(cuDevicePrimaryCtxRetain)                                                                    \
    F(cuDevicePrimaryCtxRelease)                                                                   \
    F(cuCtxSetCurrent)                                                                             \
    F(cuCtxSynchronize)                                                                            \
    F(cuMemGetInfo)                                                                                \
    F(cuMemAlloc)                                                                                  \
    F(cuMemFree)                                                                                   \
    F(cuMemsetD8)                                                                                  \
    F(cuGetErrorName)

struct driver {
#define DRIVER_MEMBER(name) __typeof__(&name) name;
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
    CUdevice device;
    char device_name[64];
};

extern struct driver driver;

/* Opens the driver, finds the first device. False, with one line on stderr, where there is none. */
bool driver_open(const char *program);

/* Makes the first device's primary context current. */
CUresult driver_start(void);

const char *driver_error_name(CUresult result);

/* Seconds since the first call, by the monotonic clock. */
double seconds_since_start(void);

/* "value" of a numeric option; leaves the program with status 2 where it is not a number. */
unsigned long option_number(const char *program, const char *option, const char *value);

#endif
