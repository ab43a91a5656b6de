/*
 * Making the report: shares (one container on one GPU), then the GPUs' sums, then the answers.
 *
 * What must stay true: whatever is not known makes a sum unknown or an answer conditional, never a
 * number smaller.  Sums are checked; the numbers come from untrusted ledgers.  Containers that have
 * ended count for nothing but their own line.
 */
#include "enforcer/agent/report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/agent/mps_lint.h"
#include "enforcer/ledger.h"

static double mib(uint64_t bytes)
{
    return (double)bytes / (double)(1u << 20);
}

/* Unknown and more than 64 bits: unknown. */
static uint64_t sum(uint64_t a, uint64_t b)
{
    uint64_t s;
    if (__builtin_add_overflow(a, b, &s)) /* VCAP_UNKNOWN is the largest number */
        return VCAP_UNKNOWN;
    return s;
}

static bool is_in_sums(const struct vcap_report_source *source)
{
    return source->snapshot && !source->gone;
}

/* ---- shares ---- */

static const struct vcap_snapshot_charge *charge_on(const struct vcap_snapshot_process *p,
                                                    uint32_t row)
{
    for (uint32_t i = 0; i < p->charge_count; i++)
        if (p->charges[i].gpu == row)
            return &p->charges[i];
    return NULL;
}

static enum vcap_sharing join(enum vcap_sharing a, enum vcap_sharing b)
{
    if (a == VCAP_SHARING_UNKNOWN || b == VCAP_SHARING_UNKNOWN)
        return VCAP_SHARING_UNKNOWN;
    return a == b ? a : VCAP_SHARING_MIXED;
}

static void look_at_processes(const struct vcap_snapshot *s, struct vcap_report_share *share)
{
    for (uint32_t i = 0; i < s->process_count; i++) {
        const struct vcap_snapshot_process *p = &s->processes[i];
        const struct vcap_snapshot_charge *c = charge_on(p, share->row);
        enum vcap_sharing how = p->mps == VCAP_LF_MPS_CLIENT ? VCAP_SHARING_MPS
                                : p->mps == VCAP_LF_MPS_NO   ? VCAP_SHARING_SLICES
                                                             : VCAP_SHARING_UNKNOWN;
        if (!c)
            continue;
        if (p->fault_code != 0) {
            share->faults++;
            share->fault_code = p->fault_code;
        }
        if (p->life == VCAP_LIFE_DEAD)
            continue;
        share->sharing = share->processes == 0 ? how : join(share->sharing, how);
        share->processes++;
        share->overhead_unknown += c->overhead_bytes == VCAP_UNKNOWN;
    }
}

static void answer_fit(const struct vcap_snapshot *s, struct vcap_report_share *share)
{
    const struct vcap_snapshot_gpu *g = &s->gpus[share->row];
    char *why = share->fit_why;
    const size_t size = sizeof share->fit_why;

    share->fit = VCAP_ANSWER_NO;
    if (g->refusals > 0)
        (void)snprintf(why, size, "%" PRIu64 " refusals of %.1f MiB in all; peak %.1f MiB",
                       g->refusals, mib(g->refused_bytes), mib(g->peak_bytes));
    else if (g->audit_refusals > 0)
        (void)snprintf(why, size, "%" PRIu64 " allocations would have been refused (audit)",
                       g->audit_refusals);
    else if (g->over || g->over_peak_bytes > 0)
        (void)snprintf(why, size, "held %.1f MiB more than the ceiling at the most",
                       mib(g->over_peak_bytes));
    else if (g->device_full > 0)
        (void)snprintf(why, size,
                       "the card was full %" PRIu64 " times before the ceiling was reached",
                       g->device_full);
    else
        share->fit = VCAP_ANSWER_UNKNOWN;
    if (share->fit == VCAP_ANSWER_NO)
        return;
    if (g->ceiling_bytes == VCAP_NO_LIMIT) {
        (void)snprintf(why, size, "no ceiling to fit below; peak %.1f MiB", mib(g->peak_bytes));
    } else if (g->peak_bytes == 0) {
        (void)snprintf(why, size, "nothing has been allocated yet below %.1f MiB",
                       mib(g->ceiling_bytes));
    } else {
        share->fit = VCAP_ANSWER_YES;
        (void)snprintf(why, size, "peak %.1f of %.1f MiB, no refusal", mib(g->peak_bytes),
                       mib(g->ceiling_bytes));
    }
}

