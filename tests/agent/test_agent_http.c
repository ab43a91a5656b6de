/*
 * Clients that mean no good, or know no better: whatever they send, the next one gets its answer.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/agent/running.h"
#include "tests/cli/ledger_image.h"

#define MANY 60
#define NEARLY 31 /* of the agent's 32 places */
#define CROWD 60  /* the backlog has room for 64 */
#define PATIENCE_MS 30000

static struct running r;

static int setup(void **state)
{
    static struct image image;
    (void)state;
    if (!running_setup(&r))
        return -1;
    image_init(&image);
    image_gpu(&image, 0, 4096, VCAP_LF_SOURCE_ENV);
    if (image_write(&image, sizeof image, running_ledger(&r, "web")) != 0)
        return -1;
    return running_start(&r, false, NULL, NULL) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    int status = r.pid ? running_stop(&r, SIGTERM) : 0;
    running_teardown(&r);
    return status; /* it must still end well after all that */
}

static void is_well(void)
{
    assert_true(running_value(&r, "vramcap_ceiling_bytes", "web") == 4096.0 * IMAGE_MIB);
}

/* The status of what comes back; 0: the connection was just closed. */
static int answer_to(const char *bytes, size_t length)
{
    size_t n = running_raw(&r, bytes, length, PATIENCE_MS);
    if (n > 12 && !strncmp(r.buffer, "HTTP/1.", 7))
        return (int)strtol(r.buffer + 9, NULL, 10);
    return 0;
}

static void pages_have_their_types(void **state)
{
    (void)state;
    assert_int_equal(running_get(&r, "/metrics"), 200);
    assert_non_null(strstr(r.head, "Content-Type: text/plain; version=0.0.4; charset=utf-8"));
    assert_int_equal(running_get(&r, "/v1/containers"), 200);
    assert_non_null(strstr(r.head, "Content-Type: application/json"));
    assert_int_equal(running_get(&r, "/v1/report"), 200);
    json_t *report = json_loads(r.body, 0, NULL);
    assert_non_null(report);
    json_decref(report);
    assert_int_equal(running_get(&r, "/"), 200);
    assert_int_equal(running_get(&r, "/metrics/"), 404);
    assert_int_equal(running_get(&r, "/../etc/passwd"), 404);
    assert_int_equal(running_get(&r, "//metrics"), 404);
    assert_int_equal(running_get(&r, "/metrics?x=y"), 200);
    static const char head[] = "HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    assert_int_equal(answer_to(head, sizeof head - 1), 200);
    assert_string_equal(strstr(r.buffer, "\r\n\r\n"), "\r\n\r\n"); /* no body */
}

static void only_reading_is_served(void **state)
{
    (void)state;
    const char *const methods[] = {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "X"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        char text[256];
        int n = snprintf(text, sizeof text,
                         "%s /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
                         methods[i]);
        int status = answer_to(text, (size_t)n);
        if (status != 405)
            fail_msg("%s: %d", methods[i], status);
    }
    is_well();
}

static void malformed_requests_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
    } requests[] = {
#define REQUEST(text) {(text), sizeof(text) - 1}
        REQUEST("\r\n\r\n\r\n"),
        REQUEST("GET\r\n\r\n"),
        REQUEST("GET /metrics\r\n\r\n"),
        REQUEST("GET /metrics HTTP/9.9\r\n\r\n"),
        REQUEST("GET /metrics HTTP/1.1\r\n\r\n"),                /* no Host */
        REQUEST("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), /* TLS */
        REQUEST("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        REQUEST("GET /\0metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
        REQUEST("GET /%00%ff%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        REQUEST("GET /metrics HTTP/1.1\r\nHost x\r\n:\r\n \r\n\r\n"),
        REQUEST("GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"),
        REQUEST("GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n"),
        REQUEST("GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n"),
    };
    const size_t count = sizeof requests / sizeof *requests;
    int fds[sizeof requests / sizeof *requests];
    for (size_t i = 0; i < count; i++) {
        fds[i] = running_connect(&r);
        assert_true(fds[i] >= 0);
        assert_true(send(fds[i], requests[i].bytes, requests[i].length, MSG_NOSIGNAL) > 0);
        is_well(); /* while all of them are open, those that get no answer too */
    }
    for (size_t i = 0; i < count; i++) { /* nothing more comes: every one of them ends */
        char piece[4096];
        ssize_t n;
        (void)shutdown(fds[i], SHUT_WR);
        while ((n = recv(fds[i], piece, sizeof piece, 0)) > 0)
            continue;
        if (n < 0 && errno != ECONNRESET)
            fail_msg("request %zu does not end: %s", i, strerror(errno));
        (void)close(fds[i]);
    }
}

static void huge_heads_are_cut_off(void **state)
{
    (void)state;
    size_t size = 4u << 20;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, 'a', size);
    /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): bytes, no string */
    memcpy(text, "GET /", 5);
    assert_true(answer_to(text, size) != 200);
    /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): bytes, no string */
    memcpy(text, "GET /metrics HTTP/1.1\r\nHost: x\r\nX: ", 36);
    assert_true(answer_to(text, size) != 200);
    for (size_t i = 33; i + 6 < size; i += 6)
        /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): bytes, no string */
        memcpy(text + i, "X: y\r\n", 6);
    assert_true(answer_to(text, size) != 200);
    free(text);
    is_well();
}

