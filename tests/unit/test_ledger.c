/*
 * Charging and releasing: the ledger as one process and as many see it.
 */
#include "test_ledger_box.h"

#include <pthread.h>

#define THREADS 8
#define PROCESSES 4

static struct vcap_ledger ledger;

static void begin(uint64_t ceiling_units)
{
    assert_true(box_make(8, ceiling_units));
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), 0);
}

static uint64_t anomalies(void)
{
    return vcap_ledger_header(&ledger)->anomalies;
}

static void charge_and_release_move_total_and_charged_together(void **state)
{
    (void)state;
    begin(100);
    assert_int_equal(box_charge(&ledger, 30), 0);
    assert_int_equal(box_charge(&ledger, 12), 0);
    assert_int_equal(box_held(&ledger), 42);
    assert_int_equal(box_charged(&ledger), 42);
    assert_int_equal(vcap_ledger_holders(&ledger, 0), 1);
    assert_int_equal(vcap_ledger_release(&ledger, 0, 30 * UNIT), 0);
    assert_int_equal(box_held(&ledger), 12);
    assert_int_equal(vcap_ledger_release(&ledger, 0, 12 * UNIT), 0);
    assert_int_equal(box_held(&ledger), 0);
    assert_int_equal(box_charged(&ledger), 0);
    assert_int_equal(vcap_ledger_holders(&ledger, 0), 0);
    assert_int_equal(anomalies(), 0);
    vcap_ledger_close(&ledger);
}

static void a_charge_is_rounded_up_to_a_unit_and_none_is_free(void **state)
{
    (void)state;
    begin(2);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 0, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, NULL), 0);
    assert_int_equal(box_held(&ledger), 0);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 1, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, NULL), 0);
    assert_int_equal(box_held(&ledger), 1);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 513, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, NULL),
                     -EDQUOT);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 512, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, NULL),
                     0);
    assert_int_equal(vcap_ledger_release(&ledger, 0, 1), 0);
    assert_int_equal(box_held(&ledger), 1);
    vcap_ledger_close(&ledger);
}

static void the_brim_can_be_reached_and_not_passed_by_a_unit(void **state)
{
    bool above = true;

    (void)state;
    begin(64);
    assert_int_equal(
        vcap_ledger_charge(&ledger, 0, 64 * UNIT, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, &above), 0);
    assert_false(above);
    above = true;
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 1, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, &above),
                     -EDQUOT);
    assert_true(above); /* outputs only on success */
    assert_int_equal(box_held(&ledger), 64);
    assert_int_equal(box_charged(&ledger), 64);
    vcap_ledger_close(&ledger);
}

static void a_refused_charge_is_followed_by_good_ones(void **state)
{
    (void)state;
    begin(10);
    assert_int_equal(box_charge(&ledger, 6), 0);
    assert_int_equal(box_charge(&ledger, 5), -EDQUOT);
    assert_int_equal(box_charge(&ledger, 4), 0);
    assert_int_equal(vcap_ledger_release(&ledger, 0, 10 * UNIT), 0);
    assert_int_equal(box_charge(&ledger, 10), 0);
    assert_int_equal(box_held(&ledger), 10);
    vcap_ledger_close(&ledger);
}

static void peaks_are_the_highest_amounts_of_process_and_container(void **state)
{
    uint64_t others = 5;

    (void)state;
    begin(100);
    assert_int_equal(box_run(box_charge_and_die, &others),
                     0); /* stays in total until it is reaped */
    assert_int_equal(box_charge(&ledger, 40), 0);
    assert_int_equal(vcap_ledger_release(&ledger, 0, 40 * UNIT), 0);
    assert_int_equal(box_charge(&ledger, 7), 0);
    assert_int_equal(ledger.gpus[0].peak_bytes, 45 * UNIT);
    assert_int_equal(vcap_ledger_cell(&ledger, (uint32_t)ledger.slot, 0)->peak_bytes, 40 * UNIT);
    vcap_ledger_close(&ledger);
}

