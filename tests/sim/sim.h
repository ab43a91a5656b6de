/*
 * The simulated card as other programs see it: the state file that every
 * simulated process of one "machine" shares, and the functions to read it.
 *
 * The file is a page-aligned struct sim_file, mapped MAP_SHARED. Everything in
 * it but `magic` is written under `lock`, a robust process-shared mutex; when an
 * owner died inside, the next one recomputes the cards from the rows. A row is a
 * process that has called cuInit. A row's owner holds an open-file-description
 * lock on byte SIM_LOCK_BASE + row of the same file, so the kernel says when it
 * is gone; its memory comes back at the next read, or when memory is short.
 *
 * The simulator shares no constant with the library under test: page size,
 * pitch and context cost are settings (README.md), never a common header.
 */
#ifndef VRAMCAP_SIM_H
#define VRAMCAP_SIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define SIM_MAGIC UINT64_C(0x31304d4953434156) /* "VACSIM01" */
#define SIM_LAYOUT 3U
#define SIM_MAX_CARDS 16U
#define SIM_MAX_ROWS 512U
#define SIM_MAX_SHARES 4096U
#define SIM_SHARE_USERS 16U
#define SIM_SHARE_NOTE 64U
#define SIM_MAX_MEMORY_LIMITS 64U
#define SIM_CGROUP_MAX 128U
#define SIM_LOCK_BASE INT64_C(0x40000000)

/* Bytes on one card, either of one process or of all. `used` is what the card
 * has lost: contexts, pages of large allocations, whole slabs of small ones.
 * `alloc` is the part that allocation calls asked for, rounded to the page
 * (large) or to 512 bytes (small): used = context + alloc + slack of the slabs.
 * `managed` is the size of managed allocations, which take no card memory. */
struct sim_amounts {
    uint64_t used, alloc, context, managed;
};

struct sim_card_row {
    uint64_t total;
    struct sim_amounts now;
    uint64_t peak, alloc_peak; /* highest `used` and `alloc` since the last reset */
    uint64_t refusals;         /* charges that found the card full */
    uint32_t compute_mode;     /* enum sim_compute_mode */
};

/* The values of CU_DEVICE_ATTRIBUTE_COMPUTE_MODE and of NVML. */
enum sim_compute_mode { SIM_MODE_DEFAULT = 0, SIM_MODE_PROHIBITED = 2, SIM_MODE_EXCLUSIVE = 3 };

enum sim_mps_role { SIM_MPS_NONE, SIM_MPS_CLIENT, SIM_MPS_SERVER };

/* What a process is bound by, apart from the card's size (sim_bounds.h). */
struct sim_bounds {
    uint32_t role;        /* enum sim_mps_role */
    int32_t server;       /* of a client: its server's pid, 1 for a server without a process */
    uint32_t sticky;      /* what every call of it answers from now on, 0: nothing */
    uint32_t connections; /* of a client, to each card */
    uint32_t contexts[SIM_MAX_CARDS];
    uint64_t limit[SIM_MAX_CARDS]; /* MPS's pinned limit in bytes, UINT64_MAX: none */
    char cgroup[SIM_CGROUP_MAX];   /* path below the cgroup root, "" without one */
};

struct sim_process_row {
    uint32_t live;
    int32_t pid;         /* in the owner's PID namespace */
    uint64_t pid_ns;     /* inode of that namespace */
    uint64_t start_time; /* field 22 of /proc/<pid>/stat */
    char command[16];
    struct sim_amounts share[SIM_MAX_CARDS];
    struct sim_bounds bounds;
};

/* A limit that the driver keeps itself (VRAMCAP_SIM_MEMACCT=misc). */
struct sim_memory_limit {
    char cgroup[SIM_CGROUP_MAX]; /* "": free */
    uint32_t card;
    uint64_t soft, hard;
};

/* Memory that several processes can hold (sim_share.h). */
struct sim_share_user {
    uint32_t row, count; /* count 0: none */
};

struct sim_share {
    uint64_t id; /* 0: free; written last */
    uint32_t card, counter;
    uint64_t offset, bytes; /* of its bytes in this file */
    struct sim_amounts cost;
    unsigned char note[SIM_SHARE_NOTE];
    struct sim_share_user user[SIM_SHARE_USERS]; /* in order of arrival */
};

