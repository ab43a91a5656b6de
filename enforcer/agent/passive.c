/*
 * Processes with libvramcap.so mapped in which no ceiling is in force.  Why is asked of the environment
 * that the process was started with: evidence, not proof, since it may have changed since.
 *
 * What must stay true: an environment is read by a child that may be left hanging (mps_look.h), for its
 * pages may be of a file system that never answers; and each process is asked once.
 */
#include "enforcer/agent/compare.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "enforcer/agent/mps_look.h"
#include "enforcer/kernel.h"

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

/* ---- environments ---- */

static int asked_by_pid(const void *left, const void *right)
{
    const struct vcap_asked *a = left, *b = right;
    return a->pid < b->pid ? -1 : a->pid > b->pid;
}

static const struct vcap_asked *answer_of(const struct vcap_asked *asked, size_t count,
                                          const struct vcap_process *p)
{
    const struct vcap_asked key = {.pid = p->pid};
    const struct vcap_asked *found =
        count ? bsearch(&key, asked, count, sizeof key, asked_by_pid) : NULL;
    return found && found->start_time == p->start_time ? found : NULL;
}

/* False: it is gone, or cannot be asked now. */
static bool ask(const struct vcap_process *p, struct vcap_asked *a)
{
    struct vcap_mps_look look;
    int error = vcap_mps_look_at(NULL, p->pid, VCAP_PASSIVE_LOOK_MS, &look);
    if (error == -ESRCH || error == -EBUSY)
        return false;
    *a = (struct vcap_asked){.pid = p->pid, .start_time = p->start_time, .answer = error};
    if (!error)
        a->answer = look.environment_error;
    if (!a->answer && look.variable[VCAP_MPS_VAR_ENABLE].set) {
        a->answer = 1;
        (void)snprintf(a->value, sizeof a->value, "%.31s", look.variable[VCAP_MPS_VAR_ENABLE].text);
    }
    return true;
}

/* Those that are to be asked: with the library and a driver, without ledger and slot. */
static bool is_to_be_asked(struct vcap_watched *const *all, size_t count,
                           const struct vcap_process *p)
{
    struct vcap_watched *w;
    return p->library && p->driver && p->ledger_count == 0 && !slot_of(all, count, p->pid, &w);
}

/* Begins with another process at every pass, so that no container's keep others from being asked. */
static void ask_all(struct vcap_watched *const *all, size_t count,
                    const struct vcap_processes *processes, uint64_t budget_ns,
                    struct vcap_passive_list *list)
{
    const uint64_t end = vcap_clock_ns(CLOCK_MONOTONIC) + budget_ns;
    const size_t n = processes->known_count;
    struct vcap_asked *now = calloc(n + 1, sizeof *now);
    size_t asked = 0;
    if (!now)
        return;
    for (size_t i = 0; i < n; i++) {
        const struct vcap_process *p = &processes->known[(i + processes->pass) % n];
        if (!is_to_be_asked(all, count, p))
            continue;
        const struct vcap_asked *before = answer_of(list->asked, list->asked_count, p);
        if (before)
            now[asked++] = *before;
        else if (vcap_clock_ns(CLOCK_MONOTONIC) < end && ask(p, &now[asked]))
            asked++;
    }
    if (asked > 1)
        qsort(now, asked, sizeof *now, asked_by_pid);
    free(list->asked);
    list->asked = now;
    list->asked_count = asked;
}

static bool passive_without(const struct vcap_asked *a, bool on_gpu, char *why, size_t size)
{
    char shown[sizeof a->value];
    if (!a)
        return false; /* its ledger was found and its slot is about to be, or it is asked later */
    if (a->answer < 0) {
        (void)snprintf(why, size, "it holds no slot; its environment cannot be read");
        return on_gpu;
    }
    if (a->answer == 0 || !*a->value || !strcmp(a->value, "0")) {
        (void)snprintf(why, size, "VRAMCAP_ENABLE is %s",
                       a->answer == 0 ? "not set"
                       : *a->value    ? "0"
                                      : "empty");
        return true;
    }
    for (size_t i = 0; i <= strlen(a->value); i++) {
        char c = a->value[i];
        shown[i] = (char)(c == 0 || (c >= 0x20 && c < 0x7f) ? c : '?');
    }
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
                          const struct vcap_nvml_sample *sample, uint64_t budget_ns,
                          struct vcap_passive_list *list)
{
    struct vcap_passive_list now = {0};
    ask_all(all, count, processes, budget_ns, list);
    for (size_t i = 0; i < processes->known_count; i++) {
        const struct vcap_process *p = &processes->known[i];
        struct vcap_passive found = {.pid = p->pid, .start_time = p->start_time};
        struct vcap_watched *w = NULL;
        if (!p->library || !p->driver)
            continue;
        const struct vcap_snapshot_process *slot = slot_of(all, count, p->pid, &w);
        bool passive = slot
                           ? passive_with_slot(&w->snapshot, slot, found.why, sizeof found.why)
                           : passive_without(answer_of(list->asked, list->asked_count, p),
                                             on_a_gpu(sample, p->pid), found.why, sizeof found.why);
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
    now.asked = list->asked;
    now.asked_count = list->asked_count;
    *list = now;
}

void vcap_passive_free(struct vcap_passive_list *list)
{
    free(list->all);
    free(list->asked);
    *list = (struct vcap_passive_list){0};
}
