/*
 * The watch over one MPS control daemon.
 *
 * A round is up to `tries` tries; a try looks at the pipe directory and then runs the control
 * program with `get_server_list` on its standard input.  An answer is: ended by itself with status
 * 0 and said nothing but server numbers (none is an answer too: servers start with the first
 * client).  The exit status alone is not believed, because no document promises one.
 *
 * What must stay true: no call waits.  A child that does not die at once after SIGKILL (it sleeps
 * uninterruptibly, say in a pipe of a hung file system) is kept aside and looked at again, and
 * until it is gone no other is started: a try that would have to is one that failed.  `announced`
 * is the outage's latch: set when its command was started (or there is none), cleared by an answer.
 */
#include "enforcer/agent/mps_watch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "enforcer/agent/mps_child.h"

#define MS_NS UINT64_C(1000000)
#define CHILD_LOOK_MS 20 /* how often a child is looked for where the kernel has no pidfd */

struct vcap_mps_watch {
    char *pipe_directory, *program, *on_down;
    struct vcap_mps_watch_config config; /* its strings are not used */
    struct vcap_mps_status status;
    struct vcap_mps_child ask;     /* the child that asks */
    struct vcap_mps_child stuck;   /* one that was killed and has not gone yet */
    struct vcap_mps_child command; /* the outage's command */
    uint64_t due_ns;               /* of the next try; 0: at once */
    uint64_t asked_ns;             /* when the child was started */
    bool announced;
    bool told_cannot_ask;
};

static void tell(const struct vcap_mps_watch *w, enum vcap_mps_event event, const char *text)
{
    if (w->config.event)
        w->config.event(w->config.arg, event, text);
}

static void enter(struct vcap_mps_watch *w, enum vcap_mps_watch_state state, uint64_t now_ns)
{
    if (w->status.state != state)
        w->status.since_ns = now_ns;
    w->status.state = state;
}

/* ---- the outage's command ---- */

static void start_command(struct vcap_mps_watch *w)
{
    char text[VCAP_MPS_TEXT + 64], reason[64], detail[VCAP_MPS_TEXT + 32], tries[48];
    char servers[48], directory[4096 + 40];

    if (!w->on_down)
        return;
    if (w->command.pid > 0) {
        tell(w, VCAP_MPS_EVENT_COMMAND, "not started: the command of the outage before still runs");
        return;
    }
    (void)snprintf(reason, sizeof reason, "VRAMCAP_MPS_REASON=%s",
                   vcap_mps_reason_name(w->status.reason));
    (void)snprintf(detail, sizeof detail, "VRAMCAP_MPS_DETAIL=%s", w->status.detail);
    (void)snprintf(tries, sizeof tries, "VRAMCAP_MPS_TRIES=%u", w->status.failed_tries);
    (void)snprintf(servers, sizeof servers, "VRAMCAP_MPS_SERVERS=%u", w->status.server_count);
    (void)snprintf(directory, sizeof directory, "VRAMCAP_MPS_PIPE_DIRECTORY=%s", w->pipe_directory);
    const char *const extra[] = {reason, detail, tries, servers, directory, NULL};
    const char *const argv[] = {"/bin/sh", "-c", w->on_down, NULL};
    int error = vcap_mps_child_start(&w->command, argv, extra, NULL, false);
    if (error) {
        (void)snprintf(text, sizeof text, "cannot be started: %s", strerror(-error));
    } else {
        w->status.commands++;
        (void)snprintf(text, sizeof text, "started as process %ld", (long)w->command.pid);
    }
    tell(w, VCAP_MPS_EVENT_COMMAND, text);
}

static void look_after_command(struct vcap_mps_watch *w)
{
    char text[64];
    int status;

    if (w->command.pid <= 0 || !vcap_mps_child_ended(&w->command, &status))
        return;
    if (WIFSIGNALED(status))
        (void)snprintf(text, sizeof text, "ended by signal %d", WTERMSIG(status));
    else
        (void)snprintf(text, sizeof text, "ended with status %d", WEXITSTATUS(status));
    tell(w, VCAP_MPS_EVENT_COMMAND_ENDED, text);
}

/* ---- how a try ends ---- */

