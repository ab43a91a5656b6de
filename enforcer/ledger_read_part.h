/*
 * What the files of the reader share; not for others.  ledger_read.c has the whole, ledger_read_slot.c
 * the slots and their cells.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_READ_PART_H
#define VRAMCAP_ENFORCER_LEDGER_READ_PART_H

#include <errno.h>

#include "enforcer/ledger_read.h"
#include "enforcer/ledger_read_open.h"

#define VCAP_READ_TRIES 4

/* One slot with its cells, copied at one moment. */
struct vcap_read_slot {
    uint32_t number;
    struct vcap_lf_slot slot;
    struct vcap_lf_cell cells[VCAP_LF_GPUS_MAX];
    enum vcap_life life;
    bool taken;
};

struct vcap_reading {
    int fd;
    struct vcap_lf_header header; /* the one that was checked; never read again for geometry */
    const struct vcap_read_wish *wish;
    size_t size;
    unsigned char *file; /* private copy of the file, at the file's own offsets: of the parts that
                            were read */
    struct vcap_lf_gpu gpus[VCAP_LF_GPUS_MAX];
    bool total_is_stable[VCAP_LF_GPUS_MAX];
    uint32_t gpu_position[VCAP_LF_GPUS_MAX]; /* row -> position in the snapshot; UINT32_MAX */
    struct vcap_read_slot
        *slots; /* of all slots, or (wish.taken_only) of those that are not FREE */
    uint32_t copy_count;
    uint64_t life_deadline_ns;
    uint64_t pidns;
    char *why;
    size_t why_size;
};

#define VCAP_READ_UNTRUSTED(r, ...) vcap_read_refuse((r)->why, (r)->why_size, EINVAL, __VA_ARGS__)

uint64_t vcap_read_now_ns(void);

/* Exactly size bytes at offset, or -errno; -EINVAL: the file ends before. */
int vcap_read_exact(const struct vcap_reading *r, void *buffer, size_t size, uint64_t offset);

int vcap_read_check_amount(const struct vcap_reading *r, const char *table, uint32_t number,
                           const char *what, uint64_t bytes);

/* Slots (all, or those that are taken) with cells and liveness, each of one owner.  The slot table is in
 * r->file already. */
int vcap_read_slots(struct vcap_reading *r, uint32_t *in_flux);

bool vcap_read_move_is_in_flight(const struct vcap_lf_cell *c);

/* What a slot holds of a total: its settled charge, and a move in flight if that took effect. */
uint64_t vcap_read_held_units(const struct vcap_lf_cell *c, uint32_t slot, uint64_t total);

bool vcap_read_uses_gpu(const struct vcap_read_slot *copy, uint32_t row);

#endif
