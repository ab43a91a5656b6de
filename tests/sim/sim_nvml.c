/*
 * NVML over the same state file: all cards (CUDA_VISIBLE_DEVICES is CUDA's business), what
 * is used of them, and by which processes. Pids are those of the owner's PID namespace.
 *
 * Init is counted; without it every query is UNINITIALIZED. The state file is opened at
 * the first init and closed at the last shutdown. A device handle is its index plus one.
 */
#define _GNU_SOURCE
#include "sim_nvml.h"
#include "sim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DRIVER_VERSION "580.65.06"
#define DEVICE_NAME "vramcap Simulated GPU"
#define FIRST_BUS 0x10U
#define NO_INSTANCE 0xFFFFFFFFU

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
static nvmlReturn_t look(struct sim_file **copy)
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
static nvmlReturn_t card_of(nvmlDevice_t device, unsigned int *card)
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
    nvmlReturn_t rc = card_of(device, &card);

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
    nvmlReturn_t rc = card_of(device, &card);
    char text[48];

    if (rc != NVML_SUCCESS)
        return rc;
    uuid_of(card, text);
    return text_out(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    unsigned int card = 0;
    nvmlReturn_t rc = card_of(device, &card);

    return rc == NVML_SUCCESS ? text_out(name, length, DEVICE_NAME) : rc;
}

static nvmlReturn_t memory_get(nvmlDevice_t device, unsigned long long *total,
                               unsigned long long *used)
{
    unsigned int card = 0;
    struct sim_file *copy = NULL;
    nvmlReturn_t rc = card_of(device, &card);

    if (rc == NVML_SUCCESS)
        rc = look(&copy);
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
    memory->total = total;
    memory->reserved = 0;
    memory->free = total - used;
    memory->used = used;
    return NVML_SUCCESS;
}

/* Processes with memory on the card. `count`: room in, number out; too little room writes
 * the number needed and nothing else. */
static nvmlReturn_t processes(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *old,
                              nvmlProcessInfo_v2_t *infos)
{
    unsigned int card = 0, found = 0;
    struct sim_file *copy = NULL;
    nvmlReturn_t rc = card_of(device, &card);

    if (rc == NVML_SUCCESS && !count)
        rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS)
        rc = look(&copy);
    if (rc != NVML_SUCCESS)
        return rc;
    unsigned int room = old || infos ? *count : 0;
    for (unsigned int r = 0; r < SIM_MAX_ROWS; r++) {
        const struct sim_process_row *row = &copy->row[r];

        if (!row->live || row->share[card].used == 0)
            continue;
        if (found < room && old)
            old[found] = (nvmlProcessInfo_v1_t){(unsigned int)row->pid, row->share[card].used};
        if (found < room && infos)
            infos[found] = (nvmlProcessInfo_v2_t){(unsigned int)row->pid, row->share[card].used,
                                                  NO_INSTANCE, NO_INSTANCE};
        found++;
    }
    free(copy);
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v1_t *infos)
{
    return processes(device, count, infos, NULL);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *infos)
{
    return processes(device, count, NULL, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *infos)
{
    return processes(device, count, NULL, infos);
}

/* Nothing runs under MPS yet. */
static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned int *count)
{
    unsigned int card = 0;
    nvmlReturn_t rc = card_of(device, &card);

    if (rc != NVML_SUCCESS)
        return rc;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v1_t *infos)
{
    (void)infos;
    return no_processes(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_v2_t *infos)
{
    (void)infos;
    return no_processes(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_v2_t *infos)
{
    (void)infos;
    return no_processes(device, count);
}
