/*
 * The agent beside a driver: one that says what the test wants (fake_nvml.c), whole, half, absent,
 * failing, hanging.
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

#include "tests/agent/running.h"
#include "tests/cli/ledger_image.h"

#define GPU0 "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
#define MIB ((double)IMAGE_MIB)
#define FAR_PID 1999999999 /* no process of this host */

static struct running r;
static struct image image;
static char variable[128];
static int lock;

/* What the driver says from now on. */
static void driver(const char *text)
{
    char path[96];
    (void)snprintf(path, sizeof path, "%s/nvml", r.folder);
    assert_int_equal(image_write(text, strlen(text), path), 0);
}

static int setup(void **state)
{
    (void)state;
    if (!running_setup(&r))
        return -1;
    image_init(&image);
    image_gpu(&image, 0, 1000, VCAP_LF_SOURCE_ENV);
    image_process(&image, 1, 0, 100, "serve");
    image.slots[1].pid = FAR_PID;
    if (image_write(&image, sizeof image, running_ledger(&r, "web")) != 0)
        return -1;
    lock = image_live(running_ledger(&r, "web"), 1);
    (void)snprintf(variable, sizeof variable, "FAKE_NVML=%s/nvml", r.folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)close(lock);
    running_teardown(&r);
    return 0;
}

static bool start(const char *library)
{
    return running_start(&r, false, RUNNING_ARGS(variable),
                         RUNNING_ARGS("--nvml", library, "--nvml-interval", "0.1"));
}

static void five_hundred_seen_and_one_hundred_held_is_four_hundred(void **state)
{
    (void)state;
    driver("gpu " GPU0 " 25769803776 524288000\nprocess 0 1999999999 524288000\n");
    assert_true(start(FAKE_NVML));
    assert_true(running_until(&r, "vramcap_unaccounted_bytes", "web", 400 * MIB));
    assert_true(running_value(&r, "vramcap_unprotected_processes", "web") == 0);
    driver("gpu " GPU0 " 25769803776 524288000\nprocess 0 1999999999 104857600\n");
    assert_true(running_until(&r, "vramcap_unaccounted_bytes", "web", 0));
    json_t *c = running_container(&r, "web");
    const json_t *gpu = json_array_get(json_object_get(c, "gpus"), 0);
    assert_int_equal(json_integer_value(json_object_get(gpu, "unaccounted_most_bytes")),
                     400 * IMAGE_MIB);
    json_decref(c);
}

static void the_host_s_number_of_a_gpu_is_the_driver_s(void **state)
{
    (void)state;
    driver("gpu GPU-other 1 1\ngpu " GPU0 " 25769803776 0\nprocess 1 1999999999 104857600\n");
    assert_true(start(FAKE_NVML));
    assert_true(running_metric(&r, "vramcap_ceiling_bytes{container=\"web\",gpu_uuid=\"" GPU0
                                   "\",gpu=\"1\"}") == 1000 * MIB);
}

static void cards_are_of_the_driver_s_size_also_without_a_container(void **state)
{
    (void)state;
    image.gpus[0].card_bytes = 16384 * IMAGE_MIB; /* what the container was told */
    assert_int_equal(image_write(&image, sizeof image, running_ledger(&r, "told")), 0);
    driver("gpu GPU-other 8589934592 1\ngpu " GPU0 " 25769803776 0\n");
    assert_true(start(FAKE_NVML));
    assert_true(running_metric(&r, "vramcap_card_bytes{gpu_uuid=\"" GPU0 "\",gpu=\"1\"}") ==
                24576 * MIB);
    assert_true(running_metric(&r, "vramcap_card_bytes{gpu_uuid=\"GPU-other\",gpu=\"0\"}") ==
                8192 * MIB);
    unsigned series = 0;
    for (const char *at = r.body; (at = strstr(at, "\nvramcap_card_bytes{")); at++)
        series++;
    assert_int_equal(series, 2);
}

static void mps_clients_are_in_the_comparison(void **state)
{
    (void)state;
    driver("gpu " GPU0 " 25769803776 0\nmps 0 1999999999 209715200\n");
    assert_true(start(FAKE_NVML));
    assert_true(running_until(&r, "vramcap_unaccounted_bytes", "web", 100 * MIB));
    json_t *c = running_container(&r, "web");
    const json_t *gpu = json_array_get(json_object_get(c, "gpus"), 0);
    assert_int_equal(json_integer_value(json_object_get(gpu, "mps_clients")), 1);
    json_decref(c);
}

