/*
 * Rounds.  Every ledger has its share of time: one that takes long (thousands of foreign locks, a huge
 * file) is read again only after ten times as long, and when a round has used up its own time, those
 * that are slow wait for the next one.  So no ledger delays the others, whatever is in it.
 */
#include "enforcer/agent/agent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/agent/event_line.h"
#include "enforcer/agent/probe.h"
#include "enforcer/agent/remember.h"
#include "enforcer/kernel.h"

#define MS UINT64_C(1000000)
#define LEDGER_BYTES_MAX (UINT64_C(16) << 20) /* the largest of version 1 has 10 MiB */
#define LOCK_BUDGET_NS (20 * MS)              /* for one ledger's locks in one round */
#define PATIENT_LOCK_BUDGET_NS (200 * MS)
#define SLOW_NS (5 * MS) /* what takes longer is read less often */
#define SLOW_SHARE 10u
#define ROUND_NS (250 * MS)
#define SCAN_NS (20 * MS) /* of a round, for /proc */
#define ASK_NS (20 * MS)  /* of a round, for the environments of processes without a slot */
#define PATIENT_ASK_NS (5000 * MS)
#define PLACE_AGAIN_NS (10000 * MS)
#define SEEN_EVERY_S 60u
#define NEW_NS                                                                                     \
    (10000 * MS) /* a slot this young may be of a process that /proc was not asked about yet */
#define SOON_NS (1000 * MS)

const char *vcap_watched_state_name(enum vcap_watched_state state)
{
    static const char *const names[] = {"new", "ok", "late", "untrusted", "unreadable", "gone"};
    return (size_t)state < sizeof names / sizeof *names ? names[state] : "new";
}

/* ---- what changes state says so, once ---- */

static void say(const struct vcap_watched *w, enum vcap_line_level level, const char *event,
                const char *reason)
{
    struct vcap_text line = {0};
    vcap_line_begin(&line, level, event, 0);
    vcap_line_word(&line, "container", w->label);
    if (w->name.container) {
        vcap_line_word(&line, "runtime", w->name.runtime);
        vcap_line_word(&line, "id", w->name.id);
    }
    vcap_line_word(&line, "ledger", w->path);
    if (*reason)
        vcap_line_word(&line, "reason", reason);
    (void)vcap_line_end(&line);
    vcap_text_free(&line);
}

static void become(struct vcap_watched *w, enum vcap_watched_state state, const char *why)
{
    const enum vcap_watched_state before = w->state;
    bool was_bad = before == VCAP_WATCHED_UNTRUSTED || before == VCAP_WATCHED_UNREADABLE;
    bool same = before == state && !strcmp(w->why, why);
    w->state = state;
    if (w->why != why)
        (void)snprintf(w->why, sizeof w->why, "%s", why);
    if (state == VCAP_WATCHED_OK &&
        (was_bad || before == VCAP_WATCHED_NEW || before == VCAP_WATCHED_GONE))
        say(w, VCAP_LINE_INFO, was_bad ? "ledger-good-again" : "ledger-found", "");
    else if (state == VCAP_WATCHED_UNTRUSTED && !same)
        say(w, VCAP_LINE_WARN, "ledger-untrusted", why);
    else if (state == VCAP_WATCHED_UNREADABLE && !same)
        say(w, VCAP_LINE_WARN, "ledger-unreadable", why);
    else if (state == VCAP_WATCHED_GONE && before != state)
        say(w, VCAP_LINE_INFO, "ledger-gone", why);
}

/* One that found no place in the memory is asked for again, now and then: there may be room now. */
static void find_place(struct vcap_agent *a, struct vcap_watched *w)
{
    const uint64_t now = vcap_clock_ns(CLOCK_MONOTONIC);
    if (now < w->place_due_ns)
        return;
    w->place_due_ns = now + PLACE_AGAIN_NS;
    w->place = vcap_memory_place(a->memory, w->label);
    w->memory_changed = true;
    (void)snprintf(w->memory.label, sizeof w->memory.label, "%s", w->label);
    if (w->place < 0 && !a->memory_full_said)
        vcap_line_say(VCAP_LINE_WARN, "state",
                      "no room for %s and maybe others: their counters and logged events are not "
                      "remembered after this run",
                      w->label);
    a->memory_full_said = w->place < 0;
}

