/*
 * Making a ledger, and making one anew in place.  Invariants:
 *   - a ledger has its name only when it is complete, its space allocated and its mode set;
 *   - nothing is ever renamed over another file;
 *   - made anew, a place that somebody still remembers is never taken for a new one: generations go on.
 * Must not: decide whether a file may be made anew; log.
 */
#include "enforcer/ledger_make.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"
#include "enforcer/ledger_reap.h"

static uint64_t align_64(uint64_t value)
{
    return (value + 63) & ~UINT64_C(63);
}

static int fill_header(struct vcap_lf_header *h, const struct vcap_ledger_size *size,
                       uint32_t flags, const char *key, const char *container)
{
    uint64_t at = sizeof(*h);

    memset(h, 0, sizeof(*h));
    memcpy(h->magic, VCAP_LF_MAGIC, sizeof(h->magic));
    h->version = VCAP_LF_VERSION;
    h->oldest_reader = VCAP_LF_OLDEST_READER;
    h->byte_order = VCAP_LF_BYTE_ORDER;
    h->header_size = sizeof(*h);
    h->gpu_count = size != NULL && size->gpus != 0 ? size->gpus : VCAP_LF_GPUS_DEFAULT;
    h->slot_count = size != NULL && size->slots != 0 ? size->slots : VCAP_LF_SLOTS_DEFAULT;
    h->event_count = size != NULL && size->events != 0 ? size->events : VCAP_LF_EVENTS_DEFAULT;
    if (h->gpu_count > VCAP_LF_GPUS_MAX || h->slot_count > VCAP_LF_SLOTS_MAX ||
        h->event_count > VCAP_LF_EVENTS_MAX)
        return -EINVAL;
    h->gpu_offset = (uint32_t)at;
    h->gpu_stride = sizeof(struct vcap_lf_gpu);
    at = align_64(at + (uint64_t)h->gpu_count * h->gpu_stride);
    h->slot_offset = (uint32_t)at;
    h->slot_stride = sizeof(struct vcap_lf_slot);
    at = align_64(at + (uint64_t)h->slot_count * h->slot_stride);
    h->cell_offset = (uint32_t)at;
    h->cell_stride = sizeof(struct vcap_lf_cell);
    h->cell_count = h->slot_count * h->gpu_count;
    at = align_64(at + (uint64_t)h->cell_count * h->cell_stride);
    h->export_offset = (uint32_t)at;
    h->export_stride = sizeof(struct vcap_lf_export);
    h->export_count = VCAP_LF_EXPORTS;
    at += (uint64_t)h->export_count * h->export_stride;
    h->event_offset = (uint32_t)at;
    h->event_stride = sizeof(struct vcap_lf_event);
    at += (uint64_t)h->event_count * h->event_stride;
    h->file_size = (at + 4095) & ~UINT64_C(4095);
    h->flags = flags;
    h->created_ns = vcap_clock_ns(CLOCK_REALTIME);
    h->event_next = 1;
    h->near_percent = VCAP_LF_NEAR_DEFAULT;
    h->context_bytes = UINT64_MAX;
    if (key != NULL && strlen(key) < sizeof(h->key))
        memcpy(h->key, key, strlen(key));
    if (container != NULL && strlen(container) < sizeof(h->container))
        memcpy(h->container, container, strlen(container));
    snprintf(h->creator, sizeof(h->creator), "vramcap %s", VRAMCAP_VERSION);
    return 0;
}

