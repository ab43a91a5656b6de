/*
 * Memory of graphs.  A node allocates nothing; the driver keeps one pool per device for all graphs of the
 * process, which grows when a graph is uploaded or launched and shrinks when it is trimmed.  Its reserve is
 * what is charged (rules.h, CHARGE_GRAPH).  Here: which executable graphs have allocation nodes, and the
 * account of each device's pool.  Thread-safe; no lock is held over a driver call.
 */
#ifndef VRAMCAP_PRELOAD_GRAPH_H
#define VRAMCAP_PRELOAD_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/cuda_api.h"
#include "preload/preload.h"

/* The largest single allocation node of a graph on each device, 0: none there. */
struct vcap_graph_needs {
    bool any;
    uint64_t largest[VCAP_DEVICES_MAX];
};

/* Looks through a graph and its child graphs. */
void vcap_graph_look(CUgraph graph, struct vcap_graph_needs *needs);

/* Remembers them for an executable graph; nothing is remembered for one without. */
void vcap_graph_enter(CUgraphExec exec, const struct vcap_graph_needs *needs);

/* False: it has no allocation node (one load while no graph of the process has). */
bool vcap_graph_needs_of(CUgraphExec exec, struct vcap_graph_needs *needs, bool *mapped);

/* Before the driver destroys it; true: it had nodes. */
bool vcap_graph_take(CUgraphExec exec, struct vcap_graph_needs *needs);

/*
 * Before an upload or launch: CUDA_ERROR_OUT_OF_MEMORY (said, counted) if the largest node has no room even
 * in what the graph pool holds unused.  mapped: it ran since the last trim, so its memory is there already.
 */
CUresult vcap_graph_run_begin(unsigned row, const struct vcap_graph_needs *needs, bool mapped);

/* After it: the devices' reserve is booked, with room or without. */
void vcap_graph_run_end(unsigned row, CUgraphExec exec, const struct vcap_graph_needs *needs,
                        CUresult result);

/* Around any other call that moves a device's graph pool.  trimmed: no graph is mapped any more. */
void vcap_graph_change_begin(CUdevice ordinal);
void vcap_graph_change_end(CUdevice ordinal, unsigned row, bool trimmed);

/* Does the graph pool of a device hold something?  A hint. */
bool vcap_graphs_hold(CUdevice ordinal);

/* Is a call under way that may move what the pool for graphs of a device holds, or has moved it and is not
 * booked yet? */
bool vcap_graphs_busy(CUdevice ordinal);

/* On the way to a refusal: gives back what it holds idle. */
void vcap_graphs_trim(CUdevice ordinal, unsigned row);

/* In a forked child: the graphs are the parent's. */
void vcap_graphs_forget(void);

#endif
