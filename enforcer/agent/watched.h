/*
 * One container as the agent sees it: its ledger, where that was found, what was last read from it,
 * and what the comparison with the driver made of it.  The rest of the agent works on an array of
 * these; only agent.c changes the array.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_WATCHED_H
#define VRAMCAP_ENFORCER_AGENT_WATCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "enforcer/agent/memory.h"
#include "enforcer/agent/mps_settings.h"
#include "enforcer/agent/process.h"
#include "enforcer/ledger_read.h"

#define VCAP_WATCHED_USERS 8 /* processes through which a ledger without a path is read */
#define VCAP_WATCHED_WHY 200

enum vcap_watched_state {
    VCAP_WATCHED_NEW,        /* not read yet */
    VCAP_WATCHED_OK,         /* the snapshot is of this round */
    VCAP_WATCHED_LATE,       /* put off: it takes long to read, and had its share of time */
    VCAP_WATCHED_UNTRUSTED,  /* why says what is wrong with it */
    VCAP_WATCHED_UNREADABLE, /* why says which error */
    VCAP_WATCHED_GONE        /* the last state of what is no more */
};

/* A process through which a ledger can be opened: /proc/PID/map_files. */
struct vcap_user {
    pid_t pid;
    uint64_t start_time;
    struct vcap_mapping mapping;
    bool local; /* the file system was looked at: it answers at once */
};

enum vcap_tampered { VCAP_TAMPERED_UNKNOWN, VCAP_TAMPERED_NO, VCAP_TAMPERED_YES };

/* One GPU of the container as the driver sees it; VCAP_UNKNOWN where the driver was not asked or did
 * not say. */
struct vcap_compared {
    char uuid[VCAP_UUID_TEXT];
    uint32_t index;             /* on this host; UINT32_MAX: unknown */
    uint64_t driver_bytes;      /* what the driver says the container's processes hold */
    uint64_t unaccounted_bytes; /* of that, what the ledger does not hold */
    uint64_t unprotected;       /* processes on the GPU without a slot */
    uint64_t mps_clients;
    /* of unaccounted_bytes, since this agent began: the first, the most, CLOCK_REALTIME of the first */
    uint64_t first_bytes, most_bytes, since_ns;
};

struct vcap_watched {
    char label[VCAP_CONTAINER_LABEL]; /* unique among all */
    int directory;                    /* number of the --ledger-dir; -1: found through processes */
    char path[512];                   /* for people; relative to the directory if there is one */
    uint32_t user_count;
    struct vcap_user users[VCAP_WATCHED_USERS];
    struct vcap_container_name name;
    uint64_t mntns; /* of its processes; 0: unknown or not all the same */

    enum vcap_watched_state state;
    char why[VCAP_WATCHED_WHY];
    dev_t device; /* of the ledger that was opened last */
    ino_t inode;
    bool have_snapshot;
    struct vcap_snapshot snapshot;
    pid_t *host_pids;           /* one per process of the snapshot; 0: unknown */
    uint64_t first_ns, read_ns; /* CLOCK_REALTIME: first seen, snapshot taken */
    uint64_t gone_ns;           /* CLOCK_MONOTONIC */
    uint64_t cost_ns, due_ns;   /* of the last reading; CLOCK_MONOTONIC, not before */
    uint64_t round;             /* of the last reading, from 1 */
    uint64_t index_ns, pass; /* when the directory, and in which pass of /proc, it was last found */

    int place;             /* in the memory; -1: none */
    uint64_t place_due_ns; /* CLOCK_MONOTONIC: not asked for one again before */
    struct vcap_memory_record memory;
    bool memory_changed;
    uint64_t hole_ns; /* CLOCK_MONOTONIC, since when an event number has been missing; 0: none is */
    uint64_t log_tokens, log_filled_ns, log_dropped;

    struct vcap_mps_settings mps; /* what is wrong with its MPS settings */
    enum vcap_tampered tampered;
    char tampered_why[VCAP_WATCHED_WHY];
    bool tampered_logged;
    uint32_t compared_count;
    struct vcap_compared compared[VCAP_LF_GPUS_MAX];
};

/* "ok", "late", "untrusted", "unreadable", "gone", "new" */
const char *vcap_watched_state_name(enum vcap_watched_state state);

/* What of it is true now: read in this round, or put off. */
static inline bool vcap_watched_is_present(const struct vcap_watched *w)
{
    return w->have_snapshot && (w->state == VCAP_WATCHED_OK || w->state == VCAP_WATCHED_LATE);
}

#endif
