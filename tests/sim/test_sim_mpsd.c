/*
 * The stand-in control daemon: its commands and files, its server, what clients are granted, and
 * how it hangs, fails and lies.
 */
#define _GNU_SOURCE
#include "sim_nvml.h"
#include "test_sim_support.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONTROL SIM_DIR "/nvidia-cuda-mps-control"
#define CLIENT "VRAMCAP_SIM_CONTEXT_MIB=24"

static pid_t daemon_pid;
static char pipe_directory[160];
static int told[2], asked[2];

static void daemon_start(void)
{
    char path[200];

    (void)snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", pipe_directory);
    (void)unlink(path); /* of one that was killed */
    (void)fflush(NULL);
    daemon_pid = fork();
    if (daemon_pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execl(CONTROL, "nvidia-cuda-mps-control", "-f", "-multiuser-server", (char *)NULL);
        _exit(127);
    }
    for (int tries = 0; access(path, F_OK) != 0 && tries < 10000; tries++)
        (void)usleep(1000);
    assert_int_equal(access(path, F_OK), 0);
}

static void daemon_kill(void)
{
    if (daemon_pid > 0) {
        (void)kill(daemon_pid, SIGKILL);
        (void)waitpid(daemon_pid, NULL, 0);
    }
    daemon_pid = 0;
}

static int setup(void **state)
{
    if (sim_test_setup(state) != 0)
        return -1;
    (void)snprintf(pipe_directory, sizeof pipe_directory, "%s", sim_test_path("pipe"));
    return setenv("CUDA_MPS_PIPE_DIRECTORY", pipe_directory, 1);
}

static int teardown(void **state)
{
    while (nvmlShutdown() == NVML_SUCCESS) /* of a test that failed */
        continue;
    daemon_kill();
    (void)unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    (void)unsetenv("VRAMCAP_SIM_MPS_CONTROL");
    return sim_test_teardown(state);
}

/* The command's answer; *status: its exit status. */
static const char *ask(const char *commands, int *status)
{
    static char answer[4096];
    char shell[600];

    (void)snprintf(shell, sizeof shell, "printf '%%b' '%s\\n' | timeout 20 " CONTROL, commands);
    FILE *run = popen(shell, "re");
    assert_non_null(run);
    size_t length = fread(answer, 1, sizeof answer - 1, run);
    answer[length] = '\0';
    int rc = pclose(run);
    if (status)
        *status = WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
    return answer;
}

static int hold(void)
{
    CUcontext context = NULL;
    char byte = 0;

    CHECK(sim_begin(&context) == 0);
    CHECK(write(told[1], "h", 1) == 1);
    (void)read(asked[0], &byte, 1);
    return 0;
}

static pid_t hold_start(const char *environment)
{
    char byte = 0;

    assert_int_equal(pipe2(told, O_CLOEXEC) | pipe2(asked, O_CLOEXEC), 0);
    pid_t holder = sim_start(hold, environment);
    assert_int_equal(read(told[0], &byte, 1), 1);
    return holder;
}

static void hold_end(pid_t holder)
{
    assert_int_equal(write(asked[1], "e", 1), 1);
    assert_int_equal(sim_wait(holder), 0);
    (void)close(told[0]);
    (void)close(told[1]);
    (void)close(asked[0]);
    (void)close(asked[1]);
}

static uint64_t expected_free;
static int expected_sms, expected_mps;

static int sees(void)
{
    CUcontext context = NULL;
    size_t free_bytes = 0;
    int sms = 0, mps = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemGetInfo_v2(&free_bytes, NULL));
    CHECK(free_bytes == expected_free);
    OK(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    CHECK(sms == expected_sms);
    OK(cuDeviceGetAttribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 0));
    CHECK(mps == expected_mps);
    return 0;
}

static void expect(uint64_t free_mib, int sms, int mps)
{
    expected_free = free_mib * MIB;
    expected_sms = sms;
    expected_mps = mps;
}

/* --- tests --------------------------------------------------------------------------- */

