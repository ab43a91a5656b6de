/*
 * Random calls of every family against a model of what they cost (property.h), with failures injected into
 * the driver: after each step where one process is alone, at quiet points where threads and processes run at
 * once, the ledger is what the model says and never below what the simulated card holds, the ceiling holds,
 * nobody is refused who has room, and at the end nothing is charged.
 *
 * The seed is VRAMCAP_TEST_SEED, printed at the start; with it a failure of one process alone comes again.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "sim.h"
#include "tests/support/fixture.h"

#define CARDS 2
#define WORKERS 3

#ifndef TEST_ROUNDS /* times as many */
#define TEST_ROUNDS 1
#endif

struct worker {
    struct child child;
    uint64_t charged[CARDS], imported[CARDS], slack[CARDS], steps, granted, refused, struck;
};

struct plan {
    unsigned threads;
    bool alone;
    unsigned ceiling[CARDS], quota; /* MiB */
};

static const char *const environment[] = {
    "VRAMCAP_ENABLE=1",           "VRAMCAP_CONTEXT_MIB=16",
    "VRAMCAP_SIM_CONTEXT_MIB=16", NULL /* VRAMCAP_MEMORY_MIB */,
    "VRAMCAP_SIM_CARDS=2x24576",  "VRAMCAP_SIM_POOL_CHUNK_MIB=2",
    "VRAMCAP_SIM_VERSION=13050",  "VRAMCAP_LOG=error",
    "VRAMCAP_LOG_FILE=/dev/null", NULL};

/* Its own ends of the sockets and no others: an end that is closed says that its process is gone. */
static void pass_on(int fd, bool on)
{
    if (fd >= 0)
        fcntl(fd, F_SETFD, on ? 0 : FD_CLOEXEC);
}

static bool start(const struct fixture *f, struct worker *w, const struct plan *plan, uint64_t seed,
                  int left, int right)
{
    char text[9][24], memory[64];
    const char *argv[11] = {TEST_WORKER}, *extra[sizeof(environment) / sizeof(environment[0])];
    const unsigned long long numbers[9] = {
        seed, plan->threads, plan->alone, 1, plan->ceiling[0], plan->ceiling[1], plan->quota, 0, 0};

    memset(w, 0, sizeof(*w));
    for (unsigned i = 0; i < 7; i++)
        snprintf(text[i], sizeof(text[i]), "%llu", numbers[i]);
    snprintf(text[7], sizeof(text[7]), "%d", left);
    snprintf(text[8], sizeof(text[8]), "%d", right);
    for (unsigned i = 0; i < 9; i++)
        argv[i + 1] = text[i];
    memcpy(extra, environment, sizeof(environment));
    snprintf(memory, sizeof(memory), "VRAMCAP_MEMORY_MIB=0=%u,1=%u", plan->ceiling[0],
             plan->ceiling[1]);
    extra[3] = memory;
    pass_on(left, true);
    pass_on(right, true);
    if (!child_start(&w->child, f, argv, extra))
        return false;
    pass_on(left, false);
    pass_on(right, false);
    return true;
}

/* What it wrote to standard error until it ended, for the person who reads this. */
static void show(int err)
{
    char text[4096];
    ssize_t length;

    while ((length = read(err, text, sizeof(text))) > 0)
        fwrite(text, 1, (size_t)length, stderr);
}

/* A sanitizer's finding is an exit status. */
static void ends_well(struct worker *w)
{
    int err = dup(w->child.err), status;

    assert_true(err >= 0 && child_say(&w->child, "end"));
    status = child_wait(&w->child, FIXTURE_DEADLINE_MS);
    if (status != 0)
        show(err);
    close(err);
    assert_int_equal(status, 0);
}