static void a_process_with_a_lower_limit_is_refused_where_others_are_not(void **state)
{
    (void)state;
    begin(100);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 51 * UNIT, 50 * UNIT, VCAP_REFUSE_ABOVE, NULL),
                     -EDQUOT);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 50 * UNIT, 50 * UNIT, VCAP_REFUSE_ABOVE, NULL),
                     0);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 1, 50 * UNIT, VCAP_REFUSE_ABOVE, NULL),
                     -EDQUOT);
    assert_int_equal(box_charge(&ledger, 50), 0);
    /* nor is a higher one of use */
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 1, 500 * UNIT, VCAP_REFUSE_ABOVE, NULL),
                     -EDQUOT);
    vcap_ledger_close(&ledger);
}

static void a_ceiling_is_proposed_once_and_the_first_word_stands(void **state)
{
    uint64_t word;

    (void)state;
    begin(100);
    word = vcap_ledger_propose_ceiling(&ledger, 0, 700 * UNIT, VCAP_LF_SOURCE_MPS);
    assert_int_equal(vcap_ceiling_bytes(word), 100 * UNIT);
    assert_int_equal(vcap_lf_ceiling_source(word), VCAP_LF_SOURCE_ENV);
    word = vcap_ledger_propose_ceiling(&ledger, 1, VCAP_NO_LIMIT, VCAP_LF_SOURCE_NONE);
    assert_true(vcap_ceiling_bytes(word) == VCAP_NO_LIMIT);
    word = vcap_ledger_propose_ceiling(&ledger, 1, 0, VCAP_LF_SOURCE_ENV);
    assert_true(vcap_ceiling_bytes(word) == VCAP_NO_LIMIT);
    vcap_ledger_close(&ledger);
}

static void a_ceiling_of_zero_refuses_every_byte(void **state)
{
    (void)state;
    begin(0);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 1, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, NULL),
                     -EDQUOT);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 0, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, NULL), 0);
    vcap_ledger_close(&ledger);
}

static void after_a_ceiling_was_lowered_nothing_is_granted_until_it_fits(void **state)
{
    (void)state;
    begin(100);
    assert_int_equal(box_charge(&ledger, 80), 0);
    __atomic_store_n(&ledger.gpus[0].ceiling, vcap_lf_ceiling(50, VCAP_LF_SOURCE_HOST),
                     __ATOMIC_SEQ_CST);
    assert_int_equal(box_charge(&ledger, 1), -EDQUOT);
    assert_int_equal(vcap_ledger_release(&ledger, 0, 31 * UNIT), 0);
    assert_int_equal(box_charge(&ledger, 2), -EDQUOT);
    assert_int_equal(box_charge(&ledger, 1), 0);
    assert_int_equal(box_held(&ledger), 50);
    vcap_ledger_close(&ledger);
}

static void book_above_passes_the_ceiling_and_says_so(void **state)
{
    bool above = false;

    (void)state;
    begin(10);
    assert_int_equal(
        vcap_ledger_charge(&ledger, 0, 10 * UNIT, VCAP_NO_LIMIT, VCAP_BOOK_ABOVE, &above), 0);
    assert_false(above);
    assert_int_equal(
        vcap_ledger_charge(&ledger, 0, 3 * UNIT, VCAP_NO_LIMIT, VCAP_BOOK_ABOVE, &above), 0);
    assert_true(above);
    assert_int_equal(box_held(&ledger), 13);
    assert_int_equal(ledger.gpus[0].over_bytes, 3 * UNIT);
    assert_int_equal(box_charge(&ledger, 1), -EDQUOT);
    assert_int_equal(vcap_ledger_release(&ledger, 0, 13 * UNIT), 0);
    assert_int_equal(box_held(&ledger), 0);
    vcap_ledger_close(&ledger);
}