static void keep_memory(struct vcap_agent *a, struct vcap_watched *w)
{
    uint64_t now_s = vcap_clock_ns(CLOCK_REALTIME) / 1000000000u;
    if (w->place < 0)
        find_place(a, w);
    if (w->place < 0 || (!w->memory_changed && now_s < w->memory.seen_s + SEEN_EVERY_S))
        return;
    w->memory.seen_s = now_s;
    vcap_memory_write(a->memory, w->place, &w->memory);
    w->memory_changed = false;
}

/* ---- reading one ---- */

static int read_with(const struct vcap_agent *a, const struct vcap_watched *w, int fd,
                     struct vcap_snapshot *snapshot, char *why, size_t why_size)
{
    const struct vcap_read_wish wish = {.events_from = w->memory.next_event,
                                        .taken_only = true,
                                        .bytes_max = LEDGER_BYTES_MAX,
                                        .budget_ns = a->lock_budget_ns,
                                        .pidns = a->pidns};
    return vcap_snapshot_read_wish(fd, &wish, snapshot, why, why_size);
}

/* Is one before it that process already?  Two slots can say that they are the same one, and its number
 * names only one of them. */
static bool has_host_pid(const struct vcap_watched *w, uint32_t before, pid_t pid)
{
    for (uint32_t i = 0; i < before; i++)
        if (w->host_pids[i] == pid)
            return true;
    return false;
}

static void find_host_pids(struct vcap_agent *a, struct vcap_watched *w)
{
    free(w->host_pids);
    w->host_pids = calloc(w->snapshot.process_count + 1u, sizeof *w->host_pids);
    if (!w->host_pids) { /* nobody may look beyond the end of a list that is not there */
        w->snapshot.process_count = 0;
        return;
    }
    for (uint32_t i = 0; i < w->snapshot.process_count; i++) {
        const struct vcap_snapshot_process *p = &w->snapshot.processes[i];
        const struct vcap_process *found =
            p->life == VCAP_LIFE_DEAD ? NULL
                                      : vcap_processes_in_namespace(&a->processes, p->pidns,
                                                                    (pid_t)p->pid, p->start_time);
        if (found && !has_host_pid(w, i, found->pid))
            w->host_pids[i] = found->pid;
        else if (p->life == VCAP_LIFE_ALIVE && w->read_ns < p->claimed_ns + NEW_NS)
            a->scan_soon = true;
    }
}

static void take_snapshot(struct vcap_agent *a, struct vcap_watched *w, int fd,
                          struct vcap_snapshot *snapshot, uint64_t now_ns)
{
    bool restarted = w->have_snapshot && vcap_remember_is_new(&w->memory, snapshot);
    if (vcap_remember_is_new(&w->memory, snapshot)) {
        vcap_remember_begin(&w->memory, snapshot);
        w->memory_changed = true;
        w->hole_ns = 0;
        struct vcap_snapshot again = {0};
        char why[VCAP_WATCHED_WHY];
        if (read_with(a, w, fd, &again, why, sizeof why) == 0) { /* with all of its events */
            vcap_snapshot_free(snapshot);
            *snapshot = again;
        }
    }
    if (w->have_snapshot)
        vcap_snapshot_free(&w->snapshot);
    w->snapshot = *snapshot;
    w->have_snapshot = true;
    w->device = snapshot->device;
    w->inode = snapshot->inode;
    w->read_ns = vcap_clock_ns(CLOCK_REALTIME);
    find_host_pids(a, w);
    become(w, VCAP_WATCHED_OK, "");
    if (restarted)
        say(w, VCAP_LINE_INFO, "ledger-replaced", "");
    if (vcap_remember_counters(&w->memory, &w->snapshot))
        w->memory_changed = true;
    vcap_remember_host(w, fd);
    if ((w->tampered == VCAP_TAMPERED_YES) != w->tampered_logged) {
        w->tampered_logged = w->tampered == VCAP_TAMPERED_YES;
        say(w, w->tampered_logged ? VCAP_LINE_ERROR : VCAP_LINE_INFO,
            w->tampered_logged ? "tampered" : "tampering-ended", w->tampered_why);
    }
    keep_memory(a, w);
    if (a->settings.log_events)
        vcap_remember_events(w, a->memory, now_ns);
    free(w->snapshot.events);
    w->snapshot.events = NULL;
    w->snapshot.event_count = 0;
}

