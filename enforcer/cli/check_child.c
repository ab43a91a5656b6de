/*
 * What may hang, crash or end its process is asked by a child that has a time limit: somebody else's library, and
 * files of somebody else's process.  The child answers in plain data through a pipe and is killed when it does not.
 * One that cannot be killed (it waits in the kernel) is left behind: nobody waits for it without a limit.
 */
#include "enforcer/cli/check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"

#define END_MS 1000 /* so long is waited for the end of a child that has answered, or was killed */

static _Noreturn void child(pid_t parent, int fd, const struct vcap_check_question *question,
                            const void *wish, void *answer, size_t size)
{
    const char *at = answer;

    (void)prctl(PR_SET_PDEATHSIG,
                SIGKILL); /* nobody is there any more to end it when its time is up */
    if (getppid() != parent)
        _exit(1);
    if (question->quiet)
        vcap_sys_close_all_but(fd, fd);
    question->ask(wish, answer);
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

static int read_answer(int fd, int limit_ms, char *at, size_t left)
{
    const int64_t until = now_ms() + limit_ms;

    while (left > 0) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int64_t wait = until - now_ms();
        int count = wait > 0 ? poll(&ready, 1, (int)wait) : 0;
        if (count == 0)
            return -ETIMEDOUT;
        ssize_t n = count < 0 ? -1 : read(fd, at, left);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n == 0)
            return -ECHILD;
        at += n > 0 ? n : 0;
        left -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* False: it is still there. */
static bool ended(pid_t pid)
{
    const int64_t until = now_ms() + END_MS;
    const struct timespec moment = {.tv_nsec = 1000000};
    pid_t gone;

    while (((gone = waitpid(pid, NULL, WNOHANG)) == 0 || (gone < 0 && errno == EINTR)) &&
           now_ms() < until)
        (void)nanosleep(&moment, NULL);
    return gone != 0;
}

int vcap_check_child(const struct vcap_check_question *question, const void *wish, void *answer,
                     size_t size)
{
    int ends[2], error;
    pid_t pid, own = getpid();

    if (pipe2(ends, O_CLOEXEC) != 0)
        return -errno;
    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) {
        (void)close(ends[0]);
        child(own, ends[1], question, wish, answer, size);
    }
    error = pid < 0 ? -errno : 0;
    (void)close(ends[1]);
    if (pid > 0) {
        error = read_answer(ends[0], question->limit_ms, answer, size);
        if (error != 0 || !ended(pid)) {
            (void)kill(pid, SIGKILL); /* our own child, not waited for yet: nobody else's number */
            (void)ended(pid);
        }
    }
    (void)close(ends[0]);
    if (error != 0)
        memset(answer, 0, size);
    return error;
}

const char *vcap_check_child_why(const struct vcap_check_question *question, int error,
                                 char text[VCAP_CHECK_WHY])
{
    if (error == -ETIMEDOUT)
        (void)snprintf(text, VCAP_CHECK_WHY, "did not answer within %d s",
                       question->limit_ms / 1000);
    else if (error == -ECHILD)
        (void)snprintf(text, VCAP_CHECK_WHY, "ended the process that asked");
    else
        (void)snprintf(text, VCAP_CHECK_WHY, "could not be asked, for lack of a child to do it: %s",
                       strerror(-error));
    return text;
}
