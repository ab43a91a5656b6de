/*
 * What the limits of contexts cost (cuCtxSetLimit): one account a limit and context, given back when the
 * context goes.
 */
#ifndef VRAMCAP_PRELOAD_LIMITS_H
#define VRAMCAP_PRELOAD_LIMITS_H

#include <stdint.h>

#include "preload/cuda_api.h"

/* The driver has destroyed a context (context not NULL) or a device's primary one; before:
 * vcap_live_sweep_begin() from ahead of the driver's call. */
void vcap_limits_gone(CUcontext context, CUdevice ordinal, uint64_t before);

/* How many limits are charged something else than what the driver says, for it could not be asked.  Relaxed: a
 * hint that costs one load. */
extern uint32_t vcap_limits_unread;

/* On the way to a refusal: those of the current context, if it is on that device, are read again. */
void vcap_limits_settle(CUdevice ordinal);

/* In a forked child: the contexts are the parent's. */
void vcap_limits_forget(void);

#endif
