/*
 * What the stand-in daemon of MPS knows, and its commands.
 */
#ifndef VRAMCAP_SIM_MPS_COMMANDS_H
#define VRAMCAP_SIM_MPS_COMMANDS_H

#include "sim.h"

#include <stdio.h>
#include <sys/types.h>

#define MPS_LIMITS 32U

struct mps_limit {
    char device[64], value[32]; /* as given: nothing is checked when it is set */
};

/* Of the next server, and of the present one. */
struct mps_settings {
    double percent;
    unsigned int limits;
    struct mps_limit limit[MPS_LIMITS];
};

struct mps_daemon {
    struct sim_state *state;
    struct mps_settings defaults, server;
    pid_t server_pid; /* 0: none yet */
    bool quit;
};

/* mps_daemon.c: a server with the defaults, unless there is one. 0 or -errno. */
int mps_server_start(struct mps_daemon *daemon);
void mps_server_stop(struct mps_daemon *daemon);

/* One line; its answer goes to `out`. */
void mps_command(struct mps_daemon *daemon, const char *line, FILE *out);

#endif
