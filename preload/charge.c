/*
 * Reserve, settle, release, and the words for a refusal.  Invariants:
 *   - what is reserved is either in the live map with its bytes, or given back;
 *   - a charge is tied to the place it was made in (mine); after the slot was lost, whoever finds a
 *     record with an older one charges it again, under the record's shard lock, so it is never in twice;
 *   - a refusal is CUDA_ERROR_OUT_OF_MEMORY and touches no out-parameter.
 */
#include "preload/charge.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "enforcer/ledger_reap.h"
#include "enforcer/ledger_word.h"
#include "enforcer/log.h"
#include "preload/account.h"
#include "preload/context.h"
#include "preload/graph.h"
#include "preload/limits.h"
#include "preload/overhead.h"
#include "preload/pool.h"
#include "preload/renew.h"
#include "preload/share.h"

static struct vcap_log_limit refusal_limit, full_limit, deny_limit, audit_limit;

static double mib(uint64_t bytes)
{
    return (double)bytes / (1024.0 * 1024.0);
}

CUresult vcap_deny(unsigned row)
{
    uint32_t held_back;

    vcap_deny_again();
    if (vcap_log_allow(&deny_limit, &held_back))
        vcap_log(VCAP_LOG_ERROR,
                 "denied %s: no usable ceiling in this process (see the first line above)",
                 vcap_row_symbol(row));
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Counters, event and line of a refusal, or of what would have been one (audit). */
static void refused(const struct vcap_device *d, CUdevice ordinal, unsigned row, uint64_t bytes,
                    bool audit)
{
    struct vcap_ledger *l = vcap_ledger_now();
    struct vcap_lf_gpu *gpu = &l->gpus[d->gpu];
    struct vcap_event event = {.kind = audit ? VCAP_LF_EVENT_AUDIT : VCAP_LF_EVENT_REFUSAL,
                               .gpu = d->gpu,
                               .bytes = bytes,
                               .name = vcap_row_symbol(row),
                               .code = CUDA_ERROR_OUT_OF_MEMORY};
    uint64_t container = vcap_ceiling_bytes(__atomic_load_n(&gpu->ceiling, __ATOMIC_ACQUIRE));
    uint32_t held_back, holders;
    char more[48];

    if (audit && __atomic_load_n(&vcap_process.unrecorded, __ATOMIC_RELAXED))
        return;
    event.held = vcap_ledger_held(l, d->gpu);
    event.limit = vcap_device_ceiling(d);
    if (audit) {
        __atomic_fetch_add(&gpu->audit_refusals, 1, __ATOMIC_RELAXED);
    } else {
        __atomic_fetch_add(&gpu->refusals, 1, __ATOMIC_RELAXED);
        vcap_add_saturating(&gpu->refused_bytes, bytes);
        if (vcap_ledger_owns(l))
            __atomic_fetch_add(&l->slots[vcap_mine_slot(vcap_ledger_mine(l))].refusals, 1,
                               __ATOMIC_RELAXED);
    }
    vcap_ledger_event(l, &event);
    if (!vcap_log_allow(audit ? &audit_limit : &refusal_limit, &held_back))
        return;
    more[0] = 0;
    if (held_back != 0)
        snprintf(more, sizeof(more), " (and %u more before)", held_back);
    holders = vcap_ledger_holders(l, d->gpu);
    vcap_log(
        audit ? VCAP_LOG_WARN : VCAP_LOG_ERROR,
        "%s %s of %.1f MiB on GPU %d (%s): container holds %.1f of %.1f MiB in %u process%s%s%s",
        audit ? "would have refused" : "refused", event.name, mib(bytes), (int)ordinal, d->name,
        mib(event.held), mib(event.limit), holders, holders == 1 ? "" : "es",
        event.limit < container ? ", this process's own lower ceiling" : "", more);
}

void vcap_device_full(const struct vcap_device *d, CUdevice ordinal, unsigned row, uint64_t bytes)
{
    struct vcap_ledger *l = vcap_ledger_now();
    struct vcap_event event = {.kind = VCAP_LF_EVENT_DEVICE_FULL,
                               .gpu = d->gpu,
                               .bytes = bytes,
                               .name = vcap_row_symbol(row),
                               .code = CUDA_ERROR_OUT_OF_MEMORY};
    uint64_t ceiling = vcap_device_ceiling(d);
    uint32_t held_back;
    char of[48];

    event.held = vcap_ledger_held(l, d->gpu);
    event.limit = ceiling;
    __atomic_fetch_add(&l->gpus[d->gpu].device_full, 1, __ATOMIC_RELAXED);
    vcap_ledger_event(l, &event);
    if (!vcap_log_allow(&full_limit, &held_back))
        return;
    of[0] = 0;
    if (ceiling != VCAP_NO_LIMIT)
        snprintf(of, sizeof(of), " of %.1f", mib(ceiling));
    vcap_log(VCAP_LOG_WARN,
             "%s of %.1f MiB on GPU %d (%s): device full, ceiling not reached; container holds "
             "%.1f%s MiB",
             event.name, mib(bytes), (int)ordinal, d->name, mib(event.held), of);
}

/* Charges in this process's present place: 0, -EDQUOT, -ESTALE, or another -errno: denied.  asked: what
 * the call wants in all, for the words; 0: no refusal is said.  recorded: in and out, whether an audited
 * refusal of this call has been counted and said. */
static int charge_here(struct vcap_device *d, CUdevice ordinal, unsigned row, uint64_t bytes,
                       uint64_t asked, bool force, uint64_t *mine, bool *recorded)
{
    struct vcap_ledger *l = vcap_ledger_now();
    bool audit, above = false;
    uint64_t here = vcap_ledger_mine(l);
    int rc;

    audit = vcap_mode_now() == VCAP_MODE_AUDIT;
    rc = vcap_ledger_charge_in(l, here, d->gpu, bytes, d->limit_bytes,
                               audit || force ? VCAP_BOOK_ABOVE : VCAP_REFUSE_ABOVE, &above);

    if (((rc == -EDQUOT || rc == -EOVERFLOW) && asked != 0) || (audit && above && !*recorded)) {
        refused(d, ordinal, row, asked, rc == 0);
        *recorded = true;
    }
    if (rc == -EDEADLK) /* rule 4: no refusal without a trace */
        vcap_ledger_anomaly(l, d->gpu, bytes, "charge in a handler that interrupted one");
    if (rc == 0)
        *mine = here;
    return rc;
}

/* The same, taking a new slot if need be. */
static int charge(struct vcap_device *d, CUdevice ordinal, unsigned row, uint64_t bytes,
                  uint64_t asked, bool force, uint64_t *mine, bool *recorded)
{
    vcap_before_charge(bytes);
    for (int tries = 0;; tries++) {
        int rc = charge_here(d, ordinal, row, bytes, asked, force, mine, recorded);

        if (__builtin_expect(rc == -EDQUOT, 0))
            vcap_ledger_follow();
        if (rc != -ESTALE || tries == 3 || !vcap_slot_renew())
            return rc;
    }
}

/* May a last resort find room? */
static bool anything_to_find(const struct vcap_device *d, CUdevice ordinal)
{
    return vcap_pools_exist() || vcap_graphs_hold(ordinal) || vcap_overhead_is_measured(d) ||
           __atomic_load_n(&vcap_limits_unread, __ATOMIC_RELAXED) != 0;
}

void vcap_last_resort(CUdevice ordinal, unsigned row, unsigned own)
{
    vcap_pools_trim(ordinal, row);
    vcap_graphs_trim(ordinal, row);
    vcap_limits_settle(ordinal);
    vcap_overhead_look(ordinal, own);
}

/*
 * There was no room, or no slot.  Before a program is refused, this process's idle pools give back what they
 * hold.  Calls the driver.
 */
static __attribute__((noinline)) int charge_or_trim(struct vcap_device *d, CUdevice ordinal,
                                                    unsigned row, uint64_t bytes, uint64_t asked,
                                                    unsigned own, uint64_t *mine, bool *recorded)
{
    if (anything_to_find(d, ordinal) && vcap_mode_now() != VCAP_MODE_AUDIT) {
        int rc = charge(d, ordinal, row, bytes, 0, false, mine, recorded);

        if (rc != -EDQUOT && rc != -EOVERFLOW)
            return rc;
        vcap_last_resort(ordinal, row, own);
    }
    return charge(d, ordinal, row, bytes, asked, false, mine, recorded);
}

/* For what a program asks for: nearly always there is room, and the slot is ours. */
static inline int charge_wanted(struct vcap_device *d, CUdevice ordinal, unsigned row,
                                uint64_t bytes, uint64_t asked, unsigned own, uint64_t *mine,
                                bool *recorded)
{
    struct vcap_ledger *l;
    uint64_t here;

    vcap_before_charge(bytes);
    l = vcap_ledger_now();
    here = vcap_ledger_mine(l);
    if (__builtin_expect(vcap_mode_now() == VCAP_MODE_ENFORCE &&
                             vcap_ledger_try_in(l, here, d->gpu, bytes, d->limit_bytes),
                         1)) {
        *mine = here;
        return 0;
    }
    return charge_or_trim(d, ordinal, row, bytes, asked, own, mine, recorded);
}

CUresult vcap_refuse(const struct vcap_device *device, CUdevice ordinal, unsigned row,
                     uint64_t bytes)
{
    if (device != NULL)
        refused(device, ordinal, row, bytes, false);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

int vcap_amount_charge(struct vcap_device *device, unsigned row, uint64_t bytes, bool force,
                       uint64_t *mine)
{
    bool recorded = false;

    return charge_here(device, (CUdevice)(device - vcap_process.device), row, bytes, bytes, force,
                       mine, &recorded);
}

/* What both beginnings share, once the device's ordinal is known. */
static inline CUresult begin(struct vcap_charge *c, uint64_t bytes)
{
    int rc;

    c->device = vcap_device(c->ordinal);
    if (c->device == NULL)
        return vcap_process.config.on_error == VCAP_ON_ERROR_ALLOW ? CUDA_SUCCESS
                                                                   : vcap_deny(c->row);
    if (c->context != NULL)
        vcap_context_met(c->context, c->ordinal);
    c->bytes = bytes;
    c->counted = vcap_overhead_call_begin(c->device);
    rc =
        charge_wanted(c->device, c->ordinal, c->row, bytes, bytes, c->counted, &c->mine, &c->above);
    if (rc == 0)
        c->active = true;
    else
        vcap_overhead_call_end(c->device, c->counted);
    if (rc == -ESTALE && vcap_mode_now() == VCAP_MODE_PASSIVE)
        return CUDA_SUCCESS; /* VRAMCAP_ON_ERROR=allow */
    return rc == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static inline void blank(struct vcap_charge *c, unsigned row)
{
    c->active = c->above = c->counted = c->unsure = false;
    c->row = row;
    c->context = NULL;
    c->ordinal = -1;
    c->device = NULL;
    c->bytes = c->mine = c->pool_bytes = 0;
    c->pool = NULL;
}

CUresult vcap_charge_begin(struct vcap_charge *c, unsigned row, uint64_t bytes)
{
    blank(c, row);
    if (vcap_mode_now() == VCAP_MODE_DENY)
        return vcap_deny(row);
    if (bytes == 0 || vcap_own.cuCtxGetCurrent == NULL || vcap_own.cuCtxGetDevice == NULL)
        return CUDA_SUCCESS;
    /* the context current now, asked every time: it changes with every set, push and pop */
    if (vcap_own.cuCtxGetCurrent(&c->context) != CUDA_SUCCESS || c->context == NULL ||
        vcap_own.cuCtxGetDevice(&c->ordinal) != CUDA_SUCCESS)
        return CUDA_SUCCESS; /* the driver will say what is missing */
    return begin(c, bytes);
}

CUresult vcap_charge_begin_on(struct vcap_charge *c, unsigned row, CUdevice ordinal, uint64_t bytes)
{
    CUuuid uuid;

    blank(c, row);
    if (vcap_mode_now() == VCAP_MODE_DENY)
        return vcap_deny(row);
    if (bytes == 0 || vcap_own.cuDeviceGetUuid == NULL ||
        (vcap_device(ordinal) == NULL && vcap_own.cuDeviceGetUuid(&uuid, ordinal) != CUDA_SUCCESS))
        return CUDA_SUCCESS;
    c->ordinal = ordinal;
    return begin(c, bytes);
}

/* Takes bytes off that were charged in a place; if that is gone, its charges went with it. */
static void release(const struct vcap_device *d, uint64_t bytes, uint64_t mine)
{
    vcap_ledger_release_in(vcap_ledger_now(), mine, d->gpu, bytes);
}

void vcap_record_release(const struct vcap_live *record)
{
    const struct vcap_device *device = &vcap_process.device[record->device];

    if (record->pool != NULL)
        vcap_pool_pointer_gone(record);
    if (record->bytes != 0)
        release(device, record->bytes, record->mine);
    if (record->unsure)
        vcap_overhead_unsure(&vcap_process.device[record->device], -(int64_t)record->bytes);
    if (record->imported != 0)
        vcap_ledger_note_imported(vcap_ledger_now(), record->mine, device->gpu,
                                  -(int64_t)record->imported);
    if (record->exported)
        vcap_exports_drop(record->key);
}

CUresult vcap_release_end(CUresult result, bool ours, const struct vcap_live *record)
{
    struct vcap_live stale;

    if (!ours)
        return result;
    if (result == CUDA_SUCCESS) {
        vcap_record_release(record);
        return result;
    }
    /* still allocated; without memory for the record the charge stays until the process ends */
    if (vcap_live_enter(record, &stale) == 0 && record->mine != vcap_ledger_mine(vcap_ledger_now()))
        vcap_record_follow(record->key);
    if (stale.key != 0)
        vcap_record_release(&stale);
    return result;
}

CUresult vcap_charge_end(struct vcap_charge *c, CUresult result, uint64_t pointer, uint64_t bytes,
                         CUresult (*give_back)(uint64_t pointer))
{
    return vcap_charge_end_as(c, result, VCAP_LIVE_MEMORY, pointer, bytes, give_back);
}

static CUresult settle(struct vcap_charge *c, CUresult result, enum vcap_live_kind kind,
                       uint64_t handle, uint64_t bytes, CUresult (*give_back)(uint64_t handle))
{
    struct vcap_live record = {.key = vcap_live_key(kind, handle),
                               .context = c->context,
                               .device = (uint32_t)c->ordinal,
                               .opens = 1,
                               .unsure = c->unsure,
                               .pool = c->pool,
                               .pool_bytes = c->pool_bytes};
    struct vcap_live stale;

    if (result != CUDA_SUCCESS) {
        release(c->device, c->bytes, c->mine);
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            vcap_device_full(c->device, c->ordinal, c->row, c->bytes);
        return result;
    }
    if (bytes < c->bytes) {
        release(c->device, c->bytes - bytes, c->mine);
    } else if (bytes > c->bytes) {
        uint64_t mine;
        int rc = charge_wanted(c->device, c->ordinal, c->row, bytes - c->bytes, bytes, 0, &mine,
                               &c->above);

        if (rc != 0)
            goto undo;
        if (mine != c->mine) { /* the slot was lost in between and the first part with it */
            release(c->device, bytes - c->bytes, mine);
            mine = 0;
        }
        c->mine = mine;
    }
    c->bytes = bytes;
    record.bytes = bytes;
    record.mine = c->mine;
    if (vcap_live_enter(&record, &stale) != 0) {
        vcap_log(VCAP_LOG_ERROR, "no memory to keep a record of %s: the allocation is given back",
                 vcap_row_symbol(c->row));
        goto undo;
    }
    if (stale.key != 0)
        vcap_record_release(&stale);
    if (c->unsure)
        vcap_overhead_unsure(c->device, (int64_t)bytes);
    if (record.mine != vcap_ledger_mine(vcap_ledger_now()))
        vcap_record_follow(record.key);
    return result;
undo:
    give_back(handle);
    release(c->device, c->bytes, c->mine);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vcap_charge_end_as(struct vcap_charge *c, CUresult result, enum vcap_live_kind kind,
                            uint64_t handle, uint64_t bytes, CUresult (*give_back)(uint64_t handle))
{
    if (!c->active)
        return result;
    result = settle(c, result, kind, handle, bytes, give_back);
    vcap_overhead_call_end(c->device, c->counted);
    return result;
}

void vcap_make_room(CUdevice ordinal, unsigned row, uint64_t bytes)
{
    const struct vcap_device *device = vcap_device(ordinal);

    if (device == NULL || !anything_to_find(device, ordinal) ||
        vcap_mode_now() != VCAP_MODE_ENFORCE || vcap_account_room(ordinal, bytes))
        return;
    vcap_last_resort(ordinal, row, 0);
}

CUresult vcap_overhead_charge(struct vcap_device *device, unsigned row, uint64_t bytes, bool force)
{
    CUdevice ordinal = (CUdevice)(device - vcap_process.device);
    bool recorded = false;
    uint64_t mine;
    int rc = charge(device, ordinal, row, bytes, bytes, force, &mine, &recorded);

    if (rc == 0)
        vcap_ledger_note_overhead(vcap_ledger_now(), device->gpu, (int64_t)bytes);
    return rc == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void vcap_overhead_release(struct vcap_device *device, uint64_t bytes)
{
    struct vcap_ledger *l = vcap_ledger_now();

    if (vcap_ledger_owns(l)) {
        vcap_ledger_note_overhead(l, device->gpu, -(int64_t)bytes);
        vcap_ledger_release(l, device->gpu, bytes);
    }
}
