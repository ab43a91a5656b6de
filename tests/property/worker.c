/*
 * property_worker SEED THREADS ALONE FAILURES CEILING0 CEILING1 QUOTA LEFT RIGHT: one command a line on
 * standard input, one answer a line on standard output.
 *
 *     go STEPS    that many steps by every thread, then quiet; the ledger is what the model says
 *     return      gives back what it borrowed, hears what it lent
 *     drain       gives everything back; nothing is charged then
 *     end         ends, with 0 or what a sanitizer has to say
 *
 * An answer is "ok CHARGED0 CHARGED1 IMPORTED0 IMPORTED1 STEPS GRANTED REFUSED STRUCK SLACK0 SLACK1", or "bad"
 * (and a line on standard error).  Ceilings and quota are in MiB.
 */
#include "tests/property/worker.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "enforcer/ledger_format.h"
#include "sim.h"

struct test_api api;
struct actor actors[THREADS_MOST];
static struct world world = {.left = -1, .right = -1};
static pthread_barrier_t start, end;
static unsigned steps_wanted;

static const struct {
    const char *name;
    unsigned weight;
    int (*run)(struct actor *a);
} steps[] = {
#define STEP(name, weight)                                                                         \
    {                                                                                              \
#name, weight, do_##name                                                                   \
    }
    STEP(linear, 10),         STEP(old_linear, 3),     STEP(pitched, 5),
    STEP(managed, 4),         STEP(free, 16),          STEP(free_odd, 1),
    STEP(hand_over, 4),       STEP(array, 5),          STEP(mipmap, 4),
    STEP(array_destroy, 8),   STEP(external, 4),       STEP(external_destroy, 4),
    STEP(pool_create, 3),     STEP(pool_destroy, 2),   STEP(pool_trim, 3),
    STEP(pool_threshold, 2),  STEP(alloc_async, 9),    STEP(alloc_from_pool, 9),
    STEP(free_async, 16),     STEP(capture, 1),        STEP(synchronize, 6),
    STEP(physical, 8),        STEP(physical_host, 1),  STEP(map, 8),
    STEP(unmap, 8),           STEP(retain, 4),         STEP(release, 12),
    STEP(graph, 2),           STEP(launch, 4),         STEP(graph_destroy, 2),
    STEP(graph_trim, 2),      STEP(context_create, 3), STEP(context_use, 4),
    STEP(context_destroy, 2), STEP(primary, 2),        STEP(limit, 4),
    STEP(views, 3),           STEP(lend, 9),           STEP(neighbours, 6),
    STEP(give_back, 3),
};
#define STEPS (sizeof(steps) / sizeof(steps[0]))

/* Every reading has been taken: what one that failed has missed is booked now, with room or without. */
static void read_again(struct world *w)
{
    for (unsigned card = 0; card < CARDS; card++)
        w->over[card] |= w->loose;
    w->loose = false;
    w->unread = 0;
}

int tidy(struct actor *a)
{
    if (limits_again(a) != 0)
        return 1;
    GOOD(api.cuCtxSetCurrent(a->context[0].handle));
    for (CUdevice card = 0; card < CARDS; card++)
        GOOD(api.cuDeviceGraphMemTrim(card));
    GOOD(api.cuCtxSynchronize());
    GOOD(api.cuCtxSetCurrent(here(a)->handle));
    read_again(a->world);
    return 0;
}

