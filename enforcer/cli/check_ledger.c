/*
 * The ledger, and what each source says of each GPU.  The numbers in force come from the ledger, where
 * they are written by processes that were refused by them; a GPU without a row shows what a process
 * with this environment would get.
 */
#include "enforcer/cli/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "enforcer/agent/mapping.h"
#include "enforcer/agent/probe.h"
#include "enforcer/ceiling.h"
#include "enforcer/cli/ledger_choice.h"
#include "enforcer/cli/units.h"
#include "enforcer/conf_file.h"
#include "enforcer/dmem.h"
#include "enforcer/ledger_path.h"

#define OVERLAYFS 0x794c7630L /* OVERLAYFS_SUPER_MAGIC, linux/magic.h */

/* By the order of product.md, for this process's own environment; "" if there is none. */
static void own_ledger(char *path, size_t size)
{
    const char *named = getenv("VRAMCAP_LEDGER");
    char key[VCAP_KEY_MAX];

    path[0] = '\0';
    if (vcap_path_exists(VCAP_LEDGER_HOST_PATH))
        (void)snprintf(path, size, "%s", VCAP_LEDGER_HOST_PATH);
    else if (named && *named)
        (void)snprintf(path, size, "%s", named);
    else if (vcap_key_compute("/proc", "/sys/fs/cgroup", key) >= 0)
        (void)snprintf(path, size, "%s%s", VCAP_LEDGER_SHM_PREFIX, key);
}

static void say_ledger(struct vcap_check *check, int fd)
{
    const struct vcap_snapshot *s = &check->snapshot;
    struct statfs fs;
    char link[64];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    bool writable = access(check->self ? check->ledger : link, R_OK | W_OK) == 0;
    const char *alive = fstatfs(fd, &fs) != 0 ? "unknown"
                        : (long)fs.f_type == OVERLAYFS
                            ? "pid and start time (overlayfs keeps no locks: put it on a tmpfs)"
                            : "a lock that the kernel drops";

    vcap_check_say(check, "ledger", NULL, writable ? VCAP_CHECK_OK : VCAP_CHECK_FINDING,
                   "%s, format %u, made by %s%s, %s; who lives is told by %s", check->ledger,
                   s->version, s->flags & VCAP_LF_HOST_MADE ? "the host" : "the container",
                   s->flags & VCAP_LF_PASS_THROUGH ? " and switched to pass-through"
                   : s->flags & VCAP_LF_AUDIT      ? " and switched to audit"
                                                   : "",
                   writable ? "writable" : "not writable by this user", alive);
    if (s->flags & (VCAP_LF_PASS_THROUGH | VCAP_LF_AUDIT))
        vcap_check_say(check, "mode", NULL, VCAP_CHECK_FINDING,
                       "the host lets everything through (%s)",
                       s->flags & VCAP_LF_PASS_THROUGH ? "pass-through" : "audit");
}

/* The ledger of this process's own container. */
static int open_own(struct vcap_check *check, char *why, size_t why_size)
{
    own_ledger(check->ledger, sizeof check->ledger);
    if (check->ledger[0] == '\0') {
        vcap_check_say(check, "ledger", NULL, VCAP_CHECK_FINDING,
                       "no ledger can be named for this container");
        return -ENOENT;
    }
    if (!vcap_path_exists(check->ledger)) {
        vcap_check_say(check, "ledger", NULL, VCAP_CHECK_FINDING,
                       "%s does not exist: no process of this container is under a ceiling",
                       check->ledger);
        return -ENOENT;
    }
    int fd = vcap_ledger_read_open(check->ledger, why, why_size);
    if (fd < 0)
        vcap_check_say(check, "ledger", NULL, VCAP_CHECK_FINDING, "%s: %s", check->ledger, why);
    return fd;
}

/* The one that another process has mapped, through the kernel's own link to it. */
static int open_mapped(struct vcap_check *check, char *why, size_t why_size)
{
    const struct vcap_process *process = &check->map.process;
    const struct vcap_mapping *mapping = &process->ledgers[0];
    bool local = false;

    if (check->map.error != 0)
        return check->map.error;
    if (process->ledger_count == 0) {
        vcap_check_say(check, "ledger", NULL, VCAP_CHECK_FINDING,
                       "process %d has no ledger mapped: it is passive, or has not come "
                       "to CUDA yet",
                       (int)check->pid);
        return -ENOENT;
    }
    (void)snprintf(check->ledger, sizeof check->ledger, "/proc/%d/map_files/%lx-%lx",
                   (int)check->pid, mapping->begin, mapping->end);
    int fd = vcap_mapping_open(check->pid, mapping, &local, why, why_size);
    vcap_probe_end();
    if (fd < 0) {
        check->unseen = true;
        vcap_check_say(check, "ledger", NULL, VCAP_CHECK_UNKNOWN, "%s cannot be looked at: %s",
                       check->ledger, why);
    }
    return fd;
}

