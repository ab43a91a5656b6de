/*
 * One picture of `vramcap top`, as text: GPUs, containers with a bar each, their processes, the last
 * events.  Knows nothing of terminals but how wide and high the picture is to be.
 */
#ifndef VRAMCAP_ENFORCER_CLI_TOP_FRAME_H
#define VRAMCAP_ENFORCER_CLI_TOP_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "enforcer/cli/ledger_set.h"

struct vcap_top_size {
    unsigned columns, rows; /* rows 0: as many as it takes */
    bool colours;
};

/* Lines, each ended with '\n', to be given back with free(); NULL without memory. */
char *vcap_top_frame(const struct vcap_ledger_set *set, const struct vcap_top_size *size,
                     uint64_t realtime_ns);

#endif
