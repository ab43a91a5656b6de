/*
 * Another preloaded library that wraps dlsym, as profilers do: finds the next one by dlvsym, and
 * asks for things in its constructor.
 */
#include <dlfcn.h>
#include <stddef.h>

int wrapper_calls(void);

static void *(*next)(void *, const char *);
static int calls;

static void find(void)
{
    static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34"};

    for (size_t i = 0; next == NULL && i < sizeof(versions) / sizeof(versions[0]); i++)
        next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
}

void *dlsym(void *restrict handle, const char *restrict name)
{
    if (next == NULL)
        find();
    __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    return next(handle, name);
}

int wrapper_calls(void)
{
    return calls;
}

__attribute__((constructor)) static void ask_early(void)
{
    (void)dlsym(RTLD_DEFAULT, "malloc");
    (void)dlsym(RTLD_DEFAULT, "cuInit");
    (void)dlsym(RTLD_DEFAULT, "no_such_function_anywhere");
}
