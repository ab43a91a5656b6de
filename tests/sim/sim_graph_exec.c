/*
 * Executable graphs: instantiation, upload, launch, update.
 *
 * An executable graph has a private copy of its source, which shares the memory of the
 * source's allocation nodes; hence one instantiation at a time where there are any. A launch
 * does everything before it returns: host functions are called, bytes move, kernels do
 * nothing. sim_lock is not held while a node runs.
 */
#define _GNU_SOURCE
#include "sim_capture.h"

#include <stdlib.h>
#include <string.h>

struct sim_executable *sim_executables;

static struct sim_executable *executable_from(CUgraphExec handle)
{
    for (struct sim_executable *executable = sim_executables; executable;
         executable = executable->next)
        if ((CUgraphExec)(void *)executable == handle)
            return executable;
    return NULL;
}

static void executable_delete(struct sim_executable *executable)
{
    struct sim_executable **at = &sim_executables;

    while (*at && *at != executable)
        at = &(*at)->next;
    if (*at)
        *at = executable->next;
    if (executable->source)
        executable->source->executables--;
    if (executable->plan)
        sim_graph_delete(executable->plan);
    free(executable->order);
    free(executable);
}

#define FLAGS_KNOWN                                                                                \
    (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |        \
     CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

/* With sim_lock held. */
static CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle, cuuint64_t flags,
                            CUgraphInstantiateResult *result)
{
    struct sim_graph *graph = sim_graph_from(graph_handle);
    bool exclusive = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0 &&
                     (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0;

    *result = CUDA_GRAPH_INSTANTIATE_ERROR;
    if (!handle || !graph || graph->capturing || (flags & ~(cuuint64_t)FLAGS_KNOWN) != 0 ||
        exclusive)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_graph_has_memory(graph) && graph->executables > 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_executable *executable = calloc(1, sizeof *executable);
    if (!executable)
        return CUDA_ERROR_OUT_OF_MEMORY;
    executable->flags = flags;
    executable->plan = sim_graph_copy(graph, true);
    if (!executable->plan) {
        executable_delete(executable);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!sim_graph_order(executable->plan, &executable->order, &executable->count)) {
        executable_delete(executable);
        *result = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_memory_footprint(executable);
    executable->source = graph;
    graph->executables++;
    executable->next = sim_executables;
    sim_executables = executable;
    *handle = (CUgraphExec)(void *)executable;
    *result = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return CUDA_SUCCESS;
}

static CUresult instantiate_flags(CUgraphExec *handle, CUgraph graph, cuuint64_t flags)
{
    CUgraphInstantiateResult result;

    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0)
        return CUDA_ERROR_INVALID_VALUE; /* there is no stream to do it on */
    sim_lock_take();
    CUresult rc = instantiate(handle, graph, flags, &result);
    sim_lock_drop();
    return rc;
}

static CUresult instantiate_log(CUgraphExec *handle, CUgraph graph, CUgraphNode *error_node,
                                char *log, size_t bytes)
{
    CUresult rc = instantiate_flags(handle, graph, 0);

    if (error_node)
        *error_node = NULL;
    if (log && bytes > 0)
        log[0] = '\0';
    return rc;
}

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                            char *logBuffer, size_t bufferSize)
{
    SIM_ENTER(cuGraphInstantiate);
    return instantiate_log(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                               char *logBuffer, size_t bufferSize)
{
    SIM_ENTER(cuGraphInstantiate_v2);
    return instantiate_log(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                     unsigned long long flags)
{
    SIM_ENTER(cuGraphInstantiateWithFlags);
    return instantiate_flags(phGraphExec, hGraph, flags);
}

static CUresult instantiate_params(CUgraphExec *handle, CUgraph graph,
                                   CUDA_GRAPH_INSTANTIATE_PARAMS *params, CUstream upload_stream)
{
    struct sim_context *context = NULL;
    CUresult rc = CUDA_SUCCESS;

    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    params->hErrNode_out = NULL;
    bool upload = (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
    if (upload)
        rc = sim_stream_context(upload_stream, &context);
    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    rc = instantiate(handle, graph, params->flags, &params->result_out);
    if (rc == CUDA_SUCCESS && upload) {
        struct sim_executable *executable = (struct sim_executable *)(void *)*handle;

        rc = sim_memory_map(executable);
        if (rc != CUDA_SUCCESS) {
            executable_delete(executable);
            params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
        }
    }
    sim_lock_drop();
    return rc;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    SIM_ENTER(cuGraphInstantiateWithParams);
    return instantiate_params(phGraphExec, hGraph, instantiateParams,
                              instantiateParams ? instantiateParams->hUploadStream : NULL);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    SIM_ENTER(cuGraphInstantiateWithParams_ptsz);
    return instantiate_params(
        phGraphExec, hGraph, instantiateParams,
        sim_stream_twin(instantiateParams ? instantiateParams->hUploadStream : NULL));
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    SIM_ENTER(cuGraphExecDestroy);
    sim_lock_take();
    struct sim_executable *executable = executable_from(hGraphExec);
    if (executable)
        executable_delete(executable);
    sim_lock_drop();
    sim_user_objects_finish();
    return executable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
    SIM_ENTER(cuGraphExecGetFlags);
    sim_lock_take();
    struct sim_executable *executable = flags ? executable_from(hGraphExec) : NULL;
    if (executable)
        *flags = executable->flags;
    sim_lock_drop();
    return executable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- running ------------------------------------------------------------------------- */

/* What an earlier launch allocated and nobody freed: freed now, if the flag says so. */
static CUresult leftovers(struct sim_executable *executable)
{
    for (size_t i = 0; i < executable->count; i++) {
        struct sim_node *node = executable->order[i];

        if (node->params.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !node->memory->live)
            continue;
        if ((executable->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0)
            return CUDA_ERROR_INVALID_VALUE;
        sim_memory_set_live(node->memory, false);
    }
    return CUDA_SUCCESS;
}

static void set_live(struct sim_node *node, bool live)
{
    sim_lock_take();
    sim_memory_set_live(node->memory, live);
    sim_lock_drop();
}

static CUresult run(struct sim_node *node)
{
    switch ((int)node->params.type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        set_live(node, true);
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        set_live(node, false);
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return sim_copy_run(&node->params.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return sim_memset_run(&node->params.memset);
    case CU_GRAPH_NODE_TYPE_HOST:
        node->params.host.fn(node->params.host.userData);
        return CUDA_SUCCESS;
    default:
        return CUDA_SUCCESS;
    }
}

static CUresult launch(CUgraphExec handle, CUstream stream)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    if (rc != CUDA_SUCCESS)
        return rc;
    if (sim_capture_graph(stream, context, handle, &rc))
        return rc;
    sim_lock_take();
    struct sim_executable *executable = executable_from(handle);
    rc = executable ? leftovers(executable) : CUDA_ERROR_INVALID_VALUE;
    if (rc == CUDA_SUCCESS)
        rc = sim_memory_map(executable);
    sim_lock_drop();
    for (size_t i = 0; rc == CUDA_SUCCESS && i < executable->count; i++)
        if (!executable->order[i]->disabled)
            rc = run(executable->order[i]);
    return rc;
}

static CUresult upload(CUgraphExec handle, CUstream stream)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    struct sim_executable *executable = executable_from(handle);
    rc = executable ? sim_memory_map(executable) : CUDA_ERROR_INVALID_VALUE;
    sim_lock_drop();
    return rc;
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
    SIM_ENTER(cuGraphLaunch);
    return launch(hGraphExec, hStream);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    SIM_ENTER(cuGraphLaunch_ptsz);
    return launch(hGraphExec, sim_stream_twin(hStream));
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
    SIM_ENTER(cuGraphUpload);
    return upload(hGraphExec, hStream);
}

CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    SIM_ENTER(cuGraphUpload_ptsz);
    return upload(hGraphExec, sim_stream_twin(hStream));
}

/* --- update ------------------------------------------------------------------------------ */

/* Pairs the nodes of two graphs in their order of creation; with `apply`, takes the
 * parameters over. */
static CUgraphExecUpdateResult pair(struct sim_graph *plan, struct sim_graph *graph, bool apply,
                                    struct sim_node **offender)
{
    struct sim_node *mine = plan->first, *theirs = graph->first;

    *offender = NULL;
    if (plan->count != graph->count)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (; mine; mine = mine->next, theirs = theirs->next) {
        *offender = theirs;
        if (mine->params.type != theirs->params.type)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (mine->before_count != theirs->before_count)
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        if (mine->memory != theirs->memory)
            return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
        if (mine->child) {
            CUgraphExecUpdateResult result = pair(mine->child, theirs->child, apply, offender);

            if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
                return result;
        } else if (apply) {
            mine->params = theirs->params;
        }
    }
    *offender = NULL;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static CUresult update(CUgraphExec handle, CUgraph graph_handle, CUgraphNode *node,
                       CUgraphExecUpdateResult *result)
{
    struct sim_node *offender = NULL;

    sim_lock_take();
    struct sim_executable *executable = executable_from(handle);
    struct sim_graph *graph = sim_graph_from(graph_handle);
    *result = CU_GRAPH_EXEC_UPDATE_ERROR;
    if (executable && graph) {
        *result = pair(executable->plan, graph, false, &offender);
        if (*result == CU_GRAPH_EXEC_UPDATE_SUCCESS)
            (void)pair(executable->plan, graph, true, &offender);
    }
    *node = offender ? sim_node_handle(offender) : NULL;
    sim_lock_drop();
    if (!executable || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    return *result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS
                                                   : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                           CUgraphExecUpdateResult *updateResult_out)
{
    SIM_ENTER(cuGraphExecUpdate);
    CUgraphExecUpdateResult result;
    CUgraphNode node = NULL;
    CUresult rc = update(hGraphExec, hGraph, &node, &result);

    if (hErrorNode_out)
        *hErrorNode_out = node;
    if (updateResult_out)
        *updateResult_out = result;
    return rc;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                              CUgraphExecUpdateResultInfo *resultInfo)
{
    SIM_ENTER(cuGraphExecUpdate_v2);
    CUgraphExecUpdateResultInfo info;

    memset(&info, 0, sizeof info);
    CUresult rc = update(hGraphExec, hGraph, &info.errorNode, &info.result);
    if (resultInfo)
        *resultInfo = info;
    return rc;
}

/* --- single nodes ---------------------------------------------------------------------------- */

static struct sim_node *plan_node(struct sim_graph *plan, const struct sim_node *original)
{
    for (struct sim_node *node = plan->first; node; node = node->next) {
        struct sim_node *found = node->original == original ? node : NULL;

        if (!found && node->child)
            found = plan_node(node->child, original);
        if (found)
            return found;
    }
    return NULL;
}

static struct sim_node *executable_node(CUgraphExec handle, CUgraphNode node)
{
    struct sim_executable *executable = executable_from(handle);
    struct sim_node *original = sim_node_from(node);

    return executable && original ? plan_node(executable->plan, original) : NULL;
}

CUresult sim_executable_set(CUgraphExec handle, CUgraphNode node, const CUgraphNodeParams *params)
{
    sim_lock_take();
    struct sim_node *found = executable_node(handle, node);
    bool good = found && found->params.type == params->type && !found->memory && !found->child;
    if (good)
        found->params = *params;
    sim_lock_drop();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool can_be_disabled(const struct sim_node *node)
{
    int type = (int)node->params.type;

    return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMSET ||
           type == CU_GRAPH_NODE_TYPE_MEMCPY;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled)
{
    SIM_ENTER(cuGraphNodeSetEnabled);
    sim_lock_take();
    struct sim_node *node = executable_node(hGraphExec, hNode);
    bool good = node && can_be_disabled(node);
    if (good)
        node->disabled = isEnabled == 0;
    sim_lock_drop();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled)
{
    SIM_ENTER(cuGraphNodeGetEnabled);
    sim_lock_take();
    struct sim_node *node = isEnabled ? executable_node(hGraphExec, hNode) : NULL;
    bool good = node && can_be_disabled(node);
    if (good)
        *isEnabled = !node->disabled;
    sim_lock_drop();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct sim_graph *sim_executable_plan(CUgraphExec handle)
{
    struct sim_executable *executable = executable_from(handle);

    return executable && !sim_graph_has_memory(executable->plan) ? executable->plan : NULL;
}
