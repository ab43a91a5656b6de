/*
 * The ledger's bytes.  This comment and the structs below are the specification: a second reader
 * can be written from them alone.  Includes nothing but <stdint.h>; fixed-width integers in host
 * byte order.
 *
 * One regular file of fixed size per container:
 *
 *     0                header        struct vcap_lf_header, 4096 bytes
 *     gpu_offset       GPUs          gpu_count x gpu_stride
 *     slot_offset      slots         slot_count x slot_stride, one per process
 *     cell_offset      cells         slot_count x gpu_count x cell_stride; the cell of slot s and
 *                                    GPU g is number s * gpu_count + g
 *     export_offset    exports       export_count x export_stride, memory that others may open
 *     event_offset     events        event_count x event_stride, a ring
 *
 * A reader takes offsets, strides and counts from the header, checks that every table lies inside
 * file_size and that no stride is smaller than the struct it knows, and trusts nothing else.  A
 * reader of version N reads any file with oldest_reader <= N <= version.  The library attaches only
 * to its own version.
 *
 * WHO WRITES WHAT (all words 64-bit and naturally aligned; __atomic_* operations, sequentially
 * consistent unless ledger.c argues otherwise)
 *
 *   header.*            the creator, before the file has a name; after that only event_next and
 *                       anomalies (fetch-and-add by anybody)
 *   gpu.claim           CAS 0 -> hash of the UUID, once, first free row; rows are never given back
 *   gpu.uuid, flags, index, card_bytes
 *                       whoever finds the row by its claim; all write the same values
 *   gpu.ceiling         CAS from 0 (unset) by the first process with a ceiling, or with the
 *                       default_ceiling by the first that meets the GPU; from then on only the host
 *   header.host_changes, default_ceiling, near_percent, compute_percent, context_bytes, flags
 *                       the host: before the file has a name, later by `vramcap resize`
 *   gpu.source_bytes    stores by any process that saw that source: what it said there
 *   gpu.near            CAS 0 -> 1 by the charge that crosses near_percent, 1 -> 0 by a release or
 *                       charge that finds the total well below it again; both by the host that moves it
 *   gpu.sm_granted, sm_total, compute_percent
 *                       stores by the process that asked the driver last
 *   gpu.total           CAS by whoever charges, releases or reaps
 *   gpu.peak_bytes      CAS upwards; gpu counters: fetch-and-add
 *   slot.state          see below
 *   slot.*              its owner, between taking the slot's lock and LIVE (`mode`, counters: any
 *                       time)
 *   cell.charged        the owner while LIVE (store), any reaper by CAS while DEAD
 *   cell.intent         the same
 *   cell.ack            CAS to an operation number by whoever overwrites that operation's move of
 *                       total; 0 by the owner
 *   cell.peak_bytes, overhead_bytes, imported_bytes, limit_bytes
 *                       the owner
 *   export.owner        CAS from 0, or from an owner whose slot is not LIVE in that generation any
 *                       more, by whoever takes the entry; 0 by the owner
 *   export.*            the owner
 *   event               whoever drew its sequence number from event_next
 *
 * WORDS
 *   total    bits 63..30 amount (units of 512 bytes), 29..21 slot, 20..0 operation number of that
 *            slot
 *   charged  bits 63..21 amount (units), 20..0 operation number of the last settled move
 *   intent   bits 63..21 signed delta (units), 20..0 operation number it is for
 *   ceiling  bits 63..8 amount (units, VCAP_LF_UNITS_MAX = no ceiling), 7..0 source; 0 = unset
 *   state    bits 63..16 generation, 15..8 liveness kind, 7..0 status
 *   owner    bits 63..16 generation, 15..0 slot + 1; 0 = free
 *
 * A SLOT is valid (its identity may be believed) while status is LIVE or DEAD and state has not
 * changed between two reads around it.  Kind LOCK: its owner lives exactly as long as a write lock
 * (F_OFD_SETLK) lies on byte VCAP_LF_LOCK_SLOT + slot of this file.  Kind PID: judged by pid and
 * start_time, in the PID namespace `pidns` only; a reader in another time namespace than `timens` sees
 * other start times and judges by pid alone.
 *
 * AN EXPORT is on record while its owner's slot is LIVE in the owner's generation.  It may be
 * believed if writer is the owner, and owner and sequence (even) read the same before and after the
 * other fields.  hash is of the whole IPC or fabric handle (FNV-1a, 64 bits, never 0); 0 is a
 * descriptor, which has nothing that two processes could compare: matched by size and GPU.
 *
 * WHAT A CRASH LEAVES BEHIND
 *   before LIVE         a FREE slot with some identity bytes in it: nothing to do
 *   during a move       intent.op == charged.op + 1.  The move took effect if total still names
 *                       (slot, intent.op) or ack == intent.op; otherwise it did not.  Nothing else
 *                       is possible, because whoever overwrites a move in total that its owner has
 *                       not yet settled in charged sets ack first
 *   holding memory      state LIVE without its lock; any process that needs room reaps it
 *                       (ledger_reap.c)
 *   while reaping       state DEAD; any other reaper goes on
 *   exports             whatever they say: nobody's once the slot is not LIVE any more
 *   writing an event    begin != end in that event
 *
 * VERSION HISTORY
 *   1   0.1.0   first
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_FORMAT_H
#define VRAMCAP_ENFORCER_LEDGER_FORMAT_H

#include <stdint.h>

#define VCAP_LF_MAGIC "VRAMCAP" /* eight bytes with the NUL */
#define VCAP_LF_VERSION 1u
#define VCAP_LF_OLDEST_READER 1u
#define VCAP_LF_BYTE_ORDER 0x01020304u

