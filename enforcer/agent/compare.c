/*
 * Whose is a process that the driver names?  Its number is the host's as a rule, but a driver or an
 * agent in another PID namespace may say others; so a number is believed to be this host's only of a
 * process that has a driver mapped, and else to be the one in the process's own namespace if exactly
 * one slot on that GPU has it.  What cannot be told makes the answer unknown, never 0.
 */
#include "enforcer/agent/compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "enforcer/agent/proc_file.h"

/* One slot of one ledger, for looking up by number. */
struct owner {
    pid_t host_pid;
    uint32_t pid;
    uint32_t process; /* position in w->snapshot.processes */
    struct vcap_watched *w;
};

struct comparison {
    struct vcap_watched *const *all;
    size_t count;
    const struct vcap_processes *processes;
    const struct vcap_nvml_gpu *gpu;
    struct owner *by_host, *by_pid; /* the same, sorted in two ways */
    size_t owner_count;
    bool host_numbers; /* some number of this GPU's was shown to be this host's */
};

static int order_by_host(const void *left, const void *right)
{
    const struct owner *a = left, *b = right;
    return a->host_pid < b->host_pid ? -1 : a->host_pid > b->host_pid;
}

static int order_by_pid(const void *left, const void *right)
{
    const struct owner *a = left, *b = right;
    return a->pid < b->pid ? -1 : a->pid > b->pid;
}

static bool list_owners(struct comparison *c)
{
    size_t room = 0;
    for (size_t i = 0; i < c->count; i++)
        room += vcap_watched_is_present(c->all[i]) ? c->all[i]->snapshot.process_count : 0;
    c->by_host = calloc(room + 1, sizeof *c->by_host);
    c->by_pid = calloc(room + 1, sizeof *c->by_pid);
    if (!c->by_host || !c->by_pid)
        return false;
    for (size_t i = 0; i < c->count; i++) {
        struct vcap_watched *w = c->all[i];
        if (!vcap_watched_is_present(w))
            continue;
        for (uint32_t k = 0; k < w->snapshot.process_count; k++) {
            const struct vcap_snapshot_process *p = &w->snapshot.processes[k];
            if (p->life != VCAP_LIFE_DEAD)
                c->by_host[c->owner_count++] = (struct owner){w->host_pids[k], p->pid, k, w};
        }
    }
    memcpy(c->by_pid, c->by_host, c->owner_count * sizeof *c->by_host);
    qsort(c->by_host, c->owner_count, sizeof *c->by_host, order_by_host);
    qsort(c->by_pid, c->owner_count, sizeof *c->by_pid, order_by_pid);
    return true;
}

/* The first of the list that is not less than key. */
static size_t lower(const struct owner *list, size_t count, const struct owner *key,
                    int (*order)(const void *, const void *))
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (order(&list[middle], key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const struct vcap_snapshot_charge *charge_on(const struct owner *o, const char *uuid)
{
    const struct vcap_snapshot_process *p = &o->w->snapshot.processes[o->process];
    for (uint32_t i = 0; i < p->charge_count; i++)
        if (!strcmp(o->w->snapshot.gpus[p->charges[i].gpu].uuid, uuid))
            return &p->charges[i];
    return NULL;
}

/* ---- the container's place for a GPU ---- */

static struct vcap_compared *compared_of(struct vcap_watched *w, const char *uuid)
{
    for (uint32_t i = 0; i < w->compared_count; i++)
        if (!strcmp(w->compared[i].uuid, uuid))
            return &w->compared[i];
    if (w->compared_count == VCAP_LF_GPUS_MAX)
        return NULL;
    struct vcap_compared *c = &w->compared[w->compared_count++];
    *c = (struct vcap_compared){.index = UINT32_MAX,
                                .driver_bytes = VCAP_UNKNOWN,
                                .unaccounted_bytes = VCAP_UNKNOWN,
                                .unprotected = VCAP_UNKNOWN,
                                .mps_clients = VCAP_UNKNOWN,
                                .first_bytes = VCAP_UNKNOWN,
                                .most_bytes = VCAP_UNKNOWN};
    memcpy(c->uuid, uuid, strnlen(uuid, sizeof c->uuid - 1));
    return c;
}

static void add(uint64_t *to, uint64_t more)
{
    if (*to == VCAP_UNKNOWN || more == VCAP_UNKNOWN)
        *to = VCAP_UNKNOWN;
    else
        *to += more;
}

/* Before the processes: 0 where the driver can be asked, unknown where it cannot. */
static void begin(struct vcap_watched *w, const struct vcap_nvml_sample *sample)
{
    if (!vcap_watched_is_present(w)) {
        w->compared_count = 0;
        return;
    }
    for (uint32_t i = 0; i < w->snapshot.gpu_count; i++)
        (void)compared_of(w, w->snapshot.gpus[i].uuid);
    for (uint32_t i = 0; i < w->compared_count; i++) {
        struct vcap_compared *c = &w->compared[i];
        const struct vcap_nvml_gpu *gpu =
            sample && sample->state == VCAP_NVML_OK ? vcap_nvml_find(sample, c->uuid) : NULL;
        uint64_t zero = gpu && gpu->processes_known ? 0 : VCAP_UNKNOWN;
        c->index = gpu ? gpu->index : UINT32_MAX;
        c->driver_bytes = c->unaccounted_bytes = c->unprotected = zero;
        c->mps_clients = gpu && gpu->mps_known ? 0 : VCAP_UNKNOWN;
    }
}

/* After them: a GPU that the ledger has no row for is there only while a process of the container is. */
static void sweep(struct vcap_watched *w)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->compared_count; i++) {
        const struct vcap_compared *c = &w->compared[i];
        bool stays = c->index != UINT32_MAX && (c->driver_bytes != 0 || c->unprotected != 0);
        for (uint32_t k = 0; k < w->snapshot.gpu_count; k++)
            stays = stays || !strcmp(w->snapshot.gpus[k].uuid, c->uuid);
        if (stays)
            w->compared[kept++] = *c;
    }
    w->compared_count = kept;
}

