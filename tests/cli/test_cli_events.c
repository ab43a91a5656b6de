/*
 * `vramcap events`: order, losses, --since, --follow.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/cli/ledger_image.h"
#include "tests/cli/tool.h"

static struct tool t;
static struct image image;
static char folder[64], path[128];

static int setup(void **state)
{
    (void)state;
    if (!image_folder(folder))
        return -1;
    (void)snprintf(path, sizeof path, "%s/ledger", folder);
    image_init(&image);
    image_gpu(&image, 0, 4096, VCAP_LF_SOURCE_ENV);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

/* Without O_TRUNC, as a living library changes it. */
static void update(void)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    assert_int_equal(write(fd, &image, sizeof image), sizeof image);
    (void)close(fd);
}

static void refusal(void)
{
    struct vcap_lf_event *e = image_event(&image, VCAP_LF_EVENT_REFUSAL, "cuMemAlloc_v2");
    e->gpu = 0;
    e->bytes = 1536 * IMAGE_MIB;
    e->held = 3000 * IMAGE_MIB;
    e->limit = 4096 * IMAGE_MIB;
    e->code = 2;
}

static void each_event_is_a_line(void **state)
{
    (void)state;
    (void)image_event(&image, VCAP_LF_EVENT_ATTACH, "serve");
    refusal();
    image_event(&image, VCAP_LF_EVENT_GAP, "cuX")->kind = 77; /* of a newer library */
    update();
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("events", path)), 0);
    assert_string_equal(
        t.out,
        "1 2025-11-30T22:10:37.123Z attach pid 100 serve\n"
        "2 2025-11-30T22:10:37.123Z refusal pid 100 GPU 0 cuMemAlloc_v2: 1536.0 MiB, container "
        "holds 3000.0 of 4096.0 (code 2)\n"
        "3 2025-11-30T22:10:37.123Z kind-77 pid 100 cuX\n");
}

static void as_json_each_is_a_document(void **state)
{
    (void)state;
    refusal();
    update();
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("events", "--json", path)), 0);
    json_t *json = json_loads(t.out, 0, NULL);
    assert_non_null(json);
    assert_int_equal(json_integer_value(json_object_get(json, "bytes")), 1536 * IMAGE_MIB);
    assert_string_equal(json_string_value(json_object_get(json, "kind")), "refusal");
    assert_string_equal(json_string_value(json_object_get(json, "uuid")),
                        "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    json_decref(json);
}

static void the_lost_are_counted_where_they_are_missing(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        (void)image_event(&image, VCAP_LF_EVENT_ATTACH, "x");
    image.events[18 % IMAGE_EVENTS].end = 0; /* torn, in the middle */
    image.events[20 % IMAGE_EVENTS].end = 0; /* torn, the last */
    update();
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("events", path)), 0);
    assert_int_equal(strncmp(t.out, "4 events lost\n5 20", 18), 0);
    assert_non_null(strstr(t.out, "attach pid 100 x\n1 events lost\n19 20"));
    assert_non_null(strstr(t.out, "x\n1 events lost\n"));
    assert_string_equal(t.out + strlen(t.out) - 15, "\n1 events lost\n");
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("events", "--since=17", path)), 0);
    assert_int_equal(strncmp(t.out, "17 20", 5), 0);
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("events", "-s", "99", path)), 0);
    assert_string_equal(t.out, "");
}

static void following_shows_what_comes_and_ends_on_sigint(void **state)
{
    (void)state;
    (void)image_event(&image, VCAP_LF_EVENT_ATTACH, "first");
    update();
    tool_start(&t, TOOL_PIPE, NULL, TOOL_ARGS("events", "--follow", path));
    bool first = tool_expect(&t, "first\n");
    struct vcap_lf_event *slow = image_event(&image, VCAP_LF_EVENT_ATTACH, "slow");
    slow->end = 0; /* still being written */
    (void)image_event(&image, VCAP_LF_EVENT_ATTACH, "third");
    update();
    (void)usleep(300000);
    slow->end = slow->begin;
    update();
    bool third = tool_expect(&t, "third\n");
    bool slow_in_place = third && strstr(t.out, "slow\n3 20") != NULL;
    slow = image_event(&image, VCAP_LF_EVENT_ATTACH, "never");
    slow->end = 0; /* its writer is dead */
    (void)image_event(&image, VCAP_LF_EVENT_ATTACH, "fifth");
    update();
    bool fifth = tool_expect(&t, "1 events lost\n5 20") && tool_expect(&t, "fifth\n");
    /* made anew under the same name */
    image_init(&image);
    image.header.created_ns++;
    (void)image_event(&image, VCAP_LF_EVENT_ATTACH, "again");
    update();
    bool again = tool_expect(&t, "\n1 2025-11-30T22:10:37.123Z attach pid 100 again\n");
    (void)kill(t.pid, SIGINT);
    assert_int_equal(tool_wait(&t), 0);
    assert_true(first);
    assert_true(slow_in_place);
    assert_true(fifth);
    assert_true(again);
    assert_string_equal(t.err, "");
}

static void following_a_ledger_that_goes_bad_is_a_finding(void **state)
{
    (void)state;
    (void)image_event(&image, VCAP_LF_EVENT_ATTACH, "first");
    update();
    tool_start(&t, TOOL_PIPE, NULL, TOOL_ARGS("events", "-f", path));
    bool first = tool_expect(&t, "first\n");
    assert_int_equal(truncate(path, 4000), 0);
    assert_int_equal(tool_wait(&t), 1);
    assert_true(first);
    assert_non_null(strstr(t.err, "untrusted ledger"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_event_is_a_line),
        TEST(as_json_each_is_a_document),
        TEST(the_lost_are_counted_where_they_are_missing),
        TEST(following_shows_what_comes_and_ends_on_sigint),
        TEST(following_a_ledger_that_goes_bad_is_a_finding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
