/*
 * `vramcap check` where it has bad news that no typical set-up has (those are in docs/check.md): what it says
 * and that it ends with 1.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_library_that_is_not_loaded_is_a_finding),
        cmocka_unit_test(a_driver_that_the_loader_does_not_take_is_named_with_its_words),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
