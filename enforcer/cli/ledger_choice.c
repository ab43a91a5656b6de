/*
 * Which ledger to read.  The order is that of product.md, "Configuration"; what does not exist is
 * passed over, what exists and cannot be read is reported rather than passed over.
 */
#include "enforcer/cli/ledger_choice.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "enforcer/cli/command.h"
#include "enforcer/cli/run_ledger.h"
#include "enforcer/ledger_path.h"

bool vcap_path_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

static int no_memory(void)
{
    return vcap_command_fail("out of memory");
}

static int give(const char *text, char **path)
{
    *path = strdup(text);
    return *path ? 0 : no_memory();
}

static int choose_run_ledger(const char *key_path, char **path)
{
    char **paths = NULL;
    size_t count = 0;
    int status = VCAP_EXIT_FAILED;
    int error = vcap_run_ledger_list(VCAP_RUN_LEDGER_FOLDER, &paths, &count);
    if (error == -ENOMEM)
        return no_memory();
    if (error)
        count = 0;
    if (count == 1) {
        status = give(paths[0], path);
    } else if (count > 1) {
        (void)vcap_command_fail("%zu ledgers of `vramcap run` are in use; name one:", count);
        for (size_t i = 0; i < count; i++)
            (void)vcap_command_fail("    %s", paths[i]);
    } else {
        (void)vcap_command_fail(
            "no ledger found: VRAMCAP_LEDGER is not set, there is no %s, no %s and no ledger of "
            "`vramcap run` that a process uses; name one as operand",
            VCAP_LEDGER_HOST_PATH, *key_path ? key_path : VCAP_LEDGER_SHM_PREFIX "...");
    }
    vcap_run_ledger_free_list(paths, count);
    return status;
}

static bool somebody_lives(const char *path)
{
    struct vcap_snapshot snapshot;
    char why[256] = "";
    bool lives = false;

    if (vcap_snapshot_read(path, &snapshot, why, sizeof why) != 0)
        return true; /* to be reported, not passed over */
    for (uint32_t p = 0; p < snapshot.process_count; p++)
        lives = lives || snapshot.processes[p].life != VCAP_LIFE_DEAD;
    vcap_snapshot_free(&snapshot);
    return lives;
}

static size_t run_ledgers(void)
{
    char **paths = NULL;
    size_t count = 0;

    if (vcap_run_ledger_list(VCAP_RUN_LEDGER_FOLDER, &paths, &count) != 0)
        return 0;
    vcap_run_ledger_free_list(paths, count);
    return count;
}

int vcap_ledger_choose(const char *command, int argc, char **argv, int first, char **path)
{
    char key[VCAP_KEY_MAX], key_path[sizeof VCAP_LEDGER_SHM_PREFIX + VCAP_KEY_MAX] = "";
    if (argc - first > 1)
        return vcap_command_fail("%s: one ledger at a time, got also '%s'", command,
                                 argv[first + 1]);
    if (first < argc)
        return give(argv[first], path);
    const char *named = getenv("VRAMCAP_LEDGER");
    if (named && *named)
        return give(named, path);
    if (vcap_path_exists(VCAP_LEDGER_HOST_PATH))
        return give(VCAP_LEDGER_HOST_PATH, path);
    if (vcap_key_compute("/proc", "/sys/fs/cgroup", key) >= 0) {
        (void)snprintf(key_path, sizeof key_path, "%s%s", VCAP_LEDGER_SHM_PREFIX, key);
        /* a ledger that everybody has left says less than one of a command that runs now */
        if (vcap_path_exists(key_path) && (somebody_lives(key_path) || run_ledgers() == 0))
            return give(key_path, path);
    }
    return choose_run_ledger(key_path, path);
}

int vcap_ledger_show(const char *path, struct vcap_snapshot *snapshot)
{
    char why[256] = "";
    int error = vcap_snapshot_read(path, snapshot, why, sizeof why);
    if (error == -EINVAL)
        return vcap_command_find("untrusted ledger %s: %s", path, why);
    if (error)
        return vcap_command_fail("cannot read ledger %s: %s", path, why);
    return 0;
}
