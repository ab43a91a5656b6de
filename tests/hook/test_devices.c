/*
 * Several GPUs: each under its own ceiling and its own UUID, in whatever order a process sees them.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "tests/hook/scenario.h"

#define FOUR "VRAMCAP_SIM_CARDS=4x24576"

static int swapped_devices_keep_their_own_ceilings(void)
{
    CUdeviceptr pointer;
    size_t total;

    OK(api.cuInit(0)); /* CUDA_VISIBLE_DEVICES=2,0: ordinal 0 is card 2, ordinal 1 is card 0 */
    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 300 * MIB));
    REFUSED(api.cuMemAlloc_v2(&pointer, 300 * MIB));
    OK(begin(1));
    OK(api.cuMemAlloc_v2(&pointer, 700 * MIB));
    REFUSED(api.cuMemAlloc_v2(&pointer, 400 * MIB));
    SAME(charged(2), 300 * MIB);
    SAME(charged(0), 700 * MIB);
    SAME(charged(1), UINT64_MAX); /* no row: never seen */
    SAME(gpu_row(2).ceiling_bytes, 512 * MIB);
    SAME(gpu_row(0).ceiling_bytes, 1024 * MIB);
    OK(api.cuDeviceTotalMem_v2(&total, 0));
    SAME(total, 512 * MIB);
    OK(api.cuDeviceTotalMem_v2(&total, 1));
    SAME(total, 1024 * MIB);
    SAME(sim_alloc_bytes(&self, 2), 300 * MIB);
    SAME(sim_alloc_bytes(&self, 0), 700 * MIB);
    return 0;
}

static int a_subset_of_devices_keeps_the_ceiling(void)
{
    CUdeviceptr pointer;

    OK(begin(0)); /* card 3 */
    REFUSED(api.cuMemAlloc_v2(&pointer, 1025 * MIB));
    OK(api.cuMemAlloc_v2(&pointer, 1024 * MIB));
    SAME(charged(3), 1024 * MIB);
    return 0;
}

static int an_allocation_lowers_free_on_its_own_device(void)
{
    CUdeviceptr pointer;
    size_t free_bytes, total;

    OK(begin(0)); /* card 1 */
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    SAME(free_bytes, 924 * MIB);
    SAME(charged(1), 100 * MIB);
    return 0;
}

static unsigned events_without(void)
{
    struct vcap_snapshot snapshot;
    unsigned found = 0;

    if (!ledger_read(self.ledger, &snapshot))
        return UINT32_MAX;
    for (uint32_t i = 0; i < snapshot.event_count; i++)
        found += snapshot.events[i].kind == VCAP_LF_EVENT_CONFIG &&
                 strcmp(snapshot.events[i].name, "no ceiling for a visible GPU") == 0;
    vcap_snapshot_free(&snapshot);
    return found;
}

static int a_device_that_no_entry_names_has_no_ceiling(void)
{
    CUdeviceptr pointer;
    size_t total;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 2048 * MIB));
    SAME(gpu_row(0).ceiling_bytes, VCAP_NO_LIMIT);
    OK(api.cuDeviceTotalMem_v2(&total, 0));
    SAME(total, 24576 * MIB);
    OK(begin(1));
    REFUSED(api.cuMemAlloc_v2(&pointer, 2048 * MIB));
    SAME(charged(0), 2048 * MIB);
    SAME(events_without(), 1);
    return 0;
}

/* Nothing would be enforced: that is an error, whatever the entries are for. */
static int entries_for_other_gpus_alone_are_no_ceiling(void)
{
    size_t free_bytes = 1, total = 0;
    CUdeviceptr pointer = 0x77;

    OK(begin(0)); /* contexts are not denied */
    REFUSED(api.cuMemAlloc_v2(&pointer, 512));
    SAME(pointer, 0x77);
    REFUSED(api.cuMemAllocManaged(&pointer, 2 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    SAME(free_bytes, 0);
    OK(begin(1));
    REFUSED(api.cuMemAlloc_v2(&pointer, 512));
    SAME(charged(0), 0);
    SAME(events_without(), 1);
    return 0;
}

static int they_let_through_what_on_error_lets_through(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 2048 * MIB));
    SAME(events_without(), 1);
    return 0;
}

#define FIRST 8
static pthread_barrier_t together;

