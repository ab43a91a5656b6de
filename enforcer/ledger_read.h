/*
 * THE reader of a ledger from outside: `vramcap dump`, `vramcap events` and the agent.  A ledger is
 * untrusted input: any bytes, any length, changing or truncated while it is read, and the name may
 * be a FIFO, a device or a symbolic link.  Nothing is mapped (a truncation would be SIGBUS),
 * nothing in the file is changed, no slot is taken and no lock is held.  What comes out are plain
 * numbers in bytes, all checked, and printable NUL-terminated ASCII strings.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_READ_H
#define VRAMCAP_ENFORCER_LEDGER_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "enforcer/ledger_format.h"
#include "enforcer/ledger_reap.h"

#define VCAP_UNKNOWN UINT64_MAX /* an amount that nobody knows; never shown as 0 */
#define VCAP_UUID_TEXT 48       /* "GPU-" or "MIG-", 36 characters, NUL */

struct vcap_snapshot_gpu {
    uint32_t row;   /* in the ledger's GPU table */
    uint32_t index; /* ordinal in the process that claimed the row: for people, not for matching */
    bool mig;
    char uuid[VCAP_UUID_TEXT];
    uint64_t card_bytes;    /* VCAP_UNKNOWN if 0 in the file */
    uint64_t ceiling_bytes; /* VCAP_NO_LIMIT: none */
    enum vcap_lf_source ceiling_source;
    uint64_t held_bytes;     /* all that counts against the ceiling: charged and known overhead */
    uint64_t charged_bytes;  /* without known overhead, and without the dead */
    uint64_t gone_bytes;     /* what the dead still hold in the ledger until they are reaped */
    uint64_t overhead_bytes; /* VCAP_UNKNOWN as soon as it is for one living process of this GPU */
    uint64_t free_bytes; /* below the lower of ceiling and card; VCAP_UNKNOWN without a ceiling */
    uint64_t peak_bytes;
    uint64_t refusals, refused_bytes, audit_refusals, device_full, over_peak_bytes;
    /* what each source said, by source - VCAP_LF_SOURCE_FIRST; VCAP_UNKNOWN: not seen or none */
    uint64_t source_bytes[VCAP_LF_SOURCE_LAST - VCAP_LF_SOURCE_FIRST + 1];
    enum vcap_lf_compute compute_state;
    uint32_t sm_granted, sm_total, compute_percent; /* 0: unknown */
    bool over;                                      /* charged_bytes is above the ceiling */
    bool near;      /* has crossed near_percent of the ceiling and not come well below it since */
    bool disagrees; /* the processes' charges do not add up to the total, moves in flight aside */
};

/* What one process holds on one GPU. */
struct vcap_snapshot_charge {
    uint32_t gpu;        /* position in vcap_snapshot.gpus */
    uint64_t held_bytes; /* charged and known overhead */
    uint64_t charged_bytes;
    uint64_t overhead_bytes; /* not in charged_bytes; VCAP_UNKNOWN */
    uint64_t peak_bytes;
    uint64_t imported_bytes;
    uint64_t limit_bytes; /* the process's own lower ceiling; VCAP_NO_LIMIT: none */
};

struct vcap_snapshot_process {
    uint32_t slot;
    uint32_t pid; /* in its PID namespace */
    uint32_t uid;
    uint64_t pidns, start_time, claimed_ns;
    char command[32];
    enum vcap_life life; /* UNKNOWN counts as alive */
    enum vcap_lf_mode mode;
    uint64_t refusals, anomalies, gaps;
    enum vcap_lf_mps mps;
    uint32_t fault_code; /* CUresult; 0: none */
    uint64_t fault_ns;
    uint32_t charge_count; /* only GPUs that the process has used */
    struct vcap_snapshot_charge *charges;
};

struct vcap_snapshot_event {
    uint64_t sequence;
    uint64_t time_ns;
    uint32_t kind; /* enum vcap_lf_event_kind, or one that a newer library wrote */
    uint32_t pid;  /* 0 = none */
    uint32_t gpu;  /* position in vcap_snapshot.gpus; UINT32_MAX = none */
    uint64_t bytes, held, limit;
    uint32_t code;
    char name[48];
};

struct vcap_snapshot {
    uint32_t version;
    uint32_t flags;                 /* VCAP_LF_HOST_MADE, VCAP_LF_AUDIT, VCAP_LF_PASS_THROUGH */
    uint64_t default_ceiling_bytes; /* VCAP_NO_LIMIT: none, or unset */
    uint64_t host_changes;
    uint32_t near_percent, compute_percent; /* 0: none */
    char key[64], container[64], creator[32];
    uint64_t created_ns;
    uint64_t anomalies;
    dev_t device;
    ino_t inode;
    uint32_t slot_count;
    uint32_t slots_in_flux; /* changed hands in every try to read them; left out of processes */
    uint32_t gpu_count;
    struct vcap_snapshot_gpu *gpus;
    uint32_t process_count;
    struct vcap_snapshot_process *processes;
    uint32_t event_count; /* whole events still in the ring, by rising sequence */
    struct vcap_snapshot_event *events;
    uint32_t event_capacity;
    uint64_t event_next;  /* sequence number of the next event; at least 1 */
    uint64_t events_lost; /* of 1 .. event_next - 1 those that are not in events */
};

/*
 * Opens a file that may be hostile, for reading.  Only the last component of path is distrusted: it
 * must be a regular file itself.  Returns a descriptor (O_CLOEXEC, O_NONBLOCK), or with one phrase
 * in why -EINVAL (not something that may be read as a ledger) or another -errno (I/O).
 */
int vcap_ledger_read_open(const char *path, char *why, size_t why_size);

/*
 * Reads the ledger at path.  0: *out is filled, to be given back with vcap_snapshot_free().
 * -EINVAL: not to be trusted; any other -errno: could not be read.  Then one phrase is in why and
 * *out is untouched.
 */
int vcap_snapshot_read(const char *path, struct vcap_snapshot *out, char *why, size_t why_size);

/* The same through a descriptor that the caller keeps (the agent opened it before the container
 * ran). */
int vcap_snapshot_read_fd(int fd, struct vcap_snapshot *out, char *why, size_t why_size);

/* How much of a ledger is wanted.  All zero: everything. */
struct vcap_read_wish {
    uint64_t events_from; /* no events below this number; the ring is not read without newer ones,
                             and events_lost counts from here */
    bool taken_only;      /* only slots that are not FREE: a fraction of the bytes is read, and what
                             lies in the cells of free slots is not judged */
    uint64_t bytes_max;   /* no larger file; 0: 64 MiB */
    uint64_t budget_ns;   /* for all questions about locks together; 0: 1 s */
    uint64_t pidns;       /* the caller's PID namespace, vcap_pidns_inode(); 0: not known yet */
};
int vcap_snapshot_read_wish(int fd, const struct vcap_read_wish *wish, struct vcap_snapshot *out,
                            char *why, size_t why_size);

void vcap_snapshot_free(struct vcap_snapshot *snapshot);

/* Words for people and JSON: "none", "host", "env", "mps", "conf", "dmem", "nvml",
 * "toolkit" (NULL for unset); "alive", "gone",
 * "unknown"; "refusal", ... (NULL for a kind that this build does not know). */
const char *vcap_snapshot_source_name(enum vcap_lf_source source);
const char *vcap_snapshot_life_name(enum vcap_life life);
const char *vcap_snapshot_event_name(uint32_t kind);

#endif
