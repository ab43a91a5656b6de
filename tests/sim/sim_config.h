/*
 * The settings of one process, from the environment, read once at the first driver
 * call (README.md is the list). Nothing here may be shared with the library under
 * test: its figures are its own claims.
 */
#ifndef VRAMCAP_SIM_CONFIG_H
#define VRAMCAP_SIM_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_MAX_RULES 64

struct sim_rule {
    char symbol[96];
    uint64_t nth; /* 0: every call */
    int code;     /* 0: not a failure but a delay */
    uint64_t delay_us;
    uint64_t calls; /* atomic: calls of symbol so far */
};

struct sim_config {
    bool bad; /* a variable does not parse: cuInit refuses */
    int version;
    uint64_t context_bytes, page_bytes, pitch_bytes;
    uint64_t module_bytes;              /* that a loaded module takes */
    uint64_t granularity_bytes;         /* of physical handles */
    unsigned int tile_width, tile_rows; /* of arrays: bytes and rows */
    unsigned int capability;            /* 90: compute capability 9.0 */
    signed char mig_parent[16];         /* per card: the GPU it is a slice of, -1: it is none */
    bool external_counts;               /* imported external memory is on the card */
    bool alias, newer, inner, bench, integrated;
    uint64_t address_bytes; /* of a region of addresses, 0: as the cards ask for */
    uint64_t pool_chunk_bytes;
    bool pool_observed;
    const char *mps_pipe; /* pipe directory of a daemon that is claimed to be there, NULL: none */
    uint64_t mps_context_bytes;
    unsigned int mps_clients, mps_connections; /* that a card takes */
    unsigned int sm_step;                      /* multiprocessors come in multiples of it */
    bool mps_read_at_start;
    const char *fault_symbol; /* the n-th call of it is a fatal fault, NULL: none */
    uint64_t fault_nth;
    int fault_code;
    const char *journal; /* NULL: none */
    const char *hidden;  /* comma-separated names, NULL: none */
    unsigned int rules;
    struct sim_rule rule[SIM_MAX_RULES];
};

extern struct sim_config sim_config;

/* The version this build of the library is: VRAMCAP_SIM_VERSION cannot exceed that
 * of a reduced variant, and is this when unset. */
extern const int sim_build_version;
extern const int sim_build_limit;

void sim_config_read(void);
/* True if some call must be journalled, delayed, failed or hidden. */
bool sim_config_scripted(void);

#endif
