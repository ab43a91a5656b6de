/*
 * Running the tool (VRAMCAP_TOOL, from the build) as a process of its own.  Whatever hangs dies of
 * SIGALRM after TOOL_SECONDS.
 */
#ifndef VRAMCAP_TESTS_CLI_TOOL_H
#define VRAMCAP_TESTS_CLI_TOOL_H

#include <stdbool.h>
#include <sys/types.h>

#define TOOL_SECONDS 30

/* Where the tool's stdout goes. */
enum tool_stdout { TOOL_PIPE, TOOL_CLOSED, TOOL_FULL /* /dev/full */, TOOL_TERMINAL };

struct tool {
    pid_t pid;
    int out_fd, err_fd;
    int status; /* as of waitpid() */
    char out[1 << 17], err[1 << 14];
};

/* The executable; VRAMCAP_TOOL unless a test changes it. */
extern const char *tool_path;

/* argv: arguments after the tool's name.  environment: "A=B" sets, "A" unsets; both
 * NULL-terminated, environment may be NULL.  VRAMCAP_*, LD_PRELOAD and NO_COLOR of the test itself
 * are not passed on. */
void tool_start(struct tool *t, enum tool_stdout to, const char *const *environment,
                const char *const *argv);

/* Reads out until it holds text (true), or the tool ends or 10 s pass (false). */
bool tool_expect(struct tool *t, const char *text);

/* Collects the rest and waits; returns the exit status, or 256 + signal. */
int tool_wait(struct tool *t);

int tool_run(struct tool *t, const char *const *environment, const char *const *argv);

#define TOOL_ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

#endif
