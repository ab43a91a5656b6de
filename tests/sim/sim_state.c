/*
 * The state file: creation, liveness of rows, and the arithmetic of cards.
 *
 * Invariant, outside the lock: a card's amounts are the sums over the live rows and shares.
 * Rows are written before cards, so that after a death inside the lock the rows
 * are right and the cards can be recomputed. A row is dead when the kernel has
 * dropped its owner's lock (exit, kill, exec), or when its pid, seen from the
 * same PID namespace, is gone or belongs to someone else (a child made without
 * fork handlers can keep the parent's lock alive).
 */
#define _GNU_SOURCE
#include "sim.h"
#include "sim_bounds.h"
#include "sim_cgroup.h"
#include "sim_share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t pid_namespace(void)
{
    struct stat info;

    return stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

/* Start time of a process, 0 if it is gone. A zombie is gone unless threads of it
 * still run (the leader alone has exited). */
static uint64_t start_time_of(int32_t pid)
{
    char path[64], text[1024];
    char state = 0;
    unsigned long long start = 0;
    long threads = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    (void)close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    char *after = strrchr(text, ')'); /* the command may hold blanks and brackets */
    if (!after)
        return 0;
    if (sscanf(after + 1,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
               &state, &threads, &start) != 3)
        return 0;
    if ((state == 'Z' || state == 'X') && threads <= 1)
        return 0;
    return start;
}

static int row_lock(int fd, int row, short type, int command)
{
    struct flock lock = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(SIM_LOCK_BASE + row), .l_len = 1};

    if (fcntl(fd, command, &lock) != 0)
        return -errno;
    return lock.l_type == F_UNLCK ? 0 : 1;
}

static bool row_is_dead(const struct sim_state *state, unsigned int index)
{
    const struct sim_process_row *row = &state->file->row[index];

    if (!row->live || (int)index == state->own_row)
        return false;
    if (row_lock(state->fd, (int)index, F_WRLCK, F_OFD_GETLK) == 0)
        return true;
    return state->pid_ns != 0 && row->pid_ns == state->pid_ns &&
           start_time_of(row->pid) != row->start_time;
}

static void amounts_add(struct sim_amounts *to, const struct sim_amounts *more)
{
    to->used += more->used;
    to->alloc += more->alloc;
    to->context += more->context;
    to->managed += more->managed;
}

static void cards_recompute(struct sim_file *file)
{
    for (unsigned int c = 0; c < file->cards; c++) {
        struct sim_amounts sum = {0, 0, 0, 0};

        for (unsigned int r = 0; r < SIM_MAX_ROWS; r++)
            if (file->row[r].live)
                amounts_add(&sum, &file->row[r].share[c]);
        sim_shares_sum(file, c, &sum);
        file->card[c].now = sum;
    }
}

static int state_lock(struct sim_state *state)
{
    int rc = pthread_mutex_lock(&state->file->lock);

    if (rc == EOWNERDEAD) {
        cards_recompute(state->file);
        rc = pthread_mutex_consistent(&state->file->lock);
    }
    return -rc;
}

static void state_unlock(struct sim_state *state)
{
    (void)pthread_mutex_unlock(&state->file->lock);
}

int sim_state_lock(struct sim_state *state)
{
    return state_lock(state);
}

void sim_state_unlock(struct sim_state *state)
{
    state_unlock(state);
}

static void reap_locked(struct sim_state *state)
{
    struct sim_file *file = state->file;
    bool any = false;

    if (state->fd < 0) /* private: nobody else */
        return;

    for (unsigned int r = 0; r < SIM_MAX_ROWS; r++) {
        if (row_is_dead(state, r)) {
            memset(&file->row[r], 0, sizeof file->row[r]);
            any = true;
        }
    }
    any = sim_shares_reap(state) || any;
    if (any)
        cards_recompute(file);
}

void sim_state_reap(struct sim_state *state)
{
    reap_locked(state);
}

static bool any_row_live(const struct sim_file *file)
{
    for (unsigned int r = 0; r < SIM_MAX_ROWS; r++)
        if (file->row[r].live)
            return true;
    return file->share_top > 0;
}

static void cards_set(struct sim_file *file, const uint64_t *bytes, unsigned int count)
{
    memset(file->card, 0, sizeof file->card);
    file->cards = count;
    for (unsigned int c = 0; c < count; c++)
        file->card[c].total = bytes[c];
}

/* The mode belongs to the machine: whoever opens it with the variable sets it for all. */
static void modes_set(struct sim_file *file)
{
    int mode = 0;

    if (!getenv("VRAMCAP_SIM_COMPUTE_MODE") || !sim_compute_mode_from_environment(&mode))
        return;
    for (unsigned int c = 0; c < file->cards; c++)
        file->card[c].compute_mode = (uint32_t)mode;
}

