/*
 * Single files of /proc/PID, read in bounded pieces; process.h puts them together.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_PROC_FILE_H
#define VRAMCAP_ENFORCER_AGENT_PROC_FILE_H

#include <stddef.h>
#include <sys/types.h>

#include "enforcer/agent/process.h"

/* The beginning of /proc/PID/NAME as a string; its length, or -errno. */
ssize_t vcap_proc_read(pid_t pid, const char *name, char *text, size_t size);

/* Fills library, driver and ledgers from /proc/PID/maps, as far as that goes in budget_ns; false: may not be
 * read. */
bool vcap_proc_maps(pid_t pid, uint64_t budget_ns, struct vcap_process *process);

/* The same from one line after the other, for tests: state is all zero at first; vcap_maps_end gives
 * the answer. */
struct vcap_maps {
    bool library, driver;
    uint32_t anchor_count, shared_count;
    struct {
        dev_t device;
        ino_t inode;
    } anchors[8];
    struct {
        struct vcap_mapping mapping;
        bool named;
    } shared[32];
};
void vcap_maps_line(struct vcap_maps *maps, const char *line);
void vcap_maps_end(const struct vcap_maps *maps, struct vcap_process *process);

/* "tmpfs", ... of the device in the text of a mountinfo file; NULL-safe copy, "" if it is not there. */
void vcap_mountinfo_type(const char *text, dev_t device, char *type, size_t size);

/*
 * Is the file `relative` (below some directory of the file system `device`) mounted where a container
 * looks for the host's ledger: itself at /run/vramcap/ledger, or its directory at /run/vramcap?  By the
 * text of a mountinfo file alone.
 */
bool vcap_mountinfo_binds(const char *text, dev_t device, const char *relative);

/* May reading from a file system of this type wait for a process or for a network?  What is not
 * known to be local counts as such. */
bool vcap_filesystem_may_wait(const char *type);

#endif
