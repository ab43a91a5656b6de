/*
 * The table behind cuGetProcAddress, and the macros its generated files use.
 *
 * A row per exported symbol, in the order of driver_symbols_13_0.tsv; a _ptsz or
 * _ptds twin follows its legacy form. `thunk` is another address that behaves the
 * same (VRAMCAP_SIM_ALIAS), NULL where this architecture has none. Addresses are
 * bound inside the library (-Bsymbolic): never those of an interposer.
 */
#ifndef VRAMCAP_SIM_SYMBOLS_H
#define VRAMCAP_SIM_SYMBOLS_H

#include <stdbool.h>

typedef int (*sim_address)(void);

struct sim_symbol {
    const char *base;
    const char *name;
    int since;
    bool per_thread;
    sim_address address;
    sim_address thunk;
};

extern const struct sim_symbol sim_symbols[];
extern const unsigned int sim_symbol_count;

#if defined(__x86_64__)
#define SIM_HAVE_THUNKS 1
#define SIM_JUMP "endbr64\n\tjmp "
#elif defined(__aarch64__)
#define SIM_HAVE_THUNKS 1
#define SIM_JUMP "hint #34\n\tb " /* bti c */
#else
#define SIM_HAVE_THUNKS 0
#endif

#define SIM_DECLARE(symbol)                                                                        \
    int symbol(void);                                                                              \
    int sim_thunk_##symbol(void);

#if SIM_HAVE_THUNKS
#define SIM_THUNK(symbol)                                                                          \
    __asm__(".text\n\t.globl sim_thunk_" #symbol "\n\t.hidden sim_thunk_" #symbol                  \
            "\n\t.type sim_thunk_" #symbol ", %function\nsim_thunk_" #symbol                       \
            ":\n\t" SIM_JUMP #symbol "\n\t.size sim_thunk_" #symbol ", . - sim_thunk_" #symbol     \
            "\n");
#define SIM_THUNK_OF(symbol) sim_thunk_##symbol
#else
#define SIM_THUNK_OF(symbol) 0
#endif

#define SIM_ROW(base_, since_, symbol)                                                             \
    {#base_, #symbol, since_, false, symbol, SIM_THUNK_OF(symbol)},
#define SIM_TWIN(base_, since_, symbol)                                                            \
    {#base_, #symbol, since_, true, symbol, SIM_THUNK_OF(symbol)},

#endif
