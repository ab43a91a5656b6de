/*
 * A ledger whose slots are all taken: who comes then is told so at once and changes nothing, and has a
 * place as soon as one of the others is gone, in whatever way.
 */
#include "test_ledger_box.h"

#define SLOTS VCAP_LF_SLOTS_MAX
#define CEILING 100000

static struct vcap_ledger ledger;
static pid_t pids[SLOTS];

static void fill(void)
{
    uint64_t units = 1;

    assert_true(box_make(SLOTS, CEILING));
    for (uint32_t s = 0; s < SLOTS; s++)
        pids[s] = box_start(box_stay, &units);
    assert_true(box_await(0, SLOTS));
    assert_int_equal(box_get(10), 0);
}

static void empty(void)
{
    for (uint32_t s = 0; s < SLOTS; s++)
        if (pids[s] != 0) {
            kill(pids[s], SIGKILL);
            box_end(pids[s]);
            pids[s] = 0;
        }
}

static uint64_t now(void)
{
    return vcap_clock_ns(CLOCK_MONOTONIC);
}

static void one_more_is_told_at_once_and_has_the_place_of_the_next_that_dies(void **state)
{
    uint64_t before, refused, taken;
    struct vcap_ledger view;
    long slept;
    int full, after;

    (void)state;
    fill();
    before = now();
    slept = box_sleeps();
    full = box_open(&ledger, VCAP_OPEN_CLAIM);
    slept = box_sleeps() - slept;
    refused = now() - before;
    assert_int_equal(box_open(&view, VCAP_OPEN_VIEW), 0);
    assert_int_equal(box_held(&view), SLOTS);
    kill(pids[17], SIGKILL);
    box_end(pids[17]);
    pids[17] = 0;
    before = now();
    slept -= box_sleeps();
    after = box_open(&ledger, VCAP_OPEN_CLAIM);
    slept += box_sleeps();
    taken = now() - before;
    print_message(
        "512 slots: refused after %llu us, the freed one taken after %llu us, %ld sleeps\n",
        (unsigned long long)refused / 1000, (unsigned long long)taken / 1000, slept);
    empty();
    vcap_ledger_close(&view);
    assert_int_equal(full, -EUSERS);
    assert_int_equal(after, 0);
    assert_int_equal(box_charge(&ledger, CEILING), 0); /* all the dead are given back */
    vcap_ledger_close(&ledger);
    assert_int_equal(slept, 0);
}

static void a_stopped_process_keeps_its_slot_and_nobody_waits_for_it(void **state)
{
    long slept;
    int full;

    (void)state;
    fill();
    for (uint32_t s = 0; s < SLOTS; s += 7)
        kill(pids[s], SIGSTOP);
    slept = box_sleeps();
    full = box_open(&ledger, VCAP_OPEN_CLAIM);
    slept = box_sleeps() - slept;
    empty();
    assert_int_equal(full, -EUSERS);
    assert_int_equal(slept, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOX_TEST(one_more_is_told_at_once_and_has_the_place_of_the_next_that_dies),
        BOX_TEST(a_stopped_process_keeps_its_slot_and_nobody_waits_for_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
