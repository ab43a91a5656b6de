/*
 * How the rest of the driver meets stream capture. Each of the `bool` functions is true if
 * the call has its answer in *rc (it became a node, or must not be made), false if it is to
 * be done as usual; all of them cost one load while nothing captures anywhere.
 */
#ifndef VRAMCAP_SIM_CAPTURE_H
#define VRAMCAP_SIM_CAPTURE_H

#include "sim_graph.h"

/* A call on a stream as a node. `params` comes back as the driver fills it in. */
bool sim_capture_node(CUstream stream, struct sim_context *context, CUgraphNodeParams *params,
                      CUresult *rc);
/* An event as a node of its own (CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL). */
bool sim_capture_event_node(CUgraphNodeType type, CUevent event, CUstream stream,
                            struct sim_context *context, CUresult *rc);
bool sim_capture_copy(CUstream stream, struct sim_context *context, CUdeviceptr to,
                      CUdeviceptr from, size_t bytes, CUresult *rc);
bool sim_capture_graph(CUstream stream, struct sim_context *context, CUgraphExec executable,
                       CUresult *rc);
bool sim_capture_record(CUevent event, CUstream stream, struct sim_context *context, CUresult *rc);
/* `recorded`: the event was recorded before, outside of any capture. */
bool sim_capture_wait_event(CUevent event, CUstream stream, struct sim_context *context,
                            bool recorded, CUresult *rc);
void sim_capture_event_gone(CUevent event);
/* With sim_lock held: a stream ends, or all of a context's. Captures that end with their
 * first stream are gone, the others spoiled. */
void sim_capture_stream_gone(uint64_t stream);
void sim_capture_context_gone(struct sim_context *context);

/* Waiting for (or asking after) a stream, or a whole context, in which something is
 * captured: an error that spoils the capture, in every mode. */
CUresult sim_capture_wait(CUstream stream, struct sim_context *context, bool whole);

/* The table of potentially unsafe calls (sim_capture_table.c). */
bool sim_capture_unsafe(const char *symbol);

#endif