static void what_does_not_fit_the_words_is_refused_before_any_addition(void **state)
{
    const uint64_t most = VCAP_LF_UNITS_MAX * UNIT;

    (void)state;
    begin(10);
    __atomic_store_n(&ledger.gpus[0].ceiling, 0, __ATOMIC_SEQ_CST); /* none */
    assert_int_equal(
        vcap_ledger_charge(&ledger, 0, UINT64_MAX, VCAP_NO_LIMIT, VCAP_BOOK_ABOVE, NULL),
        -EOVERFLOW);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, most + 1, VCAP_NO_LIMIT, VCAP_BOOK_ABOVE, NULL),
                     -EOVERFLOW);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, most, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, NULL),
                     0);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 1, VCAP_NO_LIMIT, VCAP_BOOK_ABOVE, NULL),
                     -EOVERFLOW);
    assert_int_equal(box_held(&ledger), VCAP_LF_UNITS_MAX);
    assert_int_equal(vcap_ledger_release(&ledger, 0, most), 0);
    assert_int_equal(box_held(&ledger), 0);
    assert_int_equal(anomalies(), 0);
    vcap_ledger_close(&ledger);
}

static void a_double_release_takes_what_there_is_and_counts(void **state)
{
    (void)state;
    begin(100);
    assert_int_equal(box_charge(&ledger, 9), 0);
    assert_int_equal(vcap_ledger_release(&ledger, 0, 9 * UNIT), 0);
    assert_int_equal(vcap_ledger_release(&ledger, 0, 9 * UNIT), 0);
    assert_int_equal(box_held(&ledger), 0);
    assert_int_equal(box_charged(&ledger), 0);
    assert_int_equal(anomalies(), 1);
    assert_int_equal(ledger.slots[ledger.slot].anomalies, 1);
    assert_int_equal(box_charge(&ledger, 4), 0);
    assert_int_equal(vcap_ledger_release(&ledger, 0, UINT64_MAX), 0);
    assert_int_equal(box_held(&ledger), 0);
    assert_int_equal(anomalies(), 2);
    assert_int_equal(box_charge(&ledger, 100), 0);
    vcap_ledger_close(&ledger);
}

static void a_total_that_was_damaged_never_wraps(void **state)
{
    (void)state;
    begin(100);
    assert_int_equal(box_charge(&ledger, 50), 0);
    __atomic_store_n(&ledger.gpus[0].total, vcap_lf_total(20, 511, 77), __ATOMIC_SEQ_CST);
    assert_int_equal(vcap_ledger_release(&ledger, 0, 50 * UNIT), 0);
    assert_int_equal(box_held(&ledger), 0);
    assert_int_equal(anomalies(), 1);
    vcap_ledger_close(&ledger);
}

static void a_slot_that_was_taken_away_is_stale_and_another_can_be_had(void **state)
{
    uint64_t before;

    (void)state;
    begin(100);
    assert_int_equal(box_charge(&ledger, 5), 0);
    before = vcap_ledger_mine(&ledger);
    __atomic_store_n(
        &ledger.slots[ledger.slot].state,
        vcap_lf_state(vcap_lf_state_generation(ledger.state), VCAP_LF_KIND_LOCK, VCAP_LF_DEAD),
        __ATOMIC_SEQ_CST);
    assert_false(vcap_ledger_owns(&ledger));
    assert_int_equal(box_charge(&ledger, 1), -ESTALE);
    assert_int_equal(vcap_ledger_release(&ledger, 0, UNIT), -ESTALE);
    assert_int_equal(vcap_ledger_charge(&ledger, 0, 0, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, NULL),
                     -ESTALE);
    assert_int_equal(box_held(&ledger), 5);
    assert_int_equal(vcap_ledger_claim(&ledger, VCAP_LF_MODE_ENFORCE), 0);
    assert_true(vcap_ledger_owns(&ledger));
    assert_true(vcap_ledger_mine(&ledger) != before);
    assert_int_equal(box_charge(&ledger, 100), 0); /* what the lost slot held was given back */
    assert_int_equal(
        vcap_ledger_charge_in(&ledger, before, 0, UNIT, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, NULL),
        -ESTALE);
    assert_int_equal(vcap_ledger_release_in(&ledger, before, 0, UNIT), -ESTALE);
    assert_int_equal(box_held(&ledger), 100);
    vcap_ledger_close(&ledger);
}

