/*
 * Looking at the MPS settings of living processes (their environment as the kernel has it, their
 * root as they have it), and the lint over settings made by hand.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/agent/mps_lint.h"
#include "enforcer/agent/mps_look.h"
#include "enforcer/agent/mps_settings.h"
#include "enforcer/ledger.h"
#include "tests/support/skip.h"

#define MIB (UINT64_C(1) << 20)
#define FINDINGS 32

static char folder[64], path[200];
static struct vcap_mps_finding findings[FINDINGS];
static uint32_t found;

static int setup(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%.40s/lint-XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static const char *in_folder(const char *name)
{
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static const char *value_of(const struct vcap_mps_look *look, enum vcap_mps_variable v)
{
    return look->variable[v].set ? look->variable[v].text : "(not set)";
}

/* ---- looking ---- */

/* A process with that environment, in a root of its own if root is given; 0: cannot be made. */
static pid_t start(const char *const *environment, const char *root)
{
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (root) {
            if ((geteuid() != 0 && unshare(CLONE_NEWUSER) != 0) || chroot(root) != 0 ||
                chdir("/") != 0)
                _exit(9);
            /* nothing to execute in there: /proc/PID/environ stays this test's own */
            if (write(ready[1], "r", 1) == 1)
                (void)pause();
            _exit(0);
        }
        (void)execle("/bin/sleep", "sleep", "1000", NULL, (char *const *)(uintptr_t)environment);
        _exit(9);
    }
    (void)close(ready[1]);
    ssize_t n = read(ready[0], &byte, 1); /* 0: exec has closed it, or it ended */
    (void)close(ready[0]);
    if (root ? n == 1 : waitpid(pid, NULL, WNOHANG) == 0)
        return pid;
    (void)waitpid(pid, NULL, 0);
    return 0;
}

