/*
 * What the environment asks for.  Every option is a row of config.def; parser, --help, man page and
 * docs/options.md come from it.  A value that does not parse is an error of the whole configuration
 * and never widens a ceiling.  No CUDA here: ordinals and UUIDs of GPUs are matched by ceiling.h.
 */
#ifndef VRAMCAP_ENFORCER_CONFIG_H
#define VRAMCAP_ENFORCER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "enforcer/ledger_format.h"
#include "enforcer/log.h"

enum vcap_enable { VCAP_ENABLE_PASSIVE = 0, VCAP_ENABLE_ENFORCE = 1, VCAP_ENABLE_AUDIT = 2 };
enum vcap_on_error { VCAP_ON_ERROR_DENY = 0, VCAP_ON_ERROR_ALLOW = 1 };
enum vcap_managed { VCAP_MANAGED_CHARGE = 0, VCAP_MANAGED_IGNORE = 1 };

#define VCAP_CONFIG_ENTRIES_MAX 64
#define VCAP_CONFIG_PATH_MAX 512
#define VCAP_CONTEXT_AUTO UINT64_MAX

/* The largest size that parses: the last one whose ceiling word in the ledger is not "no ceiling".
 * More is no GPU's memory but, as a rule, bytes written where MiB are meant. */
#define VCAP_CONFIG_BYTES_MAX ((VCAP_LF_UNITS_MAX - 1) * VCAP_LF_UNIT_BYTES)

enum vcap_entry_kind {
    VCAP_ENTRY_ALL = 0, /* a bare size: every visible GPU */
    VCAP_ENTRY_ORDINAL, /* "0=4096": counts the devices that the process sees */
    VCAP_ENTRY_UUID /* "GPU-...=..." or "MIG-...=..."; a full UUID, or (MPS variable) a prefix */
};

struct vcap_entry {
    enum vcap_entry_kind kind;
    uint32_t ordinal;
    char uuid[48]; /* as written, with prefix "GPU-" or "MIG-" */
    uint64_t bytes;
};

struct vcap_entries {
    uint32_t count;
    struct vcap_entry entry[VCAP_CONFIG_ENTRIES_MAX];
};

/*
 * A list with <list>_set and no entry did not parse: it names every GPU with 0 bytes (ceiling.h).  One
 * without <list>_set says nothing, whatever it holds.
 */
struct vcap_config {
    enum vcap_enable enable;
    enum vcap_on_error on_error;
    enum vcap_managed managed;
    enum vcap_log_level log_level;
    uint64_t context_bytes;   /* VCAP_CONTEXT_AUTO, or a fixed charge per context */
    uint64_t toolkit_bytes;   /* NVIDIA_GPU_MEMORY_LIMIT */
    uint32_t compute_percent; /* 1 to 100; 0: no compute ceiling from here */
    bool memory_set, host_memory_set, mps_set, toolkit_set;
    char ledger[VCAP_CONFIG_PATH_MAX];   /* empty: not set */
    char log_file[VCAP_CONFIG_PATH_MAX]; /* empty: stderr */
    struct vcap_entries memory;          /* VRAMCAP_MEMORY_MIB */
    struct vcap_entries mps;             /* CUDA_MPS_PINNED_DEVICE_MEM_LIMIT */
    struct vcap_entries host_memory; /* memory from the host's file; not read by vcap_config_read */
};

/*
 * Reads the configuration through get(name, arg) (NULL: not set).  Returns 0, or -EINVAL /
 * -EOVERFLOW / -E2BIG with one line in why that names the variable, the value (cut at 60 bytes,
 * unprintable bytes escaped) and what would be right; of several bad options the first in
 * config.def.  Options that do parse are stored even then (so that on_error and the log settings
 * hold for the error itself); an option that does not parse keeps its strictest value: enable 1,
 * on_error deny, managed charge, a list set but without entries, a percentage of 1, a limit of 0.  So a caller with enable 0 and no
 * word from the host may ignore the error.
 *
 * Blanks (space, tab, CR, LF) around a value are no part of it.  An option whose value is empty is
 * an option that is not set, except VRAMCAP_MEMORY_MIB, where it is an error: a template that
 * expanded to nothing must not lift the ceiling.
 */
int vcap_config_read(struct vcap_config *config, const char *(*get)(const char *name, void *arg),
                     void *arg, char *why, size_t why_size);

/* The process's own environment; where it is set-id, only what can tighten and names no file.  arg: unused.
 */
const char *vcap_config_getenv(const char *name, void *arg);

/*
 * A size: digits, then at once an optional unit K M G T, Ki Mi Gi Ti, KB MB GB TB, KiB MiB GiB TiB
 * (any case, all binary); bare numbers are MiB.  Blanks around and leading zeros are accepted;
 * sign, exponent, fraction, '%', quotes, empty are -EINVAL; more than VCAP_CONFIG_BYTES_MAX (8 TiB
 * and up) -EOVERFLOW.
 */
int vcap_config_parse_size(const char *text, size_t length, uint64_t *bytes);

/*
 * A ceiling list: one bare size ("4096") or entries DEVICE=SIZE with commas between ("0=4096,
 * GPU-<uuid>=8192"), blanks allowed around each part.  A bare size beside other entries is an
 * error: it reads as a default to some and as a first device to others.  Two entries for one
 * device: both are kept, the lowest wins when matched. mps: the MPS variable's form.  There every
 * entry has a DEVICE, every size a unit (K, M or G, with or without B; a bare number is an error),
 * and a UUID may be cut to a prefix of one hex digit or more. Returns 0, or -EINVAL / -EOVERFLOW /
 * -E2BIG with one phrase in why and no entries.
 */
int vcap_config_parse_entries(const char *text, bool mps, struct vcap_entries *entries, char *why,
                              size_t why_size);

#endif
