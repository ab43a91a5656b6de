/*
 * The lint, in three steps for each process: what is its pipe directory, does its limit parse and
 * fit the GPUs that it sees, how does the limit stand to ceiling and card; then what only shows
 * across the container.
 *
 * What must stay true: no finding rests on something unknown (an environment that could not be
 * read, GPUs that cannot be told from here), and no finding says that a limit is in force: only the
 * driver knows that.  Text of the container's appears escaped and cut.
 */
#include "enforcer/agent/mps_lint.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/ceiling.h"
#include "enforcer/config.h"
#include "enforcer/ledger.h"

#define SHOWN 200

struct list {
    struct vcap_mps_finding *at;
    uint32_t room, count;
};

/* A process's limit, taken apart. */
struct limit {
    bool there, parsed;
    struct vcap_entries entries;
    bool sees_known;
    uint32_t sees[VCAP_MPS_GPUS_MAX], sees_count;
};

static const struct {
    const char *name;
    enum vcap_mps_severity severity;
} kinds[VCAP_MPS_LINTS] = {
    [VCAP_MPS_LINT_UNREADABLE] = {"environment_unreadable", VCAP_MPS_WARNING},
    [VCAP_MPS_LINT_MALFORMED] = {"limit_malformed", VCAP_MPS_ERROR},
    [VCAP_MPS_LINT_NO_UNIT] = {"limit_without_unit", VCAP_MPS_ERROR},
    [VCAP_MPS_LINT_TOO_LARGE] = {"limit_too_large", VCAP_MPS_ERROR},
    [VCAP_MPS_LINT_INVISIBLE_GPU] = {"entry_for_invisible_gpu", VCAP_MPS_ERROR},
    [VCAP_MPS_LINT_GPU_WITHOUT] = {"visible_gpu_without_entry", VCAP_MPS_WARNING},
    [VCAP_MPS_LINT_NO_LIMIT] = {"no_limit", VCAP_MPS_NOTE},
    [VCAP_MPS_LINT_PIPE_MISSING] = {"pipe_directory_missing", VCAP_MPS_ERROR},
    [VCAP_MPS_LINT_PIPE_NO_CONTROL] = {"pipe_directory_without_control", VCAP_MPS_ERROR},
    [VCAP_MPS_LINT_PIPE_NO_DAEMON] = {"pipe_directory_of_no_watched_daemon", VCAP_MPS_WARNING},
    [VCAP_MPS_LINT_ABOVE_CEILING] = {"limit_above_ceiling", VCAP_MPS_WARNING},
    [VCAP_MPS_LINT_BELOW_CEILING] = {"limit_below_ceiling", VCAP_MPS_NOTE},
    [VCAP_MPS_LINT_ABOVE_CARD] = {"limit_above_card", VCAP_MPS_WARNING},
    [VCAP_MPS_LINT_PER_PROCESS] = {"limit_is_per_process", VCAP_MPS_NOTE},
    [VCAP_MPS_LINT_DIFFERS] = {"processes_differ", VCAP_MPS_WARNING},
    [VCAP_MPS_LINT_PERCENT] = {"thread_percentage_malformed", VCAP_MPS_WARNING},
};

const char *vcap_mps_lint_name(enum vcap_mps_lint kind)
{
    return kinds[kind].name;
}

const char *vcap_mps_severity_name(enum vcap_mps_severity severity)
{
    static const char *const severities[] = {"note", "warning", "error"};
    return severities[severity];
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (double)(1u << 20);
}

/* What a stranger wrote, for people: plain ASCII, cut. */
static const char *shown(char out[SHOWN], const struct vcap_mps_value *value)
{
    size_t at = 0;
    for (const char *p = value->text; *p && at + 8 < SHOWN; p++) {
        const unsigned char c = (unsigned char)*p;
        if (c >= 0x20 && c < 0x7f && c != '\\')
            out[at++] = *p;
        else
            at += (size_t)snprintf(out + at, 5, "\\x%02x", c);
    }
    memcpy(out + at, "...", 4);
    if (!value->cut && strlen(value->text) + 8 < SHOWN)
        out[at] = '\0';
    return out;
}