#define VCAP_LF_UNIT_BYTES 512u
#define VCAP_LF_UNITS_MAX ((UINT64_C(1) << 34) - 1) /* 8 TiB less one unit */

#define VCAP_LF_GPUS_DEFAULT 16u
#define VCAP_LF_GPUS_MAX 32u
#define VCAP_LF_SLOTS_DEFAULT 256u
#define VCAP_LF_SLOTS_MAX 512u
#define VCAP_LF_NEAR_DEFAULT 90u
#define VCAP_LF_EXPORTS 256u
#define VCAP_LF_EXPORTS_MAX 65536u
#define VCAP_LF_EVENTS_DEFAULT 1024u
#define VCAP_LF_EVENTS_MAX 65536u

/* Byte positions of the advisory locks; beyond the end of the file on purpose. */
#define VCAP_LF_LOCK_INIT                                                                          \
    INT64_C(0x3fffffff) /* shared while joining, exclusive while making anew */
#define VCAP_LF_LOCK_SLOT INT64_C(0x40000000) /* + slot number */

/* header.flags.  HOST_MADE: only the host changes ceilings, and it is never made anew; AUDIT: with
 * HOST_MADE, audit instead of enforce. */
#define VCAP_LF_HOST_MADE 1u
#define VCAP_LF_AUDIT 2u
#define VCAP_LF_PASS_THROUGH                                                                       \
    4u /* with HOST_MADE: everything is let through and booked, refusals are not even counted */

/* Where a ceiling came from (gpu.ceiling, low byte). */
enum vcap_lf_source {
    VCAP_LF_SOURCE_UNSET = 0,
    VCAP_LF_SOURCE_NONE = 1, /* no source named this GPU */
    VCAP_LF_SOURCE_HOST = 2, /* the ledger, as the host made it */
    VCAP_LF_SOURCE_ENV = 3,  /* VRAMCAP_MEMORY_MIB */
    VCAP_LF_SOURCE_MPS = 4,  /* CUDA_MPS_PINNED_DEVICE_MEM_LIMIT */
    VCAP_LF_SOURCE_CONF = 5, /* /etc/vramcap/container.conf */
    VCAP_LF_SOURCE_DMEM = 6, /* the cgroup's dmem.max */
    VCAP_LF_SOURCE_NVML =
        7, /* nvmlDeviceGetMemoryLimits_v1, the hard limit; written by nobody yet */
    VCAP_LF_SOURCE_TOOLKIT = 8 /* NVIDIA_GPU_MEMORY_LIMIT */
};
#define VCAP_LF_SOURCE_FIRST 2u /* of those that have a place in gpu.source_bytes */
#define VCAP_LF_SOURCE_LAST 8u

