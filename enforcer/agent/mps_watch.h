/*
 * Is the MPS control daemon of a pipe directory there, and does it answer?
 *
 * A state machine that the agent's loop drives: it asks with `nvidia-cuda-mps-control`, a child of
 * its own that is given 3 s, and calls the daemon down after three tries in a row that failed.
 * Nothing here blocks: pollfds() says what to wait for and how long, step() does what is due.  Not
 * for use from several threads at once.
 *
 * The only processes that are ever signalled are the children that ask, and their process group,
 * which holds nobody else; never the daemon, never a client.  The command for an outage is started
 * once and left alone.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_MPS_WATCH_H
#define VRAMCAP_ENFORCER_AGENT_MPS_WATCH_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define VCAP_MPS_SERVERS_MAX 64
#define VCAP_MPS_TEXT 200
#define VCAP_MPS_POLLFDS 3 /* the most that vcap_mps_watch_pollfds() fills in */

enum vcap_mps_watch_state {
    VCAP_MPS_UNKNOWN, /* not asked yet, or it cannot be asked (no control program) */
    VCAP_MPS_ABSENT,  /* no pipe directory, never was one, and nobody said there must be */
    VCAP_MPS_UP,
    VCAP_MPS_DOWN
};

/* Why the last try failed. */
enum vcap_mps_reason {
    VCAP_MPS_OK,
    VCAP_MPS_NO_PIPE,    /* the pipe directory is not there */
    VCAP_MPS_NO_CONTROL, /* it is, but has no `control` in it */
    VCAP_MPS_TIMEOUT,    /* no answer in time */
    VCAP_MPS_REFUSED,    /* the control program ended with an error */
    VCAP_MPS_GARBLED,    /* it said something that is no list of servers */
    VCAP_MPS_NO_PROGRAM  /* the control program could not be started */
};

enum vcap_mps_event {
    VCAP_MPS_EVENT_UP,           /* answers for the first time */
    VCAP_MPS_EVENT_DOWN,         /* an outage begins */
    VCAP_MPS_EVENT_RECOVERED,    /* it ends */
    VCAP_MPS_EVENT_CANNOT_ASK,   /* the control program cannot be started */
    VCAP_MPS_EVENT_COMMAND,      /* the outage's command was started, or why not */
    VCAP_MPS_EVENT_COMMAND_ENDED /* with its status */
};

struct vcap_mps_watch_config {
    const char *pipe_directory; /* NULL: CUDA_MPS_PIPE_DIRECTORY, else /tmp/nvidia-mps */
    const char *program;        /* NULL: nvidia-cuda-mps-control, looked for in PATH */
    const char *on_down;        /* for /bin/sh -c, once per outage; NULL: nothing */
    bool required;              /* no pipe directory is an outage even if there never was one */
    bool in_outage;      /* the last agent saw this outage begin and ran the command for it */
    uint32_t timeout_ms; /* 0: 3000 */
    uint32_t tries;      /* 0: 3 */
    uint32_t retry_ms;   /* between the tries of a round; 0: 1000 */
    uint32_t period_ms;  /* between rounds; 0: 10000 */
    void (*event)(void *arg, enum vcap_mps_event event, const char *text); /* may be NULL */
    void *arg;
};

struct vcap_mps_status {
    enum vcap_mps_watch_state state;
    enum vcap_mps_reason reason; /* of the last try */
    char detail[VCAP_MPS_TEXT];  /* printable words for it; empty if it answered */
    uint32_t server_count;       /* as last heard; at most VCAP_MPS_SERVERS_MAX are kept */
    pid_t servers[VCAP_MPS_SERVERS_MAX];
    uint64_t answered_ns,
        since_ns;               /* of the last answer, of the state; the caller's clock; 0: never */
    uint64_t answer_took_ns;    /* the last answer */
    uint64_t outages, commands; /* begun, started */
    uint32_t failed_tries;      /* in a row */
};

struct vcap_mps_watch;

/* NULL without memory.  Strings are copied. */
struct vcap_mps_watch *vcap_mps_watch_new(const struct vcap_mps_watch_config *config);

/* Ends a child that asks; the outage's command goes on. */
void vcap_mps_watch_free(struct vcap_mps_watch *watch);

/*
 * What to poll until the next step(): fills at most room entries, returns how many, and lowers
 * *timeout_ms (-1: none) to the moment at which step() is due without any of them.  now_ns: any
 * steady clock, always the same.
 */
size_t vcap_mps_watch_pollfds(const struct vcap_mps_watch *watch, struct pollfd *fds, size_t room,
                              uint64_t now_ns, int *timeout_ms);

/* Does what is due; may be called at any time. */
void vcap_mps_watch_step(struct vcap_mps_watch *watch, uint64_t now_ns);

const struct vcap_mps_status *vcap_mps_watch_status(const struct vcap_mps_watch *watch);
const char *vcap_mps_watch_pipe_directory(const struct vcap_mps_watch *watch);

/* "unknown", "absent", "up", "down"; "ok", "no_pipe", "no_control", "timeout", ... */
const char *vcap_mps_watch_state_name(enum vcap_mps_watch_state state);
const char *vcap_mps_reason_name(enum vcap_mps_reason reason);

#endif
