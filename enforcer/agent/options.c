/*
 * One table of options; help, parsing and the manual page's check come from it.
 */
#include "enforcer/agent/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/agent/listen.h"
#include "enforcer/cli/command.h"
#include "enforcer/cli/units.h"

enum {
    OPTION_LISTEN,
    OPTION_LEDGER_DIR,
    OPTION_NO_PROC,
    OPTION_INTERVAL,
    OPTION_SCAN,
    OPTION_KEEP,
    OPTION_STATE,
    OPTION_TEXTFILE,
    OPTION_ONCE,
    OPTION_JSON,
    OPTION_NVML,
    OPTION_NVML_INTERVAL,
    OPTION_MPS_PIPE,
    OPTION_MPS_CONTROL,
    OPTION_MPS_INTERVAL,
    OPTION_MPS_REQUIRED,
    OPTION_NO_MPS,
    OPTION_ON_MPS_DOWN,
    OPTION_VERSION
};

static const struct vcap_option options[] = {
    [OPTION_LISTEN] = {"listen", 'l', "PLACE", false,
                       "serve HTTP on ADDRESS:PORT, [ADDRESS]:PORT or unix:/PATH, up to four\n"
                       "times; none: nowhere (127.0.0.1:9478)"},
    [OPTION_LEDGER_DIR] =
        {"ledger-dir", 'd', "DIR", false,
         "ledgers as DIR/NAME and DIR/NAME/ledger, up to eight times (/run/vramcap)"},
    [OPTION_NO_PROC] = {"no-proc", 0, NULL, false,
                        "do not look for ledgers, names and host pids in /proc"},
    [OPTION_INTERVAL] = {"interval", 'i', "SECONDS", false,
                         "look at the ledgers every SECONDS, and at every request (1)"},
    [OPTION_SCAN] = {"scan-interval", 0, "SECONDS", false, "go through /proc every SECONDS (10)"},
    [OPTION_KEEP] = {"keep", 0, "SECONDS", false,
                     "show the last state of a container that is gone for SECONDS (300)"},
    [OPTION_STATE] = {"state", 's', "FILE", false,
                      "remember counters and logged events in FILE from one run to the next"},
    [OPTION_TEXTFILE] = {"textfile", 't', "FILE", false,
                         "write the metrics to FILE, at most every 5 seconds, for node_exporter"},
    [OPTION_ONCE] = {"once", '1', NULL, false,
                     "look once, print the metrics (or write --textfile), and end; 1: a ledger\n"
                     "is not to be trusted"},
    [OPTION_JSON] = {"json", 'j', NULL, false, "with --once: print /v1/containers instead"},
    [OPTION_NVML] = {"nvml", 0, "LIBRARY", false,
                     "the driver's library to compare with; none: do not (libnvidia-ml.so.1)"},
    [OPTION_NVML_INTERVAL] = {"nvml-interval", 0, "SECONDS", false,
                              "ask the driver every SECONDS, and at requests (5)"},
    [OPTION_MPS_PIPE] = {"mps-pipe", 0, "DIR", false,
                         "pipe directory of the MPS control daemon to watch\n"
                         "(CUDA_MPS_PIPE_DIRECTORY, else /tmp/nvidia-mps)"},
    [OPTION_MPS_CONTROL] = {"mps-control", 0, "PROGRAM", false,
                            "how to ask it (nvidia-cuda-mps-control)"},
    [OPTION_MPS_INTERVAL] = {"mps-interval", 0, "SECONDS", false,
                             "ask it every SECONDS (10), after a failed try a second later"},
    [OPTION_MPS_REQUIRED] = {"mps-required", 0, NULL, false,
                             "no MPS daemon is an outage even if there never was one"},
    [OPTION_NO_MPS] = {"no-mps", 0, NULL, false, "do not watch an MPS control daemon"},
    [OPTION_ON_MPS_DOWN] = {"on-mps-down", 0, "CMD", false,
                            "run CMD with /bin/sh once per outage of the MPS control daemon"},
    [OPTION_VERSION] = {"version", 'V', NULL, false, "print the version and exit"},
    {0},
};

static const struct vcap_command command = {
    .program = "vramcap-agent",
    .name = "vramcap-agent",
    .summary =
        "The host's reader of all vramcap ledgers: Prometheus metrics, JSON, events, and the\n"
        "comparison with what the GPU driver sees.  Changes nothing in any ledger.",
    .operands = "",
    .details =
        "HTTP: /metrics, /healthz, /v1/containers, /v1/report.  Events and what the agent notices\n"
        "go to standard error, one line each.  See vramcap-agent(8).",
    .options = options,
};

static int wants(const char *option, const char *what, const char *value)
{
    return vcap_command_fail("--%s wants %s, got '%s'", option, what, value);
}

