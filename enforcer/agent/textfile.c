/*
 * The temporary name begins with a dot and does not end in ".prom", so that no collector reads it.
 */
#include "enforcer/agent/textfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int write_all(int fd, const char *text, size_t length)
{
    while (length > 0) {
        ssize_t n = write(fd, text, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        text += n;
        length -= (size_t)n;
    }
    return 0;
}

int vcap_textfile_write(const char *path, const char *text, size_t length)
{
    char temporary[4096];
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path + 1) : 0;
    int n = snprintf(temporary, sizeof temporary, "%.*s.%s.%d.tmp", folder, path, path + folder,
                     (int)getpid());
    if (n < 0 || (size_t)n >= sizeof temporary)
        return -ENAMETOOLONG;
    (void)unlink(temporary); /* of an agent that was killed and had this pid */
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    int error = fchmod(fd, 0644) != 0 ? -errno : write_all(fd, text, length);
    if (close(fd) != 0 && !error)
        error = -errno;
    if (!error && rename(temporary, path) != 0)
        error = -errno;
    if (error)
        (void)unlink(temporary);
    return error;
}
