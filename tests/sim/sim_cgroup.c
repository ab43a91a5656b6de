/*
 * Limits per cgroup: see sim_cgroup.h.
 *
 * What a cgroup uses is summed from the rows of the state file, never read back from dmem.current,
 * which is written for others to read: at each move of a process in it (so what a killed process
 * held stays in it until then). Limits are read from dmem.max at each use: whoever writes that file
 * is obeyed at once, as by the kernel. Not modelled: eviction above the soft limit, and the sums of
 * dmem.min that the driver keeps in the cgroups above.
 */
#define _GNU_SOURCE
#include "sim_cgroup.h"
#include "sim_share.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_BUS 0x10U
#define PATH_ROOM 320
#define TEXT_ROOM 2048

/* --- settings ------------------------------------------------------------------------ */

static bool memacct_read(enum sim_memacct *memacct)
{
    static const char *const names[] = {"off", "misc", "dmem"};
    const char *text = getenv("VRAMCAP_SIM_MEMACCT"), *root = getenv("VRAMCAP_SIM_CGROUP_ROOT");

    *memacct = root && *root ? SIM_MEMACCT_DMEM : SIM_MEMACCT_OFF;
    if (!text || !*text)
        return true;
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *memacct = (enum sim_memacct)i;
            return true;
        }
    }
    return false;
}

static bool path_is_good(const char *path)
{
    return !path || !*path || (*path == '/' && strlen(path) < SIM_CGROUP_MAX);
}

bool sim_cgroup_environment_is_good(void)
{
    enum sim_memacct memacct;

    return memacct_read(&memacct) && path_is_good(getenv("VRAMCAP_SIM_CGROUP_ROOT")) &&
           path_is_good(getenv("VRAMCAP_SIM_CGROUP"));
}

/* Without the slashes at its end; "/" stays. */
static void path_copy(char to[SIM_CGROUP_MAX], const char *path)
{
    size_t length = strlen(path);

    if (length >= SIM_CGROUP_MAX)
        length = SIM_CGROUP_MAX - 1;
    while (length > 1 && path[length - 1] == '/')
        length--;
    memcpy(to, path, length);
    to[length] = '\0';
}

void sim_cgroup_from_environment(struct sim_state *state)
{
    const char *root = getenv("VRAMCAP_SIM_CGROUP_ROOT");

    (void)memacct_read(&state->memacct);
    path_copy(state->cgroup_root, root && *root ? root : "/sys/fs/cgroup");
}

void sim_cgroup_own(const struct sim_state *state, char cgroup[SIM_CGROUP_MAX])
{
    const char *given = getenv("VRAMCAP_SIM_CGROUP");
    char line[512];

    cgroup[0] = '\0';
    if (state->memacct == SIM_MEMACCT_OFF)
        return;
    if (given && *given) {
        path_copy(cgroup, given);
        return;
    }
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::/", 4) == 0)
            path_copy(cgroup, line + 3);
    }
    if (file)
        (void)fclose(file);
}

void sim_region_name(unsigned int card, char name[48])
{
    (void)snprintf(name, 48, "nvidia/%08x:%02x:00.0/vidmem", 0U, FIRST_BUS + card);
}

/* --- paths --------------------------------------------------------------------------- */

static bool is_at_or_below(const char *cgroup, const char *above)
{
    size_t length = strlen(above);

    if (strcmp(above, "/") == 0)
        return *cgroup == '/';
    return strncmp(cgroup, above, length) == 0 && (cgroup[length] == '\0' || cgroup[length] == '/');
}

/* To the cgroup above; false at the top. */
static bool go_up(char cgroup[SIM_CGROUP_MAX])
{
    char *slash = strrchr(cgroup, '/');

    if (!slash || cgroup[1] == '\0')
        return false;
    slash[slash == cgroup] = '\0';
    return true;
}

