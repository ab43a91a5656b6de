/*
 * Addresses are numbers: an agent that must ask a name server where to listen is one that does not
 * start when it is needed.
 */
#include "enforcer/agent/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "enforcer/ledger_read_open.h"

#define BACKLOG 64

static int parse_unix(const char *path, struct sockaddr_storage *address, socklen_t *length,
                      char *why, size_t why_size)
{
    struct sockaddr_un *un = (struct sockaddr_un *)address;
    if (path[0] != '/')
        return vcap_read_refuse(why, why_size, EINVAL, "a Unix socket wants an absolute path");
    if (strlen(path) >= sizeof un->sun_path)
        return vcap_read_refuse(why, why_size, EINVAL, "the path is longer than %zu bytes",
                                sizeof un->sun_path - 1);
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, path, strlen(path) + 1);
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1);
    return 0;
}

int vcap_listen_parse(const char *place, struct sockaddr_storage *address, socklen_t *length,
                      char *why, size_t why_size)
{
    char host[64];
    const char *colon = strrchr(place, ':');
    char *end;
    memset(address, 0, sizeof *address);
    if (!strncmp(place, "unix:", 5))
        return parse_unix(place + 5, address, length, why, why_size);
    if (!colon || colon[1] < '0' || colon[1] > '9')
        return vcap_read_refuse(why, why_size, EINVAL, "no port behind a ':'");
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (*end || port > 65535)
        return vcap_read_refuse(why, why_size, EINVAL, "no such port");
    size_t n = (size_t)(colon - place);
    bool brackets = n >= 2 && place[0] == '[' && place[n - 1] == ']';
    if (brackets)
        place++, n -= 2;
    if (n == 0 || n >= sizeof host)
        return vcap_read_refuse(why, why_size, EINVAL,
                                "no address in front of the ':' (0.0.0.0 or [::] for all)");
    memcpy(host, place, n);
    host[n] = '\0';
    struct sockaddr_in *four = (struct sockaddr_in *)address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
    if (!brackets && inet_pton(AF_INET, host, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        *length = sizeof *four;
        return 0;
    }
    if (brackets && inet_pton(AF_INET6, host, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((uint16_t)port);
        *length = sizeof *six;
        return 0;
    }
    return vcap_read_refuse(why, why_size, EINVAL,
                            "neither an IPv4 address nor an IPv6 address in brackets");
}

/* A socket's name that nobody answers to any more. */
static bool is_stale(const struct sockaddr_storage *address, socklen_t length)
{
    struct stat st;
    const char *path = ((const struct sockaddr_un *)address)->sun_path;
    if (lstat(path, &st) != 0 || !S_ISSOCK(st.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool stale = fd >= 0 && connect(fd, (const struct sockaddr *)address, length) != 0 &&
                 errno == ECONNREFUSED;
    if (fd >= 0)
        (void)close(fd);
    return stale;
}

int vcap_listen_open(const char *place, char *why, size_t why_size)
{
    struct sockaddr_storage address = {0};
    socklen_t length = 0;
    const int on = 1;
    int error = vcap_listen_parse(place, &address, &length, why, why_size);
    if (error)
        return error;
    const bool local = address.ss_family == AF_UNIX;
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return vcap_read_refuse(why, why_size, errno, "%s", strerror(errno));
    if (!local)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address.ss_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (local && is_stale(&address, length))
        (void)unlink(((const struct sockaddr_un *)&address)->sun_path);
    /* before it has a name (the name gets these rights less the umask), so that nobody else comes in */
    if ((local && fchmod(fd, 0660) != 0) ||
        bind(fd, (const struct sockaddr *)&address, length) != 0 ||
        (local && chmod(((const struct sockaddr_un *)&address)->sun_path, 0660) != 0) ||
        listen(fd, BACKLOG) != 0) {
        error = vcap_read_refuse(why, why_size, errno, "%s", strerror(errno));
        (void)close(fd);
        return error;
    }
    return fd;
}

void vcap_listen_remove(const char *place)
{
    if (!strncmp(place, "unix:", 5))
        (void)unlink(place + 5);
}
