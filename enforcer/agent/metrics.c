/*
 * Prometheus' text exposition.  One family after the other, each with its help and type, its series by
 * container; a family without series is left out.  What is now (ceiling, charge, processes) is shown of
 * containers that are there; what has been (peaks, counters) also of those that are gone, until they
 * are forgotten, so that the last scrape misses nothing.
 */
#include "enforcer/agent/export.h"

#include <stdio.h>
#include <string.h>

#include "enforcer/agent/remember.h"

struct family {
    struct vcap_text *text;
    const char *name, *type, *help;
    bool begun;
};

static void begin_line(struct family *f)
{
    if (!f->begun) {
        vcap_text_add(f->text, "# HELP ");
        vcap_text_add(f->text, f->name);
        vcap_text_add(f->text, " ");
        vcap_text_add(f->text, f->help);
        vcap_text_add(f->text, "\n# TYPE ");
        vcap_text_add(f->text, f->name);
        vcap_text_add(f->text, " ");
        vcap_text_add(f->text, f->type);
        vcap_text_add(f->text, "\n");
        f->begun = true;
    }
    vcap_text_add(f->text, f->name);
}

static void end_line(struct family *f, uint64_t value)
{
    vcap_text_add(f->text, " ");
    vcap_text_number(f->text, value);
    vcap_text_add(f->text, "\n");
}

/* Labels hold nothing that needs escaping: they are cleaned where they are made, UUIDs and numbers are
 * the reader's and the driver's. */
static void label(struct family *f, const char *name, const char *value)
{
    vcap_text_add(f->text, name);
    vcap_text_quoted(f->text, value);
}

static void per_container(struct family *f, const struct vcap_watched *w, uint64_t value)
{
    begin_line(f);
    label(f, "{container=", w->label);
    vcap_text_add(f->text, "}");
    end_line(f, value);
}

/* The GPU's number on this host where the driver says it, else that in the process that used it first. */
static uint32_t index_of(const struct vcap_agent *a, const char *uuid, uint32_t in_ledger)
{
    const struct vcap_nvml_gpu *gpu = vcap_nvml_find(a->nvml, uuid);
    return gpu ? gpu->index : in_ledger;
}

static void gpu_labels(struct family *f, const struct vcap_watched *w, const char *uuid,
                       uint32_t index)
{
    begin_line(f);
    label(f, "{container=", w->label);
    label(f, ",gpu_uuid=", uuid);
    vcap_text_add(f->text, ",gpu=\"");
    vcap_text_number(f->text, index);
    vcap_text_add(f->text, "\"");
}

enum column { CEILING, CHARGED, OVERHEAD, PEAK };

/* False: there is nothing to say. */
static bool value_of(const struct vcap_watched *w, const struct vcap_snapshot_gpu *g,
                     enum column column, uint64_t *value)
{
    const bool present = vcap_watched_is_present(w);
    switch (column) {
    case CEILING:
        *value = g->ceiling_bytes;
        return present && g->ceiling_bytes != VCAP_NO_LIMIT;
    case CHARGED:
        *value = g->charged_bytes;
        return present;
    case OVERHEAD:
        *value = g->overhead_bytes;
        return present && g->overhead_bytes != VCAP_UNKNOWN;
    case PEAK:
        *value = g->peak_bytes;
        return w->have_snapshot;
    }
    return false;
}

static void gpu_family(const struct vcap_agent *a, struct family f, enum column column)
{
    for (size_t i = 0; i < a->count; i++) {
        const struct vcap_watched *w = a->all[i];
        for (uint32_t k = 0; w->have_snapshot && k < w->snapshot.gpu_count; k++) {
            const struct vcap_snapshot_gpu *g = &w->snapshot.gpus[k];
            uint64_t value;
            if (!value_of(w, g, column, &value))
                continue;
            gpu_labels(&f, w, g->uuid, index_of(a, g->uuid, g->index));
            vcap_text_add(f.text, "}");
            end_line(&f, value);
        }
    }
}

/* Counters are those of the memory: they outlive ledgers and agents.  A GPU of this container without a
 * refusal so far is 0. */
