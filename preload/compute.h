/*
 * The compute ceiling: a ceiling, never a reservation, and only under MPS.  It is MPS's own active thread
 * percentage, which is set or lowered before the driver initialises; contexts that ask for more
 * multiprocessors by execution affinity are cut to it.  What the driver then reports is the evidence, in
 * the ledger.  Without MPS it is not in force, which is said once.
 */
#ifndef VRAMCAP_PRELOAD_COMPUTE_H
#define VRAMCAP_PRELOAD_COMPUTE_H

#include <stdbool.h>

#include "preload/preload.h"

/*
 * Before the driver's cuInit: lowers CUDA_MPS_ACTIVE_THREAD_PERCENTAGE to the ceiling, or sets it.  The
 * one change of the environment that the library makes, and it only ever lowers.
 */
void vcap_compute_prepare(void);

/*
 * Before a context is made, where each one reads the variable anew
 * (CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING): lowers what the program has raised since.
 */
void vcap_compute_again(void);

/* The most multiprocessors that a context on this device may ask for; 0: no compute ceiling in force. */
unsigned vcap_compute_most(CUdevice ordinal);

/* Records what the driver reports for a placed device.  The driver is called; no lock may be held. */
void vcap_compute_record(struct vcap_device *device, CUdevice ordinal);

#endif
