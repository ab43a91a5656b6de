/*
 * What MPS makes of this process: is it a client, and is MPS's own limit what it seems?  vramcap's
 * ceiling holds either way; what is found is an event and a line, once per process, and shown by
 * `vramcap check` (reference: docs/guarantees.md).
 */
#ifndef VRAMCAP_PRELOAD_MPS_H
#define VRAMCAP_PRELOAD_MPS_H

#include "preload/preload.h"

/* Asks the driver whether contexts on this device are shared by MPS (CU_DEVICE_ATTRIBUTE_MPS_ENABLED,
 * CUDA 12.2 and newer).  The driver is called; no lock of ours may be held. */
enum vcap_lf_mps vcap_mps_ask(CUdevice ordinal);

/*
 * Looks at MPS's limit as this process was given it, and says what is wrong with it.  Where nothing is, the
 * device's overhead is measured by it (overhead.h).  The device is placed;
 * the driver is called; no lock of ours may be held.
 */
void vcap_mps_examine(struct vcap_device *device, CUdevice ordinal);

#endif
