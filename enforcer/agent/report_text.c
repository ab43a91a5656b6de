/*
 * The report for people: for each GPU the four questions in their order.
 */
#include "enforcer/agent/report.h"

#include <string.h>

#include "enforcer/agent/mps_lint.h"

#define SEEN_MAX 16

static void amount(FILE *to, uint64_t bytes)
{
    if (bytes == VCAP_UNKNOWN)
        (void)fputs("unknown", to);
    else
        (void)fprintf(to, "%.1f", (double)bytes / (double)(1u << 20));
}

static void heading(FILE *to, const struct vcap_report_gpu *g)
{
    (void)fprintf(to, "GPU ");
    if (g->index != UINT32_MAX)
        (void)fprintf(to, "%u ", g->index);
    (void)fprintf(to, "%s: card ", g->uuid);
    amount(to, g->card_bytes);
    (void)fprintf(to, " MiB, %u containers, %u processes\n", g->containers, g->processes);
}

static void enforced_by(FILE *to, unsigned bits)
{
    const char *separator = "";
    (void)fputs("; enforced by ", to);
    for (unsigned bit = 1; bit <= VCAP_ENFORCED_BY_DMEM; bit <<= 1)
        if (bits & bit) {
            (void)fprintf(to, "%s%s", separator, vcap_enforced_by_name(bit));
            separator = ", ";
        }
    if (bits == 0)
        (void)fputs(vcap_enforced_by_name(0), to);
}

static void fit(const struct vcap_report *r, uint32_t gpu, FILE *to)
{
    (void)fputs("  Does the model fit?\n", to);
    for (uint32_t i = 0; i < r->share_count; i++) {
        const struct vcap_report_share *s = &r->shares[i];
        if (s->gpu != gpu)
            continue;
        (void)fprintf(to, "    %-11s %s: %s", vcap_answer_name(s->fit),
                      r->sources[s->source].container, s->fit_why);
        enforced_by(to, s->enforced_by);
        (void)fputs(r->sources[s->source].gone ? " (it has ended)\n" : "\n", to);
    }
}

static void packing(const struct vcap_report *r, const struct vcap_report_gpu *g, FILE *to)
{
    (void)fprintf(to, "  Can work be packed?\n    %-11s %s\n", vcap_answer_name(g->packing),
                  g->packing_why);
    (void)fputs("                sum of ceilings ", to);
    amount(to, g->sum_ceilings_bytes);
    (void)fputs(", of peaks ", to);
    amount(to, g->sum_peaks_bytes);
    (void)fputs(" (of different moments), held now ", to);
    amount(to, g->sum_held_bytes);
    (void)fputs(", unaccounted ", to);
    amount(to, g->unaccounted_bytes);
    (void)fputs(" MiB\n", to);
    if (r->more_bytes == VCAP_UNKNOWN)
        return;
    (void)fprintf(to, "  Does one more container of %.1f MiB fit?\n    %-11s %s\n",
                  (double)r->more_bytes / (double)(1u << 20), vcap_answer_name(g->one_more),
                  g->one_more_why);
}

/* Prints each sentence once for all containers of the GPU. */
struct seen {
    const char *at[SEEN_MAX];
    size_t count;
};

static bool is_new(struct seen *seen, const char *sentence)
{
    for (size_t i = 0; i < seen->count; i++)
        if (strcmp(seen->at[i], sentence) == 0)
            return false;
    if (seen->count < SEEN_MAX)
        seen->at[seen->count++] = sentence;
    return true;
}

static void unanswered(const struct vcap_report *r, uint32_t gpu, bool boundary, FILE *to)
{
    struct vcap_report_sentences s[SEEN_MAX];
    struct seen seen = {.count = 0};
    const struct vcap_report_share *shares[SEEN_MAX];
    size_t n = 0;

    (void)fprintf(to, "  %s\n    not established here\n",
                  boundary ? "Is the boundary suitable?" : "Is latency acceptable?");
    for (uint32_t i = 0; i < r->share_count && n < SEEN_MAX; i++)
        if (r->shares[i].gpu == gpu && !r->sources[r->shares[i].source].gone)
            shares[n++] = &r->shares[i];
    for (size_t i = 0; i < n; i++) {
        if (boundary)
            vcap_report_boundary(r, shares[i], &s[i]);
        else
            vcap_report_latency(r, shares[i], &s[i]);
        for (size_t k = 0; s[i].established[k]; k++)
            if (is_new(&seen, s[i].established[k]))
                (void)fprintf(to, "    seen:     %s\n", s[i].established[k]);
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; s[i].not_established[k]; k++)
            if (is_new(&seen, s[i].not_established[k]))
                (void)fprintf(to, "    not seen: %s\n", s[i].not_established[k]);
}

void vcap_report_text(const struct vcap_report *r, FILE *to)
{
    for (uint32_t g = 0; g < r->gpu_count; g++) {
        (void)fputs(g == 0 ? "" : "\n", to);
        heading(to, &r->gpus[g]);
        fit(r, g, to);
        packing(r, &r->gpus[g], to);
        unanswered(r, g, false, to);
        unanswered(r, g, true, to);
    }
    if (r->gpu_count == 0)
        (void)fputs("no GPU in any ledger\n", to);
    for (uint32_t i = 0; i < r->source_count; i++)
        if (!r->sources[i].snapshot)
            (void)fprintf(to, "\nuntrusted: %s: %s\n", r->sources[i].container,
                          r->sources[i].untrusted ? r->sources[i].untrusted : "unknown");
}
