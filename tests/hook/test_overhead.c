/*
 * VRAMCAP_CONTEXT_MIB=auto under an MPS limit: what the driver takes for contexts, modules and slack is
 * measured, exactly, and counted; everywhere else it is unknown.  Here a client's context takes 23 MiB, a
 * module what the scenario says, and both count against the limit of 1000 MiB, as NVIDIA says of MPS's.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/hook/lost_slot.h"
#include "tests/hook/overhead.h"

#define JOURNAL ";VRAMCAP_SIM_JOURNAL=@/journal"
#define UNKNOWN_EVENT "free memory does not fit the limit"

/* ---- contexts ---- */

static int each_context_is_measured_when_it_is_made(void)
{
    CUcontext first, second;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&first, 0, 0));
    HOLDS(0, CONTEXT);
    OK(api.cuCtxCreate_v2(&second, 0, 0));
    HOLDS(0, 2 * CONTEXT);
    SAME(free_now(), 954 * MIB);
    OK(api.cuCtxDestroy_v2(second));
    HOLDS(0, CONTEXT);
    OK(api.cuCtxDestroy_v2(first));
    HOLDS(0, 0);
    OK(api.cuCtxCreate_v2(&first, 0, 0));
    HOLDS(0, CONTEXT);
    return 0;
}

/* Then the driver cannot be asked: what goes is what had come with it. */
static int a_context_that_goes_while_none_is_current_takes_its_share(void)
{
    CUcontext first, second, popped;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&first, 0, 0));
    OK(api.cuCtxCreate_v2(&second, 0, 0));
    CHECK(load() != NULL);
    free_now();
    HOLDS(0, 2 * CONTEXT + 1536 * 1024);
    OK(api.cuCtxPopCurrent_v2(&popped));
    OK(api.cuCtxPopCurrent_v2(&popped));
    OK(api.cuCtxDestroy_v2(first));
    HOLDS(0, CONTEXT + 1536 * 1024);
    OK(api.cuCtxDestroy_v2(second));
    HOLDS(0, 0);
    return 0;
}

static void *create_and_wait_in_the_driver(void *arg)
{
    CUcontext context;

    (void)arg;
    return (void *)(uintptr_t)(api.cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS);
}

static void *retain_and_wait(void *arg)
{
    CUcontext context;

    (void)arg;
    return (void *)(uintptr_t)(api.cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS);
}

/* The thread's context is there, and the driver has not said so yet: two of 300 MiB are too much for the one
 * that is known, and no reason to think that another limit is in force. */
static int no_reason_to_give_up(void *(*make)(void *), const char *call)
{
    CUcontext context;
    pthread_t thread;
    void *bad;

    OK(api.cuInit(0));
    CHECK(pthread_create(&thread, NULL, make, NULL) == 0);
    while (journal_count(call) < 1)
        sched_yield();
    OK(api.cuCtxCreate_v2(&context, 0, 0));
    free_now();
    CHECK(pthread_join(thread, &bad) == 0);
    CHECK(bad == NULL);
    free_now();
    HOLDS(0, 600 * MIB);
    return 0;
}

static int a_context_in_the_making_is_no_reason_to_give_up(void)
{
    return no_reason_to_give_up(create_and_wait_in_the_driver, "cuCtxCreate_v2");
}

static int a_primary_context_in_the_making_is_no_reason_to_give_up(void)
{
    return no_reason_to_give_up(retain_and_wait, "cuDevicePrimaryCtxRetain");
}

static int a_primary_context_is_measured_when_it_is_used(void)
{
    CUcontext primary;
    CUdeviceptr pointer;

    OK(api.cuInit(0));
    OK(api.cuDevicePrimaryCtxRetain(&primary, 0)); /* not current: the driver says nothing of it */
    OK(api.cuCtxSetCurrent(primary));
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    HOLDS(100 * MIB, CONTEXT);
    OK(api.cuDevicePrimaryCtxReset_v2(0));
    HOLDS(0, 0);
    return 0;
}

