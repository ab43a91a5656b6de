/*
 * What the files of the simulated driver share: contexts, owners of memory, streams,
 * the allocator's interface, and the process's link to the card.
 *
 * Locking: sim_lock guards all of it but the thread's own context stack; the state
 * file's mutex is taken inside it, never the other way. No function here calls back
 * into an exported driver function, except where VRAMCAP_SIM_INNER asks for it.
 *
 * <cuda.h> is included with __CUDA_API_VERSION_INTERNAL, so every name carries its
 * own suffix: cuMemAlloc is the old 32-bit function, cuMemAlloc_v2 the current one.
 */
#ifndef VRAMCAP_SIM_INTERNAL_H
#define VRAMCAP_SIM_INTERNAL_H

#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#include <cudaProfiler.h>
#pragma GCC visibility pop

#include "sim.h"
#include "sim_config.h"
#include "sim_gate.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Thread-locals are few and small, so that they fit what libc keeps free for libraries
 * loaded late, and cost one instruction. */
#define SIM_TLS __attribute__((tls_model("initial-exec")))

extern pthread_mutex_t sim_lock;
static inline void sim_lock_take(void)
{
    (void)pthread_mutex_lock(&sim_lock);
}
static inline void sim_lock_drop(void)
{
    (void)pthread_mutex_unlock(&sim_lock);
}

/* --- process (sim_init.c, sim_gate.c) ------------------------------------ */

extern struct sim_state *sim_state; /* set by cuInit, then constant */

bool sim_initialised(void);
bool sim_forked(void);
void sim_gate_open(void);
void sim_process_forget(void);
bool sim_symbol_present(const char *name, int since);

/* --- devices (sim_device.c) ---------------------------------------------- */

/* CUDA_VISIBLE_DEVICES into the list below; the number of devices seen. */
unsigned int sim_devices_select(void);
#define SIM_LIMITS 11    /* CUlimit as of CUDA 13.5, whatever the header here says */
#define SIM_SM_COUNT 132 /* multiprocessors of every card */
extern unsigned int sim_device_count;
extern unsigned int sim_device_card[SIM_MAX_CARDS]; /* device ordinal -> card */

/* The device that an entry of a list of MPS's means: by its ordinal, or by its UUID or the beginning
 * of it. -1: none that this process sees. */
int sim_device_named(const char *entry, size_t length);

static inline bool sim_device_valid(CUdevice device)
{
    return device >= 0 && (unsigned int)device < sim_device_count;
}

/* A locality domain of a device (since CUDA 13.4; the number, and the device in the first byte behind it, by
 * cuda.h of 13.5) is taken for the whole of it: this card has one domain. */
static inline CUmemLocation sim_location(CUmemLocation location)
{
    if ((int)location.type == 6 && sim_config.version >= 13040) {
        location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        location.id &= 0xff; /* little-endian, as all that run this */
    }
    return location;
}

/* --- memory (sim_arena.c) ------------------------------------------------ */

struct sim_extent;
struct sim_slab;

/* Who memory belongs to: a context, or a device (stream-ordered memory, which
 * outlives contexts). Freed as a whole by sim_owner_clear. */
struct sim_owner_operations;
struct sim_owner {
    unsigned int card;
    struct sim_context *context; /* NULL: the device's own */
    const struct sim_owner_operations
        *operations; /* NULL: an extent is one allocation, or a slab */
    struct sim_extent *extents;
    struct sim_slab *slabs;
};

enum sim_region_id { SIM_REGION_MAIN, SIM_REGION_LOW, SIM_REGION_MANAGED, SIM_REGIONS };

struct sim_allocation {
    uint64_t base;
    size_t bytes; /* as asked for */
    struct sim_owner *owner;
    bool managed;
};

/* An owner that divides its extents itself (pools, graph memory): how to find and to
 * free what is inside one. `find` has only base and bytes to fill in. */
