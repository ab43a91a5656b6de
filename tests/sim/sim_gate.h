/*
 * The gate at the head of every driver function.
 *
 * One word says "initialised, and nothing is scripted": the common case costs one
 * load. Anything else goes to sim_enter, which reads the configuration, writes the
 * journal, waits, fails on demand, hides symbols newer than the simulated version,
 * and answers NOT_INITIALIZED before cuInit and in a forked child.
 * The word is 0 again in a child of any fork (MADV_WIPEONFORK, and a fork handler).
 */
#ifndef VRAMCAP_SIM_GATE_H
#define VRAMCAP_SIM_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_GATE_CONFIGURED 1U
#define SIM_GATE_INITIALISED 2U
#define SIM_GATE_SCRIPTED 4U
#define SIM_GATE_CAPTURING 8U /* some stream of the process captures */
#define SIM_GATE_WATCHED 16U  /* a fatal fault may hit this process at any call */
#define SIM_GATE_OPEN (SIM_GATE_CONFIGURED | SIM_GATE_INITIALISED)

/* Written by configuration (once) and by cuInit; the word it points to by cuInit
 * (release). Readers load both with acquire. */
extern uint32_t *sim_gate;

static inline uint32_t sim_gate_load(void)
{
    return __atomic_load_n(__atomic_load_n(&sim_gate, __ATOMIC_ACQUIRE), __ATOMIC_ACQUIRE);
}

static inline bool sim_gate_is_capturing(void)
{
    return (sim_gate_load() & SIM_GATE_CAPTURING) != 0;
}
/* Written by sim_capture.c under sim_lock. */
void sim_gate_capturing(bool on);
/* From now on each call asks whether the process is hit. Written once, before sim_gate_open or by
 * the fault itself. */
void sim_gate_watch(void);

/* The slow way in: 0, or the CUresult that the call must return. */
int sim_enter(const char *symbol, bool needs_init);

#define SIM_ENTER(symbol)                                                                          \
    do {                                                                                           \
        if (__builtin_expect(sim_gate_load() != SIM_GATE_OPEN, 0)) {                               \
            int gate_rc_ = sim_enter(#symbol, true);                                               \
            if (gate_rc_ != 0)                                                                     \
                return (CUresult)gate_rc_;                                                         \
        }                                                                                          \
    } while (0)

/* Waits on the way out of the few calls that have it: VRAMCAP_SIM_DELAY_US of "<symbol>/after". */
void sim_leave(const char *symbol);
#define SIM_LEAVE(symbol)                                                                          \
    do {                                                                                           \
        if (__builtin_expect((sim_gate_load() & SIM_GATE_SCRIPTED) != 0, 0))                       \
            sim_leave(#symbol "/after");                                                           \
    } while (0)

/* For calls that work before cuInit and in a forked child. */
#define SIM_ENTER_EARLY(symbol)                                                                    \
    do {                                                                                           \
        if (__builtin_expect(sim_gate_load() != SIM_GATE_OPEN, 0)) {                               \
            int gate_rc_ = sim_enter(#symbol, false);                                              \
            if (gate_rc_ != 0)                                                                     \
                return (CUresult)gate_rc_;                                                         \
        }                                                                                          \
    } while (0)

#endif
