/*
 * Entry points that the driver has and the table does not know: a newer ABI of a known name, or a new
 * name of a family that takes or gives device memory.  They are passed through; each is counted, put into
 * the event ring and said, once a process and for at most VCAP_UNKNOWN_MOST names.
 */
#ifndef VRAMCAP_PRELOAD_UNKNOWN_H
#define VRAMCAP_PRELOAD_UNKNOWN_H

#include <stdbool.h>

#define VCAP_UNKNOWN_MOST 32

/* Is this name, which has no row, one that may allocate?  In cuda_api.c: every look-up asks it, also those of a
 * sanitizer that is not ready yet. */
bool vcap_unknown_may_allocate(const char *name);

/* A look-up of such a name was answered.  version: what was asked for, 0 by dlsym.  Starts nothing: what
 * is met before the process is set up is said when it is.  Calls no libc function before that. */
void vcap_unknown_met(const char *name, int version);

/* At the end of setting up. */
void vcap_unknown_say(void);

#endif
