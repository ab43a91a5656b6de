/*
 * Streams, and the list of things that live in a context.
 *
 * Work is done before the call returns, so every stream is always idle; order and
 * waiting are trivially right. Capture is in sim_capture.c. Handles are addresses of records
 * in the context's list; a record ends with its own destroy call or with the context.
 */
#include "sim_capture.h"

#include <stdlib.h>

static uint64_t next_id = 1; /* sim_lock */

struct sim_object *sim_object_new(struct sim_context *context, enum sim_kind kind)
{
    struct sim_object *object = calloc(1, sizeof *object);

    if (!object)
        return NULL;
    object->kind = kind;
    object->context = context;
    sim_lock_take();
    object->id = next_id++;
    object->next = context->objects;
    if (context->objects)
        context->objects->previous = object;
    context->objects = object;
    sim_lock_drop();
    return object;
}

void sim_object_delete(struct sim_object *object)
{
    sim_lock_take();
    if (object->previous)
        object->previous->next = object->next;
    else
        object->context->objects = object->next;
    if (object->next)
        object->next->previous = object->previous;
    sim_lock_drop();
    free(object);
}

void sim_objects_clear(struct sim_context *context)
{
    sim_capture_context_gone(context);
    while (context->objects) {
        struct sim_object *object = context->objects;

        context->objects = object->next;
        free(object);
    }
}

static struct sim_object *stream_of(CUstream stream)
{
    struct sim_object *object = (struct sim_object *)(void *)stream;

    return (uintptr_t)stream > 2 && object->kind == SIM_STREAM ? object : NULL;
}

CUresult sim_stream_context(CUstream stream, struct sim_context **context)
{
    if ((uintptr_t)stream <= 2) /* default, legacy, per-thread */
        return sim_context_current(context);
    struct sim_object *object = stream_of(stream);
    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    *context = object->context;
    return CUDA_SUCCESS;
}

uint64_t sim_stream_identity(CUstream stream, const struct sim_context *context)
{
    if ((uintptr_t)stream > 2)
        return stream_of(stream)->id;
    if (stream != CU_STREAM_PER_THREAD)
        return UINT64_C(1) << 63 | context->id;
    return UINT64_C(1) << 62 | sim_thread_number() << 32 | context->id;
}

bool sim_stream_is_blocking(CUstream stream)
{
    return (uintptr_t)stream <= 2 || (stream_of(stream)->flags & CU_STREAM_NON_BLOCKING) == 0;
}

static CUresult stream_create(CUstream *handle, unsigned int flags, int priority)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (!handle || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    struct sim_object *object = sim_object_new(context, SIM_STREAM);
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->flags = flags;
    object->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    *handle = (CUstream)(void *)object;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    SIM_ENTER(cuStreamCreate);
    return stream_create(phStream, Flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    SIM_ENTER(cuStreamCreateWithPriority);
    return stream_create(phStream, flags, priority);
}

static CUresult stream_destroy(CUstream stream)
{
    struct sim_object *object = stream_of(stream);

    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    sim_lock_take();
    sim_capture_stream_gone(object->id);
    sim_lock_drop();
    sim_object_delete(object);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream hStream)
{
    SIM_ENTER(cuStreamDestroy);
    return stream_destroy(hStream);
}

CUresult cuStreamDestroy_v2(CUstream hStream)
{
    SIM_ENTER(cuStreamDestroy_v2);
    return stream_destroy(hStream);
}

/* A stream function and its per-thread twin: one body, two entries. */
#define STREAM_API(symbol, twin, parameters, call)                                                 \
    CUresult symbol parameters                                                                     \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        return call;                                                                               \
    }                                                                                              \
    CUresult twin parameters                                                                       \
    {                                                                                              \
        SIM_ENTER(twin);                                                                           \
        hStream = sim_stream_twin(hStream);                                                        \
        return call;                                                                               \
    }

static CUresult idle(CUstream stream)
{
    struct sim_context *context = NULL;

    return sim_stream_context(stream, &context);
}

static CUresult query(CUstream stream)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    return rc == CUDA_SUCCESS ? sim_capture_wait(stream, context, false) : rc;
}

static CUresult synchronise(CUstream stream)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    if (rc == CUDA_SUCCESS)
        rc = sim_capture_wait(stream, context, false);

    if (rc == CUDA_SUCCESS)
        sim_pools_synchronised(sim_stream_identity(stream, context), UINT64_MAX);
    return rc;
}

STREAM_API(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream hStream), synchronise(hStream))
STREAM_API(cuStreamQuery, cuStreamQuery_ptsz, (CUstream hStream), query(hStream))

