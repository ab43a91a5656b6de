/* Opening libcuda.so.1, and the few helpers that both samples need; see driver.h. */
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct driver driver;

static bool find_function(void *library, const char *program, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    if (!symbol) {
        fprintf(stderr, "%s: libcuda.so.1 has no %s\n", program, name);
        return false;
    }
    memcpy(function, &symbol, sizeof symbol);
    return true;
}

static bool find_functions(void *library, const char *program)
{
/* Two steps, so that the name is expanded by cuda.h before it becomes a string. */
#define DRIVER_STRING(name) #name
#define DRIVER_FIND(name)                                                                          \
    if (!find_function(library, program, DRIVER_STRING(name), &driver.name))                       \
        return false;
    DRIVER_FUNCTIONS(DRIVER_FIND)
    return true;
}

bool driver_open(const char *program)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult result;
    int count = 0;

    if (!library) {
        fprintf(stderr, "%s: no NVIDIA driver: %s\n", program, dlerror());
        return false;
    }
    if (!find_functions(library, program))
        return false;
    result = driver.cuInit(0);
    if (result == CUDA_SUCCESS)
        result = driver.cuDeviceGetCount(&count);
    if (result == CUDA_SUCCESS && count == 0)
        result = CUDA_ERROR_NO_DEVICE;
    if (result == CUDA_SUCCESS)
        result = driver.cuDeviceGet(&driver.device, 0);
    if (result == CUDA_SUCCESS)
        result = driver.cuDeviceGetName(driver.device_name, (int)sizeof driver.device_name,
                                        driver.device);
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: no usable GPU: %s\n", program, driver_error_name(result));
        return false;
    }
    return true;
}

CUresult driver_start(void)
{
    CUcontext context = NULL;
    CUresult result = driver.cuDevicePrimaryCtxRetain(&context, driver.device);

    return result == CUDA_SUCCESS ? driver.cuCtxSetCurrent(context) : result;
}

const char *driver_error_name(CUresult result)
{
    const char *name = NULL;

    if (driver.cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        return "unknown error";
    return name;
}

double seconds_since_start(void)
{
    static struct timespec start;
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    if (start.tv_sec == 0 && start.tv_nsec == 0)
        start = now;
    return (double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) / 1e9;
}

unsigned long option_number(const char *program, const char *option, const char *value)
{
    char *end = NULL;
    unsigned long number;

    errno = 0;
    number = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno || number > 1U << 24) {
        fprintf(stderr, "%s: --%s wants a number, not '%s'\n", program, option, value);
        exit(2);
    }
    return number;
}
