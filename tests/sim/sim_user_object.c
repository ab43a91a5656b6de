/*
 * User objects: a reference count of the caller's own, with a function to call when it reaches zero.
 * Graphs hold references; a copy of a graph (a clone, an executable's plan) holds as many as its model.
 *
 * Everything is under sim_lock but the caller's functions: an object without references waits in a list
 * until the next of these calls, or the next end of a graph, has dropped the lock. The driver calls them
 * from a thread of its own, at some time after the last reference went.
 */
#include "sim_graph.h"

#include <limits.h>
#include <stdlib.h>

struct sim_user_object {
    void *pointer;
    CUhostFn destroy;
    uint64_t references;
    struct sim_user_object *next;
};

struct sim_user_hold {
    struct sim_user_object *object;
    uint64_t count;
    struct sim_user_hold *next;
};

static struct sim_user_object *objects, *unreferenced; /* under sim_lock */

static struct sim_user_object **place_of(const void *handle)
{
    for (struct sim_user_object **at = &objects; *at; at = &(*at)->next)
        if (*at == handle)
            return at;
    return NULL;
}

static void release(struct sim_user_object *object, uint64_t count)
{
    struct sim_user_object **at = place_of(object);

    object->references -= count;
    if (object->references > 0 || !at)
        return;
    *at = object->next;
    object->next = unreferenced;
    unreferenced = object;
}

static struct sim_user_hold **hold_of(struct sim_graph *graph, const struct sim_user_object *object)
{
    struct sim_user_hold **at = &graph->holds;

    while (*at && (*at)->object != object)
        at = &(*at)->next;
    return at;
}

static bool hold(struct sim_graph *graph, struct sim_user_object *object, uint64_t count)
{
    struct sim_user_hold **at = hold_of(graph, object);

    if (!*at)
        *at = calloc(1, sizeof **at);
    if (!*at)
        return false;
    (*at)->object = object;
    (*at)->count += count;
    return true;
}

bool sim_user_holds_copy(const struct sim_graph *from, struct sim_graph *to)
{
    for (const struct sim_user_hold *model = from->holds; model; model = model->next) {
        if (!hold(to, model->object, model->count))
            return false;
        model->object->references += model->count;
    }
    return true;
}

void sim_user_holds_end(struct sim_graph *graph)
{
    while (graph->holds) {
        struct sim_user_hold *first = graph->holds;

        graph->holds = first->next;
        release(first->object, first->count);
        free(first);
    }
}

void sim_user_objects_finish(void)
{
    for (;;) {
        sim_lock_take();
        struct sim_user_object *object = unreferenced;
        if (object)
            unreferenced = object->next;
        sim_lock_drop();
        if (!object)
            return;
        object->destroy(object->pointer);
        free(object);
    }
}

CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
                            unsigned int initialRefcount, unsigned int flags)
{
    SIM_ENTER(cuUserObjectCreate);
    if (!object_out || !destroy || initialRefcount == 0 || initialRefcount > INT_MAX ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_user_object *object = calloc(1, sizeof *object);
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->pointer = ptr;
    object->destroy = destroy;
    object->references = initialRefcount;
    sim_lock_take();
    object->next = objects;
    objects = object;
    sim_lock_drop();
    *object_out = (CUuserObject)(void *)object;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    SIM_ENTER(cuUserObjectRetain);
    sim_lock_take();
    struct sim_user_object **at = place_of(object);
    bool good = at && count > 0 && count <= INT_MAX;
    if (good)
        (*at)->references += count;
    sim_lock_drop();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    SIM_ENTER(cuUserObjectRelease);
    sim_lock_take();
    struct sim_user_object **at = place_of(object);
    bool good = at && count > 0 && count <= (*at)->references;
    if (good)
        release(*at, count);
    sim_lock_drop();
    sim_user_objects_finish();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                 unsigned int flags)
{
    SIM_ENTER(cuGraphRetainUserObject);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;

    sim_lock_take();
    struct sim_graph *holder = sim_graph_from(graph);
    struct sim_user_object **at = place_of(object);
    bool move = flags == CU_GRAPH_USER_OBJECT_MOVE;
    if (holder && at && count > 0 && count <= INT_MAX && (move || flags == 0) &&
        (!move || count <= (*at)->references)) {
        rc = hold(holder, *at, count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (rc == CUDA_SUCCESS && !move)
            (*at)->references += count;
    }
    sim_lock_drop();
    return rc;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    SIM_ENTER(cuGraphReleaseUserObject);
    sim_lock_take();
    struct sim_graph *holder = sim_graph_from(graph);
    struct sim_user_object **at = place_of(object);
    struct sim_user_hold **held = holder && at ? hold_of(holder, *at) : NULL;
    bool good = held && *held && count > 0 && count <= (*held)->count;
    if (good) {
        struct sim_user_hold *gone = *held;

        gone->count -= count;
        release(gone->object, count);
        if (gone->count == 0) {
            *held = gone->next;
            free(gone);
        }
    }
    sim_lock_drop();
    sim_user_objects_finish();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