static void file_path(char path[PATH_ROOM], const struct sim_state *state, const char *cgroup,
                      const char *name)
{
    (void)snprintf(path, PATH_ROOM, "%s%s/%s", state->cgroup_root,
                   strcmp(cgroup, "/") == 0 ? "" : cgroup, name);
}

/* A directory's full path, as NVML is given it, to a cgroup. */
static bool cgroup_of(const struct sim_state *state, const char *name_space,
                      char cgroup[SIM_CGROUP_MAX])
{
    const char *const roots[] = {state->cgroup_root, "/sys/fs/cgroup"};

    for (size_t i = 0; i < 2; i++) {
        size_t length = strlen(roots[i]);

        if (strncmp(name_space, roots[i], length) == 0 &&
            (name_space[length] == '/' || name_space[length] == '\0')) {
            path_copy(cgroup, name_space[length] == '\0' ? "/" : name_space + length);
            return true;
        }
    }
    return false;
}

/* --- files --------------------------------------------------------------------------- */

static bool file_exists(const struct sim_state *state, const char *cgroup, const char *name)
{
    char path[PATH_ROOM];

    file_path(path, state, cgroup, name);
    return access(path, F_OK) == 0;
}

/* The value of a card's line. 0, or -ENOENT without the file; a region without a line has
 * `fallback`. */
static int value_read(const struct sim_state *state, const char *cgroup, const char *name,
                      unsigned int card, uint64_t fallback, uint64_t *value)
{
    char path[PATH_ROOM], region[48], line[256], key[128], text[64];

    file_path(path, state, cgroup, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return -ENOENT;
    *value = fallback;
    sim_region_name(card, region);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%127s %63s", key, text) == 2 && strcmp(key, region) == 0)
            *value = strcmp(text, "max") == 0 ? SIM_NO_LIMIT : strtoull(text, NULL, 10);
    }
    (void)fclose(file);
    return 0;
}

/* One line per card, in one piece: readers see the old text or the new. */
static int values_write(const struct sim_state *state, const char *cgroup, const char *name,
                        const uint64_t values[SIM_MAX_CARDS])
{
    char path[PATH_ROOM], fresh[PATH_ROOM + 32], text[TEXT_ROOM];
    size_t length = 0;

    for (unsigned int c = 0; c < state->file->cards; c++) {
        char region[48];

        sim_region_name(c, region);
        length += (size_t)(values[c] == SIM_NO_LIMIT
                               ? snprintf(text + length, TEXT_ROOM - length, "%s max\n", region)
                               : snprintf(text + length, TEXT_ROOM - length, "%s %" PRIu64 "\n",
                                          region, values[c]));
    }
    file_path(path, state, cgroup, name);
    (void)snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid());
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    int rc = write(fd, text, length) == (ssize_t)length ? 0 : -EIO;
    (void)close(fd);
    if (rc == 0 && rename(fresh, path) != 0)
        rc = -errno;
    if (rc != 0)
        (void)unlink(fresh);
    return rc;
}

static int one_make(const struct sim_state *state, const char *cgroup)
{
    static const char *const names[] = {"dmem.max", "dmem.min", "dmem.low", "dmem.current"};
    uint64_t values[SIM_MAX_CARDS] = {0};
    char path[PATH_ROOM];
    int rc = 0;

    file_path(path, state, cgroup, "");
    if (mkdir(path, 0755) != 0 && errno != EEXIST)
        return -errno;
    if (strcmp(cgroup, "/") == 0) {
        for (unsigned int c = 0; c < state->file->cards; c++)
            values[c] = state->file->card[c].total;
        return values_write(state, cgroup, "dmem.capacity", values);
    }
    for (size_t i = 0; rc == 0 && i < 4; i++) {
        for (unsigned int c = 0; c < SIM_MAX_CARDS; c++)
            values[c] = i == 0 ? SIM_NO_LIMIT : 0;
        if (!file_exists(state, cgroup, names[i]))
            rc = values_write(state, cgroup, names[i], values);
    }
    return rc;
}