void vcap_check_find_ledger(struct vcap_check *check)
{
    char why[256] = "";
    int fd = check->self ? open_own(check, why, sizeof why) : open_mapped(check, why, sizeof why);

    if (fd < 0)
        return;
    check->have_ledger = vcap_snapshot_read_fd(fd, &check->snapshot, why, sizeof why) == 0;
    if (check->have_ledger)
        say_ledger(check, fd);
    else
        vcap_check_say(check, "ledger", NULL, VCAP_CHECK_FINDING, "%s: %s", check->ledger, why);
    (void)close(fd);
}

/* "host 4096.0, env none, ...": what a source says, or nothing where it is not there. */
static void add_source(char *text, size_t size, const char *name, bool there, uint64_t bytes)
{
    char mib[VCAP_UNITS_TEXT];
    size_t at = strlen(text);

    if (there)
        (void)snprintf(text + at, size - at, "%s%s %s", at ? ", " : "", name,
                       vcap_units_mib(mib, bytes, "none"));
}

static const struct vcap_snapshot_gpu *row_of(const struct vcap_check *check, const char *uuid)
{
    for (uint32_t i = 0; check->have_ledger && i < check->snapshot.gpu_count; i++)
        if (!strcmp(check->snapshot.gpus[i].uuid, uuid))
            return &check->snapshot.gpus[i];
    return NULL;
}

static void say_row(struct vcap_check *check, const struct vcap_snapshot_gpu *g)
{
    char sources[200] = "", mib[VCAP_UNITS_TEXT], held[VCAP_UNITS_TEXT];
    const char *from = vcap_snapshot_source_name(g->ceiling_source);

    for (uint32_t s = VCAP_LF_SOURCE_FIRST; s <= VCAP_LF_SOURCE_LAST; s++)
        add_source(sources, sizeof sources, vcap_snapshot_source_name((enum vcap_lf_source)s),
                   g->source_bytes[s - VCAP_LF_SOURCE_FIRST] != VCAP_UNKNOWN,
                   g->source_bytes[s - VCAP_LF_SOURCE_FIRST]);
    add_source(sources, sizeof sources, "card", g->card_bytes != VCAP_UNKNOWN, g->card_bytes);
    if (g->ceiling_bytes == VCAP_NO_LIMIT)
        vcap_check_say(check, "ceiling", g->uuid, VCAP_CHECK_FINDING,
                       "none in force: no source has one for this GPU (%s)", sources);
    else
        vcap_check_say(check, "ceiling", g->uuid, g->over ? VCAP_CHECK_FINDING : VCAP_CHECK_OK,
                       "%s MiB, from %s; held %s MiB%s; sources in MiB: %s",
                       vcap_units_mib(mib, g->ceiling_bytes, "-"), from ? from : "?",
                       vcap_units_mib(held, g->held_bytes, "-"),
                       g->over ? ", which is over: nothing more is granted" : "", sources);
}

/* Then MPS takes the percentage anew for each context and the driver reports them all: what a context gets is
 * reckoned by libvramcap. */
static bool is_partitioned(const struct vcap_check *check)
{
    char value[8];
    return vcap_check_variable(check, "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
                               value, sizeof value) &&
           strcmp(value, "1") == 0;
}

