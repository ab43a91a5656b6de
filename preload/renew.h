/*
 * A place in the ledger that is not this process's any more, and a ledger that is not the container's any
 * more.  The first is found at every charge (a word is compared); the second by looking at the path: at
 * every charge of VCAP_LOOK_BYTES and more, every VCAP_LOOK_EVERY smaller ones of a thread, every
 * VCAP_LOOK_EVERY_WAIT synchronisations of a thread, every refusal, context and question for free memory,
 * though at most every 10 ms.
 */
#ifndef VRAMCAP_PRELOAD_RENEW_H
#define VRAMCAP_PRELOAD_RENEW_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/host.h"
#include "preload/preload.h"

#define VCAP_LOOK_BYTES (UINT64_C(2) << 20)
#define VCAP_LOOK_EVERY 64u
#define VCAP_LOOK_EVERY_WAIT 16u

/*
 * Is the file at the ledger's path still the one that is mapped?  If not, this process takes a slot in
 * that one (made anew where it may be) and charges there what is live; where none can be had it stays in
 * the old one.  True: it has another ledger now.  Asks the kernel at most every 10 ms.  No lock of
 * account.h or live.h is held.
 */
bool vcap_ledger_follow(void);

/* The same for calls that wait for the device: they come also from programs that allocate no more. */
static inline void vcap_ledger_follow_if_used(void)
{
    enum vcap_mode mode = vcap_mode_if_started();

    if (mode == VCAP_MODE_ENFORCE || mode == VCAP_MODE_AUDIT)
        vcap_ledger_follow();
}

extern __thread uint32_t vcap_small_charges __attribute__((tls_model("initial-exec")));
extern __thread uint32_t vcap_waits __attribute__((tls_model("initial-exec")));

/* After a call that waited, and whose return address is `from`: a program may do nothing else any more.  Most
 * return from here at once.  A driver that waits for itself leaves its turn to the next wait, or in step with the
 * program's it would take every one. */
static inline void vcap_after_wait(const void *from)
{
    if (__builtin_expect(++vcap_waits % VCAP_LOOK_EVERY_WAIT != 0, 1))
        return;
    if (vcap_is_inner_call(from))
        vcap_waits--;
    else
        vcap_ledger_follow_if_used();
}

/* Before a charge: the host's word and the file itself. */
static inline void vcap_before_charge(uint64_t bytes)
{
    if (__builtin_expect(vcap_host_changed(vcap_ledger_now()), 0))
        vcap_host_follow();
    if (bytes >= VCAP_LOOK_BYTES ||
        __builtin_expect(++vcap_small_charges % VCAP_LOOK_EVERY == 0, 0))
        vcap_ledger_follow();
}

#endif
