/*
 * Executable graphs with allocation nodes, by handle, and one account per device.  The account is settled as
 * a pool's is (pool.c): a lower reading is stored only if nothing moved the pool over the query.
 */
#include "preload/graph.h"

#include <stdlib.h>
#include <string.h>

#include "enforcer/lock.h"
#include "preload/account.h"
#include "preload/charge.h"
#include "preload/location.h"
#include "preload/overhead.h"
#include "preload/pool.h"
#include "preload/relaxed.h"

#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(element) ((element)->lost = true)
#include <uthash.h>

#define DEEPEST 16 /* child graphs in child graphs; deeper ones are settled after the launch only */

struct exec {
    CUgraphExec handle;
    struct vcap_graph_needs needs;
    uint64_t run; /* trims when it last ran, + 1; 0: never */
    bool lost;
    UT_hash_handle hh;
};

static struct vcap_lock lock;
/* all of it under the lock */
static struct exec *table;
static uint32_t execs; /* in the table; also looked at without the lock, as a hint */
static uint64_t trims;
static struct {
    struct vcap_account account;
    uint64_t sequence;
    unsigned in_flight;
    unsigned
        unbooked; /* calls that the driver has answered, and whose growth is not in the account yet */
} pools[VCAP_DEVICES_MAX];

/* ---- what a graph needs ---- */

/* Perhaps there is one: no reason to refuse, but the devices in use are looked at after each launch. */
static void note_unknown(struct vcap_graph_needs *needs)
{
    needs->any = true;
    for (int at = 0; at < VCAP_DEVICES_MAX; at++)
        if (needs->largest[at] == 0 &&
            (at == 0 || __atomic_load_n(&vcap_process.device[at].state, __ATOMIC_ACQUIRE) == 1))
            needs->largest[at] = 1;
}

static void note_node(CUgraphNode node, struct vcap_graph_needs *needs)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    int at;

    memset(&params, 0, sizeof(params));
    needs->any = true;
    if (vcap_own.cuGraphMemAllocNodeGetParams == NULL ||
        vcap_own.cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS) {
        note_unknown(needs);
        return;
    }
    at = vcap_location_device(&params.poolProps.location);
    if (at >= 0 && at < VCAP_DEVICES_MAX && params.bytesize > needs->largest[at])
        needs->largest[at] = params.bytesize;
}

