/*
 * A library that uses the driver: 512 MiB, then as much again and one more, under a ceiling of 1024.  Loaded
 * by programs of all kinds; needs no header of CUDA's.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

int asker_ask(void);

/* What the three allocations gave, as one number: 2 (out of memory) for the last alone is 2. */
int asker_ask(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    int (*init)(unsigned), (*create)(void **, unsigned, int);
    int (*alloc)(unsigned long long *, size_t);
    unsigned long long pointer;

    if (driver == NULL)
        return -1;
    init = (int (*)(unsigned))(uintptr_t)dlsym(driver, "cuInit");
    create = (int (*)(void **, unsigned, int))(uintptr_t)dlsym(driver, "cuCtxCreate_v2");
    alloc = (int (*)(unsigned long long *, size_t))(uintptr_t)dlsym(driver, "cuMemAlloc_v2");
    if (init == NULL || create == NULL || alloc == NULL || init(0) != 0 ||
        create(&context, 0, 0) != 0)
        return -2;
    return alloc(&pointer, (size_t)512 << 20) * 10000 + alloc(&pointer, (size_t)512 << 20) * 100 +
           alloc(&pointer, (size_t)1 << 20);
}
