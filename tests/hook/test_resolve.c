/*
 * dlsym in front of the loader's: what it answers, to whom, and what it leaves alone.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/hook/scenario.h"

enum kind { HOOKED, COUNTED, PASSED };
static const struct {
    const char *symbol;
    enum kind kind;
} rows[] = {
#define HOOK(base, since, suffix, rule) {#base #suffix, HOOKED},
#define HOOK_STREAM(base, since, suffix, rule)                                                     \
    {#base #suffix, HOOKED}, {#base #suffix "_ptsz", HOOKED},
#define GAP(base, since, suffix, lost) {#base #suffix, COUNTED},
#define GAP_STREAM(base, since, suffix, lost)                                                      \
    {#base #suffix, COUNTED}, {#base #suffix "_ptsz", COUNTED},
#define PASS(base, since, suffix, why) {#base #suffix, PASSED},
#define PASS_STREAM(base, since, suffix, why)                                                      \
    {#base #suffix, PASSED}, {#base #suffix "_ptsz", PASSED},
#include "preload/cuda_api.def"
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static bool is_in(const void *address, const char *module)
{
    Dl_info where;

    return address != NULL && dladdr(address, &where) != 0 &&
           strstr(where.dli_fname, module) != NULL;
}

static bool is_ours(const void *address)
{
    return is_in(address, "libvramcap.so");
}

static void *driver(void)
{
    return dlopen("libcuda.so.1", RTLD_NOW);
}

/* ---- by handle ---- */

static int every_row_gets_what_the_table_says(void)
{
    void *handle = driver();
    unsigned there = 0;

    CHECK(handle != NULL);
    for (size_t i = 0; i < ROWS; i++) {
        void *address = dlsym(handle, rows[i].symbol);

        if (address == NULL) /* graphics interop is not in the simulator */
            continue;
        there++;
        if (is_ours(address) != (rows[i].kind != PASSED) ||
            is_in(address, "libcuda") != (rows[i].kind == PASSED)) {
            fprintf(stderr, "%s: not what its row says\n", rows[i].symbol);
            return 1;
        }
    }
    CHECK(there > 300);
    return 0;
}

static int a_missing_name_is_missing_twice_with_its_error(void)
{
    void *handle = driver();

    for (int i = 0; i < 2; i++) {
        const char *error;

        dlerror();
        CHECK(dlsym(handle, "cuNoSuchThing") == NULL);
        error = dlerror();
        CHECK(error != NULL && strstr(error, "cuNoSuchThing") != NULL);
        CHECK(dlsym(RTLD_NEXT, "cuNoSuchThing") == NULL);
        CHECK(dlsym(RTLD_DEFAULT, "cuNoSuchThing") == NULL);
    }
    return 0;
}

