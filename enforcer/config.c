/*
 * Reading the environment: the strict grammar of sizes and ceiling lists, and the options of
 * config.def.
 *
 * Owns nothing and keeps nothing: text in, struct vcap_config out.  What must stay true: no text
 * that is not wholly understood widens a ceiling, so whatever the grammar does not name is an
 * error, and an error leaves the strictest value behind.  Numbers are read by hand: no locale, and
 * no strtol, which newer C libraries turn into symbols that older ones lack.  No allocation, no
 * output.
 */
#include "enforcer/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_BYTES 60                   /* of a value, in a message */
#define SHOWN_SIZE (SHOWN_BYTES * 4 + 4) /* each as \xNN, then "..." and the NUL */
#define UUID_CHARS 36                    /* without its prefix */
#define UUID_PREFIX_CHARS 4              /* "GPU-" or "MIG-" */

static const char size_is[] = "a size is digits and an optional unit (K M G T, Ki Mi Gi Ti, KB.., "
                              "KiB..), such as 4096, 4Gi or 4GB";
static const char mps_size_is[] = "a size is digits and a unit here, K, M or G, such as 1000M";
static const char size_too_large[] =
    "8 TiB and more is no ceiling (a number without a unit is MiB, not bytes)";
static const char device_is[] =
    "a device is an ordinal such as 0, or GPU- or MIG- and a UUID of 8-4-4-4-12 hex digits";

/* Text that is not NUL-terminated. */
struct span {
    const char *at;
    size_t length;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Letters only; other bytes may come out as other bytes but never as a letter. */
static char lower(char c)
{
    if (c >= 'A' && c <= 'Z')
        c = (char)(c - 'A' + 'a');
    return c;
}

static struct span span_of(const char *at, size_t length)
{
    while (length > 0 && is_blank(at[0])) {
        at++;
        length--;
    }
    while (length > 0 && is_blank(at[length - 1]))
        length--;
    return (struct span){at, length};
}

static bool span_is(struct span s, const char *word, size_t length)
{
    return s.length == length && memcmp(s.at, word, length) == 0;
}

/* The part before the first c, and in *rest what comes after it; rest->at is NULL if there is no c.
 */
static struct span span_cut(struct span s, char c, struct span *rest)
{
    const char *found = s.length > 0 ? memchr(s.at, c, s.length) : NULL;

    if (found == NULL) {
        *rest = (struct span){NULL, 0};
        return span_of(s.at, s.length);
    }
    *rest = span_of(found + 1, s.length - (size_t)(found - s.at) - 1);
    return span_of(s.at, (size_t)(found - s.at));
}

/* For a message: cut, and every byte that is not plain ASCII as \xNN. */
static void show(char out[SHOWN_SIZE], struct span s)
{
    static const char hex[] = "0123456789abcdef";
    size_t shown = s.length < SHOWN_BYTES ? s.length : SHOWN_BYTES;
    char *to = out;

    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)s.at[i];

        if (c >= 0x20 && c < 0x7f && c != '\\') {
            *to++ = (char)c;
        } else {
            *to++ = '\\';
            *to++ = 'x';
            *to++ = hex[c >> 4];
            *to++ = hex[c & 15];
        }
    }
    memcpy(to, s.length > shown ? "..." : "", s.length > shown ? 4 : 1);
}

/* Quotes get their own message: they come from copied commands and env files, where they look
 * right. */
static bool has_quote(struct span s)
{
    for (size_t i = 0; i < s.length; i++) {
        if (s.at[i] == '"' || s.at[i] == '\'' || s.at[i] == '`')
            return true;
        if (s.length - i >= 3 && memcmp(s.at + i, "\xe2\x80", 2) == 0 &&
            (unsigned char)s.at[i + 2] >= 0x98 && (unsigned char)s.at[i + 2] <= 0x9f)
            return true; /* U+2018 to U+201F */
    }
    return false;
}

/* Counts the leading digits of s.  *value is their number; *fits is false if 64 bits do not hold
 * it. */
static size_t read_digits(struct span s, uint64_t *value, bool *fits)
{
    uint64_t sum = 0;
    size_t i;

    *fits = true;
    for (i = 0; i < s.length && is_digit(s.at[i]); i++)
        if (__builtin_mul_overflow(sum, UINT64_C(10), &sum) ||
            __builtin_add_overflow(sum, (uint64_t)(s.at[i] - '0'), &sum))
            *fits = false;
    *value = sum;
    return i;
}

