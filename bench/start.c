/*
 * Rows about starting: a program with and without the library in front of it, alternately in one run, and
 * many clients at once.  The library to preload is in BENCH_PRELOAD; this process itself runs without it.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/driver.h"

#define STARTS_MAX 4000
#define CLIENTS_MAX 1000

static pid_t spawn(char *const command[], char *const environment[])
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int rc;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    rc = posix_spawn(&pid, command[0], &actions, NULL, command, environment);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0)
        bench_fail(command[0], rc);
    return pid;
}

/* The environment with LD_PRELOAD=BENCH_PRELOAD in front. */
static char **preloaded(void)
{
    const char *library = getenv("BENCH_PRELOAD");
    char **list, *entry;
    size_t count = 0;

    while (environ[count] != NULL)
        count++;
    list = calloc(count + 2, sizeof(*list));
    if (list == NULL || library == NULL || asprintf(&entry, "LD_PRELOAD=%s", library) < 0) {
        bench_fail("BENCH_PRELOAD", -1);
        return NULL;
    }
    list[0] = entry;
    memcpy(list + 1, environ, count * sizeof(*list));
    return list;
}

static double start_ns(char *const command[], char *const environment[])
{
    double begin = bench_now_ns();
    int status;
    pid_t pid = spawn(command, environment);

    if (waitpid(pid, &status, 0) != pid || status != 0)
        bench_fail(command[0], status);
    return bench_now_ns() - begin;
}

/* "bare preloaded": the medians over `count` starts of each. */
static void row_start(unsigned long count, char *const command[])
{
    static double bare[STARTS_MAX], capped[STARTS_MAX];
    char **with = preloaded();

    if (count > STARTS_MAX)
        count = STARTS_MAX;
    for (unsigned long i = 0; i < count; i++) {
        bare[i] = start_ns(command, environ);
        capped[i] = start_ns(command, with);
    }
    printf("%.0f %.0f\n", bench_median(bare, count), bench_median(capped, count));
    free(with);
}

/* "p50 p99" of count clients started at once, from its start to its end each. */
static void row_burst(unsigned long count)
{
    static double ns[CLIENTS_MAX];
    static struct {
        pid_t pid;
        double begin;
    } client[CLIENTS_MAX];
    char self[4096], row[] = "attach-once";
    char *const command[] = {self, row, NULL};
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (length <= 0 || count == 0 || count > CLIENTS_MAX)
        bench_fail("burst COUNT", -1);
    self[length] = 0;
    for (unsigned long i = 0; i < count; i++) {
        client[i].begin = bench_now_ns();
        client[i].pid = spawn(command, environ);
    }
    for (unsigned long ended = 0; ended < count; ended++) {
        int status = 0;
        pid_t pid = wait(&status);

        for (unsigned long i = 0; i < count; i++)
            if (client[i].pid == pid)
                ns[ended] = bench_now_ns() - client[i].begin;
        if (pid < 0 || status != 0)
            bench_fail("a client failed", status);
    }
    bench_median(ns, count); /* sorts */
    printf("%.0f %.0f\n", ns[count / 2], ns[count * 99 / 100]);
}

bool bench_start(const char *name, char **argument)
{
    if (strcmp(name, "start") == 0 && argument[0] != NULL && argument[1] != NULL)
        row_start(strtoul(argument[0], NULL, 10), argument + 1);
    else if (strcmp(name, "burst") == 0 && argument[0] != NULL)
        row_burst(strtoul(argument[0], NULL, 10));
    else
        return false;
    return true;
}
