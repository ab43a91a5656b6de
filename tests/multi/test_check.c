/*
 * `vramcap check`: what it says of the process, its configuration, its driver and its neighbours, each kind of
 * line made to say both that something is so and that it is not; --pid, --json, and what makes no sense.
 */
#include "tests/multi/check_box.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "tests/support/skip.h"

/* ---- the library ---- */

static void the_library_and_how_it_came_in(void **state)
{
    const struct fixture *f = *state;
    static const char *const loaded[] = {ENABLED, NULL};
    static const char *const not_loaded[] = {ENABLED, ALONE, NULL};
    static const char *const left_out[] = {ENABLED, ALONE, NULL};

    needs_bwrap(f);
    IS(check(f, loaded), 0);
    SAYS("ok", "library", "is loaded, by LD_PRELOAD");
    IS(check(f, not_loaded), 1);
    SAYS("finding", "library", "libvramcap.so is not loaded");
    IS(check_with(f, left_out, "LD_PRELOAD=/nowhere/libvramcap.so exec \"$0\" check"), 1);
    SAYS("finding", "library", "LD_PRELOAD names /nowhere/libvramcap.so, which does not exist");
    if (fixture_only_own_programs())
        return;
    write_file(fixture_path(f, "preload"), LIBRARY "\n");
    IS(check(f, not_loaded), 0);
    SAYS("ok", "library", "is loaded, by /etc/ld.so.preload");
}

static void another_enforcer_beside_it(void **state)
{
    const struct fixture *f = *state;
    char beside[200], command[400];
    const char *const limit_only[] = {ENABLED, "CUDA_DEVICE_MEMORY_LIMIT=4g", NULL};
    const char *const with_limit[] = {ENABLED, beside, "CUDA_DEVICE_MEMORY_LIMIT_0=3g", NULL};
    const char *const none[] = {ENABLED, NULL};

    needs_bwrap(f);
    snprintf(command, sizeof(command), "cp '%s' '%s'", OTHER_LIBRARY,
             fixture_path(f, "libvgpu.so"));
    assert_int_equal(system(command), 0);
    snprintf(beside, sizeof(beside), "+LD_PRELOAD=%s", fixture_path(f, "libvgpu.so"));
    IS(check(f, none), 0);
    assert_false(speaks_of("other-enforcer"));
    IS(check(f, limit_only), 0);
    SAYS("note", "other-enforcer", "CUDA_DEVICE_MEMORY_LIMIT is 4g, but no library");
    IS(check(f, with_limit), 1);
    SAYS("finding", "other-enforcer", "libvgpu.so is loaded beside vramcap, with a limit of 3g");
}

/* ---- configuration and mode ---- */

