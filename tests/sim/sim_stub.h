/*
 * What an export does that the simulator does not implement: it says so in the
 * journal and answers CUDA_ERROR_NOT_SUPPORTED (801). Weak, so that a new file with
 * the real function replaces the stub by being linked.
 */
#ifndef VRAMCAP_SIM_STUB_H
#define VRAMCAP_SIM_STUB_H

#include "sim_gate.h"

#define SIM_STUB(symbol)                                                                           \
    __attribute__((weak, visibility("default"))) int symbol(void);                                 \
    int symbol(void)                                                                               \
    {                                                                                              \
        int rc = sim_enter(#symbol, true);                                                         \
        return rc != 0 ? rc : 801;                                                                 \
    }

#endif
