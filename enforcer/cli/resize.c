/*
 * `vramcap resize`: changes the host's words in a ledger, whoever lives in it.
 */
#include "enforcer/cli/command.h"
#include "enforcer/cli/host_order.h"
#include "enforcer/cli/host_record.h"

enum {
    OPTION_MEMORY,
    OPTION_NEAR,
    OPTION_COMPUTE,
    OPTION_CONTEXT,
    OPTION_AUDIT,
    OPTION_PASS_THROUGH
};

static const struct vcap_option options[] = {
    [OPTION_MEMORY] = {"memory", 'm', "MIB", false,
                       "the new ceiling: 4096 for every GPU, or GPU-<uuid>=4096,..."},
    [OPTION_NEAR] = {"near", 0, "PERCENT", false,
                     "an event when so much of a ceiling is held; 0: never"},
    [OPTION_COMPUTE] = {"compute", 0, "PERCENT", false,
                        "the compute ceiling of processes that start; 0: none"},
    [OPTION_CONTEXT] =
        {"context-mib", 0, "MIB", false,
         "the least that a context is charged by processes that start; auto: no least"},
    [OPTION_AUDIT] = {"audit", 0, "on|off", false, "let everything through, recorded; or enforce"},
    [OPTION_PASS_THROUGH] = {"pass-through", 0, "on|off", false,
                             "let everything through, booked but not recorded; or not"},
    {0},
};

struct wish {
    struct vcap_host_order order;
    struct vcap_entries memory;
    bool any;
};

static int take(int option, const char *value, void *state)
{
    struct wish *wish = state;
    wish->any = true;
    switch (option) {
    case OPTION_MEMORY:
        return vcap_order_memory("resize", value, &wish->memory, &wish->order);
    case OPTION_NEAR:
        return vcap_order_percent("resize", "near", value, &wish->order.near_percent);
    case OPTION_COMPUTE:
        return vcap_order_percent("resize", "compute", value, &wish->order.compute_percent);
    case OPTION_CONTEXT:
        return vcap_order_context("resize", value, &wish->order);
    case OPTION_AUDIT:
        return vcap_order_switch("resize", "audit", value, &wish->order.audit);
    default:
        return vcap_order_switch("resize", "pass-through", value, &wish->order.pass_through);
    }
}

static int run(int argc, char **argv)
{
    static struct wish wish = {.order = VCAP_HOST_ORDER_NONE};
    char why[256] = "";
    int first;
    int status = vcap_command_parse(&vcap_command_resize, argc, argv, take, &wish, &first);
    if (status >= 0)
        return status;
    const char *path = vcap_order_path("resize", argc, argv, first);
    if (!path)
        return VCAP_EXIT_FAILED;
    if (!wish.any)
        return vcap_command_fail("resize: nothing to change; see: vramcap help resize");
    int error = vcap_host_resize(path, &wish.order, why, sizeof why);
    if (!error)
        (void)vcap_host_record_keep(path, &wish.order);
    return vcap_order_result("resize", path, error, why);
}

const struct vcap_command vcap_command_resize = {
    .name = "resize",
    .summary = "change the ceilings of a ledger of `vramcap create`, also in use",
    .operands = "FILE",
    .details =
        "Holds for the next charge of every process.  Below what is held nobody is ended: nothing\n"
        "more is granted until it fits, and the GPU is shown as OVER.",
    .options = options,
    .run = run,
};
