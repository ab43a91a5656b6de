/*
 * Nodes by type: the calls that add one, and those that read or replace its parameters, in
 * a graph or in an executable graph.
 *
 * Each call turns its own structure into CUgraphNodeParams and back. Pointers inside
 * (kernel arguments) are kept, not followed.
 */
#define _GNU_SOURCE
#include "sim_graph.h"

#include <string.h>

static CUgraphNodeParams blank(CUgraphNodeType type)
{
    CUgraphNodeParams params;

    memset(&params, 0, sizeof params);
    params.type = type;
    return params;
}

static CUresult add(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *before,
                    size_t count, CUgraphNodeParams *params)
{
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    struct sim_node *node = NULL;

    if (!handle || (count > 0 && !before))
        return rc;
    sim_lock_take();
    struct sim_graph *graph = sim_graph_from(graph_handle);
    if (graph)
        rc = sim_graph_add(graph, before, count, params, &node);
    if (rc == CUDA_SUCCESS)
        *handle = sim_node_handle(node);
    sim_lock_drop();
    return rc;
}

static CUresult get(CUgraphNode handle, CUgraphNodeType type, CUgraphNodeParams *params)
{
    sim_lock_take();
    struct sim_node *node = sim_node_from(handle);
    bool good = node && node->params.type == type;
    if (good)
        *params = node->params;
    sim_lock_drop();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set(CUgraphNode handle, const CUgraphNodeParams *params)
{
    sim_lock_take();
    struct sim_node *node = sim_node_from(handle);
    bool good = node && node->params.type == params->type && !node->memory && !node->child;
    if (good)
        node->params = *params;
    sim_lock_drop();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- any type ------------------------------------------------------------------------- */

CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                        size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(cuGraphAddNode);
    return nodeParams ? add(phGraphNode, hGraph, dependencies, numDependencies, nodeParams)
                      : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                           const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
                           size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(cuGraphAddNode_v2);
    (void)dependencyData;
    return nodeParams ? add(phGraphNode, hGraph, dependencies, numDependencies, nodeParams)
                      : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(cuGraphNodeSetParams);
    return nodeParams ? set(hNode, nodeParams) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                  CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(cuGraphExecNodeSetParams);
    return nodeParams ? sim_executable_set(hGraphExec, hNode, nodeParams)
                      : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    SIM_ENTER(cuGraphNodeGetType);
    sim_lock_take();
    struct sim_node *node = type ? sim_node_from(hNode) : NULL;
    if (node)
        *type = node->params.type;
    sim_lock_drop();
    return node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                             const CUgraphNode *dependencies, size_t numDependencies)
{
    SIM_ENTER(cuGraphAddEmptyNode);
    CUgraphNodeParams params = blank(CU_GRAPH_NODE_TYPE_EMPTY);

    return add(phGraphNode, hGraph, dependencies, numDependencies, &params);
}

/* --- memory ------------------------------------------------------------------------------ */

CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                const CUgraphNode *dependencies, size_t numDependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphAddMemAllocNode);
    CUgraphNodeParams params = blank(CU_GRAPH_NODE_TYPE_MEM_ALLOC);

    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    params.alloc.poolProps = nodeParams->poolProps;
    params.alloc.accessDescs = nodeParams->accessDescs;
    params.alloc.accessDescCount = nodeParams->accessDescCount;
    params.alloc.bytesize = nodeParams->bytesize;
    CUresult rc = add(phGraphNode, hGraph, dependencies, numDependencies, &params);
    if (rc == CUDA_SUCCESS)
        nodeParams->dptr = params.alloc.dptr;
    return rc;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
    SIM_ENTER(cuGraphMemAllocNodeGetParams);
    CUgraphNodeParams params;

    if (!params_out)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = get(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &params);
    if (rc == CUDA_SUCCESS)
        *params_out = (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = params.alloc.poolProps,
                                                   .bytesize = params.alloc.bytesize,
                                                   .dptr = params.alloc.dptr};
    return rc;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                               const CUgraphNode *dependencies, size_t numDependencies,
                               CUdeviceptr dptr)
{
    SIM_ENTER(cuGraphAddMemFreeNode);
    CUgraphNodeParams params = blank(CU_GRAPH_NODE_TYPE_MEM_FREE);

    params.free.dptr = dptr;
    return add(phGraphNode, hGraph, dependencies, numDependencies, &params);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out)
{
    SIM_ENTER(cuGraphMemFreeNodeGetParams);
    CUgraphNodeParams params;

    if (!dptr_out)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = get(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE, &params);
    if (rc == CUDA_SUCCESS)
        *dptr_out = params.free.dptr;
    return rc;
}

