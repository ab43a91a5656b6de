/*
 * Who answers together for processes that make their readers wait: a container.  What a process can choose for
 * itself (its name, its memory, namespaces and cgroups below its own) does not get it into another crowd.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_CROWD_H
#define VRAMCAP_ENFORCER_AGENT_CROWD_H

#include <stdint.h>
#include <sys/types.h>

/*
 * The outermost PID namespace of the process that is not the caller's own, which it cannot leave; of a process in
 * the caller's, its user.  0: gone, or may not be looked at.  Does not wait for the process.
 */
uint64_t vcap_crowd_of(pid_t pid);

#endif