static void counter_family(const struct vcap_agent *a, struct family f, bool bytes)
{
    for (size_t i = 0; i < a->count; i++) {
        const struct vcap_watched *w = a->all[i];
        for (uint32_t k = 0; w->have_snapshot && k < w->snapshot.gpu_count; k++) {
            const struct vcap_snapshot_gpu *g = &w->snapshot.gpus[k];
            const struct vcap_memory_gpu *m = vcap_remember_gpu(&w->memory, g->uuid);
            gpu_labels(&f, w, g->uuid, index_of(a, g->uuid, g->index));
            vcap_text_add(f.text, "}");
            end_line(&f, !m ? 0 : bytes ? m->refused_bytes : m->refusals);
        }
    }
}

static bool alive(const struct vcap_snapshot_process *p)
{
    return p->life != VCAP_LIFE_DEAD;
}

static void processes_family(const struct vcap_agent *a, struct family f)
{
    for (size_t i = 0; i < a->count; i++) {
        const struct vcap_watched *w = a->all[i];
        uint64_t users[VCAP_LF_GPUS_MAX] = {0};
        if (!vcap_watched_is_present(w))
            continue;
        for (uint32_t p = 0; p < w->snapshot.process_count; p++)
            for (uint32_t c = 0; c < w->snapshot.processes[p].charge_count; c++)
                users[w->snapshot.processes[p].charges[c].gpu] += alive(&w->snapshot.processes[p]);
        for (uint32_t k = 0; k < w->snapshot.gpu_count; k++) {
            const struct vcap_snapshot_gpu *g = &w->snapshot.gpus[k];
            gpu_labels(&f, w, g->uuid, index_of(a, g->uuid, g->index));
            vcap_text_add(f.text, "}");
            end_line(&f, users[k]);
        }
    }
}

static void process_label(struct family *f, const struct vcap_watched *w, uint32_t number)
{
    const struct vcap_snapshot_process *p = &w->snapshot.processes[number];
    vcap_text_add(f->text, ",pid=\"");
    if (w->host_pids[number] > 0) {
        vcap_text_number(f->text, (uint64_t)w->host_pids[number]);
    } else { /* its number inside, and where that is: no other process's */
        vcap_text_number(f->text, p->pid);
        vcap_text_add(f->text, "@");
        vcap_text_number(f->text, p->pidns);
        vcap_text_add(f->text, "/");
        vcap_text_number(f->text, p->slot);
    }
    vcap_text_add(f->text, "\"}");
}

static void process_family(const struct vcap_agent *a, struct family f)
{
    for (size_t i = 0; i < a->count; i++) {
        const struct vcap_watched *w = a->all[i];
        if (!vcap_watched_is_present(w))
            continue;
        for (uint32_t p = 0; p < w->snapshot.process_count; p++)
            for (uint32_t c = 0;
                 alive(&w->snapshot.processes[p]) && c < w->snapshot.processes[p].charge_count;
                 c++) {
                const struct vcap_snapshot_charge *charge = &w->snapshot.processes[p].charges[c];
                const struct vcap_snapshot_gpu *g = &w->snapshot.gpus[charge->gpu];
                gpu_labels(&f, w, g->uuid, index_of(a, g->uuid, g->index));
                process_label(&f, w, p);
                end_line(&f, charge->charged_bytes);
            }
    }
}

static void compared_family(const struct vcap_agent *a, struct family f, bool bytes)
{
    for (size_t i = 0; i < a->count; i++) {
        const struct vcap_watched *w = a->all[i];
        for (uint32_t k = 0; vcap_watched_is_present(w) && k < w->compared_count; k++) {
            const struct vcap_compared *c = &w->compared[k];
            uint64_t value = bytes ? c->unaccounted_bytes : c->unprotected;
            if (value == VCAP_UNKNOWN)
                continue;
            gpu_labels(&f, w, c->uuid, c->index);
            vcap_text_add(f.text, "}");
            end_line(&f, value);
        }
    }
}

/* The cards that somebody knows the size of, each once; more than that are left out. */
struct card {
    const char *uuid;
    uint32_t index;
    uint64_t bytes;
};
#define CARDS_MAX 128

static void note_card(struct card *cards, size_t *count, const char *uuid, uint32_t index,
                      uint64_t bytes)
{
    size_t i = 0;
    while (i < *count && strcmp(cards[i].uuid, uuid) != 0)
        i++;
    if (bytes == VCAP_UNKNOWN || i == CARDS_MAX)
        return;
    if (i == *count)
        cards[(*count)++] = (struct card){uuid, index, bytes};
    else if (bytes < cards[i].bytes)
        cards[i].bytes = bytes;
}

