/*
 * The table of exports: what processes of this container let each other open, so that the same memory
 * is charged once.  Bounded, no lock; entries of owners that are gone are taken by whoever needs one.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_EXPORT_H
#define VRAMCAP_ENFORCER_LEDGER_EXPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "enforcer/ledger.h"

/* Of a whole IPC or fabric handle; never 0. */
uint64_t vcap_export_hash(const void *handle, size_t size);

/*
 * Puts an export of this place (vcap_ledger_mine) on record.  hash 0: a descriptor.  0: done, its entry in
 * *entry.  -ENOSPC: every entry is a living process's.  -ESTALE: the place is not ours any more.
 */
int vcap_ledger_export(struct vcap_ledger *l, uint64_t mine, uint32_t gpu, uint64_t size,
                       uint64_t hash, uint32_t *entry);

/* Takes it off, unless the place or the entry is somebody else's by now. */
void vcap_ledger_unexport(struct vcap_ledger *l, uint64_t mine, uint32_t entry);

/*
 * Is there an export on record by another living process: of this hash, or (hash 0) a descriptor of this
 * size on this GPU?  *gpu: in and out; with a hash the row that the export names.
 */
bool vcap_ledger_exported(const struct vcap_ledger *l, uint64_t mine, uint64_t size, uint64_t hash,
                          uint32_t *gpu);

#endif