static void the_process_detail_list_does_as_well(void **state)
{
    (void)state;
    driver("gpu " GPU0 " 25769803776 0\nmps 0 1999999999 209715200\n");
    assert_true(start(FAKE_NVML_HALF));
    assert_true(running_until(&r, "vramcap_unaccounted_bytes", "web", 100 * MIB));
}

static const char *nvml_state(void)
{
    static char text[32];
    json_t *all = running_json(&r);
    const json_t *nvml = json_object_get(all, "nvml");
    (void)snprintf(text, sizeof text, "%s", json_string_value(json_object_get(nvml, "state")));
    json_decref(all);
    return text;
}

static void what_the_driver_does_not_say_is_left_out(void **state)
{
    (void)state;
    static const char *const said[] = {
        "gpu " GPU0 " 1 1\nprocess 0 1999999999 -1\n",                        /* no amount */
        "gpu " GPU0 " 1 1\nprocess 0 1999999999 104857600\nfail compute 3\n", /* not supported */
        "gpu " GPU0 " 1 1\nprocess 0 1999999999 104857600\nfail uuid 15\n",   /* lost */
        "gpu " GPU0 " 1 1\nprocess 0 1999999999 104857600\nfail handle 15\n", /* lost */
        "gpu GPU-other 1 1\nprocess 0 1999999999 104857600\n",                /* another one */
        "gpu " GPU0 " 1 1\n", /* a charged process is not in its list */
        "gpu " GPU0 " 1 1\nfail count 999\n",
    };
    driver(said[0]);
    assert_true(start(FAKE_NVML));
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        driver("gpu " GPU0 " 1 1\nprocess 0 1999999999 104857600\n");
        (void)running_stop(&r, SIGTERM);
        assert_true(start(FAKE_NVML));
        assert_true(running_until(&r, "vramcap_unaccounted_bytes", "web", 0));
        driver(said[i]);
        if (!running_until(&r, "vramcap_unaccounted_bytes", "web", -1))
            fail_msg("%zu", i);
        assert_true(running_value(&r, "vramcap_charged_bytes", "web") == 100 * MIB);
    }
}

static void without_the_library_all_else_is_there(void **state)
{
    (void)state;
    assert_true(start("libno-such-nvml.so.1"));
    assert_string_equal(nvml_state(), "absent");
    assert_true(running_value(&r, "vramcap_charged_bytes", "web") == 100 * MIB);
    assert_true(running_value(&r, "vramcap_unaccounted_bytes", "web") == -1);
    assert_int_equal(running_lines(&r, "event=nvml", "absent"), 1);
    (void)running_stop(&r, SIGTERM);
    assert_true(start(FAKE_NVML_NONE));
    assert_string_equal(nvml_state(), "failed");
    (void)running_stop(&r, SIGTERM);
    driver("init 9\n");
    assert_true(start(FAKE_NVML));
    assert_string_equal(nvml_state(), "failed");
    assert_true(running_value(&r, "vramcap_unprotected_processes", "web") == -1);
}

static void a_driver_that_hangs_stops_nothing_else(void **state)
{
    (void)state;
    driver("gpu " GPU0 " 1 1\nprocess 0 1999999999 104857600\n");
    assert_true(start(FAKE_NVML));
    assert_true(running_until(&r, "vramcap_unaccounted_bytes", "web", 0));
    driver("hang\n");
    assert_true(running_until(&r, "vramcap_unaccounted_bytes", "web", -1));
    assert_string_equal(nvml_state(), "silent");
    assert_true(running_until_line(&r, "event=nvml", "silent"));
    (void)close(lock);
    lock = -1;
    assert_true(running_until(&r, "vramcap_charged_bytes", "web", 0));
    assert_int_equal(running_get(&r, "/healthz"), 200);
    assert_int_equal(running_stop(&r, SIGTERM), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(five_hundred_seen_and_one_hundred_held_is_four_hundred),
        TEST(the_host_s_number_of_a_gpu_is_the_driver_s),
        TEST(cards_are_of_the_driver_s_size_also_without_a_container),
        TEST(mps_clients_are_in_the_comparison),
        TEST(the_process_detail_list_does_as_well),
        TEST(what_the_driver_does_not_say_is_left_out),
        TEST(without_the_library_all_else_is_there),
        TEST(a_driver_that_hangs_stops_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
