/*
 * The comparison of ledgers with what the driver says, on made-up ones of both.  Processes have numbers
 * that no kernel gives out, so that /proc says nothing of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "enforcer/agent/compare.h"

#define MIB (UINT64_C(1) << 20)
#define HOST(n) (1000000000 + (n)) /* above any pid_max */
#define OTHER_MNTNS 99

static struct vcap_snapshot_gpu gpus[2][2];
static struct vcap_snapshot_process slots[2][4];
static struct vcap_snapshot_charge charges[2][4][2];
static pid_t host_pids[2][4];
static struct vcap_watched containers[2];
static struct vcap_watched *all[2] = {&containers[0], &containers[1]};
static struct vcap_process known[8];
static struct vcap_processes processes;
static struct vcap_nvml_process seen[8];
static struct vcap_nvml_gpu cards[2];
static struct vcap_nvml_sample sample;

static int setup(void **state)
{
    (void)state;
    memset(containers, 0, sizeof containers);
    memset(slots, 0, sizeof slots);
    memset(charges, 0, sizeof charges);
    memset(host_pids, 0, sizeof host_pids);
    memset(known, 0, sizeof known);
    processes = (struct vcap_processes){.known = known};
    for (int i = 0; i < 2; i++) {
        (void)snprintf(containers[i].label, sizeof containers[i].label, "c%d", i);
        containers[i].state = VCAP_WATCHED_OK;
        containers[i].have_snapshot = true;
        containers[i].directory = -1;
        containers[i].host_pids = host_pids[i];
        containers[i].snapshot.gpus = gpus[i];
        containers[i].snapshot.gpu_count = 1;
        containers[i].snapshot.processes = slots[i];
        (void)snprintf(gpus[i][0].uuid, sizeof gpus[i][0].uuid, "GPU-0");
        gpus[i][0].ceiling_bytes = 1000 * MIB;
    }
    for (int i = 0; i < 2; i++) {
        cards[i] = (struct vcap_nvml_gpu){
            .index = (uint32_t)(3 + i), .processes_known = true, .mps_known = true};
        (void)snprintf(cards[i].uuid, sizeof cards[i].uuid, "GPU-%d", i);
    }
    cards[0].processes = seen;
    sample = (struct vcap_nvml_sample){.state = VCAP_NVML_OK, .gpus = cards, .gpu_count = 2};
    return 0;
}

/* A process with a slot that holds so much. */
static void slot(int container, uint32_t pid, pid_t host_pid, uint64_t mib)
{
    struct vcap_watched *w = &containers[container];
    uint32_t n = w->snapshot.process_count++;
    charges[container][n][0] = (struct vcap_snapshot_charge){.gpu = 0,
                                                             .held_bytes = mib * MIB,
                                                             .charged_bytes = mib * MIB,
                                                             .limit_bytes = VCAP_NO_LIMIT};
    slots[container][n] = (struct vcap_snapshot_process){
        .pid = pid, .life = VCAP_LIFE_ALIVE, .charge_count = 1, .charges = charges[container][n]};
    host_pids[container][n] = host_pid;
}

/* A process that /proc shows with a driver mapped. */
static void process(pid_t pid, uint64_t mntns, const char *id)
{
    struct vcap_process *p = &known[processes.known_count++];
    *p = (struct vcap_process){.pid = pid, .driver = true, .library = true, .mntns = mntns};
    if (id) {
        p->name.container = true;
        (void)snprintf(p->name.id, sizeof p->name.id, "%s", id);
    }
}

static void driver_sees(uint32_t pid, uint64_t bytes)
{
    seen[cards[0].process_count++] = (struct vcap_nvml_process){.pid = pid, .bytes = bytes};
}

static const struct vcap_compared *compared(int container)
{
    vcap_compare(all, 2, &processes, &sample, 1);
    assert_true(containers[container].compared_count >= 1);
    return &containers[container].compared[0];
}

static void memory_that_the_ledger_does_not_hold_is_unaccounted(void **state)
{
    (void)state;
    slot(0, 7, HOST(1), 100);
    driver_sees(HOST(1), 500 * MIB);
    const struct vcap_compared *c = compared(0);
    assert_true(c->unaccounted_bytes == 400 * MIB);
    assert_true(c->driver_bytes == 500 * MIB);
    assert_int_equal(c->unprotected, 0);
    assert_int_equal(c->index, 3);
    assert_true(containers[1].compared[0].unaccounted_bytes == 0);
}

static void one_process_s_excess_is_not_hidden_by_another_s_lack(void **state)
{
    (void)state;
    slot(0, 7, HOST(1), 100);
    slot(0, 8, HOST(2), 300);
    driver_sees(HOST(1), 150 * MIB);
    driver_sees(HOST(2), 200 * MIB);
    assert_true(compared(0)->unaccounted_bytes == 50 * MIB);
}

