/*
 * `vramcap create`: a ledger of the host's, complete before it has its name.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "enforcer/cli/command.h"
#include "enforcer/cli/host_order.h"
#include "enforcer/cli/host_record.h"
#include "enforcer/cli/units.h"

enum {
    OPTION_MEMORY,
    OPTION_CONTAINER,
    OPTION_NEAR,
    OPTION_COMPUTE,
    OPTION_CONTEXT,
    OPTION_AUDIT,
    OPTION_SLOTS,
    OPTION_GPUS,
    OPTION_UID,
    OPTION_MODE
};

static const struct vcap_option options[] = {
    [OPTION_MEMORY] = {"memory", 'm', "MIB", false,
                       "the ceiling: 4096, 4Gi, or GPU-<uuid>=4096,MIG-<uuid>=2048"},
    [OPTION_CONTAINER] = {"container", 'c', "NAME", false, "whose it is, for people and metrics"},
    [OPTION_NEAR] = {"near", 0, "PERCENT", false,
                     "an event when so much of a ceiling is held (90); 0: never"},
    [OPTION_COMPUTE] = {"compute", 0, "PERCENT", false, "the compute ceiling; 0: none"},
    [OPTION_CONTEXT] = {"context-mib", 0, "MIB", false,
                        "the least that a context is charged; auto: no least"},
    [OPTION_AUDIT] = {"audit", 0, NULL, false,
                      "let everything through, record what would be refused"},
    [OPTION_SLOTS] = {"slots", 0, "N", false, "room for so many processes (256, at most 512)"},
    [OPTION_GPUS] = {"gpus", 0, "N", false, "room for so many GPUs (16, at most 32)"},
    [OPTION_UID] = {"uid", 0, "UID", false, "owner of the file"},
    [OPTION_MODE] = {"mode", 0, "OCTAL", false,
                     "its permissions (0666: processes of any user of the container write it)"},
    {0},
};

struct wish {
    struct vcap_host_order order;
    struct vcap_host_file file;
    struct vcap_entries memory;
};

static int take_number(const char *option, const char *value, uint64_t least, uint64_t most,
                       uint64_t *number)
{
    if (vcap_units_parse_number(value, number) != 0 || *number < least || *number > most)
        return vcap_command_fail("create: --%s wants a number from %llu to %llu, got '%s'", option,
                                 (unsigned long long)least, (unsigned long long)most, value);
    return 0;
}

static int take_mode(const char *value, mode_t *mode)
{
    char *end;
    unsigned long bits = strtoul(value, &end, 8);
    if (*value < '0' || *value > '7' || *end || bits == 0 || bits > 0777)
        return vcap_command_fail("create: --mode wants octal digits such as 0660, got '%s'", value);
    *mode = (mode_t)bits;
    return 0;
}

static int take(int option, const char *value, void *state)
{
    struct wish *wish = state;
    uint64_t number = 0;
    int status = 0;
    switch (option) {
    case OPTION_MEMORY:
        return vcap_order_memory("create", value, &wish->memory, &wish->order);
    case OPTION_CONTAINER:
        wish->file.container = value;
        break;
    case OPTION_NEAR:
        return vcap_order_percent("create", "near", value, &wish->order.near_percent);
    case OPTION_COMPUTE:
        return vcap_order_percent("create", "compute", value, &wish->order.compute_percent);
    case OPTION_CONTEXT:
        return vcap_order_context("create", value, &wish->order);
    case OPTION_AUDIT:
        wish->order.audit = 1;
        break;
    case OPTION_SLOTS:
        status = take_number("slots", value, 1, VCAP_LF_SLOTS_MAX, &number);
        wish->file.size.slots = (uint32_t)number;
        break;
    case OPTION_GPUS:
        status = take_number("gpus", value, 1, VCAP_LF_GPUS_MAX, &number);
        wish->file.size.gpus = (uint32_t)number;
        break;
    case OPTION_UID:
        status = take_number("uid", value, 0, UINT32_MAX - 1, &number);
        wish->file.uid = (uid_t)number;
        break;
    case OPTION_MODE:
        return take_mode(value, &wish->file.mode);
    }
    return status;
}

static int run(int argc, char **argv)
{
    static struct wish wish = {.order = VCAP_HOST_ORDER_NONE, .file = {.uid = (uid_t)-1}};
    char why[256] = "";
    int first;
    int status = vcap_command_parse(&vcap_command_create, argc, argv, take, &wish, &first);
    if (status >= 0)
        return status;
    const char *path = vcap_order_path("create", argc, argv, first);
    if (!path)
        return VCAP_EXIT_FAILED;
    if (!wish.order.memory)
        return vcap_command_fail("create: --memory says what the ceiling is; see: vramcap help "
                                 "create");
    int error = vcap_host_create(path, &wish.file, &wish.order, why, sizeof why);
    if (!error)
        (void)vcap_host_record_keep(path, NULL);
    const char *name = strrchr(path, '/');
    if (error == -ENOENT && name != NULL && name != path)
        return vcap_command_fail("create: there is no folder %.*s; make it first: mkdir -p %.*s",
                                 (int)(name - path), path, (int)(name - path), path);
    return vcap_order_result("create", path, error, why);
}

const struct vcap_command vcap_command_create = {
    .name = "create",
    .summary = "make a container's ledger on the host, with its ceilings",
    .operands = "FILE",
    .details = "To be mounted into the container at /run/vramcap/ledger, where it beats the "
               "container's own\n"
               "environment.  One size is for every GPU, now and later; a GPU that a list of UUIDs "
               "does not\n"
               "name has no ceiling from here.  A file that is there already is left alone.",
    .options = options,
    .run = run,
};
