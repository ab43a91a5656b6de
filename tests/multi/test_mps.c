/*
 * Containers that share a card through MPS, as Amazon ECS and the Kubernetes device plugin set them
 * up: what MPS alone lets through, and what is left of it under the library.
 *
 * Each scenario runs twice where that says something: without the library ("alone"), and with it
 * and VRAMCAP_ENABLE=1. The simulator's MPS is described in tests/sim/README.md; here a daemon is
 * claimed to listen in the pipe directory, but for the scenarios that need it to go away.
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
#include "tests/sim/sim_bounds.h"
#include "tests/sim/sim_cgroup.h"
#include "tests/support/fixture.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* What the agent of ECS puts into a container, and the claim that its daemon is there. Contexts cost
 * nothing, so that figures are round; MPS would count them. */
#define ECS                                                                                        \
    "VRAMCAP_SIM_MPS=/run/mps-ecs", "CUDA_MPS_PIPE_DIRECTORY=/run/mps-ecs",                        \
        "VRAMCAP_SIM_CONTEXT_MIB=0"
#define LIMIT(list) ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" list)
#define ALONE "LD_PRELOAD"
#define CAPPED "VRAMCAP_ENABLE=1"

static void ready(struct child *c, const struct fixture *f, const char *const *extra)
{
    assert_true(client_start(c, f, "getproc", extra));
    assert_int_equal(client_result(c, "init"), 0);
    assert_int_equal(client_result(c, "ctx create 0"), 0);
}

/* MiB that this process can allocate, in blocks of 4 MiB but for the last one of 2; and lets them go. */
static unsigned long room_mib(struct child *c)
{
    char answer[128];
    unsigned long mib = 0, blocks = 0;
    static const unsigned sizes[] = {100, 4, 2};

    for (size_t i = 0; i < COUNT(sizes); i++) {
        char command[32];
        int result = -1;

        snprintf(command, sizeof(command), "fill %um", sizes[i]);
        client_ask(c, answer, sizeof(answer), command);
        assert_int_equal(sscanf(answer, "%d %lu", &result, &blocks), 2);
        assert_int_equal(result, 2);
        mib += blocks * sizes[i];
    }
    client_ask(c, answer, sizeof(answer), "drop");
    return mib;
}

/* One process with this environment: what it can have. */
static unsigned long one_has(const struct fixture *f, const char *const *extra)
{
    struct child c;
    unsigned long mib;

    ready(&c, f, extra);
    mib = room_mib(&c);
    child_kill(&c, SIGKILL);
    return mib;
}

static void told(struct child *c, uint64_t *free_bytes, uint64_t *total)
{
    char answer[128];
    unsigned long long free_now = 0, total_now = 0;

    client_ask(c, answer, sizeof(answer), "info");
    assert_int_equal(sscanf(answer, "0 %llu %llu", &free_now, &total_now), 2);
    *free_bytes = free_now;
    *total = total_now;
}

/* What is wrong with MPS's limit is in the ledger, once for each process that found it. */
static unsigned found(const struct fixture *f, const char *name)
{
    struct vcap_snapshot snapshot;
    unsigned count = 0;

    assert_true(ledger_read(f->ledger, &snapshot));
    for (uint32_t i = 0; i < snapshot.event_count; i++)
        count += snapshot.events[i].kind == VCAP_LF_EVENT_MPS &&
                 (name == NULL || strcmp(snapshot.events[i].name, name) == 0);
    vcap_snapshot_free(&snapshot);
    return count;
}

/* ---- the limit is per process, the ceiling the container's ---- */

static void two_processes_take_2000_under_mps_alone_and_1000_under_the_ceiling(void **state)
{
    const struct fixture *f = *state;
    const char *const alone[] = {ECS, LIMIT("0=1000M"), ALONE, NULL};
    const char *const capped[] = {ECS, LIMIT("0=1000M"), CAPPED, NULL};
    struct vcap_snapshot_gpu gpu;
    struct child a, b;

    ready(&a, f, alone);
    ready(&b, f, alone);
    assert_int_equal(client_result(&a, "alloc 1000m"), 0);
    assert_int_equal(client_result(&b, "alloc 1000m"), 0);
    assert_int_equal(client_result(&a, "alloc 2m"), 2);
    assert_int_equal(sim_alloc_bytes(f, 0), 2000 * MIB);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);

    ready(&a, f, capped);
    ready(&b, f, capped);
    assert_int_equal(client_result(&a, "alloc 600m"), 0);
    assert_int_equal(client_result(&b, "alloc 402m"), 2);
    assert_int_equal(client_result(&b, "alloc 400m"), 0);
    assert_int_equal(client_result(&a, "alloc 2m"), 2);
    assert_int_equal(sim_alloc_bytes(f, 0), 1000 * MIB);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.ceiling_bytes, 1000 * MIB);
    assert_int_equal(gpu.ceiling_source, VCAP_LF_SOURCE_MPS);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

