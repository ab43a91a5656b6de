/*
 * Computing the key that tells one container's ledger from another's in a shared /dev/shm.
 *
 * What must stay true: all processes of one container get one key, whatever their UID and whatever
 * cgroup below the container's they were moved to; no two containers get the same.  Where that is
 * in doubt the evidence is passed over and the next kind tried.  Reads /proc and the cgroup file
 * system under the roots it is given, writes nothing, logs nothing, keeps errno.
 */
#include "enforcer/ledger_path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "enforcer/kernel.h"

#define INITIAL_CGROUP_NAMESPACE                                                                   \
    UINT64_C(4026531835) /* PROC_CGROUP_INIT_INO, include/linux/proc_ns.h */
#define CONTAINER_ID_CHARS 64
#define ECS_TASK_ID_CHARS 32
#define CGROUP_TEXT_BYTES 8192 /* some 12 lines; a longer file is read so far */

/* ---- reading ---- */

/* The file's beginning as a string; its length, or -errno. */
static int read_text(const char *root, const char *name, char *text, size_t size)
{
    char path[512];
    size_t length = 0;
    int fd, rc = 0;

    text[0] = '\0';
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", root, name) >= sizeof(path))
        return -ENAMETOOLONG;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return -errno;
    while (length < size - 1) {
        ssize_t got = read(fd, text + length, size - 1 - length);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            rc = -errno;
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    close(fd);
    text[length] = '\0';
    return rc != 0 ? rc : (int)length;
}

/* The decimal number at text, which ends before the first byte that is no digit. */
static uint64_t read_number(const char *text)
{
    uint64_t value = 0;

    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (uint64_t)(*text - '0');
    return value;
}

/* The inode in a link such as "mnt:[4026531832]". */
static int namespace_inode(const char *proc, const char *name, uint64_t *inode)
{
    char path[512], text[64];
    const char *open_bracket;
    ssize_t length;

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", proc, name) >= sizeof(path))
        return -ENAMETOOLONG;
    length = readlink(path, text, sizeof(text) - 1);
    if (length < 0)
        return -errno;
    text[length] = '\0';
    open_bracket = strchr(text, '[');
    if (open_bracket == NULL || read_number(open_bracket + 1) == 0)
        return -EINVAL;
    *inode = read_number(open_bracket + 1);
    return 0;
}

/* FNV-1a, continued from hash. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}
#define HASH_START UINT64_C(0xcbf29ce484222325)

/* ---- kind 1: a cgroup namespace of its own ---- */

/*
 * The inode of the cgroup that the namespace has as its root: that of the mounted hierarchy's root.
 * With version 1 each controller has a hierarchy; the first of a fixed list, so that all processes
 * agree. Inode 1 is the host's own root, bound into the container: no evidence.
 */
static int cgroup_root_inode(const char *cgroup, uint64_t *inode)
{
    static const char *const hierarchies[] = {".",    "memory",  "devices",
                                              "pids", "freezer", "systemd"};

    for (size_t i = 0; i < sizeof(hierarchies) / sizeof(hierarchies[0]); i++) {
        char path[512];
        struct stat st;

        /* only a cgroup has this file: not the tmpfs that version 1's hierarchies are mounted on */
        if ((size_t)snprintf(path, sizeof(path), "%s/%s/cgroup.procs", cgroup, hierarchies[i]) >=
            sizeof(path))
            return -ENAMETOOLONG;
        if (vcap_sys_stat(path, &st, 0) != 0)
            continue;
        path[strlen(path) - strlen("cgroup.procs")] = '\0';
        if (vcap_sys_stat(path, &st, 0) != 0 || st.st_ino <= 1)
            continue;
        *inode = (uint64_t)st.st_ino;
        return 0;
    }
    return -ENOENT;
}

/* ---- kind 2: the path names the container ---- */

struct component {
    const char *at;
    size_t length;
};

static bool is(struct component c, const char *word)
{
    return c.length == strlen(word) && memcmp(c.at, word, c.length) == 0;
}

static bool begins(struct component c, const char *word)
{
    return c.length > strlen(word) && memcmp(c.at, word, strlen(word)) == 0;
}

static bool ends(struct component c, const char *word)
{
    size_t length = strlen(word);

    return c.length > length && memcmp(c.at + c.length - length, word, length) == 0;
}

static bool is_hex(const char *at, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!(at[i] >= '0' && at[i] <= '9') && !(at[i] >= 'a' && at[i] <= 'f'))
            return false;
    return true;
}

