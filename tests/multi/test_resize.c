/*
 * The host's side of a ledger, as it is used: `vramcap create`, `resize` and `reset` beside programs that
 * live in it.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/sim/sim.h"
#include "tests/support/fixture.h"

static struct child_output output;

/* The tool with up to six arguments behind the sub-command and the ledger; its exit status. */
static int tool(const struct fixture *f, const char *command, const char *const *more)
{
    const char *argv[12] = {TOOL, command, f->ledger};
    const char *const bare[] = {"LD_PRELOAD", "VRAMCAP_LEDGER", NULL};

    for (unsigned i = 0; more != NULL && more[i] != NULL && i < 8; i++)
        argv[3 + i] = more[i];
    child_run(f, argv, bare, &output);
    return output.status;
}
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void create(const struct fixture *f, const char *memory)
{
    assert_int_equal(tool(f, "create", ARGS("--memory", memory)), 0);
    assert_string_equal(output.err, "");
}

static void resize(const struct fixture *f, const char *option, const char *value)
{
    assert_int_equal(tool(f, "resize", ARGS(option, value)), 0);
    assert_string_equal(output.err, "");
}

/* A client with a context on card 0 and nothing in its environment but that it is to be capped. */
static void start_with(struct child *c, const struct fixture *f, const char *const *extra)
{
    assert_true(client_start(c, f, "getproc", extra));
    assert_int_equal(client_result(c, "init"), 0);
    assert_int_equal(client_result(c, "ctx create 0"), 0);
}

static void start(struct child *c, const struct fixture *f)
{
    start_with(c, f, ARGS("VRAMCAP_ENABLE=1"));
}

static unsigned near_events(const struct fixture *f)
{
    return ledger_events(f->ledger, VCAP_LF_EVENT_NEAR);
}

static bool is_near(const struct fixture *f)
{
    struct vcap_snapshot_gpu gpu;

    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    return gpu.near;
}

static bool is_over(const struct fixture *f)
{
    struct vcap_snapshot_gpu gpu;

    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    return gpu.over;
}

static void one_figure_is_for_every_gpu_and_needs_no_environment(void **state)
{
    const struct fixture *f = *state;
    struct vcap_snapshot_gpu gpu;
    struct vcap_snapshot s;
    struct child c;

    assert_int_equal(tool(f, "create", ARGS("--memory", "300", "--container", "box")), 0);
    start(&c, f);
    assert_int_equal(client_result(&c, "alloc 302m"), 2);
    assert_int_equal(client_result(&c, "alloc 300m"), 0);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.ceiling_bytes, 300 * MIB);
    assert_int_equal(gpu.ceiling_source, VCAP_LF_SOURCE_HOST);
    assert_int_equal(gpu.source_bytes[0], 300 * MIB);
    assert_true(ledger_read(f->ledger, &s));
    assert_string_equal(s.container, "box");
    assert_int_equal(s.flags, VCAP_LF_HOST_MADE);
    vcap_snapshot_free(&s);
    child_kill(&c, SIGKILL);
}

static void a_gpu_is_named_by_its_uuid_and_never_by_its_place(void **state)
{
    const struct fixture *f = *state;
    const unsigned char none[16] = {0};
    unsigned char u[16];
    struct vcap_snapshot_gpu gpu;
    struct child c;
    char uuid[48], memory[160];

    assert_int_equal(tool(f, "create", ARGS("--memory", "0=300")), 2);
    assert_non_null(strstr(output.err, "UUID"));
    assert_int_equal(count_lines(output.err, NULL), 1);
    assert_int_not_equal(access(f->ledger, F_OK), 0);
    sim_card_uuid(0, u);
    assert_memory_not_equal(u, none, 16);
    /* upper case, and twice: the lower one holds */
    snprintf(uuid, sizeof(uuid),
             "GPU-%02X%02X%02X%02X-%02X%02X-%02X%02X-%02X%02X-%02X%02X%02X%02X%02X%02X", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15]);
    snprintf(memory, sizeof(memory), "%s=300,%s=1000", uuid, uuid);
    create(f, memory);
    start(&c, f);
    assert_int_equal(client_result(&c, "alloc 302m"), 2);
    assert_int_equal(client_result(&c, "alloc 300m"), 0);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.row, 0); /* the row that the host had claimed */
    child_kill(&c, SIGKILL);
}