enum vcap_lf_status { VCAP_LF_FREE = 0, VCAP_LF_LIVE = 1, VCAP_LF_DEAD = 2 };
enum vcap_lf_kind { VCAP_LF_KIND_NONE = 0, VCAP_LF_KIND_LOCK = 1, VCAP_LF_KIND_PID = 2 };
enum vcap_lf_mode { VCAP_LF_MODE_ENFORCE = 0, VCAP_LF_MODE_AUDIT = 1 };

/* gpu.flags */
#define VCAP_LF_GPU_MIG 1u
#define VCAP_LF_GPU_NAMED 2u /* claimed by the host; index is not yet that of a process */

enum vcap_lf_event_kind {
    VCAP_LF_EVENT_NONE = 0,
    VCAP_LF_EVENT_ATTACH = 1,      /* a process took a slot */
    VCAP_LF_EVENT_REFUSAL = 2,     /* bytes = asked for, held = container, limit = ceiling */
    VCAP_LF_EVENT_AUDIT = 3,       /* would have been refused */
    VCAP_LF_EVENT_REAP = 4,        /* bytes = given back, pid = the dead one */
    VCAP_LF_EVENT_DEVICE_FULL = 5, /* the driver had no memory below the ceiling */
    VCAP_LF_EVENT_GAP = 6,         /* name = an entry point that is not accounted, first call */
    VCAP_LF_EVENT_ANOMALY = 7,     /* name = what; a number that would have gone wrong */
    VCAP_LF_EVENT_CONFIG = 8,      /* name = option; a value ignored or a host's word kept */
    VCAP_LF_EVENT_NO_SLOT = 9,     /* no free slot for a process */
    VCAP_LF_EVENT_OVER = 10,       /* booked above the ceiling: it could not be refused or undone */
    VCAP_LF_EVENT_NEAR = 11,       /* held crossed near_percent of the ceiling; once per crossing */
    VCAP_LF_EVENT_FAULT = 12,   /* a sticky device error first seen here: code, name = the call */
    VCAP_LF_EVENT_RESIZE = 13,  /* the host changed a ceiling: bytes = new, limit = old */
    VCAP_LF_EVENT_SWITCH = 14,  /* the host changed flags: code = the new ones, held = the old */
    VCAP_LF_EVENT_MPS = 15,     /* name = how MPS's own limit is not what it seems */
    VCAP_LF_EVENT_COMPUTE = 16, /* compute ceiling: name = in force or why not, code = percent */
    VCAP_LF_EVENT_RENEWED = 17  /* a living process lost its slot or its file and took another */
};

enum vcap_lf_compute {
    VCAP_LF_COMPUTE_UNKNOWN = 0,
    VCAP_LF_COMPUTE_NONE = 1,   /* no compute ceiling was asked for */
    VCAP_LF_COMPUTE_FORCE = 2,  /* in force: sm_granted of sm_total */
    VCAP_LF_COMPUTE_NO_MPS = 3, /* asked for, not in force: contexts are not shared by MPS */
    VCAP_LF_COMPUTE_IGNORED = 4 /* asked for, but the driver reports more multiprocessors */
};

/* Is this process an MPS client (slot.mps)? */
enum vcap_lf_mps { VCAP_LF_MPS_UNKNOWN = 0, VCAP_LF_MPS_NO = 1, VCAP_LF_MPS_CLIENT = 2 };

