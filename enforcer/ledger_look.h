/*
 * One GPU's row, read from a ledger that this process does not take part in: no slot, no file made, nothing
 * kept open.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_LOOK_H
#define VRAMCAP_ENFORCER_LEDGER_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "enforcer/ledger.h"

struct vcap_ledger_look {
    bool found;             /* the ledger has a row for the GPU */
    uint64_t ceiling_bytes; /* the container's; VCAP_NO_LIMIT: none */
    uint64_t held_bytes;    /* by living processes */
};

/* 0 and *look, or -errno: no ledger (-ENOENT), or none that can be used. */
int vcap_ledger_look(const char *path, const char *key, const uint8_t uuid[16],
                     struct vcap_ledger_look *look);

/* The host's ceiling word for GPUs that have none of their own; 0: none, or not the host's ledger. */
uint64_t vcap_ledger_default_ceiling(const struct vcap_ledger *l);

/* The row of a UUID in an open ledger; false: none. */
bool vcap_ledger_find_gpu(const struct vcap_ledger *l, const uint8_t uuid[16], uint32_t *gpu);

#endif
