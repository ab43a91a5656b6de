/*
 * The driver as a program reaches it: a table of functions (api.def) filled in one of three ways.
 *     link      the program is linked with -lcuda (only where TEST_LINKED is defined)
 *     dlsym     dlopen("libcuda.so.1"), dlsym of each suffixed name, as CuPy and XLA do
 *     getproc   dlopen, dlsym of cuGetProcAddress_v2, the rest through it by base name and the
 * version that introduced each ABI, as libcudart 13 does
 */
#ifndef VRAMCAP_TESTS_SUPPORT_API_H
#define VRAMCAP_TESTS_SUPPORT_API_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaTypedefs.h>
#include <stdbool.h>

struct test_api {
#define F(base, since, suffix) PFN_##base##_v##since base##suffix;
#include "tests/support/api.def"
};

/* False, and a line on stderr: no driver, or not that way.  Functions that this driver lacks are
 * NULL. */
bool test_api_bind(struct test_api *api, const char *how);

#endif