static int take_listen(struct vcap_agent_options *o, const char *value)
{
    struct sockaddr_storage address;
    socklen_t length;
    char why[128];
    if (!strcmp(value, "none")) {
        o->listen_count = 0;
        o->listen[0] = ""; /* said, so that the default does not hold */
        return 0;
    }
    if (o->listen_count == VCAP_HTTP_PLACES)
        return vcap_command_fail("--listen: at most %d places", VCAP_HTTP_PLACES);
    if (vcap_listen_parse(value, &address, &length, why, sizeof why) != 0)
        return vcap_command_fail("--listen %s: %s", value, why);
    o->listen[o->listen_count++] = value;
    return 0;
}

static int take_seconds(const char *option, const char *value, long *ms)
{
    return vcap_units_parse_seconds(value, ms) == 0
               ? 0
               : wants(option, "seconds from 0.05 to 86400", value);
}

static int take(int option, const char *value, void *state)
{
    struct vcap_agent_options *o = state;
    struct vcap_agent_settings *s = &o->settings;
    long ms = 0;
    int status;
    switch (option) {
    case OPTION_LISTEN:
        return take_listen(o, value);
    case OPTION_LEDGER_DIR:
        if (s->directory_count == VCAP_AGENT_DIRECTORIES)
            return vcap_command_fail("--ledger-dir: at most %d", VCAP_AGENT_DIRECTORIES);
        s->directories[s->directory_count++] = value;
        return 0;
    case OPTION_NO_PROC:
        s->processes = false;
        return 0;
    case OPTION_INTERVAL:
        return take_seconds("interval", value, &o->interval_ms);
    case OPTION_SCAN:
        status = take_seconds("scan-interval", value, &ms);
        s->scan_ms = (uint64_t)ms;
        return status;
    case OPTION_KEEP:
        if (!strcmp(value, "0")) {
            s->keep_ms = 0;
            return 0;
        }
        status = take_seconds("keep", value, &ms);
        s->keep_ms = (uint64_t)ms;
        return status;
    case OPTION_STATE:
        o->state = value;
        return 0;
    case OPTION_TEXTFILE:
        o->textfile = value;
        return 0;
    case OPTION_ONCE:
        o->once = true;
        return 0;
    case OPTION_JSON:
        o->json = true;
        return 0;
    case OPTION_NVML:
        o->nvml = !strcmp(value, "none") ? NULL : value;
        return 0;
    case OPTION_NVML_INTERVAL:
        return take_seconds("nvml-interval", value, &o->nvml_ms);
    case OPTION_MPS_PIPE:
        o->mps_pipe = value;
        return 0;
    case OPTION_MPS_CONTROL:
        o->mps_program = value;
        return 0;
    case OPTION_MPS_INTERVAL:
        return take_seconds("mps-interval", value, &o->mps_ms);
    case OPTION_MPS_REQUIRED:
        o->mps_required = true;
        return 0;
    case OPTION_NO_MPS:
        o->mps = false;
        return 0;
    case OPTION_ON_MPS_DOWN:
        o->on_mps_down = value;
        return 0;
    default:
        o->version = true;
        return 0;
    }
}

/* The files of the agent's own that may lie in a ledger directory. */
static void note_own_files(struct vcap_agent_options *o)
{
    const char **own = o->settings.own_files;
    size_t n = 0;
    if (o->state)
        own[n++] = o->state;
    if (o->textfile)
        own[n++] = o->textfile;
    for (size_t i = 0; i < o->listen_count; i++)
        if (!strncmp(o->listen[i], "unix:", 5))
            own[n++] = o->listen[i] + 5;
}

int vcap_agent_parse(int argc, char **argv, struct vcap_agent_options *o)
{
    int first;
    *o = (struct vcap_agent_options){
        .settings = {.processes = true, .scan_ms = 10000, .keep_ms = 300000},
        .nvml = "libnvidia-ml.so.1",
        .interval_ms = 1000,
        .nvml_ms = 5000,
        .mps = true,
        .mps_ms = 10000,
    };
    int status = vcap_command_parse(&command, argc, argv, take, o, &first);
    if (status >= 0)
        return status;
    if (o->version) {
        (void)printf("vramcap-agent %s\nledger format %u\n", VRAMCAP_VERSION, VCAP_LF_VERSION);
        return VCAP_EXIT_DONE;
    }
    if (first < argc)
        return vcap_command_fail("takes no operand, got '%s'", argv[first]);
    if (o->json && !o->once)
        return vcap_command_fail("--json goes with --once; a running agent serves /v1/containers");
    if (o->json && o->textfile)
        return vcap_command_fail("--textfile is for metrics, not for --json");
    if (o->listen_count == 0 && !o->listen[0])
        o->listen[o->listen_count++] = "127.0.0.1:9478";
    if (o->settings.directory_count == 0)
        o->settings.directories[o->settings.directory_count++] = "/run/vramcap";
    note_own_files(o);
    return -1;
}
