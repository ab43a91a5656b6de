/*
 * The property test's worker: a process that makes random calls of every family and keeps a model of what
 * they cost by the rules in words (driver-api.md of the design), never by enforcer/rules*.h.
 *
 *   world   the process: contexts that all threads share, what must be asked of the driver
 *   actor   a thread with its own random numbers, contexts and things
 *   thing   one allocation, mapping, pool, array, ... with the bytes it costs
 *
 * A step is one do_* function: it draws, perhaps arms one failure in the simulated driver (vcapsim_fail, this
 * thread's next calls only), calls, and books the answer in the model.  0: as the rules have it; 1: not, and
 * said.  What a pool or the graphs of a device have reserved only the driver knows: the model asks it.
 */
#ifndef VRAMCAP_TESTS_PROPERTY_H
#define VRAMCAP_TESTS_PROPERTY_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/support/api.h"
#include "tests/support/fixture.h"

#define CARDS 2
#define CONTEXT_BYTES (16 * MIB) /* VRAMCAP_CONTEXT_MIB */
#define CONTEXTS 4               /* of one actor, beside the shared one */
#define LIMITS 3                 /* stack, printf FIFO, heap */
#define POISON 0x77

enum kind {
    LINEAR,
    OLD_LINEAR, /* 32-bit */
    ARRAY,
    MIPMAP,
    EXTERNAL,
    POOL,
    POOL_POINTER,
    GRAPH,
    GRAPH_POINTER,
    PHYSICAL,
    OPENED,   /* IPC memory of another process */
    BORROWED, /* physical memory of another process */
    WINDOW    /* a pointer of another process's pool */
};

#define REFERENCES 4

struct thing {
    struct thing *next;
    enum kind kind;
    unsigned card;
    CUcontext context;  /* goes with it; NULL: with none */
    uint64_t bytes;     /* what it costs by itself */
    uint64_t imported;  /* what it shows of another's */
    uint64_t size;      /* as asked for; a destroyed pool: what it had reserved */
    uint64_t number;    /* pointer, handle, or the address of an object */
    struct thing *home; /* the pool of a pointer */
    /* a pool: what its live pointers sum up to, rounded each, and whether it is destroyed */
    uint64_t live;
    unsigned pointers;
    bool destroyed;
    /* physical memory: its handles and mappings */
    uint64_t handle[REFERENCES], map[REFERENCES];
    unsigned handles, maps;
    /* a graph */
    CUgraph graph;
    unsigned nodes;
    uint64_t largest, sum;
    /* lent to another process under this number, which says when it is done; 0: not */
    uint32_t lent;
    int fd;
};

struct context {
    CUcontext handle;
    unsigned card;
    CUstream stream;
    uint64_t initial[LIMITS], value[LIMITS];
};

struct actor {
    struct world *world;
    unsigned number;
    uint64_t random;
    struct thing *things;
    unsigned count;
    struct context context[CONTEXTS + 1]; /* [0] is the shared one */
    unsigned contexts, current;
    CUevent event;
    bool armed;
    const char *armed_symbol; /* for words */
    uint64_t steps, granted, refused, struck;
    const char *doing;
    bool failed;
};

struct world {
    uint64_t seed;
    unsigned threads;
    bool alone;    /* nobody else holds anything: each step is checked, refusals are judged */
    bool failures; /* of the driver are injected */
    bool
        loose; /* an inner call failed: the ledger may be above the model until the next settling */
    uint64_t
        unread; /* bytes that failed readings since then may have hidden: a pool's chunk, a graph */
    bool over[CARDS];
    bool primary[CARDS]; /* retained by this process */
    const char *ledger;
    uint64_t ceiling[CARDS], quota; /* of one actor */
    uint64_t refusals[CARDS];       /* in the ledger's row when last looked at */
    struct context shared;
    struct thing *handed; /* from one thread to another */
    unsigned handed_count;
    pthread_mutex_t lock;
    /* Held for reading by who captures, for writing by who waits for a whole context: the driver lets that
     * spoil every capture in it. */
    pthread_rwlock_t captures;
    int left, right; /* sockets to the neighbours; -1: none */
};

extern struct test_api api;

/* ---- drawing ---- */

uint32_t draw(struct actor *a, uint32_t below);
bool chance(struct actor *a, uint32_t percent);
uint64_t draw_size(struct actor *a); /* bytes, of all sorts up to 16 MiB */

