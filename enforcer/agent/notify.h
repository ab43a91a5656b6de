/*
 * Telling systemd: readiness, status, the watchdog.  A plain datagram to $NOTIFY_SOCKET, as
 * sd_notify(3) documents it; without that variable nothing is done.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_NOTIFY_H
#define VRAMCAP_ENFORCER_AGENT_NOTIFY_H

#include <stdint.h>

/* Assignments, one a line: "READY=1\nSTATUS=..."  0 (also without a socket), or -errno. */
int vcap_notify(const char *assignments);

/* How often the watchdog wants to hear from this process, in ms: half of $WATCHDOG_USEC if
 * $WATCHDOG_PID is this process or unset; 0: no watchdog. */
uint64_t vcap_notify_watchdog_ms(void);

#endif
