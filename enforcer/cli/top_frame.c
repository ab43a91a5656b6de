/*
 * The picture is made in two parts, so that events are seen even where there is little room: body
 * (GPUs, containers, processes) and the last events.  The body is cut to what the events leave, and
 * says how much was cut.  All names come printable from the reader; no width is computed from a
 * stranger's bytes.
 */
#include "enforcer/cli/top_frame.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/agent/report.h"
#include "enforcer/cli/units.h"
#include "enforcer/ledger.h"

#define EVENTS_SHOWN 6
#define BAR_MAX 60
#define NAME_MAX_COLUMNS 24

struct frame {
    FILE *to;
    const struct vcap_top_size *size;
};

static void colour(const struct frame *f, const char *code)
{
    if (f->size->colours)
        (void)fprintf(f->to, "\033[%sm", code);
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (double)(1u << 20);
}

/* "12.0", or what stands for no number */
static const char *amount(char text[VCAP_UNITS_TEXT], uint64_t bytes, const char *instead)
{
    return vcap_units_mib(text, bytes, instead);
}

static unsigned clamp(unsigned value, unsigned low, unsigned high)
{
    return value < low ? low : value > high ? high : value;
}

/* held of full, with a mark where the peak was; full of 0 is a full bar */
static void bar(const struct frame *f, unsigned width, uint64_t held, uint64_t peak, uint64_t full)
{
    char cells[BAR_MAX + 1];
    double part = full > 0 ? (double)held / (double)full : 1.0;
    double top = full > 0 ? (double)peak / (double)full : 1.0;
    unsigned filled = (unsigned)((part < 1.0 ? part : 1.0) * width + 0.5);
    unsigned mark = (unsigned)((top < 1.0 ? top : 1.0) * width + 0.5);

    memset(cells, ' ', width);
    memset(cells, '#', filled);
    if (mark > filled)
        cells[mark - 1] = '|';
    cells[width] = '\0';
    (void)fputc('[', f->to);
    colour(f, part >= 0.95 ? "31" : part >= 0.8 ? "33" : "32");
    (void)fputs(cells, f->to);
    colour(f, "0");
    (void)fputc(']', f->to);
}

/* ---- the body ---- */

static void gpu_line(const struct frame *f, const struct vcap_report_gpu *g)
{
    char held[VCAP_UNITS_TEXT], ceilings[VCAP_UNITS_TEXT], card[VCAP_UNITS_TEXT];

    (void)fprintf(f->to, "GPU %u %.12s  held %s  ceilings %s  card %s", g->index, g->uuid,
                  amount(held, g->sum_held_bytes, "?"),
                  amount(ceilings, g->sum_ceilings_bytes, "not bounded"),
                  amount(card, g->card_bytes, "unknown"));
    if (g->over_commitment_bytes != VCAP_UNKNOWN && g->over_commitment_bytes > 0) {
        colour(f, "33");
        (void)fprintf(f->to, "  over-committed by %.1f", mib(g->over_commitment_bytes));
        colour(f, "0");
    }
    (void)fputc('\n', f->to);
}

static void container_line(const struct frame *f, const struct vcap_ledger_set_item *item,
                           const struct vcap_snapshot_gpu *g)
{
    char held[VCAP_UNITS_TEXT], ceiling[VCAP_UNITS_TEXT];
    const unsigned name = clamp(f->size->columns / 4, 8, NAME_MAX_COLUMNS);
    const bool bounded = g->ceiling_bytes != VCAP_NO_LIMIT;
    const uint64_t full = bounded ? g->ceiling_bytes : g->card_bytes;

    (void)fprintf(f->to, "%-*.*s ", (int)name, (int)name, item->name);
    if (f->size->columns >= 60) {
        (void)fprintf(f->to, "GPU %-2u ", g->index);
        unsigned width = clamp(f->size->columns - name - 66, 4, BAR_MAX);
        if (f->size->columns >= name + 70 && full != VCAP_UNKNOWN)
            bar(f, width, g->held_bytes, g->peak_bytes, full);
    }
    (void)fprintf(f->to, " %s of %s", amount(held, g->held_bytes, "?"),
                  amount(ceiling, bounded ? g->ceiling_bytes : VCAP_UNKNOWN, "no ceiling"));
    (void)fprintf(f->to, "  peak %.1f", mib(g->peak_bytes));
    if (g->refusals > 0) {
        colour(f, "31");
        (void)fprintf(f->to, "  refused %" PRIu64, g->refusals);
        colour(f, "0");
    }
    if (g->over) {
        colour(f, "31");
        (void)fputs("  OVER", f->to);
        colour(f, "0");
    }
    (void)fputc('\n', f->to);
}

