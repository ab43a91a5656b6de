/*
 * What can be learnt from one file of /proc/PID.  Lines are parsed by hand: a name in them may hold
 * anything, blanks included.  Amounts are bounded by this file, never by what a process says.
 */
#include "enforcer/agent/proc_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "enforcer/kernel.h"
#include "enforcer/ledger_read_open.h"

#define PIECE 65536u
#define MAPS_BYTES_MAX (UINT64_C(8) << 20)
#define MOUNTINFO_BYTES_MAX (1u << 20)
#define VAR_RUN_FILE "/var/run/vramcap/ledger"
#define VAR_RUN_FOLDER "/var/run/vramcap"

static int open_file(pid_t pid, const char *name)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    return fd < 0 ? -errno : fd;
}

static ssize_t read_some(int fd, char *to, size_t size)
{
    ssize_t n;
    do
        n = read(fd, to, size);
    while (n < 0 && errno == EINTR);
    return n;
}

ssize_t vcap_proc_read(pid_t pid, const char *name, char *text, size_t size)
{
    size_t length = 0;
    int fd = open_file(pid, name);
    if (fd < 0)
        return fd;
    while (length < size - 1) {
        ssize_t n = read_some(fd, text + length, size - 1 - length);
        if (n <= 0)
            break;
        length += (size_t)n;
    }
    (void)close(fd);
    text[length] = '\0';
    return (ssize_t)length;
}

/* ---- maps ---- */

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool ends(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);
    return n >= m && !strcmp(text + n - m, with);
}

/* The host's, those that the library makes by a key (ledger_path.h), and those of `vramcap run`. */
static bool named_like_a_ledger(const char *path)
{
    static const char *const names[] = {"vramcap-cgroup-", "vramcap-path-", "vramcap-mnt-",
                                        "vramcap-run-"};
    if (ends(path, "/run/vramcap/ledger"))
        return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (begins(path, "/dev/shm/") && begins(path + strlen("/dev/shm/"), names[i]))
            return true;
    return false;
}

static void note_shared(struct vcap_maps *m, const struct vcap_mapping *mapping, const char *perms,
                        const char *path)
{
    if (!memcmp(perms, "---s", 4)) {
        if (m->anchor_count < sizeof m->anchors / sizeof *m->anchors) {
            m->anchors[m->anchor_count].device = mapping->device;
            m->anchors[m->anchor_count++].inode = mapping->inode;
        }
    } else if (!memcmp(perms, "rw-s", 4) &&
               m->shared_count < sizeof m->shared / sizeof *m->shared) {
        m->shared[m->shared_count].mapping = *mapping;
        m->shared[m->shared_count++].named = named_like_a_ledger(path);
    }
}

/* begin-end perms offset major:minor inode   path */
void vcap_maps_line(struct vcap_maps *m, const char *line)
{
    struct vcap_mapping mapping;
    char *at;
    mapping.begin = strtoul(line, &at, 16);
    if (*at != '-')
        return;
    mapping.end = strtoul(at + 1, &at, 16);
    if (*at != ' ' || strlen(at) < 6)
        return;
    const char *perms = at + 1;
    uint64_t offset = strtoull(at + 6, &at, 16);
    unsigned long high = strtoul(at, &at, 16);
    if (*at != ':')
        return;
    unsigned long low = strtoul(at + 1, &at, 16);
    mapping.device = makedev((unsigned)high, (unsigned)low);
    mapping.inode = (ino_t)strtoull(at, &at, 10);
    while (*at == ' ')
        at++;
    if (*at != '/')
        return;
    const char *slash = strrchr(at, '/');
    if (begins(slash, "/libvramcap.so"))
        m->library = true;
    if (begins(slash, "/libcuda.so") || begins(at, "/dev/nvidia"))
        m->driver = true;
    if (perms[3] != 's' || offset != 0 || mapping.inode == 0)
        return;
    vcap_read_copy_text(mapping.name, sizeof mapping.name, slash + 1, strlen(slash + 1));
    note_shared(m, &mapping, perms, at);
}

void vcap_maps_end(const struct vcap_maps *m, struct vcap_process *p)
{
    p->library = m->library;
    p->driver = m->driver;
    p->ledger_count = 0;
    for (uint32_t i = 0; i < m->shared_count && p->ledger_count < VCAP_PROCESS_LEDGERS; i++) {
        const struct vcap_mapping *s = &m->shared[i].mapping;
        bool is = m->shared[i].named;
        for (uint32_t k = 0; k < m->anchor_count; k++)
            is = is || (m->anchors[k].device == s->device && m->anchors[k].inode == s->inode);
        for (uint32_t k = 0; k < p->ledger_count; k++)
            is = is && !(p->ledgers[k].device == s->device && p->ledgers[k].inode == s->inode);
        if (is)
            p->ledgers[p->ledger_count++] = *s;
    }
}