int sim_cgroup_make(struct sim_state *state, const char *cgroup)
{
    char path[SIM_CGROUP_MAX], part[SIM_CGROUP_MAX];

    if (*cgroup != '/' || strlen(cgroup) >= sizeof path || state->memacct != SIM_MEMACCT_DMEM)
        return -EINVAL;
    path_copy(path, cgroup);
    int rc = sim_state_lock(state);
    if (rc != 0)
        return rc;
    rc = one_make(state, "/");
    for (size_t i = 1; rc == 0 && path[1] != '\0' && i <= strlen(path); i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        rc = one_make(state, part);
    }
    sim_state_unlock(state);
    return rc;
}

/* --- limits, with the lock held ------------------------------------------------------ */

static uint64_t used_in(const struct sim_file *file, const char *cgroup, unsigned int card)
{
    uint64_t used = 0;

    for (unsigned int r = 0; r < SIM_MAX_ROWS; r++) {
        const struct sim_process_row *row = &file->row[r];

        if (row->live && is_at_or_below(row->bounds.cgroup, cgroup))
            used += row->share[card].used + sim_shares_of_row(file, r, card);
    }
    return used;
}

static const struct sim_memory_limit *kept(const struct sim_file *file, const char *cgroup,
                                           unsigned int card)
{
    for (unsigned int i = 0; i < SIM_MAX_MEMORY_LIMITS; i++)
        if (file->memory_limit[i].card == card && strcmp(file->memory_limit[i].cgroup, cgroup) == 0)
            return &file->memory_limit[i];
    return NULL;
}

/* The limit of exactly this cgroup, SIM_NO_LIMIT for none; -ENOENT if it cannot have one. */
static int hard_of(const struct sim_state *state, const char *cgroup, unsigned int card,
                   uint64_t *hard)
{
    if (state->memacct == SIM_MEMACCT_DMEM)
        return value_read(state, cgroup, "dmem.max", card, SIM_NO_LIMIT, hard);
    const struct sim_memory_limit *limit = kept(state->file, cgroup, card);
    if (!limit)
        return -ENOENT;
    *hard = limit->hard;
    return 0;
}

bool sim_cgroup_room(const struct sim_state *state, const char *cgroup, unsigned int card,
                     uint64_t more)
{
    char at[SIM_CGROUP_MAX];

    if (state->memacct == SIM_MEMACCT_OFF || *cgroup == '\0')
        return true;
    path_copy(at, cgroup);
    int saved = errno;
    bool room = true;
    do {
        uint64_t hard = SIM_NO_LIMIT, used;
        int rc = hard_of(state, at, card, &hard);

        if (rc == 0 && hard != SIM_NO_LIMIT) {
            used = used_in(state->file, at, card);
            room = used <= hard && hard - used >= more;
        }
        /* The driver's own limits do not nest: the nearest one holds. */
        if (rc == 0 && state->memacct == SIM_MEMACCT_MISC)
            break;
    } while (room && go_up(at));
    errno = saved;
    return room;
}

/* The nearest cgroup, from here upwards, that can have a limit; false: none. */
static bool nearest(const struct sim_state *state, char cgroup[SIM_CGROUP_MAX], unsigned int card,
                    uint64_t *hard)
{
    do {
        if (hard_of(state, cgroup, card, hard) == 0)
            return true;
    } while (go_up(cgroup));
    return false;
}

bool sim_cgroup_shown(const struct sim_state *state, const char *cgroup, unsigned int card,
                      uint64_t *hard, uint64_t *used)
{
    char at[SIM_CGROUP_MAX];

    if (state->memacct == SIM_MEMACCT_OFF || *cgroup == '\0')
        return false;
    path_copy(at, cgroup);
    int saved = errno;
    bool found = nearest(state, at, card, hard) && *hard != SIM_NO_LIMIT;
    errno = saved;
    if (!found)
        return false;
    *used = used_in(state->file, at, card);
    return true;
}