/* In force by the ledger: what the processes were told, held against all that there is. */
static void say_compute_in_force(struct vcap_check *check, const struct vcap_snapshot_gpu *g)
{
    unsigned total = g->sm_total ? g->sm_total : vcap_check_sm_total(check, g->uuid);

    if (total == 0)
        vcap_check_say(check, "compute", g->uuid, VCAP_CHECK_UNKNOWN,
                       "ceiling of %u %%: the driver reports %u multiprocessors of a total that is "
                       "not known; whether it is in force cannot be told",
                       g->compute_percent, g->sm_granted);
    else if (g->sm_granted > (uint64_t)total * g->compute_percent / 100 + 1) /* rounded by MPS */
        vcap_check_say(check, "compute", g->uuid, VCAP_CHECK_FINDING,
                       "ceiling of %u %% is not in force: the driver reports %u multiprocessors of "
                       "%u; set CUDA_MPS_ACTIVE_THREAD_PERCENTAGE outside the process",
                       g->compute_percent, g->sm_granted, total);
    else if (is_partitioned(check))
        vcap_check_say(check, "compute", g->uuid, VCAP_CHECK_OK,
                       "ceiling of %u %% in force for each context: %u multiprocessors of %u, "
                       "reckoned by the percentage (with per-context partitioning the driver "
                       "reports them all)",
                       g->compute_percent, g->sm_granted, total);
    else
        vcap_check_say(check, "compute", g->uuid, VCAP_CHECK_OK,
                       "ceiling of %u %% in force: the %s %u multiprocessors of %u",
                       g->compute_percent, check->self ? "driver reports" : "ledger has",
                       g->sm_granted, total);
}

static void say_compute(struct vcap_check *check, const struct vcap_snapshot_gpu *g)
{
    if (g->compute_state == VCAP_LF_COMPUTE_FORCE)
        say_compute_in_force(check, g);
    else if (g->compute_state == VCAP_LF_COMPUTE_NO_MPS)
        vcap_check_say(check, "compute", g->uuid, VCAP_CHECK_FINDING,
                       "ceiling of %u %% is not in force: the process is no client of MPS",
                       g->compute_percent);
    else if (g->compute_state == VCAP_LF_COMPUTE_IGNORED)
        vcap_check_say(
            check, "compute", g->uuid, VCAP_CHECK_FINDING,
            "ceiling of %u %% is not in force: the driver reports %u multiprocessors of %u; "
            "set CUDA_MPS_ACTIVE_THREAD_PERCENTAGE outside the process",
            g->compute_percent, g->sm_granted, g->sm_total);
    else if (check->snapshot.compute_percent || check->config.compute_percent)
        vcap_check_say(check, "compute", g->uuid, VCAP_CHECK_UNKNOWN,
                       "asked for, and no process has come to CUDA with it yet");
}

/* The lowest that the configuration of this environment says, and what each source does. */
static uint64_t configured(const struct vcap_check *check, const struct vcap_check_device *d,
                           uint32_t ordinal, char *sources, size_t size)
{
    uint64_t bytes = VCAP_NO_LIMIT, lowest = VCAP_NO_LIMIT;

    sources[0] = '\0';

    for (uint32_t s = VCAP_LF_SOURCE_FIRST; s <= VCAP_LF_SOURCE_LAST; s++) {
        bool there = false;
        if (s == VCAP_LF_SOURCE_HOST) {
            bytes = check->have_ledger ? check->snapshot.default_ceiling_bytes : VCAP_NO_LIMIT;
            there = bytes != VCAP_NO_LIMIT;
        } else if (s == VCAP_LF_SOURCE_DMEM) {
            there = vcap_dmem_limit("/proc", "/sys/fs/cgroup", d->pci[0] ? d->pci : NULL, &bytes) ==
                        0 &&
                    bytes != VCAP_NO_LIMIT;
        } else if (s != VCAP_LF_SOURCE_NVML) {
            there = vcap_ceiling_by_source(&check->config, (enum vcap_lf_source)s, ordinal, d->uuid,
                                           d->mig != 0, &bytes);
        }
        add_source(sources, size, vcap_snapshot_source_name((enum vcap_lf_source)s), there, bytes);
        if (there && bytes < lowest)
            lowest = bytes;
    }
    return lowest;
}

bool vcap_check_has_ceiling(const struct vcap_check *check, int32_t ordinal)
{
    const struct vcap_check_device *d = &check->driver.device[ordinal];
    char uuid[VCAP_UUID_TEXT_SIZE], sources[200];
    const struct vcap_snapshot_gpu *row;

    vcap_uuid_format(uuid, d->uuid, d->mig != 0);
    row = row_of(check, uuid);
    return (row ? row->ceiling_bytes
                : configured(check, d, (uint32_t)ordinal, sources, sizeof sources)) !=
           VCAP_NO_LIMIT;
}

