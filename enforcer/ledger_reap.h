/*
 * Who is alive, and giving back what the dead held.  A reap is a release of everything in the dead
 * one's name; any number of processes may do it at once, be killed in the middle, and be followed
 * by others.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_REAP_H
#define VRAMCAP_ENFORCER_LEDGER_REAP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "enforcer/ledger.h"

enum vcap_life { VCAP_LIFE_ALIVE, VCAP_LIFE_DEAD, VCAP_LIFE_UNKNOWN };

/*
 * Judges a slot from its identity and, for kind LOCK, a descriptor (read-only will do) of the
 * ledger. my_pidns: inode of the caller's PID namespace, 0 = unknown.  Unknown counts as alive
 * everywhere. Shared with the readers (dump, agent): changes nothing.
 */
enum vcap_life vcap_slot_life(const struct vcap_lf_slot *slot, uint32_t number, int fd,
                              uint64_t my_pidns);

/* A descriptor of the ledger's own file (device and inode compared), or -errno (-ESTALE: replaced).
 */
int vcap_ledger_reopen(const struct vcap_ledger *l, int flags);

/* Reaps every slot whose owner is gone.  Returns how many were emptied by this call. */
uint32_t vcap_ledger_reap_all(struct vcap_ledger *l);

/* The same, at most every 10 ms in this process: for views, which must stay free of system calls.
 */
void vcap_ledger_reap_sometimes(struct vcap_ledger *l);

/* Inode of this process's PID namespace; 0 if /proc does not say. */
uint64_t vcap_pidns_inode(void);

/* The same of its time namespace, which shifts the start times that it reads; 0 also where there is no
 * such thing (before Linux 5.6). */
uint64_t vcap_timens_inode(void);

/* Field 22 of /proc/PID/stat, in the caller's time namespace; 0 if it cannot be read. */
uint64_t vcap_start_time(pid_t pid);

#endif