static void process_lines(const struct frame *f, const struct vcap_snapshot *s, uint32_t gpu)
{
    for (uint32_t i = 0; i < s->process_count; i++) {
        const struct vcap_snapshot_process *p = &s->processes[i];
        for (uint32_t c = 0; c < p->charge_count; c++)
            if (p->charges[c].gpu == gpu)
                (void)fprintf(f->to, "  %7u %-16.16s %8.1f%s\n", p->pid, p->command,
                              mib(p->charges[c].held_bytes),
                              p->life == VCAP_LIFE_DEAD ? "  gone" : "");
    }
}

static void containers(const struct frame *f, const struct vcap_ledger_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct vcap_ledger_set_item *item = &set->items[i];
        if (!item->trusted) {
            colour(f, "31");
            (void)fprintf(f->to, "%s: untrusted: %s\n", item->name, item->why);
            colour(f, "0");
            continue;
        }
        if (item->snapshot.gpu_count == 0)
            (void)fprintf(f->to, "%s: no GPU used yet\n", item->name);
        for (uint32_t g = 0; g < item->snapshot.gpu_count; g++) {
            container_line(f, item, &item->snapshot.gpus[g]);
            process_lines(f, &item->snapshot, g);
        }
    }
}

static void gpus(const struct frame *f, const struct vcap_ledger_set *set)
{
    struct vcap_report_source *sources = vcap_ledger_set_sources(set);
    struct vcap_report report;
    if (!sources ||
        vcap_report_make(&report, sources, (uint32_t)set->count, NULL, 0, VCAP_UNKNOWN) != 0) {
        free(sources);
        return;
    }
    for (uint32_t g = 0; g < report.gpu_count; g++)
        gpu_line(f, &report.gpus[g]);
    vcap_report_free(&report);
    free(sources);
}

static void header(const struct frame *f, const struct vcap_ledger_set *set, uint64_t realtime_ns)
{
    char time[VCAP_UNITS_TEXT];
    size_t alive = 0;
    for (size_t i = 0; i < set->count; i++)
        for (uint32_t p = 0; set->items[i].trusted && p < set->items[i].snapshot.process_count; p++)
            alive += set->items[i].snapshot.processes[p].life != VCAP_LIFE_DEAD;
    colour(f, "1");
    (void)fprintf(f->to, "vramcap top %.8sZ  %zu containers, %zu processes, MiB",
                  vcap_units_time(time, realtime_ns) + 11, set->count, alive);
    (void)fprintf(f->to, "%s", f->size->rows > 0 ? "  (q quits)" : "");
    colour(f, "0");
    (void)fputc('\n', f->to);
}

/* ---- events ---- */

struct last {
    const struct vcap_ledger_set_item *item;
    const struct vcap_snapshot_event *event;
};

/* Keeps the newest, newest first.  Equal times: as they come. */
static void keep(struct last last[EVENTS_SHOWN], struct last one)
{
    for (size_t i = 0; i < EVENTS_SHOWN; i++) {
        if (last[i].event && last[i].event->time_ns > one.event->time_ns)
            continue;
        memmove(&last[i + 1], &last[i], (EVENTS_SHOWN - i - 1) * sizeof *last);
        last[i] = one;
        return;
    }
}

