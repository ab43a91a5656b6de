/*
 * Counters and events across restarts.  A counter's total is what earlier ledgers of the container
 * came to plus what this one says; whenever a number is lower than it was, whoever wrote it began
 * again from 0 (or lies), and the total goes on from where it was.
 *
 * An event's line is announced in the memory before it is written and settled after it.  An agent
 * that is killed between the two finds the announcement and writes the line again, marked again=1 and
 * with the same id: at no instant can it be lost.
 */
#include "enforcer/agent/remember.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "enforcer/agent/event_line.h"

#define HOLE_NS                                                                                    \
    UINT64_C(2000000000)    /* so long may a writer need between its number and its event */
#define LOG_BURST 2048u     /* lines of one container at once, */
#define LOG_PER_SECOND 256u /* and after that */

static uint64_t sum(uint64_t a, uint64_t b)
{
    return b > UINT64_MAX - a ? UINT64_MAX : a + b;
}

bool vcap_remember_is_new(const struct vcap_memory_record *r, const struct vcap_snapshot *s)
{
    return r->device != (uint64_t)s->device || r->inode != (uint64_t)s->inode ||
           r->created_ns != s->created_ns || s->event_next < r->next_event;
}

void vcap_remember_begin(struct vcap_memory_record *r, const struct vcap_snapshot *s)
{
    r->device = (uint64_t)s->device;
    r->inode = (uint64_t)s->inode;
    r->created_ns = s->created_ns;
    r->next_event = 1;
    r->logging_event = 0;
    r->host_recorded = 0;
    for (uint32_t i = 0; i < VCAP_LF_GPUS_MAX; i++)
        r->gpus[i].refusals_seen = r->gpus[i].refused_bytes_seen = 0;
}

const struct vcap_memory_gpu *vcap_remember_gpu(const struct vcap_memory_record *r,
                                                const char *uuid)
{
    for (uint32_t i = 0; i < VCAP_LF_GPUS_MAX; i++)
        if (!strcmp((const char *)r->gpus[i].uuid, uuid))
            return &r->gpus[i];
    return NULL;
}

struct vcap_memory_gpu *vcap_remember_place(struct vcap_memory_record *r,
                                            const struct vcap_snapshot *s, const char *uuid)
{
    struct vcap_memory_gpu *other = NULL;
    for (uint32_t i = 0; i < VCAP_LF_GPUS_MAX; i++) {
        struct vcap_memory_gpu *g = &r->gpus[i];
        if (!strcmp((const char *)g->uuid, uuid))
            return g;
        bool present = false;
        for (uint32_t k = 0; k < s->gpu_count && g->uuid[0]; k++)
            present = present || !strcmp((const char *)g->uuid, s->gpus[k].uuid);
        if (!present && (!other || (other->uuid[0] && !g->uuid[0])))
            other = g;
    }
    if (!other)
        return NULL;
    memset(other, 0, sizeof *other);
    other->ceiling_bytes = VCAP_NO_LIMIT;
    (void)snprintf((char *)other->uuid, sizeof other->uuid, "%s", uuid);
    return other;
}

static bool count(uint64_t *total, uint64_t *seen, uint64_t now)
{
    if (now == *seen)
        return false;
    *total = sum(*total, now > *seen ? now - *seen : now);
    *seen = now;
    return true;
}

bool vcap_remember_counters(struct vcap_memory_record *r, const struct vcap_snapshot *s)
{
    bool changed = false;
    for (uint32_t i = 0; i < s->gpu_count; i++) {
        const struct vcap_snapshot_gpu *g = &s->gpus[i];
        if (g->refusals == 0 && g->refused_bytes == 0 && !vcap_remember_gpu(r, g->uuid))
            continue;
        struct vcap_memory_gpu *m = vcap_remember_place(r, s, g->uuid);
        if (!m)
            continue;
        changed |= count(&m->refusals, &m->refusals_seen, g->refusals);
        changed |= count(&m->refused_bytes, &m->refused_bytes_seen, g->refused_bytes);
    }
    return changed;
}

/* ---- events ---- */

static enum vcap_line_level level_of(uint32_t kind)
{
    switch (kind) {
    case VCAP_LF_EVENT_ATTACH:
    case VCAP_LF_EVENT_REAP:
    case VCAP_LF_EVENT_RESIZE:
    case VCAP_LF_EVENT_COMPUTE:
    case VCAP_LF_EVENT_RENEWED:
        return VCAP_LINE_INFO;
    case VCAP_LF_EVENT_ANOMALY:
    case VCAP_LF_EVENT_FAULT:
        return VCAP_LINE_ERROR;
    default:
        return VCAP_LINE_WARN;
    }
}

/* The host's number of the process that an event names, if the ledger still has it; 0: unknown. */
static pid_t host_pid_of(const struct vcap_watched *w, uint32_t pid)
{
    pid_t found = 0;
    for (uint32_t i = 0; i < w->snapshot.process_count; i++) {
        if (w->snapshot.processes[i].pid != pid || w->host_pids[i] == 0)
            continue;
        if (found != 0)
            return 0; /* two namespaces in one container */
        found = w->host_pids[i];
    }
    return found;
}

static void bytes_field(struct vcap_text *line, const char *key, uint64_t bytes)
{
    if (bytes != UINT64_MAX)
        vcap_line_number(line, key, bytes);
}

