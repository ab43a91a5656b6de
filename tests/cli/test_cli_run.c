/*
 * `vramcap run`: what the command gets, whose status it is, and the ledgers that it makes and
 * clears away.
 */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/cli/ledger_choice.h"
#include "enforcer/cli/library_path.h"
#include "enforcer/cli/run_ledger.h"
#include "enforcer/ledger_path.h"
#include "tests/cli/ledger_image.h"
#include "tests/cli/tool.h"

#define STUB "--library", STUB_LIBRARY
#define NO_LEDGER TOOL_ARGS("VRAMCAP_LEDGER=/nowhere")

static struct tool t;
static char folder[64];

static int setup(void **state)
{
    (void)state;
    return image_folder(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void the_status_is_the_commands_own(void **state)
{
    (void)state;
    assert_int_equal(tool_run(&t, NO_LEDGER, TOOL_ARGS("run", STUB, "--", "sh", "-c", "exit 37")),
                     37);
    assert_int_equal(tool_run(&t, NO_LEDGER, TOOL_ARGS("run", STUB, "true")), 0);
    assert_int_equal(tool_run(&t, NO_LEDGER, TOOL_ARGS("run", STUB, "sh", "-c", "kill -9 $$")),
                     256 + SIGKILL);
    assert_string_equal(t.err, "");
}

static void a_closed_descriptor_stays_closed_for_the_command(void **state)
{
    (void)state;
    tool_start(&t, TOOL_CLOSED, NO_LEDGER,
               TOOL_ARGS("run", STUB, "sh", "-c", "test ! -e /proc/$$/fd/1"));
    assert_int_equal(tool_wait(&t), 0);
}

static void options_after_the_command_are_the_commands(void **state)
{
    (void)state;
    assert_int_equal(
        tool_run(&t, NO_LEDGER, TOOL_ARGS("run", STUB, "echo", "--memory", "x", "--help", "--")),
        0);
    assert_string_equal(t.out, "--memory x --help --\n");
}

static void not_found_is_127_and_not_executable_126(void **state)
{
    (void)state;
    char file[128];
    assert_int_equal(tool_run(&t, NO_LEDGER, TOOL_ARGS("run", STUB, "no-such-command")), 127);
    assert_non_null(strstr(t.err, "no-such-command"));
    assert_int_equal(tool_run(&t, NO_LEDGER, TOOL_ARGS("run", STUB, folder)), 126);
    (void)snprintf(file, sizeof file, "%s/data", folder);
    assert_int_equal(image_write("x", 1, file), 0);
    assert_int_equal(chmod(file, 0644), 0);
    assert_int_equal(tool_run(&t, NO_LEDGER, TOOL_ARGS("run", STUB, file)), 126);
}

static void the_environment_says_what_the_options_said(void **state)
{
    (void)state;
    assert_int_equal(tool_run(&t, TOOL_ARGS("VRAMCAP_LEDGER=/nowhere", "STUB_SAYS=1"),
                              TOOL_ARGS("run", STUB, "--memory", "0=4Gi", "env")),
                     0);
    assert_non_null(strstr(t.out, "VRAMCAP_ENABLE=1\n"));
    assert_non_null(strstr(t.out, "VRAMCAP_MEMORY_MIB=0=4Gi\n"));
    assert_non_null(strstr(t.out, "VRAMCAP_LEDGER=/nowhere\n"));
    assert_non_null(strstr(t.out, "LD_PRELOAD=" STUB_LIBRARY "\n"));
    assert_string_equal(t.err, "stub loaded\n");
    assert_int_equal(tool_run(&t, TOOL_ARGS("VRAMCAP_LEDGER=/nowhere", "VRAMCAP_MEMORY_MIB=77"),
                              TOOL_ARGS("run", STUB, "--audit", "env")),
                     0);
    assert_non_null(strstr(t.out, "VRAMCAP_ENABLE=audit\n"));
    assert_non_null(strstr(t.out, "VRAMCAP_MEMORY_MIB=77\n"));
}

static void a_bad_ceiling_is_refused_before_anything_runs(void **state)
{
    (void)state;
    const char *const bad[] = {"", "x", "-1", "1.5", "5%", "0=", "=5", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int status =
            tool_run(&t, NO_LEDGER, TOOL_ARGS("run", STUB, "--memory", bad[i], "echo", "ran"));
        if (status != 2 || *t.out)
            fail_msg("--memory '%s': status %d, output '%s'", bad[i], status, t.out);
        assert_non_null(strstr(t.err, "--memory"));
    }
}

static void the_users_preloads_stay_behind_ours_and_ours_comes_once(void **state)
{
    (void)state;
    char link[128], old[512], want[512], *made;
    (void)snprintf(link, sizeof link, "%s/link.so", folder);
    assert_int_equal(symlink(STUB_LIBRARY, link), 0);
    (void)snprintf(old, sizeof old, ":liba.so  /b.so:%s %s:", STUB_LIBRARY, link);
    (void)snprintf(want, sizeof want, "%s:liba.so:/b.so", STUB_LIBRARY);
    assert_int_equal(vcap_library_preload(STUB_LIBRARY, old, &made), 0);
    assert_string_equal(made, want);
    free(made);
    assert_int_equal(vcap_library_preload(STUB_LIBRARY, NULL, &made), 0);
    assert_string_equal(made, STUB_LIBRARY);
    free(made);
    assert_int_equal(vcap_library_preload("/a b/libvramcap.so", NULL, &made), -EINVAL);
    assert_int_equal(vcap_library_preload("/a:b/libvramcap.so", NULL, &made), -EINVAL);
}

static void a_library_that_is_not_there_is_exit_2(void **state)
{
    (void)state;
    assert_int_equal(
        tool_run(&t, NO_LEDGER, TOOL_ARGS("run", "--library", "/nowhere/l.so", "true")), 2);
    assert_non_null(strstr(t.err, "/nowhere/l.so"));
    assert_int_equal(tool_run(&t, NO_LEDGER, TOOL_ARGS("run", "--library", "/tmp", "true")), 2);
}

static void the_library_is_found_beside_the_installed_tool_only(void **state)
{
    (void)state;
    char command[1024], tool[128], want[256];
    (void)snprintf(tool, sizeof tool, "%s/bin/vramcap", folder);
    (void)snprintf(command, sizeof command, "mkdir '%s/bin' && cp '%s' '%s'", folder, VRAMCAP_TOOL,
                   tool);
    assert_int_equal(system(command), 0);
    tool_path = tool;
    int without = tool_run(&t, NO_LEDGER, TOOL_ARGS("run", "env"));
    (void)snprintf(command, sizeof command,
                   "cd '%s/bin' && mkdir -p %s && cp '%s' %s/libvramcap.so", folder,
                   VRAMCAP_LIBRARY_FROM_BIN, STUB_LIBRARY, VRAMCAP_LIBRARY_FROM_BIN);
    int copied = system(command);
    int with = tool_run(&t, NO_LEDGER, TOOL_ARGS("run", "env"));
    tool_path = VRAMCAP_TOOL;
    assert_int_equal(without, 2); /* never the build tree's */
    assert_int_equal(copied, 0);
    assert_int_equal(with, 0);
    (void)snprintf(command, sizeof command, "%s/bin/%s/libvramcap.so", folder,
                   VRAMCAP_LIBRARY_FROM_BIN);
    char *resolved = realpath(command, NULL);
    assert_non_null(resolved);
    (void)snprintf(want, sizeof want, "LD_PRELOAD=%.200s\n", resolved);
    free(resolved);
    assert_non_null(strstr(t.out, want));
}

static void in_the_build_tree_the_library_is_the_one_built_there(void **state)
{
    (void)state;
    bool built = *BUILT_LIBRARY && access(BUILT_LIBRARY, R_OK) == 0;
    /* 127: it came as far as looking for the command */
    assert_int_equal(tool_run(&t, NO_LEDGER, TOOL_ARGS("run", "no-such-command")), built ? 127 : 2);
}

static void a_named_ledger_is_made_and_its_path_absolute(void **state)
{
    (void)state;
    char path[128], want[256];
    struct stat st;
    (void)snprintf(path, sizeof path, "%s/../%s/ledger", folder, strrchr(folder, '/') + 1);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("run", STUB, "--ledger", path, "env")), 0);
    char *resolved = realpath(folder, NULL);
    (void)snprintf(want, sizeof want, "VRAMCAP_LEDGER=%s/ledger\n", resolved);
    free(resolved);
    assert_non_null(strstr(t.out, want));
    assert_int_equal(stat(path, &st), 0);
    /* a second command shares it */
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("run", STUB, "--ledger", path, "true")), 0);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("dump", path)), 0);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("run", STUB, "--ledger", "/nowhere/x", "true")),
                     2);
    assert_non_null(strstr(t.err, "/nowhere/x"));
}

