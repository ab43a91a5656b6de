/*
 * What a byte of device memory costs: one function per rule, named as in preload/cuda_api.def.
 * Every rule is written down here and nowhere else; docs/apis.md points here.  Sizes are bytes; a
 * result that would not fit 64 bits is UINT64_MAX, which no ceiling has room for.
 *
 * Sources: page size of large allocations from PyTorch PR 17120 and the CUDA documentation of
 * cuMemGetAllocationGranularity (2 MiB on present GPUs); to be corrected by docs/gpu/ per
 * generation.
 */
#ifndef VRAMCAP_ENFORCER_RULES_H
#define VRAMCAP_ENFORCER_RULES_H

#include <stdint.h>

#define VCAP_SMALL_GRAIN UINT64_C(512)      /* what small allocations are rounded to */
#define VCAP_SMALL_MOST (UINT64_C(1) << 20) /* the largest that shares a block with others */
#define VCAP_PAGE (UINT64_C(2) << 20)       /* what larger ones are rounded to */

static inline uint64_t vcap_round_up(uint64_t bytes, uint64_t grain)
{
    uint64_t rest = bytes % grain;

    if (rest == 0)
        return bytes;
    return bytes > UINT64_MAX - (grain - rest) ? UINT64_MAX : bytes + (grain - rest);
}

static inline uint64_t vcap_multiply(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/*
 * CHARGE_LINEAR, CHARGE_MANAGED: up to 1 MiB rounded up to 512 bytes (such allocations share 2 MiB
 * blocks, whose slack is overhead), above it to whole 2 MiB pages.  Charging 512-byte multiples
 * throughout would let 2048 x (1 MiB + 512 B) take 4 GiB under 2 GiB.  Managed memory is charged in
 * full when it is allocated, wherever its pages are.
 */
static inline uint64_t vcap_rule_linear(uint64_t bytes)
{
    return vcap_round_up(bytes, bytes <= VCAP_SMALL_MOST ? VCAP_SMALL_GRAIN : VCAP_PAGE);
}

/*
 * CHARGE_PITCHED: rows x the pitch that the driver chose, as linear memory.  Before the call the
 * pitch is unknown: what is reserved then is the least that it can be, a row rounded up to 512
 * bytes.
 */
static inline uint64_t vcap_rule_pitched(uint64_t pitch, uint64_t rows)
{
    return vcap_rule_linear(vcap_multiply(pitch, rows));
}
static inline uint64_t vcap_rule_pitched_least(uint64_t width, uint64_t rows)
{
    return vcap_rule_pitched(vcap_round_up(width, VCAP_SMALL_GRAIN), rows);
}

/*
 * CHARGE_PHYSICAL: what cuMemCreate is asked for, if it is to be on a device.  The driver demands
 * whole granules (2 MiB on present GPUs), so there is nothing to round.  Host memory, on a NUMA node
 * or not, costs nothing.
 */
static inline uint64_t vcap_rule_physical(uint64_t bytes)
{
    return bytes;
}

/*
 * CHARGE_EXTERNAL: memory of another API is charged as large as it says it is; whoever made it has
 * rounded it.
 */
static inline uint64_t vcap_rule_external(uint64_t bytes)
{
    return bytes;
}

/*
 * CHARGE_GRAPH: the memory of graphs costs what the driver's pool for them has reserved of a device, read
 * after each upload, launch and trim.  A node costs nothing, and the sum of a graph's nodes is no bound, for
 * addresses are used again; the largest single one is the least that its graph needs.  A launch that grew
 * the pool cannot be undone, so growth is booked without refusal and may leave the GPU over.
 */

/*
 * CHARGE_POOL: a stream-ordered pool costs what it has reserved of its device, whatever its pointers use of
 * it: the driver's own figure, read after each call that may change it.  A pool of pinned device memory is
 * charged to that device; one of host memory (HOST, HOST_NUMA) costs nothing; one of managed memory is
 * charged in full like CHARGE_MANAGED, to its device or, where it names none, to that of the first stream
 * that allocates from it.  A pool imported from another process costs nothing; a pointer of it costs nothing
 * where its export is on record in this container, and what linear memory of its size does where it is not.
 *
 * A destroyed pool is not asked any more: it costs the sum of its live pointers, each rounded up to 512
 * bytes.
 */
static inline uint64_t vcap_rule_orphan_pointer(uint64_t bytes)
{
    return vcap_round_up(bytes, VCAP_SMALL_GRAIN);
}

/*
 * CHARGE_LIMIT: what a limit of a context takes beyond the value that the context came with, in whole
 * 2 MiB pages.  Stack: bytes a thread x all threads that the device can hold (multiprocessors x threads of
 * one).  Memory of a block (since CUDA 13.5): its bytes x all blocks that the device can hold.  The heap and
 * the FIFO of printf: their bytes.  The other two have no published size: a level of
 * synchronization of the device runtime saves the state of all resident threads, of
 * the order of 150 MiB by NVIDIA's CUDA C programming guide (dynamic parallelism, until 11.x), and a pending
 * launch is taken for 8 KiB, twice the parameters that one can have.  To be measured on a GPU.
 */
#define VCAP_THREADS_MOST (UINT64_C(192) * 2048) /* of a device that does not tell */
#define VCAP_BLOCKS_MOST (UINT64_C(192) * 32)    /* likewise */
#define VCAP_SYNC_LEVEL (UINT64_C(150) << 20)
#define VCAP_PENDING_LAUNCH UINT64_C(8192)

/*
 * Measured overhead (preload/overhead.c) that would pass for true: of a context, and of modules beside it.
 * A client's context takes about 23 MiB on a T4 (free memory under limits of 1, 2 and 4 GiB as NVIDIA's
 * guides for MPS users print it), on the largest GPUs some hundred; more than this means that another limit
 * is in force than the one that is known.  To be measured on a GPU.
 */
#define VCAP_CONTEXT_MOST (UINT64_C(512) << 20)
#define VCAP_MODULES_MOST (UINT64_C(2048) << 20)

/* unit: bytes that one of the limit takes. */
static inline uint64_t vcap_rule_limit(uint64_t initial, uint64_t value, uint64_t unit)
{
    return value <= initial ? 0 : vcap_round_up(vcap_multiply(value - initial, unit), VCAP_PAGE);
}

#endif