static void programs_see_the_whole_card_under_mps_alone_and_the_ceiling_with_it(void **state)
{
    const struct fixture *f = *state;
    const char *const alone[] = {ECS, LIMIT("0=1000M"), ALONE, NULL};
    const char *const capped[] = {ECS, LIMIT("0=1000M"), CAPPED, NULL};
    const char *const costly[] = {ECS, LIMIT("0=1000M"), CAPPED, "VRAMCAP_SIM_CONTEXT_MIB=100",
                                  NULL};
    struct vcap_snapshot_gpu gpu;
    uint64_t free_bytes, total;
    struct child a, b;

    ready(&a, f, alone);
    told(&a, &free_bytes, &total);
    assert_int_equal(total, 24576 * MIB);
    assert_int_equal(free_bytes, 1000 * MIB);
    child_kill(&a, SIGKILL);
    ready(&a, f, capped);
    ready(&b, f, capped);
    assert_int_equal(client_result(&a, "alloc 300m"), 0);
    told(&b, &free_bytes, &total);
    assert_int_equal(total, 1000 * MIB);
    assert_int_equal(free_bytes, 700 * MIB);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
    /* What MPS charges for the context is no room: it is measured, and counts. */
    ready(&a, f, costly);
    told(&a, &free_bytes, &total);
    assert_int_equal(total, 1000 * MIB);
    assert_int_equal(free_bytes, 900 * MIB);
    assert_int_equal(client_result(&a, "alloc 902m"), 2);
    assert_int_equal(ledger_charged(f->ledger, 0), 100 * MIB);
    assert_int_equal(client_result(&a, "alloc 900m"), 0);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.charged_bytes, 900 * MIB);
    assert_int_equal(gpu.overhead_bytes, 100 * MIB);
    assert_int_equal(gpu.refusals, 1);
    child_kill(&a, SIGKILL);
}

