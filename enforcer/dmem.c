/*
 * Reading dmem.max.  What must stay true: a limit that may be meant for a GPU counts for it, so no
 * doubt ever raises a ceiling; a cgroup without the file has none of its own, and those above it are
 * asked all the same.  Allocates nothing, logs nothing, keeps errno.
 */
#include "enforcer/dmem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES 8192 /* of /proc/self/cgroup, and of one dmem.max: some hundred regions */
#define PATH_BYTES 1024

/* The whole file as a string.  -EFBIG: it is longer. */
static int read_whole(const char *path, char text[TEXT_BYTES])
{
    size_t length = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), rc = 0;

    if (fd < 0)
        return -errno;
    for (;;) {
        ssize_t got = read(fd, text + length, TEXT_BYTES - 1 - length);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            rc = -errno;
        if (got <= 0)
            break;
        length += (size_t)got;
        if (length == TEXT_BYTES - 1) {
            rc = -EFBIG;
            break;
        }
    }
    close(fd);
    text[length] = '\0';
    return rc;
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static char lower(char c)
{
    if (c >= 'A' && c <= 'Z')
        c = (char)(c - 'A' + 'a');
    return c;
}

/* "dddd:bb:dd.f" or "dddddddd:bb:dd.f" at text: the length without the function, 0 if none is there. */
static size_t pci_length(const char *text)
{
    size_t domain = 0;

    while (domain < 9 && is_hex(text[domain]))
        domain++;
    if (domain != 4 && domain != 8)
        return 0;
    text += domain;
    if (text[0] != ':' || !is_hex(text[1]) || !is_hex(text[2]) || text[3] != ':' ||
        !is_hex(text[4]) || !is_hex(text[5]) || text[6] != '.' || !is_hex(text[7]))
        return 0;
    return domain + 6;
}

/* Two addresses, domains of different width; the function number tells no cards apart. */
static bool same_pci(const char *a, size_t a_length, const char *b, size_t b_length)
{
    while (a_length > b_length && *a == '0') {
        a++;
        a_length--;
    }
    while (b_length > a_length && *b == '0') {
        b++;
        b_length--;
    }
    if (a_length != b_length)
        return false;
    for (size_t i = 0; i < a_length; i++)
        if (lower(a[i]) != lower(b[i]))
            return false;
    return true;
}

static bool mentions_nvidia(const char *name)
{
    for (; *name != '\0'; name++) {
        size_t i = 0;

        while (i < 6 && lower(name[i]) == "nvidia"[i])
            i++;
        if (i == 6)
            return true;
    }
    return false;
}

static bool region_counts(const char *name, const char *pci)
{
    size_t wanted = pci == NULL ? 0 : pci_length(pci);

    for (const char *at = name; *at != '\0'; at++) {
        size_t length = at == name || !is_hex(at[-1]) ? pci_length(at) : 0;

        if (length == 0)
            continue;
        return wanted == 0 ? mentions_nvidia(name) : same_pci(at, length, pci, wanted);
    }
    return mentions_nvidia(name);
}

/* Decimal bytes or "max"; more than 64 bits is as good as no limit. */
static int parse_value(const char *text, uint64_t *bytes)
{
    uint64_t value = 0;

    if (strcmp(text, "max") == 0) {
        *bytes = UINT64_MAX;
        return 0;
    }
    if (*text == '\0')
        return -EINVAL;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return -EINVAL;
        if (__builtin_mul_overflow(value, UINT64_C(10), &value) ||
            __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value)) {
            *bytes = UINT64_MAX;
            return 0;
        }
    }
    *bytes = value;
    return 0;
}

/* Lowers *bytes to what the lines say for this GPU. */
static int apply(char *text, const char *pci, uint64_t *bytes)
{
    char *line, *rest = text;

    while ((line = strsep(&rest, "\n")) != NULL) {
        size_t end = strlen(line);
        char *value;
        uint64_t limit;

        while (end > 0 && (line[end - 1] == ' ' || line[end - 1] == '\t' || line[end - 1] == '\r'))
            line[--end] = '\0';
        value = strrchr(line, ' ');
        if (value == NULL) {
            if (end != 0 && region_counts(line, pci))
                return -EINVAL;
            continue;
        }
        *value = '\0';
        if (!region_counts(line, pci))
            continue;
        if (parse_value(value + 1, &limit) != 0)
            return -EINVAL;
        *bytes = limit < *bytes ? limit : *bytes;
    }
    return 0;
}

/* The path of this process's cgroup of version 2, within text; "" if it has none. */
static const char *own_cgroup(char *text)
{
    char *line, *rest = text;

    while ((line = strsep(&rest, "\n")) != NULL)
        if (strncmp(line, "0::/", 4) == 0)
            return line + 3;
    return "";
}

int vcap_dmem_limit(const char *proc, const char *root, const char *pci, uint64_t *bytes)
{
    char path[PATH_BYTES], text[TEXT_BYTES];
    int saved = errno, rc, at, root_length = (int)strlen(root);
    uint64_t lowest = UINT64_MAX;

    if ((size_t)snprintf(path, sizeof(path), "%s/self/cgroup", proc) >= sizeof(path)) {
        rc = -ENAMETOOLONG;
        goto out;
    }
    rc = read_whole(path, text);
    if (rc == -ENOENT)
        text[0] = '\0';
    else if (rc != 0)
        goto out;
    at = snprintf(path, sizeof(path) - sizeof("/dmem.max"), "%s%s", root, own_cgroup(text));
    if (at < 0 || (size_t)at >= sizeof(path) - sizeof("/dmem.max")) {
        rc = -ENAMETOOLONG;
        goto out;
    }
    /* from this cgroup up to the root of what is mounted; a path that leads out of the mount, as one
     * outside this cgroup namespace does ("/../x"), ends at names that do not exist */
    for (;;) {
        while (at > root_length && path[at - 1] == '/')
            at--;
        memcpy(path + at, "/dmem.max", sizeof("/dmem.max"));
        rc = read_whole(path, text);
        if (rc == 0)
            rc = apply(text, pci, &lowest);
        else if (rc == -ENOENT || rc == -ENOTDIR)
            rc = 0;
        if (rc != 0)
            goto out;
        path[at] = '\0';
        if (at <= root_length)
            break;
        while (at > root_length && path[at - 1] != '/')
            at--;
    }
    *bytes = lowest;
out:
    errno = saved;
    return rc;
}
