/*
 * The driver for the programs of tests/gpu: opened by name, every function by dlsym, so that one binary runs
 * on any driver, bare and under vramcap. A function that the driver lacks is NULL.
 */
#ifndef VRAMCAP_TESTS_GPU_DRIVER_H
#define VRAMCAP_TESTS_GPU_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

struct gpu_driver {
    void *library;
#define F(name) __typeof__(name) *name;
#include "tests/gpu/driver.def"
};

extern struct gpu_driver gpu;
extern const char gpu_empty_kernel[]; /* PTX of `nothing`, a kernel that returns at once */

bool gpu_open(void);
void gpu_folder(char *folder, size_t size); /* of libcuda */
void gpu_uuid_text(CUdevice device, char text[64]);

#endif
