/*
 * Compiled into each program that wants it, for "link" depends on the program.
 */
#include "tests/support/api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#ifdef TEST_LINKED
static bool by_link(struct test_api *api)
{
#define F(base, since, suffix) api->base##suffix = base##suffix;
#include "tests/support/api.def"
    return true;
}
#endif

static void *driver(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);

    if (handle == NULL)
        fprintf(stderr, "%s\n", dlerror());
    return handle;
}

static bool by_dlsym(struct test_api *api)
{
    void *handle = driver();

    if (handle == NULL)
        return false;
#define F(base, since, suffix)                                                                     \
    api->base##suffix = (PFN_##base##_v##since)(uintptr_t)dlsym(handle, #base #suffix);
#include "tests/support/api.def"
    return true;
}

static bool by_getproc(struct test_api *api)
{
    void *handle = driver(), *found;
    PFN_cuGetProcAddress_v12000 get = NULL;

    if (handle != NULL)
        get = (PFN_cuGetProcAddress_v12000)(uintptr_t)dlsym(handle, "cuGetProcAddress_v2");
    if (get == NULL)
        return false;
#define F(base, since, suffix)                                                                     \
    found = NULL;                                                                                  \
    api->base##suffix = get(#base, &found, since, 0, NULL) == CUDA_SUCCESS                         \
                            ? (PFN_##base##_v##since)(uintptr_t)found                              \
                            : NULL;
#include "tests/support/api.def"
    return true;
}

bool test_api_bind(struct test_api *api, const char *how)
{
    memset(api, 0, sizeof(*api));
#ifdef TEST_LINKED
    if (strcmp(how, "link") == 0)
        return by_link(api);
#endif
    if (strcmp(how, "dlsym") == 0)
        return by_dlsym(api);
    if (strcmp(how, "getproc") == 0)
        return by_getproc(api);
    fprintf(stderr, "no way '%s' to the driver here\n", how);
    return false;
}