static void operation_numbers_wrap_past_zero(void **state)
{
    struct vcap_lf_cell *cell;
    uint64_t near = VCAP_LF_OP_MASK - 2;

    (void)state;
    begin(100);
    cell = vcap_ledger_cell(&ledger, (uint32_t)ledger.slot, 0);
    __atomic_store_n(&cell->charged, vcap_lf_charged(0, near), __ATOMIC_SEQ_CST);
    for (int i = 0; i < 8; i++) {
        uint64_t op;

        assert_int_equal(box_charge(&ledger, 3), 0);
        op = vcap_lf_op(cell->charged);
        assert_true(op != 0);
        assert_int_equal(op, near + (uint64_t)i + 1 <= VCAP_LF_OP_MASK
                                 ? near + (uint64_t)i + 1
                                 : near + (uint64_t)i + 1 - VCAP_LF_OP_MASK);
        assert_int_equal(vcap_lf_op(ledger.gpus[0].total), op);
        assert_int_equal(vcap_lf_total_slot(ledger.gpus[0].total), ledger.slot);
    }
    assert_int_equal(box_charged(&ledger), 24);
    assert_int_equal(box_held(&ledger), 24);
    vcap_ledger_close(&ledger);
}

static void overhead_is_noted_apart_and_never_below_zero(void **state)
{
    const uint64_t *overhead;

    (void)state;
    begin(100);
    overhead = &vcap_ledger_cell(&ledger, (uint32_t)ledger.slot, 0)->overhead_bytes;
    assert_true(*overhead == UINT64_MAX); /* unknown */
    vcap_ledger_note_overhead(&ledger, 0, 4096);
    assert_int_equal(*overhead, 4096);
    vcap_ledger_note_overhead(&ledger, 0, -1024);
    assert_int_equal(*overhead, 3072);
    vcap_ledger_note_overhead(&ledger, 0, -9999);
    assert_int_equal(*overhead, 0);
    vcap_ledger_close(&ledger);
}

/* ---- rows ---- */

static void *ask_for_rows(void *arg)
{
    (void)arg;
    for (int round = 0; round < 50; round++) {
        for (uint8_t n = 0; n < 4; n++) {
            const uint8_t uuid[16] = {n, 9, 9};
            uint32_t gpu;

            if (vcap_ledger_gpu(&ledger, uuid, 0, n, 1 << 20, &gpu) != 0 || gpu >= 4) {
                box_add(0, 1);
                continue;
            }
            /* the row that one has been given is everybody's for that UUID */
            __atomic_fetch_or(&box_shared[8 + n], UINT64_C(1) << gpu, __ATOMIC_SEQ_CST);
        }
    }
    return NULL;
}

static int ask_for_rows_in_a_process(void *arg)
{
    return ask_for_rows(arg) != NULL;
}

static void check_rows(void)
{
    uint64_t all = 0;

    assert_int_equal(box_get(0), 0);
    for (size_t n = 0; n < 4; n++) {
        uint64_t rows = box_get(8 + n);

        assert_true(rows != 0 && (rows & (rows - 1)) == 0); /* exactly one */
        all |= rows;
    }
    assert_int_equal(all, 0xf);
}

static void open_four_rows(void)
{
    const struct vcap_ledger_size size = {.gpus = 4, .slots = 4, .events = 16};

    assert_int_equal(vcap_ledger_create(box_path, &size, 0, NULL, NULL), 0);
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), 0);
}

static void racing_threads_get_one_row_per_uuid(void **state)
{
    pthread_t threads[THREADS];

    (void)state;
    open_four_rows();
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, ask_for_rows, NULL), 0);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    check_rows();
    vcap_ledger_close(&ledger);
}

