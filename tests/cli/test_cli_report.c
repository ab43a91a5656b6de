/*
 * `vramcap report`: which ledgers, JSON against its schema, exit statuses, hostile names.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/cli/ledger_image.h"
#include "tests/cli/tool.h"
#include "tests/support/skip.h"

#define UUID "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"

static struct tool t;
static struct image image;
static char folder[64], path[300];

static const char *at(const char *name)
{
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A ledger of one container on a card of 16 GiB, its process holding 1 GiB. */
static void write_ledger(const char *name, const char *container, uint64_t ceiling_mib)
{
    image_init(&image);
    image_gpu(&image, 0, ceiling_mib, VCAP_LF_SOURCE_HOST);
    image.gpus[0].card_bytes = 16384 * IMAGE_MIB;
    image.gpus[0].peak_bytes = 2048 * IMAGE_MIB;
    image_process(&image, 1, 0, 1024, "serve");
    image.cells[1][0].overhead_bytes = 0;
    (void)snprintf(image.header.container, sizeof image.header.container, "%s", container);
    assert_int_equal(image_write(&image, sizeof image, at(name)), 0);
}

static int setup(void **state)
{
    (void)state;
    if (!image_folder(folder))
        return -1;
    write_ledger("b.ledger", "", 4096);
    write_ledger("a.ledger", "web-1", 4096);
    return mkdir(at("a folder"), 0755);
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void has(const char *text)
{
    if (!strstr(t.out, text))
        fail_msg("no '%s' in:\n%s%s", text, t.out, t.err);
}

static void a_folder_s_ledgers_are_reported_together(void **state)
{
    (void)state;
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("report", "--ledger-dir", folder)), 0);
    has("GPU 0 " UUID ": card 16384.0 MiB, 2 containers, 0 processes");
    has("yes         web-1: peak 2048.0 of 4096.0 MiB, no refusal; enforced by none");
    has("b.ledger: peak 2048.0");
    has("ceilings of 8192.0 MiB on a card of 16384.0 leave 8192.0");
    assert_string_equal(t.err, "");
}

static void over_commitment_is_named(void **state)
{
    (void)state;
    write_ledger("c.ledger", "greedy", 12288);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("report", "--ledger-dir", folder)), 0);
    has("no          over-committed by 4096.0 MiB");
}

static void one_more_container_decides_the_exit_status(void **state)
{
    (void)state;
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("report", "-d", folder, "--fit", "8Gi")), 0);
    has("Does one more container of 8192.0 MiB fit?\n    yes         0.0 MiB would be left");
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("report", "-d", folder, "--fit", "8193")), 1);
    has("    no          8192.0 MiB of ceilings and 8193.0 more are above the card's 16384.0");
    assert_int_equal(tool_run(&t, NULL,
                              TOOL_ARGS("report", "-d", folder, "--fit", "8193", "--card",
                                        "GPU-00010203-0405-0607-0809-0A0B0C0D0E0F=24576")),
                     0);
    has("card 24576.0 MiB");
}

static void the_json_keeps_to_its_schema(void **state)
{
    char file[128], command[600];
    (void)state;
    write_ledger("c.ledger", "greedy", UINT64_MAX);
    assert_int_equal(image_write("rubbish", 7, at("d.ledger")), 0);
    assert_int_equal(
        tool_run(&t, NULL, TOOL_ARGS("report", "--json", "-d", folder, "--fit", "1024")), 1);
    json_t *json = json_loads(t.out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(json);
    assert_int_equal(json_integer_value(json_object_get(json, "version")), 1);
    assert_int_equal(json_integer_value(json_object_get(json, "untrusted")), 1);
    assert_int_equal(json_array_size(json_object_get(json, "containers")), 4);
    (void)snprintf(file, sizeof file, "%s/report.json", folder);
    assert_int_equal(json_dump_file(json, file, 0), 0);
    json_decref(json);
    if (system("/usr/bin/python3 -c 'import jsonschema' 2>/dev/null") != 0)
        SKIP_BECAUSE("python3-jsonschema is missing");
    (void)snprintf(
        command, sizeof command,
        "/usr/bin/python3 -c 'import json, jsonschema, sys; "
        "jsonschema.validate(json.load(open(sys.argv[1])), json.load(open(sys.argv[2])))' "
        "'%s' '%s'",
        file, REPORT_SCHEMA);
    assert_int_equal(system(command), 0);
}

static void an_untrusted_ledger_is_named_and_a_finding(void **state)
{
    (void)state;
    assert_int_equal(image_write("rubbish", 7, at("evil\x1b[2J\n")), 0);
    assert_int_equal(mkfifo(at("fifo"), 0666), 0);
    assert_int_equal(symlink("/etc/passwd", at("link")), 0);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("report", "--ledger-dir", folder)), 1);
    has("untrusted: evil?[2J?: ");
    has("untrusted: fifo: ");
    has("untrusted: link: ");
    has("web-1: peak");
    has("conditional ceilings");
    has("what 3 untrusted ledgers stand for");
    assert_null(strchr(t.out, '\033'));
}

static void ledgers_can_be_operands_or_come_from_the_environment(void **state)
{
    char variable[400];
    (void)state;
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("report", at("a.ledger"))), 0);
    has("1 containers");
    (void)snprintf(variable, sizeof variable, "VRAMCAP_LEDGER=%s", at("b.ledger"));
    assert_int_equal(tool_run(&t, TOOL_ARGS(variable), TOOL_ARGS("report")), 0);
    has("b.ledger");
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("report", "-d", folder, "x")), 2);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("report", "-d", "/nowhere")), 2);
    assert_non_null(strstr(t.err, "/nowhere"));
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("report", "--fit", "much", "x")), 2);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("report", "--card", "0=4096", "x")), 2);
}

static void a_ledger_in_a_folder_of_its_own_counts_too(void **state)
{
    (void)state;
    write_ledger("a folder/ledger", "", 2048);
    write_ledger("a folder/other", "hidden", 2048);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("report", "-d", folder)), 0);
    has("3 containers");
    has("a folder: peak 2048.0 of 2048.0 MiB");
}

static void an_empty_folder_says_so(void **state)
{
    (void)state;
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("report", "-d", at("a folder"))), 0);
    has("no GPU in any ledger");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(a_folder_s_ledgers_are_reported_together),
        TEST(over_commitment_is_named),
        TEST(one_more_container_decides_the_exit_status),
        TEST(the_json_keeps_to_its_schema),
        TEST(an_untrusted_ledger_is_named_and_a_finding),
        TEST(ledgers_can_be_operands_or_come_from_the_environment),
        TEST(a_ledger_in_a_folder_of_its_own_counts_too),
        TEST(an_empty_folder_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
