/*
 * The host's side of a ledger: making one with its ceilings, changing them while processes live in it,
 * and emptying it.  The file may be hostile: it is opened as the library opens it, and every number that
 * is used has been checked.  A container that truncates its file in the very moment in which the host
 * writes to it ends the writing process with SIGBUS: a caller that lives long does this in a child.
 *
 * Functions return 0 or -errno with one phrase in why.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_HOST_H
#define VRAMCAP_ENFORCER_LEDGER_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "enforcer/config.h"
#include "enforcer/ledger.h"

/* What the host wants; -1 and NULL: left as it is. */
struct vcap_host_order {
    /* a bare size is for every GPU, also those to come; else each is named by its full UUID */
    const struct vcap_entries *memory;
    int near_percent;    /* 0: never */
    int compute_percent; /* 0: no compute ceiling */
    int audit, pass_through;
    bool context_set;
    uint64_t context_bytes; /* with context_set; UINT64_MAX: none */
};
#define VCAP_HOST_ORDER_NONE                                                                       \
    {                                                                                              \
        .near_percent = -1, .compute_percent = -1, .audit = -1, .pass_through = -1                 \
    }

struct vcap_host_file {
    struct vcap_ledger_size size;
    const char *container; /* name for readers; NULL: none */
    uid_t uid;             /* (uid_t)-1: the caller's */
    mode_t mode;           /* 0: 0666 */
};

/* May this list of ceilings come from the host?  -EINVAL and the phrase: it names an ordinal, which counts
 * what one process sees. */
int vcap_host_check_memory(const struct vcap_entries *memory, char *why, size_t why_size);

/* Makes a ledger of the host's: it appears at path complete.  -EEXIST: there is a file already. */
int vcap_host_create(const char *path, const struct vcap_host_file *file,
                     const struct vcap_host_order *order, char *why, size_t why_size);

/*
 * Changes a ledger that the host made, whoever lives in it: each change is an event, and holds for every
 * charge that returns afterwards.  A ceiling below what is held kills nobody: nothing more is granted
 * until it fits.  -EPERM: the host did not make it.
 */
int vcap_host_resize(const char *path, const struct vcap_host_order *order, char *why,
                     size_t why_size);

/* Empties a ledger: charges, peaks, counters, events.  The host's ceilings stay.  -EBUSY: a process lives
 * in it, or is about to. */
int vcap_host_reset(const char *path, char *why, size_t why_size);

#endif
