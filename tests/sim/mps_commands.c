/*
 * The commands of the stand-in daemon (legacy protocol, MPS guide "Appendix: tools and interface
 * reference"):
 *
 *   get_server_list, get_server_status PID, start_server -uid UID, shutdown_server PID,
 *   get_client_list PID, get_device_client_list [DEVICE], ps [-p PID], terminate_client SERVER CLIENT,
 *   set/get_default_device_pinned_mem_limit DEVICE [VALUE],
 *   set/get_device_pinned_mem_limit SERVER DEVICE [VALUE],
 *   set/get_default_active_thread_percentage [PERCENT], set/get_active_thread_percentage SERVER
 *   [PERCENT], quit
 *
 * and `client PID`, which the simulated driver says in cuInit. Defaults are for servers that start
 * later, a server's own settings for clients that come later; of two limits for a device the last
 * one counts, and none is checked when it is set. What is printed where nothing is set, and for a wrong
 * command, is this stand-in's own.
 */
#include "mps_commands.h"
#include "sim_bounds.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define WORDS 6

struct words {
    char text[512];
    char *word[WORDS]; /* "" behind the last one */
};

static void split(struct words *w, const char *line)
{
    char *save = NULL;
    size_t count = 0;

    (void)snprintf(w->text, sizeof w->text, "%s", line);
    for (char *one = strtok_r(w->text, " \t\r\n", &save); one && count < WORDS;
         one = strtok_r(NULL, " \t\r\n", &save))
        w->word[count++] = one;
    while (count < WORDS)
        w->word[count++] = w->text + sizeof w->text - 1;
    w->text[sizeof w->text - 1] = '\0';
}

/* --- limits ---------------------------------------------------------------------------- */

static bool value_read(const char *text, uint64_t *bytes)
{
    char *end = NULL;
    unsigned long long value = strtoull(text, &end, 10);

    if (*text < '0' || *text > '9' || (*end != 'G' && *end != 'M' && *end != 'g' && *end != 'm'))
        return false;
    *bytes = (uint64_t)value << (*end == 'G' || *end == 'g' ? 30 : 20);
    return end[1] == '\0' || strcasecmp(end + 1, "B") == 0;
}

/* The machine's card of this number, or with a UUID that begins so; -1: none. */
static int card_of(const struct mps_daemon *daemon, const char *device)
{
    unsigned int cards = sim_card_count(daemon->state);

    if (*device >= '0' && *device <= '9') {
        unsigned long number = strtoul(device, NULL, 10);

        return number < cards ? (int)number : -1;
    }
    for (unsigned int c = 0; c < cards; c++) {
        unsigned char uuid[16];
        char text[48];

        sim_card_uuid(c, uuid);
        sim_uuid_text(uuid, text);
        if (strlen(device) > 4 && strncasecmp(device, text, strlen(device)) == 0)
            return (int)c;
    }
    return -1;
}

static void limit_set(struct mps_settings *settings, const char *device, const char *value)
{
    uint64_t bytes;

    if (*device == '\0' || !value_read(value, &bytes))
        return;
    if (settings->limits == MPS_LIMITS) {
        memmove(settings->limit, settings->limit + 1,
                sizeof settings->limit - sizeof *settings->limit);
        settings->limits--;
    }
    struct mps_limit *limit = &settings->limit[settings->limits++];
    (void)snprintf(limit->device, sizeof limit->device, "%s", device);
    (void)snprintf(limit->value, sizeof limit->value, "%s", value);
}

static const char *limit_get(const struct mps_daemon *daemon, const struct mps_settings *settings,
                             int card)
{
    for (unsigned int i = settings->limits; i-- > 0;)
        if (card >= 0 && card_of(daemon, settings->limit[i].device) == card)
            return settings->limit[i].value;
    return NULL;
}

static void limit_say(const struct mps_daemon *daemon, const struct mps_settings *settings,
                      const char *device, FILE *out)
{
    const char *value = limit_get(daemon, settings, card_of(daemon, *device ? device : "0"));

    (void)fprintf(out, "%s\n", value ? value : "Unset");
}

static void percent_set(struct mps_settings *settings, const char *text)
{
    char *end = NULL;
    double value = strtod(text, &end);

    if (*text != '\0' && *end == '\0' && value > 0 && value <= 100)
        settings->percent = value;
}

/* --- processes ------------------------------------------------------------------------- */

