/*
 * The edges of graphs, and the lists that programs ask for.
 *
 * Edges carry no data: what a caller gives is ignored, what it asks for reads 0. Edges and
 * nodes of a graph with memory nodes cannot be taken out.
 */
#define _GNU_SOURCE
#include "sim_graph.h"

#include <string.h>

static CUresult dependencies(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                             size_t count, bool add)
{
    CUresult rc = CUDA_SUCCESS;

    sim_lock_take();
    struct sim_graph *graph = sim_graph_from(handle);
    if (!graph || (count > 0 && (!from || !to)) || (!add && sim_graph_has_memory(graph)))
        rc = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; rc == CUDA_SUCCESS && i < count; i++) {
        struct sim_node *first = sim_node_from(from[i]), *second = sim_node_from(to[i]);

        if (!first || !second || first->graph != graph || second->graph != graph ||
            first == second || sim_edge_exists(first, second) == add)
            rc = CUDA_ERROR_INVALID_VALUE;
        else if (add)
            rc = sim_edge_add(first, second) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        else
            for (size_t b = 0; b < second->before_count; b++)
                if (second->before[b] == first)
                    second->before[b--] = second->before[--second->before_count];
    }
    sim_lock_drop();
    return rc;
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                size_t numDependencies)
{
    SIM_ENTER(cuGraphAddDependencies);
    return dependencies(hGraph, from, to, numDependencies, true);
}

CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    SIM_ENTER(cuGraphAddDependencies_v2);
    (void)edgeData;
    return dependencies(hGraph, from, to, numDependencies, true);
}

CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   size_t numDependencies)
{
    SIM_ENTER(cuGraphRemoveDependencies);
    return dependencies(hGraph, from, to, numDependencies, false);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
                                      const CUgraphNode *to, const CUgraphEdgeData *edgeData,
                                      size_t numDependencies)
{
    SIM_ENTER(cuGraphRemoveDependencies_v2);
    (void)edgeData;
    return dependencies(hGraph, from, to, numDependencies, false);
}

/* Lists as the driver gives them: without an array the number, else as many as fit; the
 * rest of a longer array reads NULL and `number` says how many there are. */
struct list {
    CUgraphNode *first, *second;
    size_t room, found;
};

static void list_put(struct list *list, struct sim_node *first, struct sim_node *second)
{
    if (list->found < list->room) {
        if (list->first)
            list->first[list->found] = sim_node_handle(first);
        if (list->second)
            list->second[list->found] = sim_node_handle(second);
    }
    list->found++;
}

static struct list list_start(CUgraphNode *first, CUgraphNode *second, const size_t *number)
{
    struct list list = {.first = first, .second = second, .room = first || second ? *number : 0};

    return list;
}

static CUresult list_end(struct list *list, size_t *number)
{
    for (size_t i = list->found; i < list->room; i++) {
        if (list->first)
            list->first[i] = NULL;
        if (list->second)
            list->second[i] = NULL;
    }
    if (list->room == 0 || list->found < list->room)
        *number = list->found;
    return CUDA_SUCCESS;
}

static CUresult list_nodes(CUgraph handle, CUgraphNode *nodes, size_t *number, bool roots)
{
    CUresult rc = CUDA_ERROR_INVALID_VALUE;

    if (!number)
        return rc;
    sim_lock_take();
    struct sim_graph *graph = sim_graph_from(handle);
    if (graph) {
        struct list list = list_start(nodes, NULL, number);

        for (struct sim_node *node = graph->first; node; node = node->next)
            if (!roots || node->before_count == 0)
                list_put(&list, node, node);
        rc = list_end(&list, number);
    }
    sim_lock_drop();
    return rc;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    SIM_ENTER(cuGraphGetNodes);
    return list_nodes(hGraph, nodes, numNodes, false);
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    SIM_ENTER(cuGraphGetRootNodes);
    return list_nodes(hGraph, rootNodes, numRootNodes, true);
}

static CUresult list_edges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, size_t *number)
{
    CUresult rc = CUDA_ERROR_INVALID_VALUE;

    if (!number || !from != !to)
        return rc;
    sim_lock_take();
    struct sim_graph *graph = sim_graph_from(handle);
    if (graph) {
        struct list list = list_start(from, to, number);

        for (struct sim_node *node = graph->first; node; node = node->next)
            for (size_t i = 0; i < node->before_count; i++)
                list_put(&list, node->before[i], node);
        rc = list_end(&list, number);
    }
    sim_lock_drop();
    return rc;
}

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
    SIM_ENTER(cuGraphGetEdges);
    return list_edges(hGraph, from, to, numEdges);
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                            CUgraphEdgeData *edgeData, size_t *numEdges)
{
    SIM_ENTER(cuGraphGetEdges_v2);
    CUresult rc = list_edges(hGraph, from, to, numEdges);

    if (rc == CUDA_SUCCESS && edgeData && from)
        memset(edgeData, 0, *numEdges * sizeof *edgeData);
    return rc;
}

static CUresult list_neighbours(CUgraphNode handle, CUgraphNode *nodes, size_t *number, bool after)
{
    CUresult rc = CUDA_ERROR_INVALID_VALUE;

    if (!number)
        return rc;
    sim_lock_take();
    struct sim_node *node = sim_node_from(handle);
    if (node) {
        struct list list = list_start(nodes, NULL, number);

        for (size_t i = 0; !after && i < node->before_count; i++)
            list_put(&list, node->before[i], NULL);
        for (struct sim_node *other = node->graph->first; after && other; other = other->next)
            if (sim_edge_exists(node, other))
                list_put(&list, other, NULL);
        rc = list_end(&list, number);
    }
    sim_lock_drop();
    return rc;
}

#define NEIGHBOURS(symbol, after)                                                                  \
    CUresult symbol(CUgraphNode hNode, CUgraphNode *nodes, size_t *number)                         \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        return list_neighbours(hNode, nodes, number, after);                                       \
    }                                                                                              \
    CUresult symbol##_v2(CUgraphNode hNode, CUgraphNode *nodes, CUgraphEdgeData *edgeData,         \
                         size_t *number)                                                           \
    {                                                                                              \
        SIM_ENTER(symbol##_v2);                                                                    \
        CUresult rc = list_neighbours(hNode, nodes, number, after);                                \
        if (rc == CUDA_SUCCESS && edgeData && nodes)                                               \
            memset(edgeData, 0, *number * sizeof *edgeData);                                       \
        return rc;                                                                                 \
    }
NEIGHBOURS(cuGraphNodeGetDependencies, false)
NEIGHBOURS(cuGraphNodeGetDependentNodes, true)