static void racing_processes_get_one_row_per_uuid_and_no_fifth(void **state)
{
    const uint8_t fifth[16] = {200};
    pid_t pids[PROCESSES];
    uint32_t gpu = 7;

    (void)state;
    open_four_rows();
    for (int p = 0; p < PROCESSES; p++)
        pids[p] = box_start(ask_for_rows_in_a_process, NULL);
    for (int p = 0; p < PROCESSES; p++)
        assert_int_equal(box_end(pids[p]), 0);
    check_rows();
    assert_int_equal(vcap_ledger_gpu(&ledger, fifth, 0, 0, 0, &gpu), -ENOSPC);
    assert_int_equal(gpu, 7);
    vcap_ledger_close(&ledger);
}

/* ---- exact sums ---- */

#define WORD_GRANTED 0
#define WORD_FAULTS 1
#define WORD_FALSE 2
#define WORD_REFUSED 3
#define CEILING 40

/*
 * The oracle is raised after a charge and lowered before a release: at no instant is it above what
 * is granted, so it must never be above the ceiling.
 */
static void *charge_in_race(void *arg)
{
    uint64_t random = (uint64_t)(uintptr_t)arg * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)getpid();

    for (int i = 0; i < 20000; i++) {
        uint64_t units;
        int rc;

        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        units = 1 + (random >> 33) % 6;
        rc = box_charge(&ledger, units);
        if (rc == 0) {
            if (box_add(WORD_GRANTED, units) > CEILING)
                box_add(WORD_FAULTS, 1);
            box_add(WORD_GRANTED, -units);
            if (vcap_ledger_release(&ledger, 0, units * UNIT) != 0)
                box_add(WORD_FAULTS, 1);
        } else if (rc == -EDQUOT) {
            box_add(WORD_REFUSED, 1);
        } else {
            box_add(WORD_FAULTS, 1);
        }
    }
    return NULL;
}

static int two_threads_of_a_process(void *arg)
{
    pthread_t other;

    (void)arg;
    if (box_open(&ledger, VCAP_OPEN_CLAIM) != 0 ||
        pthread_create(&other, NULL, charge_in_race, (void *)1) != 0)
        return 1;
    charge_in_race((void *)2);
    pthread_join(other, NULL);
    return box_charged(&ledger) == 0 ? 0 : 2;
}

static void check_race(void)
{
    assert_int_equal(box_get(WORD_FAULTS), 0);
    assert_int_equal(box_get(WORD_GRANTED), 0);
    assert_int_equal(box_held(&ledger), 0);
    assert_int_equal(anomalies(), 0);
    assert_true(ledger.gpus[0].peak_bytes <= CEILING * UNIT);
}

static void eight_threads_never_pass_the_ceiling_together(void **state)
{
    pthread_t threads[THREADS];

    (void)state;
    begin(CEILING);
    for (uintptr_t t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, charge_in_race, (void *)t), 0);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    assert_int_equal(box_charged(&ledger), 0);
    check_race();
    vcap_ledger_close(&ledger);
}

static void four_processes_never_pass_the_ceiling_together(void **state)
{
    pid_t pids[PROCESSES];

    (void)state;
    assert_true(box_make(8, CEILING));
    for (int p = 0; p < PROCESSES; p++)
        pids[p] = box_start(two_threads_of_a_process, NULL);
    for (int p = 0; p < PROCESSES; p++)
        assert_int_equal(box_end(pids[p]), 0);
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), 0);
    check_race();
    vcap_ledger_close(&ledger);
}

/* Eight threads (two in each of four processes) of at most 5 units: room for all is certain. */
static void *charge_with_room(void *arg)
{
    (void)arg;
    for (int i = 0; i < 20000; i++) {
        if (box_charge(&ledger, CEILING / THREADS) != 0)
            box_add(WORD_FALSE, 1);
        else if (vcap_ledger_release(&ledger, 0, CEILING / THREADS * UNIT) != 0)
            box_add(WORD_FAULTS, 1);
    }
    return NULL;
}

static int two_threads_with_room(void *arg)
{
    pthread_t other;

    (void)arg;
    if (box_open(&ledger, VCAP_OPEN_CLAIM) != 0 ||
        pthread_create(&other, NULL, charge_with_room, NULL) != 0)
        return 1;
    charge_with_room(NULL);
    pthread_join(other, NULL);
    return 0;
}

