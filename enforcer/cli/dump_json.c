/*
 * `vramcap dump --json`: the keys of vramcap(1), JSON, which are a promise: new ones may
 * come, none goes or changes its meaning without another DOCUMENT_VERSION.  Unknown is null,
 * never 0. Numbers above 2^63 - 1 (only damage makes them) are shown as 2^63 - 1: JSON integers of
 * jansson.
 */
#include "enforcer/cli/dump.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>

#include "enforcer/cli/host_pid.h"
#include "enforcer/cli/units.h"

#define DOCUMENT_VERSION 1 /* of these keys and their meaning */

static json_t *number(uint64_t value)
{
    return json_integer(value > INT64_MAX ? (json_int_t)INT64_MAX : (json_int_t)value);
}

static json_t *number_or_null(uint64_t value, uint64_t unknown)
{
    return value == unknown ? json_null() : number(value);
}

static json_t *text_or_null(const char *text)
{
    return text && *text ? json_string(text) : json_null();
}

/* What each source of ceilings said of a GPU: null where it was not seen, or has none. */
static json_t *sources_object(const struct vcap_snapshot_gpu *g)
{
    json_t *sources = json_object();
    for (uint32_t i = VCAP_LF_SOURCE_FIRST; sources && i <= VCAP_LF_SOURCE_LAST; i++) {
        const char *name = vcap_snapshot_source_name((enum vcap_lf_source)i);
        if (json_object_set_new(
                sources, name,
                number_or_null(g->source_bytes[i - VCAP_LF_SOURCE_FIRST], VCAP_UNKNOWN)) != 0) {
            json_decref(sources);
            return NULL;
        }
    }
    return sources;
}

/* Takes both; NULL if either is. */
static json_t *merged(json_t *object, json_t *more)
{
    if (!object || !more || json_object_update(object, more) != 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(more);
    return object;
}

static json_t *gpu_object(const struct vcap_snapshot_gpu *g)
{
    json_t *promised = json_pack(
        "{s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "uuid", g->uuid, "index",
        (int)(g->index > INT32_MAX ? INT32_MAX : g->index), "ceiling_bytes",
        number_or_null(g->ceiling_bytes, VCAP_NO_LIMIT), "ceiling_source",
        text_or_null(vcap_snapshot_source_name(g->ceiling_source)), "charged_bytes",
        number(g->charged_bytes), "overhead_bytes", number_or_null(g->overhead_bytes, VCAP_UNKNOWN),
        "free_bytes", number_or_null(g->free_bytes, VCAP_UNKNOWN), "peak_bytes",
        number(g->peak_bytes), "refusals", number(g->refusals), "over", (int)g->over);
    return merged(promised,
                  json_pack("{s:o, s:o, s:o, s:o, s:o, s:b, s:o}", "card_bytes",
                            number_or_null(g->card_bytes, VCAP_UNKNOWN), "refused_bytes",
                            number(g->refused_bytes), "audit_refusals", number(g->audit_refusals),
                            "device_full", number(g->device_full), "over_peak_bytes",
                            number(g->over_peak_bytes), "near", (int)g->near, "sources",
                            sources_object(g)));
}

static json_t *fault_object(const struct vcap_snapshot_process *p)
{
    char time[VCAP_UNITS_TEXT];
    if (p->fault_code == 0)
        return json_null();
    return json_pack("{s:I, s:s}", "code", (json_int_t)p->fault_code, "time",
                     vcap_units_time(time, p->fault_ns));
}

static json_t *process_object(const struct vcap_snapshot *s, const struct vcap_snapshot_process *p,
                              pid_t host_pid)
{
    json_t *gpus = json_array();
    for (uint32_t i = 0; gpus && i < p->charge_count; i++) {
        const struct vcap_snapshot_charge *c = &p->charges[i];
        json_t *gpu = json_pack(
            "{s:s, s:o, s:o, s:o, s:o, s:o}", "uuid", s->gpus[c->gpu].uuid, "charged_bytes",
            number(c->charged_bytes), "imported_bytes", number(c->imported_bytes), "overhead_bytes",
            number_or_null(c->overhead_bytes, VCAP_UNKNOWN), "peak_bytes", number(c->peak_bytes),
            "own_ceiling_bytes", number_or_null(c->limit_bytes, VCAP_NO_LIMIT));
        if (json_array_append_new(gpus, gpu) != 0) {
            json_decref(gpus);
            gpus = NULL;
        }
    }
    json_t *promised =
        json_pack("{s:o, s:o, s:s, s:s, s:o}", "pid", number(p->pid), "host_pid",
                  host_pid > 0 ? json_integer(host_pid) : json_null(), "command", p->command,
                  "state", vcap_snapshot_life_name(p->life), "gpus", gpus);
    return merged(promised, json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "mode",
                                      vcap_dump_mode(s, p), "uid", number(p->uid), "refusals",
                                      number(p->refusals), "anomalies", number(p->anomalies),
                                      "gaps", number(p->gaps), "fault", fault_object(p)));
}

static json_t *document(const struct vcap_snapshot *s, const pid_t *host_pids)
{
    json_t *gpus = json_array(), *processes = json_array();
    int failed = !gpus || !processes;
    for (uint32_t i = 0; !failed && i < s->gpu_count; i++)
        failed = json_array_append_new(gpus, gpu_object(&s->gpus[i]));
    for (uint32_t i = 0; !failed && i < s->process_count; i++)
        failed =
            json_array_append_new(processes, process_object(s, &s->processes[i], host_pids[i]));
    if (failed) {
        json_decref(gpus);
        json_decref(processes);
        return NULL;
    }
    json_t *promised = json_pack("{s:i, s:o, s:o, s:o, s:o}", "version", DOCUMENT_VERSION,
                                 "container", text_or_null(s->container), "gpus", gpus, "processes",
                                 processes, "events_lost", number(s->events_lost));
    return merged(promised,
                  json_pack("{s:b, s:b, s:b, s:o, s:o, s:o, s:o}", "host_made",
                            (s->flags & VCAP_LF_HOST_MADE) != 0, "audit",
                            (s->flags & VCAP_LF_AUDIT) != 0, "pass_through",
                            (s->flags & VCAP_LF_PASS_THROUGH) != 0, "default_ceiling_bytes",
                            number_or_null(s->default_ceiling_bytes, VCAP_NO_LIMIT), "near_percent",
                            number_or_null(s->near_percent, 0), "host_changes",
                            number(s->host_changes), "anomalies", number(s->anomalies)));
}

int vcap_dump_json(const struct vcap_snapshot *snapshot, FILE *to, bool one_line)
{
    pid_t *host_pids = calloc(snapshot->process_count + 1u, sizeof *host_pids);
    if (!host_pids)
        return -ENOMEM;
    vcap_host_pids(snapshot, host_pids);
    json_t *json = document(snapshot, host_pids);
    char *text = json ? json_dumps(json, one_line ? JSON_COMPACT : JSON_INDENT(2)) : NULL;
    int error = text ? 0 : -ENOMEM;
    if (text)
        (void)fprintf(to, "%s\n", text);
    free(text);
    json_decref(json);
    free(host_pids);
    return error;
}
