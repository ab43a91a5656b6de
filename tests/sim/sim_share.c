/*
 * Shares: see sim_share.h. Bytes are handed out from the end of the file and never again until
 * no share is left; a share's part of the file is punched out when it ends.
 */
#define _GNU_SOURCE
#include "sim_share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKEN_BASE (SIM_LOCK_BASE + INT64_C(0x100000))
#define BYTES_BASE (UINT64_C(1) << 32)
#define BLOCK (UINT64_C(1) << 21)

static struct sim_share *share_of(struct sim_file *file, uint64_t id)
{
    struct sim_share *share = &file->share[id % SIM_MAX_SHARES];

    return id != 0 && share->id == id ? share : NULL;
}

static struct sim_share_user *user_of(struct sim_share *share, uint32_t row)
{
    for (unsigned int u = 0; u < SIM_SHARE_USERS; u++)
        if (share->user[u].count > 0 && share->user[u].row == row)
            return &share->user[u];
    return NULL;
}

static bool is_held(const struct sim_share *share)
{
    return share->user[0].count > 0;
}

/* Users stay in order of arrival, without holes. */
static void user_remove(struct sim_share *share, struct sim_share_user *user)
{
    size_t behind = (size_t)(&share->user[SIM_SHARE_USERS] - (user + 1));

    memmove(user, user + 1, behind * sizeof *user);
    memset(&share->user[SIM_SHARE_USERS - 1], 0, sizeof *user);
}

static bool token_is_open(const struct sim_state *state, const struct sim_share *share)
{
    struct flock lock = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = (off_t)(TOKEN_BASE + (off_t)(share->id % SIM_MAX_SHARES)),
                         .l_len = 1};

    return state->fd >= 0 && fcntl(state->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static void share_end(struct sim_state *state, struct sim_share *share)
{
    struct sim_file *file = state->file;
    struct sim_amounts *now = &file->card[share->card].now;

    now->used -= share->cost.used;
    now->alloc -= share->cost.alloc;
    (void)fallocate(state->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)share->offset,
                    (off_t)share->bytes);
    memset(share, 0, sizeof *share);
    while (file->share_top > 0 && file->share[file->share_top - 1].id == 0)
        file->share_top--;
    if (file->share_top == 0)
        file->share_end = BYTES_BASE;
}

bool sim_shares_reap(struct sim_state *state)
{
    struct sim_file *file = state->file;
    bool any = false;

    for (unsigned int i = file->share_top; i-- > 0;) {
        struct sim_share *share = &file->share[i];

        if (share->id == 0)
            continue;
        for (unsigned int u = SIM_SHARE_USERS; u-- > 0;)
            if (share->user[u].count > 0 && !file->row[share->user[u].row].live)
                user_remove(share, &share->user[u]);
        if (!is_held(share) && !token_is_open(state, share)) {
            share_end(state, share);
            any = true;
        }
    }
    return any;
}

void sim_shares_sum(const struct sim_file *file, unsigned int card, struct sim_amounts *sum)
{
    for (unsigned int i = 0; i < file->share_top; i++) {
        const struct sim_share *share = &file->share[i];

        if (share->id != 0 && share->card == card) {
            sum->used += share->cost.used;
            sum->alloc += share->cost.alloc;
        }
    }
}

void sim_shares_show(const struct sim_file *file, struct sim_process_row *rows)
{
    for (unsigned int i = 0; i < file->share_top; i++) {
        const struct sim_share *share = &file->share[i];

        if (share->id != 0 && is_held(share)) {
            rows[share->user[0].row].share[share->card].used += share->cost.used;
            rows[share->user[0].row].share[share->card].alloc += share->cost.alloc;
        }
    }
}

uint64_t sim_shares_of_row(const struct sim_file *file, unsigned int row, unsigned int card)
{
    uint64_t used = 0;

    for (unsigned int i = 0; i < file->share_top; i++) {
        const struct sim_share *share = &file->share[i];

        if (share->id != 0 && share->card == card && is_held(share) && share->user[0].row == row)
            used += share->cost.used;
    }
    return used;
}

void sim_shares_clear(struct sim_state *state)
{
    memset(state->file->share, 0, sizeof state->file->share);
    state->file->share_top = 0;
    state->file->share_end = BYTES_BASE;
}

/* A place for `bytes` bytes in the file, which grows to hold them. */
static int place_find(struct sim_state *state, uint64_t bytes, uint64_t *offset)
{
    struct sim_file *file = state->file;
    struct stat info;

    if (file->share_end < BYTES_BASE)
        file->share_end = BYTES_BASE;
    uint64_t end = file->share_end + (bytes + BLOCK - 1) / BLOCK * BLOCK;
    if (fstat(state->fd, &info) != 0)
        return -errno;
    if ((uint64_t)info.st_size < end && ftruncate(state->fd, (off_t)end) != 0)
        return -errno;
    *offset = file->share_end;
    file->share_end = end;
    return 0;
}

int sim_share_new(struct sim_state *state, const struct sim_share_info *info,
                  struct sim_amounts cost, uint64_t *id)
{
    struct sim_file *file = state->file;
    unsigned int index = 0;
    uint64_t offset = 0;

