/*
 * Processes of one container under one ceiling without races: whose ceiling holds, who sees what,
 * several users, several GPUs, fork servers.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/skip.h"

#include "tests/support/fixture.h"

static void ready(struct child *c, const struct fixture *f, const char *const *extra,
                  unsigned device)
{
    char command[32];

    assert_true(client_start(c, f, "getproc", extra));
    assert_int_equal(client_result(c, "init"), 0);
    snprintf(command, sizeof(command), "ctx create %u", device);
    assert_int_equal(client_result(c, command), 0);
}

static void info(struct child *c, uint64_t *free_bytes, uint64_t *total)
{
    char answer[128];
    unsigned long long f = 0, t = 0;

    client_ask(c, answer, sizeof(answer), "info");
    assert_int_equal(sscanf(answer, "0 %llu %llu", &f, &t), 2);
    *free_bytes = f;
    *total = t;
}

static void what_one_takes_the_other_sees_missing(void **state)
{
    const struct fixture *f = *state;
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};
    struct child a, b;
    uint64_t free_bytes, total;

    ready(&a, f, extra, 0);
    ready(&b, f, extra, 0);
    assert_int_equal(client_result(&a, "alloc 300m"), 0);
    info(&b, &free_bytes, &total);
    assert_int_equal(total, 1024 * MIB);
    assert_int_equal(free_bytes, 724 * MIB);
    child_kill(&a, SIGKILL);
    usleep(20000); /* views look for the dead at most every 10 ms */
    info(&b, &free_bytes, &total);
    assert_int_equal(free_bytes, 1024 * MIB);
    child_kill(&b, SIGKILL);
}

