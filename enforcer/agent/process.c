/*
 * Going through /proc in pieces.  A look at a process reads its maps, which can be long, so a process
 * that was uninteresting is looked at again only when its size has changed: nothing can be mapped
 * without that.  Must not: follow names from /proc, open what is mapped, allocate by what a process
 * says.
 */
#include "enforcer/agent/process.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "enforcer/agent/probe.h"
#include "enforcer/agent/proc_file.h"
#include "enforcer/cli/host_pid.h"
#include "enforcer/kernel.h"

#define ONE_OF_MANY_NS UINT64_C(20000000)
#define LEVELS_MAX 40 /* MAX_PID_NS_LEVEL is 32 */

/* Fields 22 (start time) and 23 (size) of /proc/PID/stat, and the command in parentheses. */
static bool read_stat(pid_t pid, struct vcap_process *p)
{
    char text[1024];
    if (vcap_proc_read(pid, "stat", text, sizeof text) <= 0)
        return false;
    const char *open = strchr(text, '('), *at = strrchr(text, ')');
    if (!open || !at || at < open)
        return false;
    size_t length = (size_t)(at - open - 1);
    if (length >= sizeof p->command)
        length = sizeof p->command - 1;
    for (size_t i = 0; i < length; i++)
        p->command[i] = (char)(isprint((unsigned char)open[1 + i]) ? open[1 + i] : '?');
    p->command[length] = '\0';
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (!at)
        return false;
    char *end;
    p->pid = pid;
    p->start_time = strtoull(at + 1, &end, 10);
    p->size = strtoull(end, NULL, 10);
    return true;
}

static uint64_t namespace_inode(pid_t pid, const char *which)
{
    char path[64];
    struct stat st;
    (void)snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)pid, which);
    return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static bool read_identity(pid_t pid, struct vcap_process *p)
{
    char text[16384];
    long levels[LEVELS_MAX];
    char name[16];
    (void)snprintf(name, sizeof name, "%d", (int)pid);
    int depth = vcap_host_pid_levels(name, levels, LEVELS_MAX);
    if (depth < 1)
        return false;
    p->pid_in_ns = (pid_t)levels[depth - 1];
    p->pidns = namespace_inode(pid, "pid");
    p->mntns = namespace_inode(pid, "mnt");
    if (vcap_proc_read(pid, "cgroup", text, sizeof text) > 0)
        vcap_container_name_parse(text, &p->name);
    return true;
}

bool vcap_process_look(pid_t pid, uint64_t maps_ns, struct vcap_process *process)
{
    struct vcap_process p = {0}, again = {0};
    if (!read_stat(pid, &p) || !vcap_proc_maps(pid, maps_ns, &p))
        return false;
    if ((p.library || p.driver || p.ledger_count > 0) && !read_identity(pid, &p))
        return false;
    /* all of it was of one process */
    if (!read_stat(pid, &again) || again.start_time != p.start_time)
        return false;
    *process = p;
    return true;
}

struct look {
    pid_t pid;
    struct vcap_process found;
};

static int look(void *job)
{
    struct look *l = job;
    return vcap_process_look(l->pid, ONE_OF_MANY_NS, &l->found) ? 0 : -ESRCH;
}

int vcap_process_look_safely(pid_t pid, struct vcap_process *process)
{
    struct look l = {.pid = pid};
    int error = vcap_probe(pid, look, NULL, &l, sizeof l);
    if (!error)
        *process = l.found;
    return error;
}

/* ---- going through ---- */

static int by_pid(const void *left, const void *right)
{
    const struct vcap_process *a = left, *b = right;
    return a->pid < b->pid ? -1 : a->pid > b->pid;
}

static int seen_by_pid(const void *left, const void *right)
{
    const struct vcap_process_seen *a = left, *b = right;
    return a->pid < b->pid ? -1 : a->pid > b->pid;
}

const struct vcap_process *vcap_processes_find(const struct vcap_processes *p, pid_t pid)
{
    const struct vcap_process key = {.pid = pid};
    return p->known_count ? bsearch(&key, p->known, p->known_count, sizeof key, by_pid) : NULL;
}

static int order_in_namespace(const struct vcap_process *a, uint64_t pidns, pid_t pid)
{
    if (a->pidns != pidns)
        return a->pidns < pidns ? -1 : 1;
    return a->pid_in_ns < pid ? -1 : a->pid_in_ns > pid;
}

static const struct vcap_process *sorting; /* qsort has no place for it; one thread only */

static int by_namespace(const void *left, const void *right)
{
    const struct vcap_process *b = &sorting[*(const uint32_t *)right];
    return order_in_namespace(&sorting[*(const uint32_t *)left], b->pidns, b->pid_in_ns);
}

