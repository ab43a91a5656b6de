/*
 * What the running agent remembers: events each once, counters that never go back, the ceilings that the
 * host set; across restarts and kills.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/cli/host_record.h"
#include "tests/agent/running.h"
#include "tests/cli/ledger_image.h"
#include "tests/support/skip.h"

static struct running r;
static struct image image;

static int setup(void **state)
{
    (void)state;
    if (!running_setup(&r))
        return -1;
    image_init(&image);
    image_gpu(&image, 0, 4096, VCAP_LF_SOURCE_ENV);
    image_process(&image, 1, 0, 1000, "serve");
    image.gpus[0].peak_bytes = 1700 * IMAGE_MIB;
    image.gpus[0].refusals = 9;
    image.gpus[0].refused_bytes = 900;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    running_teardown(&r);
    return 0;
}

/* Puts the image in place as a file of its own, as whoever makes ledgers does. */
static void put(const char *name)
{
    assert_true(running_put(&r, name, &image));
}

static void start(void)
{
    assert_true(running_start(&r, true, NULL, NULL));
}

static void counters_never_go_back(void **state)
{
    (void)state;
    put("web");
    start();
    assert_true(running_value(&r, "vramcap_refusals_total", "web") == 9);
    assert_int_equal(running_stop(&r, SIGKILL), 256 + SIGKILL);
    image.gpus[0].refusals = 12; /* meanwhile */
    assert_int_equal(image_write(&image, sizeof image, running_ledger(&r, "web")), 0);
    start();
    assert_true(running_value(&r, "vramcap_refusals_total", "web") == 12);
    assert_int_equal(running_stop(&r, SIGTERM), 0);
    image.gpus[0].refusals = 1; /* the container was replaced */
    put("web");
    start();
    assert_true(running_value(&r, "vramcap_refusals_total", "web") == 13);
}

/* ---- events ---- */

static void event(enum vcap_lf_event_kind kind, const char *name)
{
    struct vcap_lf_event *e = image_event(&image, kind, name);
    e->gpu = 0;
    e->bytes = 512;
    e->held = 1024;
    e->limit = 2048;
}

static void update(const char *name)
{
    int fd = open(running_ledger(&r, name), O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, &image, sizeof image, 0), sizeof image);
    (void)close(fd);
}

static void each_event_is_one_line_also_across_restarts(void **state)
{
    (void)state;
    event(VCAP_LF_EVENT_REFUSAL, "cuMemAlloc_v2");
    event(VCAP_LF_EVENT_REAP, "");
    put("web");
    start();
    assert_true(running_until_line(&r, "event=reap", "seq=2"));
    event(VCAP_LF_EVENT_NEAR, "");
    update("web");
    assert_true(running_until_line(&r, "event=near", "seq=3"));
    assert_int_equal(running_stop(&r, SIGTERM), 0);
    event(VCAP_LF_EVENT_REFUSAL, "while away");
    update("web");
    for (int i = 0; i < 3; i++) {
        start();
        assert_true(running_until_line(&r, "event=refusal", "seq=4"));
        (void)usleep(200000);
        (void)running_stop(&r, SIGKILL);
    }
    for (int seq = 1; seq <= 4; seq++) {
        char text[24];
        (void)snprintf(text, sizeof text, " seq=%d ", seq);
        assert_int_equal(running_lines(&r, "container=web", text), 1);
    }
    assert_int_equal(running_lines(&r, "event=refusal container=web seq=1 id=",
                                   "gpu_uuid=GPU-00010203-0405-0607-0809-0a0b0c0d0e0f "
                                   "name=cuMemAlloc_v2 bytes=512 held_bytes=1024 limit_bytes=2048"),
                     1);
    assert_int_equal(running_lines(&r, "seq=4", "name=\"while away\""), 1);
}

static void a_kill_in_the_middle_repeats_at_most_one_marked_line(void **state)
{
    (void)state;
    unsigned marked = 0;
    put("web");
    /* 10 kills while events come in: every number once, but for a marked one per kill */
    for (int round = 0; round < 10; round++) {
        start();
        for (int i = 0; i < 10; i++) {
            event(VCAP_LF_EVENT_REFUSAL, "x");
            update("web");
            (void)usleep((useconds_t)(3000 + 1000 * (round + i) % 7));
        }
        (void)running_stop(&r, SIGKILL);
    }
    start();
    assert_true(running_until_line(&r, "seq=100 ", "event=refusal"));
    (void)running_stop(&r, SIGTERM);
    for (int seq = 1; seq <= 100; seq++) {
        char text[24];
        (void)snprintf(text, sizeof text, " seq=%d ", seq);
        unsigned plain = running_lines(&r, "event=refusal", text);
        unsigned again = running_lines(&r, "again=1", text);
        marked += again;
        if (plain - again != 1 && !(plain == 1 && again == 1))
            fail_msg("event %d: %u lines, %u of them marked", seq, plain, again);
    }
    assert_true(marked <= 10);
    assert_int_equal(running_lines(&r, "events-lost", ""), 0);
}