static void stop(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void settings_of_a_living_process_are_seen(void **state)
{
    char pipe_variable[128], *control;
    struct vcap_mps_look look;
    struct stat st;
    (void)state;
    (void)snprintf(pipe_variable, sizeof pipe_variable, "CUDA_MPS_PIPE_DIRECTORY=%s", folder);
    const char *environment[] = {"A=1",
                                 "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1000M",
                                 "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=9G",
                                 pipe_variable,
                                 "CUDA_VISIBLE_DEVICES=",
                                 "NVIDIA_VISIBLE_DEVICESX=3",
                                 NULL};
    pid_t pid = start(environment, NULL);
    assert_true(pid > 0);
    assert_int_equal(vcap_mps_look_at(NULL, pid, 30000, &look), 0);
    assert_int_equal(look.environment_error, 0);
    assert_int_equal(look.pid, pid);
    assert_string_equal(value_of(&look, VCAP_MPS_VAR_LIMIT), "0=1000M"); /* the first, as getenv */
    assert_string_equal(value_of(&look, VCAP_MPS_VAR_VISIBLE), "");
    assert_string_equal(value_of(&look, VCAP_MPS_VAR_NVIDIA_VISIBLE), "(not set)");
    assert_int_equal(look.pipe, VCAP_MPS_PIPE_NO_CONTROL);
    control = strdup(in_folder("control"));
    assert_int_equal(mkfifo(control, 0600), 0); /* must not be opened for reading */
    assert_int_equal(vcap_mps_look_at(NULL, pid, 30000, &look), 0);
    assert_int_equal(look.pipe, VCAP_MPS_PIPE_THERE);
    assert_int_equal(stat(folder, &st), 0);
    assert_true(look.pipe_inode == st.st_ino && look.pipe_device == st.st_dev);
    free(control);
    stop(pid);
    assert_int_equal(vcap_mps_look_at(NULL, pid, 30000, &look), -ESRCH);
}

static void the_pipe_directory_is_looked_for_in_the_process_s_own_root(void **state)
{
    struct vcap_mps_look look;
    (void)state;
    assert_int_equal(mkdir(in_folder("root"), 0755), 0);
    assert_int_equal(mkdir(in_folder("root/tmp"), 0755), 0);
    /* an absolute link: inside its root it leads nowhere, outside to a directory of the host's */
    assert_int_equal(mkdir(in_folder("outside"), 0755), 0);
    char outside[200];
    (void)snprintf(outside, sizeof outside, "%s", path);
    assert_int_equal(symlink(outside, in_folder("root/tmp/nvidia-mps")), 0);
    pid_t pid = start(NULL, in_folder("root"));
    if (pid == 0)
        SKIP_BECAUSE("neither root nor user namespaces: no root of its own");
    assert_int_equal(unsetenv("CUDA_MPS_PIPE_DIRECTORY"), 0);
    assert_int_equal(vcap_mps_look_at(NULL, pid, 30000, &look), 0);
    assert_int_equal(look.pipe, VCAP_MPS_PIPE_MISSING);
    assert_int_equal(unlink(in_folder("root/tmp/nvidia-mps")), 0);
    assert_int_equal(mkdir(in_folder("root/tmp/nvidia-mps"), 0755), 0);
    assert_int_equal(mkfifo(in_folder("root/tmp/nvidia-mps/control"), 0600), 0);
    assert_int_equal(vcap_mps_look_at(NULL, pid, 30000, &look), 0);
    assert_int_equal(look.pipe, VCAP_MPS_PIPE_THERE);
    stop(pid);
}

static void write_environ(const char *bytes, size_t length)
{
    int fd = open(in_folder("7/environ"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, length), length);
    (void)close(fd);
}

static void a_process_that_makes_the_reader_hang_costs_the_limit_and_no_more(void **state)
{
    struct vcap_mps_look look = {.pid = 1};
    struct timespec a, b;
    (void)state;
    assert_int_equal(mkdir(in_folder("7"), 0755), 0);
    assert_int_equal(mkfifo(in_folder("7/environ"), 0600), 0); /* nobody ever writes */
    (void)clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < 40; i++) { /* more than can hang at once, if any did */
        int error;
        /* a busy machine may not have come to ending those before */
        for (int more = 0; (error = vcap_mps_look_at(folder, 7, 5, &look)) == -EBUSY; more++) {
            assert_true(more < 6000);
            (void)usleep(5000);
        }
        assert_int_equal(error, -ETIMEDOUT);
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &b);
    assert_true(b.tv_sec - a.tv_sec < 40);
    assert_int_equal(look.pid, 1); /* untouched */
}

static void any_environment_is_read_safely(void **state)
{
    static char big[300000];
    struct vcap_mps_look look;
    (void)state;
    assert_int_equal(mkdir(in_folder("7"), 0755), 0);
    memset(big, 'x', sizeof big); /* no NUL, no '=' */
    write_environ(big, sizeof big);
    assert_int_equal(vcap_mps_look_at(folder, 7, 30000, &look), 0);
    for (int v = 0; v < VCAP_MPS_VARIABLES; v++)
        assert_false(look.variable[v].set);

    /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): one of many strings in a block */
    memcpy(big, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=x", 34);
    memcpy(big + 200000, "\0VRAMCAP_MEMORY_MIB=42\0=x\0VRAMCAP_ENABLE", 41);
    write_environ(big, 200041);
    assert_int_equal(vcap_mps_look_at(folder, 7, 30000, &look), 0);
    assert_true(look.variable[VCAP_MPS_VAR_LIMIT].set && look.variable[VCAP_MPS_VAR_LIMIT].cut);
    assert_int_equal(strlen(look.variable[VCAP_MPS_VAR_LIMIT].text), VCAP_MPS_VALUE - 1);
    assert_string_equal(value_of(&look, VCAP_MPS_VAR_MEMORY), "42");
    assert_false(look.variable[VCAP_MPS_VAR_ENABLE].set); /* has no value */

    assert_int_equal(unlink(in_folder("7/environ")), 0);
    assert_int_equal(vcap_mps_look_at(folder, 7, 30000, &look), 0);
    assert_int_equal(look.environment_error, -ENOENT);
    assert_int_equal(look.pipe, VCAP_MPS_PIPE_UNKNOWN);
}

