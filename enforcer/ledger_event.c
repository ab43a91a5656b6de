/*
 * The event ring.  A writer draws a number, writes `begin`, the payload, `end`; a reader believes
 * an entry whose begin and end are the number it expects.  A writer that dies in between, or is
 * overtaken by a whole round of the ring, leaves an entry that readers count as lost.  (One that is
 * stopped in its payload, overtaken, and killed as it goes on leaves an entry mixed of two events;
 * events are a log, no amount is ever taken from them.)
 */
#include "enforcer/ledger.h"

#include <stddef.h>
#include <string.h>
#include <time.h>

#include "enforcer/kernel.h"

#define PAYLOAD offsetof(struct vcap_lf_event, time_ns)
#define PAYLOAD_WORDS ((offsetof(struct vcap_lf_event, end) - PAYLOAD) / 8)

void vcap_ledger_event(struct vcap_ledger *l, const struct vcap_event *event)
{
    struct vcap_lf_header *header = vcap_ledger_header(l);
    uint64_t number = __atomic_fetch_add(&header->event_next, 1, __ATOMIC_RELAXED);
    struct vcap_lf_event *slot = &l->events[number % l->event_count];
    uint64_t mine = vcap_ledger_mine(l);
    struct vcap_lf_event e = {
        .time_ns = vcap_clock_ns(CLOCK_REALTIME),
        .kind = (uint32_t)event->kind,
        .slot = mine == 0 ? UINT32_MAX : vcap_mine_slot(mine),
        .pid = event->pid != 0 ? event->pid : (uint32_t)getpid(),
        .gpu = event->gpu,
        .bytes = event->bytes,
        .held = event->held,
        .limit = event->limit,
        .code = event->code,
    };
    uint64_t words[PAYLOAD_WORDS], *to = &slot->time_ns;
    size_t i = 0;

    for (; event->name != NULL && event->name[i] != 0 && i + 1 < sizeof(e.name); i++)
        e.name[i] = event->name[i];
    memcpy(words, (const char *)&e + PAYLOAD, sizeof(words));
    /* pairs with the reader's check of both numbers: payload between them, in this order */
    __atomic_store_n(&slot->end, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot->begin, number, __ATOMIC_SEQ_CST);
#ifndef __SANITIZE_THREAD__                  /* gcc's has no fences */
    __atomic_thread_fence(__ATOMIC_RELEASE); /* no payload store passes the one of begin */
#endif
    for (i = 0; i < PAYLOAD_WORDS; i++) /* atomic: a writer a round behind may be at it too */
        __atomic_store_n(&to[i], words[i], __ATOMIC_RELAXED);
    __atomic_store_n(&slot->end, number, __ATOMIC_SEQ_CST);
}

void vcap_ledger_over(struct vcap_ledger *l, uint32_t gpu, uint64_t bytes, const char *what)
{
    struct vcap_event event = {
        .kind = VCAP_LF_EVENT_OVER, .gpu = gpu, .bytes = bytes, .name = what};
    uint64_t *most = &l->gpus[gpu].over_bytes;
    uint64_t seen = __atomic_load_n(most, __ATOMIC_RELAXED);

    while (seen < bytes && !__atomic_compare_exchange_n(most, &seen, bytes, true, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED))
        ;
    event.held = vcap_ledger_held(l, gpu);
    event.limit = vcap_ceiling_bytes(__atomic_load_n(&l->gpus[gpu].ceiling, __ATOMIC_RELAXED));
    vcap_ledger_event(l, &event);
}

void vcap_ledger_count_anomaly(struct vcap_ledger *l)
{
    uint64_t mine = vcap_ledger_mine(l);

    __atomic_fetch_add(&vcap_ledger_header(l)->anomalies, 1, __ATOMIC_RELAXED);
    if (mine != 0)
        __atomic_fetch_add(&l->slots[vcap_mine_slot(mine)].anomalies, 1, __ATOMIC_RELAXED);
}

void vcap_ledger_anomaly(struct vcap_ledger *l, uint32_t gpu, uint64_t bytes, const char *what)
{
    struct vcap_event event = {
        .kind = VCAP_LF_EVENT_ANOMALY, .gpu = gpu, .bytes = bytes, .name = what};

    vcap_ledger_count_anomaly(l);
    vcap_ledger_event(l, &event);
}