static void read_one(struct vcap_agent *a, struct vcap_watched *w)
{
    char why[VCAP_WATCHED_WHY] = "";
    struct vcap_snapshot snapshot = {0};
    const uint64_t begin = vcap_clock_ns(CLOCK_MONOTONIC);
    w->round = a->rounds + 1;
    int fd = vcap_find_open(a, w, why, sizeof why);
    int error = fd < 0 ? fd : read_with(a, w, fd, &snapshot, why, sizeof why);
    if (error == 0) {
        take_snapshot(a, w, fd, &snapshot, begin);
    } else if (error == -ENOENT && w->state == VCAP_WATCHED_NEW) {
        w->state = VCAP_WATCHED_GONE; /* came and went: nothing to remember, gone_ns is 0 */
    } else if (error == -ENOENT) {
        if (w->state != VCAP_WATCHED_GONE)
            w->gone_ns = begin;
        become(w, VCAP_WATCHED_GONE, "");
    } else {
        w->memory.ledger_errors++;
        w->memory_changed = true;
        become(w, error == -EINVAL ? VCAP_WATCHED_UNTRUSTED : VCAP_WATCHED_UNREADABLE, why);
        keep_memory(a, w);
    }
    if (fd >= 0)
        (void)close(fd);
    const uint64_t end = vcap_clock_ns(CLOCK_MONOTONIC);
    w->cost_ns = end - begin;
    w->due_ns = w->cost_ns > SLOW_NS ? end + SLOW_SHARE * w->cost_ns : 0;
}

/* ---- rounds ---- */

static int cheap_first(const void *left, const void *right)
{
    const struct vcap_watched *a = *(struct vcap_watched *const *)left,
                              *b = *(struct vcap_watched *const *)right;
    return a->cost_ns < b->cost_ns ? -1 : a->cost_ns > b->cost_ns;
}

static void put_off(struct vcap_watched *w)
{
    if (w->state == VCAP_WATCHED_OK)
        w->state = VCAP_WATCHED_LATE;
}

static void read_all(struct vcap_agent *a, uint64_t begin, bool patient)
{
    bool slow = false;
    for (size_t i = 0; i < a->count; i++)
        slow = slow || a->all[i]->cost_ns > SLOW_NS;
    if (slow)
        qsort(a->all, a->count, sizeof *a->all, cheap_first);
    for (size_t i = 0; i < a->count; i++) {
        struct vcap_watched *w = a->all[i];
        uint64_t now = vcap_clock_ns(CLOCK_MONOTONIC);
        if (w->round == a->rounds + 1)
            continue;
        if (w->state == VCAP_WATCHED_GONE && w->index_ns != begin && w->user_count == 0)
            continue; /* found neither in its directory nor in a process again */
        if (!patient && (w->due_ns > now || (w->cost_ns > SLOW_NS && now - begin > ROUND_NS)))
            put_off(w);
        else
            read_one(a, w);
    }
}

