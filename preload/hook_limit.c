/*
 * Limits of a context that take device memory.  Invariants:
 *   - what a context came with is its overhead and charges nothing; charged is what a limit costs beyond
 *     the value that it had when it was first set through us;
 *   - an increase is charged before the driver is asked, and settled by what cuCtxGetLimit says then
 *     (the driver may round, clamp or refuse); one that the ceiling has no room for leaves the old
 *     value in force;
 *   - a reading is booked downwards only if no call on that limit was under way meanwhile: two threads
 *     may set one limit at once, and a stale reading must not release what the later one reserved;
 *   - a limit whose last call could not book what the driver says (no reading, or an old one) is unread: it
 *     is read again by the next call on it, and before anything is refused while its context is current.
 * Not seen: the driver raises the stack by itself at the launch of a kernel that needs more.
 */
#include "preload/limits.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/rules.h"
#include "preload/account.h"
#include "preload/charge.h"
#include "preload/context.h"
#include "preload/fault.h"
#include "preload/live.h"
#include "preload/overhead.h"
#include "preload/relaxed.h"

#define PER_BLOCK 10 /* CU_LIMIT_PER_BLOCK_MEMORY_SIZE, by cuda.h of CUDA 13.5 */
#define LIMITS (PER_BLOCK + 1)

/* CU_LIMIT_STACK_SIZE .. CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, and the memory of blocks. */
static bool priced(CUlimit limit)
{
    return (unsigned)limit <= CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT || (int)limit == PER_BLOCK;
}

struct limit {
    struct vcap_account account;
    bool known;
    bool unread;       /* what is charged may not be what the driver says */
    uint64_t initial;  /* the value before it was first set */
    uint32_t calls;    /* under way */
    uint64_t sequence; /* raised before and after each driver call that sets it */
};

struct limits {
    struct limits *next;
    CUcontext context;
    CUdevice ordinal;
    bool primary;
    bool gone;      /* out of the list; freed by the last call under way */
    uint32_t users; /* calls under way on any limit */
    uint64_t birth;
    uint64_t threads, blocks; /* resident on this device at most */
    struct limit limit[LIMITS];
};

/* Held over ledger operations, never over a driver call; accounts and slot renewal are below it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct limits *all;
uint32_t vcap_limits_unread; /* stored under the lock */

void vcap_limits_forget(void)
{
    const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

    memcpy(&lock, &fresh, sizeof(fresh));
    all = NULL; /* not freed: the parent's allocator may have been in the middle of anything */
    vcap_limits_unread = 0;
}

/* What a value takes beyond the initial one. */
static uint64_t increase(const struct limits *l, CUlimit limit, uint64_t value)
{
    uint64_t unit = 1; /* the FIFO of printf, the heap */

    if (limit == CU_LIMIT_STACK_SIZE)
        unit = l->threads;
    else if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH)
        unit = VCAP_SYNC_LEVEL;
    else if (limit == CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT)
        unit = VCAP_PENDING_LAUNCH;
    else if ((int)limit == PER_BLOCK)
        unit = l->blocks;
    return vcap_rule_limit(l->limit[limit].initial, value, unit);
}

static uint64_t attribute(CUdevice ordinal, CUdevice_attribute which)
{
    int value = 0;

    if (vcap_own.cuDeviceGetAttribute == NULL ||
        vcap_own.cuDeviceGetAttribute(&value, which, ordinal) != CUDA_SUCCESS || value <= 0)
        return 0;
    return (uint64_t)value;
}

static struct limits *find(CUcontext context)
{
    struct limits *l = all;

    while (l != NULL && l->context != context)
        l = l->next;
    return l;
}

/* The context's entry, made if there is none, with one more user; NULL: no memory for it. */
static struct limits *enter(CUcontext context, CUdevice ordinal)
{
    struct limits *l, *fresh;
    uint64_t processors, threads, blocks;

