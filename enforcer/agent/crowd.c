/*
 * From a PID namespace outwards, parent by parent (ioctl_ns(2)): a container can make namespaces below its own as
 * it likes.  Needs no lock of the process's memory map, so that it can be asked of one that keeps that.
 */
#include "enforcer/agent/crowd.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "enforcer/agent/proc_file.h"
#include "enforcer/ledger_reap.h"

#define A_USER (UINT64_C(1) << 63) /* inodes of namespaces have 32 bits */
#define LEVELS_MAX 40              /* MAX_PID_NS_LEVEL is 32 */

static uint64_t inode_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* The real one: whom /proc/PID belongs to, the process can change. */
static uint64_t user_of(pid_t pid)
{
    char text[4096];
    const char *line =
        vcap_proc_read(pid, "status", text, sizeof text) > 0 ? strstr(text, "\nUid:\t") : NULL;
    return line ? A_USER | strtoul(line + strlen("\nUid:\t"), NULL, 10) : 0;
}

uint64_t vcap_crowd_of(pid_t pid)
{
    const uint64_t own = vcap_pidns_inode();
    char path[64];
    uint64_t outermost = 0;
    bool here = false;
    (void)snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (int level = 0; fd >= 0 && !here && level < LEVELS_MAX; level++) {
        uint64_t inode = inode_of(fd);
        here = inode == own;
        if (!here)
            outermost = inode;
        int parent = here ? -1 : ioctl(fd, NS_GET_PARENT);
        (void)close(fd);
        fd = parent;
    }
    if (fd >= 0)
        (void)close(fd);
    return outermost == 0 && here ? user_of(pid) : outermost;
}
