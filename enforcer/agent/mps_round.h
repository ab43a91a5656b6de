/*
 * The agent's part in the lint of MPS settings: which containers are looked at in a round, with which
 * GPUs, and what is said of the findings.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_MPS_ROUND_H
#define VRAMCAP_ENFORCER_AGENT_MPS_ROUND_H

#include <jansson.h>

#include "enforcer/agent/agent.h"
#include "enforcer/agent/mps_watch.h"

/* After a round: looks at some of those whose time has come.  watch: NULL, no daemon is watched. */
void vcap_mps_round(struct vcap_agent *agent, const struct vcap_mps_watch *watch);

/* Has a living client of this container a limit on the GPU that nothing speaks against? */
bool vcap_mps_in_force(const struct vcap_watched *watched, const char *uuid);

/* {"findings": [...], "findings_total": N}; null: not looked at yet.  NULL without memory. */
json_t *vcap_mps_settings_json(const struct vcap_watched *watched);

#endif