/* Is s this word, given in lower case, in any case? */
static bool span_is_any_case(struct span s, const char *word)
{
    if (s.length != strlen(word))
        return false;
    for (size_t i = 0; i < s.length; i++)
        if (lower(s.at[i]) != word[i])
            return false;
    return true;
}

/* The unit's power of two, or -1. */
static int unit_shift(struct span unit, bool mps)
{
    static const char letters[] = "kmgt";
    const char *letter;
    struct span rest;

    if (unit.length == 0)
        return mps ? -1 : 20;
    letter = memchr(letters, lower(unit.at[0]), mps ? 3 : 4);
    rest = (struct span){unit.at + 1, unit.length - 1};
    if (letter == NULL ||
        !(rest.length == 0 || span_is_any_case(rest, "b") ||
          (!mps && (span_is_any_case(rest, "i") || span_is_any_case(rest, "ib")))))
        return -1;
    return 10 * (int)(letter - letters + 1);
}

static int parse_size(struct span s, bool mps, uint64_t *bytes)
{
    uint64_t value;
    bool fits;
    size_t digits = read_digits(s, &value, &fits);
    int shift = unit_shift((struct span){s.at + digits, s.length - digits}, mps);

    if (digits == 0 || shift < 0)
        return -EINVAL;
    if (!fits || value > VCAP_CONFIG_BYTES_MAX >> shift)
        return -EOVERFLOW;
    *bytes = value << shift;
    return 0;
}

int vcap_config_parse_size(const char *text, size_t length, uint64_t *bytes)
{
    return parse_size(span_of(text, length), false, bytes);
}

/* "GPU-" or "MIG-" and a UUID in its one form, or with prefix_will_do at least its first digit. */
static bool is_uuid(struct span s, bool prefix_will_do)
{
    if (s.length > UUID_PREFIX_CHARS + UUID_CHARS ||
        s.length < UUID_PREFIX_CHARS + (prefix_will_do ? 1 : UUID_CHARS) ||
        (memcmp(s.at, "GPU-", UUID_PREFIX_CHARS) != 0 &&
         memcmp(s.at, "MIG-", UUID_PREFIX_CHARS) != 0))
        return false;
    for (size_t i = UUID_PREFIX_CHARS; i < s.length; i++) {
        size_t place = i - UUID_PREFIX_CHARS;
        char c = lower(s.at[i]);

        if (place == 8 || place == 13 || place == 18 || place == 23) {
            if (c != '-')
                return false;
        } else if (!is_digit(c) && !(c >= 'a' && c <= 'f')) {
            return false;
        }
    }
    return true;
}

/* On failure *problem says what is wrong or what would be right. */
static int parse_entry(struct span s, bool mps, struct vcap_entry *entry, const char **problem)
{
    struct span size, device = span_cut(s, '=', &size);
    uint64_t ordinal;
    bool fits;
    int rc;

    memset(entry, 0, sizeof(*entry));
    *problem = s.length == 0 ? "an entry is empty" : NULL;
    if (has_quote(s))
        *problem = "quotes are no part of the value";
    else if (size.at == NULL && mps && s.length > 0)
        *problem = "an entry is DEVICE=SIZE here, such as 0=1000M";
    if (*problem != NULL)
        return -EINVAL;

    if (size.at == NULL) {
        size = s;
    } else if (device.length > 0 && read_digits(device, &ordinal, &fits) == device.length) {
        *problem = "there is no such ordinal";
        if (!fits || ordinal > UINT32_MAX)
            return -EOVERFLOW;
        entry->kind = VCAP_ENTRY_ORDINAL;
        entry->ordinal = (uint32_t)ordinal;
    } else {
        *problem = device_is;
        if (!is_uuid(device, mps))
            return -EINVAL;
        entry->kind = VCAP_ENTRY_UUID;
        memcpy(entry->uuid, device.at, device.length);
    }
    rc = parse_size(size, mps, &entry->bytes);
    *problem = rc == -EOVERFLOW ? size_too_large : mps ? mps_size_is : size_is;
    return rc;
}

