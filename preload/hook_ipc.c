/*
 * Inter-process handles.  The driver counts opens per process and gives the same pointer every time:
 * the first open shows or charges, the last close ends it, and so does the context's end.  What is
 * opened is never cuMemFree's: its records have a kind of their own.
 */
#include <pthread.h>
#include <string.h>

#include "enforcer/rules.h"
#include "preload/charge.h"
#include "preload/fault.h"
#include "preload/overhead.h"
#include "preload/share.h"

/* Opens and closes against each other, where one changes `opens` and takes or enters a record.  A record of
 * ours may vanish under it with its context. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void vcap_opens_forget(void)
{
    const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

    memcpy(&lock, &fresh, sizeof(fresh));
}

static uint64_t key_of(CUdeviceptr pointer)
{
    return vcap_live_key(VCAP_LIVE_OPENED, pointer);
}

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    CUresult result;

    VCAP_ENTER(cuIpcGetMemHandle, (pHandle, dptr));
    result = VCAP_CALL(cuIpcGetMemHandle, pHandle, dptr);
    if (result == CUDA_SUCCESS && vcap_own.cuMemGetAddressRange_v2 != NULL &&
        vcap_own.cuMemGetAddressRange_v2(&base, &size, dptr) == CUDA_SUCCESS)
        vcap_export_note(base, size, vcap_export_hash(pHandle, sizeof(*pHandle)));
    return result;
}

static void one_more(struct vcap_live *record, void *arg)
{
    record->opens++;
    *(bool *)arg = true;
}

static void one_less(struct vcap_live *record, void *arg)
{
    *(bool *)arg = --record->opens == 0;
}

static CUresult nothing_to_give_back(uint64_t pointer)
{
    (void)pointer; /* the caller closes it */
    return CUDA_SUCCESS;
}

/* The driver has opened it: shown, or charged, or refused. */
static CUresult opened(unsigned row, CUdeviceptr pointer, const CUipcMemHandle *handle)
{
    uint64_t bytes;
    CUdeviceptr base = 0;
    size_t size = 0;
    struct vcap_charge c = {.active = false};
    CUdevice ordinal = -1;
    CUcontext context = NULL;
    CUresult result = CUDA_SUCCESS;
    bool again = false, shown = false;

    if (vcap_own.cuMemGetAddressRange_v2 == NULL || vcap_own.cuCtxGetCurrent == NULL ||
        vcap_own.cuCtxGetDevice == NULL ||
        vcap_own.cuMemGetAddressRange_v2(&base, &size, pointer) != CUDA_SUCCESS ||
        vcap_own.cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
        vcap_own.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    bytes = vcap_rule_linear(size);
    shown = vcap_export_by_others(&ordinal, size, vcap_export_hash(handle, sizeof(*handle)));
    pthread_mutex_lock(&lock);
    vcap_live_with(key_of(pointer), one_more, &again);
    if (!again && shown)
        vcap_import_enter(VCAP_LIVE_OPENED, pointer, context, ordinal, bytes);
    pthread_mutex_unlock(&lock);
    if (again || shown)
        return CUDA_SUCCESS;
    result = vcap_charge_begin(&c, row, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    c.unsure = true;
    pthread_mutex_lock(&lock);
    vcap_live_with(key_of(pointer), one_more, &again);
    /* another thread has opened it meanwhile: what is reserved goes back */
    result = vcap_charge_end_as(&c, again ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS, VCAP_LIVE_OPENED,
                                pointer, bytes, nothing_to_give_back);
    pthread_mutex_unlock(&lock);
    return again ? CUDA_SUCCESS : result;
}

/* One body for both ABIs. */
#define OPEN(function)                                                                             \
    CUdeviceptr pointer = 0;                                                                       \
    CUresult result;                                                                               \
                                                                                                   \
    VCAP_ENTER(function, (pdptr, handle, Flags));                                                  \
    if (vcap_mode_now() == VCAP_MODE_DENY)                                                         \
        return vcap_deny(VCAP_ROW_##function);                                                     \
    vcap_overhead_open_begin();                                                                    \
    result = VCAP_CALL(function, pdptr != NULL ? &pointer : NULL, handle, Flags);                  \
    if (result == CUDA_SUCCESS) {                                                                  \
        result = opened(VCAP_ROW_##function, pointer, &handle);                                    \
        if (result != CUDA_SUCCESS)                                                                \
            real.cuIpcCloseMemHandle(pointer);                                                     \
        else if (pdptr != NULL)                                                                    \
            *pdptr = pointer;                                                                      \
    }                                                                                              \
    vcap_overhead_open_end();                                                                      \
    return result

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    OPEN(cuIpcOpenMemHandle);
}

CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle,
                                       unsigned int Flags)
{
    OPEN(cuIpcOpenMemHandle_v2);
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    struct vcap_live record;
    bool last = false, ours, again = false;
    CUresult result;

    VCAP_ENTER(cuIpcCloseMemHandle, (dptr));
    pthread_mutex_lock(&lock);
    vcap_live_with(key_of(dptr), one_less, &last);
    ours = last && vcap_live_take(key_of(dptr), &record);
    pthread_mutex_unlock(&lock);
    result = VCAP_CALL(cuIpcCloseMemHandle, dptr);
    if (result == CUDA_SUCCESS) {
        if (ours)
            vcap_record_release(&record);
        return result;
    }
    pthread_mutex_lock(&lock);
    vcap_live_with(key_of(dptr), one_more, &again);
    if (ours && again) { /* opened anew meanwhile, with a record of its own */
        vcap_record_release(&record);
    } else if (ours) {
        record.opens = 1;
        vcap_release_end(result, true, &record);
    }
    pthread_mutex_unlock(&lock);
    return result;
}
