/*
 * The simulated card between processes, and what is scripted from the environment:
 * sharing, the memory of killed and replaced processes, fork, failures, the journal,
 * visible devices, NVML.
 *
 * Synchronisation is by pipes and waits, never by time.
 */
#define _GNU_SOURCE
#include "sim_nvml.h"
#include "test_sim_support.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

#define SMALL_CARD "VRAMCAP_SIM_CARDS=1024;VRAMCAP_SIM_CONTEXT_MIB=24"

static int told[2], asked[2]; /* child to parent, parent to child */

static int hold(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    char byte = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAlloc_v2(&pointer, 600 * MIB));
    CHECK(write(told[1], "h", 1) == 1);
    (void)read(asked[0], &byte, 1);
    return 0;
}

static int hold_and_exec(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAlloc_v2(&pointer, 600 * MIB));
    CHECK(dup2(asked[0], 0) == 0 && dup2(told[1], 1) == 1);
    (void)execl("/bin/cat", "cat", (char *)NULL);
    return 1;
}

static int no_room(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 77;
    size_t free_bytes = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemGetInfo_v2(&free_bytes, NULL));
    CHECK(free_bytes == (1024 - 600 - 24 - 24) * MIB);
    CHECK(cuMemAlloc_v2(&pointer, 600 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(pointer == 77);
    return 0;
}

static int room(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAlloc_v2(&pointer, 1000 * MIB));
    return 0;
}

static void pipes_open(void)
{
    assert_int_equal(pipe2(told, O_CLOEXEC) | pipe2(asked, O_CLOEXEC), 0);
}

static void pipes_close(void)
{
    (void)close(told[0]);
    (void)close(told[1]);
    (void)close(asked[0]);
    (void)close(asked[1]);
}

static void a_card_is_shared_and_a_killed_process_gives_back(void **state)
{
    char byte = 0;

    (void)state;
    pipes_open();
    pid_t holder = sim_start(hold, SMALL_CARD);
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_int_equal(sim_run(no_room, SMALL_CARD), 0);
    assert_int_equal(kill(holder, SIGKILL), 0);
    /* Not waited for yet: a zombie holds nothing. */
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)holder, &info, WEXITED | WNOWAIT), 0);
    struct sim_state *card = sim_state_open(NULL);
    assert_non_null(card);
    assert_int_equal(sim_card_used(card, 0), 0);
    assert_int_equal(sim_card_peak(card, 0), (600 + 24 + 24) * MIB);
    assert_int_equal(sim_card_alloc_peak(card, 0), 600 * MIB);
    sim_reset_peaks(card);
    assert_int_equal(sim_card_peak(card, 0), 0);
    sim_state_close(card);
    assert_int_equal(sim_run(room, SMALL_CARD), 0);
    assert_int_equal(sim_wait(holder), 128 + SIGKILL);
    pipes_close();
}

static void a_process_that_calls_exec_gives_back(void **state)
{
    char byte = 0;
    struct sim_state *card;

    (void)state;
    pipes_open();
    pid_t holder = sim_start(hold_and_exec, SMALL_CARD);
    /* An echo can only come from the new program. */
    assert_int_equal(write(asked[1], "e", 1), 1);
    assert_int_equal(read(told[0], &byte, 1), 1);
    card = sim_state_open(NULL);
    assert_non_null(card);
    assert_int_equal(sim_card_used(card, 0), 0);
    sim_state_close(card);
    assert_int_equal(kill(holder, SIGTERM), 0);
    (void)sim_wait(holder);
    pipes_close();
}

/* A child made behind libc's back shares the parent's lock, and outlives it. */
static int hold_with_a_raw_child(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    char byte = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAlloc_v2(&pointer, 600 * MIB));
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
        (void)alarm(30); /* nobody waits for it if the test fails */
        CHECK(write(told[1], "h", 1) == 1);
        (void)read(asked[0], &byte, 1);
        _exit(0);
    }
    (void)pause();
    return 0;
}

static void a_raw_child_does_not_keep_its_parents_memory(void **state)
{
    char byte = 0;

    (void)state;
    if (UNDER_TSAN)
        skip();
    pipes_open();
    pid_t holder = sim_start(hold_with_a_raw_child, SMALL_CARD);
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_int_equal(kill(holder, SIGKILL), 0);
    assert_int_equal(sim_wait(holder), 128 + SIGKILL);
    assert_int_equal(sim_run(room, SMALL_CARD), 0);
    assert_int_equal(write(asked[1], "e", 1), 1);
    pipes_close();
}

