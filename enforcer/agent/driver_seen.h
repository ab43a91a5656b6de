/*
 * What the driver sees: GPUs and the processes on them, by NVML.  The library is optional, may lack
 * functions, may fail, and may hang (a driver whose GPU is lost does), so it is asked from a thread of
 * its own and nobody waits for it longer than they want to.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_DRIVER_SEEN_H
#define VRAMCAP_ENFORCER_AGENT_DRIVER_SEEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "enforcer/ledger_read.h"

#define VCAP_NVML_WHY 160

struct vcap_nvml_process {
    uint32_t pid;   /* as NVML says it: the host's number, as a rule */
    uint64_t bytes; /* VCAP_UNKNOWN: the driver does not say */
    bool mps;       /* an MPS client */
};

struct vcap_nvml_gpu {
    char uuid[VCAP_UUID_TEXT];
    uint32_t index; /* on this host; a MIG device has its GPU's */
    bool mig;
    uint64_t total_bytes, used_bytes; /* VCAP_UNKNOWN */
    bool processes_known;             /* compute processes could be asked for */
    bool mps_known;                   /* MPS clients could be, apart from them */
    uint32_t process_count;
    struct vcap_nvml_process *processes; /* by pid, each once */
};

enum vcap_nvml_state {
    VCAP_NVML_OFF,    /* nobody wants it, or not asked yet */
    VCAP_NVML_ABSENT, /* no library */
    VCAP_NVML_FAILED, /* it does not initialise, or lists no devices */
    VCAP_NVML_SILENT, /* it has not answered for three intervals */
    VCAP_NVML_OK
};

struct vcap_nvml_sample {
    uint32_t users; /* counted up and down with __atomic_* by whoever holds it */
    enum vcap_nvml_state state;
    char why[VCAP_NVML_WHY];
    uint64_t time_ns; /* CLOCK_MONOTONIC */
    uint32_t gpu_count;
    struct vcap_nvml_gpu *gpus;
};

const char *vcap_nvml_state_name(enum vcap_nvml_state state);
const struct vcap_nvml_gpu *vcap_nvml_find(const struct vcap_nvml_sample *sample, const char *uuid);

/* ---- in the calling thread ---- */

struct vcap_nvml; /* the library */

/* library: a name for dlopen.  NULL and why. */
struct vcap_nvml *vcap_nvml_open(const char *library, char *why, size_t why_size);

/* Asks everything.  A sample in any case but lack of memory (NULL). */
struct vcap_nvml_sample *vcap_nvml_ask(struct vcap_nvml *nvml);
void vcap_nvml_close(struct vcap_nvml *nvml);

void vcap_nvml_release(struct vcap_nvml_sample *sample); /* NULL is allowed */

/* ---- from a thread of its own (driver_thread.c) ---- */

struct vcap_nvml_thread;

/* NULL without memory. */
struct vcap_nvml_thread *vcap_nvml_start(const char *library, uint64_t interval_ms);

/* The latest sample, to be released; if it is older than fresh_ms, a new one is asked for and waited
 * for, wait_ms at most. */
struct vcap_nvml_sample *vcap_nvml_latest(struct vcap_nvml_thread *thread, uint64_t fresh_ms,
                                          uint64_t wait_ms);

/* Ends it; a thread that hangs in the driver is left behind. */
void vcap_nvml_stop(struct vcap_nvml_thread *thread);

#endif
