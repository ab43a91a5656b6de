/*
 * The devices of this process: who they are, which row of the ledger is theirs, which ceilings hold.
 * Invariants:
 *   - a device is ready (state 1) only with its row, its ceilings and its card's size;
 *   - of several sources the lowest holds; the container's ceiling is set once, and in a ledger of the
 *     host's only by the host.  A lower one of this process's own binds this process;
 *   - the driver is asked without any lock.
 */
#include "preload/device.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "enforcer/ceiling.h"
#include "enforcer/dmem.h"
#include "enforcer/log.h"
#include "preload/compute.h"
#include "preload/mps.h"
#include "preload/preload.h"

/* The kernel's limit, if it may be a ceiling.  One that is not understood is said and left to the kernel,
 * which enforces it whatever we make of it. */
static uint64_t kernel_limit(CUdevice ordinal, const char *name)
{
    char pci[32] = "";
    uint64_t bytes = UINT64_MAX;
    bool known = vcap_own.cuDeviceGetPCIBusId != NULL &&
                 vcap_own.cuDeviceGetPCIBusId(pci, (int)sizeof(pci), ordinal) == CUDA_SUCCESS;
    int rc = vcap_dmem_limit("/proc", "/sys/fs/cgroup", known ? pci : NULL, &bytes);

    if (rc != 0)
        vcap_log(VCAP_LOG_WARN,
                 "GPU %d (%s): dmem.max of this cgroup cannot be read (%s); it is no ceiling here, "
                 "the kernel's limit stands",
                 (int)ordinal, name, strerror(-rc));
    return rc != 0 || bytes > VCAP_CONFIG_BYTES_MAX ? VCAP_NO_LIMIT : bytes;
}

/* The lowest of all that this process knows. */
static struct vcap_ceiling own_ceiling(const struct vcap_device *d, uint32_t ordinal)
{
    struct vcap_ceiling own =
        vcap_ceiling_effective(&vcap_process.config, ordinal, d->uuid, d->mig);

    return d->dmem_bytes < own.bytes ? (struct vcap_ceiling){d->dmem_bytes, VCAP_LF_SOURCE_DMEM}
                                     : own;
}

/* What each source of the configuration says of the device, for readers. */
static void record_sources(struct vcap_lf_gpu *gpu, const struct vcap_device *d, uint32_t ordinal)
{
    static const enum vcap_lf_source sources[] = {VCAP_LF_SOURCE_ENV, VCAP_LF_SOURCE_MPS,
                                                  VCAP_LF_SOURCE_CONF, VCAP_LF_SOURCE_TOOLKIT};
    uint64_t bytes;

    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        if (vcap_ceiling_by_source(&vcap_process.config, sources[i], ordinal, d->uuid, d->mig,
                                   &bytes))
            __atomic_store_n(&gpu->source_bytes[sources[i] - VCAP_LF_SOURCE_FIRST],
                             bytes == VCAP_NO_LIMIT ? UINT64_MAX : bytes + 1, __ATOMIC_RELAXED);
    if (d->dmem_bytes != VCAP_NO_LIMIT)
        __atomic_store_n(&gpu->source_bytes[VCAP_LF_SOURCE_DMEM - VCAP_LF_SOURCE_FIRST],
                         d->dmem_bytes + 1, __ATOMIC_RELAXED);
}

