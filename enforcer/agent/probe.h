/*
 * Calls that may not come back: whatever needs a look into another process's memory map (/proc/PID/maps,
 * map_files) waits for its lock, and a process that is out for it can keep that lock for as long as it
 * likes.  Each such call is made by a thread of its own, which is left to itself when it takes too long.
 * For the one thread that has the agent's loop.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_PROBE_H
#define VRAMCAP_ENFORCER_AGENT_PROBE_H

#include <stddef.h>
#include <sys/types.h>

#define VCAP_PROBE_MS 250 /* so long is waited for one call */
#define VCAP_PROBE_HANGING                                                                         \
    32u                     /* calls that have not come back; then no process is asked any more */
#define VCAP_PROBE_SHARE 8u /* of these, of one crowd (crowd.h); then no process of it is asked */

/*
 * Runs work on a copy of job (size bytes) and copies it back.  What work returns, or: -ETIMEDOUT, it has
 * not come back, or an earlier one for this pid has not; -EBUSY, too many have not, of its crowd or of all; -ENOMEM, -EAGAIN.  Then job is
 * untouched, and undo (may be NULL) is called in the thread on what work makes of the copy after all.
 */
int vcap_probe(pid_t pid, int (*work)(void *job), void (*undo)(void *job), void *job, size_t size);

/* Ends the thread that waits for work; those that hang end with the process. */
void vcap_probe_end(void);

#endif
