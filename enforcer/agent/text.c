/*
 * Growing by doubling; numbers without printf, because a scrape of many ledgers is mostly numbers.
 */
#include "enforcer/agent/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_FIRST 4096u
#define ROOM_MOST (SIZE_MAX / 4)

static bool make_room(struct vcap_text *text, size_t more)
{
    size_t room = text->room ? text->room : ROOM_FIRST;
    if (text->failed || more > ROOM_MOST || text->length > ROOM_MOST) {
        text->failed = true;
        return false;
    }
    while (room < text->length + more + 1)
        room *= 2;
    if (room == text->room)
        return true;
    char *data = realloc(text->data, room);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->room = room;
    return true;
}

void vcap_text_bytes(struct vcap_text *text, const char *bytes, size_t length)
{
    if (!make_room(text, length))
        return;
    memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void vcap_text_add(struct vcap_text *text, const char *words)
{
    vcap_text_bytes(text, words, strlen(words));
}

void vcap_text_number(struct vcap_text *text, uint64_t number)
{
    char digits[20];
    size_t at = sizeof digits;
    do
        digits[--at] = (char)('0' + number % 10);
    while ((number /= 10) != 0);
    vcap_text_bytes(text, digits + at, sizeof digits - at);
}

void vcap_text_format(struct vcap_text *text, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (n > 0)
        vcap_text_bytes(text, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

void vcap_text_quoted(struct vcap_text *text, const char *words)
{
    vcap_text_bytes(text, "\"", 1);
    for (const char *from = words; *from;) {
        size_t plain = 0;
        while ((unsigned char)from[plain] >= 0x20 && from[plain] != '"' && from[plain] != '\\' &&
               from[plain] != 0x7f)
            plain++;
        vcap_text_bytes(text, from, plain);
        from += plain;
        if (!*from)
            break;
        vcap_text_add(text, *from == '"'    ? "\\\""
                            : *from == '\\' ? "\\\\"
                            : *from == '\n' ? "\\n"
                                            : "?");
        from++;
    }
    vcap_text_bytes(text, "\"", 1);
}

void vcap_text_clear(struct vcap_text *text)
{
    text->length = 0;
    text->failed = false;
    if (text->data)
        text->data[0] = '\0';
}

void vcap_text_free(struct vcap_text *text)
{
    free(text->data);
    *text = (struct vcap_text){0};
}
