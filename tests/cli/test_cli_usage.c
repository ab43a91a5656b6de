/*
 * Help, mistakes, exit statuses: every mistake is exit 2 with one line on stderr and nothing on
 * stdout.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cli/tool.h"

static struct tool t;

static void is_one_line(const char *text)
{
    const char *end = strchr(text, '\n');
    if (strncmp(text, "vramcap: ", 9) != 0 || !end || end[1])
        fail_msg("not one line of vramcap's: '%s'", text);
}

static void is_a_mistake(const char *const *argv, const char *about)
{
    int status = tool_run(&t, TOOL_ARGS("VRAMCAP_LEDGER=/nowhere/ledger"), argv);
    if (status != 2)
        fail_msg("%s %s: exit status %d", argv[0], argv[0] ? argv[1] : "", status);
    assert_string_equal(t.out, "");
    is_one_line(t.err);
    if (!strstr(t.err, about))
        fail_msg("'%s' is not about '%s'", t.err, about);
}

static void every_mistake_is_one_line_and_exit_2(void **state)
{
    (void)state;
    is_a_mistake((const char *const[]){NULL}, "which command");
    is_a_mistake(TOOL_ARGS("dmup"), "no command 'dmup'");
    is_a_mistake(TOOL_ARGS("help", "dmup"), "no command 'dmup'");
    is_a_mistake(TOOL_ARGS("dump", "--colour"), "'--colour'");
    is_a_mistake(TOOL_ARGS("dump", "-x"), "'-x'");
    is_a_mistake(TOOL_ARGS("dump", "-jx"), "'-x'");
    is_a_mistake(TOOL_ARGS("dump", "--json=yes"), "'--json=yes'");
    is_a_mistake(TOOL_ARGS("dump", "a", "b"), "'b'");
    is_a_mistake(TOOL_ARGS("dump", "--watch=0"), "'0'");
    is_a_mistake(TOOL_ARGS("dump", "--watch=1s"), "'1s'");
    is_a_mistake(TOOL_ARGS("dump", "--watch=nan"), "'nan'");
    is_a_mistake(TOOL_ARGS("dump", "--watch="), "''");
    is_a_mistake(TOOL_ARGS("events", "--since", "-1"), "'-1'");
    is_a_mistake(TOOL_ARGS("events", "--since"), "'--since'");
    is_a_mistake(TOOL_ARGS("version", "x"), "'x'");
    is_a_mistake(TOOL_ARGS("run"), "no command");
    is_a_mistake(TOOL_ARGS("run", "--"), "no command");
    is_a_mistake(TOOL_ARGS("run", "--memory", "4096"), "no command");
    is_a_mistake(TOOL_ARGS("run", "--memory"), "--memory");
    is_a_mistake(TOOL_ARGS("dump"), "/nowhere/ledger");
    is_a_mistake(TOOL_ARGS("events"), "/nowhere/ledger");
    is_a_mistake(TOOL_ARGS("dump", "/no\nwhere"), "/no?where");
    is_a_mistake(TOOL_ARGS("create", "--memory", "1", "/nowhere/web/ledger"),
                 "make it first: mkdir -p /nowhere/web");
}

static void help_is_on_stdout_and_exit_0(void **state)
{
    (void)state;
    const char *const *asks[] = {TOOL_ARGS("--help"), TOOL_ARGS("-h"), TOOL_ARGS("help"),
                                 TOOL_ARGS("help", "--help")};
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        assert_int_equal(tool_run(&t, NULL, asks[i]), 0);
        assert_non_null(strstr(t.out, "  dump "));
        assert_non_null(strstr(t.out, "  run "));
        assert_string_equal(t.err, "");
    }
}

static void the_help_of_a_command_has_its_options(void **state)
{
    (void)state;
    static struct tool again;
    const struct {
        const char *command, *options[6];
    } all[] = {
        {"run", {"--memory MIB", "--audit", "--ledger PATH", "--library PATH", "--help"}},
        {"dump", {"--json", "--watch[=SECONDS]", "--help"}},
        {"events", {"--json", "--follow", "--since SEQ", "--help"}},
        {"version", {"--help"}},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("help", all[i].command)), 0);
        assert_int_equal(tool_run(&again, NULL, TOOL_ARGS(all[i].command, "--help")), 0);
        assert_string_equal(t.out, again.out);
        for (int o = 0; all[i].options[o]; o++)
            assert_non_null(strstr(t.out, all[i].options[o]));
    }
}

static void version_names_the_tool_and_the_format(void **state)
{
    (void)state;
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("version")), 0);
    assert_string_equal(t.out, "vramcap " VRAMCAP_VERSION "\nledger format 1\n");
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("--version")), 0);
    assert_string_equal(t.out, "vramcap " VRAMCAP_VERSION "\nledger format 1\n");
}

static void output_that_is_lost_is_exit_2(void **state)
{
    (void)state;
    tool_start(&t, TOOL_CLOSED, NULL, TOOL_ARGS("--help"));
    assert_int_equal(tool_wait(&t), 2);
    is_one_line(t.err);
    tool_start(&t, TOOL_FULL, NULL, TOOL_ARGS("version"));
    assert_int_equal(tool_wait(&t), 2);
    is_one_line(t.err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mistake_is_one_line_and_exit_2),
        cmocka_unit_test(help_is_on_stdout_and_exit_0),
        cmocka_unit_test(the_help_of_a_command_has_its_options),
        cmocka_unit_test(version_names_the_tool_and_the_format),
        cmocka_unit_test(output_that_is_lost_is_exit_2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
