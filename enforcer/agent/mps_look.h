/*
 * The MPS settings of a process, as the host sees them: a few variables of its environment and what
 * is behind its pipe directory, in the container's own file system.
 *
 * Both belong to a stranger.  Its memory and its mounts can make a reader wait for ever (a FUSE
 * mount, a lock on its address space), so a child looks and is given a time limit; whoever calls
 * waits no longer than that.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_MPS_LOOK_H
#define VRAMCAP_ENFORCER_AGENT_MPS_LOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define VCAP_MPS_VALUE 1024

/* The variables that are looked at; the order of vcap_mps_look.variable. */
enum vcap_mps_variable {
    VCAP_MPS_VAR_PIPE,           /* CUDA_MPS_PIPE_DIRECTORY */
    VCAP_MPS_VAR_LIMIT,          /* CUDA_MPS_PINNED_DEVICE_MEM_LIMIT */
    VCAP_MPS_VAR_PERCENT,        /* CUDA_MPS_ACTIVE_THREAD_PERCENTAGE */
    VCAP_MPS_VAR_VISIBLE,        /* CUDA_VISIBLE_DEVICES */
    VCAP_MPS_VAR_NVIDIA_VISIBLE, /* NVIDIA_VISIBLE_DEVICES, the container runtime's */
    VCAP_MPS_VAR_ENABLE,         /* VRAMCAP_ENABLE */
    VCAP_MPS_VAR_MEMORY,         /* VRAMCAP_MEMORY_MIB */
    VCAP_MPS_VARIABLES
};

struct vcap_mps_value {
    bool set;
    bool cut;                  /* longer than this has room for; text is its beginning */
    char text[VCAP_MPS_VALUE]; /* the bytes as they are, NUL-terminated */
};

enum vcap_mps_pipe {
    VCAP_MPS_PIPE_UNKNOWN,      /* could not be looked at: error says why */
    VCAP_MPS_PIPE_MISSING,      /* nothing of that name */
    VCAP_MPS_PIPE_NO_DIRECTORY, /* something else */
    VCAP_MPS_PIPE_NO_CONTROL,   /* a directory without a `control` in it */
    VCAP_MPS_PIPE_THERE
};

struct vcap_mps_look {
    pid_t pid;
    /*
     * The environment that the process was started with, or of it what the process has not written
     * over: a later setenv() is not seen.  0, or -errno: then no variable is known.
     */
    int environment_error;
    struct vcap_mps_value variable[VCAP_MPS_VARIABLES];
    /* the directory of the variable, else /tmp/nvidia-mps */
    enum vcap_mps_pipe pipe;
    int pipe_error;
    uint64_t pipe_device, pipe_inode; /* with PIPE_THERE: to be compared with the daemon's */
};

/*
 * Looks at a process through proc (NULL: "/proc").  Waits at most limit_ms.  0 and *look, or
 * -ETIMEDOUT (do not ask for this process again soon), -EBUSY (too many children of earlier calls
 * still hang), -ESRCH, another -errno.  Not for several threads at once.
 */
int vcap_mps_look_at(const char *proc, pid_t pid, int limit_ms, struct vcap_mps_look *look);

const char *vcap_mps_variable_name(enum vcap_mps_variable variable);

#endif
