/*
 * From a name that may be hostile to a descriptor of a regular file, and words for what was found
 * instead.  Nothing here can block: the last component is first opened as O_PATH, which touches
 * neither a FIFO nor a device nor a lease, and only a regular file is then opened for reading,
 * without waiting.
 */
#include "enforcer/ledger_read_open.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "enforcer/ledger_read.h"

#ifndef SYS_openat2
#define SYS_openat2 __NR_openat2 /* glibc before 2.32 has no name for it */
#endif

int vcap_read_refuse(char *why, size_t why_size, int error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(why, why_size, format, arguments);
    va_end(arguments);
    return -error;
}

void vcap_read_copy_text(char *to, size_t to_size, const char *from, size_t from_size)
{
    size_t i = 0;
    for (; i + 1 < to_size && i < from_size && from[i]; i++)
        to[i] = (char)(from[i] >= 0x20 && from[i] < 0x7f ? from[i] : '?');
    to[i] = '\0';
}

const char *vcap_read_file_kind(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFLNK:
        return "a symbolic link";
    case S_IFDIR:
        return "a directory";
    case S_IFIFO:
        return "a FIFO";
    case S_IFSOCK:
        return "a socket";
    case S_IFCHR:
    case S_IFBLK:
        return "a device";
    default:
        return "not a regular file";
    }
}

/* The name as an O_PATH descriptor: no open of the thing itself, so nothing can block. */
static int open_as_path(int directory, const char *name, uint64_t resolve)
{
    struct open_how how = {
        .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
        .resolve = RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | resolve,
    };
    long fd = syscall(SYS_openat2, directory, name, &how, sizeof how);
    if (fd < 0 && (errno == ENOSYS || errno == EPERM) && !strchr(name, '/')) /* before 5.6; some
                                                                               seccomp filters */
        fd = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : (int)fd;
}

/* Opens what the O_PATH descriptor stands for, through /proc, or by name and compared where there
 * is none. */
static int reopen_for_reading(int path_fd, int directory, const char *name, const struct stat *is)
{
    const int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
    char link[64];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", path_fd);
    int fd = open(link, flags);
    if (fd >= 0)
        return fd;
    if (errno != ENOENT)
        return -errno;
    fd = openat(directory, name, flags | O_NOFOLLOW);
    if (fd < 0)
        return -errno;
    struct stat now;
    if (fstat(fd, &now) != 0 || now.st_dev != is->st_dev || now.st_ino != is->st_ino) {
        (void)close(fd);
        return -ESTALE;
    }
    return fd;
}

int vcap_read_open_at(int directory, const char *name, uint64_t resolve, char *why, size_t why_size)
{
    struct stat st;
    int result, path_fd = open_as_path(directory, name, resolve);
    if (path_fd == -EXDEV || path_fd == -ELOOP) /* what resolve forbids */
        return vcap_read_refuse(why, why_size, EINVAL, "%s",
                                path_fd == -ELOOP ? "a symbolic link"
                                                  : "on another file system than its directory");
    if (path_fd < 0)
        return vcap_read_refuse(why, why_size, -path_fd, "%s", strerror(-path_fd));
    if (fstat(path_fd, &st) != 0) {
        result = vcap_read_refuse(why, why_size, errno, "%s", strerror(errno));
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        result = vcap_read_refuse(why, why_size, EINVAL, "%s", vcap_read_file_kind(st.st_mode));
        goto out;
    }
    result = reopen_for_reading(path_fd, directory, name, &st);
    if (result == -EAGAIN) /* O_NONBLOCK on a file with a lease */
        result = vcap_read_refuse(why, why_size, EINVAL, "another process holds a lease on it");
    else if (result == -EINVAL) /* keep -EINVAL for "not to be trusted" */
        result = vcap_read_refuse(why, why_size, EIO, "%s", strerror(EINVAL));
    else if (result < 0)
        result = vcap_read_refuse(why, why_size, -result, "%s", strerror(-result));
out:
    (void)close(path_fd);
    return result;
}

int vcap_ledger_read_open(const char *path, char *why, size_t why_size)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    size_t parent_length = slash ? (size_t)(slash - path) : 0;
    char parent[VCAP_LEDGER_PATH_MAX * 8];
    if (parent_length >= sizeof parent)
        return vcap_read_refuse(why, why_size, ENAMETOOLONG, "%s", strerror(ENAMETOOLONG));
    if (!*name)
        return vcap_read_refuse(why, why_size, *path ? EINVAL : ENOENT, "%s",
                                *path ? "a directory" : "the path is empty");
    if (slash == path)
        (void)snprintf(parent, sizeof parent, "/");
    else if (slash)
        (void)snprintf(parent, sizeof parent, "%.*s", (int)parent_length, path);
    else
        (void)snprintf(parent, sizeof parent, ".");

    int directory = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return vcap_read_refuse(why, why_size, errno, "%s", strerror(errno));
    int fd = !strcmp(name, ".") || !strcmp(name, "..")
                 ? vcap_read_refuse(why, why_size, EINVAL, "a directory")
                 : vcap_read_open_at(directory, name, RESOLVE_BENEATH, why, why_size);
    (void)close(directory);
    return fd;
}

const char *vcap_snapshot_source_name(enum vcap_lf_source source)
{
    static const char *const names[] = {
        [VCAP_LF_SOURCE_NONE] = "none", [VCAP_LF_SOURCE_HOST] = "host",
        [VCAP_LF_SOURCE_ENV] = "env",   [VCAP_LF_SOURCE_MPS] = "mps",
        [VCAP_LF_SOURCE_CONF] = "conf", [VCAP_LF_SOURCE_DMEM] = "dmem",
        [VCAP_LF_SOURCE_NVML] = "nvml", [VCAP_LF_SOURCE_TOOLKIT] = "toolkit",
    };
    return (size_t)source < sizeof names / sizeof *names ? names[source] : NULL;
}

const char *vcap_snapshot_life_name(enum vcap_life life)
{
    return life == VCAP_LIFE_ALIVE ? "alive" : life == VCAP_LIFE_DEAD ? "gone" : "unknown";
}

const char *vcap_snapshot_event_name(uint32_t kind)
{
    static const char *const names[] = {
        [VCAP_LF_EVENT_ATTACH] = "attach",
        [VCAP_LF_EVENT_REFUSAL] = "refusal",
        [VCAP_LF_EVENT_AUDIT] = "audit",
        [VCAP_LF_EVENT_REAP] = "reap",
        [VCAP_LF_EVENT_DEVICE_FULL] = "device-full",
        [VCAP_LF_EVENT_GAP] = "gap",
        [VCAP_LF_EVENT_ANOMALY] = "anomaly",
        [VCAP_LF_EVENT_CONFIG] = "config",
        [VCAP_LF_EVENT_NO_SLOT] = "no-slot",
        [VCAP_LF_EVENT_OVER] = "over",
        [VCAP_LF_EVENT_NEAR] = "near",
        [VCAP_LF_EVENT_FAULT] = "fault",
        [VCAP_LF_EVENT_RESIZE] = "resize",
        [VCAP_LF_EVENT_SWITCH] = "switch",
        [VCAP_LF_EVENT_MPS] = "mps",
        [VCAP_LF_EVENT_COMPUTE] = "compute",
        [VCAP_LF_EVENT_RENEWED] = "renewed",
    };
    return kind < sizeof names / sizeof *names ? names[kind] : NULL;
}
