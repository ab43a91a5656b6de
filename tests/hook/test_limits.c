/*
 * cuCtxSetLimit: what a limit takes beyond the context's own value is charged, refused beyond the ceiling
 * with the old value left in force, and given back with the context.
 */
#include "tests/hook/scenario.h"

#include <pthread.h>
#include <unistd.h>

#include "enforcer/ledger.h"
#include "sim.h"
#include "tests/hook/lost_slot.h"

static uint64_t threads(void)
{
    int processors = 0, each = 0;

    api.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
    api.cuDeviceGetAttribute(&each, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0);
    return (uint64_t)processors * (uint64_t)each;
}

static uint64_t pages(uint64_t bytes)
{
    return (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

static size_t value_of(CUlimit limit)
{
    size_t value = SIZE_MAX;

    api.cuCtxGetLimit(&value, limit);
    return value;
}

static int a_stack_is_charged_for_all_resident_threads(void)
{
    size_t before;

    OK(begin(0));
    CHECK(threads() != 0);
    before = value_of(CU_LIMIT_STACK_SIZE);
    OK(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before + 1024));
    SAME(charged(0), pages(1024 * threads()));
    OK(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before + 2048));
    SAME(charged(0), pages(2048 * threads()));
    OK(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before));
    SAME(charged(0), 0);
    return 0;
}

static int four_gib_do_not_pass_through_a_stack(void)
{
    size_t before;

    OK(begin(0));
    before = value_of(CU_LIMIT_STACK_SIZE);
    REFUSED(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before + 16384));
    SAME(value_of(CU_LIMIT_STACK_SIZE), before);
    SAME(charged(0), 0);
    SAME(gpu_row(0).refusals, 1);
    SAME(journal_count("cuCtxSetLimit"), 0);
    REFUSED(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, SIZE_MAX));
    REFUSED(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, SIZE_MAX));
    REFUSED(api.cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, SIZE_MAX));
    SAME(charged(0), 0);
    return 0;
}

static int heap_and_fifo_are_charged_together(void)
{
    uint64_t heap, fifo;
    CUdeviceptr pointer;

    OK(begin(0));
    heap = value_of(CU_LIMIT_MALLOC_HEAP_SIZE);
    fifo = value_of(CU_LIMIT_PRINTF_FIFO_SIZE);
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB));
    OK(api.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 300 * MIB));
    SAME(charged(0), pages(500 * MIB - heap) + pages(300 * MIB - fifo));
    REFUSED(api.cuMemAlloc_v2(&pointer, 300 * MIB));
    REFUSED(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 900 * MIB));
    SAME(value_of(CU_LIMIT_MALLOC_HEAP_SIZE), 500 * MIB);
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 100 * MIB));
    SAME(charged(0), pages(100 * MIB - heap) + pages(300 * MIB - fifo));
    OK(api.cuMemAlloc_v2(&pointer, 300 * MIB));
    return 0;
}

static int launches_of_the_device_runtime_are_charged(void)
{
    size_t depth = 0, launches;

    OK(begin(0));
    launches = value_of(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT);
    OK(api.cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, launches + 65536));
    CHECK(charged(0) >= 512 * MIB);
    OK(api.cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, launches));
    SAME(charged(0), 0);
    if (api.cuCtxGetLimit(&depth, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH) != CUDA_SUCCESS) {
        GIVES(api.cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 9), CUDA_ERROR_UNSUPPORTED_LIMIT);
        return 0;
    }
    REFUSED(api.cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, depth + 8));
    SAME(value_of(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH), depth);
    return 0;
}

static int limits_that_take_no_memory_pass(void)
{
    OK(begin(0));
    OK(api.cuCtxSetLimit(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 128));
    OK(api.cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, SIZE_MAX));
    SAME(value_of(CU_LIMIT_MAX_L2_FETCH_GRANULARITY), 128);
    GIVES(api.cuCtxSetLimit((CUlimit)11, 1), CUDA_ERROR_UNSUPPORTED_LIMIT);
    GIVES(api.cuCtxSetLimit((CUlimit)-1, 1), CUDA_ERROR_UNSUPPORTED_LIMIT);
    SAME(journal_count("cuCtxGetLimit"), 1);
    return 0;
}