struct sim_file {
    uint64_t magic; /* written last */
    uint32_t layout, cards;
    pthread_mutex_t lock;
    struct sim_card_row card[SIM_MAX_CARDS];
    struct sim_process_row row[SIM_MAX_ROWS];
    struct sim_memory_limit memory_limit[SIM_MAX_MEMORY_LIMITS];
    uint64_t share_serial, share_end;
    uint32_t share_top; /* shares below this one */
    struct sim_share share[SIM_MAX_SHARES];
};

/* Who keeps the limits of cgroups: nobody; the driver (limits by NVML alone, no files); the
 * kernel's dmem controller (files below the cgroup root). */
enum sim_memacct { SIM_MEMACCT_OFF, SIM_MEMACCT_MISC, SIM_MEMACCT_DMEM };

/* An open state file. fd is -1 for a private one, which no other process sees. */
struct sim_state {
    struct sim_file *file;
    int fd;
    int own_row;     /* -1: a reader */
    uint64_t pid_ns; /* this process's, 0 if unknown */
    bool bounded;    /* moves of this process mind its row's bounds */
    enum sim_memacct memacct;
    char cgroup_root[SIM_CGROUP_MAX]; /* what stands for /sys/fs/cgroup */
};

/* --- reading (tests, simctl, NVML) ------------------------------------- */

/* Opens the state file `path`, or, when NULL, the one of the environment
 * (VRAMCAP_SIM_STATE, else /dev/shm/vramcap-sim-<uid>); makes it, with the cards
 * of VRAMCAP_SIM_CARDS, where there is none. NULL and errno on failure. */
struct sim_state *sim_state_open(const char *path);
void sim_state_close(struct sim_state *state);

unsigned int sim_card_count(struct sim_state *state);
uint64_t sim_card_total(struct sim_state *state, unsigned int card);

/* Bytes; each first gives back what dead processes held. A card that does not
 * exist reads 0. */
uint64_t sim_card_used(struct sim_state *state, unsigned int card);
uint64_t sim_card_peak(struct sim_state *state, unsigned int card);
uint64_t sim_card_alloc_used(struct sim_state *state, unsigned int card);
uint64_t sim_card_alloc_peak(struct sim_state *state, unsigned int card);
uint64_t sim_card_managed(struct sim_state *state, unsigned int card);

/* Peaks become what is held now; refusals become 0. */
void sim_reset_peaks(struct sim_state *state);

/* A consistent copy of everything, the dead taken out. `out` is a whole file. */
int sim_state_snapshot(struct sim_state *state, struct sim_file *out);

/* -EINVAL: no such card. */
int sim_compute_mode_set(struct sim_state *state, unsigned int card, enum sim_compute_mode mode);
/* VRAMCAP_SIM_COMPUTE_MODE: `default`, `exclusive`, `prohibited`, for every card; false if it is
 * something else. *mode is untouched if the variable is not set. */
bool sim_compute_mode_from_environment(int *mode);

/* Forgets every row and every byte, live processes or not. */
void sim_state_clear(struct sim_state *state);

/* --- what cards there are ------------------------------------------------ */

/* VRAMCAP_SIM_CARDS into bytes per card; the number of cards, or -1. */
int sim_cards_from_environment(uint64_t bytes[SIM_MAX_CARDS]);

/* The identity of card `card`: the same on every machine, all 16 bytes differ. */
void sim_card_uuid(unsigned int card, unsigned char uuid[16]);
/* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
void sim_uuid_text(const unsigned char uuid[16], char text[48]);

/* --- for the simulated driver only --------------------------------------- */

struct sim_state *sim_state_private(void);
/* Takes a row for this process. 0 or -errno (-ENOSPC: all rows live). */
int sim_state_attach(struct sim_state *state);
/* In a forked child: let go of the parent's lock without touching its row. */
void sim_state_forget(struct sim_state *state);

/* One move of this process's amounts on a card. A positive `used` needs room:
 * -ENOMEM, and nothing changed, if there is none after the dead were reaped. */
struct sim_delta {
    int64_t used, alloc, context, managed;
};
int sim_state_move(struct sim_state *state, unsigned int card, struct sim_delta delta);

#endif