static int the_last_release_of_a_primary_context_gives_it_back(void)
{
    CUcontext primary;
    CUdeviceptr pointer;

    OK(api.cuInit(0));
    OK(api.cuDevicePrimaryCtxRetain(&primary, 0));
    OK(api.cuDevicePrimaryCtxRetain(&primary, 0));
    OK(api.cuCtxSetCurrent(primary));
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    OK(api.cuDevicePrimaryCtxRelease_v2(0));
    HOLDS(100 * MIB, CONTEXT);
    OK(api.cuDevicePrimaryCtxRelease_v2(0));
    HOLDS(0, 0);
    return 0;
}

/* ---- modules and slack ---- */

static int modules_are_seen_at_the_next_question(void)
{
    CUmodule one, two;

    OK(begin(0));
    one = load();
    two = load();
    CHECK(one != NULL && two != NULL);
    SAME(free_now(), 1000 * MIB - CONTEXT - 2 * 1536 * 1024);
    HOLDS(0, CONTEXT + 2 * 1536 * 1024);
    OK(api.cuModuleUnload(one));
    SAME(free_now(), 1000 * MIB - CONTEXT - 1536 * 1024);
    HOLDS(0, CONTEXT + 1536 * 1024);
    OK(api.cuModuleUnload(two));
    free_now();
    HOLDS(0, CONTEXT);
    return 0;
}

/* A program that never asks waits for its work now and then. */
static int modules_are_seen_soon_after_a_wait(void)
{
    OK(begin(0));
    CHECK(load() != NULL);
    while (gpu_row(0).overhead_bytes == CONTEXT) { /* at most every 100 ms */
        OK(api.cuCtxSynchronize());
        usleep(1000);
    }
    HOLDS(0, CONTEXT + 1536 * 1024);
    return 0;
}

/* A driver that frees waits for itself, and is not asked anything in the middle of that. */
static int the_drivers_own_wait_is_no_occasion(void)
{
    CUdeviceptr pointer;
    unsigned asked;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 2 * MIB));
    CHECK(load() != NULL);
    asked = journal_count("cuMemGetInfo_v2");
    OK(api.cuMemFree_v2(pointer));
    SAME(journal_count("cuCtxSynchronize"), 1);
    SAME(journal_count("cuMemGetInfo_v2"), asked);
    HOLDS(0, CONTEXT);
    OK(api.cuCtxSynchronize()); /* the program's: the first, which is due */
    HOLDS(0, CONTEXT + 1536 * 1024);
    return 0;
}

static int slack_of_small_allocations_is_overhead(void)
{
    CUdeviceptr small, next;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&small, 1));
    free_now();
    HOLDS(512, CONTEXT + 2 * MIB - 512);
    OK(api.cuMemAlloc_v2(&next, 4096)); /* out of the same block */
    free_now();
    HOLDS(4608, CONTEXT + 2 * MIB - 4608);
    OK(api.cuMemFree_v2(small));
    OK(api.cuMemFree_v2(next));
    free_now();
    HOLDS(0, CONTEXT);
    return 0;
}

static int a_question_for_the_total_alone_teaches_nothing(void)
{
    size_t total = 0;

    OK(begin(0));
    CHECK(load() != NULL);
    OK(api.cuMemGetInfo_v2(NULL, &total));
    SAME(total, 1000 * MIB);
    HOLDS(0, CONTEXT);
    return 0;
}

/* ---- what is refused because of it ---- */

static int overhead_counts_against_the_ceiling(void)
{
    CUdeviceptr pointer = 0x77, rest;

    OK(begin(0));
    REFUSED(api.cuMemAlloc_v2(&pointer, 978 * MIB));
    SAME(pointer, 0x77);
    SAME(gpu_row(0).refusals, 1);
    SAME(gpu_row(0).device_full, 0); /* not the driver's word */
    OK(api.cuMemAlloc_v2(&pointer, 976 * MIB));
    HOLDS(976 * MIB, CONTEXT);
    REFUSED(api.cuMemAlloc_v2(&rest, 2 * MIB));
    SAME(gpu_row(0).refusals, 2);
    CHECK(!gpu_row(0).over);
    return 0;
}