static void *first_call(void *arg)
{
    CUdeviceptr pointer;

    if (api.cuCtxSetCurrent(arg) != CUDA_SUCCESS)
        return (void *)1;
    pthread_barrier_wait(&together);
    return (void *)(uintptr_t)(api.cuMemAlloc_v2(&pointer, 2 * MIB) == CUDA_SUCCESS);
}

/* The first allocations of several threads at once, in a context that came past the hooks. */
static int no_thread_is_granted_anything_before_it_is_found(void)
{
    pthread_t threads[FIRST];
    void *plugin = dlopen(TEST_BEHIND, RTLD_NOW | RTLD_LOCAL), *granted;
    void *(*next)(const char *name);
    PFN_cuDevicePrimaryCtxRetain_v7000 behind;
    CUcontext context = NULL;

    CHECK(plugin != NULL);
    next = (void *(*)(const char *))(uintptr_t)dlsym(plugin, "plugin_next");
    CHECK(next != NULL);
    behind = (PFN_cuDevicePrimaryCtxRetain_v7000)(uintptr_t)next("cuDevicePrimaryCtxRetain");
    CHECK(behind != NULL);
    OK(api.cuInit(0));
    OK(behind(&context, 0));
    pthread_barrier_init(&together, NULL, FIRST);
    for (size_t i = 0; i < FIRST; i++)
        CHECK(pthread_create(&threads[i], NULL, first_call, context) == 0);
    for (size_t i = 0; i < FIRST; i++) {
        CHECK(pthread_join(threads[i], &granted) == 0);
        CHECK(granted == NULL);
    }
    SAME(events_without(), 1);
    return 0;
}

static int the_mps_variable_alone_is_a_ceiling(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    REFUSED(api.cuMemAlloc_v2(&pointer, 501 * MIB));
    OK(api.cuMemAlloc_v2(&pointer, 500 * MIB));
    SAME(gpu_row(0).ceiling_bytes, 500 * MIB);
    SAME(gpu_row(0).ceiling_source, VCAP_LF_SOURCE_MPS);
    return 0;
}

static int the_lower_of_two_sources_holds(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    REFUSED(api.cuMemAlloc_v2(&pointer, 513 * MIB));
    OK(api.cuMemAlloc_v2(&pointer, 512 * MIB));
    return 0;
}

