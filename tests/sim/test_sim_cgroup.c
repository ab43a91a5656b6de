/*
 * Limits per cgroup: the files and their form, enforcement up the tree, what is shown, and NVML's
 * view and setter, kept by the kernel (dmem) and by the driver (misc).
 */
#define _GNU_SOURCE
#include "sim_cgroup.h"
#include "sim_nvml.h"
#include "test_sim_support.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REGION_0 "nvidia/00000000:10:00.0/vidmem"
#define REGION_1 "nvidia/00000000:11:00.0/vidmem"
#define CARDS "VRAMCAP_SIM_CARDS=2x2048;VRAMCAP_SIM_CONTEXT_MIB=24"

static char root[160];
static int told[2], asked[2];

static int setup(void **state)
{
    if (sim_test_setup(state) != 0)
        return -1;
    (void)snprintf(root, sizeof root, "%s", sim_test_path("cg"));
    (void)setenv("VRAMCAP_SIM_CARDS", "2x2048", 1);
    return setenv("VRAMCAP_SIM_CGROUP_ROOT", root, 1);
}

static int teardown(void **state)
{
    while (nvmlShutdown() == NVML_SUCCESS) /* of a test that failed */
        continue;
    (void)unsetenv("VRAMCAP_SIM_CGROUP_ROOT");
    (void)unsetenv("VRAMCAP_SIM_CGROUP");
    (void)unsetenv("VRAMCAP_SIM_MEMACCT");
    (void)unsetenv("VRAMCAP_SIM_CARDS");
    return sim_test_teardown(state);
}

static void make(const char *cgroup)
{
    struct sim_state *state = sim_state_open(NULL);

    assert_non_null(state);
    assert_int_equal(sim_cgroup_make(state, cgroup), 0);
    sim_state_close(state);
}

