/*
 * Graphs, as their own files share them: sim_graph.c (structure), sim_graph_nodes.c (nodes
 * by type), sim_graph_memory.c (memory of allocation nodes), sim_graph_exec.c (executable
 * graphs) and sim_capture.c, which makes nodes out of calls.
 *
 * A handle is the address of a record and is looked for in the lists before it is followed.
 * Everything here is under sim_lock, but for the running of an executable graph.
 */
#ifndef VRAMCAP_SIM_GRAPH_H
#define VRAMCAP_SIM_GRAPH_H

#include "sim_internal.h"

struct sim_graph;
struct sim_user_hold;

/* What an allocation node allocates. Its address is fixed; card memory is behind it from a
 * launch that allocates to what frees it. Kept by its nodes and by being live. */
struct sim_memory {
    uint64_t base;
    size_t bytes;
    uint64_t span;
    CUdevice device;
    unsigned int references;
    bool live;
    bool freed_inside, freed_outside; /* there is a free node in its own graph, in another */
    struct sim_graph *home;
    uint64_t offset; /* while a footprint is computed */
    struct sim_memory *next;
};

struct sim_node {
    struct sim_graph *graph;
    CUgraphNodeParams params;
    struct sim_graph *child;   /* GRAPH nodes: owned */
    struct sim_memory *memory; /* MEM_ALLOC, MEM_FREE */
    struct sim_node **before;
    size_t before_count;
    struct sim_node *original; /* in a clone: its model, maybe gone; compared, not followed */
    uint64_t mark;
    bool disabled;
    struct sim_node *next;
};

struct sim_graph {
    struct sim_node *first, *last;
    size_t count;
    struct sim_node *inside; /* the node that owns it */
    bool capturing, plan;    /* plan: an executable graph's own copy */
    unsigned int executables;
    struct sim_graph *original;
    struct sim_user_hold *holds; /* sim_user_object.c */
    struct sim_graph *next;
};

struct sim_executable {
    struct sim_graph *plan, *source; /* source: NULL when that graph is gone */
    struct sim_node **order;
    size_t count;
    cuuint64_t flags;
    bool mapped;                       /* uploaded or launched, not trimmed since */
    uint64_t footprint[SIM_MAX_CARDS]; /* by device */
    struct sim_executable *next;
};

extern struct sim_executable *sim_executables;

/* --- sim_graph.c --- */

struct sim_graph *sim_graph_from(CUgraph handle);
struct sim_node *sim_node_from(CUgraphNode handle);
struct sim_graph *sim_graph_new(void);
void sim_graph_delete(struct sim_graph *graph);
bool sim_graph_has_memory(const struct sim_graph *graph);
/* NULL without memory. A `plan` shares memory with its model; nothing else may have any. */
struct sim_graph *sim_graph_copy(const struct sim_graph *graph, bool plan);
/* Adds a node. `params` is changed as the driver does (alloc.dptr). */
CUresult sim_graph_add(struct sim_graph *graph, const CUgraphNode *before, size_t count,
                       CUgraphNodeParams *params, struct sim_node **made);
bool sim_edge_add(struct sim_node *from, struct sim_node *to);
bool sim_edge_exists(const struct sim_node *from, const struct sim_node *to);
bool sim_node_depends(struct sim_node *node, struct sim_node *on);
/* Marks everything that comes before the node, in its graph and around it; the mark. */
uint64_t sim_node_mark_before(struct sim_node *node);
/* All leaves in an order that keeps dependencies, into a new array; false on a cycle. */
bool sim_graph_order(struct sim_graph *graph, struct sim_node ***order, size_t *count);

static inline CUgraph sim_graph_handle(struct sim_graph *graph)
{
    return (CUgraph)(void *)graph;
}
static inline CUgraphNode sim_node_handle(struct sim_node *node)
{
    return (CUgraphNode)(void *)node;
}

/* --- sim_graph_exec.c --- */

CUresult sim_executable_set(CUgraphExec handle, CUgraphNode node, const CUgraphNodeParams *params);
/* The executable's plan, for a launch that is captured; NULL if it has memory nodes. */
struct sim_graph *sim_executable_plan(CUgraphExec handle);

/* --- sim_graph_memory.c --- */

CUresult sim_memory_new(struct sim_node *node, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *params);
CUresult sim_memory_free_node(struct sim_node *node, CUdeviceptr address);
void sim_memory_keep(struct sim_memory *memory);
void sim_memory_drop(struct sim_memory *memory);
/* Computes the executable's footprint per device. */
void sim_memory_footprint(struct sim_executable *executable);
/* Makes room on the card for the executable to run. */
CUresult sim_memory_map(struct sim_executable *executable);
void sim_memory_set_live(struct sim_memory *memory, bool live);
bool sim_memory_is_graphs(struct sim_owner *owner);

/* --- sim_user_object.c --- */

/* The copy holds what its model does; false without memory. */
bool sim_user_holds_copy(const struct sim_graph *from, struct sim_graph *to);
void sim_user_holds_end(struct sim_graph *graph);
/* Calls what is due for objects without references. Without sim_lock. */
void sim_user_objects_finish(void);

/* --- sim_copy.c, sim_memset.c: without sim_lock --- */

CUresult sim_copy_run(const CUDA_MEMCPY3D *copy);
CUresult sim_memset_run(const CUDA_MEMSET_NODE_PARAMS_v2 *set);

#endif
