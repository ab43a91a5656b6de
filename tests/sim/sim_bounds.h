/*
 * What binds a process beside the size of the card: MPS's pinned limit, a limit of its cgroup, the
 * compute mode, the number of clients, a fatal fault.
 *
 * The facts are in the state file (struct sim_bounds, one per row), so every process, NVML and
 * simctl see the same. A limit is compared with all that the driver charges the process on that
 * card: contexts, allocations, slack of slabs, and memory that it exported and holds first.
 */
#ifndef VRAMCAP_SIM_BOUNDS_H
#define VRAMCAP_SIM_BOUNDS_H

#include "sim.h"

#define SIM_STICKY_TERMINATED 810U /* CUDA_ERROR_MPS_CLIENT_TERMINATED */

/* Of this process, which has a row. From now on its moves mind them. 0 or -errno. */
int sim_bounds_set(struct sim_state *state, const struct sim_bounds *bounds);

/* True while a client of this server that a fatal fault has hit still lives: state FAULT. */
bool sim_bounds_server_faulted(struct sim_state *state, int32_t server);

struct sim_admission {
    unsigned int clients;     /* contexts of MPS clients that a card takes; 0: any number */
    unsigned int connections; /* of MPS clients that a card takes; 0: any number */
    bool served;              /* an MPS server that is no process has the cards */
};
/* One context more on a card. 0, -EBUSY (another process has the card to itself, or nobody may have
 * it), -EUSERS (too many clients), -ENOSR (too many connections), or another -errno. */
int sim_bounds_admit(struct sim_state *state, unsigned int card, struct sim_admission admission);
void sim_bounds_leave(struct sim_state *state, unsigned int card);

/* What every call of this process must answer, or 0. No lock, no system call. */
uint32_t sim_bounds_sticky(const struct sim_state *state);

/* What cuMemGetInfo answers. */
int sim_bounds_view(struct sim_state *state, unsigned int card, uint64_t *free_bytes,
                    uint64_t *total_bytes);

/* A fatal fault on a card. Where `row` is an MPS client, all clients of its server that have a
 * context on the card are hit; where it is not, it alone. row -1: as if one of every server's
 * clients had faulted. The number of processes hit, or -errno. */
int sim_bounds_fault(struct sim_state *state, unsigned int card, int row, uint32_t code);
/* The client with this pid of this server answers `code` from now on. -ESRCH: there is none. */
int sim_bounds_terminate(struct sim_state *state, int32_t server, int32_t pid, uint32_t code);

/* --- for sim_state.c: with the lock held ------------------------------------------- */

bool sim_bounds_room(const struct sim_state *state, unsigned int card, uint64_t more);
void sim_bounds_moved(const struct sim_state *state, unsigned int card);

#endif
