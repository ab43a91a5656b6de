/*
 * Physical memory behind generic allocation handles, between sim_vmm.c (handles), sim_vmm_map.c
 * (addresses) and sim_multicast.c. All under sim_lock.
 */
#ifndef VRAMCAP_SIM_VMM_H
#define VRAMCAP_SIM_VMM_H

#include "sim_internal.h"

struct sim_multicast;

/* One per handle value of this process. It lives while its handle has references or something
 * (a mapping, a multicast binding) uses it; its memory may live on in other processes. */
struct sim_physical {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    size_t size;
    unsigned int card;
    struct sim_delta cost;   /* of the card; 0 for host memory, multicast, and once shared */
    unsigned int references; /* cuMemCreate, import and retain, less cuMemRelease */
    unsigned int uses;
    uint64_t share;                  /* sim_share.h; 0: this process's alone */
    unsigned char *bytes;            /* of memory that is not shared, NULL until mapped */
    struct sim_multicast *multicast; /* NULL for memory */
};

/* The record of a handle that has references, or NULL. */
struct sim_physical *sim_physical_of(CUmemGenericAllocationHandle handle);
/* A record with one reference in the table; the cost is not taken here. NULL: no memory. */
struct sim_physical *sim_physical_new(size_t size, const CUmemAllocationProp *prop);
/* Ends it if nothing refers to it and nothing uses it. */
void sim_physical_settle(struct sim_physical *physical);
/* Its bytes at `at` (page-aligned); all mappings of one memory see the same bytes. */
CUresult sim_physical_map(struct sim_physical *physical, void *at, size_t bytes);
/* Makes it visible to other processes, if it is not yet. */
CUresult sim_physical_share(struct sim_physical *physical);
/* The physical memory that is mapped at the address, or NULL. */
struct sim_physical *sim_physical_at(CUdeviceptr address, size_t *left);

/* sim_multicast.c */
void sim_multicast_end(struct sim_multicast *multicast);
CUresult sim_multicast_import(struct sim_physical *physical, unsigned int devices);
unsigned int sim_multicast_devices(const struct sim_multicast *multicast);
bool sim_multicast_ready(const struct sim_physical *physical);

#endif
