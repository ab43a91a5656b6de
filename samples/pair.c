/*
 * Two processes of one container under one ceiling: the first takes three quarters of it (of what it is
 * told is the card, unless --ceiling says), the second asks for half and then for an eighth.  Under a ceiling the half is refused; each
 * of them alone would be let through by a limit per process.
 *
 *   pair [--ceiling MIB] [--second-uid UID]      one line, then both hold what they have until standard input ends
 *   pair --ask MIB                               a third process: one line
 *
 * The line: first=MIB total=MIB second=ERROR then=ERROR seccomp=N
 * Needs neither a shell nor anything of the container but /proc, so it runs in images without either.
 * Ends with 0 if the second was refused for lack of memory and then got the eighth, 1 if not, 2 on wrong
 * usage.
 */
#include "driver.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE_BYTES 256

static const char *take(size_t bytes)
{
    CUdeviceptr block = 0;

    return driver_error_name(driver.cuMemAlloc(&block, bytes));
}

static bool start(const char *who)
{
    return driver_open(who) && driver_start() == CUDA_SUCCESS;
}

static int seccomp_mode(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    char line[LINE_BYTES];
    int mode = -1;

    while (status != NULL && fgets(line, sizeof(line), status) != NULL)
        if (sscanf(line, "Seccomp: %d", &mode) == 1)
            break;
    if (status != NULL)
        (void)fclose(status);
    return mode;
}

static void hold(void)
{
    char byte;

    while (read(STDIN_FILENO, &byte, 1) > 0)
        continue;
}

static int first(size_t ceiling_mib)
{
    size_t free_bytes = 0, total = 0, ceiling;

    if (!start("pair: first") || driver.cuMemGetInfo(&free_bytes, &total) != CUDA_SUCCESS)
        return 1;
    ceiling = ceiling_mib > 0 ? ceiling_mib * MIB : total;
    for (int i = 0; i < 3; i++)
        if (strcmp(take(ceiling / 4), "CUDA_SUCCESS") != 0)
            return 1;
    printf("%zu %zu %zu\n", ceiling / 4 * 3 / MIB, total / MIB, ceiling / MIB);
    (void)fflush(stdout);
    hold();
    return 0;
}

static int second(size_t ceiling_mib)
{
    const char *half, *eighth;

    if (!start("pair: second"))
        return 1;
    half = take(ceiling_mib * MIB / 2);
    eighth = take(ceiling_mib * MIB / 8);
    printf("%s %s\n", half, eighth);
    (void)fflush(stdout);
    hold();
    return 0;
}

static int ask(size_t mib)
{
    if (!start("pair: ask"))
        return 1;
    printf("ask=%s\n", take(mib * MIB));
    return 0;
}

/* Starts this program again; its first line is stored in line. */
static bool child(const char *role, const char *ceiling, const char *uid, char line[LINE_BYTES])
{
    int out[2];
    pid_t pid;
    FILE *from;

    if (pipe(out) != 0 || (pid = fork()) < 0)
        return false;
    if (pid == 0) {
        char *arguments[] = {(char *)"pair", (char *)role, (char *)ceiling, NULL};

        if (dup2(out[1], STDOUT_FILENO) < 0 || close(out[0]) != 0 || close(out[1]) != 0)
            _exit(1);
        if (uid != NULL && setuid((uid_t)strtoul(uid, NULL, 10)) != 0)
            _exit(1);
        (void)execv("/proc/self/exe", arguments);
        _exit(1);
    }
    (void)close(out[1]);
    from = fdopen(out[0], "r"); /* stays open: the child must not meet a broken pipe */
    if (from == NULL || fgets(line, LINE_BYTES, from) == NULL)
        return false;
    line[strcspn(line, "\n")] = '\0';
    return true;
}

static int both(const char *wanted, const char *second_uid)
{
    char line[LINE_BYTES], total[32] = "", ceiling[32] = "", got[32] = "", half[64] = "",
                           eighth[64] = "";
    bool done;

    if (!child("--first", wanted, NULL, line) ||
        sscanf(line, "%31s %31s %31s", got, total, ceiling) != 3) {
        printf("first=none\n");
        return 1;
    }
    if (!child("--second", ceiling, second_uid, line) ||
        sscanf(line, "%63s %63s", half, eighth) != 2) {
        printf("first=%s total=%s second=none\n", got, total);
        return 1;
    }
    printf("first=%s total=%s second=%s then=%s seccomp=%d\n", got, total, half, eighth,
           seccomp_mode());
    (void)fflush(stdout);
    hold();
    done = strcmp(half, "CUDA_ERROR_OUT_OF_MEMORY") == 0 && strcmp(eighth, "CUDA_SUCCESS") == 0;
    while (wait(NULL) > 0)
        continue;
    return done ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"first", required_argument, NULL, 'f'},      {"second", required_argument, NULL, 's'},
        {"second-uid", required_argument, NULL, 'u'}, {"ask", required_argument, NULL, 'a'},
        {"ceiling", required_argument, NULL, 'c'},    {NULL, 0, NULL, 0},
    };
    const char *ceiling = "0", *second_uid = NULL;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'f':
            return first(option_number("pair", "first", optarg));
        case 's':
            return second(option_number("pair", "second", optarg));
        case 'a':
            return ask(option_number("pair", "ask", optarg));
        case 'c':
            ceiling = optarg;
            break;
        case 'u':
            second_uid = optarg;
            break;
        default:
            fprintf(stderr, "usage: pair [--ceiling MIB] [--second-uid UID] | --ask MIB\n");
            return 2;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "usage: pair [--ceiling MIB] [--second-uid UID] | --ask MIB\n");
        return 2;
    }
    return both(ceiling, second_uid);
}