/* CU_LIMIT_PER_BLOCK_MEMORY_SIZE, newer than the headers that this may be built with. */
static int memory_of_blocks_is_charged_where_the_driver_has_it(void)
{
    const CUlimit of_a_block = (CUlimit)10;
    int processors = 0, each = 0;
    size_t before = 0;

    OK(begin(0));
    if (api.cuCtxGetLimit(&before, of_a_block) != CUDA_SUCCESS) {
        GIVES(api.cuCtxSetLimit(of_a_block, 1024), CUDA_ERROR_UNSUPPORTED_LIMIT);
        SAME(charged(0), 0);
        return 0;
    }
    OK(api.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    OK(api.cuDeviceGetAttribute(&each, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 0));
    OK(api.cuCtxSetLimit(of_a_block, before + 65536));
    SAME(charged(0), pages(UINT64_C(65536) * (uint64_t)processors * (uint64_t)each));
    REFUSED(api.cuCtxSetLimit(of_a_block, before + 65536 * 16));
    SAME(value_of(of_a_block), before + 65536);
    OK(api.cuCtxSetLimit(of_a_block, before));
    SAME(charged(0), 0);
    return 0;
}

static int without_a_context_the_driver_answers(void)
{
    OK(api.cuInit(0));
    GIVES(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, SIZE_MAX), CUDA_ERROR_INVALID_CONTEXT);
    return 0;
}

static int a_driver_that_fails_changes_no_charge(void)
{
    OK(begin(0));
    GIVES(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB), CUDA_ERROR_INVALID_VALUE);
    SAME(charged(0), 0);
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB));
    GIVES(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 900 * MIB), 2);
    CHECK(charged(0) <= 500 * MIB && charged(0) >= 480 * MIB);
    SAME(gpu_row(0).refusals, 0);
    return 0;
}

static int a_failed_reading_keeps_the_higher_figure(void)
{
    OK(begin(0));
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE,
                         500 * MIB)); /* readings 1 and 2, the latter bad */
    CHECK(charged(0) >= 480 * MIB);
    return 0;
}

/* A stack of one byte more takes 16 a thread; the reading that would tell is lost.  Setting it to what it is,
 * or lower, takes nothing more: it passes though the ceiling is reached, and what was missed is booked. */
static int what_a_failed_reading_missed_is_booked_without_refusal(void)
{
    size_t before, wide;
    CUdeviceptr pointer;

    OK(begin(0));
    before = value_of(CU_LIMIT_STACK_SIZE); /* reading 1, then 2 and the bad one */
    OK(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before + 17));
    SAME(charged(0), pages(17 * threads()));
    OK(api.cuMemAlloc_v2(&pointer, 64 * MIB - pages(17 * threads())));
    wide = value_of(CU_LIMIT_STACK_SIZE);
    SAME(wide, before + 32);
    OK(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, wide - 1)); /* which is rounded up to what it is */
    SAME(value_of(CU_LIMIT_STACK_SIZE), wide);
    SAME(charged(0), 64 * MIB - pages(17 * threads()) + pages(32 * threads()));
    OK(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, wide));
    SAME(gpu_row(0).refusals, 0);
    REFUSED(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, wide + 1)); /* the GPU is over */
    OK(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before));
    SAME(charged(0), 64 * MIB - pages(17 * threads()));
    return 0;
}

/* The driver refuses, and does not say what is in force: what was reserved stays charged until something else
 * would be refused because of it. */
static int what_a_failed_reading_left_charged_refuses_nothing(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    GIVES(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 508 * MIB),
          2); /* reading 1, then a bad one */
    SAME(charged(0), 500 * MIB);
    OK(api.cuMemAlloc_v2(&pointer, 500 * MIB));
    SAME(charged(0), 1000 * MIB);
    OK(api.cuMemFree_v2(pointer));
    OK(api.cuMemAlloc_v2(&pointer, 1024 * MIB));
    SAME(charged(0), 1024 * MIB);
    SAME(gpu_row(0).refusals, 0);
    return 0;
}

/* The same where the next one is a limit, of the same context and another. */
static int nor_another_limit(void)
{
    OK(begin(0));
    GIVES(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 508 * MIB), 2);
    SAME(charged(0), 500 * MIB);
    OK(api.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 1001 * MIB));
    SAME(charged(0), 1000 * MIB);
    SAME(gpu_row(0).refusals, 0);
    return 0;
}

