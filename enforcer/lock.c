/*
 * The slow ways of lock.h: a short spin, for the holder is about to let go, then sleep.
 */
#include "enforcer/lock.h"

#include "enforcer/kernel.h"

void vcap_lock_wait(struct vcap_lock *lock)
{
    bool counted = false;

    for (unsigned spins = 0;; spins++) {
        uint32_t seen = __atomic_load_n(&lock->word, __ATOMIC_RELAXED);

        if (seen == 0 && __atomic_compare_exchange_n(&lock->word, &seen, 1, false, __ATOMIC_ACQUIRE,
                                                     __ATOMIC_RELAXED))
            break;
        if (spins < VCAP_LOCK_SPINS) {
            vcap_stand_back(spins);
            continue;
        }
        if (!counted)
            __atomic_fetch_add(&lock->waiters, 1, __ATOMIC_SEQ_CST);
        counted = true;
        vcap_sys_futex_sleep(&lock->word, 1, VCAP_LOCK_SLEEP_NS);
    }
    if (counted)
        __atomic_fetch_sub(&lock->waiters, 1, __ATOMIC_RELAXED);
}

void vcap_lock_wake(uint32_t *word)
{
    vcap_sys_futex_wake(word, 1);
}