static void slow_clients_hold_up_nobody(void **state)
{
    (void)state;
    int slow[20];
    for (size_t i = 0; i < 20; i++) {
        slow[i] = running_connect(&r);
        assert_true(slow[i] >= 0);
        (void)!send(slow[i], "GET /metrics HT", 15, MSG_NOSIGNAL);
    }
    for (int i = 0; i < 5; i++)
        is_well();
    for (size_t i = 0; i < 20; i++)
        (void)close(slow[i]);
}

/* More than there are places for: they give way when they have had their time. */
static void a_full_house_empties_itself(void **state)
{
    (void)state;
    int slow[MANY];
    for (size_t i = 0; i < MANY; i++) {
        slow[i] = running_connect(&r);
        assert_true(slow[i] >= 0);
        (void)!send(slow[i], "G", 1, MSG_NOSIGNAL);
    }
    bool answered = false;
    for (int i = 0; i < 60 && !answered; i++) {
        (void)usleep(200000);
        for (size_t k = 0; k < MANY; k++) /* a byte now and then */
            (void)!send(slow[k], "E", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        answered = running_raw(&r, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                               54, 1000) > 0 &&
                   strstr(r.buffer, "200 OK");
    }
    assert_true(answered);
    for (size_t i = 0; i < MANY; i++)
        (void)close(slow[i]);
    is_well();
}

static void clients_that_go_away_early_harm_nothing(void **state)
{
    (void)state;
    static const char get[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    for (int i = 0; i < 200; i++) {
        int fd = running_connect(&r);
        assert_true(fd >= 0);
        (void)!send(fd, get, sizeof get - 1, MSG_NOSIGNAL);
        (void)close(fd);
    }
    is_well();
}

/* More than there are places for, each with a whole request and all at once: none is turned away. */
static void a_crowd_waits_for_its_turn(void **state)
{
    (void)state;
    static const char get[] = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    int slow[NEARLY], fds[CROWD];
    for (size_t i = 0; i < NEARLY; i++) {
        slow[i] = running_connect(&r);
        assert_true(slow[i] >= 0);
        (void)!send(slow[i], "G", 1, MSG_NOSIGNAL);
    }
    is_well();
    assert_int_equal(kill(r.pid, SIGSTOP), 0);
    for (size_t i = 0; i < CROWD; i++) {
        fds[i] = running_connect(&r);
        assert_true(fds[i] >= 0);
        assert_int_equal(send(fds[i], get, sizeof get - 1, MSG_NOSIGNAL), sizeof get - 1);
    }
    assert_int_equal(kill(r.pid, SIGCONT), 0);
    unsigned answered = 0;
    for (size_t i = 0; i < CROWD; i++) {
        char start[13] = "";
        answered += recv(fds[i], start, 12, MSG_WAITALL) == 12 && !strcmp(start, "HTTP/1.1 200");
        (void)close(fds[i]);
    }
    for (size_t i = 0; i < NEARLY; i++)
        (void)close(slow[i]);
    assert_int_equal(answered, CROWD);
}

static void many_requests_on_one_connection_are_answered(void **state)
{
    (void)state;
    char text[4096];
    size_t n = 0;
    for (int i = 0; i < 20; i++)
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "GET /healthz HTTP/1.1\r\nHost: x\r\n%s\r\n",
                              i == 19 ? "Connection: close\r\n" : "");
    (void)running_raw(&r, text, n, PATIENCE_MS);
    unsigned answers = 0;
    for (const char *at = r.buffer; (at = strstr(at, "HTTP/1.1 200")); at++)
        answers++;
    assert_int_equal(answers, 20);
}

static void a_storm_of_scrapes_costs_few_rounds(void **state)
{
    (void)state;
    for (int i = 0; i < 300; i++)
        assert_int_equal(running_get(&r, "/metrics"), 200);
    is_well();
}

#define TEST(name) cmocka_unit_test(name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pages_have_their_types),
        TEST(only_reading_is_served),
        TEST(malformed_requests_are_refused),
        TEST(huge_heads_are_cut_off),
        TEST(slow_clients_hold_up_nobody),
        TEST(a_full_house_empties_itself),
        TEST(clients_that_go_away_early_harm_nothing),
        TEST(a_crowd_waits_for_its_turn),
        TEST(many_requests_on_one_connection_are_answered),
        TEST(a_storm_of_scrapes_costs_few_rounds),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