static struct vcap_compared *place(struct comparison *c, struct vcap_watched *w)
{
    const uint32_t before = w->compared_count;
    struct vcap_compared *to = compared_of(w, c->gpu->uuid);
    if (to && w->compared_count > before) { /* a GPU that the ledger has no row for */
        to->index = c->gpu->index;
        to->driver_bytes = to->unaccounted_bytes = to->unprotected = 0;
        to->mps_clients = c->gpu->mps_known ? 0 : VCAP_UNKNOWN;
    }
    return to;
}

/* ---- one process ---- */

static void with_slot(struct comparison *c, const struct owner *o,
                      const struct vcap_nvml_process *p)
{
    struct vcap_compared *to = place(c, o->w);
    const struct vcap_snapshot_charge *charge = charge_on(o, c->gpu->uuid);
    uint64_t held = charge ? charge->held_bytes : 0;
    if (!to)
        return;
    add(&to->driver_bytes, p->bytes);
    add(&to->unaccounted_bytes, p->bytes == VCAP_UNKNOWN ? VCAP_UNKNOWN
                                : p->bytes > held        ? p->bytes - held
                                                         : 0);
    if (p->mps)
        add(&to->mps_clients, 1);
}

static void without_slot(struct comparison *c, struct vcap_watched *w,
                         const struct vcap_nvml_process *p)
{
    struct vcap_compared *to = place(c, w);
    if (!to)
        return;
    add(&to->driver_bytes, p->bytes);
    add(&to->unaccounted_bytes, p->bytes);
    add(&to->unprotected, 1);
    if (p->mps)
        add(&to->mps_clients, 1);
}

static void unknown_for(struct comparison *c, struct vcap_watched *w)
{
    struct vcap_compared *to = place(c, w);
    if (to)
        to->driver_bytes = to->unaccounted_bytes = to->unprotected = VCAP_UNKNOWN;
}

struct vcap_watched *vcap_compare_container(struct vcap_watched *const *all, size_t count,
                                            const struct vcap_process *process)
{
    static uint64_t own_mntns, first_mntns;
    struct stat st;
    char *mounts = NULL;
    struct vcap_watched *found = NULL;
    if (own_mntns == 0) {
        own_mntns = stat("/proc/self/ns/mnt", &st) == 0 ? (uint64_t)st.st_ino : 1;
        first_mntns = stat("/proc/1/ns/mnt", &st) == 0 ? (uint64_t)st.st_ino : 1;
    }
    for (size_t i = 0; i < count; i++)
        if (all[i]->state != VCAP_WATCHED_GONE &&
            vcap_container_name_same(&all[i]->name, &process->name))
            return all[i];
    if (process->mntns == 0 || process->mntns == own_mntns || process->mntns == first_mntns)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (all[i]->state != VCAP_WATCHED_GONE && all[i]->mntns == process->mntns)
            return all[i];
    for (size_t i = 0; i < count && !found; i++) {
        struct vcap_watched *w = all[i];
        if (w->directory < 0 || !vcap_watched_is_present(w))
            continue;
        if (!mounts && !(mounts = vcap_process_mounts(process->pid)))
            break;
        if (vcap_mountinfo_binds(mounts, w->device, w->path))
            found = w;
    }
    free(mounts);
    return found;
}