/* 300 MiB of modules come and go unseen: what they took is asked anew before anything is refused. */
static int a_figure_that_is_out_of_date_refuses_nothing(void)
{
    CUdeviceptr pointer;
    CUmodule module;

    OK(begin(0));
    module = load();
    free_now();
    HOLDS(0, CONTEXT + 300 * MIB);
    OK(api.cuModuleUnload(module));
    HOLDS(0, CONTEXT + 300 * MIB);
    OK(api.cuMemAlloc_v2(&pointer, 900 * MIB));
    HOLDS(900 * MIB, CONTEXT);
    SAME(gpu_row(0).refusals, 0);
    return 0;
}

static int the_same_for_pools_and_limits_of_contexts(void)
{
    CUdeviceptr pointer;
    CUmodule module;

    OK(begin(0));
    module = load();
    free_now();
    OK(api.cuModuleUnload(module));
    HOLDS(0, CONTEXT + 300 * MIB);
    OK(api.cuMemAllocAsync(&pointer, 896 * MIB, NULL));
    HOLDS(896 * MIB, CONTEXT);
    OK(api.cuMemFreeAsync(pointer, NULL));
    OK(api.cuCtxSynchronize());
    module = load();
    free_now();
    OK(api.cuModuleUnload(module));
    HOLDS(0, CONTEXT + 300 * MIB);
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 808 * MIB)); /* 800 more than it came with */
    HOLDS(800 * MIB, CONTEXT);
    SAME(gpu_row(0).refusals, 0);
    return 0;
}

/* Overhead that is found late is booked although it has no room; then nothing more is granted. */
static int growth_that_has_no_room_leaves_the_gpu_over(void)
{
    CUdeviceptr pointer, more;

    OK(begin(0)); /* ceiling 500, limit 1000 */
    OK(api.cuMemAlloc_v2(&pointer, 400 * MIB));
    CHECK(load() != NULL);
    SAME(free_now(), 0);
    HOLDS(400 * MIB, CONTEXT + 300 * MIB);
    CHECK(gpu_row(0).over);
    SAME(ledger_events(self.ledger, VCAP_LF_EVENT_OVER), 1);
    REFUSED(api.cuMemAlloc_v2(&more, 512));
    return 0;
}

/* ---- where it is not measured ---- */

static int it_is_unknown_and_nothing_is_charged(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    CHECK(load() != NULL);
    CHECK(free_now() != 0);
    HOLDS(100 * MIB, VCAP_UNKNOWN);
    return 0;
}

/* The server has 300 MiB for its clients: what is free does not fit the variable's 1000. */
static int a_lower_limit_of_the_server_is_not_taken_for_overhead(void)
{
    struct vcap_snapshot snapshot;
    unsigned events = 0;
    CUdeviceptr pointer;

    OK(begin(0));
    HOLDS(0, VCAP_UNKNOWN);
    SAME(free_now(), 277 * MIB);
    OK(api.cuMemAlloc_v2(&pointer, 276 * MIB));
    HOLDS(276 * MIB, VCAP_UNKNOWN);
    CHECK(ledger_read(self.ledger, &snapshot));
    for (uint32_t i = 0; i < snapshot.event_count; i++)
        events += snapshot.events[i].kind == VCAP_LF_EVENT_MPS &&
                  strcmp(snapshot.events[i].name, UNKNOWN_EVENT) == 0;
    vcap_snapshot_free(&snapshot);
    SAME(events, 1);
    return 0;
}

static int a_fixed_charge_takes_its_place(void)
{
    CUcontext context;

    OK(begin(0));
    HOLDS(0, 50 * MIB);
    OK(api.cuCtxCreate_v2(&context, 0, 0));
    CHECK(load() != NULL);
    free_now();
    HOLDS(0, 100 * MIB);
    return 0;
}

/* ---- many threads ---- */

#define ROUNDS 300
static bool stop; /* atomic */

