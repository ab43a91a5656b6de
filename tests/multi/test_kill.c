/*
 * One of three processes is killed by SIGKILL: inside cuInit, inside a charge, holding memory,
 * while being refused.  The others go on at once, whoever needs the room gets it, and the container
 * never holds more than its ceiling.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/sim/sim.h"
#include "tests/support/fixture.h"

static const char *const capped[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void pause_ms(unsigned ms)
{
    const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

static void ready(struct child *c, const struct fixture *f, const char *how,
                  const char *const *extra)
{
    assert_true(client_start(c, f, how, extra));
    assert_int_equal(client_result(c, "init"), 0);
    assert_int_equal(client_result(c, "ctx create 0"), 0);
}

/*
 * What must hold after a kill, with `mine` MiB still held by the second process: it goes on, the
 * third gets all the rest, and one block more is refused.  Waiting for the dead would be for ever.
 */
static void others_go_on(const struct fixture *f, struct child *second, struct child *third,
                         unsigned held_mib)
{
    char command[64];
    struct sim_state *card;
    double begin;

    card = sim_state_open(f->sim);
    assert_non_null(card);
    assert_int_equal(sim_card_alloc_used(card, 0),
                     held_mib * MIB); /* the card has the dead one's back */
    sim_reset_peaks(card);
    begin = now_ms();
    assert_int_equal(client_result(second, "alloc 64m"), 0);
    snprintf(command, sizeof(command), "alloc %um", 1024 - 64 - held_mib);
    assert_int_equal(client_result(third, command), 0);
    assert_int_equal(client_result(second, "alloc 2m"), 2);
    print_message("          after the kill: three calls of the others in %.1f ms\n",
                  now_ms() - begin);
    assert_int_equal(sim_card_alloc_used(card, 0), 1024 * MIB);
    assert_true(sim_card_alloc_peak(card, 0) <= 1024 * MIB);
    sim_state_close(card);
    assert_int_equal(ledger_charged(f->ledger, 0), 1024 * MIB);
    child_kill(second, SIGKILL);
    child_kill(third, SIGKILL);
}

static void killed_inside_cuinit(void **state)
{
    const struct fixture *f = *state;
    const char *const slow[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024",
                                "VRAMCAP_SIM_DELAY_US=cuInit:5000000", NULL};
    struct child dying, second, third;

    assert_true(client_start(&dying, f, "dlsym", slow));
    assert_true(child_say(&dying, "init"));
    pause_ms(200);
    child_kill(&dying, SIGKILL);
    ready(&second, f, "getproc", capped);
    ready(&third, f, "link", capped);
    others_go_on(f, &second, &third, 0);
}

static void killed_inside_a_charge(void **state)
{
    const struct fixture *f = *state;
    const char *const slow[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024",
                                "VRAMCAP_SIM_DELAY_US=cuMemAlloc_v2:5000000", NULL};
    struct child dying, second, third;
    unsigned tries = 200;

    ready(&dying, f, "getproc", slow);
    ready(&second, f, "dlsym", capped);
    ready(&third, f, "link", capped);
    assert_int_equal(client_result(&second, "alloc 128m"), 0);
    assert_true(child_say(&dying, "alloc 896m"));
    while (ledger_charged(f->ledger, 0) != 1024 * MIB && tries-- > 0)
        pause_ms(10);
    assert_int_equal(ledger_charged(f->ledger, 0),
                     1024 * MIB); /* reserved, the driver still at it */
    assert_int_equal(client_result(&third, "alloc 2m"),
                     2); /* and a living one's charge is respected */
    child_kill(&dying, SIGKILL);
    assert_int_equal(ledger_charged(f->ledger, 0), 128 * MIB); /* gone for readers at once */
    others_go_on(f, &second, &third, 128);
}

static void killed_holding_memory(void **state)
{
    const struct fixture *f = *state;
    struct child dying, second, third;

    ready(&dying, f, "link", capped);
    ready(&second, f, "getproc", capped);
    ready(&third, f, "dlsym", capped);
    assert_int_equal(client_result(&dying, "alloc 512m"), 0);
    assert_int_equal(client_result(&dying, "pitch 4 8192"), 0);
    assert_int_equal(client_result(&dying, "managed 256m"), 0);
    assert_int_equal(client_result(&second, "alloc 64m"), 0);
    assert_int_equal(client_result(&third, "alloc 512m"), 2);
    child_kill(&dying, SIGKILL);
    others_go_on(f, &second, &third, 64);
    assert_true(ledger_events(f->ledger, VCAP_LF_EVENT_REAP) >= 1);
}

static void killed_while_refused(void **state)
{
    const struct fixture *f = *state;
    struct child dying, second, third;

    ready(&dying, f, "dlsym", capped);
    ready(&second, f, "link", capped);
    ready(&third, f, "getproc", capped);
    assert_int_equal(client_result(&dying, "alloc 512m"), 0);
    assert_int_equal(client_result(&second, "alloc 64m"), 0);
    for (unsigned round = 0; round < 20; round++) {
        struct child refused;

        /* a process that is nothing but refusals, killed at a random moment of one */
        ready(&refused, f, "getproc", capped);
        assert_true(child_say(&refused, "threads 2 512m 100000"));
        pause_ms(1 + (unsigned)rand() % 10);
        child_kill(&refused, SIGKILL);
    }
    child_kill(&dying, SIGKILL);
    others_go_on(f, &second, &third, 64);
}