static void index_namespaces(struct vcap_processes *p)
{
    uint32_t *index = realloc(p->by_namespace, (p->known_count + 1) * sizeof *index);
    p->by_namespace_count = 0;
    if (!index)
        return;
    p->by_namespace = index;
    for (size_t i = 0; i < p->known_count; i++)
        index[p->by_namespace_count++] = (uint32_t)i;
    sorting = p->known;
    qsort(index, p->by_namespace_count, sizeof *index, by_namespace);
}

const struct vcap_process *vcap_processes_in_namespace(const struct vcap_processes *p,
                                                       uint64_t pidns, pid_t pid_in_ns,
                                                       uint64_t start_time)
{
    size_t low = 0, high = p->by_namespace_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct vcap_process *k = &p->known[p->by_namespace[middle]];
        int order = order_in_namespace(k, pidns, pid_in_ns);
        if (order == 0)
            return pidns != 0 && (start_time == 0 || k->start_time == start_time) ? k : NULL;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static void *grow(void *list, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return list;
    size_t wanted = *room ? *room * 2 : 64;
    void *larger = realloc(list, wanted * size);
    if (larger)
        *room = wanted;
    return larger;
}

/* Lists that cannot grow lose their newest entry: it is found in the next pass. */
static void take(struct vcap_processes *p, const struct vcap_process *process)
{
    if (process->library || process->driver || process->ledger_count > 0) {
        void *list = grow(p->next, p->next_count, &p->next_room, sizeof *p->next);
        if (list) {
            p->next = list;
            p->next[p->next_count++] = *process;
        }
        return;
    }
    void *list = grow(p->seen_next, p->seen_next_count, &p->seen_next_room, sizeof *p->seen_next);
    if (list) {
        p->seen_next = list;
        p->seen_next[p->seen_next_count++] =
            (struct vcap_process_seen){process->pid, process->start_time, process->size};
    }
}

static void visit(struct vcap_processes *p, pid_t pid)
{
    struct vcap_process now = {0};
    const struct vcap_process *known = vcap_processes_find(p, pid);
    const struct vcap_process_seen key = {.pid = pid};
    const struct vcap_process_seen *seen =
        p->seen_count ? bsearch(&key, p->seen, p->seen_count, sizeof key, seen_by_pid) : NULL;
    if (!read_stat(pid, &now))
        return;
    if (known && known->start_time == now.start_time && known->size == now.size) {
        take(p, known);
        return;
    }
    int error = seen && seen->start_time == now.start_time && seen->size == now.size
                    ? 0
                    : vcap_process_look_safely(pid, &now);
    if (!error)
        take(p, &now);
    else if (error != -ESRCH && known && known->start_time == now.start_time)
        take(p, known); /* it makes its readers wait: as it was */
    p->next_unanswered += error != 0 && error != -ESRCH;
}

static void end_pass(struct vcap_processes *p)
{
    (void)closedir(p->proc);
    p->proc = NULL;
    if (p->next_count > 1)
        qsort(p->next, p->next_count, sizeof *p->next, by_pid);
    if (p->seen_next_count > 1)
        qsort(p->seen_next, p->seen_next_count, sizeof *p->seen_next, seen_by_pid);
    struct vcap_process *known = p->known;
    size_t room = p->known_room;
    p->known = p->next, p->known_count = p->next_count, p->known_room = p->next_room;
    p->next = known, p->next_count = 0, p->next_room = room;
    struct vcap_process_seen *seen = p->seen;
    room = p->seen_room;
    p->seen = p->seen_next, p->seen_count = p->seen_next_count, p->seen_room = p->seen_next_room;
    p->seen_next = seen, p->seen_next_count = 0, p->seen_next_room = room;
    p->unanswered = p->next_unanswered;
    p->next_unanswered = 0;
    index_namespaces(p);
    p->pass++;
}

bool vcap_processes_scan(struct vcap_processes *p, uint64_t budget_ns)
{
    const uint64_t end = vcap_clock_ns(CLOCK_MONOTONIC) + budget_ns;
    if (!p->proc && !(p->proc = opendir("/proc")))
        return false;
    for (const struct dirent *entry; (entry = readdir(p->proc));) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        visit(p, (pid_t)strtol(entry->d_name, NULL, 10));
        if (vcap_clock_ns(CLOCK_MONOTONIC) >= end)
            return false;
    }
    end_pass(p);
    return true;
}

void vcap_processes_free(struct vcap_processes *p)
{
    if (p->proc)
        (void)closedir(p->proc);
    free(p->known);
    free(p->by_namespace);
    free(p->next);
    free(p->seen);
    free(p->seen_next);
    *p = (struct vcap_processes){0};
}