struct vcap_lf_header {
    char magic[8];
    uint32_t version;
    uint32_t oldest_reader;
    uint32_t byte_order;
    uint32_t header_size;
    uint64_t file_size;
    uint32_t gpu_offset, gpu_stride, gpu_count;
    uint32_t slot_offset, slot_stride, slot_count;
    uint32_t cell_offset, cell_stride, cell_count;
    uint32_t export_offset, export_stride, export_count;
    uint32_t event_offset, event_stride, event_count;
    uint32_t flags;
    char key[64]; /* whose file this is: the container's key (ledger_path.h), NUL-terminated */
    char container[64];       /* name given by the host; empty: none */
    uint64_t created_ns;      /* CLOCK_REALTIME */
    char creator[32];         /* version of the program that made it */
    uint64_t default_ceiling; /* ceiling word for GPUs without one of their own; 0 = unset; only
                                 with HOST_MADE */
    uint64_t host_changes;    /* how often the host changed ceilings or flags since created */
    uint32_t near_percent;    /* of the ceiling, for VCAP_LF_EVENT_NEAR; 0 = never */
    uint32_t compute_percent; /* the host's compute ceiling, 1..100; 0 = none */
    uint64_t context_bytes;   /* the host's least charge per context; UINT64_MAX = none */
    uint8_t reserved0[216];
    uint64_t event_next; /* sequence number of the next event; the first is 1 */
    uint8_t reserved1[56];
    uint64_t anomalies; /* numbers that would have gone wrong: double free, underflow, bad word */
    uint8_t reserved2[3512];
};

struct vcap_lf_gpu {
    uint64_t claim; /* 0 = unused row */
    uint8_t uuid[16];
    uint32_t flags;
    uint32_t index; /* ordinal in the process that claimed the row; for people, not for matching */
    uint64_t ceiling;    /* word, see above */
    uint64_t card_bytes; /* what the driver says the device has; 0 = unknown */
    uint64_t near;       /* 1: total has crossed near_percent and not come well below it since */
    uint8_t reserved0[8];
    uint64_t total; /* word, see above; alone in its cache line */
    uint8_t reserved1[56];
    uint64_t peak_bytes;
    uint64_t refusals;
    uint64_t refused_bytes;
    uint64_t audit_refusals; /* let through in audit mode, would have been refused */
    uint64_t device_full;
    uint64_t over_bytes; /* granted above the ceiling by the exceptions of rule 1, highest seen */
    /* what each source said, by source - VCAP_LF_SOURCE_FIRST: bytes + 1; 0 = not seen, UINT64_MAX =
     * no ceiling there */
    uint64_t source_bytes[8];
    uint32_t sm_granted, sm_total; /* multiprocessors: as the driver reports them under the compute
                                      ceiling (with per-context partitioning it reports them all:
                                      reckoned by the percentage), and without it; 0 = unknown */
    uint32_t compute_percent;      /* that sm_granted was asked for; 0 = none */
    uint32_t compute_state;        /* enum vcap_lf_compute */
};

struct vcap_lf_slot {
    uint64_t state; /* word, see above */
    uint32_t pid;   /* in its own PID namespace */
    uint32_t uid;
    uint64_t pidns;      /* inode of its PID namespace */
    uint64_t start_time; /* field 22 of /proc/PID/stat */
    char command[32];    /* NUL-terminated */
    uint64_t claimed_ns; /* CLOCK_REALTIME */
    uint64_t refusals;
    uint64_t anomalies;
    uint64_t gaps;       /* distinct entry points called that are not accounted */
    uint32_t mode;       /* enum vcap_lf_mode */
    uint32_t index_mask; /* bit g: this process has used GPU row g */
    uint32_t mps;        /* enum vcap_lf_mps */
    uint32_t fault_code; /* CUresult of the first sticky device error seen; 0 = none */
    uint64_t fault_ns;   /* CLOCK_REALTIME, when */
    uint64_t timens;     /* inode of the time namespace that start_time was read in; 0 = unknown */
};

