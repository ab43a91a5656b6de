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

struct vcap_exchange;

/* Immutable once published; counted.  To be released before its exchange is freed. */
struct vcap_published {
    struct vcap_exchange *of;
    uint32_t users;
    size_t length;
    char text[];
};

struct vcap_exchange *vcap_exchange_new(void); /* NULL without memory or descriptors */
void vcap_exchange_free(struct vcap_exchange *exchange);

/* Readable when somebody wants a text. */
int vcap_exchange_fd(const struct vcap_exchange *exchange);

/* ---- for those who serve ---- */

/* So much may be held by clients that read slowly, each of a text of its own, besides the one that is asked
 * for: all of it counts against the agent's memory. */
#define VCAP_EXCHANGE_HELD_BYTES (UINT64_C(64) << 20)

/* More than that is held: nobody gets a text until clients have read theirs, or are cut off. */
bool vcap_exchange_is_crowded(struct vcap_exchange *exchange);

/* A text, to be released; NULL: none was made within wait_ms, or too much is held. */
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
