/*
 * A process that makes whoever looks into its memory map wait for ever.  A child of it reads its memory
 * where a FUSE file is mapped whose server never answers, which holds the map's lock for reading; then the
 * process maps something, which waits for that lock, and every reader after it waits too.  It has files
 * mapped that are called like the library and a CUDA driver, so that the agent has to do with it.
 */
#ifndef VRAMCAP_TESTS_AGENT_HANGING_H
#define VRAMCAP_TESTS_AGENT_HANGING_H

#include <stdbool.h>
#include <sys/types.h>

struct hanging {
    pid_t pid;
};

/* A file system whose files never answer when they are read: any name in it is a file, but to ask for one that
 * begins with "wait" is never answered either. */
#define HANGING_NAME "wait"

/* main() calls this first: it does not return in such a process. */
void hanging_main(int argc, char **argv);

/* Starts one that uses the folder, with that ledger mapped as the library has it (NULL: none); it hangs
 * when go() is called.  0; 1: that cannot be done here (no FUSE, not root). */
int hanging_start(const char *folder, const char *ledger, struct hanging *h);

/* 0: it does, as was seen; 1: this kernel makes nobody wait. */
int hanging_go(const struct hanging *h);

/* Starts one that makes nobody wait itself: below its root (a folder that exists) that file system is mounted at
 * `where`.  With maps, the file "ledger" in there is mapped as a ledger is.  variable: "A=B" in its environment, or
 * NULL.  0; 1: that cannot be done here. */
int hanging_root_start(const char *root, const char *where, bool maps, const char *variable,
                       struct hanging *h);

void hanging_stop(struct hanging *h); /* whoever still waits gets an answer */

#endif
