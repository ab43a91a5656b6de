/*
 * posix_spawn, pidfd, waitpid with WNOHANG.  The child gets default dispositions for every signal
 * and an empty mask, whatever the agent has, and no descriptor but its three (all others here are
 * O_CLOEXEC).
 */
#include "enforcer/agent/mps_child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define INPUT_MAX 4096 /* PIPE_BUF: fits an empty pipe, so that writing never waits */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static bool is_kept(const char *variable)
{
    static const char *const dropped[] = {
        "LD_PRELOAD=", "LD_LIBRARY_PATH=", "NOTIFY_SOCKET=", "WATCHDOG_USEC=", "WATCHDOG_PID="};
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        if (strncmp(variable, dropped[i], strlen(dropped[i])) == 0)
            return false;
    return true;
}

static bool names_same(const char *a, const char *b)
{
    size_t n = strcspn(a, "=");
    return n == strcspn(b, "=") && strncmp(a, b, n) == 0;
}

/* extra first: where a name is in both, extra's value is the one. */
static const char **make_environment(const char *const *extra)
{
    size_t count = 1, at = 0;
    const char **all;

    for (size_t i = 0; extra[i]; i++)
        count++;
    for (size_t i = 0; environ && environ[i]; i++)
        count++;
    all = calloc(count, sizeof *all);
    if (!all)
        return NULL;
    for (size_t i = 0; extra[i]; i++)
        all[at++] = extra[i];
    const size_t extras = at;
    for (size_t i = 0; environ && environ[i]; i++) {
        bool keep = is_kept(environ[i]);
        for (size_t k = 0; k < extras; k++)
            keep = keep && !names_same(environ[i], extra[k]);
        if (keep)
            all[at++] = environ[i];
    }
    return all;
}

static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t all, none;
    int error;

    (void)sigfillset(&all);
    (void)sigemptyset(&none);
    error = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF |
                                                     POSIX_SPAWN_SETSIGMASK);
    if (!error)
        error = posix_spawnattr_setpgroup(attributes, 0);
    if (!error)
        error = posix_spawnattr_setsigdefault(attributes, &all);
    if (!error)
        error = posix_spawnattr_setsigmask(attributes, &none);
    return error;
}

static int set_files(posix_spawn_file_actions_t *files, int input, int output)
{
    int error = input >= 0 ? posix_spawn_file_actions_adddup2(files, input, STDIN_FILENO)
                           : posix_spawn_file_actions_addopen(files, STDIN_FILENO, "/dev/null",
                                                              O_RDONLY, 0);
    if (!error)
        error = posix_spawn_file_actions_adddup2(files, output >= 0 ? output : STDERR_FILENO,
                                                 STDOUT_FILENO);
    if (!error && output >= 0)
        error = posix_spawn_file_actions_adddup2(files, output, STDERR_FILENO);
    return error;
}

static int spawn(pid_t *pid, const char *const *argv, const char **environment, int input,
                 int output)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    int error = posix_spawn_file_actions_init(&files);

    if (error)
        return error;
    error = posix_spawnattr_init(&attributes);
    if (error) {
        (void)posix_spawn_file_actions_destroy(&files);
        return error;
    }
    error = set_attributes(&attributes);
    if (!error)
        error = set_files(&files, input, output);
    if (!error)
        error = posix_spawnp(pid, argv[0], &files, &attributes, (char *const *)(const void *)argv,
                             (char *const *)(const void *)environment);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&files);
    return error;
}

int vcap_mps_child_start(struct vcap_mps_child *child, const char *const *argv,
                         const char *const *extra, const char *input, bool listen)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, error = 0;
    const size_t length = input ? strlen(input) : 0;
    const char **environment = make_environment(extra);
    pid_t pid = 0;

    if (!environment)
        return -ENOMEM;
    if (length > INPUT_MAX)
        error = E2BIG;
    else if ((input && pipe2(in, O_CLOEXEC) != 0) ||
             (listen && (pipe2(out, O_CLOEXEC) != 0 || fcntl(out[0], F_SETFL, O_NONBLOCK) != 0)))
        error = errno;
    else if (input && write(in[1], input, length) != (ssize_t)length)
        error = EIO;
    if (!error)
        error = spawn(&pid, argv, environment, in[0], out[1]);
    free(environment);
    close_fd(&in[0]);
    close_fd(&in[1]);
    close_fd(&out[1]);
    if (error) {
        close_fd(&out[0]);
        return -error;
    }
    *child = (struct vcap_mps_child){.pid = pid, .output_fd = out[0]};
    child->pidfd = (int)syscall(SYS_pidfd_open, pid, 0); /* O_CLOEXEC by itself */
    return 0;
}

void vcap_mps_child_read(struct vcap_mps_child *child)
{
    char more[VCAP_MPS_OUTPUT];

    /* bounded: a child that writes for ever gets its turn once a step, not all of the loop's time */
    for (int rounds = 0; child->output_fd >= 0 && rounds < 16; rounds++) {
        ssize_t n = read(child->output_fd, more, sizeof more);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            close_fd(&child->output_fd);
            return;
        }
        size_t room = sizeof child->output - 1 - child->length;
        size_t taken = (size_t)n < room ? (size_t)n : room;
        for (size_t i = 0; i < taken; i++) /* a NUL would hide what is behind it */
            child->output[child->length++] = (char)(more[i] ? more[i] : '?');
        child->overflowed = child->overflowed || taken < (size_t)n;
        child->output[child->length] = '\0';
    }
}

void vcap_mps_child_kill(const struct vcap_mps_child *child)
{
    if (child->pid <= 1)
        return;
    (void)kill(-child->pid, SIGKILL);
    (void)kill(child->pid, SIGKILL); /* should it not have come to lead its group */
}

bool vcap_mps_child_ended(struct vcap_mps_child *child, int *status)
{
    pid_t pid = waitpid(child->pid, status, WNOHANG);

    if (pid == 0 || (pid < 0 && errno == EINTR))
        return false;
    if (pid < 0)
        *status = 255 << 8; /* SIGCHLD is ignored and its status lost: not a success */
    vcap_mps_child_read(child);
    vcap_mps_child_forget(child);
    return true;
}

void vcap_mps_child_forget(struct vcap_mps_child *child)
{
    close_fd(&child->pidfd);
    close_fd(&child->output_fd);
    child->pid = 0;
}