static void nobody_is_refused_where_room_is_certain(void **state)
{
    pid_t pids[PROCESSES];

    (void)state;
    assert_true(box_make(8, CEILING));
    for (int p = 0; p < PROCESSES; p++)
        pids[p] = box_start(two_threads_with_room, NULL);
    for (int p = 0; p < PROCESSES; p++)
        assert_int_equal(box_end(pids[p]), 0);
    assert_int_equal(box_get(WORD_FALSE), 0);
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), 0);
    check_race();
    vcap_ledger_close(&ledger);
}

/* The host lowers the ceiling for a moment, again and again; a charge that returns in that time
 * obeys. */
static int lower_and_raise(void *arg)
{
    struct vcap_ledger l;

    (void)arg;
    if (box_open(&l, VCAP_OPEN_MAKE) != 0)
        return 1;
    for (int i = 0; i < 3000; i++) {
        __atomic_store_n(&l.gpus[0].ceiling, vcap_lf_ceiling(2, VCAP_LF_SOURCE_HOST),
                         __ATOMIC_SEQ_CST);
        box_add(4, 1); /* odd: low, from here to the next */
        usleep(20);
        box_add(4, 1);
        __atomic_store_n(&l.gpus[0].ceiling, vcap_lf_ceiling(CEILING, VCAP_LF_SOURCE_HOST),
                         __ATOMIC_SEQ_CST);
        usleep(20);
    }
    box_put(5, 1);
    return 0;
}

/* Lowering in the middle of a charge is tests/proof/single_step.c's. */
static void no_charge_is_granted_above_a_ceiling_that_was_lowered_before(void **state)
{
    uint64_t faults = 0;
    pid_t pid;

    (void)state;
    begin(CEILING);
    pid = box_start(lower_and_raise, NULL);
    while (box_get(5) == 0) {
        uint64_t phase = box_get(4);
        int rc = box_charge(&ledger, 3);

        if (rc == 0) {
            faults += phase % 2 == 1 && box_get(4) == phase;
            vcap_ledger_release(&ledger, 0, 3 * UNIT);
        }
    }
    assert_int_equal(box_end(pid), 0);
    assert_int_equal(faults, 0);
    assert_int_equal(box_held(&ledger), 0);
    vcap_ledger_close(&ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOX_TEST(charge_and_release_move_total_and_charged_together),
        BOX_TEST(a_charge_is_rounded_up_to_a_unit_and_none_is_free),
        BOX_TEST(the_brim_can_be_reached_and_not_passed_by_a_unit),
        BOX_TEST(a_refused_charge_is_followed_by_good_ones),
        BOX_TEST(peaks_are_the_highest_amounts_of_process_and_container),
        BOX_TEST(a_process_with_a_lower_limit_is_refused_where_others_are_not),
        BOX_TEST(a_ceiling_is_proposed_once_and_the_first_word_stands),
        BOX_TEST(a_ceiling_of_zero_refuses_every_byte),
        BOX_TEST(after_a_ceiling_was_lowered_nothing_is_granted_until_it_fits),
        BOX_TEST(book_above_passes_the_ceiling_and_says_so),
        BOX_TEST(what_does_not_fit_the_words_is_refused_before_any_addition),
        BOX_TEST(a_double_release_takes_what_there_is_and_counts),
        BOX_TEST(a_total_that_was_damaged_never_wraps),
        BOX_TEST(a_slot_that_was_taken_away_is_stale_and_another_can_be_had),
        BOX_TEST(operation_numbers_wrap_past_zero),
        BOX_TEST(overhead_is_noted_apart_and_never_below_zero),
        BOX_TEST(racing_threads_get_one_row_per_uuid),
        BOX_TEST(racing_processes_get_one_row_per_uuid_and_no_fifth),
        BOX_TEST(eight_threads_never_pass_the_ceiling_together),
        BOX_TEST(four_processes_never_pass_the_ceiling_together),
        BOX_TEST(nobody_is_refused_where_room_is_certain),
        BOX_TEST(no_charge_is_granted_above_a_ceiling_that_was_lowered_before),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
