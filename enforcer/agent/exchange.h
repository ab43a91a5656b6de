/*
 * Where the thread that makes texts and the threads that hand them out meet.  A request asks for a text
 * that is made after it (or was made a moment before) and waits for it, but not for ever.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_EXCHANGE_H
#define VRAMCAP_ENFORCER_AGENT_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum vcap_text_kind { VCAP_TEXT_METRICS, VCAP_TEXT_CONTAINERS, VCAP_TEXT_REPORT, VCAP_TEXT_KINDS };

/* Immutable once published; counted. */
struct vcap_published {
    uint32_t users;
    size_t length;
    char text[];
};

struct vcap_exchange;

struct vcap_exchange *vcap_exchange_new(void); /* NULL without memory or descriptors */
void vcap_exchange_free(struct vcap_exchange *exchange);

/* Readable when somebody wants a text. */
int vcap_exchange_fd(const struct vcap_exchange *exchange);

/* ---- for those who serve ---- */

/* A text, to be released; NULL: none was made within wait_ms. */
struct vcap_published *vcap_exchange_get(struct vcap_exchange *exchange, enum vcap_text_kind kind,
                                         uint64_t wait_ms);
void vcap_published_release(struct vcap_published *published);

/* How long ago the last round ended, in ms; UINT64_MAX: none yet. */
uint64_t vcap_exchange_age_ms(struct vcap_exchange *exchange);

/* ---- for the one who makes them ---- */

/* Which are wanted, as bits 1 << kind, and empties the descriptor. */
unsigned vcap_exchange_wanted(struct vcap_exchange *exchange);

/* Copies the text.  Also with NULL: nothing could be made, and who waits is told so. */
void vcap_exchange_put(struct vcap_exchange *exchange, enum vcap_text_kind kind, const char *text,
                       size_t length);

/* A round has ended. */
void vcap_exchange_round(struct vcap_exchange *exchange);

/* Nobody waits any longer. */
void vcap_exchange_end(struct vcap_exchange *exchange);

#endif