/* A file without a name (or, where the file system has none, with one that nobody else uses). */
static int open_nameless(const char *path, char *temporary, size_t temporary_size)
{
    char folder[VCAP_LEDGER_PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    int fd;

    if (length >= sizeof(folder))
        return -ENAMETOOLONG;
    memcpy(folder, path, length);
    memcpy(folder + length, length == 0 ? "." : "", length == 0 ? 2 : 1);
    temporary[0] = 0;
    fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd >= 0 ? fd : -errno;
    if (snprintf(temporary, temporary_size, "%s.%d.%llx", path, (int)getpid(),
                 (unsigned long long)vcap_clock_ns(CLOCK_MONOTONIC)) >= (int)temporary_size)
        return -ENAMETOOLONG;
    fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd >= 0 ? fd : -errno;
}

static int give_name(int fd, const char *temporary, const char *path)
{
    char link_path[48];

    if (temporary[0] != 0)
        return linkat(AT_FDCWD, temporary, AT_FDCWD, path, 0) == 0 ? 0 : -errno;
    snprintf(link_path, sizeof(link_path), "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, link_path, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0)
        return 0;
    if (errno != ENOENT && errno != ENOTDIR)
        return -errno;
    /* no /proc here; needs CAP_DAC_READ_SEARCH */
    return linkat(fd, "", AT_FDCWD, path, AT_EMPTY_PATH) == 0 ? 0 : -errno;
}

static int create(const char *path, const struct vcap_ledger_size *size, uint32_t flags,
                  const char *key, const char *container)
{
    char temporary[VCAP_LEDGER_PATH_MAX + 64];
    struct vcap_lf_header header;
    struct rlimit most;
    int fd, rc = fill_header(&header, size, flags, key, container);

    if (rc != 0)
        return rc;
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < header.file_size)
        return -EFBIG; /* the kernel would say so with SIGXFSZ */
    fd = open_nameless(path, temporary, sizeof(temporary));
    if (fd < 0)
        return fd;
    /* real blocks, so that a full tmpfs says ENOSPC here and never SIGBUS later */
    do
        rc = -posix_fallocate(fd, 0, (off_t)header.file_size);
    while (rc == -EINTR);
    if (rc == 0 && fchmod(fd, 0666) != 0)
        rc = -errno;
    if (rc == 0 && pwrite(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header))
        rc = errno != 0 ? -errno : -EIO;
    if (rc == 0)
        rc = give_name(fd, temporary, path);
    if (temporary[0] != 0)
        unlink(temporary);
    close(fd);
    return rc;
}

int vcap_ledger_create(const char *path, const struct vcap_ledger_size *size, uint32_t flags,
                       const char *key, const char *container)
{
    int saved = errno;
    int rc = create(path, size, flags, key, container);

    errno = saved;
    return rc;
}

bool vcap_ledger_anybody_lives(const unsigned char *base, const struct vcap_lf_header *h, int fd,
                               uint64_t pidns)
{
    for (uint32_t s = 0; s < h->slot_count; s++) {
        struct vcap_lf_slot slot;

        memcpy(&slot, base + h->slot_offset + (size_t)s * h->slot_stride, sizeof(slot));
        if (vcap_lf_state_status(slot.state) == VCAP_LF_LIVE &&
            vcap_slot_life(&slot, s, fd, pidns) != VCAP_LIFE_DEAD)
            return true;
    }
    return false;
}

static void renew_gpu(struct vcap_lf_gpu *gpu, bool keep_ceilings)
{
    struct vcap_lf_gpu kept = {.claim = gpu->claim,
                               .flags = gpu->flags,
                               .index = gpu->index,
                               .ceiling = gpu->ceiling,
                               .card_bytes = gpu->card_bytes};

    memcpy(kept.uuid, gpu->uuid, sizeof(kept.uuid));
    if (!keep_ceilings || vcap_lf_ceiling_source(gpu->ceiling) != VCAP_LF_SOURCE_HOST)
        memset(&kept, 0, sizeof(kept));
    memcpy(gpu, &kept, sizeof(*gpu));
}

void vcap_ledger_renew_in_place(unsigned char *base, struct vcap_lf_header *h, bool keep_ceilings)
{
    for (uint32_t g = 0; g < h->gpu_count; g++)
        renew_gpu((struct vcap_lf_gpu *)(void *)(base + h->gpu_offset + (size_t)g * h->gpu_stride),
                  keep_ceilings);
    for (uint32_t s = 0; s < h->slot_count; s++) {
        struct vcap_lf_slot *slot =
            (struct vcap_lf_slot *)(void *)(base + h->slot_offset + (size_t)s * h->slot_stride);
        uint64_t generation = vcap_lf_state_generation(slot->state);

        memset(slot, 0, sizeof(*slot));
        __atomic_store_n(&slot->state, vcap_lf_state(generation, VCAP_LF_KIND_NONE, VCAP_LF_FREE),
                         __ATOMIC_SEQ_CST);
    }
    memset(base + h->cell_offset, 0, (size_t)(h->file_size - h->cell_offset));
    __atomic_store_n(&h->event_next, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&h->anomalies, 0, __ATOMIC_SEQ_CST);
    h->created_ns = vcap_clock_ns(CLOCK_REALTIME);
}
