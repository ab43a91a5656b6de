/*
 * The physical memory that this process took with cuMemCreate (or imported), which lives until its last
 * handle reference and its last mapping are gone, in whatever order they go.
 *
 * An object has holds: one for each handle reference, one for each mapping, one for each call under
 * way.  With the last one it ends and its record in the live map (VCAP_LIVE_HANDLE, by the object's
 * address, for the driver may give a handle's value out again while the memory is still mapped) is
 * released.  Handles and mappings are taken out before the driver is asked to end them and put back
 * if it fails.  Thread-safe; one lock, never held over a driver or ledger call.
 */
#ifndef VRAMCAP_PRELOAD_VMM_H
#define VRAMCAP_PRELOAD_VMM_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/cuda_api.h"

struct vcap_physical {
    uint64_t holds;                      /* under the lock of vmm.c */
    CUmemGenericAllocationHandle handle; /* as the driver gave it first */
    CUdevice ordinal;
    uint64_t size; /* bytes; of an import the largest mapping so far, 0 before the first */
    bool imported;
    uint64_t hash;                /* of the fabric handle it was imported by; 0: a descriptor */
    struct vcap_physical *origin; /* held: this process's own memory that it is */
};

/* An address range that shows an object.  The bounds are the tree's key and never change in it. */
struct vcap_mapping {
    uint64_t low, high; /* [low, high) */
    struct vcap_physical *physical;
    struct vcap_mapping *next; /* outside the tree */
};

/* One hold, nothing charged yet.  NULL: no memory. */
struct vcap_physical *vcap_physical_new(void);

/* True, and held once more, unless it is on its way out.  Only where something else keeps its memory from
 * being freed: a lock that its export is dropped under (share.c). */
bool vcap_physical_hold(struct vcap_physical *physical);

/* An import is mapped as large as never before: true for the one call that makes it so, whose hold on origin
 * (may be NULL) becomes the object's. */
bool vcap_physical_grow(struct vcap_physical *physical, uint64_t size,
                        struct vcap_physical *origin);

/* One hold less; with the last one what the object is charged is released and it is gone. */
void vcap_physical_unhold(struct vcap_physical *physical);

/* The driver handed this value out: the caller's hold becomes the reference's.  False: no memory. */
bool vcap_handle_enter(CUmemGenericAllocationHandle handle, struct vcap_physical *physical);

/* The object of a handle with one hold more for the caller; NULL: not ours (host memory, multicast). */
struct vcap_physical *vcap_handle_hold(CUmemGenericAllocationHandle handle);

/* Takes one reference out; its hold becomes the caller's.  NULL: not ours. */
struct vcap_physical *vcap_handle_take(CUmemGenericAllocationHandle handle);

/* The object that is mapped at an address, held for the caller, or NULL. */
struct vcap_physical *vcap_mapping_hold(uint64_t address);

/* Enters a mapping (malloced; owned from here on) whose hold on its object is the caller's.  False: no
 * memory, nothing has changed. */
bool vcap_mapping_enter(struct vcap_mapping *mapping);

/*
 * Takes out every mapping inside [low, high), as a list for vcap_mappings_end or vcap_mappings_return.
 * None if one sticks out: the driver will not unmap a part.
 */
struct vcap_mapping *vcap_mappings_take(uint64_t low, uint64_t high);
void vcap_mappings_end(struct vcap_mapping *list);    /* the driver has unmapped them */
void vcap_mappings_return(struct vcap_mapping *list); /* it has not */

/* In a forked child: nothing of the parent's is ours. */
void vcap_physical_forget(void);

#endif