static bool needs_own_ledger(void)
{
    char key[VCAP_KEY_MAX];
    int kind = vcap_key_compute("/proc", "/sys/fs/cgroup", key);
    return kind != VCAP_KEY_CGROUP_NAMESPACE && kind != VCAP_KEY_CGROUP_PATH &&
           !vcap_path_exists(VCAP_LEDGER_HOST_PATH);
}

static unsigned count_run_ledgers(const char *where)
{
    unsigned n = 0;
    DIR *directory = opendir(where);
    for (const struct dirent *e; directory && (e = readdir(directory));)
        n += !strncmp(e->d_name, "vramcap-run-", 12);
    if (directory)
        (void)closedir(directory);
    return n;
}

static void outside_containers_a_command_gets_a_ledger_of_its_own(void **state)
{
    (void)state;
    char want[64], *at;
    struct stat st;
    unsigned before = count_run_ledgers("/dev/shm");
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("run", STUB, "sh", "-c", "echo $VRAMCAP_LEDGER")),
                     0);
    if (!needs_own_ledger()) { /* then the library finds the container's by itself */
        assert_string_equal(t.out, "\n");
        return;
    }
    (void)snprintf(want, sizeof want, "/dev/shm/vramcap-run-%u-%d-", (unsigned)getuid(),
                   (int)t.pid);
    assert_int_equal(strncmp(t.out, want, strlen(want)), 0);
    if ((at = strchr(t.out, '\n')))
        *at = '\0';
    char path[128];
    (void)snprintf(path, sizeof path, "%.120s", t.out);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("dump", path)), 0);
    assert_int_equal(unlink(path), 0);
    /* none is left behind when there is no command after all */
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("run", STUB, "no-such-command")), 127);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("run", STUB, "--memory", "x", "true")), 2);
    assert_int_equal(count_run_ledgers("/dev/shm"), before);
}