/* Only in its own context can a limit be read. */
static int it_is_read_again_in_its_own_context_only(void)
{
    CUcontext first, second;
    CUdeviceptr pointer;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&first, 0, 0));
    GIVES(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 508 * MIB), 2);
    OK(api.cuCtxCreate_v2(&second, 0, 0));
    REFUSED(api.cuMemAlloc_v2(&pointer, 1024 * MIB));
    SAME(charged(0), 500 * MIB);
    OK(api.cuCtxSetCurrent(first));
    OK(api.cuMemAlloc_v2(&pointer, 1024 * MIB));
    SAME(charged(0), 1024 * MIB);
    return 0;
}

/* 32 bytes a thread have no room, where 17 had; the old value cannot be put back, and the driver does not say
 * any more what is in force. */
static int what_the_driver_has_said_is_charged_though_it_falls_silent(void)
{
    size_t before;
    CUdeviceptr pointer;

    OK(begin(0));
    before = value_of(CU_LIMIT_STACK_SIZE); /* reading 1, then 2 to 4 and the bad one */
    OK(api.cuMemAlloc_v2(&pointer, 64 * MIB - pages(17 * threads())));
    REFUSED(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before + 17));
    SAME(value_of(CU_LIMIT_STACK_SIZE), before + 32);
    SAME(charged(0), 64 * MIB - pages(17 * threads()) + pages(32 * threads()));
    CHECK(gpu_row(0).over);
    return 0;
}

/* It falls silent one reading earlier: what it said then has no room. */
static int what_the_driver_has_said_is_refused_though_it_falls_silent(void)
{
    size_t before;
    CUdeviceptr pointer;

    OK(begin(0));
    before = value_of(CU_LIMIT_STACK_SIZE);
    OK(api.cuMemAlloc_v2(&pointer, 64 * MIB - pages(17 * threads())));
    REFUSED(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before + 17));
    SAME(value_of(CU_LIMIT_STACK_SIZE), before);
    SAME(charged(0), 64 * MIB - pages(17 * threads()));
    return 0;
}

/* The old value is in force again, and the driver does not say so: no more is charged than was reserved, until
 * something else has no room. */
static int what_was_put_back_is_no_growth_though_it_falls_silent(void)
{
    CUdeviceptr pointer;
    size_t before;

    OK(begin(0));
    before = value_of(CU_LIMIT_STACK_SIZE);
    OK(api.cuMemAlloc_v2(&pointer, 64 * MIB - pages(17 * threads())));
    REFUSED(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before + 17));
    SAME(value_of(CU_LIMIT_STACK_SIZE), before);
    SAME(charged(0), 64 * MIB);
    OK(api.cuMemAlloc_v2(&pointer, pages(17 * threads())));
    SAME(charged(0), 64 * MIB);
    return 0;
}

/* Somebody else has this process's slot, the only one. */
static bool steal_slot(int32_t *slot, uint64_t *state)
{
    *slot = my_slot();
    *state = vcap_lf_state(vcap_lf_state_generation(read_state(*slot)) + 1, VCAP_LF_KIND_PID,
                           VCAP_LF_LIVE);
    return *slot >= 0 && write_owner(*slot, (uint32_t)getppid()) && write_state(*slot, *state);
}

/* It is free again, and this process has it, and 512 bytes. */
static bool give_slot_back(int32_t slot, uint64_t state)
{
    CUdeviceptr pointer;

    if (!forget_charges(slot) || !write_state(slot, vcap_lf_state(vcap_lf_state_generation(state),
                                                                  VCAP_LF_KIND_NONE, VCAP_LF_FREE)))
        return false;
    for (int i = 0; i < 2000; i++) { /* it looks again at most once a second */
        if (api.cuMemAlloc_v2(&pointer, 512) == CUDA_SUCCESS)
            return true;
        usleep(20000);
    }
    return false;
}

/* What was missed cannot be booked, which is no doing of a call that takes nothing (value: above what was there at
 * first): it passes, and the next one in a slot finds it. */
static int late_growth_without_a_slot(size_t value)
{
    int32_t slot;
    size_t before, wide;
    uint64_t state;
    CUdeviceptr pointer;

    OK(begin(0));
    before = value_of(CU_LIMIT_STACK_SIZE);
    OK(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before + 17));
    SAME(charged(0), pages(17 * threads()));
    wide = value_of(CU_LIMIT_STACK_SIZE);
    CHECK(steal_slot(&slot, &state));
    OK(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before + value));
    SAME(value_of(CU_LIMIT_STACK_SIZE), wide);
    REFUSED(api.cuMemAlloc_v2(&pointer, 512));
    CHECK(give_slot_back(slot, state));
    SAME(charged(0), pages(17 * threads()) + 512);
    OK(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, wide));
    SAME(charged(0), pages(32 * threads()) + 512);
    return 0;
}

