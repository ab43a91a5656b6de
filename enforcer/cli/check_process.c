/*
 * The process that is looked at: is libvramcap in it and how, is another enforcer, and which other
 * processes of the same container go unprotected.  All of it from /proc, which belongs to strangers:
 * read in bounded pieces, shown as printable text.
 */
#include "enforcer/cli/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "enforcer/agent/proc_file.h"
#include "enforcer/agent/process.h"
#include "enforcer/kernel.h"
#include "enforcer/ledger_read_open.h"

#define SCAN_NS UINT64_C(500000000)
#define NAMED_MAX 8 /* of each kind, the others are counted */

bool vcap_check_variable(const struct vcap_check *check, const char *name, char *value, size_t size)
{
    if (check->self) {
        const char *text = getenv(name);
        if (text)
            (void)snprintf(value, size, "%s", text);
        return text != NULL;
    }
    return vcap_process_variable(check->pid, name, value, size) == 1;
}

/* The first mapped file of the process whose name contains the word; false: none, or not to be read. */
static bool mapped(pid_t pid, const char *word, char *path, size_t size)
{
    char name[64], line[1024];
    FILE *maps;
    bool found = false;

    (void)snprintf(name, sizeof name, "/proc/%d/maps", (int)pid);
    maps = fopen(name, "re");
    if (!maps)
        return false;
    while (!found && fgets(line, sizeof line, maps)) {
        char *at = strchr(line, '/');
        if (!at || !strstr(at, word))
            continue;
        at[strcspn(at, "\n")] = '\0';
        (void)snprintf(path, size, "%s", at);
        found = true;
    }
    (void)fclose(maps);
    return found;
}

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

/* /etc/ld.so.preload as the process sees it.  Another's is a stranger's file: it is opened only if it is a
 * regular one and behind no link, which would lead into the file system of whoever asks. */
static int open_preload_file(const struct vcap_check *check)
{
    char name[64], why[128];
    int root, fd;

    if (check->self)
        return open("/etc/ld.so.preload", O_RDONLY | O_CLOEXEC);
    (void)snprintf(name, sizeof name, "/proc/%d/root", (int)check->pid);
    root = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return -1;
    fd = vcap_read_open_at(root, "etc/ld.so.preload", RESOLVE_IN_ROOT, why, sizeof why);
    (void)close(root);
    return fd;
}

static bool preload_file(const struct vcap_check *check, char *text, size_t size)
{
    int fd = open_preload_file(check);
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    size_t n;

    if (!file) {
        if (fd >= 0)
            (void)close(fd);
        return false;
    }
    n = fread(text, 1, size - 1, file);
    text[n] = '\0';
    (void)fclose(file);
    return true;
}

static bool exists(const struct vcap_check *check, const char *path)
{
    char name[600];

    if (check->self)
        return access(path, F_OK) == 0;
    (void)snprintf(name, sizeof name, "/proc/%d/root/%s", (int)check->pid, path);
    return access(name, F_OK) == 0;
}

static void say_other_enforcer(struct vcap_check *check)
{
    char path[256], value[64];
    bool other = mapped(check->pid, "libvgpu", path, sizeof path);
    bool limit = vcap_check_variable(check, "CUDA_DEVICE_MEMORY_LIMIT", value, sizeof value) ||
                 vcap_check_variable(check, "CUDA_DEVICE_MEMORY_LIMIT_0", value, sizeof value);

    if (other)
        vcap_check_say(
            check, "other-enforcer", NULL, VCAP_CHECK_FINDING,
            "%s is loaded beside vramcap%s%s: two enforcers, the lower limit of both holds", path,
            limit ? ", with a limit of " : "", limit ? value : "");
    else if (limit)
        vcap_check_say(check, "other-enforcer", NULL, VCAP_CHECK_NOTE,
                       "CUDA_DEVICE_MEMORY_LIMIT is %s, but no library that reads it is loaded",
                       value);
}

