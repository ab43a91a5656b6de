/*
 * Where ledgers are.  A directory of the host's holds one file per container, DIR/NAME, or a directory
 * that is mounted into the container, DIR/NAME/ledger.  Elsewhere a ledger is known by a process that
 * has it mapped and opened through /proc/PID/map_files, which needs no name, or by its name below
 * /proc/PID/root.
 *
 * Nothing is opened that is no regular file, on a file system whose answers may have to be waited for,
 * or behind a link; a descriptor is closed after the round, because one that stayed open would keep a
 * container's file system from being unmounted.
 */
#include "enforcer/agent/agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "enforcer/agent/event_line.h"
#include "enforcer/agent/mapping.h"
#include "enforcer/kernel.h"
#include "enforcer/ledger_read_open.h"

#ifndef SYS_openat2
#define SYS_openat2 __NR_openat2 /* glibc before 2.32 has no name for it */
#endif

/* ---- the array ---- */

static bool label_is_free(const struct vcap_agent *a, const char *label)
{
    for (size_t i = 0; i < a->count; i++)
        if (!strcmp(a->all[i]->label, label))
            return false;
    return true;
}

static void drop(struct vcap_agent *a, size_t i)
{
    struct vcap_watched *w = a->all[i];
    if (w->have_snapshot)
        vcap_snapshot_free(&w->snapshot);
    free(w->host_pids);
    vcap_mps_settings_free(&w->mps);
    free(w);
    a->all[i] = a->all[--a->count];
}

/* A label that nobody has; one of a container that is gone passes on to the one that came after it. */
static void choose_label(struct vcap_agent *a, struct vcap_watched *w, const char *wanted)
{
    for (size_t i = 0; i < a->count; i++)
        if (a->all[i]->state == VCAP_WATCHED_GONE && !strcmp(a->all[i]->label, wanted)) {
            drop(a, i);
            break;
        }
    (void)snprintf(w->label, sizeof w->label, "%s", *wanted ? wanted : "unnamed");
    for (unsigned n = 2; !label_is_free(a, w->label); n++)
        (void)snprintf(w->label, sizeof w->label, "%.*s~%u", (int)sizeof w->label - 12, wanted, n);
}

/* What may be in a label: printable, no quotes, no backslash. */
static void clean(char *text)
{
    for (; *text; text++)
        if (*text <= 0x20 || *text >= 0x7f || *text == '"' || *text == '\\')
            *text = '_';
}

/* One that was found through processes of the container that this process is of. */
static bool is_of_container(const struct vcap_watched *w, const struct vcap_process *p)
{
    if (w->directory >= 0)
        return false;
    if (p->name.container)
        return vcap_container_name_same(&w->name, &p->name);
    return !w->name.container && w->mntns != 0 && w->mntns == p->mntns;
}

/* Drops the one that has been gone longest, of one container if `of` is given; with what is remembered of
 * it.  False: none is gone. */
static bool drop_gone(struct vcap_agent *a, const struct vcap_process *of)
{
    size_t oldest = a->count;
    for (size_t i = 0; i < a->count; i++) {
        const struct vcap_watched *w = a->all[i];
        if (w->state == VCAP_WATCHED_GONE && (!of || is_of_container(w, of)) &&
            (oldest == a->count || w->gone_ns < a->all[oldest]->gone_ns))
            oldest = i;
    }
    if (oldest == a->count)
        return false;
    if (a->all[oldest]->place >= 0)
        vcap_memory_forget(a->memory, a->all[oldest]->place);
    drop(a, oldest);
    return true;
}

static struct vcap_watched *watch(struct vcap_agent *a, const char *label)
{
    struct vcap_watched *w;
    if (a->count >= VCAP_AGENT_LEDGERS && !drop_gone(a, NULL))
        return NULL;
    if (a->count == a->room) {
        size_t room = a->room ? a->room * 2 : 64;
        struct vcap_watched **all = realloc(a->all, room * sizeof(struct vcap_watched *));
        if (!all)
            return NULL;
        a->all = all;
        a->room = room;
    }
    if (!(w = calloc(1, sizeof *w)))
        return NULL;
    char wanted[VCAP_CONTAINER_LABEL];
    (void)snprintf(wanted, sizeof wanted, "%s", label);
    clean(wanted);
    choose_label(a, w, wanted);
    w->directory = -1;
    w->first_ns = vcap_clock_ns(CLOCK_REALTIME);
    w->place = vcap_memory_place(a->memory, w->label);
    if (w->place >= 0)
        vcap_memory_read(a->memory, w->place, &w->memory);
    a->all[a->count++] = w;
    return w;
}

