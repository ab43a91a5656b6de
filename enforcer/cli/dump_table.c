/*
 * `vramcap dump` for people: GPUs, processes, and whatever deserves attention.  Amounts in MiB, `-`
 * for what nobody knows, `none` for no ceiling.
 */
#include "enforcer/cli/dump.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/cli/table.h"
#include "enforcer/cli/units.h"

#define GAP_NAMES_MAX 64

const char *vcap_dump_mode(const struct vcap_snapshot *s, const struct vcap_snapshot_process *p)
{
    if ((s->flags & VCAP_LF_HOST_MADE) && (s->flags & VCAP_LF_PASS_THROUGH))
        return "pass-through";
    return p->mode == VCAP_LF_MODE_AUDIT ? "audit" : "enforce";
}

static void add_mib(struct vcap_table *t, uint64_t bytes, const char *instead,
                    enum vcap_table_colour colour)
{
    char text[VCAP_UNITS_TEXT];
    vcap_table_add(t, vcap_units_mib(text, bytes, instead), colour);
}

static void add_number(struct vcap_table *t, uint64_t number)
{
    char text[VCAP_UNITS_TEXT];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    vcap_table_add(t, text, number ? VCAP_TABLE_PLAIN : VCAP_TABLE_FAINT);
}

static int print_gpus(const struct vcap_snapshot *s, FILE *to, bool colours)
{
    static const char *const columns[] = {"GPU",      "<UUID", "CEILING", "<FROM",    "CHARGED",
                                          "OVERHEAD", "FREE",  "PEAK",    "REFUSALS", "<"};
    if (s->gpu_count == 0) {
        (void)fputs("no GPU yet: no process has come to CUDA\n", to);
        return 0;
    }
    struct vcap_table *t = vcap_table_new(columns, sizeof columns / sizeof *columns);
    if (!t)
        return -ENOMEM;
    for (uint32_t i = 0; i < s->gpu_count; i++) {
        const struct vcap_snapshot_gpu *g = &s->gpus[i];
        const char *source = vcap_snapshot_source_name(g->ceiling_source);
        enum vcap_table_colour bad = g->over ? VCAP_TABLE_BAD : VCAP_TABLE_PLAIN;
        char index[VCAP_UNITS_TEXT];
        (void)snprintf(index, sizeof index, "%u", g->index);
        vcap_table_add(t, index, VCAP_TABLE_PLAIN);
        vcap_table_add(t, g->uuid, VCAP_TABLE_PLAIN);
        add_mib(t, g->ceiling_bytes, "none", VCAP_TABLE_PLAIN);
        vcap_table_add(t, source && strcmp(source, "none") != 0 ? source : "-", VCAP_TABLE_PLAIN);
        add_mib(t, g->charged_bytes, "-", bad);
        add_mib(t, g->overhead_bytes, "-", VCAP_TABLE_PLAIN);
        add_mib(t, g->free_bytes, "-", VCAP_TABLE_PLAIN);
        add_mib(t, g->peak_bytes, "-", VCAP_TABLE_PLAIN);
        add_number(t, g->refusals);
        vcap_table_add(t, g->over ? "OVER" : "", VCAP_TABLE_BAD);
    }
    return vcap_table_print(t, to, colours);
}

static void add_process(struct vcap_table *t, const struct vcap_snapshot *s,
                        const struct vcap_snapshot_process *p, const struct vcap_snapshot_charge *c,
                        bool limits)
{
    bool gone = p->life == VCAP_LIFE_DEAD;
    enum vcap_table_colour colour = gone ? VCAP_TABLE_FAINT : VCAP_TABLE_PLAIN;
    char text[VCAP_UNITS_TEXT];
    (void)snprintf(text, sizeof text, "%u", p->pid);
    vcap_table_add(t, text, colour);
    vcap_table_add(t, p->command[0] ? p->command : "-", colour);
    vcap_table_add(t, vcap_snapshot_life_name(p->life), gone ? VCAP_TABLE_BAD : colour);
    vcap_table_add(t, vcap_dump_mode(s, p), colour);
    if (!c) {
        for (int i = 0; i < 5 + limits; i++)
            vcap_table_add(t, "-", colour);
        return;
    }
    (void)snprintf(text, sizeof text, "%u", s->gpus[c->gpu].index);
    vcap_table_add(t, text, colour);
    add_mib(t, c->charged_bytes, "-", colour);
    add_mib(t, c->overhead_bytes, "-", colour);
    add_mib(t, c->peak_bytes, "-", colour);
    add_mib(t, c->imported_bytes, "-", colour);
    if (limits)
        add_mib(t, c->limit_bytes, "-", colour);
}

/* One line per process and GPU; a column for own ceilings only if there are any. */
static int print_processes(const struct vcap_snapshot *s, FILE *to, bool colours)
{
    static const char *const columns[] = {"PID",      "<COMMAND",   "<STATE",   "<MODE",
                                          "GPU",      "CHARGED",    "OVERHEAD", "PEAK",
                                          "IMPORTED", "OWN CEILING"};
    bool limits = false;
    if (s->process_count == 0) {
        (void)fputs("no process\n", to);
        return 0;
    }
    for (uint32_t i = 0; i < s->process_count; i++)
        for (uint32_t k = 0; k < s->processes[i].charge_count; k++)
            limits |= s->processes[i].charges[k].limit_bytes != VCAP_NO_LIMIT;
    struct vcap_table *t =
        vcap_table_new(columns, sizeof columns / sizeof *columns - (limits ? 0 : 1));
    if (!t)
        return -ENOMEM;
    for (uint32_t i = 0; i < s->process_count; i++) {
        const struct vcap_snapshot_process *p = &s->processes[i];
        for (uint32_t k = 0; k < p->charge_count; k++)
            add_process(t, s, p, &p->charges[k], limits);
        if (p->charge_count == 0)
            add_process(t, s, p, NULL, limits);
    }
    return vcap_table_print(t, to, colours);
}

