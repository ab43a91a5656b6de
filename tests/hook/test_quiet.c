/*
 * Processes without CUDA: nothing changes for them, however the library is configured.
 */
#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/hook/scenario.h"
#include "tests/support/skip.h"

static const char *const with[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", "VRAMCAP_LEDGER",
                                   "VRAMCAP_LOG=debug", NULL};
static const char *const without[] = {"LD_PRELOAD", NULL};

static unsigned entries_in(const char *path)
{
    DIR *directory = opendir(path);
    unsigned count = 0;

    while (directory != NULL && readdir(directory) != NULL)
        count++;
    if (directory != NULL)
        closedir(directory);
    return count;
}

/* An empty /dev/shm of this test program's own, where it may have one: others make files in the real one. */
static bool shm_is_ours(void)
{
    static int ours = -1;

    if (ours < 0)
        ours = unshare(CLONE_NEWNS) == 0 &&
               mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
               mount("none", "/dev/shm", "tmpfs", 0, "size=16m") == 0;
    return ours == 1;
}

static void is_the_same(const struct fixture *f, const char *const *argv)
{
    static struct child_output preloaded, plain;
    bool alone = shm_is_ours();

    if (argv[0][0] == '/' && access(argv[0], X_OK) != 0)
        SKIP_BECAUSE("no %s", argv[0]);
    child_run(f, argv, with, &preloaded);
    child_run(f, argv, without, &plain);
    if (plain.status >= 128)
        skip(); /* a sanitizer's runtime alone is too much for this program */
    assert_int_equal(preloaded.status, plain.status);
    assert_int_not_equal(plain.status, 127);
    assert_int_equal(preloaded.out_length, plain.out_length);
    assert_memory_equal(preloaded.out, plain.out, plain.out_length);
    assert_string_equal(preloaded.err, plain.err);
    if (alone)
        assert_int_equal(entries_in("/dev/shm"), 2);
}

static void foreign(void **state, const char *const *argv)
{
    if (fixture_only_own_programs())
        skip();
    is_the_same(*state, argv);
}

static void ls_is_the_same(void **state)
{
    static const char *const argv[] = {"/bin/ls", "-ln", "/usr", NULL};

    foreign(state, argv);
}

static void a_failing_ls_is_the_same(void **state)
{
    static const char *const argv[] = {"/bin/ls", "/no/such/folder", NULL};

    foreign(state, argv);
}

static void a_shell_with_children_is_the_same(void **state)
{
    static const char *const argv[] = {
        "/bin/bash", "-c", "echo a; (echo b); ls / | wc -l; ulimit -n; echo c >&2; exit 3", NULL};

    foreign(state, argv);
}

static void python_is_the_same(void **state)
{
    static const char *const argv[] = {"/usr/bin/python3", "-c",
                                       "import ctypes, os; print(len(os.listdir('/proc/self/fd')))",
                                       NULL};

    foreign(state, argv);
}

static void a_program_that_loads_and_looks_up_is_the_same(void **state)
{
    static const char *const argv[] = {TEST_BARE, "quiet", TEST_PLUGIN, NULL};

    is_the_same(*state, argv); /* its mappings, descriptors, threads and answers */
}

/* Linked with the driver but never calls it. */
static int nothing_of_ours(void)
{
    char line[1024], name[64];
    FILE *maps = fopen("/proc/self/maps", "r");

    CHECK(maps != NULL);
    snprintf(name, sizeof(name), "/ledger");
    while (fgets(line, sizeof(line), maps) != NULL)
        CHECK(strstr(line, name) == NULL && strstr(line, "/dev/shm/vramcap") == NULL);
    fclose(maps);
    CHECK(access(self.ledger, F_OK) != 0);
    return 0;
}

static const struct scenario scenarios[] = {
    SCENARIO(nothing_of_ours, "VRAMCAP_LOG=debug"),
};

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ls_is_the_same),
    cmocka_unit_test(a_failing_ls_is_the_same),
    cmocka_unit_test(a_shell_with_children_is_the_same),
    cmocka_unit_test(python_is_the_same),
    cmocka_unit_test(a_program_that_loads_and_looks_up_is_the_same),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