/* The container's ceiling of a row, set if it was not and something here may set it. */
static uint64_t container_ceiling(struct vcap_ledger *l, const struct vcap_device *d,
                                  uint32_t ordinal, struct vcap_ceiling own)
{
    uint64_t conf = VCAP_NO_LIMIT, word;

    if ((l->flags & VCAP_LF_HOST_MADE) != 0) {
        word = vcap_ledger_host_ceiling(l, d->gpu);
        __atomic_store_n(&l->gpus[d->gpu].source_bytes[VCAP_LF_SOURCE_HOST - VCAP_LF_SOURCE_FIRST],
                         vcap_ceiling_bytes(word) == VCAP_NO_LIMIT ? UINT64_MAX
                                                                   : vcap_ceiling_bytes(word) + 1,
                         __ATOMIC_RELAXED);
        return vcap_ceiling_bytes(word);
    }
    (void)vcap_ceiling_by_source(&vcap_process.config, VCAP_LF_SOURCE_CONF, ordinal, d->uuid,
                                 d->mig, &conf);
    if (conf != VCAP_NO_LIMIT) /* a lower one of the environment is this process's own */
        own = (struct vcap_ceiling){conf, VCAP_LF_SOURCE_CONF};
    if (own.bytes == VCAP_NO_LIMIT)
        return vcap_ceiling_bytes(__atomic_load_n(&l->gpus[d->gpu].ceiling, __ATOMIC_ACQUIRE));
    return vcap_ceiling_bytes(vcap_ledger_propose_ceiling(l, d->gpu, own.bytes, own.source));
}

/* VRAMCAP_MEMORY_MIB above the container's ceiling: once per device and value. */
static void say_above(struct vcap_device *d, uint32_t ordinal, uint64_t container)
{
    struct vcap_event event = {.kind = VCAP_LF_EVENT_CONFIG,
                               .gpu = d->gpu,
                               .limit = container,
                               .name = "VRAMCAP_MEMORY_MIB above the container's"};

    if (!vcap_ceiling_by_source(&vcap_process.config, VCAP_LF_SOURCE_ENV, ordinal, d->uuid, d->mig,
                                &event.bytes) ||
        event.bytes == VCAP_NO_LIMIT || event.bytes <= container || d->said_bytes == container + 1)
        return;
    d->said_bytes = container + 1;
    vcap_log(
        VCAP_LOG_WARN,
        "GPU %u (%s): this process asks for a ceiling of %llu MiB, the container's is %llu MiB "
        "and stays",
        ordinal, d->name, (unsigned long long)(event.bytes >> 20),
        (unsigned long long)(container >> 20));
    vcap_ledger_event(vcap_ledger_now(), &event);
}

/* The device's row in the ledger and the ceilings that hold for it here.  vcap_process_mutex is held. */
static int place_device(struct vcap_device *d, uint32_t ordinal)
{
    struct vcap_ledger *l = vcap_ledger_now();
    struct vcap_ceiling own = own_ceiling(d, ordinal);
    uint64_t container, limit;
    uint32_t gpu;
    int rc =
        vcap_ledger_gpu(l, d->uuid, d->mig ? VCAP_LF_GPU_MIG : 0, ordinal, d->card_bytes, &gpu);

    if (rc != 0)
        return rc;
    if (d->gpu != gpu) /* nearly always it is the same, and other threads read it meanwhile */
        d->gpu = gpu;
    record_sources(&l->gpus[gpu], d, ordinal);
    container = container_ceiling(l, d, ordinal, own);
    /* kept in a ledger of the host's even where it is higher now: the host may raise the container's */
    limit =
        own.bytes < container || (l->flags & VCAP_LF_HOST_MADE) != 0 ? own.bytes : VCAP_NO_LIMIT;
    if (d->limit_bytes != limit)
        d->limit_bytes = limit;
    say_above(d, ordinal, container);
    return 0;
}

/* The slot's view of a device: which rows it uses, its own ceiling, overhead known or not. */
static void note_device(const struct vcap_device *d)
{
    struct vcap_ledger *l = vcap_ledger_now();
    uint32_t slot = vcap_mine_slot(vcap_ledger_mine(l));
    uint64_t container =
        vcap_ceiling_bytes(__atomic_load_n(&l->gpus[d->gpu].ceiling, __ATOMIC_ACQUIRE));

    if (!vcap_ledger_owns(l))
        return;
    __atomic_fetch_or(&l->slots[slot].index_mask, 1u << d->gpu, __ATOMIC_RELAXED);
    if (d->mps != VCAP_LF_MPS_UNKNOWN)
        __atomic_store_n(&l->slots[slot].mps, (uint32_t)d->mps, __ATOMIC_RELAXED);
    vcap_ledger_cell(l, slot, d->gpu)->limit_bytes =
        d->limit_bytes < container ? d->limit_bytes : VCAP_NO_LIMIT;
    if (vcap_process.config.context_bytes != VCAP_CONTEXT_AUTO)
        vcap_ledger_note_overhead(l, d->gpu, 0);
}

