/*
 * Numbers for people: MiB everywhere, times in UTC.
 */
#ifndef VRAMCAP_ENFORCER_CLI_UNITS_H
#define VRAMCAP_ENFORCER_CLI_UNITS_H

#include <stddef.h>
#include <stdint.h>

#define VCAP_UNITS_TEXT 40

/* "1536.0"; one decimal, rounded to the nearest; UINT64_MAX gives instead. */
const char *vcap_units_mib(char text[VCAP_UNITS_TEXT], uint64_t bytes, const char *instead);

/* "2026-11-30T22:10:37.123Z" */
const char *vcap_units_time(char text[VCAP_UNITS_TEXT], uint64_t realtime_ns);

/* Seconds with an optional fraction ("2", "0.5"), 0.05 to 86400: 0 and milliseconds, or -EINVAL. */
int vcap_units_parse_seconds(const char *text, long *milliseconds);

/* A decimal number without sign: 0, or -EINVAL. */
int vcap_units_parse_number(const char *text, uint64_t *number);

#endif
