/*
 * Asking the driver.  It is somebody else's code: a child loads it (check_child.c).  The child goes through the preloaded
 * library like any program: it takes a slot for the moment, and what it is told is what programs are
 * told.  Nothing is allocated without --self-test.
 */
#include "enforcer/cli/check.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/ceiling.h"
#include "enforcer/cli/driver_abi.h"
#include "enforcer/cli/units.h"

#define BLOCK_BYTES (UINT64_C(64) << 20) /* above what is free, for the self-test */
#define SMALL_BYTES (UINT64_C(2) << 20)

/* ---- in the child ---- */

static void load(void *library, struct driver *driver)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {
        {"cuInit", &driver->init},
        {"cuDriverGetVersion", &driver->version},
        {"cuDeviceGetCount", &driver->count},
        {"cuDeviceGetAttribute", &driver->attribute},
        {"cuDeviceGetUuid", &driver->uuid},
        {"cuDeviceGetUuid_v2", &driver->uuid_v2},
        {"cuDeviceTotalMem_v2", &driver->total},
        {"cuDeviceGetPCIBusId", &driver->pci},
        {"cuCtxCreate_v2", &driver->create},
        {"cuCtxDestroy_v2", &driver->destroy},
        {"cuMemGetInfo_v2", &driver->info},
        {"cuMemAlloc_v2", &driver->alloc},
        {"cuMemFree_v2", &driver->release},
    };

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(library, functions[i].name);
        memcpy(functions[i].to, &address, sizeof address);
    }
}

static int32_t attribute(const struct driver *driver, int which, int device, int32_t unknown)
{
    int value = 0;
    return driver->attribute && driver->attribute(&value, which, device) == DRIVER_SUCCESS
               ? (int32_t)value
               : unknown;
}

static void ask_device(const struct driver *driver, int device, struct vcap_check_device *out)
{
    unsigned char parent[16] = {0}, own[16] = {0};
    size_t total = 0;
    int result = driver->uuid ? driver->uuid(parent, device) : -1;

    memcpy(out->uuid, parent, sizeof out->uuid);
    if (driver->uuid_v2 && driver->uuid_v2(own, device) == DRIVER_SUCCESS) {
        out->mig = result == DRIVER_SUCCESS && memcmp(parent, own, sizeof own) != 0;
        memcpy(out->uuid, own, sizeof out->uuid);
    }
    out->mps = attribute(driver, DRIVER_ATTRIBUTE_MPS, device, -1);
    out->sm_count = attribute(driver, DRIVER_ATTRIBUTE_SM_COUNT, device, 0);
    out->integrated = attribute(driver, DRIVER_ATTRIBUTE_INTEGRATED, device, -1);
    if (driver->total && driver->total(&total, device) == DRIVER_SUCCESS)
        out->total_bytes = total;
    if (!driver->pci || driver->pci(out->pci, (int)sizeof out->pci, device) != DRIVER_SUCCESS)
        out->pci[0] = '\0';
}

/* Asks for a block more than is free, then for a small one; both are given back at once. */
static void test(const struct driver *driver, struct vcap_check_driver *out)
{
    unsigned long long pointer = 0;
    size_t free_bytes = 0, total = 0;
    void *context = NULL;

    if (!driver->create || !driver->destroy || !driver->info || !driver->alloc || !driver->release)
        return;
    out->tested = 1;
    out->context_result = driver->create(&context, 0, 0);
    if (out->context_result != DRIVER_SUCCESS)
        return;
    if (driver->info(&free_bytes, &total) == DRIVER_SUCCESS) {
        out->free_bytes = free_bytes;
        out->over_bytes = free_bytes + BLOCK_BYTES;
        out->under_bytes = SMALL_BYTES;
        out->over_result = driver->alloc(&pointer, (size_t)out->over_bytes);
        if (out->over_result == DRIVER_SUCCESS)
            (void)driver->release(pointer);
        out->under_result = driver->alloc(&pointer, (size_t)out->under_bytes);
        if (out->under_result == DRIVER_SUCCESS)
            (void)driver->release(pointer);
    }
    (void)driver->destroy(context);
}

static void ask_driver(bool self_test, struct vcap_check_driver *out)
{
    struct driver driver = {0};
    struct link_map *map = NULL;
    int count = 0, version = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        const char *why = dlerror();
        (void)snprintf(out->path, sizeof out->path, "%s", why ? why : "not to be loaded");
        return;
    }
    out->loaded = 1;
    (void)snprintf(out->path, sizeof out->path, "%s",
                   dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map ? map->l_name : "?");
    load(library, &driver);
    if (driver.version && driver.version(&version) == DRIVER_SUCCESS)
        out->version = version;
    out->init_result = driver.init ? driver.init(0) : -1;
    if (out->init_result != DRIVER_SUCCESS || !driver.count ||
        driver.count(&count) != DRIVER_SUCCESS)
        return;
    out->device_count = count;
    for (int i = 0; i < count && i < VCAP_CHECK_DEVICES; i++)
        ask_device(&driver, i, &out->device[i]);
    if (self_test && count > 0)
        test(&driver, out);
}

/* As no client of MPS: what a limit takes away is there again.  No context is made. */
static void ask_alone(const void *wish, void *answer)
{
    (void)wish;
    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent", 1);
    (void)unsetenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    (void)setenv("VRAMCAP_ENABLE", "0", 1);
    ask_driver(false, answer);
}

