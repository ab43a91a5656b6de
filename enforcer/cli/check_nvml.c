/*
 * The hard limits that the driver keeps for cgroups (driver r615 and newer), by NVML's word: kept without a
 * dmem file where the driver does the accounting itself.  Only this command asks: libvramcap does not load
 * NVML into other people's processes (docs/design.md, "What the kernel limits").
 */
#include "enforcer/cli/check.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "enforcer/ceiling.h"
#include "enforcer/cli/units.h"
#include "enforcer/nvml_abi.h"

#define CGROUP_ROOT "/sys/fs/cgroup"
#define PATH_MAX_HERE 1024

struct wish {
    char cgroup[PATH_MAX_HERE]; /* of the process, below where version 2 is mounted */
    uint32_t count;
    char uuid[VCAP_CHECK_DEVICES][VCAP_UUID_TEXT];
};

struct limit {
    int32_t result; /* of the question for the process's own cgroup */
    uint64_t hard_bytes, used_bytes;
    char cgroup[PATH_MAX_HERE]; /* where the lowest one is */
};

struct answer {
    int32_t has_limits;  /* there is an NVML that knows such limits */
    int32_t init_result; /* of one that does */
    struct limit limit[VCAP_CHECK_DEVICES];
};

/* ---- in the child ---- */

struct nvml {
    nvml_plain init;
    nvml_by_uuid by_uuid;
    nvml_memory_limits limits;
};

static bool load(struct nvml *nvml)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void *to;
    } functions[] = {
        {"nvmlInit_v2", &nvml->init},
        {"nvmlDeviceGetHandleByUUID", &nvml->by_uuid},
        {"nvmlDeviceGetMemoryLimits_v1", &nvml->limits},
    };

    for (size_t i = 0; library && i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(library, functions[i].name);
        memcpy(functions[i].to, &address, sizeof address);
    }
    return library && nvml->init && nvml->by_uuid && nvml->limits;
}

/* From the process's cgroup up to the root: the lowest holds. */
static void ask_device(const struct nvml *nvml, const char *cgroup, const char *uuid,
                       struct limit *out)
{
    char path[PATH_MAX_HERE];
    nvmlDevice_t device = NULL;
    bool own = true;

    out->hard_bytes = NVML_DEVICE_MEMORY_LIMIT_MAX;
    out->result = nvml->by_uuid(uuid, &device);
    (void)snprintf(path, sizeof path, "%s", cgroup);
    while (out->result == NVML_SUCCESS) {
        nvmlGetMemoryLimits_v1_t limits = {.nameSpace = path,
                                           .hardLimit = NVML_DEVICE_MEMORY_LIMIT_MAX};
        nvmlReturn_t result = nvml->limits(device, &limits);
        if (own && result != NVML_SUCCESS && result != NVML_ERROR_NOT_SUPPORTED &&
            result != NVML_ERROR_NOT_FOUND)
            out->result = result;
        own = false;
        if (result == NVML_SUCCESS && limits.hardLimit < out->hard_bytes) {
            out->hard_bytes = limits.hardLimit;
            out->used_bytes = limits.currentUsed;
            (void)snprintf(out->cgroup, sizeof out->cgroup, "%s", path);
        }
        if (strlen(path) <= strlen(CGROUP_ROOT))
            break;
        *strrchr(path, '/') = '\0';
    }
}

static void ask(const void *arg, void *to)
{
    const struct wish *wish = arg;
    struct answer *answer = to;
    struct nvml nvml = {0};

    if (!load(&nvml))
        return;
    answer->init_result = nvml.init();
    if (answer->init_result != NVML_SUCCESS)
        return;
    answer->has_limits = 1;
    for (uint32_t i = 0; i < wish->count; i++)
        ask_device(&nvml, wish->cgroup, wish->uuid[i], &answer->limit[i]);
}

static const struct vcap_check_question for_limits = {ask, VCAP_CHECK_LIMIT_MS, false};

/* ---- in the parent ---- */

/* The "0::" line of /proc/PID/cgroup below the mount: 1; 0: no cgroup version 2; -errno. */
static int own_cgroup(const struct vcap_check *check, char *path, size_t size)
{
    char name[64], line[PATH_MAX_HERE];
    bool found = false;
    FILE *file;

    (void)snprintf(name, sizeof name, "/proc/%d/cgroup", (int)check->pid);
    file = fopen(name, "re");
    if (!file)
        return -errno;
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        found = strncmp(line, "0::/", 4) == 0 && !strstr(line, "/..") &&
                snprintf(path, size, "%s%s", CGROUP_ROOT, line[4] ? line + 3 : "") < (int)size;
    }
    (void)fclose(file);
    return found;
}