static void event_line(const struct frame *f, const struct last *one)
{
    const struct vcap_snapshot_event *e = one->event;
    const char *kind = vcap_snapshot_event_name(e->kind);
    char time[VCAP_UNITS_TEXT];

    (void)fprintf(f->to, "%.8sZ %-.16s %s", vcap_units_time(time, e->time_ns) + 11, one->item->name,
                  kind ? kind : "unknown event");
    if (e->pid)
        (void)fprintf(f->to, " pid %u", e->pid);
    if (e->gpu != UINT32_MAX)
        (void)fprintf(f->to, " GPU %u", one->item->snapshot.gpus[e->gpu].index);
    if (e->name[0])
        (void)fprintf(f->to, " %s", e->name);
    if (e->bytes)
        (void)fprintf(f->to, " %.1f MiB", mib(e->bytes));
    (void)fputc('\n', f->to);
}

static void events(const struct frame *f, const struct vcap_ledger_set *set)
{
    struct last last[EVENTS_SHOWN] = {{NULL, NULL}};

    for (size_t i = 0; i < set->count; i++)
        for (uint32_t e = 0; set->items[i].trusted && e < set->items[i].snapshot.event_count; e++)
            keep(last, (struct last){&set->items[i], &set->items[i].snapshot.events[e]});
    for (size_t i = EVENTS_SHOWN; i-- > 0;) /* oldest first, as `vramcap events` */
        if (last[i].event)
            event_line(f, &last[i]);
}

/* ---- the whole ---- */

static unsigned count_lines(const char *text)
{
    unsigned n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static char *make(void (*part)(const struct frame *, const struct vcap_ledger_set *, uint64_t),
                  const struct vcap_top_size *size, const struct vcap_ledger_set *set,
                  uint64_t realtime_ns)
{
    char *text = NULL;
    size_t length = 0;
    struct frame f = {.to = open_memstream(&text, &length), .size = size};
    if (!f.to)
        return NULL;
    part(&f, set, realtime_ns);
    if (fclose(f.to) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static void body(const struct frame *f, const struct vcap_ledger_set *set, uint64_t realtime_ns)
{
    header(f, set, realtime_ns);
    gpus(f, set);
    containers(f, set);
}

static void tail(const struct frame *f, const struct vcap_ledger_set *set, uint64_t realtime_ns)
{
    (void)realtime_ns;
    events(f, set);
}

/* The first lines of text, into f. */
static void put_lines(FILE *to, const char *text, unsigned lines)
{
    for (; lines > 0 && *text; lines--) {
        size_t length = strcspn(text, "\n") + 1;
        (void)fwrite(text, 1, length, to);
        text += length;
    }
}

char *vcap_top_frame(const struct vcap_ledger_set *set, const struct vcap_top_size *size,
                     uint64_t realtime_ns)
{
    char *top = make(body, size, set, realtime_ns), *low = make(tail, size, set, realtime_ns);
    char *text = NULL;
    size_t length = 0;
    FILE *to = top && low ? open_memstream(&text, &length) : NULL;

    if (to) {
        const unsigned has = count_lines(top);
        unsigned for_events = count_lines(low), room = has;
        if (size->rows > 0) { /* events get no more than a third */
            for_events = clamp(for_events, 0, size->rows / 3);
            room = size->rows - for_events;
        }
        put_lines(to, top, has > room ? room - 1 : has);
        if (has > room)
            (void)fprintf(to, "... %u lines more\n", has - room + 1);
        for (const char *p = low; for_events > 0 && *p; p = strchr(p, '\n') + 1)
            if (count_lines(p) <= for_events)
                put_lines(to, p, 1);
        if (fclose(to) != 0) {
            free(text);
            text = NULL;
        }
    }
    free(top);
    free(low);
    return text;
}
