/*
 * NVML: memory limits of cgroups (nvmlDeviceGetMemoryLimits_v1 and its setter).
 *
 * Reading is for anyone, setting for root. Where nobody keeps limits (VRAMCAP_SIM_MEMACCT=off, the
 * default) both answer NOT_SUPPORTED, as a driver before r615 would if it had the functions; with the
 * driver's own accounting (misc) so does reading where no limit was ever set (memacct.c of
 * open-gpu-kernel-modules 615.71.09).
 */
#include "sim_cgroup.h"
#include "sim_nvml_inside.h"

#include <unistd.h>

static int get(struct sim_state *state, unsigned int card, void *data)
{
    nvmlGetMemoryLimits_v1_t *limits = data;
    struct sim_cgroup_limits found;
    int rc = sim_cgroup_get(state, limits->nameSpace, card, &found);

    if (rc != 0)
        return rc;
    limits->softLimit = found.soft;
    limits->hardLimit = found.hard;
    limits->currentUsed = found.used;
    return 0;
}

static int set(struct sim_state *state, unsigned int card, void *data)
{
    const nvmlSetMemoryLimits_v1_t *limits = data;

    return sim_cgroup_set(state, limits->nameSpace, card, limits->softLimit, limits->hardLimit);
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    if (!limits || !limits->nameSpace)
        return NVML_ERROR_INVALID_ARGUMENT;
    return sim_nvml_with(device, get, limits);
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    if (!limits || !limits->nameSpace || limits->softLimit > limits->hardLimit)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    return sim_nvml_with(device, set, limits);
}
