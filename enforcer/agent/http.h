/*
 * Serving the texts over HTTP (libmicrohttpd): /metrics, /healthz, /v1/containers, /v1/report.  Reads
 * only; whatever a client sends, how slowly, or how much, it costs one of a bounded number of
 * connections for a bounded time.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_HTTP_H
#define VRAMCAP_ENFORCER_AGENT_HTTP_H

#include <stddef.h>
#include <stdint.h>

#include "enforcer/agent/exchange.h"

#define VCAP_HTTP_PLACES 4

struct vcap_http;

/*
 * Listens on places: "ADDRESS:PORT", "[ADDRESS]:PORT", "unix:/PATH".  stale_ms: a last round older than
 * that is no good health.  NULL and one phrase in why.
 */
struct vcap_http *vcap_http_start(const char *const *places, size_t count,
                                  struct vcap_exchange *exchange, uint64_t stale_ms, char *why,
                                  size_t why_size);

/* Ends connections that have had their time; to be called every second or so. */
void vcap_http_tidy(struct vcap_http *http);

void vcap_http_stop(struct vcap_http *http);

#endif
