/*
 * Which results are faults that stay, and keeping the first; pointers that nobody knows.  Runs on error paths only; starts nothing, and
 * changes no result.
 */
#include "preload/fault.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#include "enforcer/kernel.h"
#include "enforcer/log.h"
#include "preload/preload.h"

#define BAD_EVENTS_MAX 16u

/*
 * cuda.h says of these that they leave the process in an inconsistent state in which any further CUDA work
 * returns the same error, or that the process must be terminated, or (710) that the context cannot be used
 * anymore; of 214 and 220 that the hardware has failed.  By number, because older headers lack some.
 */
static bool stays(CUresult result)
{
    switch ((unsigned)result) {
    case 214: /* ECC_UNCORRECTABLE */
    case 220: /* NVLINK_UNCORRECTABLE */
    case 226: /* CONTAINED */
    case 700: /* ILLEGAL_ADDRESS */
    case 702: /* LAUNCH_TIMEOUT */
    case 710: /* ASSERT */
    case 714: /* HARDWARE_STACK_ERROR */
    case 715: /* ILLEGAL_INSTRUCTION */
    case 716: /* MISALIGNED_ADDRESS */
    case 717: /* INVALID_ADDRESS_SPACE */
    case 718: /* INVALID_PC */
    case 719: /* LAUNCH_FAILED */
    case 721: /* TENSOR_MEMORY_LEAK */
    case 810: /* MPS_CLIENT_TERMINATED */
    case 911: /* EXTERNAL_DEVICE */
        return true;
    default:
        return false;
    }
}

void vcap_fault_note(CUresult result, unsigned row)
{
    struct vcap_ledger *l = vcap_ledger_now();
    struct vcap_event event = {.kind = VCAP_LF_EVENT_FAULT,
                               .gpu = UINT32_MAX,
                               .code = (uint32_t)result,
                               .name = vcap_row_symbol(row)};
    enum vcap_mode mode;
    struct vcap_lf_slot *slot;
    uint32_t none = 0;
    int saved = errno;

    if (!stays(result))
        return;
    mode = vcap_mode_if_started();
    if ((mode != VCAP_MODE_ENFORCE && mode != VCAP_MODE_AUDIT) || !vcap_ledger_owns(l))
        return;
    slot = &l->slots[vcap_mine_slot(vcap_ledger_mine(l))];
    if (!__atomic_compare_exchange_n(&slot->fault_code, &none, (uint32_t)result, false,
                                     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    __atomic_store_n(&slot->fault_ns, vcap_clock_ns(CLOCK_REALTIME), __ATOMIC_RELAXED);
    vcap_ledger_event(l, &event);
    vcap_log(
        VCAP_LOG_WARN,
        "%s returned error %u, a device fault that stays: the process that made it first is in "
        "`vramcap events` of its container",
        event.name, event.code);
    errno = saved;
}

void vcap_bad_release_note(unsigned row)
{
    static uint32_t
        events; /* a program that does this does it often: a few are enough to find it */
    enum vcap_mode mode = vcap_mode_if_started();
    struct vcap_ledger *l = vcap_ledger_now();
    char what[48];
    int saved = errno;

    if (mode != VCAP_MODE_ENFORCE && mode != VCAP_MODE_AUDIT)
        return;
    snprintf(what, sizeof(what), "bad pointer, %s", vcap_row_symbol(row));
    if (__atomic_fetch_add(&events, 1, __ATOMIC_RELAXED) < BAD_EVENTS_MAX)
        vcap_ledger_anomaly(l, UINT32_MAX, 0, what);
    else
        vcap_ledger_count_anomaly(l);
    errno = saved;
}
