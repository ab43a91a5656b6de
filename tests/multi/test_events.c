/*
 * Events that this container's ledger keeps: crossings of the near-ceiling mark, device faults that stay,
 * configurations that are wrong; and counters that do not wrap.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/sim/sim.h"
#include "tests/support/fixture.h"

#define CAPPED "VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1000"

static void start(struct child *c, const struct fixture *f, const char *more)
{
    const char *const extra[] = {CAPPED, more, NULL};

    assert_true(client_start(c, f, "getproc", extra));
    assert_int_equal(client_result(c, "init"), 0);
    assert_int_equal(client_result(c, "ctx create 0"), 0);
}

static void allocate(struct child *c, const char *size, char handle[64])
{
    char command[64], answer[64];

    snprintf(command, sizeof(command), "alloc %s", size);
    client_ask(c, answer, sizeof(answer), command);
    assert_int_equal(strtol(answer, NULL, 10), 0);
    snprintf(handle, 64, "free %s", strchr(answer, ' ') + 1);
}

static unsigned near_events(const struct fixture *f)
{
    return ledger_events(f->ledger, VCAP_LF_EVENT_NEAR);
}

static bool is_near(const struct fixture *f)
{
    struct vcap_snapshot_gpu gpu;

    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    return gpu.near;
}

static void a_crossing_of_the_mark_is_one_event(void **state)
{
    const struct fixture *f = *state;
    char most[64], some[64], few[64], other[64];
    struct child a, b;

    start(&a, f, NULL);
    start(&b, f, NULL);
    allocate(&a, "800m", most);
    assert_int_equal(near_events(f), 0);
    allocate(&b, "80m", some); /* 880 of 1000, the mark is 900 */
    assert_int_equal(near_events(f), 0);
    allocate(&b, "20m", few);
    assert_int_equal(near_events(f), 1);
    assert_true(is_near(f));
    assert_int_equal(client_result(&a, few), 1); /* not this process's pointer */
    assert_int_equal(client_result(&b, few), 0); /* 880: below, but not well below */
    allocate(&a, "20m", few);
    assert_int_equal(near_events(f), 1);
    assert_int_equal(client_result(&b, some), 0); /* 820: still above 810 */
    assert_true(is_near(f));
    assert_int_equal(client_result(&a, few), 0); /* 800 */
    assert_false(is_near(f));
    allocate(&b, "150m", other);
    assert_int_equal(near_events(f), 2);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

/* What a dead process held is taken off by the charge that needs the room, and by nobody's release. */
static void a_crossing_after_a_reap_is_one_more(void **state)
{
    const struct fixture *f = *state;
    char most[64], other[64];
    struct child a, b;

    start(&a, f, NULL);
    start(&b, f, NULL);
    allocate(&a, "800m", most);
    allocate(&b, "110m", other);
    assert_int_equal(near_events(f), 1);
    child_kill(&a, SIGKILL);
    allocate(&b, "300m", other); /* 410, once the dead one's are gone */
    assert_false(is_near(f));
    allocate(&b, "500m", other); /* 910 */
    assert_int_equal(near_events(f), 2);
    assert_true(is_near(f));
    child_kill(&b, SIGKILL);
}

static void the_first_device_fault_that_stays_is_kept(void **state)
{
    const struct fixture *f = *state;
    struct vcap_snapshot s;
    struct child a, b;
    bool seen = false;

    start(&a, f, "VRAMCAP_SIM_FAIL=cuMemAlloc_v2:2:700,cuMemGetInfo_v2:1:719");
    start(&b, f, "VRAMCAP_SIM_FAIL=cuMemAlloc_v2:1:1"); /* an error, but none that stays */
    assert_int_equal(client_result(&b, "alloc 2m"), 1);
    assert_int_equal(client_result(&a, "alloc 2m"), 0);
    assert_int_equal(client_result(&a, "alloc 2m"), 700);
    assert_int_equal(client_result(&a, "info"), 719);
    assert_int_equal(ledger_events(f->ledger, VCAP_LF_EVENT_FAULT), 1);
    assert_true(ledger_read(f->ledger, &s));
    for (uint32_t i = 0; i < s.process_count; i++) {
        const struct vcap_snapshot_process *p = &s.processes[i];

        assert_int_equal(p->fault_code, p->pid == (uint32_t)a.pid ? 700 : 0);
        seen = seen || (p->pid == (uint32_t)a.pid && p->fault_ns >= s.created_ns);
    }
    assert_true(seen);
    for (uint32_t i = 0; i < s.event_count; i++)
        if (s.events[i].kind == VCAP_LF_EVENT_FAULT) {
            assert_int_equal(s.events[i].code, 700);
            assert_string_equal(s.events[i].name, "cuMemAlloc_v2");
        }
    vcap_snapshot_free(&s);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

static void a_wrong_configuration_is_an_event_where_there_is_a_ledger(void **state)
{
    const struct fixture *f = *state;
    const char *const wrong[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=50%", NULL};
    struct child a, b;

    start(&a, f, NULL);
    assert_true(client_start(&b, f, "getproc", wrong));
    assert_int_equal(client_result(&b, "init"), 0);
    assert_int_equal(ledger_events(f->ledger, VCAP_LF_EVENT_CONFIG), 1);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

static void a_sum_of_refused_bytes_does_not_wrap(void **state)
{
    const struct fixture *f = *state;
    struct vcap_snapshot_gpu gpu;
    struct child a;

    start(&a, f, NULL);
    for (int i = 0; i < 3; i++)
        assert_int_equal(client_result(&a, "alloc 9223372036854775808"), 2);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.refusals, 3);
    assert_int_equal(gpu.refused_bytes, UINT64_MAX);
    child_kill(&a, SIGKILL);
}

static void a_pointer_freed_twice_takes_nothing_off(void **state)
{
    const struct fixture *f = *state;
    char one[64], two[64];
    struct child a;

    start(&a, f, NULL);
    allocate(&a, "100m", one);
    allocate(&a, "200m", two);
    assert_int_equal(client_result(&a, one), 0);
    assert_int_not_equal(client_result(&a, one), 0);
    assert_int_equal(ledger_charged(f->ledger, 0), 200 * MIB);
    assert_int_equal(ledger_events(f->ledger, VCAP_LF_EVENT_ANOMALY), 1);
    child_kill(&a, SIGKILL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_crossing_of_the_mark_is_one_event),
        TEST(a_crossing_after_a_reap_is_one_more),
        TEST(the_first_device_fault_that_stays_is_kept),
        TEST(a_wrong_configuration_is_an_event_where_there_is_a_ledger),
        TEST(a_sum_of_refused_bytes_does_not_wrap),
        TEST(a_pointer_freed_twice_takes_nothing_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
