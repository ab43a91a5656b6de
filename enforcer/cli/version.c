/*
 * `vramcap version`.
 */
#include "enforcer/cli/command.h"
#include "enforcer/ledger_format.h"

static const struct vcap_option options[] = {{0}};

static int take(int option, const char *value, void *state)
{
    (void)option, (void)value, (void)state;
    return 0;
}

static int run(int argc, char **argv)
{
    int first;
    int status = vcap_command_parse(&vcap_command_version, argc, argv, take, NULL, &first);
    if (status >= 0)
        return status;
    if (first < argc)
        return vcap_command_fail("version: takes no operand, got '%s'", argv[first]);
    (void)printf("vramcap %s\nledger format %u\n", VRAMCAP_VERSION, VCAP_LF_VERSION);
    return VCAP_EXIT_DONE;
}

const struct vcap_command vcap_command_version = {
    .name = "version",
    .summary = "version of vramcap and of the ledger format",
    .operands = "",
    .options = options,
    .run = run,
};
