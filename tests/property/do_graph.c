/*
 * Graphs with memory nodes.  A node costs nothing; what the graphs of a device have reserved is asked of the
 * driver.  A launch cannot be undone, so one that has no room for its largest node is refused before, and one
 * that grows the pool by more than there is leaves the GPU over, which the world remembers.
 */
#include "tests/property/property.h"

#include <string.h>

/* In the shared context, and then back. */
static int enter(struct actor *a)
{
    GOOD(api.cuCtxSetCurrent(a->context[0].handle));
    return 0;
}

static int leave(struct actor *a)
{
    GOOD(api.cuCtxSetCurrent(here(a)->handle));
    return 0;
}

static int nodes(struct actor *a, CUgraph graph, struct thing *t, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        CUDA_MEM_ALLOC_NODE_PARAMS p;
        CUgraphNode alloc, release;
        uint64_t size = (1 + draw(a, 6)) * MIB;

        memset(&p, 0, sizeof(p));
        p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        p.bytesize = size;
        GOOD(api.cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &p));
        GOOD(api.cuGraphAddMemFreeNode(&release, graph, &alloc, 1, p.dptr));
        t->nodes++;
        t->sum += size;
        if (size > t->largest)
            t->largest = size;
    }
    return 0;
}

int do_graph(struct actor *a)
{
    struct thing plan = {.nodes = 0}, *t;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUgraphNode node;
    unsigned graphs = 0;

    for (t = a->things; t != NULL; t = t->next)
        graphs += t->kind == GRAPH;
    if (graphs >= 3 || !room_for(a, 20 * MIB))
        return do_graph_destroy(a);
    if (enter(a) != 0)
        return 1;
    GOOD(api.cuGraphCreate(&graph, 0));
    if (nodes(a, graph, &plan, draw(a, 4)) != 0)
        return 1;
    if (plan.nodes == 0)
        GOOD(api.cuGraphAddEmptyNode(&node, graph, NULL, 0));
    if (chance(a, 50))
        GOOD(api.cuGraphInstantiateWithFlags(&exec, graph, 0));
    else
        GOOD(api.cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
    t = thing_add(a, GRAPH, 0, (uintptr_t)exec, 0);
    t->graph = graph;
    t->nodes = plan.nodes;
    t->largest = plan.largest;
    t->sum = plan.sum;
    return leave(a);
}

int do_launch(struct actor *a)
{
    static const char *const calls[] = {"cuGraphLaunch", "cuGraphUpload",
                                        "cuDeviceGetGraphMemAttribute", "cuDeviceGraphMemTrim",
                                        NULL};
    struct thing *t = thing_pick(a, GRAPH);
    CUgraphExec exec;
    CUresult result;
    bool hit;

    if (t == NULL)
        return do_graph(a);
    if (enter(a) != 0)
        return 1;
    exec = (CUgraphExec)(uintptr_t)t->number;
    arm(a, calls);
    result = chance(a, 20) ? api.cuGraphUpload(exec, a->context[0].stream)
                           : api.cuGraphLaunch(exec, a->context[0].stream);
    hit = struck(a);
    if (hit)
        loosen(a);
    if (result != CUDA_SUCCESS) {
        if (!hit && judge(a, (int)result, 0, t->largest) != 0)
            return 1;
    } else if (t->nodes > 0) {
        __atomic_store_n(
            &a->world->over[0], true,
            __ATOMIC_RELAXED); /* it may be: more than the largest node may have been taken */
    }
    if (hit)
        not_read(a, t->sum);
    return leave(a);
}

int graph_end(struct actor *a, struct thing *t)
{
    GOOD(api.cuGraphExecDestroy((CUgraphExec)(uintptr_t)t->number));
    GOOD(api.cuGraphDestroy(t->graph));
    thing_drop(a, t);
    return 0;
}

int do_graph_destroy(struct actor *a)
{
    static const char *const calls[] = {"cuGraphExecDestroy", "cuDeviceGetGraphMemAttribute", NULL};
    struct thing *t = thing_pick(a, GRAPH);
    CUresult result;
    bool hit;

    if (t == NULL)
        return 0;
    if (enter(a) != 0)
        return 1;
    arm(a, calls);
    result = api.cuGraphExecDestroy((CUgraphExec)(uintptr_t)t->number);
    hit = struck(a);
    if (hit)
        loosen(a);
    if (result == CUDA_SUCCESS) {
        GOOD(api.cuGraphDestroy(t->graph));
        thing_drop(a, t);
    } else {
        EXPECT(hit);
    }
    return leave(a);
}

int do_graph_trim(struct actor *a)
{
    static const char *const calls[] = {"cuDeviceGraphMemTrim", "cuDeviceGetGraphMemAttribute",
                                        NULL};

    arm(a, calls);
    api.cuDeviceGraphMemTrim((CUdevice)draw(a, CARDS));
    if (struck(a))
        loosen(a);
    return 0;
}