static int parse_entries(struct span text, bool mps, struct vcap_entries *entries, char *why,
                         size_t why_size)
{
    char shown[SHOWN_SIZE];
    struct span rest = text;
    uint32_t count = 0;
    bool bare = false;

    entries->count = 0;
    while (rest.at != NULL) {
        struct span one = span_cut(rest, ',', &rest);
        const char *problem;
        int rc;

        if (count == VCAP_CONFIG_ENTRIES_MAX) {
            snprintf(why, why_size, "more than %d entries", VCAP_CONFIG_ENTRIES_MAX);
            return -E2BIG;
        }
        rc = parse_entry(one, mps, &entries->entry[count], &problem);
        if (rc == 0 && count > 0 && (bare || entries->entry[count].kind == VCAP_ENTRY_ALL)) {
            rc = -EINVAL;
            problem = "a size without a device stands alone";
        }
        if (rc != 0) {
            show(shown, one);
            if (count == 0 && rest.at == NULL)
                snprintf(why, why_size, "%s", text.length == 0 ? "it is empty" : problem);
            else
                snprintf(why, why_size, "entry %u, '%s': %s", count + 1, shown, problem);
            return rc;
        }
        bare = entries->entry[count++].kind == VCAP_ENTRY_ALL;
    }
    entries->count = count;
    return 0;
}

int vcap_config_parse_entries(const char *text, bool mps, struct vcap_entries *entries, char *why,
                              size_t why_size)
{
    return parse_entries(span_of(text, strlen(text)), mps, entries, why, why_size);
}

/* ---- the options of config.def ---- */

enum option_kind {
    KIND_CHOICE,
    KIND_SIZE,
    KIND_PATH,
    KIND_LIST,
    KIND_MPS_LIST,
    KIND_PERCENT,
    KIND_MIB
};

struct option {
    const char *name;
    enum option_kind kind;
    size_t offset; /* of the field in struct vcap_config */
    const char *fallback, *if_bad, *values;
};