static bool said(struct worker *w)
{
    char line[256];
    unsigned long long n[10];

    if (!child_line(&w->child, line, sizeof(line), 90000))
        snprintf(line, sizeof(line), "nothing");
    if (sscanf(line, "ok %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu", &n[0], &n[1], &n[2],
               &n[3], &n[4], &n[5], &n[6], &n[7], &n[8], &n[9]) != 10) {
        fprintf(stderr, "a worker said: %s\n", line);
        child_kill(&w->child, 15);
        show(w->child.err);
        child_kill(&w->child, 9);
        return false;
    }
    w->charged[0] = n[0];
    w->charged[1] = n[1];
    w->imported[0] = n[2];
    w->imported[1] = n[3];
    w->steps = n[4];
    w->granted = n[5];
    w->refused = n[6];
    w->struck = n[7];
    w->slack[0] = n[8];
    w->slack[1] = n[9];
    return true;
}

/* All at once: the books of the container, of the workers and of the card. */
static void everything_agrees(const struct fixture *f, const struct worker *w, unsigned count)
{
    for (unsigned card = 0; card < CARDS; card++) {
        uint64_t charged = 0, slack = 0, held = ledger_charged(f->ledger, card), shown = 0,
                 imported = 0, holds;
        struct vcap_snapshot s;

        for (unsigned i = 0; i < count; i++) {
            charged += w[i].charged[card];
            slack += w[i].slack[card];
            imported += w[i].imported[card];
        }
        assert_int_equal(held == UINT64_MAX ? 0 : held, charged);
        assert_true(ledger_read(f->ledger, &s));
        for (uint32_t p = 0; p < s.process_count; p++)
            for (uint32_t c = 0; c < s.processes[p].charge_count; c++) {
                unsigned char uuid[16];
                char text[48];

                sim_card_uuid(card, uuid);
                sim_uuid_text(uuid, text);
                if (s.processes[p].life != VCAP_LIFE_DEAD &&
                    strcmp(s.gpus[s.processes[p].charges[c].gpu].uuid, text) == 0)
                    shown += s.processes[p].charges[c].imported_bytes;
            }
        vcap_snapshot_free(&s);
        assert_int_equal(shown, imported);
        holds = sim_alloc_bytes(f, card) + sim_managed_bytes(f, card);
        if (holds > charged + slack)
            fail_msg("card %u holds %" PRIu64 ", charged are %" PRIu64 " and %" PRIu64
                     " may be destroyed pools'",
                     card, holds, charged, slack);
    }
}

static uint64_t peak(const struct fixture *f, unsigned card)
{
    struct sim_state *sim = sim_state_open(f->sim);
    uint64_t bytes = sim == NULL ? UINT64_MAX : sim_card_alloc_peak(sim, card);

    if (sim != NULL)
        sim_state_close(sim);
    return bytes;
}

static void report(const struct worker *w, unsigned count)
{
    unsigned long long steps = 0, granted = 0, refused = 0, struck = 0;

    for (unsigned i = 0; i < count; i++) {
        steps += w[i].steps;
        granted += w[i].granted;
        refused += w[i].refused;
        struck += w[i].struck;
    }
    fprintf(stderr, "%llu steps: %llu granted, %llu refused, %llu failures of the driver\n", steps,
            granted, refused, struck);
    assert_true(granted != 0 && struck != 0);
}

static void ends_with_nothing(const struct fixture *f, struct worker *w, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        assert_true(child_say(&w[i].child, "drain"));
        assert_true(said(&w[i]));
    }
    for (unsigned card = 0; card < CARDS; card++) {
        assert_int_equal(ledger_charged(f->ledger, card), 0);
        assert_int_equal(sim_alloc_bytes(f, card) + sim_managed_bytes(f, card), 0);
    }
}

static void each_step_of_one_process_is_as_the_rules_have_it(void **state)
{
    static const struct plan plans[] = {
        {.threads = 1, .alone = true, .ceiling = {192, 128}},
        {.threads = 1, .alone = true, .ceiling = {96, 64}},
    };

    for (unsigned p = 0; p < sizeof(plans) / sizeof(plans[0]) * TEST_ROUNDS; p++) {
        const struct plan *plan = &plans[p % 2];
        const struct fixture *f = *state;
        struct worker w;
        char go[32];

        unlink(f->ledger);
        unlink(f->sim);
        assert_true(start(f, &w, plan, fixture_draw()->seed + p, -1, -1));
        for (unsigned round = 0; round < 4; round++) {
            snprintf(go, sizeof(go), "go %u", 750 * TEST_SCALE);
            assert_true(child_say(&w.child, go));
            assert_true(said(&w));
            everything_agrees(f, &w, 1);
        }
        report(&w, 1);
        assert_true(w.refused != 0);
        ends_with_nothing(f, &w, 1);
        ends_well(&w);
    }
}

