/*
 * Asking NVML.  Every function is looked up by name and may be missing; the newest form of a question
 * is tried first.  A GPU whose processes cannot be had is in the sample as unknown, never as empty.
 */
#include "enforcer/agent/driver_seen.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "enforcer/kernel.h"
#include "enforcer/nvml_abi.h"

#define GPUS_MAX 128u /* with MIG devices: 16 GPUs of 7 */
#define PROCESSES_MAX 4096u
#define TRIES 4

struct vcap_nvml {
    void *library;
    nvml_plain init, shutdown;
    nvml_count count;
    nvml_by_index by_index;
    nvml_uuid uuid;
    nvml_memory_info memory;
    nvml_mig_count mig_count;
    nvml_mig_by_index mig_by_index;
    struct {
        nvml_processes_v2 newer; /* _v3, _v2 */
        nvml_processes_v1 oldest;
        unsigned int mode; /* of the detail list */
    } kinds[3];
    nvml_process_details details;
    bool ready;
};

const char *vcap_nvml_state_name(enum vcap_nvml_state state)
{
    static const char *const names[] = {"off", "absent", "failed", "silent", "ok"};
    return (size_t)state < sizeof names / sizeof *names ? names[state] : "off";
}

const struct vcap_nvml_gpu *vcap_nvml_find(const struct vcap_nvml_sample *sample, const char *uuid)
{
    for (uint32_t i = 0; sample && i < sample->gpu_count; i++)
        if (!strcmp(sample->gpus[i].uuid, uuid))
            return &sample->gpus[i];
    return NULL;
}