static void *busy(void *arg)
{
    CUcontext context = arg;
    int bad = 0;

    if (api.cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return (void *)1;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        CUdeviceptr linear, pitched, pooled;
        size_t pitch;

        bad += api.cuMemAlloc_v2(&linear, 8 * MIB) != CUDA_SUCCESS ||
               api.cuMemAllocPitch_v2(&pitched, &pitch, 5, 8192, 4) != CUDA_SUCCESS ||
               api.cuMemAllocAsync(&pooled, 48 * MIB, NULL) != CUDA_SUCCESS ||
               api.cuMemFreeAsync(pooled, NULL) != CUDA_SUCCESS ||
               api.cuCtxSynchronize() != CUDA_SUCCESS ||
               api.cuMemFree_v2(pitched) != CUDA_SUCCESS ||
               api.cuMemFree_v2(linear) != CUDA_SUCCESS;
    }
    return (void *)(uintptr_t)bad;
}

/* What is in the middle of a call is not taken for overhead: the figure is never above the truth. */
static int other_threads_calls_are_not_taken_for_overhead(void)
{
    pthread_t threads[3];
    CUcontext context;
    void *bad;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&context, 0, 0));
    for (size_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, busy, context) == 0);
    for (unsigned i = 0; i < ROUNDS; i++) {
        free_now();
        CHECK(gpu_row(0).overhead_bytes <= CONTEXT);
        sched_yield();
    }
    __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
    for (size_t i = 0; i < 3; i++) {
        CHECK(pthread_join(threads[i], &bad) == 0);
        CHECK(bad == NULL);
    }
    OK(api.cuCtxSynchronize());
    free_now();
    HOLDS(0, CONTEXT);
    SAME(gpu_row(0).refusals, 0);
    SAME(gpu_row(0).device_full, 0);
    return 0;
}

/* ---- several processes, a lost slot ---- */

static int hold_and_wait(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    CHECK(load() != NULL);
    free_now();
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}

static int take_all_that_is_left(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    REFUSED(api.cuMemAlloc_v2(&pointer, 978 * MIB));
    OK(api.cuMemAlloc_v2(&pointer, 976 * MIB));
    HOLDS(976 * MIB, CONTEXT);
    return 0;
}

static void holder(const struct fixture *f, struct child *c, const char *more)
{
    char line[64];

    assert_true(scenario_start(f, "hold_and_wait", more, c));
    assert_true(child_line(c, line, sizeof(line), FIXTURE_DEADLINE_MS));
    assert_string_equal(line, "ready");
}

static void it_is_unknown_without_a_limit_that_is_known(void **state)
{
    /* a card of 1100 MiB of which 900 are free, so that free memory alone does not give it away */
#define NEARLY_FULL ";VRAMCAP_SIM_CARDS=1100;VRAMCAP_SIM_CONTEXT_MIB=200"
    static const char *const ways[] = {
        NULL,                            /* an MPS client without a limit */
        "VRAMCAP_SIM_MPS_LIMIT=0=1000M", /* the server's alone */
        /* no client; an entry for an invisible GPU, so that no limit is left; two entries */
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1000M;CUDA_MPS_PIPE_DIRECTORY=/nowhere" NEARLY_FULL,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1000M,1=1000M" NEARLY_FULL,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1000M,0=1100M;VRAMCAP_SIM_CONTEXT_MIB=200",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1000M;CUDA_MPS_PIPE_DIRECTORY=/nowhere",
    };
    const struct fixture *f = *state;
    static struct child_output output;

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        scenario_run(f, "it_is_unknown_and_nothing_is_charged", ways[i], &output);
        if (output.status != 0)
            fprintf(stderr, "%s\n%s", ways[i] == NULL ? "no limit" : ways[i], output.err);
        assert_int_equal(output.status, 0);
    }
}

static void each_process_has_its_own_and_one_that_ends_gives_it_back(void **state)
{
    const struct fixture *f = *state;
    static struct child_output output;
    struct vcap_snapshot_gpu row;
    struct child a, b;

    holder(f, &a, NULL);
    holder(f, &b, NULL);
    assert_true(ledger_gpu(f->ledger, 0, &row));
    assert_int_equal(row.charged_bytes, 200 * MIB);
    assert_int_equal(row.overhead_bytes, 2 * (CONTEXT + 30 * MIB));
    assert_int_equal(row.held_bytes, 200 * MIB + 2 * (CONTEXT + 30 * MIB));
    child_kill(&a, SIGKILL);
    assert_true(ledger_gpu(f->ledger, 0, &row));
    assert_int_equal(row.charged_bytes, 100 * MIB);
    assert_int_equal(row.overhead_bytes, CONTEXT + 30 * MIB);
    child_kill(&b, SIGKILL);
    scenario_run(f, "take_all_that_is_left", NULL, &output);
    if (output.status != 0)
        fprintf(stderr, "%s", output.err);
    assert_int_equal(output.status, 0);
}