static void a_process_without_a_slot_in_the_container_is_unprotected(void **state)
{
    (void)state;
    slot(0, 7, HOST(1), 100);
    driver_sees(HOST(1), 100 * MIB);
    driver_sees(HOST(2), 64 * MIB);
    containers[0].name.container = true;
    (void)snprintf(containers[0].name.id, sizeof containers[0].name.id, "abc");
    process(HOST(2), 0, "abc");
    const struct vcap_compared *c = compared(0);
    assert_int_equal(c->unprotected, 1);
    assert_true(c->unaccounted_bytes == 64 * MIB);
    setup(NULL);
    slot(0, 7, HOST(1), 100);
    driver_sees(HOST(1), 100 * MIB);
    driver_sees(HOST(2), 64 * MIB);
    containers[0].mntns = OTHER_MNTNS;
    process(HOST(2), OTHER_MNTNS, NULL);
    assert_int_equal(compared(0)->unprotected, 1);
}

static void a_process_of_no_known_container_is_nobody_s(void **state)
{
    (void)state;
    slot(0, 7, HOST(1), 100);
    driver_sees(HOST(1), 100 * MIB);
    driver_sees(HOST(2), 64 * MIB);
    process(HOST(2), 0, "other");
    const struct vcap_compared *c = compared(0);
    assert_int_equal(c->unprotected, 0);
    assert_true(c->unaccounted_bytes == 0);
}

static void a_gpu_without_a_row_in_the_ledger_still_shows_its_processes(void **state)
{
    (void)state;
    cards[1].processes = seen;
    containers[0].mntns = OTHER_MNTNS;
    process(HOST(2), OTHER_MNTNS, NULL);
    seen[0] = (struct vcap_nvml_process){.pid = HOST(2), .bytes = 10 * MIB};
    cards[1].process_count = 1;
    vcap_compare(all, 2, &processes, &sample, 1);
    assert_int_equal(containers[0].compared_count, 2);
    assert_string_equal(containers[0].compared[1].uuid, "GPU-1");
    assert_int_equal(containers[0].compared[1].unprotected, 1);
    cards[1].process_count = 0;
    vcap_compare(all, 2, &processes, &sample, 1);
    assert_int_equal(containers[0].compared_count, 1); /* it is gone again */
}

static void without_a_driver_nothing_is_known(void **state)
{
    (void)state;
    slot(0, 7, HOST(1), 100);
    const enum vcap_nvml_state states[] = {VCAP_NVML_ABSENT, VCAP_NVML_FAILED, VCAP_NVML_SILENT,
                                           VCAP_NVML_OFF};
    for (size_t i = 0; i < 4; i++) {
        sample.state = states[i];
        const struct vcap_compared *c = compared(0);
        assert_true(c->unaccounted_bytes == VCAP_UNKNOWN && c->unprotected == VCAP_UNKNOWN);
        assert_true(c->driver_bytes == VCAP_UNKNOWN && c->index == UINT32_MAX);
    }
    vcap_compare(all, 2, &processes, NULL, 1);
    assert_true(containers[0].compared[0].unaccounted_bytes == VCAP_UNKNOWN);
}

static void a_gpu_that_the_driver_does_not_list_is_unknown(void **state)
{
    (void)state;
    (void)snprintf(cards[0].uuid, sizeof cards[0].uuid, "GPU-other");
    assert_true(compared(0)->unaccounted_bytes == VCAP_UNKNOWN);
    setup(NULL);
    cards[0].processes_known = false;
    assert_true(compared(0)->unprotected == VCAP_UNKNOWN);
}

static void memory_that_the_driver_does_not_say_is_unknown(void **state)
{
    (void)state;
    slot(0, 7, HOST(1), 100);
    slot(0, 8, HOST(2), 100);
    driver_sees(HOST(1), VCAP_UNKNOWN);
    driver_sees(HOST(2), 100 * MIB);
    const struct vcap_compared *c = compared(0);
    assert_true(c->unaccounted_bytes == VCAP_UNKNOWN);
    assert_int_equal(c->unprotected, 0); /* but who is on the GPU is known */
}

static void a_charged_process_that_the_driver_does_not_list_makes_it_unknown(void **state)
{
    (void)state;
    slot(0, 7, HOST(1), 100);
    slot(1, 9, HOST(3), 0); /* holds nothing: need not be listed */
    assert_true(compared(0)->unaccounted_bytes == VCAP_UNKNOWN);
    assert_true(containers[1].compared[0].unaccounted_bytes == 0);
}

