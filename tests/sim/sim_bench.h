/* The cheap pair of allocation and release of VRAMCAP_SIM_BENCH (sim_bench.c). */
#ifndef VRAMCAP_SIM_BENCH_H
#define VRAMCAP_SIM_BENCH_H

#include "sim_internal.h"

#define SIM_BENCH_BYTES UINT64_C(4096)

/* An address for SIM_BENCH_BYTES; false: none left. */
bool sim_bench_take(CUdeviceptr *address);

/* False: not one of these. */
bool sim_bench_give(CUdeviceptr address);

#endif
