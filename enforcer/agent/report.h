/*
 * The four acceptance questions, for each container on each GPU and for each GPU, answered from
 * ledgers: does the model fit, can work be packed, is latency acceptable, is the boundary suitable.
 *
 * What must stay true: the first two are answered with amounts, and an amount is unknown where
 * nobody knows it.  The last two are never answered here: a ledger knows no time and no faults of
 * neighbours, so what is said is which mechanism is in place, what was seen and what was not.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_REPORT_H
#define VRAMCAP_ENFORCER_AGENT_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "enforcer/ledger_read.h"

#define VCAP_REPORT_VERSION 1
#define VCAP_REPORT_WHY 400

/* Everything is borrowed: it must outlive the report. */
struct vcap_report_source {
    const char *container;                /* printable; shown as it is */
    const char *ledger;                   /* path, printable; may be NULL */
    const struct vcap_snapshot *snapshot; /* NULL: untrusted or unreadable */
    const char *untrusted;                /* why */
    bool gone;                            /* the container has ended: in no sum */
    const uint64_t *unaccounted_bytes;    /* by position of snapshot->gpus; may be NULL: unknown */
    const bool *mps_in_force; /* the same, see vcap_enforced_by(); NULL: nowhere known */
};

struct vcap_report_card {
    char uuid[VCAP_UUID_TEXT];
    uint64_t card_bytes;
};

/* CONDITIONAL: yes, if something holds that is not known here; `why` names it. */
enum vcap_answer { VCAP_ANSWER_YES, VCAP_ANSWER_CONDITIONAL, VCAP_ANSWER_NO, VCAP_ANSWER_UNKNOWN };

/* How processes share a GPU, as far as their slots and the device's kind say. */
enum vcap_sharing {
    VCAP_SHARING_UNKNOWN,
    VCAP_SHARING_ALONE,  /* the processes of one container only */
    VCAP_SHARING_MIG,    /* a MIG device */
    VCAP_SHARING_MPS,    /* all are clients of MPS */
    VCAP_SHARING_SLICES, /* none is: the driver gives each its time */
    VCAP_SHARING_MIXED
};

/* One container on one GPU. */
struct vcap_report_share {
    uint32_t source; /* position in the sources */
    uint32_t row;    /* position in its snapshot's gpus */
    uint32_t gpu;    /* position in vcap_report.gpus */
    enum vcap_answer fit;
    char fit_why[VCAP_REPORT_WHY];
    unsigned enforced_by;      /* bits of mps_lint.h */
    uint32_t processes;        /* living, with a charge on this GPU */
    uint32_t overhead_unknown; /* of those */
    enum vcap_sharing sharing;
    uint32_t faults; /* processes that saw a device error which ends a context */
    uint32_t fault_code;
};

struct vcap_report_gpu {
    char uuid[VCAP_UUID_TEXT];
    uint32_t index;
    bool mig;
    uint64_t card_bytes; /* VCAP_UNKNOWN */
    uint32_t containers, without_ceiling, processes, overhead_unknown;
    char unbounded[64];          /* one of those without a ceiling */
    uint64_t sum_ceilings_bytes; /* VCAP_UNKNOWN if one has none */
    uint64_t sum_peaks_bytes;    /* of different moments: no less than the peak of all */
    uint64_t sum_held_bytes;
    uint64_t unaccounted_bytes;     /* VCAP_UNKNOWN */
    uint64_t over_commitment_bytes; /* 0: none; VCAP_UNKNOWN */
    enum vcap_answer fit, packing, one_more;
    char packing_why[VCAP_REPORT_WHY], one_more_why[VCAP_REPORT_WHY];
    enum vcap_answer by_ceilings, by_peaks; /* of one more: YES, NO, UNKNOWN */
    enum vcap_sharing sharing;
    uint32_t faults;
};

struct vcap_report {
    const struct vcap_report_source *sources;
    uint32_t source_count, untrusted;
    uint32_t unplaced; /* containers that have not used a GPU yet: in no GPU's sums */
    uint32_t share_count, gpu_count;
    struct vcap_report_share *shares; /* by source, then GPU */
    struct vcap_report_gpu *gpus;     /* by UUID */
    uint64_t more_bytes;              /* VCAP_UNKNOWN: not asked */
};

/*
 * cards: sizes that the caller knows better than the ledgers (NVML).  more_bytes: does one more
 * container of that ceiling fit?  VCAP_UNKNOWN: not asked.  0, or -ENOMEM; to be given back with
 * vcap_report_free().
 */
int vcap_report_make(struct vcap_report *report, const struct vcap_report_source *sources,
                     uint32_t source_count, const struct vcap_report_card *cards,
                     uint32_t card_count, uint64_t more_bytes);
void vcap_report_free(struct vcap_report *report);

/* docs/report.schema.json.  NULL without memory. */
json_t *vcap_report_json(const struct vcap_report *report);

/* The same for people. */
void vcap_report_text(const struct vcap_report *report, FILE *to);

/* "yes", "conditional", "no", "unknown"; "alone", "mig", "mps", "time_slicing", "mixed", NULL. */
const char *vcap_answer_name(enum vcap_answer answer);
const char *vcap_sharing_name(enum vcap_sharing sharing);

/*
 * What is and what is not established about latency and about the boundary of a share; sentences
 * one by one until NULL.  room: for those that are made up; valid until the next call with it.
 */
#define VCAP_REPORT_SENTENCES 8
struct vcap_report_sentences {
    const char *established[VCAP_REPORT_SENTENCES], *not_established[VCAP_REPORT_SENTENCES];
    char room[2][VCAP_REPORT_WHY];
};
void vcap_report_latency(const struct vcap_report *report, const struct vcap_report_share *share,
                         struct vcap_report_sentences *sentences);
void vcap_report_boundary(const struct vcap_report *report, const struct vcap_report_share *share,
                          struct vcap_report_sentences *sentences);

#endif
