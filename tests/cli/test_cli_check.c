/*
 * `vramcap check` where it has bad news that no typical set-up has (those are in docs/check.md): what it says
 * and that it ends with 1.
 */
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/agent/hanging.h"
#include "tests/cli/ledger_image.h"
#include "tests/cli/tool.h"

static struct tool t;
static char folder[64], search[128];

/* A folder with a libcuda.so.1 that is none: found before any driver that the machine may have. */
static int setup(void **state)
{
    char path[128];
    FILE *file;

    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/vramcap-check-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(search, sizeof search, "LD_LIBRARY_PATH=%s", folder);
    (void)snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
    file = fopen(path, "w");
    return file == NULL || fputs("not a library\n", file) == EOF || fclose(file) != 0 ? -1 : 0;
}

static int teardown(void **state)
{
    char path[128];

    (void)state;
    (void)snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
    return unlink(path) != 0 || rmdir(folder) != 0 ? -1 : 0;
}

static void a_library_that_is_not_loaded_is_a_finding(void **state)
{
    const char *const environment[] = {search, NULL};

    (void)state;
    assert_int_equal(tool_run(&t, environment, TOOL_ARGS("check")), 1);
    assert_non_null(strstr(t.out, "finding  library "));
    assert_non_null(strstr(t.out, "libvramcap.so is not loaded: nothing is enforced"));
}

static void a_driver_that_the_loader_does_not_take_is_named_with_its_words(void **state)
{
    const char *const environment[] = {search, NULL};
    const char *const unset[] = {"LD_LIBRARY_PATH=/nonexistent", NULL};

    (void)state;
    assert_int_equal(tool_run(&t, environment, TOOL_ARGS("check")), 1);
    assert_non_null(strstr(t.out, "finding  driver "));
    assert_non_null(strstr(t.out, "no CUDA driver: "));
    assert_non_null(strstr(t.out, "libcuda.so.1: "));
    assert_int_equal(tool_run(&t, unset, TOOL_ARGS("check", "--json")), 1);
    assert_non_null(strstr(t.out, "\"findings\": true"));
}

/* ---- --pid: a stranger's file system and ledger ---- */

/* A process whose root is that folder, with that ledger mapped as the library has it (NULL: none); -1:
 * that cannot be done here. */
static pid_t start_inside(const char *root, const char *ledger)
{
    int ready[2];
    char byte = 1;
    if (pipe(ready) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        int fd = ledger ? open(ledger, O_RDWR | O_CLOEXEC) : -1;
        byte = (char)(ledger && (mmap(NULL, sizeof(struct image), PROT_READ | PROT_WRITE,
                                      MAP_SHARED, fd, 0) == MAP_FAILED ||
                                 mmap(NULL, 4096, PROT_NONE, MAP_SHARED, fd, 0) == MAP_FAILED));
        byte = (char)(byte || (geteuid() != 0 && unshare(CLONE_NEWUSER) != 0) ||
                      chroot(root) != 0 || chdir("/") != 0);
        (void)!write(ready[1], &byte, 1);
        for (;;)
            (void)pause();
    }
    (void)close(ready[1]);
    if (pid > 0 && (read(ready[0], &byte, 1) != 1 || byte != 0)) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        pid = -1;
    }
    (void)close(ready[0]);
    return pid;
}

