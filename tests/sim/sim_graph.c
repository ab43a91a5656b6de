/*
 * The structure of graphs: nodes, what comes before what, copies, and the questions about
 * them. Types of nodes are sim_graph_nodes.c's business.
 */
#define _GNU_SOURCE
#include "sim_graph.h"

#include <stdlib.h>
#include <string.h>

static struct sim_graph *graphs;
static uint64_t marks;

struct sim_graph *sim_graph_from(CUgraph handle)
{
    for (struct sim_graph *graph = graphs; graph; graph = graph->next)
        if (sim_graph_handle(graph) == handle && !graph->plan)
            return graph;
    return NULL;
}

struct sim_node *sim_node_from(CUgraphNode handle)
{
    for (struct sim_graph *graph = graphs; graph; graph = graph->next)
        for (struct sim_node *node = graph->plan ? NULL : graph->first; node; node = node->next)
            if (sim_node_handle(node) == handle)
                return node;
    return NULL;
}

struct sim_graph *sim_graph_new(void)
{
    struct sim_graph *graph = calloc(1, sizeof *graph);

    if (graph) {
        graph->next = graphs;
        graphs = graph;
    }
    return graph;
}

static void node_free(struct sim_node *node)
{
    if (node->child)
        sim_graph_delete(node->child);
    if (node->memory)
        sim_memory_drop(node->memory);
    free(node->before);
    free(node);
}

void sim_graph_delete(struct sim_graph *graph)
{
    struct sim_graph **at = &graphs;

    while (*at != graph)
        at = &(*at)->next;
    *at = graph->next;
    for (struct sim_executable *executable = sim_executables; executable;
         executable = executable->next)
        if (executable->source == graph)
            executable->source = NULL;
    while (graph->first) {
        struct sim_node *node = graph->first;

        graph->first = node->next;
        node_free(node);
    }
    sim_user_holds_end(graph);
    free(graph);
}

bool sim_graph_has_memory(const struct sim_graph *graph)
{
    for (const struct sim_node *node = graph->first; node; node = node->next)
        if (node->memory || (node->child && sim_graph_has_memory(node->child)))
            return true;
    return false;
}

/* --- order -------------------------------------------------------------------------- */

static void mark_inside(struct sim_graph *graph, uint64_t mark)
{
    for (struct sim_node *node = graph->first; node; node = node->next) {
        node->mark = mark;
        if (node->child)
            mark_inside(node->child, mark);
    }
}

static void mark_before(struct sim_node *node, uint64_t mark)
{
    for (size_t i = 0; i < node->before_count; i++) {
        struct sim_node *other = node->before[i];

        if (other->mark == mark)
            continue;
        other->mark = mark;
        if (other->child)
            mark_inside(other->child, mark);
        mark_before(other, mark);
    }
}

uint64_t sim_node_mark_before(struct sim_node *node)
{
    uint64_t mark = ++marks;

    for (; node; node = node->graph->inside)
        mark_before(node, mark);
    return mark;
}

bool sim_node_depends(struct sim_node *node, struct sim_node *on)
{
    uint64_t mark = sim_node_mark_before(node);

    return node == on || on->mark == mark;
}

static size_t leaves(const struct sim_graph *graph)
{
    size_t count = 0;

    for (const struct sim_node *node = graph->first; node; node = node->next)
        count += node->child ? leaves(node->child) : 1;
    return count;
}

/* Appends the leaves of `graph`; false on a cycle. */
static bool order_into(struct sim_graph *graph, struct sim_node **order, size_t *count)
{
    uint64_t done = ++marks;
    size_t left = graph->count;

    for (bool moved = true; left > 0 && moved;) {
        moved = false;
        for (struct sim_node *node = graph->first; node; node = node->next) {
            bool ready = node->mark != done;

            for (size_t i = 0; ready && i < node->before_count; i++)
                ready = node->before[i]->mark == done;
            if (!ready)
                continue;
            if (node->child && !order_into(node->child, order, count))
                return false;
            if (!node->child)
                order[(*count)++] = node;
            node->mark = done;
            left--;
            moved = true;
        }
    }
    return left == 0;
}

bool sim_graph_order(struct sim_graph *graph, struct sim_node ***order, size_t *count)
{
    struct sim_node **nodes = calloc(leaves(graph) + 1, sizeof(struct sim_node *));

    *count = 0;
    if (!nodes || !order_into(graph, nodes, count)) {
        free(nodes);
        return false;
    }
    *order = nodes;
    return true;
}

/* --- making ----------------------------------------------------------------------------- */

bool sim_edge_add(struct sim_node *from, struct sim_node *to)
{
    struct sim_node **grown =
        realloc(to->before, (to->before_count + 1) * sizeof(struct sim_node *));

    if (!grown)
        return false;
    grown[to->before_count++] = from;
    to->before = grown;
    return true;
}

bool sim_edge_exists(const struct sim_node *from, const struct sim_node *to)
{
    for (size_t i = 0; i < to->before_count; i++)
        if (to->before[i] == from)
            return true;
    return false;
}

static void node_link(struct sim_graph *graph, struct sim_node *node)
{
    if (graph->last)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    graph->count++;
}