    if (state->fd < 0)
        return -ENOTSUP;
    int rc = sim_state_lock(state);
    if (rc != 0)
        return rc;
    while (index < SIM_MAX_SHARES && file->share[index].id != 0)
        index++;
    rc = index == SIM_MAX_SHARES ? -ENOSPC : place_find(state, info->bytes, &offset);
    if (rc == 0) {
        struct sim_share *share = &file->share[index];
        struct sim_amounts *own = &file->row[state->own_row].share[info->card];

        *share = (struct sim_share){.card = info->card,
                                    .offset = offset,
                                    .bytes = info->bytes,
                                    .cost = cost,
                                    .user = {{(uint32_t)state->own_row, 1}}};
        memcpy(share->note, info->note, sizeof share->note);
        share->id = ++file->share_serial * SIM_MAX_SHARES + index;
        if (file->share_top <= index)
            file->share_top = index + 1;
        own->used -= cost.used;
        own->alloc -= cost.alloc;
        *id = share->id;
    }
    sim_state_unlock(state);
    return rc;
}

static int hold(struct sim_state *state, struct sim_share *share)
{
    uint32_t row = (uint32_t)state->own_row;
    struct sim_share_user *user = user_of(share, row);

    for (unsigned int u = 0; !user && u < SIM_SHARE_USERS; u++)
        if (share->user[u].count == 0)
            user = &share->user[u];
    if (!user)
        return -ENOSPC;
    user->row = row;
    user->count++;
    return 0;
}

int sim_share_hold(struct sim_state *state, uint64_t id, struct sim_share_info *info)
{
    int rc = sim_state_lock(state);

    if (rc != 0)
        return rc;
    sim_state_reap(state); /* what only the dead held is not to be had any more */
    struct sim_share *share = share_of(state->file, id);
    rc = share ? hold(state, share) : -ENOENT;
    if (rc == 0) {
        info->card = share->card;
        info->bytes = share->bytes;
        memcpy(info->note, share->note, sizeof info->note);
    }
    sim_state_unlock(state);
    return rc;
}

void sim_share_drop(struct sim_state *state, uint64_t id)
{
    if (sim_state_lock(state) != 0)
        return;
    struct sim_share *share = share_of(state->file, id);
    struct sim_share_user *user = share ? user_of(share, (uint32_t)state->own_row) : NULL;
    if (user && --user->count == 0) {
        user_remove(share, user);
        if (!is_held(share) && !token_is_open(state, share))
            share_end(state, share);
    }
    sim_state_unlock(state);
}

int sim_share_token(struct sim_state *state, uint64_t id)
{
    char path[40];
    off_t at = (off_t)(TOKEN_BASE + (off_t)(id % SIM_MAX_SHARES));
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

    if (state->fd < 0)
        return -ENOTSUP;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", state->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    /* The file offset says which share this is; it travels with the descriptor. */
    if (lseek(fd, at, SEEK_SET) != at || fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        int rc = -errno;

        (void)close(fd);
        return rc;
    }
    return fd;
}

int sim_share_of_token(struct sim_state *state, int fd, uint64_t *id)
{
    struct stat given, ours;

    if (state->fd < 0 || fstat(fd, &given) != 0 || fstat(state->fd, &ours) != 0 ||
        given.st_dev != ours.st_dev || given.st_ino != ours.st_ino)
        return -EINVAL;
    off_t at = lseek(fd, 0, SEEK_CUR) - (off_t)TOKEN_BASE;
    if (at < 0 || at >= (off_t)SIM_MAX_SHARES)
        return -EINVAL;
    int rc = sim_state_lock(state);
    if (rc != 0)
        return rc;
    *id = state->file->share[at].id;
    sim_state_unlock(state);
    return *id != 0 ? 0 : -EINVAL;
}

void *sim_share_map(struct sim_state *state, uint64_t id, size_t bytes, void *at)
{
    uint64_t offset = 0;

    if (sim_state_lock(state) != 0)
        return NULL;
    struct sim_share *share = share_of(state->file, id);
    if (share && bytes <= (share->bytes + BLOCK - 1) / BLOCK * BLOCK)
        offset = share->offset;
    sim_state_unlock(state);
    if (offset == 0)
        return NULL;
    void *map = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0),
                     state->fd, (off_t)offset);
    return map == MAP_FAILED ? NULL : map;
}

uint32_t sim_share_count(struct sim_state *state, uint64_t id, uint32_t more)
{
    uint32_t sum = 0;

    if (sim_state_lock(state) != 0)
        return 0;
    struct sim_share *share = share_of(state->file, id);
    if (share)
        sum = share->counter += more;
    sim_state_unlock(state);
    return sum;
}

bool sim_share_is_own(struct sim_state *state, uint64_t id)
{
    bool own = false;

    if (sim_state_lock(state) != 0)
        return false;
    struct sim_share *share = share_of(state->file, id);
    own = share && is_held(share) && share->user[0].row == (uint32_t)state->own_row;
    sim_state_unlock(state);
    return own;
}
