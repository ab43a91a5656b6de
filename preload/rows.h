/*
 * Look-ups in the table's rows, for resolve.c.  Rows are numbers of enum vcap_row; -1 means none.
 */
#ifndef VRAMCAP_PRELOAD_ROWS_H
#define VRAMCAP_PRELOAD_ROWS_H

#include <stdbool.h>
#include <stdint.h>

/* Fills the index by address from vcap_real; once, before the first look-up. */
void vcap_rows_index(void);

/* The driver's function of a row, as an untyped place. */
void **vcap_row_real(unsigned row);

/* Our function for a HOOK, the counting stub for a GAP, NULL for a PASS. */
void *vcap_row_hook(unsigned row);

unsigned vcap_gap_row(uint32_t gap);

int vcap_row_by_symbol(const char *name);

/* A row whose driver function is at address; among several the one of this base name. */
int vcap_row_by_address(const char *base, const void *address);

/* The row that cuGetProcAddress means: greatest `since` not above version, twin if asked for and
 * there. */
int vcap_row_by_version(const char *base, int version, bool per_thread);

bool vcap_base_is_known(const char *base);

/* False: all its rows are PASS, so that not accounting a newer version of it loses nothing. */
bool vcap_base_is_accounted(const char *base);

#endif