static int what_is_lowered_while_all_is_denied_refuses_nothing_afterwards(void)
{
    int32_t slot;
    uint64_t state;
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 508 * MIB));
    CHECK(steal_slot(&slot, &state));
    REFUSED(api.cuMemAlloc_v2(&pointer, 512));
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 108 * MIB));
    CHECK(give_slot_back(slot, state));
    SAME(charged(0), 500 * MIB + 512);
    OK(api.cuMemAlloc_v2(&pointer, 900 * MIB));
    SAME(charged(0), 1000 * MIB + 512);
    return 0;
}

static int late_growth_that_cannot_be_booked_ahead_refuses_nothing(void)
{
    return late_growth_without_a_slot(31);
}

static int late_growth_that_cannot_be_booked_afterwards_refuses_nothing(void)
{
    return late_growth_without_a_slot(17);
}

static int a_limit_that_cannot_be_read_is_not_set(void)
{
    OK(begin(0));
    GIVES(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB), CUDA_ERROR_UNKNOWN);
    SAME(charged(0), 0);
    SAME(journal_count("cuCtxSetLimit"), 0);
    return 0;
}

static int destroying_a_context_gives_its_limits_back(void)
{
    CUcontext first, second, primary;
    uint64_t heap;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&first, 0, 0));
    heap = value_of(CU_LIMIT_MALLOC_HEAP_SIZE);
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB));
    OK(api.cuCtxCreate_v2(&second, 0, 0));
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 300 * MIB));
    SAME(charged(0), 800 * MIB - 2 * heap);
    OK(api.cuCtxDestroy_v2(first));
    SAME(charged(0), 300 * MIB - heap);
    OK(api.cuDevicePrimaryCtxRetain(&primary, 0));
    OK(api.cuCtxPushCurrent_v2(primary));
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 600 * MIB));
    SAME(charged(0), 900 * MIB - 2 * heap);
    OK(api.cuDevicePrimaryCtxReset_v2(0));
    SAME(charged(0), 300 * MIB - heap);
    OK(api.cuCtxDestroy_v2(second));
    SAME(charged(0), 0);
    return 0;
}

static CUcontext shared;

static void *many_settings(void *arg)
{
    size_t mine = (size_t)(uintptr_t)arg * 20 * MIB;

    api.cuCtxSetCurrent(shared);
    for (unsigned i = 0; i < 300; i++)
        if (api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, mine + i % 7 * 2 * MIB) != CUDA_SUCCESS)
            return arg;
    return NULL;
}

static int threads_that_set_one_limit_end_at_what_the_driver_says(void)
{
    pthread_t thread[4];
    uint64_t heap;
    void *failed;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&shared, 0, 0));
    heap = value_of(CU_LIMIT_MALLOC_HEAP_SIZE);
    for (uintptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&thread[i], NULL, many_settings, (void *)(i + 1)) == 0);
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(thread[i], &failed);
        CHECK(failed == NULL);
    }
    SAME(charged(0), pages(value_of(CU_LIMIT_MALLOC_HEAP_SIZE) - heap));
    OK(api.cuCtxDestroy_v2(shared));
    SAME(charged(0), 0);
    return 0;
}

/* ---- readings that are old when they are booked: the simulator waits where the text says ---- */

static void *one_setting(void *arg)
{
    api.cuCtxSetCurrent(shared);
    return api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, (size_t)(uintptr_t)arg) == CUDA_SUCCESS
               ? NULL
               : arg;
}

/* Until the driver has been called that often, and a little longer. */
static bool wait_for_calls(const char *symbol, unsigned count)
{
    for (int i = 0; i < 5000 && journal_count(symbol) < count; i++)
        usleep(1000);
    usleep(20000);
    return journal_count(symbol) >= count;
}

/* The first call's second reading waits on its way out while another sets the limit high and is done. */
static int a_reading_that_another_call_overtook_is_not_booked(void)
{
    pthread_t thread;
    uint64_t heap;
    void *failed;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&shared, 0, 0));
    heap = 8 * MIB;
    CHECK(pthread_create(&thread, NULL, one_setting, (void *)(uintptr_t)(20 * MIB)) == 0);
    CHECK(wait_for_calls("cuCtxGetLimit", 2));
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB));
    pthread_join(thread, &failed);
    CHECK(failed == NULL);
    SAME(value_of(CU_LIMIT_MALLOC_HEAP_SIZE), 500 * MIB);
    SAME(charged(0), pages(500 * MIB - heap));
    return 0;
}

