/*
 * The list, and how each of it is made.
 */
#include "tests/cli/hostile_files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#define FOREIGN_ID 4711

static int kept[16]; /* descriptors that have to stay open */
static size_t kept_count;

static int keep(int fd)
{
    if (fd < 0 || kept_count == sizeof kept / sizeof *kept)
        return -1;
    kept[kept_count++] = fd;
    return 0;
}

void hostile_end(void)
{
    while (kept_count > 0)
        (void)close(kept[--kept_count]);
}

void hostile_good(struct image *m)
{
    image_init(m);
    image_gpu(m, 0, 4096, VCAP_LF_SOURCE_ENV);
    image_process(m, 1, 0, 1000, "serve");
    image_process(m, 2, 0, 100, "x");
    m->exports[1].owner = m->exports[1].writer = vcap_lf_owner(1, 2);
    m->gpus[0].peak_bytes = HOSTILE_PEAK_MIB * IMAGE_MIB;
    m->gpus[0].refusals = 9;
    m->gpus[0].refused_bytes = 900;
    (void)image_event(m, VCAP_LF_EVENT_REFUSAL, "cuMemAlloc_v2");
}

static int put_good(const char *path)
{
    static struct image m;
    hostile_good(&m);
    return image_write(&m, sizeof m, path);
}

/* ---- what is no regular file ---- */

static int make_fifo(const char *path)
{
    return mkfifo(path, 0600);
}

static int make_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%.100s", path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0)
        return -1;
    return keep(fd);
}

/* The agent takes DIR/NAME/ledger for NAME's: that is a directory too. */
static int make_directory(const char *path)
{
    char inside[300];
    (void)snprintf(inside, sizeof inside, "%s/ledger", path);
    return mkdir(path, 0755) != 0 ? -1 : mkdir(inside, 0755);
}

static int make_node(const char *path, mode_t kind, dev_t device)
{
    if (mknod(path, kind | 0600, device) == 0)
        return 0;
    return errno == EPERM ? 1 : -1;
}

static int make_character_device(const char *path)
{
    return make_node(path, S_IFCHR, makedev(1, 5)); /* /dev/zero: reading would never end */
}

static int make_block_device(const char *path)
{
    return make_node(path, S_IFBLK, makedev(7, 250)); /* a loop device that nobody has */
}

/* ---- links ---- */

/* To a good ledger in the same directory, under a name that is no container's. */
static int make_link(const char *path)
{
    char target[300];
    const char *slash = strrchr(path, '/');
    (void)snprintf(target, sizeof target, "%.*s/.good", (int)(slash - path), path);
    return put_good(target) != 0 ? -1 : symlink(target, path);
}

static int make_link_to_device(const char *path)
{
    return symlink("/dev/zero", path);
}

static int make_magic_link(const char *path)
{
    return symlink("/proc/self/fd/0", path);
}

static int make_looping_link(const char *path)
{
    return symlink(strrchr(path, '/') + 1, path);
}

static int make_dangling_link(const char *path)
{
    return symlink("/nowhere/at/all", path);
}

static int make_hard_link(const char *path)
{
    char target[300];
    const char *slash = strrchr(path, '/');
    (void)snprintf(target, sizeof target, "%.*s/.other", (int)(slash - path), path);
    return put_good(target) != 0 ? -1 : link(target, path);
}

/* ---- lengths ---- */

static int put_long(const char *path, off_t size)
{
    return put_good(path) != 0 ? -1 : truncate(path, size);
}

static int make_empty(const char *path)
{
    return put_long(path, 0);
}

static int make_one_byte(const char *path)
{
    return put_long(path, 1);
}

static int make_header_alone(const char *path)
{
    return put_long(path, (off_t)sizeof(struct vcap_lf_header));
}

static int make_short(const char *path)
{
    return put_long(path, (off_t)sizeof(struct image) - 1);
}

static int make_long(const char *path)
{
    return put_long(path, (off_t)sizeof(struct image) + 1);
}

static int make_huge(const char *path)
{
    return put_long(path, INT64_C(1) << 40);
}

static int make_text(const char *path)
{
    static const char line[] = "root:x:0:0:root:/root:/bin/sh\n";
    static char text[sizeof(struct image)];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = line[i % (sizeof line - 1)];
    return image_write(text, sizeof text, path);
}

/* ---- rights, leases, locks ---- */

static int make_read_only(const char *path)
{
    return put_good(path) != 0 ? -1 : chmod(path, 0444);
}

static int make_foreign(const char *path)
{
    if (put_good(path) != 0)
        return -1;
    if (chown(path, FOREIGN_ID, FOREIGN_ID) == 0)
        return 0;
    return errno == EPERM ? 1 : -1;
}