/* Clients of the server; on one card, or -1; as pids or as `ps` shows them. */
static void clients_say(const struct mps_daemon *daemon, int32_t server, int card, bool long_form,
                        FILE *out)
{
    struct sim_file *copy = calloc(1, sizeof *copy);

    if (!copy || sim_state_snapshot(daemon->state, copy) != 0) {
        free(copy);
        return;
    }
    for (unsigned int r = 0; r < SIM_MAX_ROWS; r++) {
        const struct sim_process_row *row = &copy->row[r];

        if (!row->live || row->bounds.role != SIM_MPS_CLIENT || row->bounds.server != server ||
            (card >= 0 && row->bounds.contexts[card] == 0))
            continue;
        if (!long_form) {
            (void)fprintf(out, "%d\n", (int)row->pid);
            continue;
        }
        for (unsigned int c = 0; c < copy->cards; c++) {
            unsigned char uuid[16];
            char text[48];

            if (row->bounds.contexts[c] == 0)
                continue;
            sim_card_uuid(c, uuid);
            sim_uuid_text(uuid, text);
            (void)fprintf(out, "%-9d %-5u %-9d %-16.16s %-14" PRIu64 " %s\n", (int)row->pid, r,
                          (int)server, text, row->pid_ns, row->command);
        }
    }
    free(copy);
}

/* A simulated driver in cuInit. */
static void client_serve(struct mps_daemon *daemon, FILE *out)
{
    if (mps_server_start(daemon) != 0)
        return;
    (void)fprintf(out, "server %d\npercent %.6f\n", (int)daemon->server_pid,
                  daemon->server.percent);
    for (unsigned int c = 0; c < sim_card_count(daemon->state); c++) {
        const char *value = limit_get(daemon, &daemon->server, (int)c);
        uint64_t bytes = 0;

        if (value && value_read(value, &bytes))
            (void)fprintf(out, "limit %u %" PRIu64 "\n", c, bytes);
    }
}

/* --- commands -------------------------------------------------------------------------- */

static bool is(const struct words *w, const char *name)
{
    return strcmp(w->word[0], name) == 0;
}

/* Commands whose first argument is the server. */
static bool server_command(struct mps_daemon *daemon, const struct words *w, FILE *out)
{
    static const char *const names[] = {"get_server_status",
                                        "shutdown_server",
                                        "get_client_list",
                                        "get_device_pinned_mem_limit",
                                        "set_device_pinned_mem_limit",
                                        "get_active_thread_percentage",
                                        "set_active_thread_percentage",
                                        "terminate_client"};
    int32_t server = (int32_t)strtol(w->word[1], NULL, 10);
    size_t known = 0;

    while (known < sizeof names / sizeof names[0] && !is(w, names[known]))
        known++;
    if (known == sizeof names / sizeof names[0])
        return false;
    if (server == 0 || server != daemon->server_pid) {
        (void)fprintf(out, "Server %s does not exist\n", w->word[1]);
        return true;
    }
    switch (known) {
    case 0:
        (void)fprintf(out, "%s\n",
                      sim_bounds_server_faulted(daemon->state, server) ? "FAULT" : "ACTIVE");
        break;
    case 1:
        mps_server_stop(daemon);
        break;
    case 2:
        clients_say(daemon, server, -1, false, out);
        break;
    case 3:
        limit_say(daemon, &daemon->server, w->word[2], out);
        break;
    case 4:
        limit_set(&daemon->server, w->word[2], w->word[3]);
        break;
    case 5:
        (void)fprintf(out, "%.1f\n", daemon->server.percent);
        break;
    case 6:
        percent_set(&daemon->server, w->word[2]);
        break;
    default:
        if (sim_bounds_terminate(daemon->state, server, (int32_t)strtol(w->word[2], NULL, 10),
                                 SIM_STICKY_TERMINATED) != 0)
            (void)fprintf(out, "Client %s does not exist\n", w->word[2]);
    }
    return true;
}

void mps_command(struct mps_daemon *daemon, const char *line, FILE *out)
{
    struct words w = {.text = ""};

    split(&w, line);
    if (*w.word[0] == '\0' || server_command(daemon, &w, out))
        return;
    if (is(&w, "client"))
        client_serve(daemon, out);
    else if (is(&w, "get_server_list")) {
        if (daemon->server_pid != 0)
            (void)fprintf(out, "%d\n", (int)daemon->server_pid);
    } else if (is(&w, "start_server"))
        (void)mps_server_start(daemon);
    else if (is(&w, "get_device_client_list"))
        clients_say(daemon, daemon->server_pid, *w.word[1] ? card_of(daemon, w.word[1]) : -1, false,
                    out);
    else if (is(&w, "ps")) {
        (void)fprintf(out, "%-9s %-5s %-9s %-16s %-14s %s\n", "PID", "ID", "SERVER", "DEVICE",
                      "NAMESPACE", "COMMAND");
        clients_say(daemon, daemon->server_pid, -1, true, out);
    } else if (is(&w, "set_default_device_pinned_mem_limit"))
        limit_set(&daemon->defaults, w.word[1], w.word[2]);
    else if (is(&w, "get_default_device_pinned_mem_limit"))
        limit_say(daemon, &daemon->defaults, w.word[1], out);
    else if (is(&w, "set_default_active_thread_percentage"))
        percent_set(&daemon->defaults, w.word[1]);
    else if (is(&w, "get_default_active_thread_percentage"))
        (void)fprintf(out, "%.1f\n", daemon->defaults.percent);
    else if (is(&w, "quit"))
        daemon->quit = true;
    else
        (void)fprintf(out, "Unknown command: %s\n", w.word[0]);
}
