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

#endif
