/*
 * `vramcap check`: the order of the questions, and how the answers are printed.  It never claims
 * isolation: each line is one fact with its evidence, and the last says what was not shown.
 */
#include "enforcer/cli/check.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "enforcer/cli/command.h"
#include "enforcer/cli/units.h"
#include "enforcer/conf_file.h"

#define DOCUMENT_VERSION 1

enum { OPTION_JSON, OPTION_PID, OPTION_SELF_TEST };

static const struct vcap_option options[] = {
    [OPTION_JSON] = {"json", 'j', NULL, false, "as JSON (schema: docs/check.md)"},
    [OPTION_PID] = {"pid", 'p', "PID", false,
                    "of process PID, from the host; without the driver's answers"},
    [OPTION_SELF_TEST] = {"self-test", 't', NULL, false,
                          "also ask for 64 MiB more than is free, and show the refusal"},
    {0},
};

struct wish {
    bool json, self_test;
    uint64_t pid;
};

static int take(int option, const char *value, void *state)
{
    struct wish *wish = state;

    if (option == OPTION_JSON)
        wish->json = true;
    else if (option == OPTION_SELF_TEST)
        wish->self_test = true;
    else if (vcap_units_parse_number(value, &wish->pid) != 0 || wish->pid == 0 ||
             wish->pid > INT32_MAX)
        return vcap_command_fail("check: --pid wants a process number, got '%s'", value);
    return 0;
}

void vcap_check_say(struct vcap_check *check, const char *id, const char *uuid,
                    enum vcap_check_state state, const char *format, ...)
{
    struct vcap_check_line *line;
    va_list arguments;

    if (check->count++ >= VCAP_CHECK_LINES)
        return;
    line = &check->line[check->count - 1];
    line->id = id;
    line->state = state;
    (void)snprintf(line->uuid, sizeof line->uuid, "%s", uuid ? uuid : "");
    va_start(arguments, format);
    (void)vsnprintf(line->text, sizeof line->text, format, arguments);
    va_end(arguments);
    for (char *c = line->text; *c; c++)
        if (*c < 0x20 || *c > 0x7e)
            *c = '?';
}

static const char *state_name(enum vcap_check_state state)
{
    static const char *const names[] = {"ok", "finding", "note", "unknown"};
    return names[state];
}

static const char *get_variable(const char *name, void *arg)
{
    static char value[4096]; /* vcap_config_read copies before it asks for the next */
    return vcap_check_variable(arg, name, value, sizeof value) ? value : NULL;
}

static void read_config(struct vcap_check *check)
{
    static struct vcap_conf file;
    static struct vcap_config said;
    char why[300] = "";

    if (check->environment_error != 0)
        return;
    check->config_error = vcap_config_read(&check->config, get_variable, check, check->config_why,
                                           sizeof check->config_why);
    if (!check->self)
        return;
    int there = vcap_conf_read(VCAP_CONF_PATH, &file, why, sizeof why);
    if (there > 0)
        there = vcap_config_read(&said, vcap_conf_get, &file, why, sizeof why) == 0 ? 1 : -EINVAL;
    if (there < 0)
        vcap_check_say(check, "configuration", NULL, VCAP_CHECK_FINDING,
                       "%s: %s; GPU memory is denied until the host corrects it", VCAP_CONF_PATH,
                       why);
    if (there > 0) {
        vcap_check_say(check, "configuration", NULL, VCAP_CHECK_OK, "%s is the host's word",
                       VCAP_CONF_PATH);
        check->config.host_memory = said.memory;
        check->config.host_memory_set = said.memory_set;
    }
}

