/*
 * Charges that are not one allocation each: what a pool has reserved, what a context's limits take.  An
 * account is one amount on one device that goes up and down; it lives as long as its owner says and is
 * charged again by itself when this process loses its slot.  Amounts are rounded up to the ledger's unit.  Thread-safe; the lock is never held over a
 * driver call.
 */
#ifndef VRAMCAP_PRELOAD_ACCOUNT_H
#define VRAMCAP_PRELOAD_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/cuda_api.h"
#include "preload/preload.h"

struct vcap_account {
    struct vcap_account *next, *previous; /* of all that hold something */
    CUdevice ordinal;
    uint64_t bytes;
    uint64_t mine; /* the place in the ledger that bytes are charged in */
};

/*
 * Sets an account (zeroed by its owner before first use, ordinal set) to `bytes`.  More than before is
 * charged, less released.  force: booked even without room (the GPU is then over).  Returns
 * CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY: refused, said, counted, and the account unchanged.
 * In passive and denied mode nothing is booked; in denied mode more than before is refused without force.
 */
CUresult vcap_account_set(struct vcap_account *account, unsigned row, uint64_t bytes, bool force);

/* The same without force, and without a word, a count or an event where there is no room. */
CUresult vcap_account_try(struct vcap_account *account, unsigned row, uint64_t bytes);

/* Is there room for this much more on a device now?  No reservation: only for calls that cannot be
 * undone. */
bool vcap_account_room(CUdevice ordinal, uint64_t bytes);

/* In a new slot (process.lock is held): everything once more. */
void vcap_accounts_charge_again(void);

/* In a forked child: nothing of the parent's is ours.  The memory of the accounts stays their owners'. */
void vcap_accounts_forget(void);

#endif
