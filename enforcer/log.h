/*
 * One line at a time to stderr or VRAMCAP_LOG_FILE, never stdout.  Each line is one write(2) that
 * starts with "vramcap: "; the file is opened, appended to and closed per line, so that no
 * descriptor is held. A file that cannot be opened: stderr.  Never fails, never waits for a reader
 * (the line is lost then), raises no SIGPIPE or SIGXFSZ, never changes errno, allocates nothing,
 * uses no stdio stream.
 */
#ifndef VRAMCAP_ENFORCER_LOG_H
#define VRAMCAP_ENFORCER_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum vcap_log_level {
    VCAP_LOG_ERROR = 0,
    VCAP_LOG_WARN = 1,
    VCAP_LOG_INFO = 2,
    VCAP_LOG_DEBUG = 3
};

/* Sets level and file (copied; NULL or empty: stderr).  Call before other threads log; until then
 * the level is warn and the file stderr. */
void vcap_log_setup(enum vcap_log_level level, const char *file);

bool vcap_log_wants(enum vcap_log_level level);

/* printf-like; the line is cut at 1,000 bytes (newline included) with "...", control characters in
 * it become '?', and it always ends in one newline. */
void vcap_log(enum vcap_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * A rate limit for one kind of line: the first 5 pass, then one a second.  Returns true if the line
 * may be written and stores the number of lines held back since the last one in *held_back.
 */
struct vcap_log_limit {
    uint64_t next_ns; /* written by whoever wins a CAS on it */
    uint32_t passed;
    uint32_t held_back;
};
bool vcap_log_allow(struct vcap_log_limit *limit, uint32_t *held_back);

#endif