static void defaults_are_for_servers_that_start_later(void **state)
{
    char command[200];
    int status = -1;

    (void)state;
    daemon_start();
    assert_string_equal(ask("get_server_list", &status), "");
    assert_int_equal(status, 0);
    assert_string_equal(ask("get_default_device_pinned_mem_limit 0", NULL), "Unset\n");
    assert_string_equal(ask("get_default_active_thread_percentage", NULL), "100.0\n");
    (void)ask("set_default_device_pinned_mem_limit 0 3G\\nset_default_device_pinned_mem_limit 7 1G",
              NULL);
    (void)ask("set_default_active_thread_percentage 25", NULL);
    assert_string_equal(ask("get_default_device_pinned_mem_limit 0", NULL), "3G\n");
    assert_string_equal(ask("get_default_active_thread_percentage", NULL), "25.0\n");
    expect(3072 - 6, 32, 1);
    assert_int_equal(sim_run(sees, CLIENT), 0);
    int server = atoi(ask("get_server_list", NULL));
    assert_true(server > 1);
    /* The running server keeps what it had. */
    (void)ask("set_default_device_pinned_mem_limit 0 1G", NULL);
    assert_int_equal(sim_run(sees, CLIENT), 0);
    (void)snprintf(command, sizeof command,
                   "set_device_pinned_mem_limit %d 0 8G\\nset_active_thread_percentage %d 50\\n"
                   "get_device_pinned_mem_limit %d 0\\nget_active_thread_percentage %d",
                   server, server, server, server);
    assert_string_equal(ask(command, NULL), "8G\n50.0\n");
    expect(8192 - 12, 66, 1);
    assert_int_equal(sim_run(sees, CLIENT), 0);
    expect(2048 - 12, 66, 1);
    assert_int_equal(sim_run(sees, CLIENT ";CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G"), 0);
    (void)snprintf(command, sizeof command, "shutdown_server %d\\nget_server_list", server);
    assert_string_equal(ask(command, NULL), "");
    expect(1024 - 6, 32, 1);
    assert_int_equal(sim_run(sees, CLIENT), 0);
}

static void clients_and_status_are_told(void **state)
{
    char command[200], answer[400];

    (void)state;
    daemon_start();
    pid_t holder = hold_start(CLIENT);
    int server = atoi(ask("get_server_list", NULL));
    (void)snprintf(command, sizeof command, "get_server_status %d\\nget_client_list %d", server,
                   server);
    (void)snprintf(answer, sizeof answer, "ACTIVE\n%d\n", (int)holder);
    assert_string_equal(ask(command, NULL), answer);
    (void)snprintf(answer, sizeof answer, "%d\n", (int)holder);
    assert_string_equal(ask("get_device_client_list 0", NULL), answer);
    const char *table = ask("ps", NULL);
    (void)snprintf(answer, sizeof answer, "\n%d ", (int)holder);
    assert_non_null(strstr(table, answer));
    assert_int_equal(strncmp(table, "PID ", 4), 0);
    (void)snprintf(command, sizeof command, "terminate_client %d %d\\nget_server_status %d", server,
                   (int)holder, server);
    assert_string_equal(ask(command, NULL), "ACTIVE\n");
    struct sim_state *card = sim_state_open(NULL);
    assert_non_null(card);
    assert_int_equal(system(SIM_DIR "/simctl fault 0 700"), 0);
    sim_state_close(card);
    (void)snprintf(command, sizeof command, "get_server_status %d\\nget_server_status 7", server);
    assert_string_equal(ask(command, NULL), "FAULT\nServer 7 does not exist\n");
    hold_end(holder);
    (void)snprintf(command, sizeof command, "get_server_status %d", server);
    assert_string_equal(ask(command, NULL), "ACTIVE\n");
}

static void the_server_is_a_compute_process_of_nvml_and_no_client(void **state)
{
    nvmlProcessInfo_v2_t infos[4];
    nvmlDevice_t device = NULL;
    unsigned int count = 4;

    (void)state;
    daemon_start();
    pid_t holder = hold_start(CLIENT);
    unsigned int server = (unsigned int)atoi(ask("get_server_list", NULL));
    assert_int_equal(nvmlInit_v2(), NVML_SUCCESS);
    assert_int_equal(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    assert_int_equal(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos), NVML_SUCCESS);
    assert_int_equal(count, 2);
    assert_true(infos[0].pid == server || infos[1].pid == server);
    assert_int_equal(infos[0].usedGpuMemory + infos[1].usedGpuMemory, (24 + 28) * MIB);
    assert_int_equal(nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &count, infos),
                     NVML_SUCCESS);
    assert_int_equal(count, 1);
    assert_int_equal(infos[0].pid, holder);
    assert_int_equal(nvmlShutdown(), NVML_SUCCESS);
    hold_end(holder);
}

