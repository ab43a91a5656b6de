/*
 * What the files of the reader (ledger_read*.c) share, and the agent where it finds ledgers; not for
 * others.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_READ_OPEN_H
#define VRAMCAP_ENFORCER_LEDGER_READ_OPEN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct vcap_lf_header;
struct vcap_snapshot;

/* Writes the phrase and returns -error. */
int vcap_read_refuse(char *why, size_t why_size, int error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/*
 * Opens name below directory as vcap_ledger_read_open() does.  Symbolic and magic links are never
 * followed; resolve adds further RESOLVE_* of openat2(2).
 */
int vcap_read_open_at(int directory, const char *name, uint64_t resolve, char *why,
                      size_t why_size);

/* "a directory", "a FIFO", ...: what a file is that is not a regular one. */
const char *vcap_read_file_kind(mode_t mode);

/* Copies a string that may have no end; whatever is not printable ASCII becomes '?'. */
void vcap_read_copy_text(char *to, size_t to_size, const char *from, size_t from_size);

/*
 * The event part of a snapshot from a private copy of the file.  next: header.event_next, read after the
 * copy was made; from: no events below this number (at least 1); gpu_position: row -> position in the
 * snapshot, UINT32_MAX.  0 or -ENOMEM.
 */
int vcap_read_events(const struct vcap_lf_header *h, const unsigned char *file, uint64_t from,
                     uint64_t next, const uint32_t *gpu_position, struct vcap_snapshot *out,
                     char *why, size_t why_size);

#endif
