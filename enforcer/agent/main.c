/*
 * vramcap-agent: the loop.  Everything that reads ledgers or /proc and makes texts is done by this
 * thread; those of libmicrohttpd hand texts out, one talks to NVML.  Signals are read from a
 * descriptor, so that nothing is done in a handler: SIGTERM and SIGINT end the agent after its round,
 * SIGHUP looks everywhere anew.
 */
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/agent/agent.h"
#include "enforcer/agent/event_line.h"
#include "enforcer/agent/exchange.h"
#include "enforcer/agent/export.h"
#include "enforcer/agent/http.h"
#include "enforcer/agent/mps_round.h"
#include "enforcer/agent/mps_watch.h"
#include "enforcer/agent/notify.h"
#include "enforcer/agent/options.h"
#include "enforcer/agent/textfile.h"
#include "enforcer/cli/command.h"
#include "enforcer/kernel.h"

#define NS_PER_MS UINT64_C(1000000)
#define TEXTFILE_NS (5000 * NS_PER_MS)
#define STALE_MS 10000u
#define LEAST_PAUSE_NS (50 * NS_PER_MS) /* between rounds that requests ask for */
#define NVML_FRESH_MS 1000u
#define NVML_WAIT_MS 200u
#define NVML_PATIENCE_MS 5000u /* at the start, and with --once */
#define MPS_RETRY_MS 1000u
#define KEEP_MEMORY_BYTES (8 << 20)

struct service {
    struct vcap_agent_options options;
    struct vcap_agent agent;
    struct vcap_nvml_thread *nvml;
    struct vcap_mps_watch *mps;
    struct vcap_exchange *exchange;
    struct vcap_http *http;
    int signals;
    struct vcap_text text;
    enum vcap_nvml_state nvml_said;
    bool nvml_asked;
    uint64_t textfile_ns, tidied_ns, notified_ns, watchdog_ms;
    int textfile_error;
};

/* ---- what others tell the agent ---- */

static void ask_nvml(struct service *s, uint64_t wait_ms)
{
    if (!s->nvml)
        return;
    vcap_nvml_release(s->agent.nvml);
    s->agent.nvml = vcap_nvml_latest(s->nvml, NVML_FRESH_MS, wait_ms);
    enum vcap_nvml_state now = s->agent.nvml ? s->agent.nvml->state : VCAP_NVML_OFF;
    if (now == VCAP_NVML_OFF || (s->nvml_asked && now == s->nvml_said))
        return;
    bool bad = now == VCAP_NVML_FAILED || now == VCAP_NVML_SILENT;
    s->nvml_asked = true;
    s->nvml_said = now;
    vcap_line_say(bad ? VCAP_LINE_WARN : VCAP_LINE_INFO, "nvml", "%s%s%s",
                  vcap_nvml_state_name(now), *s->agent.nvml->why ? ": " : "", s->agent.nvml->why);
}

static void on_mps(void *argument, enum vcap_mps_event event, const char *text)
{
    static const char *const names[] = {
        [VCAP_MPS_EVENT_UP] = "mps-up",
        [VCAP_MPS_EVENT_DOWN] = "mps-down",
        [VCAP_MPS_EVENT_RECOVERED] = "mps-recovered",
        [VCAP_MPS_EVENT_CANNOT_ASK] = "mps-cannot-ask",
        [VCAP_MPS_EVENT_COMMAND] = "mps-command",
        [VCAP_MPS_EVENT_COMMAND_ENDED] = "mps-command-ended",
    };
    struct service *s = argument;
    if (event == VCAP_MPS_EVENT_DOWN || event == VCAP_MPS_EVENT_RECOVERED)
        vcap_memory_note_mps_outage(s->agent.memory, event == VCAP_MPS_EVENT_DOWN);
    vcap_line_say(event == VCAP_MPS_EVENT_DOWN ? VCAP_LINE_ERROR : VCAP_LINE_INFO,
                  (size_t)event < sizeof names / sizeof *names ? names[event] : "mps", "%s", text);
}

static enum vcap_mps_state mps_state(const struct service *s)
{
    enum vcap_mps_watch_state state =
        s->mps ? vcap_mps_watch_status(s->mps)->state : VCAP_MPS_UNKNOWN;
    return state == VCAP_MPS_UP     ? VCAP_MPS_STATE_UP
           : state == VCAP_MPS_DOWN ? VCAP_MPS_STATE_DOWN
                                    : VCAP_MPS_STATE_UNKNOWN;
}

/* ---- what the agent tells others ---- */

static const char *make_text(struct service *s, enum vcap_text_kind kind)
{
    bool made = true;
    vcap_text_clear(&s->text);
    if (kind == VCAP_TEXT_METRICS)
        vcap_export_metrics(&s->agent, mps_state(s), &s->text);
    else if (kind == VCAP_TEXT_CONTAINERS)
        made = vcap_export_containers(&s->agent, &s->text);
    else
        made = vcap_export_report(&s->agent, &s->text);
    return made && !s->text.failed ? s->text.data : NULL;
}