void vcap_check_library(struct vcap_check *check)
{
    char path[256], named[256], list[2048];
    bool there = mapped(check->pid, "libvramcap", path, sizeof path);
    bool by_variable = vcap_check_variable(check, "LD_PRELOAD", list, sizeof list) &&
                       names_library(list, named, sizeof named);
    bool by_file = false;

    if (!by_variable)
        by_file =
            preload_file(check, list, sizeof list) && names_library(list, named, sizeof named);
    if (there)
        vcap_check_say(check, "library", NULL, VCAP_CHECK_OK, "%s is loaded, by %s", path,
                       by_variable ? "LD_PRELOAD"
                       : by_file
                           ? "/etc/ld.so.preload"
                           : "neither LD_PRELOAD nor /etc/ld.so.preload (linked, or both have "
                             "changed since)");
    else if (by_variable || by_file)
        vcap_check_say(
            check, "library", NULL, VCAP_CHECK_FINDING,
            "%s names %s, %s: the loader has left it out, nothing is enforced in this process",
            by_variable ? "LD_PRELOAD" : "/etc/ld.so.preload", named,
            exists(check, named) ? "which is not loaded" : "which does not exist");
    else
        vcap_check_say(check, "library", NULL, VCAP_CHECK_FINDING,
                       "libvramcap.so is not loaded: nothing is enforced in this process");
    say_other_enforcer(check);
}

/* Processes that this user may not look at and that no other container's cgroup has: they may be of this
 * one. */
static unsigned count_hidden(const struct vcap_process *own)
{
    DIR *proc = opendir("/proc");
    unsigned hidden = 0;

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
        hidden +=
            !name.container || !own->name.container || vcap_container_name_same(&name, &own->name);
    }
    if (proc)
        (void)closedir(proc);
    return hidden;
}

static void say_nobody_else(struct vcap_check *check, bool complete, unsigned hidden)
{
    if (!complete)
        vcap_check_say(check, "processes", NULL, VCAP_CHECK_UNKNOWN,
                       "not all of /proc could be looked at");
    else if (hidden > 0)
        vcap_check_say(check, "processes", NULL, VCAP_CHECK_UNKNOWN,
                       "%u processes may not be looked at by this user; none of the others uses "
                       "the driver without the ceiling",
                       hidden);
    else
        vcap_check_say(check, "processes", NULL, VCAP_CHECK_OK,
                       "no other process of this container uses the driver without the ceiling");
}

void vcap_check_others(struct vcap_check *check)
{
    struct vcap_processes all = {0};
    struct vcap_process own;
    uint32_t unprotected = 0, passive = 0;
    uint64_t until = vcap_clock_ns(CLOCK_MONOTONIC) + SCAN_NS;
    bool complete = false;

    if (!vcap_process_look(check->pid, &own)) {
        vcap_check_say(check, "processes", NULL, VCAP_CHECK_UNKNOWN,
                       "/proc shows nothing of process %d", (int)check->pid);
        return;
    }
    while (!complete && vcap_clock_ns(CLOCK_MONOTONIC) < until)
        complete = vcap_processes_scan(&all, SCAN_NS / 4);
    for (size_t i = 0; i < all.known_count; i++) {
        const struct vcap_process *p = &all.known[i];
        /* of this container: in the same mount namespace, or named alike by its cgroup */
        if (p->pid == check->pid || p->pid == getpid() || !p->driver ||
            !((p->mntns != 0 && p->mntns == own.mntns) ||
              (p->name.container && vcap_container_name_same(&p->name, &own.name))))
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
        say_nobody_else(check, complete, count_hidden(&own));
    if (unprotected > NAMED_MAX || passive > NAMED_MAX)
        vcap_check_say(check, "processes", NULL, VCAP_CHECK_FINDING,
                       "%u unprotected and %u passive processes in all", unprotected, passive);
    vcap_processes_free(&all);
}
