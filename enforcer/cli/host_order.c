/*
 * Values of the host's commands.  Every mistake is one line that names command, option, value and what
 * would be right.
 */
#include "enforcer/cli/host_order.h"

#include <errno.h>
#include <string.h>

#include "enforcer/cli/command.h"
#include "enforcer/cli/units.h"

int vcap_order_memory(const char *command, const char *value, struct vcap_entries *entries,
                      struct vcap_host_order *order)
{
    char why[256] = "";
    if (vcap_config_parse_entries(value, false, entries, why, sizeof why) != 0 ||
        vcap_host_check_memory(entries, why, sizeof why) != 0)
        return vcap_command_fail("%s: --memory '%s': %s", command, value, why);
    order->memory = entries;
    return 0;
}

int vcap_order_percent(const char *command, const char *option, const char *value, int *percent)
{
    uint64_t number;
    if (vcap_units_parse_number(value, &number) != 0 || number > 100)
        return vcap_command_fail("%s: --%s wants a number from 0 (off) to 100, got '%s'", command,
                                 option, value);
    *percent = (int)number;
    return 0;
}

int vcap_order_context(const char *command, const char *value, struct vcap_host_order *order)
{
    uint64_t bytes = UINT64_MAX;
    if (strcmp(value, "auto") != 0 && vcap_config_parse_size(value, strlen(value), &bytes) != 0)
        return vcap_command_fail("%s: --context-mib wants auto or a size such as 400, got '%s'",
                                 command, value);
    order->context_set = true;
    order->context_bytes = bytes;
    return 0;
}

int vcap_order_switch(const char *command, const char *option, const char *value, int *on)
{
    if (strcmp(value, "on") != 0 && strcmp(value, "off") != 0)
        return vcap_command_fail("%s: --%s wants on or off, got '%s'", command, option, value);
    *on = value[1] == 'n';
    return 0;
}

const char *vcap_order_path(const char *command, int argc, char **argv, int first)
{
    if (argc - first == 1)
        return argv[first];
    (void)vcap_command_fail(first < argc ? "%s: one ledger at a time; see: vramcap help %s"
                                         : "%s: which ledger? see: vramcap help %s",
                            command, command);
    return NULL;
}

int vcap_order_result(const char *command, const char *path, int error, const char *why)
{
    if (error == 0)
        return VCAP_EXIT_DONE;
    if (error == -EBUSY)
        return vcap_command_find("%s: ledger %s: %s", command, path, why);
    return vcap_command_fail("%s: ledger %s: %s", command, path, why);
}
