/*
 * One line per thing that happened, as logfmt (key=value, values quoted where they need it) on stderr.
 * With $JOURNAL_STREAM the line begins with its priority, as sd-daemon(3) has it.  One write(2) per
 * line, never waited for: a line that finds no room is refused, and its event is tried again later.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_EVENT_LINE_H
#define VRAMCAP_ENFORCER_AGENT_EVENT_LINE_H

#include <stdint.h>

#include "enforcer/agent/text.h"

enum vcap_line_level { VCAP_LINE_ERROR = 3, VCAP_LINE_WARN = 4, VCAP_LINE_INFO = 6 };

/* From now on lines of a lower level than this are not written (--once: only what is wrong). */
void vcap_line_least(enum vcap_line_level level);

/* time_ns 0: now */
void vcap_line_begin(struct vcap_text *line, enum vcap_line_level level, const char *event,
                     uint64_t time_ns);
void vcap_line_word(struct vcap_text *line, const char *key, const char *value);
void vcap_line_number(struct vcap_text *line, const char *key, uint64_t value);

/* Ends the line, writes it and clears the text.  0 or -errno (-EAGAIN: nobody reads). */
int vcap_line_end(struct vcap_text *line);

/* The whole of a line about the agent itself: event and a sentence. */
void vcap_line_say(enum vcap_line_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