/* --- child graphs --------------------------------------------------------------------------- */

CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                  const CUgraphNode *dependencies, size_t numDependencies,
                                  CUgraph childGraph)
{
    SIM_ENTER(cuGraphAddChildGraphNode);
    CUgraphNodeParams params = blank(CU_GRAPH_NODE_TYPE_GRAPH);

    params.graph.graph = childGraph;
    params.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE;
    return add(phGraphNode, hGraph, dependencies, numDependencies, &params);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    SIM_ENTER(cuGraphChildGraphNodeGetGraph);
    CUgraphNodeParams params;

    if (!phGraph)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = get(hNode, CU_GRAPH_NODE_TYPE_GRAPH, &params);
    if (rc == CUDA_SUCCESS)
        *phGraph = params.graph.graph;
    return rc;
}

/* --- kernels ---------------------------------------------------------------------------------- */

/* The first version ends before the kernel handle and the context. */
static CUgraphNodeParams kernel_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *from)
{
    CUgraphNodeParams params = blank(CU_GRAPH_NODE_TYPE_KERNEL);

    memcpy(&params.kernel, from, sizeof *from);
    return params;
}

static CUgraphNodeParams kernel_v2(const CUDA_KERNEL_NODE_PARAMS_v2 *from)
{
    CUgraphNodeParams params = blank(CU_GRAPH_NODE_TYPE_KERNEL);

    memcpy(&params.kernel, from, sizeof *from);
    return params;
}