/* Denied all else, another thread lowers the limit. */
static int a_reading_that_a_denied_call_overtook_is_not_the_last(void)
{
    pthread_t thread;
    int32_t slot;
    uint64_t state;
    CUdeviceptr pointer;
    void *failed;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&shared, 0, 0));
    CHECK(pthread_create(&thread, NULL, one_setting, (void *)(uintptr_t)(508 * MIB)) == 0);
    CHECK(wait_for_calls("cuCtxGetLimit", 2) && steal_slot(&slot, &state));
    REFUSED(api.cuMemAlloc_v2(&pointer, 512));
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 108 * MIB));
    CHECK(give_slot_back(slot, state));
    pthread_join(thread, &failed);
    CHECK(failed == NULL);
    OK(api.cuMemAlloc_v2(&pointer, 900 * MIB));
    return 0;
}

/* The first call has reserved and waits in front of the driver while another reads the old value. */
static int a_reading_does_not_take_what_another_call_has_reserved(void)
{
    pthread_t thread;
    uint64_t heap, meanwhile;
    void *failed;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&shared, 0, 0));
    heap = 8 * MIB;
    CHECK(pthread_create(&thread, NULL, one_setting, (void *)(uintptr_t)(500 * MIB)) == 0);
    CHECK(wait_for_calls("cuCtxSetLimit", 1));
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 20 * MIB));
    meanwhile = charged(0);
    pthread_join(thread, &failed);
    CHECK(failed == NULL);
    SAME(meanwhile, pages(500 * MIB - heap));
    SAME(charged(0), pages(500 * MIB - heap));
    return 0;
}

static int an_unusable_configuration_denies_increases_only(void)
{
    OK(begin(0));
    REFUSED(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB));
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 0));
    return 0;
}

static uint64_t card_used(void)
{
    struct sim_state *sim = sim_state_open(self.sim);
    uint64_t bytes = sim == NULL ? UINT64_MAX : sim_card_used(sim, 0);

    if (sim != NULL)
        sim_state_close(sim);
    return bytes;
}

static int the_charge_is_never_below_what_the_card_loses(void)
{
    static const size_t unit[] = {16, 300000, 700000, 1,
                                  100}; /* stack, FIFO, heap, depth, launches */
    uint32_t draw = fixture_draw()->seed | 1;
    uint64_t before;

    OK(begin(0));
    before = card_used();
    for (unsigned i = 0; i < 200; i++) {
        draw = draw * 1664525 + 1013904223;
        api.cuCtxSetLimit((CUlimit)(draw % 5), (draw >> 8) % 64 * unit[draw % 5]);
        CHECK(card_used() <= before + charged(0));
    }
    return 0;
}

#define JOURNAL "VRAMCAP_SIM_JOURNAL=@/journal"

