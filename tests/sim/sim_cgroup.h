/*
 * Limits of device memory per cgroup: Linux's dmem controller as files below a root of the test's
 * choice, or limits that the driver keeps itself.
 *
 * Files, as the kernel's dmem controller has them (kernel/cgroup/dmem.c, Linux 6.14): in each cgroup
 * below the root dmem.max, dmem.min, dmem.low and dmem.current, in the root dmem.capacity; one line
 * per region, `<region> <bytes|max>`. NVIDIA's region is nvidia/<8-digit domain>:<bus>:00.0/vidmem
 * (NVIDIA Dynamo's guide on GPU limits, driver 615.71.09). The controller counts all device memory
 * of the processes in a cgroup and below it; managed memory is none of it.
 */
#ifndef VRAMCAP_SIM_CGROUP_H
#define VRAMCAP_SIM_CGROUP_H

#include "sim.h"

#include <stddef.h>

#define SIM_NO_LIMIT UINT64_MAX

/* VRAMCAP_SIM_MEMACCT, VRAMCAP_SIM_CGROUP_ROOT into `state`. */
void sim_cgroup_from_environment(struct sim_state *state);
/* False if one of them does not parse. */
bool sim_cgroup_environment_is_good(void);
/* The calling process's cgroup: VRAMCAP_SIM_CGROUP, else the 0:: line of /proc/self/cgroup; "" where
 * nobody keeps limits. */
void sim_cgroup_own(const struct sim_state *state, char cgroup[SIM_CGROUP_MAX]);

/* "nvidia/00000000:10:00.0/vidmem" */
void sim_region_name(unsigned int card, char name[48]);

/* Makes the cgroup `cgroup` ("/pod/ctr") and those above it with their files, limits `max`.
 * 0 or -errno. */
int sim_cgroup_make(struct sim_state *state, const char *cgroup);

struct sim_cgroup_limits {
    uint64_t soft, hard, used; /* hard: SIM_NO_LIMIT for none */
};
/* `name_space`: the full path of a cgroup's directory, below the root or below /sys/fs/cgroup. A
 * cgroup without files of its own has those of the nearest above it. -ENOTSUP: nobody keeps limits,
 * or (misc) no limit is set there or above; -ENOENT: (dmem) no files there or above. */
int sim_cgroup_get(struct sim_state *state, const char *name_space, unsigned int card,
                   struct sim_cgroup_limits *limits);
/* -ENOENT: (dmem) that very cgroup has no files. */
int sim_cgroup_set(struct sim_state *state, const char *name_space, unsigned int card,
                   uint64_t soft, uint64_t hard);

/* --- with the state's lock held ------------------------------------------------------ */

/* Do the limits of this cgroup and of those above it let `more` bytes in? */
bool sim_cgroup_room(const struct sim_state *state, const char *cgroup, unsigned int card,
                     uint64_t more);
/* The limit that cuMemGetInfo shows: the cgroup's own, not one above it; false for none. */
bool sim_cgroup_shown(const struct sim_state *state, const char *cgroup, unsigned int card,
                      uint64_t *hard, uint64_t *used);
/* Writes dmem.current of the cgroup and of those above it. */
void sim_cgroup_publish(const struct sim_state *state, const char *cgroup, unsigned int card);

#endif