#define KERNEL(suffix, version)                                                                    \
    CUresult cuGraphAddKernelNode##suffix(CUgraphNode *phGraphNode, CUgraph hGraph,                \
                                          const CUgraphNode *dependencies, size_t numDependencies, \
                                          const CUDA_KERNEL_NODE_PARAMS_##version *nodeParams)     \
    {                                                                                              \
        SIM_ENTER(cuGraphAddKernelNode##suffix);                                                   \
        if (!nodeParams)                                                                           \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        CUgraphNodeParams params = kernel_##version(nodeParams);                                   \
        return add(phGraphNode, hGraph, dependencies, numDependencies, &params);                   \
    }                                                                                              \
    CUresult cuGraphKernelNodeGetParams##suffix(CUgraphNode hNode,                                 \
                                                CUDA_KERNEL_NODE_PARAMS_##version *nodeParams)     \
    {                                                                                              \
        SIM_ENTER(cuGraphKernelNodeGetParams##suffix);                                             \
        CUgraphNodeParams params;                                                                  \
        if (!nodeParams)                                                                           \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        CUresult rc = get(hNode, CU_GRAPH_NODE_TYPE_KERNEL, &params);                              \
        if (rc == CUDA_SUCCESS)                                                                    \
            memcpy(nodeParams, &params.kernel, sizeof *nodeParams);                                \
        return rc;                                                                                 \
    }                                                                                              \
    CUresult cuGraphKernelNodeSetParams##suffix(                                                   \
        CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_##version *nodeParams)                    \
    {                                                                                              \
        SIM_ENTER(cuGraphKernelNodeSetParams##suffix);                                             \
        if (!nodeParams)                                                                           \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        CUgraphNodeParams params = kernel_##version(nodeParams);                                   \
        return set(hNode, &params);                                                                \
    }                                                                                              \
    CUresult cuGraphExecKernelNodeSetParams##suffix(                                               \
        CUgraphExec hGraphExec, CUgraphNode hNode,                                                 \
        const CUDA_KERNEL_NODE_PARAMS_##version *nodeParams)                                       \
    {                                                                                              \
        SIM_ENTER(cuGraphExecKernelNodeSetParams##suffix);                                         \
        if (!nodeParams)                                                                           \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        CUgraphNodeParams params = kernel_##version(nodeParams);                                   \
        return sim_executable_set(hGraphExec, hNode, &params);                                     \
    }
KERNEL(, v1)
KERNEL(_v2, v2)

/* --- copies, memsets, host functions, events
 * ------------------------------------------------------ */

static CUgraphNodeParams copy_of(const CUDA_MEMCPY3D *copy, CUcontext context)
{
    CUgraphNodeParams params = blank(CU_GRAPH_NODE_TYPE_MEMCPY);

    params.memcpy.copyParams = *copy;
    params.memcpy.copyCtx = context;
    return params;
}

static CUgraphNodeParams memset_of(const CUDA_MEMSET_NODE_PARAMS_v1 *from, CUcontext context)
{
    CUgraphNodeParams params = blank(CU_GRAPH_NODE_TYPE_MEMSET);

    memcpy(&params.memset, from, sizeof *from);
    params.memset.ctx = context;
    return params;
}

static CUgraphNodeParams host_of(const CUDA_HOST_NODE_PARAMS_v1 *from)
{
    CUgraphNodeParams params = blank(CU_GRAPH_NODE_TYPE_HOST);

    params.host.fn = from->fn;
    params.host.userData = from->userData;
    return params;
}

/* The four calls of a type; `more` and `context` are the context argument where there is one. */
#define NODE(Type, TYPE, structure, more, context, convert, member)                                \
    CUresult cuGraphAdd##Type##Node(CUgraphNode *phGraphNode, CUgraph hGraph,                      \
                                    const CUgraphNode *dependencies, size_t numDependencies,       \
                                    const structure *nodeParams more)                              \
    {                                                                                              \
        SIM_ENTER(cuGraphAdd##Type##Node);                                                         \
        if (!nodeParams)                                                                           \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        CUgraphNodeParams params = convert(nodeParams context);                                    \
        return add(phGraphNode, hGraph, dependencies, numDependencies, &params);                   \
    }                                                                                              \
    CUresult cuGraph##Type##NodeGetParams(CUgraphNode hNode, structure *nodeParams)                \
    {                                                                                              \
        SIM_ENTER(cuGraph##Type##NodeGetParams);                                                   \
        CUgraphNodeParams params;                                                                  \
        if (!nodeParams)                                                                           \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        CUresult rc = get(hNode, TYPE, &params);                                                   \
        if (rc == CUDA_SUCCESS)                                                                    \
            memcpy(nodeParams, &params.member, sizeof *nodeParams);                                \
        return rc;                                                                                 \
    }                                                                                              \
    CUresult cuGraphExec##Type##NodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,           \
                                              const structure *nodeParams more)                    \
    {                                                                                              \
        SIM_ENTER(cuGraphExec##Type##NodeSetParams);                                               \
        if (!nodeParams)                                                                           \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        CUgraphNodeParams params = convert(nodeParams context);                                    \
        return sim_executable_set(hGraphExec, hNode, &params);                                     \
    }
#define COMMA ,
NODE(Memcpy, CU_GRAPH_NODE_TYPE_MEMCPY, CUDA_MEMCPY3D, COMMA CUcontext ctx, COMMA ctx, copy_of,
     memcpy.copyParams)
NODE(Memset, CU_GRAPH_NODE_TYPE_MEMSET, CUDA_MEMSET_NODE_PARAMS_v1, COMMA CUcontext ctx, COMMA ctx,
     memset_of, memset)
NODE(Host, CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS_v1, , , host_of, host)

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
    SIM_ENTER(cuGraphMemcpyNodeSetParams);
    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = copy_of(nodeParams, NULL);
    return set(hNode, &params);
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS_v1 *nodeParams)
{
    SIM_ENTER(cuGraphMemsetNodeSetParams);
    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = memset_of(nodeParams, NULL);
    return set(hNode, &params);
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS_v1 *nodeParams)
{
    SIM_ENTER(cuGraphHostNodeSetParams);
    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = host_of(nodeParams);
    return set(hNode, &params);
}

#define EVENT(Type, TYPE)                                                                          \
    CUresult cuGraphAddEvent##Type##Node(CUgraphNode *phGraphNode, CUgraph hGraph,                 \
                                         const CUgraphNode *dependencies, size_t numDependencies,  \
                                         CUevent event)                                            \
    {                                                                                              \
        SIM_ENTER(cuGraphAddEvent##Type##Node);                                                    \
        CUgraphNodeParams params = blank(TYPE);                                                    \
        params.eventWait.event = event; /* both are one pointer */                                 \
        return add(phGraphNode, hGraph, dependencies, numDependencies, &params);                   \
    }                                                                                              \
    CUresult cuGraphEvent##Type##NodeGetEvent(CUgraphNode hNode, CUevent *event_out)               \
    {                                                                                              \
        SIM_ENTER(cuGraphEvent##Type##NodeGetEvent);                                               \
        CUgraphNodeParams params;                                                                  \
        if (!event_out)                                                                            \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        CUresult rc = get(hNode, TYPE, &params);                                                   \
        if (rc == CUDA_SUCCESS)                                                                    \
            *event_out = params.eventWait.event;                                                   \
        return rc;                                                                                 \
    }
EVENT(Wait, CU_GRAPH_NODE_TYPE_WAIT_EVENT)
EVENT(Record, CU_GRAPH_NODE_TYPE_EVENT_RECORD)
