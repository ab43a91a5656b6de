/*
 * Reserve, call, settle: what every charging hook does.
 *
 *     struct vcap_charge c;
 *     CUresult result = vcap_charge_begin(&c, VCAP_ROW_cuX, bytes);
 *
 *     if (result != CUDA_SUCCESS)
 *         return result;                                    refused: CUDA_ERROR_OUT_OF_MEMORY
 *     result = real.cuX(... locals ...);
 *     result = vcap_charge_end(&c, result, pointer, bytes_that_it_costs, give_back);
 *     if (result == CUDA_SUCCESS)
 *         *out = local;
 *
 * Reservation comes first, so that no race ever holds more than the ceiling; on any failure it is
 * given back.  Out-parameters are the caller's and are written only on success.
 */
#ifndef VRAMCAP_PRELOAD_CHARGE_H
#define VRAMCAP_PRELOAD_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/cuda_api.h"
#include "preload/live.h"
#include "preload/preload.h"

struct vcap_charge {
    bool active; /* false: nothing was reserved, the driver's answer is the answer */
    unsigned row;
    CUcontext context;
    CUdevice ordinal;
    struct vcap_device *device;
    bool counted;   /* vcap_overhead_call_begin's answer */
    bool unsure;    /* MPS may not count it: set between begin and end (overhead.h) */
    bool above;     /* audit: it would have been refused, and that was recorded */
    uint64_t bytes; /* reserved */
    uint64_t mine;  /* the slot it was reserved in */
    /* NULL, or the pool that the record refers to: memory that an imported pool shows */
    struct vcap_pool *pool;
    uint64_t pool_bytes;
};

/* For memory of the current context: goes with it.  bytes 0 or no context: the driver is left to
 * answer. */
CUresult vcap_charge_begin(struct vcap_charge *c, unsigned row, uint64_t bytes);

/* For memory of a named device that belongs to no context.  bytes 0 or no such device: the driver is
 * left to answer. */
CUresult vcap_charge_begin_on(struct vcap_charge *c, unsigned row, CUdevice ordinal,
                              uint64_t bytes);

/*
 * Books the driver's answer.  pointer: what it allocated; bytes: what that costs by its rule, more
 * or less than was reserved.  If the difference has no room, or the record cannot be kept,
 * give_back(pointer) is called and the result is CUDA_ERROR_OUT_OF_MEMORY.
 */
CUresult vcap_charge_end(struct vcap_charge *c, CUresult result, uint64_t pointer, uint64_t bytes,
                         CUresult (*give_back)(uint64_t pointer));

/* The same for other handles than device pointers: their key in the live map is of its own kind. */
CUresult vcap_charge_end_as(struct vcap_charge *c, CUresult result, enum vcap_live_kind kind,
                            uint64_t handle, uint64_t bytes,
                            CUresult (*give_back)(uint64_t handle));

/* On the way to a refusal: what this process's pools and graphs hold idle goes back, and overhead is measured
 * anew.  own: as in overhead.h.  Calls the driver. */
void vcap_last_resort(CUdevice ordinal, unsigned row, unsigned own);

/* Ahead of a charge that trims nothing by itself: if it has no room, this process's idle pools give back what
 * they hold.  Calls the driver. */
void vcap_make_room(CUdevice ordinal, unsigned row, uint64_t bytes);

/*
 * Overhead of a context: charged like memory, shown apart, tied to nothing in the live map. Returns
 * CUDA_ERROR_OUT_OF_MEMORY if it has no room (force: booked anyway, the GPU may be over).
 */
CUresult vcap_overhead_charge(struct vcap_device *device, unsigned row, uint64_t bytes, bool force);
void vcap_overhead_release(struct vcap_device *device, uint64_t bytes);

/*
 * An amount that its owner keeps (account.h), in the present place only: 0, -EDQUOT (refused and said),
 * -ESTALE (the slot is not ours any more), -errno.
 */
int vcap_amount_charge(struct vcap_device *device, unsigned row, uint64_t bytes, bool force,
                       uint64_t *mine);

/* Takes the charge of a record off that has left the live map. */
void vcap_record_release(const struct vcap_live *record);

/* After the driver has answered for a pointer or handle: ours if its record was taken out before, which is
 * then released, or put back if the driver failed. */
CUresult vcap_release_end(CUresult result, bool ours, const struct vcap_live *record);

/* A refusal that the caller came to by itself: said, counted.  Returns CUDA_ERROR_OUT_OF_MEMORY. */
CUresult vcap_refuse(const struct vcap_device *device, CUdevice ordinal, unsigned row,
                     uint64_t bytes);

/* The line and the event for a driver that had no memory though the ceiling was not reached. */
void vcap_device_full(const struct vcap_device *device, CUdevice ordinal, unsigned row,
                      uint64_t bytes);

/* The one line about calls that are denied because nothing usable is configured. */
CUresult vcap_deny(unsigned row);

#endif