static void ask(const void *wish, void *answer)
{
    ask_driver(*(const bool *)wish, answer);
}

/* ---- in the parent ---- */

void vcap_check_ask_driver(struct vcap_check *check)
{
    check->have_driver = vcap_check_child(ask, &check->self_test, &check->driver,
                                          sizeof check->driver, &check->driver_pid);
    if (!check->have_driver)
        memset(&check->driver, 0, sizeof check->driver);
    if (check->driver.device_count > VCAP_CHECK_DEVICES)
        check->driver.device_count = VCAP_CHECK_DEVICES;
}

void vcap_check_driver_lines(struct vcap_check *check)
{
    const struct vcap_check_driver *d = &check->driver;

    if (!check->have_driver) {
        vcap_check_say(check, "driver", NULL, VCAP_CHECK_FINDING,
                       "the driver did not answer within %d s, or ended the process that asked",
                       VCAP_CHECK_LIMIT_MS / 1000);
        return;
    }
    if (!d->loaded) {
        vcap_check_say(check, "driver", NULL, VCAP_CHECK_FINDING, "no CUDA driver: %s", d->path);
        return;
    }
    vcap_check_say(check, "driver", NULL,
                   d->init_result == DRIVER_SUCCESS ? VCAP_CHECK_OK : VCAP_CHECK_FINDING,
                   "%s, CUDA %d.%d, cuInit gave %d, %d device%s", d->path, d->version / 1000,
                   d->version % 1000 / 10, d->init_result, d->device_count,
                   d->device_count == 1 ? "" : "s");
    for (int32_t i = 0; i < d->device_count; i++)
        if (d->device[i].integrated == 1) {
            char uuid[VCAP_UUID_TEXT_SIZE];
            vcap_uuid_format(uuid, d->device[i].uuid, d->device[i].mig != 0);
            vcap_check_say(
                check, "integrated", uuid, VCAP_CHECK_NOTE,
                "GPU and host share one memory: pinned host memory is the same DRAM and is "
                "not charged");
        }
}

/* Was the child refused by vramcap?  Read after it ended, so that the ring has its event. */
static bool refused_by_us(const struct vcap_check *check)
{
    bool is = false;
    for (uint32_t i = 0; check->have_ledger && i < check->snapshot.event_count; i++)
        is = is || (check->snapshot.events[i].kind == VCAP_LF_EVENT_REFUSAL &&
                    check->snapshot.events[i].pid == (uint32_t)check->driver_pid);
    return is;
}

void vcap_check_self_test(struct vcap_check *check)
{
    const struct vcap_check_driver *d = &check->driver;
    char over[VCAP_UNITS_TEXT], under[VCAP_UNITS_TEXT], free_mib[VCAP_UNITS_TEXT];

    if (!check->have_driver || !d->tested || d->context_result != DRIVER_SUCCESS) {
        vcap_check_say(check, "self-test", NULL, VCAP_CHECK_UNKNOWN,
                       "not made: no context could be had (result %d)",
                       check->have_driver ? d->context_result : -1);
        return;
    }
    (void)vcap_units_mib(over, d->over_bytes, "-");
    (void)vcap_units_mib(under, d->under_bytes, "-");
    (void)vcap_units_mib(free_mib, d->free_bytes, "-");
    if (d->over_result == DRIVER_SUCCESS) {
        vcap_check_say(check, "self-test", NULL, VCAP_CHECK_FINDING,
                       "%s MiB were granted where %s MiB are free: nothing refuses here", over,
                       free_mib);
        return;
    }
    if (d->over_result == DRIVER_OUT_OF_MEMORY && refused_by_us(check))
        vcap_check_say(
            check, "self-test", NULL,
            d->under_result == DRIVER_SUCCESS || d->free_bytes < d->under_bytes
                ? VCAP_CHECK_OK
                : VCAP_CHECK_FINDING,
            "%s MiB refused by vramcap with CUDA_ERROR_OUT_OF_MEMORY where %s MiB are free "
            "(counted in the ledger); %s MiB %s",
            over, free_mib, under,
            d->under_result == DRIVER_SUCCESS ? "were granted and given back"
            : d->free_bytes < d->under_bytes  ? "had no room"
                                              : "were not granted either");
    else
        vcap_check_say(
            check, "self-test", NULL, VCAP_CHECK_FINDING,
            "%s MiB gave %d where %s MiB are free, and no refusal was counted in a ledger: "
            "not refused by vramcap",
            over, d->over_result, free_mib);
}

unsigned vcap_check_sm_total(struct vcap_check *check, const char *uuid)
{
    if (!check->self)
        return 0;
    if (!check->asked_alone &&
        !vcap_check_child(ask_alone, NULL, &check->alone, sizeof check->alone, NULL))
        memset(&check->alone, 0, sizeof check->alone);
    check->asked_alone = true;
    for (int32_t i = 0; i < check->alone.device_count && i < VCAP_CHECK_DEVICES; i++) {
        const struct vcap_check_device *d = &check->alone.device[i];
        char text[VCAP_UUID_TEXT_SIZE];
        vcap_uuid_format(text, d->uuid, d->mig != 0);
        if (!strcmp(text, uuid) && d->mps == 0)
            return (unsigned)d->sm_count;
    }
    return 0;
}
