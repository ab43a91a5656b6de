/*
 * What the driver sees against what the ledgers hold.  Works on what others have read; of its own it
 * looks only at processes that the driver names and nobody knows yet.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_COMPARE_H
#define VRAMCAP_ENFORCER_AGENT_COMPARE_H

#include "enforcer/agent/driver_seen.h"
#include "enforcer/agent/watched.h"

/* Fills `compared` of every ledger.  now_ns: CLOCK_REALTIME. */
void vcap_compare(struct vcap_watched *const *all, size_t count,
                  const struct vcap_processes *processes, const struct vcap_nvml_sample *sample,
                  uint64_t now_ns);

/* The ledger in whose container a process is: by its cgroup, its mount namespace, or the host's ledger
 * that is mounted there.  NULL: in none that is known. */
struct vcap_watched *vcap_compare_container(struct vcap_watched *const *all, size_t count,
                                            const struct vcap_process *process);

/* A process that looks protected and is not. */
struct vcap_passive {
    pid_t pid; /* the host's */
    uint64_t start_time;
    char container[VCAP_CONTAINER_LABEL]; /* empty: in none that is known */
    char command[32];
    char why[96];
    bool logged;
};

/* What the environment that a process was started with says of VRAMCAP_ENABLE. */
struct vcap_asked {
    pid_t pid;
    uint64_t start_time;
    int answer; /* 1: it is set, 0: it is not, -errno: cannot be read */
    char value[32];
};

/* All zero at first. */
struct vcap_passive_list {
    struct vcap_passive *all;
    size_t count, room;
    struct vcap_asked *asked; /* by pid; each process is asked once */
    size_t asked_count;
};

/*
 * Finds them anew; those that were in the list already keep `logged`.  Environments are read for
 * budget_ns, and a little longer than VCAP_PASSIVE_LOOK_MS where a process makes its reader wait; a
 * process that was not come to is in none of the lists until a later call.
 */
#define VCAP_PASSIVE_LOOK_MS 100
void vcap_compare_passive(struct vcap_watched *const *all, size_t count,
                          const struct vcap_processes *processes,
                          const struct vcap_nvml_sample *sample, uint64_t budget_ns,
                          struct vcap_passive_list *list);
void vcap_passive_free(struct vcap_passive_list *list);

#endif