/* A device without a row. */
static void say_configured(struct vcap_check *check, const struct vcap_check_device *d,
                           uint32_t ordinal, const char *uuid)
{
    char sources[200], mib[VCAP_UNITS_TEXT];
    uint64_t lowest = configured(check, d, ordinal, sources, sizeof sources);

    if (lowest == VCAP_NO_LIMIT)
        vcap_check_say(check, "ceiling", uuid, VCAP_CHECK_FINDING,
                       "none: no source has one for this GPU");
    else
        vcap_check_say(check, "ceiling", uuid, VCAP_CHECK_NOTE,
                       "%s MiB by configuration; no process is under it yet; sources in MiB: %s",
                       vcap_units_mib(mib, lowest, "-"), sources);
}

/* Entries there are, and none for a GPU that the process sees: the library takes that for an error. */
static bool only_for_others(const struct vcap_check *check)
{
    const struct vcap_config *c = &check->config;

    if (c->enable == VCAP_ENABLE_PASSIVE || !check->have_driver ||
        check->driver.device_count == 0 || !(c->memory_set || c->mps_set || c->host_memory_set) ||
        (check->have_ledger && (check->snapshot.flags & VCAP_LF_HOST_MADE)))
        return false;
    for (int32_t i = 0; i < check->driver.device_count; i++) {
        const struct vcap_check_device *d = &check->driver.device[i];
        uint64_t kernel = UINT64_MAX;
        char uuid[VCAP_UUID_TEXT_SIZE];
        const struct vcap_snapshot_gpu *row;

        vcap_uuid_format(uuid, d->uuid, d->mig != 0);
        row = row_of(check, uuid);
        if (vcap_ceiling_effective(c, (uint32_t)i, d->uuid, d->mig != 0).bytes != VCAP_NO_LIMIT ||
            (row && row->ceiling_bytes != VCAP_NO_LIMIT) ||
            vcap_dmem_limit("/proc", "/sys/fs/cgroup", d->pci[0] ? d->pci : NULL, &kernel) != 0 ||
            kernel != UINT64_MAX)
            return false;
    }
    return true;
}

void vcap_check_ledger_lines(struct vcap_check *check)
{
    if (check->config_error != 0)
        vcap_check_say(check, "configuration", NULL, VCAP_CHECK_FINDING, "%s; vramcap then %s",
                       check->config_why,
                       check->config.on_error == VCAP_ON_ERROR_ALLOW
                           ? "lets everything through"
                           : "denies GPU memory to the process");
    else if (only_for_others(check))
        vcap_check_say(check, "configuration", NULL, VCAP_CHECK_FINDING,
                       "no entry of VRAMCAP_MEMORY_MIB or CUDA_MPS_PINNED_DEVICE_MEM_LIMIT names a "
                       "GPU that this process sees; vramcap then %s",
                       check->config.on_error == VCAP_ON_ERROR_ALLOW
                           ? "lets everything through"
                           : "denies GPU memory to the process");
    if (check->config_error == 0 && check->environment_error == 0 &&
        check->config.enable == VCAP_ENABLE_PASSIVE &&
        !(check->have_ledger && (check->snapshot.flags & VCAP_LF_HOST_MADE)) &&
        !vcap_path_exists(VCAP_CONF_PATH))
        vcap_check_say(check, "mode", NULL, VCAP_CHECK_FINDING,
                       "passive: VRAMCAP_ENABLE is not 1 and the host has said nothing");
    if (check->config_error == 0 && check->config.enable == VCAP_ENABLE_AUDIT &&
        !(check->have_ledger && (check->snapshot.flags & VCAP_LF_HOST_MADE)))
        vcap_check_say(check, "mode", NULL, VCAP_CHECK_FINDING,
                       "audit: what would be refused is recorded and let through");
    for (int32_t i = 0; check->have_driver && i < check->driver.device_count; i++) {
        const struct vcap_check_device *d = &check->driver.device[i];
        char uuid[VCAP_UUID_TEXT_SIZE];
        vcap_uuid_format(uuid, d->uuid, d->mig != 0);
        if (!row_of(check, uuid))
            say_configured(check, d, (uint32_t)i, uuid);
    }
    for (uint32_t i = 0; check->have_ledger && i < check->snapshot.gpu_count; i++) {
        say_row(check, &check->snapshot.gpus[i]);
        say_compute(check, &check->snapshot.gpus[i]);
    }
}