/* "<id>", "docker-<id>.scope", "libpod-<id>", "kubepods-podX.slice:cri-containerd:<id>" */
static bool has_container_id(struct component c)
{
    size_t before;

    if (ends(c, ".scope"))
        c.length -= strlen(".scope");
    if (c.length < CONTAINER_ID_CHARS)
        return false;
    before = c.length - CONTAINER_ID_CHARS;
    if (before > 0 && c.at[before - 1] != '-' && c.at[before - 1] != ':')
        return false;
    return is_hex(c.at + before, CONTAINER_ID_CHARS);
}

/* ".../<task>/<task>-<number>", the form of containers that ECS starts without Docker */
static bool is_ecs_container(struct component parent, struct component c)
{
    if (parent.length != ECS_TASK_ID_CHARS || !is_hex(parent.at, parent.length) ||
        c.length < parent.length + 2 || memcmp(c.at, parent.at, parent.length) != 0 ||
        c.at[parent.length] != '-')
        return false;
    for (size_t i = parent.length + 1; i < c.length; i++)
        if (c.at[i] < '0' || c.at[i] > '9')
            return false;
    return true;
}

static bool names_container(struct component parent, struct component c)
{
    return has_container_id(c) || is_ecs_container(parent, c) || is(parent, "lxc") ||
           is(parent, "lxc.payload") || begins(c, "lxc.payload.") ||
           (is(parent, "machine.slice") && begins(c, "machine-") && ends(c, ".scope")) ||
           (begins(c, "systemd-nspawn@") && ends(c, ".service"));
}

int vcap_key_container_part(const char *path, char *part, size_t size)
{
    struct component parent = {path, 0};
    const char *at = path;

    while (*at != '\0') {
        struct component c = {at, strcspn(at, "/")};

        if (c.length > 0 && names_container(parent, c)) {
            size_t length = (size_t)(c.at - path) + c.length;

            if (length >= size)
                return -ENAMETOOLONG;
            memcpy(part, path, length);
            part[length] = '\0';
            return 0;
        }
        if (c.length > 0)
            parent = c;
        at += c.length + (at[c.length] == '/');
    }
    return -ENOENT;
}

/*
 * The hash of the first path in /proc/self/cgroup that names a container.  In file order, which is
 * the same for all; a process that was moved out of its container in one hierarchy is found by the
 * next.
 */
static int container_path_hash(const char *proc, uint64_t *hash)
{
    char text[CGROUP_TEXT_BYTES], part[2048];
    int rc = read_text(proc, "self/cgroup", text, sizeof(text));
    char *next;

    if (rc < 0)
        return rc;
    for (char *line = text; *line != '\0'; line = next) {
        char *path = line; /* hierarchy:controllers:path */

        next = line + strcspn(line, "\n");
        if (*next != '\0')
            *next++ = '\0';
        for (int colons = 0; colons < 2 && path != NULL; colons++) {
            path = strchr(path, ':');
            path = path != NULL ? path + 1 : NULL;
        }
        if (path == NULL || vcap_key_container_part(path, part, sizeof(part)) != 0)
            continue;
        *hash = hash_text(HASH_START, part);
        return 0;
    }
    return -ENOENT;
}

/* ---- kind 3: the mount namespace ---- */

/* The id of the first mount that a process sees; 0 if that cannot be read. */
static uint64_t first_mount(const char *proc, const char *pid)
{
    char name[64], text[32];

    snprintf(name, sizeof(name), "%s/mountinfo", pid);
    return read_text(proc, name, text, sizeof(text)) > 0 ? read_number(text) : 0;
}