static int file_format(struct sim_file *file, const uint64_t *bytes, unsigned int count)
{
    pthread_mutexattr_t attributes;

    memset(file, 0, sizeof *file);
    int rc = pthread_mutexattr_init(&attributes);
    if (rc == 0)
        rc = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    if (rc == 0)
        rc = pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    if (rc == 0)
        rc = pthread_mutex_init(&file->lock, &attributes);
    (void)pthread_mutexattr_destroy(&attributes);
    if (rc != 0)
        return -rc;
    file->layout = SIM_LAYOUT;
    cards_set(file, bytes, count);
    __atomic_store_n(&file->magic, SIM_MAGIC, __ATOMIC_RELEASE);
    return 0;
}

static int file_map(struct sim_state *state, const char *path)
{
    uint64_t bytes[SIM_MAX_CARDS];
    int count = sim_cards_from_environment(bytes);
    int rc = 0;

    if (count < 0)
        return -EINVAL;
    state->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (state->fd < 0)
        return -errno;
    if (flock(state->fd, LOCK_EX) != 0)
        return -errno;
    /* Real blocks now, so that a full tmpfs is an error here and no SIGBUS later. */
    rc = -posix_fallocate(state->fd, 0, (off_t)sizeof(struct sim_file));
    if (rc == 0) {
        void *map =
            mmap(NULL, sizeof(struct sim_file), PROT_READ | PROT_WRITE, MAP_SHARED, state->fd, 0);

        if (map == MAP_FAILED)
            rc = -errno;
        else
            state->file = map;
    }
    if (rc == 0 && __atomic_load_n(&state->file->magic, __ATOMIC_ACQUIRE) != SIM_MAGIC)
        rc = file_format(state->file, bytes, (unsigned int)count);
    (void)fchmod(state->fd, 0666); /* other users of the machine, whatever the umask */
    if (rc == 0 && state->file->layout != SIM_LAYOUT)
        rc = -EPROTO;
    (void)flock(state->fd, LOCK_UN);
    bool resize = getenv("VRAMCAP_SIM_CARDS") != NULL;
    if (rc != 0 || (!resize && getenv("VRAMCAP_SIM_COMPUTE_MODE") == NULL))
        return rc;
    /* A left-over file is given the cards now asked for, unless someone uses it. */
    rc = state_lock(state);
    if (rc == 0) {
        reap_locked(state);
        bool same = !resize || state->file->cards == (uint32_t)count;

        for (int c = 0; resize && same && c < count; c++)
            same = state->file->card[c].total == bytes[c];
        if (!same && !any_row_live(state->file))
            cards_set(state->file, bytes, (unsigned int)count);
        modes_set(state->file);
        state_unlock(state);
    }
    return rc;
}

struct sim_state *sim_state_open(const char *path)
{
    char standard[64];
    struct sim_state *state = calloc(1, sizeof *state);

    if (!state)
        return NULL;
    if (!path)
        path = getenv("VRAMCAP_SIM_STATE");
    if (!path || !*path) {
        (void)snprintf(standard, sizeof standard, "/dev/shm/vramcap-sim-%u",
                       (unsigned int)getuid());
        path = standard;
    }
    state->own_row = -1;
    state->pid_ns = pid_namespace();
    sim_cgroup_from_environment(state);
    int rc = file_map(state, path);
    if (rc != 0) {
        sim_state_close(state);
        errno = -rc;
        return NULL;
    }
    return state;
}

struct sim_state *sim_state_private(void)
{
    uint64_t bytes[SIM_MAX_CARDS];
    int count = sim_cards_from_environment(bytes);
    struct sim_state *state = calloc(1, sizeof *state);
    void *map = mmap(NULL, sizeof(struct sim_file), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (count < 0 || !state || map == MAP_FAILED ||
        file_format(map, bytes, (unsigned int)count) != 0) {
        free(state);
        if (map != MAP_FAILED)
            (void)munmap(map, sizeof(struct sim_file));
        return NULL;
    }
    *state = (struct sim_state){.file = map, .fd = -1, .own_row = -1};
    return state;
}

void sim_state_close(struct sim_state *state)
{
    if (!state)
        return;
    if (state->file)
        (void)munmap(state->file, sizeof(struct sim_file));
    if (state->fd >= 0)
        (void)close(state->fd);
    free(state);
}

void sim_state_forget(struct sim_state *state)
{
    if (state->fd >= 0)
        (void)close(state->fd);
    state->fd = -1;
}

int sim_state_attach(struct sim_state *state)
{
    int rc = state_lock(state);

    if (rc != 0)
        return rc;
    reap_locked(state);
    rc = -ENOSPC;
    for (unsigned int r = 0; r < SIM_MAX_ROWS; r++) {
        struct sim_process_row *row = &state->file->row[r];

        if (row->live)
            continue;
        rc = state->fd < 0 ? 0 : row_lock(state->fd, (int)r, F_WRLCK, F_OFD_SETLK);
        if (rc == -EAGAIN ||
            rc == -EACCES) { /* a dead owner's child keeps it: leave that row alone */
            rc = -ENOSPC;
            continue;
        }
        if (rc < 0)
            break;
        rc = 0;
        memset(row, 0, sizeof *row);
        row->pid = (int32_t)getpid();
        row->pid_ns = state->pid_ns;
        row->start_time = start_time_of(row->pid);
        (void)prctl(PR_GET_NAME, row->command);
        row->live = 1;
        state->own_row = (int)r;
        break;
    }
    state_unlock(state);
    return rc;
}

static uint64_t moved(uint64_t amount, int64_t delta)
{
    return amount + (uint64_t)delta;
}

static void amounts_move(struct sim_amounts *amounts, const struct sim_delta *delta)
{
    amounts->used = moved(amounts->used, delta->used);
    amounts->alloc = moved(amounts->alloc, delta->alloc);
    amounts->context = moved(amounts->context, delta->context);
    amounts->managed = moved(amounts->managed, delta->managed);
}

static bool card_is_full(const struct sim_card_row *card, uint64_t more)
{
    return card->total - card->now.used < more;
}

static bool has_room(const struct sim_state *state, unsigned int card_index, uint64_t more)
{
    return !card_is_full(&state->file->card[card_index], more) &&
           (!state->bounded || sim_bounds_room(state, card_index, more));
}

int sim_state_move(struct sim_state *state, unsigned int card_index, struct sim_delta delta)
{
    struct sim_card_row *card = &state->file->card[card_index];
    int rc = state_lock(state);

    if (rc != 0)
        return rc;
    if (delta.used > 0 && !has_room(state, card_index, (uint64_t)delta.used)) {
        reap_locked(state);
        if (!has_room(state, card_index, (uint64_t)delta.used)) {
            card->refusals += card_is_full(card, (uint64_t)delta.used);
            state_unlock(state);
            return -ENOMEM;
        }
    }
    amounts_move(&state->file->row[state->own_row].share[card_index], &delta);
    amounts_move(&card->now, &delta);
    if (card->now.used > card->peak)
        card->peak = card->now.used;
    if (card->now.alloc > card->alloc_peak)
        card->alloc_peak = card->now.alloc;
    if (state->bounded)
        sim_bounds_moved(state, card_index);
    state_unlock(state);
    return 0;
}

static struct sim_card_row card_read(struct sim_state *state, unsigned int card)
{
    struct sim_card_row copy;

