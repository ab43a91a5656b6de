/*
 * The simulator under MPS, one client: who is one, what the limit counts and what it is told, the
 * escape that drops every limit, multiprocessors and execution affinity.
 *
 * Claimed daemons only (VRAMCAP_SIM_MPS); test_sim_mpsd.c has a real one.
 */
#define _GNU_SOURCE
#include "test_sim_support.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MPS "VRAMCAP_SIM_MPS=/run/mps;CUDA_MPS_PIPE_DIRECTORY=/run/mps;VRAMCAP_SIM_CONTEXT_MIB=24"
#define LIMIT ";CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="

static int told[2], asked[2];

static int attribute(CUdevice_attribute id)
{
    int value = -1;

    return cuDeviceGetAttribute(&value, id, 0) == CUDA_SUCCESS ? value : -1;
}

/* What can be allocated in blocks of 4 MiB, in MiB. */
static unsigned int room_mib(void)
{
    CUdeviceptr pointer = 0;
    unsigned int mib = 0;

    while (mib < 65536 && cuMemAlloc_v2(&pointer, 4 * MIB) == CUDA_SUCCESS)
        mib += 4;
    return mib;
}

/* --- the pinned limit -------------------------------------------------------------- */

static int limited_to_1000(void)
{
    CUcontext context = NULL;
    size_t free_bytes = 0, total = 0;
    CUdeviceptr managed = 0;

    CHECK(sim_begin(&context) == 0);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED) == 1);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(free_bytes == (1000 - 24) * MIB && total == 24576 * MIB);
    OK(cuMemAllocManaged(&managed, 2000 * MIB, CU_MEM_ATTACH_GLOBAL)); /* not counted */
    CHECK(room_mib() == 976);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(free_bytes == 0 && total == 24576 * MIB);
    return 0;
}

static int unlimited_client(void)
{
    CUcontext context = NULL;
    size_t free_bytes = 0;

    CHECK(sim_begin(&context) == 0);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED) == 1);
    OK(cuMemGetInfo_v2(&free_bytes, NULL));
    CHECK(free_bytes == (24576 - 24) * MIB);
    return 0;
}

static int ordinary(void)
{
    CUcontext context = NULL;
    size_t free_bytes = 0;

    CHECK(sim_begin(&context) == 0);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED) == 0);
    OK(cuMemGetInfo_v2(&free_bytes, NULL));
    CHECK(free_bytes == (24576 - 24) * MIB);
    return 0;
}

static void the_limit_counts_contexts_and_shows_in_free_not_in_total(void **state)
{
    (void)state;
    assert_int_equal(sim_run(limited_to_1000, MPS LIMIT "0=1000M"), 0);
}

static void every_unit_is_binary(void **state)
{
    static const char *const same[] = {"0=1000M", "0=1000MB", " 0 = 1000mb ", "0=1024000K",
                                       "0=4G,0=1000M"};
    char environment[256];

    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        (void)snprintf(environment, sizeof environment, MPS LIMIT "%s", same[i]);
        /* sim_run splits at '=' once, at the first */
        assert_int_equal(sim_run(limited_to_1000, environment), 0);
    }
}

static int limited_to_1g(void)
{
    CUcontext context = NULL;
    size_t free_bytes = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemGetInfo_v2(&free_bytes, NULL));
    CHECK(free_bytes == (1024 - 24) * MIB);
    return 0;
}

static void the_lower_of_the_servers_limit_and_the_clients_holds(void **state)
{
    (void)state;
    assert_int_equal(sim_run(limited_to_1g, MPS ";VRAMCAP_SIM_MPS_LIMIT=0=1G"), 0);
    assert_int_equal(sim_run(limited_to_1g, MPS ";VRAMCAP_SIM_MPS_LIMIT=0=1G" LIMIT "0=20G"), 0);
    assert_int_equal(sim_run(limited_to_1g, MPS ";VRAMCAP_SIM_MPS_LIMIT=0=20G" LIMIT "0=1GB"), 0);
}

