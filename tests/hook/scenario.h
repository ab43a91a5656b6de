/*
 * Tests of the hooks, each in a process of its own: a test program runs itself again, preloaded,
 * for every scenario, since the library reads its configuration once per process.
 *
 *     static int free_of_null_is_the_drivers(void)
 *     {
 *         OK(begin(0));
 *         OK(api.cuMemFree_v2(0));
 *         CHECK(charged(0) == 0);
 *         return 0;
 *     }
 *     static const struct scenario scenarios[] = {
 *         SCENARIO(free_of_null_is_the_drivers, NULL),
 *     };
 *     int main(int argc, char **argv) { return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0); }
 *
 * A scenario never asserts: CHECK and OK print the line and return 1.  Its environment is
 * VRAMCAP_ENABLE=1 and VRAMCAP_MEMORY_MIB=1024, then what its row adds ("A=1;B=2", see
 * fixture_environment).  It reaches the driver in one of three ways (link, dlsym, getproc), drawn
 * by the seed unless its row has SCENARIO_BY=...  Test functions that need several processes are
 * CMocka's own (tests[]), with the fixture as their state, and may run scenarios by name.
 */
#ifndef VRAMCAP_TESTS_HOOK_SCENARIO_H
#define VRAMCAP_TESTS_HOOK_SCENARIO_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/support/api.h"
#include "tests/support/fixture.h"

struct scenario {
    const char *name;
    int (*run)(void);
    const char *environment; /* NULL: nothing more */
    bool hidden;             /* run by a test function only */
};
#define SCENARIO(function, environment)                                                            \
    {                                                                                              \
#function, function, environment, false                                                    \
    }
#define HIDDEN(function, environment)                                                              \
    {                                                                                              \
#function, function, environment, true                                                     \
    }

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)
#define GIVES(call, result)                                                                        \
    do {                                                                                           \
        int gives_ = (int)(call);                                                                  \
        if (gives_ != (int)(result)) {                                                             \
            fprintf(stderr, "%s:%d: %s gave %d, not %d\n", __FILE__, __LINE__, #call, gives_,      \
                    (int)(result));                                                                \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)
#define OK(call) GIVES(call, CUDA_SUCCESS)
#define REFUSED(call) GIVES(call, CUDA_ERROR_OUT_OF_MEMORY)
#define SAME(a, b)                                                                                 \
    do {                                                                                           \
        unsigned long long same_a_ = (unsigned long long)(a), same_b_ = (unsigned long long)(b);   \
        if (same_a_ != same_b_) {                                                                  \
            fprintf(stderr, "%s:%d: %s is %llu, %s is %llu\n", __FILE__, __LINE__, #a, same_a_,    \
                    #b, same_b_);                                                                  \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* ---- inside a scenario ---- */

extern struct test_api api;
extern struct fixture self; /* of the test that this scenario belongs to */

/* cuInit and a context of device, created by cuCtxCreate_v2. */
CUresult begin(CUdevice device);

/* Bytes charged on a card by living processes; UINT64_MAX: no ledger yet. */
uint64_t charged(unsigned card);
struct vcap_snapshot_gpu gpu_row(unsigned card); /* zeros: none */

/* The rule as this file understands it, written down again on purpose. */
uint64_t cost(uint64_t bytes);

/* Lines of the simulator's call journal that name this symbol
 * (VRAMCAP_SIM_JOURNAL=<directory>/journal). */
unsigned journal_count(const char *symbol);
const char *journal_path(void);

/* ---- in the test program ---- */

/* Runs a scenario by name in the fixture's directory; more: further environment or NULL. */
void scenario_run(const struct fixture *f, const char *name, const char *more,
                  struct child_output *output);
/* The same, started only. */
bool scenario_start(const struct fixture *f, const char *name, const char *more,
                    struct child *child);

int scenario_main(int argc, char **argv, const struct scenario *list, size_t count,
                  const struct CMUnitTest *tests, size_t test_count);
#define SCENARIO_MAIN(argc, argv, list, tests, test_count)                                         \
    scenario_main(argc, argv, list, sizeof(list) / sizeof((list)[0]), tests, test_count)

#endif