static uint64_t ceiling_of(const struct vcap_check *check, const char *uuid)
{
    for (uint32_t i = 0; check->have_ledger && i < check->snapshot.gpu_count; i++)
        if (!strcmp(check->snapshot.gpus[i].uuid, uuid))
            return check->snapshot.gpus[i].ceiling_bytes;
    return VCAP_NO_LIMIT;
}

static void say(struct vcap_check *check, const char *uuid, const struct limit *limit)
{
    char hard[VCAP_UNITS_TEXT], used[VCAP_UNITS_TEXT], text[VCAP_UNITS_TEXT];
    uint64_t ceiling = ceiling_of(check, uuid);

    if (limit->result != NVML_SUCCESS) {
        vcap_check_say(check, "nvml-limit", uuid, VCAP_CHECK_UNKNOWN,
                       "NVML knows limits of cgroups and gives none for this GPU (result %d)",
                       limit->result);
        return;
    }
    if (limit->hard_bytes == NVML_DEVICE_MEMORY_LIMIT_MAX)
        return;
    (void)vcap_units_mib(hard, limit->hard_bytes, "-");
    (void)vcap_units_mib(used, limit->used_bytes, "-");
    if (ceiling != VCAP_NO_LIMIT && ceiling <= limit->hard_bytes)
        vcap_check_say(check, "nvml-limit", uuid, VCAP_CHECK_OK,
                       "the driver keeps a hard limit of %s MiB for cgroup %.120s (NVML; %s MiB "
                       "used); vramcap's ceiling is not above it",
                       hard, limit->cgroup, used);
    else
        vcap_check_say(check, "nvml-limit", uuid, VCAP_CHECK_FINDING,
                       "the driver keeps a hard limit of %s MiB for cgroup %.120s (NVML; %s MiB "
                       "used), below vramcap's ceiling (%s MiB): above it the driver refuses, and "
                       "programs are told of more than they can have",
                       hard, limit->cgroup, used, vcap_units_mib(text, ceiling, "none"));
}

/* The GPUs that the driver shows, else those of the ledger. */
static void fill(const struct vcap_check *check, struct wish *wish)
{
    for (int32_t i = 0; check->have_driver && i < check->driver.device_count; i++)
        vcap_uuid_format(wish->uuid[wish->count++], check->driver.device[i].uuid,
                         check->driver.device[i].mig != 0);
    if (wish->count != 0 || !check->have_ledger)
        return;
    for (; wish->count < check->snapshot.gpu_count && wish->count < VCAP_CHECK_DEVICES;
         wish->count++)
        (void)snprintf(wish->uuid[wish->count], sizeof wish->uuid[0], "%s",
                       check->snapshot.gpus[wish->count].uuid);
}

void vcap_check_nvml(struct vcap_check *check)
{
    static struct answer answer; /* large */
    struct wish wish = {.count = 0};
    char why[VCAP_CHECK_WHY];
    int error;

    fill(check, &wish);
    error = wish.count == 0 ? 0 : own_cgroup(check, wish.cgroup, sizeof wish.cgroup);
    if (error < 0)
        vcap_check_say(check, "nvml-limit", NULL, VCAP_CHECK_UNKNOWN,
                       "not asked: /proc/%d/cgroup: %s", (int)check->pid, strerror(-error));
    if (error <= 0)
        return;
    error = vcap_check_child(&for_limits, &wish, &answer, sizeof answer);
    if (error != 0)
        vcap_check_say(check, "nvml-limit", NULL, VCAP_CHECK_UNKNOWN, "NVML %s",
                       vcap_check_child_why(&for_limits, error, why));
    if (answer.init_result != NVML_SUCCESS)
        vcap_check_say(check, "nvml-limit", NULL, VCAP_CHECK_UNKNOWN,
                       "NVML knows limits of cgroups and does not start (result %d)",
                       answer.init_result);
    for (uint32_t i = 0; answer.has_limits && i < wish.count; i++)
        say(check, wish.uuid[i], &answer.limit[i]);
}
