/*
 * A lock of one process, for sections of some ten nanoseconds: one locked instruction to take it, a plain
 * store to let it go.  All zero is free, and what a forked child has to make of one that a thread of its
 * parent may have held.  Not recursive, not for signal handlers, no cancellation point, nothing for other
 * processes.
 *
 * Letting go does not say with a fence that it has looked for sleepers after the word was free.  A thread
 * that goes to sleep at that very instant can be missed, so nobody sleeps longer than VCAP_LOCK_SLEEP_NS
 * before it looks again.  Sleeping at all needs a holder that lost its processor in the section.
 */
#ifndef VRAMCAP_ENFORCER_LOCK_H
#define VRAMCAP_ENFORCER_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#define VCAP_LOCK_SLEEP_NS 1000000

struct vcap_lock {
    uint32_t word; /* 0 free, 1 held; CAS to take, release store by the holder to let go; futex */
    uint32_t waiters; /* threads that sleep or are about to; fetch-and-add */
};

static inline void vcap_spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* `yield` does nothing on most cores */
#endif
}

/*
 * After the nth try in vain, from 0: longer each time, up to some microseconds.  Whoever tries again at
 * once takes the cache line from the one that is about to let go or to move the word, and fails again.
 */
#define VCAP_BACK_FIRST 8u /* pauses, of some 10 to 50 ns each */
#define VCAP_BACK_DOUBLED 3u

static inline void vcap_stand_back(unsigned tries)
{
    unsigned pauses = VCAP_BACK_FIRST << (tries < VCAP_BACK_DOUBLED ? tries : VCAP_BACK_DOUBLED);

    while (pauses-- > 0)
        vcap_spin_pause();
}

/* Tries before a waiter sleeps. */
#define VCAP_LOCK_SPINS 32

void vcap_lock_wait(struct vcap_lock *lock);
void vcap_lock_wake(uint32_t *word);

static inline void vcap_lock_take(struct vcap_lock *lock)
{
    uint32_t seen = 0;

    if (__builtin_expect(!__atomic_compare_exchange_n(&lock->word, &seen, 1, false,
                                                      __ATOMIC_ACQUIRE, __ATOMIC_RELAXED),
                         0))
        vcap_lock_wait(lock);
}

static inline void vcap_lock_drop(struct vcap_lock *lock)
{
    __atomic_store_n(&lock->word, 0, __ATOMIC_RELEASE);
    if (__builtin_expect(__atomic_load_n(&lock->waiters, __ATOMIC_RELAXED) != 0, 0))
        vcap_lock_wake(&lock->word);
}

/* In a forked child: whoever held it is a thread of the parent. */
static inline void vcap_lock_forget(struct vcap_lock *lock)
{
    lock->word = 0;
    lock->waiters = 0;
}

#endif
