/*
 * The host's processes that have to do with GPUs or ledgers: who has libvramcap, a driver library or
 * a ledger mapped, in which container and namespaces, under which numbers.  From /proc, which may be
 * that of the agent's own PID namespace only.
 *
 * Everything in /proc/PID was made by a process that may be hostile: file names with anything in
 * them, maps of any length, ends in the middle.  Reading another's maps needs CAP_SYS_PTRACE; without
 * it a process is simply not among those known.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_PROCESS_H
#define VRAMCAP_ENFORCER_AGENT_PROCESS_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "enforcer/agent/container_name.h"

#define VCAP_PROCESS_LEDGERS 4

/* A ledger that a process has mapped: recognised by its anchor (one page without access, shared) or
 * by its name. */
struct vcap_mapping {
    unsigned long begin, end; /* as /proc/PID/map_files names it */
    dev_t device;
    ino_t inode;
    char name[48]; /* the file's last component, printable; cut */
};

struct vcap_process {
    pid_t pid; /* in the agent's /proc */
    uint64_t start_time, size;
    pid_t pid_in_ns;       /* innermost of NSpid */
    uint64_t pidns, mntns; /* inodes; 0: may not be read */
    bool library;          /* libvramcap.so is mapped */
    bool driver;           /* a CUDA driver library or an NVIDIA device is */
    uint32_t ledger_count;
    struct vcap_mapping ledgers[VCAP_PROCESS_LEDGERS];
    struct vcap_container_name name;
    char command[16];
};

/* What the last look at a process without any of these showed: it need not be looked at again. */
struct vcap_process_seen {
    pid_t pid;
    uint64_t start_time, size;
};

struct vcap_processes {
    struct vcap_process *known; /* those with library, driver or ledger, by pid */
    size_t known_count, known_room;
    uint32_t *by_namespace; /* positions in known, by pidns and the number there */
    size_t by_namespace_count;
    uint64_t pass; /* how often all of /proc was gone through */
    size_t
        unanswered; /* in the last pass: could not be looked at, for they made their readers wait */
    /* the pass under way */
    DIR *proc;
    struct vcap_process *next;
    size_t next_count, next_room, next_unanswered;
    struct vcap_process_seen *seen, *seen_next;
    size_t seen_count, seen_room, seen_next_count, seen_next_room;
};

/* Goes on with the pass, or begins one, for at most budget_ns.  True: the pass is complete, `known`
 * is new. */
bool vcap_processes_scan(struct vcap_processes *p, uint64_t budget_ns);

/* The process of that number as of the last pass; NULL: not known. */
const struct vcap_process *vcap_processes_find(const struct vcap_processes *p, pid_t pid);

/* Looks at one process now, and waits for as long as it makes its readers wait.  What is not come to in its
 * memory map within maps_ns is not seen.  False: gone, or may not be looked at. */
bool vcap_process_look(pid_t pid, uint64_t maps_ns, struct vcap_process *process);

/* The same for one of many: 20 ms for its memory map, and waits for VCAP_PROBE_MS at most.  0, -ESRCH (gone, or may not), or -errno of probe.h. */
int vcap_process_look_safely(pid_t pid, struct vcap_process *process);

/* The process that another namespace calls pid_in_ns; start_time 0: not compared.  NULL: not known. */
const struct vcap_process *vcap_processes_in_namespace(const struct vcap_processes *p,
                                                       uint64_t pidns, pid_t pid_in_ns,
                                                       uint64_t start_time);

/*
 * Type of the file system with this device in a process's mount namespace, "" if it has none; and
 * whether reading from it can make the reader wait for somebody (FUSE, network).  0 or -errno.
 */
int vcap_process_filesystem(pid_t pid, dev_t device, char *type, size_t size, bool *may_wait);

/* The text of /proc/PID/mountinfo, to be freed; NULL: cannot be had. */
char *vcap_process_mounts(pid_t pid);

void vcap_processes_free(struct vcap_processes *p);

#endif