struct vcap_lf_cell {
    uint64_t charged; /* word, see above; includes overhead_bytes */
    uint64_t intent;
    uint64_t ack;
    uint64_t peak_bytes;
    uint64_t overhead_bytes; /* the part of charged that is overhead; UINT64_MAX = unknown */
    uint64_t imported_bytes;
    uint64_t limit_bytes; /* this process's own lower ceiling; UINT64_MAX = none */
    uint64_t reserved;
};

struct vcap_lf_export {
    uint64_t owner;    /* generation << 16 | slot + 1; 0 = free */
    uint64_t sequence; /* odd while the fields below are written */
    uint64_t hash;     /* of the handle; 0 = a descriptor */
    uint64_t size;     /* bytes */
    uint32_t gpu;      /* row */
    uint32_t reserved0;
    uint64_t writer; /* the owner that wrote the fields; 0 or another: they are not this owner's */
    uint8_t reserved[16];
};

struct vcap_lf_event {
    uint64_t begin;   /* sequence number, written first */
    uint64_t time_ns; /* CLOCK_REALTIME */
    uint32_t kind;
    uint32_t slot; /* UINT32_MAX = none */
    uint32_t pid;
    uint32_t gpu; /* row; UINT32_MAX = none */
    uint64_t bytes;
    uint64_t held;
    uint64_t limit;
    uint32_t code; /* CUresult or errno */
    uint32_t reserved;
    char name[48]; /* entry point or option, NUL-terminated */
    uint64_t end;  /* sequence number again, written last */
    uint64_t reserved1;
};

#define VCAP_LF_ASSERT(name, condition)                                                            \
    typedef char vcap_lf_assert_##name[(condition) ? 1 : -1] __attribute__((unused))