static int default_and_next_find_ours_first(void)
{
    CHECK(is_ours(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")));
    CHECK(is_ours(dlsym(RTLD_NEXT, "cuMemAlloc_v2")));
    CHECK(is_ours(dlsym(dlopen(NULL, RTLD_NOW), "cuMemAlloc_v2")));
    CHECK(is_in(dlsym(RTLD_DEFAULT, "cuMemcpy"), "libcuda"));
    CHECK(is_in(dlsym(RTLD_NEXT, "gnu_get_libc_version"), "libc"));
    return 0;
}

typedef void *(*ask_function)(const char *);
typedef void *(*ask_handle_function)(void *, const char *);

static int a_local_plugin_asks_from_its_own_place(void)
{
    void *plugin = dlopen(TEST_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    ask_function by_default, next;
    ask_handle_function by_handle;

    CHECK(plugin != NULL);
    by_default = (ask_function)(uintptr_t)dlsym(plugin, "plugin_default");
    next = (ask_function)(uintptr_t)dlsym(plugin, "plugin_next");
    by_handle = (ask_handle_function)(uintptr_t)dlsym(plugin, "plugin_handle");
    CHECK(by_default != NULL && next != NULL && by_handle != NULL);
    /* only the plugin's own scope has this: a wrapper in C would lose it */
    CHECK(is_in(by_default("plugin_private"), "plugin"));
    CHECK(is_in(by_default("cuPluginPrivate"), "plugin"));
    CHECK(dlsym(RTLD_DEFAULT, "plugin_private") == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "cuPluginPrivate") == NULL);
    for (int i = 0; i < 2; i++) {
        CHECK(next("plugin_private") == NULL);
        CHECK(next("cuPluginPrivate") == NULL);
        CHECK(next("no_such_function") == NULL);
    }
    CHECK(is_ours(by_default("cuMemAlloc_v2"))); /* the global scope comes first */
    CHECK(is_ours(by_handle(driver(), "cuMemAlloc_v2")));
    CHECK(is_in(by_handle(plugin, "cuMemAlloc_v2"),
                "plugin")); /* a name, not the driver's function */
    CHECK(is_in(dlsym(plugin, "cuddle"), "plugin"));
    CHECK(is_in(dlsym(plugin, "curl_easy_init"), "plugin"));
    CHECK(is_in(dlsym(plugin, "cu"), "plugin"));
    return 0;
}

static int closed_and_opened_again_it_is_still_hooked(void)
{
    for (int i = 0; i < 3; i++) {
        void *handle = driver();

        CHECK(handle != NULL);
        CHECK(is_ours(dlsym(handle, "cuMemAlloc_v2")));
        CHECK(dlclose(handle) == 0);
    }
    return 0;
}

static void *look_up(void *handle)
{
    for (int i = 0; i < 200; i++) {
        size_t row = (size_t)i % ROWS;
        void *address = dlsym(handle, rows[row].symbol);

        if (address != NULL && is_ours(address) != (rows[row].kind != PASSED))
            return handle;
    }
    return NULL;
}

static int sixty_four_threads_at_once(void)
{
    pthread_t thread[64];
    void *handle = driver(), *wrong;

    for (int i = 0; i < 64; i++)
        CHECK(pthread_create(&thread[i], NULL, look_up, handle) == 0);
    for (int i = 0; i < 64; i++) {
        pthread_join(thread[i], &wrong);
        CHECK(wrong == NULL);
    }
    return 0;
}

/* ---- with others in the process ---- */

static int allocate_once(void)
{
    int (*calls)(void) = (int (*)(void))(uintptr_t)dlsym(RTLD_DEFAULT, "interposer_calls");
    CUdeviceptr pointer;
    const char *text = getenv("EXPECTED_CALLS");
    int expected = text == NULL ? 0 : atoi(text);

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    SAME(charged(0), 600 * MIB);
    REFUSED(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    SAME(charged(0), 600 * MIB);
    if (calls != NULL)
        SAME(calls(), expected);
    return 0;
}

static void beside(const struct fixture *f, const char *name, const char *more)
{
    static struct child_output output;
    struct timespec start, end;

    clock_gettime(CLOCK_MONOTONIC, &start);
    scenario_run(f, name, more, &output);
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (output.status != 0)
        fprintf(stderr, "---- %s\n%s----\n", more, output.err);
    assert_int_equal(output.status, 0);
    /* a second in an ordinary build on an idle machine; sanitized and loaded ones get more */
    assert_in_range(end.tv_sec - start.tv_sec, 0, 5);
}

static int only_finish(void)
{
    for (int i = 0; i < 2; i++)
        for (size_t row = 0; row < ROWS; row++)
            (void)dlsym(driver(), rows[row].symbol);
    CHECK(dlsym(RTLD_NEXT, "cuNoSuchThing") == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "malloc") != NULL);
    return 0;
}

static void another_wrapper_of_dlsym_in_either_order(void **state)
{
    static const char *const names[] = {"every_row_gets_what_the_table_says",
                                        "default_and_next_find_ours_first",
                                        "a_local_plugin_asks_from_its_own_place",
                                        "allocate_once",
                                        "sixty_four_threads_at_once",
                                        "a_missing_name_is_missing_twice_with_its_error",
                                        "only_finish"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        beside(*state, names[i], "+LD_PRELOAD=" TEST_WRAPPER);
        unlink(((const struct fixture *)*state)->ledger);
    }
    /* In front of us such a wrapper finds libc's dlsym by dlvsym, which never sees an unversioned
     * one: what it is asked passes us by (a limit); what the program is linked with does not. */
    beside(*state, "only_finish", "-LD_PRELOAD=" TEST_WRAPPER);
    beside(*state, "allocate_once", "SCENARIO_BY=link;-LD_PRELOAD=" TEST_WRAPPER);
}

static void another_interposer_in_either_order(void **state)
{
    static const char *const orders[] = {
        "+LD_PRELOAD=" TEST_INTERPOSER ";SCENARIO_BY=link;EXPECTED_CALLS=0",
        "-LD_PRELOAD=" TEST_INTERPOSER ";SCENARIO_BY=link;EXPECTED_CALLS=2",
        "-LD_PRELOAD=" TEST_INTERPOSER ";SCENARIO_BY=link;EXPECTED_CALLS=2;INTERPOSER_BY=handle",
        "+LD_PRELOAD=" TEST_INTERPOSER ";SCENARIO_BY=link;EXPECTED_CALLS=0;INTERPOSER_BY=handle",
        "-LD_PRELOAD=" TEST_INTERPOSER ";SCENARIO_BY=dlsym;EXPECTED_CALLS=0",
        "+LD_PRELOAD=" TEST_INTERPOSER ";SCENARIO_BY=getproc;EXPECTED_CALLS=0",
    };

    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        beside(*state, "allocate_once", orders[i]);
        unlink(((const struct fixture *)*state)->ledger);
    }
}

/* ---- a program that is not linked with the driver ---- */

static int bare(const struct fixture *f, const char *command, const char *argument,
                const char *const *more, struct child_output *output)
{
    const char *argv[] = {TEST_BARE, command, argument, NULL};
    const char *extra[16] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024"};
    size_t count = 2;

    while (more != NULL && *more != NULL)
        extra[count++] = *more++;
    child_run(f, argv, extra, output);
    if (output->status != 0)
        fprintf(stderr, "---- bare %s\n%s----\n", command, output->err);
    return output->status;
}

static void no_name_is_invented_or_lost(void **state)
{
    static const char *const drivers[] = {TEST_SIM, TEST_SIM "/variants/v11_0",
                                          TEST_SIM "/variants/v11_5"};
    static struct child_output with, without;

    for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++) {
        char path[512];
        const char *more[] = {path, NULL, NULL};

        snprintf(path, sizeof(path), "LD_LIBRARY_PATH=%s", drivers[i]);
        assert_int_equal(bare(*state, "names", NULL, more, &with), 0);
        more[1] = "LD_PRELOAD";
        assert_int_equal(bare(*state, "names", NULL, more, &without), 0);
        assert_true(with.out_length > ROWS);
        assert_string_equal(with.out, without.out);
    }
}