static void what_was_found_is_kept_until_the_processes_change(void **state)
{
    struct vcap_mps_settings s = {0};
    struct vcap_mps_gpu card = {.card_bytes = VCAP_UNKNOWN, .ceiling_bytes = 4096 * MIB};
    struct vcap_mps_container host = {
        .gpus_known = true, .all_visible = true, .gpu_count = 1, .gpus = &card, .daemon_up = true};
    char pipe_variable[128];
    (void)state;
    (void)snprintf(pipe_variable, sizeof pipe_variable, "CUDA_MPS_PIPE_DIRECTORY=%s", folder);
    const char *good[] = {pipe_variable, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M", NULL};
    const char *bad[] = {pipe_variable, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M,1=1G", NULL};
    assert_int_equal(mkfifo(in_folder("control"), 0600), 0);
    pid_t pids[2] = {start(good, NULL), 0};
    assert_false(vcap_mps_settings_due(&s, pids + 1, 1, true, 0)); /* nobody to look at */
    assert_true(vcap_mps_settings_due(&s, pids, 2, true, 0));
    assert_true(vcap_mps_settings_look(&s, &host, pids, 2, 30000, 1000)); /* nothing known before */
    assert_int_equal(s.total, 0);
    assert_int_equal(s.limit_count, 1);
    assert_string_equal(s.limits[0], "GPU-00000000-0000-0000-0000-000000000000");
    assert_false(vcap_mps_settings_due(&s, pids, 2, true, 1000));
    assert_true(vcap_mps_settings_due(&s, pids, 2, true, 1000 + UINT64_C(60000000000)));
    assert_true(vcap_mps_settings_due(&s, pids, 2, false, 1000)); /* the daemon went down */
    assert_false(vcap_mps_settings_look(&s, &host, pids, 2, 30000, 2000)); /* the same as before */
    pids[1] = start(bad, NULL);
    assert_true(vcap_mps_settings_due(&s, pids, 2, true, 2000));
    assert_true(vcap_mps_settings_look(&s, &host, pids, 2, 30000, 3000));
    assert_int_equal(s.findings[0].kind, VCAP_MPS_LINT_INVISIBLE_GPU);
    assert_int_equal(s.findings[0].pid, pids[1]);
    assert_int_equal(s.limit_count, 1); /* the first one's limit is */
    stop(pids[0]);
    pids[0] = 0;
    assert_true(vcap_mps_settings_look(&s, &host, pids, 2, 30000, 4000));
    assert_int_equal(s.limit_count, 0);
    stop(pids[1]);
    assert_true(vcap_mps_settings_look(&s, &host, pids, 2, 30000, 5000));
    assert_int_equal(s.total, 0);
    vcap_mps_settings_free(&s);
}

/* ---- the lint ---- */

static struct vcap_mps_gpu gpus[3];
static struct vcap_mps_look processes[4];
static struct vcap_mps_container container;

/* Two cards of 16 GiB, ceiling 4 GiB on the first; one process that sees the first alone. */
static void fresh(void)
{
    memset(gpus, 0, sizeof gpus);
    memset(processes, 0, sizeof processes);
    for (uint8_t g = 0; g < 2; g++) {
        memset(gpus[g].uuid, 0x10 + g, 16);
        gpus[g].card_bytes = 16384 * MIB;
        gpus[g].ceiling_bytes = g == 0 ? 4096 * MIB : VCAP_NO_LIMIT;
    }
    container = (struct vcap_mps_container){.process_count = 1,
                                            .processes = processes,
                                            .gpus_known = true,
                                            .gpu_count = 2,
                                            .gpus = gpus,
                                            .daemon_up = true};
    for (int i = 0; i < 4; i++) {
        processes[i].pid = 100 + i;
        processes[i].pipe = VCAP_MPS_PIPE_THERE;
        processes[i].pipe_device = 5;
        processes[i].pipe_inode = 50;
    }
}

static void set(int process, enum vcap_mps_variable v, const char *text)
{
    struct vcap_mps_value *value = &processes[process].variable[v];
    value->set = true;
    (void)snprintf(value->text, sizeof value->text, "%s", text);
}

static void lint(void)
{
    memset(findings, 0, sizeof findings);
    found = vcap_mps_lint(&container, findings, FINDINGS);
    assert_true(found <= FINDINGS);
}

static void must_find(enum vcap_mps_lint kind, const char *evidence)
{
    for (uint32_t i = 0; i < found; i++)
        if (findings[i].kind == kind) {
            if (!strstr(findings[i].evidence, evidence))
                fail_msg("'%s' lacks '%s'", findings[i].evidence, evidence);
            return;
        }
    fail_msg("no finding %s among %u (first: %s)", vcap_mps_lint_name(kind), found,
             found ? findings[0].evidence : "-");
}

static void only(enum vcap_mps_lint kind, const char *evidence)
{
    must_find(kind, evidence);
    for (uint32_t i = 0; i < found; i++)
        if (findings[i].kind != kind)
            fail_msg("also %s: %s", vcap_mps_lint_name(findings[i].kind), findings[i].evidence);
}

static void lint_limit(const char *visible, const char *limit)
{
    fresh();
    set(0, VCAP_MPS_VAR_NVIDIA_VISIBLE, visible);
    set(0, VCAP_MPS_VAR_LIMIT, limit);
    lint();
}

static void good_settings_give_no_finding(void **state)
{
    (void)state;
    lint_limit("0", "0=4096M");
    assert_int_equal(found, 0);
    lint_limit("GPU-10101010-1010-1010-1010-101010101010", "GPU-1010=4G");
    assert_int_equal(found, 0);
    fresh(); /* no MPS at all: neither variables nor a pipe directory */
    processes[0].pipe = VCAP_MPS_PIPE_MISSING;
    lint();
    assert_int_equal(found, 0);
}

static void an_entry_for_an_invisible_gpu_is_an_error(void **state)
{
    (void)state;
    lint_limit("0", "0=4096M,1=4G");
    only(VCAP_MPS_LINT_INVISIBLE_GPU, "entry 2 of '0=4096M,1=4G'");
    assert_int_equal(findings[0].severity, VCAP_MPS_ERROR);
    lint_limit("1", "GPU-10101010-1010-1010-1010-101010101010=4G");
    only(VCAP_MPS_LINT_INVISIBLE_GPU, "entry 1");
    lint_limit("all", "GPU-1=4G"); /* two begin so */
    only(VCAP_MPS_LINT_INVISIBLE_GPU, "not one alone");
    fresh(); /* both let in, one hidden by the program's own variable */
    set(0, VCAP_MPS_VAR_NVIDIA_VISIBLE, "all");
    set(0, VCAP_MPS_VAR_VISIBLE, "1");
    set(0, VCAP_MPS_VAR_LIMIT, "0=4096M,1=4096M");
    lint();
    only(VCAP_MPS_LINT_INVISIBLE_GPU, "of the 1 GPUs");
}

static void what_a_process_sees_is_unknown_rather_than_guessed(void **state)
{
    static const char *const unknown[] = {"void", "", "0:1", "5", "GPU-99", "0,nonsense"};
    (void)state;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        uint32_t visible[VCAP_MPS_GPUS_MAX], count = 99;
        fresh();
        set(0, VCAP_MPS_VAR_NVIDIA_VISIBLE, unknown[i]);
        set(0, VCAP_MPS_VAR_LIMIT, "0=4096M,7=4G");
        if (vcap_mps_visible(&container, &processes[0], visible, &count))
            fail_msg("'%s' counts as known", unknown[i]);
        lint();
        assert_int_equal(found, 0);
    }
    fresh();
    set(0, VCAP_MPS_VAR_LIMIT, "0=4096M,7=4G");
    lint(); /* not set at all: CDI may have put in any */
    assert_int_equal(found, 0);
    container.all_visible = true;
    lint();
    must_find(VCAP_MPS_LINT_INVISIBLE_GPU, "entry 2");
    container.gpus_known = false;
    lint();
    assert_int_equal(found, 0);
}

static void cuda_visible_devices_orders_hides_and_ends_at_nonsense(void **state)
{
    static const struct {
        const char *text;
        uint32_t count, first;
    } cases[] = {{"1,0", 2, 1},   {"1", 1, 1},      {"", 0, 0},       {"-1", 0, 0},
                 {"0,7,1", 1, 0}, {"0,0", 0, 0},    {"GPU-11", 1, 1}, {"gpu-11", 1, 1},
                 {"GPU-1", 0, 0}, {" 1 , 0 ", 2, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t visible[VCAP_MPS_GPUS_MAX], count = 99;
        fresh();
        set(0, VCAP_MPS_VAR_NVIDIA_VISIBLE, "all");
        set(0, VCAP_MPS_VAR_VISIBLE, cases[i].text);
        assert_true(vcap_mps_visible(&container, &processes[0], visible, &count));
        if (count != cases[i].count || (count > 0 && visible[0] != cases[i].first))
            fail_msg("'%s': %u visible, first %u", cases[i].text, count, visible[0]);
    }
}

static void a_limit_that_does_not_parse_says_how(void **state)
{
    (void)state;
    lint_limit("0", "0=4294967296");
    only(VCAP_MPS_LINT_NO_UNIT, "'0=4294967296'");
    lint_limit("0", "0=1000M, 1 = 4096 ");
    only(VCAP_MPS_LINT_NO_UNIT, "without a unit");
    lint_limit("0", "0=4294967296M");
    only(VCAP_MPS_LINT_TOO_LARGE, "bytes where megabytes are meant");
    lint_limit("0", "4096M");
    only(VCAP_MPS_LINT_MALFORMED, "'4096M'");
    lint_limit("0", "0=\xe2\x80\x9c\nM");
    only(VCAP_MPS_LINT_MALFORMED, "\\xe2\\x80\\x9c\\x0aM");
    fresh();
    set(0, VCAP_MPS_VAR_LIMIT, "0=1000M");
    processes[0].variable[VCAP_MPS_VAR_LIMIT].cut = true;
    lint();
    only(VCAP_MPS_LINT_MALFORMED, "longer than");
}

static void a_pipe_directory_that_leads_nowhere_is_an_error(void **state)
{
    (void)state;
    fresh();
    set(0, VCAP_MPS_VAR_NVIDIA_VISIBLE, "0");
    set(0, VCAP_MPS_VAR_LIMIT, "0=4096M");
    processes[0].pipe = VCAP_MPS_PIPE_MISSING;
    lint();
    only(VCAP_MPS_LINT_PIPE_MISSING, "/tmp/nvidia-mps (the default)");
    must_find(VCAP_MPS_LINT_PIPE_MISSING, "its limit is not in force");
    set(0, VCAP_MPS_VAR_PIPE, "/run/mps\x1b[31m");
    processes[0].pipe = VCAP_MPS_PIPE_NO_CONTROL;
    lint();
    only(VCAP_MPS_LINT_PIPE_NO_CONTROL, "/run/mps\\x1b[31m");
    processes[0].pipe = VCAP_MPS_PIPE_THERE;
    container.daemon_inode = 50;
    container.daemon_device = 5;
    lint();
    assert_int_equal(found, 0);
    container.daemon_inode = 51;
    lint();
    only(VCAP_MPS_LINT_PIPE_NO_DAEMON, "is not the pipe directory");
}

static void limit_ceiling_and_card_are_compared(void **state)
{
    (void)state;
    lint_limit("0", "0=5G");
    only(VCAP_MPS_LINT_ABOVE_CEILING, "5120.0 MiB above the ceiling of 4096.0 MiB");
    assert_string_equal(findings[0].uuid, "GPU-10101010-1010-1010-1010-101010101010");
    lint_limit("0", "0=3G");
    only(VCAP_MPS_LINT_BELOW_CEILING, "3072.0");
    lint_limit("1", "0=17G");
    only(VCAP_MPS_LINT_ABOVE_CARD, "17408.0 MiB on a card of 16384.0");
    lint_limit("all", "0=4G");
    only(VCAP_MPS_LINT_GPU_WITHOUT, "ordinal 1");
    gpus[1].card_bytes = VCAP_UNKNOWN;
    set(0, VCAP_MPS_VAR_LIMIT, "0=4G,1=17G");
    lint();
    assert_int_equal(found, 0);
}

static void a_client_without_a_limit_is_named(void **state)
{
    (void)state;
    fresh();
    set(0, VCAP_MPS_VAR_NVIDIA_VISIBLE, "0");
    lint();
    only(VCAP_MPS_LINT_NO_LIMIT, "vramcap's ceiling is the only one");
    assert_int_equal(findings[0].severity, VCAP_MPS_NOTE);
    set(0, VCAP_MPS_VAR_NVIDIA_VISIBLE, "1");
    lint();
    only(VCAP_MPS_LINT_NO_LIMIT, "the whole GPU is open");
    assert_int_equal(findings[0].severity, VCAP_MPS_WARNING);
}

static void processes_together_are_seen(void **state)
{
    (void)state;
    fresh();
    container.process_count = 2;
    for (int p = 0; p < 2; p++) {
        set(p, VCAP_MPS_VAR_NVIDIA_VISIBLE, "0");
        set(p, VCAP_MPS_VAR_LIMIT, "0=4G");
    }
    lint();
    only(VCAP_MPS_LINT_PER_PROCESS, "2 of them may hold 8192.0 MiB together");
    processes[1].variable[VCAP_MPS_VAR_LIMIT].set = false;
    lint();
    must_find(VCAP_MPS_LINT_DIFFERS, "'(not set)' here, '0=4G' in 100");
    must_find(VCAP_MPS_LINT_NO_LIMIT, "without CUDA_MPS_PINNED");
    assert_int_equal(findings[0].severity, VCAP_MPS_WARNING); /* the worst first */
}

static void an_environment_that_cannot_be_read_is_unknown_not_unset(void **state)
{
    (void)state;
    fresh();
    processes[0].environment_error = -EACCES;
    processes[0].pipe = VCAP_MPS_PIPE_UNKNOWN;
    lint();
    only(VCAP_MPS_LINT_UNREADABLE, "unknown");
    processes[0].environment_error = -ESRCH;
    lint();
    assert_int_equal(found, 0);
}

static void a_thread_percentage_that_is_none_is_named(void **state)
{
    static const char *const bad[] = {"0", "101", "50%", "-1", "nan", "x"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lint_limit("0", "0=4G");
        set(0, VCAP_MPS_VAR_PERCENT, bad[i]);
        lint();
        only(VCAP_MPS_LINT_PERCENT, bad[i]);
    }
    set(0, VCAP_MPS_VAR_PERCENT, "12.5");
    lint();
    assert_int_equal(found, 0);
}

static void more_findings_than_room_are_counted(void **state)
{
    (void)state;
    fresh();
    container.process_count = 4;
    for (int p = 0; p < 4; p++) {
        set(p, VCAP_MPS_VAR_LIMIT, "nonsense");
    }
    assert_int_equal(vcap_mps_lint(&container, findings, 2), 4);
    assert_int_equal(vcap_mps_lint(&container, NULL, 0), 4);
}

static void what_enforces_is_said_by_evidence(void **state)
{
    struct vcap_snapshot_process process = {.life = VCAP_LIFE_ALIVE};
    struct vcap_snapshot_gpu gpu = {.ceiling_bytes = 100 * MIB};
    struct vcap_snapshot s = {
        .gpu_count = 1, .gpus = &gpu, .process_count = 1, .processes = &process};
    (void)state;
    for (size_t i = 0; i < sizeof gpu.source_bytes / sizeof *gpu.source_bytes; i++)
        gpu.source_bytes[i] = VCAP_UNKNOWN;
    assert_int_equal(vcap_enforced_by(&s, 0, false), VCAP_ENFORCED_BY_VRAMCAP);
    assert_int_equal(vcap_enforced_by(&s, 0, true),
                     VCAP_ENFORCED_BY_VRAMCAP | VCAP_ENFORCED_BY_MPS);
    process.mode = VCAP_LF_MODE_AUDIT;
    assert_int_equal(vcap_enforced_by(&s, 0, false), 0);
    process.mode = VCAP_LF_MODE_ENFORCE;
    s.flags = VCAP_LF_HOST_MADE | VCAP_LF_PASS_THROUGH;
    assert_int_equal(vcap_enforced_by(&s, 0, false), 0);
    s.flags = VCAP_LF_HOST_MADE;
    assert_int_equal(vcap_enforced_by(&s, 0, false), VCAP_ENFORCED_BY_VRAMCAP);
    process.life = VCAP_LIFE_DEAD; /* nobody in it, nothing enforced */
    assert_int_equal(vcap_enforced_by(&s, 0, false), 0);
    gpu.source_bytes[VCAP_LF_SOURCE_DMEM - VCAP_LF_SOURCE_FIRST] = 50 * MIB;
    assert_int_equal(vcap_enforced_by(&s, 0, false), VCAP_ENFORCED_BY_DMEM);
    process.life = VCAP_LIFE_ALIVE;
    gpu.ceiling_bytes = VCAP_NO_LIMIT;
    assert_int_equal(vcap_enforced_by(&s, 0, false), VCAP_ENFORCED_BY_DMEM);
    assert_string_equal(vcap_enforced_by_name(0), "none");
    assert_string_equal(vcap_enforced_by_name(VCAP_ENFORCED_BY_MPS), "mps");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(settings_of_a_living_process_are_seen),
        TEST(the_pipe_directory_is_looked_for_in_the_process_s_own_root),
        TEST(a_process_that_makes_the_reader_hang_costs_the_limit_and_no_more),
        TEST(any_environment_is_read_safely),
        TEST(what_was_found_is_kept_until_the_processes_change),
        cmocka_unit_test(good_settings_give_no_finding),
        cmocka_unit_test(an_entry_for_an_invisible_gpu_is_an_error),
        cmocka_unit_test(what_a_process_sees_is_unknown_rather_than_guessed),
        cmocka_unit_test(cuda_visible_devices_orders_hides_and_ends_at_nonsense),
        cmocka_unit_test(a_limit_that_does_not_parse_says_how),
        cmocka_unit_test(a_pipe_directory_that_leads_nowhere_is_an_error),
        cmocka_unit_test(limit_ceiling_and_card_are_compared),
        cmocka_unit_test(a_client_without_a_limit_is_named),
        cmocka_unit_test(processes_together_are_seen),
        cmocka_unit_test(an_environment_that_cannot_be_read_is_unknown_not_unset),
        cmocka_unit_test(a_thread_percentage_that_is_none_is_named),
        cmocka_unit_test(more_findings_than_room_are_counted),
        cmocka_unit_test(what_enforces_is_said_by_evidence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