static void a_later_higher_ceiling_is_ignored_and_a_lower_one_binds_its_process(void **state)
{
    const struct fixture *f = *state;
    const char *const first[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1000", NULL};
    const char *const higher[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=8000", NULL};
    const char *const lower[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=500", NULL};
    struct child a, b, c;
    uint64_t free_bytes, total;

    ready(&a, f, first, 0);
    assert_int_equal(client_result(&a, "alloc 2m"), 0); /* sets the container's */
    ready(&b, f, higher, 0);
    assert_int_equal(client_result(&b, "alloc 1000m"), 2);
    info(&b, &free_bytes, &total);
    assert_int_equal(total, 1000 * MIB);
    ready(&c, f, lower, 0);
    assert_int_equal(client_result(&c, "alloc 500m"), 2);
    assert_int_equal(client_result(&c, "alloc 498m"), 0);
    assert_int_equal(client_result(&c, "alloc 2m"), 2);
    assert_int_equal(client_result(&a, "alloc 500m"), 0); /* others keep the container's */
    assert_int_equal(client_result(&a, "alloc 2m"), 2);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
    child_kill(&c, SIGKILL);
}

/* 0=1000M is per client under MPS; here it is the container's. */
static void the_mps_variable_alone_caps_the_container(void **state)
{
    const struct fixture *f = *state;
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1000M",
                                 NULL};
    const char *const both[] = {"VRAMCAP_ENABLE=1", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=700M",
                                "VRAMCAP_MEMORY_MIB=900", NULL};
    struct vcap_snapshot_gpu gpu;
    struct child a, b, c;

    ready(&a, f, extra, 0);
    ready(&b, f, extra, 0);
    assert_int_equal(client_result(&a, "alloc 600m"), 0);
    assert_int_equal(client_result(&b, "alloc 600m"), 2);
    assert_int_equal(client_result(&b, "alloc 400m"), 0);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.ceiling_bytes, 1000 * MIB);
    ready(&c, f, both, 0); /* the lowest of both holds for it: 700 */
    assert_int_equal(client_result(&c, "alloc 2m"), 2);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
    assert_int_equal(client_result(&c, "alloc 702m"), 2);
    assert_int_equal(client_result(&c, "alloc 700m"), 0);
    child_kill(&c, SIGKILL);
}

static void a_passive_process_before_changes_nothing_for_a_capped_one(void **state)
{
    const struct fixture *f = *state;
    const char *const capped[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};
    struct child a, b;

    ready(&a, f, NULL, 0);
    assert_int_equal(client_result(&a, "alloc 2000m"), 0);
    assert_int_equal(access(f->ledger, F_OK), -1);
    ready(&b, f, capped, 0);
    assert_int_equal(client_result(&b, "alloc 1026m"), 2);
    assert_int_equal(client_result(&b, "alloc 1024m"), 0);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

/* Without a word from the host a process is capped by its own configuration; it changes nothing for others. */
static void a_process_without_configuration_after_a_capped_one_changes_nothing_for_it(void **state)
{
    const struct fixture *f = *state;
    const char *const capped[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};
    struct child a, b, c;

    ready(&a, f, capped, 0);
    assert_int_equal(client_result(&a, "alloc 600m"), 0);
    ready(&b, f, NULL, 0);
    assert_int_equal(client_result(&b, "alloc 2000m"), 0);
    assert_int_equal(ledger_processes(f->ledger), 1);
    assert_int_equal(ledger_charged(f->ledger, 0), 600 * MIB);
    assert_int_equal(client_result(&a, "alloc 426m"), 2);
    ready(&c, f, capped, 0);
    assert_int_equal(client_result(&c, "alloc 426m"), 2);
    assert_int_equal(client_result(&c, "alloc 424m"), 0);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
    child_kill(&c, SIGKILL);
}

static void two_users_of_one_container_share_one_ceiling(void **state)
{
    const struct fixture *f = *state;
    struct fixture_copies copies;
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};
    const char *const extra_of_user[] = {
        "LD_PRELOAD", copies.library, copies.sim, "VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024",
        NULL};
    const char *const argv[] = {
        "setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", copies.client, "--by=dlsym",
        NULL};
    struct child root, user;

    if (geteuid() != 0 || access("/usr/bin/setpriv", X_OK) != 0)
        SKIP_BECAUSE("needs root and setpriv");
    assert_int_equal(chmod(f->directory, 0777), 0);
    ready(&root, f, extra, 0);
    assert_int_equal(client_result(&root, "alloc 600m"), 0);
    assert_int_equal(chmod(f->sim, 0666), 0); /* the simulated card itself is for one user */
    assert_true(fixture_copies(f, &copies));
    assert_true(child_start(&user, f, argv, extra_of_user));
    assert_int_equal(client_result(&user, "init"), 0);
    assert_int_equal(client_result(&user, "ctx create 0"), 0);
    assert_int_equal(client_result(&user, "alloc 600m"), 2);
    assert_int_equal(client_result(&user, "alloc 424m"), 0);
    assert_int_equal(ledger_charged(f->ledger, 0), 1024 * MIB);
    child_kill(&root, SIGKILL);
    assert_int_equal(client_result(&user, "alloc 600m"),
                     0); /* another user's dead are given back too */
    child_kill(&user, SIGKILL);
}

/* CUDA_VISIBLE_DEVICES=2,0 of four: ordinal 0 is card 2, ordinal 1 is card 0, each with its own
 * ceiling. */
static void devices_are_held_to_their_own_ceilings_by_uuid(void **state)
{
    const struct fixture *f = *state;
    const char *const swapped[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=0=100,1=200",
                                   "VRAMCAP_SIM_CARDS=4x8192", "CUDA_VISIBLE_DEVICES=2,0", NULL};
    const char *const single[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=0=200",
                                  "VRAMCAP_SIM_CARDS=4x8192", "CUDA_VISIBLE_DEVICES=0", NULL};
    struct vcap_snapshot_gpu gpu;
    struct child a, b;

    ready(&a, f, swapped, 0);
    assert_int_equal(client_result(&a, "alloc 102m"), 2);
    assert_int_equal(client_result(&a, "alloc 100m"), 0);
    assert_int_equal(client_result(&a, "ctx create 1"), 0);
    assert_int_equal(client_result(&a, "alloc 202m"), 2);
    assert_int_equal(client_result(&a, "alloc 150m"), 0);
    assert_true(ledger_gpu(f->ledger, 2, &gpu));
    assert_int_equal(gpu.ceiling_bytes, 100 * MIB);
    assert_int_equal(ledger_charged(f->ledger, 2), 100 * MIB);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.ceiling_bytes, 200 * MIB);
    assert_int_equal(ledger_charged(f->ledger, 0), 150 * MIB);
    /* the same card under another ordinal in another process */
    ready(&b, f, single, 0);
    assert_int_equal(client_result(&b, "alloc 52m"), 2);
    assert_int_equal(client_result(&b, "alloc 50m"), 0);
    assert_int_equal(ledger_charged(f->ledger, 0), 200 * MIB);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

static void two_ranks_on_two_devices_are_charged_per_device(void **state)
{
    const struct fixture *f = *state;
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=100",
                                 "VRAMCAP_SIM_CARDS=2x8192", NULL};
    struct child a, b;

    ready(&a, f, extra, 0);
    ready(&b, f, extra, 1);
    assert_int_equal(client_result(&a, "alloc 60m"), 0);
    assert_int_equal(client_result(&b, "alloc 60m"), 0);
    assert_int_equal(client_result(&a, "alloc 60m"), 2);
    assert_int_equal(ledger_charged(f->ledger, 0), 60 * MIB);
    assert_int_equal(ledger_charged(f->ledger, 1), 60 * MIB);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

/* Forked before the driver is initialised, as a pre-fork server does. */
static void each_forked_worker_has_a_slot_of_its_own(void **state)
{
    const struct fixture *f = *state;
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};
    struct child server;
    char answer[1024];

    assert_true(client_start(&server, f, "dlsym", extra));
    for (unsigned i = 0; i < 8; i++) {
        client_ask(&server, answer, sizeof(answer), "fork init; ctx create 0; alloc 10m; info");
        assert_int_equal(strncmp(answer, "0; 0; 0 ", 8), 0);
    }
    assert_int_equal(client_result(&server, "init"), 0);
    assert_int_equal(client_result(&server, "ctx create 0"), 0);
    assert_int_equal(client_result(&server, "alloc 10m"), 0);
    /* the children are gone, what they held with them; only the parent's 10 MiB count */
    assert_int_equal(ledger_charged(f->ledger, 0), 10 * MIB);
    /* after cuInit the driver refuses a child; the parent's charge is neither copied nor touched */
    client_ask(&server, answer, sizeof(answer), "fork alloc 10m");
    assert_int_equal(atoi(answer), 3);
    assert_int_equal(ledger_charged(f->ledger, 0), 10 * MIB);
    assert_int_equal(ledger_processes(f->ledger), 1);
    child_kill(&server, SIGKILL);
}

