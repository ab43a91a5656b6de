/*
 * The process that is looked at: is libvramcap in it and how, is another enforcer, and which other
 * processes of the same container go unprotected.  All of it from /proc, which belongs to strangers:
 * read in bounded pieces and with a time limit, shown as printable text.
 */
#include "enforcer/cli/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "enforcer/agent/probe.h"
#include "enforcer/agent/proc_file.h"
#include "enforcer/agent/process.h"
#include "enforcer/kernel.h"

#define SCAN_NS UINT64_C(500000000)
#define HIDDEN_MS 3000
#define NAMED_MAX 8 /* of each kind, the others are counted */

/* The part of a list (blanks and colons between) that names libvramcap; false: none does. */
static bool names_library(const char *list, char *path, size_t size)
{
    while (*list) {
        size_t length = strcspn(list, " :\t\n");
        if (length > 0 && length < size && memmem(list, length, "libvramcap", 10)) {
            memcpy(path, list, length);
            path[length] = '\0';
            return true;
        }
        list += length;
        list += strspn(list, " :\t\n");
    }
    return false;
}

static void say_other_enforcer(struct vcap_check *check)
{
    const char *other = check->map.other;
    char value[64];
    bool limit = vcap_check_variable(check, "CUDA_DEVICE_MEMORY_LIMIT", value, sizeof value) ||
                 vcap_check_variable(check, "CUDA_DEVICE_MEMORY_LIMIT_0", value, sizeof value);

    if (check->map.error != 0)
        return;
    if (other[0] != '\0')
        vcap_check_say(
            check, "other-enforcer", NULL, VCAP_CHECK_FINDING,
            "%s is loaded beside vramcap%s%s: two enforcers, the lower limit of both holds", other,
            limit ? ", with a limit of " : "", limit ? value : "");
    else if (limit)
        vcap_check_say(check, "other-enforcer", NULL, VCAP_CHECK_NOTE,
                       "CUDA_DEVICE_MEMORY_LIMIT is %s, but no library that reads it is loaded",
                       value);
}

static void say_left_out(struct vcap_check *check, const char *by, const char *named)
{
    int exists = vcap_check_exists(check, named);

    vcap_check_say(
        check, "library", NULL, VCAP_CHECK_FINDING,
        "%s names %s, %s: the loader has left it out, nothing is enforced in this process", by,
        named, exists == 0 ? "which does not exist" : "which is not loaded");
}

void vcap_check_library(struct vcap_check *check)
{
    char named[256], list[2048];
    const char *by = NULL;

    if (check->map.error != 0)
        return;
    if (vcap_check_variable(check, "LD_PRELOAD", list, sizeof list) &&
        names_library(list, named, sizeof named))
        by = "LD_PRELOAD";
    else if (vcap_check_preload_file(check, list, sizeof list) &&
             names_library(list, named, sizeof named))
        by = "/etc/ld.so.preload";
    if (check->map.library[0] != '\0')
        vcap_check_say(check, "library", NULL, VCAP_CHECK_OK, "%s is loaded, by %s",
                       check->map.library,
                       by              ? by
                       : check->unseen ? "what cannot be told"
                                       : "neither LD_PRELOAD nor /etc/ld.so.preload (linked, or "
                                         "both have changed since)");
    else if (by)
        say_left_out(check, by, named);
    else
        vcap_check_say(check, "library", NULL, VCAP_CHECK_FINDING,
                       "libvramcap.so is not loaded: nothing is enforced in this process");
    say_other_enforcer(check);
}

/* ---- other processes ---- */

/* Plain data of the question how many there are that may not be looked at. */
struct hidden {
    int32_t error;
    uint32_t count;
};

/* Processes that this user may not look at and that no other container's cgroup has: they may be of this
 * one.  In a child: even to open another's map may take as long as that one likes. */
