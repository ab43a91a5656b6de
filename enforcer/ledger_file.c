/*
 * The file: making it, opening it, taking a slot in it.  Invariants:
 *   - a ledger has its name only when it is complete, its space allocated and its mode set;
 *   - nothing is ever renamed over it, and it is unlinked only when it is bad, under our own name, and
 *     nobody is joining or living in it;
 *   - while a process joins (opens, reads, takes a slot) it holds the init byte shared; making anew
 *     needs it exclusively.  So nobody is left with a slot in a file that has lost its name;
 *   - no descriptor outlives a call: the slot's lock is kept by a mapping of an open file description
 *     that fork and clone do not copy, and exec and death drop;
 *   - descriptors that carry a lock exist only under fork_mutex, which the atfork handlers hold, so no
 *     child inherits one.
 */
#include "enforcer/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"
#include "enforcer/ledger_check.h"
#include "enforcer/ledger_reap.h"
#include "enforcer/ledger_word.h"

#define ANCHOR_BYTES 4096u
#define JOIN_TRIES 200
#define CLAIM_PASSES 100
#define JOIN_PAUSE_NS 1000000

static pthread_mutex_t fork_mutex = PTHREAD_MUTEX_INITIALIZER;

void vcap_ledger_fork_lock(void)
{
    pthread_mutex_lock(&fork_mutex);
}

void vcap_ledger_fork_unlock(void)
{
    pthread_mutex_unlock(&fork_mutex);
}

void vcap_ledger_fork_child(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

    memcpy(&fork_mutex, &fresh, sizeof(fresh)); /* its holder is the parent's thread */
}

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

/* Takes slot s if it is free: 0, -EAGAIN (somebody's), -errno. */
static int take_slot(struct vcap_ledger *l, int join_fd, uint32_t s, enum vcap_lf_mode mode)
{
    struct vcap_lf_slot *slot = &l->slots[s];
    enum vcap_lf_kind kind = VCAP_LF_KIND_LOCK;
    uint64_t state = vcap_load(&slot->state);
    void *anchor = MAP_FAILED;
    int fd, rc;

    if (vcap_lf_state_status(state) != VCAP_LF_FREE)
        return -EAGAIN;
    fd = vcap_ledger_reopen(l, O_RDWR);
    if (fd < 0)
        return fd;
    anchor = mmap(NULL, ANCHOR_BYTES, PROT_NONE, MAP_SHARED, fd, 0);
    rc = anchor == MAP_FAILED || madvise(anchor, ANCHOR_BYTES, MADV_DONTFORK) != 0 ? -errno : 0;
    if (rc == 0)
        rc = vcap_sys_lock(fd, F_WRLCK, VCAP_LF_LOCK_SLOT + s);
    if (rc == 0 && vcap_load(&slot->state) != state)
        rc = -EAGAIN;
    if (rc != 0)
        goto out;
    close(fd);
    fd = -1;
    /* does the mapping keep the lock? overlayfs puts another file under it */
    if (vcap_sys_locked(join_fd, VCAP_LF_LOCK_SLOT + s) != 1) {
        kind = VCAP_LF_KIND_PID;
        munmap(anchor, ANCHOR_BYTES);
        anchor = MAP_FAILED;
        fd = vcap_ledger_reopen(
            l, O_RDWR); /* held until LIVE, so that two claimers never write one slot */
        rc = fd < 0 ? fd : vcap_sys_lock(fd, F_WRLCK, VCAP_LF_LOCK_SLOT + s);
        if (rc == 0 && vcap_load(&slot->state) != state)
            rc = -EAGAIN;
        if (rc == 0 && vcap_start_time(getpid()) == 0)
            rc = -ENOLCK; /* nothing would ever show that we are gone */
        if (rc != 0)
            goto out;
    }
    slot->pid = (uint32_t)getpid();
    slot->uid = (uint32_t)getuid();
    slot->pidns = l->pidns;
    slot->start_time = vcap_start_time(getpid());
    slot->claimed_ns = vcap_clock_ns(CLOCK_REALTIME);
    slot->refusals = slot->anomalies = slot->gaps = 0;
    slot->mode = (uint32_t)mode;
    slot->index_mask = 0;
    memset(slot->command, 0, sizeof(slot->command));
    {
        int comm = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
        ssize_t got = comm < 0 ? 0 : read(comm, slot->command, sizeof(slot->command) - 1);

        if (comm >= 0)
            close(comm);
        if (got > 0 && slot->command[got - 1] == '\n')
            slot->command[got - 1] = 0;
    }
    for (uint32_t gpu = 0; gpu < l->gpu_count; gpu++) {
        struct vcap_lf_cell *cell = vcap_ledger_cell(l, s, gpu);

        cell->peak_bytes = cell->imported_bytes = 0;
        cell->overhead_bytes = cell->limit_bytes = UINT64_MAX;
    }
    l->state = vcap_lf_state(vcap_lf_state_generation(state) + 1, kind, VCAP_LF_LIVE);
    if (!vcap_cas(&slot->state, state, l->state)) {
        rc = -EAGAIN;
        goto out;
    }
    for (uint32_t gpu = 0; gpu < l->gpu_count; gpu++) /* releases put off were for another place */
        __atomic_store_n(&l->local[gpu].deferred, 0, __ATOMIC_RELEASE);
    l->slot = (int32_t)s;
    __atomic_store_n(&l->mine, vcap_lf_state_generation(l->state) << 16 | (uint64_t)kind << 12 | s,
                     __ATOMIC_RELEASE);
    l->anchor = anchor == MAP_FAILED ? NULL : anchor;
    anchor = MAP_FAILED;
out:
    if (fd >= 0)
        close(fd);
    if (anchor != MAP_FAILED)
        munmap(anchor, ANCHOR_BYTES);
    return rc;
}

