/*
 * Matching ceiling entries to devices.  Pure functions.  What must stay true: an entry that might
 * name a device counts for it, and of several the lowest holds, so that no doubt ever raises a
 * ceiling.
 */
#include "enforcer/ceiling.h"

#include <string.h>

#include "enforcer/ledger.h"

void vcap_uuid_format(char out[VCAP_UUID_TEXT_SIZE], const uint8_t uuid[16], bool mig)
{
    static const char hex[] = "0123456789abcdef";
    char *to = out;

    memcpy(to, mig ? "MIG-" : "GPU-", 4);
    to += 4;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *to++ = '-';
        *to++ = hex[uuid[i] >> 4];
        *to++ = hex[uuid[i] & 15];
    }
    *to = '\0';
}

/* written: in any case, perhaps only the beginning; full: as vcap_uuid_format makes it. */
static bool uuid_begins(const char *full, const char *written)
{
    size_t i;

    for (i = 0; written[i] != '\0'; i++) {
        char c = written[i];

        if (i >= 4 && c >= 'A' && c <= 'F')
            c = (char)(c - 'A' + 'a');
        if (c != full[i]) /* full's NUL ends this too */
            return false;
    }
    return i > 4;
}

static bool entry_names(const struct vcap_entry *entry, uint32_t ordinal, const char *uuid)
{
    switch (entry->kind) {
    case VCAP_ENTRY_ALL:
        return true;
    case VCAP_ENTRY_ORDINAL:
        return entry->ordinal == ordinal;
    case VCAP_ENTRY_UUID:
        return uuid_begins(uuid, entry->uuid);
    }
    return false;
}

uint64_t vcap_ceiling_match(const struct vcap_entries *entries, uint32_t ordinal,
                            const uint8_t uuid[16], bool mig, uint64_t none_value)
{
    char text[VCAP_UUID_TEXT_SIZE];
    uint64_t lowest = 0;
    bool named = false;

    vcap_uuid_format(text, uuid, mig);
    for (uint32_t i = 0; i < entries->count; i++) {
        const struct vcap_entry *entry = &entries->entry[i];

        if (!entry_names(entry, ordinal, text))
            continue;
        lowest = named && lowest < entry->bytes ? lowest : entry->bytes;
        named = true;
    }
    return named ? lowest : none_value;
}

bool vcap_ceiling_by_source(const struct vcap_config *config, enum vcap_lf_source source,
                            uint32_t ordinal, const uint8_t uuid[16], bool mig, uint64_t *bytes)
{
    if (source == VCAP_LF_SOURCE_TOOLKIT) {
        if (config->toolkit_set)
            *bytes = config->toolkit_bytes;
        return config->toolkit_set;
    }

    const struct vcap_entries *entries = source == VCAP_LF_SOURCE_CONF  ? &config->host_memory
                                         : source == VCAP_LF_SOURCE_ENV ? &config->memory
                                                                        : &config->mps;
    bool set = source == VCAP_LF_SOURCE_CONF  ? config->host_memory_set
               : source == VCAP_LF_SOURCE_ENV ? config->memory_set
                                              : config->mps_set;

    if (set)
        *bytes = entries->count == 0
                     ? 0
                     : vcap_ceiling_match(entries, ordinal, uuid, mig, VCAP_NO_LIMIT);
    return set;
}

struct vcap_ceiling vcap_ceiling_effective(const struct vcap_config *config, uint32_t ordinal,
                                           const uint8_t uuid[16], bool mig)
{
    static const enum vcap_lf_source sources[] = {VCAP_LF_SOURCE_CONF, VCAP_LF_SOURCE_ENV,
                                                  VCAP_LF_SOURCE_MPS, VCAP_LF_SOURCE_TOOLKIT};
    struct vcap_ceiling lowest = {VCAP_NO_LIMIT, VCAP_LF_SOURCE_NONE};
    uint64_t bytes;

    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        if (vcap_ceiling_by_source(config, sources[i], ordinal, uuid, mig, &bytes) &&
            bytes < lowest.bytes)
            lowest = (struct vcap_ceiling){bytes, sources[i]};
    return lowest;
}

bool vcap_ceiling_mps_names_invisible(const struct vcap_entries *mps, uint32_t visible_count,
                                      const uint8_t (*uuids)[16], const bool *mig, uint32_t *which)
{
    for (uint32_t i = 0; i < mps->count; i++) {
        uint32_t named = 0;

        for (uint32_t device = 0; device < visible_count; device++) {
            char text[VCAP_UUID_TEXT_SIZE];

            vcap_uuid_format(text, uuids[device], mig[device]);
            named += entry_names(&mps->entry[i], device, text);
        }
        if (named == 1)
            continue;
        if (which != NULL)
            *which = i;
        return true;
    }
    return false;
}

bool vcap_ceiling_mps_agrees(const struct vcap_entries *mps, uint32_t ordinal,
                             const uint8_t uuid[16], bool mig)
{
    uint64_t lowest = vcap_ceiling_match(mps, ordinal, uuid, mig, VCAP_NO_LIMIT);
    char text[VCAP_UUID_TEXT_SIZE];

    vcap_uuid_format(text, uuid, mig);
    for (uint32_t i = 0; i < mps->count; i++)
        if (entry_names(&mps->entry[i], ordinal, text) && mps->entry[i].bytes != lowest)
            return false;
    return true;
}
