/*
 * What tests of overhead share: a client of MPS whose limit is 1000 MiB and whose context takes 23 MiB, and
 * what card 0's row says.
 */
#ifndef VRAMCAP_TESTS_HOOK_OVERHEAD_H
#define VRAMCAP_TESTS_HOOK_OVERHEAD_H

#include "tests/hook/scenario.h"

#define CLIENT                                                                                     \
    "VRAMCAP_SIM_MPS=/run/mps-ecs;CUDA_MPS_PIPE_DIRECTORY=/run/mps-ecs;VRAMCAP_SIM_CONTEXT_MIB=23"
#define LIMIT ";CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1000M"
#define MODULE(kib) ";VRAMCAP_SIM_MODULE_KIB=" #kib
#define CONTEXT (23 * MIB)

/* What card 0's row says apart: charges, overhead. */
#define HOLDS(charges, overhead)                                                                   \
    do {                                                                                           \
        struct vcap_snapshot_gpu row_ = gpu_row(0);                                                \
        SAME(row_.charged_bytes, charges);                                                         \
        SAME(row_.overhead_bytes, overhead);                                                       \
        SAME(row_.held_bytes, (charges) + ((overhead) == VCAP_UNKNOWN ? 0 : (overhead)));          \
    } while (0)

static inline size_t free_now(void)
{
    size_t free_bytes = 0, total = 0;

    return api.cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS ? free_bytes : 0;
}

static inline CUmodule load(void)
{
    CUmodule module = NULL;

    return api.cuModuleLoadData(&module, "image") == CUDA_SUCCESS ? module : NULL;
}

#endif
