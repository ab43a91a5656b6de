/*
 * Which process of this host is the one that a slot names by its number in some container's PID
 * namespace.
 */
#ifndef VRAMCAP_ENFORCER_CLI_HOST_PID_H
#define VRAMCAP_ENFORCER_CLI_HOST_PID_H

#include <sys/types.h>

#include "enforcer/ledger_read.h"

/*
 * pids: one per process of the snapshot; 0 = not derivable (gone, another user's /proc, or asked
 * from inside the container: only an ancestor PID namespace can know).
 */
void vcap_host_pids(const struct vcap_snapshot *snapshot, pid_t *pids);

/* The numbers of one process (its directory's name in /proc), that of this /proc's namespace first,
 * its own namespace's last.  Returns how many, at most room; 0: gone. */
int vcap_host_pid_levels(const char *pid_text, long pids[], int room);

#endif
