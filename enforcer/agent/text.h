/*
 * A text that grows: what the agent's exporters write into.  A failed allocation is remembered, so
 * that only the end has to look.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_TEXT_H
#define VRAMCAP_ENFORCER_AGENT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vcap_text {
    char *data; /* NUL-terminated once something was added */
    size_t length, room;
    bool failed; /* out of memory: the text is not whole */
};

void vcap_text_bytes(struct vcap_text *text, const char *bytes, size_t length);
void vcap_text_add(struct vcap_text *text, const char *words);
void vcap_text_number(struct vcap_text *text, uint64_t number);
void vcap_text_format(struct vcap_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Between double quotes, with backslash, quote and newline escaped as Prometheus and logfmt want
 * them; other control characters become '?'. */
void vcap_text_quoted(struct vcap_text *text, const char *words);

void vcap_text_clear(struct vcap_text *text); /* keeps the room */
void vcap_text_free(struct vcap_text *text);

#endif
