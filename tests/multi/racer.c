/*
 * Threads of one process racing to the brim: racer KIND THREADS ROUNDS BLOCK_MIB EXPECTED
 *
 * In every round all threads start together and allocate blocks of KIND (linear, pitched, managed)
 * until they are refused; the sum of what they were granted must be EXPECTED blocks, each refusal
 * the code 2 with its out-parameters untouched; then everything is freed.  Prints "rounds N wrong M
 * odd K", exits 0.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNTOUCHED UINT64_C(0xa5a5a5a5a5a5a5a5)
#define MOST 1024

static CUresult (*set_current)(CUcontext);
static CUresult (*alloc)(CUdeviceptr *, size_t);
static CUresult (*pitched)(CUdeviceptr *, size_t *, size_t, size_t, unsigned int);
static CUresult (*managed)(CUdeviceptr *, size_t, unsigned int);
static CUresult (*release)(CUdeviceptr);

static CUcontext context;
static pthread_barrier_t barrier;
static const char *kind;
static size_t block;
static unsigned rounds, granted, odd, wrong, expected;

static CUresult take(CUdeviceptr *pointer)
{
    size_t pitch = UNTOUCHED;
    CUresult result;

    *pointer = UNTOUCHED;
    if (strcmp(kind, "pitched") == 0)
        result = pitched(pointer, &pitch, 65536, block / 65536, 4); /* a multiple of every pitch */
    else if (strcmp(kind, "managed") == 0)
        result = managed(pointer, block, CU_MEM_ATTACH_GLOBAL);
    else
        result = alloc(pointer, block);
    if (result != CUDA_SUCCESS && (*pointer != UNTOUCHED || pitch != UNTOUCHED))
        __atomic_fetch_add(&odd, 1, __ATOMIC_RELAXED);
    return result;
}

static void *thread_main(void *arg)
{
    CUdeviceptr *mine = calloc(MOST, sizeof(*mine));

    set_current(context);
    for (unsigned round = 0; round < rounds && mine != NULL; round++) {
        unsigned count = 0;
        CUresult result = CUDA_SUCCESS;

        pthread_barrier_wait(&barrier);
        while (count < MOST && (result = take(&mine[count])) == CUDA_SUCCESS)
            count++;
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            __atomic_fetch_add(&odd, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&granted, count, __ATOMIC_RELAXED);
        if (pthread_barrier_wait(&barrier) != 0) { /* one of them is told so */
            wrong += granted != expected;
            granted = 0;
        }
        while (count > 0)
            if (release(mine[--count]) != CUDA_SUCCESS)
                __atomic_fetch_add(&odd, 1, __ATOMIC_RELAXED);
        pthread_barrier_wait(&barrier);
    }
    free(mine);
    return arg;
}

static void *entry(void *driver, const char *name)
{
    void *found = dlsym(driver, name);

    if (found == NULL) {
        fprintf(stderr, "racer: no %s\n", name);
        exit(2);
    }
    return found;
}

int main(int argc, char **argv)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*init)(unsigned int), (*create)(CUcontext *, unsigned int, CUdevice);
    pthread_t thread[64];
    unsigned threads;

    if (argc != 6 || driver == NULL)
        return 2;
    kind = argv[1];
    threads = (unsigned)atoi(argv[2]);
    rounds = (unsigned)atoi(argv[3]);
    block = (size_t)atoi(argv[4]) << 20;
    expected = (unsigned)atoi(argv[5]);
    init = (CUresult(*)(unsigned int))entry(driver, "cuInit");
    create = (CUresult(*)(CUcontext *, unsigned int, CUdevice))entry(driver, "cuCtxCreate_v2");
    set_current = (CUresult(*)(CUcontext))entry(driver, "cuCtxSetCurrent");
    alloc = (CUresult(*)(CUdeviceptr *, size_t))entry(driver, "cuMemAlloc_v2");
    pitched = (CUresult(*)(CUdeviceptr *, size_t *, size_t, size_t, unsigned int))entry(
        driver, "cuMemAllocPitch_v2");
    managed = (CUresult(*)(CUdeviceptr *, size_t, unsigned int))entry(driver, "cuMemAllocManaged");
    release = (CUresult(*)(CUdeviceptr))entry(driver, "cuMemFree_v2");
    if (threads == 0 || threads > 64 || init(0) != CUDA_SUCCESS ||
        create(&context, 0, 0) != CUDA_SUCCESS ||
        pthread_barrier_init(&barrier, NULL, threads) != 0)
        return 2;
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, thread_main, NULL) != 0)
            return 2;
    for (unsigned i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("rounds %u wrong %u odd %u\n", rounds, wrong, odd);
    return 0;
}
