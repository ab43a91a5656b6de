/*
 * /v1/containers.  docs/agent.md has the schema.  Unknown is null, never 0; numbers above 2^63 - 1, which
 * only damage makes, are shown as 2^63 - 1.
 */
#include "enforcer/agent/export.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/agent/mps_lint.h"
#include "enforcer/agent/mps_round.h"
#include "enforcer/agent/remember.h"
#include "enforcer/cli/units.h"
#include "enforcer/ledger_read_open.h"

static json_t *number(uint64_t value)
{
    return json_integer(value > INT64_MAX ? (json_int_t)INT64_MAX : (json_int_t)value);
}

static json_t *known(uint64_t value) /* VCAP_UNKNOWN and VCAP_NO_LIMIT are the same number */
{
    return value == VCAP_UNKNOWN ? json_null() : number(value);
}

/* File and cgroup names may hold any byte; JSON may not. */
static json_t *text_or_null(const char *text)
{
    char shown[512];
    if (!text || !*text)
        return json_null();
    vcap_read_copy_text(shown, sizeof shown, text, strlen(text));
    return json_string(shown);
}

static json_t *time_or_null(uint64_t time_ns)
{
    char text[VCAP_UNITS_TEXT];
    return time_ns ? json_string(vcap_units_time(text, time_ns)) : json_null();
}

/* Takes item; sets *failed without memory. */
static void append(json_t *array, json_t *item, bool *failed)
{
    if (json_array_append_new(array, item) != 0)
        *failed = true;
}

static const struct vcap_compared *compared_with(const struct vcap_watched *w, const char *uuid)
{
    for (uint32_t i = 0; i < w->compared_count; i++)
        if (!strcmp(w->compared[i].uuid, uuid))
            return &w->compared[i];
    return NULL;
}

static const struct vcap_snapshot_gpu *in_ledger(const struct vcap_watched *w, const char *uuid)
{
    for (uint32_t i = 0; i < w->snapshot.gpu_count; i++)
        if (!strcmp(w->snapshot.gpus[i].uuid, uuid))
            return &w->snapshot.gpus[i];
    return NULL;
}

/* What enforces the ceiling there, by what the ledger recorded and the MPS settings say. */
static json_t *enforced_by(const struct vcap_watched *w, const struct vcap_snapshot_gpu *g)
{
    const unsigned bits = vcap_enforced_by(&w->snapshot, (uint32_t)(g - w->snapshot.gpus),
                                           vcap_mps_in_force(w, g->uuid));
    json_t *by = json_array();
    for (unsigned bit = 1; bit <= VCAP_ENFORCED_BY_DMEM; bit <<= 1)
        if (bits & bit)
            (void)json_array_append_new(by, json_string(vcap_enforced_by_name(bit)));
    return by;
}

static void put_compared(json_t *gpu, const struct vcap_compared *c)
{
    (void)json_object_set_new(gpu, "driver_bytes", c ? known(c->driver_bytes) : json_null());
    (void)json_object_set_new(gpu, "unaccounted_bytes",
                              c ? known(c->unaccounted_bytes) : json_null());
    (void)json_object_set_new(gpu, "unaccounted_first_bytes",
                              c ? known(c->first_bytes) : json_null());
    (void)json_object_set_new(gpu, "unaccounted_most_bytes",
                              c ? known(c->most_bytes) : json_null());
    (void)json_object_set_new(gpu, "unaccounted_since",
                              c ? time_or_null(c->since_ns) : json_null());
    (void)json_object_set_new(gpu, "unprotected_processes",
                              c ? known(c->unprotected) : json_null());
    (void)json_object_set_new(gpu, "mps_clients", c ? known(c->mps_clients) : json_null());
}

