/*
 * Signal handlers that charge and release in the middle of a charge or a release of their own thread.
 * tests/proof/interrupt_step.c does the same at every instruction.
 */
#include "test_ledger_box.h"

#include <sys/time.h>

static struct vcap_ledger ledger;

static volatile sig_atomic_t handler_took, handler_gave, handler_failed;

static void charge_in_a_handler(int number)
{
    int saved = errno, rc;

    (void)number;
    if (vcap_ledger_release(&ledger, 0, UNIT) != 0)
        handler_failed = 1;
    handler_gave++;
    rc = box_charge(&ledger, 1);
    if (rc == 0)
        handler_took++;
    else if (rc != -EDEADLK && rc != -EDQUOT)
        handler_failed = 1;
    errno = saved;
}

static void a_handler_that_interrupts_a_charge_neither_hangs_nor_loses(void **state)
{
    struct sigaction action = {.sa_handler = charge_in_a_handler, .sa_flags = SA_RESTART}, old;
    const struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    uint64_t end;
    long rounds = 0;

    (void)state;
    assert_true(box_make(4, 1000000));
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), 0);
    assert_int_equal(box_charge(&ledger, 500000), 0);
    sigaction(SIGALRM, &action, &old);
    setitimer(ITIMER_REAL, &often, NULL);
    end = vcap_clock_ns(CLOCK_MONOTONIC) + UINT64_C(700000000);
    for (; vcap_clock_ns(CLOCK_MONOTONIC) < end; rounds++)
        for (int i = 0; i < 100; i++)
            if (box_charge(&ledger, 1) != 0 || vcap_ledger_release(&ledger, 0, UNIT) != 0)
                handler_failed = 1;
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &old, NULL);
    assert_false(handler_failed);
    assert_true(handler_gave > 100 && rounds > 0);
    assert_int_equal(box_held(&ledger), 500000 + handler_took - handler_gave);
    assert_int_equal(box_charged(&ledger), box_held(&ledger));
    vcap_ledger_close(&ledger);
}

static void a_release_put_off_for_a_lost_slot_is_not_taken_from_the_next(void **state)
{
    (void)state;
    assert_true(box_make(4, 40));
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), 0);
    assert_int_equal(box_charge(&ledger, 9), 0);
    ledger.local[0].deferred = 4; /* as a handler leaves it */
    ledger.slots[ledger.slot].state =
        vcap_lf_state(vcap_lf_state_generation(ledger.state), VCAP_LF_KIND_LOCK, VCAP_LF_DEAD);
    assert_int_equal(box_charge(&ledger, 1), -ESTALE);
    assert_int_equal(vcap_ledger_claim(&ledger, VCAP_LF_MODE_ENFORCE), 0);
    assert_int_equal(box_charge(&ledger, 5), 0);
    assert_int_equal(box_charged(&ledger), 5);
    vcap_ledger_close(&ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOX_TEST(a_handler_that_interrupts_a_charge_neither_hangs_nor_loses),
        BOX_TEST(a_release_put_off_for_a_lost_slot_is_not_taken_from_the_next),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
