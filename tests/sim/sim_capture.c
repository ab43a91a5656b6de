/*
 * Stream capture: calls that become nodes, and calls that a capture forbids.
 *
 * A capture has the streams that take part in it, each with the nodes its next node depends
 * on. A stream joins by waiting for an event recorded in the capture. Rules are those of
 * cuThreadExchangeStreamCaptureMode: in mode GLOBAL a thread may make no potentially unsafe
 * call while it captures itself, or any thread captures in GLOBAL; in THREAD_LOCAL while it
 * captures itself; RELAXED captures and threads forbid nothing. A forbidden call fails and
 * spoils every capture that forbade it. What counts as unsafe is a table (sim_capture_table.c).
 *
 * Everything is under sim_lock. While any capture exists the gate has SIM_GATE_CAPTURING.
 */
#define _GNU_SOURCE
#include "sim_capture_state.h"

#include <stdlib.h>
#include <string.h>

struct capture *sim_captures;
__thread SIM_TLS CUstreamCaptureMode sim_capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

uint64_t sim_thread_number(void)
{
    static __thread SIM_TLS uint64_t number;
    static uint64_t threads; /* atomic; only written here */

    if (number == 0)
        number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    return number;
}

/* --- records ------------------------------------------------------------------------- */

struct taker *sim_taker_in(struct capture *capture, uint64_t stream)
{
    struct taker *taker = capture->takers;

    while (taker && taker->stream != stream)
        taker = taker->next;
    return taker;
}

struct capture *sim_capture_of(uint64_t stream, struct taker **taker)
{
    for (struct capture *capture = sim_captures; capture; capture = capture->next)
        if ((*taker = sim_taker_in(capture, stream)) != NULL)
            return capture;
    return NULL;
}

bool sim_taker_set(struct taker *taker, const CUgraphNode *nodes, size_t count)
{
    CUgraphNode *copy = calloc(count + 1, sizeof *copy);
    CUgraphEdgeData *edges = calloc(count + 1, sizeof *edges);

    if (!copy || !edges) {
        free(copy);
        free(edges);
        return false;
    }
    if (count > 0)
        memcpy(copy, nodes, count * sizeof *copy);
    free(taker->last);
    free(taker->edges);
    taker->last = copy;
    taker->edges = edges;
    taker->count = count;
    return true;
}

bool sim_taker_add(struct taker *taker, const CUgraphNode *nodes, size_t count)
{
    CUgraphNode *all = calloc(taker->count + count + 1, sizeof *all);
    size_t sum = taker->count;

    if (!all)
        return false;
    if (sum > 0)
        memcpy(all, taker->last, sum * sizeof *all);
    for (size_t i = 0; i < count; i++) {
        bool there = false;

        for (size_t k = 0; k < sum; k++)
            there = there || all[k] == nodes[i];
        if (!there)
            all[sum++] = nodes[i];
    }
    bool good = sim_taker_set(taker, all, sum);
    free(all);
    return good;
}

struct taker *sim_taker_new(struct capture *capture, CUstream stream, struct sim_context *context,
                            const CUgraphNode *nodes, size_t count)
{
    struct taker *taker = calloc(1, sizeof *taker);

    if (!taker || !sim_taker_set(taker, nodes, count)) {
        free(taker);
        return NULL;
    }
    taker->stream = sim_stream_identity(stream, context);
    taker->blocking = sim_stream_is_blocking(stream);
    taker->context = context;
    taker->next = capture->takers;
    capture->takers = taker;
    return taker;
}

static void record_free(struct record *record)
{
    free(record->nodes);
    free(record);
}

/* Ends a capture. The graph stays, unless it is to go. */
void sim_capture_delete(struct capture *capture, bool with_graph)
{
    struct capture **at = &sim_captures;

    while (*at && *at != capture)
        at = &(*at)->next;
    if (*at)
        *at = capture->next;
    while (capture->takers) {
        struct taker *taker = capture->takers;

        capture->takers = taker->next;
        free(taker->last);
        free(taker->edges);
        free(taker);
    }
    while (capture->records) {
        struct record *record = capture->records;

        capture->records = record->next;
        record_free(record);
    }
    capture->graph->capturing = false;
    if (with_graph && !capture->given)
        sim_graph_delete(capture->graph);
    free(capture);
    sim_gate_capturing(sim_captures != NULL);
}

