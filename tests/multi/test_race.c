/*
 * Races for the last megabyte: processes and threads allocate to the brim together, again and
 * again.  The simulated card's own peak is the judge of "never over", the count of blocks the judge
 * of "no false refusal".
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/sim.h"
#include "tests/support/fixture.h"

#define PROCESSES 4u
#define CEILING_MIB 1024u
#define BLOCK_MIB 64u

static unsigned rounds(void)
{
    return fixture_only_own_programs() ? 50 : 300;
}

static void start_all(struct child *children, unsigned count, const struct fixture *f,
                      const char *const *extra)
{
    static const char *const ways[] = {"link", "dlsym", "getproc"};

    for (unsigned i = 0; i < count; i++) {
        assert_true(client_start(&children[i], f, ways[i % 3], extra));
        assert_int_equal(client_result(&children[i], "init"), 0);
        assert_int_equal(client_result(&children[i], "ctx create 0"), 0);
    }
}

/* The card's own figures: what allocations held at most, and with contexts and slack. */
static uint64_t alloc_peak(const struct fixture *f)
{
    struct sim_state *state = sim_state_open(f->sim);
    uint64_t peak;

    assert_non_null(state);
    peak = sim_card_alloc_peak(state, 0);
    sim_state_close(state);
    return peak;
}

static uint64_t card_peak(const struct fixture *f)
{
    struct sim_state *state = sim_state_open(f->sim);
    uint64_t peak;

    assert_non_null(state);
    peak = sim_card_peak(state, 0);
    sim_state_close(state);
    return peak;
}

/* All processes fill at once; returns the sum of blocks granted. */
static unsigned fill_together(struct child *children, unsigned count, const char *command)
{
    unsigned sum = 0;

    for (unsigned i = 0; i < count; i++)
        assert_true(child_say(&children[i], command));
    for (unsigned i = 0; i < count; i++) {
        char answer[256];
        long result = -1, granted = 0;

        assert_true(child_line(&children[i], answer, sizeof(answer), FIXTURE_DEADLINE_MS));
        assert_int_equal(sscanf(answer, "%ld %ld", &result, &granted), 2);
        assert_int_equal(result, 2);
        sum += (unsigned)granted;
    }
    return sum;
}

static void race(const struct fixture *f, const char *command, const char *const *extra,
                 unsigned expected)
{
    struct child children[PROCESSES];

    start_all(children, PROCESSES, f, extra);
    for (unsigned round = 0; round < rounds(); round++) {
        assert_int_equal(fill_together(children, PROCESSES, command), expected);
        for (unsigned i = 0; i < PROCESSES; i++)
            assert_int_equal(client_result(&children[i], "drop"), 0);
    }
    for (unsigned i = 0; i < PROCESSES; i++)
        child_kill(&children[i], SIGKILL);
}

static void four_processes_fill_the_ceiling_exactly(void **state)
{
    const struct fixture *f = *state;
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", "VRAMCAP_LOG=error",
                                 NULL};
    struct vcap_snapshot_gpu gpu;

    race(f, "fill 64m", extra, CEILING_MIB / BLOCK_MIB);
    assert_true(alloc_peak(f) <= CEILING_MIB * MIB);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.peak_bytes, CEILING_MIB * MIB);
    assert_int_equal(ledger_charged(f->ledger, 0), 0);
}

/* Four contexts of 32 MiB are known overhead: 1024 - 128 = 896 MiB, 14 blocks; and the whole card,
 * contexts included, stays below the ceiling. */
static void known_overhead_leaves_room_for_fewer_blocks(void **state)
{
    const struct fixture *f = *state;
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024",
                                 "VRAMCAP_CONTEXT_MIB=32", "VRAMCAP_SIM_CONTEXT_MIB=32", NULL};

    race(f, "fill 64m", extra, (CEILING_MIB - PROCESSES * 32) / BLOCK_MIB);
    assert_true(card_peak(f) <= CEILING_MIB * MIB);
}

/* The driver takes its time, so that the two calls do overlap: room must be taken before it is asked. */
static void of_two_processes_that_want_600_of_1024_one_succeeds(void **state)
{
    const struct fixture *f = *state;
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024",
                                 "VRAMCAP_SIM_DELAY_US=cuMemAlloc_v2:500", NULL};
    struct child children[2];

    start_all(children, 2, f, extra);
    for (unsigned round = 0; round < rounds(); round++) {
        assert_int_equal(fill_together(children, 2, "fill 600m"), 1);
        assert_int_equal(client_result(&children[0], "drop"), 0);
        assert_int_equal(client_result(&children[1], "drop"), 0);
    }
    assert_true(alloc_peak(f) <= CEILING_MIB * MIB);
    child_kill(&children[0], SIGKILL);
    child_kill(&children[1], SIGKILL);
}

static void threads_race(const struct fixture *f, const char *kind)
{
    char count[16];
    const char *const argv[] = {RACER, kind, "8", count, "64", "16", NULL};
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};
    char expected[64];
    static struct child_output output;

    snprintf(count, sizeof(count), "%u", rounds());
    snprintf(expected, sizeof(expected), "rounds %u wrong 0 odd 0\n", rounds());
    child_run(f, argv, extra, &output);
    assert_int_equal(output.status, 0);
    assert_string_equal(output.out, expected);
    assert_true(alloc_peak(f) <= CEILING_MIB * MIB);
    /* refusals are refusals: the ledger counted at least one per thread and round */
    {
        struct vcap_snapshot_gpu gpu;

        assert_true(ledger_gpu(f->ledger, 0, &gpu));
        assert_true(gpu.refusals >= 8 * rounds());
        assert_int_equal(gpu.peak_bytes, CEILING_MIB * MIB);
    }
}

static void eight_threads_fill_the_ceiling_exactly_linear(void **state)
{
    threads_race(*state, "linear");
}

static void eight_threads_fill_the_ceiling_exactly_pitched(void **state)
{
    threads_race(*state, "pitched");
}

static void eight_threads_fill_the_ceiling_exactly_managed(void **state)
{
    threads_race(*state, "managed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(four_processes_fill_the_ceiling_exactly, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(known_overhead_leaves_room_for_fewer_blocks, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(of_two_processes_that_want_600_of_1024_one_succeeds,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(eight_threads_fill_the_ceiling_exactly_linear,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(eight_threads_fill_the_ceiling_exactly_pitched,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(eight_threads_fill_the_ceiling_exactly_managed,
                                        fixture_setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
