/*
 * /v1/report: the agent's containers as sources of the acceptance report.
 */
#include "enforcer/agent/export.h"

#include <stdlib.h>
#include <string.h>

#include "enforcer/agent/mps_round.h"
#include "enforcer/agent/report.h"

struct borrowed {
    struct vcap_report_source *sources;
    struct vcap_report_card *cards;
    uint64_t *unaccounted; /* VCAP_LF_GPUS_MAX for each source */
    bool *in_force;        /* the same */
    uint32_t source_count, card_count;
};

static void add_source(struct borrowed *b, const struct vcap_watched *w)
{
    uint64_t *unaccounted = b->unaccounted + (size_t)b->source_count * VCAP_LF_GPUS_MAX;
    for (uint32_t g = 0; g < VCAP_LF_GPUS_MAX; g++)
        unaccounted[g] = VCAP_UNKNOWN;
    bool *in_force = b->in_force + (size_t)b->source_count * VCAP_LF_GPUS_MAX;
    for (uint32_t g = 0; w->have_snapshot && g < w->snapshot.gpu_count; g++)
        in_force[g] = vcap_mps_in_force(w, w->snapshot.gpus[g].uuid);
    for (uint32_t g = 0; w->have_snapshot && g < w->snapshot.gpu_count; g++)
        for (uint32_t i = 0; i < w->compared_count; i++)
            if (!strcmp(w->compared[i].uuid, w->snapshot.gpus[g].uuid))
                unaccounted[g] = w->compared[i].unaccounted_bytes;
    bool bad = w->state == VCAP_WATCHED_UNTRUSTED || w->state == VCAP_WATCHED_UNREADABLE;
    b->sources[b->source_count++] = (struct vcap_report_source){
        .container = w->label,
        .ledger = NULL,
        .snapshot = w->have_snapshot && !bad ? &w->snapshot : NULL,
        .untrusted = bad ? w->why : NULL,
        .gone = w->state == VCAP_WATCHED_GONE,
        .unaccounted_bytes = unaccounted,
        .mps_in_force = in_force,
    };
}

bool vcap_export_report(const struct vcap_agent *a, struct vcap_text *text)
{
    const uint32_t gpus = a->nvml ? a->nvml->gpu_count : 0;
    struct borrowed b = {.sources = calloc(a->count + 1, sizeof *b.sources),
                         .cards = calloc(gpus + 1u, sizeof *b.cards),
                         .unaccounted =
                             calloc((a->count + 1) * VCAP_LF_GPUS_MAX, sizeof *b.unaccounted),
                         .in_force = calloc((a->count + 1) * VCAP_LF_GPUS_MAX, sizeof *b.in_force)};
    struct vcap_report report;
    char *json = NULL;
    if (!b.sources || !b.cards || !b.unaccounted || !b.in_force)
        goto out;
    for (size_t i = 0; i < a->count; i++)
        if (a->all[i]->state != VCAP_WATCHED_NEW)
            add_source(&b, a->all[i]);
    for (uint32_t i = 0; i < gpus; i++) {
        if (a->nvml->gpus[i].total_bytes == VCAP_UNKNOWN)
            continue;
        memcpy(b.cards[b.card_count].uuid, a->nvml->gpus[i].uuid, VCAP_UUID_TEXT);
        b.cards[b.card_count++].card_bytes = a->nvml->gpus[i].total_bytes;
    }
    if (vcap_report_make(&report, b.sources, b.source_count, b.cards, b.card_count, VCAP_UNKNOWN) !=
        0)
        goto out;
    json_t *object = vcap_report_json(&report);
    json = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    vcap_report_free(&report);
    if (json) {
        vcap_text_add(text, json);
        vcap_text_add(text, "\n");
    }
out:
    free(json);
    free(b.sources);
    free(b.cards);
    free(b.unaccounted);
    free(b.in_force);
    return text->length > 0 && !text->failed;
}