void vcap_devices_place_again(void)
{
    for (uint32_t i = 0; i < VCAP_DEVICES_MAX; i++) {
        struct vcap_device *d = &vcap_process.device[i];

        if (d->state == 1 && place_device(d, i) == 0)
            note_device(d);
    }
}

int vcap_device_uuid(CUdevice ordinal, uint8_t uuid[16], bool *mig)
{
    CUuuid parent, own;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    memset(&parent, 0, sizeof(parent));
    memset(&own, 0, sizeof(own));
    *mig = false;
    if (vcap_own.cuDeviceGetUuid != NULL)
        result = vcap_own.cuDeviceGetUuid(&parent, ordinal);
    /* v1 gives the parent of a MIG slice, v2 the slice itself: if they differ it is one */
    if (vcap_own.cuDeviceGetUuid_v2 != NULL &&
        vcap_own.cuDeviceGetUuid_v2(&own, ordinal) == CUDA_SUCCESS)
        *mig = result == CUDA_SUCCESS && memcmp(&own, &parent, sizeof(own)) != 0;
    else if (result == CUDA_SUCCESS)
        own = parent;
    else
        return -ENODEV;
    memcpy(uuid, &own, 16);
    return 0;
}

uint32_t vcap_devices_visible(uint8_t (*uuids)[16], bool *mig)
{
    int count = 0;

    if (vcap_own.cuDeviceGetCount == NULL || vcap_own.cuDeviceGetCount(&count) != CUDA_SUCCESS ||
        count < 0 || count > VCAP_DEVICES_MAX)
        return 0;
    for (CUdevice i = 0; i < count; i++)
        if (vcap_device_uuid(i, uuids[i], &mig[i]) != 0)
            return 0;
    return (uint32_t)count;
}

/* Does a source of this process have a ceiling for any GPU that it sees?  True also where what it sees
 * cannot be known. */
static bool any_visible_ceiling(void)
{
    uint8_t uuids[VCAP_DEVICES_MAX][16];
    bool mig[VCAP_DEVICES_MAX];
    uint32_t count = vcap_devices_visible(uuids, mig);

    for (uint32_t i = 0; i < count; i++) {
        struct vcap_device seen = {.mig = mig[i]};

        memcpy(seen.uuid, uuids[i], sizeof(seen.uuid));
        vcap_uuid_format(seen.name, seen.uuid, seen.mig);
        seen.dmem_bytes = kernel_limit((CUdevice)i, seen.name);
        if (own_ceiling(&seen, i).bytes != VCAP_NO_LIMIT)
            return true;
    }
    return count == 0;
}

/*
 * All entries are for GPUs that this process does not see, and nothing at all would be enforced: no ceiling
 * from any source, which is an error for VRAMCAP_ON_ERROR.  vcap_process_mutex is held; before the device is
 * published, so that no thread is granted anything on it.
 */
static void end_without(struct vcap_device *d)
{
    enum vcap_mode mode =
        vcap_failed("VRAMCAP_ENABLE is set but no entry of VRAMCAP_MEMORY_MIB (or "
                    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT) names a GPU that this process sees: name "
                    "one by its UUID, or by its place in CUDA_VISIBLE_DEVICES",
                    -EINVAL);

    __atomic_store_n(&vcap_mode_word, (uint32_t)mode, __ATOMIC_RELAXED);
    if (mode == VCAP_MODE_DENY)
        d->limit_bytes = 0; /* for whoever has looked at the mode already */
}