bool vcap_proc_maps(pid_t pid, uint64_t budget_ns, struct vcap_process *process)
{
    struct vcap_maps maps = {0};
    char *piece = malloc(PIECE + 1); /* several threads may be in here */
    const uint64_t end = vcap_clock_ns(CLOCK_MONOTONIC) + budget_ns;
    uint64_t all = 0;
    size_t kept = 0; /* the beginning of a line whose end is in the next piece */
    ssize_t n;
    int fd = piece ? open_file(pid, "maps") : -ENOMEM;
    if (fd < 0) {
        free(piece);
        return false;
    }
    while ((n = read_some(fd, piece + kept, PIECE - kept)) > 0) {
        size_t length = kept + (size_t)n;
        char *line = piece, *newline;
        piece[length] = '\0';
        while ((newline = memchr(line, '\n', (size_t)(piece + length - line)))) {
            *newline = '\0';
            vcap_maps_line(&maps, line);
            line = newline + 1;
        }
        kept = (size_t)(piece + length - line);
        if (kept == PIECE) /* no line of the kernel's is this long */
            kept = 0;
        memmove(piece, line, kept);
        all += (uint64_t)n;
        if (all > MAPS_BYTES_MAX || vcap_clock_ns(CLOCK_MONOTONIC) >= end)
            break;
    }
    (void)close(fd);
    free(piece);
    vcap_maps_end(&maps, process);
    return n >= 0;
}

/* ---- file systems ---- */

/* id parent major:minor root mount-point options [fields] - type source options */
struct mount {
    dev_t device;
    const char *root, *point, *type; /* in the text, ended by blanks */
};

/* Words do not hold blanks: the kernel writes those as \040. */
static bool parse_mount(const char *line, const char *end, struct mount *m)
{
    char *at;
    (void)strtoul(line, &at, 10);
    (void)strtoul(at, &at, 10);
    unsigned long high = strtoul(at, &at, 10);
    if (*at != ':')
        return false;
    unsigned long low = strtoul(at + 1, &at, 10);
    const char *dash = strstr(at, " - ");
    if (*at != ' ' || !dash || dash >= end)
        return false;
    m->device = makedev((unsigned)high, (unsigned)low);
    m->root = at + 1;
    m->point = m->root + strcspn(m->root, " \n");
    m->type = dash + 3;
    if (*m->point != ' ')
        return false;
    m->point++;
    return true;
}

static bool is_word(const char *at, const char *word)
{
    size_t n = strlen(word);
    return !strncmp(at, word, n) && at[n] == ' ';
}

void vcap_mountinfo_type(const char *text, dev_t device, char *type, size_t size)
{
    struct mount m;
    type[0] = '\0';
    for (const char *line = text; *line;) {
        const char *end = line + strcspn(line, "\n");
        if (parse_mount(line, end, &m) && m.device == device) {
            (void)snprintf(type, size, "%.*s", (int)strcspn(m.type, " \n"), m.type);
            return;
        }
        line = end + (*end == '\n');
    }
}

bool vcap_mountinfo_binds(const char *text, dev_t device, const char *relative)
{
    struct mount m;
    char wanted[512];
    for (const char *line = text; *line;) {
        const char *end = line + strcspn(line, "\n");
        bool file = false, folder = false;
        if (parse_mount(line, end, &m) && m.device == device) {
            file = is_word(m.point, "/run/vramcap/ledger") || is_word(m.point, VAR_RUN_FILE);
            folder = is_word(m.point, "/run/vramcap") || is_word(m.point, VAR_RUN_FOLDER);
        }
        if (file || folder) {
            size_t length = strcspn(m.root, " ");
            (void)snprintf(wanted, sizeof wanted, "%.*s%s", (int)(length < 400 ? length : 400),
                           m.root, folder ? "/ledger" : "");
            size_t n = strlen(wanted), k = strlen(relative);
            if (n > k && wanted[n - k - 1] == '/' && !strcmp(wanted + n - k, relative))
                return true;
        }
        line = end + (*end == '\n');
    }
    return false;
}

bool vcap_filesystem_may_wait(const char *type)
{
    static const char *const local[] = {"tmpfs", "ramfs", "devtmpfs", "ext2",
                                        "ext3",  "ext4",  "xfs",      "btrfs",
                                        "f2fs",  "zfs",   "bcachefs", "overlay"};
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if (!strcmp(type, local[i]))
            return false;
    return true;
}

int vcap_process_filesystem(pid_t pid, dev_t device, char *type, size_t size, bool *may_wait)
{
    char *text = malloc(MOUNTINFO_BYTES_MAX);
    if (!text)
        return -ENOMEM;
    ssize_t length = vcap_proc_read(pid, "mountinfo", text, MOUNTINFO_BYTES_MAX);
    if (length >= 0) {
        vcap_mountinfo_type(text, device, type, size);
        *may_wait = vcap_filesystem_may_wait(type);
    }
    free(text);
    return length < 0 ? (int)length : 0;
}

char *vcap_process_mounts(pid_t pid)
{
    char *text = malloc(MOUNTINFO_BYTES_MAX);
    if (text && vcap_proc_read(pid, "mountinfo", text, MOUNTINFO_BYTES_MAX) <= 0) {
        free(text);
        return NULL;
    }
    return text;
}