#define VCAP_LF_AT(type, field, offset)                                                            \
    VCAP_LF_ASSERT(type##_##field, __builtin_offsetof(struct vcap_lf_##type, field) == (offset))

VCAP_LF_ASSERT(header_size, sizeof(struct vcap_lf_header) == 4096);
VCAP_LF_AT(header, version, 8);
VCAP_LF_AT(header, byte_order, 16);
VCAP_LF_AT(header, file_size, 24);
VCAP_LF_AT(header, gpu_offset, 32);
VCAP_LF_AT(header, slot_offset, 44);
VCAP_LF_AT(header, cell_offset, 56);
VCAP_LF_AT(header, export_offset, 68);
VCAP_LF_AT(header, event_offset, 80);
VCAP_LF_AT(header, flags, 92);
VCAP_LF_AT(header, key, 96);
VCAP_LF_AT(header, container, 160);
VCAP_LF_AT(header, created_ns, 224);
VCAP_LF_AT(header, creator, 232);
VCAP_LF_AT(header, default_ceiling, 264);
VCAP_LF_AT(header, near_percent, 280);
VCAP_LF_AT(header, context_bytes, 288);
VCAP_LF_AT(header, event_next, 512);
VCAP_LF_AT(header, anomalies, 576);
VCAP_LF_ASSERT(gpu_size, sizeof(struct vcap_lf_gpu) == 256);
VCAP_LF_AT(gpu, uuid, 8);
VCAP_LF_AT(gpu, ceiling, 32);
VCAP_LF_AT(gpu, card_bytes, 40);
VCAP_LF_AT(gpu, total, 64);
VCAP_LF_AT(gpu, peak_bytes, 128);
VCAP_LF_AT(gpu, near, 48);
VCAP_LF_AT(gpu, over_bytes, 168);
VCAP_LF_AT(gpu, source_bytes, 176);
VCAP_LF_AT(gpu, sm_granted, 240);
VCAP_LF_ASSERT(slot_size, sizeof(struct vcap_lf_slot) == 128);
VCAP_LF_AT(slot, pid, 8);
VCAP_LF_AT(slot, pidns, 16);
VCAP_LF_AT(slot, start_time, 24);
VCAP_LF_AT(slot, command, 32);
VCAP_LF_AT(slot, claimed_ns, 64);
VCAP_LF_AT(slot, gaps, 88);
VCAP_LF_AT(slot, index_mask, 100);
VCAP_LF_AT(slot, mps, 104);
VCAP_LF_AT(slot, fault_ns, 112);
VCAP_LF_AT(slot, timens, 120);
VCAP_LF_ASSERT(cell_size, sizeof(struct vcap_lf_cell) == 64);
VCAP_LF_AT(cell, intent, 8);
VCAP_LF_AT(cell, ack, 16);
VCAP_LF_AT(cell, limit_bytes, 48);
VCAP_LF_ASSERT(export_size, sizeof(struct vcap_lf_export) == 64);
VCAP_LF_AT(export, sequence, 8);
VCAP_LF_AT(export, hash, 16);
VCAP_LF_AT(export, size, 24);
VCAP_LF_AT(export, gpu, 32);
VCAP_LF_AT(export, writer, 40);
VCAP_LF_ASSERT(event_size, sizeof(struct vcap_lf_event) == 128);
VCAP_LF_AT(event, kind, 16);
VCAP_LF_AT(event, bytes, 32);
VCAP_LF_AT(event, name, 64);
VCAP_LF_AT(event, end, 112);

/* ---- packing and unpacking of the words; shared by every writer and reader ---- */

#define VCAP_LF_OP_MASK UINT64_C(0x1fffff)

static inline uint64_t vcap_lf_total(uint64_t units, uint32_t slot, uint64_t op)
{
    return units << 30 | (uint64_t)slot << 21 | op;
}
static inline uint64_t vcap_lf_total_units(uint64_t word)
{
    return word >> 30;
}
static inline uint32_t vcap_lf_total_slot(uint64_t word)
{
    return (uint32_t)(word >> 21) & 0x1ffu;
}
static inline uint64_t vcap_lf_op(uint64_t word) /* of total, charged and intent */
{
    return word & VCAP_LF_OP_MASK;
}
static inline uint64_t vcap_lf_next_op(uint64_t op) /* never 0 */
{
    return op == VCAP_LF_OP_MASK ? 1 : op + 1;
}
static inline uint64_t vcap_lf_charged(uint64_t units, uint64_t op)
{
    return units << 21 | op;
}
static inline uint64_t vcap_lf_charged_units(uint64_t word)
{
    return word >> 21;
}
static inline uint64_t vcap_lf_intent(int64_t delta_units, uint64_t op)
{
    return (uint64_t)delta_units << 21 | op;
}
static inline int64_t vcap_lf_intent_delta(uint64_t word)
{
    return (int64_t)word >> 21;
}
static inline uint64_t vcap_lf_ceiling(uint64_t units, enum vcap_lf_source source)
{
    return units << 8 | (uint64_t)source;
}
static inline uint64_t vcap_lf_ceiling_units(uint64_t word)
{
    return word >> 8;
}
static inline uint32_t vcap_lf_ceiling_source(uint64_t word)
{
    return (uint32_t)(word & 0xff);
}
static inline uint64_t vcap_lf_owner(uint64_t generation, uint32_t slot)
{
    return generation << 16 | (slot + 1);
}
static inline uint32_t vcap_lf_owner_slot(uint64_t owner) /* UINT32_MAX for 0 */
{
    return (uint32_t)(owner & 0xffff) - 1;
}
static inline uint64_t vcap_lf_state(uint64_t generation, enum vcap_lf_kind kind,
                                     enum vcap_lf_status status)
{
    return generation << 16 | (uint64_t)kind << 8 | (uint64_t)status;
}
static inline uint64_t vcap_lf_state_generation(uint64_t word)
{
    return word >> 16;
}
static inline uint32_t vcap_lf_state_kind(uint64_t word)
{
    return (uint32_t)(word >> 8) & 0xffu;
}
static inline uint32_t vcap_lf_state_status(uint64_t word)
{
    return (uint32_t)(word & 0xff);
}

#endif
