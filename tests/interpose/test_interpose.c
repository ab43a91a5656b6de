/*
 * What else is in a process: other allocators, code that runs before and after main, and the ways that
 * are documented to lead around the library.  (Wrappers of dlsym and other interposers: tests/hook.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/fixture.h"
#include "tests/support/skip.h"

#define ALL_HELD "2\n"

static struct child_output output;

static void visit_with(const struct fixture *f, const char *how, const char *library,
                       const char *more)
{
    const char *const argv[] = {TEST_VISITOR, how, library, NULL};
    const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024",
                                 "VRAMCAP_SIM_CARDS=8192", more, NULL};

    child_run(f, argv, extra, &output);
    if (output.status != 0)
        fprintf(stderr, "---- %s %s\n%s----\n", how, more == NULL ? "" : more, output.err);
}

static void visit(const struct fixture *f, const char *how, const char *more)
{
    visit_with(f, how, TEST_ASKER, more);
}

static void was_held(void)
{
    assert_int_equal(output.status, 0);
    assert_string_equal(output.out, ALL_HELD);
    assert_non_null(strstr(output.err, "vramcap: refused cuMemAlloc_v2 of 1.0 MiB"));
}

static void held(const struct fixture *f, const char *how, const char *more)
{
    visit(f, how, more);
    was_held();
}

static void before_and_after_main_the_ceiling_holds(void **state)
{
    static const char *const ways[] = {"plain", "early", "late", "last", "thread"};

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        held(*state, ways[i], NULL);
}

/* The loader looks for a library where its caller says (RUNPATH), so a dlopen in front of it would change what is
 * found: ours is none. */
static void a_library_is_found_where_its_caller_says(void **state)
{
    if (SANITIZED) {
        print_message("SKIPPED: a sanitizer stands in front of dlopen itself\n");
        skip();
    }
    visit_with(*state, "plain", TEST_ASKER_NAME, NULL);
    was_held();
    visit_with(*state, "thread", TEST_ASKER_NAME, NULL);
    was_held();
}

static void beside(const struct fixture *f, const char *name)
{
    char path[512], more[600];

    snprintf(path, sizeof(path), TEST_LIBRARIES "/%s", name);
    if (SANITIZED) {
        print_message("SKIPPED: a sanitizer is an allocator itself\n");
        skip();
    }
    if (access(path, R_OK) != 0)
        SKIP_BECAUSE("no %s", path);
    snprintf(more, sizeof(more), "+LD_PRELOAD=%s", path);
    held(f, "plain", more);
    held(f, "early", more);
    more[0] = '-';
    held(f, "plain", more);
    held(f, "last", more);
}

static void beside_jemalloc_in_either_order(void **state)
{
    beside(*state, "libjemalloc.so.2");
}

static void beside_tcmalloc_in_either_order(void **state)
{
    beside(*state, "libtcmalloc_minimal.so.4");
}

/*
 * The README names these as ways around.  A test that goes red because one of them is held now is the
 * moment to change the README.
 */
static void plugins_bound_deeply_and_other_namespaces_are_not_held_as_documented(void **state)
{
    static const char *const ways[] = {"deepbind", "namespace"};

    if (SANITIZED) {
        print_message(
            "SKIPPED: a sanitizer's runtime can be neither bound deeply nor loaded twice\n");
        skip();
    }
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        visit(*state, ways[i], NULL);
        assert_int_equal(output.status, 0);
        assert_string_equal(output.out, "0\n");
        assert_string_equal(output.err, "");
    }
}

static void a_static_program_runs_as_without_us(void **state)
{
    static const char *const argv[] = {TEST_STATIC, NULL};
    static const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};

    if (SANITIZED)
        skip(); /* sanitizers do not link statically */
    child_run(*state, argv, extra, &output);
    assert_int_equal(output.status, 0);
    assert_string_equal(output.out, "static\n");
    assert_string_equal(output.err, "");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(before_and_after_main_the_ceiling_holds, fixture_setup,
                                    fixture_teardown),
    cmocka_unit_test_setup_teardown(a_library_is_found_where_its_caller_says, fixture_setup,
                                    fixture_teardown),
    cmocka_unit_test_setup_teardown(beside_jemalloc_in_either_order, fixture_setup,
                                    fixture_teardown),
    cmocka_unit_test_setup_teardown(beside_tcmalloc_in_either_order, fixture_setup,
                                    fixture_teardown),
    cmocka_unit_test_setup_teardown(
        plugins_bound_deeply_and_other_namespaces_are_not_held_as_documented, fixture_setup,
        fixture_teardown),
    cmocka_unit_test_setup_teardown(a_static_program_runs_as_without_us, fixture_setup,
                                    fixture_teardown),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
