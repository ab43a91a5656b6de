/*
 * Which ceiling the configuration gives a GPU: the entries of the two lists matched against an
 * ordinal and a UUID.  Knows no driver; the caller asks it for both.
 */
#ifndef VRAMCAP_ENFORCER_CEILING_H
#define VRAMCAP_ENFORCER_CEILING_H

#include <stdbool.h>
#include <stdint.h>

#include "enforcer/config.h"
#include "enforcer/ledger_format.h"

#define VCAP_UUID_TEXT_SIZE 48

/* "GPU-" or (mig) "MIG-" and the 16 bytes as 8-4-4-4-12 lower-case hex digits. */
void vcap_uuid_format(char out[VCAP_UUID_TEXT_SIZE], const uint8_t uuid[16], bool mig);

/*
 * The lowest of all entries that name the device: a bare size names every one, an ordinal the
 * device's place among those that the process sees, a UUID (in any case) or the beginning of one
 * the device itself. uuid: of the MIG device if mig, and then only "MIG-" entries name it.
 * none_value (VCAP_NO_LIMIT, say) if no entry does.  Bytes.
 */
uint64_t vcap_ceiling_match(const struct vcap_entries *entries, uint32_t ordinal,
                            const uint8_t uuid[16], bool mig, uint64_t none_value);

struct vcap_ceiling {
    uint64_t bytes; /* VCAP_NO_LIMIT (ledger.h) with VCAP_LF_SOURCE_NONE */
    enum vcap_lf_source source;
};

/*
 * What one source says of a device: VCAP_LF_SOURCE_ENV (VRAMCAP_MEMORY_MIB), _MPS, _CONF (the host's
 * file) or _TOOLKIT (NVIDIA_GPU_MEMORY_LIMIT, for every GPU).  False: the source is not there at all.  *bytes: VCAP_NO_LIMIT if it does not name the device, 0
 * if it is there and did not parse.
 */
bool vcap_ceiling_by_source(const struct vcap_config *config, enum vcap_lf_source source,
                            uint32_t ordinal, const uint8_t uuid[16], bool mig, uint64_t *bytes);

/*
 * The lowest of them; of equal ones VCAP_LF_SOURCE_CONF comes first, then _ENV, _MPS, _TOOLKIT.
 * VCAP_LF_SOURCE_NONE if none names the device.
 */
struct vcap_ceiling vcap_ceiling_effective(const struct vcap_config *config, uint32_t ordinal,
                                           const uint8_t uuid[16], bool mig);

/*
 * Does an entry of the MPS variable name a GPU that the process does not see, or by a prefix more
 * than one?  MPS then drops every limit it has (measured on driver 615.71.09).  uuids and mig
 * describe the visible_count visible devices in order.  *which (may be NULL): the first such entry.
 */
bool vcap_ceiling_mps_names_invisible(const struct vcap_entries *mps, uint32_t visible_count,
                                      const uint8_t (*uuids)[16], const bool *mig, uint32_t *which);

/* Do all entries of the MPS variable that name the device say the same?  Of several that do not MPS takes
 * the last one, as far as is known, and vramcap the lowest.  True where none names it. */
bool vcap_ceiling_mps_agrees(const struct vcap_entries *mps, uint32_t ordinal,
                             const uint8_t uuid[16], bool mig);

#endif