static void publish(struct service *s, unsigned wanted)
{
    for (int kind = 0; kind < VCAP_TEXT_KINDS; kind++)
        if ((wanted & 1u << kind) != 0) {
            const char *text = make_text(s, (enum vcap_text_kind)kind);
            vcap_exchange_put(s->exchange, (enum vcap_text_kind)kind, text, s->text.length);
        }
}

static int write_textfile(struct service *s)
{
    const char *text = make_text(s, VCAP_TEXT_METRICS);
    int error = text ? vcap_textfile_write(s->options.textfile, text, s->text.length) : -ENOMEM;
    if (error && error != s->textfile_error)
        vcap_line_say(VCAP_LINE_ERROR, "textfile", "%s: %s", s->options.textfile, strerror(-error));
    s->textfile_error = error;
    return error;
}

/* ---- the loop ---- */

static void keep_company(struct service *s, uint64_t now)
{
    if (s->options.textfile && (s->textfile_ns == 0 || now - s->textfile_ns >= TEXTFILE_NS)) {
        s->textfile_ns = now;
        (void)write_textfile(s);
    }
    if (s->http && now - s->tidied_ns >= 1000 * NS_PER_MS) {
        s->tidied_ns = now;
        vcap_http_tidy(s->http);
    }
    if (s->watchdog_ms > 0 && now - s->notified_ns >= s->watchdog_ms * NS_PER_MS / 2) {
        s->notified_ns = now;
        (void)vcap_notify("WATCHDOG=1");
    }
}

/* What has come: 0 nothing, else the last signal that matters. */
static int read_signals(const struct service *s)
{
    struct signalfd_siginfo info;
    int number = 0;
    while (read(s->signals, &info, sizeof info) == sizeof info)
        if (number != SIGTERM)
            number = info.ssi_signo == SIGHUP ? SIGHUP : SIGTERM;
    return number;
}

static int wait_ms(const struct service *s, uint64_t next_ns, uint64_t now)
{
    uint64_t ms = next_ns > now ? (next_ns - now + NS_PER_MS - 1) / NS_PER_MS : 0;
    uint64_t most = s->watchdog_ms > 0 && s->watchdog_ms / 2 < 1000 ? s->watchdog_ms / 2 : 1000;
    return (int)(ms < most ? ms : most);
}

static void loop(struct service *s)
{
    const uint64_t interval_ns = (uint64_t)s->options.interval_ms * NS_PER_MS;
    uint64_t next_ns = 0, last_ns = 0;
    unsigned wanted = 0;
    bool patient = false;
    for (;;) {
        struct pollfd fds[2 + VCAP_MPS_POLLFDS] = {
            {.fd = s->signals, .events = POLLIN},
            {.fd = vcap_exchange_fd(s->exchange), .events = POLLIN}};
        size_t count = 2;
        uint64_t now = vcap_clock_ns(CLOCK_MONOTONIC);
        uint64_t due_ns = wanted ? last_ns + LEAST_PAUSE_NS : next_ns;
        int timeout = wait_ms(s, due_ns < next_ns ? due_ns : next_ns, now);
        if (s->mps)
            count += vcap_mps_watch_pollfds(s->mps, fds + 2, VCAP_MPS_POLLFDS, now, &timeout);
        (void)poll(fds, (nfds_t)count, timeout);
        now = vcap_clock_ns(CLOCK_MONOTONIC);
        int number = read_signals(s);
        if (number == SIGTERM)
            return;
        if (s->mps)
            vcap_mps_watch_step(s->mps, now);
        if (number == SIGHUP) {
            vcap_line_say(VCAP_LINE_INFO, "reload", "looking everywhere anew");
            patient = true;
        }
        wanted |= vcap_exchange_wanted(s->exchange);
        if (patient || now >= next_ns || (wanted && now >= last_ns + LEAST_PAUSE_NS)) {
            ask_nvml(s, wanted ? NVML_WAIT_MS : 0);
            vcap_agent_round(&s->agent, patient);
            vcap_mps_round(&s->agent, s->mps);
            vcap_exchange_round(s->exchange);
            publish(s, wanted);
            wanted = 0;
            patient = false;
            last_ns = vcap_clock_ns(CLOCK_MONOTONIC);
            next_ns = last_ns + interval_ns;
        }
        keep_company(s, vcap_clock_ns(CLOCK_MONOTONIC));
    }
}

/* ---- beginning and end ---- */

static int begin_memory(struct service *s)
{
    char why[128];
    s->agent.memory = vcap_memory_open(s->options.state, why, sizeof why);
    if (!s->agent.memory)
        return vcap_command_fail("cannot use the state file %s: %s",
                                 s->options.state ? s->options.state : "(memory)", why);
    if (vcap_memory_began_anew(s->agent.memory))
        vcap_line_say(VCAP_LINE_WARN, "state",
                      "%s was of another boot or version, or damaged: begun anew",
                      s->options.state);
    return 0;
}

static int begin_signals(struct service *s)
{
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigset_t set;
    (void)sigaction(SIGPIPE, &ignore, NULL);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL); /* before there are other threads */
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signals < 0 ? vcap_command_fail("signalfd: %s", strerror(errno)) : 0;
}

