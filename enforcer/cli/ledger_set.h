/*
 * Several ledgers at once, for the sub-commands that look at a whole host: which ones, and what each
 * says now.
 */
#ifndef VRAMCAP_ENFORCER_CLI_LEDGER_SET_H
#define VRAMCAP_ENFORCER_CLI_LEDGER_SET_H

#include <stdbool.h>
#include <stddef.h>

#include "enforcer/agent/report.h"
#include "enforcer/ledger_read.h"

struct vcap_ledger_set_item {
    char *path;      /* for opening */
    char name[80];   /* printable: the container's name in the ledger, else the file's */
    char shown[160]; /* the path, printable, cut */
    bool trusted;    /* snapshot is filled */
    struct vcap_snapshot snapshot;
    char why[256]; /* if not trusted */
};

struct vcap_ledger_set {
    char *folder; /* looked through at every reading; NULL: the items' paths are fixed */
    size_t count;
    struct vcap_ledger_set_item *items;
};

/*
 * folder (--ledger-dir: its files, and `ledger` in each of its folders) or the operands; neither: VRAMCAP_LEDGER, else all of /run/vramcap, else all
 * ledgers of `vramcap run` that are in use, else as `vramcap dump`.  0, or an exit status after it
 * has said why.  To be given back with vcap_ledger_set_free().
 */
int vcap_ledger_set_choose(const char *command, const char *folder, int argc, char **argv,
                           int first, struct vcap_ledger_set *set);

/*
 * Reads them all, again and again if wanted.  A ledger that cannot be read or trusted is an item
 * with its reason; one that has vanished from the folder is none.  0 or -errno: no memory, no
 * folder.
 */
int vcap_ledger_set_read(struct vcap_ledger_set *set);

/* Says that on stderr; returns the exit status.  0: says nothing and returns 0. */
int vcap_ledger_set_complain(const char *command, const struct vcap_ledger_set *set, int error);

void vcap_ledger_set_free(struct vcap_ledger_set *set);

/* The set as the report wants it; to be given back with free().  NULL without memory. */
struct vcap_report_source *vcap_ledger_set_sources(const struct vcap_ledger_set *set);

#endif
