/*
 * Building and writing lines.  A pipe that polls as writable takes PIPE_BUF bytes without waiting and
 * in one piece, so no line is longer than that.
 */
#include "enforcer/agent/event_line.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/cli/units.h"
#include "enforcer/kernel.h"

static enum vcap_line_level least = VCAP_LINE_INFO; /* set before there are other threads */
static bool skipped;                                /* the line under way */

void vcap_line_least(enum vcap_line_level level)
{
    least = level;
}

void vcap_line_begin(struct vcap_text *line, enum vcap_line_level level, const char *event,
                     uint64_t time_ns)
{
    char text[VCAP_UNITS_TEXT];
    static int journal = -1;
    if (journal < 0)
        journal = getenv("JOURNAL_STREAM") != NULL;
    vcap_text_clear(line);
    skipped = level > least;
    if (journal)
        vcap_text_format(line, "<%d>", (int)level);
    vcap_text_add(line, "time=");
    vcap_text_add(line, vcap_units_time(text, time_ns ? time_ns : vcap_clock_ns(CLOCK_REALTIME)));
    vcap_text_add(line, level == VCAP_LINE_ERROR  ? " level=error event="
                        : level == VCAP_LINE_WARN ? " level=warn event="
                                                  : " level=info event=");
    vcap_text_add(line, event);
}

void vcap_line_word(struct vcap_text *line, const char *key, const char *value)
{
    vcap_text_add(line, " ");
    vcap_text_add(line, key);
    vcap_text_add(line, "=");
    if (*value && strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
                                ":/@~+") == strlen(value))
        vcap_text_add(line, value);
    else
        vcap_text_quoted(line, value);
}

void vcap_line_number(struct vcap_text *line, const char *key, uint64_t value)
{
    vcap_text_add(line, " ");
    vcap_text_add(line, key);
    vcap_text_add(line, "=");
    vcap_text_number(line, value);
}

int vcap_line_end(struct vcap_text *line)
{
    struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
    ssize_t written;
    if (line->length >= PIPE_BUF)
        line->length = PIPE_BUF - 1;
    vcap_text_bytes(line, "\n", 1);
    if (skipped)
        return 0;
    if (line->failed)
        return -ENOMEM;
    if (poll(&ready, 1, 0) == 0)
        return -EAGAIN;
    do
        written = write(STDERR_FILENO, line->data, line->length);
    while (written < 0 && errno == EINTR);
    return written < 0 ? -errno : 0;
}

void vcap_line_say(enum vcap_line_level level, const char *event, const char *format, ...)
{
    struct vcap_text line = {0};
    char words[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    vcap_line_begin(&line, level, event, 0);
    vcap_line_word(&line, "message", words);
    (void)vcap_line_end(&line);
    vcap_text_free(&line);
}
