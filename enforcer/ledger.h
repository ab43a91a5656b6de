/*
 * A process's place in its container's ledger: opening or making the file, taking a slot, charging
 * and releasing.  ledger_format.h has the bytes, ledger_reap.h what happens to the dead.
 *
 * All amounts are bytes here and units of 512 bytes inside; a charge is rounded up to a unit.
 * Functions return 0 or -errno, outputs are written only on success.  Nothing here logs: the caller
 * has the words.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_H
#define VRAMCAP_ENFORCER_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "enforcer/ledger_format.h"

#define VCAP_LEDGER_PATH_MAX 512
#define VCAP_NO_LIMIT UINT64_MAX

/* How large a ledger is made; 0 in a field means the default. */
struct vcap_ledger_size {
    uint32_t gpus, slots, events;
};

/* One per GPU row: the process-private lock that lets one thread at a time move the total. */
struct vcap_ledger_local {
    uint32_t lock;     /* 0 free, else the holder's tid; CAS, let go by a release store; futex */
    uint32_t waiters;  /* threads that sleep for it or are about to; fetch-and-add */
    uint64_t deferred; /* units to take off, from a signal handler that found its own thread's lock
                          held */
} __attribute__((aligned(64)));

struct vcap_ledger {
    unsigned char *base; /* shared mapping of the whole file; NULL = not open */
    size_t size;
    dev_t device;
    ino_t inode;
    char path[VCAP_LEDGER_PATH_MAX];
    /* copies of the header's geometry, checked when it was opened */
    struct vcap_lf_gpu *gpus;
    struct vcap_lf_slot *slots;
    unsigned char *cells;
    struct vcap_lf_export *exports;
    struct vcap_lf_event *events;
    uint32_t gpu_count, slot_count, export_count, event_count;
    uint32_t flags; /* header.flags */
    uint64_t pidns; /* inode of this process's PID namespace; 0 = unknown */
    uint32_t epoch; /* which of this process's openings this is, modulo 8 */
    /*
     * This process's place: generation << 16 | kind << 12 | epoch << 9 | slot, 0 = none.  One word, because
     * other threads charge while one takes a new slot; release-stored by a claim, acquire-loaded by
     * everybody.
     */
    uint64_t mine;
    /* The same for people, tests and whoever looks for the dead: the last slot taken, -1 = none, and its state
     * word.  Stored by a claim ahead of LIVE. */
    int32_t slot;
    uint64_t state;
    void *anchor; /* the mapping that keeps the slot's lock */
    struct vcap_ledger_local local[VCAP_LF_GPUS_MAX];
};

static inline struct vcap_lf_header *vcap_ledger_header(const struct vcap_ledger *l)
{
    return (struct vcap_lf_header *)(void *)l->base;
}
static inline struct vcap_lf_cell *vcap_ledger_cell(const struct vcap_ledger *l, uint32_t slot,
                                                    uint32_t gpu)
{
    return (struct vcap_lf_cell *)(void *)(l->cells + ((size_t)slot * l->gpu_count + gpu) *
                                                          sizeof(struct vcap_lf_cell));
}

/*
 * Makes a ledger at path: complete before it has its name, space allocated for real, mode 0666.
 * -EEXIST: there is one already.  -ENOSPC, -EACCES, -EROFS, ... from the file system.
 */
int vcap_ledger_create(const char *path, const struct vcap_ledger_size *size, uint32_t flags,
                       const char *key, const char *container);

/*
 * What vcap_ledger_open may do beyond mapping the file:
 *   VIEW     nothing, and the mapping is read-only
 *   MAKE     make the file if there is none
 *   RENEW    make anew, in place, a ledger that nobody lives in and the host did not make
 *   CLAIM    take a slot before anybody can make the file anew
 *   REPLACE  the name is ours alone: a file there that is no ledger of this version gives way to one
 *   WRITE    nothing, and the mapping is writable: the host's side
 */