static struct vcap_mps_finding *find(struct list *l, enum vcap_mps_lint kind, pid_t pid,
                                     const struct vcap_mps_gpu *gpu, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static struct vcap_mps_finding *find(struct list *l, enum vcap_mps_lint kind, pid_t pid,
                                     const struct vcap_mps_gpu *gpu, const char *format, ...)
{
    static struct vcap_mps_finding dropped;
    struct vcap_mps_finding *f = l->count < l->room ? &l->at[l->count] : &dropped;
    va_list arguments;

    l->count++;
    *f = (struct vcap_mps_finding){.kind = kind, .severity = kinds[kind].severity, .pid = pid};
    if (gpu)
        vcap_uuid_format(f->uuid, gpu->uuid, gpu->mig);
    va_start(arguments, format);
    (void)vsnprintf(f->evidence, sizeof f->evidence, format, arguments);
    va_end(arguments);
    return f;
}

/* ---- the pipe directory ---- */

static bool is_set(const struct vcap_mps_look *p, enum vcap_mps_variable v)
{
    return p->variable[v].set && p->variable[v].text[0];
}

/* Would it be an MPS client?  The driver looks for the default directory even if nothing is set. */
static bool meant_for_mps(const struct vcap_mps_look *p)
{
    return is_set(p, VCAP_MPS_VAR_PIPE) || is_set(p, VCAP_MPS_VAR_LIMIT) ||
           is_set(p, VCAP_MPS_VAR_PERCENT) || p->pipe == VCAP_MPS_PIPE_THERE;
}

static void lint_pipe(const struct vcap_mps_container *c, const struct vcap_mps_look *p,
                      struct list *l)
{
    char text[SHOWN];
    const char *path = is_set(p, VCAP_MPS_VAR_PIPE) ? shown(text, &p->variable[VCAP_MPS_VAR_PIPE])
                                                    : "/tmp/nvidia-mps (the default)";
    const char *then = is_set(p, VCAP_MPS_VAR_LIMIT)
                           ? "the process runs without MPS and its limit is not in force"
                           : "the process runs without MPS";

    switch (p->pipe) {
    case VCAP_MPS_PIPE_MISSING:
        (void)find(l, VCAP_MPS_LINT_PIPE_MISSING, p->pid, NULL,
                   "there is no %s in the container: %s", path, then);
        break;
    case VCAP_MPS_PIPE_NO_DIRECTORY:
        (void)find(l, VCAP_MPS_LINT_PIPE_MISSING, p->pid, NULL,
                   "%s is no directory in the container: %s", path, then);
        break;
    case VCAP_MPS_PIPE_NO_CONTROL:
        (void)find(l, VCAP_MPS_LINT_PIPE_NO_CONTROL, p->pid, NULL,
                   "%s has no control pipe in the container: %s", path, then);
        break;
    case VCAP_MPS_PIPE_THERE:
        if (c->daemon_inode != 0 &&
            (p->pipe_device != c->daemon_device || p->pipe_inode != c->daemon_inode))
            (void)find(l, VCAP_MPS_LINT_PIPE_NO_DAEMON, p->pid, NULL,
                       "%s in the container is not the pipe directory of the daemon that is "
                       "watched here",
                       path);
        break;
    case VCAP_MPS_PIPE_UNKNOWN:
        break;
    }
}

/* ---- the limit ---- */

static bool blank(char c)
{
    return c == ' ' || c == '\t';
}

/* Is it DEVICE=DIGITS somewhere, that is, a list that lacks units? */
static bool lacks_unit(const char *text)
{
    for (const char *equals = strchr(text, '='); equals; equals = strchr(equals + 1, '=')) {
        const char *p = equals + 1;
        while (blank(*p))
            p++;
        size_t digits = strspn(p, "0123456789");
        for (p += digits; blank(*p);)
            p++;
        if (digits > 0 && (*p == '\0' || *p == ','))
            return true;
    }
    return false;
}

static void parse_limit(const struct vcap_mps_container *c, const struct vcap_mps_look *p,
                        struct limit *limit, struct list *l)
{
    const struct vcap_mps_value *value = &p->variable[VCAP_MPS_VAR_LIMIT];
    char text[SHOWN], why[200] = "";
    int error;

    limit->there = is_set(p, VCAP_MPS_VAR_LIMIT);
    limit->sees_known = vcap_mps_visible(c, p, limit->sees, &limit->sees_count);
    if (!limit->there)
        return;
    (void)shown(text, value);
    if (value->cut) {
        (void)find(l, VCAP_MPS_LINT_MALFORMED, p->pid, NULL,
                   "the limit is longer than %d bytes and was not read", VCAP_MPS_VALUE - 1);
        return;
    }
    error = vcap_config_parse_entries(value->text, true, &limit->entries, why, sizeof why);
    limit->parsed = error == 0;
    if (error == 0)
        return;
    if (error == -EOVERFLOW)
        (void)find(l, VCAP_MPS_LINT_TOO_LARGE, p->pid, NULL,
                   "'%.90s': 8 TiB or more; bytes where megabytes are meant?", text);
    else if (lacks_unit(value->text))
        (void)find(l, VCAP_MPS_LINT_NO_UNIT, p->pid, NULL,
                   "'%.90s': a size without a unit; write 1000M or 4G", text);
    else
        (void)find(l, VCAP_MPS_LINT_MALFORMED, p->pid, NULL, "'%.90s': %s", text, why);
}

static bool lint_entries(const struct vcap_mps_container *c, const struct vcap_mps_look *p,
                         const struct limit *limit, struct list *l)
{
    uint8_t uuids[VCAP_MPS_GPUS_MAX][16];
    bool mig[VCAP_MPS_GPUS_MAX];
    char text[SHOWN];
    uint32_t which;

    for (uint32_t i = 0; i < limit->sees_count; i++) {
        memcpy(uuids[i], c->gpus[limit->sees[i]].uuid, 16);
        mig[i] = c->gpus[limit->sees[i]].mig;
    }
    if (!vcap_ceiling_mps_names_invisible(&limit->entries, limit->sees_count,
                                          (const uint8_t(*)[16])uuids, mig, &which))
        return true;
    (void)shown(text, &p->variable[VCAP_MPS_VAR_LIMIT]);
    (void)find(l, VCAP_MPS_LINT_INVISIBLE_GPU, p->pid, NULL,
               "entry %u of '%.90s' names none, or not one alone, of the %u GPUs that the process "
               "sees: MPS then drops every limit of the process",
               which + 1, text, limit->sees_count);
    return false;
}

static void lint_amount(const struct vcap_mps_gpu *gpu, uint64_t bytes,
                        const struct vcap_mps_look *p, struct list *l)
{
    if (gpu->card_bytes != VCAP_UNKNOWN && bytes > gpu->card_bytes)
        (void)find(l, VCAP_MPS_LINT_ABOVE_CARD, p->pid, gpu,
                   "a limit of %.1f MiB on a card of %.1f MiB", mib(bytes), mib(gpu->card_bytes));
    if (gpu->ceiling_bytes == VCAP_NO_LIMIT)
        return;
    if (bytes > gpu->ceiling_bytes)
        (void)find(l, VCAP_MPS_LINT_ABOVE_CEILING, p->pid, gpu,
                   "a limit of %.1f MiB above the ceiling of %.1f MiB: without vramcap in the "
                   "process it is what holds",
                   mib(bytes), mib(gpu->ceiling_bytes));
    else if (bytes < gpu->ceiling_bytes)
        (void)find(l, VCAP_MPS_LINT_BELOW_CEILING, p->pid, gpu,
                   "a limit of %.1f MiB below the ceiling of %.1f MiB: no single process can hold "
                   "all of the ceiling",
                   mib(bytes), mib(gpu->ceiling_bytes));
}

static void lint_limit(const struct vcap_mps_container *c, const struct vcap_mps_look *p,
                       const struct limit *limit, struct list *l)
{
    if (!limit->parsed || !limit->sees_known || !lint_entries(c, p, limit, l))
        return;
    for (uint32_t i = 0; i < limit->sees_count; i++) {
        const struct vcap_mps_gpu *gpu = &c->gpus[limit->sees[i]];
        uint64_t bytes = vcap_ceiling_match(&limit->entries, i, gpu->uuid, gpu->mig, VCAP_NO_LIMIT);
        if (bytes != VCAP_NO_LIMIT)
            lint_amount(gpu, bytes, p, l);
        else
            (void)find(l, VCAP_MPS_LINT_GPU_WITHOUT, p->pid, gpu,
                       "no entry of the limit names ordinal %u: no MPS limit there", i);
    }
}

static void lint_no_limit(const struct vcap_mps_container *c, const struct vcap_mps_look *p,
                          const struct limit *limit, struct list *l)
{
    bool capped = limit->sees_known && limit->sees_count > 0;

    for (uint32_t i = 0; limit->sees_known && i < limit->sees_count; i++)
        capped = capped && c->gpus[limit->sees[i]].ceiling_bytes != VCAP_NO_LIMIT;
    struct vcap_mps_finding *f =
        find(l, VCAP_MPS_LINT_NO_LIMIT, p->pid, NULL, "an MPS client without %s%s",
             vcap_mps_variable_name(VCAP_MPS_VAR_LIMIT),
             capped ? "; vramcap's ceiling is the only one in the process"
                    : "; unless the daemon sets a default, the whole GPU is open to it");
    if (!capped)
        f->severity = VCAP_MPS_WARNING;
}

static void lint_percent(const struct vcap_mps_look *p, struct list *l)
{
    const struct vcap_mps_value *value = &p->variable[VCAP_MPS_VAR_PERCENT];
    char text[SHOWN], *end;

    if (!is_set(p, VCAP_MPS_VAR_PERCENT))
        return;
    double percent = strtod(value->text, &end);
    if (*end == '\0' && percent > 0 && percent <= 100)
        return;
    (void)find(l, VCAP_MPS_LINT_PERCENT, p->pid, NULL, "%s is '%.90s', not a number up to 100",
               vcap_mps_variable_name(VCAP_MPS_VAR_PERCENT), shown(text, value));
}

/* ---- across the processes ---- */

static void lint_together(const struct vcap_mps_container *c, const struct limit *limits,
                          struct list *l)
{
    for (uint32_t g = 0; g < c->gpu_count; g++) {
        const struct vcap_mps_gpu *gpu = &c->gpus[g];
        uint64_t sum = 0;
        uint32_t clients = 0;

        for (uint32_t k = 0; k < c->process_count; k++)
            for (uint32_t i = 0;
                 limits[k].parsed && limits[k].sees_known && i < limits[k].sees_count; i++) {
                uint64_t bytes =
                    vcap_ceiling_match(&limits[k].entries, i, gpu->uuid, gpu->mig, VCAP_NO_LIMIT);
                if (limits[k].sees[i] != g || bytes == VCAP_NO_LIMIT)
                    continue;
                clients++;
                if (__builtin_add_overflow(sum, bytes, &sum))
                    sum = UINT64_MAX;
            }
        if (clients > 1 && gpu->ceiling_bytes != VCAP_NO_LIMIT && sum > gpu->ceiling_bytes)
            (void)find(l, VCAP_MPS_LINT_PER_PROCESS, 0, gpu,
                       "MPS limits each process by itself: %u of them may hold %.1f MiB together, "
                       "above the ceiling of %.1f MiB",
                       clients, mib(sum), mib(gpu->ceiling_bytes));
    }
}

static void lint_differences(const struct vcap_mps_container *c, struct list *l)
{
    static const enum vcap_mps_variable compared[] = {VCAP_MPS_VAR_PIPE, VCAP_MPS_VAR_LIMIT};

    for (size_t v = 0; v < sizeof compared / sizeof *compared; v++) {
        const struct vcap_mps_look *first = NULL;
        for (uint32_t k = 0; k < c->process_count; k++) {
            const struct vcap_mps_look *p = &c->processes[k];
            char a[SHOWN], b[SHOWN];
            if (p->environment_error != 0)
                continue;
            if (!first) {
                first = p;
                continue;
            }
            const struct vcap_mps_value *x = &first->variable[compared[v]],
                                        *y = &p->variable[compared[v]];
            if (x->set == y->set && strcmp(x->text, y->text) == 0)
                continue;
            (void)find(l, VCAP_MPS_LINT_DIFFERS, p->pid, NULL, "%s is '%.60s' here, '%.60s' in %ld",
                       vcap_mps_variable_name(compared[v]), y->set ? shown(b, y) : "(not set)",
                       x->set ? shown(a, x) : "(not set)", (long)first->pid);
            break;
        }
    }
}

static int by_severity(const void *a, const void *b)
{
    const struct vcap_mps_finding *x = a, *y = b;
    if (x->severity != y->severity)
        return x->severity > y->severity ? -1 : 1;
    if (x->pid != y->pid)
        return x->pid < y->pid ? -1 : 1;
    return (x->kind > y->kind) - (x->kind < y->kind);
}

uint32_t vcap_mps_lint(const struct vcap_mps_container *c, struct vcap_mps_finding *findings,
                       uint32_t room)
{
    struct list l = {.at = findings, .room = room};
    struct limit *limits = calloc(c->process_count + 1u, sizeof *limits);
    bool any = false;

    for (uint32_t k = 0; limits && k < c->process_count; k++) {
        const struct vcap_mps_look *p = &c->processes[k];
        if (p->environment_error == -ESRCH)
            continue;
        if (p->environment_error != 0) {
            (void)find(&l, VCAP_MPS_LINT_UNREADABLE, p->pid, NULL,
                       "its environment cannot be read (%s): its MPS settings are unknown",
                       strerror(-p->environment_error));
            continue;
        }
        if (!meant_for_mps(p))
            continue;
        any = true;
        lint_pipe(c, p, &l);
        parse_limit(c, p, &limits[k], &l);
        lint_limit(c, p, &limits[k], &l);
        if (!limits[k].there && p->pipe == VCAP_MPS_PIPE_THERE)
            lint_no_limit(c, p, &limits[k], &l);
        lint_percent(p, &l);
    }
    if (limits && any) {
        lint_together(c, limits, &l);
        lint_differences(c, &l);
    }
    free(limits);
    if (room > 0)
        qsort(findings, l.count < room ? l.count : room, sizeof *findings, by_severity);
    return l.count;
}

/* ---- what enforces ---- */

unsigned vcap_enforced_by(const struct vcap_snapshot *snapshot, uint32_t gpu, bool mps_in_force)
{
    const struct vcap_snapshot_gpu *g = &snapshot->gpus[gpu];
    bool host_lets_through = (snapshot->flags & VCAP_LF_HOST_MADE) &&
                             (snapshot->flags & (VCAP_LF_AUDIT | VCAP_LF_PASS_THROUGH));
    bool audited = false, lives = false;
    unsigned by = mps_in_force ? VCAP_ENFORCED_BY_MPS : 0;

    for (uint32_t p = 0; p < snapshot->process_count; p++) {
        const struct vcap_snapshot_process *process = &snapshot->processes[p];
        if (process->life == VCAP_LIFE_DEAD)
            continue;
        lives = true;
        audited = audited || process->mode == VCAP_LF_MODE_AUDIT;
    }
    if (lives && g->ceiling_bytes != VCAP_NO_LIMIT && !host_lets_through && !audited)
        by |= VCAP_ENFORCED_BY_VRAMCAP;
    if (g->source_bytes[VCAP_LF_SOURCE_DMEM - VCAP_LF_SOURCE_FIRST] != VCAP_UNKNOWN ||
        g->source_bytes[VCAP_LF_SOURCE_NVML - VCAP_LF_SOURCE_FIRST] != VCAP_UNKNOWN)
        by |= VCAP_ENFORCED_BY_DMEM;
    return by;
}

const char *vcap_enforced_by_name(unsigned bit)
{
    switch (bit) {
    case VCAP_ENFORCED_BY_VRAMCAP:
        return "vramcap";
    case VCAP_ENFORCED_BY_MPS:
        return "mps";
    case VCAP_ENFORCED_BY_DMEM:
        return "dmem";
    default:
        return "none";
    }
}