static int make_leased(const char *path)
{
    if (put_good(path) != 0)
        return -1;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    (void)signal(SIGIO, SIG_IGN); /* what the holder is sent when somebody opens the file */
    if (fd >= 0 && fcntl(fd, F_SETLEASE, F_WRLCK) != 0) {
        (void)close(fd);
        return 1;
    }
    return keep(fd);
}

/* Every other byte: one lock, cut from behind, which the kernel does without searching. */
static int make_locked(const char *path)
{
    if (put_good(path) != 0)
        return -1;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = HOSTILE_LOCKS * 2};
    bool failed = fcntl(fd, F_OFD_SETLK, &lock) != 0;
    lock.l_type = F_UNLCK;
    lock.l_len = 1;
    for (lock.l_start = HOSTILE_LOCKS * 2 - 1; lock.l_start > 0; lock.l_start -= 2)
        failed = failed || fcntl(fd, F_OFD_SETLK, &lock) != 0;
    return keep(fd) != 0 || failed ? -1 : 0;
}

/* A stranger has the bytes of all slots: they read as alive. */
static int make_slots_locked(const char *path)
{
    if (put_good(path) != 0)
        return -1;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct flock all = {.l_type = F_WRLCK,
                        .l_whence = SEEK_SET,
                        .l_start = VCAP_LF_LOCK_SLOT,
                        .l_len = VCAP_LF_SLOTS_MAX};
    return keep(fd) != 0 || fcntl(fd, F_OFD_SETLK, &all) != 0 ? -1 : 0;
}

/* ---- contents ---- */

static void change_random(struct image *m)
{
    uint64_t seed = 20261201;
    for (size_t i = sizeof m->header; i < sizeof *m; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        ((unsigned char *)m)[i] = (unsigned char)(seed >> 56);
    }
}

static void change_ones(struct image *m)
{
    memset((char *)m + sizeof m->header, 0xff, sizeof *m - sizeof m->header);
}

static void change_all_ones(struct image *m)
{
    memset(m, 0xff, sizeof *m);
}

static void change_strings(struct image *m)
{
    memset(m->header.container, '"', 3);
    memset(m->slots[1].command, 0xff, sizeof m->slots[1].command);
    memcpy(m->slots[2].command, "a\033[2J\n\\\"", 8);
    memset(m->events[1].name, 0x80, sizeof m->events[1].name);
}

static void change_endless_name(struct image *m)
{
    memset(m->header.container, 'c', sizeof m->header.container);
}

static void change_two_rows(struct image *m)
{
    m->gpus[1] = m->gpus[0];
    m->gpus[1].claim++;
    m->gpus[1].total = 0;
}

/* Its claimer died before it wrote the UUID, which nobody can help: that row is not there yet. */
static void change_unnamed_row(struct image *m)
{
    m->gpus[1].claim = 7;
}

static void change_counters(struct image *m)
{
    m->gpus[0].refusals = m->gpus[0].refused_bytes = UINT64_MAX;
    m->gpus[0].index = UINT32_MAX;
    m->header.event_next = UINT64_MAX;
    m->header.anomalies = UINT64_MAX;
}