/* To the brim: who is refused depends on who was first; nothing passes the ceiling and nothing is lost. */
static void threads_at_the_ceiling_leave_the_books_right(void **state)
{
    static const struct plan plan = {.threads = 4, .ceiling = {256, 128}};
    const struct fixture *f = *state;
    struct worker w;

    assert_true(start(f, &w, &plan, fixture_draw()->seed + 100, -1, -1));
    for (unsigned round = 0; round < 6 * TEST_ROUNDS; round++) {
        assert_true(child_say(&w.child, "go 120"));
        assert_true(said(&w));
        everything_agrees(f, &w, 1);
    }
    report(&w, 1);
    assert_true(w.refused != 0);
    /* what a pool or a graph takes before it is given back again: a few pages a thread */
    assert_true(peak(f, 0) <= (256 + 4 * 18) * MIB);
    ends_with_nothing(f, &w, 1);
    ends_well(&w);
}

/* Three processes that lend each other memory, two of them with threads; the last one is killed and another
 * takes its place.  There is room for all, so that every refusal is a false one. */
static void processes_that_lend_each_other_memory(void **state)
{
    static const struct plan plans[WORKERS] = {
        {.threads = 3, .ceiling = {8192, 4096}, .quota = 96},
        {.threads = 1, .ceiling = {8192, 4096}, .quota = 96},
        {.threads = 2, .ceiling = {8192, 4096}, .quota = 96},
    };
    const struct fixture *f = *state;
    struct worker w[WORKERS];
    int pairs[WORKERS - 1][2];
    uint64_t seed = fixture_draw()->seed + 200;

    for (unsigned i = 0; i + 1 < WORKERS; i++)
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pairs[i]), 0);
    for (unsigned i = 0; i < WORKERS; i++)
        assert_true(start(f, &w[i], &plans[i], seed + i, i == 0 ? -1 : pairs[i - 1][1],
                          i + 1 == WORKERS ? -1 : pairs[i][0]));
    for (unsigned i = 0; i + 1 < WORKERS; i++) {
        close(pairs[i][0]);
        close(pairs[i][1]);
    }
    for (unsigned round = 0; round < 8 * TEST_ROUNDS; round++) {
        for (unsigned i = 0; i < WORKERS; i++)
            assert_true(child_say(&w[i].child, "go 150"));
        if (round == 3) { /* in the middle of it, with what it holds and has borrowed */
            usleep(20000);
            child_kill(&w[WORKERS - 1].child, 9);
            for (unsigned i = 0; i + 1 < WORKERS; i++)
                assert_true(said(&w[i]));
            assert_true(start(f, &w[WORKERS - 1], &plans[WORKERS - 1], seed + 50, -1, -1));
            continue;
        }
        for (unsigned i = 0; i < WORKERS; i++)
            assert_true(said(&w[i]));
        everything_agrees(f, w, WORKERS);
    }
    report(w, WORKERS);
    for (unsigned i = WORKERS; i-- > 0;) {
        assert_true(child_say(&w[i].child, "return"));
        assert_true(said(&w[i]));
    }
    ends_with_nothing(f, w, WORKERS);
    for (unsigned i = 0; i < WORKERS; i++)
        ends_well(&w[i]);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_step_of_one_process_is_as_the_rules_have_it,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(threads_at_the_ceiling_leave_the_books_right, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(processes_that_lend_each_other_memory, fixture_setup,
                                        fixture_teardown),
    };

    return cmocka_run_group_tests_name("property", tests, NULL, NULL) == 0 ? 0 : 1;
}