#define VCAP_OPEN_VIEW 0u
#define VCAP_OPEN_MAKE 1u
#define VCAP_OPEN_RENEW 2u
#define VCAP_OPEN_CLAIM 4u
#define VCAP_OPEN_REPLACE 8u
#define VCAP_OPEN_WRITE 16u

/*
 * Opens the ledger at path and maps it.  key: demanded of the header, unless NULL, or the file is the
 * host's.  On failure nothing is held and the cause is one phrase in why.
 *   -EINVAL  not a ledger, or of another version, size or byte order, or not a regular file
 *   -EPERM   another container's
 *   -EUSERS  no slot is free, even after reaping
 *   -EBUSY   another process is making it anew and does not finish
 *   -errno   from the file system
 */
int vcap_ledger_open(struct vcap_ledger *l, const char *path, const char *key, uint32_t what,
                     enum vcap_lf_mode mode, char *why, size_t why_size);

/* Unmaps everything; a slot, if held, is left as a dead one and reaped by whoever needs room. */
void vcap_ledger_close(struct vcap_ledger *l);

/*
 * Takes a (new) slot in an open ledger: a forked child, or a process whose slot was taken from it.
 * -ESTALE: the file at the path is another one now; close and open again.  -EUSERS, -errno as
 * above.
 */
int vcap_ledger_claim(struct vcap_ledger *l, enum vcap_lf_mode mode);

/* This process's place, for comparison with a later one; 0 = none. */
static inline uint64_t vcap_ledger_mine(const struct vcap_ledger *l)
{
    return __atomic_load_n(&l->mine, __ATOMIC_ACQUIRE);
}
static inline uint32_t vcap_mine_slot(uint64_t mine)
{
    return (uint32_t)mine & 0x1ffu;
}
static inline uint64_t vcap_mine_state(uint64_t mine)
{
    return vcap_lf_state(mine >> 16, (enum vcap_lf_kind)(mine >> 12 & 0xf), VCAP_LF_LIVE);
}

/* True while a place is still this process's (false after a reap, a reset, a restore elsewhere, and for a
 * place in another file). */
static inline bool vcap_ledger_holds(const struct vcap_ledger *l, uint64_t mine)
{
    return mine != 0 && mine == vcap_ledger_mine(l) &&
           __atomic_load_n(&l->slots[vcap_mine_slot(mine)].state, __ATOMIC_RELAXED) ==
               vcap_mine_state(mine);
}
static inline bool vcap_ledger_owns(const struct vcap_ledger *l)
{
    return vcap_ledger_holds(l, vcap_ledger_mine(l));
}

/* The calling thread has another tid now (forked child). */
void vcap_ledger_thread_renew(void);

/* In a forked child: the slot and the anchor are the parent's.  No system call. */
void vcap_ledger_forget(struct vcap_ledger *l);

/* Books overhead inside what is charged (delta in bytes), so that readers can show it apart. */
void vcap_ledger_note_overhead(struct vcap_ledger *l, uint32_t gpu, int64_t delta);

/* What is booked as overhead is unknown from here on, and not part of what is charged. */
void vcap_ledger_forget_overhead(struct vcap_ledger *l, uint32_t gpu);

/* Shows memory of another process that this one has open; nothing is charged.  In one place only: void if
 * that is gone. */
void vcap_ledger_note_imported(struct vcap_ledger *l, uint64_t mine, uint32_t gpu, int64_t delta);

/* The row of a GPU, found or taken.  -ENOSPC: all rows hold other GPUs. */
int vcap_ledger_gpu(struct vcap_ledger *l, const uint8_t uuid[16], uint32_t flags, uint32_t index,
                    uint64_t card_bytes, uint32_t *gpu);

/*
 * Proposes a container ceiling for a row: stored only if none was set.  bytes VCAP_NO_LIMIT: none.
 * Returns the word in force afterwards.
 */
uint64_t vcap_ledger_propose_ceiling(struct vcap_ledger *l, uint32_t gpu, uint64_t bytes,
                                     enum vcap_lf_source source);

