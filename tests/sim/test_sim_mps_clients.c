/*
 * The simulator under MPS, several clients: how many a card takes, compute modes, faults that hit
 * them all, and what NVML says of them.
 *
 * Synchronisation is by pipes and waits, never by time.
 */
#define _GNU_SOURCE
#include "sim_bounds.h"
#include "sim_nvml.h"
#include "test_sim_support.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define MPS "VRAMCAP_SIM_MPS=/run/mps;CUDA_MPS_PIPE_DIRECTORY=/run/mps;VRAMCAP_SIM_CONTEXT_MIB=24"

static int told[2], asked[2];

static int attribute(CUdevice_attribute id)
{
    int value = -1;

    return cuDeviceGetAttribute(&value, id, 0) == CUDA_SUCCESS ? value : -1;
}

/* --- clients, modes, faults ------------------------------------------------------- */

static int three_clients(void)
{
    CUcontext context[4];

    OK(cuInit(0));
    for (int i = 0; i < 3; i++)
        OK(cuCtxCreate_v2(&context[i], 0, 0));
    CHECK(cuCtxCreate_v2(&context[3], 0, 0) == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
    OK(cuCtxDestroy_v2(context[0]));
    OK(cuCtxCreate_v2(&context[3], 0, 0));
    CHECK(sim_test_used(0) == 3 * 24 * MIB);
    return 0;
}

static int hold_context(void)
{
    CUcontext context = NULL;
    char byte = 0;

    CHECK(sim_begin(&context) == 0);
    CHECK(write(told[1], "h", 1) == 1);
    (void)read(asked[0], &byte, 1);
    return 0;
}

static CUresult expected;

static int context_gives(void)
{
    CUcontext context = NULL;

    OK(cuInit(0));
    CHECK(cuCtxCreate_v2(&context, 0, 0) == expected);
    return 0;
}

/* Runs a second process with `environment` beside one that holds a context. */
static void beside(const char *holder_environment, const char *environment, CUresult gives)
{
    char byte = 0;

    assert_int_equal(pipe2(told, O_CLOEXEC) | pipe2(asked, O_CLOEXEC), 0);
    pid_t holder = sim_start(hold_context, holder_environment);
    assert_int_equal(read(told[0], &byte, 1), 1);
    expected = gives;
    assert_int_equal(sim_run(context_gives, environment), 0);
    assert_int_equal(write(asked[1], "e", 1), 1);
    assert_int_equal(sim_wait(holder), 0);
    (void)close(told[0]);
    (void)close(told[1]);
    (void)close(asked[0]);
    (void)close(asked[1]);
}

static void a_card_takes_so_many_clients_and_connections(void **state)
{
    (void)state;
    assert_int_equal(sim_run(three_clients, MPS ";VRAMCAP_SIM_MPS_CLIENTS=3"), 0);
    beside(MPS, MPS ";VRAMCAP_SIM_MPS_CLIENTS=1", CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
    beside(MPS, MPS ";VRAMCAP_SIM_MPS_CONNECTIONS=4", CUDA_SUCCESS);
    beside(MPS ";CUDA_DEVICE_MAX_CONNECTIONS=8", MPS ";VRAMCAP_SIM_MPS_CONNECTIONS=9",
           CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED);
    beside("VRAMCAP_SIM_CONTEXT_MIB=24", MPS ";VRAMCAP_SIM_MPS_CLIENTS=1", CUDA_SUCCESS);
}

static void an_exclusive_card_takes_one_process_or_the_clients_of_mps(void **state)
{
#define EXCLUSIVE ";VRAMCAP_SIM_COMPUTE_MODE=exclusive"
    (void)state;
    beside("VRAMCAP_SIM_COMPUTE_MODE=exclusive", "VRAMCAP_SIM_COMPUTE_MODE=exclusive",
           CUDA_ERROR_DEVICE_UNAVAILABLE);
    beside(MPS EXCLUSIVE, MPS EXCLUSIVE, CUDA_SUCCESS);
    beside(MPS EXCLUSIVE, "VRAMCAP_SIM_COMPUTE_MODE=exclusive", CUDA_ERROR_DEVICE_UNAVAILABLE);
    beside("VRAMCAP_SIM_COMPUTE_MODE=exclusive", MPS EXCLUSIVE, CUDA_ERROR_DEVICE_UNAVAILABLE);
    /* A process that missed the pipe directory fails even where no client is yet. */
    expected = CUDA_ERROR_DEVICE_UNAVAILABLE;
    assert_int_equal(sim_run(context_gives, "VRAMCAP_SIM_MPS=/run/mps" EXCLUSIVE), 0);
    beside("VRAMCAP_SIM_COMPUTE_MODE=default", "VRAMCAP_SIM_COMPUTE_MODE=default", CUDA_SUCCESS);
    expected = CUDA_ERROR_DEVICE_UNAVAILABLE;
    assert_int_equal(sim_run(context_gives, "VRAMCAP_SIM_COMPUTE_MODE=prohibited"), 0);
}

static int told_the_mode(void)
{
    OK(cuInit(0));
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
    return 0;
}

static void the_compute_mode_is_the_machines(void **state)
{
    nvmlDevice_t device = NULL;
    nvmlComputeMode_t mode = 0;

    (void)state;
    struct sim_state *card = sim_state_open(NULL);
    assert_non_null(card);
    assert_int_equal(sim_compute_mode_set(card, 0, SIM_MODE_EXCLUSIVE), 0);
    assert_int_equal(sim_compute_mode_set(card, 1, SIM_MODE_EXCLUSIVE), -EINVAL);
    sim_state_close(card);
    assert_int_equal(sim_run(told_the_mode, NULL), 0);
    assert_int_equal(nvmlInit_v2(), NVML_SUCCESS);
    assert_int_equal(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    assert_int_equal(nvmlDeviceGetComputeMode(device, &mode), NVML_SUCCESS);
    assert_int_equal(mode, 3);
    assert_int_equal(nvmlShutdown(), NVML_SUCCESS);
}

/* Holds a context of device 0, then, asked, says what the driver answers. */
static int victim(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    char byte = 0;

    CHECK(sim_begin(&context) == 0);
    CHECK(write(told[1], "h", 1) == 1);
    CHECK(read(asked[0], &byte, 1) == 1);
    CHECK(cuMemAlloc_v2(&pointer, MIB) == expected);
    CHECK(cuCtxSynchronize() == expected);
    CHECK(write(told[1], "h", 1) == 1);
    (void)read(asked[0], &byte, 1);
    return 0;
}

static int faults(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAlloc_v2(&pointer, MIB));
    CHECK(cuMemAlloc_v2(&pointer, MIB) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemFree_v2(pointer) == CUDA_ERROR_ILLEGAL_ADDRESS);
    return 0;
}

static int not_ready(void)
{
    return cuInit(0) == CUDA_ERROR_MPS_SERVER_NOT_READY ? 0 : 1;
}

static int initialises(void)
{
    return cuInit(0) == CUDA_SUCCESS ? 0 : 1;
}

/* A process with this environment beside a client that faults on card 0 (700). */
static void beside_a_fault(const char *environment, CUresult answers)
{
    char byte = 0;

    assert_int_equal(pipe2(told, O_CLOEXEC) | pipe2(asked, O_CLOEXEC), 0);
    expected = answers;
    pid_t other = sim_start(victim, environment);
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_int_equal(sim_run(faults, MPS ";VRAMCAP_SIM_FAULT=cuMemAlloc_v2:2:700"), 0);
    assert_int_equal(write(asked[1], "a", 1), 1);
    assert_int_equal(read(told[0], &byte, 1), 1);
    /* State FAULT lasts as long as one of the clients that were hit. */
    assert_int_equal(sim_run(answers == CUDA_SUCCESS ? initialises : not_ready, MPS), 0);
    assert_int_equal(sim_run(initialises, NULL), 0);
    assert_int_equal(write(asked[1], "e", 1), 1);
    assert_int_equal(sim_wait(other), 0);
    assert_int_equal(sim_run(initialises, MPS), 0);
    (void)close(told[0]);
    (void)close(told[1]);
    (void)close(asked[0]);
    (void)close(asked[1]);
}

static void a_fatal_fault_hits_every_client_of_the_card(void **state)
{
    (void)state;
    beside_a_fault(MPS, CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void a_fatal_fault_spares_other_cards_and_who_is_no_client(void **state)
{
    (void)state;
    beside_a_fault("VRAMCAP_SIM_CARDS=2x24576", CUDA_SUCCESS);
    beside_a_fault("VRAMCAP_SIM_CARDS=2x24576;CUDA_VISIBLE_DEVICES=1;" MPS, CUDA_SUCCESS);
}

static void a_fault_of_an_ordinary_process_is_its_own(void **state)
{
    (void)state;
    expected = CUDA_SUCCESS;
    assert_int_equal(sim_run(faults, "VRAMCAP_SIM_FAULT=cuMemAlloc_v2:2:700"), 0);
    assert_int_equal(sim_run(initialises, MPS), 0);
}

static void a_fault_from_outside_and_a_terminated_client(void **state)
{
    char byte = 0;

    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(pipe2(told, O_CLOEXEC) | pipe2(asked, O_CLOEXEC), 0);
        expected = turn == 0 ? CUDA_ERROR_LAUNCH_FAILED : CUDA_ERROR_MPS_CLIENT_TERMINATED;
        pid_t client = sim_start(victim, MPS);
        assert_int_equal(read(told[0], &byte, 1), 1);
        struct sim_state *card = sim_state_open(NULL);
        assert_non_null(card);
        if (turn == 0) {
            assert_int_equal(sim_bounds_fault(card, 0, -1, 719), 1);
        } else {
            assert_int_equal(sim_bounds_terminate(card, 2, client, 810), -ESRCH);
            assert_int_equal(sim_bounds_terminate(card, 1, client, 810), 0);
        }
        sim_state_close(card);
        assert_int_equal(write(asked[1], "a", 1), 1);
        assert_int_equal(read(told[0], &byte, 1), 1);
        assert_int_equal(sim_run(turn == 0 ? not_ready : initialises, MPS), 0);
        assert_int_equal(write(asked[1], "e", 1), 1);
        assert_int_equal(sim_wait(client), 0);
        (void)close(told[0]);
        (void)close(told[1]);
        (void)close(asked[0]);
        (void)close(asked[1]);
    }
}

/* --- NVML ------------------------------------------------------------------------- */

static void nvml_lists_clients_apart(void **state)
{
    nvmlProcessDetail_v1_t details[4];
    nvmlProcessDetailList_v1_t list = {nvmlProcessDetailList_v1, NVML_PROCESS_MODE_MPS, 0, NULL};
    nvmlProcessInfo_v2_t infos[4];
    nvmlProcessInfo_v1_t old[4];
    nvmlDevice_t device = NULL;
    unsigned int count = 4;
    char byte = 0;

    (void)state;
    assert_int_equal(pipe2(told, O_CLOEXEC) | pipe2(asked, O_CLOEXEC), 0);
    pid_t client = sim_start(hold_context, MPS);
    assert_int_equal(read(told[0], &byte, 1), 1);
    pid_t other = sim_start(hold_context, "VRAMCAP_SIM_CONTEXT_MIB=30");
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_int_equal(nvmlInit_v2(), NVML_SUCCESS);
    assert_int_equal(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    assert_int_equal(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos), NVML_SUCCESS);
    assert_int_equal(count, 2);
    count = 0;
    assert_int_equal(nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &count, NULL),
                     NVML_ERROR_INSUFFICIENT_SIZE);
    assert_int_equal(count, 1);
    assert_int_equal(nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &count, infos),
                     NVML_SUCCESS);
    assert_int_equal(infos[0].pid, client);
    assert_int_equal(infos[0].usedGpuMemory, 24 * MIB);
    assert_int_equal(nvmlDeviceGetMPSComputeRunningProcesses(device, &count, old), NVML_SUCCESS);
    assert_int_equal(old[0].pid, client);
    assert_int_equal(nvmlDeviceGetRunningProcessDetailList(device, &list),
                     NVML_ERROR_INSUFFICIENT_SIZE);
    assert_int_equal(list.numProcArrayEntries, 1);
    list.procArray = details;
    assert_int_equal(nvmlDeviceGetRunningProcessDetailList(device, &list), NVML_SUCCESS);
    assert_int_equal(details[0].pid, client);
    list.mode = NVML_PROCESS_MODE_COMPUTE;
    list.numProcArrayEntries = 4;
    assert_int_equal(nvmlDeviceGetRunningProcessDetailList(device, &list), NVML_SUCCESS);
    assert_int_equal(list.numProcArrayEntries, 2);
    list.version++;
    assert_int_equal(nvmlDeviceGetRunningProcessDetailList(device, &list),
                     NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    assert_int_equal(nvmlShutdown(), NVML_SUCCESS);
    assert_int_equal(write(asked[1], "ee", 2), 2);
    assert_int_equal(sim_wait(client) | sim_wait(other), 0);
}

static int teardown(void **state)
{
    while (nvmlShutdown() == NVML_SUCCESS) /* of a test that failed */
        continue;
    return sim_test_teardown(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, sim_test_setup, teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(a_card_takes_so_many_clients_and_connections),
        TEST(an_exclusive_card_takes_one_process_or_the_clients_of_mps),
        TEST(the_compute_mode_is_the_machines),
        TEST(a_fatal_fault_hits_every_client_of_the_card),
        TEST(a_fatal_fault_spares_other_cards_and_who_is_no_client),
        TEST(a_fault_of_an_ordinary_process_is_its_own),
        TEST(a_fault_from_outside_and_a_terminated_client),
        TEST(nvml_lists_clients_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