static json_t *ledger_gpu(const struct vcap_agent *a, const struct vcap_watched *w,
                          const struct vcap_snapshot_gpu *g)
{
    const struct vcap_nvml_gpu *host = vcap_nvml_find(a->nvml, g->uuid);
    const struct vcap_memory_gpu *m = vcap_remember_gpu(&w->memory, g->uuid);
    json_t *gpu = json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b, "
        "s:o}",
        "uuid", g->uuid, "index", host ? number(host->index) : json_null(), "index_in_container",
        number(g->index), "ceiling_bytes", known(g->ceiling_bytes), "ceiling_source",
        text_or_null(vcap_snapshot_source_name(g->ceiling_source)), "charged_bytes",
        number(g->charged_bytes), "overhead_bytes", known(g->overhead_bytes), "free_bytes",
        known(g->free_bytes), "peak_bytes", number(g->peak_bytes), "card_bytes",
        known(g->card_bytes), "refusals", number(g->refusals), "refusals_total",
        number(m ? m->refusals : 0), "refused_bytes_total", number(m ? m->refused_bytes : 0),
        "audit_refusals", number(g->audit_refusals), "device_full", number(g->device_full), "over",
        (int)g->over, "disagrees", (int)g->disagrees, "enforced_by", enforced_by(w, g));
    if (gpu)
        put_compared(gpu, compared_with(w, g->uuid));
    return gpu;
}

/* A GPU that only the driver knows of: processes of the container are on it, the ledger has no row. */
static json_t *driver_gpu(const struct vcap_compared *c)
{
    static const char *const nulls[] = {"index_in_container",
                                        "ceiling_bytes",
                                        "ceiling_source",
                                        "charged_bytes",
                                        "overhead_bytes",
                                        "free_bytes",
                                        "peak_bytes",
                                        "card_bytes",
                                        "refusals",
                                        "refusals_total",
                                        "refused_bytes_total",
                                        "audit_refusals",
                                        "device_full",
                                        "over",
                                        "disagrees"};
    json_t *gpu = json_pack("{s:s, s:o}", "uuid", c->uuid, "index",
                            c->index == UINT32_MAX ? json_null() : number(c->index));
    for (size_t i = 0; gpu && i < sizeof nulls / sizeof *nulls; i++)
        (void)json_object_set_new(gpu, nulls[i], json_null());
    if (gpu) {
        (void)json_object_set_new(gpu, "enforced_by", json_array());
        put_compared(gpu, c);
    }
    return gpu;
}

static json_t *process_object(const struct vcap_watched *w, uint32_t number_of)
{
    const struct vcap_snapshot *s = &w->snapshot;
    const struct vcap_snapshot_process *p = &s->processes[number_of];
    json_t *gpus = json_array();
    bool failed = !gpus;
    for (uint32_t i = 0; !failed && i < p->charge_count; i++) {
        const struct vcap_snapshot_charge *c = &p->charges[i];
        append(gpus,
               json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "uuid", s->gpus[c->gpu].uuid,
                         "charged_bytes", number(c->charged_bytes), "imported_bytes",
                         number(c->imported_bytes), "overhead_bytes", known(c->overhead_bytes),
                         "peak_bytes", number(c->peak_bytes), "limit_bytes", known(c->limit_bytes)),
               &failed);
    }
    pid_t host = w->host_pids[number_of];
    return json_pack(
        "{s:o, s:o, s:o, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "pid", number(p->pid),
        "host_pid", host > 0 ? json_integer(host) : json_null(), "uid", number(p->uid), "command",
        p->command, "state", vcap_snapshot_life_name(p->life), "mode",
        p->mode == VCAP_LF_MODE_AUDIT ? "audit" : "enforce", "mps_client",
        p->mps == VCAP_LF_MPS_UNKNOWN ? json_null() : json_boolean(p->mps == VCAP_LF_MPS_CLIENT),
        "refusals", number(p->refusals), "unaccounted_calls", number(p->gaps), "fault_code",
        p->fault_code ? number(p->fault_code) : json_null(), "gpus", gpus);
}

static json_t *passive_object(const struct vcap_passive *p)
{
    return json_pack("{s:o, s:o, s:s, s:s}", "host_pid", number((uint64_t)p->pid), "container",
                     text_or_null(p->container), "command", p->command, "reason", p->why);
}