/* What is special about the types that own something. */
static CUresult node_fill(struct sim_node *node, CUgraphNodeParams *params)
{
    struct sim_graph *child;

    switch ((int)params->type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return sim_memory_new(node, &params->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return sim_memory_free_node(node, params->free.dptr);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        child = sim_graph_from(params->graph.graph);
        if (!child || child->inside || child->capturing || child == node->graph)
            return CUDA_ERROR_INVALID_VALUE;
        if (params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
            if (child->executables > 0)
                return CUDA_ERROR_INVALID_VALUE;
            node->child = child;
        } else {
            if (sim_graph_has_memory(child))
                return CUDA_ERROR_INVALID_VALUE;
            node->child = sim_graph_copy(child, false);
        }
        if (!node->child)
            return CUDA_ERROR_OUT_OF_MEMORY;
        node->child->inside = node;
        node->params.graph.graph = sim_graph_handle(node->child);
        params->graph.graph = node->params.graph.graph;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return params->kernel.func || params->kernel.kern ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_HOST:
        return params->host.fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return params->eventWait.event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult sim_graph_add(struct sim_graph *graph, const CUgraphNode *before, size_t count,
                       CUgraphNodeParams *params, struct sim_node **made)
{
    struct sim_node *node = calloc(1, sizeof *node);
    CUresult rc = node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

    for (size_t i = 0; rc == CUDA_SUCCESS && i < count; i++) {
        struct sim_node *other = before ? sim_node_from(before[i]) : NULL;

        if (!other || other->graph != graph || sim_edge_exists(other, node))
            rc = CUDA_ERROR_INVALID_VALUE;
        else if (!sim_edge_add(other, node))
            rc = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (rc == CUDA_SUCCESS) {
        node->graph = graph;
        node->params = *params;
        rc = node_fill(node, params);
    }
    if (rc != CUDA_SUCCESS) {
        if (node)
            free(node->before);
        free(node);
        return rc;
    }
    node_link(graph, node);
    *made = node;
    return CUDA_SUCCESS;
}

static struct sim_node *counterpart(const struct sim_graph *copy, const struct sim_node *original)
{
    struct sim_node *node = copy->first;

    while (node && node->original != original)
        node = node->next;
    return node;
}

static struct sim_node *node_copy(const struct sim_node *model, struct sim_graph *graph, bool plan)
{
    struct sim_node *node = calloc(1, sizeof *node);

    if (!node)
        return NULL;
    node->graph = graph;
    node->params = model->params;
    node->original = (struct sim_node *)(uintptr_t)model;
    node->memory = model->memory;
    if (node->memory)
        sim_memory_keep(node->memory);
    node_link(graph, node);
    if (model->child) {
        node->child = sim_graph_copy(model->child, plan);
        if (!node->child)
            return NULL;
        node->child->inside = node;
        node->params.graph.graph = sim_graph_handle(node->child);
    }
    return node;
}

struct sim_graph *sim_graph_copy(const struct sim_graph *graph, bool plan)
{
    struct sim_graph *copy = sim_graph_new();
    bool good = copy != NULL && sim_user_holds_copy(graph, copy);

    for (const struct sim_node *model = graph->first; good && model; model = model->next)
        good = node_copy(model, copy, plan) != NULL;
    for (const struct sim_node *model = graph->first; good && model; model = model->next)
        for (size_t i = 0; good && i < model->before_count; i++)
            good = sim_edge_add(counterpart(copy, model->before[i]), counterpart(copy, model));
    if (copy && !good) {
        sim_graph_delete(copy);
        return NULL;
    }
    if (copy) {
        copy->plan = plan;
        copy->original = (struct sim_graph *)(uintptr_t)graph;
    }
    return copy;
}

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    SIM_ENTER(cuGraphCreate);
    if (!phGraph || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    struct sim_graph *graph = sim_graph_new();
    sim_lock_drop();
    if (graph)
        *phGraph = sim_graph_handle(graph);
    return graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
    SIM_ENTER(cuGraphDestroy);
    sim_lock_take();
    struct sim_graph *graph = sim_graph_from(hGraph);
    bool good = graph && !graph->capturing && !graph->inside;
    if (good)
        sim_graph_delete(graph);
    sim_lock_drop();
    sim_user_objects_finish();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    SIM_ENTER(cuGraphClone);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;

    sim_lock_take();
    struct sim_graph *graph = phGraphClone ? sim_graph_from(originalGraph) : NULL;
    if (graph && !sim_graph_has_memory(graph)) {
        struct sim_graph *copy = sim_graph_copy(graph, false);

        rc = copy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (copy)
            *phGraphClone = sim_graph_handle(copy);
    }
    sim_lock_drop();
    return rc;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode,
                                CUgraph hClonedGraph)
{
    SIM_ENTER(cuGraphNodeFindInClone);
    sim_lock_take();
    struct sim_graph *graph = sim_graph_from(hClonedGraph);
    struct sim_node *original = sim_node_from(hOriginalNode);
    struct sim_node *node = phNode && graph && original ? counterpart(graph, original) : NULL;
    if (node)
        *phNode = sim_node_handle(node);
    sim_lock_drop();
    return node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
    SIM_ENTER(cuGraphDestroyNode);
    sim_lock_take();
    struct sim_node *node = sim_node_from(hNode);
    if (!node || node->graph->capturing || sim_graph_has_memory(node->graph)) {
        sim_lock_drop();
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_graph *graph = node->graph;
    struct sim_node *previous = NULL;
    for (struct sim_node *other = graph->first; other; other = other->next) {
        size_t kept = 0;

        if (other->next == node)
            previous = other;
        for (size_t i = 0; i < other->before_count; i++)
            if (other->before[i] != node)
                other->before[kept++] = other->before[i];
        other->before_count = kept;
    }
    if (previous)
        previous->next = node->next;
    else
        graph->first = node->next;
    if (graph->last == node)
        graph->last = previous;
    graph->count--;
    node_free(node);
    sim_lock_drop();
    return CUDA_SUCCESS;
}
