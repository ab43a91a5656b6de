/*
 * What the agent remembers per container from one run to the next: which events it has logged, the
 * counters that must not go back, the ceilings that the host set.  One small file (--state), mapped;
 * without one the same in memory only.  The file is the agent's own, of one host and one boot: it is
 * not untrusted input, but a damaged one is put aside rather than believed.
 *
 * A record is changed by writing its other copy and turning a switch, so that a kill at any instant
 * leaves the old record or the new one.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_MEMORY_H
#define VRAMCAP_ENFORCER_AGENT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "enforcer/agent/container_name.h"
#include "enforcer/ledger_format.h"

#define VCAP_MEMORY_RECORDS 4096u

struct vcap_memory_gpu {
    uint8_t uuid[48];       /* text, NUL-terminated; empty: unused */
    uint64_t ceiling_bytes; /* that the host set; VCAP_NO_LIMIT: none */
    /* counters over all ledgers of this container so far, and what the present ledger said last */
    uint64_t refusals, refusals_seen;
    uint64_t refused_bytes, refused_bytes_seen;
};

struct vcap_memory_record {
    char label[VCAP_CONTAINER_LABEL];   /* empty: unused */
    uint64_t device, inode, created_ns; /* the ledger that the numbers below are about */
    uint64_t next_event;                /* sequence number of the event to be logged next */
    uint64_t logging_event;             /* one whose line was being written; 0: none */
    uint64_t events_lost, ledger_errors;
    uint64_t seen_s; /* CLOCK_REALTIME, when this container was last there */
    uint64_t host_changes, default_ceiling_bytes;
    uint32_t host_recorded; /* 1: the two above, flags and the GPUs' ceilings are the host's */
    uint32_t host_flags;
    struct vcap_memory_gpu gpus[VCAP_LF_GPUS_MAX];
};

struct vcap_memory;

/* path NULL: in memory only.  NULL and one phrase in why: in use by another agent, or I/O. */
struct vcap_memory *vcap_memory_open(const char *path, char *why, size_t why_size);
void vcap_memory_close(struct vcap_memory *memory);

/* True if the file was there but not of this version, this boot, or whole: then it began anew. */
bool vcap_memory_began_anew(const struct vcap_memory *memory);

/* The container's place, taken if it has none.  Where there is no room for one more, because all are in
 * use or the file system is full, the one longest unseen gives way, but none that was asked for in this
 * run and not forgotten since.  -1: there is no such one. */
int vcap_memory_place(struct vcap_memory *memory, const char *label);

/* A copy of what is remembered at a place. */
void vcap_memory_read(const struct vcap_memory *memory, int place,
                      struct vcap_memory_record *record);

/* All of it at once; whoever is killed in here leaves the old record. */
void vcap_memory_write(struct vcap_memory *memory, int place,
                       const struct vcap_memory_record *record);

void vcap_memory_forget(struct vcap_memory *memory, int place);

/* Has an outage of MPS been announced that nobody saw end?  The next agent does not announce it again. */
bool vcap_memory_mps_outage(const struct vcap_memory *memory);
void vcap_memory_note_mps_outage(struct vcap_memory *memory, bool outage);

#endif