void vcap_nvml_release(struct vcap_nvml_sample *sample)
{
    if (!sample || __atomic_sub_fetch(&sample->users, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    for (uint32_t i = 0; i < sample->gpu_count; i++)
        free(sample->gpus[i].processes);
    free(sample->gpus);
    free(sample);
}

static void *first_of(void *library, const char *a, const char *b)
{
    void *found = dlsym(library, a);
    return found || !b ? found : dlsym(library, b);
}

#define FIND(field, ...) (*(void **)&nvml->field = first_of(nvml->library, __VA_ARGS__))

struct vcap_nvml *vcap_nvml_open(const char *library, char *why, size_t why_size)
{
    struct vcap_nvml *nvml = calloc(1, sizeof *nvml);
    if (!nvml)
        return NULL;
    nvml->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!nvml->library) {
        const char *said = dlerror();
        (void)snprintf(why, why_size, "%s", said ? said : library);
        free(nvml);
        return NULL;
    }
    FIND(init, "nvmlInit_v2", "nvmlInit");
    FIND(shutdown, "nvmlShutdown", NULL);
    FIND(count, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount");
    FIND(by_index, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex");
    FIND(uuid, "nvmlDeviceGetUUID", NULL);
    FIND(memory, "nvmlDeviceGetMemoryInfo", NULL);
    FIND(mig_count, "nvmlDeviceGetMaxMigDeviceCount", NULL);
    FIND(mig_by_index, "nvmlDeviceGetMigDeviceHandleByIndex", NULL);
    FIND(kinds[0].newer, "nvmlDeviceGetComputeRunningProcesses_v3",
         "nvmlDeviceGetComputeRunningProcesses_v2");
    FIND(kinds[0].oldest, "nvmlDeviceGetComputeRunningProcesses", NULL);
    FIND(kinds[1].newer, "nvmlDeviceGetMPSComputeRunningProcesses_v3",
         "nvmlDeviceGetMPSComputeRunningProcesses_v2");
    FIND(kinds[1].oldest, "nvmlDeviceGetMPSComputeRunningProcesses", NULL);
    FIND(kinds[2].newer, "nvmlDeviceGetGraphicsRunningProcesses_v3",
         "nvmlDeviceGetGraphicsRunningProcesses_v2");
    FIND(kinds[2].oldest, "nvmlDeviceGetGraphicsRunningProcesses", NULL);
    nvml->kinds[0].mode = NVML_PROCESS_MODE_COMPUTE;
    nvml->kinds[1].mode = NVML_PROCESS_MODE_MPS;
    nvml->kinds[2].mode = NVML_PROCESS_MODE_GRAPHICS;
    FIND(details, "nvmlDeviceGetRunningProcessDetailList", NULL);
    return nvml;
}

void vcap_nvml_close(struct vcap_nvml *nvml)
{
    if (nvml->ready && nvml->shutdown)
        (void)nvml->shutdown();
    (void)dlclose(nvml->library);
    free(nvml);
}

/* ---- processes ---- */

struct list {
    struct vcap_nvml_process *all;
    uint32_t count, room;
};

static bool add(struct list *l, uint32_t pid, uint64_t bytes, bool mps)
{
    if (bytes == NVML_VALUE_NOT_AVAILABLE)
        bytes = VCAP_UNKNOWN;
    for (uint32_t i = 0; i < l->count; i++) {
        struct vcap_nvml_process *p = &l->all[i];
        if (p->pid != pid)
            continue;
        /* in two lists: a number beats none, the larger the smaller */
        if (p->bytes == VCAP_UNKNOWN || (bytes != VCAP_UNKNOWN && bytes > p->bytes))
            p->bytes = bytes;
        p->mps = p->mps || mps;
        return true;
    }
    if (l->count == l->room) {
        uint32_t room = l->room ? l->room * 2 : 16;
        struct vcap_nvml_process *all = realloc(l->all, room * sizeof *all);
        if (!all)
            return false;
        l->all = all;
        l->room = room;
    }
    l->all[l->count++] = (struct vcap_nvml_process){pid, bytes, mps};
    return true;
}

static bool ask_newer(const struct vcap_nvml *nvml, nvmlDevice_t device, int kind, struct list *l)
{
    unsigned int count = 0;
    nvml_processes_v2 ask = nvml->kinds[kind].newer;
    nvmlReturn_t rc = ask ? ask(device, &count, NULL) : NVML_ERROR_FUNCTION_NOT_FOUND;
    for (int i = 0; rc == NVML_ERROR_INSUFFICIENT_SIZE && i < TRIES && count <= PROCESSES_MAX;
         i++) {
        count += 16; /* more may have come meanwhile */
        nvmlProcessInfo_v2_t *infos = calloc(count, sizeof *infos);
        if (!infos)
            return false;
        unsigned int room = count;
        rc = ask(device, &count, infos);
        for (unsigned int k = 0; rc == NVML_SUCCESS && k < count && k < room; k++)
            if (!add(l, infos[k].pid, infos[k].usedGpuMemory, kind == 1))
                rc = NVML_ERROR_NOT_FOUND;
        free(infos);
    }
    return rc == NVML_SUCCESS;
}

static bool ask_oldest(const struct vcap_nvml *nvml, nvmlDevice_t device, int kind, struct list *l)
{
    unsigned int count = 0;
    nvml_processes_v1 ask = nvml->kinds[kind].oldest;
    nvmlReturn_t rc = ask ? ask(device, &count, NULL) : NVML_ERROR_FUNCTION_NOT_FOUND;
    for (int i = 0; rc == NVML_ERROR_INSUFFICIENT_SIZE && i < TRIES && count <= PROCESSES_MAX;
         i++) {
        count += 16;
        nvmlProcessInfo_v1_t *infos = calloc(count, sizeof *infos);
        if (!infos)
            return false;
        unsigned int room = count;
        rc = ask(device, &count, infos);
        for (unsigned int k = 0; rc == NVML_SUCCESS && k < count && k < room; k++)
            if (!add(l, infos[k].pid, infos[k].usedGpuMemory, kind == 1))
                rc = NVML_ERROR_NOT_FOUND;
        free(infos);
    }
    return rc == NVML_SUCCESS;
}

static bool ask_details(const struct vcap_nvml *nvml, nvmlDevice_t device, int kind, struct list *l)
{
    nvmlProcessDetailList_v1_t list = {.version = (unsigned)sizeof list | 1u << 24,
                                       .mode = nvml->kinds[kind].mode};
    nvmlReturn_t rc = nvml->details ? nvml->details(device, &list) : NVML_ERROR_FUNCTION_NOT_FOUND;
    for (int i = 0; rc == NVML_ERROR_INSUFFICIENT_SIZE && i < TRIES &&
                    list.numProcArrayEntries <= PROCESSES_MAX;
         i++) {
        unsigned int room = list.numProcArrayEntries += 16;
        list.procArray = calloc(room, sizeof *list.procArray);
        if (!list.procArray)
            return false;
        rc = nvml->details(device, &list);
        for (unsigned int k = 0; rc == NVML_SUCCESS && k < list.numProcArrayEntries && k < room;
             k++)
            if (!add(l, list.procArray[k].pid, list.procArray[k].usedGpuMemory, kind == 1))
                rc = NVML_ERROR_NOT_FOUND;
        free(list.procArray);
        list.procArray = NULL;
    }
    return rc == NVML_SUCCESS;
}

/* Three forms of one question; each answers for those that are missing or not supported. */
static bool ask_kind(const struct vcap_nvml *nvml, nvmlDevice_t device, int kind, struct list *l)
{
    return ask_newer(nvml, device, kind, l) || ask_oldest(nvml, device, kind, l) ||
           ask_details(nvml, device, kind, l);
}

static int by_pid(const void *left, const void *right)
{
    const struct vcap_nvml_process *a = left, *b = right;
    return a->pid < b->pid ? -1 : a->pid > b->pid;
}

/* ---- devices ---- */

static void ask_device(const struct vcap_nvml *nvml, nvmlDevice_t device, uint32_t index, bool mig,
                       struct vcap_nvml_sample *sample)
{
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
    struct vcap_nvml_gpu *g = &sample->gpus[sample->gpu_count];
    struct list l = {0};
    nvmlMemory_t memory = {0};
    if (sample->gpu_count == GPUS_MAX || !nvml->uuid ||
        nvml->uuid(device, uuid, sizeof uuid) != NVML_SUCCESS || !*uuid)
        return;
    (void)snprintf(g->uuid, sizeof g->uuid, "%.*s", VCAP_UUID_TEXT - 1, uuid);
    g->index = index;
    g->mig = mig;
    g->total_bytes = g->used_bytes = VCAP_UNKNOWN;
    if (nvml->memory && nvml->memory(device, &memory) == NVML_SUCCESS) {
        g->total_bytes = memory.total;
        g->used_bytes = memory.used;
    }
    g->processes_known = ask_kind(nvml, device, 0, &l);
    g->mps_known = ask_kind(nvml, device, 1, &l);
    (void)ask_kind(nvml, device, 2, &l); /* absent without a display: no loss */
    if (l.count > 1)
        qsort(l.all, l.count, sizeof *l.all, by_pid);
    g->processes = l.all;
    g->process_count = l.count;
    sample->gpu_count++;
}

static void ask_slices(const struct vcap_nvml *nvml, nvmlDevice_t device, uint32_t index,
                       struct vcap_nvml_sample *sample)
{
    unsigned int count = 0;
    if (!nvml->mig_count || !nvml->mig_by_index || nvml->mig_count(device, &count) != NVML_SUCCESS)
        return;
    for (unsigned int i = 0; i < count && i < GPUS_MAX; i++) {
        nvmlDevice_t mig = NULL;
        if (nvml->mig_by_index(device, i, &mig) == NVML_SUCCESS)
            ask_device(nvml, mig, index, true, sample);
    }
}

static void fail(struct vcap_nvml *nvml, struct vcap_nvml_sample *sample, const char *what,
                 nvmlReturn_t rc)
{
    sample->state = VCAP_NVML_FAILED;
    (void)snprintf(sample->why, sizeof sample->why, "%s: NVML error %d", what, rc);
    if (nvml->ready && nvml->shutdown)
        (void)nvml->shutdown();
    nvml->ready = false; /* from the beginning next time */
}

struct vcap_nvml_sample *vcap_nvml_ask(struct vcap_nvml *nvml)
{
    struct vcap_nvml_sample *sample = calloc(1, sizeof *sample);
    unsigned int count = 0;
    nvmlReturn_t rc;
    if (sample)
        sample->gpus = calloc(GPUS_MAX + 1, sizeof *sample->gpus);
    if (!sample || !sample->gpus) {
        free(sample);
        return NULL;
    }
    sample->users = 1;
    sample->state = VCAP_NVML_OK;
    if (!nvml->ready) {
        rc = nvml->init ? nvml->init() : NVML_ERROR_FUNCTION_NOT_FOUND;
        if (rc != NVML_SUCCESS) {
            fail(nvml, sample, "nvmlInit", rc);
            goto out;
        }
        nvml->ready = true;
    }
    rc = nvml->count && nvml->by_index ? nvml->count(&count) : NVML_ERROR_FUNCTION_NOT_FOUND;
    if (rc != NVML_SUCCESS) {
        fail(nvml, sample, "nvmlDeviceGetCount", rc);
        goto out;
    }
    for (unsigned int i = 0; i < count && i < GPUS_MAX; i++) {
        nvmlDevice_t device = NULL;
        if (nvml->by_index(i, &device) != NVML_SUCCESS) /* one lost GPU does not hide the others */
            continue;
        ask_device(nvml, device, i, false, sample);
        ask_slices(nvml, device, i, sample);
    }
out:
    sample->time_ns = vcap_clock_ns(CLOCK_MONOTONIC);
    return sample;
}
