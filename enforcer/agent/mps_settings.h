/*
 * What the lint last found in one container, kept between rounds: its processes are looked at when
 * they change, and again after a while, not at every round.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_MPS_SETTINGS_H
#define VRAMCAP_ENFORCER_AGENT_MPS_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "enforcer/agent/mps_lint.h"

#define VCAP_MPS_SETTINGS_PROCESSES 8 /* of one container are looked at; the first ones */
#define VCAP_MPS_SETTINGS_FINDINGS 24 /* are kept; total counts the others too */
#define VCAP_MPS_SETTINGS_LIMITS 16
#define VCAP_MPS_SETTINGS_LOOK_MS 100 /* one process may cost so much; then no other is looked at */

/* All zero: nothing known yet. */
struct vcap_mps_settings {
    bool known;
    uint64_t processes; /* which ones were looked at, as a hash */
    uint64_t due_ns;    /* of the next look at the same ones; of any, if one of them hung */
    bool hung;
    bool daemon_up;        /* so it was at that look: what is in force depends on it */
    uint64_t last_looked;  /* how many answered */
    uint32_t total, count; /* findings; kept */
    struct vcap_mps_finding *findings;
    /* GPUs on which some client has a limit that nothing speaks against */
    uint32_t limit_count;
    char limits[VCAP_MPS_SETTINGS_LIMITS][VCAP_UUID_TEXT];
};

/* Is it time to look?  pids: the host's numbers, in any order; 0 is nobody.  Others than last time, the
 * daemon up or down where it was not, or a minute later. */
bool vcap_mps_settings_due(const struct vcap_mps_settings *settings, const pid_t *pids,
                           uint32_t count, bool daemon_up, uint64_t now_ns);

/*
 * Looks and lints.  host: everything but the processes, which are filled in here.  As a rule this
 * costs a millisecond or two a process, so a round does it for a few containers only.  A process that
 * makes its reader wait costs limit_ms; the others of its container are then taken for unreadable too,
 * and none is looked at again for a minute.  True: the findings are others than before.  Without
 * memory nothing changes.
 */
bool vcap_mps_settings_look(struct vcap_mps_settings *settings,
                            const struct vcap_mps_container *host, const pid_t *pids,
                            uint32_t count, int limit_ms, uint64_t now_ns);

void vcap_mps_settings_free(struct vcap_mps_settings *settings);

#endif