static bool every_slot_is_live(const struct vcap_ledger *l)
{
    for (uint32_t s = 0; s < l->slot_count; s++)
        if (vcap_lf_state_status(vcap_load(&l->slots[s].state)) != VCAP_LF_LIVE)
            return false;
    return true;
}

/*
 * Takes any free slot.  Others may take what we have just reaped, or reap what we were about to: only a
 * table in which every slot is still LIVE after a look for the dead is full.  join_fd holds the init byte
 * shared; the fork lock is held.
 */
static int claim(struct vcap_ledger *l, int join_fd, enum vcap_lf_mode mode)
{
    uint32_t start = (uint32_t)getpid() * 2654435761u;

    for (int pass = 0; pass < CLAIM_PASSES; pass++) {
        for (uint32_t k = 0; k < l->slot_count; k++) {
            int rc = take_slot(l, join_fd, (start + k) % l->slot_count, mode);

            if (rc == 0) {
                struct vcap_event event = {.kind = VCAP_LF_EVENT_ATTACH, .gpu = UINT32_MAX};

                event.name = l->slots[l->slot].command;
                vcap_ledger_event(l, &event);
                return 0;
            }
            if (rc != -EAGAIN)
                return rc;
        }
        vcap_ledger_reap_all(l);
        if (every_slot_is_live(l))
            break;
    }
    return -EUSERS;
}

