/*
 * The two faces of a snapshot.
 */
#ifndef VRAMCAP_ENFORCER_CLI_DUMP_H
#define VRAMCAP_ENFORCER_CLI_DUMP_H

#include <stdbool.h>
#include <stdio.h>

#include "enforcer/ledger_read.h"

/* "enforce", "audit" or "pass-through". */
const char *vcap_dump_mode(const struct vcap_snapshot *snapshot,
                           const struct vcap_snapshot_process *process);

/* Both return 0, or -ENOMEM. */
int vcap_dump_table(const struct vcap_snapshot *snapshot, const char *path, FILE *to, bool colours);
int vcap_dump_json(const struct vcap_snapshot *snapshot, FILE *to, bool one_line);

#endif
