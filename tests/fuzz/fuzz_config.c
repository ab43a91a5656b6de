/*
 * libFuzzer: any text as a size, as a ceiling list in both forms, and as an environment.  What parses must
 * be within its bounds; what does not must leave the strictest value behind, with a line that says why.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/ceiling.h"
#include "enforcer/config.h"
#include "enforcer/ledger.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "wrong: %s\n", what);
    abort();
}

static bool is_line(const char *text)
{
    for (; *text; text++)
        if (*text < 0x20 || *text > 0x7e)
            return false;
    return true;
}

static void check_entries(const struct vcap_entries *e, bool mps)
{
    static const uint8_t uuid[16] = {0x1b, 0x2c};
    must(e->count <= VCAP_CONFIG_ENTRIES_MAX, "the number of entries");
    for (uint32_t i = 0; i < e->count; i++) {
        must(e->entry[i].bytes <= VCAP_CONFIG_BYTES_MAX, "a size");
        must(e->entry[i].kind != VCAP_ENTRY_ALL || (e->count == 1 && !mps),
             "a size that stands alone");
        must(memchr(e->entry[i].uuid, 0, sizeof e->entry[i].uuid) != NULL, "a UUID's end");
    }
    (void)vcap_ceiling_match(e, 0, uuid, false, VCAP_NO_LIMIT);
    (void)vcap_ceiling_match(e, 0, uuid, true, VCAP_NO_LIMIT);
}

static void try_entries(const char *text, bool mps)
{
    static struct vcap_entries entries;
    char why[200] = "";
    if (vcap_config_parse_entries(text, mps, &entries, why, sizeof why) == 0)
        check_entries(&entries, mps);
    else
        must(entries.count == 0 && *why && is_line(why), "a list that does not parse");
}

static void try_size(const char *text)
{
    uint64_t bytes = 0;
    size_t length = strlen(text);
    if (vcap_config_parse_size(text, length, &bytes) == 0) {
        must(bytes <= VCAP_CONFIG_BYTES_MAX && bytes % 1024 == 0, "a size");
        must(strpbrk(text, "+-.%'\"") == NULL, "a sign, a fraction, a quote in a size");
    }
}

/* NAME=VALUE lines; the first of a name holds. */
struct environment {
    char *text;
    size_t length;
};

static const char *get(const char *name, void *arg)
{
    const struct environment *e = arg;
    size_t length = strlen(name);
    for (char *at = e->text; at < e->text + e->length; at += strlen(at) + 1)
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return at + length + 1;
    return NULL;
}

static void try_environment(char *text, size_t length)
{
    static struct vcap_config config;
    struct environment e = {text, length};
    char why[256] = "";
    for (size_t i = 0; i < length; i++)
        if (text[i] == '\n')
            text[i] = '\0';
    int rc = vcap_config_read(&config, get, &e, why, sizeof why);
    must(rc == 0 || (*why && is_line(why)), "the line about an error");
    must(config.enable <= VCAP_ENABLE_AUDIT && config.on_error <= VCAP_ON_ERROR_ALLOW &&
             config.managed <= VCAP_MANAGED_IGNORE,
         "a choice");
    must(config.context_bytes == VCAP_CONTEXT_AUTO || config.context_bytes <= VCAP_CONFIG_BYTES_MAX,
         "a context's size");
    must(config.ledger[0] == '\0' || config.ledger[0] == '/', "a path");
    check_entries(&config.memory, false);
    check_entries(&config.mps, true);
    if (rc == 0)
        must(!config.memory_set || config.memory.count > 0, "a list without entries");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 65536)
        return 0;
    char *text = malloc(size);
    if (!text)
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    switch (data[0] % 4) {
    case 0:
        try_size(text);
        break;
    case 1:
        try_entries(text, false);
        break;
    case 2:
        try_entries(text, true);
        break;
    default:
        try_environment(text, size - 1);
    }
    free(text);
    return 0;
}