static bool anybody_lives(const unsigned char *base, const struct vcap_lf_header *h, int fd,
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

/*
 * The file is stale (empty of life, ours to make): everything but the header back to zero, in place.
 * Generations go on, so that a place that somebody still remembers is never taken for a new one.
 */
static void renew_in_place(unsigned char *base, struct vcap_lf_header *h)
{
    memset(base + h->header_size, 0, h->slot_offset - h->header_size);
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

static void fill_geometry(struct vcap_ledger *l, const struct vcap_lf_header *h)
{
    l->gpus = (struct vcap_lf_gpu *)(void *)(l->base + h->gpu_offset);
    l->slots = (struct vcap_lf_slot *)(void *)(l->base + h->slot_offset);
    l->cells = l->base + h->cell_offset;
    l->exports = (struct vcap_lf_export *)(void *)(l->base + h->export_offset);
    l->export_count = h->export_count;
    l->events = (struct vcap_lf_event *)(void *)(l->base + h->event_offset);
    l->gpu_count = h->gpu_count;
    l->slot_count = h->slot_count;
    l->event_count = h->event_count;
    l->flags = h->flags;
    l->pidns = vcap_pidns_inode();
    l->slot = -1;
    __atomic_store_n(&l->mine, 0, __ATOMIC_RELEASE);
}

static void say(char *why, size_t why_size, const char *text)
{
    snprintf(why, why_size, "%s", text);
}

/*
 * One try at joining through fd, which holds the init byte shared (where the file system has
 * locks). -EAGAIN: try again, others are at it.  -ENOMSG: bad, but ours to replace.
 */
static int join(struct vcap_ledger *l, int fd, const char *key, uint32_t what,
                enum vcap_lf_mode mode, bool last_try, char *why, size_t why_size)
{
    struct vcap_lf_header header;
    struct stat st, named;
    uint64_t pidns;
    ssize_t got;
    int rc = vcap_sys_fstat(fd, &st);

    if (rc != 0)
        return rc;
    if (!S_ISREG(st.st_mode)) {
        say(why, why_size, "not a regular file");
        return -EINVAL;
    }
    if (vcap_sys_stat(l->path, &named, AT_SYMLINK_NOFOLLOW) != 0 || named.st_ino != st.st_ino ||
        named.st_dev != st.st_dev)
        return -EAGAIN;
    memset(&header, 0, sizeof(header));
    got = pread(fd, &header, sizeof(header), 0);
    if (got < 0)
        return -errno;
    rc = vcap_ledger_check_header(
        &header, got < (ssize_t)sizeof(header) ? (uint64_t)got : (uint64_t)st.st_size, 1, why,
        why_size);
    if (rc != 0)
        return (what & VCAP_OPEN_REPLACE) != 0 ? -ENOMSG : rc;
    if ((header.flags & VCAP_LF_HOST_MADE) == 0 && key != NULL && strcmp(header.key, key) != 0) {
        say(why, why_size, "it belongs to another container");
        return -EPERM;
    }
    l->size = (size_t)header.file_size;
    l->device = st.st_dev;
    l->inode = st.st_ino;
    l->base = mmap(NULL, l->size, what == VCAP_OPEN_VIEW ? PROT_READ : PROT_READ | PROT_WRITE,
                   MAP_SHARED, fd, 0);
    if (l->base == MAP_FAILED) {
        l->base = NULL;
        return -errno;
    }
    pidns = vcap_pidns_inode();
    if ((what & VCAP_OPEN_RENEW) != 0 && (header.flags & VCAP_LF_HOST_MADE) == 0 &&
        !anybody_lives(l->base, &header, fd, pidns)) {
        rc = vcap_sys_lock(fd, F_WRLCK, VCAP_LF_LOCK_INIT);
        if (rc == 0 && !anybody_lives(l->base, &header, fd, pidns))
            renew_in_place(l->base, vcap_ledger_header(l));
        if (rc == 0)
            rc = vcap_sys_lock(fd, F_RDLCK, VCAP_LF_LOCK_INIT);
        else if (last_try)
            rc = 0; /* others join it all the time: then it is in use, and believed */
        if (rc != 0) {
            vcap_ledger_close(l);
            return rc;
        }
    }
    fill_geometry(l, &header);
    rc = (what & VCAP_OPEN_CLAIM) != 0 ? claim(l, fd, mode) : 0;
    if (rc != 0) {
        if (rc == -EUSERS) {
            struct vcap_event event = {.kind = VCAP_LF_EVENT_NO_SLOT, .gpu = UINT32_MAX};

            vcap_ledger_event(l, &event);
            say(why, why_size, "every slot is taken by a living process");
        }
        vcap_ledger_close(l);
    }
    return rc;
}

/* A file under our own name that is no ledger of this version: away with it, unless somebody is in
 * it. */
static int discard(const char *path, int fd)
{
    struct flock any = {.l_type = F_WRLCK,
                        .l_whence = SEEK_SET,
                        .l_start = VCAP_LF_LOCK_SLOT,
                        .l_len = VCAP_LF_SLOTS_MAX};
    struct stat st, named;
    int rc = vcap_sys_lock(fd, F_WRLCK, VCAP_LF_LOCK_INIT);

    if (rc != 0)
        return rc;
    if (fcntl(fd, F_OFD_GETLK, &any) != 0 || any.l_type != F_UNLCK)
        return -EINVAL;
    if (vcap_sys_fstat(fd, &st) != 0 || vcap_sys_stat(path, &named, AT_SYMLINK_NOFOLLOW) != 0 ||
        st.st_ino != named.st_ino || st.st_dev != named.st_dev)
        return -EAGAIN;
    return unlink(path) == 0 ? -EAGAIN : -errno;
}

static int try_open(struct vcap_ledger *l, const char *key, uint32_t what, enum vcap_lf_mode mode,
                    bool last_try, char *why, size_t why_size)
{
    int flags = (what == VCAP_OPEN_VIEW ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK |
                O_NOCTTY;
    int rc = 0, fd = open(l->path, flags);

    if (fd < 0 && errno == ENOENT && (what & VCAP_OPEN_MAKE) != 0) {
        rc = create(l->path, NULL, 0, key, NULL);
        return rc == 0 || rc == -EEXIST ? -EAGAIN : rc;
    }
    if (fd < 0) {
        rc = -errno;
        if (rc == -ELOOP || rc == -ENXIO || rc == -EISDIR) {
            say(why, why_size, rc == -ELOOP ? "a symbolic link" : "not a regular file");
            rc = -EINVAL;
        }
        return rc;
    }
    rc = vcap_sys_lock(fd, F_RDLCK, VCAP_LF_LOCK_INIT);
    if (rc == -EAGAIN) {
        say(why, why_size, "another process is making it anew and does not finish");
        rc = last_try ? -EBUSY : -EAGAIN;
    } else {
        /* a file system without locks: a claim will say so */
        rc = join(l, fd, key, what, mode, last_try, why, why_size);
    }
    if (rc == -ENOMSG) {
        rc = discard(l->path, fd);
        rc = rc == -EAGAIN && !last_try ? -EAGAIN : rc == -EAGAIN ? -EBUSY : -EINVAL;
    }
    /* said aloud: the mapping of the file keeps this open file description, and its locks, alive */
    vcap_sys_lock(fd, F_UNLCK, VCAP_LF_LOCK_INIT);
    close(fd);
    return rc;
}

int vcap_ledger_open(struct vcap_ledger *l, const char *path, const char *key, uint32_t what,
                     enum vcap_lf_mode mode, char *why, size_t why_size)
{
    const struct timespec pause = {0, JOIN_PAUSE_NS};
    int saved = errno, rc = -EAGAIN;

    memset(l, 0, sizeof(*l));
    l->slot = -1;
    __atomic_store_n(&l->mine, 0, __ATOMIC_RELEASE);
    why[0] = 0;
    if (strlen(path) >= sizeof(l->path))
        return -ENAMETOOLONG;
    memcpy(l->path, path, strlen(path) + 1);
    for (int tries = 0; rc == -EAGAIN && tries < JOIN_TRIES; tries++) {
        /* the mutex is not kept over the pause: a fork elsewhere must not wait for others' files */
        vcap_ledger_fork_lock();
        rc = try_open(l, key, what, mode, tries == JOIN_TRIES - 1, why, why_size);
        vcap_ledger_fork_unlock();
        if (rc == -EAGAIN && tries > 2)
            nanosleep(&pause, NULL);
    }
    if (rc == -EAGAIN)
        rc = -EBUSY;
    errno = saved;
    if (rc != 0 && why[0] == 0)
        say(why, why_size, strerror(-rc));
    return rc;
}

void vcap_ledger_close(struct vcap_ledger *l)
{
    if (l->anchor != NULL)
        munmap(l->anchor, ANCHOR_BYTES);
    if (l->base != NULL)
        munmap(l->base, l->size);
    l->base = NULL;
    l->anchor = NULL;
    l->slot = -1;
    __atomic_store_n(&l->mine, 0, __ATOMIC_RELEASE);
}

int vcap_ledger_claim(struct vcap_ledger *l, enum vcap_lf_mode mode)
{
    const struct timespec pause = {0, JOIN_PAUSE_NS};
    int saved = errno, rc = -EAGAIN, fd;

    if (l->anchor != NULL) { /* of a slot that is not ours any more */
        munmap(l->anchor, ANCHOR_BYTES);
        l->anchor = NULL;
    }
    l->slot = -1;
    __atomic_store_n(&l->mine, 0, __ATOMIC_RELEASE);
    for (int tries = 0; tries < JOIN_TRIES; tries++) {
        vcap_ledger_fork_lock();
        fd = vcap_ledger_reopen(l, O_RDWR);
        rc = fd < 0 ? fd : vcap_sys_lock(fd, F_RDLCK, VCAP_LF_LOCK_INIT);
        if (rc == 0 || rc == -ENOLCK || rc == -EINVAL)
            rc = claim(l, fd, mode);
        if (fd >= 0)
            close(fd);
        vcap_ledger_fork_unlock();
        if (rc != -EAGAIN) /* somebody makes it anew */
            break;
        nanosleep(&pause, NULL);
    }
    errno = saved;
    return rc == -EAGAIN ? -EBUSY : rc;
}

void vcap_ledger_forget(struct vcap_ledger *l)
{
    l->slot = -1;
    __atomic_store_n(&l->mine, 0, __ATOMIC_RELEASE);
    l->anchor = NULL; /* fork did not copy the mapping */
    l->pidns = 0;
    memset(l->local, 0, sizeof(l->local));
    vcap_ledger_thread_renew();
}
