/*
 * The contexts of this process: which device, made by cuCtxCreate or taken for the primary one, and
 * the overhead that is charged for each (VRAMCAP_CONTEXT_MIB).  Whether a primary context lives is
 * asked of the driver, never counted.  Thread-safe; no lock is held over a driver call.
 */
#ifndef VRAMCAP_PRELOAD_CONTEXT_H
#define VRAMCAP_PRELOAD_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/cuda_api.h"
#include "preload/preload.h"

enum vcap_context_kind {
    VCAP_CONTEXT_CREATED, /* by a cuCtxCreate that we saw */
    VCAP_CONTEXT_GREEN, /* no context but a green one: holds the cost of the primary context that it
                             brought up, until that is met itself */
    VCAP_CONTEXT_PRIMARY /* any other: the primary one, or made by ways that pass the hooks by */
};

/* A context that the driver has just made current: where overhead is measured, its share is measured now. */
void vcap_context_size(CUcontext context, CUdevice ordinal);

/* What one context costs: VRAMCAP_CONTEXT_MIB in bytes; 0 when it is `auto` (unknown). */
uint64_t vcap_context_cost(void);

/*
 * Enters a context that the driver has just handed out.  overhead: bytes already charged for it. If
 * the context was known with its overhead, the charge is given back here.
 */
void vcap_context_enter(CUcontext context, CUdevice ordinal, enum vcap_context_kind kind,
                        uint64_t overhead);

/* Does what is allocated in this context go with its device's primary one?  True also for a context that
 * is not known. */
bool vcap_context_is_primary(CUcontext context);

/* How many contexts of a device are known, green ones left out. */
unsigned vcap_context_count(CUdevice ordinal);

/* Is there an entry for a device's primary context? */
bool vcap_primary_is_known(CUdevice ordinal);

/* A charging call found this context current: entered now if it was not known (retained behind the
 * hooks, by the runtime's own tables), its overhead booked without refusal. */
void vcap_context_meet(CUcontext context, CUdevice ordinal);

/* The last one that this thread met, good as long as no context has gone since. */
struct vcap_context_met {
    CUcontext context;
    uint64_t removals;
};
extern __thread struct vcap_context_met vcap_context_last
    __attribute__((tls_model("initial-exec")));
extern uint64_t vcap_context_removals; /* raised whenever an entry goes */

static inline void vcap_context_met(CUcontext context, CUdevice ordinal)
{
    if (__builtin_expect(vcap_context_last.context != context ||
                             vcap_context_last.removals !=
                                 __atomic_load_n(&vcap_context_removals, __ATOMIC_ACQUIRE),
                         0))
        vcap_context_meet(context, ordinal);
}

/* The device of a context (or green context) in the table; -1: not in it. */
CUdevice vcap_context_ordinal(CUcontext context);

/* The driver has destroyed a context: everything it frees is taken off.  before:
 * vcap_live_sweep_begin() from ahead of the driver's call. */
void vcap_context_gone(CUcontext context, uint64_t before);

/* The same for a device's primary context.  keeps_context: its allocations are gone, it is not. */
void vcap_primary_gone(CUdevice ordinal, uint64_t before, bool keeps_context);

/* In a new slot: the overhead of all living contexts once more. */
void vcap_context_charge_again(void);

/* In a forked child: the contexts are the parent's. */
void vcap_context_forget(void);
void vcap_primaries_forget(void);

#endif
