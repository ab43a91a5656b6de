/*
 * Temporary directories and children for the simulator's tests.
 *
 * The test program itself never initialises the driver, so a fork of it is a fresh process.
 */
#define _GNU_SOURCE
#include "test_sim_support.h"

#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[64];

int sim_test_setup(void **state)
{
    (void)state;
    (void)snprintf(directory, sizeof directory, "/tmp/test-sim-XXXXXX");
    if (!mkdtemp(directory))
        return -1;
    return setenv("VRAMCAP_SIM_STATE", sim_test_path("state"), 1);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

int sim_test_teardown(void **state)
{
    (void)state;
    return nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *sim_test_path(const char *name)
{
    static char path[2][160];
    static unsigned int next;
    char *to = path[next++ % 2];

    (void)snprintf(to, sizeof path[0], "%s/%s", directory, name);
    return to;
}

pid_t sim_start(int (*scenario)(void), const char *environment)
{
    (void)fflush(NULL);
    pid_t child = fork();
    if (child != 0)
        return child;
    (void)prctl(PR_SET_PDEATHSIG,
                SIGKILL); /* one that waits for a test that failed must not stay */
    /* cmocka's handlers would jump back into the parent's list of tests. */
    static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS};
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++)
        (void)signal(caught[i], SIG_DFL);
    char *all = strdup(environment ? environment : ""), *save = NULL;
    for (char *one = strtok_r(all, ";", &save); one; one = strtok_r(NULL, ";", &save)) {
        char *equals = strchr(one, '=');

        *equals = '\0';
        (void)setenv(one, equals + 1, 1);
    }
    free(all);
    int rc = scenario();
    (void)fflush(NULL);
    _exit(rc);
}

int sim_wait(pid_t child)
{
    int status = 0;

    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int sim_run(int (*scenario)(void), const char *environment)
{
    return sim_wait(sim_start(scenario, environment));
}

uint64_t sim_test_used(unsigned int card)
{
    struct sim_state *state = sim_state_open(NULL);
    uint64_t bytes = sim_card_used(state, card);

    sim_state_close(state);
    return bytes;
}

uint64_t sim_test_alloc(unsigned int card)
{
    struct sim_state *state = sim_state_open(NULL);
    uint64_t bytes = sim_card_alloc_used(state, card);

    sim_state_close(state);
    return bytes;
}

int sim_begin(CUcontext *context)
{
    OK(cuInit(0));
    OK(cuCtxCreate_v2(context, 0, 0));
    return 0;
}
