/*
 * A victim that is stepped instruction by instruction: what single_step.c and interrupt_step.c share.
 */
#ifndef VRAMCAP_TESTS_PROOF_STEP_H
#define VRAMCAP_TESTS_PROOF_STEP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "enforcer/ledger.h"

#define UNIT UINT64_C(512)
#define CEILING 8 /* units */
#define EVERY_INSTRUCTION 100000000L

/* A page that tracer, victim and traffic see; zeroed for each victim where that is said. */
struct step_shared {
    int pause;  /* the tracer asks the traffic to hold nothing and wait */
    int paused; /* its answer */
    int stop;
    int failed;       /* what went wrong, a line number */
    int charged_less; /* units that a handler took off */
    int charged_more; /* units that it got */
    int main_result;  /* of what was stepped */
    long rounds;
};
extern struct step_shared *step_shared;
extern struct vcap_ledger step_ledger; /* of whoever runs: victim, traffic or tracer */

#define DIE(...)                                                                                   \
    do {                                                                                           \
        fprintf(stderr, "step: " __VA_ARGS__);                                                     \
        fputc('\n', stderr);                                                                       \
        exit(1);                                                                                   \
    } while (0)

struct step_scene {
    const char *name;
    void (*prepare)(void); /* in the tracer */
    void (*set_up)(void);  /* in the victim, at full speed */
    void (*act)(void);     /* in the victim, stepped */
    uint32_t slots;
    bool with_traffic;
};

/* The page and a directory of our own, removed at exit. */
void step_begin(void);

void step_open(uint32_t what);
void step_make_ledger(uint32_t slots);
int step_charge(uint64_t units);
int step_release(uint64_t units);

/* A process that charged and died; in_charge: it died in the middle of it, total moved.  traffic: others
 * may have moved total since. */
void step_leave_a_dead_one(uint64_t units, bool in_charge, bool traffic);

/* A victim at its first mark, about to act. */
pid_t step_start(const struct step_scene *scene);

/* Steps at most `most` instructions; how many until the second mark, or most. */
long step_on(pid_t pid, long most);

/* Goes on at full speed, with a signal or 0, to the second mark. */
void step_run(const struct step_scene *scene, pid_t pid, int number, long k);

void step_kill(pid_t pid);

/* The i-th of 0..count-1, each once, spread evenly from the beginning on. */
long step_nth(long i, long count);

/* When this scene's time is up: VRAMCAP_STEP_SECONDS from now (0: never; default 4). */
uint64_t step_deadline(void);

#endif