static void end_inside(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

/* `check --pid` of a process in the folder, which goes; its exit status, -1: that cannot be done here. */
static int check_inside(const char *root)
{
    char number[16], command[128];
    pid_t pid = start_inside(root, NULL);
    int status = -1;
    if (pid > 0) {
        (void)snprintf(number, sizeof number, "%d", (int)pid);
        status = tool_run(&t, NULL, TOOL_ARGS("check", "--pid", number));
        end_inside(pid);
    }
    (void)snprintf(command, sizeof command, "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
    return status;
}

static void make_root(char root[64], char file[96])
{
    char etc[80];
    assert_non_null(image_folder(root));
    (void)snprintf(etc, sizeof etc, "%s/etc", root);
    assert_int_equal(mkdir(etc, 0755), 0);
    (void)snprintf(file, 96, "%s/ld.so.preload", etc);
}

static void the_preload_file_of_another_process_is_read(void **state)
{
    char root[64], file[96];
    (void)state;
    make_root(root, file);
    assert_int_equal(image_write("/x/libvramcap.so\n", 17, file), 0);
    int status = check_inside(root);
    if (status < 0)
        skip();
    assert_int_equal(status, 1);
    assert_non_null(
        strstr(t.out, "/etc/ld.so.preload names /x/libvramcap.so, which does not exist"));
}

static void a_fifo_for_a_preload_file_holds_nobody_up(void **state)
{
    char root[64], file[96];
    (void)state;
    make_root(root, file);
    assert_int_equal(mkfifo(file, 0666), 0);
    int status = check_inside(root);
    if (status < 0)
        skip();
    assert_int_equal(status, 1);
    assert_non_null(strstr(t.out, "libvramcap.so is not loaded"));
}

/* To whatever it leads, it is the host's: a device there would be opened by the host's root. */
static void a_link_for_a_preload_file_does_not_lead_to_the_hosts_files(void **state)
{
    char root[64], file[96], outside[64], target[96];
    (void)state;
    make_root(root, file);
    assert_non_null(image_folder(outside));
    (void)snprintf(target, sizeof target, "%s/host", outside);
    assert_int_equal(image_write("/x/libvramcap.so\n", 17, target), 0);
    assert_int_equal(symlink(target, file), 0);
    int status = check_inside(root);
    assert_int_equal(unlink(target) | rmdir(outside), 0);
    if (status < 0)
        skip();
    assert_int_equal(status, 1);
    assert_null(strstr(t.out, "/x/libvramcap.so"));
}

/* ---- --pid: a stranger who makes its readers wait ---- */

static void remove_folder(const char *folder_name)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder_name);
    assert_int_equal(system(command), 0);
}

static int check_pid(pid_t pid)
{
    char number[16];
    (void)snprintf(number, sizeof number, "%d", (int)pid);
    return tool_run(&t, NULL, TOOL_ARGS("check", "--pid", number));
}

/* For a reader of its output, who waits until nobody has that open any more, by whatever number. */
static int check_pid_through_a_pipe(pid_t pid)
{
    const char *const before = tool_path;
    char number[16];
    (void)snprintf(number, sizeof number, "%d", (int)pid);
    tool_path = "/bin/sh";
    int status = tool_run(
        &t, NULL, TOOL_ARGS("-c", "\"$0\" check --pid \"$1\" 2>&1 7>&1 | cat", before, number));
    tool_path = before;
    return status;
}

static unsigned count_of(const char *words)
{
    unsigned n = 0;
    for (const char *at = t.out; (at = strstr(at, words)); at++)
        n++;
    return n;
}

static void says(const char *words)
{
    if (!strstr(t.out, words))
        fail_msg("no '%s' in:\n%s%s", words, t.out, t.err);
}

/* Newer kernels show the memory map without its lock (6.17); the environment is read under it on all. */
static void a_process_that_makes_its_readers_wait_holds_nobody_up(void **state)
{
    char work[64];
    struct hanging h;
    int status = -1;
    (void)state;
    assert_non_null(image_folder(work));
    int started = hanging_start(work, NULL, &h);
    bool waits = started == 0 && hanging_go(&h) == 0;
    if (waits)
        status = check_pid(h.pid);
    if (started == 0)
        hanging_stop(&h);
    remove_folder(work);
    assert_true(started >= 0);
    if (!waits)
        skip();
    says("unknown  process ");
    says("environment of process ");
    says(" cannot be looked at: it makes its readers wait (no answer within 3 s); its ");
    says(" not known\n");
    assert_int_equal(count_of("unknown  process "), 1);
    /* what only the environment tells is not told */
    assert_null(strstr(t.out, "passive: VRAMCAP_ENABLE is not 1"));
    assert_null(strstr(t.out, "neither LD_PRELOAD"));
    assert_null(strstr(t.out, "libvramcap.so is not loaded"));
    assert_true(status == 1 || status == 2);
}

/* The child of the tool's that reads the environment of that process; 0: there is none now. */
static pid_t reader_of(pid_t tool, pid_t pid)
{
    char path[96], link[64], wanted[64];
    int child = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)tool, (int)tool);
    FILE *children = fopen(path, "re");
    if (children == NULL || fscanf(children, "%d", &child) != 1)
        child = 0;
    if (children != NULL)
        (void)fclose(children);
    (void)snprintf(wanted, sizeof wanted, "/proc/%d/environ", (int)pid);
    for (int fd = 0; child != 0 && fd < 16; fd++) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", child, fd);
        ssize_t n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = '\0';
        if (strcmp(link, wanted) == 0)
            return child;
    }
    return 0;
}