static void an_entry_for_an_unseen_gpu_drops_every_memory_limit(void **state)
{
    static const char *const dropping[] = {"0=1G,1=4G",  "1=1G",     "GPU-00000000=1G,0=1G",
                                           "0=1G,0=one", "0=1000",   "0=1.5G",
                                           "0",          "0=1G,",    "=1G",
                                           "0=-1G",      "0x0=1G",   "0=99999999999999999999G",
                                           "0=1T",       "0=1G 0=1G"};
    char environment[256];

    (void)state;
    for (size_t i = 0; i < sizeof dropping / sizeof dropping[0]; i++) {
        (void)snprintf(environment, sizeof environment,
                       MPS ";VRAMCAP_SIM_MPS_LIMIT=0=2G" LIMIT "%s", dropping[i]);
        assert_int_equal(sim_run(unlimited_client, environment), 0);
    }
}

static int half_the_card_and_no_limit(void)
{
    CHECK(unlimited_client() == 0);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) == 66);
    return 0;
}

static void the_escape_leaves_the_compute_limit(void **state)
{
    (void)state;
    assert_int_equal(sim_run(half_the_card_and_no_limit,
                             MPS ";VRAMCAP_SIM_MPS_CONTEXT_MIB=48;CUDA_MPS_ACTIVE_THREAD_"
                                 "PERCENTAGE=50" LIMIT "0=1G,1=1G"),
                     0);
}

static void limits_are_by_uuid_and_by_ordinals_of_what_is_seen(void **state)
{
    unsigned char uuid[16];
    char text[48], environment[400];

    (void)state;
    sim_card_uuid(2, uuid);
    sim_uuid_text(uuid, text);
#define CARDS ";VRAMCAP_SIM_CARDS=4x24576;CUDA_VISIBLE_DEVICES=2"
    assert_int_equal(sim_run(limited_to_1g, MPS CARDS LIMIT "0=1G"), 0);
    assert_int_equal(sim_run(unlimited_client, MPS CARDS LIMIT "2=1G"), 0);
    (void)snprintf(environment, sizeof environment, MPS CARDS LIMIT "%s=1G", text);
    assert_int_equal(sim_run(limited_to_1g, environment), 0);
    (void)snprintf(environment, sizeof environment, MPS CARDS LIMIT "%.12s=1G", text);
    assert_int_equal(sim_run(limited_to_1g, environment), 0);
    /* The server's entries name cards of the machine. */
    assert_int_equal(sim_run(limited_to_1g, MPS CARDS ";VRAMCAP_SIM_MPS_LIMIT=0=2G,2=1G"), 0);
    sim_card_uuid(1, uuid);
    sim_uuid_text(uuid, text);
    (void)snprintf(environment, sizeof environment, MPS CARDS LIMIT "0=1G,%s=1G", text);
    assert_int_equal(sim_run(unlimited_client, environment), 0);
}