/* A GPU without a ceiling where another one has its, or in a ledger of the host's, is somebody's decision. */
static void say_without(const struct vcap_device *d, CUdevice ordinal, bool ended)
{
    struct vcap_event event = {
        .kind = VCAP_LF_EVENT_CONFIG, .gpu = d->gpu, .name = "no ceiling for a visible GPU"};

    vcap_ledger_event(vcap_ledger_now(), &event);
    if (!ended)
        vcap_log(VCAP_LOG_WARN,
                 "GPU %d (%s): no source has a ceiling for it; what is allocated on it is counted "
                 "and not limited",
                 (int)ordinal, d->name);
}

static int identify_device(struct vcap_device *d, CUdevice ordinal)
{
    size_t total = 0;
    int rc = vcap_device_uuid(ordinal, d->uuid, &d->mig);

    if (rc != 0)
        return rc;
    vcap_uuid_format(d->name, d->uuid, d->mig);
    if (real.cuDeviceTotalMem_v2 != NULL &&
        real.cuDeviceTotalMem_v2(&total, ordinal) == CUDA_SUCCESS)
        d->card_bytes = total;
    d->dmem_bytes = kernel_limit(ordinal, d->name);
    d->mps = vcap_mps_ask(ordinal);
    return 0;
}

struct vcap_device *vcap_device_make_ready(CUdevice ordinal)
{
    struct vcap_device *d;
    int rc;

    if (ordinal < 0 || ordinal >= VCAP_DEVICES_MAX)
        return NULL;
    d = &vcap_process.device[ordinal];
    if (__builtin_expect(__atomic_load_n(&d->state, __ATOMIC_ACQUIRE) == 1, 1))
        return d;
    if (vcap_ledger_now()->base == NULL)
        return NULL;
    /* two threads may both ask the driver, which is harmless; no lock is held over it */
    {
        struct vcap_device found;
        bool placed = false, without, only_others, ended = false;

        memset(&found, 0, sizeof(found));
        if (identify_device(&found, ordinal) != 0)
            return NULL;
        without = own_ceiling(&found, (uint32_t)ordinal).bytes == VCAP_NO_LIMIT;
        only_others = without && !any_visible_ceiling();
        pthread_mutex_lock(&vcap_process_mutex);
        rc = 0;
        if (d->state == 0) {
            /* all but state, which others load meanwhile */
            memcpy((char *)d + offsetof(struct vcap_device, gpu),
                   (const char *)&found + offsetof(struct vcap_device, gpu),
                   sizeof(found) - offsetof(struct vcap_device, gpu));
            rc = place_device(d, (uint32_t)ordinal);
            if (rc == 0) {
                note_device(d);
                placed = true;
                without = without && vcap_device_ceiling(d) == VCAP_NO_LIMIT;
                ended =
                    without && only_others && (vcap_ledger_now()->flags & VCAP_LF_HOST_MADE) == 0;
                if (ended)
                    end_without(d);
                __atomic_store_n(&d->state, 1, __ATOMIC_RELEASE);
            }
        }
        pthread_mutex_unlock(&vcap_process_mutex);
        if (placed) {
            vcap_mps_examine(d, ordinal);
            vcap_compute_record(d, ordinal);
            if (without)
                say_without(d, ordinal, ended);
            if (ended)
                return NULL;
        }
    }
    if (rc != 0) {
        static struct vcap_log_limit limit;
        uint32_t held_back;

        if (vcap_log_allow(&limit, &held_back))
            vcap_log(VCAP_LOG_ERROR,
                     "GPU %d (%s): the ledger has no row left for it; make one with more GPUs",
                     (int)ordinal, d->name);
        return NULL;
    }
    return d;
}

uint64_t vcap_device_ceiling(const struct vcap_device *device)
{
    uint64_t container = vcap_ceiling_bytes(
        __atomic_load_n(&vcap_ledger_now()->gpus[device->gpu].ceiling, __ATOMIC_ACQUIRE));

    return container < device->limit_bytes ? container : device->limit_bytes;
}
