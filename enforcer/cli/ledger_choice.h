/*
 * Which ledger a reading sub-command shows when nobody says.
 */
#ifndef VRAMCAP_ENFORCER_CLI_LEDGER_CHOICE_H
#define VRAMCAP_ENFORCER_CLI_LEDGER_CHOICE_H

#include <stdbool.h>

#include "enforcer/ledger_read.h"

/*
 * The operand if there is one; else VRAMCAP_LEDGER, the host's, the container's in /dev/shm, the
 * one run ledger that somebody lives in.  0 and the path (malloc'd), or an exit status after it has
 * said why.
 */
int vcap_ledger_choose(const char *command, int argc, char **argv, int first, char **path);

/* Reads it.  0, or an exit status after it has said why: an untrusted ledger is a finding. */
int vcap_ledger_show(const char *path, struct vcap_snapshot *snapshot);

bool vcap_path_exists(const char *path);

#endif
