/*
 * The memory of graphs: addresses that belong to allocation nodes, and per device a pool of
 * card memory behind them.
 *
 * Within one executable graph, two allocations share card memory if the free of the one
 * comes before the other (its footprint is what is left after that). Executable graphs
 * share all of it with each other, for only one runs at a time here; what is allocated and
 * not freed after a launch is shared with nobody. The pool grows at upload and launch and
 * shrinks only by a trim, which takes all that no unfreed pointer holds: NVIDIA's rule is
 * "not in use by a graph that is executing or scheduled", and here none ever is.
 */
#define _GNU_SOURCE
#include "sim_graph.h"

#include <stdlib.h>

#define GRAIN (UINT64_C(1) << 21)
#define UNIT UINT64_C(512)

struct graph_pool {
    struct sim_owner owner;
    uint64_t reserved, reserved_high, used_high;
};

static struct graph_pool pools[SIM_MAX_CARDS]; /* by device */
static struct sim_memory *memories;

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* --- addresses ------------------------------------------------------------------------ */

static struct sim_memory *memory_at(CUdeviceptr address)
{
    for (struct sim_memory *memory = memories; memory; memory = memory->next)
        if (address - memory->base < memory->bytes)
            return memory;
    return NULL;
}

static bool owner_find(struct sim_owner *owner, CUdeviceptr address, struct sim_allocation *found)
{
    struct sim_memory *memory = memory_at(address);

    (void)owner;
    if (!memory || !memory->live)
        return false;
    found->base = memory->base;
    found->bytes = memory->bytes;
    return true;
}

static bool owner_free(struct sim_owner *owner, CUdeviceptr address)
{
    struct sim_memory *memory = memory_at(address);

    (void)owner;
    if (!memory || !memory->live || memory->base != address)
        return false;
    sim_memory_set_live(memory, false);
    return true;
}

static const struct sim_owner_operations operations = {.find = owner_find, .free = owner_free};

bool sim_memory_is_graphs(struct sim_owner *owner)
{
    return owner && owner->operations == &operations;
}

void sim_memory_keep(struct sim_memory *memory)
{
    memory->references++;
}

void sim_memory_drop(struct sim_memory *memory)
{
    if (--memory->references > 0)
        return;
    struct sim_memory **at = &memories;
    while (*at != memory)
        at = &(*at)->next;
    *at = memory->next;
    (void)sim_arena_extent_free(memory->base);
    free(memory);
}

