/*
 * libmicrohttpd with a thread per connection: a handler may wait for a fresh text without holding up
 * the others.  The bounds: CONNECTIONS at once, MEMORY_BYTES for a request's head (more is answered
 * 431), no bodies, IDLE_S without a byte, and LIFE_MS for a client to send a whole head, and again to
 * read a whole answer (BUSY_LIFE_MS when most connections are taken, or too much text waits to be read),
 * so that one byte now and then holds nothing for long.  The time that the agent takes for the answer is
 * not the client's: on a slow machine with many ledgers it is seconds.
 * Without MHD_USE_POLL: with it, libmicrohttpd 0.9.75 goes on accepting at the limit and resets what it
 * accepts (MHD_poll_listen_socket, daemon.c); with select a client waits in the backlog for its turn.
 */
#include "enforcer/agent/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/agent/listen.h"
#include "enforcer/kernel.h"

#define CONNECTIONS 32u
#define BUSY_CONNECTIONS 24u
#define MEMORY_BYTES 16384u
#define STACK_BYTES (256u << 10)
#define PIECE_BYTES (64u << 10) /* of a text, sent at once */
#define IDLE_S 30u
#define LIFE_MS 60000u
#define BUSY_LIFE_MS 2000u
#define WAIT_MS 3000u

#if MHD_VERSION >= 0x00097002
typedef enum MHD_Result answer;
#else
typedef int answer;
#endif

struct connection {
    int fd; /* -1: free */
    uint64_t since_ns;
    bool is_ours; /* the client waits for the agent, not the agent for it */
};

struct vcap_http {
    struct vcap_exchange *exchange;
    uint64_t stale_ms;
    struct MHD_Daemon *daemons[VCAP_HTTP_PLACES];
    char *places[VCAP_HTTP_PLACES];
    size_t count;
    pthread_mutex_t lock;
    struct connection connections[CONNECTIONS * VCAP_HTTP_PLACES]; /* under the lock */
};

/* Whose turn it is from now on: the agent's (ours), or the client's with its whole time. */
static void give_turn(struct vcap_http *h, struct MHD_Connection *c, bool ours)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct connection *of = info ? info->socket_context : NULL;
    (void)pthread_mutex_lock(&h->lock);
    if (of) {
        of->is_ours = ours;
        of->since_ns = vcap_clock_ns(CLOCK_MONOTONIC);
    }
    (void)pthread_mutex_unlock(&h->lock);
}

/* Takes r, which may be NULL. */
static answer respond(struct MHD_Connection *c, unsigned status, const char *type,
                      struct MHD_Response *r)
{
    if (!r)
        return MHD_NO;
    (void)MHD_add_response_header(r, "Content-Type", type);
    (void)MHD_add_response_header(r, "Cache-Control", "no-store");
    (void)MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(r, "Allow", "GET, HEAD");
    answer result = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return result;
}

static answer respond_words(struct MHD_Connection *c, unsigned status, const char *words)
{
    return respond(c, status, "text/plain; charset=utf-8",
                   MHD_create_response_from_buffer(strlen(words), (void *)(uintptr_t)words,
                                                   MHD_RESPMEM_MUST_COPY));
}

/* A published text is sent from where it is, not from a copy for each connection. */
static ssize_t read_published(void *cls, uint64_t position, char *to, size_t most)
{
    const struct vcap_published *p = cls;
    if (position >= p->length)
        return (ssize_t)MHD_CONTENT_READER_END_OF_STREAM; /* a size_t in older headers */
    size_t n = p->length - (size_t)position;
    if (n > most)
        n = most;
    memcpy(to, p->text + position, n);
    return (ssize_t)n;
}

static void release_published(void *cls)
{
    vcap_published_release(cls);
}

static answer respond_text(struct vcap_http *h, struct MHD_Connection *c, enum vcap_text_kind kind)
{
    static const char *const types[] = {
        [VCAP_TEXT_METRICS] = "text/plain; version=0.0.4; charset=utf-8",
        [VCAP_TEXT_CONTAINERS] = "application/json",
        [VCAP_TEXT_REPORT] = "application/json",
    };
    give_turn(h, c, true);
    struct vcap_published *p = vcap_exchange_get(h->exchange, kind, WAIT_MS);
    give_turn(h, c, false);
    if (!p)
        return respond_words(c, MHD_HTTP_SERVICE_UNAVAILABLE,
                             vcap_exchange_is_crowded(h->exchange)
                                 ? "other clients do not read what they asked for\n"
                                 : "no state within 3 seconds\n");
    struct MHD_Response *r = MHD_create_response_from_callback(
        p->length, PIECE_BYTES, read_published, p, release_published);
    if (!r)
        vcap_published_release(p);
    return respond(c, MHD_HTTP_OK, types[kind], r);
}

static answer respond_health(struct vcap_http *h, struct MHD_Connection *c)
{
    char words[96];
    uint64_t age_ms = vcap_exchange_age_ms(h->exchange);
    if (age_ms <= h->stale_ms)
        return respond_words(c, MHD_HTTP_OK, "ok\n");
    if (age_ms == UINT64_MAX)
        return respond_words(c, MHD_HTTP_SERVICE_UNAVAILABLE, "no ledger was looked for yet\n");
    (void)snprintf(words, sizeof words, "the last look at the ledgers was %llu s ago\n",
                   (unsigned long long)(age_ms / 1000));
    return respond_words(c, MHD_HTTP_SERVICE_UNAVAILABLE, words);
}