static void without_a_driver_names_exist_and_answer_no_device(void **state)
{
    static const char *const more[] = {"LD_LIBRARY_PATH=/nonexistent", NULL};
    static struct child_output output;
    const struct fixture *f = *state;

    assert_int_equal(bare(f, "driverless", NULL, more, &output), 0);
    assert_int_equal(count_lines(output.err, "vramcap"), 0);
    assert_int_not_equal(access(f->ledger, F_OK), 0);
}

static void a_null_name_is_as_without_us(void **state)
{
    static const char *const more[] = {"LD_PRELOAD", NULL};
    static struct child_output with, without;
    const struct fixture *f = *state;
    const char *argv[] = {TEST_BARE, "null", NULL};

    child_run(f, argv, NULL, &with);
    child_run(f, argv, more, &without);
    assert_int_equal(with.status, without.status);
}

static void gap_stubs_keep_every_argument(void **state)
{
    static const char *const more[] = {"LD_LIBRARY_PATH=" TEST_ARGS_DRIVER, NULL};
    static const char *const alone[] = {"LD_LIBRARY_PATH=" TEST_ARGS_DRIVER, "LD_PRELOAD", "BARE=1",
                                        NULL};
    static struct child_output output;

    assert_int_equal(bare(*state, "args", NULL, alone, &output), 0);
    assert_int_equal(bare(*state, "args", NULL, more, &output), 0);
    assert_int_equal(count_lines(output.err, "cuEGLStreamConsumerAcquireFrame is not accounted"),
                     1);
    assert_int_equal(count_lines(output.err, "cuCheckpointProcessRestore is not accounted"), 1);
}

/* Of the table's families; what copies is none of them. */
static void a_name_that_no_table_knows_passes_and_is_said_once(void **state)
{
    static const char *const argv[] = {TEST_BARE, "unknown", NULL};
    static const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024",
                                        "LD_LIBRARY_PATH=" TEST_ARGS_DRIVER, NULL};
    const struct fixture *f = *state;
    const char *const dump[] = {TEST_TOOL, "dump", f->ledger, NULL};
    static const char *const plain[] = {"LD_PRELOAD", NULL};
    static struct child_output output;
    struct vcap_snapshot s;
    struct child child;
    char line[64];

    assert_true(child_start(&child, f, argv, extra));
    assert_true(child_line(&child, line, sizeof(line), FIXTURE_DEADLINE_MS));
    assert_string_equal(line, "ready");
    assert_true(ledger_read(f->ledger, &s));
    assert_int_equal(s.process_count, 1);
    assert_int_equal(s.processes[0].gaps, 2);
    vcap_snapshot_free(&s);
    assert_int_equal(ledger_events(f->ledger, VCAP_LF_EVENT_GAP), 2);
    child_run(f, dump, plain, &output);
    assert_non_null(
        strstr(output.out, "not accounted, but used: cuMemAllocSomewhere, cuMemAlloc_v9\n"));
    close(child.in);
    child.in = -1;
    /* what it wrote */
    {
        size_t used = 0;
        ssize_t got;

        while ((got = read(child.err, output.err + used, sizeof(output.err) - 1 - used)) > 0)
            used += (size_t)got;
        output.err[used] = 0;
    }
    assert_int_equal(child_wait(&child, FIXTURE_DEADLINE_MS), 0);
    assert_int_equal(count_lines(output.err, "cuMemAllocSomewhere is newer than"), 1);
    assert_int_equal(count_lines(output.err, "cuMemAlloc_v9 is newer than"), 1);
    assert_int_equal(count_lines(output.err, "vramcap: "), 2);
}

