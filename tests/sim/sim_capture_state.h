/*
 * The captures of the process, shared by sim_capture.c (rules, nodes) and
 * sim_capture_calls.c (begin, end, questions). All under sim_lock.
 */
#ifndef VRAMCAP_SIM_CAPTURE_STATE_H
#define VRAMCAP_SIM_CAPTURE_STATE_H

#include "sim_capture.h"

struct taker {
    uint64_t stream;
    bool blocking; /* its work is ordered against the legacy stream's */
    struct sim_context *context;
    CUgraphNode *last;
    CUgraphEdgeData *edges; /* zeros, as many */
    size_t count;
    struct taker *next;
};

struct record {
    CUevent event;
    CUgraphNode *nodes;
    size_t count;
    struct record *next;
};

struct capture {
    cuuint64_t id;
    CUstreamCaptureMode mode;
    uint64_t thread, origin;
    struct sim_graph *graph;
    bool given;   /* the graph is the program's (BeginCaptureToGraph) */
    bool spoiled; /* invalidated */
    struct taker *takers;
    struct record *records;
    struct capture *next;
};

extern struct capture *sim_captures;
/* The calling thread's mode. */
extern __thread SIM_TLS CUstreamCaptureMode sim_capture_mode;

struct taker *sim_taker_in(struct capture *capture, uint64_t stream);
/* The capture that a stream takes part in, NULL if none. */
struct capture *sim_capture_of(uint64_t stream, struct taker **taker);
struct taker *sim_taker_new(struct capture *capture, CUstream stream, struct sim_context *context,
                            const CUgraphNode *nodes, size_t count);
/* What the stream's next node depends on: these, or these as well. False without memory. */
bool sim_taker_set(struct taker *taker, const CUgraphNode *nodes, size_t count);
bool sim_taker_add(struct taker *taker, const CUgraphNode *nodes, size_t count);
/* Ends a capture. The graph goes too if it is to, unless it was the program's. */
void sim_capture_delete(struct capture *capture, bool with_graph);

#endif