static void fill_share(const struct vcap_report_source *source, struct vcap_report_share *share)
{
    const bool in_force = source->mps_in_force && source->mps_in_force[share->row];

    look_at_processes(source->snapshot, share);
    answer_fit(source->snapshot, share);
    share->enforced_by = vcap_enforced_by(source->snapshot, share->row, in_force);
}

/* ---- GPUs ---- */

static int by_uuid(const void *a, const void *b)
{
    return strcmp(((const struct vcap_report_gpu *)a)->uuid,
                  ((const struct vcap_report_gpu *)b)->uuid);
}

static struct vcap_report_gpu *find_gpu(const struct vcap_report *r, const char *uuid)
{
    for (uint32_t i = 0; i < r->gpu_count; i++)
        if (strcmp(r->gpus[i].uuid, uuid) == 0)
            return &r->gpus[i];
    return NULL;
}

static struct vcap_report_gpu *add_gpu(struct vcap_report *r, const char *uuid)
{
    struct vcap_report_gpu *gpu = find_gpu(r, uuid);
    if (gpu)
        return gpu;
    gpu = &r->gpus[r->gpu_count++];
    (void)snprintf(gpu->uuid, sizeof gpu->uuid, "%s", uuid);
    gpu->mig = strncmp(uuid, "MIG-", 4) == 0;
    gpu->index = UINT32_MAX;
    gpu->card_bytes = VCAP_UNKNOWN;
    return gpu;
}

static void add_share(const struct vcap_report *r, const struct vcap_report_share *share)
{
    const struct vcap_report_source *source = &r->sources[share->source];
    const struct vcap_snapshot_gpu *g = &source->snapshot->gpus[share->row];
    struct vcap_report_gpu *gpu = &r->gpus[share->gpu];

    if (gpu->index == UINT32_MAX || g->index < gpu->index)
        gpu->index = g->index;
    if (!is_in_sums(source))
        return;
    const bool first = gpu->containers == 0;
    gpu->containers++;
    gpu->overhead_unknown += share->overhead_unknown;
    gpu->faults += share->faults;
    if (share->processes > 0)
        gpu->sharing = gpu->processes == 0 ? share->sharing : join(gpu->sharing, share->sharing);
    gpu->processes += share->processes;
    gpu->sum_peaks_bytes = sum(gpu->sum_peaks_bytes, g->peak_bytes);
    gpu->sum_held_bytes = sum(gpu->sum_held_bytes, g->held_bytes);
    if (g->ceiling_bytes == VCAP_NO_LIMIT) {
        gpu->without_ceiling++;
        (void)snprintf(gpu->unbounded, sizeof gpu->unbounded, "%.60s", source->container);
        gpu->sum_ceilings_bytes = VCAP_UNKNOWN;
    } else {
        gpu->sum_ceilings_bytes = sum(gpu->sum_ceilings_bytes, g->ceiling_bytes);
    }
    uint64_t unaccounted =
        source->unaccounted_bytes ? source->unaccounted_bytes[share->row] : VCAP_UNKNOWN;
    gpu->unaccounted_bytes = first ? unaccounted : sum(gpu->unaccounted_bytes, unaccounted);
    if (share->fit == VCAP_ANSWER_NO || first)
        gpu->fit = share->fit;
    else if (share->fit == VCAP_ANSWER_UNKNOWN && gpu->fit == VCAP_ANSWER_YES)
        gpu->fit = VCAP_ANSWER_UNKNOWN;
}

/* A container alone on its GPU shares it with nobody that a ledger knows of. */
static void name_sharing(const struct vcap_report *r)
{
    for (uint32_t i = 0; i < r->gpu_count; i++) {
        struct vcap_report_gpu *gpu = &r->gpus[i];
        if (gpu->mig)
            gpu->sharing = VCAP_SHARING_MIG;
        else if (gpu->containers == 1 && gpu->processes > 0 && r->untrusted == 0)
            gpu->sharing = VCAP_SHARING_ALONE;
    }
    for (uint32_t i = 0; i < r->share_count; i++)
        if (r->gpus[r->shares[i].gpu].mig)
            r->shares[i].sharing = VCAP_SHARING_MIG;
}

static void append(char *text, size_t size, uint32_t count, const char *before, const char *after)
{
    size_t at = strlen(text);
    if (count > 0)
        (void)snprintf(text + at, size - at, "%s%s%u %s", at > 0 ? ", " : "", before, count, after);
}

