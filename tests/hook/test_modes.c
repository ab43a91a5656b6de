/*
 * Audit, a full device below the ceiling, the driver's calls of itself, and what a hook must leave
 * alone: errno, signals, umask, locale, threads, descriptors, and the driver but for a few
 * questions.
 */
#include <dirent.h>
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "tests/hook/scenario.h"

static int audit_lets_everything_through_and_records_it(void)
{
    CUdeviceptr pointer, more, managed;
    size_t pitch;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 1000 * MIB));
    SAME(gpu_row(0).audit_refusals, 0);
    OK(api.cuMemAlloc_v2(&more, 1000 * MIB));
    OK(api.cuMemAllocPitch_v2(&pointer, &pitch, 4, 1024, 4));
    OK(api.cuMemAllocManaged(&managed, 1000 * MIB, CU_MEM_ATTACH_GLOBAL));
    CHECK(charged(0) >= 3000 * MIB);
    SAME(gpu_row(0).refusals, 0);
    SAME(gpu_row(0).audit_refusals, 3);
    CHECK(gpu_row(0).over);
    SAME(ledger_events(self.ledger, VCAP_LF_EVENT_AUDIT), 3);
    OK(api.cuMemFree_v2(more));
    OK(api.cuMemFree_v2(managed));
    CHECK(charged(0) < 1024 * MIB);
    return 0;
}

static int audit_counts_a_pitched_allocation_once(void)
{
    CUdeviceptr pointer;
    size_t pitch;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 1024 * MIB));
    OK(api.cuMemAllocPitch_v2(&pointer, &pitch, 4, 65536,
                              4)); /* 32 MiB at 512 bytes a row, 256 in the end */
    SAME(charged(0), 1280 * MIB);
    SAME(gpu_row(0).audit_refusals, 1);
    SAME(ledger_events(self.ledger, VCAP_LF_EVENT_AUDIT), 1);
    return 0;
}

static int grant_and_refuse(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 1000 * MIB));
    api.cuMemAlloc_v2(&pointer, 1536 * MIB);
    return 0;
}

