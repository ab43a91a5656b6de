/*
 * Looking, in a child.
 *
 * The child makes system calls only (the caller may have threads), writes one struct into a pipe
 * and ends.  What must stay true: paths inside the container are resolved with the process's root
 * as the root (RESOLVE_IN_ROOT), through no magic link, so that no symbolic link leads to a file
 * of the host's; nothing is opened for reading there, so that no FIFO and no device is touched.  A
 * child that does not die after SIGKILL is remembered and looked for at the next call.
 */
#include "enforcer/agent/mps_look.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"

#ifndef SYS_openat2
#define SYS_openat2 __NR_openat2 /* glibc before 2.32 has no name for it */
#endif

#define HANGING_MAX 16
#define ENVIRONMENT_MAX                                                                            \
    (8u << 20) /* the kernel's limit is a quarter of the stack's, 2 MiB as a rule */
#define DEFAULT_PIPE "/tmp/nvidia-mps"

static const char *const names[VCAP_MPS_VARIABLES] = {
    [VCAP_MPS_VAR_PIPE] = "CUDA_MPS_PIPE_DIRECTORY",
    [VCAP_MPS_VAR_LIMIT] = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    [VCAP_MPS_VAR_PERCENT] = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    [VCAP_MPS_VAR_VISIBLE] = "CUDA_VISIBLE_DEVICES",
    [VCAP_MPS_VAR_NVIDIA_VISIBLE] = "NVIDIA_VISIBLE_DEVICES",
    [VCAP_MPS_VAR_ENABLE] = "VRAMCAP_ENABLE",
    [VCAP_MPS_VAR_MEMORY] = "VRAMCAP_MEMORY_MIB",
};

static pid_t hanging[HANGING_MAX]; /* children that were killed and have not gone; 0: free */

const char *vcap_mps_variable_name(enum vcap_mps_variable variable)
{
    return names[variable];
}

/* ---- in the child ---- */

/* Reads NAME=VALUE records as they come, however they are cut into pieces. */
struct scanner {
    struct vcap_mps_look *look;
    char name[48]; /* of the record that is being read, up to its '=' */
    size_t at;     /* bytes of name, or of the value */
    int variable;  /* whose value is being read; -1: still the name; -2: nobody's */
};

static int find_variable(const char *name)
{
    for (int v = 0; v < VCAP_MPS_VARIABLES; v++)
        if (strcmp(names[v], name) == 0)
            return v;
    return -2;
}

static void scan_name(struct scanner *s, char c)
{
    if (c != '=' && s->at + 1 < sizeof s->name) {
        s->name[s->at++] = c;
        return;
    }
    s->name[s->at] = '\0';
    s->variable = c == '=' ? find_variable(s->name) : -2;
    /* getenv() gives the first of several */
    if (s->variable >= 0 && s->look->variable[s->variable].set)
        s->variable = -2;
    if (s->variable >= 0)
        s->look->variable[s->variable].set = true;
    s->at = 0;
}

static void scan(struct scanner *s, const char *piece, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (piece[i] == '\0') {
            s->variable = -1;
            s->at = 0;
        } else if (s->variable == -1) {
            scan_name(s, piece[i]);
        } else if (s->variable >= 0) {
            struct vcap_mps_value *value = &s->look->variable[s->variable];
            if (s->at + 1 < sizeof value->text)
                value->text[s->at++] = piece[i];
            else
                value->cut = true;
        }
    }
}