static void a_daemon_that_is_down_means_ordinary_processes(void **state)
{
    char path[200];
    struct stat info;
    int status = 0;

    (void)state;
    expect(24576 - 24, 132, 0);
    assert_int_equal(sim_run(sees, CLIENT), 0); /* no directory */
    assert_string_equal(ask("get_server_list", &status),
                        "Cannot find MPS control daemon process\n");
    assert_int_equal(status, 1);
    daemon_start();
    (void)snprintf(path, sizeof path, "%s/control", pipe_directory);
    assert_int_equal(stat(path, &info), 0);
    assert_true(S_ISSOCK(info.st_mode));
    expect(24576 - 24 - 28, 132, 1);
    assert_int_equal(sim_run(sees, CLIENT), 0);
    daemon_kill();
    assert_int_equal(stat(path, &info), 0); /* left behind */
    for (int tries = 0; sim_test_used(0) != 0 && tries < 10000; tries++)
        (void)usleep(1000); /* the server goes with it */
    expect(24576 - 24, 132, 0);
    assert_int_equal(sim_run(sees, CLIENT ";CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G"), 0);
    (void)ask("get_server_list", &status);
    assert_int_equal(status, 1);
    daemon_start(); /* over what was left */
    expect(24576 - 24 - 28, 132, 1);
    assert_int_equal(sim_run(sees, CLIENT), 0);
}

static void a_server_that_was_killed_is_replaced(void **state)
{
    (void)state;
    daemon_start();
    expect(24576 - 24 - 28, 132, 1);
    assert_int_equal(sim_run(sees, CLIENT), 0);
    int server = atoi(ask("get_server_list", NULL));
    assert_int_equal(kill(server, SIGKILL), 0);
    for (int tries = 0; atoi(ask("get_server_list", NULL)) != 0 && tries < 1000; tries++)
        (void)usleep(1000);
    assert_int_equal(sim_run(sees, CLIENT), 0);
    int next = atoi(ask("get_server_list", NULL));
    assert_true(next > 1 && next != server);
}

static void quit_removes_the_files_and_a_second_daemon_is_refused(void **state)
{
    char path[200];
    int status = 0;

    (void)state;
    assert_int_equal(system(CONTROL " -d"), 0);
    status = system(CONTROL " -d 2>/dev/null");
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_string_equal(ask("quit", &status), "");
    assert_int_equal(status, 0);
    (void)snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", pipe_directory);
    for (int tries = 0; access(path, F_OK) == 0 && tries < 10000; tries++)
        (void)usleep(1000);
    assert_int_equal(access(path, F_OK), -1);
}

static int not_connected(void)
{
    return cuInit(0) == CUDA_ERROR_MPS_CONNECTION_FAILED ? 0 : 1;
}

static void behave(const char *word)
{
    char path[200];

    (void)snprintf(path, sizeof path, "%s/sim_behaviour", pipe_directory);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    (void)fprintf(file, "%s\n", word);
    assert_int_equal(fclose(file), 0);
}

static void it_hangs_fails_and_lies_as_it_is_told(void **state)
{
    int status = 0;

    (void)state;
    daemon_start();
    behave("fail");
    assert_string_equal(ask("get_server_list", &status),
                        "Cannot find MPS control daemon process\n");
    assert_int_equal(status, 1);
    expect(24576 - 24, 132, 0);
    assert_int_equal(sim_run(sees, CLIENT), 0);
    behave("lie");
    assert_string_equal(ask("get_server_list\\nget_server_status 4194303", &status),
                        "4194303\nACTIVE\n");
    behave("hang");
    status = system("echo get_server_list | timeout 1 " CONTROL);
    assert_int_equal(WEXITSTATUS(status), 124);
    assert_int_equal(sim_run(not_connected, CLIENT), 0);
    behave("answer");
    expect(24576 - 24 - 28, 132, 1);
    assert_int_equal(sim_run(sees, CLIENT), 0);
    /* One command alone, by its environment. */
    assert_int_equal(setenv("VRAMCAP_SIM_MPS_CONTROL", "fail", 1), 0);
    (void)ask("get_server_list", &status);
    assert_int_equal(status, 1);
    assert_int_equal(setenv("VRAMCAP_SIM_MPS_CONTROL", "answer", 1), 0);
    assert_true(atoi(ask("get_server_list", &status)) > 1);
}

static void a_stopped_daemon_lets_clients_wait_and_fail(void **state)
{
    (void)state;
    daemon_start();
    assert_int_equal(kill(daemon_pid, SIGSTOP), 0);
    assert_int_equal(sim_run(not_connected, CLIENT), 0);
    assert_int_equal(kill(daemon_pid, SIGCONT), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(defaults_are_for_servers_that_start_later),
        TEST(clients_and_status_are_told),
        TEST(the_server_is_a_compute_process_of_nvml_and_no_client),
        TEST(a_daemon_that_is_down_means_ordinary_processes),
        TEST(a_server_that_was_killed_is_replaced),
        TEST(quit_removes_the_files_and_a_second_daemon_is_refused),
        TEST(it_hangs_fails_and_lies_as_it_is_told),
        TEST(a_stopped_daemon_lets_clients_wait_and_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
