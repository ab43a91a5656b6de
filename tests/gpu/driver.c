/* The driver by name; see driver.h. */
#include "tests/gpu/driver.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gpu_driver gpu;

const char gpu_empty_kernel[] = ".version 6.0\n"
                                ".target sm_50\n"
                                ".address_size 64\n"
                                ".visible .entry nothing() { ret; }\n";

bool gpu_open(void)
{
    gpu.library = dlopen("libcuda.so.1", RTLD_NOW);
    if (gpu.library == NULL)
        return false;
#define F(name) gpu.name = (__typeof__(gpu.name))(uintptr_t)dlsym(gpu.library, #name);
#include "tests/gpu/driver.def"
    return gpu.cuInit != NULL;
}

void gpu_folder(char *folder, size_t size)
{
    char real[PATH_MAX] = "";
    const char *end;
    Dl_info where;

    folder[0] = 0;
    if (dladdr((void *)(uintptr_t)dlsym(gpu.library, "cuDeviceGetCount"), &where) == 0 ||
        where.dli_fname == NULL || realpath(where.dli_fname, real) == NULL)
        return;
    end = strrchr(real, '/');
    snprintf(folder, size, "%.*s", end == NULL ? 0 : (int)(end - real), real);
}

void gpu_uuid_text(CUdevice device, char text[64])
{
    CUuuid uuid;
    size_t used = 0;

    text[0] = 0;
    if ((gpu.cuDeviceGetUuid_v2 == NULL || gpu.cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS) &&
        (gpu.cuDeviceGetUuid == NULL || gpu.cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS))
        return;
    used = (size_t)snprintf(text, 64, "GPU-");
    for (unsigned i = 0; i < 16; i++)
        used += (size_t)snprintf(text + used, 64 - used, "%s%02x",
                                 i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                                 (unsigned char)uuid.bytes[i]);
}
