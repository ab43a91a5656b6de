/*
 * Stream capture: the calls that begin and end one, ask about it, and change what the next
 * node depends on. The rules and the nodes are in sim_capture.c.
 */
#define _GNU_SOURCE
#include "sim_capture_state.h"

#include <stdlib.h>
#include <string.h>

static cuuint64_t next_id = 1; /* sim_lock */

/* --- begin and end
 * ------------------------------------------------------------------------------------ */

static CUresult begin(CUstream stream, CUgraph into, const CUgraphNode *nodes, size_t count,
                      CUstreamCaptureMode mode)
{
    struct sim_context *context = NULL;
    struct taker *taker = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    if ((unsigned int)mode > CU_STREAM_CAPTURE_MODE_RELAXED || (count > 0 && !nodes))
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    if ((uintptr_t)stream <= 1)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    sim_lock_take();
    struct sim_graph *graph = into ? sim_graph_from(into) : NULL;
    struct capture *capture = calloc(1, sizeof *capture);
    if (sim_capture_of(sim_stream_identity(stream, context), &taker))
        rc = CUDA_ERROR_ILLEGAL_STATE;
    else if (into && (!graph || graph->capturing))
        rc = CUDA_ERROR_INVALID_VALUE;
    else if (!capture || (!graph && !(graph = sim_graph_new())))
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; rc == CUDA_SUCCESS && i < count; i++) {
        struct sim_node *node = sim_node_from(nodes[i]);

        if (!node || node->graph != graph)
            rc = CUDA_ERROR_INVALID_VALUE;
    }
    if (rc == CUDA_SUCCESS) {
        *capture = (struct capture){.id = next_id++,
                                    .mode = mode,
                                    .thread = sim_thread_number(),
                                    .origin = sim_stream_identity(stream, context),
                                    .graph = graph,
                                    .given = into != NULL,
                                    .next = sim_captures};
        graph->capturing = true;
        sim_captures = capture;
        sim_gate_capturing(true);
        if (!sim_taker_new(capture, stream, context, nodes, count)) {
            sim_capture_delete(capture, true);
            rc = CUDA_ERROR_OUT_OF_MEMORY;
        }
    } else {
        free(capture);
    }
    sim_lock_drop();
    return rc;
}

/* Every stream's last nodes come before the origin's. */
static bool joined(struct capture *capture)
{
    struct taker *origin = sim_taker_in(capture, capture->origin);

    for (struct taker *taker = capture->takers; taker; taker = taker->next) {
        for (size_t i = 0; taker != origin && i < taker->count; i++) {
            struct sim_node *node = sim_node_from(taker->last[i]);
            bool before = node == NULL;

            for (size_t k = 0; !before && k < origin->count; k++) {
                struct sim_node *end = sim_node_from(origin->last[k]);

                before = end && sim_node_depends(end, node);
            }
            if (!before)
                return false;
        }
    }
    return true;
}

static CUresult end(CUstream stream, CUgraph *graph)
{
    struct sim_context *context = NULL;
    struct taker *taker = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    struct capture *capture = sim_capture_of(sim_stream_identity(stream, context), &taker);
    if (!capture)
        rc = CUDA_ERROR_ILLEGAL_STATE;
    else if (capture->origin != taker->stream)
        rc = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    else if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
             capture->thread != sim_thread_number())
        rc = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (rc == CUDA_SUCCESS) {
        struct sim_graph *made = capture->graph;

        if (capture->spoiled)
            rc = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        else if (!joined(capture))
            rc = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        *graph = rc == CUDA_SUCCESS ? sim_graph_handle(made) : NULL;
        sim_capture_delete(capture, rc != CUDA_SUCCESS);
    } else if (capture) {
        capture->spoiled = true;
    }
    sim_lock_drop();
    return rc;
}

