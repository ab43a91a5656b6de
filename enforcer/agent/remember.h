/*
 * From snapshots to what lasts: counters that never go back, events each logged once, the ceilings
 * that the host set.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_REMEMBER_H
#define VRAMCAP_ENFORCER_AGENT_REMEMBER_H

#include "enforcer/agent/watched.h"

/* Is the snapshot of another ledger than the one remembered (a container that was restarted)? */
bool vcap_remember_is_new(const struct vcap_memory_record *record,
                          const struct vcap_snapshot *snapshot);

/* Begins with another ledger: events from 1, counters on top of those so far. */
void vcap_remember_begin(struct vcap_memory_record *record, const struct vcap_snapshot *snapshot);

/* Takes the counters of a snapshot in; true: something changed. */
bool vcap_remember_counters(struct vcap_memory_record *record,
                            const struct vcap_snapshot *snapshot);

/* What is remembered of a GPU; NULL: nothing. */
const struct vcap_memory_gpu *vcap_remember_gpu(const struct vcap_memory_record *record,
                                                const char *uuid);

/* The place of a GPU, taken if it has none; one of a GPU that the snapshot does not have gives way.
 * NULL: all are taken by GPUs that it has. */
struct vcap_memory_gpu *vcap_remember_place(struct vcap_memory_record *record,
                                            const struct vcap_snapshot *snapshot, const char *uuid);

/*
 * Logs the snapshot's new events, in order, each once and whole, and what was lost between them.  May
 * stop early (a number that is still missing, nobody reads the log, too many at once): the rest is
 * for the next round.  now_ns: CLOCK_MONOTONIC.
 */
void vcap_remember_events(struct vcap_watched *w, struct vcap_memory *memory, uint64_t now_ns);

/* Judges the ceilings of a ledger that the host made; fd is a descriptor of it. */
void vcap_remember_host(struct vcap_watched *w, int fd);

#endif