static answer handle(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                     const char *version, const char *upload, size_t *upload_size, void **state)
{
    struct vcap_http *h = cls;
    (void)version, (void)upload;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return respond_words(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    if (*upload_size != 0)
        return MHD_NO; /* nothing here takes a body: the connection ends */
    if (!*state) {     /* the head is there; a body, if one was announced, is not waited for */
        *state = h;
        give_turn(h, c, false);
        return MHD_YES;
    }
    if (!strcmp(url, "/metrics"))
        return respond_text(h, c, VCAP_TEXT_METRICS);
    if (!strcmp(url, "/healthz"))
        return respond_health(h, c);
    if (!strcmp(url, "/v1/containers"))
        return respond_text(h, c, VCAP_TEXT_CONTAINERS);
    if (!strcmp(url, "/v1/report"))
        return respond_text(h, c, VCAP_TEXT_REPORT);
    if (!strcmp(url, "/"))
        return respond_words(c, MHD_HTTP_OK,
                             "vramcap-agent\n/metrics\n/healthz\n/v1/containers\n/v1/report\n");
    return respond_words(c, MHD_HTTP_NOT_FOUND, "not found\n");
}

/* ---- connections ---- */

static int socket_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

/* MHD calls this before it closes the socket: under the lock a number in the list is a connection. */
static void connection_changed(void *cls, struct MHD_Connection *c, void **context,
                               enum MHD_ConnectionNotificationCode code)
{
    struct vcap_http *h = cls;
    (void)pthread_mutex_lock(&h->lock);
    if (code == MHD_CONNECTION_NOTIFY_CLOSED && *context) {
        ((struct connection *)*context)->fd = -1;
        *context = NULL;
    }
    for (size_t i = 0; code == MHD_CONNECTION_NOTIFY_STARTED &&
                       i < sizeof h->connections / sizeof *h->connections;
         i++) {
        if (h->connections[i].fd >= 0)
            continue;
        h->connections[i] =
            (struct connection){.fd = socket_of(c), .since_ns = vcap_clock_ns(CLOCK_MONOTONIC)};
        *context = &h->connections[i];
        break;
    }
    (void)pthread_mutex_unlock(&h->lock);
}

static void request_completed(void *cls, struct MHD_Connection *c, void **state,
                              enum MHD_RequestTerminationCode code)
{
    (void)state;
    if (code == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        give_turn(cls, c, false);
}

void vcap_http_tidy(struct vcap_http *h)
{
    const size_t all = sizeof h->connections / sizeof *h->connections;
    unsigned open = 0;
    (void)pthread_mutex_lock(&h->lock);
    const uint64_t now = vcap_clock_ns(CLOCK_MONOTONIC); /* not before any since_ns */
    for (size_t i = 0; i < all; i++)
        open += h->connections[i].fd >= 0;
    const uint64_t life_ms =
        open >= BUSY_CONNECTIONS || vcap_exchange_is_crowded(h->exchange) ? BUSY_LIFE_MS : LIFE_MS;
    for (size_t i = 0; i < all; i++)
        if (h->connections[i].fd >= 0 && !h->connections[i].is_ours &&
            now - h->connections[i].since_ns > life_ms * UINT64_C(1000000))
            (void)shutdown(h->connections[i].fd, SHUT_RDWR); /* its thread finds it ended */
    (void)pthread_mutex_unlock(&h->lock);
}

/* ---- beginning and end ---- */

static void quiet(void *cls, const char *format, va_list arguments)
{
    (void)cls, (void)format, (void)arguments; /* what clients do wrong is not the agent's news */
}

struct vcap_http *vcap_http_start(const char *const *places, size_t count,
                                  struct vcap_exchange *exchange, uint64_t stale_ms, char *why,
                                  size_t why_size)
{
    struct vcap_http *h = calloc(1, sizeof *h);
    if (!h) {
        (void)snprintf(why, why_size, "out of memory");
        return NULL;
    }
    h->exchange = exchange;
    h->stale_ms = stale_ms;
    (void)pthread_mutex_init(&h->lock, NULL);
    for (size_t i = 0; i < sizeof h->connections / sizeof *h->connections; i++)
        h->connections[i].fd = -1;
    for (; h->count < count && h->count < VCAP_HTTP_PLACES; h->count++) {
        int fd = vcap_listen_open(places[h->count], why, why_size);
        if (fd < 0)
            goto failed;
        h->places[h->count] = strdup(places[h->count]);
        h->daemons[h->count] =
            MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                                 MHD_USE_ITC | MHD_USE_ERROR_LOG,
                             0, NULL, NULL, handle, h, MHD_OPTION_EXTERNAL_LOGGER, quiet, NULL,
                             MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS,
                             MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_BYTES,
                             MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_THREAD_STACK_SIZE,
                             (size_t)STACK_BYTES, MHD_OPTION_NOTIFY_CONNECTION, connection_changed,
                             h, MHD_OPTION_NOTIFY_COMPLETED, request_completed, h, MHD_OPTION_END);
        if (!h->daemons[h->count]) {
            (void)close(fd);
            (void)snprintf(why, why_size, "libmicrohttpd did not start on it");
            goto failed;
        }
    }
    return h;
failed:
    vcap_http_stop(h);
    return NULL;
}

void vcap_http_stop(struct vcap_http *h)
{
    for (size_t i = 0; i < VCAP_HTTP_PLACES; i++) {
        if (h->daemons[i])
            MHD_stop_daemon(h->daemons[i]);
        if (h->places[i])
            vcap_listen_remove(h->places[i]);
        free(h->places[i]);
    }
    (void)pthread_mutex_destroy(&h->lock);
    free(h);
}
