/*
 * What the files of the simulated NVML share.
 */
#ifndef VRAMCAP_SIM_NVML_INSIDE_H
#define VRAMCAP_SIM_NVML_INSIDE_H

#include "sim.h"
#include "sim_nvml.h"

/* A consistent copy of the state file, which the caller frees; or an error. */
nvmlReturn_t sim_nvml_look(struct sim_file **copy);
nvmlReturn_t sim_nvml_card_of(nvmlDevice_t device, unsigned int *card);
/* Calls back with the open state file and the card; 0 or -errno becomes NVML's code. */
nvmlReturn_t sim_nvml_with(nvmlDevice_t device,
                           int (*call)(struct sim_state *state, unsigned int card, void *data),
                           void *data);

#endif