/*
 * Is the process in the mount namespace `inode`?  The link can be read for one's own processes
 * only, and all UIDs must come to one answer, so without it the mounts are asked: those of any
 * process may be read, and a mount (here the first) is in one namespace only.
 */
static bool in_mount_namespace(const char *proc, const char *pid, uint64_t inode)
{
    char name[64];
    uint64_t other = 0, mount;

    snprintf(name, sizeof(name), "%s/ns/mnt", pid);
    if (namespace_inode(proc, name, &other) == 0)
        return other == inode;
    mount = first_mount(proc, pid);
    return mount != 0 && mount == first_mount(proc, "self");
}

/* Field 22 of /proc/PID/stat. */
static int start_time(const char *proc, const char *pid, uint64_t *ticks)
{
    char name[64], text[512];
    const char *at;
    int rc;

    snprintf(name, sizeof(name), "%s/stat", pid);
    rc = read_text(proc, name, text, sizeof(text));
    if (rc < 0)
        return rc;
    /* the command is in parentheses and may hold anything, also ")": count fields after the last
     * one */
    at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL)
        return -EINVAL;
    *ticks = read_number(at + 1);
    return 0;
}

/*
 * The start of the oldest process in the mount namespace.  Process 1 is older than all that a PID
 * namespace shows, so where it is in, which is the common case, nobody else is looked at.
 */
static uint64_t oldest_start(const char *proc, uint64_t inode)
{
    uint64_t oldest = UINT64_MAX, ticks = 0;
    struct dirent *entry;
    DIR *all;

    if (in_mount_namespace(proc, "1", inode) && start_time(proc, "1", &ticks) == 0)
        return ticks;
    all = opendir(proc);
    while (all != NULL && (entry = readdir(all)) != NULL) {
        const char *pid = entry->d_name;

        if (strspn(pid, "0123456789") != strlen(pid) || strlen(pid) > 10 ||
            !in_mount_namespace(proc, pid, inode))
            continue;
        if (start_time(proc, pid, &ticks) == 0 && ticks < oldest)
            oldest = ticks;
    }
    if (all != NULL)
        closedir(all);
    return oldest;
}

static int mount_namespace_key(const char *proc, char key[VCAP_KEY_MAX])
{
    char boot_id[64], start[24];
    uint64_t inode = 0, hash;
    int rc = namespace_inode(proc, "self/ns/mnt", &inode);

    if (rc != 0)
        return rc;
    if (read_text(proc, "sys/kernel/random/boot_id", boot_id, sizeof(boot_id)) < 0)
        boot_id[0] = '\0'; /* hidden from the whole container then */
    snprintf(start, sizeof(start), "%llu", (unsigned long long)oldest_start(proc, inode));
    hash = hash_text(hash_text(HASH_START, boot_id), start);
    snprintf(key, VCAP_KEY_MAX, "mnt-%llu-%016llx", (unsigned long long)inode,
             (unsigned long long)hash);
    return 0;
}

int vcap_key_compute(const char *proc, const char *cgroup, char key[VCAP_KEY_MAX])
{
    int saved = errno, kind;
    uint64_t inode = 0, value = 0;

    if (namespace_inode(proc, "self/ns/cgroup", &inode) == 0 && inode != INITIAL_CGROUP_NAMESPACE &&
        cgroup_root_inode(cgroup, &value) == 0) {
        snprintf(key, VCAP_KEY_MAX, "cgroup-%llu", (unsigned long long)value);
        kind = VCAP_KEY_CGROUP_NAMESPACE;
    } else if (container_path_hash(proc, &value) == 0) {
        snprintf(key, VCAP_KEY_MAX, "path-%016llx", (unsigned long long)value);
        kind = VCAP_KEY_CGROUP_PATH;
    } else {
        kind = mount_namespace_key(proc, key);
        if (kind == 0)
            kind = VCAP_KEY_MOUNT_NAMESPACE;
    }
    errno = saved;
    return kind;
}