/* The ceiling word of a row in a ledger of the host's: its own, or by default, which it then gets; 0: none. */
uint64_t vcap_ledger_host_ceiling(struct vcap_ledger *l, uint32_t gpu);

/* The container's ceiling in bytes (VCAP_NO_LIMIT if none) of a ceiling word. */
static inline uint64_t vcap_ceiling_bytes(uint64_t word)
{
    return vcap_lf_ceiling_units(word) == VCAP_LF_UNITS_MAX || word == 0
               ? VCAP_NO_LIMIT
               : vcap_lf_ceiling_units(word) * VCAP_LF_UNIT_BYTES;
}

enum vcap_force { VCAP_REFUSE_ABOVE = 0, VCAP_BOOK_ABOVE = 1 };

/*
 * Adds bytes to this process's charge on a row, under the lower of the container's ceiling and
 * limit (bytes; VCAP_NO_LIMIT: only the container's).  force VCAP_BOOK_ABOVE: booked even above it
 * (audit, overhead found late).  *above (may be NULL) is set if the ceiling was passed. 0 charged
 *   -EDQUOT    no room, after the dead were reaped
 *   -EOVERFLOW does not fit the ledger's words
 *   -ESTALE    the slot is not ours any more
 *   -EDEADLK   called from a signal handler that interrupted this very function
 */
int vcap_ledger_charge(struct vcap_ledger *l, uint32_t gpu, uint64_t bytes, uint64_t limit,
                       enum vcap_force force, bool *above);

/* The same in one place only: -ESTALE when that is not this process's any more. */
int vcap_ledger_charge_in(struct vcap_ledger *l, uint64_t mine, uint32_t gpu, uint64_t bytes,
                          uint64_t limit, enum vcap_force force, bool *above);

/* The same once, without looking for the dead: true if it was charged.  For whoever charges in earnest if
 * not. */
bool vcap_ledger_try_in(struct vcap_ledger *l, uint64_t mine, uint32_t gpu, uint64_t bytes,
                        uint64_t limit);

/* Takes bytes off.  More than is charged: takes what there is and counts an anomaly.  Never fails
 * but for -ESTALE (nothing to take off any more). */
int vcap_ledger_release(struct vcap_ledger *l, uint32_t gpu, uint64_t bytes);
int vcap_ledger_release_in(struct vcap_ledger *l, uint64_t mine, uint32_t gpu, uint64_t bytes);

/* What the container holds on a row, by the total word; the dead are in it until they are reaped.
 */
static inline uint64_t vcap_ledger_held(const struct vcap_ledger *l, uint32_t gpu)
{
    return vcap_lf_total_units(__atomic_load_n(&l->gpus[gpu].total, __ATOMIC_RELAXED)) *
           VCAP_LF_UNIT_BYTES;
}

/* Processes (live slots) that hold something on a row. */
uint32_t vcap_ledger_holders(const struct vcap_ledger *l, uint32_t gpu);

struct vcap_event {
    enum vcap_lf_event_kind kind;
    uint32_t gpu; /* UINT32_MAX = none */
    uint32_t pid; /* 0 = this process */
    uint64_t bytes, held, limit;
    uint32_t code;
    const char *name; /* may be NULL */
};
void vcap_ledger_event(struct vcap_ledger *l, const struct vcap_event *event);

/* A GPU holds this much more than its ceiling, by an exception of the rules: the highest is kept, with an
 * event. */
void vcap_ledger_over(struct vcap_ledger *l, uint32_t gpu, uint64_t bytes, const char *what);

/* Counts a number that would have gone wrong, in the header and in the slot, with an event. */
void vcap_ledger_anomaly(struct vcap_ledger *l, uint32_t gpu, uint64_t bytes, const char *what);
void vcap_ledger_count_anomaly(struct vcap_ledger *l); /* without the event */

/* pthread_atfork handlers of the caller hold this over fork, so that no child inherits a descriptor
 * that has a slot's lock on it. */
void vcap_ledger_fork_lock(void);
void vcap_ledger_fork_unlock(void);
void vcap_ledger_fork_child(void);

#endif