static int read_environment(int process, struct vcap_mps_look *look)
{
    char piece[4096];
    struct scanner s = {.look = look, .variable = -1};
    size_t sum = 0;
    ssize_t n;
    int fd = openat(process, "environ", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    while ((n = read(fd, piece, sizeof piece)) > 0 && sum < ENVIRONMENT_MAX) {
        scan(&s, piece, (size_t)n);
        sum += (size_t)n;
    }
    return n < 0 ? -errno : 0;
}

static int open_inside(int root, const char *path, uint64_t flags)
{
    struct open_how how = {.flags = flags | O_PATH | O_CLOEXEC,
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    long fd = syscall(SYS_openat2, root, path, &how, sizeof how);
    return fd < 0 ? -errno : (int)fd;
}

static void look_at_pipe(int process, struct vcap_mps_look *look)
{
    const struct vcap_mps_value *named = &look->variable[VCAP_MPS_VAR_PIPE];
    const char *path = named->set && named->text[0] ? named->text : DEFAULT_PIPE;
    struct stat st;
    int fd = -1, control, root = openat(process, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (root < 0 || named->cut) {
        look->pipe_error = root < 0 ? errno : ENAMETOOLONG;
        return;
    }
    fd = open_inside(root, path, 0);
    if (fd == -ENOENT || fd == -ENOTDIR) {
        look->pipe = VCAP_MPS_PIPE_MISSING;
    } else if (fd < 0 || fstat(fd, &st) != 0) {
        look->pipe_error = fd < 0 ? -fd : errno;
    } else if (!S_ISDIR(st.st_mode)) {
        look->pipe = VCAP_MPS_PIPE_NO_DIRECTORY;
    } else {
        look->pipe_device = st.st_dev;
        look->pipe_inode = st.st_ino;
        control = open_inside(fd, "control", O_NOFOLLOW);
        look->pipe = control >= 0 ? VCAP_MPS_PIPE_THERE : VCAP_MPS_PIPE_NO_CONTROL;
        if (control < 0 && control != -ENOENT) {
            look->pipe = VCAP_MPS_PIPE_UNKNOWN;
            look->pipe_error = -control;
        }
    }
}

static _Noreturn void child(int process, int out, struct vcap_mps_look *look)
{
    vcap_sys_close_all_but(process, out);
    look->environment_error = read_environment(process, look);
    if (look->environment_error == 0)
        look_at_pipe(process, look);
    else
        look->pipe_error = -look->environment_error;
    const char *at = (const char *)look;
    size_t left = sizeof *look;
    while (left > 0) {
        ssize_t n = write(out, at, left);
        if (n <= 0)
            break;
        at += n;
        left -= (size_t)n;
    }
    _exit(left != 0);
}

/* ---- in the caller ---- */

static long now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int reap_hanging(void)
{
    int place = -1;
    for (int i = 0; i < HANGING_MAX; i++) {
        if (hanging[i] != 0 && waitpid(hanging[i], NULL, WNOHANG) != 0)
            hanging[i] = 0;
        if (hanging[i] == 0)
            place = i;
    }
    return place;
}

/* The whole struct, or -errno. */
static int receive(int fd, int limit_ms, struct vcap_mps_look *look)
{
    char *at = (char *)look;
    size_t left = sizeof *look;
    const long until = now_ms() + limit_ms;

    while (left > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        long wait = until - now_ms();
        int ready = poll(&p, 1, wait > 0 ? (int)wait : 0);
        if (ready == 0)
            return -ETIMEDOUT;
        if (ready < 0 && errno != EINTR)
            return -errno;
        if (ready < 0)
            continue;
        ssize_t n = read(fd, at, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        at += n;
        left -= (size_t)n;
    }
    return 0;
}

int vcap_mps_look_at(const char *proc, pid_t pid, int limit_ms, struct vcap_mps_look *look)
{
    char path[4096];
    struct vcap_mps_look found = {.pid = pid};
    sigset_t all, before;
    int pipes[2], error, place = reap_hanging();

    if (place < 0)
        return -EBUSY;
    (void)snprintf(path, sizeof path, "%s/%ld", proc ? proc : "/proc", (long)pid);
    int process = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (process < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    if (pipe2(pipes, O_CLOEXEC) != 0) {
        error = -errno;
        (void)close(process);
        return error;
    }
    /* no handler of the caller's runs in the child */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    pid_t looker = fork();
    if (looker == 0) {
        (void)close(pipes[0]);
        child(process, pipes[1], &found);
    }
    error = looker < 0 ? -errno : 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)close(pipes[1]);
    (void)close(process);
    if (error == 0) {
        error = receive(pipes[0], limit_ms, &found);
        (void)kill(looker, SIGKILL); /* our own child, not waited for yet: nobody else's number */
        if (error == 0)
            (void)waitpid(looker, NULL, 0); /* it has written all: at its end, or killed */
        else if (waitpid(looker, NULL, WNOHANG) == 0)
            hanging[place] = looker;
    }
    (void)close(pipes[0]);
    if (error == 0)
        *look = found;
    return error;
}