static void however_the_driver_is_opened_it_is_hooked(void **state)
{
    static const char *const paths[] = {"libcuda.so.1", TEST_SIM "/libcuda.so.1",
                                        TEST_SIM "/libcuda.so"};
    static struct child_output output;

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        assert_int_equal(bare(*state, "late", paths[i], NULL, &output), 0);
        assert_string_equal(output.out, "2\n");
    }
}

static void a_driver_opened_by_a_relative_path_is_hooked(void **state)
{
    static const char *const here[] = {"LD_LIBRARY_PATH=.", NULL};
    static const char *const below[] = {"LD_LIBRARY_PATH=sim/../sim", NULL};
    static struct child_output output;
    char folder[4096];

    assert_non_null(getcwd(folder, sizeof(folder)));
    assert_int_equal(chdir(TEST_SIM), 0);
    assert_int_equal(bare(*state, "late", "./libcuda.so.1", NULL, &output), 0);
    assert_string_equal(output.out, "2\n");
    assert_int_equal(bare(*state, "late", "../sim/libcuda.so.1", NULL, &output), 0);
    assert_string_equal(output.out, "2\n");
    assert_int_equal(bare(*state, "late", "libcuda.so.1", here, &output), 0);
    assert_string_equal(output.out, "2\n");
    assert_int_equal(chdir(".."), 0);
    assert_int_equal(bare(*state, "late", "libcuda.so.1", below, &output), 0);
    assert_string_equal(output.out, "2\n");
    assert_int_equal(chdir(folder), 0);
}

static void old_drivers_run(void **state)
{
    static const char *const v11_0[] = {"LD_LIBRARY_PATH=" TEST_SIM "/variants/v11_0", NULL};
    static const char *const v11_5[] = {"LD_LIBRARY_PATH=" TEST_SIM "/variants/v11_5", NULL};
    static struct child_output output;

    assert_int_equal(bare(*state, "late", "libcuda.so.1", v11_0, &output), 0);
    assert_string_equal(output.out, "2\n");
    assert_int_equal(bare(*state, "late", "libcuda.so.1", v11_5, &output), 0);
    assert_string_equal(output.out, "2\n");
}

static const struct scenario scenarios[] = {
    SCENARIO(every_row_gets_what_the_table_says, NULL),
    SCENARIO(a_missing_name_is_missing_twice_with_its_error, NULL),
    SCENARIO(default_and_next_find_ours_first, "SCENARIO_BY=none"),
    SCENARIO(a_local_plugin_asks_from_its_own_place, "SCENARIO_BY=none"),
    SCENARIO(closed_and_opened_again_it_is_still_hooked, "SCENARIO_BY=none"),
    SCENARIO(sixty_four_threads_at_once, "SCENARIO_BY=none"),
    HIDDEN(allocate_once, NULL),
    HIDDEN(only_finish, "SCENARIO_BY=none"),
};

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(another_wrapper_of_dlsym_in_either_order),
    cmocka_unit_test(another_interposer_in_either_order),
    cmocka_unit_test(no_name_is_invented_or_lost),
    cmocka_unit_test(without_a_driver_names_exist_and_answer_no_device),
    cmocka_unit_test(a_null_name_is_as_without_us),
    cmocka_unit_test(gap_stubs_keep_every_argument),
    cmocka_unit_test(a_name_that_no_table_knows_passes_and_is_said_once),
    cmocka_unit_test(however_the_driver_is_opened_it_is_hooked),
    cmocka_unit_test(a_driver_opened_by_a_relative_path_is_hooked),
    cmocka_unit_test(old_drivers_run),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