static int log_event(const struct vcap_watched *w, const struct vcap_snapshot_event *e, bool again)
{
    struct vcap_text line = {0};
    const char *kind = vcap_snapshot_event_name(e->kind);
    char other[24], id[72];
    pid_t host_pid = e->pid ? host_pid_of(w, e->pid) : 0;
    (void)snprintf(other, sizeof other, "kind-%u", e->kind);
    (void)snprintf(id, sizeof id, "%llx-%llx-%llu", (unsigned long long)w->snapshot.created_ns,
                   (unsigned long long)w->inode, (unsigned long long)e->sequence);
    vcap_line_begin(&line, level_of(e->kind), kind ? kind : other, e->time_ns);
    vcap_line_word(&line, "container", w->label);
    vcap_line_number(&line, "seq", e->sequence);
    vcap_line_word(&line, "id", id);
    if (again)
        vcap_line_number(&line, "again", 1);
    if (e->pid)
        vcap_line_number(&line, "pid", e->pid);
    if (host_pid)
        vcap_line_number(&line, "host_pid", (uint64_t)host_pid);
    if (e->gpu != UINT32_MAX)
        vcap_line_word(&line, "gpu_uuid", w->snapshot.gpus[e->gpu].uuid);
    if (*e->name)
        vcap_line_word(&line, "name", e->name);
    bytes_field(&line, "bytes", e->bytes);
    bytes_field(&line, "held_bytes", e->held);
    bytes_field(&line, "limit_bytes", e->limit);
    if (e->code)
        vcap_line_number(&line, "code", e->code);
    int error = vcap_line_end(&line);
    vcap_text_free(&line);
    return error;
}

static int log_count(const struct vcap_watched *w, const char *event, uint64_t number)
{
    struct vcap_text line = {0};
    vcap_line_begin(&line, VCAP_LINE_WARN, event, 0);
    vcap_line_word(&line, "container", w->label);
    vcap_line_number(&line, "count", number);
    int error = vcap_line_end(&line);
    vcap_text_free(&line);
    return error;
}

static void keep(const struct vcap_watched *w, struct vcap_memory *memory)
{
    if (w->place >= 0)
        vcap_memory_write(memory, w->place, &w->memory);
}

/* Numbers that are missing for good: one line, one count.  False: nobody reads the log. */
static bool lose(struct vcap_watched *w, struct vcap_memory *memory, uint64_t until)
{
    uint64_t number = until - w->memory.next_event;
    if (log_count(w, "events-lost", number) == -EAGAIN)
        return false;
    w->memory.events_lost = sum(w->memory.events_lost, number);
    w->memory.next_event = until;
    w->memory.logging_event = 0;
    w->hole_ns = 0;
    keep(w, memory);
    return true;
}

static void fill_tokens(struct vcap_watched *w, uint64_t now_ns)
{
    if (w->log_filled_ns == 0)
        w->log_tokens = LOG_BURST;
    uint64_t fresh = (now_ns - w->log_filled_ns) / (UINT64_C(1000000000) / LOG_PER_SECOND);
    if (w->log_filled_ns == 0 || fresh > 0)
        w->log_filled_ns = now_ns;
    w->log_tokens =
        fresh > LOG_BURST || w->log_tokens + fresh > LOG_BURST ? LOG_BURST : w->log_tokens + fresh;
    if (w->log_dropped > 0 && w->log_tokens > 0 &&
        log_count(w, "events-not-logged", w->log_dropped) != -EAGAIN)
        w->log_dropped = 0;
}

/* False: stop here for this round. */
static bool take_event(struct vcap_watched *w, struct vcap_memory *memory,
                       const struct vcap_snapshot_event *e)
{
    bool again = w->memory.logging_event == e->sequence;
    if (w->log_tokens == 0) { /* a flood: counted, not written */
        w->log_dropped++;
    } else {
        w->memory.logging_event = e->sequence;
        keep(w, memory);
        if (log_event(w, e, again) == -EAGAIN) {
            w->memory.logging_event = 0;
            keep(w, memory);
            return false;
        }
        w->log_tokens--;
    }
    w->memory.next_event = e->sequence + 1;
    w->memory.logging_event = 0;
    keep(w, memory);
    return true;
}

void vcap_remember_events(struct vcap_watched *w, struct vcap_memory *memory, uint64_t now_ns)
{
    const struct vcap_snapshot *s = &w->snapshot;
    /* everything below `oldest` was overwritten */
    const uint64_t oldest =
        s->event_next > s->event_capacity ? s->event_next - s->event_capacity : 1;
    fill_tokens(w, now_ns);
    if (w->memory.next_event < oldest && !lose(w, memory, oldest))
        return;
    for (uint32_t i = 0; i < s->event_count; i++) {
        const struct vcap_snapshot_event *e = &s->events[i];
        if (e->sequence < w->memory.next_event)
            continue;
        if (e->sequence > w->memory.next_event) { /* being written, or its writer died */
            if (w->hole_ns == 0)
                w->hole_ns = now_ns;
            if (now_ns - w->hole_ns < HOLE_NS)
                return;
            if (!lose(w, memory, e->sequence))
                return;
        }
        w->hole_ns = 0;
        if (!take_event(w, memory, e))
            return;
    }
    if (w->memory.next_event >= s->event_next)
        return;
    if (w->hole_ns == 0) /* the newest ones */
        w->hole_ns = now_ns;
    if (now_ns - w->hole_ns >= HOLE_NS)
        (void)lose(w, memory, s->event_next);
}
