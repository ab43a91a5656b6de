/*
 * Processes with libvramcap.so mapped in which no ceiling is in force.  Why is asked of the environment
 * that the process was started with: evidence, not proof, since it may have changed since.
 */
#include "enforcer/agent/compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool on_a_gpu(const struct vcap_nvml_sample *sample, pid_t pid)
{
    for (uint32_t i = 0; sample && i < sample->gpu_count; i++)
        for (uint32_t k = 0; k < sample->gpus[i].process_count; k++)
            if (sample->gpus[i].processes[k].pid == (uint32_t)pid)
                return true;
    return false;
}

/* A slot of it, in any ledger. */
static const struct vcap_snapshot_process *slot_of(struct vcap_watched *const *all, size_t count,
                                                   pid_t pid, struct vcap_watched **in)
{
    for (size_t i = 0; i < count; i++) {
        if (!vcap_watched_is_present(all[i]))
            continue;
        for (uint32_t k = 0; k < all[i]->snapshot.process_count; k++) {
            if (all[i]->host_pids[k] != pid || all[i]->snapshot.processes[k].life == VCAP_LIFE_DEAD)
                continue;
            *in = all[i];
            return &all[i]->snapshot.processes[k];
        }
    }
    return NULL;
}

static bool passive_with_slot(const struct vcap_snapshot *s, const struct vcap_snapshot_process *p,
                              char *why, size_t size)
{
    if ((s->flags & VCAP_LF_PASS_THROUGH) != 0) {
        (void)snprintf(why, size, "the host's ledger says pass-through");
        return true;
    }
    if (p->mode == VCAP_LF_MODE_AUDIT || (s->flags & VCAP_LF_AUDIT) != 0) {
        (void)snprintf(why, size, "audit: nothing is refused");
        return true;
    }
    for (uint32_t i = 0; i < p->charge_count; i++) {
        if (s->gpus[p->charges[i].gpu].ceiling_bytes != VCAP_NO_LIMIT ||
            p->charges[i].limit_bytes != VCAP_NO_LIMIT)
            continue;
        (void)snprintf(why, size, "no source has a ceiling for %s",
                       s->gpus[p->charges[i].gpu].uuid);
        return true;
    }
    return false;
}

static bool passive_without(const struct vcap_process *p, bool on_gpu, char *why, size_t size)
{
    char value[32] = "", shown[32];
    int there = vcap_process_variable(p->pid, "VRAMCAP_ENABLE", value, sizeof value);
    if (p->ledger_count > 0)
        return false; /* its ledger was found and its slot is about to be */
    if (there < 0) {
        (void)snprintf(why, size, "it holds no slot; its environment cannot be read");
        return on_gpu;
    }
    if (there == 0 || !*value || !strcmp(value, "0")) {
        (void)snprintf(why, size, "VRAMCAP_ENABLE is %s",
                       there == 0 ? "not set"
                       : *value   ? "0"
                                  : "empty");
        return true;
    }
    for (size_t i = 0; i <= strlen(value); i++)
        shown[i] = (char)(value[i] == 0 || (value[i] >= 0x20 && value[i] < 0x7f) ? value[i] : '?');
    (void)snprintf(why, size, "VRAMCAP_ENABLE is %s, but it holds no slot", shown);
    return on_gpu; /* else it has only not begun yet */
}

static bool was_logged(const struct vcap_passive_list *list, const struct vcap_passive *p)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->all[i].pid == p->pid && list->all[i].start_time == p->start_time &&
            !strcmp(list->all[i].why, p->why))
            return list->all[i].logged;
    return false;
}

void vcap_compare_passive(struct vcap_watched *const *all, size_t count,
                          const struct vcap_processes *processes,
                          const struct vcap_nvml_sample *sample, struct vcap_passive_list *list)
{
    struct vcap_passive_list now = {0};
    for (size_t i = 0; i < processes->known_count; i++) {
        const struct vcap_process *p = &processes->known[i];
        struct vcap_passive found = {.pid = p->pid, .start_time = p->start_time};
        struct vcap_watched *w = NULL;
        if (!p->library || !p->driver)
            continue;
        const struct vcap_snapshot_process *slot = slot_of(all, count, p->pid, &w);
        bool passive =
            slot ? passive_with_slot(&w->snapshot, slot, found.why, sizeof found.why)
                 : passive_without(p, on_a_gpu(sample, p->pid), found.why, sizeof found.why);
        if (!passive)
            continue;
        if (!w)
            w = vcap_compare_container(all, count, p);
        if (w)
            memcpy(found.container, w->label, sizeof found.container);
        else if (p->name.container)
            vcap_container_name_label(&p->name, found.container);
        (void)snprintf(found.command, sizeof found.command, "%s", p->command);
        found.logged = was_logged(list, &found);
        if (now.count == now.room) {
            size_t room = now.room ? now.room * 2 : 16;
            struct vcap_passive *larger = realloc(now.all, room * sizeof *larger);
            if (!larger)
                break;
            now.all = larger;
            now.room = room;
        }
        now.all[now.count++] = found;
    }
    free(list->all);
    *list = now;
}
