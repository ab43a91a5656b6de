/*
 * What programs are told: the truth under the ceiling.  Only outputs that the caller asked for are
 * adjusted, NULLs go to the driver as they came.  Audit and passive: untouched.  Denied: nothing is
 * free.
 */
#include <limits.h>
#include <string.h>

#include "enforcer/ledger_reap.h"
#include "preload/fault.h"
#include "preload/overhead.h"
#include "preload/preload.h"
#include "preload/renew.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/*
 * The present ceiling of the current context's device and what is free below it.  False: no ceiling
 * here, the driver's own figures stand.
 */
static bool view(uint64_t *ceiling, uint64_t *room)
{
    struct vcap_device *device;
    CUdevice ordinal = -1;
    uint64_t held;

    if (vcap_mode_now() != VCAP_MODE_ENFORCE || vcap_own.cuCtxGetDevice == NULL ||
        vcap_own.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS)
        return false;
    device = vcap_device(ordinal);
    if (device == NULL)
        return false;
    vcap_ledger_follow();
    *ceiling = vcap_device_ceiling(device);
    if (*ceiling == VCAP_NO_LIMIT)
        return false;
    vcap_ledger_reap_sometimes(vcap_ledger_now());
    held = vcap_ledger_held(vcap_ledger_now(), device->gpu);
    *room = held < *ceiling ? *ceiling - held : 0;
    *ceiling = least(*ceiling, device->card_bytes != 0 ? device->card_bytes : *ceiling);
    return true;
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *free, size_t *total)
{
    size_t driver_free = 0, driver_total = 0;
    struct vcap_overhead_reading reading;
    uint64_t ceiling, room;
    CUresult result;

    VCAP_ENTER(cuMemGetInfo_v2, (free, total));
    vcap_overhead_asked_begin(&reading);
    result = VCAP_CALL(cuMemGetInfo_v2, free != NULL ? &driver_free : NULL,
                       total != NULL ? &driver_total : NULL);
    if (result != CUDA_SUCCESS)
        return result;
    if (free != NULL && total != NULL)
        vcap_overhead_ask_end(&reading, driver_free, driver_total);
    if (vcap_mode_now() == VCAP_MODE_DENY) {
        driver_free = 0;
    } else if (view(&ceiling, &room)) {
        driver_total = least(driver_total, ceiling);
        driver_free = least(least(driver_free, room), ceiling);
    }
    if (free != NULL)
        *free = driver_free;
    if (total != NULL)
        *total = driver_total;
    return result;
}

CUresult CUDAAPI cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    unsigned int driver_free = 0, driver_total = 0;
    uint64_t ceiling, room;
    CUresult result;

    VCAP_ENTER(cuMemGetInfo, (free, total));
    result = VCAP_CALL(cuMemGetInfo, free != NULL ? &driver_free : NULL,
                       total != NULL ? &driver_total : NULL);
    if (result != CUDA_SUCCESS)
        return result;
    if (vcap_mode_now() == VCAP_MODE_DENY) {
        driver_free = 0;
    } else if (view(&ceiling, &room)) {
        driver_total = (unsigned int)least(driver_total, least(ceiling, UINT_MAX));
        driver_free = (unsigned int)least(least(driver_free, least(room, UINT_MAX)), ceiling);
    }
    if (free != NULL)
        *free = driver_free;
    if (total != NULL)
        *total = driver_total;
    return result;
}

/* A device's total under its ceiling; the driver's own where there is none. */
static uint64_t total_under_ceiling(CUdevice dev, uint64_t total)
{
    const struct vcap_device *device =
        vcap_mode_now() == VCAP_MODE_ENFORCE ? vcap_device(dev) : NULL;

    return device == NULL ? total : least(total, vcap_device_ceiling(device));
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    size_t total = 0;
    CUresult result;

    VCAP_ENTER(cuDeviceTotalMem_v2, (bytes, dev));
    result = VCAP_CALL(cuDeviceTotalMem_v2, bytes != NULL ? &total : NULL, dev);
    if (result == CUDA_SUCCESS && bytes != NULL)
        *bytes = total_under_ceiling(dev, total);
    return result;
}

CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
    unsigned int total = 0;
    CUresult result;

    VCAP_ENTER(cuDeviceTotalMem, (bytes, dev));
    result = VCAP_CALL(cuDeviceTotalMem, bytes != NULL ? &total : NULL, dev);
    if (result == CUDA_SUCCESS && bytes != NULL)
        *bytes = (unsigned int)total_under_ceiling(dev, total);
    return result;
}
