/*
 * The atomic steps that owners (ledger.c) and reapers (ledger_reap.c) share.  Sequentially
 * consistent.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_WORD_H
#define VRAMCAP_ENFORCER_LEDGER_WORD_H

#include <stdbool.h>
#include <stdint.h>

#include "enforcer/ledger.h"

static inline uint64_t vcap_load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static inline bool vcap_cas(uint64_t *word, uint64_t expected, uint64_t desired)
{
    return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

/*
 * Before slot d overwrites t in a row's total: tell the slot whose move t is, unless that slot has
 * settled it.  False: total has moved on, start again.  A slot number that this ledger does not
 * have can only come from damage and has nobody to be told.
 */
static inline bool vcap_word_acknowledge(struct vcap_ledger *l, uint32_t gpu, uint32_t d,
                                         uint64_t t)
{
    uint32_t w = vcap_lf_total_slot(t);
    uint64_t op = vcap_lf_op(t), a;
    struct vcap_lf_cell *cell;

    if (w == d || w >= l->slot_count)
        return true;
    cell = vcap_ledger_cell(l, w, gpu);
    if (vcap_lf_op(vcap_load(&cell->charged)) == op)
        return true;
    a = vcap_load(&cell->ack);
    /* ack may belong to a later move unless total has not changed since t was read */
    if (vcap_load(&l->gpus[gpu].total) != t)
        return false;
    return a == op || vcap_cas(&cell->ack, a, op);
}

/* Adds to a counter that must not wrap: a program may ask for 2^64 - 1 bytes as often as it likes. */
static inline void vcap_add_saturating(uint64_t *counter, uint64_t amount)
{
    uint64_t seen = __atomic_load_n(counter, __ATOMIC_RELAXED);

    while (!__atomic_compare_exchange_n(counter, &seen,
                                        amount > UINT64_MAX - seen ? UINT64_MAX : seen + amount,
                                        true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

#endif
