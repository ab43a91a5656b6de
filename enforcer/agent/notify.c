/*
 * One datagram, never waited for.  The socket's name may be a path or, with '@' in front, abstract.
 */
#include "enforcer/agent/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int vcap_notify(const char *assignments)
{
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (!name || (name[0] != '/' && name[0] != '@') || !name[1])
        return 0;
    size_t length = strlen(name);
    if (length >= sizeof to.sun_path)
        return -ENAMETOOLONG;
    memcpy(to.sun_path, name, length);
    if (name[0] == '@')
        to.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    ssize_t sent = sendto(fd, assignments, strlen(assignments), MSG_NOSIGNAL | MSG_DONTWAIT,
                          (const struct sockaddr *)&to,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
    int error = sent < 0 ? -errno : 0;
    (void)close(fd);
    return error;
}

static uint64_t number(const char *text)
{
    char *end;
    if (!text || *text < '0' || *text > '9')
        return 0;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    return errno || *end ? 0 : value;
}

uint64_t vcap_notify_watchdog_ms(void)
{
    const char *pid = getenv("WATCHDOG_PID");
    if (!getenv("NOTIFY_SOCKET") || (pid && number(pid) != (uint64_t)getpid()))
        return 0;
    return number(getenv("WATCHDOG_USEC")) / 2000;
}