static void without_a_daemon_in_the_pipe_directory_there_is_no_limit_and_no_error(void **state)
{
    char environment[400];

    (void)state;
#define DOWN "VRAMCAP_SIM_CONTEXT_MIB=24" LIMIT "0=1G;CUDA_MPS_PIPE_DIRECTORY="
    assert_int_equal(sim_run(ordinary, DOWN "/run/mps"), 0);
    assert_int_equal(sim_run(ordinary, DOWN "/run/wrong;VRAMCAP_SIM_MPS=/run/mps"), 0);
    assert_int_equal(sim_run(ordinary, "VRAMCAP_SIM_CONTEXT_MIB=24;VRAMCAP_SIM_MPS=/run/mps"), 0);
    assert_int_equal(
        sim_run(unlimited_client, "VRAMCAP_SIM_CONTEXT_MIB=24;VRAMCAP_SIM_MPS=/tmp/nvidia-mps"), 0);
    /* A socket that nobody listens at, or no socket at all. */
    int fd = open(sim_test_path("control"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    (void)snprintf(environment, sizeof environment, DOWN "%s", sim_test_path(""));
    assert_int_equal(sim_run(ordinary, environment), 0);
}

static int two_hold_1000_each(void)
{
    CUcontext context = NULL;
    char byte = 0;

    CHECK(sim_begin(&context) == 0);
    CHECK(room_mib() == 976);
    CHECK(write(told[1], "h", 1) == 1);
    (void)read(asked[0], &byte, 1);
    return 0;
}

static void the_limit_is_each_clients_own(void **state)
{
    char bytes[2];

    (void)state;
    assert_int_equal(pipe2(told, O_CLOEXEC) | pipe2(asked, O_CLOEXEC), 0);
    pid_t a = sim_start(two_hold_1000_each, MPS LIMIT "0=1000M");
    pid_t b = sim_start(two_hold_1000_each, MPS LIMIT "0=1000M");
    assert_int_equal(read(told[0], bytes, 1), 1);
    assert_int_equal(read(told[0], bytes, 1), 1);
    assert_int_equal(sim_test_used(0), 2000 * MIB);
    assert_int_equal(write(asked[1], "ee", 2), 2);
    assert_int_equal(sim_wait(a) | sim_wait(b), 0);
}

static int exported_memory_still_counts(void)
{
    CUmemAllocationProp property = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes =
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle = 0;
    CUcontext context = NULL;
    size_t free_bytes = 0;
    int fd = -1;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemCreate(&handle, 600 * MIB, &property, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemGetInfo_v2(&free_bytes, NULL));
    CHECK(free_bytes == (1024 - 24 - 600) * MIB);
    CHECK(cuMemCreate(&handle, 500 * MIB, &property, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    return 0;
}

static void memory_that_a_client_exported_counts_for_it(void **state)
{
    (void)state;
    assert_int_equal(sim_run(exported_memory_still_counts, MPS LIMIT "0=1G"), 0);
}

static int context_does_not_fit(void)
{
    CUcontext context = NULL;

    OK(cuInit(0));
    CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    return 0;
}

static void a_limit_below_the_contexts_own_storage_refuses_the_context(void **state)
{
    (void)state;
    assert_int_equal(sim_run(context_does_not_fit, MPS LIMIT "0=20M"), 0);
    assert_int_equal(sim_run(context_does_not_fit, MPS LIMIT "0=0M"), 0);
}

static int free_shows_modules(void)
{
    CUcontext context = NULL;
    CUmodule module[2] = {NULL};
    CUdeviceptr pointer = 0;
    size_t free_bytes = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuModuleLoadData(&module[0], "code"));
    OK(cuModuleLoadData(&module[1], "code"));
    OK(cuMemGetInfo_v2(&free_bytes, NULL));
    CHECK(free_bytes == (1000 - 24 - 6) * MIB);
    OK(cuModuleUnload(module[0]));
    OK(cuMemAlloc_v2(&pointer, 972 * MIB));
    CHECK(cuModuleLoadData(&module[0], "code") == CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuCtxDestroy_v2(context));
    CHECK(sim_test_used(0) == 0);
    return 0;
}

static void what_modules_take_shows_in_free(void **state)
{
    (void)state;
    assert_int_equal(sim_run(free_shows_modules, MPS LIMIT "0=1000M;VRAMCAP_SIM_MODULE_KIB=3072"),
                     0);
}

/* --- multiprocessors ----------------------------------------------------------------- */

static unsigned int expected_sms;

static int has_sms(void)
{
    CUexecAffinityParam affinity = {CU_EXEC_AFFINITY_TYPE_MAX, {{0}}};
    CUcontext context = NULL;
    CUdevResource resource;
    int supported = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
    CHECK(affinity.param.smCount.val == expected_sms);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) == (int)expected_sms);
    OK(cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
    CHECK(supported == 1);
    OK(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(resource.sm.smCount == expected_sms);
    return 0;
}

static void a_percentage_is_rounded_down_and_only_constrains(void **state)
{
    static const struct {
        const char *environment;
        unsigned int sms;
    } cases[] = {
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50", 66},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30", 38}, /* 39.6 */
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30;VRAMCAP_SIM_SM_STEP=8", 32},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=1", 2},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=0", 132},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=all", 132},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=101", 132},
        {"VRAMCAP_SIM_MPS_PERCENT=25", 32},
        {"VRAMCAP_SIM_MPS_PERCENT=25;CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=80", 32},
        {"VRAMCAP_SIM_MPS_PERCENT=80;CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25", 32},
    };
    char environment[300];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expected_sms = cases[i].sms;
        (void)snprintf(environment, sizeof environment, MPS ";%s", cases[i].environment);
        assert_int_equal(sim_run(has_sms, environment), 0);
    }
}

