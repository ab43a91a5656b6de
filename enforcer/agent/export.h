/*
 * What the agent tells others, as texts: Prometheus metrics and JSON.  Names and fields are a promise
 * (docs/agent.md); a value that nobody knows is left out of the metrics and null in the JSON.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_EXPORT_H
#define VRAMCAP_ENFORCER_AGENT_EXPORT_H

#include "enforcer/agent/agent.h"
#include "enforcer/agent/text.h"

#define VCAP_EXPORT_VERSION 1 /* of /v1/containers */

/* Is the MPS control daemon up?  Unknown: not watched, or not asked yet. */
enum vcap_mps_state { VCAP_MPS_STATE_UNKNOWN, VCAP_MPS_STATE_DOWN, VCAP_MPS_STATE_UP };

/* Prometheus' text format, version 0.0.4. */
void vcap_export_metrics(const struct vcap_agent *agent, enum vcap_mps_state mps,
                         struct vcap_text *text);

/* /v1/containers.  False without memory. */
bool vcap_export_containers(const struct vcap_agent *agent, struct vcap_text *text);

/* /v1/report.  False without memory. */
bool vcap_export_report(const struct vcap_agent *agent, struct vcap_text *text);

#endif
