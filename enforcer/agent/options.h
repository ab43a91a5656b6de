/*
 * The agent's command line.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_OPTIONS_H
#define VRAMCAP_ENFORCER_AGENT_OPTIONS_H

#include "enforcer/agent/agent.h"
#include "enforcer/agent/http.h"

struct vcap_agent_options {
    struct vcap_agent_settings settings;
    const char *listen[VCAP_HTTP_PLACES];
    size_t listen_count;
    bool once, json, version;
    const char *textfile, *state, *nvml; /* NULL: none */
    long interval_ms, nvml_ms, mps_ms;
    const char *mps_pipe, *mps_program, *on_mps_down;
    bool mps_required, mps;
};

/* -1: go on; else the exit status, after what there was to say was said. */
int vcap_agent_parse(int argc, char **argv, struct vcap_agent_options *options);

#endif
