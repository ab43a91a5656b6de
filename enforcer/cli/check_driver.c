/*
 * Asking the driver.  It is somebody else's code: a child loads it (check_child.c).  The child goes through the preloaded
 * library like any program: it takes a slot for the moment, and what it is told is what programs are
 * told.  Nothing is allocated (check_self_test.c does that).
 */
#include "enforcer/cli/check.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/ceiling.h"
#include "enforcer/cli/driver_abi.h"

/* ---- in the child ---- */

static void find_functions(void *library, struct driver *driver)
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

void *vcap_check_driver_load(struct driver *driver, char *why, size_t size)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (library) {
        find_functions(library, driver);
    } else {
        const char *text = dlerror();
        (void)snprintf(why, size, "%s", text ? text : "not to be loaded");
    }
    return library;
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

static void ask(const void *wish, void *answer)
{
    struct vcap_check_driver *out = answer;
    struct driver driver = {0};
    struct link_map *map = NULL;
    int count = 0, version = 0;
    void *library = vcap_check_driver_load(&driver, out->path, sizeof out->path);

    (void)wish;
    if (!library)
        return;
    out->loaded = 1;
    (void)snprintf(out->path, sizeof out->path, "%s",
                   dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map ? map->l_name : "?");
    if (driver.version && driver.version(&version) == DRIVER_SUCCESS)
        out->version = version;
    out->init_result = driver.init ? driver.init(0) : -1;
    if (out->init_result != DRIVER_SUCCESS || !driver.count ||
        driver.count(&count) != DRIVER_SUCCESS)
        return;
    out->device_count = count;
    for (int i = 0; i < count && i < VCAP_CHECK_DEVICES; i++)
        ask_device(&driver, i, &out->device[i]);
}

/* As no client of MPS: what a limit takes away is there again.  No context is made. */
static void ask_alone(const void *wish, void *answer)
{
    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent", 1);
    (void)unsetenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    (void)setenv("VRAMCAP_ENABLE", "0", 1);
    ask(wish, answer);
}

static const struct vcap_check_question for_driver = {ask, VCAP_CHECK_LIMIT_MS, false};
static const struct vcap_check_question for_driver_alone = {ask_alone, VCAP_CHECK_LIMIT_MS, false};

/* ---- in the parent ---- */

void vcap_check_ask_driver(struct vcap_check *check)
{
    check->driver_error = vcap_check_child(&for_driver, NULL, &check->driver, sizeof check->driver);
    check->have_driver = check->driver_error == 0;
    if (check->driver.device_count > VCAP_CHECK_DEVICES)
        check->driver.device_count = VCAP_CHECK_DEVICES;
}

void vcap_check_driver_lines(struct vcap_check *check)
{
    const struct vcap_check_driver *d = &check->driver;

    if (!check->have_driver) {
        char why[VCAP_CHECK_WHY];
        vcap_check_say(check, "driver", NULL,
                       check->driver_error == -ETIMEDOUT || check->driver_error == -ECHILD
                           ? VCAP_CHECK_FINDING
                           : VCAP_CHECK_UNKNOWN,
                       "the driver %s",
                       vcap_check_child_why(&for_driver, check->driver_error, why));
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

unsigned vcap_check_sm_total(struct vcap_check *check, const char *uuid)
{
    if (!check->self)
        return 0;
    if (!check->asked_alone)
        (void)vcap_check_child(&for_driver_alone, NULL, &check->alone, sizeof check->alone);
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