/* ---- directories ---- */

static bool is_own_file(const struct vcap_agent *a, const char *directory, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    for (size_t i = 0; i < sizeof a->settings.own_files / sizeof *a->settings.own_files; i++)
        if (a->settings.own_files[i] && !strcmp(path, a->settings.own_files[i]))
            return true;
    return false;
}

/* False: there is no room for it. */
static bool note_entry(struct vcap_agent *a, int number, const char *relative, const char *label,
                       uint64_t now_ns)
{
    char name[VCAP_CONTAINER_LABEL];
    /* directories list their entries in the same order again: most are found at once */
    for (size_t n = 0; n < a->count; n++) {
        size_t i = (a->entry_hint + n) % a->count;
        struct vcap_watched *w = a->all[i];
        if (w->directory != number || strcmp(w->path, relative) != 0)
            continue;
        w->index_ns = now_ns;
        a->entry_hint = i + 1;
        return true;
    }
    (void)snprintf(name, sizeof name, "%.*s", (int)sizeof name - 1, label);
    size_t length = strlen(name);
    if (length > 7 && !strcmp(name + length - 7, ".ledger"))
        name[length - 7] = '\0';
    struct vcap_watched *w = watch(a, name);
    if (!w)
        return false;
    w->directory = number;
    (void)snprintf(w->path, sizeof w->path, "%s", relative);
    w->index_ns = now_ns;
    return true;
}

/* Does the sub-directory hold a ledger? */
static bool holds_ledger(int directory, const char *relative)
{
    struct open_how how = {.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
                                      RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV};
    long fd = syscall(SYS_openat2, directory, relative, &how, sizeof how);
    if (fd < 0)
        return errno != ENOENT && errno != ENOTDIR && errno != ENOSYS;
    (void)close((int)fd);
    return true;
}

