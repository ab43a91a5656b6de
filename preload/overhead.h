/*
 * The overhead of this process on a GPU, measured: what the driver has taken for contexts, modules and slack
 * of small allocations.  Possible only for a client of MPS with a limit of its own, where the driver's free
 * memory is that limit less all that it charged this client, so that
 *
 *     overhead = limit - free - what this process is charged here
 *
 * (reference: docs/design.md, "Overhead").  Everywhere else it stays unknown, and nothing is booked.
 * VRAMCAP_CONTEXT_MIB with a figure switches the measuring off.  Thread-safe; no lock is held over a driver
 * call.
 */
#ifndef VRAMCAP_PRELOAD_OVERHEAD_H
#define VRAMCAP_PRELOAD_OVERHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/cuda_api.h"
#include "preload/preload.h"

extern uint32_t vcap_overhead_any; /* not 0: some device is measured; a hint that costs one load */

static inline bool vcap_overhead_is_measured(const struct vcap_device *device)
{
    /* stored once a device is placed, and 0 again when its figures turn out not to fit */
    return __builtin_expect(__atomic_load_n(&device->mps_bytes, __ATOMIC_RELAXED) != 0, 0);
}

/* A placed device is measured from here on: bytes is MPS's limit for this process. */
void vcap_overhead_measure_from(struct vcap_device *device, uint64_t bytes);

/*
 * Around a driver's call that takes memory: while one is under way charges and driver do not agree, and
 * nothing is measured.  Returns whether it was counted, which the end must be told.
 */
static inline bool vcap_overhead_call_begin(struct vcap_device *device)
{
    if (!vcap_overhead_is_measured(device))
        return false;
    __atomic_fetch_add(&device->in_flight, 1, __ATOMIC_SEQ_CST);
    return true;
}
static inline void vcap_overhead_call_end(struct vcap_device *device, bool counted)
{
    if (counted)
        __atomic_fetch_sub(&device->in_flight, 1, __ATOMIC_SEQ_CST);
}

/*
 * The same for calls that open another process's memory: on which device that is only their answer tells, so
 * that nothing is measured on any.  Ends once what was opened is shown or charged.
 */
extern uint32_t vcap_overhead_opening; /* calls under way; atomic */

static inline void vcap_overhead_open_begin(void)
{
    __atomic_fetch_add(&vcap_overhead_opening, 1, __ATOMIC_SEQ_CST);
}
static inline void vcap_overhead_open_end(void)
{
    __atomic_fetch_sub(&vcap_overhead_opening, 1, __ATOMIC_SEQ_CST);
}

/* Memory that MPS may or may not count: managed, external, of another process.  delta in bytes. */
void vcap_overhead_unsure(struct vcap_device *device, int64_t delta);

/* Around a question for free memory in the current context. */
struct vcap_overhead_reading {
    struct vcap_device *device; /* NULL: nothing is to be learnt from it */
    uint64_t charged;           /* the ledger's word before the question */
    unsigned own;               /* calls under way that have not reached the driver: the caller's */
};
void vcap_overhead_ask_begin(struct vcap_overhead_reading *reading, struct vcap_device *device,
                             unsigned own);
/* What the driver said, in bytes.  True: booked. */
bool vcap_overhead_ask_end(const struct vcap_overhead_reading *reading, uint64_t free_bytes,
                           uint64_t total);

/* The same where the program asks; the device is that of the current context. */
static inline void vcap_overhead_asked_begin(struct vcap_overhead_reading *reading)
{
    CUdevice ordinal = -1;

    reading->device = NULL;
    if (__builtin_expect(__atomic_load_n(&vcap_overhead_any, __ATOMIC_RELAXED) != 0, 0) &&
        vcap_own.cuCtxGetDevice != NULL && vcap_own.cuCtxGetDevice(&ordinal) == CUDA_SUCCESS)
        vcap_overhead_ask_begin(reading, vcap_device(ordinal), 0);
}

/* Asks the driver, if the current context is on that device, and books what it says: whether it did. */
bool vcap_overhead_look(CUdevice ordinal, unsigned own);

/* After a call that waits for the device, at most every 100 ms: modules are loaded without a word.  from: its
 * return address; the driver itself is in the middle of something, and is not asked. */
void vcap_overhead_look_now(void);
static inline void vcap_overhead_look_sometimes(const void *from)
{
    if (__builtin_expect(__atomic_load_n(&vcap_overhead_any, __ATOMIC_RELAXED) != 0, 0) &&
        !vcap_is_inner_call(from))
        vcap_overhead_look_now();
}

/* A context has come, which may be current: what came with it is its share.  False: it could not be
 * measured yet. */
bool vcap_overhead_context_came(CUdevice ordinal, uint64_t *share);

/* Contexts are gone, so many are left; share: what had come with those that went. */
void vcap_overhead_contexts_went(CUdevice ordinal, unsigned left, uint64_t share);

/* In a new slot (vcap_process_mutex is held): what is booked once more. */
void vcap_overhead_charge_again(void);

/* In a forked child: nothing of the parent's is ours. */
void vcap_overhead_forget(void);

#endif