void sim_capture_stream_gone(uint64_t stream)
{
    struct taker *taker = NULL;
    struct capture *capture = sim_gate_is_capturing() ? sim_capture_of(stream, &taker) : NULL;

    if (!capture)
        return;
    capture->spoiled = true;
    if (capture->origin == stream)
        sim_capture_delete(capture, true);
}

void sim_capture_context_gone(struct sim_context *context)
{
    for (struct capture *capture = sim_gate_is_capturing() ? sim_captures : NULL, *next; capture;
         capture = next) {
        struct taker *taker = capture->takers;

        next = capture->next;
        while (taker && taker->context != context)
            taker = taker->next;
        if (!taker)
            continue;
        capture->spoiled = true;
        taker = sim_taker_in(capture, capture->origin);
        if (!taker || taker->context == context)
            sim_capture_delete(capture, true);
    }
}

/* --- what is forbidden ------------------------------------------------------------------- */

/* True if the capture forbids unsafe calls to this thread. */
static bool forbids(const struct capture *capture)
{
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
        sim_capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    if (capture->thread == sim_thread_number())
        return true;
    return sim_capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

int sim_capture_check(const char *symbol)
{
    bool forbidden = false;

    if (!sim_capture_unsafe(symbol))
        return 0;
    sim_lock_take();
    for (struct capture *capture = sim_captures; capture; capture = capture->next) {
        if (!forbids(capture))
            continue;
        capture->spoiled = true;
        forbidden = true;
    }
    sim_lock_drop();
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : 0;
}

CUresult sim_capture_wait(CUstream stream, struct sim_context *context, bool whole)
{
    CUresult rc = CUDA_SUCCESS;
    uint64_t identity;

    if (!sim_gate_is_capturing())
        return rc;
    identity = whole ? 0 : sim_stream_identity(stream, context);
    sim_lock_take();
    for (struct capture *capture = sim_captures; capture; capture = capture->next) {
        for (struct taker *taker = capture->takers; taker; taker = taker->next) {
            bool legacy = !whole && (uintptr_t)stream <= 1 && taker->blocking;

            if (taker->context != context || (!whole && taker->stream != identity && !legacy))
                continue;
            capture->spoiled = true;
            rc =
                legacy ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    sim_lock_drop();
    return rc;
}

/* --- nodes ------------------------------------------------------------------------------------ */

/* With sim_lock held: the capture that a call on the stream belongs to. True if the call
 * has its answer in *rc already. */
static bool find(CUstream stream, const struct sim_context *context, struct capture **capture,
                 struct taker **taker, CUresult *rc)
{
    *capture = sim_capture_of(sim_stream_identity(stream, context), taker);
    if (*capture && (*capture)->spoiled) {
        *rc = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return true;
    }
    if (*capture || (uintptr_t)stream > 1)
        return false;
    for (struct capture *other = sim_captures; other; other = other->next)
        for (struct taker *one = other->takers; one; one = one->next)
            if (one->blocking && one->context == context) {
                other->spoiled = true;
                *rc = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
                return true;
            }
    return false;
}

bool sim_capture_node(CUstream stream, struct sim_context *context, CUgraphNodeParams *params,
                      CUresult *rc)
{
    struct capture *capture = NULL;
    struct taker *taker = NULL;
    struct sim_node *node = NULL;

    if (!sim_gate_is_capturing())
        return false;
    sim_lock_take();
    bool answered = find(stream, context, &capture, &taker, rc);
    if (!answered && capture) {
        answered = true;
        *rc = sim_graph_add(capture->graph, taker->last, taker->count, params, &node);
        if (*rc == CUDA_SUCCESS) {
            CUgraphNode handle = sim_node_handle(node);

            if (!sim_taker_set(taker, &handle, 1)) {
                capture->spoiled = true;
                *rc = CUDA_ERROR_OUT_OF_MEMORY;
            }
        }
    }
    sim_lock_drop();
    return answered;
}

bool sim_capture_event_node(CUgraphNodeType type, CUevent event, CUstream stream,
                            struct sim_context *context, CUresult *rc)
{
    CUgraphNodeParams params;

    if (!sim_gate_is_capturing())
        return false;
    memset(&params, 0, sizeof params);
    params.type = type;
    params.eventWait.event = event; /* both kinds hold the one pointer */
    return sim_capture_node(stream, context, &params, rc);
}

bool sim_capture_copy(CUstream stream, struct sim_context *context, CUdeviceptr to,
                      CUdeviceptr from, size_t bytes, CUresult *rc)
{
    CUgraphNodeParams params;

    if (!sim_gate_is_capturing())
        return false;
    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    CUDA_MEMCPY3D *copy = &params.memcpy.copyParams;
    copy->srcMemoryType = copy->dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy->srcDevice = from;
    copy->dstDevice = to;
    copy->WidthInBytes = bytes;
    copy->Height = copy->Depth = 1;
    return sim_capture_node(stream, context, &params, rc);
}

bool sim_capture_graph(CUstream stream, struct sim_context *context, CUgraphExec executable,
                       CUresult *rc)
{
    struct capture *capture = NULL;
    struct taker *taker = NULL;
    CUgraphNodeParams params;

    if (!sim_gate_is_capturing())
        return false;
    sim_lock_take();
    bool answered = find(stream, context, &capture, &taker, rc);
    struct sim_graph *plan = !answered && capture ? sim_executable_plan(executable) : NULL;
    struct sim_graph *copy = plan ? sim_graph_copy(plan, false) : NULL;
    if (!answered && capture && !copy) {
        capture->spoiled = true; /* memory nodes cannot be in a child graph */
        *rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        answered = true;
    }
    sim_lock_drop();
    if (!copy)
        return answered;
    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_GRAPH;
    params.graph.graph = sim_graph_handle(copy);
    params.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    answered = sim_capture_node(stream, context, &params, rc);
    if (!answered || *rc != CUDA_SUCCESS) {
        sim_lock_take();
        sim_graph_delete(copy);
        sim_lock_drop();
    }
    return answered;
}

/* --- events
 * ---------------------------------------------------------------------------------------- */

static struct record **record_at(struct capture *capture, CUevent event)
{
    struct record **at = &capture->records;

    while (*at && (*at)->event != event)
        at = &(*at)->next;
    return at;
}

void sim_capture_event_gone(CUevent event)
{
    if (!sim_gate_is_capturing())
        return;
    sim_lock_take();
    for (struct capture *capture = sim_captures; capture; capture = capture->next) {
        struct record **at = record_at(capture, event), *record = *at;

        if (!record)
            continue;
        *at = record->next;
        record_free(record);
    }
    sim_lock_drop();
}

bool sim_capture_record(CUevent event, CUstream stream, struct sim_context *context, CUresult *rc)
{
    struct capture *capture = NULL;
    struct taker *taker = NULL;

    if (!sim_gate_is_capturing())
        return false;
    sim_capture_event_gone(event);
    sim_lock_take();
    bool answered = find(stream, context, &capture, &taker, rc);
    if (!answered && capture) {
        struct record *record = calloc(1, sizeof *record);
        CUgraphNode *nodes = calloc(taker->count + 1, sizeof *nodes);

        answered = true;
        *rc = record && nodes ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (*rc == CUDA_SUCCESS) {
            memcpy(nodes, taker->last, taker->count * sizeof *nodes);
            *record = (struct record){
                .event = event, .nodes = nodes, .count = taker->count, .next = capture->records};
            capture->records = record;
        } else {
            free(record);
            free(nodes);
        }
    }
    sim_lock_drop();
    return answered;
}

bool sim_capture_wait_event(CUevent event, CUstream stream, struct sim_context *context,
                            bool recorded, CUresult *rc)
{
    struct capture *capture = NULL, *source = sim_captures;
    struct taker *taker = NULL;
    struct record *record = NULL;

    if (!sim_gate_is_capturing())
        return false;
    sim_lock_take();
    bool answered = find(stream, context, &capture, &taker, rc);
    for (source = sim_captures; source; source = source->next)
        if ((record = *record_at(source, event)) != NULL)
            break;
    if (answered || (!capture && !source)) {
        sim_lock_drop();
        return answered;
    }
    *rc = CUDA_SUCCESS;
    if (!source) {
        /* An event from outside; one never recorded is no dependency at all. */
        if (recorded) {
            capture->spoiled = true;
            *rc = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        }
    } else if (source->spoiled) {
        *rc = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (!capture && (uintptr_t)stream <= 1) {
        source->spoiled = true;
        *rc = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    } else if (!capture) {
        if (!sim_taker_new(source, stream, context, record->nodes, record->count))
            *rc = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (capture != source) {
        capture->spoiled = source->spoiled = true;
        *rc = CUDA_ERROR_STREAM_CAPTURE_MERGE;
    } else if (!sim_taker_add(taker, record->nodes, record->count)) {
        *rc = CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock_drop();
    return true;
}