static const struct option options[] = {
#define OPTION(name, kind, field, fallback, if_bad, values, help)                                  \
    {#name, KIND_##kind, offsetof(struct vcap_config, field), fallback, if_bad, values},
#include "enforcer/config.def"
};

/* CHOICE stores through memcpy; all its enums are as wide as this. */
_Static_assert(sizeof(enum vcap_enable) == sizeof(unsigned), "enum of another width");

/* The number of the word of values (one blank between two) that s is, or -1. */
static int find_word(struct span s, const char *values)
{
    struct span rest = span_of(values, strlen(values));

    for (int number = 0; rest.at != NULL; number++) {
        struct span word = span_cut(rest, ' ', &rest);

        if (span_is(s, word.at, word.length))
            return number;
    }
    return -1;
}

static int read_choice(const struct option *option, struct span value, void *field, char *problem,
                       size_t problem_size)
{
    int number = find_word(value, option->values);
    unsigned stored = (unsigned)number;

    if (number < 0) {
        snprintf(problem, problem_size, "it must be one of: %s", option->values);
        return -EINVAL;
    }
    memcpy(field, &stored, sizeof(stored));
    return 0;
}

static int read_size(struct span value, uint64_t *bytes, char *problem, size_t problem_size)
{
    int rc;

    if (span_is(value, "auto", 4)) {
        *bytes = VCAP_CONTEXT_AUTO;
        return 0;
    }
    rc = parse_size(value, false, bytes);
    if (rc == -EOVERFLOW)
        snprintf(problem, problem_size, "%s", size_too_large);
    else if (rc != 0)
        snprintf(problem, problem_size, "it is auto or a size; %s", size_is);
    return rc;
}

/* A relative path would be another file after the next chdir, for the ledger another ceiling. */
static int read_path(struct span value, char path[VCAP_CONFIG_PATH_MAX], char *problem,
                     size_t problem_size)
{
    if (value.at[0] != '/') {
        snprintf(problem, problem_size, "it must be an absolute path");
        return -EINVAL;
    }
    if (value.length >= VCAP_CONFIG_PATH_MAX) {
        snprintf(problem, problem_size, "a path has at most %d bytes", VCAP_CONFIG_PATH_MAX - 1);
        return -E2BIG;
    }
    memcpy(path, value.at, value.length);
    path[value.length] = '\0';
    return 0;
}

/* Digits only; most bounds what they say. */
static int read_number(struct span value, uint64_t most, uint64_t *number)
{
    uint64_t read;
    bool fits;

    if (value.length == 0 || read_digits(value, &read, &fits) != value.length)
        return -EINVAL;
    if (!fits || read > most)
        return -EOVERFLOW;
    *number = read;
    return 0;
}

static int read_percent(struct span value, uint32_t *percent, char *problem, size_t problem_size)
{
    uint64_t number = 0;

    if (read_number(value, 100, &number) != 0 || number == 0) {
        snprintf(problem, problem_size, "it is a whole number from 1 to 100");
        return -EINVAL;
    }
    *percent = (uint32_t)number;
    return 0;
}

static int read_mib(struct span value, uint64_t *bytes, char *problem, size_t problem_size)
{
    uint64_t mib;
    int rc = read_number(value, VCAP_CONFIG_BYTES_MAX >> 20, &mib);

    if (rc == 0)
        *bytes = mib << 20;
    else
        snprintf(problem, problem_size, "%s",
                 rc == -EOVERFLOW ? size_too_large : "it is a whole number of MiB, without a unit");
    return rc;
}

static int read_value(struct vcap_config *config, const struct option *option, struct span value,
                      char *problem, size_t problem_size)
{
    void *field = (char *)config + option->offset;
    int rc;

    switch (option->kind) {
    case KIND_CHOICE:
        return read_choice(option, value, field, problem, problem_size);
    case KIND_SIZE:
        return read_size(value, field, problem, problem_size);
    case KIND_PATH:
        return read_path(value, field, problem, problem_size);
    case KIND_LIST:
        config->memory_set = true;
        return parse_entries(value, false, field, problem, problem_size);
    case KIND_MPS_LIST:
        config->mps_set = true;
        return parse_entries(value, true, field, problem, problem_size);
    case KIND_PERCENT:
        return read_percent(value, field, problem, problem_size);
    case KIND_MIB: /* words for the reader are no number, and then it is not set */
        rc = read_mib(value, field, problem, problem_size);
        config->toolkit_set = rc == 0;
        return rc;
    }
    return -EINVAL;
}

/* text of config.def; a text that is no value of its kind is words for the reader, and the field
 * stays as vcap_config_read prepares it: not set */
static void read_builtin(struct vcap_config *config, const struct option *option, const char *text)
{
    char unused[1];

    if (option->kind != KIND_PATH && option->kind != KIND_LIST && option->kind != KIND_MPS_LIST)
        read_value(config, option, span_of(text, strlen(text)), unused, sizeof(unused));
}

/* Nothing set.  A list that is not set is never read: it stays untouched, pages of it. */
static void clear(struct vcap_config *config)
{
    config->enable = VCAP_ENABLE_PASSIVE;
    config->on_error = VCAP_ON_ERROR_DENY;
    config->managed = VCAP_MANAGED_CHARGE;
    config->context_bytes = 0;
    config->ledger[0] = 0;
    config->memory_set = config->host_memory_set = config->mps_set = false;
    config->compute_percent = 0;
    config->toolkit_bytes = 0;
    config->toolkit_set = false;
    config->log_level = (enum vcap_log_level)0;
    config->log_file[0] = 0;
}

int vcap_config_read(struct vcap_config *config, const char *(*get)(const char *name, void *arg),
                     void *arg, char *why, size_t why_size)
{
    char problem[SHOWN_SIZE + 200], shown[SHOWN_SIZE];
    int first_error = 0;

    clear(config);
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        const struct option *option = &options[i];
        const char *text = get(option->name, arg);
        struct span value = text != NULL ? span_of(text, strlen(text)) : (struct span){NULL, 0};
        int rc;

        if (text == NULL || (value.length == 0 && option->kind != KIND_LIST)) {
            read_builtin(config, option, option->fallback);
            continue;
        }
        rc = read_value(config, option, value, problem, sizeof(problem));
        if (rc == 0)
            continue;
        read_builtin(config, option, option->if_bad);
        if (first_error != 0)
            continue;
        first_error = rc;
        show(shown, value);
        snprintf(why, why_size, "%s is '%s': %s", option->name, shown, problem);
    }
    return first_error;
}

const char *vcap_config_getenv(const char *name, void *arg)
{
    /* what can only tighten, or names no file, holds in set-id programs too */
    static const char *const harmless[] = {"VRAMCAP_ENABLE",
                                           "VRAMCAP_MEMORY_MIB",
                                           "VRAMCAP_CONTEXT_MIB",
                                           "VRAMCAP_COMPUTE_PERCENT",
                                           "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                                           "NVIDIA_GPU_MEMORY_LIMIT"};

    (void)arg;
    for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
        if (strcmp(name, harmless[i]) == 0)
            return getenv(name);
    return secure_getenv(name);
}
