/*
 * One list of what may lie where a ledger is looked for and is none, or is one that somebody made to do
 * harm.  The reader from inside, `vramcap dump` and `vramcap events`, and the running agent are each held
 * to all of it.
 */
#ifndef VRAMCAP_TESTS_CLI_HOSTILE_FILES_H
#define VRAMCAP_TESTS_CLI_HOSTILE_FILES_H

#include <stddef.h>

#include "tests/cli/ledger_image.h"

#define HOSTILE_PEAK_MIB 1700 /* of those that are good all the same */
#define HOSTILE_LOCKS 20000

struct hostile_file {
    const char *name;   /* good as a file's */
    const char *reason; /* a word of what a reader must say of it; NULL: it is a good ledger */
    /* one of the two: changes a good image, or makes the file itself; 1: that cannot be done here */
    void (*change)(struct image *image);
    int (*make)(const char *path);
};

extern const struct hostile_file hostile_files[];
extern const size_t hostile_file_count;

/* The good image that they are made from. */
void hostile_good(struct image *image);

/* Makes one of them at path, where nothing is.  0, 1: that cannot be done here (not root, or a file
 * system without such), -1 after saying why not. */
int hostile_make(const struct hostile_file *file, const char *path);

/* Gives back locks, leases and sockets of all that were made. */
void hostile_end(void);

#endif