    pthread_mutex_lock(&lock);
    l = find(context);
    if (l != NULL)
        l->users++;
    pthread_mutex_unlock(&lock);
    if (l != NULL)
        return l;
    processors = attribute(ordinal, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    threads = vcap_multiply(processors,
                            attribute(ordinal, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR));
    blocks = vcap_multiply(processors,
                           attribute(ordinal, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR));
    fresh = calloc(1, sizeof(*fresh));
    pthread_mutex_lock(&lock);
    l = find(context);
    if (l == NULL && fresh != NULL) {
        l = fresh;
        fresh = NULL;
        l->context = context;
        l->ordinal = ordinal;
        l->primary = vcap_context_is_primary(context);
        l->birth = vcap_live_sweep_number();
        l->threads = threads != 0 ? threads : VCAP_THREADS_MOST;
        l->blocks = blocks != 0 ? blocks : VCAP_BLOCKS_MOST;
        for (unsigned i = 0; i < LIMITS; i++)
            l->limit[i].account.ordinal = ordinal;
        l->next = all;
        all = l;
    }
    if (l != NULL)
        l->users++;
    pthread_mutex_unlock(&lock);
    free(fresh);
    return l;
}

/* The lock is held. */
static void mark(struct limit *entry, bool unread)
{
    if (entry->unread == unread)
        return;
    entry->unread = unread;
    __atomic_store_n(&vcap_limits_unread, vcap_limits_unread + (unread ? 1u : -1u),
                     __ATOMIC_RELAXED);
}

/* The context is gone: what it held is given back.  The lock is held. */
static void clear(struct limits *l)
{
    for (unsigned i = 0; i < LIMITS; i++) {
        vcap_account_set(&l->limit[i].account, VCAP_ROW_cuCtxSetLimit, 0, true);
        mark(&l->limit[i], false);
    }
}

/* One user less; the lock is held. */
static void leave(struct limits *l)
{
    if (--l->users == 0 && l->gone) {
        clear(l);
        free(l);
    }
}

void vcap_limits_gone(CUcontext context, CUdevice ordinal, uint64_t before)
{
    struct limits **at, *l;

    pthread_mutex_lock(&lock);
    for (at = &all; (l = *at) != NULL;) {
        bool it = context != NULL ? l->context == context : l->primary && l->ordinal == ordinal;

        if (!it || l->birth >= before) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        l->gone = true;
        clear(l);
        l->users++;
        leave(l);
    }
    pthread_mutex_unlock(&lock);
}

/* Notes the value that a limit has before it is first set; what a new one costs more than is charged now. */
static uint64_t look(struct limits *l, CUlimit limit, uint64_t present, uint64_t value)
{
    struct limit *entry = &l->limit[limit];
    uint64_t wanted, more;

    pthread_mutex_lock(&lock);
    if (!entry->known) {
        entry->known = true;
        entry->initial = present;
    }
    wanted = increase(l, limit, value);
    more = wanted > entry->account.bytes ? wanted - entry->account.bytes : 0;
    pthread_mutex_unlock(&lock);
    return more;
}

/* A call that has looked at the value in force. */
struct setting {
    size_t present, value;
    uint64_t seen; /* the limit's sequence ahead of that look */
    bool raises;   /* it may take memory, and may be refused for it */
};

/*
 * Reserves what a new value costs more than is charged for the limit now.  A value that is not above the one
 * in force takes nothing: what is charged too little for it is late, from a reading that failed, and booked
 * without refusal.  Where another call sets the limit meanwhile, the look says nothing and it counts as a raise.
 */
static CUresult reserve(struct limits *l, CUlimit limit, struct setting *s)
{
    struct limit *entry = &l->limit[limit];
    CUresult result = CUDA_SUCCESS;
    uint64_t wanted;

    pthread_mutex_lock(&lock);
    s->raises = s->value > s->present || entry->calls != 0 || entry->sequence != s->seen;
    wanted = increase(l, limit, s->value);
    if (!l->gone && wanted > entry->account.bytes)
        result = vcap_account_set(&entry->account, VCAP_ROW_cuCtxSetLimit, wanted, !s->raises);
    if (!s->raises)
        result = CUDA_SUCCESS; /* where not even that can be booked: no slot is to be had */
    entry->calls += result == CUDA_SUCCESS;
    entry->sequence++;
    pthread_mutex_unlock(&lock);
    return result;
}

enum growth { IF_ROOM, LATE, ANYWAY };

/*
 * Ends a call by booking what the driver says.  False: that is more than there is room for (IF_ROOM only);
 * the charge is as before and the call has not ended.  LATE: growth is no doing of this call, and is left to
 * another one that is under way.  *value: in, what is in force if the driver does not say (0: not known), which
 * is charged and never released; out, what it says.
 */
static bool settle(struct limits *l, CUlimit limit, enum growth growth, size_t *value)
{
    struct limit *entry = &l->limit[limit];

    for (int tries = 0;; tries++) {
        bool read, alone, still, more, booked = true;
        uint64_t seen, is;
        size_t now = 0;

        pthread_mutex_lock(&lock);
        seen = entry->sequence;
        pthread_mutex_unlock(&lock);
        read = vcap_own.cuCtxGetLimit(&now, limit) == CUDA_SUCCESS;
        if (read)
            *value = now;
        pthread_mutex_lock(&lock);
        is = increase(l, limit, *value);
        alone = entry->calls == 1;
        still = entry->sequence == seen;
        if (read && alone && !still && tries < 8) { /* somebody else ended in between: once more */
            pthread_mutex_unlock(&lock);
            continue;
        }
        more = is > entry->account.bytes;
        if (!l->gone && (more ? growth != LATE || alone : read && alone && still))
            booked = vcap_account_set(&entry->account, VCAP_ROW_cuCtxSetLimit, is,
                                      growth != IF_ROOM) == CUDA_SUCCESS;
        if (!booked && more && growth == IF_ROOM) {
            pthread_mutex_unlock(&lock);
            return false;
        }
        entry->calls--;
        /* what could not be booked in spite of all (no slot to be had) counts as not read */
        mark(entry, !l->gone && !(read && alone && still && entry->account.bytes == is));
        pthread_mutex_unlock(&lock);
        return true;
    }
}

/* A limit that is unread is read by whoever calls this, unless a call on it is under way, which will. */
static void read_again(struct limits *l, CUlimit limit)
{
    struct limit *entry = &l->limit[limit];
    size_t unknown = 0;
    bool mine;

    pthread_mutex_lock(&lock);
    mine = entry->unread && entry->calls == 0;
    entry->calls += mine;
    pthread_mutex_unlock(&lock);
    if (mine)
        settle(l, limit, LATE, &unknown);
}

void vcap_limits_settle(CUdevice ordinal)
{
    CUcontext context = NULL;
    struct vcap_relaxed r;
    struct limits *l;

    if (__atomic_load_n(&vcap_limits_unread, __ATOMIC_RELAXED) == 0 ||
        vcap_own.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL)
        return;
    pthread_mutex_lock(&lock);
    l = find(context);
    if (l != NULL && l->ordinal != ordinal)
        l = NULL;
    if (l != NULL)
        l->users++;
    pthread_mutex_unlock(&lock);
    if (l == NULL)
        return;
    r = vcap_relaxed_begin();
    for (unsigned i = 0; i < LIMITS; i++)
        read_again(l, (CUlimit)i);
    vcap_relaxed_end(r);
    pthread_mutex_lock(&lock);
    leave(l);
    pthread_mutex_unlock(&lock);
}

static CUresult ask(struct limits *l, CUlimit limit, size_t value)
{
    CUresult result = VCAP_CALL(cuCtxSetLimit, limit, value);

    pthread_mutex_lock(&lock);
    l->limit[limit].sequence++;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Between the driver's answer and its booking the difference is no overhead: begun ahead of this, the call is
 * in flight until it has ended (overhead.h). */
static CUresult ask_and_settle(struct limits *l, CUlimit limit, const struct setting *s)
{
    CUresult result = ask(l, limit, s->value);
    size_t in_force = 0;

    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        vcap_device_full(vcap_device(l->ordinal), l->ordinal, VCAP_ROW_cuCtxSetLimit,
                         increase(l, limit, s->value));
    if (settle(l, limit, s->raises ? IF_ROOM : LATE, &in_force))
        return result;
    /* the driver rounded up to more than there is room for */
    vcap_last_resort(l->ordinal, VCAP_ROW_cuCtxSetLimit, 0);
    if (!settle(l, limit, IF_ROOM, &in_force)) {
        if (ask(l, limit, s->present) == CUDA_SUCCESS)
            in_force = s->present;
        settle(l, limit, ANYWAY, &in_force);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

/* Nothing is granted in this process for now, and nothing booked: lower limits pass, to be read later. */
static CUresult set_denied(CUcontext context, CUlimit limit, size_t value)
{
    size_t present = 0;
    struct limits *l;
    CUresult result;

    if (vcap_own.cuCtxGetLimit(&present, limit) == CUDA_SUCCESS && value > present)
        return vcap_deny(VCAP_ROW_cuCtxSetLimit);
    result = VCAP_CALL(cuCtxSetLimit, limit, value);
    pthread_mutex_lock(&lock);
    l = find(context);
    if (l != NULL) {
        l->limit[limit].sequence++; /* a reading from before is an old one */
        if (l->limit[limit].known)
            mark(&l->limit[limit], true);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult set(struct limits *l, CUlimit limit, size_t value)
{
    struct vcap_device *device = &vcap_process.device[l->ordinal];
    struct setting s = {.value = value};
    CUresult result;
    bool counted;

    pthread_mutex_lock(&lock);
    s.seen = l->limit[limit].sequence;
    pthread_mutex_unlock(&lock);
    result = vcap_own.cuCtxGetLimit(&s.present, limit);
    if (result == CUDA_ERROR_UNSUPPORTED_LIMIT)
        return VCAP_CALL(cuCtxSetLimit, limit, value); /* this device does not have the limit */
    if (result != CUDA_SUCCESS)
        return result; /* what it would cost cannot be known: it is not set */
    vcap_make_room(l->ordinal, VCAP_ROW_cuCtxSetLimit, look(l, limit, s.present, value));
    counted = vcap_overhead_call_begin(device);
    result = reserve(l, limit, &s);
    if (result == CUDA_SUCCESS)
        result = ask_and_settle(l, limit, &s);
    vcap_overhead_call_end(device, counted);
    return result;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value)
{
    CUcontext context = NULL;
    CUdevice ordinal = -1;
    struct limits *l;
    CUresult result;

    VCAP_ENTER(cuCtxSetLimit, (limit, value));
    if (!priced(limit) || vcap_own.cuCtxGetLimit == NULL || vcap_own.cuCtxGetCurrent == NULL ||
        vcap_own.cuCtxGetDevice == NULL || vcap_own.cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
        context == NULL || vcap_own.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS)
        return VCAP_CALL(cuCtxSetLimit, limit, value);
    if (vcap_mode_now() == VCAP_MODE_DENY)
        return set_denied(context, limit, value);
    if (vcap_device(ordinal) == NULL)
        return vcap_process.config.on_error == VCAP_ON_ERROR_ALLOW
                   ? VCAP_CALL(cuCtxSetLimit, limit, value)
                   : vcap_deny(VCAP_ROW_cuCtxSetLimit);
    vcap_context_met(context, ordinal);
    l = enter(context, ordinal);
    if (l == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = set(l, limit, value);
    pthread_mutex_lock(&lock);
    leave(l);
    pthread_mutex_unlock(&lock);
    return result;
}
