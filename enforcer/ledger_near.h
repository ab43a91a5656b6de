/*
 * The near-ceiling crossing: an event when what the container holds on a GPU reaches header.near_percent
 * of its ceiling, and none again before it was a tenth below that.  Asked after every move of a total, by
 * whoever made it: a release can only cross downwards; a charge crosses upwards, or is the first to find the
 * total well below the mark, after a reap or under a ceiling that the host has raised.  Neither reads the
 * total once more, whose cache line other processes want.  The host asks after it has moved the mark, for a
 * ceiling below what is held lets no charge pass that would.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_NEAR_H
#define VRAMCAP_ENFORCER_LEDGER_NEAR_H

#include "enforcer/ledger.h"

/* The mark, in hundredths of a unit; 0: there is none. */
static inline uint64_t vcap_near_mark(const struct vcap_ledger *l, uint32_t gpu)
{
    uint64_t percent = __atomic_load_n(&vcap_ledger_header(l)->near_percent, __ATOMIC_RELAXED);
    uint64_t word = __atomic_load_n(&l->gpus[gpu].ceiling, __ATOMIC_RELAXED);

    return vcap_lf_ceiling_units(word) * percent; /* 34 bits and 7; of a word of 0, 0 */
}

static inline bool vcap_near_is_noted(const struct vcap_ledger *l, uint32_t gpu)
{
    return __atomic_load_n(&l->gpus[gpu].near, __ATOMIC_RELAXED) != 0;
}

/* Notes the crossing; the one who is first writes the event. */
void vcap_near_reached(struct vcap_ledger *l, uint32_t gpu);
void vcap_near_left(struct vcap_ledger *l, uint32_t gpu);

/* After the mark has moved. */
void vcap_near_look(struct vcap_ledger *l, uint32_t gpu);

/* units: the total that this process's charge made. */
static inline void vcap_near_after_charge(struct vcap_ledger *l, uint32_t gpu, uint64_t units)
{
    uint64_t mark = vcap_near_mark(l, gpu);

    if (__builtin_expect(vcap_near_is_noted(l, gpu), 0)) {
        if (units * 1000 < mark * 9)
            vcap_near_left(l, gpu);
    } else if (__builtin_expect(units * 100 >= mark && mark != 0, 0)) {
        vcap_near_reached(l, gpu);
    }
}

static inline void vcap_near_after_release(struct vcap_ledger *l, uint32_t gpu)
{
    if (__builtin_expect(vcap_near_is_noted(l, gpu), 0))
        vcap_near_left(l, gpu);
}

#endif
