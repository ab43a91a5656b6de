/*
 * Where libvramcap.so is.  The build passes
 *     VRAMCAP_LIBRARY_FROM_BIN   the installed library's folder, relative to the tool's
 *     VRAMCAP_BUILD_BIN          folder in which this tool was built
 *     VRAMCAP_BUILD_LIBRARY      the library in that build tree
 * The last counts only while the tool runs from VRAMCAP_BUILD_BIN: an installed tool must never
 * load a library from a path that whoever builds packages happened to use.
 */
#include "enforcer/cli/library_path.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIBRARY_NAME "libvramcap.so"
#define SEPARATORS " :" /* of LD_PRELOAD, ld.so(8) */

static bool executable_folder(char *folder, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", folder, size - 1);
    if (n <= 0)
        return false;
    folder[n] = '\0';
    char *slash = strrchr(folder, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

static int use(const char *candidate, char *path, size_t path_size)
{
    char resolved[PATH_MAX];
    struct stat st;
    if (!realpath(candidate, resolved) || stat(resolved, &st) != 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -ENOEXEC;
    if (access(resolved, R_OK) != 0)
        return -errno;
    int n = snprintf(path, path_size, "%s", resolved);
    return n >= 0 && (size_t)n < path_size ? 0 : -ENAMETOOLONG;
}

/* Beside the installed tool; else, while the tool is in its build tree, `built`. */
static int find_installed(const char *name, const char *built, char *path, size_t path_size,
                          char *why, size_t why_size)
{
    char folder[PATH_MAX], installed[PATH_MAX * 2] = "";
    if (executable_folder(folder, sizeof folder)) {
        (void)snprintf(installed, sizeof installed, "%s/%s/%s", folder, VRAMCAP_LIBRARY_FROM_BIN,
                       name);
        if (use(installed, path, path_size) == 0)
            return 0;
        if (!strcmp(folder, VRAMCAP_BUILD_BIN) && use(built, path, path_size) == 0)
            return 0;
    }
    (void)snprintf(why, why_size, "no %s%s%s", name, *installed ? " at " : "", installed);
    return -ENOENT;
}

int vcap_library_find(const char *named, char *path, size_t path_size, char *why, size_t why_size)
{
    if (named) {
        int error = use(named, path, path_size);
        if (error)
            (void)snprintf(why, why_size, "--library %s: %s", named,
                           error == -ENOEXEC ? "not a regular file" : strerror(-error));
        return error;
    }
    int error = find_installed(LIBRARY_NAME, VRAMCAP_BUILD_LIBRARY, path, path_size, why, why_size);
    if (error) {
        size_t at = strlen(why);
        (void)snprintf(why + at, why_size - at, "; name it with --library");
    }
    return error;
}

int vcap_library_find_file(const char *name, char *path, size_t path_size, char *why,
                           size_t why_size)
{
    char built[PATH_MAX];
    int n = snprintf(built, sizeof built, "%s/%s", VRAMCAP_BUILD_BIN, strrchr(name, '/') + 1);
    if (n < 0 || (size_t)n >= sizeof built)
        return -ENAMETOOLONG;
    return find_installed(name, built, path, path_size, why, why_size);
}

static bool is_same_file(const char *entry, const char *library)
{
    struct stat a, b;
    if (!strcmp(entry, library))
        return true;
    return strchr(entry, '/') && stat(entry, &a) == 0 && stat(library, &b) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

int vcap_library_preload(const char *library, const char *old, char **preload)
{
    if (strpbrk(library, SEPARATORS))
        return -EINVAL;
    size_t room = strlen(library) + 2 + (old ? strlen(old) + 1 : 0);
    char *value = malloc(room), *copy = strdup(old ? old : ""), *rest = copy;
    if (!value || !copy) {
        free(value);
        free(copy);
        return -ENOMEM;
    }
    char *at = stpcpy(value, library);
    for (const char *entry; (entry = strsep(&rest, SEPARATORS));) {
        if (*entry && !is_same_file(entry, library)) {
            *at++ = ':';
            at = stpcpy(at, entry);
        }
    }
    free(copy);
    *preload = value;
    return 0;
}
