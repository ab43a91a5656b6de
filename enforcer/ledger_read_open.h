/*
 * What ledger_read.c and ledger_read_open.c share; not for others.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_READ_OPEN_H
#define VRAMCAP_ENFORCER_LEDGER_READ_OPEN_H

#include <stddef.h>
#include <sys/types.h>

/* Writes the phrase and returns -error. */
int vcap_read_refuse(char *why, size_t why_size, int error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* "a directory", "a FIFO", ...: what a file is that is not a regular one. */
const char *vcap_read_file_kind(mode_t mode);

#endif