    memset(&copy, 0, sizeof copy);
    if (state_lock(state) != 0)
        return copy;
    reap_locked(state);
    if (card < state->file->cards)
        copy = state->file->card[card];
    state_unlock(state);
    return copy;
}

unsigned int sim_card_count(struct sim_state *state)
{
    unsigned int cards = 0;

    if (state_lock(state) == 0) {
        cards = state->file->cards;
        state_unlock(state);
    }
    return cards;
}

uint64_t sim_card_total(struct sim_state *state, unsigned int card)
{
    return card_read(state, card).total;
}

uint64_t sim_card_used(struct sim_state *state, unsigned int card)
{
    return card_read(state, card).now.used;
}

uint64_t sim_card_peak(struct sim_state *state, unsigned int card)
{
    return card_read(state, card).peak;
}

uint64_t sim_card_alloc_used(struct sim_state *state, unsigned int card)
{
    return card_read(state, card).now.alloc;
}

uint64_t sim_card_alloc_peak(struct sim_state *state, unsigned int card)
{
    return card_read(state, card).alloc_peak;
}

uint64_t sim_card_managed(struct sim_state *state, unsigned int card)
{
    return card_read(state, card).now.managed;
}

void sim_reset_peaks(struct sim_state *state)
{
    if (state_lock(state) != 0)
        return;
    reap_locked(state);
    for (unsigned int c = 0; c < state->file->cards; c++) {
        struct sim_card_row *card = &state->file->card[c];

        card->peak = card->now.used;
        card->alloc_peak = card->now.alloc;
        card->refusals = 0;
    }
    state_unlock(state);
}

int sim_compute_mode_set(struct sim_state *state, unsigned int card, enum sim_compute_mode mode)
{
    int rc = state_lock(state);

    if (rc != 0)
        return rc;
    if (card < state->file->cards)
        state->file->card[card].compute_mode = (uint32_t)mode;
    else
        rc = -EINVAL;
    state_unlock(state);
    return rc;
}

int sim_state_snapshot(struct sim_state *state, struct sim_file *out)
{
    int rc = state_lock(state);

    if (rc != 0)
        return rc;
    reap_locked(state);
    memset(out, 0, sizeof *out);
    out->magic = state->file->magic;
    out->layout = state->file->layout;
    out->cards = state->file->cards;
    memcpy(out->card, state->file->card, sizeof out->card);
    memcpy(out->row, state->file->row, sizeof out->row);
    memcpy(out->memory_limit, state->file->memory_limit, sizeof out->memory_limit);
    sim_shares_show(state->file, out->row);
    state_unlock(state);
    return 0;
}

void sim_state_clear(struct sim_state *state)
{
    uint64_t bytes[SIM_MAX_CARDS];

    if (state_lock(state) != 0)
        return;
    for (unsigned int c = 0; c < SIM_MAX_CARDS; c++)
        bytes[c] = state->file->card[c].total;
    memset(state->file->row, 0, sizeof state->file->row);
    memset(state->file->memory_limit, 0, sizeof state->file->memory_limit);
    sim_shares_clear(state);
    cards_set(state->file, bytes, state->file->cards);
    state_unlock(state);
}
