/*
 * `vramcap`: finds the sub-command, makes sure that standard descriptors are what they seem, and
 * that a result that could not be written is not reported as success.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "enforcer/cli/command.h"

static const struct vcap_command *const commands[] = {
    &vcap_command_run,    &vcap_command_create, &vcap_command_resize,  &vcap_command_reset,
    &vcap_command_check,  &vcap_command_dump,   &vcap_command_events,  &vcap_command_cdi,
    &vcap_command_report, &vcap_command_top,    &vcap_command_version,
};
#define COMMANDS (sizeof commands / sizeof *commands)

static const struct vcap_command *find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    return NULL;
}

static void print_help(FILE *to)
{
    (void)fputs("usage: vramcap COMMAND [OPTION]...\n\n"
                "One container, one GPU memory ceiling.\n\n",
                to);
    for (size_t i = 0; i < COMMANDS; i++)
        (void)fprintf(to, "  %-10s  %s\n", commands[i]->name, commands[i]->summary);
    (void)fputs(
        "  help        show this, or the help of a COMMAND\n\n"
        "Exit status: 0 done, 1 a finding (an untrusted ledger, one in use), 2 usage or I/O;\n"
        "run: the command's own, 127 not found, 126 cannot be executed.\n"
        "Manual pages: vramcap(1), libvramcap(7), vramcap-ledger(5).\n",
        to);
}

static int unknown(const char *name)
{
    return vcap_command_fail("no command '%s'; see: vramcap --help", name);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2)
        return vcap_command_fail("which command? see: vramcap --help");
    const char *name = argv[1];
    if (!strcmp(name, "--version") || !strcmp(name, "-V"))
        name = "version";
    if (!strcmp(name, "--help") || !strcmp(name, "-h") ||
        (!strcmp(name, "help") && (argc == 2 || argv[2][0] == '-'))) {
        print_help(stdout);
        return VCAP_EXIT_DONE;
    }
    if (!strcmp(name, "help")) {
        const struct vcap_command *about = find(argv[2]);
        if (!about)
            return unknown(argv[2]);
        vcap_command_help(about, stdout);
        return VCAP_EXIT_DONE;
    }
    const struct vcap_command *command = find(name);
    return command ? command->run(argc - 1, argv + 1) : unknown(name);
}

int main(int argc, char **argv)
{
    vcap_command_reserve_descriptors();
    int status = dispatch(argc, argv);
    int failed = ferror(stdout);
    if (fflush(stdout) != 0 || failed)
        return vcap_command_fail("cannot write to standard output: %s", strerror(errno));
    return status;
}