static void answered(struct vcap_mps_watch *w, uint64_t now_ns)
{
    const enum vcap_mps_watch_state before = w->status.state;
    char text[128];

    w->status.reason = VCAP_MPS_OK;
    w->status.detail[0] = '\0';
    w->status.failed_tries = 0;
    w->status.answered_ns = now_ns;
    w->status.answer_took_ns = now_ns - w->asked_ns;
    w->due_ns = now_ns + w->config.period_ms * MS_NS;
    w->told_cannot_ask = false;
    enter(w, VCAP_MPS_UP, now_ns);
    (void)snprintf(text, sizeof text, "the control daemon answers, servers: %u",
                   w->status.server_count);
    if (w->announced)
        tell(w, VCAP_MPS_EVENT_RECOVERED, text);
    else if (before != VCAP_MPS_UP)
        tell(w, VCAP_MPS_EVENT_UP, text);
    w->announced = false;
}

static void copy_printable(char *to, size_t size, const char *from)
{
    size_t i = 0;
    for (; i + 1 < size && from[i] && from[i] != '\n'; i++)
        to[i] = (char)(from[i] >= 0x20 && from[i] < 0x7f ? from[i] : '?');
    to[i] = '\0';
}

static void failed(struct vcap_mps_watch *w, enum vcap_mps_reason reason, const char *detail,
                   uint64_t now_ns)
{
    const bool round_is_over = ++w->status.failed_tries >= w->config.tries;

    w->status.reason = reason;
    copy_printable(w->status.detail, sizeof w->status.detail, detail);
    w->due_ns = now_ns + (round_is_over ? w->config.period_ms : w->config.retry_ms) * MS_NS;
    if (!round_is_over)
        return;
    if (w->status.state == VCAP_MPS_DOWN || w->announced) {
        enter(w, VCAP_MPS_DOWN, now_ns);
        return;
    }
    enter(w, VCAP_MPS_DOWN, now_ns);
    w->status.outages++;
    w->announced = true;
    tell(w, VCAP_MPS_EVENT_DOWN, w->status.detail);
    start_command(w);
}

/* Nothing that says the daemon is down: it cannot be asked at all. */
static void cannot_ask(struct vcap_mps_watch *w, int error, uint64_t now_ns)
{
    char text[VCAP_MPS_TEXT];

    (void)snprintf(text, sizeof text, "%s cannot be started: %s", w->program, strerror(-error));
    w->status.reason = VCAP_MPS_NO_PROGRAM;
    copy_printable(w->status.detail, sizeof w->status.detail, text);
    w->status.failed_tries = 0;
    w->due_ns = now_ns + w->config.period_ms * MS_NS;
    enter(w, VCAP_MPS_UNKNOWN, now_ns);
    if (!w->told_cannot_ask)
        tell(w, VCAP_MPS_EVENT_CANNOT_ASK, w->status.detail);
    w->told_cannot_ask = true;
}

/* Server numbers, one a line, and nothing else; false: something else. */
static bool read_servers(struct vcap_mps_watch *w, const char *text)
{
    pid_t servers[VCAP_MPS_SERVERS_MAX];
    uint32_t count = 0;

    while (*text) {
        long number = 0;
        size_t digits = 0;

        if (*text == '\n' || *text == '\r' || *text == ' ' || *text == '\t') {
            text++;
            continue;
        }
        for (; text[digits] >= '0' && text[digits] <= '9' && digits < 9; digits++)
            number = number * 10 + (text[digits] - '0');
        text += digits;
        if (digits == 0 || number == 0 || !(*text == '\0' || strchr("\n\r \t", *text)))
            return false;
        if (count < VCAP_MPS_SERVERS_MAX)
            servers[count++] = (pid_t)number;
    }
    w->status.server_count = count;
    if (count > 0)
        memcpy(w->status.servers, servers, count * sizeof *servers);
    return true;
}

