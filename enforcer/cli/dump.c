/*
 * `vramcap dump`: one ledger, once or again and again.  Reads as the host does (ledger_read.h).
 */
#include "enforcer/cli/dump.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/cli/command.h"
#include "enforcer/cli/ledger_choice.h"
#include "enforcer/cli/pace.h"
#include "enforcer/cli/units.h"

enum { OPTION_JSON, OPTION_WATCH };

static const struct vcap_option options[] = {
    [OPTION_JSON] = {"json", 'j', NULL, false,
                     "as JSON, in bytes; unknown is null (with --watch: one line each)"},
    [OPTION_WATCH] = {"watch", 'w', "SECONDS", true, "again every SECONDS (1), until SIGINT"},
    {0},
};

struct wish {
    bool json, watch;
    long pause_ms;
};

static int take(int option, const char *value, void *state)
{
    struct wish *wish = state;
    if (option == OPTION_JSON) {
        wish->json = true;
        return 0;
    }
    wish->watch = true;
    wish->pause_ms = 1000;
    if (value && vcap_units_parse_seconds(value, &wish->pause_ms) != 0)
        return vcap_command_fail("dump: --watch wants seconds from 0.05 to 86400, got '%s'", value);
    return 0;
}

static bool colours_wanted(void)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && !(no_color && *no_color) && term && strcmp(term, "dumb") != 0;
}

static int show(const char *path, const struct wish *wish)
{
    struct vcap_snapshot snapshot;
    int status = vcap_ledger_show(path, &snapshot);
    if (status)
        return status;
    int error = wish->json ? vcap_dump_json(&snapshot, stdout, wish->watch)
                           : vcap_dump_table(&snapshot, path, stdout, colours_wanted());
    vcap_snapshot_free(&snapshot);
    return error ? vcap_command_fail("out of memory") : VCAP_EXIT_DONE;
}

/* What stands between two rounds: a cleared screen, or a line with the time. */
static void separate(bool first, bool terminal)
{
    struct timespec now;
    char text[VCAP_UNITS_TEXT];
    if (terminal) {
        (void)fputs("\033[H\033[2J", stdout);
        return;
    }
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)printf("%s--- %s\n", first ? "" : "\n",
                 vcap_units_time(text, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec));
}

static int watch(const char *path, const struct wish *wish)
{
    const bool terminal = isatty(STDOUT_FILENO) && getenv("TERM") != NULL;
    vcap_pace_start();
    for (bool first = true;; first = false) {
        if (!wish->json)
            separate(first, terminal);
        int status = show(path, wish);
        if (status)
            return status;
        if (!vcap_pace_wait(wish->pause_ms))
            return VCAP_EXIT_DONE;
    }
}

static int run(int argc, char **argv)
{
    struct wish wish = {0};
    char *path = NULL;
    int first;
    int status = vcap_command_parse(&vcap_command_dump, argc, argv, take, &wish, &first);
    if (status >= 0)
        return status;
    status = vcap_ledger_choose("dump", argc, argv, first, &path);
    if (status == 0)
        status = wish.watch ? watch(path, &wish) : show(path, &wish);
    free(path);
    return status;
}

const struct vcap_command vcap_command_dump = {
    .name = "dump",
    .summary = "what the ledger says: ceilings, charges, processes",
    .operands = "[LEDGER]",
    .details =
        "Without LEDGER: VRAMCAP_LEDGER, else /run/vramcap/ledger, else this container's file in\n"
        "/dev/shm, else the one ledger of `vramcap run` that a process uses.",
    .options = options,
    .run = run,
};