/* A run ledger in folder whose maker is gone. */
static void make_orphan(char path[128], const char *suffix)
{
    char own[128];
    assert_int_equal(vcap_run_ledger_make(folder, own, sizeof own), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    (void)waitpid(pid, NULL, 0);
    (void)snprintf(path, 128, "%.60s/vramcap-run-%u-%d-%s", folder, (unsigned)getuid(), (int)pid,
                   suffix);
    assert_int_equal(rename(own, path), 0);
}

static void only_old_run_ledgers_without_life_are_deleted(void **state)
{
    (void)state;
    char orphan[128], inhabited[128], running[128], joining[128], strange[128], other[128];
    make_orphan(orphan, "0000000000000001");
    make_orphan(inhabited, "0000000000000002");
    make_orphan(joining, "0000000000000003");
    make_orphan(strange, "0000000000000004");
    assert_int_equal(vcap_run_ledger_make(folder, running, sizeof running), 0);
    (void)snprintf(other, sizeof other, "%s/vramcap-run-%u-1234567-00000000000000zz", folder,
                   (unsigned)getuid());
    assert_int_equal(image_write("x", 1, other), 0);
    assert_int_equal(truncate(strange, 100), 0);

    struct image image;
    image_init(&image);
    image_gpu(&image, 0, 1, VCAP_LF_SOURCE_ENV);
    image_process(&image, 3, 0, 1, "alive");
    assert_int_equal(image_write(&image, sizeof image, inhabited), 0);
    int lock = image_live(inhabited, 3);
    int join = open(joining, O_RDONLY);
    struct flock init = {
        .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = VCAP_LF_LOCK_INIT, .l_len = 1};
    assert_int_equal(fcntl(join, F_OFD_SETLK, &init), 0);

    assert_int_equal(vcap_run_ledger_clean(folder, 60), 0); /* all too young */
    assert_int_equal(vcap_run_ledger_clean(folder, 0), 1);
    assert_int_equal(access(orphan, F_OK), -1);
    assert_int_equal(access(inhabited, F_OK), 0);
    assert_int_equal(access(running, F_OK), 0);
    assert_int_equal(access(joining, F_OK), 0);
    assert_int_equal(access(strange, F_OK), 0);
    assert_int_equal(access(other, F_OK), 0);

    char **paths;
    size_t count;
    assert_int_equal(vcap_run_ledger_list(folder, &paths, &count), 0);
    assert_int_equal(count, 1);
    assert_string_equal(paths[0], inhabited);
    vcap_run_ledger_free_list(paths, count);

    (void)close(lock);
    (void)close(join);
    assert_int_equal(vcap_run_ledger_clean(folder, 0), 2); /* their owners are gone now */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_status_is_the_commands_own),
        TEST(a_closed_descriptor_stays_closed_for_the_command),
        TEST(options_after_the_command_are_the_commands),
        TEST(not_found_is_127_and_not_executable_126),
        TEST(the_environment_says_what_the_options_said),
        TEST(a_bad_ceiling_is_refused_before_anything_runs),
        TEST(the_users_preloads_stay_behind_ours_and_ours_comes_once),
        TEST(a_library_that_is_not_there_is_exit_2),
        TEST(the_library_is_found_beside_the_installed_tool_only),
        TEST(in_the_build_tree_the_library_is_the_one_built_there),
        TEST(a_named_ledger_is_made_and_its_path_absolute),
        TEST(outside_containers_a_command_gets_a_ledger_of_its_own),
        TEST(only_old_run_ledgers_without_life_are_deleted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
