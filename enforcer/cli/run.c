/*
 * `vramcap run`: sets the environment under which libvramcap.so enforces a ceiling and becomes the
 * command.  The status is the command's own; 127 and 126 as env(1); our own failures are 2.  Must
 * not: fork, stay behind, or change anything of the process but its environment.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "enforcer/cli/command.h"
#include "enforcer/cli/ledger_choice.h"
#include "enforcer/cli/library_path.h"
#include "enforcer/cli/run_ledger.h"
#include "enforcer/config.h"
#include "enforcer/ledger.h"
#include "enforcer/ledger_path.h"

#define EXIT_CANNOT_EXECUTE 126
#define EXIT_NOT_FOUND 127

enum { OPTION_MEMORY, OPTION_AUDIT, OPTION_LEDGER, OPTION_LIBRARY };

static const struct vcap_option options[] = {
    [OPTION_MEMORY] = {"memory", 'm', "MIB", false,
                       "the ceiling: 4096, 4Gi, or 0=4096,GPU-<uuid>=8192"},
    [OPTION_AUDIT] = {"audit", 0, NULL, false,
                      "let everything through, record what would be refused"},
    [OPTION_LEDGER] = {"ledger", 'l', "PATH", false, "use this ledger; made if there is none"},
    [OPTION_LIBRARY] = {"library", 0, "PATH", false, "preload this libvramcap.so"},
    {0},
};

struct wish {
    const char *memory, *ledger, *library;
    bool audit;
};

static int take(int option, const char *value, void *state)
{
    struct wish *wish = state;
    switch (option) {
    case OPTION_MEMORY:
        wish->memory = value;
        break;
    case OPTION_AUDIT:
        wish->audit = true;
        break;
    case OPTION_LEDGER:
        wish->ledger = value;
        break;
    case OPTION_LIBRARY:
        wish->library = value;
        break;
    }
    return 0;
}

static int set(const char *name, const char *value)
{
    if (setenv(name, value, 1) == 0)
        return 0;
    return vcap_command_fail("cannot set %s: %s", name, strerror(errno));
}

static int set_memory(const char *memory)
{
    struct vcap_entries entries;
    char why[256] = "";
    if (!memory)
        return 0;
    if (vcap_config_parse_entries(memory, false, &entries, why, sizeof why) != 0)
        return vcap_command_fail("run: --memory '%s': %s", memory, why);
    return set("VRAMCAP_MEMORY_MIB", memory);
}

static int set_library(const char *named)
{
    char path[PATH_MAX], why[PATH_MAX + 256], *preload;
    if (vcap_library_find(named, path, sizeof path, why, sizeof why) != 0)
        return vcap_command_fail("run: %s", why);
    int error = vcap_library_preload(path, getenv("LD_PRELOAD"), &preload);
    if (error == -EINVAL)
        return vcap_command_fail("run: %s: LD_PRELOAD cannot hold a path with blanks or colons; "
                                 "install elsewhere or give --library",
                                 path);
    if (error)
        return vcap_command_fail("out of memory");
    int status = set("LD_PRELOAD", preload);
    free(preload);
    return status;
}

/* The command may change its directory: an absolute path.  The ledger need not exist yet. */
static int set_named_ledger(const char *ledger)
{
    char folder[PATH_MAX], path[PATH_MAX * 2];
    const char *slash = strrchr(ledger, '/');
    const char *name = slash ? slash + 1 : ledger;
    if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
        return vcap_command_fail("run: --ledger '%s' names no file", ledger);
    char *parent = slash ? strndup(ledger, (size_t)(slash - ledger) + 1) : strdup(".");
    if (!parent)
        return vcap_command_fail("out of memory");
    const char *resolved = realpath(parent, folder);
    free(parent);
    if (!resolved)
        return vcap_command_fail("run: --ledger %s: %s", ledger, strerror(errno));
    int n = snprintf(path, sizeof path, "%s/%s", strcmp(folder, "/") ? folder : "", name);
    if (n < 0 || n >= VCAP_LEDGER_PATH_MAX)
        return vcap_command_fail("run: --ledger %s: its absolute path has more than %d bytes",
                                 ledger, VCAP_LEDGER_PATH_MAX - 1);
    int error = vcap_ledger_create(path, NULL, 0, "", "");
    if (error && error != -EEXIST)
        return vcap_command_fail("run: cannot make ledger %s: %s", path, strerror(-error));
    return set("VRAMCAP_LEDGER", path);
}

/* Outside containers nothing else keeps two commands apart: a ledger for this one. */
static int set_own_ledger(char *own, size_t own_size)
{
    char key[VCAP_KEY_MAX];
    const char *named = getenv("VRAMCAP_LEDGER");
    own[0] = '\0';
    if ((named && *named) || vcap_path_exists(VCAP_LEDGER_HOST_PATH))
        return 0;
    int kind = vcap_key_compute("/proc", "/sys/fs/cgroup", key);
    if (kind == VCAP_KEY_CGROUP_NAMESPACE || kind == VCAP_KEY_CGROUP_PATH)
        return 0;
    (void)vcap_run_ledger_clean(VCAP_RUN_LEDGER_FOLDER, VCAP_RUN_LEDGER_AGE_S);
    int error = vcap_run_ledger_make(VCAP_RUN_LEDGER_FOLDER, own, own_size);
    if (error) {
        own[0] = '\0';
        return vcap_command_fail("run: cannot make a ledger in %s: %s; name a place with --ledger",
                                 VCAP_RUN_LEDGER_FOLDER, strerror(-error));
    }
    return set("VRAMCAP_LEDGER", own);
}

static int execute(char **command, const char *own)
{
    (void)execvp(command[0], command);
    int error = errno;
    if (*own)
        (void)unlink(own);
    (void)vcap_command_fail("run: cannot execute '%s': %s", command[0], strerror(error));
    return error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXECUTE;
}

static int run(int argc, char **argv)
{
    struct wish wish = {0};
    char own[VCAP_LEDGER_PATH_MAX] = "";
    int first;
    int status = vcap_command_parse(&vcap_command_run, argc, argv, take, &wish, &first);
    if (status >= 0)
        return status;
    if (first >= argc)
        return vcap_command_fail("run: no command; see: vramcap help run");
    /* everything that can be refused first, so that no ledger is left behind */
    if ((status = set_memory(wish.memory)) != 0 || (status = set_library(wish.library)) != 0 ||
        (status = set("VRAMCAP_ENABLE", wish.audit ? "audit" : "1")) != 0)
        return status;
    status = wish.ledger ? set_named_ledger(wish.ledger) : set_own_ledger(own, sizeof own);
    return status ? status : execute(argv + first, own);
}

const struct vcap_command vcap_command_run = {
    .name = "run",
    .summary = "run a command under a ceiling",
    .operands = "[--] COMMAND [ARGUMENT]...",
    .details =
        "Without --memory the ceiling comes from VRAMCAP_MEMORY_MIB, the host's ledger or the MPS\n"
        "variable; libvramcap.so says so if there is none.  Without --ledger: VRAMCAP_LEDGER, "
        "else\n"
        "/run/vramcap/ledger, else the container's own; outside containers one for this command.\n"
        "Exit status: the command's own; 127 if it is not found, 126 if it cannot be executed, 2 "
        "for\n"
        "mistakes of usage and I/O before that.",
    .options_first = true,
    .options = options,
    .run = run,
};
