/*
 * An NVML that says what a file says, for tests of whoever asks: $FAKE_NVML names it.  One word or entry
 * a line; read anew at each question, so that a test can change its mind.
 *
 *     init CODE               what nvmlInit answers
 *     gpu UUID TOTAL USED     a device, in order
 *     process GPU PID BYTES   on the GPU with that number; BYTES -1: not available
 *     mps GPU PID BYTES       an MPS client
 *     limit CGROUP GPU BYTES  a hard limit on the GPU with that number; half of it is used
 *     fail FUNCTION CODE      e.g. "fail compute 3"; functions: count, handle, uuid, memory, compute,
 *                             mps, limits
 *     hang                    nothing answers any more
 *
 * Built with FAKE_NVML_HALF: only the process detail list and the oldest names.  Built with
 * FAKE_NVML_NONE: a library that has nothing of NVML.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "enforcer/nvml_abi.h"

#ifndef FAKE_NVML_NONE

#define EXPORT __attribute__((visibility("default")))
#define LINES 256

struct line {
    char word[16], a[200];
    long long b, c;
};

static struct line lines[LINES];
static unsigned line_count;

static void look(void)
{
    const char *path = getenv("FAKE_NVML");
    FILE *f = path ? fopen(path, "re") : NULL;
    char text[400];
    line_count = 0;
    while (f && line_count < LINES && fgets(text, sizeof text, f)) {
        struct line *l = &lines[line_count];
        memset(l, 0, sizeof *l);
        char *rest = text, *word = strsep(&rest, " \n");
        (void)snprintf(l->word, sizeof l->word, "%s", word);
        if (rest && (word = strsep(&rest, " \n")))
            (void)snprintf(l->a, sizeof l->a, "%s", word);
        if (rest)
            l->b = strtoll(rest, &rest, 10);
        if (rest)
            l->c = strtoll(rest, NULL, 10);
        line_count += *l->word != 0;
    }
    if (f)
        (void)fclose(f);
    for (unsigned i = 0; i < line_count; i++)
        while (!strcmp(lines[i].word, "hang"))
            (void)sleep(1);
}

static nvmlReturn_t failing(const char *function)
{
    look();
    for (unsigned i = 0; i < line_count; i++)
        if (!strcmp(lines[i].word, "fail") && !strcmp(lines[i].a, function))
            return (nvmlReturn_t)lines[i].b;
    return NVML_SUCCESS;
}

static const struct line *gpu(uintptr_t number)
{
    uintptr_t n = 0;
    for (unsigned i = 0; i < line_count; i++)
        if (!strcmp(lines[i].word, "gpu") && n++ == number)
            return &lines[i];
    return NULL;
}

static unsigned processes(const char *word, nvmlDevice_t device, unsigned room,
                          nvmlProcessDetail_v1_t *out)
{
    unsigned found = 0;
    for (unsigned i = 0; i < line_count; i++) {
        if (strcmp(lines[i].word, word) != 0 ||
            strtoul(lines[i].a, NULL, 10) + 1 != (uintptr_t)device)
            continue;
        if (found < room)
            out[found] = (nvmlProcessDetail_v1_t){
                .pid = (unsigned)lines[i].b,
                .usedGpuMemory = lines[i].c < 0 ? NVML_VALUE_NOT_AVAILABLE : (uint64_t)lines[i].c};
        found++;
    }
    return found;
}

EXPORT nvmlReturn_t nvmlInit(void);
EXPORT nvmlReturn_t nvmlShutdown(void);
EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);

nvmlReturn_t nvmlInit(void)
{
    look();
    for (unsigned i = 0; i < line_count; i++)
        if (!strcmp(lines[i].word, "init"))
            return (nvmlReturn_t)strtol(lines[i].a, NULL, 10);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void)
{
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    nvmlReturn_t rc = failing("count");
    for (*count = 0; gpu(*count);)
        (*count)++;
    return rc;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    *device = (nvmlDevice_t)(uintptr_t)(index + 1);
    return failing("handle");
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    nvmlReturn_t rc = failing("uuid");
    const struct line *g = gpu((uintptr_t)device - 1);
    if (rc == NVML_SUCCESS && g)
        (void)snprintf(uuid, length, "%s", g->a);
    return rc;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlReturn_t rc = failing("memory");
    const struct line *g = gpu((uintptr_t)device - 1);
    if (rc == NVML_SUCCESS && g) {
        memory->total = (unsigned long long)g->b;
        memory->used = (unsigned long long)g->c;
    }
    return rc;
}

EXPORT nvmlReturn_t nvmlInit_v2(void);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInit();
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    const struct line *g;

    look();
    for (uintptr_t i = 0; (g = gpu(i)) != NULL; i++)
        if (!strcmp(g->a, uuid)) {
            *device = (nvmlDevice_t)(i + 1);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

#ifndef FAKE_NVML_HALF
EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device,
                                                 nvmlGetMemoryLimits_v1_t *limits);

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    nvmlReturn_t rc = failing("limits");

    for (unsigned i = 0; rc == NVML_SUCCESS && i < line_count; i++)
        if (!strcmp(lines[i].word, "limit") && !strcmp(lines[i].a, limits->nameSpace) &&
            lines[i].b + 1 == (long long)(uintptr_t)device) {
            limits->softLimit = limits->hardLimit = (unsigned long long)lines[i].c;
            limits->currentUsed = limits->hardLimit / 2;
            return NVML_SUCCESS;
        }
    return rc != NVML_SUCCESS ? rc : NVML_ERROR_NOT_SUPPORTED;
}
#endif

#ifdef FAKE_NVML_HALF
EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                          nvmlProcessDetailList_v1_t *list);

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_v1_t *list)
{
    const char *word = list->mode == NVML_PROCESS_MODE_MPS       ? "mps"
                       : list->mode == NVML_PROCESS_MODE_COMPUTE ? "process"
                                                                 : "-";
    nvmlReturn_t rc = failing(list->mode == NVML_PROCESS_MODE_MPS ? "mps" : "compute");
    unsigned room = list->procArray ? list->numProcArrayEntries : 0;
    if (list->version != (sizeof *list | 1u << 24))
        return 25;
    list->numProcArrayEntries = processes(word, device, room, list->procArray);
    if (rc == NVML_SUCCESS && list->numProcArrayEntries > room)
        rc = NVML_ERROR_INSUFFICIENT_SIZE;
    return rc;
}
#else
static nvmlReturn_t newer(const char *word, const char *function, nvmlDevice_t device,
                          unsigned *count, nvmlProcessInfo_v2_t *infos)
{
    nvmlProcessDetail_v1_t all[LINES];
    nvmlReturn_t rc = failing(function);
    unsigned room = infos ? *count : 0, found = processes(word, device, LINES, all);
    for (unsigned i = 0; i < found && i < room; i++)
        infos[i] = (nvmlProcessInfo_v2_t){all[i].pid, all[i].usedGpuMemory, ~0u, ~0u};
    *count = found;
    return rc != NVML_SUCCESS ? rc : found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                            nvmlProcessInfo_v2_t *infos);
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                               nvmlProcessInfo_v2_t *infos);

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                     nvmlProcessInfo_v2_t *infos)
{
    return newer("process", "compute", device, count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                        nvmlProcessInfo_v2_t *infos)
{
    return newer("mps", "mps", device, count, infos);
}
#endif
#endif