static const char *content(const char *name)
{
    static char text[1024];
    char path[256];

    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    size_t length = fread(text, 1, sizeof text - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    return text;
}

static void put(const char *name, const char *text)
{
    char path[256];

    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    (void)fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static uint64_t shown_total, shown_free, can_have;

static int sees(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    size_t free_bytes = 0, total = 0;
    uint64_t had = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(total == shown_total * MIB);
    CHECK(free_bytes == shown_free * MIB);
    OK(cuMemAllocManaged(&pointer, 3000 * MIB, CU_MEM_ATTACH_GLOBAL));
    for (uint64_t block = 64; block >= 4; block /= 4)
        while (had < 4096 && cuMemAlloc_v2(&pointer, block * MIB) == CUDA_SUCCESS)
            had += block;
    CHECK(had == can_have);
    return 0;
}

static void expect(uint64_t total, uint64_t free_mib, uint64_t had)
{
    shown_total = total;
    shown_free = free_mib;
    can_have = had;
}

static void files_have_the_kernels_form(void **state)
{
    (void)state;
    make("/pod/ctr");
    assert_string_equal(content("dmem.capacity"),
                        REGION_0 " 2147483648\n" REGION_1 " 2147483648\n");
    assert_string_equal(content("pod/dmem.max"), REGION_0 " max\n" REGION_1 " max\n");
    assert_string_equal(content("pod/ctr/dmem.min"), REGION_0 " 0\n" REGION_1 " 0\n");
    assert_string_equal(content("pod/ctr/dmem.current"), REGION_0 " 0\n" REGION_1 " 0\n");
    /* What is there stays. */
    put("pod/dmem.max", REGION_0 " 1048576\n");
    make("/pod/other");
    assert_string_equal(content("pod/dmem.max"), REGION_0 " 1048576\n");
    char path[256];
    (void)snprintf(path, sizeof path, "%s/dmem.max", root);
    assert_int_equal(access(path, F_OK), -1); /* the root cannot have a limit */
}

static void the_leafs_limit_is_the_total_and_a_limit_above_is_only_enforced(void **state)
{
    (void)state;
    make("/pod/ctr");
    expect(2048, 2048 - 24, 2048 - 24);
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/pod/ctr"), 0);
    put("pod/ctr/dmem.max", REGION_0 " 1073741824\n" REGION_1 " max\n");
    expect(1024, 1000, 1000);
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/pod/ctr"), 0);
    expect(2048, 2048 - 24, 2048 - 24);
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/pod/ctr;CUDA_VISIBLE_DEVICES=1"), 0);
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/pod"), 0);
    put("pod/dmem.max", REGION_0 " 536870912\n" REGION_1 " max\n");
    expect(1024, 1000, 488); /* the leaf's own shows, the pod's holds */
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/pod/ctr"), 0);
    put("pod/ctr/dmem.max", REGION_0 " max\n" REGION_1 " max\n");
    expect(2048, 2048 - 24, 488);
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/pod/ctr"), 0);
    /* /podium is not below /pod */
    expect(2048, 2048 - 24, 2048 - 24);
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/podium"), 0);
}

static void a_cgroup_without_files_has_the_nearest_limit_above(void **state)
{
    (void)state;
    make("/pod");
    put("pod/dmem.max", REGION_0 " 1073741824\n");
    expect(1024, 1000, 1000);
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/pod/a/b"), 0);
}

static void with_an_mps_limit_the_lower_of_both_holds(void **state)
{
    (void)state;
#define MPS                                                                                        \
    ";VRAMCAP_SIM_MPS=/run/mps;CUDA_MPS_PIPE_DIRECTORY=/run/mps;CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="
    make("/pod");
    put("pod/dmem.max", REGION_0 " 1073741824\n");
    expect(1024, 476, 476);
    assert_int_equal(sim_run(sees, CARDS MPS "0=500M;VRAMCAP_SIM_CGROUP=/pod"), 0);
    expect(1024, 1000, 1000);
    assert_int_equal(sim_run(sees, CARDS MPS "0=2G;VRAMCAP_SIM_CGROUP=/pod"), 0);
    assert_int_equal(sim_run(sees, CARDS MPS "1=2G,7=1G;VRAMCAP_SIM_CGROUP=/pod"), 0);
}

static int hold(void)
{
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    char byte = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAlloc_v2(&pointer, 400 * MIB));
    CHECK(write(told[1], "h", 1) == 1);
    (void)read(asked[0], &byte, 1);
    return 0;
}

static void processes_share_the_limit_and_current_is_written(void **state)
{
    char byte = 0;

    (void)state;
    make("/pod/a");
    make("/pod/b");
    put("pod/dmem.max", REGION_0 " 1073741824\n");
    assert_int_equal(pipe2(told, O_CLOEXEC) | pipe2(asked, O_CLOEXEC), 0);
    pid_t stranger = sim_start(hold, CARDS ";VRAMCAP_SIM_CGROUP=/podium"); /* not below /pod */
    assert_int_equal(read(told[0], &byte, 1), 1);
    pid_t holder = sim_start(hold, CARDS ";VRAMCAP_SIM_CGROUP=/pod/a");
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_string_equal(content("pod/a/dmem.current"), REGION_0 " 444596224\n" REGION_1 " 0\n");
    assert_string_equal(content("pod/dmem.current"), REGION_0 " 444596224\n" REGION_1 " 0\n");
    assert_string_equal(content("pod/b/dmem.current"), REGION_0 " 0\n" REGION_1 " 0\n");
    expect(2048, 2048 - 24 - 2 * 424, 1024 - 24 - 424);
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/pod/b"), 0);
    assert_int_equal(write(asked[1], "ee", 2), 2);
    assert_int_equal(sim_wait(holder) | sim_wait(stranger), 0);
    expect(2048, 2048 - 24, 1024 - 24);
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/pod/b"), 0);
}

/* --- NVML -------------------------------------------------------------------------------- */

static nvmlDevice_t device;

static void nvml_open(void)
{
    assert_int_equal(nvmlInit_v2(), NVML_SUCCESS);
    assert_int_equal(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
}

static nvmlReturn_t set(const char *path, unsigned long long soft, unsigned long long hard)
{
    nvmlSetMemoryLimits_v1_t limits = {path, soft, hard};

    return nvmlDeviceSetMemoryLimits_v1(device, &limits);
}

static void nvml_reads_and_sets_what_the_kernel_keeps(void **state)
{
    nvmlGetMemoryLimits_v1_t limits = {"/sys/fs/cgroup/pod/ctr", 1, 1, 1};
    nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
    char path[256];

    (void)state;
    if (geteuid() != 0)
        skip();
    make("/pod/ctr");
    (void)setenv("VRAMCAP_SIM_CGROUP", "/pod/ctr", 1);
    nvml_open();
    assert_int_equal(nvmlDeviceGetMemoryLimits_v1(device, &limits), NVML_SUCCESS);
    assert_true(limits.softLimit == 0 && limits.hardLimit == NVML_DEVICE_MEMORY_LIMIT_MAX &&
                limits.currentUsed == 0);
    (void)snprintf(path, sizeof path, "%s/pod/ctr", root);
    assert_int_equal(set(path, 512 * MIB, 1024 * MIB), NVML_SUCCESS);
    assert_string_equal(content("pod/ctr/dmem.max"), REGION_0 " 1073741824\n" REGION_1 " max\n");
    assert_string_equal(content("pod/ctr/dmem.min"), REGION_0 " 536870912\n" REGION_1 " 0\n");
    expect(1024, 1000, 1000);
    assert_int_equal(sim_run(sees, CARDS), 0);
    assert_int_equal(nvmlDeviceGetMemoryLimits_v1(device, &limits), NVML_SUCCESS);
    assert_true(limits.softLimit == 512 * MIB && limits.hardLimit == 1024 * MIB);
    assert_int_equal(nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_SUCCESS);
    assert_true(memory.total == 1024 * MIB && memory.free == 1024 * MIB && memory.used == 0);
    limits.nameSpace = "/sys/fs/cgroup/pod/ctr/without/files";
    assert_int_equal(nvmlDeviceGetMemoryLimits_v1(device, &limits), NVML_SUCCESS);
    assert_true(limits.hardLimit == 1024 * MIB);
    assert_int_equal(set("/sys/fs/cgroup/pod/ctr/without/files", 0, 1), NVML_ERROR_NOT_FOUND);
    limits.nameSpace = "/sys/fs/cgroup/nowhere";
    assert_int_equal(nvmlDeviceGetMemoryLimits_v1(device, &limits), NVML_ERROR_NOT_FOUND);
    assert_int_equal(set(path, 2, 1), NVML_ERROR_INVALID_ARGUMENT);
    assert_int_equal(set(path, 0, NVML_DEVICE_MEMORY_LIMIT_MAX), NVML_SUCCESS);
    assert_string_equal(content("pod/ctr/dmem.max"), REGION_0 " max\n" REGION_1 " max\n");
    assert_int_equal(nvmlShutdown(), NVML_SUCCESS);
}

static void the_drivers_own_limits_need_no_files_and_do_not_nest(void **state)
{
    nvmlGetMemoryLimits_v1_t limits = {"/sys/fs/cgroup/pod/ctr", 1, 1, 1};

    (void)state;
    if (geteuid() != 0)
        skip();
    (void)setenv("VRAMCAP_SIM_MEMACCT", "misc", 1);
    nvml_open();
    assert_int_equal(nvmlDeviceGetMemoryLimits_v1(device, &limits), NVML_ERROR_NOT_SUPPORTED);
    assert_int_equal(set("/sys/fs/cgroup/pod", 0, 512 * MIB), NVML_SUCCESS);
    assert_int_equal(nvmlDeviceGetMemoryLimits_v1(device, &limits), NVML_SUCCESS);
    assert_true(limits.hardLimit == 512 * MIB);
    expect(512, 488, 488);
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/pod/ctr"), 0);
    assert_int_equal(set("/sys/fs/cgroup/pod/ctr", 0, 1024 * MIB), NVML_SUCCESS);
    expect(1024, 1000, 1000);
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/pod/ctr"), 0);
    assert_int_equal(set("/sys/fs/cgroup/pod/ctr", 0, NVML_DEVICE_MEMORY_LIMIT_MAX), NVML_SUCCESS);
    assert_int_equal(set("/sys/fs/cgroup/pod", 0, NVML_DEVICE_MEMORY_LIMIT_MAX), NVML_SUCCESS);
    assert_int_equal(nvmlDeviceGetMemoryLimits_v1(device, &limits), NVML_ERROR_NOT_SUPPORTED);
    assert_int_equal(nvmlShutdown(), NVML_SUCCESS);
}

static void where_nobody_keeps_limits_nvml_does_not_support_them(void **state)
{
    nvmlGetMemoryLimits_v1_t limits = {"/sys/fs/cgroup/pod", 1, 1, 1};

    (void)state;
    make("/pod");
    put("pod/dmem.max", REGION_0 " 1073741824\n");
    (void)setenv("VRAMCAP_SIM_MEMACCT", "off", 1);
    nvml_open();
    assert_int_equal(nvmlDeviceGetMemoryLimits_v1(device, &limits), NVML_ERROR_NOT_SUPPORTED);
    assert_int_equal(nvmlDeviceGetMemoryLimits_v1(device, NULL), NVML_ERROR_INVALID_ARGUMENT);
    assert_int_equal(nvmlShutdown(), NVML_SUCCESS);
    expect(2048, 2048 - 24, 2048 - 24);
    assert_int_equal(sim_run(sees, CARDS ";VRAMCAP_SIM_CGROUP=/pod"), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(files_have_the_kernels_form),
        TEST(the_leafs_limit_is_the_total_and_a_limit_above_is_only_enforced),
        TEST(a_cgroup_without_files_has_the_nearest_limit_above),
        TEST(with_an_mps_limit_the_lower_of_both_holds),
        TEST(processes_share_the_limit_and_current_is_written),
        TEST(nvml_reads_and_sets_what_the_kernel_keeps),
        TEST(the_drivers_own_limits_need_no_files_and_do_not_nest),
        TEST(where_nobody_keeps_limits_nvml_does_not_support_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