/* --- fork ------------------------------------------------------------------------- */

static int forked_calls(void)
{
    CUdeviceptr pointer = 0;
    CUcontext context = NULL;
    int count = 0, version = 0;

    CHECK(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuMemAlloc_v2(&pointer, 1) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_NOT_INITIALIZED);
    OK(cuDriverGetVersion(&version));
    return 0;
}

static int forks(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAlloc_v2(&pointer, 4 * MIB));
    pid_t child = fork();
    if (child == 0)
        _exit(forked_calls());
    CHECK(sim_wait(child) == 0);
    if (!UNDER_TSAN) {
        child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); /* no fork handlers run */
        if (child == 0)
            _exit(forked_calls());
        CHECK(sim_wait(child) == 0);
    }
    struct sim_state *card = sim_state_open(NULL);
    CHECK(card && sim_card_used(card, 0) == (64 + 4) * MIB);
    sim_state_close(card);
    OK(cuMemFree_v2(pointer));
    return 0;
}

static void forked_child_is_not_initialised(void **state)
{
    (void)state;
    assert_int_equal(sim_run(forks, NULL), 0);
}

/* --- scripting ----------------------------------------------------------------------- */

static int failures(void)
{
    CUcontext context = NULL;
    CUdeviceptr a = 0, b = 55;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAlloc_v2(&a, 4 * MIB));
    CHECK(cuMemAlloc_v2(&b, 4 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(b == 55);
    OK(cuMemAlloc_v2(&b, 4 * MIB));
    CHECK(cuMemFree_v2(a) == CUDA_ERROR_UNKNOWN);
    CHECK(cuMemFree_v2(a) == CUDA_ERROR_UNKNOWN);
    CHECK(cuMemAllocManaged(&a, 1, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(cuTexRefCreate(NULL) == CUDA_ERROR_NOT_SUPPORTED);
    return 0;
}

static void script_fails_the_nth_call_and_the_journal_has_every_call(void **state)
{
    static const char *const expected[] = {"cuInit",        "cuCtxCreate_v2",    "cuMemAlloc_v2",
                                           "cuMemAlloc_v2", "cuMemAlloc_v2",     "cuMemFree_v2",
                                           "cuMemFree_v2",  "cuMemAllocManaged", "cuTexRefCreate"};
    char environment[400], symbol[64];
    size_t lines = 0;
    int pid = 0;

    (void)state;
    (void)snprintf(
        environment, sizeof environment,
        "VRAMCAP_SIM_FAIL=cuMemAlloc_v2:2:2,cuMemFree_v2:0:999;VRAMCAP_SIM_HIDE=cuMemAllocManaged;"
        "VRAMCAP_SIM_DELAY_US=cuInit:1000;VRAMCAP_SIM_JOURNAL=%s",
        sim_test_path("journal"));
    pid_t child = sim_start(failures, environment);
    assert_int_equal(sim_wait(child), 0);
    FILE *journal = fopen(sim_test_path("journal"), "r");
    assert_non_null(journal);
    while (fscanf(journal, "%d %63s", &pid, symbol) == 2) {
        assert_true(lines < sizeof expected / sizeof expected[0]);
        assert_int_equal(pid, child);
        assert_string_equal(symbol, expected[lines++]);
    }
    (void)fclose(journal);
    assert_int_equal(lines, sizeof expected / sizeof expected[0]);
}

static int refuses_to_start(void)
{
    (void)close(2);
    return cuInit(0) == CUDA_ERROR_SYSTEM_NOT_READY ? 0 : 1;
}

static void a_setting_that_does_not_parse_stops_cuinit(void **state)
{
    (void)state;
    assert_int_equal(sim_run(refuses_to_start, "VRAMCAP_SIM_PAGE_KIB=many"), 0);
    assert_int_equal(sim_run(refuses_to_start, "VRAMCAP_SIM_FAIL=cuInit:1"), 0);
    assert_int_equal(sim_run(refuses_to_start, "VRAMCAP_SIM_CARDS=0x24"), 0);
}

/* --- devices ------------------------------------------------------------------------- */

static int swapped(void)
{
    CUuuid uuid;
    unsigned char expected[16];
    size_t total = 0;
    int count = 0;
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;

    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK(count == 2);
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    sim_card_uuid(1, expected);
    CHECK(memcmp(uuid.bytes, expected, 16) == 0);
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(total == 2048 * MIB);
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAlloc_v2(&pointer, 4 * MIB));
    struct sim_state *card = sim_state_open(NULL);
    CHECK(card && sim_card_used(card, 0) == 0 && sim_card_used(card, 1) == (64 + 4) * MIB);
    sim_state_close(card);
    return 0;
}

static int sees_none(void)
{
    return cuInit(0) == CUDA_ERROR_NO_DEVICE ? 0 : 1;
}

static int sees_one(void)
{
    int count = 0;

    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK(count == 1);
    return 0;
}

static void visible_devices_select_and_reorder(void **state)
{
    char environment[160], text[48];
    unsigned char uuid[16];

    (void)state;
#define CARDS "VRAMCAP_SIM_CARDS=1024,2048,4096;CUDA_VISIBLE_DEVICES="
    assert_int_equal(sim_run(swapped, CARDS "1,0"), 0);
    assert_int_equal(sim_run(sees_one, CARDS "2,9,1"), 0);
    assert_int_equal(sim_run(sees_none, CARDS "-1"), 0);
    assert_int_equal(sim_run(sees_none, CARDS), 0);
    assert_int_equal(sim_run(sees_none, CARDS "0,0"), 0);
    sim_card_uuid(1, uuid);
    sim_uuid_text(uuid, text);
    (void)snprintf(environment, sizeof environment, CARDS "%s,0", text);
    assert_int_equal(sim_run(swapped, environment), 0);
    (void)snprintf(environment, sizeof environment, CARDS "%.10s,0", text);
    assert_int_equal(sim_run(swapped, environment), 0);
    assert_int_equal(sim_run(sees_none, CARDS "GPU-"), 0);
}

static void nvml_lists_the_holders(void **state)
{
    char byte = 0;
    nvmlDevice_t device = NULL;
    nvmlMemory_t memory;
    nvmlMemory_v2_t memory_v2 = {.version = 1};
    nvmlProcessInfo_v1_t old[4];
    nvmlProcessInfo_v2_t infos[4];
    unsigned int count = 0;

    (void)state;
    assert_int_equal(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
    pipes_open();
    pid_t holder = sim_start(hold, SMALL_CARD);
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_int_equal(nvmlInit_v2(), NVML_SUCCESS);
    assert_int_equal(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    assert_int_equal(nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
    assert_int_equal(memory.total, 1024 * MIB);
    assert_int_equal(memory.used, 624 * MIB);
    assert_int_equal(memory.free, 400 * MIB);
    assert_int_equal(nvmlDeviceGetMemoryInfo_v2(device, &memory_v2),
                     NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    memory_v2.version = nvmlMemory_v2;
    assert_int_equal(nvmlDeviceGetMemoryInfo_v2(device, &memory_v2), NVML_SUCCESS);
    assert_int_equal(memory_v2.free, 400 * MIB);
    count = 0;
    assert_int_equal(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL),
                     NVML_ERROR_INSUFFICIENT_SIZE);
    assert_int_equal(count, 1);
    assert_int_equal(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos), NVML_SUCCESS);
    assert_int_equal(infos[0].pid, holder);
    assert_int_equal(infos[0].usedGpuMemory, 624 * MIB);
    count = 4;
    assert_int_equal(nvmlDeviceGetComputeRunningProcesses(device, &count, old), NVML_SUCCESS);
    assert_int_equal(old[0].pid, holder);
    assert_int_equal(kill(holder, SIGKILL), 0);
    (void)sim_wait(holder);
    assert_int_equal(nvmlDeviceGetComputeRunningProcesses(device, &count, old), NVML_SUCCESS);
    assert_int_equal(count, 0);
    assert_int_equal(nvmlShutdown(), NVML_SUCCESS);
    pipes_close();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, sim_test_setup, sim_test_teardown)

const struct CMUnitTest sim_process_tests[] = {
    TEST(a_card_is_shared_and_a_killed_process_gives_back),
    TEST(a_process_that_calls_exec_gives_back),
    TEST(a_raw_child_does_not_keep_its_parents_memory),
    TEST(forked_child_is_not_initialised),
    TEST(script_fails_the_nth_call_and_the_journal_has_every_call),
    TEST(a_setting_that_does_not_parse_stops_cuinit),
    TEST(visible_devices_select_and_reorder),
    TEST(nvml_lists_the_holders),
};
const size_t sim_process_test_count = sizeof sim_process_tests / sizeof sim_process_tests[0];