/* What has been gone for long enough, and its place in the memory. */
static void forget_the_gone(struct vcap_agent *a, uint64_t now)
{
    for (size_t i = 0; i < a->count;) {
        struct vcap_watched *w = a->all[i];
        if (w->state != VCAP_WATCHED_GONE || now < w->gone_ns + a->settings.keep_ms * MS) {
            i++;
            continue;
        }
        if (w->place >= 0)
            vcap_memory_forget(a->memory, w->place);
        if (w->have_snapshot)
            vcap_snapshot_free(&w->snapshot);
        free(w->host_pids);
        vcap_mps_settings_free(&w->mps);
        free(w);
        a->all[i] = a->all[--a->count];
    }
}

static void scan(struct vcap_agent *a, uint64_t now, bool patient)
{
    if (!a->settings.processes || (!patient && !a->processes.proc && now < a->scan_due_ns &&
                                   (!a->scan_soon || now < a->scan_soon_ns)))
        return;
    if (!vcap_processes_scan(&a->processes, patient ? 30000 * MS : SCAN_NS))
        return;
    a->scan_due_ns = now + a->settings.scan_ms * MS;
    a->scan_soon_ns = now + SOON_NS;
    a->scan_soon = false;
    vcap_find_processes(a);
}

static void list_passive(struct vcap_agent *a, bool patient)
{
    if (a->processes_pass == a->processes.pass)
        return;
    a->processes_pass = a->processes.pass;
    vcap_compare_passive(a->all, a->count, &a->processes, a->nvml,
                         patient ? PATIENT_ASK_NS : ASK_NS, &a->passive);
    for (size_t i = 0; i < a->passive.count; i++) {
        struct vcap_passive *p = &a->passive.all[i];
        struct vcap_text line = {0};
        if (p->logged)
            continue;
        vcap_line_begin(&line, VCAP_LINE_WARN, "passive", 0);
        if (*p->container)
            vcap_line_word(&line, "container", p->container);
        vcap_line_number(&line, "host_pid", (uint64_t)p->pid);
        vcap_line_word(&line, "command", p->command);
        vcap_line_word(&line, "reason", p->why);
        p->logged = vcap_line_end(&line) == 0;
        vcap_text_free(&line);
    }
}

void vcap_agent_round(struct vcap_agent *a, bool patient)
{
    const uint64_t begin = vcap_clock_ns(CLOCK_MONOTONIC);
    a->lock_budget_ns = patient ? PATIENT_LOCK_BUDGET_NS : LOCK_BUDGET_NS;
    if (a->pidns == 0)
        a->pidns = vcap_pidns_inode();
    vcap_find_directories(a, begin);
    /* what both ways find is known by its directory: its inode must be there before processes are */
    for (size_t i = 0; i < a->count; i++)
        if (a->all[i]->state == VCAP_WATCHED_NEW)
            read_one(a, a->all[i]);
    scan(a, begin, patient);
    read_all(a, begin, patient);
    vcap_compare(a->all, a->count, &a->processes, a->nvml, vcap_clock_ns(CLOCK_REALTIME));
    list_passive(a, patient);
    forget_the_gone(a, begin);
    vcap_find_end(a);
    a->rounds++;
    a->time_ns = vcap_clock_ns(CLOCK_REALTIME);
    a->round_ns = vcap_clock_ns(CLOCK_MONOTONIC) - begin;
}

void vcap_agent_free(struct vcap_agent *a)
{
    for (size_t i = 0; i < a->count; i++) {
        if (a->all[i]->have_snapshot)
            vcap_snapshot_free(&a->all[i]->snapshot);
        free(a->all[i]->host_pids);
        vcap_mps_settings_free(&a->all[i]->mps);
        free(a->all[i]);
    }
    free(a->all);
    vcap_passive_free(&a->passive);
    vcap_processes_free(&a->processes);
    vcap_probe_end();
    vcap_nvml_release(a->nvml);
    if (a->memory)
        vcap_memory_close(a->memory);
    *a = (struct vcap_agent){0};
}