#define TWINS(symbol, parameters, call)                                                            \
    CUresult symbol parameters                                                                     \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        return call;                                                                               \
    }                                                                                              \
    CUresult symbol##_ptsz parameters                                                              \
    {                                                                                              \
        SIM_ENTER(symbol##_ptsz);                                                                  \
        hStream = sim_stream_twin(hStream);                                                        \
        return call;                                                                               \
    }
TWINS(cuStreamBeginCapture, (CUstream hStream),
      begin(hStream, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL))
TWINS(cuStreamBeginCapture_v2, (CUstream hStream, CUstreamCaptureMode mode),
      begin(hStream, NULL, NULL, 0, mode))
TWINS(cuStreamBeginCaptureToGraph,
      (CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
       const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode),
      ((void)dependencyData, hGraph ? begin(hStream, hGraph, dependencies, numDependencies, mode)
                                    : CUDA_ERROR_INVALID_VALUE))
TWINS(cuStreamEndCapture, (CUstream hStream, CUgraph *phGraph), end(hStream, phGraph))

/* --- questions
 * -------------------------------------------------------------------------------------------- */

struct answer {
    CUstreamCaptureStatus status;
    cuuint64_t id;
    CUgraph graph;
    const CUgraphNode *nodes;
    const CUgraphEdgeData *edges;
    size_t count;
};

/* Asking spoils nothing, not even of the legacy stream beside a capture. */
static CUresult ask(CUstream stream, struct answer *answer)
{
    struct sim_context *context = NULL;
    struct taker *taker = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    memset(answer, 0, sizeof *answer);
    if (rc != CUDA_SUCCESS || !sim_gate_is_capturing())
        return rc;
    sim_lock_take();
    struct capture *capture = sim_capture_of(sim_stream_identity(stream, context), &taker);
    if (capture) {
        *answer = (struct answer){.status = capture->spoiled ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                                             : CU_STREAM_CAPTURE_STATUS_ACTIVE,
                                  .id = capture->id,
                                  .graph = sim_graph_handle(capture->graph),
                                  .nodes = taker->last,
                                  .edges = taker->edges,
                                  .count = taker->count};
    }
    for (capture = (uintptr_t)stream <= 1 ? sim_captures : NULL; capture; capture = capture->next)
        for (taker = capture->takers; taker; taker = taker->next)
            if (taker->blocking && taker->context == context)
                rc = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    sim_lock_drop();
    return rc;
}

static CUresult info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                     const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count)
{
    struct answer answer;

    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = ask(stream, &answer);
    if (rc != CUDA_SUCCESS)
        return rc;
    *status = answer.status;
    if (answer.status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return rc;
    if (id)
        *id = answer.id;
    if (graph)
        *graph = answer.graph;
    if (nodes)
        *nodes = answer.nodes;
    if (edges)
        *edges = answer.edges;
    if (count)
        *count = answer.count;
    return rc;
}

TWINS(cuStreamIsCapturing, (CUstream hStream, CUstreamCaptureStatus *captureStatus),
      info(hStream, captureStatus, NULL, NULL, NULL, NULL, NULL))
TWINS(cuStreamGetCaptureInfo,
      (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out),
      info(hStream, captureStatus_out, id_out, NULL, NULL, NULL, NULL))
TWINS(cuStreamGetCaptureInfo_v2,
      (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
       CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t *numDependencies_out),
      info(hStream, captureStatus_out, id_out, graph_out, dependencies_out, NULL,
           numDependencies_out))
TWINS(cuStreamGetCaptureInfo_v3,
      (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
       CUgraph *graph_out, const CUgraphNode **dependencies_out,
       const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out),
      info(hStream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
           numDependencies_out))

static CUresult change(CUstream stream, const CUgraphNode *nodes, size_t count, unsigned int flags)
{
    struct sim_context *context = NULL;
    struct taker *taker = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count > 0 && !nodes))
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    struct capture *capture = sim_capture_of(sim_stream_identity(stream, context), &taker);
    rc = !capture           ? CUDA_ERROR_ILLEGAL_STATE
         : capture->spoiled ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                            : rc;
    for (size_t i = 0; rc == CUDA_SUCCESS && i < count; i++) {
        struct sim_node *node = sim_node_from(nodes[i]);

        if (!node || node->graph != capture->graph)
            rc = CUDA_ERROR_INVALID_VALUE;
    }
    if (rc == CUDA_SUCCESS) {
        bool good = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES
                        ? sim_taker_set(taker, nodes, count)
                        : sim_taker_add(taker, nodes, count);

        rc = good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock_drop();
    return rc;
}

TWINS(cuStreamUpdateCaptureDependencies,
      (CUstream hStream, CUgraphNode *dependencies, size_t numDependencies, unsigned int flags),
      change(hStream, dependencies, numDependencies, flags))
TWINS(cuStreamUpdateCaptureDependencies_v2,
      (CUstream hStream, CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
       size_t numDependencies, unsigned int flags),
      ((void)dependencyData, change(hStream, dependencies, numDependencies, flags)))

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIM_ENTER(cuThreadExchangeStreamCaptureMode);
    if (!mode || (unsigned int)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode previous = sim_capture_mode;
    sim_capture_mode = *mode;
    *mode = previous;
    return CUDA_SUCCESS;
}
