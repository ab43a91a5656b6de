/*
 * Placing this process's devices in the ledger; vcap_device() itself is in preload.h.
 */
#ifndef VRAMCAP_PRELOAD_DEVICE_H
#define VRAMCAP_PRELOAD_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/cuda_api.h"

/* Who a visible device is, by the driver: 0, or -ENODEV.  mig: a slice, and uuid is the slice's. */
int vcap_device_uuid(CUdevice ordinal, uint8_t uuid[16], bool *mig);

/* The UUIDs of all devices that this process sees, in order; the number of them, 0 if that cannot be known.
 * Room for VCAP_DEVICES_MAX.  The driver is called. */
uint32_t vcap_devices_visible(uint8_t (*uuids)[16], bool *mig);

/* Row, ceilings and what is shown of them once more for every device in use: a new slot, another ledger,
 * or another word of the host.  vcap_process_mutex is held. */
void vcap_devices_place_again(void);

#endif
