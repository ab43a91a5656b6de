/*
 * Another preloaded library that stands in front of cuMemAlloc_v2 and goes on to whatever RTLD_NEXT
 * or the driver's own handle gives it (INTERPOSER_BY=handle).
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef int (*alloc_function)(unsigned long long *pointer, size_t bytes);

int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);
int interposer_calls(void);

static int calls;
static __thread int depth;

int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes)
{
    const char *by = getenv("INTERPOSER_BY");
    void *from =
        by != NULL && strcmp(by, "handle") == 0 ? dlopen("libcuda.so.1", RTLD_NOW) : RTLD_NEXT;
    alloc_function next = (alloc_function)dlsym(from, "cuMemAlloc_v2");
    int result;

    if (next == NULL)
        return 999;
    if (depth > 3)
        return 998; /* we are called in a circle */
    calls++;
    depth++;
    result = next(pointer, bytes);
    depth--;
    return result;
}

int interposer_calls(void)
{
    return calls;
}