static void gather(struct vcap_check *check)
{
    vcap_check_look(check);
    vcap_check_library(check);
    read_config(check);
    if (check->self) {
        vcap_check_ask_driver(check);
        vcap_check_driver_lines(check);
    }
    vcap_check_find_ledger(check); /* after the driver: what the child did there is in it */
    vcap_check_ledger_lines(check);
    vcap_check_nvml(check);
    if (check->self_test)
        vcap_check_self_test(check);
    vcap_check_mps(check);
    vcap_check_others(check);
    vcap_check_say(check, "calls", NULL, VCAP_CHECK_NOTE,
                   "a profiler sees driver calls of vramcap's own: queries of context, device, "
                   "capture state, free memory, pools and graphs");
    vcap_check_say(
        check, "boundary", NULL, VCAP_CHECK_NOTE,
        "shown above is an allocation limit; faults, latency and access between neighbours "
        "were not looked at (docs/guarantees.md)");
}

static bool any_finding(const struct vcap_check *check)
{
    for (uint32_t i = 0; i < check->count && i < VCAP_CHECK_LINES; i++)
        if (check->line[i].state == VCAP_CHECK_FINDING)
            return true;
    return check->count > VCAP_CHECK_LINES;
}

static void print_text(const struct vcap_check *check)
{
    for (uint32_t i = 0; i < check->count && i < VCAP_CHECK_LINES; i++) {
        const struct vcap_check_line *line = &check->line[i];
        (void)printf("%-8s %-14s %s%s%s\n", state_name(line->state), line->id, line->uuid,
                     line->uuid[0] ? ": " : "", line->text);
    }
    if (check->count > VCAP_CHECK_LINES)
        (void)printf("finding  lines          %u more\n", check->count - VCAP_CHECK_LINES);
}

static int print_json(const struct vcap_check *check)
{
    json_t *lines = json_array(), *document;
    char *text;

    for (uint32_t i = 0; lines && i < check->count && i < VCAP_CHECK_LINES; i++) {
        const struct vcap_check_line *line = &check->line[i];
        if (json_array_append_new(lines, json_pack("{s:s, s:s?, s:s, s:s}", "check", line->id,
                                                   "uuid", line->uuid[0] ? line->uuid : NULL,
                                                   "state", state_name(line->state), "evidence",
                                                   line->text)) != 0) {
            json_decref(lines);
            lines = NULL;
        }
    }
    document = json_pack("{s:i, s:i, s:b, s:o}", "version", DOCUMENT_VERSION, "pid",
                         (int)check->pid, "findings", (int)any_finding(check), "checks", lines);
    text = document ? json_dumps(document, JSON_INDENT(2)) : NULL;
    if (text)
        (void)puts(text);
    json_decref(document);
    if (!text)
        return vcap_command_fail("out of memory");
    free(text);
    return 0;
}

static int run(int argc, char **argv)
{
    static struct vcap_check check; /* large */
    struct wish wish = {0};
    int first;
    int status = vcap_command_parse(&vcap_command_check, argc, argv, take, &wish, &first);

    if (status >= 0)
        return status;
    if (first < argc)
        return vcap_command_fail("check: takes no operand, got '%s'", argv[first]);
    if (wish.pid && wish.self_test)
        return vcap_command_fail(
            "check: --self-test works only inside the container, without --pid");
    if (wish.pid && kill((pid_t)wish.pid, 0) != 0 && errno == ESRCH)
        return vcap_command_fail("check: there is no process %llu", (unsigned long long)wish.pid);
    check.self = wish.pid == 0;
    check.pid = check.self ? getpid() : (pid_t)wish.pid;
    check.self_test = wish.self_test;
    gather(&check);
    if (wish.json)
        status = print_json(&check);
    else
        print_text(&check);
    if (check.have_ledger)
        vcap_snapshot_free(&check.snapshot);
    if (status > 0)
        return status;
    if (any_finding(&check))
        return VCAP_EXIT_FINDING;
    return check.unseen ? VCAP_EXIT_FAILED : VCAP_EXIT_DONE;
}

const struct vcap_command vcap_command_check = {
    .name = "check",
    .summary = "what is enforced here, by what, shown by evidence",
    .operands = "",
    .details =
        "Inside a container: run it with the environment of the application, for that is what it\n"
        "looks at. It loads the CUDA driver in a child for a moment. Exit status 1: a finding;\n"
        "2: none, but process PID could not be looked at.",
    .options = options,
    .run = run,
};