static json_t *container_object(const struct vcap_agent *a, const struct vcap_watched *w)
{
    json_t *gpus = json_array(), *processes = json_array();
    bool failed = !gpus || !processes;
    const struct vcap_snapshot *s = w->have_snapshot ? &w->snapshot : NULL;
    for (uint32_t i = 0; s && !failed && i < s->gpu_count; i++)
        append(gpus, ledger_gpu(a, w, &s->gpus[i]), &failed);
    for (uint32_t i = 0; s && !failed && i < w->compared_count; i++)
        if (!in_ledger(w, w->compared[i].uuid))
            append(gpus, driver_gpu(&w->compared[i]), &failed);
    for (uint32_t i = 0; s && !failed && i < s->process_count; i++)
        append(processes, process_object(w, i), &failed);
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o,"
        " s:o, s:o, s:o}",
        "container", w->label, "runtime", text_or_null(w->name.runtime), "id",
        text_or_null(w->name.id), "pod", text_or_null(w->name.pod), "ecs_task",
        text_or_null(w->name.ecs_task), "state", vcap_watched_state_name(w->state), "ledger",
        text_or_null(w->path), "reason", text_or_null(w->why), "name_in_ledger",
        s ? text_or_null(s->container) : json_null(), "first_seen", time_or_null(w->first_ns),
        "read_at", time_or_null(w->read_ns), "host_made",
        s ? json_boolean((s->flags & VCAP_LF_HOST_MADE) != 0) : json_null(), "mode",
        !s                                       ? json_null()
        : (s->flags & VCAP_LF_PASS_THROUGH) != 0 ? json_string("pass-through")
        : (s->flags & VCAP_LF_AUDIT) != 0        ? json_string("audit")
                                                 : json_string("enforce"),
        "tampered",
        w->tampered == VCAP_TAMPERED_UNKNOWN ? json_null()
                                             : json_boolean(w->tampered == VCAP_TAMPERED_YES),
        "tampered_reason", text_or_null(w->tampered_why), "anomalies",
        s ? number(s->anomalies) : json_null(), "events_lost", number(w->memory.events_lost),
        "ledger_errors", number(w->memory.ledger_errors), "mps_settings", vcap_mps_settings_json(w),
        "gpus", gpus, "processes", processes);
}

static json_t *host_gpu(const struct vcap_nvml_gpu *g)
{
    return json_pack("{s:s, s:o, s:b, s:o, s:o, s:o}", "uuid", g->uuid, "index", number(g->index),
                     "mig", (int)g->mig, "total_bytes", known(g->total_bytes), "used_bytes",
                     known(g->used_bytes), "processes",
                     g->processes_known ? number(g->process_count) : json_null());
}

static json_t *nvml_object(const struct vcap_nvml_sample *n)
{
    json_t *gpus = json_array();
    bool failed = !gpus;
    for (uint32_t i = 0; n && !failed && i < n->gpu_count; i++)
        append(gpus, host_gpu(&n->gpus[i]), &failed);
    return json_pack("{s:s, s:o, s:o}", "state", vcap_nvml_state_name(n ? n->state : VCAP_NVML_OFF),
                     "reason", n ? text_or_null(n->why) : json_null(), "gpus", gpus);
}

/* Takes json.  False: no memory. */
static bool add(struct vcap_text *text, json_t *json)
{
    char *words = json ? json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(json);
    if (words)
        vcap_text_add(text, words);
    free(words);
    return words != NULL;
}

/* Piece by piece: one container may hold a thousand times as much as another, and all of them as a tree
 * would be some ten times the text. */
bool vcap_export_containers(const struct vcap_agent *a, struct vcap_text *text)
{
    bool made = true;
    vcap_text_format(text, "{\"version\":%d,\"agent\":", VCAP_EXPORT_VERSION);
    made = add(text, json_string(VRAMCAP_VERSION));
    vcap_text_add(text, ",\"time\":");
    made = made && add(text, time_or_null(a->time_ns));
    vcap_text_add(text, ",\"nvml\":");
    made = made && add(text, nvml_object(a->nvml));
    vcap_text_add(text, ",\"containers\":[");
    for (size_t i = 0; made && i < a->count; i++) {
        vcap_text_add(text, i ? "," : "");
        made = add(text, container_object(a, a->all[i]));
    }
    vcap_text_add(text, "],\"passive\":[");
    for (size_t i = 0; made && i < a->passive.count; i++) {
        vcap_text_add(text, i ? "," : "");
        made = add(text, passive_object(&a->passive.all[i]));
    }
    vcap_text_add(text, "]}\n");
    return made && !text->failed;
}
