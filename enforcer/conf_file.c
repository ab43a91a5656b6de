/*
 * Reading the host's configuration file.  Invariants:
 *   - no link is followed in the last place, nothing is waited for, no descriptor is left;
 *   - what a user of the container could have written, or could replace, is refused, not believed;
 *   - a text that is not wholly understood is refused as a whole.
 * No allocation, no output; errno is kept.
 */
#include "enforcer/conf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "enforcer/kernel.h"

#define OVERFLOW_UID 65534u /* how a user namespace shows an owner that it does not map */

static int refuse(char *why, size_t why_size, int error, const char *text)
{
    snprintf(why, why_size, "%s", text);
    return -error;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static bool is_known(const char *key)
{
    static const char *const keys[] = {
#define OPTION(name, kind, field, fallback, if_bad, values, help) #name,
#define FOREIGN(name, kind, field, fallback, if_bad, values, help)
#include "enforcer/config.def"
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* Takes blanks off both ends of [at, end) and ends it there; there is room for the NUL at end. */
static char *trim(char *at, char *end)
{
    while (at < end && is_blank(*at))
        at++;
    while (end > at && is_blank(end[-1]))
        end--;
    *end = '\0';
    return at;
}

static const char *parse_line(struct vcap_conf *conf, char *line, char *end)
{
    char *equals;

    line = trim(line, end);
    if (*line == '\0' || *line == '#')
        return NULL;
    end = line + strlen(line);
    equals = strchr(line, '=');
    if (equals == NULL)
        return "it is not KEY=VALUE";
    line = trim(line, equals);
    if (!is_known(line))
        return "no such key (docs/options.md has them)";
    if (vcap_conf_get(line, conf) != NULL)
        return "the key is there twice";
    if (conf->count == VCAP_CONF_KEYS_MAX)
        return "too many lines";
    conf->pair[conf->count].key = line;
    conf->pair[conf->count++].value = trim(equals + 1, end);
    return NULL;
}

int vcap_conf_parse(struct vcap_conf *conf, size_t length, char *why, size_t why_size)
{
    char *line = conf->text, *end = conf->text + length;

    conf->count = 0;
    if (memchr(line, '\0', length) != NULL)
        return refuse(why, why_size, EINVAL, "a NUL byte in it");
    for (unsigned number = 1; line < end; number++) {
        char *newline = memchr(line, '\n', (size_t)(end - line));
        char *stop = newline != NULL ? newline : end;
        const char *problem = parse_line(conf, line, stop);

        if (problem != NULL) {
            snprintf(why, why_size, "line %u: %s", number, problem);
            conf->count = 0;
            return -EINVAL;
        }
        line = stop + 1;
    }
    return 0;
}

/* The initial user namespace maps all 4294967295 UIDs in one line; every other maps fewer. */
static bool in_user_namespace(void)
{
    char text[64];
    ssize_t got;
    int fd = open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    got = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0 && strstr(text, " 4294967295\n") == NULL;
}

static bool is_the_hosts(const struct stat *st)
{
    return (st->st_mode & (S_IWGRP | S_IWOTH)) == 0 &&
           (st->st_uid == 0 || (st->st_uid == OVERFLOW_UID && in_user_namespace()));
}

static int read_all(int fd, struct vcap_conf *conf, size_t *length, char *why, size_t why_size)
{
    size_t have = 0;

    while (have < sizeof(conf->text)) {
        ssize_t got = read(fd, conf->text + have, sizeof(conf->text) - have);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return refuse(why, why_size, errno, strerror(errno));
        if (got == 0)
            break;
        have += (size_t)got;
    }
    if (have > VCAP_CONF_BYTES_MAX)
        return refuse(why, why_size, EINVAL, "more than 8192 bytes");
    conf->text[have] = '\0';
    *length = have;
    return 0;
}

static int check_folder(const char *path, char *why, size_t why_size)
{
    char folder[512];
    const char *slash = strrchr(path, '/');
    struct stat st;
    int n = snprintf(folder, sizeof(folder), "%.*s", slash == NULL ? 0 : (int)(slash - path), path);
    int rc;

    if (n <= 0 || n >= (int)sizeof(folder))
        return refuse(why, why_size, EINVAL, "not an absolute path");
    rc = vcap_sys_stat(folder, &st, AT_SYMLINK_NOFOLLOW);
    if (rc != 0)
        return refuse(why, why_size, -rc, strerror(-rc));
    if (!S_ISDIR(st.st_mode) || !is_the_hosts(&st))
        return refuse(why, why_size, EPERM,
                      "its folder must be a real one, owned by root and writable by root alone");
    return 0;
}

static int read_file(const char *path, struct vcap_conf *conf, char *why, size_t why_size)
{
    size_t length = 0;
    struct stat st = {0};
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    int rc = fd < 0 ? -errno : vcap_sys_fstat(fd, &st);

    if (rc == -ENOENT || rc == -ENOTDIR)
        return 0;
    if (rc == -ELOOP)
        return refuse(why, why_size, EPERM, "a symbolic link");
    if (rc != 0) {
        rc = refuse(why, why_size, -rc, strerror(-rc));
        goto out;
    }
    if (!S_ISREG(st.st_mode))
        rc = refuse(why, why_size, EPERM, "not a regular file");
    else if (!is_the_hosts(&st))
        rc = refuse(why, why_size, EPERM, "it must be owned by root and writable by root alone");
    if (rc == 0)
        rc = check_folder(path, why, why_size);
    if (rc == 0)
        rc = read_all(fd, conf, &length, why, why_size);
    if (rc == 0)
        rc = vcap_conf_parse(conf, length, why, why_size);
out:
    if (fd >= 0)
        close(fd);
    return rc != 0 ? rc : 1;
}

int vcap_conf_read(const char *path, struct vcap_conf *conf, char *why, size_t why_size)
{
    int saved = errno, rc;

    conf->count = 0;
    rc = read_file(path, conf, why, why_size);
    errno = saved;
    return rc;
}

const char *vcap_conf_get(const char *key, void *arg)
{
    const struct vcap_conf *conf = arg;

    for (uint32_t i = 0; i < conf->count; i++)
        if (strcmp(key, conf->pair[i].key) == 0)
            return conf->pair[i].value;
    return NULL;
}
