/*
 * The host's word: a ledger of its making at /run/vramcap/ledger, /etc/vramcap/container.conf, or both.
 * It beats the environment, which may only tighten it (docs/design.md, "The host's word").
 */
#ifndef VRAMCAP_PRELOAD_HOST_H
#define VRAMCAP_PRELOAD_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "enforcer/conf_file.h"
#include "enforcer/config.h"
#include "enforcer/ledger.h"
#include "preload/preload.h"

/* What most containers never need comes first: pages that stay untouched. */
struct vcap_host_word {
    struct vcap_config said; /* what the file says */
    struct vcap_conf file;
    bool conf;
    bool ledger;              /* at its well-known place */
    uint32_t flags;           /* of that ledger */
    uint32_t compute_percent; /* 0: none */
    uint64_t context_bytes;   /* its least charge per context; UINT64_MAX: none */
};

/*
 * What the host has said.  1 something, 0 nothing, -errno (with a line in why that also says what to do):
 * it has spoken, but not in a way that this version can follow.
 */
int vcap_host_read(struct vcap_host_word *word, char *why, size_t why_size);

/*
 * Sets back what would loosen the host's word.  ignored: names of variables that were, each behind a
 * blank; empty: none.  Says nothing.
 */
#define VCAP_HOST_IGNORED_SIZE 160
void vcap_host_obey(const struct vcap_host_word *word, struct vcap_config *config,
                    char ignored[VCAP_HOST_IGNORED_SIZE]);

/* The mode that configuration and ledger together give: VCAP_MODE_ENFORCE or VCAP_MODE_AUDIT.
 * *unrecorded: the host lets everything through, and refusals that would have been are not even counted. */
enum vcap_mode vcap_host_mode(const struct vcap_config *config, const struct vcap_ledger *l,
                              bool *unrecorded);

/* Has the host changed its ledger since this process last looked?  For every charge: one load. */
static inline bool vcap_host_changed(const struct vcap_ledger *l)
{
    return __atomic_load_n(&vcap_ledger_header(l)->host_changes, __ATOMIC_RELAXED) !=
           __atomic_load_n(&vcap_process.host_changes, __ATOMIC_RELAXED);
}

/* Takes over what it has changed: mode and ceilings. */
void vcap_host_follow(void);

/* The same with vcap_process_mutex held, also for a ledger that is new to this process. */
void vcap_host_take_over(void);

#endif