/* Two that need room both find the dead third at once: it comes back once. */
static void two_reapers_give_the_dead_ones_memory_back_once(void **state)
{
    const struct fixture *f = *state;
    struct child second, third;

    ready(&second, f, "link", capped);
    ready(&third, f, "dlsym", capped);
    for (unsigned round = 0; round < 20; round++) {
        struct child dying;
        unsigned sum = 0;
        char answer[128];

        ready(&dying, f, "getproc", capped);
        assert_int_equal(client_result(&dying, "fill 64m"), 2);
        child_kill(&dying, SIGKILL);
        assert_true(child_say(&second, "fill 64m"));
        assert_true(child_say(&third, "fill 64m"));
        for (struct child *c = &second; c != NULL; c = c == &second ? &third : NULL) {
            unsigned granted = 0;
            int result = 0;

            assert_true(child_line(c, answer, sizeof(answer), FIXTURE_DEADLINE_MS));
            assert_int_equal(sscanf(answer, "%d %u", &result, &granted), 2);
            assert_int_equal(result, 2);
            sum += granted;
        }
        assert_int_equal(sum, 16);
        assert_int_equal(client_result(&second, "drop"), 0);
        assert_int_equal(client_result(&third, "drop"), 0);
        assert_int_equal(ledger_charged(f->ledger, 0), 0);
    }
    child_kill(&second, SIGKILL);
    child_kill(&third, SIGKILL);
}

/* As ranks of one job are started: all at once; two are killed, one inside cuInit and one inside its first
 * allocation, and whoever comes last finds all of what those had. */
static void of_eight_ranks_two_die_early_and_the_others_share_all(void **state)
{
    const struct fixture *f = *state;
    const char *const slow_init[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024",
                                     "VRAMCAP_SIM_DELAY_US=cuInit:60000000", NULL};
    const char *const slow_alloc[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024",
                                      "VRAMCAP_SIM_DELAY_US=cuMemAlloc_v2:60000000", NULL};
    struct child rank[8];
    unsigned tries = FIXTURE_DEADLINE_MS / 10;

    for (unsigned i = 0; i < 8; i++)
        assert_true(client_start(&rank[i], f, "getproc",
                                 i == 0   ? slow_init
                                 : i == 1 ? slow_alloc
                                          : capped));
    for (unsigned i = 0; i < 8; i++)
        assert_true(child_say(&rank[i], "init"));
    for (unsigned i = 1; i < 8; i++) {
        char answer[64];

        assert_true(child_line(&rank[i], answer, sizeof(answer), FIXTURE_DEADLINE_MS));
        assert_string_equal(answer, "0");
        assert_int_equal(client_result(&rank[i], "ctx create 0"), 0);
    }
    assert_true(child_say(&rank[1], "alloc 512m"));
    while (ledger_charged(f->ledger, 0) != 512 * MIB && tries-- > 0)
        pause_ms(10);
    assert_int_equal(ledger_charged(f->ledger, 0), 512 * MIB);
    for (unsigned i = 2; i < 6; i++)
        assert_int_equal(client_result(&rank[i], "alloc 128m"), 0);
    assert_int_equal(client_result(&rank[6], "alloc 256m"), 2);
    child_kill(&rank[0], SIGKILL);
    child_kill(&rank[1], SIGKILL);
    assert_int_equal(client_result(&rank[6], "alloc 256m"), 0);
    assert_int_equal(client_result(&rank[7], "alloc 256m"), 0);
    assert_int_equal(client_result(&rank[2], "alloc 2m"), 2);
    assert_int_equal(ledger_charged(f->ledger, 0), 1024 * MIB);
    assert_int_equal(ledger_processes(f->ledger), 6);
    for (unsigned i = 2; i < 8; i++)
        child_kill(&rank[i], SIGKILL);
}

/* The stopped one has the simulated card to itself (BENCH): the card's own mutex is not what is
 * tested. */
static void a_stopped_process_holds_nobody_up(void **state)
{
    const struct fixture *f = *state;
    const char *const alone[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024",
                                 "VRAMCAP_SIM_BENCH=1", NULL};
    struct child stopped, second, third;

    ready(&stopped, f, "dlsym", alone);
    ready(&second, f, "link", capped);
    ready(&third, f, "getproc", capped);
    assert_true(child_say(&stopped, "threads 2 64m 1000000"));
    for (unsigned round = 0; round < 20; round++) {
        assert_int_equal(kill(stopped.pid, SIGSTOP), 0);
        for (unsigned i = 0; i < 10; i++) { /* whoever waited for it would do so for ever */
            assert_true(client_result(&second, "alloc 2m") >= 0);
            assert_true(client_result(&third, "alloc 2m") >= 0);
            assert_int_equal(client_result(&second, "alloc 2000m"), 2);
        }
        kill(stopped.pid, SIGCONT);
        pause_ms(2);
    }
    child_kill(&stopped, SIGKILL);
    child_kill(&second, SIGKILL);
    child_kill(&third, SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(killed_inside_cuinit, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(killed_inside_a_charge, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(killed_holding_memory, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(killed_while_refused, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(two_reapers_give_the_dead_ones_memory_back_once,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(of_eight_ranks_two_die_early_and_the_others_share_all,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_stopped_process_holds_nobody_up, fixture_setup,
                                        fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
