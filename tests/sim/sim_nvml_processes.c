/*
 * NVML: the processes on a card, by kind, and the card's compute mode.
 *
 * A client of MPS is in both lists, that of compute processes and that of MPS clients (nvidia-smi
 * shows it as M+C); the server, when it is a process, is in the first alone (C). Pids are those of
 * the owner's PID namespace.
 */
#include "sim_nvml_inside.h"

#include <stdlib.h>
#include <string.h>

#define NO_INSTANCE 0xFFFFFFFFU

typedef void (*put_one)(void *list, unsigned int at, const struct sim_process_row *row,
                        unsigned int card);

static void put_v1(void *list, unsigned int at, const struct sim_process_row *row,
                   unsigned int card)
{
    nvmlProcessInfo_v1_t *infos = list;

    infos[at] = (nvmlProcessInfo_v1_t){(unsigned int)row->pid, row->share[card].used};
}

static void put_v2(void *list, unsigned int at, const struct sim_process_row *row,
                   unsigned int card)
{
    nvmlProcessInfo_v2_t *infos = list;

    infos[at] = (nvmlProcessInfo_v2_t){(unsigned int)row->pid, row->share[card].used, NO_INSTANCE,
                                       NO_INSTANCE};
}

static void put_detail(void *list, unsigned int at, const struct sim_process_row *row,
                       unsigned int card)
{
    nvmlProcessDetail_v1_t *details = list;

    details[at] = (nvmlProcessDetail_v1_t){(unsigned int)row->pid, row->share[card].used,
                                           NO_INSTANCE, NO_INSTANCE, 0};
}

/* `count`: room in (without a list: none), number out; with too little room what fits is written. */
static nvmlReturn_t processes(nvmlDevice_t device, unsigned int mode, unsigned int *count,
                              void *list, put_one put)
{
    unsigned int card = 0, found = 0;
    struct sim_file *copy = NULL;
    nvmlReturn_t rc = sim_nvml_card_of(device, &card);

    if (rc == NVML_SUCCESS && !count)
        rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS)
        rc = sim_nvml_look(&copy);
    if (rc != NVML_SUCCESS)
        return rc;
    unsigned int room = list ? *count : 0;
    for (unsigned int r = 0; r < SIM_MAX_ROWS; r++) {
        const struct sim_process_row *row = &copy->row[r];

        if (!row->live || row->share[card].used == 0 || mode == NVML_PROCESS_MODE_GRAPHICS ||
            (mode == NVML_PROCESS_MODE_MPS && row->bounds.role != SIM_MPS_CLIENT))
            continue;
        if (found < room)
            put(list, found, row, card);
        found++;
    }
    free(copy);
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v1_t *infos)
{
    return processes(device, NVML_PROCESS_MODE_COMPUTE, count, infos, put_v1);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *infos)
{
    return processes(device, NVML_PROCESS_MODE_COMPUTE, count, infos, put_v2);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *infos)
{
    return processes(device, NVML_PROCESS_MODE_COMPUTE, count, infos, put_v2);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v1_t *infos)
{
    return processes(device, NVML_PROCESS_MODE_MPS, count, infos, put_v1);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_v2_t *infos)
{
    return processes(device, NVML_PROCESS_MODE_MPS, count, infos, put_v2);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_v2_t *infos)
{
    return processes(device, NVML_PROCESS_MODE_MPS, count, infos, put_v2);
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_v1_t *plist)
{
    if (!plist || plist->mode > NVML_PROCESS_MODE_MPS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (plist->version != nvmlProcessDetailList_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return processes(device, plist->mode, &plist->numProcArrayEntries, plist->procArray,
                     put_detail);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    unsigned int card = 0;
    struct sim_file *copy = NULL;
    nvmlReturn_t rc = sim_nvml_card_of(device, &card);

    if (rc == NVML_SUCCESS && !mode)
        rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS)
        rc = sim_nvml_look(&copy);
    if (rc == NVML_SUCCESS)
        *mode = copy->card[card].compute_mode;
    free(copy);
    return rc;
}