static int lowers_it_before_init(void)
{
    CHECK(setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", 1) == 0);
    return has_sms();
}

static void the_percentage_is_read_in_cuinit_or_as_it_was_at_the_start(void **state)
{
    (void)state;
    expected_sms = 66;
    assert_int_equal(sim_run(lowers_it_before_init, MPS), 0);
    /* A forked child's start is its parent's: this program's, without the variables. */
    assert_int_equal(sim_run(ordinary, "VRAMCAP_SIM_MPS_READ=start;" MPS), 0);
}

static int context_cost_follows(void)
{
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    CHECK(sim_test_used(0) == 33 * MIB);
    return 0;
}

static void a_smaller_share_makes_contexts_smaller(void **state)
{
    (void)state;
    assert_int_equal(sim_run(context_cost_follows, MPS ";VRAMCAP_SIM_MPS_CONTEXT_MIB=66;"
                                                       "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"),
                     0);
}

static CUresult with_affinity(unsigned int asked, unsigned int *got)
{
    CUexecAffinityParam wish = {CU_EXEC_AFFINITY_TYPE_SM_COUNT, {{asked}}}, is;
    CUcontext context = NULL;
    CUresult rc = cuCtxCreate_v3(&context, &wish, 1, 0, 0);

    if (rc == CUDA_SUCCESS)
        rc = cuCtxGetExecAffinity(&is, CU_EXEC_AFFINITY_TYPE_SM_COUNT);
    if (rc == CUDA_SUCCESS)
        *got = is.param.smCount.val;
    return rc;
}

static int affinities(void)
{
    CUexecAffinityParam two[2] = {{CU_EXEC_AFFINITY_TYPE_SM_COUNT, {{50}}},
                                  {CU_EXEC_AFFINITY_TYPE_SM_COUNT, {{8}}}};
    CUctxCreateParams params = {two, 2, NULL};
    CUexecAffinityParam is;
    CUcontext context = NULL;
    unsigned int got = 0;

    OK(cuInit(0));
    OK(with_affinity(7, &got));
    CHECK(got == 8);
    OK(with_affinity(66, &got));
    CHECK(got == 66);
    OK(with_affinity(100, &got));
    CHECK(got == 66); /* the client's share */
    CHECK(with_affinity(0, &got) == CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxCreate_v4(&context, &params, 0, 0));
    OK(cuCtxGetExecAffinity(&is, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
    CHECK(is.param.smCount.val == 8);
    two[0].type = CU_EXEC_AFFINITY_TYPE_MAX;
    CHECK(cuCtxCreate_v4(&context, &params, 0, 0) == CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    CHECK(cuCtxCreate_v3(&context, NULL, 1, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxCreate_v4(&context, NULL, 0, 0));
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) == 66);
    return 0;
}

static int no_affinity_without_mps(void)
{
    CUexecAffinityParam wish = {CU_EXEC_AFFINITY_TYPE_SM_COUNT, {{8}}}, is;
    CUcontext context = NULL;
    int supported = 1;

    CHECK(sim_begin(&context) == 0);
    CHECK(cuCtxCreate_v3(&context, &wish, 1, 0, 0) == CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    CHECK(cuCtxGetExecAffinity(&is, CU_EXEC_AFFINITY_TYPE_SM_COUNT) ==
          CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    OK(cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
    CHECK(supported == 0);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) == 132);
    return 0;
}

static void affinity_is_rounded_up_and_stays_in_the_clients_share(void **state)
{
    (void)state;
    assert_int_equal(sim_run(affinities, MPS ";CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"), 0);
    assert_int_equal(sim_run(no_affinity_without_mps, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"), 0);
}

static int each_context_its_own(void)
{
    static const struct {
        const char *percent;
        unsigned int sms;
    } turns[] = {{"50", 66}, {"25", 33}, {"90", 105}, {"100", 105}};
    CUexecAffinityParam is;
    CUcontext context = NULL;

    for (size_t i = 0; i < sizeof turns / sizeof turns[0]; i++) {
        CHECK(setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", turns[i].percent, 1) == 0);
        CHECK(sim_begin(&context) == 0);
        OK(cuCtxGetExecAffinity(&is, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
        CHECK(is.param.smCount.val == turns[i].sms);
        CHECK(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) == 105);
    }
    return 0;
}

static void per_context_partitioning_reads_the_percentage_at_each_context(void **state)
{
    (void)state;
    assert_int_equal(sim_run(each_context_its_own,
                             MPS ";VRAMCAP_SIM_MPS_PERCENT=80;VRAMCAP_SIM_SM_STEP=1;"
                                 "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=1"),
                     0);
}

static int refuses_to_start(void)
{
    (void)close(2);
    return cuInit(0) == CUDA_ERROR_SYSTEM_NOT_READY ? 0 : 1;
}

static void a_setting_that_does_not_parse_stops_cuinit(void **state)
{
    static const char *const bad[] = {"VRAMCAP_SIM_MPS_READ=later",
                                      "VRAMCAP_SIM_MPS_CLIENTS=many",
                                      "VRAMCAP_SIM_SM_STEP=0",
                                      "VRAMCAP_SIM_COMPUTE_MODE=shared",
                                      "VRAMCAP_SIM_MEMACCT=on",
                                      "VRAMCAP_SIM_CGROUP=pod",
                                      "VRAMCAP_SIM_FAULT=cuMemAlloc_v2",
                                      "VRAMCAP_SIM_FAULT=cuMemAlloc_v2:0",
                                      ("VRAMCAP_SIM_MPS_LIMIT=0=much;" MPS)};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(sim_run(refuses_to_start, bad[i]), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, sim_test_setup, sim_test_teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(the_limit_counts_contexts_and_shows_in_free_not_in_total),
        TEST(every_unit_is_binary),
        TEST(the_lower_of_the_servers_limit_and_the_clients_holds),
        TEST(an_entry_for_an_unseen_gpu_drops_every_memory_limit),
        TEST(the_escape_leaves_the_compute_limit),
        TEST(limits_are_by_uuid_and_by_ordinals_of_what_is_seen),
        TEST(without_a_daemon_in_the_pipe_directory_there_is_no_limit_and_no_error),
        TEST(the_limit_is_each_clients_own),
        TEST(memory_that_a_client_exported_counts_for_it),
        TEST(a_limit_below_the_contexts_own_storage_refuses_the_context),
        TEST(what_modules_take_shows_in_free),
        TEST(a_percentage_is_rounded_down_and_only_constrains),
        TEST(the_percentage_is_read_in_cuinit_or_as_it_was_at_the_start),
        TEST(a_smaller_share_makes_contexts_smaller),
        TEST(affinity_is_rounded_up_and_stays_in_the_clients_share),
        TEST(per_context_partitioning_reads_the_percentage_at_each_context),
        TEST(a_setting_that_does_not_parse_stops_cuinit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
