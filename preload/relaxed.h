/*
 * Driver calls that a hook makes on its own account stand between these two.  A call such as reading
 * a pool's attribute fails while this thread, or any other in GLOBAL mode, captures a stream, and spoils
 * that capture; in RELAXED mode it does neither.  The program's own calls always run in its own mode.
 */
#ifndef VRAMCAP_PRELOAD_RELAXED_H
#define VRAMCAP_PRELOAD_RELAXED_H

#include "preload/cuda_api.h"

struct vcap_relaxed {
    CUstreamCaptureMode mode; /* the thread's own */
    bool changed;
};

static inline struct vcap_relaxed vcap_relaxed_begin(void)
{
    struct vcap_relaxed r = {.mode = CU_STREAM_CAPTURE_MODE_RELAXED, .changed = false};

    r.changed = vcap_own.cuThreadExchangeStreamCaptureMode != NULL &&
                vcap_own.cuThreadExchangeStreamCaptureMode(&r.mode) == CUDA_SUCCESS;
    return r;
}

static inline void vcap_relaxed_end(struct vcap_relaxed r)
{
    if (r.changed)
        vcap_own.cuThreadExchangeStreamCaptureMode(&r.mode);
}

/* What a per-thread twin's stream is called elsewhere. */
static inline CUstream vcap_stream_of_thread(CUstream stream)
{
    return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

enum vcap_stream_doing {
    VCAP_STREAM_NORMAL,
    VCAP_STREAM_CAPTURING, /* calls become nodes */
    VCAP_STREAM_UNKNOWN    /* its capture is spoiled, or it cannot be asked: the driver will say */
};

/* In relaxed mode. */
static inline enum vcap_stream_doing vcap_stream_ask(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    if (vcap_own.cuStreamIsCapturing == NULL)
        return VCAP_STREAM_NORMAL; /* older than capture */
    if (vcap_own.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS)
        return VCAP_STREAM_UNKNOWN; /* CUDA_ERROR_STREAM_CAPTURE_IMPLICIT is usual on the legacy stream */
    return status == CU_STREAM_CAPTURE_STATUS_NONE     ? VCAP_STREAM_NORMAL
           : status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? VCAP_STREAM_CAPTURING
                                                       : VCAP_STREAM_UNKNOWN;
}

static inline enum vcap_stream_doing vcap_stream_doing(CUstream stream)
{
    struct vcap_relaxed r = vcap_relaxed_begin();
    enum vcap_stream_doing doing = vcap_stream_ask(stream);

    vcap_relaxed_end(r);
    return doing;
}

#endif