static void what_left_the_ring_is_counted_and_said(void **state)
{
    (void)state;
    put("web");
    start();
    assert_int_equal(running_stop(&r, SIGTERM), 0);
    for (unsigned i = 0; i < IMAGE_EVENTS + 5; i++)
        event(VCAP_LF_EVENT_REFUSAL, "x");
    update("web");
    start();
    assert_true(running_until_line(&r, "event=events-lost container=web", "count=5"));
    assert_true(running_value(&r, "vramcap_events_lost_total", "web") == 5);
    assert_int_equal(running_lines(&r, "event=refusal", "container=web"), IMAGE_EVENTS);
    (void)running_stop(&r, SIGTERM);
    start(); /* and the count is remembered */
    assert_true(running_value(&r, "vramcap_events_lost_total", "web") == 5);
}

static void an_event_that_is_never_finished_is_not_waited_for_for_ever(void **state)
{
    (void)state;
    event(VCAP_LF_EVENT_REFUSAL, "one");
    event(VCAP_LF_EVENT_REFUSAL, "torn");
    image.events[2].end = 0; /* its writer died */
    event(VCAP_LF_EVENT_REFUSAL, "three");
    put("web");
    start();
    assert_true(running_until_line(&r, "event=events-lost", "count=1"));
    assert_true(running_until_line(&r, "name=three", "seq=3"));
    assert_int_equal(running_lines(&r, "name=torn", ""), 0);
}

/* ---- tampering ---- */

static void host_made(uint64_t mib)
{
    image.header.flags = VCAP_LF_HOST_MADE;
    image.header.default_ceiling = vcap_lf_ceiling(IMAGE_UNITS(mib), VCAP_LF_SOURCE_HOST);
    image_gpu(&image, 0, mib, VCAP_LF_SOURCE_HOST);
}

static int tampered(const char *container)
{
    json_t *c = running_container(&r, container);
    const json_t *value = json_object_get(c, "tampered");
    int answer = json_is_null(value) ? -1 : json_is_true(value);
    json_decref(c);
    return answer;
}

static void a_raised_ceiling_is_tampering(void **state)
{
    (void)state;
    host_made(4096);
    put("web");
    start();
    (void)usleep(200000);
    assert_int_equal(tampered("web"), 0);
    (void)running_stop(&r, SIGKILL);
    host_made(8192); /* and host_changes as it was */
    update("web");
    start(); /* it remembers across restarts */
    assert_int_equal(tampered("web"), 1);
    assert_true(running_until_line(&r, "event=tampered container=web", "8589934592"));
    host_made(4096);
    update("web");
    assert_true(running_until_line(&r, "event=tampering-ended", "web"));
    image.header.flags = 0; /* not the host's any more? */
    update("web");
    (void)usleep(150000);
    assert_int_equal(tampered("web"), 1);
}

static void the_host_s_own_note_decides(void **state)
{
    (void)state;
    struct vcap_host_record note = {
        .changes = 0, .flags = VCAP_LF_HOST_MADE, .default_bytes = 4096 * IMAGE_MIB};
    host_made(8192);
    image.header.host_changes = 5; /* as if the host had changed it */
    put("web");
    int fd = open(running_ledger(&r, "web"), O_RDWR | O_CLOEXEC);
    int error = vcap_host_record_write(fd, &note);
    (void)close(fd);
    if (error)
        SKIP_BECAUSE("no note can be written here: %s", strerror(-error));
    start();
    assert_int_equal(tampered("web"), 1);
    host_made(4096);
    update("web");
    assert_true(running_until_line(&r, "event=tampering-ended", "web"));
    assert_int_equal(tampered("web"), 0);
}

static void a_ledger_that_the_host_did_not_make_cannot_be_judged(void **state)
{
    (void)state;
    put("web");
    start();
    (void)usleep(150000);
    assert_int_equal(tampered("web"), -1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(counters_never_go_back),
        TEST(each_event_is_one_line_also_across_restarts),
        TEST(a_kill_in_the_middle_repeats_at_most_one_marked_line),
        TEST(what_left_the_ring_is_counted_and_said),
        TEST(an_event_that_is_never_finished_is_not_waited_for_for_ever),
        TEST(a_raised_ceiling_is_tampering),
        TEST(the_host_s_own_note_decides),
        TEST(a_ledger_that_the_host_did_not_make_cannot_be_judged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