void sim_cgroup_publish(const struct sim_state *state, const char *cgroup, unsigned int card)
{
    uint64_t values[SIM_MAX_CARDS];
    char at[SIM_CGROUP_MAX];

    (void)card;
    if (state->memacct != SIM_MEMACCT_DMEM || *cgroup == '\0')
        return;
    path_copy(at, cgroup);
    int saved = errno;
    do {
        if (!file_exists(state, at, "dmem.current"))
            continue;
        for (unsigned int c = 0; c < state->file->cards; c++)
            values[c] = used_in(state->file, at, c);
        (void)values_write(state, at, "dmem.current", values);
    } while (go_up(at));
    errno = saved;
}

/* --- for NVML ------------------------------------------------------------------------ */

int sim_cgroup_get(struct sim_state *state, const char *name_space, unsigned int card,
                   struct sim_cgroup_limits *limits)
{
    char at[SIM_CGROUP_MAX];

    if (state->memacct == SIM_MEMACCT_OFF)
        return -ENOTSUP;
    if (!cgroup_of(state, name_space, at))
        return -ENOENT;
    int rc = sim_state_lock(state);
    if (rc != 0)
        return rc;
    sim_state_reap(state);
    if (!nearest(state, at, card, &limits->hard)) {
        rc = state->memacct == SIM_MEMACCT_MISC ? -ENOTSUP : -ENOENT;
    } else {
        limits->used = used_in(state->file, at, card);
        limits->soft = 0;
        if (state->memacct == SIM_MEMACCT_DMEM)
            (void)value_read(state, at, "dmem.min", card, 0, &limits->soft);
        else
            limits->soft = kept(state->file, at, card)->soft;
    }
    sim_state_unlock(state);
    return rc;
}

static int file_set(const struct sim_state *state, const char *cgroup, const char *name,
                    unsigned int card, uint64_t fallback, uint64_t value)
{
    uint64_t values[SIM_MAX_CARDS];

    for (unsigned int c = 0; c < state->file->cards; c++)
        if (value_read(state, cgroup, name, c, fallback, &values[c]) != 0)
            return -ENOENT;
    values[card] = value;
    return values_write(state, cgroup, name, values);
}

static int kept_set(struct sim_file *file, const char *cgroup, unsigned int card, uint64_t soft,
                    uint64_t hard)
{
    struct sim_memory_limit *limit = (struct sim_memory_limit *)(uintptr_t)kept(file, cgroup, card);

    for (unsigned int i = 0; !limit && i < SIM_MAX_MEMORY_LIMITS; i++)
        if (file->memory_limit[i].cgroup[0] == '\0')
            limit = &file->memory_limit[i];
    if (!limit)
        return -ENOSPC;
    memset(limit, 0, sizeof *limit);
    if (soft == 0 && hard == SIM_NO_LIMIT)
        return 0; /* cleared */
    limit->card = card;
    limit->soft = soft;
    limit->hard = hard;
    path_copy(limit->cgroup, cgroup);
    return 0;
}

int sim_cgroup_set(struct sim_state *state, const char *name_space, unsigned int card,
                   uint64_t soft, uint64_t hard)
{
    char at[SIM_CGROUP_MAX];

    if (state->memacct == SIM_MEMACCT_OFF)
        return -ENOTSUP;
    if (!cgroup_of(state, name_space, at))
        return -ENOENT;
    int rc = sim_state_lock(state);
    if (rc != 0)
        return rc;
    if (state->memacct == SIM_MEMACCT_MISC) {
        rc = kept_set(state->file, at, card, soft, hard);
    } else {
        rc = file_set(state, at, "dmem.max", card, SIM_NO_LIMIT, hard);
        if (rc == 0)
            rc = file_set(state, at, "dmem.min", card, 0, soft);
    }
    sim_state_unlock(state);
    return rc;
}