static void list(struct vcap_agent *a, int number, DIR *directory, uint64_t now_ns)
{
    unsigned entries = 0;
    bool room = true;
    for (const struct dirent *e; room && (e = readdir(directory));) {
        char relative[300];
        const char *name = e->d_name;
        unsigned char type = e->d_type;
        struct stat st;
        if (name[0] == '.' || strstr(name, ".new-") ||
            is_own_file(a, a->settings.directories[number], name))
            continue;
        if (type == DT_UNKNOWN && fstatat(dirfd(directory), name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISDIR(st.st_mode))
            type = DT_DIR;
        (void)snprintf(relative, sizeof relative, "%s%s", name, type == DT_DIR ? "/ledger" : "");
        if (type == DT_DIR && !holds_ledger(dirfd(directory), relative))
            continue;
        room = ++entries <= VCAP_AGENT_LEDGERS && note_entry(a, number, relative, name, now_ns);
    }
    if (!room && !a->directory_full_said[number])
        vcap_line_say(VCAP_LINE_ERROR, "ledger-dir",
                      "%s has more entries than the %u that are looked at: some are not",
                      a->settings.directories[number], VCAP_AGENT_LEDGERS);
    a->directory_full_said[number] = !room;
}

void vcap_find_directories(struct vcap_agent *a, uint64_t now_ns)
{
    for (int i = 0; i < a->settings.directory_count; i++) {
        DIR *directory = opendir(a->settings.directories[i]);
        if (!directory != a->directory_missing[i]) {
            a->directory_missing[i] = !directory;
            if (directory)
                vcap_line_say(VCAP_LINE_INFO, "ledger-dir", "%s is there",
                              a->settings.directories[i]);
            else
                vcap_line_say(VCAP_LINE_WARN, "ledger-dir", "%s: %s", a->settings.directories[i],
                              strerror(errno));
        }
        a->directories[i] = directory;
        if (directory)
            list(a, i, directory, now_ns);
    }
}

void vcap_find_end(struct vcap_agent *a)
{
    for (int i = 0; i < a->settings.directory_count; i++) {
        if (a->directories[i])
            (void)closedir(a->directories[i]);
        a->directories[i] = NULL;
    }
}

/* ---- processes ---- */

static void name_by(struct vcap_watched *w, const struct vcap_process *p)
{
    if (p->name.container || !w->name.container)
        w->name = p->name;
    if (w->user_count <= 1)
        w->mntns = p->mntns;
    else if (w->mntns != p->mntns)
        w->mntns = 0;
}

static void add_user(struct vcap_watched *w, const struct vcap_process *p,
                     const struct vcap_mapping *m, uint64_t pass)
{
    if (w->pass != pass) {
        w->pass = pass;
        w->user_count = 0;
    }
    if (w->user_count == VCAP_WATCHED_USERS)
        return;
    w->users[w->user_count++] = (struct vcap_user){p->pid, p->start_time, *m, false};
    name_by(w, p);
}

static void label_of(const struct vcap_process *p, const struct vcap_mapping *m,
                     char label[VCAP_CONTAINER_LABEL])
{
    vcap_container_name_label(&p->name, label);
    if (p->name.container)
        return;
    if (!strncmp(m->name, "vramcap-", 8))
        (void)snprintf(label, VCAP_CONTAINER_LABEL, "%s", m->name);
    else if (strcmp(p->name.runtime, "systemd") != 0)
        (void)snprintf(label, VCAP_CONTAINER_LABEL, "ledger-%llu", (unsigned long long)m->inode);
}

/*
 * May one more that was found through this process be watched?  A container can make as many as it likes,
 * and must not take the places of the others': of its own, the one that has been gone longest gives way.
 */
static bool may_watch(struct vcap_agent *a, const struct vcap_process *p)
{
    size_t by_process = 0, of_this = 0;
    const bool of_the_host = !p->name.container && p->mntns == a->mntns;
    for (size_t i = 0; i < a->count; i++) {
        by_process += a->all[i]->directory < 0;
        of_this += !of_the_host && is_of_container(a->all[i], p);
    }
    if (of_this >= VCAP_AGENT_OF_ONE_CONTAINER)
        return drop_gone(a, p);
    return by_process < VCAP_AGENT_BY_PROCESS;
}

static struct vcap_watched *watch_process(struct vcap_agent *a, const struct vcap_process *p,
                                          const struct vcap_mapping *m)
{
    char label[VCAP_CONTAINER_LABEL];
    struct vcap_watched *w;
    label_of(p, m, label);
    if (!may_watch(a, p) || !(w = watch(a, label))) {
        if (!a->processes_full_said)
            vcap_line_say(VCAP_LINE_WARN, "ledgers",
                          "process %d has one more ledger mapped than the %u of a container and %u "
                          "in all that are looked at",
                          (int)p->pid, VCAP_AGENT_OF_ONE_CONTAINER, VCAP_AGENT_BY_PROCESS);
        a->processes_full_said = true;
        return NULL;
    }
    w->inode = m->inode;
    w->device = m->device;
    (void)snprintf(w->path, sizeof w->path, "%s", m->name);
    return w;
}

void vcap_find_processes(struct vcap_agent *a)
{
    const struct vcap_processes *all = &a->processes;
    struct stat st;
    if (a->mntns == 0)
        a->mntns = stat("/proc/self/ns/mnt", &st) == 0 ? (uint64_t)st.st_ino : 1;
    for (size_t i = 0; i < all->known_count; i++) {
        const struct vcap_process *p = &all->known[i];
        for (uint32_t k = 0; k < p->ledger_count; k++) {
            const struct vcap_mapping *m = &p->ledgers[k];
            struct vcap_watched *w = NULL;
            for (size_t n = 0; n < a->count && !w; n++)
                if (a->all[n]->inode == m->inode && a->all[n]->device == m->device &&
                    a->all[n]->state != VCAP_WATCHED_GONE)
                    w = a->all[n];
            if (w || (w = watch_process(a, p, m)))
                add_user(w, p, m, all->pass);
        }
    }
}

/* ---- opening ---- */

static int open_mapped(struct vcap_watched *w, char *why, size_t why_size)
{
    int first = -ENOENT;
    (void)snprintf(why, why_size, "no process has it mapped any more");
    for (uint32_t i = 0; i < w->user_count;) {
        struct vcap_user *u = &w->users[i];
        int fd = vcap_mapping_open(u->pid, &u->mapping, &u->local, why, why_size);
        if (fd >= 0)
            return fd;
        bool gone = fd == -ENOENT || fd == -ESRCH || fd == -ESTALE;
        if (first == -ENOENT && !gone)
            first = fd;
        if (gone) /* this one ended, or unmapped it */
            w->users[i] = w->users[--w->user_count];
        else
            i++;
    }
    return first;
}

int vcap_find_open(struct vcap_agent *a, struct vcap_watched *w, char *why, size_t why_size)
{
    if (w->directory < 0)
        return open_mapped(w, why, why_size);
    DIR *directory = a->directories[w->directory];
    if (!directory)
        return vcap_read_refuse(why, why_size, ENOENT, "its directory cannot be read");
    return vcap_read_open_at(dirfd(directory), w->path, RESOLVE_BENEATH | RESOLVE_NO_XDEV, why,
                             why_size);
}