/* What the container holds, read without asking who is alive: where one process is alone that is the same. */
static bool held(unsigned card, uint64_t *bytes)
{
    static const struct vcap_lf_header *file;
    static const struct vcap_lf_gpu *row[CARDS];
    int fd;

    if (file == NULL) {
        struct stat st;
        void *at;

        fd = open(world.ledger, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return false;
        at = fstat(fd, &st) != 0 ? MAP_FAILED
                                 : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
        if (at == MAP_FAILED)
            return false;
        file = at;
    }
    for (uint32_t i = 0; row[card] == NULL && i < file->gpu_count; i++) {
        const struct vcap_lf_gpu *gpu =
            (const void *)((const char *)file + file->gpu_offset + i * file->gpu_stride);
        unsigned char uuid[16];

        sim_card_uuid(card, uuid);
        if (memcmp(gpu->uuid, uuid, sizeof(uuid)) == 0)
            row[card] = gpu;
    }
    *bytes = row[card] == NULL
                 ? 0
                 : vcap_lf_total_units(__atomic_load_n(&row[card]->total, __ATOMIC_SEQ_CST)) *
                       VCAP_LF_UNIT_BYTES;
    return true;
}

/* The ledger against the model.  above: the ledger may say more.  by_slot: read as a host reads it. */
static int compare(struct actor *a, bool above, bool by_slot)
{
    for (unsigned card = 0; card < CARDS; card++) {
        uint64_t model = model_bytes(&world, card), ledger = 0;

        if (!by_slot && !held(card, &ledger))
            return wrong(a, "no ledger");
        if (by_slot)
            ledger = ledger_charged_by(world.ledger, card, getpid());
        if (ledger == UINT64_MAX)
            ledger = 0;
        if (getenv("PROPERTY_TRACE") != NULL)
            trace(a, ledger, model, card);
        if (ledger == model || (above && ledger + world.unread > model))
            continue;
        return wrong(a, "card %u: the ledger has %llu, the model %llu", card,
                     (unsigned long long)ledger, (unsigned long long)model);
    }
    return 0;
}

/* Above the ceiling only where a graph took more than its largest node, until it fits again. */
static int below_the_ceiling(struct actor *a)
{
    for (unsigned card = 0; card < CARDS; card++) {
        uint64_t bytes = 0;

        if (!held(card, &bytes))
            return wrong(a, "no ledger");
        if (bytes <= world.ceiling[card])
            world.over[card] = false;
        else if (!world.over[card] && world.unread == 0)
            return wrong(a, "card %u holds %llu of %llu", card, (unsigned long long)bytes,
                         (unsigned long long)world.ceiling[card]);
    }
    return 0;
}

static int after_a_step(struct actor *a)
{
    if (below_the_ceiling(a) != 0 || compare(a, world.loose, a->steps % 32 == 0) != 0)
        return 1;
    if (!world.loose || !chance(a, 50))
        return 0;
    return tidy(a) != 0 || compare(a, false, true) != 0;
}

static int step(struct actor *a)
{
    unsigned all = 0, at = 0, number;

    for (unsigned i = 0; i < STEPS; i++)
        all += steps[i].weight;
    number = draw(a, all);
    while (number >= steps[at].weight)
        number -= steps[at++].weight;
    a->doing = steps[at].name;
    a->armed_symbol = NULL;
    a->steps++;
    if (steps[at].run(a) != 0)
        return 1;
    return world.alone ? after_a_step(a) : 0;
}

static void *act(void *arg)
{
    struct actor *a = arg;

    if (api.cuCtxSetCurrent(a->context[0].handle) != CUDA_SUCCESS)
        a->failed = true;
    for (;;) {
        pthread_barrier_wait(&start);
        for (unsigned i = 0; i < steps_wanted && !a->failed; i++)
            step(a);
        a->doing = "limits";
        if (!a->failed && world.failures)
            limits_again(a);
        pthread_barrier_wait(&end);
    }
    return NULL;
}

static int go(unsigned count)
{
    struct actor *a = &actors[0];
    bool failed = false;

    steps_wanted = count;
    if (world.threads == 1) {
        while (count-- > 0 && !a->failed)
            step(a);
    } else {
        pthread_barrier_wait(&start);
        pthread_barrier_wait(&end);
    }
    for (unsigned n = 0; n < world.threads; n++)
        failed |= actors[n].failed;
    a->doing = "quiet";
    return failed || (world.threads == 1 ? tidy(a) : 0) != 0;
}

/* Where threads have run, the main thread has no context of its own: the shared one. */
static int quiet(void)
{
    struct actor *a = &actors[0];

    if (world.threads > 1) {
        GOOD(api.cuCtxSetCurrent(world.shared.handle));
        for (CUdevice card = 0; card < CARDS; card++)
            GOOD(api.cuDeviceGraphMemTrim(card));
        GOOD(api.cuCtxSynchronize());
        read_again(&world);
    }
    if (below_the_ceiling(a) != 0)
        return 1;
    return compare(a, false, true);
}

int end_thing(struct actor *a, struct thing *t)
{
    struct thing *pool = t->home;

    switch (t->kind) {
    case LINEAR:
        GOOD(api.cuMemFree_v2(t->number));
        break;
    case OLD_LINEAR:
        GOOD(api.cuMemFree((CUdeviceptr_v1)t->number));
        break;
    case ARRAY:
        GOOD(api.cuArrayDestroy((CUarray)(uintptr_t)t->number));
        break;
    case MIPMAP:
        GOOD(api.cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)t->number));
        break;
    case EXTERNAL:
        GOOD(api.cuDestroyExternalMemory((CUexternalMemory)(uintptr_t)t->number));
        break;
    case POOL:
        if (!t->destroyed) {
            t->size = pool_reserved((CUmemoryPool)(uintptr_t)t->number);
            GOOD(api.cuMemPoolDestroy((CUmemoryPool)(uintptr_t)t->number));
        }
        t->destroyed = true;
        if (t->pointers != 0)
            return 0; /* goes with the last of them */
        break;
    case POOL_POINTER:
        GOOD(api.cuMemFree_v2(t->number));
        pool_pointer_gone(pool, t->size);
        if (pool != NULL && pool->destroyed && pool->pointers == 0)
            thing_drop(a, pool);
        break;
    case GRAPH:
        return graph_end(a, t);
    case PHYSICAL:
    case BORROWED:
        return physical_end(a, t);
    case OPENED:
    case WINDOW:
        return share_end(a, t);
    case GRAPH_POINTER:
        break;
    }
    thing_drop(a, t);
    return 0;
}