CUresult sim_memory_new(struct sim_node *node, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *params)
{
    const CUmemPoolProps *properties = &params->poolProps;
    CUdeviceptr base = 0;

    if (params->bytesize == 0 || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !sim_device_valid(properties->location.id) ||
        properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
        params->accessDescCount > sim_device_count)
        return CUDA_ERROR_INVALID_VALUE;
    if (params->bytesize > UINT64_C(1) << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct graph_pool *pool = &pools[properties->location.id];
    pool->owner.operations = &operations;
    pool->owner.card = sim_device_card[properties->location.id];
    struct sim_memory *memory = calloc(1, sizeof *memory);
    if (!memory ||
        sim_arena_reserve(&pool->owner, SIM_REGION_MAIN, params->bytesize, &base) != CUDA_SUCCESS) {
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory = (struct sim_memory){.base = base,
                                  .bytes = params->bytesize,
                                  .span = round_up(params->bytesize, UNIT),
                                  .device = properties->location.id,
                                  .references = 1,
                                  .home = node->graph,
                                  .next = memories};
    memories = memory;
    params->dptr = base;
    node->params.alloc.dptr = base;
    node->params.alloc.accessDescs = NULL;
    node->memory = memory;
    return CUDA_SUCCESS;
}

CUresult sim_memory_free_node(struct sim_node *node, CUdeviceptr address)
{
    struct sim_memory *memory = memory_at(address);

    if (!memory || memory->base != address || memory->freed_inside ||
        (memory->home == node->graph && memory->freed_outside))
        return CUDA_ERROR_INVALID_VALUE;
    for (struct sim_node *other = node->graph->first; other; other = other->next)
        if (other->memory == memory && other->params.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            return CUDA_ERROR_INVALID_VALUE;
    if (memory->home == node->graph)
        memory->freed_inside = true;
    else
        memory->freed_outside = true;
    node->memory = memory;
    sim_memory_keep(memory);
    return CUDA_SUCCESS;
}

/* --- footprints ---------------------------------------------------------------------------- */

static bool is_alloc(const struct sim_node *node)
{
    return node->params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
}

/* True if the node's allocation cannot overlap what `earlier` allocated: no free of that
 * comes before the node. The node's mark is fresh. */
static bool conflicts(const struct sim_executable *executable, const struct sim_node *earlier,
                      uint64_t mark)
{
    for (size_t i = 0; i < executable->count; i++) {
        const struct sim_node *node = executable->order[i];

        if (node->memory == earlier->memory && !is_alloc(node) && node->mark == mark)
            return false;
    }
    return true;
}

/* First fit: the lowest offset at which the node overlaps none of its conflicts. */
static void place(const struct sim_executable *executable, size_t at)
{
    struct sim_node *node = executable->order[at];
    uint64_t mark = sim_node_mark_before(node), offset = 0;

    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < at; i++) {
            const struct sim_node *other = executable->order[i];
            const struct sim_memory *memory = other->memory;

            if (!memory || !is_alloc(other) || memory->device != node->memory->device ||
                offset >= memory->offset + memory->span ||
                memory->offset >= offset + node->memory->span ||
                !conflicts(executable, other, mark))
                continue;
            offset = memory->offset + memory->span;
            moved = true;
        }
    }
    node->memory->offset = offset;
}

void sim_memory_footprint(struct sim_executable *executable)
{
    for (size_t i = 0; i < executable->count; i++) {
        struct sim_node *node = executable->order[i];

        if (!node->memory || !is_alloc(node))
            continue;
        place(executable, i);
        uint64_t end = node->memory->offset + node->memory->span;
        uint64_t *footprint = &executable->footprint[node->memory->device];
        *footprint = end > *footprint ? end : *footprint;
    }
}

/* --- card memory ----------------------------------------------------------------------------- */

/* Unfreed memory on the device that is not the executable's own. */
static uint64_t live_besides(CUdevice device, const struct sim_executable *executable)
{
    uint64_t sum = 0;

    for (const struct sim_memory *memory = memories; memory; memory = memory->next) {
        bool own = false;

        if (!memory->live || memory->device != device)
            continue;
        for (size_t i = 0; executable && !own && i < executable->count; i++)
            own = executable->order[i]->memory == memory && is_alloc(executable->order[i]);
        sum += own ? 0 : memory->span;
    }
    return sum;
}

/* What some graph has mapped, or a pointer holds. */
static uint64_t used_now(CUdevice device)
{
    uint64_t most = live_besides(device, NULL);

    for (const struct sim_executable *executable = sim_executables; executable;
         executable = executable->next) {
        uint64_t sum = executable->footprint[device] + live_besides(device, executable);

        if (executable->mapped && executable->footprint[device] > 0 && sum > most)
            most = sum;
    }
    return round_up(most, GRAIN);
}

static void used_note(CUdevice device)
{
    uint64_t used = used_now(device);

    if (used > pools[device].used_high)
        pools[device].used_high = used;
}

static struct sim_delta card_bytes(uint64_t bytes)
{
    return (struct sim_delta){.used = (int64_t)bytes, .alloc = (int64_t)bytes};
}

CUresult sim_memory_map(struct sim_executable *executable)
{
    for (CUdevice device = 0; sim_device_valid(device); device++) {
        struct graph_pool *pool = &pools[device];

        if (executable->footprint[device] == 0)
            continue;
        uint64_t needed =
            round_up(executable->footprint[device] + live_besides(device, executable), GRAIN);
        if (needed > pool->reserved) {
            CUresult rc =
                sim_card_take(sim_device_card[device], card_bytes(needed - pool->reserved));

            if (rc != CUDA_SUCCESS)
                return rc;
            pool->reserved = needed;
        }
        if (pool->reserved > pool->reserved_high)
            pool->reserved_high = pool->reserved;
    }
    executable->mapped = true;
    for (CUdevice device = 0; sim_device_valid(device); device++)
        if (executable->footprint[device] > 0)
            used_note(device);
    return CUDA_SUCCESS;
}

void sim_memory_set_live(struct sim_memory *memory, bool live)
{
    if (memory->live == live)
        return;
    memory->live = live;
    if (live) {
        sim_memory_keep(memory);
        used_note(memory->device);
    } else {
        sim_memory_drop(memory);
    }
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    SIM_ENTER(cuDeviceGraphMemTrim);
    if (!sim_device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    sim_lock_take();
    struct graph_pool *pool = &pools[device];
    uint64_t held = round_up(live_besides(device, NULL), GRAIN);
    if (held < pool->reserved) {
        sim_card_give(sim_device_card[device], card_bytes(pool->reserved - held));
        pool->reserved = held;
    }
    for (struct sim_executable *executable = sim_executables; executable;
         executable = executable->next)
        if (executable->footprint[device] > 0)
            executable->mapped = false;
    sim_lock_drop();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    SIM_ENTER(cuDeviceGetGraphMemAttribute);
    CUresult rc = CUDA_SUCCESS;
    cuuint64_t *bytes = value;

    if (!sim_device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    switch ((int)attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
        *bytes = used_now(device);
        break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
        *bytes = pools[device].used_high;
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        *bytes = pools[device].reserved;
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        *bytes = pools[device].reserved_high;
        break;
    default:
        rc = CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock_drop();
    SIM_LEAVE(cuDeviceGetGraphMemAttribute);
    return rc;
}

/* Only the two watermarks can be set, and only to 0: to what is there now. */
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    SIM_ENTER(cuDeviceSetGraphMemAttribute);
    if (!sim_device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value || *(cuuint64_t *)value != 0 ||
        (attr != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH && attr != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH))
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        pools[device].used_high = used_now(device);
    else
        pools[device].reserved_high = pools[device].reserved;
    sim_lock_drop();
    return CUDA_SUCCESS;
}
