/*
 * The acceptance report over snapshots made by hand: sums, over-commitment, one more container, what
 * is unknown, and that no amount of memory stands for latency or boundary.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "enforcer/agent/mps_lint.h"
#include "enforcer/agent/report.h"
#include "enforcer/ledger.h"

#define MIB (UINT64_C(1) << 20)
#define CONTAINERS 3

static struct vcap_snapshot_gpu gpu[CONTAINERS];
static struct vcap_snapshot_charge charge[CONTAINERS];
static struct vcap_snapshot_process process[CONTAINERS];
static struct vcap_snapshot snapshot[CONTAINERS];
static struct vcap_report_source source[CONTAINERS];
static struct vcap_report report;
static const char *const names[CONTAINERS] = {"web-1", "web-2", "batch"};

/* Three containers of 4 GiB on one card of 16 GiB; each has one process that holds 1 GiB, peak 2. */
static int setup(void **state)
{
    (void)state;
    memset(gpu, 0, sizeof gpu);
    vcap_report_free(&report);
    for (uint32_t i = 0; i < CONTAINERS; i++) {
        gpu[i].card_bytes = 16384 * MIB;
        gpu[i].ceiling_bytes = 4096 * MIB;
        gpu[i].ceiling_source = VCAP_LF_SOURCE_HOST;
        gpu[i].held_bytes = gpu[i].charged_bytes = 1024 * MIB;
        gpu[i].peak_bytes = 2048 * MIB;
        gpu[i].overhead_bytes = 0;
        for (size_t k = 0; k < sizeof gpu[i].source_bytes / sizeof gpu[i].source_bytes[0]; k++)
            gpu[i].source_bytes[k] = VCAP_UNKNOWN;
        (void)snprintf(gpu[i].uuid, sizeof gpu[i].uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
        charge[i] = (struct vcap_snapshot_charge){.held_bytes = 1024 * MIB};
        process[i] = (struct vcap_snapshot_process){.life = VCAP_LIFE_ALIVE,
                                                    .mps = VCAP_LF_MPS_CLIENT,
                                                    .charge_count = 1,
                                                    .charges = &charge[i]};
        snapshot[i] = (struct vcap_snapshot){
            .gpu_count = 1, .gpus = &gpu[i], .process_count = 1, .processes = &process[i]};
        source[i] = (struct vcap_report_source){.container = names[i], .snapshot = &snapshot[i]};
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    vcap_report_free(&report);
    return 0;
}

static const struct vcap_report_gpu *make(uint64_t more_mib)
{
    vcap_report_free(&report);
    assert_int_equal(vcap_report_make(&report, source, CONTAINERS, NULL, 0,
                                      more_mib == VCAP_UNKNOWN ? VCAP_UNKNOWN : more_mib * MIB),
                     0);
    assert_int_equal(report.gpu_count, 1);
    return &report.gpus[0];
}

static void holds(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' lacks '%s'", text, part);
}

static void sums_stand_against_the_card(void **state)
{
    (void)state;
    const struct vcap_report_gpu *g = make(VCAP_UNKNOWN);
    assert_int_equal(g->containers, 3);
    assert_true(g->card_bytes == 16384 * MIB);
    assert_true(g->sum_ceilings_bytes == 12288 * MIB);
    assert_true(g->sum_peaks_bytes == 6144 * MIB);
    assert_true(g->sum_held_bytes == 3072 * MIB);
    assert_true(g->over_commitment_bytes == 0);
    assert_int_equal(g->packing, VCAP_ANSWER_YES);
    holds(g->packing_why, "ceilings of 12288.0 MiB on a card of 16384.0 leave 4096.0");
    assert_int_equal(g->fit, VCAP_ANSWER_YES);
    assert_true(g->unaccounted_bytes == VCAP_UNKNOWN);
}

static void over_commitment_is_named_with_its_amount(void **state)
{
    (void)state;
    gpu[2].ceiling_bytes = 10000 * MIB;
    const struct vcap_report_gpu *g = make(VCAP_UNKNOWN);
    assert_int_equal(g->packing, VCAP_ANSWER_NO);
    assert_true(g->over_commitment_bytes == 1808 * MIB);
    holds(g->packing_why, "over-committed by 1808.0 MiB");
    holds(g->packing_why, "the peaks so far (6144.0 MiB) would fit together");
    gpu[2].peak_bytes = 13000 * MIB;
    holds(make(VCAP_UNKNOWN)->packing_why, "do not fit together either");
    gpu[2].ceiling_bytes = 8192 * MIB; /* exactly the card */
    assert_int_equal(make(VCAP_UNKNOWN)->packing, VCAP_ANSWER_YES);
}

static void one_more_container_fits_to_the_byte(void **state)
{
    (void)state;
    const struct vcap_report_gpu *g = make(4096);
    assert_int_equal(g->one_more, VCAP_ANSWER_YES);
    holds(g->one_more_why, "0.0 MiB would be left");
    vcap_report_free(&report);
    assert_int_equal(vcap_report_make(&report, source, CONTAINERS, NULL, 0, 4096 * MIB + 1), 0);
    assert_int_equal(report.gpus[0].one_more, VCAP_ANSWER_NO);
    assert_int_equal(report.gpus[0].by_peaks, VCAP_ANSWER_YES);
    holds(report.gpus[0].one_more_why, "by over-commitment");
    g = make(10241);
    assert_int_equal(g->by_peaks, VCAP_ANSWER_NO);
    vcap_report_free(&report);
    assert_int_equal(vcap_report_make(&report, source, CONTAINERS, NULL, 0, VCAP_UNKNOWN - 1), 0);
    assert_int_equal(report.gpus[0].one_more, VCAP_ANSWER_NO); /* no overflow */
}

static void what_is_not_known_is_never_a_smaller_number(void **state)
{
    (void)state;
    gpu[1].ceiling_bytes = VCAP_NO_LIMIT;
    const struct vcap_report_gpu *g = make(1);
    assert_true(g->sum_ceilings_bytes == VCAP_UNKNOWN);
    assert_int_equal(g->packing, VCAP_ANSWER_UNKNOWN);
    assert_int_equal(g->one_more, VCAP_ANSWER_UNKNOWN);
    holds(g->packing_why, "nothing bounds 1 of 3 containers (web-2)");
    (void)setup(NULL);
    for (int i = 0; i < CONTAINERS; i++)
        gpu[i].card_bytes = VCAP_UNKNOWN;
    g = make(1);
    assert_int_equal(g->packing, VCAP_ANSWER_UNKNOWN);
    holds(g->one_more_why, "size of the card is not known");
    (void)setup(NULL);
    charge[1].overhead_bytes = VCAP_UNKNOWN;
    g = make(1);
    assert_int_equal(g->packing, VCAP_ANSWER_CONDITIONAL);
    assert_int_equal(g->one_more, VCAP_ANSWER_CONDITIONAL);
    holds(g->packing_why, "for the unknown overhead of 1 processes");
    (void)setup(NULL);
    source[1].snapshot = NULL;
    source[1].untrusted = "not a ledger";
    snapshot[2].gpu_count = 0; /* has not come to a GPU yet */
    snapshot[2].process_count = 0;
    g = make(1);
    assert_int_equal(g->packing, VCAP_ANSWER_CONDITIONAL);
    holds(g->packing_why, "what 1 untrusted ledgers stand for, the ceilings of 1 containers that");
    assert_int_equal(g->sharing, VCAP_SHARING_MPS); /* nobody can say that web-1 is alone */
    (void)setup(NULL);
    gpu[0].ceiling_bytes = gpu[1].ceiling_bytes = VCAP_UNKNOWN - 5;
    assert_true(make(1)->sum_ceilings_bytes == VCAP_UNKNOWN);
}

static void what_the_driver_sees_besides_counts_against_the_card(void **state)
{
    static const uint64_t unaccounted[1] = {500 * MIB};
    (void)state;
    for (int i = 0; i < CONTAINERS; i++) {
        source[i].unaccounted_bytes = unaccounted;
        charge[i].overhead_bytes = VCAP_UNKNOWN; /* but measured, then */
    }
    const struct vcap_report_gpu *g = make(2596);
    assert_true(g->unaccounted_bytes == 1500 * MIB);
    assert_int_equal(g->packing, VCAP_ANSWER_YES);
    assert_int_equal(g->one_more, VCAP_ANSWER_YES);
    assert_int_equal(make(2597)->one_more, VCAP_ANSWER_NO);
    gpu[0].ceiling_bytes = 8000 * MIB;
    g = make(VCAP_UNKNOWN);
    assert_int_equal(g->packing, VCAP_ANSWER_NO);
    holds(g->packing_why, "less than the 1500.0 MiB that no ledger accounts for");
    source[1].unaccounted_bytes = NULL; /* one unknown makes all of it unknown */
    assert_true(make(VCAP_UNKNOWN)->unaccounted_bytes == VCAP_UNKNOWN);
}

static void a_container_that_has_ended_is_in_no_sum(void **state)
{
    (void)state;
    source[2].gone = true;
    const struct vcap_report_gpu *g = make(VCAP_UNKNOWN);
    assert_int_equal(g->containers, 2);
    assert_true(g->sum_ceilings_bytes == 8192 * MIB);
    assert_int_equal(report.share_count, 3);
}

static void fit_is_answered_by_what_happened(void **state)
{
    static const char *const words[] = {"12 refusals of 300.0 MiB", "would have been refused",
                                        "more than the ceiling",    "the card was full 2 times",
                                        "no ceiling to fit below",  "nothing has been allocated"};
    (void)state;
    for (int k = 0; k < 6; k++) {
        (void)setup(NULL);
        gpu[0].refusals = k == 0 ? 12 : 0;
        gpu[0].refused_bytes = k == 0 ? 300 * MIB : 0;
        gpu[0].audit_refusals = k == 1;
        gpu[0].over_peak_bytes = k == 2 ? MIB : 0;
        gpu[0].device_full = k == 3 ? 2 : 0;
        gpu[0].ceiling_bytes = k == 4 ? VCAP_NO_LIMIT : 4096 * MIB;
        gpu[0].peak_bytes = k == 5 ? 0 : 2048 * MIB;
        const struct vcap_report_gpu *g = make(VCAP_UNKNOWN);
        enum vcap_answer wanted = k < 4 ? VCAP_ANSWER_NO : VCAP_ANSWER_UNKNOWN;
        assert_int_equal(report.shares[0].fit, wanted);
        holds(report.shares[0].fit_why, words[k]);
        assert_int_equal(report.shares[1].fit, VCAP_ANSWER_YES);
        assert_int_equal(g->fit, wanted);
    }
}

static void sharing_is_named_by_what_the_slots_say(void **state)
{
    (void)state;
    assert_int_equal(make(VCAP_UNKNOWN)->sharing, VCAP_SHARING_MPS);
    process[1].mps = VCAP_LF_MPS_NO;
    assert_int_equal(make(VCAP_UNKNOWN)->sharing, VCAP_SHARING_MIXED);
    process[2].mps = VCAP_LF_MPS_UNKNOWN;
    assert_int_equal(make(VCAP_UNKNOWN)->sharing, VCAP_SHARING_UNKNOWN);
    for (int i = 0; i < CONTAINERS; i++)
        process[i].mps = VCAP_LF_MPS_NO;
    assert_int_equal(make(VCAP_UNKNOWN)->sharing, VCAP_SHARING_SLICES);
    source[1].gone = source[2].gone = true;
    assert_int_equal(make(VCAP_UNKNOWN)->sharing, VCAP_SHARING_ALONE);
    for (int i = 0; i < CONTAINERS; i++)
        memcpy(gpu[i].uuid, "MIG", 3);
    assert_int_equal(make(VCAP_UNKNOWN)->sharing, VCAP_SHARING_MIG);
}

/* ---- latency and boundary ---- */

static void has_no_amount(const json_t *value, const char *where)
{
    const char *key;
    json_t *inner;
    size_t i;
    if (json_is_number(value) || json_is_true(value))
        fail_msg("%s: a number or a yes", where);
    if (json_is_string(value) &&
        (strstr(json_string_value(value), "MiB") || strstr(json_string_value(value), "GiB") ||
         strstr(json_string_value(value), "bytes")))
        fail_msg("%s: an amount: %s", where, json_string_value(value));
    json_object_foreach((json_t *)(uintptr_t)value, key, inner)
    {
        if (strstr(key, "bytes") || strstr(key, "mib"))
            fail_msg("%s.%s", where, key);
        has_no_amount(inner, key);
    }
    json_array_foreach(value, i, inner)
    {
        has_no_amount(inner, where);
    }
}

static void is_unanswered(const json_t *object, const char *question)
{
    const json_t *q = json_object_get(object, question);
    assert_true(json_is_object(q));
    assert_string_equal(json_string_value(json_object_get(q, "answer")), "not_established");
    assert_true(json_array_size(json_object_get(q, "not_established")) > 0);
    has_no_amount(q, question);
}

static void a_capacity_figure_never_stands_in_for_latency_or_boundary(void **state)
{
    (void)state;
    for (int k = 0; k < 24;
         k++) { /* all states of the compute ceiling, MPS or not, with a fault or not */
        (void)setup(NULL);
        for (int i = 0; i < CONTAINERS; i++) {
            gpu[i].compute_state = (enum vcap_lf_compute)(k % 5);
            gpu[i].sm_granted = 54;
            gpu[i].sm_total = 108;
            process[i].mps = (enum vcap_lf_mps)(k % 3);
            process[i].fault_code = k % 2 ? 700 : 0;
            source[i].gone = k == 23;
        }
        (void)make(4096);
        json_t *json = vcap_report_json(&report);
        assert_non_null(json);
        const json_t *card = json_array_get(json_object_get(json, "gpus"), 0);
        is_unanswered(card, "latency");
        is_unanswered(card, "boundary");
        for (size_t i = 0; i < CONTAINERS; i++) {
            const json_t *c = json_array_get(json_object_get(json, "containers"), i);
            const json_t *on = json_array_get(json_object_get(c, "gpus"), 0);
            is_unanswered(on, "latency");
            is_unanswered(on, "boundary");
        }
        json_decref(json);
    }
}

static void evidence_of_compute_ceilings_and_faults_is_told(void **state)
{
    struct vcap_report_sentences s;
    (void)state;
    gpu[0].compute_state = VCAP_LF_COMPUTE_FORCE;
    gpu[0].sm_granted = 54;
    gpu[0].sm_total = 108;
    gpu[0].compute_percent = 50;
    process[0].fault_code = 700;
    process[0].life = VCAP_LIFE_DEAD; /* died of it, perhaps */
    (void)make(VCAP_UNKNOWN);
    vcap_report_latency(&report, &report.shares[0], &s);
    holds(s.established[1], "54 of 108 multiprocessors (asked for: 50 percent)");
    vcap_report_boundary(&report, &report.shares[0], &s);
    holds(s.established[1], "1 processes saw a device error that ends a context (CUresult 700)");
    vcap_report_boundary(&report, &report.shares[1], &s);
    assert_null(s.established[1]);
    holds(s.not_established[0], "none was provoked");
    assert_int_equal(report.gpus[0].faults, 1);
}

static void unknown_is_null_in_json(void **state)
{
    (void)state;
    for (int i = 0; i < CONTAINERS; i++)
        gpu[i].card_bytes = VCAP_UNKNOWN;
    gpu[0].ceiling_bytes = VCAP_NO_LIMIT;
    (void)make(VCAP_UNKNOWN);
    json_t *json = vcap_report_json(&report);
    const json_t *card = json_array_get(json_object_get(json, "gpus"), 0);
    const json_t *packing = json_object_get(card, "packing");
    assert_true(json_is_null(json_object_get(card, "card_bytes")));
    assert_true(json_is_null(json_object_get(card, "one_more")));
    assert_true(json_is_null(json_object_get(packing, "sum_ceilings_bytes")));
    assert_true(json_is_null(json_object_get(packing, "over_committed")));
    assert_true(json_is_null(json_object_get(packing, "unaccounted_bytes")));
    json_decref(json);
}

static void cards_named_by_the_caller_win_and_are_there_without_containers(void **state)
{
    const struct vcap_report_card cards[] = {
        {"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", 8192 * MIB},
        {"GPU-ffffffff-0405-0607-0809-0a0b0c0d0e0f", 16384 * MIB}};
    (void)state;
    assert_int_equal(vcap_report_make(&report, source, CONTAINERS, cards, 2, 16384 * MIB), 0);
    assert_int_equal(report.gpu_count, 2);
    assert_int_equal(report.gpus[0].packing, VCAP_ANSWER_NO);
    assert_int_equal(report.gpus[1].containers, 0);
    assert_int_equal(report.gpus[1].one_more, VCAP_ANSWER_YES);
    assert_int_equal(report.gpus[1].fit, VCAP_ANSWER_UNKNOWN);
    json_t *json = vcap_report_json(&report);
    assert_non_null(json);
    is_unanswered(json_array_get(json_object_get(json, "gpus"), 1), "latency");
    json_decref(json);
}

static void the_text_has_the_four_questions_in_order(void **state)
{
    char *text = NULL;
    size_t size = 0;
    (void)state;
    (void)make(4096);
    FILE *to = open_memstream(&text, &size);
    assert_non_null(to);
    vcap_report_text(&report, to);
    assert_int_equal(fclose(to), 0);
    const char *at = text;
    static const char *const questions[] = {"Does the model fit?", "Can work be packed?",
                                            "Does one more container of 4096.0 MiB fit?",
                                            "Is latency acceptable?", "Is the boundary suitable?"};
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        at = strstr(at, questions[i]);
        if (!at)
            fail_msg("no '%s' in its place in:\n%s", questions[i], text);
    }
    const char *latency = strstr(text, "Is latency acceptable?");
    assert_null(strstr(latency, "MiB"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(sums_stand_against_the_card),
        TEST(over_commitment_is_named_with_its_amount),
        TEST(one_more_container_fits_to_the_byte),
        TEST(what_is_not_known_is_never_a_smaller_number),
        TEST(what_the_driver_sees_besides_counts_against_the_card),
        TEST(a_container_that_has_ended_is_in_no_sum),
        TEST(fit_is_answered_by_what_happened),
        TEST(sharing_is_named_by_what_the_slots_say),
        TEST(a_capacity_figure_never_stands_in_for_latency_or_boundary),
        TEST(evidence_of_compute_ceilings_and_faults_is_told),
        TEST(unknown_is_null_in_json),
        TEST(cards_named_by_the_caller_win_and_are_there_without_containers),
        TEST(the_text_has_the_four_questions_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
