/*
 * What crosses processes.  Exports: memory of ours that others may open, on record in the ledger for as
 * long as its record in the live map is there.  Imports: memory that another process of this container
 * is charged for, shown and not charged.  Thread-safe; no lock is held over a driver call.
 */
#ifndef VRAMCAP_PRELOAD_SHARE_H
#define VRAMCAP_PRELOAD_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "enforcer/ledger_export.h"
#include "preload/cuda_api.h"
#include "preload/live.h"
#include "preload/vmm.h"

/* The memory of the live record of this key can be opened by others from now on.  hash 0: by a descriptor.
 * Without a record it is not ours to vouch for, and whoever opens it is charged. */
void vcap_export_note(uint64_t key, uint64_t size, uint64_t hash);

/* The record of this key has been released. */
void vcap_exports_drop(uint64_t key);

/* Is this on record by another process?  *ordinal: in and out, the device it is on. */
bool vcap_export_by_others(CUdevice *ordinal, uint64_t size, uint64_t hash);

/* Physical memory of this process that was exported like this, held for the caller, or NULL. */
struct vcap_physical *vcap_export_by_us(CUdevice ordinal, uint64_t size, uint64_t hash);

/* Is a handle of this hash one that this process has exported itself? */
bool vcap_export_is_ours(uint64_t hash);

/* Enters a record of memory that another process is charged for.  -ENOMEM: it is not shown. */
int vcap_import_enter(enum vcap_live_kind kind, uint64_t handle, void *context, CUdevice ordinal,
                      uint64_t bytes);

/* In a new slot (process.lock is held): all exports once more. */
void vcap_exports_again(void);

/* In a forked child: nothing of the parent's is ours. */
void vcap_shares_forget(void);
void vcap_opens_forget(void);

#endif