/* The device plugin gives the limit to the server, not to the container. */
static void a_limit_of_the_server_is_per_process_too(void **state)
{
    const struct fixture *f = *state;
    const char *const alone[] = {ECS, "VRAMCAP_SIM_MPS_LIMIT=0=1000M", ALONE, NULL};
    const char *const capped[] = {ECS, "VRAMCAP_SIM_MPS_LIMIT=0=1000M", CAPPED,
                                  "VRAMCAP_MEMORY_MIB=1000", NULL};
    struct child a, b;

    ready(&a, f, alone);
    ready(&b, f, alone);
    assert_int_equal(client_result(&a, "alloc 1000m"), 0);
    assert_int_equal(client_result(&b, "alloc 1000m"), 0);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
    ready(&a, f, capped);
    ready(&b, f, capped);
    assert_int_equal(client_result(&a, "alloc 1000m"), 0);
    assert_int_equal(client_result(&b, "alloc 2m"), 2);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

static void managed_memory_passes_mps_and_is_charged_by_the_ceiling(void **state)
{
    const struct fixture *f = *state;
    const char *const alone[] = {ECS, LIMIT("0=1000M"), ALONE, NULL};
    const char *const capped[] = {ECS, LIMIT("0=1000M"), CAPPED, NULL};
    struct child c;

    ready(&c, f, alone);
    assert_int_equal(client_result(&c, "managed 3000m"), 0);
    child_kill(&c, SIGKILL);
    ready(&c, f, capped);
    assert_int_equal(client_result(&c, "managed 1002m"), 2);
    assert_int_equal(client_result(&c, "managed 1000m"), 0);
    child_kill(&c, SIGKILL);
}

/* ---- the escapes ---- */

static void an_entry_for_an_invisible_gpu_drops_the_limit_and_the_ceiling_holds(void **state)
{
    const struct fixture *f = *state;
    static const char *const lists[] = {
        LIMIT("0=1000M,1=4G"), LIMIT("7=1G,0=1000M"),
        LIMIT("0=1000M,GPU-00000000-0000-0000-0000-000000000000=1G")};

    for (size_t i = 0; i < COUNT(lists); i++) {
        const char *const alone[] = {ECS, lists[i], "VRAMCAP_SIM_MPS_LIMIT=0=2000M", ALONE, NULL};
        const char *const capped[] = {ECS, lists[i], "VRAMCAP_SIM_MPS_LIMIT=0=2000M", CAPPED, NULL};

        assert_int_equal(one_has(f, alone), 24576);
        assert_int_equal(one_has(f, capped), 1000);
        assert_int_equal(found(f, "limit names an invisible GPU"), 1);
        assert_int_equal(found(f, NULL), 1);
    }
}

static void without_the_pipe_directory_or_the_daemon_the_ceiling_holds(void **state)
{
    const struct fixture *f = *state;
    static const char *const ways[][2] = {
        {"CUDA_MPS_PIPE_DIRECTORY", "VRAMCAP_SIM_MPS=/run/mps-ecs"}, /* unset */
        {"CUDA_MPS_PIPE_DIRECTORY=/run/mps", "VRAMCAP_SIM_MPS=/run/mps-ecs"},
        {"CUDA_MPS_PIPE_DIRECTORY=/nowhere/at/all", "VRAMCAP_SIM_MPS"},
        {"CUDA_MPS_PIPE_DIRECTORY=/run/mps-ecs", "VRAMCAP_SIM_MPS"}, /* down */
    };

    for (size_t i = 0; i < COUNT(ways); i++) {
        const char *const alone[] = {ECS, ways[i][0], ways[i][1], LIMIT("0=1000M"), ALONE, NULL};
        const char *const capped[] = {ECS, ways[i][0], ways[i][1], LIMIT("0=1000M"), CAPPED, NULL};

        assert_int_equal(one_has(f, alone), 24576);
        assert_int_equal(one_has(f, capped), 1000);
        assert_int_equal(found(f, "limit set, but no MPS client"), 1);
        assert_int_equal(found(f, NULL), 1);
    }
}

/* One process with the daemon, one that comes when it is gone: one container, one ceiling. */
static void a_daemon_that_dies_between_two_processes_changes_nothing(void **state)
{
    const struct fixture *f = *state;
    char directory[160];
    const char *const argv[] = {TEST_MPS_CONTROL, "-f", NULL};
    const char *control = fixture_path(f, "pipe/nvidia-cuda-mps-control.pid");
    struct child daemon, a, b;

    snprintf(directory, sizeof(directory), "CUDA_MPS_PIPE_DIRECTORY=%s/pipe", f->directory);
    const char *const host[] = {directory, ALONE, NULL};
    const char *const capped[] = {directory, LIMIT("0=1000M"), CAPPED, "VRAMCAP_SIM_CONTEXT_MIB=0",
                                  NULL};
    assert_true(child_start(&daemon, f, argv, host));
    for (unsigned tries = 0; access(control, F_OK) != 0 && tries < 10000; tries++)
        usleep(1000);
    ready(&a, f, capped);
    assert_int_equal(client_result(&a, "alloc 600m"), 0);
    assert_int_equal(found(f, NULL), 0);
    child_kill(&daemon, SIGKILL);
    ready(&b, f, capped);
    assert_int_equal(client_result(&b, "alloc 402m"), 2);
    assert_int_equal(client_result(&b, "alloc 400m"), 0);
    assert_int_equal(found(f, "limit set, but no MPS client"), 1);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

/* Whoever comes first sets the container's ceiling; nobody raises it later. */
static void a_changed_or_unset_variable_raises_nothing(void **state)
{
    const struct fixture *f = *state;
    const char *const first[] = {ECS, LIMIT("0=1000M"), CAPPED, NULL};
    const char *const higher[] = {ECS, LIMIT("0=8000M"), CAPPED, NULL};
    const char *const unset[] = {ECS, CAPPED, NULL};
    const char *const ours_higher[] = {ECS, CAPPED, "VRAMCAP_MEMORY_MIB=8000", NULL};
    struct child a, b;

    ready(&a, f, first);
    assert_int_equal(client_result(&a, "alloc 600m"), 0);
    assert_int_equal(one_has(f, higher), 400);
    assert_int_equal(found(f, "limit unset or raised in this process"), 1);
    assert_int_equal(one_has(f, ours_higher), 400);
    assert_int_equal(found(f, "limit unset or raised in this process"), 2);
    assert_int_equal(found(f, NULL), 2);
    /* Enabled without a ceiling of its own: an error, and no memory at all. */
    ready(&b, f, unset);
    assert_int_equal(client_result(&b, "alloc 2m"), 2);
    child_kill(&b, SIGKILL);
    assert_int_equal(ledger_charged(f->ledger, 0), 600 * MIB);
    child_kill(&a, SIGKILL);
}

/* ---- which GPU ---- */

static void a_limit_by_uuid_is_the_ceiling_of_that_gpu(void **state)
{
    const struct fixture *f = *state;
    unsigned char uuid[16];
    char text[48], whole[120], part[120];
    struct vcap_snapshot_gpu gpu;

    sim_card_uuid(0, uuid);
    sim_uuid_text(uuid, text);
    snprintf(whole, sizeof(whole), LIMIT("%s=1000M"), text);
    snprintf(part, sizeof(part), LIMIT("%.13s=1000M"), text);
    const char *const lists[] = {whole, part};
    for (size_t i = 0; i < COUNT(lists); i++) {
        const char *const alone[] = {ECS, lists[i], ALONE, NULL};
        const char *const capped[] = {ECS, lists[i], CAPPED, NULL};

        assert_int_equal(one_has(f, alone), 1000);
        assert_int_equal(one_has(f, capped), 1000);
        assert_true(ledger_gpu(f->ledger, 0, &gpu)); /* not MPS's doing alone */
        assert_int_equal(gpu.ceiling_bytes, 1000 * MIB);
        assert_int_equal(unlink(f->ledger), 0);
    }
}

/* ECS writes 0 whatever card the container has. */
static void ordinal_0_is_physical_card_2_where_that_is_the_visible_one(void **state)
{
    const struct fixture *f = *state;
    const char *const alone[] = {
        ECS, "VRAMCAP_SIM_CARDS=4x24576", "CUDA_VISIBLE_DEVICES=2", LIMIT("0=1000M"), ALONE, NULL};
    const char *const capped[] = {
        ECS, "VRAMCAP_SIM_CARDS=4x24576", "CUDA_VISIBLE_DEVICES=2", LIMIT("0=1000M"), CAPPED, NULL};
    const char *const physical[] = {
        ECS, "VRAMCAP_SIM_CARDS=4x24576", "CUDA_VISIBLE_DEVICES=2", LIMIT("2=1000M"), ALONE, NULL};
    struct vcap_snapshot_gpu gpu;
    struct child a, b;

    assert_int_equal(one_has(f, alone), 1000);
    assert_int_equal(one_has(f, physical), 24576); /* 2 is no GPU that it sees */
    ready(&a, f, capped);
    ready(&b, f, capped);
    assert_int_equal(client_result(&a, "alloc 600m"), 0);
    assert_int_equal(client_result(&b, "alloc 402m"), 2);
    assert_int_equal(client_result(&b, "alloc 400m"), 0);
    assert_int_equal(ledger_charged(f->ledger, 2), 1000 * MIB);
    assert_true(ledger_gpu(f->ledger, 2, &gpu));
    assert_int_equal(gpu.ceiling_bytes, 1000 * MIB);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

/* ---- what else MPS answers ---- */

static void errors_of_mps_reach_the_program_and_leave_no_charge(void **state)
{
    const struct fixture *f = *state;
    const char *const capped[] = {
        ECS, LIMIT("0=1000M"), CAPPED, "VRAMCAP_CONTEXT_MIB=50", "VRAMCAP_SIM_MPS_CLIENTS=1", NULL};
    struct sim_state *card;
    struct child a, b;

    ready(&a, f, capped);
    assert_int_equal(client_result(&a, "alloc 100m"), 0);
    assert_true(client_start(&b, f, "dlsym", capped));
    assert_int_equal(client_result(&b, "init"), 0);
    assert_int_equal(client_result(&b, "ctx create 0"), 808); /* too many clients */
    assert_int_equal(ledger_charged(f->ledger, 0), 150 * MIB);
    card = sim_state_open(f->sim);
    assert_non_null(card);
    assert_int_equal(sim_bounds_fault(card, 0, -1, 719), 1);
    sim_state_close(card);
    assert_int_equal(client_result(&a, "alloc 100m"), 719); /* the neighbour's fault */
    assert_int_equal(ledger_charged(f->ledger, 0), 150 * MIB);
    child_kill(&b, SIGKILL);
    assert_true(client_start(&b, f, "dlsym", capped));
    assert_int_equal(client_result(&b, "init"), 807); /* the server recovers */
    child_kill(&a, SIGKILL);
    assert_int_equal(client_result(&b, "init"), 0);
    assert_int_equal(client_result(&b, "ctx create 0"), 0);
    assert_int_equal(client_result(&b, "alloc 950m"), 0);
    child_kill(&b, SIGKILL);
}

/* The device plugin's way to close the second escape: whoever misses the daemon gets no context. */
static void on_an_exclusive_card_a_process_without_mps_gets_no_context(void **state)
{
    const struct fixture *f = *state;
    const char *const client[] = {ECS, LIMIT("0=1000M"), CAPPED,
                                  "VRAMCAP_SIM_COMPUTE_MODE=exclusive", NULL};
    const char *const stray[] = {ECS,
                                 LIMIT("0=1000M"),
                                 CAPPED,
                                 "VRAMCAP_SIM_COMPUTE_MODE=exclusive",
                                 "CUDA_MPS_PIPE_DIRECTORY",
                                 NULL};
    struct child a, b;

    ready(&a, f, client);
    assert_true(client_start(&b, f, "dlsym", stray));
    assert_int_equal(client_result(&b, "init"), 0);
    assert_int_equal(client_result(&b, "ctx create 0"), 46);
    assert_int_equal(client_result(&a, "alloc 1000m"), 0);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

static void a_kernel_limit_below_the_ceiling_holds_and_shows(void **state)
{
    const struct fixture *f = *state;
    char root[160], path[200];
    uint64_t free_bytes, total;
    struct sim_state *card;
    struct child a;
    FILE *file;

    snprintf(root, sizeof(root), "VRAMCAP_SIM_CGROUP_ROOT=%s/cg", f->directory);
    snprintf(path, sizeof(path), "%s/cg/ctr/dmem.max", f->directory);
    setenv("VRAMCAP_SIM_CGROUP_ROOT", strchr(root, '=') + 1, 1);
    card = sim_state_open(f->sim);
    unsetenv("VRAMCAP_SIM_CGROUP_ROOT");
    assert_non_null(card);
    assert_int_equal(sim_cgroup_make(card, "/ctr"), 0);
    sim_state_close(card);
    file = fopen(path, "we");
    assert_non_null(file);
    fprintf(file, "nvidia/00000000:10:00.0/vidmem %llu\n", 512ULL << 20);
    assert_int_equal(fclose(file), 0);
    const char *const capped[] = {ECS,  LIMIT("0=1000M"),          CAPPED,
                                  root, "VRAMCAP_SIM_CGROUP=/ctr", NULL};
    ready(&a, f, capped);
    told(&a, &free_bytes, &total);
    assert_int_equal(total, 512 * MIB);
    assert_int_equal(free_bytes, 512 * MIB);
    assert_int_equal(client_result(&a, "alloc 514m"), 2);
    assert_int_equal(ledger_charged(f->ledger, 0), 0);
    assert_int_equal(client_result(&a, "alloc 512m"), 0);
    child_kill(&a, SIGKILL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(two_processes_take_2000_under_mps_alone_and_1000_under_the_ceiling),
        TEST(programs_see_the_whole_card_under_mps_alone_and_the_ceiling_with_it),
        TEST(a_limit_of_the_server_is_per_process_too),
        TEST(managed_memory_passes_mps_and_is_charged_by_the_ceiling),
        TEST(an_entry_for_an_invisible_gpu_drops_the_limit_and_the_ceiling_holds),
        TEST(without_the_pipe_directory_or_the_daemon_the_ceiling_holds),
        TEST(a_daemon_that_dies_between_two_processes_changes_nothing),
        TEST(a_changed_or_unset_variable_raises_nothing),
        TEST(a_limit_by_uuid_is_the_ceiling_of_that_gpu),
        TEST(ordinal_0_is_physical_card_2_where_that_is_the_visible_one),
        TEST(errors_of_mps_reach_the_program_and_leave_no_charge),
        TEST(on_an_exclusive_card_a_process_without_mps_gets_no_context),
        TEST(a_kernel_limit_below_the_ceiling_holds_and_shows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