struct sim_owner_operations {
    bool (*find)(struct sim_owner *owner, CUdeviceptr address, struct sim_allocation *found);
    bool (*free)(struct sim_owner *owner, CUdeviceptr address);
};

/* All with sim_lock held. Allocation: CUDA_SUCCESS, OUT_OF_MEMORY or INVALID_VALUE (0 bytes). */
CUresult sim_arena_alloc(struct sim_owner *owner, enum sim_region_id region, size_t bytes,
                         CUdeviceptr *address);
/* The allocation that holds `address`, false if none does. */
bool sim_arena_find(CUdeviceptr address, struct sim_allocation *found);
/* Frees the allocation that starts at `address`; false if none does. */
bool sim_arena_free(CUdeviceptr address);
void sim_owner_clear(struct sim_owner *owner);
/* Addresses that take nothing of the card. */
CUresult sim_arena_reserve(struct sim_owner *owner, enum sim_region_id region, size_t bytes,
                           CUdeviceptr *address);
/* The host address of the bytes of the extent at `address`, or NULL. */
unsigned char *sim_arena_extent_bytes(CUdeviceptr address);
/* Frees the whole extent at `address`, whatever its owner's operations say. */
bool sim_arena_extent_free(CUdeviceptr address);
/* Card memory with no address (contexts, physical handles). */
CUresult sim_card_take(unsigned int card, struct sim_delta delta);
void sim_card_give(unsigned int card, struct sim_delta delta);

/* Takes sim_lock itself: the host address of the bytes of [address, address+bytes),
 * NULL unless one live allocation (or registered host memory) holds all of it. With
 * `any_host`, an address outside the device ranges is the host's own. */
unsigned char *sim_bytes(CUdeviceptr address, size_t bytes, bool any_host);
/* Makes the memory that starts at `address` visible to other processes (sim_share.h): its share,
 * and where in it the memory starts. Must be memory of a context, not managed. */
CUresult sim_arena_share(CUdeviceptr address, uint64_t *share, uint64_t *offset);
/* True if `address` is inside a range of device addresses. */
bool sim_is_device_address(CUdeviceptr address);

/* --- host memory (sim_host.c) -------------------------------------------- */

struct sim_host_range {
    uintptr_t base;
    size_t bytes;
    unsigned int flags;
    bool registered; /* by cuMemHostRegister: not ours to free */
    struct sim_host_range *next;
};
/* With sim_lock held: the range that holds the address, or NULL. */
struct sim_host_range *sim_host_find(uintptr_t address);

/* --- contexts (sim_context.c) -------------------------------------------- */

struct sim_object;

/* Arrays and the like (sim_resource.c): ended by their own destroy call or with the context. */
struct sim_resource {
    struct sim_context *context;
    struct sim_resource *next, *previous;
    void (*end)(struct sim_resource *); /* frees it */
};

struct sim_context {
    uint32_t alive; /* atomic; written under sim_lock */
    bool primary;
    CUdevice device;
    unsigned int flags, api_version;
    unsigned int references; /* primary: retains; else: attachments */
    uint64_t id;
    size_t limit[SIM_LIMITS];
    unsigned int sms;             /* multiprocessors that it can use */
    uint64_t cost_bytes;          /* that it takes of the card, its limits apart */
    uint64_t limit_bytes;         /* that the limits take beyond their defaults */
    struct sim_context *alias_of; /* of a green context: the primary one */
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
    struct sim_owner owner;
    struct sim_resource *resources;
    struct sim_object *objects; /* streams, events, modules: freed with the context */
    struct sim_context *next_free;
};

static inline CUcontext sim_context_handle(struct sim_context *context)
{
    return (CUcontext)(void *)context;
}

/* The calling thread's current context: INVALID_CONTEXT if none,
 * CONTEXT_IS_DESTROYED if it is gone. */