static int the_device_fills_below_the_ceiling(void)
{
    CUdeviceptr pointer = 0x77;

    OK(begin(0)); /* card 1000, ceiling 4096 */
    OK(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    pointer = 0x77;
    GIVES(api.cuMemAlloc_v2(&pointer, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    SAME(pointer, 0x77);
    SAME(charged(0), 600 * MIB);
    SAME(gpu_row(0).refusals, 0);
    SAME(gpu_row(0).device_full, 1);
    return 0;
}

static int the_drivers_calls_of_itself_are_charged_once(void)
{
    CUdeviceptr pointer;
    CUcontext context;
    size_t pitch;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate(&context, 0, 0)); /* goes on to cuCtxCreate_v2 */
    SAME(charged(0), 50 * MIB);
    OK(api.cuMemAllocPitch_v2(&pointer, &pitch, 512, 204800, 4)); /* goes on to cuMemAlloc_v2 */
    SAME(charged(0), 50 * MIB + pitch * 204800);
    OK(api.cuMemFree_v2(pointer));
    SAME(charged(0), 50 * MIB);
    OK(api.cuCtxDestroy_v2(context));
    OK(api.cuDevicePrimaryCtxRetain(&context, 0));
    SAME(charged(0), 50 * MIB);
    OK(api.cuDevicePrimaryCtxRelease(0)); /* goes on to cuDevicePrimaryCtxRelease_v2 */
    SAME(charged(0), 0);
    return 0;
}

static int errno_is_kept(void)
{
    CUdeviceptr pointer;

    errno = 17;
    OK(api.cuInit(0));
    SAME(errno, 17);
    OK(begin(0));
    errno = 17;
    OK(api.cuMemAlloc_v2(&pointer, MIB));
    SAME(errno, 17);
    REFUSED(api.cuMemAlloc_v2(&pointer, 2048 * MIB));
    SAME(errno, 17);
    OK(api.cuMemFree_v2(pointer));
    SAME(errno, 17);
    GIVES(api.cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
    SAME(errno, 17);
    return 0;
}

static bool may_be_asked(const char *symbol)
{
    /* what reference/driver-api.md allows and these families need, then what this scenario calls
     * itself */
    static const char *const names[] = {"cuCtxGetCurrent",
                                        "cuCtxGetDevice",
                                        "cuDeviceGetAttribute",
                                        "cuDeviceGetPCIBusId",
                                        "cuDeviceGetUuid",
                                        "cuDeviceGetUuid_v2",
                                        "cuDevicePrimaryCtxGetState",
                                        "cuDeviceTotalMem_v2",
                                        "cuInit",
                                        "cuCtxCreate_v2",
                                        "cuCtxDestroy_v2",
                                        "cuMemAlloc_v2",
                                        "cuMemFree_v2",
                                        "cuMemAllocPitch_v2",
                                        "cuMemAllocManaged",
                                        "cuMemGetInfo_v2",
                                        "cuDevicePrimaryCtxRetain",
                                        "cuDevicePrimaryCtxRelease_v2",
                                        "cuGetProcAddress_v2",
                                        "cuGetProcAddress"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(symbol, names[i]) == 0)
            return true;
    fprintf(stderr, "the driver was asked %s\n", symbol);
    return false;
}

static int the_driver_is_asked_only_what_is_allowed(void)
{
    CUdeviceptr pointer[3];
    CUcontext context;
    size_t pitch, free_bytes;
    char line[256], name[200];
    FILE *file;
    int pid;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&context, 0, 0));
    OK(api.cuMemAlloc_v2(&pointer[0], MIB));
    OK(api.cuMemAllocPitch_v2(&pointer[1], &pitch, 4, 4, 4));
    OK(api.cuMemAllocManaged(&pointer[2], MIB, CU_MEM_ATTACH_GLOBAL));
    OK(api.cuMemGetInfo_v2(&free_bytes, NULL));
    for (int i = 0; i < 3; i++)
        OK(api.cuMemFree_v2(pointer[i]));
    OK(api.cuCtxDestroy_v2(context));
    OK(api.cuDevicePrimaryCtxRetain(&context, 0));
    OK(api.cuDevicePrimaryCtxRelease_v2(0));
    SAME(journal_count("cuCtxCreate_v2"), 1);
    SAME(journal_count("cuDevicePrimaryCtxRetain"), 1);
    SAME(journal_count("cuDevicePrimaryCtxRelease_v2"), 1);
    SAME(journal_count("cuMemGetInfo_v2"), 1);
    SAME(journal_count("cuMemAlloc_v2"), 1);
    SAME(journal_count("cuMemFree_v2"), 3);
    file = fopen(journal_path(), "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL)
        CHECK(sscanf(line, "%d %199s", &pid, name) == 2 && may_be_asked(name));
    fclose(file);
    return 0;
}

static unsigned entries(const char *path)
{
    DIR *directory = opendir(path);
    unsigned count = 0;

    while (directory != NULL && readdir(directory) != NULL)
        count++;
    if (directory != NULL)
        closedir(directory);
    return count;
}

static int the_process_is_left_as_it_was(void)
{
    struct sigaction before[65], after;
    sigset_t mask_before, mask_after;
    unsigned threads = entries("/proc/self/task");
    mode_t mask = umask(027);
    CUdeviceptr pointer;
    char locale[64];

    memset(before, 0, sizeof(before));
    snprintf(locale, sizeof(locale), "%s", setlocale(LC_ALL, NULL));
    for (int i = 1; i < 65; i++)
        sigaction(i, NULL, &before[i]);
    sigprocmask(SIG_BLOCK, NULL, &mask_before);
    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, MIB));
    REFUSED(api.cuMemAlloc_v2(&pointer, 2048 * MIB));
    CHECK(api.cuMemFree_v2(pointer) == CUDA_SUCCESS);
    SAME(entries("/proc/self/task"), threads);
    SAME(umask(mask), 027);
    CHECK(strcmp(setlocale(LC_ALL, NULL), locale) == 0);
    for (int i = 1; i < 65; i++) {
        memset(&after, 0, sizeof(after));
        sigaction(i, NULL, &after);
        CHECK(after.sa_handler == before[i].sa_handler);
    }
    sigprocmask(SIG_BLOCK, NULL, &mask_after);
    CHECK(memcmp(&mask_before, &mask_after, sizeof(mask_before)) == 0);
    return 0;
}

static volatile sig_atomic_t rings;

static void ring(int signal_number)
{
    (void)signal_number;
    rings = rings + 1;
}

