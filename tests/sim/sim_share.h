/*
 * Memory that several processes hold: exported physical handles and IPC memory.
 *
 * A share is a row of the state file: what it costs which card, where its bytes are (in the
 * same file, a sparse part far behind the rows, so that everyone who maps them sees the same
 * ones) and which processes hold it how often. It ends, and the card gets its memory back, when
 * no living process holds it and no exported descriptor of it is open anywhere: a descriptor is
 * an open file description of the state file with a lock on the share's own byte, which the
 * kernel drops with the last copy. The cost of a share is in no process's amounts; it counts on
 * the card once, and a snapshot shows it with the first holder (the exporter, or, when that is
 * gone, the importer).
 *
 * All but the last group take the state file's lock themselves.
 */
#ifndef VRAMCAP_SIM_SHARE_H
#define VRAMCAP_SIM_SHARE_H

#include "sim.h"

#include <stddef.h>

/* What the driver finds again in another process. */
struct sim_share_info {
    unsigned int card;
    uint64_t bytes;
    unsigned char note[SIM_SHARE_NOTE];
};

/* A new share of this process, once held. `cost` moves out of the process's own amounts.
 * 0 or -errno (-ENOTSUP: a private state file; -ENOSPC: too many). */
int sim_share_new(struct sim_state *state, const struct sim_share_info *info,
                  struct sim_amounts cost, uint64_t *id);
/* One more hold of this process. -ENOENT: there is no such share (any more). */
int sim_share_hold(struct sim_state *state, uint64_t id, struct sim_share_info *info);
/* One hold less; the last one ends the share unless a descriptor is open. */
void sim_share_drop(struct sim_state *state, uint64_t id);
/* A descriptor to hand to other processes, close-on-exec; or -errno. */
int sim_share_token(struct sim_state *state, uint64_t id);
/* The share that a descriptor from sim_share_token stands for; -EINVAL for any other. */
int sim_share_of_token(struct sim_state *state, int fd, uint64_t *id);
/* Maps its bytes, over `at` unless that is NULL; NULL on failure. */
void *sim_share_map(struct sim_state *state, uint64_t id, size_t bytes, void *at);
/* Adds to the share's counter, which all holders see; the sum. */
uint32_t sim_share_count(struct sim_state *state, uint64_t id, uint32_t more);
/* True if this process was the first to hold it and still does. */
bool sim_share_is_own(struct sim_state *state, uint64_t id);

/* --- between sim_state.c and sim_share.c: with the lock held ------------------ */

int sim_state_lock(struct sim_state *state);
void sim_state_unlock(struct sim_state *state);
void sim_state_reap(struct sim_state *state);
/* Ends shares that nobody holds any more; true if there were some. */
bool sim_shares_reap(struct sim_state *state);
void sim_shares_sum(const struct sim_file *file, unsigned int card, struct sim_amounts *sum);
/* What the shares of which this row is the first holder cost a card (`used`). */
uint64_t sim_shares_of_row(const struct sim_file *file, unsigned int row, unsigned int card);
/* Adds each share's cost to the row of its first holder, in a copy of the rows. */
void sim_shares_show(const struct sim_file *file, struct sim_process_row *rows);
void sim_shares_clear(struct sim_state *state);

#endif
