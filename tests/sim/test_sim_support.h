/*
 * What the simulator's own tests share. The simulator reads its environment once per
 * process, so each scenario runs in a child of its own: sim_run forks, sets the
 * variables, runs the function and hands back its result. Children never assert; they
 * CHECK, which prints the line and returns it.
 */
#ifndef VRAMCAP_TEST_SIM_SUPPORT_H
#define VRAMCAP_TEST_SIM_SUPPORT_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "sim.h"

#include <stdio.h>
#include <sys/types.h>

/* cmocka.h wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                  \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == CUDA_SUCCESS)

/* Per-test directory with its state file; cmocka set-up and tear-down. */
int sim_test_setup(void **state);
int sim_test_teardown(void **state);
/* A path in the test's directory (static buffer per call site's use). */
const char *sim_test_path(const char *name);

/* `environment`: "A=1;B=2" or NULL. The child's return value, or 128 + signal. */
int sim_run(int (*scenario)(void), const char *environment);
pid_t sim_start(int (*scenario)(void), const char *environment);
int sim_wait(pid_t child);

/* Bytes that the card has lost, and those that allocation calls took of them. */
uint64_t sim_test_used(unsigned int card);
uint64_t sim_test_alloc(unsigned int card);

/* cuInit and a context on device 0. */
int sim_begin(CUcontext *context);

extern const struct CMUnitTest sim_process_tests[];
extern const size_t sim_process_test_count;

#endif