static void below_what_is_held_nobody_is_ended_and_nothing_more_is_granted(void **state)
{
    const struct fixture *f = *state;
    struct child c;
    char answer[64], command[64];

    create(f, "300");
    start(&c, f);
    assert_string_not_equal(client_ask(&c, answer, sizeof(answer), "alloc 200m"), "dead");
    resize(f, "--memory", "100");
    assert_int_equal(client_result(&c, "alloc 2m"), 2);
    assert_true(is_over(f));
    assert_int_equal(ledger_charged(f->ledger, 0), 200 * MIB);
    assert_int_equal(ledger_events(f->ledger, VCAP_LF_EVENT_RESIZE),
                     2); /* the GPU's, and the default */
    assert_int_equal(ledger_events(f->ledger, VCAP_LF_EVENT_OVER), 1);
    snprintf(command, sizeof(command), "free %s", strchr(answer, ' ') + 1);
    assert_int_equal(client_result(&c, command), 0);
    assert_false(is_over(f));
    assert_int_equal(client_result(&c, "alloc 102m"), 2);
    assert_int_equal(client_result(&c, "alloc 100m"), 0);
    child_kill(&c, SIGKILL);
}

/* No charge passes under such a ceiling that could say so. */
static void a_ceiling_that_comes_down_to_what_is_held_is_a_crossing(void **state)
{
    const struct fixture *f = *state;
    struct child c;

    create(f, "300");
    start(&c, f);
    assert_int_equal(client_result(&c, "alloc 200m"), 0);
    resize(f, "--memory", "224"); /* the mark is 201.6 */
    assert_int_equal(near_events(f), 0);
    assert_false(is_near(f));
    resize(f, "--memory", "222"); /* 199.8 */
    assert_int_equal(near_events(f), 1);
    assert_true(is_near(f));
    resize(f, "--memory", "100");
    assert_int_equal(client_result(&c, "alloc 2m"), 2);
    assert_int_equal(near_events(f), 1);
    resize(f, "--memory", "240"); /* 216: below, but not well below */
    assert_true(is_near(f));
    resize(f, "--memory", "250"); /* 225, a tenth below it 202.5 */
    assert_false(is_near(f));
    resize(f, "--near", "80"); /* 200 */
    assert_int_equal(near_events(f), 2);
    assert_true(is_near(f));
    resize(f, "--memory", "100");
    assert_int_equal(near_events(f), 2);
    child_kill(&c, SIGKILL);
}

static void a_ceiling_that_is_lowered_below_what_is_held_is_a_crossing(void **state)
{
    const struct fixture *f = *state;
    struct child c;

    create(f, "300");
    start(&c, f);
    assert_int_equal(client_result(&c, "alloc 200m"), 0);
    resize(f, "--memory", "100");
    assert_true(is_over(f));
    assert_true(is_near(f));
    assert_int_equal(near_events(f), 1);
    child_kill(&c, SIGKILL);
}

static void a_raised_ceiling_comes_from_the_host_alone(void **state)
{
    const struct fixture *f = *state;
    struct child c, low;

    create(f, "50");
    start_with(&c, f, ARGS("VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=8000"));
    start_with(&low, f, ARGS("VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=100"));
    assert_int_equal(client_result(&c, "alloc 52m"), 2);
    resize(f, "--memory", "300");
    /* what was above the ceiling then is below it now, and binds the process that asked for it */
    assert_int_equal(client_result(&low, "alloc 102m"), 2);
    assert_int_equal(client_result(&low, "alloc 2m"), 0);
    assert_int_equal(client_result(&c, "alloc 298m"), 0);
    assert_int_equal(client_result(&c, "alloc 2m"), 2);
    child_kill(&c, SIGKILL);
    child_kill(&low, SIGKILL);
}

