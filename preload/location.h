/*
 * Where a CUmemLocation is.  Since CUDA 13.4 there is a second way to name device memory: a locality
 * domain of a device (type 6; the device is the first byte of the union that used to be the id alone, by
 * cuda.h of CUDA 13.5).  What lies in a domain is charged to its device like anything else.  The number
 * stands here because the build's headers may be older than the driver.
 */
#ifndef VRAMCAP_PRELOAD_LOCATION_H
#define VRAMCAP_PRELOAD_LOCATION_H

#include <string.h>

#include "preload/cuda_api.h"

#define VCAP_LOCATION_LOCALITY_DOMAIN 6 /* CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN */
#if CUDA_VERSION >= 13050
_Static_assert(VCAP_LOCATION_LOCALITY_DOMAIN == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN &&
                   __builtin_offsetof(CUmemLocation, localized.deviceId) ==
                       sizeof(CUmemLocationType),
               "as cuda.h has it");
#endif

/* The device whose memory it is; -1: no device memory (host, NUMA node), or none named. */
static inline CUdevice vcap_location_device(const CUmemLocation *location)
{
    unsigned char first;

    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return location->id;
    if ((int)location->type != VCAP_LOCATION_LOCALITY_DOMAIN)
        return -1;
    memcpy(&first, (const unsigned char *)location + sizeof(location->type), sizeof(first));
    return first;
}

static inline bool vcap_location_is_device(const CUmemLocation *location)
{
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ||
           (int)location->type == VCAP_LOCATION_LOCALITY_DOMAIN;
}

#endif
