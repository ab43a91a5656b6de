/*
 * Graphs: looked through once when they are instantiated, and charged for when they are uploaded or launched
 * (graph.h).  A launch that is captured becomes a node and moves no memory.
 */
#include <string.h>

#include "preload/charge.h"
#include "preload/fault.h"
#include "preload/graph.h"
#include "preload/relaxed.h"

/* One body for all ABIs without upload: `driver` is the driver's call with its own argument list. */
#define INSTANTIATE(driver)                                                                        \
    struct vcap_graph_needs needs;                                                                 \
    CUgraphExec made = NULL;                                                                       \
    CUresult result;                                                                               \
                                                                                                   \
    vcap_graph_look(hGraph, &needs);                                                               \
    result = driver;                                                                               \
    if (result != CUDA_SUCCESS || phGraphExec == NULL)                                             \
        return result;                                                                             \
    vcap_graph_enter(made, &needs);                                                                \
    *phGraphExec = made;                                                                           \
    return result

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph,
                                    CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
    VCAP_ENTER(cuGraphInstantiate, (phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize));
    INSTANTIATE(VCAP_CALL(cuGraphInstantiate, phGraphExec != NULL ? &made : NULL, hGraph,
                          phErrorNode, logBuffer, bufferSize));
}

CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph,
                                       CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
    VCAP_ENTER(cuGraphInstantiate_v2, (phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize));
    INSTANTIATE(VCAP_CALL(cuGraphInstantiate_v2, phGraphExec != NULL ? &made : NULL, hGraph,
                          phErrorNode, logBuffer, bufferSize));
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                             unsigned long long flags)
{
    VCAP_ENTER(cuGraphInstantiateWithFlags, (phGraphExec, hGraph, flags));
    INSTANTIATE(
        VCAP_CALL(cuGraphInstantiateWithFlags, phGraphExec != NULL ? &made : NULL, hGraph, flags));
}

/* With the upload flag this is an upload as well. */
#define INSTANTIATE_WITH_PARAMS(function)                                                          \
    struct vcap_graph_needs needs;                                                                 \
    CUgraphExec made = NULL;                                                                       \
    CUresult result = CUDA_SUCCESS;                                                                \
    bool upload;                                                                                   \
                                                                                                   \
    VCAP_ENTER(function, (phGraphExec, hGraph, instantiateParams));                                \
    vcap_graph_look(hGraph, &needs);                                                               \
    upload = needs.any && instantiateParams != NULL &&                                             \
             (instantiateParams->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;                 \
    if (upload)                                                                                    \
        result = vcap_graph_run_begin(VCAP_ROW_##function, &needs, false);                         \
    if (result != CUDA_SUCCESS)                                                                    \
        return result;                                                                             \
    result = VCAP_CALL(function, phGraphExec != NULL ? &made : NULL, hGraph, instantiateParams);   \
    if (result == CUDA_SUCCESS)                                                                    \
        vcap_graph_enter(made, &needs);                                                            \
    if (upload)                                                                                    \
        vcap_graph_run_end(VCAP_ROW_##function, made, &needs, result);                             \
    if (result == CUDA_SUCCESS && phGraphExec != NULL)                                             \
        *phGraphExec = made;                                                                       \
    return result

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    INSTANTIATE_WITH_PARAMS(cuGraphInstantiateWithParams);
}

CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    INSTANTIATE_WITH_PARAMS(cuGraphInstantiateWithParams_ptsz);
}

/* ---- upload and launch ---- */

/* A graph without allocation nodes costs one look-up. */
#define RUN(function, plain_stream)                                                                \
    struct vcap_graph_needs needs;                                                                 \
    bool mapped = false;                                                                           \
    CUresult result;                                                                               \
                                                                                                   \
    VCAP_ENTER(function, (hGraphExec, hStream));                                                   \
    if (!vcap_graph_needs_of(hGraphExec, &needs, &mapped) ||                                       \
        vcap_stream_doing(plain_stream) == VCAP_STREAM_CAPTURING)                                  \
        return VCAP_CALL(function, hGraphExec, hStream);                                           \
    result = vcap_graph_run_begin(VCAP_ROW_##function, &needs, mapped);                            \
    if (result != CUDA_SUCCESS)                                                                    \
        return result;                                                                             \
    result = VCAP_CALL(function, hGraphExec, hStream);                                             \
    vcap_graph_run_end(VCAP_ROW_##function, hGraphExec, &needs, result);                           \
    return result

CUresult CUDAAPI cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
    RUN(cuGraphUpload, hStream);
}

CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    RUN(cuGraphUpload_ptsz, vcap_stream_of_thread(hStream));
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
    RUN(cuGraphLaunch, hStream);
}

CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    RUN(cuGraphLaunch_ptsz, vcap_stream_of_thread(hStream));
}

/* ---- what gives memory back ---- */

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult result;

    VCAP_ENTER(cuDeviceGraphMemTrim, (device));
    vcap_graph_change_begin(device);
    result = VCAP_CALL(cuDeviceGraphMemTrim, device);
    vcap_graph_change_end(device, VCAP_ROW_cuDeviceGraphMemTrim, result == CUDA_SUCCESS);
    return result;
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    struct vcap_graph_needs needs;
    CUresult result;
    bool ours;

    VCAP_ENTER(cuGraphExecDestroy, (hGraphExec));
    /* taken out first: the driver may hand the handle to another thread at once */
    ours = vcap_graph_take(hGraphExec, &needs);
    for (CUdevice at = 0; ours && at < VCAP_DEVICES_MAX; at++)
        if (needs.largest[at] != 0)
            vcap_graph_change_begin(at);
    result = VCAP_CALL(cuGraphExecDestroy, hGraphExec);
    for (CUdevice at = 0; ours && at < VCAP_DEVICES_MAX; at++)
        if (needs.largest[at] != 0)
            vcap_graph_change_end(at, VCAP_ROW_cuGraphExecDestroy, false);
    if (ours && result != CUDA_SUCCESS)
        vcap_graph_enter(hGraphExec, &needs);
    return result;
}
