/*
 * A program without the driver: churn ASKED LIBRARY...
 * One thread for each LIBRARY loads and unloads it; the main thread looks a name that begins like
 * the driver's up in ASKED.  Exit status: 0, or 1 for a wrong answer.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define THREADS_MAX 8
#define TIME_NS INT64_C(950000000)

static atomic_bool stop;

static void *load_and_unload(void *path)
{
    while (!atomic_load(&stop)) {
        void *handle = dlopen(path, RTLD_NOW);

        if (handle == NULL || dlclose(handle) != 0)
            return path;
    }
    return NULL;
}

static int64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int main(int argc, char **argv)
{
    int64_t end = now() + TIME_NS;
    pthread_t threads[THREADS_MAX];
    unsigned count = 0, wrong = 0;
    void *asked = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;

    if (asked == NULL)
        return 2;
    for (int i = 2; i < argc && count < THREADS_MAX; i++)
        if (pthread_create(&threads[count], NULL, load_and_unload, argv[i]) == 0)
            count++;
    while (now() < end)
        for (int i = 0; i < 100; i++) {
            wrong += dlsym(asked, "curl_easy_init") == NULL;
            wrong += dlsym(asked, "cuNoSuchThing") != NULL;
        }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < count; i++) {
        void *failed = NULL;

        pthread_join(threads[i], &failed);
        wrong += failed != NULL;
    }
    return wrong == 0 && count > 0 ? 0 : 1;
}
