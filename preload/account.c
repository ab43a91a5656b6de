/*
 * The list of accounts that hold something.  One lock for all: it is taken for the time of a ledger
 * operation, which may include a look for the dead when room is short.
 */
#include "preload/account.h"

#include <errno.h>
#include <string.h>

#include "enforcer/lock.h"
#include "enforcer/rules.h"
#include "preload/charge.h"
#include "preload/renew.h"

static struct vcap_lock lock;
static struct vcap_account *all;

static void link_in(struct vcap_account *a)
{
    a->previous = NULL;
    a->next = all;
    if (all != NULL)
        all->previous = a;
    all = a;
}

static void link_out(struct vcap_account *a)
{
    if (a->previous != NULL)
        a->previous->next = a->next;
    else
        all = a->next;
    if (a->next != NULL)
        a->next->previous = a->previous;
    a->next = a->previous = NULL;
}

enum how { IF_ROOM, QUIETLY_IF_ROOM, ANYWAY };

/* 0, -EDQUOT, -ESTALE; the lock is held. */
static int set(struct vcap_account *a, struct vcap_device *device, unsigned row, uint64_t bytes,
               enum how how)
{
    struct vcap_ledger *l = vcap_ledger_now();
    uint64_t here = vcap_ledger_mine(l), old = a->mine == here ? a->bytes : 0;
    int rc = 0;

    if (bytes > old && how == QUIETLY_IF_ROOM && vcap_mode_now() != VCAP_MODE_AUDIT) {
        if (!vcap_ledger_try_in(l, here, device->gpu, bytes - old, device->limit_bytes))
            rc = vcap_ledger_charge_in(l, here, device->gpu, bytes - old, device->limit_bytes,
                                       VCAP_REFUSE_ABOVE, NULL);
        if (rc == 0)
            a->mine = here;
    } else if (bytes > old) {
        rc = vcap_amount_charge(device, row, bytes - old, how == ANYWAY, &a->mine);
    }
    if (bytes < old)
        vcap_ledger_release_in(l, a->mine, device->gpu, old - bytes);
    if (rc != 0)
        return rc;
    if (a->bytes == 0 && bytes != 0)
        link_in(a);
    else if (a->bytes != 0 && bytes == 0)
        link_out(a);
    /* also looked at without the lock, as a hint */
    __atomic_store_n(&a->bytes, bytes, __ATOMIC_RELAXED);
    return 0;
}

static CUresult set_here(struct vcap_account *a, unsigned row, uint64_t bytes, enum how how)
{
    struct vcap_device *device;
    int rc;

    /* the ledger counts units, so that differences add up only between whole ones */
    bytes = vcap_round_up(bytes, VCAP_LF_UNIT_BYTES);
    if (vcap_mode_now() == VCAP_MODE_PASSIVE)
        return CUDA_SUCCESS;
    if (vcap_mode_now() == VCAP_MODE_DENY)
        return how == ANYWAY || bytes <= __atomic_load_n(&a->bytes, __ATOMIC_RELAXED)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_OUT_OF_MEMORY;
    device = vcap_device(a->ordinal);
    if (device == NULL)
        return CUDA_SUCCESS;
    vcap_before_charge(bytes);
    for (int tries = 0;; tries++) {
        vcap_lock_take(&lock);
        rc = set(a, device, row, bytes, how);
        vcap_lock_drop(&lock);
        /* renewing takes this lock in turn, so it is done without it */
        if (rc != -ESTALE || tries == 3 || !vcap_slot_renew())
            return rc == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
}

CUresult vcap_account_set(struct vcap_account *a, unsigned row, uint64_t bytes, bool force)
{
    return set_here(a, row, bytes, force ? ANYWAY : IF_ROOM);
}

CUresult vcap_account_try(struct vcap_account *a, unsigned row, uint64_t bytes)
{
    return set_here(a, row, bytes, QUIETLY_IF_ROOM);
}

bool vcap_account_room(CUdevice ordinal, uint64_t bytes)
{
    const struct vcap_device *device = vcap_device(ordinal);
    uint64_t ceiling, held;

    if (device == NULL)
        return true;
    ceiling = vcap_device_ceiling(device);
    held = vcap_ledger_held(vcap_ledger_now(), device->gpu);
    return ceiling == VCAP_NO_LIMIT || (held <= ceiling && bytes <= ceiling - held);
}

void vcap_accounts_charge_again(void)
{
    struct vcap_ledger *l = vcap_ledger_now();
    uint64_t mine = vcap_ledger_mine(l);

    vcap_lock_take(&lock);
    for (struct vcap_account *a = all; a != NULL; a = a->next) {
        if (a->mine == mine)
            continue;
        vcap_ledger_charge_in(l, mine, vcap_process.device[a->ordinal].gpu, a->bytes, VCAP_NO_LIMIT,
                              VCAP_BOOK_ABOVE, NULL);
        a->mine = mine;
    }
    vcap_lock_drop(&lock);
}

void vcap_accounts_forget(void)
{
    vcap_lock_forget(&lock);
    all = NULL;
}
