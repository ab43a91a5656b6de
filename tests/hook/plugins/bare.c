/*
 * A program that is not linked with the driver.
 *     bare driverless        asks RTLD_DEFAULT for driver names and calls them
 *     bare quiet LIBRARY     loads LIBRARY, looks names up, says what the process has
 *     bare null              dlsym(handle, NULL)
 *     bare late PATH         loads the driver by PATH, allocates 2 GiB under whatever ceiling there
 * is bare names             one character a row of the table and a few others: 1 the driver has it,
 * 0 not bare args              calls GAP entry points of plugins/args_driver.c
 *     bare unknown           looks up and calls what only plugins/args_driver.c has, says "ready", waits
 * Exit status: 0, or the line of the check that failed (modulo 256).
 */
#include <dirent.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            return __LINE__ % 255 + 1;                                                             \
        }                                                                                          \
    } while (0)

static int driverless(void)
{
    static const char *const names[] = {"cuInit",           "cuMemAlloc_v2",
                                        "cuMemAlloc",       "cuMemFreeAsync_ptsz",
                                        "cuMemGetInfo_v2",  "cuDevicePrimaryCtxRetain",
                                        "cuCtxCreate_v4",   "cuMemCreate",
                                        "cuGraphLaunch",    "cuArrayCreate_v2",
                                        "cuGetProcAddress", "cuGetProcAddress_v2"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        int (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t) =
            (int (*)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t))(uintptr_t)dlsym(
                RTLD_DEFAULT, names[i]);

        fprintf(stderr, "%s\n", names[i]);
        CHECK(function != NULL);
        CHECK(function(0, 0, 0, 0, 0) == 100); /* CUDA_ERROR_NO_DEVICE */
    }
    CHECK(dlsym(RTLD_DEFAULT, "cuNoSuchThing") == NULL);
    return 0;
}

static unsigned count(const char *path)
{
    DIR *directory = opendir(path);
    unsigned found = 0;

    while (directory != NULL && readdir(directory) != NULL)
        found++;
    if (directory != NULL)
        closedir(directory);
    return found;
}

static int quiet(const char *library)
{
    static const char *const names[] = {"curl_easy_init", "cu", "cuddle", "cuMemAlloc_v2",
                                        "plugin_private"};
    void *handle = dlopen(library, RTLD_NOW);
    char line[1024];
    FILE *maps;

    CHECK(handle != NULL);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        int (*function)(void) = (int (*)(void))(uintptr_t)dlsym(handle, names[i]);

        CHECK(function != NULL);
        printf("%s %d\n", names[i], function());
    }
    CHECK(dlsym(handle, "cuNoSuchThing") == NULL);
    CHECK(dlerror() != NULL);
    CHECK(dlsym(RTLD_NEXT, "malloc") != NULL);
    printf("threads %u\n", count("/proc/self/task"));
    printf("descriptors %u\n", count("/proc/self/fd"));
    maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL) {
        const char *path = strchr(line, '/');

        /* a sanitized library brings its runtime along */
        if (path != NULL && strstr(path, "libvramcap") == NULL && !SANITIZED)
            printf("mapped %s", path);
    }
    fclose(maps);
    return 0;
}

static int late(const char *path)
{
    void *driver = dlopen(path, RTLD_NOW);
    int (*init)(unsigned), (*create)(void **, unsigned, int),
        (*alloc)(unsigned long long *, size_t);
    unsigned long long pointer = 0;
    void *context;

    if (driver == NULL)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(driver != NULL);
    init = (int (*)(unsigned))(uintptr_t)dlsym(driver, "cuInit");
    create = (int (*)(void **, unsigned, int))(uintptr_t)dlsym(driver, "cuCtxCreate_v2");
    alloc = (int (*)(unsigned long long *, size_t))(uintptr_t)dlsym(driver, "cuMemAlloc_v2");
    CHECK(init != NULL && create != NULL && alloc != NULL);
    CHECK(init(0) == 0);
    CHECK(create(&context, 0, 0) == 0);
    printf("%d\n", alloc(&pointer, (size_t)2 << 30));
    return 0;
}

struct seen {
    unsigned calls;
    unsigned long whole[10];
    double real[9];
};