static void numbers_of_the_container_s_own_namespace_are_understood(void **state)
{
    (void)state;
    slot(0, HOST(70), HOST(1), 100);
    slot(1, HOST(80), 0, 100);
    driver_sees(HOST(70), 150 * MIB);
    driver_sees(HOST(80), 110 * MIB);
    assert_true(compared(0)->unaccounted_bytes == 50 * MIB);
    assert_true(containers[1].compared[0].unaccounted_bytes == 10 * MIB);
}

static void a_number_that_two_containers_have_tells_nothing(void **state)
{
    (void)state;
    slot(0, HOST(70), HOST(1), 100);
    slot(1, HOST(70), HOST(2), 100);
    driver_sees(HOST(70), 150 * MIB);
    assert_true(compared(0)->unaccounted_bytes == VCAP_UNKNOWN);
    assert_true(containers[1].compared[0].unaccounted_bytes == VCAP_UNKNOWN);
}

static void a_number_that_nobody_has_may_be_anybody_s(void **state)
{
    (void)state;
    slot(0, HOST(70), 0, 100);
    driver_sees(HOST(70), 150 * MIB);
    driver_sees(HOST(90), 10 * MIB); /* of what namespace? */
    const struct vcap_compared *c = compared(0);
    assert_true(c->unaccounted_bytes == 50 * MIB);
    assert_true(c->unprotected == VCAP_UNKNOWN);
    /* with the host's numbers it is a process that ended between two questions */
    host_pids[0][0] = HOST(70);
    assert_int_equal(compared(0)->unprotected, 0);
}

static void mps_clients_are_counted(void **state)
{
    (void)state;
    slot(0, 7, HOST(1), 100);
    driver_sees(HOST(1), 100 * MIB);
    seen[0].mps = true;
    assert_int_equal(compared(0)->mps_clients, 1);
    cards[0].mps_known = false;
    assert_true(compared(1)->mps_clients == VCAP_UNKNOWN);
}

static void drift_keeps_the_first_and_the_most(void **state)
{
    (void)state;
    slot(0, 7, HOST(1), 100);
    driver_sees(HOST(1), 110 * MIB);
    (void)compared(0);
    seen[0].bytes = 300 * MIB;
    (void)compared(0);
    seen[0].bytes = 150 * MIB;
    const struct vcap_compared *c = compared(0);
    assert_true(c->first_bytes == 10 * MIB && c->most_bytes == 200 * MIB &&
                c->unaccounted_bytes == 50 * MIB);
}

static const struct vcap_passive *passive(struct vcap_passive_list *list)
{
    vcap_compare_passive(all, 2, &processes, &sample, 0, list);
    return list->count ? &list->all[0] : NULL;
}

static void a_slot_without_a_ceiling_or_in_audit_is_passive(void **state)
{
    (void)state;
    struct vcap_passive_list list = {0};
    slot(0, 7, HOST(1), 100);
    process(HOST(1), 0, NULL);
    assert_null(passive(&list));
    gpus[0][0].ceiling_bytes = VCAP_NO_LIMIT;
    assert_non_null(passive(&list));
    assert_non_null(strstr(list.all[0].why, "no source has a ceiling for GPU-0"));
    assert_string_equal(list.all[0].container, "c0");
    charges[0][0][0].limit_bytes = 5 * MIB; /* its own lower one */
    assert_null(passive(&list));
    slots[0][0].mode = VCAP_LF_MODE_AUDIT;
    assert_non_null(strstr(passive(&list)->why, "audit"));
    containers[0].snapshot.flags = VCAP_LF_PASS_THROUGH;
    assert_non_null(strstr(passive(&list)->why, "pass-through"));
    known[0].library = false; /* no library: unprotected, not passive */
    assert_null(passive(&list));
    vcap_passive_free(&list);
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(memory_that_the_ledger_does_not_hold_is_unaccounted),
        TEST(one_process_s_excess_is_not_hidden_by_another_s_lack),
        TEST(a_process_without_a_slot_in_the_container_is_unprotected),
        TEST(a_process_of_no_known_container_is_nobody_s),
        TEST(a_gpu_without_a_row_in_the_ledger_still_shows_its_processes),
        TEST(without_a_driver_nothing_is_known),
        TEST(a_gpu_that_the_driver_does_not_list_is_unknown),
        TEST(memory_that_the_driver_does_not_say_is_unknown),
        TEST(a_charged_process_that_the_driver_does_not_list_makes_it_unknown),
        TEST(numbers_of_the_container_s_own_namespace_are_understood),
        TEST(a_number_that_two_containers_have_tells_nothing),
        TEST(a_number_that_nobody_has_may_be_anybody_s),
        TEST(mps_clients_are_counted),
        TEST(drift_keeps_the_first_and_the_most),
        TEST(a_slot_without_a_ceiling_or_in_audit_is_passive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
