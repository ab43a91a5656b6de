/*
 * The options that `vramcap create` and `vramcap resize` share: parsing their values into an order of the
 * host (ledger_host.h).
 */
#ifndef VRAMCAP_ENFORCER_CLI_HOST_ORDER_H
#define VRAMCAP_ENFORCER_CLI_HOST_ORDER_H

#include "enforcer/ledger_host.h"

/* Each returns 0, or an exit status after it has said why; command is for the words. */
int vcap_order_memory(const char *command, const char *value, struct vcap_entries *entries,
                      struct vcap_host_order *order);
int vcap_order_percent(const char *command, const char *option, const char *value, int *percent);
int vcap_order_context(const char *command, const char *value, struct vcap_host_order *order);
int vcap_order_switch(const char *command, const char *option, const char *value, int *on);

/* The one operand of the host's commands; NULL after it has said why there is none. */
const char *vcap_order_path(const char *command, int argc, char **argv, int first);

/* What a call of ledger_host.h came to: an exit status, and its line if it is no success. */
int vcap_order_result(const char *command, const char *path, int error, const char *why);

#endif
