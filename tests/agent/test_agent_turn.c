/*
 * Whose time runs out: the server with nobody behind it who makes texts, so that the test decides how
 * long the agent takes.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/agent/http.h"

#define IDLERS 24            /* with so many connections the server is busy: 2 s each */
#define PAST_BUSY_US 2300000 /* and a request waits 3 s for its text */
#define PATIENCE_S 30

static char folder[] = "/tmp/vramcap-turn-XXXXXX", path[64];
static struct vcap_exchange *exchange;
static struct vcap_http *http;

static int setup(void **state)
{
    char place[80], why[128];
    const char *const places[] = {place};
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    (void)snprintf(path, sizeof path, "%s/agent", folder);
    (void)snprintf(place, sizeof place, "unix:%s", path);
    exchange = vcap_exchange_new();
    http = exchange ? vcap_http_start(places, 1, exchange, 60000, why, sizeof why) : NULL;
    return http ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    vcap_exchange_end(exchange);
    vcap_http_stop(http);
    vcap_exchange_free(exchange);
    return rmdir(folder);
}

/* Connected, and some bytes sent. */
static int client(const char *bytes)
{
    const struct timeval limit = {.tv_sec = PATIENCE_S};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    (void)snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(send(fd, bytes, strlen(bytes), MSG_NOSIGNAL), strlen(bytes));
    return fd;
}

/* The status of an answer; 0: the connection was ended without one. */
static int status_of(int fd)
{
    char start[13] = "";
    return recv(fd, start, 12, MSG_WAITALL) == 12 ? (int)strtol(start + 9, NULL, 10) : 0;
}

/* Reads what there is. */
static bool is_open(int fd)
{
    char piece[256];
    ssize_t n;
    while ((n = recv(fd, piece, sizeof piece, MSG_DONTWAIT)) > 0)
        continue;
    return n < 0 && errno == EAGAIN;
}

/* A request has come as far as the exchange. */
static void await_request(void)
{
    struct pollfd wanted = {.fd = vcap_exchange_fd(exchange), .events = POLLIN};
    assert_int_equal(poll(&wanted, 1, PATIENCE_S * 1000), 1);
    assert_int_equal(vcap_exchange_wanted(exchange), 1u << VCAP_TEXT_METRICS);
}

static void who_waits_for_the_agent_is_not_in_the_way(void **state)
{
    int idlers[IDLERS];
    (void)state;
    for (int i = 0; i < IDLERS; i++)
        idlers[i] = client("GET /metr");
    int fd = client("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    await_request();
    (void)usleep(PAST_BUSY_US);
    vcap_http_tidy(http);
    vcap_exchange_put(exchange, VCAP_TEXT_METRICS, "x 1\n", 4);
    vcap_http_tidy(http); /* now it is to read, and has its whole time */
    int status = status_of(fd);
    if (status != 200 && status != 503) /* 503: this machine stood still beyond its 3 s */
        fail_msg("status %d", status);
    for (int i = 0; i < IDLERS; i++) {
        assert_int_equal(status_of(idlers[i]), 0); /* those were */
        (void)close(idlers[i]);
    }
    (void)close(fd);
}

/* A connection may lie idle between two requests, as a collector's does: the whole head of the next one
 * gives it its time again, and no more than that. */
static void a_head_that_has_come_counts_from_then(void **state)
{
    static const char head[] = "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
                               "Expect: 100-continue\r\n\r\n";
    int idlers[IDLERS];
    (void)state;
    int fd = client("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(status_of(fd), 200);
    (void)usleep(PAST_BUSY_US);
    assert_true(is_open(fd));
    for (int i = 0; i < IDLERS; i++)
        idlers[i] = client("G");
    assert_int_equal(send(fd, head, sizeof head - 1, MSG_NOSIGNAL), sizeof head - 1);
    assert_int_equal(status_of(fd), 100); /* the head is there; the body never comes */
    vcap_http_tidy(http);
    assert_true(is_open(fd));
    (void)usleep(PAST_BUSY_US);
    vcap_http_tidy(http);
    assert_int_equal(status_of(fd), 0);
    for (int i = 0; i < IDLERS; i++)
        (void)close(idlers[i]);
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_for_the_agent_is_not_in_the_way),
        cmocka_unit_test(a_head_that_has_come_counts_from_then),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