static void processes_with_different_ordinals_meet_at_the_uuid(void **state)
{
    static const char *const as_second[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", FOUR,
                                            NULL};
    static const char *const as_first[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", FOUR,
                                           "CUDA_VISIBLE_DEVICES=1", NULL};
    const struct fixture *f = *state;
    struct child a, b;

    assert_true(client_start(&a, f, "getproc", as_second));
    assert_true(client_start(&b, f, "dlsym", as_first));
    assert_int_equal(client_result(&a, "init"), 0);
    assert_int_equal(client_result(&b, "init"), 0);
    assert_int_equal(client_result(&a, "ctx create 1"), 0);
    assert_int_equal(client_result(&b, "ctx create 0"), 0);
    assert_int_equal(client_result(&a, "alloc 600m"), 0);
    assert_int_equal(client_result(&b, "alloc 600m"), 2);
    assert_int_equal(client_result(&b, "alloc 424m"), 0);
    assert_true(ledger_charged(f->ledger, 1) == 1024 * MIB);
    assert_true(ledger_charged_by(f->ledger, 1, a.pid) == 600 * MIB);
    assert_true(ledger_charged_by(f->ledger, 1, b.pid) == 424 * MIB);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

static void a_processs_own_lower_ceiling_binds_it_alone(void **state)
{
    static const char *const high[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};
    static const char *const low[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=500", NULL};
    static const char *const higher[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=8000", NULL};
    const struct fixture *f = *state;
    struct child a, b, c;
    char answer[128];

    assert_true(client_start(&a, f, "getproc", high));
    assert_true(client_start(&b, f, "dlsym", low));
    assert_true(client_start(&c, f, "link", higher));
    struct child *all[] = {&a, &b, &c};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(client_result(all[i], "init"), 0);
        assert_int_equal(client_result(all[i], "ctx create 0"), 0);
    }
    assert_string_equal(client_ask(&a, answer, sizeof(answer), "info"), "0 1073741824 1073741824");
    assert_string_equal(client_ask(&b, answer, sizeof(answer), "info"), "0 524288000 524288000");
    assert_string_equal(client_ask(&c, answer, sizeof(answer), "info"), "0 1073741824 1073741824");
    assert_int_equal(client_result(&b, "alloc 501m"), 2);
    assert_int_equal(client_result(&c, "alloc 1025m"), 2);
    assert_int_equal(client_result(&a, "alloc 600m"), 0);
    assert_int_equal(client_result(&b, "alloc 10m"),
                     2); /* the container holds more than its own ceiling */
    assert_int_equal(client_result(&c, "alloc 424m"), 0);
    for (int i = 0; i < 3; i++)
        child_kill(all[i], SIGKILL);
}

/* What the ledger has of a slice, which it keeps under the slice's own UUID. */
static bool slice_row(const char *name, struct vcap_snapshot_gpu *row)
{
    struct vcap_snapshot snapshot;
    bool found = false;

    if (!ledger_read(self.ledger, &snapshot))
        return false;
    for (uint32_t i = 0; i < snapshot.gpu_count && !found; i++)
        if (strcmp(snapshot.gpus[i].uuid, name) == 0) {
            *row = snapshot.gpus[i];
            found = true;
        }
    found = found && snapshot.gpu_count == 1;
    vcap_snapshot_free(&snapshot);
    return found;
}

static int a_mig_slice_has_the_ceiling_of_its_own_uuid(void)
{
    char name[48], others[48], setting[160];
    struct vcap_snapshot_gpu row;
    unsigned char uuid[16];
    CUdeviceptr pointer;
    size_t total;

    fixture_needs_simulator();
    sim_card_uuid(1, uuid);
    sim_uuid_text(uuid, others);
    snprintf(name, sizeof(name), "MIG%s", others + 3);
    sim_card_uuid(SIM_MAX_CARDS + 3, uuid); /* the GPU that it is a slice of */
    sim_uuid_text(uuid, others);
    snprintf(setting, sizeof(setting), "%s=256,%s=512", others, name);
    setenv("VRAMCAP_MEMORY_MIB", setting, 1);
    OK(begin(0));
    OK(api.cuDeviceTotalMem_v2(&total, 0));
    SAME(total, 512 * MIB);
    OK(api.cuMemAlloc_v2(&pointer, 500 * MIB));
    REFUSED(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    CHECK(slice_row(name, &row));
    SAME(row.ceiling_bytes, 512 * MIB);
    SAME(row.held_bytes, 500 * MIB);
    SAME(sim_alloc_bytes(&self, 1), 500 * MIB);
    return 0;
}

#define OTHERS "7=1024,GPU-ffffffff-ffff-ffff-ffff-ffffffffffff=1024"

static const struct scenario scenarios[] = {
    SCENARIO(swapped_devices_keep_their_own_ceilings,
             FOUR ";CUDA_VISIBLE_DEVICES=2,0;VRAMCAP_MEMORY_MIB=0=512,1=1024"),
    SCENARIO(a_subset_of_devices_keeps_the_ceiling, FOUR ";CUDA_VISIBLE_DEVICES=3"),
    SCENARIO(an_allocation_lowers_free_on_its_own_device, FOUR ";CUDA_VISIBLE_DEVICES=1"),
    SCENARIO(a_device_that_no_entry_names_has_no_ceiling,
             "VRAMCAP_SIM_CARDS=2x24576;VRAMCAP_MEMORY_MIB=1=1024"),
    SCENARIO(entries_for_other_gpus_alone_are_no_ceiling,
             "VRAMCAP_SIM_CARDS=2x24576;VRAMCAP_MEMORY_MIB=" OTHERS),
    SCENARIO(they_let_through_what_on_error_lets_through,
             "VRAMCAP_MEMORY_MIB=" OTHERS ";VRAMCAP_ON_ERROR=allow"),
    SCENARIO(no_thread_is_granted_anything_before_it_is_found,
             "VRAMCAP_MEMORY_MIB=" OTHERS ";VRAMCAP_SIM_DELAY_US=cuDeviceGetUuid:2000"),
    SCENARIO(the_mps_variable_alone_is_a_ceiling,
             "VRAMCAP_MEMORY_MIB;CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=500M"),
    SCENARIO(the_lower_of_two_sources_holds, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=512M"),
    SCENARIO(a_mig_slice_has_the_ceiling_of_its_own_uuid,
             "VRAMCAP_SIM_CARDS=2x24576;VRAMCAP_SIM_MIG=1:3;CUDA_VISIBLE_DEVICES=1"),
};

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(processes_with_different_ordinals_meet_at_the_uuid),
    cmocka_unit_test(a_processs_own_lower_ceiling_binds_it_alone),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