/* By the number in its own namespace.  False: nobody has it, or several have. */
static bool by_number_inside(struct comparison *c, const struct vcap_nvml_process *p)
{
    const struct owner key = {.pid = p->pid};
    const struct owner *only = NULL;
    bool several = false;
    for (size_t i = lower(c->by_pid, c->owner_count, &key, order_by_pid);
         i < c->owner_count && c->by_pid[i].pid == p->pid; i++) {
        if (!charge_on(&c->by_pid[i], c->gpu->uuid))
            continue;
        several = several || only;
        only = &c->by_pid[i];
    }
    if (several) {
        for (size_t i = lower(c->by_pid, c->owner_count, &key, order_by_pid);
             i < c->owner_count && c->by_pid[i].pid == p->pid; i++)
            if (charge_on(&c->by_pid[i], c->gpu->uuid))
                unknown_for(c, c->by_pid[i].w);
        return false;
    }
    if (only)
        with_slot(c, only, p);
    return only != NULL;
}

/* False: cannot be told whose it is. */
static bool attribute(struct comparison *c, const struct vcap_nvml_process *p)
{
    const struct owner key = {.host_pid = (pid_t)p->pid};
    struct vcap_process looked;
    const struct vcap_process *process = vcap_processes_find(c->processes, (pid_t)p->pid);
    size_t at = lower(c->by_host, c->owner_count, &key, order_by_host);
    if (p->pid == 0 || p->pid > INT32_MAX)
        return false;
    if (at < c->owner_count && c->by_host[at].host_pid == (pid_t)p->pid) {
        c->host_numbers = true;
        with_slot(c, &c->by_host[at], p);
        return true;
    }
    if (!process && vcap_process_look_safely((pid_t)p->pid, &looked) == 0)
        process = &looked;
    if (process && process->driver) {
        c->host_numbers = true;
        struct vcap_watched *w = vcap_compare_container(c->all, c->count, process);
        if (w)
            without_slot(c, w, p);
        return true; /* or of no container that we know */
    }
    return by_number_inside(c, p);
}

/* A living process with charges that the driver does not list: its list is not of our processes. */
static void check_unlisted(struct comparison *c)
{
    for (size_t i = 0; i < c->owner_count; i++) {
        const struct owner *o = &c->by_host[i];
        const struct vcap_snapshot_charge *charge = charge_on(o, c->gpu->uuid);
        bool listed = false;
        if (!charge || charge->held_bytes == 0 ||
            o->w->snapshot.processes[o->process].life != VCAP_LIFE_ALIVE)
            continue;
        for (uint32_t k = 0; k < c->gpu->process_count && !listed; k++)
            listed = c->gpu->processes[k].pid == (uint32_t)o->host_pid ||
                     c->gpu->processes[k].pid == o->pid;
        if (!listed)
            unknown_for(c, o->w);
    }
}

static void compare_gpu(struct comparison *c)
{
    uint32_t untold = 0;
    c->host_numbers = false;
    if (!c->gpu->processes_known)
        return;
    for (uint32_t i = 0; i < c->gpu->process_count; i++)
        untold += !attribute(c, &c->gpu->processes[i]);
    check_unlisted(c);
    /* with the host's numbers it is one that ended meanwhile; else it may be anybody's */
    for (size_t i = 0; untold > 0 && !c->host_numbers && i < c->count; i++) {
        struct vcap_watched *w = c->all[i];
        for (uint32_t k = 0; k < w->compared_count; k++)
            if (!strcmp(w->compared[k].uuid, c->gpu->uuid))
                w->compared[k].unprotected = VCAP_UNKNOWN;
    }
}

static void note_drift(struct vcap_watched *w, uint64_t now_ns)
{
    for (uint32_t i = 0; i < w->compared_count; i++) {
        struct vcap_compared *c = &w->compared[i];
        if (c->unaccounted_bytes == VCAP_UNKNOWN)
            continue;
        if (c->first_bytes == VCAP_UNKNOWN) {
            c->first_bytes = c->most_bytes = c->unaccounted_bytes;
            c->since_ns = now_ns;
        }
        if (c->unaccounted_bytes > c->most_bytes)
            c->most_bytes = c->unaccounted_bytes;
    }
}

void vcap_compare(struct vcap_watched *const *all, size_t count,
                  const struct vcap_processes *processes, const struct vcap_nvml_sample *sample,
                  uint64_t now_ns)
{
    struct comparison c = {.all = all, .count = count, .processes = processes};
    for (size_t i = 0; i < count; i++)
        begin(all[i], sample);
    if (sample && sample->state == VCAP_NVML_OK && list_owners(&c)) {
        for (uint32_t i = 0; i < sample->gpu_count; i++) {
            c.gpu = &sample->gpus[i];
            compare_gpu(&c);
        }
    }
    for (size_t i = 0; i < count; i++) {
        sweep(all[i]);
        note_drift(all[i], now_ns);
    }
    free(c.by_host);
    free(c.by_pid);
}