/* NVML's word where there is one, else the smallest of the ledgers'. */
static void card_family(const struct vcap_agent *a, struct family f)
{
    struct card cards[CARDS_MAX];
    size_t count = 0;

    for (uint32_t i = 0; a->nvml && i < a->nvml->gpu_count; i++)
        note_card(cards, &count, a->nvml->gpus[i].uuid, a->nvml->gpus[i].index,
                  a->nvml->gpus[i].total_bytes);
    const size_t from_nvml = count;
    for (size_t i = 0; i < a->count; i++)
        for (uint32_t k = 0;
             vcap_watched_is_present(a->all[i]) && k < a->all[i]->snapshot.gpu_count; k++) {
            const struct vcap_snapshot_gpu *g = &a->all[i]->snapshot.gpus[k];
            size_t known = 0;
            while (known < from_nvml && strcmp(cards[known].uuid, g->uuid) != 0)
                known++;
            if (known == from_nvml)
                note_card(cards, &count, g->uuid, index_of(a, g->uuid, g->index), g->card_bytes);
        }
    for (size_t i = 0; i < count; i++) {
        begin_line(&f);
        label(&f, "{gpu_uuid=", cards[i].uuid);
        vcap_text_add(f.text, ",gpu=\"");
        vcap_text_number(f.text, cards[i].index);
        vcap_text_add(f.text, "\"}");
        end_line(&f, cards[i].bytes);
    }
}

#define FAMILY(name, type, help) ((struct family){text, (name), (type), (help), false})

void vcap_export_metrics(const struct vcap_agent *a, enum vcap_mps_state mps,
                         struct vcap_text *text)
{
    gpu_family(a,
               FAMILY("vramcap_ceiling_bytes", "gauge",
                      "The most device memory that the container's processes may hold together."),
               CEILING);
    gpu_family(a,
               FAMILY("vramcap_charged_bytes", "gauge",
                      "Device memory that the container's living processes hold."),
               CHARGED);
    gpu_family(a,
               FAMILY("vramcap_peak_bytes", "gauge",
                      "The most that the container has held, overhead included."),
               PEAK);
    gpu_family(a,
               FAMILY("vramcap_overhead_bytes", "gauge",
                      "Known device memory of contexts and the like, not in the charge."),
               OVERHEAD);
    counter_family(a,
                   FAMILY("vramcap_refusals_total", "counter",
                          "Allocations that the ceiling did not let through."),
                   false);
    counter_family(
        a,
        FAMILY("vramcap_refused_bytes_total", "counter", "Bytes that those allocations asked for."),
        true);
    processes_family(a, FAMILY("vramcap_processes", "gauge",
                               "Living processes of the container that use the GPU."));
    process_family(a, FAMILY("vramcap_process_charged_bytes", "gauge",
                             "Device memory that one process holds; pid is the host's."));
    compared_family(a,
                    FAMILY("vramcap_unaccounted_bytes", "gauge",
                           "Memory of the container's processes that the driver sees and the "
                           "ledger does not."),
                    true);
    compared_family(a,
                    FAMILY("vramcap_unprotected_processes", "gauge",
                           "Processes of the container on the GPU that hold no slot."),
                    false);
    struct family lost = FAMILY("vramcap_events_lost_total", "counter",
                                "Events that left the ledger's ring before they were read.");
    for (size_t i = 0; i < a->count; i++)
        per_container(&lost, a->all[i], a->all[i]->memory.events_lost);
    struct family errors = FAMILY("vramcap_ledger_errors_total", "counter",
                                  "Readings of the ledger that failed or were not to be trusted.");
    for (size_t i = 0; i < a->count; i++)
        per_container(&errors, a->all[i], a->all[i]->memory.ledger_errors);
    card_family(a, FAMILY("vramcap_card_bytes", "gauge", "The card's memory."));
    if (mps != VCAP_MPS_STATE_UNKNOWN) {
        struct family up = FAMILY("vramcap_mps_up", "gauge",
                                  "1 if the MPS control daemon answers, 0 if it does not.");
        begin_line(&up);
        end_line(&up, mps == VCAP_MPS_STATE_UP);
    }
    struct family build =
        FAMILY("vramcap_build_info", "gauge", "Always 1; the version is in the label.");
    begin_line(&build);
    label(&build, "{version=", VRAMCAP_VERSION);
    vcap_text_add(text, "}");
    end_line(&build, 1);
}
