/*
 * Somebody else's library is loaded by a child that has a time limit: it may hang, crash or end its process.
 * The child answers in plain data through a pipe and is killed when it does not.
 */
#include "enforcer/cli/check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"

static _Noreturn void child(int fd, void (*ask)(const void *wish, void *answer), const void *wish,
                            void *answer, size_t size)
{
    const char *at = answer;

    ask(wish, answer);
    while (size > 0) {
        ssize_t n = write(fd, at, size);
        if (n <= 0)
            break;
        at += n;
        size -= (size_t)n;
    }
    _exit(0);
}

static int64_t now_ms(void)
{
    return (int64_t)(vcap_clock_ns(CLOCK_MONOTONIC) / 1000000);
}

static bool read_answer(int fd, char *at, size_t left)
{
    int64_t until = now_ms() + VCAP_CHECK_LIMIT_MS;

    while (left > 0) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int64_t wait = until - now_ms();
        if (wait <= 0 || (poll(&ready, 1, (int)wait) < 0 && errno != EINTR))
            return false;
        if (ready.revents == 0)
            continue;
        ssize_t n = read(fd, at, left);
        if (n <= 0)
            return false;
        at += n;
        left -= (size_t)n;
    }
    return true;
}

bool vcap_check_child(void (*ask)(const void *wish, void *answer), const void *wish, void *answer,
                      size_t size, pid_t *child_pid)
{
    bool answered = false;
    int ends[2];
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) {
        (void)close(ends[0]);
        child(ends[1], ask, wish, answer, size);
    }
    (void)close(ends[1]);
    if (pid > 0) {
        answered = read_answer(ends[0], answer, size);
        if (!answered)
            (void)kill(pid, SIGKILL); /* our own child, which does not answer */
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    (void)close(ends[0]);
    if (child_pid)
        *child_pid = pid;
    return answered;
}