static void judge(struct vcap_mps_watch *w, int status, uint64_t now_ns)
{
    char text[VCAP_MPS_TEXT];
    const char *said = w->ask.output[0] ? w->ask.output : "nothing";

    if (WIFSIGNALED(status)) {
        (void)snprintf(text, sizeof text, "the control program was ended by signal %d",
                       WTERMSIG(status));
        failed(w, VCAP_MPS_REFUSED, text, now_ns);
    } else if (WEXITSTATUS(status) == 127) {
        cannot_ask(w, -ENOENT, now_ns);
    } else if (WEXITSTATUS(status) != 0) {
        (void)snprintf(text, sizeof text,
                       "the control program ended with status %d and said: %.100s",
                       WEXITSTATUS(status), said);
        failed(w, VCAP_MPS_REFUSED, text, now_ns);
    } else if (w->ask.overflowed || !read_servers(w, w->ask.output)) {
        (void)snprintf(text, sizeof text, "no list of servers, but: %.100s", said);
        failed(w, VCAP_MPS_GARBLED, text, now_ns);
    } else {
        answered(w, now_ns);
    }
}

/* ---- a try ---- */

static void begin_try(struct vcap_mps_watch *w, uint64_t now_ns)
{
    char text[VCAP_MPS_TEXT], path[4096 + 16], directory[4096 + 32];
    struct stat st;

    if (stat(w->pipe_directory, &st) != 0 || !S_ISDIR(st.st_mode)) {
        if (!w->config.required && w->status.answered_ns == 0 && !w->announced) {
            enter(w, VCAP_MPS_ABSENT, now_ns);
            w->status.reason = VCAP_MPS_NO_PIPE;
            w->due_ns = now_ns + w->config.period_ms * MS_NS;
            return;
        }
        (void)snprintf(text, sizeof text, "no pipe directory %.120s", w->pipe_directory);
        failed(w, VCAP_MPS_NO_PIPE, text, now_ns);
        return;
    }
    (void)snprintf(path, sizeof path, "%s/control", w->pipe_directory);
    if (stat(path, &st) != 0) {
        (void)snprintf(text, sizeof text, "no control pipe in %.120s", w->pipe_directory);
        failed(w, VCAP_MPS_NO_CONTROL, text, now_ns);
        return;
    }
    if (w->stuck.pid > 0) {
        failed(w, VCAP_MPS_TIMEOUT,
               "the control program of the try before hangs and cannot be ended", now_ns);
        return;
    }
    (void)snprintf(directory, sizeof directory, "CUDA_MPS_PIPE_DIRECTORY=%s", w->pipe_directory);
    const char *const argv[] = {w->program, NULL};
    const char *const extra[] = {directory, NULL};
    w->asked_ns = now_ns;
    int error = vcap_mps_child_start(&w->ask, argv, extra, "get_server_list\n", true);
    if (error)
        cannot_ask(w, error, now_ns);
}

/* The child that asks is of no use any more. */
static void drop_child(struct vcap_mps_watch *w)
{
    int status;

    vcap_mps_child_kill(&w->ask);
    if (!vcap_mps_child_ended(&w->ask, &status)) {
        w->stuck = w->ask;
        w->ask = (struct vcap_mps_child)VCAP_MPS_CHILD_NONE;
    }
}

static void give_up(struct vcap_mps_watch *w, enum vcap_mps_reason reason, uint64_t now_ns)
{
    char text[VCAP_MPS_TEXT];

    if (reason == VCAP_MPS_GARBLED)
        (void)snprintf(text, sizeof text, "no list of servers, but more than %d bytes: %.60s",
                       VCAP_MPS_OUTPUT - 1, w->ask.output);
    else
        (void)snprintf(text, sizeof text, "get_server_list was not answered within %u ms",
                       w->config.timeout_ms);
    drop_child(w);
    failed(w, reason, text, now_ns);
}

void vcap_mps_watch_step(struct vcap_mps_watch *w, uint64_t now_ns)
{
    int status;

    look_after_command(w);
    if (w->stuck.pid > 0)
        (void)vcap_mps_child_ended(&w->stuck, &status);
    if (w->ask.pid > 0) {
        vcap_mps_child_read(&w->ask);
        if (vcap_mps_child_ended(&w->ask, &status))
            judge(w, status, now_ns);
        else if (w->ask.overflowed)
            give_up(w, VCAP_MPS_GARBLED, now_ns);
        else if (now_ns - w->asked_ns >= w->config.timeout_ms * MS_NS)
            give_up(w, VCAP_MPS_TIMEOUT, now_ns);
    }
    if (w->ask.pid <= 0 && now_ns >= w->due_ns)
        begin_try(w, now_ns);
}

