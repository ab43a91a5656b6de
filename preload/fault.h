/*
 * Device faults that stay: after one of them every later call of the process (or of the context) fails with
 * it, and where processes share a failure domain (MPS) the neighbours' calls too.  The first one that a
 * process sees, at any hooked call, is kept in its slot with code and time: compared over a container's
 * processes and its neighbours', that says who faulted first.
 */
#ifndef VRAMCAP_PRELOAD_FAULT_H
#define VRAMCAP_PRELOAD_FAULT_H

#include <stdbool.h>

#include "preload/cuda_api.h"

/* result is no success: looked at, kept if it is such a fault and the first. */
void vcap_fault_note(CUresult result, unsigned row);

/* A release of something that is not on record here: freed before, or never allocated.  Counted as an
 * anomaly where the driver says that it does not know it either. */
void vcap_bad_release_note(unsigned row);

static inline void vcap_release_seen(CUresult result, bool ours, unsigned row)
{
    if (__builtin_expect(result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE,
                         0) &&
        !ours)
        vcap_bad_release_note(row);
}

/* Hands a driver call's result on. */
static inline CUresult vcap_fault_seen(CUresult result, unsigned row)
{
    if (__builtin_expect(result != CUDA_SUCCESS, 0))
        vcap_fault_note(result, row);
    return result;
}

/* How a hook makes the program's own call, with its arguments behind the name.  What a hook asks on its own
 * account, or gives back, goes to real.X: its result is not the program's. */
#define VCAP_CALL(function, ...) vcap_fault_seen(real.function(__VA_ARGS__), VCAP_ROW_##function)

#endif
