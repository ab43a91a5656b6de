/*
 * The near-ceiling crossing: an event when what the container holds on a GPU reaches header.near_percent
 * of its ceiling, and none again before it was a tenth below that.  Asked after every move of a total, by
 * whoever made it, so the look is a few loads of words that hardly ever change.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_NEAR_H
#define VRAMCAP_ENFORCER_LEDGER_NEAR_H

#include "enforcer/ledger.h"

/* Is there a crossing, one way or the other, that gpu.near does not show yet? */
static inline bool vcap_near_moved(const struct vcap_ledger *l, uint32_t gpu)
{
    const struct vcap_lf_gpu *row = &l->gpus[gpu];
    uint64_t percent = __atomic_load_n(&vcap_ledger_header(l)->near_percent, __ATOMIC_RELAXED);
    uint64_t word = __atomic_load_n(&row->ceiling, __ATOMIC_RELAXED);
    uint64_t held = vcap_lf_total_units(__atomic_load_n(&row->total, __ATOMIC_RELAXED));
    uint64_t mark = vcap_lf_ceiling_units(word) * percent; /* 34 bits and 7 */

    if (__atomic_load_n(&row->near, __ATOMIC_RELAXED) != 0)
        return held * 1000 < mark * 9;
    return held * 100 >= mark && held != 0 && percent != 0 && word != 0;
}

/* Notes the crossing; the one who is first writes the event. */
void vcap_near_cross(struct vcap_ledger *l, uint32_t gpu);

static inline void vcap_near_check(struct vcap_ledger *l, uint32_t gpu)
{
    if (__builtin_expect(vcap_near_moved(l, gpu), 0))
        vcap_near_cross(l, gpu);
}

#endif
