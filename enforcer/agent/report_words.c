/*
 * What is said about latency and about the boundary.  Neither is ever answered: the sentences name
 * the mechanism, what was seen of it, and what nobody has measured here.  No amount of memory may
 * appear in them; tests/agent/test_report.c looks.
 */
#include "enforcer/agent/report.h"

#include <string.h>

#include "enforcer/ledger.h"

static void add(const char *list[VCAP_REPORT_SENTENCES], const char *sentence)
{
    for (size_t i = 0; i + 1 < VCAP_REPORT_SENTENCES; i++)
        if (!list[i]) {
            list[i] = sentence;
            return;
        }
}

static void compute(const struct vcap_snapshot_gpu *g, struct vcap_report_sentences *s)
{
    switch (g->compute_state) {
    case VCAP_LF_COMPUTE_FORCE:
        (void)snprintf(
            s->room[0], sizeof s->room[0],
            "a compute ceiling is in force: %u of %u multiprocessors (asked for: %u percent), "
            "as the driver reports or, with per-context partitioning, as reckoned",
            g->sm_granted, g->sm_total, g->compute_percent);
        add(s->established, s->room[0]);
        add(s->not_established, "a ceiling on multiprocessors reserves none of them, and bounds "
                                "neither caches nor memory bandwidth");
        break;
    case VCAP_LF_COMPUTE_NONE:
        add(s->not_established, "no compute ceiling was asked for");
        break;
    case VCAP_LF_COMPUTE_NO_MPS:
        add(s->not_established, "a compute ceiling was asked for and is not in force: without MPS "
                                "there is none");
        break;
    case VCAP_LF_COMPUTE_IGNORED:
        add(s->not_established, "a compute ceiling was asked for, but the driver reports more "
                                "multiprocessors than it allows");
        break;
    case VCAP_LF_COMPUTE_UNKNOWN:
        add(s->not_established, "whether a compute ceiling is in force is not known");
        break;
    }
}

static void sharing(enum vcap_sharing how, struct vcap_report_sentences *s)
{
    switch (how) {
    case VCAP_SHARING_ALONE:
        add(s->established, "no other container of these ledgers is on the GPU now");
        break;
    case VCAP_SHARING_MIG:
        add(s->established, "a MIG device: the GPU itself is divided");
        break;
    case VCAP_SHARING_MPS:
        add(s->established, "the processes are clients of MPS and run at the same time");
        break;
    case VCAP_SHARING_SLICES:
        add(s->established, "the processes are no clients of MPS and take turns on the GPU");
        break;
    case VCAP_SHARING_MIXED:
        add(s->established, "some processes are clients of MPS, others are not");
        break;
    case VCAP_SHARING_UNKNOWN:
        add(s->not_established, "how the processes share the GPU (MPS, turns) is not known");
        break;
    }
}

void vcap_report_latency(const struct vcap_report *report, const struct vcap_report_share *share,
                         struct vcap_report_sentences *s)
{
    memset(s, 0, sizeof *s);
    sharing(report->gpus[share->gpu].sharing, s);
    compute(&report->sources[share->source].snapshot->gpus[share->row], s);
    add(s->not_established, "no time was measured here: measure requests beside their real "
                            "neighbours, under load");
}

void vcap_report_boundary(const struct vcap_report *report, const struct vcap_report_share *share,
                          struct vcap_report_sentences *s)
{
    const enum vcap_sharing how = report->gpus[share->gpu].sharing;

    memset(s, 0, sizeof *s);
    sharing(how, s);
    if (share->faults > 0) {
        (void)snprintf(s->room[1], sizeof s->room[1],
                       "%u processes saw a device error that ends a context (CUresult %u)",
                       share->faults, share->fault_code);
        add(s->established, s->room[1]);
    } else {
        add(s->not_established, "no process has seen a device error so far; none was provoked");
    }
    if (how == VCAP_SHARING_MPS || how == VCAP_SHARING_MIXED)
        add(s->not_established, "a fatal fault of one MPS client reaches every client on the GPU, "
                                "says NVIDIA's MPS guide");
    if (how == VCAP_SHARING_MIG)
        add(s->not_established, "what crosses between MIG devices was not tested here");
    add(s->not_established, "a ceiling on allocations keeps no fault, no access and no load apart; "
                            "a program that means to get around it can");
}