static int begin_nvml(struct service *s)
{
    if (!s->options.nvml)
        return 0;
    s->nvml = vcap_nvml_start(s->options.nvml, (uint64_t)s->options.nvml_ms);
    return s->nvml ? 0 : vcap_command_fail("out of memory");
}

static int once(struct service *s)
{
    int status = VCAP_EXIT_DONE;
    s->agent.settings.log_events = s->options.state != NULL;
    if (!s->options.state)
        vcap_line_least(VCAP_LINE_WARN);
    ask_nvml(s, NVML_PATIENCE_MS);
    vcap_agent_round(&s->agent, true);
    if (s->options.textfile)
        return write_textfile(s) ? VCAP_EXIT_FAILED : VCAP_EXIT_DONE;
    const char *text = make_text(s, s->options.json ? VCAP_TEXT_CONTAINERS : VCAP_TEXT_METRICS);
    if (!text)
        return vcap_command_fail("out of memory");
    if (fwrite(text, 1, s->text.length, stdout) != s->text.length || fflush(stdout) != 0)
        return vcap_command_fail("cannot write to standard output: %s", strerror(errno));
    for (size_t i = 0; i < s->agent.count; i++)
        if (s->agent.all[i]->state == VCAP_WATCHED_UNTRUSTED ||
            s->agent.all[i]->tampered == VCAP_TAMPERED_YES)
            status = VCAP_EXIT_FINDING;
    return status;
}

static int begin_mps(struct service *s)
{
    const uint32_t period_ms = (uint32_t)s->options.mps_ms;
    const struct vcap_mps_watch_config config = {
        .pipe_directory = s->options.mps_pipe,
        .program = s->options.mps_program,
        .on_down = s->options.on_mps_down,
        .required = s->options.mps_required,
        .in_outage = vcap_memory_mps_outage(s->agent.memory),
        .period_ms = period_ms,
        .retry_ms = period_ms < MPS_RETRY_MS ? period_ms : MPS_RETRY_MS,
        .event = on_mps,
        .arg = s};
    if (!s->options.mps)
        return 0;
    s->mps = vcap_mps_watch_new(&config);
    return s->mps ? 0 : vcap_command_fail("out of memory");
}

static int serve(struct service *s)
{
    char why[160];
    uint64_t stale_ms = 5 * (uint64_t)s->options.interval_ms;
    s->exchange = vcap_exchange_new();
    if (!s->exchange)
        return vcap_command_fail("cannot make an eventfd: %s", strerror(errno));
    if (s->options.listen_count > 0) {
        s->http = vcap_http_start(s->options.listen, s->options.listen_count, s->exchange,
                                  stale_ms > STALE_MS ? stale_ms : STALE_MS, why, sizeof why);
        if (!s->http)
            return vcap_command_fail("cannot listen: %s", why);
    }
    int status = begin_mps(s);
    if (status)
        return status;
    s->agent.settings.log_events = true;
    s->watchdog_ms = vcap_notify_watchdog_ms();
    vcap_line_say(VCAP_LINE_INFO, "start", "vramcap-agent %s, ledger format %u", VRAMCAP_VERSION,
                  VCAP_LF_VERSION);
    ask_nvml(s, NVML_PATIENCE_MS);
    vcap_agent_round(&s->agent, true);
    vcap_exchange_round(s->exchange);
    (void)vcap_notify("READY=1\nSTATUS=looking at ledgers");
    loop(s);
    (void)vcap_notify("STOPPING=1");
    vcap_line_say(VCAP_LINE_INFO, "stop", "asked to end");
    if (s->options.textfile)
        (void)write_textfile(s);
    return VCAP_EXIT_DONE;
}

static void end(struct service *s)
{
    if (s->exchange)
        vcap_exchange_end(s->exchange);
    if (s->http)
        vcap_http_stop(s->http);
    if (s->nvml)
        vcap_nvml_stop(s->nvml);
    if (s->mps)
        vcap_mps_watch_free(s->mps);
    if (s->exchange)
        vcap_exchange_free(s->exchange);
    vcap_agent_free(&s->agent);
    vcap_text_free(&s->text);
}

int main(int argc, char **argv)
{
    static struct service s;
    vcap_command_reserve_descriptors(); /* or the state file is where log lines are written */
    int status = vcap_agent_parse(argc, argv, &s.options);
    if (status >= 0)
        return status;
    /* copies of ledgers come and go every round: kept, rather than given back and asked for again */
    (void)mallopt(M_MMAP_THRESHOLD, KEEP_MEMORY_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, KEEP_MEMORY_BYTES);
    (void)mallopt(M_ARENA_MAX, 2);
    s.agent.settings = s.options.settings;
    status = begin_memory(&s);
    if (!status && !s.options.once)
        status = begin_signals(&s);
    if (!status)
        status = begin_nvml(&s);
    if (!status)
        status = s.options.once ? once(&s) : serve(&s);
    end(&s);
    return status;
}