/* How the child of a tool ended that was killed while it waited for that process; -1: that was not seen. */
static int end_of_an_orphan(pid_t pid)
{
    char number[16];
    int status = -1;
    pid_t child = 0, gone = 0;

    (void)snprintf(number, sizeof number, "%d", (int)pid);
    tool_start(&t, TOOL_PIPE, NULL, TOOL_ARGS("check", "--pid", number));
    for (siginfo_t ended = {0}; child == 0 && ended.si_pid == 0;) {
        child = reader_of(t.pid, pid);
        (void)waitid(P_PID, (id_t)t.pid, &ended, WEXITED | WNOHANG | WNOWAIT);
    }
    (void)kill(t.pid, SIGKILL);
    (void)tool_wait(&t);
    for (int i = 0; child != 0 && gone == 0 && i < TOOL_SECONDS * 100; i++) {
        gone = waitpid(child, &status, WNOHANG); /* it came to this process, its next one above */
        if (gone == 0)
            (void)usleep(10000);
    }
    if (child != 0 && gone == 0) { /* that is a failure, and the child is not left to others */
        (void)kill(child, SIGKILL);
        (void)waitpid(child, NULL, 0);
        return 0;
    }
    return gone > 0 ? status : -1;
}

static void whom_the_tool_has_sent_to_wait_ends_with_it(void **state)
{
    char work[64];
    struct hanging h;
    int status = -1;

    (void)state;
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
    assert_non_null(image_folder(work));
    int started = hanging_start(work, NULL, &h);
    bool waits = started == 0 && hanging_go(&h) == 0;
    for (int i = 0; waits && status < 0 && i < 3; i++) /* the tool may have been quicker */
        status = end_of_an_orphan(h.pid);
    if (started == 0)
        hanging_stop(&h);
    remove_folder(work);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0), 0);
    assert_true(started >= 0);
    if (!waits || status < 0)
        skip();
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* Started with its root in a folder that is left behind, and checked; -1: that cannot be done here. */
static int check_root(const char *where, bool maps, const char *variable)
{
    char root[64], path[96];
    struct hanging h;
    assert_non_null(image_folder(root));
    (void)snprintf(path, sizeof path, "%s/run", root);
    assert_int_equal(mkdir(path, 0755), 0);
    int started = hanging_root_start(root, where, maps, variable, &h);
    int piped = started == 0 ? check_pid_through_a_pipe(h.pid) : 0;
    int status = started == 0 ? check_pid(h.pid) : -1;
    if (started == 0)
        hanging_stop(&h);
    remove_folder(root);
    assert_true(started >= 0);
    assert_int_equal(piped, 0);
    return status;
}

/* Nothing ends such a wait from outside: the tool ends all the same. */
static void a_preload_file_that_never_answers_holds_nobody_up(void **state)
{
    (void)state;
    int status = check_root("etc", false, NULL);
    if (status < 0)
        skip();
    says("unknown  process        /etc/ld.so.preload of process ");
    says(" cannot be looked at: it makes its readers wait (no answer within 3 s); whether it names "
         "the library is not known\n");
    says("finding  library        libvramcap.so is not loaded");
    assert_int_equal(status, 1);
}

static void whether_a_library_exists_holds_nobody_up(void **state)
{
    (void)state;
    int status = check_root("etc", false, "LD_PRELOAD=/etc/" HANGING_NAME "/libvramcap.so");
    if (status < 0)
        skip();
    says("unknown  process        /etc/" HANGING_NAME "/libvramcap.so of process ");
    says("whether it exists is not known\n");
    says("LD_PRELOAD names /etc/" HANGING_NAME "/libvramcap.so, which is not loaded");
    assert_int_equal(status, 1);
}

static void a_pipe_directory_of_mps_that_never_answers_holds_nobody_up(void **state)
{
    (void)state;
    int status = check_root("etc", false, "CUDA_MPS_PIPE_DIRECTORY=/etc/" HANGING_NAME "/mps");
    if (status < 0)
        skip();
    says("unknown  mps-settings   process ");
    says(" could not be looked at\n");
    assert_int_equal(status, 1);
}

static void a_ledger_on_a_file_system_that_may_not_answer_is_not_opened(void **state)
{
    (void)state;
    int status = check_root("run/vramcap", true, NULL);
    if (status < 0)
        skip();
    says("unknown  ledger         /proc/");
    says(" cannot be looked at: on a file system (fuse) that may not answer\n");
    assert_null(strstr(t.out, "has no ledger mapped"));
}

