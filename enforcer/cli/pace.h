/*
 * Doing something again and again until SIGINT or SIGTERM, and ending cleanly then.
 */
#ifndef VRAMCAP_ENFORCER_CLI_PACE_H
#define VRAMCAP_ENFORCER_CLI_PACE_H

#include <stdbool.h>

/* From now on SIGINT and SIGTERM ask for an end (unless the caller's caller ignores them). */
void vcap_pace_start(void);

/*
 * Ends a round: writes out stdout, then waits.  False: stop, because a signal asked for it (what
 * was not written is dropped) or because stdout takes no more (main reports that).
 */
bool vcap_pace_wait(long milliseconds);

#endif