/* What the sums leave out, in one phrase; empty if nothing. */
static void name_conditions(const struct vcap_report *r, const struct vcap_report_gpu *gpu,
                            char *text, size_t size)
{
    const bool measured = gpu->unaccounted_bytes != VCAP_UNKNOWN;

    text[0] = '\0';
    append(text, size, measured ? 0 : gpu->overhead_unknown, "the unknown overhead of ",
           "processes");
    append(text, size, r->untrusted, "what ", "untrusted ledgers stand for");
    append(text, size, r->unplaced, "the ceilings of ", "containers that have not used a GPU yet");
}

static bool cannot_tell(const struct vcap_report_gpu *gpu, char *why, size_t size)
{
    if (gpu->card_bytes == VCAP_UNKNOWN)
        (void)snprintf(why, size, "the size of the card is not known");
    else if (gpu->without_ceiling > 0)
        (void)snprintf(why, size, "nothing bounds %u of %u containers (%s)", gpu->without_ceiling,
                       gpu->containers, gpu->unbounded);
    else if (gpu->sum_ceilings_bytes == VCAP_UNKNOWN)
        (void)snprintf(why, size, "the sum of the ceilings does not fit 64 bits");
    else
        return false;
    return true;
}

static void answer_packing(const struct vcap_report *r, struct vcap_report_gpu *gpu)
{
    char *why = gpu->packing_why, conditions[200];
    const size_t size = sizeof gpu->packing_why;

    gpu->packing = VCAP_ANSWER_UNKNOWN;
    gpu->over_commitment_bytes = VCAP_UNKNOWN;
    if (cannot_tell(gpu, why, size))
        return;
    gpu->over_commitment_bytes = 0;
    if (gpu->sum_ceilings_bytes > gpu->card_bytes) {
        gpu->packing = VCAP_ANSWER_NO;
        gpu->over_commitment_bytes = gpu->sum_ceilings_bytes - gpu->card_bytes;
        (void)snprintf(why, size,
                       "over-committed by %.1f MiB: ceilings of %.1f MiB on a card of %.1f; the "
                       "peaks so far (%.1f MiB) %s",
                       mib(gpu->over_commitment_bytes), mib(gpu->sum_ceilings_bytes),
                       mib(gpu->card_bytes), mib(gpu->sum_peaks_bytes),
                       gpu->sum_peaks_bytes > gpu->card_bytes ? "do not fit together either"
                                                              : "would fit together");
        return;
    }
    uint64_t left = gpu->card_bytes - gpu->sum_ceilings_bytes;
    name_conditions(r, gpu, conditions, sizeof conditions);
    gpu->packing = conditions[0] ? VCAP_ANSWER_CONDITIONAL : VCAP_ANSWER_YES;
    (void)snprintf(why, size, "ceilings of %.1f MiB on a card of %.1f leave %.1f%s%s",
                   mib(gpu->sum_ceilings_bytes), mib(gpu->card_bytes), mib(left),
                   conditions[0] ? " for " : "", conditions);
    if (gpu->unaccounted_bytes != VCAP_UNKNOWN && gpu->unaccounted_bytes > left) {
        gpu->packing = VCAP_ANSWER_NO;
        (void)snprintf(
            why, size,
            "ceilings of %.1f MiB leave %.1f of the card, less than the %.1f MiB that no "
            "ledger accounts for",
            mib(gpu->sum_ceilings_bytes), mib(left), mib(gpu->unaccounted_bytes));
    }
}

static enum vcap_answer fits(uint64_t used, uint64_t more, uint64_t card)
{
    uint64_t all = sum(used, more);
    if (used == VCAP_UNKNOWN || card == VCAP_UNKNOWN)
        return VCAP_ANSWER_UNKNOWN;
    return all != VCAP_UNKNOWN && all <= card ? VCAP_ANSWER_YES : VCAP_ANSWER_NO;
}