/* ---- what to wait for ---- */

static void lower(int *timeout_ms, uint64_t at_ns, uint64_t now_ns)
{
    uint64_t left_ms = at_ns > now_ns ? (at_ns - now_ns + MS_NS - 1) / MS_NS : 0;
    if (left_ms > INT32_MAX)
        left_ms = INT32_MAX;
    if (*timeout_ms < 0 || left_ms < (uint64_t)*timeout_ms)
        *timeout_ms = (int)left_ms;
}

static size_t add(struct pollfd *fds, size_t n, size_t room, int fd)
{
    if (fd >= 0 && n < room)
        fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
    return n;
}

size_t vcap_mps_watch_pollfds(const struct vcap_mps_watch *w, struct pollfd *fds, size_t room,
                              uint64_t now_ns, int *timeout_ms)
{
    const struct vcap_mps_child *const children[] = {&w->ask, &w->command, &w->stuck};
    size_t n = 0;

    n = add(fds, n, room, w->ask.output_fd);
    for (size_t i = 0; i < 2; i++)
        if (children[i]->pid > 0)
            n = add(fds, n, room, children[i]->pidfd);
    for (size_t i = 0; i < 3; i++)
        if (children[i]->pid > 0 && children[i]->pidfd < 0)
            lower(timeout_ms, now_ns + CHILD_LOOK_MS * MS_NS, now_ns);
    if (w->ask.pid > 0)
        lower(timeout_ms, w->asked_ns + w->config.timeout_ms * MS_NS, now_ns);
    else
        lower(timeout_ms, w->due_ns, now_ns);
    return n;
}

/* ---- beginning and end ---- */

struct vcap_mps_watch *vcap_mps_watch_new(const struct vcap_mps_watch_config *config)
{
    struct vcap_mps_watch *w = calloc(1, sizeof *w);
    const char *directory = config->pipe_directory;

    if (!w)
        return NULL;
    if (!directory)
        directory = secure_getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (!directory || !*directory)
        directory = "/tmp/nvidia-mps"; /* MPS guide: the default of protocol 2 */
    w->config = *config;
    w->pipe_directory = strdup(directory);
    w->program = strdup(config->program ? config->program : "nvidia-cuda-mps-control");
    w->on_down = config->on_down ? strdup(config->on_down) : NULL;
    w->ask = w->stuck = w->command = (struct vcap_mps_child)VCAP_MPS_CHILD_NONE;
    w->announced = config->in_outage;
    if (w->config.timeout_ms == 0)
        w->config.timeout_ms = 3000;
    if (w->config.tries == 0)
        w->config.tries = 3;
    if (w->config.retry_ms == 0)
        w->config.retry_ms = 1000;
    if (w->config.period_ms == 0)
        w->config.period_ms = 10000;
    if (!w->pipe_directory || !w->program || (config->on_down && !w->on_down)) {
        vcap_mps_watch_free(w);
        return NULL;
    }
    return w;
}

void vcap_mps_watch_free(struct vcap_mps_watch *w)
{
    int status;

    if (!w)
        return;
    if (w->ask.pid > 0) {
        vcap_mps_child_kill(&w->ask);
        (void)vcap_mps_child_ended(&w->ask, &status);
    }
    vcap_mps_child_forget(&w->ask);
    vcap_mps_child_forget(&w->stuck);
    vcap_mps_child_forget(&w->command);
    free(w->pipe_directory);
    free(w->program);
    free(w->on_down);
    free(w);
}

const struct vcap_mps_status *vcap_mps_watch_status(const struct vcap_mps_watch *w)
{
    return &w->status;
}

const char *vcap_mps_watch_pipe_directory(const struct vcap_mps_watch *w)
{
    return w->pipe_directory;
}

const char *vcap_mps_watch_state_name(enum vcap_mps_watch_state state)
{
    static const char *const names[] = {"unknown", "absent", "up", "down"};
    return names[state];
}

const char *vcap_mps_reason_name(enum vcap_mps_reason reason)
{
    static const char *const names[] = {"ok",      "no_pipe", "no_control", "timeout",
                                        "refused", "garbled", "no_program"};
    return names[reason];
}
