/*
 * Ledgers made by `vramcap run`.  Deleting one is safe against processes that are about to join it:
 * they hold the ledger's init byte shared while they join and check its name under that lock
 * (ledger_file.c), we hold it exclusively while we look and delete.  Nothing here waits for a lock.
 */
#include "enforcer/cli/run_ledger.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/ledger.h"
#include "enforcer/ledger_read.h"

#define NAME_PREFIX "vramcap-run-"
#define WHY_BYTES 256

int vcap_run_ledger_make(const char *folder, char *path, size_t path_size)
{
    for (int i = 0; i < 8; i++) {
        uint64_t random;
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
            return -errno;
        int n = snprintf(path, path_size, "%s/" NAME_PREFIX "%u-%d-%016llx", folder,
                         (unsigned)getuid(), (int)getpid(), (unsigned long long)random);
        if (n < 0 || (size_t)n >= path_size)
            return -ENAMETOOLONG;
        int error = vcap_ledger_create(path, NULL, 0, "", "");
        if (error != -EEXIST)
            return error;
    }
    return -EEXIST;
}

/* Is it one of ours, by its name?  Then whose, and which process made it. */
static bool parse_name(const char *name, unsigned *uid, int *pid)
{
    char extra;
    unsigned long long random;
    return sscanf(name, NAME_PREFIX "%u-%d-%16llx%c", uid, pid, &random, &extra) == 3 && *pid > 0;
}

static bool somebody_lives(const struct vcap_snapshot *snapshot)
{
    if (snapshot->slots_in_flux)
        return true;
    for (uint32_t i = 0; i < snapshot->process_count; i++)
        if (snapshot->processes[i].life != VCAP_LIFE_DEAD)
            return true;
    return false;
}

static bool delete_if_empty(const char *path, int64_t age_s)
{
    struct flock init = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = VCAP_LF_LOCK_INIT, .l_len = 1};
    struct vcap_snapshot snapshot;
    struct stat st, named;
    char why[WHY_BYTES];
    bool deleted = false;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return false;
    /* ctime: when it was given its name; writes through mappings leave it alone */
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        time(NULL) - st.st_ctime < age_s || fcntl(fd, F_OFD_SETLK, &init) != 0 ||
        vcap_snapshot_read_fd(fd, &snapshot, why, sizeof why) != 0)
        goto out;
    if (!somebody_lives(&snapshot) && lstat(path, &named) == 0 && named.st_dev == st.st_dev &&
        named.st_ino == st.st_ino)
        deleted = unlink(path) == 0;
    vcap_snapshot_free(&snapshot);
out:
    (void)close(fd);
    return deleted;
}

unsigned vcap_run_ledger_clean(const char *folder, int64_t age_s)
{
    unsigned deleted = 0;
    DIR *directory = opendir(folder);
    if (!directory)
        return 0;
    for (const struct dirent *entry; (entry = readdir(directory));) {
        char path[VCAP_LEDGER_PATH_MAX];
        unsigned uid;
        int pid;
        if (!parse_name(entry->d_name, &uid, &pid) || uid != getuid() ||
            (kill(pid, 0) == 0 || errno != ESRCH))
            continue;
        int n = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (n > 0 && (size_t)n < sizeof path)
            deleted += delete_if_empty(path, age_s);
    }
    (void)closedir(directory);
    return deleted;
}

static int by_text(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

int vcap_run_ledger_list(const char *folder, char ***paths, size_t *count)
{
    char **list = NULL;
    size_t n = 0;
    int error = 0;
    DIR *directory = opendir(folder);
    if (!directory)
        return -errno;
    for (const struct dirent *entry; !error && (entry = readdir(directory));) {
        struct vcap_snapshot snapshot;
        char *path, why[WHY_BYTES];
        unsigned uid;
        int pid;
        if (!parse_name(entry->d_name, &uid, &pid) || (getuid() != 0 && uid != getuid()))
            continue;
        if (asprintf(&path, "%s/%s", folder, entry->d_name) < 0) {
            error = -ENOMEM;
            break;
        }
        bool lives = false;
        if (vcap_snapshot_read(path, &snapshot, why, sizeof why) == 0) {
            lives = somebody_lives(&snapshot);
            vcap_snapshot_free(&snapshot);
        }
        char **grown = lives ? reallocarray(list, n + 1, sizeof *list) : NULL;
        if (grown) {
            list = grown;
            list[n++] = path;
        } else {
            error = lives ? -ENOMEM : 0;
            free(path);
        }
    }
    (void)closedir(directory);
    if (error) {
        vcap_run_ledger_free_list(list, n);
        return error;
    }
    if (n > 0)
        qsort(list, n, sizeof *list, by_text);
    *paths = list;
    *count = n;
    return 0;
}

void vcap_run_ledger_free_list(char **paths, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(paths[i]);
    free(paths);
}