static CUresult wait_event(CUstream stream, CUevent event, unsigned int flags)
{
    struct sim_object *object = (struct sim_object *)(void *)event;
    struct sim_context *context = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    if (!object || object->kind != SIM_EVENT)
        return CUDA_ERROR_INVALID_HANDLE;
    if (rc != CUDA_SUCCESS)
        return rc;
    bool recorded = __atomic_load_n(&object->recorded, __ATOMIC_ACQUIRE) == 1;
    if ((flags & CU_EVENT_WAIT_EXTERNAL) != 0) {
        if (sim_capture_event_node(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, stream, context, &rc))
            return rc;
    } else if (sim_capture_wait_event(event, stream, context, recorded, &rc)) {
        return rc;
    }
    if (__atomic_load_n(&object->captured, __ATOMIC_ACQUIRE) == 1)
        return CUDA_ERROR_CAPTURED_EVENT; /* its capture has ended */
    if (recorded)
        sim_pools_follow(sim_stream_identity(stream, context),
                         __atomic_load_n(&object->stream, __ATOMIC_RELAXED),
                         __atomic_load_n(&object->sequence, __ATOMIC_RELAXED));
    return rc;
}

STREAM_API(cuStreamWaitEvent, cuStreamWaitEvent_ptsz,
           (CUstream hStream, CUevent hEvent, unsigned int Flags),
           wait_event(hStream, hEvent, Flags))

static CUresult stream_context(CUstream stream, CUcontext *pctx)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc == CUDA_SUCCESS)
        *pctx = sim_context_handle(context);
    return rc;
}

static CUresult stream_context_v2(CUstream stream, CUcontext *pctx, CUgreenCtx *green)
{
    CUresult rc = stream_context(stream, pctx);

    if (rc == CUDA_SUCCESS && green)
        *green = NULL;
    return rc;
}

STREAM_API(cuStreamGetCtx, cuStreamGetCtx_ptsz, (CUstream hStream, CUcontext *pctx),
           stream_context(hStream, pctx))
STREAM_API(cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz,
           (CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx),
           stream_context_v2(hStream, pCtx, pGreenCtx))

static CUresult stream_device(CUstream stream, CUdevice *device)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_stream_context(stream, &context);

    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc == CUDA_SUCCESS)
        *device = context->device;
    return rc;
}

STREAM_API(cuStreamGetDevice, cuStreamGetDevice_ptsz, (CUstream hStream, CUdevice *device),
           stream_device(hStream, device))

static CUresult stream_flags(CUstream stream, unsigned int *flags)
{
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = idle(stream);
    if (rc == CUDA_SUCCESS)
        *flags = (uintptr_t)stream > 2 ? stream_of(stream)->flags : 0;
    return rc;
}

static CUresult stream_priority(CUstream stream, int *priority)
{
    if (!priority)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = idle(stream);
    if (rc == CUDA_SUCCESS)
        *priority = (uintptr_t)stream > 2 ? stream_of(stream)->priority : 0;
    return rc;
}

static CUresult stream_id(CUstream stream, unsigned long long *id)
{
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = idle(stream);
    if (rc == CUDA_SUCCESS)
        *id = (uintptr_t)stream > 2 ? stream_of(stream)->id : (uintptr_t)stream;
    return rc;
}

STREAM_API(cuStreamGetFlags, cuStreamGetFlags_ptsz, (CUstream hStream, unsigned int *flags),
           stream_flags(hStream, flags))
STREAM_API(cuStreamGetPriority, cuStreamGetPriority_ptsz, (CUstream hStream, int *priority),
           stream_priority(hStream, priority))
STREAM_API(cuStreamGetId, cuStreamGetId_ptsz, (CUstream hStream, unsigned long long *streamId),
           stream_id(hStream, streamId))

/* Not capturable, unlike cuLaunchHostFunc. */
static CUresult callback(CUstream stream, CUstreamCallback function, void *data)
{
    CUresult rc = query(stream);

    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc == CUDA_SUCCESS)
        function(stream, CUDA_SUCCESS, data);
    return rc;
}

STREAM_API(cuStreamAddCallback, cuStreamAddCallback_ptsz,
           (CUstream hStream, CUstreamCallback callback_, void *userData, unsigned int flags),
           ((void)flags, callback(hStream, callback_, userData)))
STREAM_API(cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz,
           (CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags),
           ((void)length, (void)flags, dptr ? idle(hStream) : CUDA_ERROR_INVALID_VALUE))
