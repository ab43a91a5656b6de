/*
 * The report as JSON: docs/report.schema.json is the promise, VCAP_REPORT_VERSION its version.  Unknown
 * is null.  Under `latency` and `boundary` there is no key with an amount.
 */
#include "enforcer/agent/report.h"

#include "enforcer/agent/mps_lint.h"
#include "enforcer/ledger.h"

static json_t *number(uint64_t value, uint64_t unknown)
{
    if (value == unknown)
        return json_null();
    return json_integer(value > INT64_MAX ? (json_int_t)INT64_MAX : (json_int_t)value);
}

static json_t *bytes(uint64_t value)
{
    return number(value, VCAP_UNKNOWN);
}

static json_t *yes_or_no(enum vcap_answer answer)
{
    if (answer == VCAP_ANSWER_UNKNOWN)
        return json_null();
    return json_boolean(answer == VCAP_ANSWER_YES);
}

static json_t *sentences_array(const char *const *sentences)
{
    json_t *array = json_array();
    for (; array && *sentences; sentences++)
        if (json_array_append_new(array, json_string(*sentences)) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static json_t *unanswered(enum vcap_sharing sharing, const struct vcap_report_sentences *s)
{
    return json_pack("{s:s, s:s?, s:o, s:o}", "answer", "not_established", "mechanism",
                     vcap_sharing_name(sharing), "established", sentences_array(s->established),
                     "not_established", sentences_array(s->not_established));
}

static json_t *enforcers(unsigned bits)
{
    json_t *array = json_array();
    for (unsigned bit = 1; array && bit <= VCAP_ENFORCED_BY_DMEM; bit <<= 1)
        if (bits & bit)
            (void)json_array_append_new(array, json_string(vcap_enforced_by_name(bit)));
    if (array && bits == 0)
        (void)json_array_append_new(array, json_string(vcap_enforced_by_name(0)));
    return array;
}

static json_t *share_object(const struct vcap_report *r, const struct vcap_report_share *share)
{
    const struct vcap_report_source *source = &r->sources[share->source];
    const struct vcap_snapshot_gpu *g = &source->snapshot->gpus[share->row];
    const struct vcap_report_gpu *gpu = &r->gpus[share->gpu];
    struct vcap_report_sentences latency, boundary;
    uint64_t headroom = VCAP_UNKNOWN;

    if (g->ceiling_bytes != VCAP_NO_LIMIT)
        headroom = g->peak_bytes < g->ceiling_bytes ? g->ceiling_bytes - g->peak_bytes : 0;
    vcap_report_latency(r, share, &latency);
    vcap_report_boundary(r, share, &boundary);
    json_t *fit = json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "answer",
                            vcap_answer_name(share->fit), "why", share->fit_why, "ceiling_bytes",
                            number(g->ceiling_bytes, VCAP_NO_LIMIT), "peak_bytes",
                            bytes(g->peak_bytes), "headroom_bytes", bytes(headroom), "refusals",
                            bytes(g->refusals), "refused_bytes", bytes(g->refused_bytes),
                            "audit_refusals", bytes(g->audit_refusals), "device_full",
                            bytes(g->device_full), "over_bytes", bytes(g->over_peak_bytes));
    json_t *packing = json_pack(
        "{s:s, s:o, s:o, s:o}", "answer", vcap_answer_name(gpu->packing), "held_bytes",
        bytes(g->held_bytes), "overhead_bytes", bytes(g->overhead_bytes), "unaccounted_bytes",
        bytes(source->unaccounted_bytes ? source->unaccounted_bytes[share->row] : VCAP_UNKNOWN));
    return json_pack("{s:s, s:o, s:i, s:o, s:o, s:o, s:o, s:o}", "uuid", g->uuid, "index",
                     number(g->index, UINT32_MAX), "processes", (int)share->processes,
                     "enforced_by", enforcers(share->enforced_by), "fit", fit, "packing", packing,
                     "latency", unanswered(gpu->sharing, &latency), "boundary",
                     unanswered(gpu->sharing, &boundary));
}

static json_t *container_object(const struct vcap_report *r, uint32_t source)
{
    const struct vcap_report_source *s = &r->sources[source];
    json_t *gpus = json_array();
    int failed = !gpus;

    for (uint32_t i = 0; !failed && i < r->share_count; i++)
        if (r->shares[i].source == source)
            failed = json_array_append_new(gpus, share_object(r, &r->shares[i]));
    if (failed) {
        json_decref(gpus);
        return NULL;
    }
    return json_pack("{s:s, s:s?, s:b, s:s?, s:b, s:o}", "container", s->container, "ledger",
                     s->ledger, "trusted", s->snapshot != NULL, "untrusted_why",
                     s->snapshot ? NULL : s->untrusted, "gone", (int)s->gone, "gpus", gpus);
}

static json_t *gpu_unanswered(const struct vcap_report *r, uint32_t gpu, bool boundary)
{
    struct vcap_report_sentences s = {0};
    s.not_established[0] = boundary ? "no container is on this GPU now"
                                    : "no container is on this GPU now; no time was measured";
    for (uint32_t i = 0; i < r->share_count; i++) {
        const struct vcap_report_share *share = &r->shares[i];
        if (share->gpu != gpu || r->sources[share->source].gone)
            continue;
        /* of several containers the one with the most to say: a fault was seen there */
        if (boundary && (s.established[0] == NULL || share->faults > 0))
            vcap_report_boundary(r, share, &s);
        else if (!boundary && s.established[0] == NULL)
            vcap_report_latency(r, share, &s);
    }
    return unanswered(r->gpus[gpu].sharing, &s);
}

static json_t *gpu_object(const struct vcap_report *r, uint32_t position)
{
    const struct vcap_report_gpu *g = &r->gpus[position];
    const uint64_t over = g->over_commitment_bytes;
    json_t *over_committed = over == VCAP_UNKNOWN ? json_null() : json_boolean(over > 0);
    json_t *packing = json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:i}", "answer",
        vcap_answer_name(g->packing), "why", g->packing_why, "sum_ceilings_bytes",
        bytes(g->sum_ceilings_bytes), "sum_peaks_bytes", bytes(g->sum_peaks_bytes),
        "sum_held_bytes", bytes(g->sum_held_bytes), "unaccounted_bytes",
        bytes(g->unaccounted_bytes), "over_committed", over_committed, "over_commitment_bytes",
        bytes(over), "containers_without_ceiling", (int)g->without_ceiling,
        "processes_with_unknown_overhead", (int)g->overhead_unknown);
    json_t *one_more = json_null();
    if (r->more_bytes != VCAP_UNKNOWN)
        one_more =
            json_pack("{s:o, s:s, s:s, s:o, s:o}", "asked_bytes", bytes(r->more_bytes), "answer",
                      vcap_answer_name(g->one_more), "why", g->one_more_why, "by_ceilings",
                      yes_or_no(g->by_ceilings), "by_peaks", yes_or_no(g->by_peaks));
    return json_pack("{s:s, s:o, s:o, s:i, s:i, s:{s:s}, s:o, s:o, s:o, s:o}", "uuid", g->uuid,
                     "index", number(g->index, UINT32_MAX), "card_bytes", bytes(g->card_bytes),
                     "containers", (int)g->containers, "processes", (int)g->processes, "fit",
                     "answer", vcap_answer_name(g->fit), "packing", packing, "one_more", one_more,
                     "latency", gpu_unanswered(r, position, false), "boundary",
                     gpu_unanswered(r, position, true));
}

json_t *vcap_report_json(const struct vcap_report *r)
{
    json_t *containers = json_array(), *gpus = json_array();
    int failed = !containers || !gpus;

    for (uint32_t i = 0; !failed && i < r->source_count; i++)
        failed = json_array_append_new(containers, container_object(r, i));
    for (uint32_t i = 0; !failed && i < r->gpu_count; i++)
        failed = json_array_append_new(gpus, gpu_object(r, i));
    if (failed) {
        json_decref(containers);
        json_decref(gpus);
        return NULL;
    }
    return json_pack("{s:i, s:i, s:i, s:o, s:o}", "version", VCAP_REPORT_VERSION, "untrusted",
                     (int)r->untrusted, "without_gpu_yet", (int)r->unplaced, "containers",
                     containers, "gpus", gpus);
}
