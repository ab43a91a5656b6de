/*
 * An inference-like server: loads "weights", then serves "requests". A request takes an activation
 * buffer, works on it, gives it back, and leaves a block behind in a cache that speeds up later
 * ones. On CUDA_ERROR_OUT_OF_MEMORY it does what frameworks do: empties its cache and tries once
 * more; a request that still finds no room fails, and the server goes on.
 *
 *   server [--weights MIB] [--activation MIB] [--cache MIB] [--adapter MIB] [--seconds N]
 *   server --probe              prints the GPU's name and ends; status 1 where there is none
 *
 * SIGUSR1 asks it to load one more "adapter" of --adapter MIB. It runs for --seconds, or until
 * SIGTERM or SIGINT. Ends with 0 if it served, 1 if it could not start, 2 on wrong usage.
 */
#include "driver.h"

#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define CACHE_BLOCK_MIB 64U
#define CACHE_BLOCKS_MAX 1024U
#define REQUEST_MS 40

struct server {
    size_t activation_mib, cache_limit_mib, adapter_mib;
    CUdeviceptr cache[CACHE_BLOCKS_MAX];
    size_t cached;          /* blocks in the cache */
    double cache_refused_s; /* when a block for the cache was last refused */
    unsigned long served, retries, failed, adapters;
};

static volatile sig_atomic_t stop_asked;
static volatile sig_atomic_t adapter_asked;

static void on_signal(int number)
{
    if (number == SIGUSR1)
        adapter_asked = 1;
    else
        stop_asked = 1;
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    printf("server %5.1f s: ", seconds_since_start());
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
}

static size_t empty_cache(struct server *server)
{
    size_t mib = server->cached * CACHE_BLOCK_MIB;

    while (server->cached > 0)
        driver.cuMemFree(server->cache[--server->cached]);
    return mib;
}

/* Once more with an empty cache, if it was out of memory. */
static CUresult allocate(struct server *server, const char *what, size_t mib, CUdeviceptr *buffer)
{
    CUresult result = driver.cuMemAlloc(buffer, mib * MIB);
    size_t emptied_mib;

    if (result != CUDA_ERROR_OUT_OF_MEMORY || server->cached == 0)
        return result;
    emptied_mib = empty_cache(server);
    server->retries++;
    result = driver.cuMemAlloc(buffer, mib * MIB);
    say("no room for %s of %zu MiB: emptied the cache (%zu MiB), %s", what, mib, emptied_mib,
        result == CUDA_SUCCESS ? "now it fits" : "still no room");
    return result;
}

static void keep_in_cache(struct server *server)
{
    CUdeviceptr block = 0;

    if ((server->cached + 1) * CACHE_BLOCK_MIB > server->cache_limit_mib ||
        server->cached == CACHE_BLOCKS_MAX || seconds_since_start() - server->cache_refused_s < 1.0)
        return;
    if (driver.cuMemAlloc(&block, CACHE_BLOCK_MIB * MIB) == CUDA_SUCCESS)
        server->cache[server->cached++] = block;
    else
        server->cache_refused_s = seconds_since_start();
}

static void serve_request(struct server *server)
{
    static const struct timespec work = {.tv_nsec = REQUEST_MS * 1000000L};
    /* Requests differ in length: half, three quarters, all of the largest activation. */
    size_t mib = server->activation_mib * (2 + (server->served + server->failed) % 3) / 4;
    CUdeviceptr activation = 0;
    CUresult result = allocate(server, "a request", mib, &activation);

    if (result == CUDA_SUCCESS)
        result = driver.cuMemsetD8(activation, 0, mib * MIB);
    if (result == CUDA_SUCCESS)
        result = driver.cuCtxSynchronize();
    nanosleep(&work, NULL);
    if (activation)
        driver.cuMemFree(activation);
    if (result != CUDA_SUCCESS) {
        if (server->failed++ == 0)
            say("a request failed: %s; serving on", driver_error_name(result));
        return;
    }
    server->served++;
    keep_in_cache(server);
}

