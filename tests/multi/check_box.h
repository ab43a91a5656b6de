/*
 * `vramcap check` in a sandbox with process numbers, /run and /etc of its own, for other processes of the
 * machine and files of the host must not be found; and what its lines say.
 */
#ifndef VRAMCAP_TESTS_MULTI_CHECK_BOX_H
#define VRAMCAP_TESTS_MULTI_CHECK_BOX_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/fixture.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))
#define ENABLED "VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1000"
#define ALONE "LD_PRELOAD"
#define MPS "VRAMCAP_SIM_MPS=/run/mps-ecs", "CUDA_MPS_PIPE_DIRECTORY=/run/mps-ecs"
#define LIMIT(list) ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" list)
#define CONFIGURED "VRAMCAP_CONTEXT_MIB=0"

extern struct child_output output; /* of the last check */

void write_file(const char *path, const char *text);

/*
 * argv (room for 40) of a sandbox that runs COMMAND (a shell's, with the tool as "$0" and the client as "$1").
 * Files of the test's directory that exist are put in place: etc/ as /etc/vramcap, preload as
 * /etc/ld.so.preload, cgroup as what /proc says of it (with own_pids; what COMMAND execs is number 1 then).
 */
void sandbox(const struct fixture *f, const char *command, bool own_pids, const char **argv);

/* Skips the test where there can be no sandbox. */
void needs_bwrap(const struct fixture *f);

/* The exit status of COMMAND, or of `vramcap check`, with this environment; the lines are in output. */
int check_with(const struct fixture *f, const char *const *extra, const char *command);
int check(const struct fixture *f, const char *const *extra);
#define CHECK "exec \"$0\" check"

/* What a daemon that is only claimed to listen does not make: its pipe directory. */
#define WITH_PIPE "mkdir -p /run/mps-ecs && : >/run/mps-ecs/control && "

/* A client that has answered so many commands (of printf's), and then the check, in one sandbox. */
#define BESIDE_DOING(before, commands, answers)                                                    \
    "rm -f \"$VRAMCAP_LEDGER\".*; mkfifo \"$VRAMCAP_LEDGER.in\"; : "                               \
    ">\"$VRAMCAP_LEDGER.out\"; " before                                                            \
    " \"$1\" --by=dlsym <\"$VRAMCAP_LEDGER.in\" >>\"$VRAMCAP_LEDGER.out\" & exec "                 \
    "3>\"$VRAMCAP_LEDGER.in\"; printf '" commands "' >&3; "                                        \
    "while [ \"$(wc -l <\"$VRAMCAP_LEDGER.out\")\" -lt " answers                                   \
    " ]; do sleep 0.01; done; \"$0\" check"
#define BESIDE(before) BESIDE_DOING(before, "init\\nctx create 0\\n", "2")

/* Is there a line of this state and kind whose evidence has these words?  Of this kind at all? */
bool says(const char *state, const char *kind, const char *words);
bool speaks_of(const char *kind);
unsigned count_said(const char *kind);

#define SAYS(state, kind, words)                                                                   \
    do {                                                                                           \
        if (!says(state, kind, words))                                                             \
            fail_msg("no line '%s %s ...%s...' in:\n%s%s", state, kind, words, output.out,         \
                     output.err);                                                                  \
    } while (0)
#define IS(call, wanted)                                                                           \
    do {                                                                                           \
        if ((call) != (wanted))                                                                    \
            fail_msg("exit status %d, not %d:\n%s%s", output.status, wanted, output.out,           \
                     output.err);                                                                  \
    } while (0)

#endif
