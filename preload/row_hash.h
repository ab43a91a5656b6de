/*
 * The hash of the table's indexes, for the generator that fills them (docs/gen_rows.c) and the look-ups
 * (cuda_api.c): FNV-1a.  No libc.
 */
#ifndef VRAMCAP_PRELOAD_ROW_HASH_H
#define VRAMCAP_PRELOAD_ROW_HASH_H

#include <stdint.h>

#define VCAP_INDEX_SIZE 1024u /* a power of two, above twice the rows */

/* The hash of a name, and its length. */
static inline uint32_t vcap_row_hash(const char *name, unsigned *length)
{
    uint32_t hash = 2166136261u;
    unsigned at = 0;

    for (; name[at] != 0; at++)
        hash = (hash ^ (unsigned char)name[at]) * 16777619u;
    *length = at;
    return hash ^ hash >> 15;
}

#endif
