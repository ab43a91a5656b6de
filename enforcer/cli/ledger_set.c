/*
 * Which ledgers, and reading them.  In a folder every entry counts that is not hidden: a file
 * itself, a folder if it has a `ledger` in it (as vramcap-agent has it).  What is no ledger is reported, not
 * passed over.
 */
#include "enforcer/cli/ledger_set.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "enforcer/cli/command.h"
#include "enforcer/cli/ledger_choice.h"
#include "enforcer/cli/run_ledger.h"

#define HOST_FOLDER "/run/vramcap"
#define ITEMS_MAX 4096

static void drop_snapshots(struct vcap_ledger_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        if (set->items[i].trusted)
            vcap_snapshot_free(&set->items[i].snapshot);
        set->items[i].trusted = false;
    }
}

static void drop_items(struct vcap_ledger_set *set)
{
    drop_snapshots(set);
    for (size_t i = 0; i < set->count; i++)
        free(set->items[i].path);
    free(set->items);
    set->items = NULL;
    set->count = 0;
}

void vcap_ledger_set_free(struct vcap_ledger_set *set)
{
    drop_items(set);
    free(set->folder);
    set->folder = NULL;
}

static void copy_printable(char *to, size_t size, const char *from)
{
    size_t i = 0;
    for (; i + 1 < size && from[i]; i++)
        to[i] = (char)(from[i] >= 0x20 && from[i] < 0x7f ? from[i] : '?');
    to[i] = '\0';
}

/* Takes path over, also on failure. */
static int add(struct vcap_ledger_set *set, char *path)
{
    struct vcap_ledger_set_item *more =
        path ? realloc(set->items, (set->count + 1) * sizeof *more) : NULL;
    if (!more) {
        free(path);
        return -ENOMEM;
    }
    set->items = more;
    more += set->count++;
    *more = (struct vcap_ledger_set_item){.path = path};
    const char *slash = strrchr(path, '/');
    copy_printable(more->name, sizeof more->name, slash ? slash + 1 : path);
    copy_printable(more->shown, sizeof more->shown, path);
    return 0;
}

static int is_wanted(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* The ledger that an entry stands for; *path is malloc'd, or NULL: none.  0 or -ENOMEM. */
static int path_of(const char *folder, const struct dirent *entry, char **path)
{
    struct stat st;

    *path = NULL;
    if (asprintf(path, "%s/%s", folder, entry->d_name) < 0) {
        *path = NULL;
        return -ENOMEM;
    }
    if (lstat(*path, &st) != 0 || !S_ISDIR(st.st_mode))
        return 0; /* one that has vanished is noticed when it is read */
    free(*path);
    if (asprintf(path, "%s/%s/ledger", folder, entry->d_name) < 0) {
        *path = NULL;
        return -ENOMEM;
    }
    if (lstat(*path, &st) != 0) {
        free(*path);
        *path = NULL;
    }
    return 0;
}

/* 0, or -errno. */
static int list_folder(struct vcap_ledger_set *set)
{
    struct dirent **entries = NULL;
    int error = 0, n = scandir(set->folder, &entries, is_wanted, alphasort);
    if (n < 0)
        return -errno;
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        if (!error && set->count < ITEMS_MAX)
            error = path_of(set->folder, entries[i], &path);
        if (!error && path) {
            error = add(set, path);
            if (!error)
                copy_printable(set->items[set->count - 1].name, sizeof set->items[0].name,
                               entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
    return error;
}

static int no_memory(void)
{
    return vcap_command_fail("out of memory");
}

static int choose_by_operands(int argc, char **argv, int first, struct vcap_ledger_set *set)
{
    for (int i = first; i < argc; i++)
        if (add(set, strdup(argv[i])) != 0)
            return no_memory();
    return 0;
}

static bool has_ledgers(const char *folder)
{
    struct vcap_ledger_set set = {.folder = strdup(folder)};
    bool any = set.folder && list_folder(&set) == 0 && set.count > 0;
    vcap_ledger_set_free(&set);
    return any;
}

static int choose_unnamed(const char *command, int argc, char **argv, struct vcap_ledger_set *set)
{
    const char *named = getenv("VRAMCAP_LEDGER");
    char *one = NULL, **paths = NULL;
    size_t count = 0;
    int status;

    if (!(named && *named) && has_ledgers(HOST_FOLDER)) {
        set->folder = strdup(HOST_FOLDER);
        return set->folder ? 0 : no_memory();
    }
    if (!(named && *named) && vcap_run_ledger_list(VCAP_RUN_LEDGER_FOLDER, &paths, &count) == 0) {
        int error = 0;
        for (size_t i = 0; count > 1 && !error && i < count; i++)
            error = add(set, strdup(paths[i]));
        vcap_run_ledger_free_list(paths, count);
        if (count > 1)
            return error ? no_memory() : 0;
    }
    status = vcap_ledger_choose(command, argc, argv, argc, &one);
    if (status == 0 && add(set, one) != 0)
        return no_memory();
    return status;
}

int vcap_ledger_set_choose(const char *command, const char *folder, int argc, char **argv,
                           int first, struct vcap_ledger_set *set)
{
    int status;

    *set = (struct vcap_ledger_set){0};
    if (folder && first < argc)
        return vcap_command_fail("%s: --ledger-dir and operands exclude each other, got '%s'",
                                 command, argv[first]);
    if (folder) {
        set->folder = strdup(folder);
        return set->folder ? 0 : no_memory();
    }
    status = first < argc ? choose_by_operands(argc, argv, first, set)
                          : choose_unnamed(command, argc, argv, set);
    if (status)
        vcap_ledger_set_free(set);
    return status;
}

int vcap_ledger_set_complain(const char *command, const struct vcap_ledger_set *set, int error)
{
    if (error == 0)
        return 0;
    if (error == -ENOMEM || !set->folder)
        return no_memory();
    return vcap_command_fail("%s: cannot read the folder %s: %s", command, set->folder,
                             strerror(-error));
}

int vcap_ledger_set_read(struct vcap_ledger_set *set)
{
    drop_snapshots(set);
    if (set->folder) {
        drop_items(set);
        int error = list_folder(set);
        if (error)
            return error;
    }
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++) {
        struct vcap_ledger_set_item *item = &set->items[i];
        int error = vcap_snapshot_read(item->path, &item->snapshot, item->why, sizeof item->why);
        item->trusted = error == 0;
        if (set->folder && error == -ENOENT) {
            free(item->path);
            continue;
        }
        if (item->trusted && item->snapshot.container[0])
            copy_printable(item->name, sizeof item->name, item->snapshot.container);
        set->items[kept++] = *item;
    }
    set->count = kept;
    return 0;
}

struct vcap_report_source *vcap_ledger_set_sources(const struct vcap_ledger_set *set)
{
    struct vcap_report_source *sources = calloc(set->count + 1, sizeof *sources);
    for (size_t i = 0; sources && i < set->count; i++) {
        const struct vcap_ledger_set_item *item = &set->items[i];
        sources[i] = (struct vcap_report_source){.container = item->name,
                                                 .ledger = item->shown,
                                                 .snapshot = item->trusted ? &item->snapshot : NULL,
                                                 .untrusted = item->why};
    }
    return sources;
}