static void load_adapter(struct server *server)
{
    CUdeviceptr adapter = 0;
    CUresult result = allocate(server, "an adapter", server->adapter_mib, &adapter);

    adapter_asked = 0;
    if (result == CUDA_SUCCESS) {
        server->adapters++;
        say("adapter of %zu MiB loaded", server->adapter_mib);
    } else {
        say("adapter of %zu MiB not loaded: %s", server->adapter_mib, driver_error_name(result));
    }
}

static void report(const struct server *server)
{
    size_t free_bytes = 0;
    size_t total_bytes = 0;

    if (driver.cuMemGetInfo(&free_bytes, &total_bytes) != CUDA_SUCCESS)
        return;
    say("%lu served, %lu retried, %lu failed; cache %zu, free %zu of %zu MiB", server->served,
        server->retries, server->failed, server->cached * CACHE_BLOCK_MIB, free_bytes / MIB,
        total_bytes / MIB);
}

static bool load_weights(size_t weights_mib)
{
    CUdeviceptr weights = 0;
    CUresult result = driver_start();

    if (result == CUDA_SUCCESS && weights_mib > 0)
        result = driver.cuMemAlloc(&weights, weights_mib * MIB);
    if (result == CUDA_SUCCESS && weights_mib > 0)
        result = driver.cuMemsetD8(weights, 0, weights_mib * MIB);
    if (result != CUDA_SUCCESS) {
        say("weights of %zu MiB not loaded: %s", weights_mib, driver_error_name(result));
        return false;
    }
    say("weights of %zu MiB loaded on %s", weights_mib, driver.device_name);
    return true;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"weights", required_argument, NULL, 'w'},
        {"activation", required_argument, NULL, 'a'},
        {"cache", required_argument, NULL, 'c'},
        {"adapter", required_argument, NULL, 'd'},
        {"seconds", required_argument, NULL, 's'},
        {"probe", no_argument, NULL, 'p'},
        {NULL, 0, NULL, 0},
    };
    static struct server server = {.activation_mib = 256,
                                   .cache_limit_mib = 512,
                                   .adapter_mib = 1024,
                                   .cache_refused_s = -1.0};
    struct sigaction action = {.sa_handler = on_signal};
    size_t weights_mib = 1536;
    double seconds = 0;
    double next_report = 1;
    bool probe = false;
    bool wrong = false;
    int option;

    setvbuf(stdout, NULL, _IOLBF, 0);
    seconds_since_start();
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'w':
            weights_mib = option_number("server", "weights", optarg);
            break;
        case 'a':
            server.activation_mib = option_number("server", "activation", optarg);
            break;
        case 'c':
            server.cache_limit_mib = option_number("server", "cache", optarg);
            break;
        case 'd':
            server.adapter_mib = option_number("server", "adapter", optarg);
            break;
        case 's':
            seconds = (double)option_number("server", "seconds", optarg);
            break;
        case 'p':
            probe = true;
            break;
        default:
            wrong = true;
            break;
        }
    }
    if (wrong || optind != argc || server.activation_mib < 4 || server.adapter_mib == 0) {
        fprintf(stderr, "usage: server [--weights MIB] [--activation MIB] [--cache MIB]\n"
                        "              [--adapter MIB] [--seconds N] | --probe\n");
        return 2;
    }

    if (!driver_open("server"))
        return 1;
    if (probe) {
        printf("%s\n", driver.device_name);
        return 0;
    }
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    if (!load_weights(weights_mib))
        return 1;
    while (!stop_asked && (seconds == 0 || seconds_since_start() < seconds)) {
        if (adapter_asked)
            load_adapter(&server);
        serve_request(&server);
        if (seconds_since_start() >= next_report) {
            report(&server);
            next_report += 1;
        }
    }
    report(&server);
    say("done: %lu served, %lu retried with an empty cache, %lu failed", server.served,
        server.retries, server.failed);
    driver.cuDevicePrimaryCtxRelease(driver.device);
    return server.served > 0 ? 0 : 1;
}