/* A GPU's overhead is what is known of all: with one process unknown it is unknown. */
static void one_process_that_is_not_measured_makes_the_sum_unknown(void **state)
{
    const struct fixture *f = *state;
    struct vcap_snapshot snapshot;
    struct vcap_snapshot_gpu row;
    unsigned known = 0, unknown = 0;
    struct child a, b;

    holder(f, &a, NULL);
    holder(f, &b, "CUDA_MPS_PIPE_DIRECTORY=/nowhere");
    assert_true(ledger_gpu(f->ledger, 0, &row));
    assert_int_equal(row.overhead_bytes, VCAP_UNKNOWN);
    assert_true(ledger_read(f->ledger, &snapshot));
    for (uint32_t i = 0; i < snapshot.process_count; i++) {
        assert_int_equal(snapshot.processes[i].charge_count, 1);
        known += snapshot.processes[i].charges[0].overhead_bytes == CONTEXT + 30 * MIB;
        unknown += snapshot.processes[i].charges[0].overhead_bytes == VCAP_UNKNOWN;
    }
    vcap_snapshot_free(&snapshot);
    assert_int_equal(known, 1);
    assert_int_equal(unknown, 1);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

static int in_a_new_slot_it_is_booked_again(void)
{
    CUdeviceptr pointer, more;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    HOLDS(100 * MIB, CONTEXT);
    CHECK(lose_slot());
    OK(api.cuMemAlloc_v2(&more, 100 * MIB));
    HOLDS(200 * MIB, CONTEXT);
    SAME(free_now(), 800 * MIB - CONTEXT);
    HOLDS(200 * MIB, CONTEXT);
    return 0;
}

#define MANY 60000
#define SLOTS_LOST 10

static void *ask_all_the_time(void *arg)
{
    int bad = api.cuCtxSetCurrent(arg) != CUDA_SUCCESS;

    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        uint64_t overhead;

        free_now();
        overhead = gpu_row(0).overhead_bytes;
        /* twice: a reader that is overtaken may see it in the old slot and in the new one */
        bad += overhead != VCAP_UNKNOWN && overhead > 2 * CONTEXT;
    }
    return (void *)(uintptr_t)bad;
}

/* While a process books everything again, what is not booked yet is not taken for overhead.  Card 1 has so much
 * to be booked that the question comes in between. */
static int what_is_not_in_the_new_slot_yet_is_not_taken_for_overhead(void)
{
    CUcontext first, second;
    CUdeviceptr pointer;
    pthread_t thread;
    uint64_t state;
    int32_t slot;
    void *bad;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&first, 0, 0));
    for (unsigned i = 0; i < 16; i++)
        OK(api.cuMemAlloc_v2(&pointer, 20 * MIB));
    free_now();
    HOLDS(320 * MIB, CONTEXT);
    OK(api.cuCtxCreate_v2(&second, 0, 1));
    for (unsigned i = 0; i < MANY; i++)
        OK(api.cuMemAlloc_v2(&pointer, 512));
    CHECK(pthread_create(&thread, NULL, ask_all_the_time, first) == 0);
    for (unsigned i = 0; i < SLOTS_LOST; i++) {
        do { /* the one before may be found too, until somebody has reaped it */
            slot = my_slot();
            CHECK(slot >= 0);
            state = read_state(slot);
        } while (vcap_lf_state_status(state) != VCAP_LF_LIVE);
        CHECK(write_state(slot, vcap_lf_state(vcap_lf_state_generation(state),
                                              (enum vcap_lf_kind)vcap_lf_state_kind(state),
                                              VCAP_LF_DEAD))); /* as a reaper judges */
        OK(api.cuMemAlloc_v2(&pointer, 512));
    }
    __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
    CHECK(pthread_join(thread, &bad) == 0);
    CHECK(bad == NULL);
    OK(api.cuCtxSetCurrent(first));
    free_now();
    HOLDS(320 * MIB, CONTEXT);
    return 0;
}