static void look(CUgraph graph, struct vcap_graph_needs *needs, int depth)
{
    CUgraphNode *nodes;
    size_t count = 0;

    if (vcap_own.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    nodes = calloc(count, sizeof(CUgraphNode));
    if (nodes == NULL || depth == DEEPEST) {
        free(nodes);
        note_unknown(needs);
        return;
    }
    if (vcap_own.cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
        CUgraph child = NULL;

        if (vcap_own.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            note_node(nodes[i], needs);
        else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
                 vcap_own.cuGraphChildGraphNodeGetGraph != NULL &&
                 vcap_own.cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
            look(child, needs, depth + 1);
    }
    free(nodes);
}

void vcap_graph_look(CUgraph graph, struct vcap_graph_needs *needs)
{
    struct vcap_relaxed r;

    memset(needs, 0, sizeof(*needs));
    if (graph == NULL || vcap_own.cuGraphGetNodes == NULL || vcap_own.cuGraphNodeGetType == NULL)
        return;
    r = vcap_relaxed_begin();
    look(graph, needs, 0);
    vcap_relaxed_end(r);
}

/* ---- executable graphs ---- */

static struct exec *find(CUgraphExec handle)
{
    struct exec *found = NULL;

    HASH_FIND_PTR(table, &handle, found);
    return found;
}

void vcap_graph_enter(CUgraphExec exec, const struct vcap_graph_needs *needs)
{
    struct exec *fresh = needs->any ? calloc(1, sizeof(*fresh)) : NULL, *stale;

    if (fresh == NULL && __atomic_load_n(&execs, __ATOMIC_RELAXED) == 0)
        return;
    vcap_lock_take(&lock);
    stale = find(exec); /* destroyed behind our back */
    if (stale != NULL)
        HASH_DEL(table, stale);
    if (fresh != NULL) {
        fresh->handle = exec;
        fresh->needs = *needs;
        HASH_ADD_PTR(table, handle, fresh);
        if (!fresh->lost)
            fresh = NULL;
    }
    __atomic_store_n(&execs, HASH_COUNT(table), __ATOMIC_RELAXED);
    vcap_lock_drop(&lock);
    free(stale);
    free(fresh);
}

bool vcap_graph_needs_of(CUgraphExec exec, struct vcap_graph_needs *needs, bool *mapped)
{
    const struct exec *found;

    /* whoever launches a graph has been told of its instantiation, and so sees the number */
    if (__atomic_load_n(&execs, __ATOMIC_RELAXED) == 0)
        return false;
    vcap_lock_take(&lock);
    found = find(exec);
    if (found != NULL) {
        *needs = found->needs;
        *mapped = found->run == trims + 1;
    }
    vcap_lock_drop(&lock);
    return found != NULL;
}

bool vcap_graph_take(CUgraphExec exec, struct vcap_graph_needs *needs)
{
    struct exec *found;

    if (__atomic_load_n(&execs, __ATOMIC_RELAXED) == 0)
        return false;
    vcap_lock_take(&lock);
    found = find(exec);
    if (found != NULL) {
        HASH_DEL(table, found);
        __atomic_store_n(&execs, HASH_COUNT(table), __ATOMIC_RELAXED);
        *needs = found->needs;
    }
    vcap_lock_drop(&lock);
    free(found);
    return found != NULL;
}

/* ---- the devices' pools ---- */

static bool attribute(CUdevice ordinal, CUgraphMem_attribute which, uint64_t *value)
{
    struct vcap_relaxed r;
    cuuint64_t bytes = 0;
    CUresult result;

    if (vcap_own.cuDeviceGetGraphMemAttribute == NULL)
        return false;
    r = vcap_relaxed_begin();
    result = vcap_own.cuDeviceGetGraphMemAttribute(ordinal, which, &bytes);
    vcap_relaxed_end(r);
    *value = bytes;
    return result == CUDA_SUCCESS;
}

static bool known(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < VCAP_DEVICES_MAX && vcap_device(ordinal) != NULL;
}

/* A launch grew the pool by what had no room, and cannot be undone. */
static void say_over(CUdevice ordinal, unsigned row, uint64_t bytes)
{
    struct vcap_ledger *l = vcap_ledger_now();
    const struct vcap_device *device = vcap_device(ordinal);
    struct vcap_event event = {.kind = VCAP_LF_EVENT_OVER,
                               .gpu = device->gpu,
                               .bytes = bytes,
                               .held = vcap_ledger_held(l, device->gpu),
                               .limit = vcap_device_ceiling(device),
                               .name = vcap_row_symbol(row)};

    if (vcap_mode_now() != VCAP_MODE_AUDIT) /* which has said so already */
        vcap_ledger_event(l, &event);
}

static void settle(CUdevice ordinal, unsigned row)
{
    for (int tries = 0;; tries++) {
        uint64_t reading = 0, sequence;
        struct vcap_account *account = &pools[ordinal].account;
        bool read, exact, again, over;

        vcap_lock_take(&lock);
        sequence = pools[ordinal].sequence;
        exact = pools[ordinal].in_flight == 0;
        vcap_lock_drop(&lock);
        read = attribute(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reading);
        vcap_lock_take(&lock);
        exact = exact && sequence == pools[ordinal].sequence && pools[ordinal].in_flight == 0;
        again = read && !exact && pools[ordinal].in_flight == 0 && tries < 3;
        account->ordinal = ordinal;
        over = read && !again && reading > account->bytes &&
               !vcap_account_room(ordinal, reading - account->bytes);
        if (read && !again && (exact || reading > account->bytes))
            vcap_account_set(account, row, reading, true);
        vcap_lock_drop(&lock);
        if (over)
            say_over(ordinal, row, reading);
        if (!again)
            return;
    }
}

void vcap_graph_change_begin(CUdevice ordinal)
{
    if (!known(ordinal))
        return;
    vcap_lock_take(&lock);
    pools[ordinal].sequence++;
    pools[ordinal].in_flight++;
    vcap_lock_drop(&lock);
}

void vcap_graph_change_end(CUdevice ordinal, unsigned row, bool trimmed)
{
    if (!known(ordinal))
        return;
    vcap_lock_take(&lock);
    pools[ordinal].sequence++;
    pools[ordinal].in_flight--;
    pools[ordinal].unbooked++;
    trims += trimmed;
    vcap_lock_drop(&lock);
    settle(ordinal, row);
    vcap_lock_take(&lock);
    pools[ordinal].unbooked--;
    vcap_lock_drop(&lock);
}

/* Room for the bytes, or unused reserve of the graph pool, or both together. */
static bool fits(CUdevice ordinal, uint64_t bytes)
{
    uint64_t reserved = 0, used = 0, unused = 0;

    if (attribute(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) &&
        attribute(ordinal, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used) && reserved > used)
        unused = reserved - used;
    return vcap_account_room(ordinal, bytes > unused ? bytes - unused : 0);
}

/* What graphs that ran before hold, none of them running now, goes back to the driver. */
static void trim(CUdevice ordinal, unsigned row)
{
    struct vcap_relaxed r;

    if (vcap_own.cuDeviceGraphMemTrim == NULL)
        return;
    vcap_graph_change_begin(ordinal);
    r = vcap_relaxed_begin();
    vcap_own.cuDeviceGraphMemTrim(ordinal);
    vcap_relaxed_end(r);
    vcap_graph_change_end(ordinal, row, true);
}

bool vcap_graphs_hold(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < VCAP_DEVICES_MAX &&
           __atomic_load_n(&pools[ordinal].account.bytes, __ATOMIC_RELAXED) != 0;
}

bool vcap_graphs_busy(CUdevice ordinal)
{
    bool busy;

    vcap_lock_take(&lock);
    busy = pools[ordinal].in_flight != 0 || pools[ordinal].unbooked != 0;
    vcap_lock_drop(&lock);
    return busy;
}

void vcap_graphs_trim(CUdevice ordinal, unsigned row)
{
    if (vcap_graphs_hold(ordinal))
        trim(ordinal, row);
}

static void begin_all(const struct vcap_graph_needs *needs)
{
    for (CUdevice at = 0; at < VCAP_DEVICES_MAX; at++)
        if (needs->largest[at] != 0)
            vcap_graph_change_begin(at);
}

CUresult vcap_graph_run_begin(unsigned row, const struct vcap_graph_needs *needs, bool mapped)
{
    /* nothing is reserved here that would find it: without a slot the room is larger than it is */
    if (vcap_mode_now() == VCAP_MODE_ENFORCE && !vcap_ledger_owns(vcap_ledger_now()))
        vcap_slot_renew();
    if (vcap_mode_now() == VCAP_MODE_DENY)
        return vcap_deny(row);
    for (CUdevice at = 0; !mapped && at < VCAP_DEVICES_MAX; at++) {
        uint64_t bytes = needs->largest[at];

        if (bytes == 0 || !known(at) || vcap_mode_now() != VCAP_MODE_ENFORCE || fits(at, bytes))
            continue;
        vcap_pools_trim(at, row);
        trim(at, row);
        vcap_overhead_look(at, 0);
        if (!fits(at, bytes))
            return vcap_refuse(vcap_device(at), at, row, bytes);
    }
    begin_all(needs);
    return CUDA_SUCCESS;
}

void vcap_graph_run_end(unsigned row, CUgraphExec exec, const struct vcap_graph_needs *needs,
                        CUresult result)
{
    struct exec *found;

    vcap_lock_take(&lock);
    found = result == CUDA_SUCCESS ? find(exec) : NULL;
    if (found != NULL)
        found->run = trims + 1;
    vcap_lock_drop(&lock);
    for (CUdevice at = 0; at < VCAP_DEVICES_MAX; at++)
        if (needs->largest[at] != 0)
            vcap_graph_change_end(at, row, false);
}

void vcap_graphs_forget(void)
{
    vcap_lock_forget(&lock);
    table = NULL; /* not freed: the parent's allocator may have been in the middle of anything */
    execs = 0;
    memset(pools, 0, sizeof(pools));
}