static void ask_hidden(const void *wish, void *answer)
{
    const struct vcap_process *own = wish;
    struct hidden *hidden = answer;
    DIR *proc = opendir("/proc");

    hidden->error = proc ? 0 : -errno;
    for (const struct dirent *e; proc && (e = readdir(proc));) {
        struct vcap_container_name name = {0};
        char path[64], text[4096];
        int pid = (int)strtol(e->d_name, NULL, 10);
        int fd;

        if (pid <= 0)
            continue;
        (void)snprintf(path, sizeof path, "/proc/%d/maps", pid);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0)
            (void)close(fd);
        if (fd >= 0 || (errno != EACCES && errno != EPERM))
            continue;
        if (vcap_proc_read(pid, "cgroup", text, sizeof text) > 0)
            vcap_container_name_parse(text, &name);
        hidden->count +=
            !name.container || !own->name.container || vcap_container_name_same(&name, &own->name);
    }
    if (proc)
        (void)closedir(proc);
}

static const struct vcap_check_question for_hidden = {ask_hidden, HIDDEN_MS, true};

static void say_nobody_else(struct vcap_check *check, bool complete, size_t unanswered,
                            const struct hidden *hidden)
{
    if (!complete || hidden->error != 0)
        vcap_check_say(check, "processes", NULL, VCAP_CHECK_UNKNOWN,
                       "not all of /proc could be looked at%s%s", hidden->error != 0 ? ": " : "",
                       hidden->error == -ETIMEDOUT ? "some process makes its readers wait"
                       : hidden->error != 0        ? strerror(-hidden->error)
                                                   : "");
    else if (unanswered > 0)
        vcap_check_say(check, "processes", NULL, VCAP_CHECK_UNKNOWN,
                       "%zu process%s could not be looked at (they make their readers wait); none "
                       "of the others uses the driver without the ceiling",
                       unanswered, unanswered == 1 ? "" : "es");
    else if (hidden->count > 0)
        vcap_check_say(check, "processes", NULL, VCAP_CHECK_UNKNOWN,
                       "%u processes may not be looked at by this user; none of the others uses "
                       "the driver without the ceiling",
                       hidden->count);
    else
        vcap_check_say(check, "processes", NULL, VCAP_CHECK_OK,
                       "no other process of this container uses the driver without the ceiling");
}

/* Of the container of the process that is looked at: in the same mount namespace, or named alike by its
 * cgroup.  And neither that one nor this. */
static bool is_other(const struct vcap_check *check, const struct vcap_process *p)
{
    const struct vcap_process *own = &check->map.process;

    return p->pid != check->pid && p->pid != getpid() && p->driver &&
           ((p->mntns != 0 && p->mntns == own->mntns) ||
            (p->name.container && vcap_container_name_same(&p->name, &own->name)));
}

void vcap_check_others(struct vcap_check *check)
{
    struct vcap_processes all = {0};
    struct hidden hidden;
    uint32_t unprotected = 0, passive = 0;
    uint64_t until;
    bool complete = false;

    if (check->map.error != 0)
        return;
    hidden = (struct hidden){0};
    int error = vcap_check_child(&for_hidden, &check->map.process, &hidden, sizeof hidden);
    if (error != 0)
        hidden.error = error;
    until = vcap_clock_ns(CLOCK_MONOTONIC) + SCAN_NS;
    while (!complete && vcap_clock_ns(CLOCK_MONOTONIC) < until)
        complete = vcap_processes_scan(&all, SCAN_NS / 4);
    for (size_t i = 0; i < all.known_count; i++) {
        const struct vcap_process *p = &all.known[i];
        if (!is_other(check, p))
            continue;
        if (!p->library) {
            if (unprotected++ < NAMED_MAX)
                vcap_check_say(check, "unprotected", NULL, VCAP_CHECK_FINDING,
                               "process %d (%s) has the CUDA driver loaded and not libvramcap.so",
                               (int)p->pid, p->command);
        } else if (p->ledger_count == 0) {
            if (passive++ < NAMED_MAX)
                vcap_check_say(
                    check, "passive", NULL, VCAP_CHECK_FINDING,
                    "process %d (%s) has the CUDA driver and libvramcap.so loaded and no ledger: "
                    "it is passive",
                    (int)p->pid, p->command);
        }
    }
    if (unprotected == 0 && passive == 0)
        say_nobody_else(check, complete, all.unanswered, &hidden);
    if (unprotected > NAMED_MAX || passive > NAMED_MAX)
        vcap_check_say(check, "processes", NULL, VCAP_CHECK_FINDING,
                       "%u unprotected and %u passive processes in all", unprotected, passive);
    vcap_processes_free(&all);
    vcap_probe_end();
}