/* Who may not look knows nothing, and says so. */
static void a_process_that_may_not_be_looked_at_is_not_called_unprotected(void **state)
{
    const char *const before = tool_path;
    char number[16];
    (void)state;
    if (geteuid() != 0 || access("/usr/bin/setpriv", X_OK) != 0)
        skip();
    (void)snprintf(number, sizeof number, "%d", (int)getpid());
    tool_path = "/usr/bin/setpriv";
    int status = tool_run(&t, NULL,
                          TOOL_ARGS("--reuid=65534", "--regid=65534", "--clear-groups", before,
                                    "check", "--pid", number));
    tool_path = before;
    if (status == 126 || status == 127)
        skip();
    says("unknown  process        memory map and environment of process ");
    says(" cannot be looked at: Permission denied; ");
    assert_null(strstr(t.out, "finding"));
    assert_int_equal(status, 2);
}

static uint64_t own_pidns(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* Slot 1 is a client of MPS and another process's; slot 0 is the process's that is asked about. */
static void whether_it_is_a_client_of_mps_is_told_by_its_own_slot(void **state)
{
    static struct image image;
    char path[64] = "/dev/shm/vramcap-check-XXXXXX", number[16]; /* its map says the same device */
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    image_init(&image);
    image_gpu(&image, 0, 4096, VCAP_LF_SOURCE_ENV);
    image_process(&image, 0, 0, 1, "asked");
    image_process(&image, 1, 0, 1, "other");
    image.slots[1].mps = VCAP_LF_MPS_CLIENT;
    assert_int_equal(write(fd, &image, sizeof image), sizeof image);
    int lives = image_live(path, 0);
    assert_true(lives >= 0);
    pid_t pid = start_inside("/", path);
    if (pid > 0) {
        (void)snprintf(number, sizeof number, "%d", (int)pid);
        image.slots[0].pid = (uint32_t)pid;
        image.slots[0].pidns = own_pidns();
        for (int i = VCAP_LF_MPS_UNKNOWN; i <= VCAP_LF_MPS_CLIENT; i++) {
            static const char *const words[] = {"unknown  mps ", "note     mps ", "ok       mps "};
            image.slots[0].mps = (uint32_t)i;
            assert_int_equal(pwrite(fd, &image, sizeof image, 0), sizeof image);
            (void)tool_run(&t, NULL, TOOL_ARGS("check", "--pid", number));
            if (!strstr(t.out, words[i]))
                print_message("%s", t.out);
            assert_non_null(strstr(t.out, words[i]));
        }
        end_inside(pid);
    }
    (void)close(lives);
    (void)close(fd);
    assert_int_equal(unlink(path), 0);
    if (pid < 0)
        skip();
}

/* ---- who may not look ---- */

static void processes_that_may_not_be_looked_at_are_not_called_harmless(void **state)
{
    const char *const before = tool_path;
    const char *const environment[] = {search, NULL};
    (void)state;
    if (geteuid() != 0 || access("/usr/bin/setpriv", X_OK) != 0)
        skip();
    tool_path = "/usr/bin/setpriv"; /* this test runs as root, and nobody may not look at it */
    int status =
        tool_run(&t, environment,
                 TOOL_ARGS("--reuid=65534", "--regid=65534", "--clear-groups", before, "check"));
    tool_path = before;
    if (status == 126 || status == 127) /* nobody may not come to where the tool lies */
        skip();
    assert_int_equal(status, 1);
    assert_null(strstr(t.out, "no other process of this container uses the driver"));
    assert_non_null(strstr(t.out, "unknown  processes "));
}

int main(int argc, char **argv)
{
    hanging_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_preload_file_of_another_process_is_read),
        cmocka_unit_test(a_fifo_for_a_preload_file_holds_nobody_up),
        cmocka_unit_test(a_link_for_a_preload_file_does_not_lead_to_the_hosts_files),
        cmocka_unit_test(a_process_that_makes_its_readers_wait_holds_nobody_up),
        cmocka_unit_test(whom_the_tool_has_sent_to_wait_ends_with_it),
        cmocka_unit_test(a_preload_file_that_never_answers_holds_nobody_up),
        cmocka_unit_test(whether_a_library_exists_holds_nobody_up),
        cmocka_unit_test(a_pipe_directory_of_mps_that_never_answers_holds_nobody_up),
        cmocka_unit_test(a_ledger_on_a_file_system_that_may_not_answer_is_not_opened),
        cmocka_unit_test(a_process_that_may_not_be_looked_at_is_not_called_unprotected),
        cmocka_unit_test(whether_it_is_a_client_of_mps_is_told_by_its_own_slot),
        cmocka_unit_test(processes_that_may_not_be_looked_at_are_not_called_harmless),
        cmocka_unit_test(a_library_that_is_not_loaded_is_a_finding),
        cmocka_unit_test(a_driver_that_the_loader_does_not_take_is_named_with_its_words),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