/* ---- the model ---- */

uint64_t cost_linear(uint64_t bytes);
uint64_t whole_pages(uint64_t bytes);
struct thing *thing_add(struct actor *a, enum kind kind, unsigned card, uint64_t number,
                        uint64_t bytes);
void thing_drop(struct actor *a, struct thing *thing);
/* A random one that nobody else holds on to; NULL: none. */
struct thing *thing_pick(struct actor *a, enum kind kind);
struct context *here(struct actor *a);          /* the current context */
bool room_for(struct actor *a, uint64_t bytes); /* in this actor's quota */
/* The context is gone: what belongs to it is. */
void things_gone(struct actor *a, CUcontext context);
uint64_t pool_reserved(CUmemoryPool pool); /* by the driver */
/* A pointer of a pool is gone. */
void pool_pointer_gone(struct thing *pool, uint64_t size);

/* A reset ends a primary context though it is still retained. */
bool primary_lives(unsigned card);
/* What this process should be charged on a card now. */
uint64_t model_bytes(struct world *w, unsigned card);
uint64_t model_imported(struct world *w, unsigned card);

/* ---- failures and their judgement ---- */

/* Perhaps makes one of the named calls fail; a list that ends with NULL, the step's own call first. */
void arm(struct actor *a, const char *const *symbols);
/* Ends it.  True: it struck. */
bool struck(struct actor *a);

/* From now on the ledger may be above the model, until everything has been read again. */
void loosen(struct actor *a);

/* What a reading that failed may have kept from the ledger until the next one. */
void not_read(struct actor *a, uint64_t bytes);

int wrong(struct actor *a, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A call was answered with an error and nothing was injected: only a refusal will do, and only where this
 * much more on the card would be too much. */
int judge(struct actor *a, int result, unsigned card, uint64_t needed);

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return wrong(a, "%s:%d: %s", __FILE__, __LINE__, #condition);                          \
    } while (0)
#define GOOD(call)                                                                                 \
    do {                                                                                           \
        int good_ = (int)(call);                                                                   \
        if (good_ != 0)                                                                            \
            return wrong(a, "%s:%d: %s gave %d", __FILE__, __LINE__, #call, good_);                \
    } while (0)

/* ---- steps (do_*.c) ---- */

int do_linear(struct actor *a);
int do_old_linear(struct actor *a);
int do_pitched(struct actor *a);
int do_managed(struct actor *a);
int do_free(struct actor *a);
int do_free_odd(struct actor *a);
int do_hand_over(struct actor *a);
int do_array(struct actor *a);
int do_mipmap(struct actor *a);
int do_array_destroy(struct actor *a);
int do_external(struct actor *a);
int do_external_destroy(struct actor *a);
int do_pool_create(struct actor *a);
int do_pool_destroy(struct actor *a);
int do_pool_trim(struct actor *a);
int do_pool_threshold(struct actor *a);
int do_alloc_async(struct actor *a);
int do_alloc_from_pool(struct actor *a);
int do_free_async(struct actor *a);
int do_capture(struct actor *a);
int do_synchronize(struct actor *a);
int do_physical(struct actor *a);
int do_physical_host(struct actor *a);
int do_map(struct actor *a);
int do_unmap(struct actor *a);
int do_retain(struct actor *a);
int do_release(struct actor *a);
int do_graph(struct actor *a);
int do_launch(struct actor *a);
int do_graph_destroy(struct actor *a);
int do_graph_trim(struct actor *a);
int do_context_create(struct actor *a);
int do_context_use(struct actor *a);
int do_context_destroy(struct actor *a);
int do_primary(struct actor *a);
int do_limit(struct actor *a);
int do_views(struct actor *a);
int do_lend(struct actor *a);
int do_neighbours(struct actor *a);
int do_give_back(struct actor *a);

/* Frees one thing, whatever it is; no failure is injected. */
int end_thing(struct actor *a, struct thing *thing);
int graph_end(struct actor *a, struct thing *graph);
int physical_end(struct actor *a, struct thing *physical);
int context_end(struct actor *a, unsigned at);
int share_end(struct actor *a, struct thing *thing);
bool share_drain(struct actor *a); /* false: somebody still borrows */

/* Makes up for readings that failed: afterwards ledger and model are equal again. */
int tidy(struct actor *a);
int limits_again(struct actor *a);

#endif