static void the_host_may_let_everything_through_and_take_that_back(void **state)
{
    const struct fixture *f = *state;
    struct vcap_snapshot_gpu gpu;
    struct child c;

    create(f, "300");
    start(&c, f);
    assert_int_equal(client_result(&c, "alloc 302m"), 2);
    resize(f, "--pass-through", "on");
    assert_int_equal(client_result(&c, "alloc 302m"), 0);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.audit_refusals, 0);
    assert_int_equal(gpu.charged_bytes, 302 * MIB); /* the books go on */
    resize(f, "--pass-through", "off");
    assert_int_equal(client_result(&c, "alloc 2m"), 2);
    resize(f, "--audit", "on");
    assert_int_equal(client_result(&c, "alloc 2m"), 0);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.audit_refusals, 1);
    resize(f, "--audit", "off");
    assert_int_equal(client_result(&c, "alloc 2m"), 2);
    assert_int_equal(ledger_events(f->ledger, VCAP_LF_EVENT_SWITCH), 4);
    child_kill(&c, SIGKILL);
}

static void a_ledger_is_emptied_only_when_nobody_lives_in_it(void **state)
{
    const struct fixture *f = *state;
    struct vcap_snapshot_gpu gpu;
    struct child c;

    create(f, "300");
    start(&c, f);
    assert_int_equal(client_result(&c, "alloc 200m"), 0);
    assert_int_equal(tool(f, "reset", NULL), 1);
    assert_non_null(strstr(output.err, "lives in it"));
    assert_int_equal(ledger_charged(f->ledger, 0), 200 * MIB);
    child_kill(&c, SIGKILL);
    assert_int_equal(tool(f, "reset", NULL), 0);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.peak_bytes, 0);
    assert_int_equal(gpu.gone_bytes, 0);
    assert_int_equal(gpu.ceiling_bytes, 300 * MIB);
}

static void a_container_that_starts_again_on_the_same_file_has_the_whole_ceiling(void **state)
{
    const struct fixture *f = *state;

    create(f, "300");
    for (int run = 0; run < 3; run++) {
        struct child c;

        start(&c, f);
        assert_int_equal(client_result(&c, "alloc 300m"), 0);
        assert_int_equal(client_result(&c, "alloc 2m"), 2);
        child_kill(&c, SIGKILL);
    }
}

static void a_file_that_is_there_is_left_alone(void **state)
{
    const struct fixture *f = *state;
    struct vcap_snapshot_gpu gpu;
    struct child c;
    struct stat st;

    create(f, "300");
    assert_int_equal(tool(f, "create", ARGS("--memory", "8000")), 2);
    assert_non_null(strstr(output.err, "there is a file already"));
    start(&c, f);
    assert_true(ledger_gpu(f->ledger, 0, &gpu));
    assert_int_equal(gpu.ceiling_bytes, 300 * MIB);
    child_kill(&c, SIGKILL);
    assert_int_equal(unlink(f->ledger), 0);
    assert_int_equal(
        tool(f, "create", ARGS("--memory", "1", "--mode", "0640", "--slots", "512", "--gpus", "2")),
        0);
    assert_int_equal(stat(f->ledger, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
}

static void what_the_container_made_is_not_the_hosts_to_change(void **state)
{
    const struct fixture *f = *state;
    struct child c;

    start_with(&c, f, ARGS("VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=300"));
    assert_int_equal(tool(f, "resize", ARGS("--memory", "100")), 2);
    assert_non_null(strstr(output.err, "vramcap create"));
    assert_int_equal(client_result(&c, "alloc 300m"), 0);
    child_kill(&c, SIGKILL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(one_figure_is_for_every_gpu_and_needs_no_environment),
        TEST(a_gpu_is_named_by_its_uuid_and_never_by_its_place),
        TEST(below_what_is_held_nobody_is_ended_and_nothing_more_is_granted),
        TEST(a_ceiling_that_comes_down_to_what_is_held_is_a_crossing),
        TEST(a_ceiling_that_is_lowered_below_what_is_held_is_a_crossing),
        TEST(a_raised_ceiling_comes_from_the_host_alone),
        TEST(the_host_may_let_everything_through_and_take_that_back),
        TEST(a_ledger_is_emptied_only_when_nobody_lives_in_it),
        TEST(a_container_that_starts_again_on_the_same_file_has_the_whole_ceiling),
        TEST(a_file_that_is_there_is_left_alone),
        TEST(what_the_container_made_is_not_the_hosts_to_change),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
