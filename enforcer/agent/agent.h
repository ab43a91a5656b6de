/*
 * The agent's heart: rounds of finding ledgers, reading them within their share of time, comparing and
 * remembering.  One thread; whoever serves others hands out texts that were made between two rounds.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_AGENT_H
#define VRAMCAP_ENFORCER_AGENT_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "enforcer/agent/compare.h"
#include "enforcer/agent/memory.h"
#include "enforcer/agent/driver_seen.h"
#include "enforcer/agent/process.h"
#include "enforcer/agent/watched.h"

#define VCAP_AGENT_DIRECTORIES 8
#define VCAP_AGENT_LEDGERS 4096u
#define VCAP_AGENT_BY_PROCESS                                                                      \
    3072u /* of them; the rest is for the directories, which are the host's */
#define VCAP_AGENT_OF_ONE_CONTAINER 8u /* found through its processes: one is usual */

struct vcap_agent_settings {
    const char *directories[VCAP_AGENT_DIRECTORIES];
    int directory_count;
    const char *own_files[8]; /* of the agent's own, not to be taken for ledgers; NULL: none */
    bool processes;           /* look for ledgers and names in /proc */
    uint64_t scan_ms, keep_ms;
    bool log_events;
};

struct vcap_agent {
    struct vcap_agent_settings settings;
    struct vcap_watched **all;
    size_t count, room;
    struct vcap_processes processes;
    uint64_t scan_due_ns;  /* CLOCK_MONOTONIC; the next pass of /proc begins */
    uint64_t scan_soon_ns; /* the same where a new slot waits for its process to be found */
    bool scan_soon;
    struct vcap_memory *memory;
    struct vcap_nvml_sample *nvml; /* latest; NULL: not wanted */
    struct vcap_passive_list passive;
    uint64_t rounds, round_ns, time_ns; /* how long the last one took; CLOCK_REALTIME of its end */
    uint64_t processes_pass;            /* the last one that was made use of */
    DIR *directories[VCAP_AGENT_DIRECTORIES]; /* open during a round; NULL */
    bool directory_missing[VCAP_AGENT_DIRECTORIES], directory_full_said[VCAP_AGENT_DIRECTORIES];
    bool processes_full_said, memory_full_said;
    size_t entry_hint;       /* where the next entry of a directory may be in `all` */
    uint64_t pidns, mntns;   /* the agent's own */
    uint64_t lock_budget_ns; /* for one ledger's locks in this round */
};

/* patient: as long as it takes to see everything once (the first round, --once). */
void vcap_agent_round(struct vcap_agent *agent, bool patient);
void vcap_agent_free(struct vcap_agent *agent);

/* ---- find.c ---- */

/* What the directories and the processes have now; new ones are in state NEW. */
void vcap_find_directories(struct vcap_agent *agent, uint64_t now_ns);
void vcap_find_processes(struct vcap_agent *agent);
void vcap_find_end(struct vcap_agent *agent); /* of a round */

/* A descriptor of a ledger, or -errno and why; -ENOENT: it is gone. */
int vcap_find_open(struct vcap_agent *agent, struct vcap_watched *w, char *why, size_t why_size);

#endif