static void configuration_that_cannot_be_used(void **state)
{
    const struct fixture *f = *state;
    static const char *const good[] = {ENABLED, NULL};
    static const char *const bad[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1e3", NULL};
    static const char *const allowed[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1e3",
                                          "VRAMCAP_ON_ERROR=allow", NULL};
    static const char *const others[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1=1000", NULL};

    needs_bwrap(f);
    IS(check(f, good), 0);
    assert_false(speaks_of("configuration"));
    IS(check(f, bad), 1);
    SAYS("finding", "configuration", "VRAMCAP_MEMORY_MIB is '1e3'");
    SAYS("finding", "configuration", "vramcap then denies GPU memory to the process");
    IS(check(f, allowed), 1);
    SAYS("finding", "configuration", "vramcap then lets everything through");
    IS(check(f, others), 1);
    SAYS("finding", "configuration", "names a GPU that this process sees; vramcap then denies");
    SAYS("finding", "ceiling", "none in force");
}

static void the_hosts_file(void **state)
{
    const struct fixture *f = *state;
    static const char *const silent[] = {"VRAMCAP_ENABLE", NULL};

    needs_bwrap(f);
    if (geteuid() != 0)
        SKIP_BECAUSE("needs root: the file must be its");
    assert_int_equal(mkdir(fixture_path(f, "etc"), 0755), 0);
    write_file(fixture_path(f, "etc/container.conf"), "VRAMCAP_MEMORY_MIB=300\n");
    IS(check_with(f, silent, "unset VRAMCAP_LEDGER; VRAMCAP_LEDGER= exec \"$0\" check"), 0);
    SAYS("ok", "configuration", "/etc/vramcap/container.conf is the host's word");
    SAYS("ok", "ceiling", "300.0 MiB, from conf");
    write_file(fixture_path(f, "etc/container.conf"), "VRAMCAP_MEMORY=300\n");
    IS(check(f, silent), 1);
    SAYS("finding", "configuration", "denied until the host corrects it");
}

static void the_mode(void **state)
{
    const struct fixture *f = *state;
    static const char *const enforcing[] = {ENABLED, NULL};
    static const char *const passive[] = {"VRAMCAP_MEMORY_MIB=1000", NULL};
    static const char *const off[] = {"VRAMCAP_ENABLE=0", "VRAMCAP_MEMORY_MIB=1000", NULL};
    static const char *const audit[] = {"VRAMCAP_ENABLE=audit", "VRAMCAP_MEMORY_MIB=1000", NULL};
    static const char *const hosts[] = {ENABLED, NULL};

    needs_bwrap(f);
    IS(check(f, enforcing), 0);
    assert_false(speaks_of("mode"));
    IS(check(f, passive), 1);
    SAYS("finding", "mode", "passive: VRAMCAP_ENABLE is not 1");
    IS(check(f, off), 1);
    SAYS("finding", "mode", "passive: VRAMCAP_ENABLE is not 1");
    IS(check(f, audit), 1);
    SAYS("finding", "mode", "audit: what would be refused is recorded and let through");
    assert_int_equal(unlink(f->ledger), 0);
    IS(check_with(
           f, hosts,
           "\"$0\" create \"$VRAMCAP_LEDGER\" --memory 500 --audit >/dev/null && exec \"$0\" "
           "check"),
       1);
    SAYS("finding", "mode", "the host lets everything through (audit)");
    SAYS("ok", "ledger", "made by the host and switched to audit");
}

/* ---- the driver ---- */

static void the_driver(void **state)
{
    const struct fixture *f = *state;
    static const char *const good[] = {ENABLED, NULL};
    static const char *const none[] = {ENABLED, ALONE, "LD_LIBRARY_PATH=/nowhere", NULL};
    static const char *const broken[] = {ENABLED, "VRAMCAP_SIM_FAIL=cuInit:0:100", NULL};

    needs_bwrap(f);
    IS(check(f, good), 0);
    SAYS("ok", "driver", "libcuda.so.1, CUDA 13.0, cuInit gave 0, 1 device");
    IS(check(f, broken), 1);
    SAYS("finding", "driver", "cuInit gave 100, 0 devices");
    IS(check(f, none), 1);
    SAYS("finding", "driver", "no CUDA driver");
}

static void a_driver_that_hangs_costs_ten_seconds_and_not_the_answer(void **state)
{
    const struct fixture *f = *state;
    static const char *const hangs[] = {ENABLED, "VRAMCAP_SIM_DELAY_US=cuInit:1000000000", NULL};

    needs_bwrap(f);
    IS(check(f, hangs), 1);
    SAYS("finding", "driver", "did not answer within 10 s");
    SAYS("note", "boundary", "allocation limit");
}

/* ---- other processes ---- */

static void other_processes_of_the_container(void **state)
{
    const struct fixture *f = *state;
    static const char *const enabled[] = {ENABLED, NULL};

    needs_bwrap(f);
    if (fixture_only_own_programs())
        SKIP_BECAUSE("the client runs here only with the library");
    IS(check_with(f, enabled, BESIDE("")), 0);
    SAYS("ok", "processes", "no other process of this container uses the driver without");
    IS(check_with(f, enabled, BESIDE("env -u LD_PRELOAD")), 1);
    SAYS("finding", "unprotected", "has the CUDA driver loaded and not libvramcap.so");
    assert_false(says("ok", "processes", ""));
    IS(check_with(f, enabled, BESIDE("VRAMCAP_ENABLE=0")), 1);
    SAYS("finding", "passive", "libvramcap.so loaded and no ledger: it is passive");
}

/* ---- --pid ---- */

static void another_process_by_its_number(void **state)
{
    const struct fixture *f = *state;
    static const char *const enabled[] = {ENABLED, LIMIT("0=2000M"), MPS, NULL};
    static const char *const passive[] = {"VRAMCAP_MEMORY_MIB=1000", NULL};
    static const char *const bare[] = {ALONE, NULL};
    static const char *const invisible[] = {ENABLED, LIMIT("0=2000M,1=1G"), MPS, NULL};
    const char *const *const environments[] = {enabled, passive, invisible};
    const char *argv[40];
    char number[16], answer[64];
    int pid = 0, zero = -1;
    struct child c;

    needs_bwrap(f);
    for (int round = 0; round < 3; round++) {
        sandbox(f, WITH_PIPE "exec \"$1\" --by=dlsym", false, argv);
        assert_true(child_start(&c, f, argv, environments[round]));
        assert_int_equal(client_result(&c, "init"), 0);
        assert_int_equal(client_result(&c, "ctx create 0"), 0);
        client_ask(&c, answer, sizeof(answer), "pid");
        assert_int_equal(sscanf(answer, "%d %d", &zero, &pid), 2);
        snprintf(number, sizeof(number), "%d", pid);
        const char *const tool[] = {TOOL, "check", round == 0 ? "--pid" : "-p", number, NULL};
        child_run(f, tool, bare, &output);
        if (round == 0) {
            SAYS("ok", "library", "libvramcap.so is loaded, by LD_PRELOAD");
            SAYS("ok", "ledger", "map_files");
            SAYS("ok", "ceiling", "1000.0 MiB, from env");
            SAYS("ok", "mps", "client of MPS, by the driver's word; limit 0=2000M");
            assert_false(speaks_of("mps-events"));
            assert_int_equal(output.status, 0);
        } else if (round == 2) {
            assert_int_equal(output.status, 1);
            SAYS("finding", "mps-events", "limit names an invisible GPU");
        } else {
            assert_int_equal(output.status, 1);
            SAYS("finding", "ledger", "has no ledger mapped: it is passive");
            SAYS("finding", "mode", "passive");
        }
        assert_false(speaks_of("driver")); /* is not asked */
        assert_false(speaks_of("self-test"));
        child_kill(&c, SIGKILL);
    }
}

static void what_it_is_asked_must_make_sense(void **state)
{
    static const char *const asked[][5] = {
        {"check", "--pid", "0"},
        {"check", "--pid", "x1"},
        {"check", "--pid", "-5"},
        {"check", "--pid", "99999999999"},
        {"check", "--pid", "4194303999"},
        {"check", "--pid", "1", "--self-test"},
        {"check", "--nothing"},
        {"check", "operand"},
        {"check", "--pid"},
    };
    const struct fixture *f = *state;
    static const char *const bare[] = {ALONE, NULL};

    for (size_t i = 0; i < COUNT(asked); i++) {
        const char *const argv[] = {TOOL, asked[i][0], asked[i][1], asked[i][2], asked[i][3], NULL};

        child_run(f, argv, bare, &output);
        if (output.status != 2 || output.out[0] != '\0' || output.err[0] == '\0')
            fail_msg("%s %s: %d\n%s%s", asked[i][1], asked[i][2], output.status, output.out,
                     output.err);
    }
}

/* ---- JSON ---- */

static bool is_one_of(const char *word, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(word, list[i]) == 0)
            return true;
    return false;
}

static void json_has_every_line_and_the_same_verdict(void **state)
{
    static const char *const words[] = {"ok", "finding", "note", "unknown"};
    static const char *const good[] = {ENABLED, NULL};
    static const char *const bad[] = {ENABLED, ALONE, NULL};
    const struct fixture *f = *state;

    needs_bwrap(f);
    for (int round = 0; round < 2; round++) {
        unsigned lines, findings = 0, gpus = 0;
        json_t *document, *one;
        size_t i;

        IS(check(f, round == 0 ? good : bad), round);
        lines = count_lines(output.out, "");
        IS(check_with(f, round == 0 ? good : bad, "exec \"$0\" check --json"), round);
        document = json_loads(output.out, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(document);
        assert_int_equal(json_integer_value(json_object_get(document, "version")), 1);
        assert_true(json_integer_value(json_object_get(document, "pid")) > 0);
        assert_true(json_is_boolean(json_object_get(document, "findings")));
        assert_int_equal(json_is_true(json_object_get(document, "findings")), round);
        assert_int_equal(json_object_size(document), 4);
        assert_int_equal(json_array_size(json_object_get(document, "checks")), lines);
        json_array_foreach(json_object_get(document, "checks"), i, one)
        {
            const json_t *uuid = json_object_get(one, "uuid");

            assert_int_equal(json_object_size(one), 4);
            assert_true(json_is_string(json_object_get(one, "check")));
            assert_true(json_is_string(json_object_get(one, "evidence")));
            assert_true(
                is_one_of(json_string_value(json_object_get(one, "state")), words, COUNT(words)));
            assert_true(json_is_null(uuid) || strncmp(json_string_value(uuid), "GPU-", 4) == 0);
            findings += strcmp(json_string_value(json_object_get(one, "state")), "finding") == 0;
            gpus += json_is_string(uuid);
        }
        assert_int_equal(findings != 0, round);
        assert_true(gpus > 0);
        json_decref(document);
    }
}

/* Values of the environment are other people's: nothing in them moves the terminal. */
static void what_is_not_printable_is_not_printed(void **state)
{
    const struct fixture *f = *state;
    static const char *const odd[] = {ENABLED, "CUDA_DEVICE_MEMORY_LIMIT=4g\x1b[2J\xff", NULL};

    needs_bwrap(f);
    IS(check(f, odd), 0);
    SAYS("note", "other-enforcer", "is 4g?[2J?");
    for (const char *c = output.out; *c != '\0'; c++)
        assert_true(*c == '\n' || (*c >= 0x20 && *c < 0x7f));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        TEST(the_library_and_how_it_came_in),
        TEST(another_enforcer_beside_it),
        TEST(configuration_that_cannot_be_used),
        TEST(the_hosts_file),
        TEST(the_mode),
        TEST(the_driver),
        TEST(a_driver_that_hangs_costs_ten_seconds_and_not_the_answer),
        TEST(other_processes_of_the_container),
        TEST(another_process_by_its_number),
        TEST(what_it_is_asked_must_make_sense),
        TEST(json_has_every_line_and_the_same_verdict),
        TEST(what_is_not_printable_is_not_printed),
    };

    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
