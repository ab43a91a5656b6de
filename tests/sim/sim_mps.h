/*
 * This process as a client of MPS: whether it is one, with how many multiprocessors.
 *
 * Decided once, in cuInit; its limits are then in its row of the state file (sim_bounds.h).
 */
#ifndef VRAMCAP_SIM_MPS_H
#define VRAMCAP_SIM_MPS_H

#include "sim_internal.h"

/* In cuInit: `prepare` before the process has a row (devices are chosen), `join` after. */
CUresult sim_mps_prepare(void);
CUresult sim_mps_join(void);

bool sim_mps_is_client(void);
/* Multiprocessors that the process can use; all of them without MPS. */
unsigned int sim_mps_sms(void);
/* Of a context made now: as asked for by execution affinity (0: not asked for), or as the variable
 * says that is read at each context. */
unsigned int sim_mps_context_sms(unsigned int asked);
/* What a context of that many takes of the card. */
uint64_t sim_mps_context_bytes(unsigned int sms);

/* The counted part of making and ending a context. */
CUresult sim_mps_context_enter(unsigned int card);
void sim_mps_context_leave(unsigned int card);

#endif
