/*
 * Opening what a process has mapped.  The link is looked up under the lock of the process's memory map, which it
 * can keep: by probe.h.  The inode was seen in maps; that it is a regular file on a file system that answers at
 * once is checked before it is opened.
 */
#include "enforcer/agent/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "enforcer/agent/probe.h"
#include "enforcer/ledger_read_open.h"

struct handle {
    char path[80];
    int fd;
};

static int open_handle(void *job)
{
    struct handle *h = job;
    h->fd = open(h->path, O_PATH | O_CLOEXEC);
    return h->fd < 0 ? -errno : 0;
}

static void close_handle(void *job)
{
    const struct handle *h = job;
    if (h->fd >= 0)
        (void)close(h->fd);
}

/* A descriptor of what a process has mapped there, which cannot be read; -errno. */
static int open_link(pid_t pid, const struct vcap_mapping *m)
{
    struct handle h = {.fd = -1};
    (void)snprintf(h.path, sizeof h.path, "/proc/%d/map_files/%lx-%lx", (int)pid, m->begin, m->end);
    int error = vcap_probe(pid, open_handle, close_handle, &h, sizeof h);
    return error ? error : h.fd;
}

int vcap_mapping_open(pid_t pid, const struct vcap_mapping *mapping, bool *local, char *why,
                      size_t why_size)
{
    char path[80], type[32] = "";
    struct stat st;
    bool may_wait = true;
    int error =
        *local ? 0 : vcap_process_filesystem(pid, mapping->device, type, sizeof type, &may_wait);
    if (error)
        return vcap_read_refuse(why, why_size, -error, "%s", strerror(-error));
    *local = *local || !may_wait;
    if (!*local)
        return vcap_read_refuse(why, why_size, EINVAL, "on a file system (%s) that may not answer",
                                *type ? type : "not mounted any more");
    int handle = open_link(pid, mapping);
    if (handle == -ETIMEDOUT)
        return vcap_read_refuse(why, why_size, ETIMEDOUT,
                                "process %d, which has it mapped, makes whoever looks into it wait",
                                (int)pid);
    if (handle == -EBUSY)
        return vcap_read_refuse(
            why, why_size, EBUSY,
            "process %d, which has it mapped, is not asked: too many processes of "
            "its container make their readers wait",
            (int)pid);
    if (handle < 0)
        return vcap_read_refuse(why, why_size, -handle, "%s", strerror(-handle));
    int fd = -ESTALE;
    if (fstat(handle, &st) != 0)
        fd = -errno;
    else if (S_ISREG(st.st_mode) && st.st_ino == mapping->inode) {
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", handle);
        fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
            fd = -errno;
    }
    (void)close(handle);
    if (fd == -EAGAIN)
        return vcap_read_refuse(why, why_size, EINVAL, "another process holds a lease on it");
    return fd < 0 ? vcap_read_refuse(why, why_size, -fd, "%s", strerror(-fd)) : fd;
}
