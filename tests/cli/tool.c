/*
 * Running the tool: fork, exec, poll.
 */
#include "tests/cli/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const char *tool_path = VRAMCAP_TOOL;

static void child(const int out[2], const int err[2], enum tool_stdout to,
                  const char *const *environment, const char *const *argv)
{
    char *full[32] = {(char *)(uintptr_t)tool_path};
    for (int i = 0; i < 30 && argv[i]; i++)
        full[i + 1] = (char *)(uintptr_t)argv[i];
    static const char *const ours[] = {"VRAMCAP_ENABLE", "VRAMCAP_MEMORY_MIB", "VRAMCAP_LEDGER",
                                       "LD_PRELOAD",     "NO_COLOR",           "LD_BIND_NOW"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        (void)unsetenv(ours[i]);
    for (int i = 0; environment && environment[i]; i++) {
        const char *sign = strchr(environment[i], '=');
        if (sign)
            (void)putenv((char *)(uintptr_t)environment[i]);
        else
            (void)unsetenv(environment[i]);
    }
    int to_fd = to == TOOL_FULL ? open("/dev/full", O_WRONLY) : out[1];
    (void)dup2(to_fd, STDOUT_FILENO);
    (void)dup2(err[1], STDERR_FILENO);
    if (to == TOOL_CLOSED)
        (void)close(STDOUT_FILENO);
    (void)alarm(TOOL_SECONDS);
    (void)execv(full[0], full);
    _exit(99);
}

void tool_start(struct tool *t, enum tool_stdout to, const char *const *environment,
                const char *const *argv)
{
    int out[2], err[2];
    memset(t, 0, sizeof *t);
    int made =
        to == TOOL_TERMINAL ? openpty(&out[0], &out[1], NULL, NULL, NULL) : pipe2(out, O_CLOEXEC);
    if (made != 0 || pipe2(err, O_CLOEXEC) != 0) {
        perror("pipe");
        abort();
    }
    t->pid = fork();
    if (t->pid == 0)
        child(out, err, to, environment, argv);
    (void)close(out[1]);
    (void)close(err[1]);
    t->out_fd = out[0];
    t->err_fd = err[0];
}

static bool collect(int *fd, char *text, size_t size)
{
    size_t at = strlen(text);
    ssize_t n = at + 1 < size ? read(*fd, text + at, size - at - 1) : 0;
    if (n > 0)
        return true;
    (void)close(*fd); /* a terminal says EIO when its other end is closed */
    *fd = -1;
    return false;
}

/* One round; false when both ends are closed or nothing came. */
static bool collect_some(struct tool *t, int timeout_ms)
{
    struct pollfd fds[2] = {{.fd = t->out_fd, .events = POLLIN},
                            {.fd = t->err_fd, .events = POLLIN}};
    if (t->out_fd < 0 && t->err_fd < 0)
        return false;
    if (poll(fds, 2, timeout_ms) <= 0)
        return false;
    if (fds[0].revents)
        (void)collect(&t->out_fd, t->out, sizeof t->out);
    if (fds[1].revents)
        (void)collect(&t->err_fd, t->err, sizeof t->err);
    return true;
}

bool tool_expect(struct tool *t, const char *text)
{
    while (!strstr(t->out, text))
        if (t->out_fd < 0 || !collect_some(t, 10000))
            return false;
    return true;
}

int tool_wait(struct tool *t)
{
    while (collect_some(t, TOOL_SECONDS * 1000))
        continue;
    while (waitpid(t->pid, &t->status, 0) < 0 && errno == EINTR)
        continue;
    if (t->out_fd >= 0)
        (void)close(t->out_fd);
    if (t->err_fd >= 0)
        (void)close(t->err_fd);
    return WIFEXITED(t->status) ? WEXITSTATUS(t->status) : 256 + WTERMSIG(t->status);
}

int tool_run(struct tool *t, const char *const *environment, const char *const *argv)
{
    tool_start(t, TOOL_PIPE, environment, argv);
    return tool_wait(t);
}