static const struct scenario scenarios[] = {
    SCENARIO(a_stack_is_charged_for_all_resident_threads, NULL),
    SCENARIO(four_gib_do_not_pass_through_a_stack, JOURNAL),
    SCENARIO(heap_and_fifo_are_charged_together, NULL),
    SCENARIO(launches_of_the_device_runtime_are_charged, NULL),
    SCENARIO(limits_that_take_no_memory_pass, JOURNAL),
    SCENARIO(memory_of_blocks_is_charged_where_the_driver_has_it, NULL),
    {"memory_of_blocks_is_charged_by_a_newer_driver",
     memory_of_blocks_is_charged_where_the_driver_has_it, "VRAMCAP_SIM_VERSION=13050", false},
    SCENARIO(without_a_context_the_driver_answers, NULL),
    SCENARIO(a_driver_that_fails_changes_no_charge,
             "VRAMCAP_SIM_FAIL=cuCtxSetLimit:1:1,cuCtxSetLimit:3:2"),
    SCENARIO(a_failed_reading_keeps_the_higher_figure, "VRAMCAP_SIM_FAIL=cuCtxGetLimit:2:999"),
    SCENARIO(what_a_failed_reading_missed_is_booked_without_refusal,
             "VRAMCAP_MEMORY_MIB=64;VRAMCAP_SIM_FAIL=cuCtxGetLimit:3:999"),
    SCENARIO(what_a_failed_reading_left_charged_refuses_nothing,
             "VRAMCAP_SIM_FAIL=cuCtxSetLimit:1:2,cuCtxGetLimit:2:999"),
    SCENARIO(nor_another_limit, "VRAMCAP_SIM_FAIL=cuCtxSetLimit:1:2,cuCtxGetLimit:2:999"),
    SCENARIO(it_is_read_again_in_its_own_context_only,
             "VRAMCAP_SIM_FAIL=cuCtxSetLimit:1:2,cuCtxGetLimit:2:999"),
    SCENARIO(what_the_driver_has_said_is_charged_though_it_falls_silent,
             "VRAMCAP_MEMORY_MIB=64;VRAMCAP_SIM_FAIL=cuCtxSetLimit:2:1,cuCtxGetLimit:5:999"),
    SCENARIO(what_the_driver_has_said_is_refused_though_it_falls_silent,
             "VRAMCAP_MEMORY_MIB=64;VRAMCAP_SIM_FAIL=cuCtxGetLimit:4:999"),
    SCENARIO(what_was_put_back_is_no_growth_though_it_falls_silent,
             "VRAMCAP_MEMORY_MIB=64;VRAMCAP_SIM_FAIL=cuCtxGetLimit:5:999"),
    HIDDEN(what_is_lowered_while_all_is_denied_refuses_nothing_afterwards, NULL),
    HIDDEN(a_reading_that_a_denied_call_overtook_is_not_the_last,
           JOURNAL ";VRAMCAP_SIM_DELAY_US=cuCtxGetLimit/after:2000000:2"),
    HIDDEN(late_growth_that_cannot_be_booked_ahead_refuses_nothing,
           "VRAMCAP_SIM_FAIL=cuCtxGetLimit:3:999"),
    HIDDEN(late_growth_that_cannot_be_booked_afterwards_refuses_nothing,
           "VRAMCAP_SIM_FAIL=cuCtxGetLimit:3:999"),
    SCENARIO(a_limit_that_cannot_be_read_is_not_set,
             JOURNAL ";VRAMCAP_SIM_FAIL=cuCtxGetLimit:1:999"),
    SCENARIO(destroying_a_context_gives_its_limits_back, NULL),
    SCENARIO(threads_that_set_one_limit_end_at_what_the_driver_says, NULL),
    SCENARIO(a_reading_that_another_call_overtook_is_not_booked,
             JOURNAL ";VRAMCAP_SIM_DELAY_US=cuCtxGetLimit/after:400000:2"),
    SCENARIO(a_reading_does_not_take_what_another_call_has_reserved,
             JOURNAL ";VRAMCAP_SIM_DELAY_US=cuCtxSetLimit:400000:1"),
    SCENARIO(the_charge_is_never_below_what_the_card_loses, "VRAMCAP_MEMORY_MIB=20480"),
    SCENARIO(an_unusable_configuration_denies_increases_only, "VRAMCAP_MEMORY_MIB=nonsense"),
};

static void in_a_ledger_of_one_slot(const struct fixture *f, const char *scenario)
{
    const struct vcap_ledger_size size = {.gpus = 4, .slots = 1, .events = 16};
    static struct child_output run;

    assert_int_equal(vcap_ledger_create(f->ledger, &size, 0, NULL, NULL), 0);
    scenario_run(f, scenario, NULL, &run);
    if (run.status != 0)
        fprintf(stderr, "%s", run.err);
    assert_int_equal(run.status, 0);
}

static void with_a_slot_again_what_was_lowered_meanwhile_refuses_nothing(void **state)
{
    in_a_ledger_of_one_slot(*state, "a_reading_that_a_denied_call_overtook_is_not_the_last");
}

static void without_a_slot_nothing_is_refused_ahead(void **state)
{
    in_a_ledger_of_one_slot(*state, "late_growth_that_cannot_be_booked_ahead_refuses_nothing");
}

static void without_a_slot_nothing_is_refused_afterwards(void **state)
{
    in_a_ledger_of_one_slot(*state, "late_growth_that_cannot_be_booked_afterwards_refuses_nothing");
}

static void with_a_slot_again_what_was_lowered_refuses_nothing(void **state)
{
    in_a_ledger_of_one_slot(*state,
                            "what_is_lowered_while_all_is_denied_refuses_nothing_afterwards");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(with_a_slot_again_what_was_lowered_refuses_nothing),
    cmocka_unit_test(with_a_slot_again_what_was_lowered_meanwhile_refuses_nothing),
    cmocka_unit_test(without_a_slot_nothing_is_refused_ahead),
    cmocka_unit_test(without_a_slot_nothing_is_refused_afterwards),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
