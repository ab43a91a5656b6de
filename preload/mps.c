/*
 * The ways in which MPS's pinned-memory limit is less than it says (docs/guarantees.md has them with
 * their sources): each a name in an event of kind MPS.  And whether the limit is known well enough to
 * measure overhead by it, which is then counted against the ceiling; nothing else changes what is granted.
 */
#include "preload/mps.h"

#include <string.h>

#include "enforcer/ceiling.h"
#include "enforcer/log.h"
#include "preload/device.h"
#include "preload/overhead.h"

enum finding { NO_CLIENT, INVISIBLE, RAISED, FINDINGS };

/* Names in the event ring, which has 47 characters for each, and what follows them in the line. */
static const struct {
    const char *name, *words;
} findings[FINDINGS] = {
    [NO_CLIENT] =
        {"limit set, but no MPS client",
         "contexts are not shared by MPS (pipe directory missing or wrong, or the daemon is "
         "down), so MPS limits nothing"},
    [INVISIBLE] = {"limit names an invisible GPU",
                   "an entry names a GPU that this process does not see, and MPS then drops every "
                   "limit of the process"},
    [RAISED] =
        {"limit unset or raised in this process",
         "another process of this container has a lower one, so MPS lets this one have more"},
};

static uint32_t said; /* bit per finding; atomic */

static void say(enum finding finding, const struct vcap_device *device, CUdevice ordinal,
                uint64_t bytes)
{
    struct vcap_event event = {.kind = VCAP_LF_EVENT_MPS,
                               .gpu = device->gpu,
                               .bytes = bytes == VCAP_NO_LIMIT ? 0 : bytes,
                               .limit = vcap_device_ceiling(device),
                               .name = findings[finding].name};

    if ((__atomic_fetch_or(&said, 1u << finding, __ATOMIC_RELAXED) & 1u << finding) != 0)
        return;
    vcap_ledger_event(vcap_ledger_now(), &event);
    vcap_log(VCAP_LOG_WARN,
             "GPU %d (%s): CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: %s; vramcap's ceiling holds",
             (int)ordinal, device->name, findings[finding].words);
}

enum vcap_lf_mps vcap_mps_ask(CUdevice ordinal)
{
    int shared = 0;

    if (vcap_own.cuDeviceGetAttribute == NULL ||
        vcap_own.cuDeviceGetAttribute(&shared, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, ordinal) !=
            CUDA_SUCCESS)
        return VCAP_LF_MPS_UNKNOWN;
    return shared != 0 ? VCAP_LF_MPS_CLIENT : VCAP_LF_MPS_NO;
}

/* Is MPS's limit for this process known, so that what is free tells what the driver has taken? */
static bool limit_is_known(const struct vcap_device *device, CUdevice ordinal, uint64_t own,
                           bool all_visible)
{
    const struct vcap_config *config = &vcap_process.config;

    return config->context_bytes == VCAP_CONTEXT_AUTO && device->mps == VCAP_LF_MPS_CLIENT &&
           all_visible && own != VCAP_NO_LIMIT && own <= device->dmem_bytes &&
           vcap_ceiling_mps_agrees(&config->mps, (uint32_t)ordinal, device->uuid, device->mig);
}

void vcap_mps_examine(struct vcap_device *device, CUdevice ordinal)
{
    const struct vcap_config *config = &vcap_process.config;
    uint64_t container =
        __atomic_load_n(&vcap_ledger_now()->gpus[device->gpu].ceiling, __ATOMIC_ACQUIRE);
    uint8_t uuids[VCAP_DEVICES_MAX][16];
    bool mig[VCAP_DEVICES_MAX];
    uint64_t own = VCAP_NO_LIMIT;
    bool all_visible = false;
    uint32_t count;

    if (config->mps_set) {
        (void)vcap_ceiling_by_source(config, VCAP_LF_SOURCE_MPS, (uint32_t)ordinal, device->uuid,
                                     device->mig, &own);
        if (device->mps == VCAP_LF_MPS_NO)
            say(NO_CLIENT, device, ordinal, own);
        if (config->mps.count != 0 &&
            (__atomic_load_n(&said, __ATOMIC_RELAXED) & 1u << INVISIBLE) == 0) {
            count = vcap_devices_visible(uuids, mig);
            all_visible = count != 0 &&
                          !vcap_ceiling_mps_names_invisible(&config->mps, count,
                                                            (const uint8_t(*)[16])uuids, mig, NULL);
            if (count != 0 && !all_visible)
                say(INVISIBLE, device, ordinal, own);
        }
        if (limit_is_known(device, ordinal, own, all_visible))
            vcap_overhead_measure_from(device, own);
    }
    if (vcap_lf_ceiling_source(container) == VCAP_LF_SOURCE_MPS &&
        own > vcap_ceiling_bytes(container))
        say(RAISED, device, ordinal, own);
}