static int args(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const struct seen *(*seen)(void);
    long (*many)(unsigned long, unsigned long, unsigned long, unsigned long, unsigned long,
                 unsigned long, unsigned long, unsigned long, unsigned long, unsigned long, double,
                 double, double, double, double, double, double, double, double);
    unsigned long (*four)(unsigned long, unsigned long, unsigned long, unsigned long);
    Dl_info where;

    CHECK(driver != NULL);
    seen = (const struct seen *(*)(void))(uintptr_t)dlsym(driver, "args_seen");
    many = (long (*)(unsigned long, unsigned long, unsigned long, unsigned long, unsigned long,
                     unsigned long, unsigned long, unsigned long, unsigned long, unsigned long,
                     double, double, double, double, double, double, double, double,
                     double))(uintptr_t)dlsym(driver, "cuEGLStreamConsumerAcquireFrame");
    four = (unsigned long (*)(unsigned long, unsigned long, unsigned long, unsigned long))(
        uintptr_t)dlsym(driver, "cuCheckpointProcessRestore");
    CHECK(seen != NULL && many != NULL && four != NULL);
    CHECK(dladdr((void *)(uintptr_t)many, &where) != 0);
    CHECK(getenv("BARE") != NULL || strstr(where.dli_fname, "libvramcap.so") != NULL);
    for (unsigned round = 1; round <= 3; round++) { /* the first goes through the resolving stub */
        unsigned long x = round * 0x1111111111111111;

        CHECK(many(x, ~x, 3, 4, x + 5, x + 6, x + 7, 8, x + 9, ~0ul, 1.5, -2.5, 3e300, 4, 5, 6, 7,
                   8.25, round) == -4242424242);
        CHECK(seen()->calls == 2 * round - 1);
        CHECK(seen()->whole[0] == x && seen()->whole[1] == ~x && seen()->whole[2] == 3 &&
              seen()->whole[3] == 4);
        CHECK(seen()->whole[4] == x + 5 && seen()->whole[5] == x + 6 && seen()->whole[6] == x + 7);
        CHECK(seen()->whole[7] == 8 && seen()->whole[8] == x + 9 && seen()->whole[9] == ~0ul);
        for (unsigned i = 0; i < 9; i++) {
            const double expected[] = {1.5, -2.5, 3e300, 4, 5, 6, 7, 8.25, round};

            CHECK(!(seen()->real[i] < expected[i]) && !(seen()->real[i] > expected[i]));
        }
        CHECK(four(x, 2, ~x, 0x8000000000000000) == 0xfedcba9876543210);
        CHECK(seen()->whole[0] == x && seen()->whole[1] == 2 && seen()->whole[2] == ~x);
        CHECK(seen()->whole[3] == 0x8000000000000000);
    }
    return 0;
}

/* Newer than the table: the driver's own, whenever it is asked for. */
static int unknown(void)
{
    static const struct {
        const char *name;
        int more;
    } fresh[] = {{"cuMemAllocSomewhere", 1}, {"cuMemAlloc_v9", 9}, {"cuMemcpySideways", 2}};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned);

    CHECK(driver != NULL);
    init = (int (*)(unsigned))(uintptr_t)dlsym(driver, "cuInit");
    CHECK(init != NULL);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < sizeof(fresh) / sizeof(fresh[0]); i++) {
            int (*function)(unsigned long) =
                (int (*)(unsigned long))(uintptr_t)dlsym(driver, fresh[i].name);
            Dl_info where;

            CHECK(function != NULL && dladdr((void *)(uintptr_t)function, &where) != 0);
            CHECK(strstr(where.dli_fname, "libcuda.so") != NULL);
            CHECK(function(40) == 40 + fresh[i].more);
        }
        CHECK(round != 1 || init(0) == 0); /* the first rounds are before there is a ledger */
    }
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    return 0;
}

static int names(void)
{
    static const char *const all[] = {
#define HOOK(base, since, suffix, rule) #base #suffix,
#define HOOK_STREAM(base, since, suffix, rule) #base #suffix, #base #suffix "_ptsz",
#define GAP(base, since, suffix, lost) #base #suffix,
#define GAP_STREAM(base, since, suffix, lost) #base #suffix, #base #suffix "_ptsz",
#define PASS(base, since, suffix, why) #base #suffix,
#define PASS_STREAM(base, since, suffix, why) #base #suffix, #base #suffix "_ptsz",
#include "preload/cuda_api.def"
        "cuNoSuchThing",  "cuMemAlloc_v3", "cuMemAlloc_v2_ptsz", "cu",
        "cuLaunchKernel", "cuMemcpy",      "vcapsim_version"};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);

    CHECK(driver != NULL);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        putchar(dlsym(driver, all[i]) != NULL ? '1' : '0');
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "driverless") == 0)
        return driverless();
    if (argc == 3 && strcmp(argv[1], "quiet") == 0)
        return quiet(argv[2]);
    if (argc == 3 && strcmp(argv[1], "late") == 0)
        return late(argv[2]);
    if (argc == 2 && strcmp(argv[1], "names") == 0)
        return names();
    if (argc == 2 && strcmp(argv[1], "args") == 0)
        return args();
    if (argc == 2 && strcmp(argv[1], "unknown") == 0)
        return unknown();
    if (argc == 2 && strcmp(argv[1], "null") == 0) {
        const char *volatile none = NULL;

        return dlsym(dlopen(NULL, RTLD_NOW), none) == NULL ? 0 : 1; /* NOLINT: NULL is the point */
    }
    return 2;
}