static int hand_back(struct actor *a)
{
    a->doing = "return";
    for (bool again = true; again;) {
        again = false;
        if (do_neighbours(a) != 0)
            return 1;
        for (struct thing *t = a->things; t != NULL && !again; t = t->next)
            if (t->kind == OPENED || t->kind == WINDOW || t->kind == BORROWED) {
                if (end_thing(a, t) != 0)
                    return 1;
                again = true;
            }
    }
    return share_drain(a) || world.right < 0 ? 0 : 2;
}

static int drain(void)
{
    struct actor *first = &actors[0];

    for (unsigned n = 0; n < world.threads; n++) {
        struct actor *a = &actors[n];

        a->doing = "drain";
        GOOD(api.cuCtxSetCurrent(a->context[0].handle));
        a->current = 0;
        for (unsigned left = 0; a->things != NULL && left < 4000; left++) {
            struct thing *t = a->things;

            while (t->next != NULL && t->kind == POOL && t->destroyed)
                t = t->next;
            if (end_thing(a, t) != 0)
                return 1;
        }
        while (a->contexts > 0)
            if (context_end(a, 1) != 0)
                return 1;
    }
    for (struct thing *t = world.handed; t != NULL; t = world.handed) {
        world.handed = t->next;
        t->next = first->things;
        first->things = t;
        first->count++;
        if (end_thing(first, t) != 0)
            return 1;
    }
    if (world.primary[1] && api.cuDevicePrimaryCtxRelease_v2(1) != CUDA_SUCCESS)
        return wrong(first, "release");
    for (struct thing *t = first->things; t != NULL; t = first->things)
        thing_drop(first, t); /* of the other primary context */
    world.primary[1] = false;
    for (CUdevice card = 0; card < CARDS; card++) {
        CUmemoryPool pool = NULL;
        struct actor *a = first;

        GOOD(api.cuDeviceGetDefaultMemPool(&pool, card));
        GOOD(api.cuMemPoolTrimTo(pool, 0));
    }
    if (tidy(first) != 0 || compare(first, false, true) != 0 ||
        api.cuDevicePrimaryCtxRelease_v2(0) != CUDA_SUCCESS)
        return 1;
    world.primary[0] = false;
    for (unsigned card = 0; card < CARDS; card++) {
        uint64_t left = ledger_charged_by(world.ledger, card, getpid());

        if (left != 0 && left != UINT64_MAX)
            return wrong(first, "card %u: %llu bytes are charged at the end", card,
                         (unsigned long long)left);
    }
    return 0;
}

