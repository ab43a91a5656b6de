/*
 * The compute ceiling.  Invariants:
 *   - the variable is only ever lowered or set where it was not, never raised, and nothing else of the
 *     environment is touched; without a compute ceiling it is not even looked at;
 *   - what the ledger says is what the driver reported, not what was asked of it: `in force` needs a
 *     client of MPS.  Whether a percentage that is set just before cuInit still counts is the driver's
 *     affair, so `vramcap run` and the container's specification set it from outside as well.
 */
#include "preload/compute.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/log.h"

#define PERCENTAGE "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#define PARTITIONING "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"

static uint32_t ceiling_percent; /* written once in vcap_compute_prepare; 0 = none */
static bool prepared, partitioned;
static uint32_t said; /* bit per state, see record; atomic */

/* Is the text a percentage of at most `most`?  Digits with perhaps a fraction; what anything else is to
 * MPS is not known, so it is not. */
static bool is_at_most(const char *text, uint32_t most)
{
    uint64_t whole = 0;
    bool fraction = false, digits = false;

    for (; *text >= '0' && *text <= '9'; text++, digits = true)
        if (whole < 1000000)
            whole = whole * 10 + (uint64_t)(*text - '0');
    if (*text == '.')
        for (text++; *text >= '0' && *text <= '9'; text++)
            fraction = fraction || *text != '0';
    /* zero is no percentage to MPS, which then limits nothing */
    return digits && *text == '\0' && (whole != 0 || fraction) &&
           (whole < most || (whole == most && !fraction));
}

/* True: it was above the ceiling, or not there. */
static bool lower(void)
{
    const char *now = getenv(PERCENTAGE);
    char text[8];
    int saved = errno;

    if (now != NULL && is_at_most(now, ceiling_percent))
        return false;
    snprintf(text, sizeof(text), "%u", (unsigned)ceiling_percent);
    (void)setenv(PERCENTAGE, text, 1); /* lint: allow forbidden_calls: only ever lowers */
    errno = saved;
    return true;
}

void vcap_compute_prepare(void)
{
    struct vcap_outlook *outlook;
    const char *flag;

    if (prepared)
        return;
    prepared = true;
    outlook = malloc(sizeof(*outlook));
    if (outlook == NULL)
        return;
    if (vcap_outlook(outlook))
        ceiling_percent = outlook->config.compute_percent;
    free(outlook);
    if (ceiling_percent == 0)
        return;
    flag = getenv(PARTITIONING);
    partitioned = flag != NULL && strcmp(flag, "1") == 0;
    (void)lower();
}

void vcap_compute_again(void)
{
    if (ceiling_percent != 0 && partitioned && lower())
        vcap_log(
            VCAP_LOG_WARN,
            "%s was raised above the compute ceiling before a context was made; it is %u again",
            PERCENTAGE, (unsigned)ceiling_percent);
}

static unsigned reported(CUdevice ordinal)
{
    int count = 0;

    if (vcap_own.cuDeviceGetAttribute == NULL ||
        vcap_own.cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal) !=
            CUDA_SUCCESS ||
        count < 0)
        return 0;
    return (unsigned)count;
}

static unsigned share_of(unsigned count)
{
    count = (unsigned)((uint64_t)count * ceiling_percent / 100);
    return count == 0 ? 1 : count;
}

/* With partitioning the driver reports the server's share, of which the variable is a part. */
static unsigned granted(CUdevice ordinal)
{
    unsigned count = reported(ordinal);

    return partitioned && count != 0 ? share_of(count) : count;
}

unsigned vcap_compute_most(CUdevice ordinal)
{
    struct vcap_device *device = ceiling_percent == 0 ? NULL : vcap_device(ordinal);
    unsigned most, total;

    if (device == NULL || device->mps != VCAP_LF_MPS_CLIENT)
        return 0;
    most = granted(ordinal);
    /* where the driver read the variable before we lowered it */
    total = __atomic_load_n(&vcap_ledger_now()->gpus[device->gpu].sm_total, __ATOMIC_RELAXED);
    return total != 0 && share_of(total) < most ? share_of(total) : most;
}

static void say(const struct vcap_device *device, enum vcap_lf_compute state, unsigned count)
{
    static const char *const names[] = {
        [VCAP_LF_COMPUTE_FORCE] = "in force",
        [VCAP_LF_COMPUTE_NO_MPS] = "not in force: no MPS",
        [VCAP_LF_COMPUTE_IGNORED] = "not in force: the driver reports more",
    };
    struct vcap_event event = {.kind = VCAP_LF_EVENT_COMPUTE,
                               .gpu = device->gpu,
                               .held = count,
                               .code = ceiling_percent,
                               .name = names[state]};

    if ((__atomic_fetch_or(&said, 1u << state, __ATOMIC_RELAXED) & 1u << state) != 0)
        return;
    vcap_ledger_event(vcap_ledger_now(), &event);
    if (state == VCAP_LF_COMPUTE_NO_MPS)
        vcap_log(
            VCAP_LOG_WARN,
            "%s: the compute ceiling of %u %% is not in force: this process is no client of MPS",
            device->name, (unsigned)ceiling_percent);
    if (state == VCAP_LF_COMPUTE_IGNORED)
        vcap_log(VCAP_LOG_WARN,
                 "%s: the compute ceiling of %u %% is not in force: the driver reports %u "
                 "multiprocessors; set %s outside the process",
                 device->name, (unsigned)ceiling_percent, count, PERCENTAGE);
}

void vcap_compute_record(struct vcap_device *device, CUdevice ordinal)
{
    struct vcap_lf_gpu *row = &vcap_ledger_now()->gpus[device->gpu];
    enum vcap_lf_compute state;
    unsigned count;

    if (ceiling_percent == 0) {
        uint32_t unknown = VCAP_LF_COMPUTE_UNKNOWN;

        /* what this process sees is the whole, as far as the host lets the container see it */
        if (getenv(PERCENTAGE) == NULL)
            __atomic_store_n(&row->sm_total, reported(ordinal), __ATOMIC_RELAXED);
        __atomic_compare_exchange_n(&row->compute_state, &unknown, VCAP_LF_COMPUTE_NONE, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        return;
    }
    state = device->mps == VCAP_LF_MPS_CLIENT ? VCAP_LF_COMPUTE_FORCE : VCAP_LF_COMPUTE_NO_MPS;
    count = state == VCAP_LF_COMPUTE_FORCE ? granted(ordinal) : reported(ordinal);
    if (partitioned && state == VCAP_LF_COMPUTE_FORCE)
        __atomic_store_n(&row->sm_total, reported(ordinal), __ATOMIC_RELAXED);
    if (state == VCAP_LF_COMPUTE_NO_MPS)
        __atomic_store_n(&row->sm_total, count, __ATOMIC_RELAXED);
    else if (row->sm_total != 0 &&
             count > (uint64_t)row->sm_total * ceiling_percent / 100 + 1) /* rounded by MPS */
        state = VCAP_LF_COMPUTE_IGNORED;
    __atomic_store_n(&row->sm_granted, count, __ATOMIC_RELAXED);
    __atomic_store_n(&row->compute_percent, ceiling_percent, __ATOMIC_RELAXED);
    __atomic_store_n(&row->compute_state, (uint32_t)state, __ATOMIC_RELAXED);
    say(device, state, count);
}