/* Entry points that were called and are not accounted: how many by the slots, which by the ring. */
static void print_gaps(const struct vcap_snapshot *s, FILE *to)
{
    const char *names[GAP_NAMES_MAX];
    size_t n = 0;
    uint64_t most = 0;
    for (uint32_t i = 0; i < s->process_count; i++)
        most = s->processes[i].gaps > most ? s->processes[i].gaps : most;
    for (uint32_t i = 0; i < s->event_count && n < GAP_NAMES_MAX; i++) {
        const struct vcap_snapshot_event *e = &s->events[i];
        bool known = e->kind != VCAP_LF_EVENT_GAP;
        for (size_t k = 0; k < n && !known; k++)
            known = !strcmp(names[k], e->name);
        if (!known)
            names[n++] = e->name;
    }
    if (n == 0 && most == 0)
        return;
    (void)fputs("not accounted, but used: ", to);
    for (size_t i = 0; i < n; i++)
        (void)fprintf(to, "%s%s", i ? ", " : "", names[i]);
    if (most > n)
        (void)fprintf(to, "%sentry points whose names have left the event ring",
                      n ? ", and others: " : "");
    (void)fputc('\n', to);
}

/* Which sources have a ceiling for a GPU, where there is more than the one that holds. */
static void print_sources(const struct vcap_snapshot_gpu *g, FILE *to)
{
    char mib[VCAP_UNITS_TEXT];
    unsigned known = 0;
    for (uint32_t i = VCAP_LF_SOURCE_FIRST; i <= VCAP_LF_SOURCE_LAST; i++)
        known += g->source_bytes[i - VCAP_LF_SOURCE_FIRST] != VCAP_UNKNOWN;
    if (known < 2)
        return;
    (void)fprintf(to, "GPU %u: ceilings by source:", g->index);
    for (uint32_t i = VCAP_LF_SOURCE_FIRST; i <= VCAP_LF_SOURCE_LAST; i++)
        if (g->source_bytes[i - VCAP_LF_SOURCE_FIRST] != VCAP_UNKNOWN)
            (void)fprintf(to, " %s %s", vcap_snapshot_source_name((enum vcap_lf_source)i),
                          vcap_units_mib(mib, g->source_bytes[i - VCAP_LF_SOURCE_FIRST], "-"));
    (void)fputc('\n', to);
}

static void print_faults(const struct vcap_snapshot *s, FILE *to)
{
    char time[VCAP_UNITS_TEXT];
    for (uint32_t i = 0; i < s->process_count; i++)
        if (s->processes[i].fault_code)
            (void)fprintf(to, "process %u: device fault %u, first seen %s\n", s->processes[i].pid,
                          s->processes[i].fault_code,
                          vcap_units_time(time, s->processes[i].fault_ns));
}

static void print_notes(const struct vcap_snapshot *s, FILE *to)
{
    char mib[VCAP_UNITS_TEXT];
    for (uint32_t i = 0; i < s->gpu_count; i++) {
        const struct vcap_snapshot_gpu *g = &s->gpus[i];
        if (g->gone_bytes)
            (void)fprintf(to,
                          "GPU %u: %s MiB of gone processes, free for the next that needs room\n",
                          g->index, vcap_units_mib(mib, g->gone_bytes, "-"));
        if (g->audit_refusals)
            (void)fprintf(to, "GPU %u: %llu would have been refused (audit)\n", g->index,
                          (unsigned long long)g->audit_refusals);
        if (g->device_full)
            (void)fprintf(to, "GPU %u: %llu times the device was full below the ceiling\n",
                          g->index, (unsigned long long)g->device_full);
        if (g->near && !g->over)
            (void)fprintf(to, "GPU %u: near its ceiling (%u %% and more)\n", g->index,
                          s->near_percent);
        print_sources(g, to);
        if (g->disagrees)
            (void)fprintf(to, "GPU %u: the processes' charges do not add up to the container's\n",
                          g->index);
    }
    print_gaps(s, to);
    print_faults(s, to);
    if (s->anomalies)
        (void)fprintf(to, "anomalies: %llu; see: vramcap events\n",
                      (unsigned long long)s->anomalies);
    if (s->slots_in_flux)
        (void)fprintf(to, "slots that changed while they were read: %u\n", s->slots_in_flux);
    (void)fprintf(to, "events lost: %llu\n", (unsigned long long)s->events_lost);
}

int vcap_dump_table(const struct vcap_snapshot *s, const char *path, FILE *to, bool colours)
{
    (void)fprintf(to, "ledger %s, format %u%s%s%s; amounts in MiB\n", path, s->version,
                  s->flags & VCAP_LF_HOST_MADE ? ", made by the host" : "",
                  s->flags & VCAP_LF_AUDIT ? ", audit" : "",
                  s->flags & VCAP_LF_PASS_THROUGH ? ", pass-through" : "");
    if (s->container[0])
        (void)fprintf(to, "container %s\n", s->container);
    (void)fputc('\n', to);
    int error = print_gpus(s, to, colours);
    (void)fputc('\n', to);
    if (!error)
        error = print_processes(s, to, colours);
    (void)fputc('\n', to);
    if (!error)
        print_notes(s, to);
    return error;
}
