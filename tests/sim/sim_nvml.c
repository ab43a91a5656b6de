/*
 * NVML over the same state file: all cards (CUDA_VISIBLE_DEVICES is CUDA's business), what
 * is used of them, and by which processes. Pids are those of the owner's PID namespace.
 *
 * Init is counted; without it every query is UNINITIALIZED. The state file is opened at
 * the first init and closed at the last shutdown. A device handle is its index plus one.
 */
#define _GNU_SOURCE
#include "sim_nvml_inside.h"
#include "sim_cgroup.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DRIVER_VERSION "580.65.06"
#define DEVICE_NAME "vramcap Simulated GPU"
#define FIRST_BUS 0x10U

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_state *state; /* under lock, as is the count */
static unsigned int inits;

static nvmlReturn_t init(void)
{
    nvmlReturn_t rc = NVML_SUCCESS;

    (void)pthread_mutex_lock(&lock);
    if (!state)
        state = sim_state_open(NULL);
    if (state)
        inits++;
    else
        rc = NVML_ERROR_UNKNOWN;
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

nvmlReturn_t nvmlInit(void)
{
    return init();
}

nvmlReturn_t nvmlInit_v2(void)
{
    return init();
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return init();
}

nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t rc = NVML_SUCCESS;

    (void)pthread_mutex_lock(&lock);
    if (inits == 0) {
        rc = NVML_ERROR_UNINITIALIZED;
    } else if (--inits == 0) {
        sim_state_close(state);
        state = NULL;
    }
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument version mismatch";
    default:
        return "Unknown Error";
    }
}

