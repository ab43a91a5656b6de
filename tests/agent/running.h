/*
 * A running vramcap-agent for tests: started in a directory of its own, asked over a Unix socket there,
 * its log lines collected in a file.  Whatever hangs dies of SIGALRM or at its deadline.
 */
#ifndef VRAMCAP_TESTS_AGENT_RUNNING_H
#define VRAMCAP_TESTS_AGENT_RUNNING_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define ANSWER_BYTES (4u << 20)

struct image; /* tests/cli/ledger_image.h */

struct running {
    char folder[64];  /* with everything below in it */
    char ledgers[96]; /* --ledger-dir */
    char socket[96], state[96], log[96];
    pid_t pid; /* 0: not running */
    /* the last answer */
    int status;
    char *head, *body;
    size_t body_length;
    char *buffer;
};

/* Makes the directories. */
bool running_setup(struct running *r);
void running_teardown(struct running *r);

/*
 * Starts it with --listen, --ledger-dir, --interval 0.05, --no-proc, --no-mps, --nvml none and, if
 * with_state, --state; then extra, which may say otherwise (--scan-interval: without --no-proc,
 * --mps-pipe: without --no-mps).  environment: "A=B", NULL-terminated, may
 * be NULL.  Waits until it answers; false: it ended, or did not within 30 s.
 */
bool running_start(struct running *r, bool with_state, const char *const *environment,
                   const char *const *extra);

/* Exit status, or 256 + signal. */
int running_stop(struct running *r, int signal);

/* GET; the status, 0: no answer. */
int running_get(struct running *r, const char *path);

/* A connected socket, on which recv() waits 30 s at most; -1. */
int running_connect(const struct running *r);

/* Sends bytes on a new connection, then reads what comes until the end or timeout_ms; its length. */
size_t running_raw(struct running *r, const char *bytes, size_t length, int timeout_ms);

/* Are the metrics sound now?  Every line is a comment or a series with a value, and no series is there
 * twice, for a collector drops all of a text that says one thing twice.  False, and why not. */
bool running_sound(struct running *r, char *why, size_t why_size);

/* The value of one series of /metrics, asked for now, by its name with labels; -1: it is not there. */
double running_metric(struct running *r, const char *series);

/* The same of a container's series on the GPU of row 0 of an image: NAME{container=C,gpu_uuid=...}. */
double running_value(struct running *r, const char *name, const char *container);

/* Until the metric has the value; false after 30 s. */
bool running_until(struct running *r, const char *name, const char *container, double value);

/* The same for a series with its labels. */
bool running_until_metric(struct running *r, const char *series, double value);

/* /v1/containers now, or one container of it (to be given back with json_decref). */
json_t *running_json(struct running *r);
json_t *running_container(struct running *r, const char *label);

/* The log so far, valid until the next call.  And lines in it that hold both words. */
const char *running_log(const struct running *r);
unsigned running_lines(const struct running *r, const char *one, const char *other);

/* Until such a line is there; false after 30 s. */
bool running_until_line(const struct running *r, const char *one, const char *other);

/* Puts the image into the agent's directory under that name, whole from one moment to the next. */
bool running_put(const struct running *r, const char *name, const struct image *image);

/* Path of a ledger by name; valid until the fourth call after this. */
const char *running_ledger(const struct running *r, const char *name);

/*
 * A process that has a ledger mapped as the library has it (the whole, shared, and an anchor), holds the
 * lock of slot 1 and is in it by its number and PID namespace.  It is this test's own program with the
 * environment given (NULL: this one's): main() calls running_client_main() first, which does not return
 * in it.  -1: it cannot be started.
 */
pid_t running_client(const char *path, const char *const *environment);
void running_client_main(int argc, char **argv);

#define RUNNING_ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

#endif