static int a_storm_of_signals_changes_nothing(void)
{
    struct itimerval every = {{0, 500}, {0, 500}}, never;
    struct sigaction action;
    CUdeviceptr pointer;

    memset(&action, 0, sizeof(action));
    memset(&never, 0, sizeof(never));
    action.sa_handler = ring; /* no SA_RESTART: system calls are interrupted */
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    OK(begin(0));
    for (int i = 0; i < 20000; i++) {
        OK(api.cuMemAlloc_v2(&pointer, 600 * MIB));
        OK(api.cuMemFree_v2(pointer));
    }
    setitimer(ITIMER_REAL, &never, NULL);
    SAME(charged(0), 0);
    SAME(gpu_row(0).peak_bytes, 600 * MIB);
    return 0;
}

/* ---- lines ---- */

static void a_refusal_is_one_line_that_says_why(void **state)
{
    const struct fixture *f = *state;
    static struct child_output output;

    scenario_run(f, "grant_and_refuse", NULL, &output);
    assert_int_equal(output.status, 0);
    assert_int_equal(output.out_length, 0);
    assert_int_equal(count_lines(output.err, NULL), 1);
    assert_non_null(
        strstr(output.err, "vramcap: refused cuMemAlloc_v2 of 1536.0 MiB on GPU 0 (GPU-"));
    assert_non_null(strstr(output.err, "): container holds 1000.0 of 1024.0 MiB in 1 process\n"));
}

static void an_audited_refusal_says_so(void **state)
{
    const struct fixture *f = *state;
    static struct child_output output;

    scenario_run(f, "grant_and_refuse", "VRAMCAP_ENABLE=audit", &output);
    assert_int_equal(output.status, 0);
    assert_int_equal(count_lines(output.err, NULL), 1);
    assert_non_null(
        strstr(output.err, "vramcap: would have refused cuMemAlloc_v2 of 1536.0 MiB on GPU 0"));
}

static void a_full_device_says_so(void **state)
{
    const struct fixture *f = *state;
    static struct child_output output;

    scenario_run(f, "the_device_fills_below_the_ceiling", NULL, &output);
    assert_int_equal(output.status, 0);
    assert_int_equal(count_lines(output.err, NULL), 1);
    assert_non_null(strstr(output.err, "device full, ceiling not reached"));
}

static void refusals_in_a_row_are_counted_but_said_few_times(void **state)
{
    static const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=64",
                                        "VRAMCAP_LOG_FILE", NULL};
    const struct fixture *f = *state;
    struct vcap_snapshot_gpu gpu;
    char text[8192];
    struct child c;
    ssize_t got;

    assert_true(client_start(&c, f, "getproc", extra));
    assert_int_equal(client_result(&c, "init"), 0);
    assert_int_equal(client_result(&c, "ctx create 0"), 0);
    for (int i = 0; i < 50; i++)
        assert_int_equal(client_result(&c, "alloc 1g"), 2);
    got = read(c.err, text, sizeof(text) - 1);
    assert_true(got > 0);
    text[got] = 0;
    assert_in_range(count_lines(text, "refused"), 1, 8);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.refusals, 50);
    child_kill(&c, SIGKILL);
}

static const struct scenario scenarios[] = {
    SCENARIO(audit_lets_everything_through_and_records_it,
             "VRAMCAP_ENABLE=audit;VRAMCAP_SIM_PITCH=512"),
    SCENARIO(audit_counts_a_pitched_allocation_once, "VRAMCAP_ENABLE=audit;VRAMCAP_SIM_PITCH=4096"),
    HIDDEN(grant_and_refuse, NULL),
    SCENARIO(the_device_fills_below_the_ceiling,
             "VRAMCAP_SIM_CARDS=1000;VRAMCAP_SIM_CONTEXT_MIB=64;VRAMCAP_MEMORY_MIB=4096"),
    SCENARIO(the_drivers_calls_of_itself_are_charged_once,
             "VRAMCAP_SIM_INNER=1;VRAMCAP_CONTEXT_MIB=50"),
    SCENARIO(errno_is_kept, NULL),
    {"errno_is_kept_when_the_log_cannot_be_written", errno_is_kept,
     "VRAMCAP_LOG_FILE=/nonexistent/log", false},
    SCENARIO(the_driver_is_asked_only_what_is_allowed,
             "VRAMCAP_SIM_JOURNAL=@/journal;VRAMCAP_CONTEXT_MIB=10"),
    SCENARIO(the_process_is_left_as_it_was, NULL),
    SCENARIO(a_storm_of_signals_changes_nothing, NULL),
};

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_refusal_is_one_line_that_says_why),
    cmocka_unit_test(an_audited_refusal_says_so),
    cmocka_unit_test(a_full_device_says_so),
    cmocka_unit_test(refusals_in_a_row_are_counted_but_said_few_times),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
