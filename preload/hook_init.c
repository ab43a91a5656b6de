/*
 * cuInit: the driver first, then our own setting up, so that a wrong configuration is said at the
 * start and a process that only initialises has its slot.  What happens here never makes cuInit
 * fail. And what the table's GAPs leave behind: one line, one event each.
 */
#include "enforcer/log.h"
#include "preload/compute.h"
#include "preload/preload.h"

CUresult CUDAAPI cuInit(unsigned int flags)
{
    CUresult result;

    if (!vcap_bind())
        return CUDA_ERROR_NO_DEVICE;
    if (real.cuInit == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!vcap_is_inner_call(__builtin_return_address(0)))
        vcap_compute_prepare();
    result = real.cuInit(flags);
    if (result == CUDA_SUCCESS && !vcap_is_inner_call(__builtin_return_address(0)))
        vcap_start();
    return result;
}

void vcap_gap_note(const char *name, uint32_t code)
{
    struct vcap_ledger *l = vcap_ledger_now();
    struct vcap_event event = {
        .kind = VCAP_LF_EVENT_GAP, .gpu = UINT32_MAX, .name = name, .code = code};

    if (vcap_ledger_owns(l))
        __atomic_fetch_add(&l->slots[vcap_mine_slot(vcap_ledger_mine(l))].gaps, 1,
                           __ATOMIC_RELAXED);
    if (l->base != NULL)
        vcap_ledger_event(l, &event);
}

void vcap_gap_met(unsigned row)
{
    if (vcap_mode_now() == VCAP_MODE_PASSIVE)
        return;
    vcap_gap_note(vcap_row_symbol(row), 0);
    vcap_log(VCAP_LOG_WARN,
             "%s is not accounted by this version: memory that it takes or gives back is not in "
             "the ledger (docs/apis.md says what is lost)",
             vcap_row_symbol(row));
}