#define TEST(name) cmocka_unit_test(name)

int main(int argc, char **argv)
{
    static const struct scenario scenarios[] = {
        SCENARIO(each_context_is_measured_when_it_is_made, CLIENT LIMIT),
        SCENARIO(a_context_that_goes_while_none_is_current_takes_its_share,
                 CLIENT LIMIT MODULE(1536)),
        SCENARIO(a_context_in_the_making_is_no_reason_to_give_up,
                 CLIENT LIMIT JOURNAL ";VRAMCAP_SIM_CONTEXT_MIB=300;"
                                      "VRAMCAP_SIM_DELAY_US=cuCtxCreate_v2/after:400000:1"),
        SCENARIO(a_primary_context_in_the_making_is_no_reason_to_give_up, CLIENT LIMIT JOURNAL
                 ";VRAMCAP_SIM_CONTEXT_MIB=300;"
                 "VRAMCAP_SIM_DELAY_US=cuDevicePrimaryCtxRetain/after:400000:1"),
        SCENARIO(a_primary_context_is_measured_when_it_is_used, CLIENT LIMIT),
        SCENARIO(the_last_release_of_a_primary_context_gives_it_back, CLIENT LIMIT),
        SCENARIO(modules_are_seen_at_the_next_question, CLIENT LIMIT MODULE(1536)),
        SCENARIO(modules_are_seen_soon_after_a_wait, CLIENT LIMIT MODULE(1536)),
        SCENARIO(the_drivers_own_wait_is_no_occasion,
                 CLIENT LIMIT MODULE(1536) JOURNAL ";VRAMCAP_SIM_INNER=1"),
        SCENARIO(slack_of_small_allocations_is_overhead, CLIENT LIMIT),
        SCENARIO(a_question_for_the_total_alone_teaches_nothing, CLIENT LIMIT MODULE(1536)),
        SCENARIO(overhead_counts_against_the_ceiling, CLIENT LIMIT),
        SCENARIO(a_figure_that_is_out_of_date_refuses_nothing, CLIENT LIMIT MODULE(307200)),
        SCENARIO(the_same_for_pools_and_limits_of_contexts, CLIENT LIMIT MODULE(307200)),
        SCENARIO(growth_that_has_no_room_leaves_the_gpu_over,
                 CLIENT LIMIT MODULE(307200) ";VRAMCAP_MEMORY_MIB=500"),
        SCENARIO(a_lower_limit_of_the_server_is_not_taken_for_overhead,
                 CLIENT LIMIT ";VRAMCAP_SIM_MPS_LIMIT=0=300M"),
        SCENARIO(a_fixed_charge_takes_its_place,
                 CLIENT LIMIT MODULE(1536) ";VRAMCAP_CONTEXT_MIB=50"),
        SCENARIO(other_threads_calls_are_not_taken_for_overhead, CLIENT LIMIT),
        SCENARIO(in_a_new_slot_it_is_booked_again, CLIENT LIMIT),
        SCENARIO(what_is_not_in_the_new_slot_yet_is_not_taken_for_overhead,
                 CLIENT LIMIT ",1=1000M;VRAMCAP_SIM_CARDS=2x24576"),
        HIDDEN(it_is_unknown_and_nothing_is_charged, CLIENT MODULE(1536)),
        HIDDEN(hold_and_wait, CLIENT LIMIT MODULE(30720)),
        HIDDEN(take_all_that_is_left, CLIENT LIMIT),
    };
    static const struct CMUnitTest tests[] = {
        TEST(it_is_unknown_without_a_limit_that_is_known),
        TEST(each_process_has_its_own_and_one_that_ends_gives_it_back),
        TEST(one_process_that_is_not_measured_makes_the_sum_unknown),
    };

    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
