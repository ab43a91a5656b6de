/*
 * `vramcap reset`: empties a ledger in which nobody lives.
 */
#include "enforcer/cli/command.h"
#include "enforcer/cli/host_order.h"

static const struct vcap_option options[] = {{0}};

static int take(int option, const char *value, void *state)
{
    (void)option;
    (void)value;
    (void)state;
    return 0;
}

static int run(int argc, char **argv)
{
    char why[256] = "";
    int first;
    int status = vcap_command_parse(&vcap_command_reset, argc, argv, take, NULL, &first);
    if (status >= 0)
        return status;
    const char *path = vcap_order_path("reset", argc, argv, first);
    if (!path)
        return VCAP_EXIT_FAILED;
    int error = vcap_host_reset(path, why, sizeof why);
    return vcap_order_result("reset", path, error, why);
}

const struct vcap_command vcap_command_reset = {
    .name = "reset",
    .summary = "empty a ledger that nobody lives in: charges, peaks, events",
    .operands = "FILE",
    .details = "The host's ceilings stay.  Status 1, and nothing is changed, while a process lives "
               "in it or\n"
               "may live in it.",
    .options = options,
    .run = run,
};