/* Each changes one thing of a good image, called m. */
#define CHANGES(ROW)                                                                               \
    ROW(foreign_magic, "not a vramcap ledger", memcpy(m->header.magic, "HAMiREGN", 8))             \
    ROW(newer_version, "version", m->header.version = m->header.oldest_reader = 99)                \
    ROW(version_zero, "version", m->header.version = 0)                                            \
    ROW(byte_order, "byte order", m->header.byte_order = 0x04030201)                               \
    ROW(header_size, "", m->header.header_size = UINT32_MAX)                                       \
    ROW(file_size, "", m->header.file_size = UINT64_MAX)                                           \
    ROW(gpus_too_many, "", m->header.gpu_count = UINT32_MAX)                                       \
    ROW(slots_too_many, "slots", m->header.slot_count = UINT32_MAX)                                \
    ROW(cells_too_few, "", m->header.cell_count = 1)                                               \
    ROW(events_too_many, "", m->header.event_count = 0x80000000)                                   \
    ROW(exports_too_many, "", m->header.export_count = 0x7fffffff)                                 \
    ROW(gpus_outside, "", m->header.gpu_offset = 0xfffffff8)                                       \
    ROW(slots_outside, "", m->header.slot_offset = 0x80000000)                                     \
    ROW(cells_outside, "outside", m->header.cell_offset = UINT32_MAX - 63)                         \
    ROW(events_outside, "", m->header.event_offset = 0xfffffff8)                                   \
    ROW(gpu_stride_none, "", m->header.gpu_stride = 0)                                             \
    ROW(slot_stride_huge, "", m->header.slot_stride = 0xfffffff8)                                  \
    ROW(event_stride_odd, "", m->header.event_stride = 7)                                          \
    ROW(ceiling_source, "source 99", m->gpus[0].ceiling = vcap_lf_ceiling(5, 0) | 99)              \
    ROW(ceiling_unset, "source 0", m->gpus[0].ceiling = vcap_lf_ceiling(5, 0))                     \
    ROW(ceiling_impossible, "impossible ceiling",                                                  \
        m->gpus[0].ceiling = vcap_lf_ceiling(VCAP_LF_UNITS_MAX + 1, 2))                            \
    ROW(total_slot, "slot 8 of 8", m->gpus[0].total = vcap_lf_total(5, IMAGE_SLOTS, 1))            \
    ROW(total_operation, "operation number", m->gpus[0].total = vcap_lf_total(5, 1, 0))            \
    ROW(peak, "impossible peak", m->gpus[0].peak_bytes = UINT64_MAX)                               \
    ROW(over, "over the ceiling", m->gpus[0].over_bytes = UINT64_MAX)                              \
    ROW(slot_status, "unknown status", m->slots[3].state = 3)                                      \
    ROW(slot_kind, "liveness kind", m->slots[3].state = vcap_lf_state(1, 0, VCAP_LF_LIVE))         \
    ROW(slot_kind_unknown, "liveness kind", m->slots[3].state = 7 << 8)                            \
    ROW(slot_pid, "impossible pid", m->slots[3].state = vcap_lf_state(1, 1, VCAP_LF_LIVE))         \
    ROW(charge, "impossible charge", m->cells[2][0].charged = UINT64_MAX)                          \
    ROW(charge_operation, "operation number", m->cells[2][0].charged = vcap_lf_charged(5, 0))      \
    ROW(intent, "impossible intent", m->cells[2][0].intent = vcap_lf_intent(INT64_MAX >> 21, 1))   \
    ROW(ack, "operation number", m->cells[2][0].ack = UINT64_MAX)                                  \
    ROW(process_peak, "impossible peak", m->cells[2][0].peak_bytes = UINT64_MAX - 1)               \
    ROW(import, "impossible import", m->cells[2][0].imported_bytes = UINT64_MAX)                   \
    ROW(overhead, "impossible overhead", m->cells[2][0].overhead_bytes = UINT64_MAX - 1)           \
    ROW(export_size, "export 1: impossible size", m->exports[1].size = UINT64_MAX)

#define DEFINE(id, reason, change)                                                                 \
    static void change_##id(struct image *m)                                                       \
    {                                                                                              \
        (void)(change);                                                                            \
    }
CHANGES(DEFINE)

#define LIST(id, reason, change) {#id, reason, change_##id, NULL},

const struct hostile_file hostile_files[] = {
    {"fifo", "FIFO", NULL, make_fifo},
    {"socket", "socket", NULL, make_socket},
    {"directory", "directory", NULL, make_directory},
    {"character-device", "device", NULL, make_character_device},
    {"block-device", "device", NULL, make_block_device},
    {"link", "symbolic link", NULL, make_link},
    {"link-to-device", "symbolic link", NULL, make_link_to_device},
    {"magic-link", "symbolic link", NULL, make_magic_link},
    {"looping-link", "symbolic link", NULL, make_looping_link},
    {"dangling-link", "symbolic link", NULL, make_dangling_link},
    {"hard-link", NULL, NULL, make_hard_link},
    {"empty", "empty", NULL, make_empty},
    {"one-byte", "too few", NULL, make_one_byte},
    {"header-alone", "truncated", NULL, make_header_alone},
    {"short", "truncated", NULL, make_short},
    {"long", "truncated", NULL, make_long},
    {"huge", "too many", NULL, make_huge},
    {"text", "not a vramcap ledger", NULL, make_text},
    {"read-only", NULL, NULL, make_read_only},
    {"foreign", NULL, NULL, make_foreign},
    {"leased", "lease", NULL, make_leased},
    {"locked", NULL, NULL, make_locked},
    {"slots-locked", NULL, NULL, make_slots_locked},
    {"random", "", change_random, NULL},
    {"ones", "", change_ones, NULL},
    {"all-ones", "not a vramcap ledger", change_all_ones, NULL},
    {"strings", NULL, change_strings, NULL},
    {"endless-name", "does not end", change_endless_name, NULL},
    {"counters", NULL, change_counters, NULL},
    {"two-rows-of-one-device", "of one device", change_two_rows, NULL},
    {"unnamed-row", NULL, change_unnamed_row, NULL},
    CHANGES(LIST)};
const size_t hostile_file_count = sizeof hostile_files / sizeof *hostile_files;

int hostile_make(const struct hostile_file *file, const char *path)
{
    static struct image m;
    int status;
    if (file->make) {
        status = file->make(path);
    } else {
        hostile_good(&m);
        file->change(&m);
        status = image_write(&m, sizeof m, path);
    }
    if (status < 0)
        perror(path);
    if (status > 0)
        (void)unlink(path);
    return status;
}
