/*
 * What is wrong, or not what it seems, with the MPS settings of one container; and what enforces
 * the ceiling there.  Pure functions over what mps_look.h and ledger_read.h found; sizes and lists
 * by the grammar of config.h, devices by ceiling.h.  The facts about MPS are in docs/observability.md
 * with their sources; nothing here was measured on a GPU.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_MPS_LINT_H
#define VRAMCAP_ENFORCER_AGENT_MPS_LINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "enforcer/agent/mps_look.h"
#include "enforcer/ledger_read.h"

#define VCAP_MPS_GPUS_MAX 32
#define VCAP_MPS_EVIDENCE 320

enum vcap_mps_lint {
    VCAP_MPS_LINT_UNREADABLE,      /* the environment could not be read: nothing is known */
    VCAP_MPS_LINT_MALFORMED,       /* the limit is no list of DEVICE=SIZE */
    VCAP_MPS_LINT_NO_UNIT,         /* a size without a unit: bytes, or MiB? */
    VCAP_MPS_LINT_TOO_LARGE,       /* 8 TiB or more: bytes where M was written, as a rule */
    VCAP_MPS_LINT_INVISIBLE_GPU,   /* an entry names a GPU that the process does not see */
    VCAP_MPS_LINT_GPU_WITHOUT,     /* no entry names a GPU that it does see */
    VCAP_MPS_LINT_NO_LIMIT,        /* no limit at all in an MPS client */
    VCAP_MPS_LINT_PIPE_MISSING,    /* no pipe directory in the container */
    VCAP_MPS_LINT_PIPE_NO_CONTROL, /* it has no control pipe */
    VCAP_MPS_LINT_PIPE_NO_DAEMON,  /* it is not the one of the daemon that the agent watches */
    VCAP_MPS_LINT_ABOVE_CEILING,   /* the limit is above the ceiling */
    VCAP_MPS_LINT_BELOW_CEILING,   /* below: the driver refuses before the ceiling does */
    VCAP_MPS_LINT_ABOVE_CARD,      /* the limit is above the card's memory */
    VCAP_MPS_LINT_PER_PROCESS,     /* several clients may together hold more than the ceiling */
    VCAP_MPS_LINT_DIFFERS,         /* processes of the container have different limits */
    VCAP_MPS_LINT_PERCENT,         /* the thread percentage is no number above 0, up to 100 */
    VCAP_MPS_LINTS
};

enum vcap_mps_severity { VCAP_MPS_NOTE, VCAP_MPS_WARNING, VCAP_MPS_ERROR };

struct vcap_mps_finding {
    enum vcap_mps_lint kind;
    enum vcap_mps_severity severity;
    pid_t pid;                        /* the host's number; 0: about the container */
    char uuid[VCAP_UUID_TEXT];        /* empty: about no single GPU */
    char evidence[VCAP_MPS_EVIDENCE]; /* one printable sentence */
};

/* A GPU as the container may see it. */
struct vcap_mps_gpu {
    uint8_t uuid[16];
    bool mig;
    uint64_t card_bytes;    /* VCAP_UNKNOWN */
    uint64_t ceiling_bytes; /* vramcap's; VCAP_NO_LIMIT: none */
};

struct vcap_mps_container {
    uint32_t process_count;
    const struct vcap_mps_look *processes;
    /*
     * The host's GPUs in NVML's order, MIG devices behind their GPU; gpus_known false: no NVML.
     * Then what a process sees is unknown, and no finding rests on it.
     */
    bool gpus_known;
    bool all_visible; /* no container runtime hides GPUs: only CUDA_VISIBLE_DEVICES counts */
    uint32_t gpu_count;
    const struct vcap_mps_gpu *gpus;
    /* the watched daemon's pipe directory, to compare with; inode 0: unknown */
    uint64_t daemon_device, daemon_inode;
    bool daemon_up;
};

/*
 * Fills at most room findings, the worst first, and returns how many there are.  A process that has
 * neither a pipe directory nor any MPS variable is no MPS client and gives none.
 */
uint32_t vcap_mps_lint(const struct vcap_mps_container *container,
                       struct vcap_mps_finding *findings, uint32_t room);

/*
 * The GPUs that a process sees, as positions in container->gpus, in the order of its ordinals, by
 * CUDA_VISIBLE_DEVICES over NVIDIA_VISIBLE_DEVICES.  False: cannot be told from here (CDI, MIG
 * by index, no NVML).
 */
bool vcap_mps_visible(const struct vcap_mps_container *container, const struct vcap_mps_look *look,
                      uint32_t visible[VCAP_MPS_GPUS_MAX], uint32_t *count);

/* "entry_for_invisible_gpu", ...; "note", "warning", "error" */
const char *vcap_mps_lint_name(enum vcap_mps_lint kind);
const char *vcap_mps_severity_name(enum vcap_mps_severity severity);

/*
 * What enforces the ceiling on one GPU of a container.  Bits, because several may: the lowest
 * holds.
 */
#define VCAP_ENFORCED_BY_VRAMCAP 1u
#define VCAP_ENFORCED_BY_MPS 2u  /* for each client process, not for the container */
#define VCAP_ENFORCED_BY_DMEM 4u /* the kernel's, by cgroup */

/*
 * gpu: position in snapshot->gpus.  mps_in_force: a living process is an MPS client with a limit for
 * this GPU and the lint found no error.  vramcap enforces where there is a ceiling, the host has not
 * switched to audit or pass-through, and no living process is in audit mode.
 */
unsigned vcap_enforced_by(const struct vcap_snapshot *snapshot, uint32_t gpu, bool mps_in_force);

/* One bit: "vramcap", "mps", "dmem"; 0: "none". */
const char *vcap_enforced_by_name(unsigned bit);

#endif
