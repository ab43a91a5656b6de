/*
 * What tests of whole processes share (library test_support): a directory of its own for each test,
 * the environment of a program under the library, children with pipes and deadlines, and the two
 * books to compare: the ledger's and the simulated card's.
 *
 *     static void two_processes_share_a_ceiling(void **state)
 *     {
 *         const struct fixture *f = *state;
 *         const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", NULL};
 *         struct child a;
 *         char answer[256];
 *
 *         assert_true(client_start(&a, f, "getproc", extra));          vramcap_client, see client.c
 *         assert_string_equal(client_ask(&a, answer, sizeof(answer), "init"), "0");
 *         assert_int_equal(ledger_charged(f->ledger, 0), 0);
 *         child_kill(&a, SIGKILL);
 *     }
 *     cmocka_unit_test_setup_teardown(two_processes_share_a_ceiling, fixture_setup,
 * fixture_teardown)
 *
 * Rules: a test process never initialises the driver and is never preloaded itself; children never
 * assert, they answer or exit with a number.  Every child that is started here is killed when the
 * test process dies.  Page size, pitch and context cost of the simulator are drawn once per test
 * program from VRAMCAP_TEST_SEED (printed; set it to repeat a run); `extra` may override them.
 */
#ifndef VRAMCAP_TESTS_SUPPORT_FIXTURE_H
#define VRAMCAP_TESTS_SUPPORT_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "enforcer/ledger_read.h"

#define MIB (UINT64_C(1) << 20)
/* for anything that should take no time; sanitizers are slow, an emulator is slower and says so */
#ifndef FIXTURE_DEADLINE_MS
#define FIXTURE_DEADLINE_MS 60000u
#endif

struct fixture {
    char directory[64];
    char ledger[96];  /* path; no file yet */
    char sim[96];     /* state file of the simulated machine; no file yet */
    const void *data; /* initial_state of the CMUnitTest */
};

/* CMocka set-up and tear-down: *state becomes a struct fixture, the directory goes with everything
 * in it. */
int fixture_setup(void **state);
int fixture_teardown(void **state);

/* A path in the test's directory.  Valid until the fourth call after this one. */
const char *fixture_path(const struct fixture *f, const char *name);

/* Settings of the simulator in this run. */
struct fixture_draw {
    uint32_t seed;
    unsigned page_kib, pitch, context_mib;
};
const struct fixture_draw *fixture_draw(void);

/*
 * VRAMCAP_TEST_DRIVER=FOLDER (tests/gpu): programs meet the libcuda.so.1 of that folder instead of the
 * simulated one, VRAMCAP_TEST_UUIDS has its cards' UUIDs, and a scenario that asks for what only the
 * simulator has (its books, its journal, its settings) ends with 77.
 */
const char *fixture_driver(void);
/* In a scenario under such a driver: ends it with 77.  Else nothing. */
void fixture_needs_simulator(void);

/* True in a sanitized build whose runtime cannot be preloaded (clang): foreign programs cannot run
 * then. */
bool fixture_only_own_programs(void);

/* ---- children ---- */

struct child {
    pid_t pid; /* 0: none */
    int in, out, err;
};

/*
 * The environment of a program under the library: LD_PRELOAD (a sanitizer's runtime first where the
 * tree has one), LD_LIBRARY_PATH, VRAMCAP_LEDGER, VRAMCAP_SIM_STATE, the drawn settings, then
 * `extra`: "NAME=value" sets, "NAME" unsets, "+LD_PRELOAD=path" puts path behind the library,
 * "-LD_PRELOAD=path" in front of it, "LD_PRELOAD" takes the library out (the sanitizer's runtime
 * stays).  NULL-terminated, may be NULL.  Nothing else of vramcap, CUDA or the loader is inherited.
 * The result is one block for free().
 */
char **fixture_environment(const struct fixture *f, const char *const *extra);

/*
 * For a child of another user, who may not look into the folder of this build (a home, say): copies in
 * the test's directory.  `extra` of such a child begins with "LD_PRELOAD", library, sim.  False: no room.
 */
struct fixture_copies {
    char client[128], library[160], sim[160];
};
bool fixture_copies(const struct fixture *f, struct fixture_copies *copies);

/* argv[0] is a path, or a name to look for in PATH.  False: could not be started. */
bool child_start(struct child *c, const struct fixture *f, const char *const *argv,
                 const char *const *extra);

/* Exit status, 128 + signal, or -1: still running after deadline_ms (and killed then). */
int child_wait(struct child *c, unsigned deadline_ms);
void child_kill(struct child *c, int signal);

/* One line of its standard output without the newline; false: ended, or none within deadline_ms. */
bool child_line(struct child *c, char *line, size_t size, unsigned deadline_ms);
bool child_say(struct child *c, const char *line);

/* Start, close its input, collect both streams (cut at size, NUL-terminated), wait. */
struct child_output {
    int status;
    size_t out_length;
    char out[16384], err[16384];
};
void child_run(const struct fixture *f, const char *const *argv, const char *const *extra,
               struct child_output *output);

/* Lines in text; with `with` only those that contain it. */
unsigned count_lines(const char *text, const char *with);

/* ---- vramcap_client (client.c has its commands) ---- */

/* how: "link", "dlsym", "getproc". */
bool client_start(struct child *c, const struct fixture *f, const char *how,
                  const char *const *extra);

/* One command, one answer (without the newline).  "dead" if the client ended or did not answer in
 * time. */
const char *client_ask(struct child *c, char *answer, size_t size, const char *command);

/* The answer's first number, the CUresult; -1 if there is none. */
long client_result(struct child *c, const char *command);

/* ---- the two books; cards are numbered as the simulated machine has them ---- */

/* The UUID of a card as it is written. */
void card_uuid_text(unsigned card, char text[48]);

/* Reads the ledger; false (and the reason on stderr) if it cannot be had.  vcap_snapshot_free() it.
 */
bool ledger_read(const char *path, struct vcap_snapshot *snapshot);

/* Bytes that living processes hold on a card; UINT64_MAX: no ledger, or no row for it. */
uint64_t ledger_charged(const char *path, unsigned card);
uint64_t ledger_charged_by(const char *path, unsigned card, pid_t pid);

/* A copy of a card's row; false: none. */
bool ledger_gpu(const char *path, unsigned card, struct vcap_snapshot_gpu *gpu);

/* Living processes with a slot. */
unsigned ledger_processes(const char *path);
/* Events of a kind still in the ring. */
unsigned ledger_events(const char *path, enum vcap_lf_event_kind kind);

/* What the card says: allocations rounded by the simulator's own rule, contexts apart. */
uint64_t sim_alloc_bytes(const struct fixture *f, unsigned card);
uint64_t sim_managed_bytes(const struct fixture *f, unsigned card);

#endif
