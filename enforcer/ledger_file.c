/*
 * The file: opening it and taking a slot in it (ledger_make.c makes it).  Invariants:
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
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"
#include "enforcer/ledger_check.h"
#include "enforcer/ledger_make.h"
#include "enforcer/ledger_reap.h"
#include "enforcer/ledger_word.h"

#define ANCHOR_BYTES 4096u
#define JOIN_TRIES 200
#define CLAIM_PASSES 100
#define JOIN_PAUSE_NS 1000000

static pthread_mutex_t fork_mutex = PTHREAD_MUTEX_INITIALIZER;

static uint32_t openings; /* with a slot, by this process */

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
    slot->timens = vcap_timens_inode();
    slot->mps = slot->fault_code = 0;
    slot->fault_ns = 0;
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
    /* ours before it is LIVE: another thread that looks for the dead must not take it for one that this
     * process left by an exec */
    __atomic_store_n(&l->state,
                     vcap_lf_state(vcap_lf_state_generation(state) + 1, kind, VCAP_LF_LIVE),
                     __ATOMIC_RELEASE);
    __atomic_store_n(&l->slot, (int32_t)s, __ATOMIC_RELEASE);
    if (!vcap_cas(&slot->state, state, l->state)) {
        __atomic_store_n(&l->slot, -1, __ATOMIC_RELEASE);
        rc = -EAGAIN;
        goto out;
    }
    for (uint32_t gpu = 0; gpu < l->gpu_count; gpu++) /* releases put off were for another place */
        __atomic_store_n(&l->local[gpu].deferred, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&l->mine,
                     vcap_lf_state_generation(l->state) << 16 | (uint64_t)kind << 12 |
                         (uint64_t)l->epoch << 9 | s,
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
    /* a file that nobody has come to yet is new: a crowd of first comers must not queue to say so */
    if ((what & VCAP_OPEN_RENEW) != 0 && (header.flags & VCAP_LF_HOST_MADE) == 0 &&
        header.event_next > 1 && !vcap_ledger_anybody_lives(l->base, &header, fd, pidns)) {
        rc = vcap_sys_lock(fd, F_WRLCK, VCAP_LF_LOCK_INIT);
        if (rc == 0 && !vcap_ledger_anybody_lives(l->base, &header, fd, pidns))
            vcap_ledger_renew_in_place(l->base, vcap_ledger_header(l), false);
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
        rc = vcap_ledger_create(l->path, NULL, 0, key, NULL);
        return rc == 0 || rc == -EEXIST ? -EAGAIN : rc;
    }
    if (fd < 0) {
        rc = -errno;
        if (rc == -EAGAIN)
            say(why, why_size, "another process holds a lease on it");
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
    if ((what & VCAP_OPEN_CLAIM) != 0)
        l->epoch = __atomic_fetch_add(&openings, 1, __ATOMIC_RELAXED) % 8;
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
    __atomic_store_n(&l->slot, -1, __ATOMIC_RELEASE);
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