static void answer_one_more(const struct vcap_report *r, struct vcap_report_gpu *gpu)
{
    char *why = gpu->one_more_why, conditions[200];
    const size_t size = sizeof gpu->one_more_why;
    const uint64_t known = gpu->unaccounted_bytes == VCAP_UNKNOWN ? 0 : gpu->unaccounted_bytes;

    gpu->by_ceilings = fits(sum(gpu->sum_ceilings_bytes, known), r->more_bytes, gpu->card_bytes);
    gpu->by_peaks = fits(sum(gpu->sum_peaks_bytes, known), r->more_bytes, gpu->card_bytes);
    gpu->one_more = gpu->by_ceilings;
    if (gpu->by_ceilings == VCAP_ANSWER_UNKNOWN) {
        (void)cannot_tell(gpu, why, size);
    } else if (gpu->by_ceilings == VCAP_ANSWER_NO) {
        (void)snprintf(why, size,
                       "%.1f MiB of ceilings%s and %.1f more are above the card's %.1f%s",
                       mib(gpu->sum_ceilings_bytes), known > 0 ? ", what is unaccounted" : "",
                       mib(r->more_bytes), mib(gpu->card_bytes),
                       gpu->by_peaks == VCAP_ANSWER_YES
                           ? "; above what was used so far it would fit, by over-commitment"
                           : "");
    } else {
        name_conditions(r, gpu, conditions, sizeof conditions);
        if (conditions[0])
            gpu->one_more = VCAP_ANSWER_CONDITIONAL;
        (void)snprintf(why, size, "%.1f MiB would be left%s%s",
                       mib(gpu->card_bytes - gpu->sum_ceilings_bytes - known - r->more_bytes),
                       conditions[0] ? " for " : "", conditions);
    }
}

/* ---- all of it ---- */

static void take_cards(struct vcap_report *r, const struct vcap_report_card *cards, uint32_t count)
{
    for (uint32_t i = 0; i < r->share_count; i++) { /* the smallest that any ledger says */
        const struct vcap_report_share *share = &r->shares[i];
        uint64_t said = r->sources[share->source].snapshot->gpus[share->row].card_bytes;
        struct vcap_report_gpu *gpu = &r->gpus[share->gpu];
        if (said < gpu->card_bytes)
            gpu->card_bytes = said;
    }
    for (uint32_t i = 0; i < count; i++)
        add_gpu(r, cards[i].uuid)->card_bytes = cards[i].card_bytes;
}

int vcap_report_make(struct vcap_report *report, const struct vcap_report_source *sources,
                     uint32_t source_count, const struct vcap_report_card *cards,
                     uint32_t card_count, uint64_t more_bytes)
{
    struct vcap_report r = {
        .sources = sources, .source_count = source_count, .more_bytes = more_bytes};
    size_t shares = 0;

    for (uint32_t i = 0; i < source_count; i++) {
        shares += sources[i].snapshot ? sources[i].snapshot->gpu_count : 0;
        r.untrusted += !sources[i].snapshot;
        r.unplaced += is_in_sums(&sources[i]) && sources[i].snapshot->gpu_count == 0;
    }
    r.shares = calloc(shares + 1, sizeof *r.shares);
    r.gpus = calloc(shares + card_count + 1, sizeof *r.gpus);
    if (!r.shares || !r.gpus) {
        vcap_report_free(&r);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < source_count; i++)
        for (uint32_t g = 0; sources[i].snapshot && g < sources[i].snapshot->gpu_count; g++) {
            struct vcap_report_share *share = &r.shares[r.share_count++];
            share->source = i;
            share->row = g;
            (void)add_gpu(&r, sources[i].snapshot->gpus[g].uuid);
            fill_share(&sources[i], share);
        }
    for (uint32_t i = 0; i < card_count; i++)
        (void)add_gpu(&r, cards[i].uuid);
    qsort(r.gpus, r.gpu_count, sizeof *r.gpus, by_uuid);
    for (uint32_t i = 0; i < r.share_count; i++) {
        struct vcap_report_share *share = &r.shares[i];
        const char *uuid = sources[share->source].snapshot->gpus[share->row].uuid;
        share->gpu = (uint32_t)(find_gpu(&r, uuid) - r.gpus);
        add_share(&r, share);
    }
    take_cards(&r, cards, card_count);
    name_sharing(&r);
    for (uint32_t i = 0; i < r.gpu_count; i++) {
        if (r.gpus[i].containers == 0) {
            r.gpus[i].fit = VCAP_ANSWER_UNKNOWN;
            r.gpus[i].unaccounted_bytes = VCAP_UNKNOWN;
        }
        answer_packing(&r, &r.gpus[i]);
        if (more_bytes != VCAP_UNKNOWN)
            answer_one_more(&r, &r.gpus[i]);
    }
    *report = r;
    return 0;
}

void vcap_report_free(struct vcap_report *report)
{
    free(report->shares);
    free(report->gpus);
    *report = (struct vcap_report){0};
}

const char *vcap_answer_name(enum vcap_answer answer)
{
    static const char *const names[] = {"yes", "conditional", "no", "unknown"};
    return names[answer];
}

const char *vcap_sharing_name(enum vcap_sharing sharing)
{
    static const char *const names[] = {NULL, "alone", "mig", "mps", "time_slicing", "mixed"};
    return names[sharing];
}
