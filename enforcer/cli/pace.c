/*
 * Rounds that a signal ends.  The flag is looked at with the signals blocked, and ppoll() lets them
 * in only while it waits: none is lost in between.  Outside the wait they are let in, so that a
 * write to a pipe that nobody empties can be interrupted (no SA_RESTART).
 */
#include "enforcer/cli/pace.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <time.h>

static volatile sig_atomic_t stopped; /* written by the handler, read by vcap_pace_wait */

static void stop(int signal_number)
{
    (void)signal_number;
    stopped = 1;
}

void vcap_pace_start(void)
{
    const int signals[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction old, action = {.sa_handler = stop};
        (void)sigemptyset(&action.sa_mask);
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            (void)sigaction(signals[i], &action, NULL);
    }
}

bool vcap_pace_wait(long milliseconds)
{
    sigset_t signals, before;
    struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &signals, &before);
    if (!stopped && written)
        (void)ppoll(NULL, 0, &pause, &before);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (stopped && !written) { /* interrupted in the middle of a line: not an error of the output */
        __fpurge(stdout);
        clearerr(stdout);
    }
    return !stopped && written;
}
