/*
 * Numbers for people.  No locale: the tool never calls setlocale, so the point is a point.
 */
#include "enforcer/cli/units.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (UINT64_C(1) << 20)
#define NS_PER_S UINT64_C(1000000000)

const char *vcap_units_mib(char text[VCAP_UNITS_TEXT], uint64_t bytes, const char *instead)
{
    if (bytes == UINT64_MAX)
        (void)snprintf(text, VCAP_UNITS_TEXT, "%s", instead);
    else
        (void)snprintf(text, VCAP_UNITS_TEXT, "%.1f", (double)bytes / (double)MIB);
    return text;
}

const char *vcap_units_time(char text[VCAP_UNITS_TEXT], uint64_t realtime_ns)
{
    time_t seconds = (time_t)(realtime_ns / NS_PER_S);
    struct tm utc;
    char date[24];
    /* 2^64 ns is the year 2554: always four digits */
    if (!gmtime_r(&seconds, &utc) || !strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc))
        (void)snprintf(text, VCAP_UNITS_TEXT, "-");
    else
        (void)snprintf(text, VCAP_UNITS_TEXT, "%s.%03uZ", date,
                       (unsigned)(realtime_ns % NS_PER_S / 1000000));
    return text;
}

int vcap_units_parse_seconds(const char *text, long *milliseconds)
{
    char *end;
    if (!*text || strspn(text, "0123456789.") != strlen(text))
        return -EINVAL;
    double seconds = strtod(text, &end);
    if (*end || !(seconds >= 0.05 && seconds <= 86400.0))
        return -EINVAL;
    *milliseconds = (long)(seconds * 1000.0 + 0.5);
    return 0;
}

int vcap_units_parse_number(const char *text, uint64_t *number)
{
    if (!*text || strspn(text, "0123456789") != strlen(text))
        return -EINVAL;
    errno = 0;
    unsigned long long value = strtoull(text, NULL, 10);
    if (errno)
        return -EINVAL;
    *number = value;
    return 0;
}