static void answer(int rc)
{
    unsigned long long n[4] = {0};

    for (unsigned i = 0; i < world.threads; i++) {
        n[0] += actors[i].steps;
        n[1] += actors[i].granted;
        n[2] += actors[i].refused;
        n[3] += actors[i].struck;
    }
    if (rc == 0)
        printf(
            "ok %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu\n",
            (unsigned long long)model_bytes(&world, 0), (unsigned long long)model_bytes(&world, 1),
            (unsigned long long)model_imported(&world, 0),
            (unsigned long long)model_imported(&world, 1), n[0], n[1], n[2], n[3],
            (unsigned long long)model_slack(&world, 0), (unsigned long long)model_slack(&world, 1));
    else
        printf("%s\n", rc == 2 ? "wait" : "bad");
    fflush(stdout);
}

static int set_up(const char *how)
{
    struct actor *a = &actors[0];

    a->world = &world;
    a->doing = "set up";
    fixture_draw(); /* once, before there are threads */
    if (!test_api_bind(&api, how) || !failures_find())
        return 1;
    GOOD(api.cuInit(0));
    GOOD(api.cuDevicePrimaryCtxRetain(&world.shared.handle, 0));
    world.primary[0] = true;
    GOOD(api.cuCtxSetCurrent(world.shared.handle));
    for (unsigned n = 0; n < world.threads; n++) {
        actors[n].world = &world;
        actors[n].number = n;
        actors[n].random = world.seed * 7919 + n;
        actors[n].context[0] = world.shared;
        GOOD(api.cuStreamCreate(&actors[n].context[0].stream, CU_STREAM_NON_BLOCKING));
        GOOD(api.cuEventCreate(&actors[n].event, 0));
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const ways[] = {"link", "dlsym", "getproc"};
    char line[64];

    if (argc != 10)
        return 2;
    world.seed = strtoull(argv[1], NULL, 10);
    world.threads = (unsigned)atoi(argv[2]);
    world.alone = atoi(argv[3]) != 0;
    world.failures = atoi(argv[4]) != 0;
    world.ceiling[0] = strtoull(argv[5], NULL, 10) * MIB;
    world.ceiling[1] = strtoull(argv[6], NULL, 10) * MIB;
    world.quota = strtoull(argv[7], NULL, 10) * MIB;
    world.left = atoi(argv[8]);
    world.right = atoi(argv[9]);
    world.ledger = getenv("VRAMCAP_LEDGER");
    pthread_mutex_init(&world.lock, NULL);
    pthread_rwlock_init(&world.captures, NULL);
    if (world.threads < 1 || world.threads > THREADS_MOST || set_up(ways[world.seed % 3]) != 0)
        return 1;
    pthread_barrier_init(&start, NULL, world.threads + 1);
    pthread_barrier_init(&end, NULL, world.threads + 1);
    for (unsigned n = 0; world.threads > 1 && n < world.threads; n++) {
        pthread_t thread;

        if (pthread_create(&thread, NULL, act, &actors[n]) != 0)
            return 1;
    }
    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (strncmp(line, "go ", 3) == 0)
            answer(go((unsigned)atoi(line + 3)) != 0 || quiet() != 0);
        else if (strcmp(line, "return\n") == 0)
            answer(hand_back(&actors[0]));
        else if (strcmp(line, "drain\n") == 0)
            answer(drain());
        else
            break;
    }
    fflush(stdout);
    _exit(0); /* threads wait at their barrier */
}
