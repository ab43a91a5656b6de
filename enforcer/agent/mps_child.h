/*
 * Child processes of the MPS watch: started, listened to, ended, looked for, all without waiting.
 * Every child leads a process group of its own, so that ending it ends what it started and nobody
 * else.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_MPS_CHILD_H
#define VRAMCAP_ENFORCER_AGENT_MPS_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define VCAP_MPS_OUTPUT 4096

struct vcap_mps_child {
    pid_t pid;     /* 0: none */
    int pidfd;     /* readable when it has ended; -1 where the kernel has none (before 5.3) */
    int output_fd; /* non-blocking; -1: not listened to, or closed by the child */
    size_t length;
    bool overflowed;
    char output[VCAP_MPS_OUTPUT]; /* NUL-terminated; what is more than this is read and dropped */
};

#define VCAP_MPS_CHILD_NONE                                                                        \
    {                                                                                              \
        .pidfd = -1, .output_fd = -1                                                               \
    }

/*
 * Starts argv[0] (looked for in PATH) with the environment of the caller, less LD_PRELOAD,
 * LD_LIBRARY_PATH and NOTIFY_SOCKET, plus extra ("NAME=VALUE").  input: what its standard input
 * holds (at most 4 KiB), NULL: nothing.  listen: stdout and stderr come to output_fd; else stdout
 * goes where stderr goes.  0, or -errno and no child.
 */
int vcap_mps_child_start(struct vcap_mps_child *child, const char *const *argv,
                         const char *const *extra, const char *input, bool listen);

/* Takes what there is to read. */
void vcap_mps_child_read(struct vcap_mps_child *child);

/* SIGKILL to its process group. */
void vcap_mps_child_kill(const struct vcap_mps_child *child);

/*
 * Has it ended?  Then the rest of its output has been read, *status is as of waitpid(), and the
 * child is none any more (its output stays until the next start).
 */
bool vcap_mps_child_ended(struct vcap_mps_child *child, int *status);

/* Closes what is open; the process, if any, goes on. */
void vcap_mps_child_forget(struct vcap_mps_child *child);

#endif