/* A consistent copy of the state file, or an error. The caller frees it. */
nvmlReturn_t sim_nvml_look(struct sim_file **copy)
{
    nvmlReturn_t rc = NVML_ERROR_UNINITIALIZED;

    (void)pthread_mutex_lock(&lock);
    if (inits > 0) {
        *copy = calloc(1, sizeof **copy);
        rc = *copy && sim_state_snapshot(state, *copy) == 0 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
        if (rc != NVML_SUCCESS) {
            free(*copy);
            *copy = NULL;
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

nvmlReturn_t sim_nvml_with(nvmlDevice_t device,
                           int (*call)(struct sim_state *, unsigned int, void *), void *data)
{
    unsigned int card = 0;
    nvmlReturn_t rc = sim_nvml_card_of(device, &card);

    if (rc != NVML_SUCCESS)
        return rc;
    (void)pthread_mutex_lock(&lock);
    int answer = inits > 0 ? call(state, card, data) : -EBADF;
    (void)pthread_mutex_unlock(&lock);
    switch (answer) {
    case 0:
        return NVML_SUCCESS;
    case -EBADF:
        return NVML_ERROR_UNINITIALIZED;
    case -ENOTSUP:
        return NVML_ERROR_NOT_SUPPORTED;
    case -ENOENT:
        return NVML_ERROR_NOT_FOUND;
    default:
        return NVML_ERROR_UNKNOWN;
    }
}

static unsigned int cards(nvmlReturn_t *rc)
{
    unsigned int count = 0;

    *rc = NVML_ERROR_UNINITIALIZED;
    (void)pthread_mutex_lock(&lock);
    if (inits > 0) {
        count = sim_card_count(state);
        *rc = NVML_SUCCESS;
    }
    (void)pthread_mutex_unlock(&lock);
    return count;
}

/* The card of a handle. */
nvmlReturn_t sim_nvml_card_of(nvmlDevice_t device, unsigned int *card)
{
    nvmlReturn_t rc;
    unsigned int count = cards(&rc);
    uintptr_t handle = (uintptr_t)device;

    if (rc != NVML_SUCCESS)
        return rc;
    if (handle == 0 || handle > count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *card = (unsigned int)(handle - 1);
    return NVML_SUCCESS;
}

static nvmlReturn_t text_out(char *to, unsigned int length, const char *text)
{
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    nvmlReturn_t rc;

    (void)cards(&rc);
    return rc == NVML_SUCCESS ? text_out(version, length, DRIVER_VERSION) : rc;
}

static nvmlReturn_t cuda_version(int *version)
{
    const char *text = getenv("VRAMCAP_SIM_VERSION");

    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = text && *text ? (int)strtol(text, NULL, 10) : 13000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return cuda_version(version);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cuda_version(version);
}

static nvmlReturn_t count_get(unsigned int *count)
{
    nvmlReturn_t rc;
    unsigned int all = cards(&rc);

    if (rc != NVML_SUCCESS)
        return rc;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = all;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return count_get(count);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    return count_get(count);
}

static nvmlReturn_t by_index(unsigned int index, nvmlDevice_t *device)
{
    nvmlReturn_t rc;
    unsigned int count = cards(&rc);

    if (rc != NVML_SUCCESS)
        return rc;
    if (!device || index >= count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = (nvmlDevice_t)(uintptr_t)(index + 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return by_index(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return by_index(index, device);
}

static void uuid_of(unsigned int card, char text[48])
{
    unsigned char uuid[16];

    sim_card_uuid(card, uuid);
    sim_uuid_text(uuid, text);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    nvmlReturn_t rc;
    unsigned int count = cards(&rc);

    if (rc != NVML_SUCCESS)
        return rc;
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int c = 0; c < count; c++) {
        char text[48];

        uuid_of(c, text);
        if (strcasecmp(uuid, text) == 0)
            return by_index(c, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_bus(const char *bus_id, nvmlDevice_t *device)
{
    unsigned int domain = 0, bus = 0, slot = 0;
    nvmlReturn_t rc;
    unsigned int count = cards(&rc);

    if (rc != NVML_SUCCESS)
        return rc;
    if (!bus_id || !device || sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (domain != 0 || bus < FIRST_BUS || bus - FIRST_BUS >= count)
        return NVML_ERROR_NOT_FOUND;
    return by_index(bus - FIRST_BUS, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return by_bus(bus_id, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    return by_bus(bus_id, device);
}

static nvmlReturn_t index_get(nvmlDevice_t device, unsigned int *index)
{
    unsigned int card = 0;
    nvmlReturn_t rc = sim_nvml_card_of(device, &card);

    if (rc != NVML_SUCCESS)
        return rc;
    if (!index)
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = card;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    return index_get(device, index);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor_number)
{
    return index_get(device, minor_number);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    unsigned int card = 0;
    nvmlReturn_t rc = sim_nvml_card_of(device, &card);
    char text[48];

    if (rc != NVML_SUCCESS)
        return rc;
    uuid_of(card, text);
    return text_out(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    unsigned int card = 0;
    nvmlReturn_t rc = sim_nvml_card_of(device, &card);

    return rc == NVML_SUCCESS ? text_out(name, length, DEVICE_NAME) : rc;
}

static nvmlReturn_t memory_get(nvmlDevice_t device, unsigned long long *total,
                               unsigned long long *used)
{
    unsigned int card = 0;
    struct sim_file *copy = NULL;
    nvmlReturn_t rc = sim_nvml_card_of(device, &card);

    if (rc == NVML_SUCCESS)
        rc = sim_nvml_look(&copy);
    if (rc == NVML_SUCCESS) {
        *total = copy->card[card].total;
        *used = copy->card[card].now.used;
        free(copy);
    }
    return rc;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    unsigned long long total = 0, used = 0;
    nvmlReturn_t rc = memory_get(device, &total, &used);

    if (rc != NVML_SUCCESS)
        return rc;
    if (!memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    *memory = (nvmlMemory_t){.total = total, .free = total - used, .used = used};
    return NVML_SUCCESS;
}

/* A caller in a cgroup with a limit sees that, as cuMemGetInfo shows it. */
static void cgroup_view(nvmlDevice_t device, unsigned long long *total, unsigned long long *used)
{
    char cgroup[SIM_CGROUP_MAX], path[2 * SIM_CGROUP_MAX];
    struct sim_cgroup_limits limits;
    unsigned int card = 0;

    if (sim_nvml_card_of(device, &card) != NVML_SUCCESS)
        return;
    (void)pthread_mutex_lock(&lock);
    if (inits > 0) {
        sim_cgroup_own(state, cgroup);
        (void)snprintf(path, sizeof path, "%s%s", state->cgroup_root, cgroup);
        if (cgroup[0] != '\0' && sim_cgroup_get(state, path, card, &limits) == 0 &&
            limits.hard < *total) {
            *total = limits.hard;
            *used = limits.used < limits.hard ? limits.used : limits.hard;
        }
    }
    (void)pthread_mutex_unlock(&lock);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    unsigned long long total = 0, used = 0;
    nvmlReturn_t rc = memory_get(device, &total, &used);

    if (rc != NVML_SUCCESS)
        return rc;
    if (!memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    cgroup_view(device, &total, &used);
    memory->total = total;
    memory->reserved = 0;
    memory->free = total - used;
    memory->used = used;
    return NVML_SUCCESS;
}
