/*
 * What a process has mapped, opened for reading through the kernel's own link to it: needs no name, and works
 * for a file that has none any more.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_MAPPING_H
#define VRAMCAP_ENFORCER_AGENT_MAPPING_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "enforcer/agent/process.h"

/*
 * A descriptor of the file (O_CLOEXEC, O_NONBLOCK), or -errno with one phrase in why: -EINVAL, it is nothing
 * that may be read (a file system that may not answer, a lease); -ETIMEDOUT, the process makes its readers
 * wait; -EBUSY, too many of its container do; -ENOENT, -ESRCH, -ESTALE, it is not mapped there any more.  *local: the file system is known to answer
 * at once; set when it was found so.  For a caller of probe.h.
 */
int vcap_mapping_open(pid_t pid, const struct vcap_mapping *mapping, bool *local, char *why,
                      size_t why_size);

#endif
