/*
 * Events: a time stamp, taken when recorded. Everything before it is already done.
 *
 * The same events may be recorded and queried by several threads: the two words are
 * atomic.
 */
#define _GNU_SOURCE
#include "sim_capture.h"

#include <time.h>

static struct sim_object *event_of(CUevent event)
{
    struct sim_object *object = (struct sim_object *)(void *)event;

    return object && object->kind == SIM_EVENT ? object : NULL;
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    SIM_ENTER(cuEventCreate);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (!phEvent)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    struct sim_object *object = sim_object_new(context, SIM_EVENT);
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->flags = Flags;
    *phEvent = (CUevent)(void *)object;
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    struct sim_object *object = event_of(event);

    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    sim_capture_event_gone(event);
    sim_object_delete(object);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent hEvent)
{
    SIM_ENTER(cuEventDestroy);
    return event_destroy(hEvent);
}

CUresult cuEventDestroy_v2(CUevent hEvent)
{
    SIM_ENTER(cuEventDestroy_v2);
    return event_destroy(hEvent);
}

static CUresult event_record(CUevent event, CUstream stream, unsigned int flags)
{
    struct sim_object *object = event_of(event);
    struct sim_context *context = NULL;
    struct timespec now;

    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult rc = sim_stream_context(stream, &context);
    if (rc != CUDA_SUCCESS)
        return rc;
    if ((flags & CU_EVENT_RECORD_EXTERNAL) != 0) {
        if (sim_capture_event_node(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, stream, context, &rc))
            return rc;
    } else if (sim_capture_record(event, stream, context, &rc)) {
        __atomic_store_n(&object->captured, rc == CUDA_SUCCESS ? 1U : 0U, __ATOMIC_RELEASE);
        return rc;
    }
    __atomic_store_n(&object->captured, 0U, __ATOMIC_RELEASE);
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    __atomic_store_n(&object->time_ns, (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec,
                     __ATOMIC_RELAXED);
    __atomic_store_n(&object->stream, sim_stream_identity(stream, context), __ATOMIC_RELAXED);
    __atomic_store_n(&object->sequence, sim_pools_sequence(), __ATOMIC_RELAXED);
    __atomic_store_n(&object->recorded, 1U, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    SIM_ENTER(cuEventRecord);
    return event_record(hEvent, hStream, 0);
}

CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream)
{
    SIM_ENTER(cuEventRecord_ptsz);
    return event_record(hEvent, sim_stream_twin(hStream), 0);
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    SIM_ENTER(cuEventRecordWithFlags);
    return event_record(hEvent, hStream, flags);
}

CUresult cuEventRecordWithFlags_ptsz(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    SIM_ENTER(cuEventRecordWithFlags_ptsz);
    return event_record(hEvent, sim_stream_twin(hStream), flags);
}

CUresult cuEventQuery(CUevent hEvent)
{
    SIM_ENTER(cuEventQuery);
    struct sim_object *object = event_of(hEvent);

    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    return __atomic_load_n(&object->captured, __ATOMIC_ACQUIRE) == 1 ? CUDA_ERROR_CAPTURED_EVENT
                                                                     : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent hEvent)
{
    SIM_ENTER(cuEventSynchronize);
    struct sim_object *object = event_of(hEvent);

    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    if (__atomic_load_n(&object->captured, __ATOMIC_ACQUIRE) == 1)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (__atomic_load_n(&object->recorded, __ATOMIC_ACQUIRE) == 1)
        sim_pools_synchronised(__atomic_load_n(&object->stream, __ATOMIC_RELAXED),
                               __atomic_load_n(&object->sequence, __ATOMIC_RELAXED));
    return CUDA_SUCCESS;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
    struct sim_object *from = event_of(start), *to = event_of(end);

    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    if (!from || !to || __atomic_load_n(&from->recorded, __ATOMIC_ACQUIRE) == 0 ||
        __atomic_load_n(&to->recorded, __ATOMIC_ACQUIRE) == 0)
        return CUDA_ERROR_INVALID_HANDLE;
    int64_t ns = (int64_t)(__atomic_load_n(&to->time_ns, __ATOMIC_RELAXED) -
                           __atomic_load_n(&from->time_ns, __ATOMIC_RELAXED));
    *milliseconds = (float)((double)ns / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    SIM_ENTER(cuEventElapsedTime);
    return elapsed(pMilliseconds, hStart, hEnd);
}

CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    SIM_ENTER(cuEventElapsedTime_v2);
    return elapsed(pMilliseconds, hStart, hEnd);
}
