/*
 * `vramcap top`: the picture of top_frame.h, again and again.  On a terminal it is drawn in place
 * until `q` or a signal; anywhere else it is plain text, one picture after another.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/cli/command.h"
#include "enforcer/cli/ledger_set.h"
#include "enforcer/cli/pace.h"
#include "enforcer/cli/terminal.h"
#include "enforcer/cli/top_frame.h"
#include "enforcer/cli/units.h"

enum { OPTION_EVERY, OPTION_ONCE, OPTION_PLAIN, OPTION_FOLDER };

static const struct vcap_option options[] = {
    [OPTION_EVERY] = {"every", 'e', "SECONDS", false, "look again every SECONDS (1)"},
    [OPTION_ONCE] = {"once", 'o', NULL, false, "one picture, as plain text, and end"},
    [OPTION_PLAIN] = {"plain", 'p', NULL, false, "plain text on a terminal too"},
    [OPTION_FOLDER] = {"ledger-dir", 'd', "DIR", false, "all ledgers of a folder"},
    {0},
};

struct wish {
    long pause_ms;
    bool once, plain;
    const char *folder;
};

static int take(int option, const char *value, void *state)
{
    struct wish *wish = state;
    switch (option) {
    case OPTION_EVERY:
        if (vcap_units_parse_seconds(value, &wish->pause_ms) != 0)
            return vcap_command_fail("top: --every wants seconds from 0.05 to 86400, got '%s'",
                                     value);
        return 0;
    case OPTION_ONCE:
        wish->once = true;
        return 0;
    case OPTION_PLAIN:
        wish->plain = true;
        return 0;
    default:
        wish->folder = value;
        return 0;
    }
}

static uint64_t realtime_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int run_plain(struct vcap_ledger_set *set, const struct wish *wish)
{
    struct vcap_top_size size = {.rows = 0};
    unsigned rows;

    vcap_pace_start();
    for (bool first = true;; first = false) {
        int error = vcap_ledger_set_read(set);
        if (error)
            return vcap_ledger_set_complain("top", set, error);
        vcap_terminal_size(&size.columns, &rows);
        char *text = vcap_top_frame(set, &size, realtime_ns());
        if (!text)
            return vcap_command_fail("out of memory");
        (void)fputs(first ? "" : "\n", stdout);
        (void)fputs(text, stdout);
        free(text);
        if (wish->once || !vcap_pace_wait(wish->pause_ms))
            return VCAP_EXIT_DONE;
    }
}

/* The terminal is ours: whatever is to be said on stderr comes after it was given back. */
static int draw(struct vcap_ledger_set *set, bool colours)
{
    struct vcap_top_size size = {.colours = colours};
    vcap_terminal_size(&size.columns, &size.rows);
    char *text = vcap_top_frame(set, &size, realtime_ns());
    if (!text)
        return -1;
    bool drawn = vcap_terminal_draw(text, size.columns, size.rows);
    free(text);
    return drawn ? 0 : 1;
}

static int run_drawn(struct vcap_ledger_set *set, const struct wish *wish)
{
    const char *no_color = getenv("NO_COLOR");
    const bool colours = !(no_color && *no_color);
    enum vcap_terminal_event event = VCAP_TERMINAL_TIME;
    int drawn = 0, error = vcap_ledger_set_read(set); /* mistakes show before the screen goes */

    if (error)
        return vcap_ledger_set_complain("top", set, error);
    if (vcap_terminal_take() != 0)
        return vcap_command_fail("top: cannot set up the terminal; try --plain");
    while (event != VCAP_TERMINAL_QUIT && !error && drawn == 0) {
        drawn = draw(set, colours);
        if (drawn == 0)
            event = vcap_terminal_wait(wish->pause_ms);
        if (event == VCAP_TERMINAL_TIME)
            error = vcap_ledger_set_read(set);
    }
    vcap_terminal_give_back();
    return drawn < 0 ? vcap_command_fail("out of memory")
                     : vcap_ledger_set_complain("top", set, error);
}

static int run(int argc, char **argv)
{
    struct wish wish = {.pause_ms = 1000};
    struct vcap_ledger_set set;
    int first;
    int status = vcap_command_parse(&vcap_command_top, argc, argv, take, &wish, &first);
    if (status >= 0)
        return status;
    status = vcap_ledger_set_choose("top", wish.folder, argc, argv, first, &set);
    if (status)
        return status;
    if (wish.once || wish.plain || !vcap_terminal_usable())
        status = run_plain(&set, &wish);
    else
        status = run_drawn(&set, &wish);
    vcap_ledger_set_free(&set);
    return status;
}

const struct vcap_command vcap_command_top = {
    .name = "top",
    .summary = "every container's charges against its ceiling, live",
    .operands = "[LEDGER]...",
    .details =
        "On a terminal the picture is drawn in place; q, SIGINT or SIGTERM ends it.  Elsewhere it\n"
        "is plain text, again and again.  Ledgers as for `vramcap report`.",
    .options = options,
    .run = run,
};