CUresult sim_context_current(struct sim_context **context);
/* A handle that a caller gave us; NULL unless it is a live context. */
struct sim_context *sim_context_from(CUcontext handle);
struct sim_owner *sim_device_owner(CUdevice device);
struct sim_context *sim_primary(CUdevice device);
/* All with sim_lock held. An alias is a handle of its own for the primary context. */
CUresult sim_primary_retain(CUdevice device, struct sim_context **context);
CUresult sim_primary_release(CUdevice device);
struct sim_context *sim_context_alias(CUdevice device);
void sim_context_alias_end(struct sim_context *alias);
/* sim_limits.c */
extern const size_t sim_limit_default[SIM_LIMITS];
void sim_contexts_initialise(void);
/* `sms`: as execution affinity asks for, 0: all that there are. */
CUresult sim_context_create(CUcontext *handle, unsigned int flags, CUdevice device,
                            unsigned int api_version, unsigned int sms);

/* With sim_lock held. */
void sim_resource_add(struct sim_context *context, struct sim_resource *resource,
                      void (*end)(struct sim_resource *));
void sim_resource_end(struct sim_resource *resource);
void sim_resources_clear(struct sim_context *context);

/* --- streams, events, modules (sim_stream.c, sim_module.c) ---------------- */

enum sim_kind { SIM_STREAM = 0x53, SIM_EVENT, SIM_MODULE, SIM_FUNCTION, SIM_LIBRARY };

struct sim_object {
    enum sim_kind kind;
    struct sim_context *context;
    struct sim_object *next, *previous;
    uint64_t id;
    unsigned int flags;
    int priority;
    uint32_t recorded;         /* atomic, events */
    uint64_t time_ns;          /* atomic, events */
    uint32_t captured;         /* atomic, events: last recorded in a capture */
    uint64_t stream, sequence; /* atomic, events: where recorded, and the last free then */
    struct sim_object *parent; /* functions: their module */
};

/* A new object in the context's list, NULL without memory. */
struct sim_object *sim_object_new(struct sim_context *context, enum sim_kind kind);
void sim_object_delete(struct sim_object *object);
/* With sim_lock held. */
void sim_objects_clear(struct sim_context *context);
/* The context a stream belongs to: the current one for 0, 1 and 2. */
CUresult sim_stream_context(CUstream stream, struct sim_context **context);

/* One word per stream for the pools: 0 and CU_STREAM_LEGACY are one, each thread has its own
 * CU_STREAM_PER_THREAD. Never 0. */
uint64_t sim_stream_identity(CUstream stream, const struct sim_context *context);
/* The handle that a _ptsz function means by `stream`. */
static inline CUstream sim_stream_twin(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

/* False for streams made with CU_STREAM_NON_BLOCKING. */
bool sim_stream_is_blocking(CUstream stream);
/* 1 for the first thread that asks, 2 for the next ... */
uint64_t sim_thread_number(void);

/* --- capture (sim_capture.c, sim_capture.h) ---------------------------------- */

/* 0, or what a potentially unsafe call must return; then captures are spoiled, too. */
int sim_capture_check(const char *symbol);

/* --- pools (sim_pool_blocks.c) -------------------------------------------- */

/* All take sim_lock themselves. Somebody waited for a stream (0: for all) up to a
 * sequence number: pools give back what is above their threshold. */
void sim_pools_synchronised(uint64_t stream, uint64_t until);
/* The number of the last free so far. */
uint64_t sim_pools_sequence(void);
/* Work of `waiter` comes after what `source` did up to `until`. */
void sim_pools_follow(uint64_t waiter, uint64_t source, uint64_t until);
/* For CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: NULL for memory of no pool. */
CUmemoryPool sim_pool_handle(struct sim_owner *owner);

/* With sim_lock held: the bytes of [address, +bytes) of one live allocation, or NULL. */
unsigned char *sim_arena_bytes(CUdeviceptr address, size_t bytes);

/* --- copies (sim_copy.c) -------------------------------------------------- */

/* VRAMCAP_SIM_INNER: the program's own view of one of our names (an interposer's, if
 * there is one), or NULL when that mode is off. */
void *sim_inner(const char *symbol);

#endif
