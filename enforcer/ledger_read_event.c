/*
 * The event ring of a ledger that nobody vouches for.  An entry is believed only if its two sequence
 * numbers agree and lie within the ring's range; what comes out is in order, without doubles, and every
 * number that is missing below the next one is counted as lost.  Touches no file.
 */
#include "enforcer/ledger_read_open.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/ledger_read.h"

static int by_sequence(const void *left, const void *right)
{
    const struct vcap_snapshot_event *a = left, *b = right;
    return a->sequence < b->sequence ? -1 : a->sequence > b->sequence;
}

static void fill(struct vcap_snapshot_event *to, const struct vcap_lf_event *e,
                 const struct vcap_lf_header *h, const uint32_t *gpu_position)
{
    to->sequence = e->begin;
    to->time_ns = e->time_ns;
    to->kind = e->kind;
    to->pid = e->pid;
    to->gpu = e->gpu < h->gpu_count ? gpu_position[e->gpu] : UINT32_MAX;
    to->bytes = e->bytes;
    to->held = e->held;
    to->limit = e->limit;
    to->code = e->code;
    vcap_read_copy_text(to->name, sizeof to->name, e->name, sizeof e->name);
}

int vcap_read_events(const struct vcap_lf_header *h, const unsigned char *file, uint64_t from,
                     uint64_t next, const uint32_t *gpu_position, struct vcap_snapshot *out,
                     char *why, size_t why_size)
{
    if (next == 0)
        next = 1;
    out->event_capacity = h->event_count;
    out->event_next = next;
    out->events = calloc(h->event_count ? h->event_count : 1, sizeof *out->events);
    if (!out->events)
        return vcap_read_refuse(why, why_size, ENOMEM, "%s", strerror(ENOMEM));
    uint32_t n = 0;
    for (uint32_t i = 0; i < h->event_count; i++) {
        struct vcap_lf_event e;
        memcpy(&e, file + h->event_offset + (size_t)i * h->event_stride, sizeof e);
        /* next was read after the ring, so every whole event is below it; older than one round:
         * torn */
        if (e.begin != e.end || e.begin == 0 || e.begin >= next || next - e.begin > h->event_count)
            continue;
        if (e.begin >= from)
            fill(&out->events[n++], &e, h, gpu_position);
    }
    qsort(out->events, n, sizeof *out->events, by_sequence);
    for (uint32_t i = 0; i < n; i++)
        if (out->event_count == 0 ||
            out->events[out->event_count - 1].sequence != out->events[i].sequence)
            out->events[out->event_count++] = out->events[i];
    out->events_lost =
        next > from && next - from > out->event_count ? next - from - out->event_count : 0;
    return 0;
}
