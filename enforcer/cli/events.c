/*
 * `vramcap events`: the ring of what happened, one line each, oldest first.  A number that is
 * missing below one that is there is either overwritten (older than one round of the ring), was
 * being written at that moment, or was never finished because its writer died; so --follow waits a
 * little for the second kind before it counts it as lost.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/cli/command.h"
#include "enforcer/cli/ledger_choice.h"
#include "enforcer/cli/pace.h"
#include "enforcer/cli/units.h"

#define POLL_MS 200
#define POLLS_FOR_A_HOLE 5

enum { OPTION_JSON, OPTION_FOLLOW, OPTION_SINCE };

static const struct vcap_option options[] = {
    [OPTION_JSON] = {"json", 'j', NULL, false, "each as one line of JSON, amounts in bytes"},
    [OPTION_FOLLOW] = {"follow", 'f', NULL, false, "go on with new ones until SIGINT"},
    [OPTION_SINCE] = {"since", 's', "SEQ", false, "begin with sequence number SEQ"},
    {0},
};

struct wish {
    bool json, follow;
    uint64_t since;
};

/* How far the output has come. */
struct progress {
    uint64_t next;       /* sequence number to be shown next */
    uint64_t created_ns; /* of the ledger that `next` counts in */
    ino_t inode;
    unsigned polls_at_hole;
};

static int take(int option, const char *value, void *state)
{
    struct wish *wish = state;
    if (option == OPTION_JSON)
        wish->json = true;
    else if (option == OPTION_FOLLOW)
        wish->follow = true;
    else if (vcap_units_parse_number(value, &wish->since) != 0)
        return vcap_command_fail("events: --since wants a sequence number, got '%s'", value);
    return 0;
}

static json_t *number_or_null(uint64_t value)
{
    if (value == UINT64_MAX)
        return json_null();
    return json_integer(value > INT64_MAX ? (json_int_t)INT64_MAX : (json_int_t)value);
}

static int print_json(json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    int error = text ? 0 : vcap_command_fail("out of memory");
    if (text)
        (void)puts(text);
    free(text);
    json_decref(json);
    return error;
}

static int show_lost(uint64_t count, const struct wish *wish)
{
    if (wish->json)
        return print_json(json_pack("{s:n, s:n, s:s, s:o}", "seq", "time", "kind", "lost", "count",
                                    number_or_null(count)));
    (void)printf("%" PRIu64 " events lost\n", count);
    return 0;
}

static int show_json(const struct vcap_snapshot *s, const struct vcap_snapshot_event *e)
{
    char time[VCAP_UNITS_TEXT];
    const char *kind = vcap_snapshot_event_name(e->kind);
    return print_json(json_pack(
        "{s:o, s:s, s:s, s:o, s:s?, s:s?, s:o, s:o, s:o, s:I}", "seq", number_or_null(e->sequence),
        "time", vcap_units_time(time, e->time_ns), "kind", kind ? kind : "unknown", "pid",
        e->pid ? json_integer(e->pid) : json_null(), "uuid",
        e->gpu == UINT32_MAX ? NULL : s->gpus[e->gpu].uuid, "name", e->name[0] ? e->name : NULL,
        "bytes", number_or_null(e->bytes), "held_bytes", number_or_null(e->held), "limit_bytes",
        number_or_null(e->limit), "code", (json_int_t)e->code));
}

static void show_amounts(const struct vcap_snapshot_event *e)
{
    char bytes[VCAP_UNITS_TEXT], held[VCAP_UNITS_TEXT], limit[VCAP_UNITS_TEXT];
    vcap_units_mib(bytes, e->bytes, "-");
    vcap_units_mib(held, e->held, "-");
    vcap_units_mib(limit, e->limit, "no ceiling");
    switch (e->kind) {
    case VCAP_LF_EVENT_REFUSAL:
        (void)printf(": %s MiB, container holds %s of %s", bytes, held, limit);
        break;
    case VCAP_LF_EVENT_AUDIT:
        (void)printf(": %s MiB let through, container holds %s of %s", bytes, held, limit);
        break;
    case VCAP_LF_EVENT_OVER:
        (void)printf(": %s MiB booked above the ceiling, container holds %s of %s", bytes, held,
                     limit);
        break;
    case VCAP_LF_EVENT_DEVICE_FULL:
        (void)printf(": %s MiB, device full, container holds %s of %s", bytes, held, limit);
        break;
    case VCAP_LF_EVENT_REAP:
        (void)printf(": %s MiB given back, container holds %s", bytes, held);
        break;
    case VCAP_LF_EVENT_NEAR:
        (void)printf(": container holds %s of %s, above %u %%", held, limit, e->code);
        return;
    case VCAP_LF_EVENT_RESIZE:
        (void)printf(": ceiling %s, was %s", e->bytes == UINT64_MAX ? "none" : bytes,
                     e->limit == UINT64_MAX ? "none" : limit);
        break;
    case VCAP_LF_EVENT_SWITCH:
        return;
    default:
        if (e->bytes)
            (void)printf(": %s MiB", bytes);
    }
    if (e->code)
        (void)printf(" (code %u)", e->code);
}