static void sixty_four_processes_start_together_and_all_have_slots(void **state)
{
    const struct fixture *f = *state;
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};
    static struct child children[64];

    for (unsigned i = 0; i < 64; i++)
        assert_true(client_start(&children[i], f, "getproc", extra));
    for (unsigned i = 0; i < 64; i++)
        assert_true(child_say(&children[i], "init"));
    for (unsigned i = 0; i < 64; i++) {
        char answer[64];

        assert_true(child_line(&children[i], answer, sizeof(answer), FIXTURE_DEADLINE_MS));
        assert_string_equal(answer, "0");
    }
    assert_int_equal(ledger_processes(f->ledger), 64);
    for (unsigned i = 0; i < 64; i++)
        child_kill(&children[i], SIGKILL);
    assert_int_equal(ledger_processes(f->ledger), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_one_takes_the_other_sees_missing, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(
            a_later_higher_ceiling_is_ignored_and_a_lower_one_binds_its_process, fixture_setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(the_mps_variable_alone_caps_the_container, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(a_passive_process_before_changes_nothing_for_a_capped_one,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(
            a_process_without_configuration_after_a_capped_one_changes_nothing_for_it,
            fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(two_users_of_one_container_share_one_ceiling, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(devices_are_held_to_their_own_ceilings_by_uuid,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(two_ranks_on_two_devices_are_charged_per_device,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(each_forked_worker_has_a_slot_of_its_own, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(sixty_four_processes_start_together_and_all_have_slots,
                                        fixture_setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
