/*
 * Crossing the near-ceiling mark.  gpu.near changes by CAS, so that of all who see one crossing one writes
 * its event; a total that has moved on meanwhile makes at worst another crossing of it.
 */
#include "enforcer/ledger_near.h"

#include "enforcer/ledger_word.h"

void vcap_near_left(struct vcap_ledger *l, uint32_t gpu)
{
    uint64_t held = vcap_lf_total_units(vcap_load(&l->gpus[gpu].total));

    if (held * 1000 < vcap_near_mark(l, gpu) * 9)
        (void)vcap_cas(&l->gpus[gpu].near, 1, 0);
}

void vcap_near_reached(struct vcap_ledger *l, uint32_t gpu)
{
    struct vcap_event event = {.kind = VCAP_LF_EVENT_NEAR, .gpu = gpu};

    if (!vcap_cas(&l->gpus[gpu].near, 0, 1))
        return;
    event.held = vcap_ledger_held(l, gpu);
    event.limit = vcap_ceiling_bytes(vcap_load(&l->gpus[gpu].ceiling));
    event.code = __atomic_load_n(&vcap_ledger_header(l)->near_percent, __ATOMIC_RELAXED);
    vcap_ledger_event(l, &event);
    vcap_near_left(l, gpu); /* a release that came in between saw no mark to take back */
}

void vcap_near_look(struct vcap_ledger *l, uint32_t gpu)
{
    uint64_t held = vcap_lf_total_units(vcap_load(&l->gpus[gpu].total)),
             mark = vcap_near_mark(l, gpu);

    if (vcap_near_is_noted(l, gpu))
        vcap_near_left(l, gpu);
    else if (held * 100 >= mark && mark != 0)
        vcap_near_reached(l, gpu);
}