static int show_event(const struct vcap_snapshot *s, const struct vcap_snapshot_event *e,
                      const struct wish *wish)
{
    char time[VCAP_UNITS_TEXT];
    const char *kind = vcap_snapshot_event_name(e->kind);
    if (wish->json)
        return show_json(s, e);
    (void)printf("%" PRIu64 " %s ", e->sequence, vcap_units_time(time, e->time_ns));
    if (kind)
        (void)fputs(kind, stdout);
    else
        (void)printf("kind-%u", e->kind);
    if (e->pid)
        (void)printf(" pid %u", e->pid);
    if (e->gpu != UINT32_MAX)
        (void)printf(" GPU %u", s->gpus[e->gpu].index);
    if (e->name[0])
        (void)printf(" %s", e->name);
    show_amounts(e);
    (void)putchar('\n');
    return 0;
}

/* Shows what is new in the snapshot, in order. */
static int show_new(const struct vcap_snapshot *s, const struct wish *wish, struct progress *at)
{
    /* everything below `oldest` can only be overwritten */
    uint64_t oldest =
        s->event_next > s->event_capacity ? s->event_next - s->event_capacity : UINT64_C(1);
    int status = 0;
    for (uint32_t i = 0; !status && i < s->event_count; i++) {
        const struct vcap_snapshot_event *e = &s->events[i];
        if (e->sequence < at->next)
            continue;
        if (e->sequence > at->next) {
            bool may_come = wish->follow && (at->next >= oldest || i > 0);
            if (may_come && at->polls_at_hole < POLLS_FOR_A_HOLE) {
                at->polls_at_hole++;
                return 0;
            }
            status = show_lost(e->sequence - at->next, wish);
        }
        at->polls_at_hole = 0;
        at->next = e->sequence + 1;
        if (!status)
            status = show_event(s, e, wish);
    }
    if (status || wish->follow || at->next >= s->event_next)
        return status;
    uint64_t lost = s->event_next - at->next; /* at the end of the ring, or all of it */
    at->next = s->event_next;
    return show_lost(lost, wish);
}

static int show(const char *path, const struct wish *wish, struct progress *at)
{
    struct vcap_snapshot snapshot;
    int status = vcap_ledger_show(path, &snapshot);
    if (status)
        return status;
    if (snapshot.inode != at->inode || snapshot.created_ns != at->created_ns) {
        if (at->inode) /* made anew while we followed it: numbers begin at 1 again */
            *at = (struct progress){.next = 1};
        at->inode = snapshot.inode;
        at->created_ns = snapshot.created_ns;
    }
    status = show_new(&snapshot, wish, at);
    vcap_snapshot_free(&snapshot);
    return status;
}

static int run(int argc, char **argv)
{
    struct wish wish = {.since = 1};
    char *path = NULL;
    int first;
    int status = vcap_command_parse(&vcap_command_events, argc, argv, take, &wish, &first);
    if (status >= 0)
        return status;
    status = vcap_ledger_choose("events", argc, argv, first, &path);
    struct progress at = {.next = wish.since ? wish.since : 1};
    if (wish.follow)
        vcap_pace_start();
    if (status == 0)
        do
            status = show(path, &wish, &at);
        while (status == 0 && wish.follow && vcap_pace_wait(POLL_MS));
    free(path);
    return status;
}

const struct vcap_command vcap_command_events = {
    .name = "events",
    .summary = "refusals, reaps and other events in the ledger's ring",
    .operands = "[LEDGER]",
    .details =
        "Without LEDGER: as `vramcap dump`.  Events that have left the ring, or that were never\n"
        "finished, are counted as lost where they are missing.",
    .options = options,
    .run = run,
};
