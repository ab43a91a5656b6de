/*
 * Taking another slot, in the same file or in the one that took its place, and booking there what is live.
 * Invariants:
 *   - a process leaves a ledger only for another that it has a slot in, and the host's only for the host's;
 *   - the former stays mapped, for another thread may be in the middle of it; a place in it is never taken
 *     for one in the new (vcap_ledger.epoch), so what is left half done there counts nowhere else;
 *   - a record is charged once per place, under its shard's lock.
 */
#include "preload/renew.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "enforcer/kernel.h"
#include "enforcer/log.h"
#include "preload/account.h"
#include "preload/context.h"
#include "preload/device.h"
#include "preload/host.h"
#include "preload/live.h"
#include "preload/overhead.h"
#include "preload/share.h"

#define LOOK_NS UINT64_C(10000000)

__thread uint32_t vcap_small_charges __attribute__((tls_model("initial-exec")));
__thread uint32_t vcap_waits __attribute__((tls_model("initial-exec")));

/* Charges one live record in the present place, unless it is already. */
static void charge_again(struct vcap_live *record, void *arg)
{
    struct vcap_ledger *l = vcap_ledger_now();
    uint64_t mine = vcap_ledger_mine(l);

    (void)arg;
    if (record->mine == mine)
        return;
    vcap_ledger_charge_in(l, mine, vcap_process.device[record->device].gpu, record->bytes,
                          VCAP_NO_LIMIT, VCAP_BOOK_ABOVE, NULL);
    if (record->imported != 0)
        vcap_ledger_note_imported(l, mine, vcap_process.device[record->device].gpu,
                                  (int64_t)record->imported);
    record->mine = mine;
}

void vcap_record_follow(uint64_t key)
{
    vcap_live_with(key, charge_again, NULL);
}

/* Everything that this process holds, in its new place. */
static void book_again(void)
{
    vcap_live_each(charge_again, NULL);
    vcap_context_charge_again();
    vcap_accounts_charge_again();
    vcap_overhead_charge_again();
    vcap_exports_again();
}

static void note(const char *what)
{
    struct vcap_event event = {.kind = VCAP_LF_EVENT_RENEWED, .gpu = UINT32_MAX, .name = what};

    vcap_ledger_event(vcap_ledger_now(), &event);
}

/* The host's ledger is left only for one that the host made, at the same place: what a container puts
 * there, or anywhere else, does not end the host's word. */
static int open_hosts(struct vcap_ledger *l, const struct vcap_ledger *former, char *why,
                      size_t why_size)
{
    int rc = vcap_ledger_open(l, former->path, NULL, VCAP_OPEN_CLAIM, VCAP_LF_MODE_ENFORCE, why,
                              why_size);

    if (rc == 0 && (l->flags & VCAP_LF_HOST_MADE) == 0) {
        vcap_ledger_close(l);
        snprintf(why, why_size, "the host did not make it");
        rc = -EPERM;
    }
    return rc;
}

/* Takes a slot in the file that is at the ledger's place now.  vcap_process_mutex is held. */
static int change_file(char *why, size_t why_size)
{
    struct vcap_ledger *former = vcap_ledger_now(), *l = malloc(sizeof(*l));
    int rc = l == NULL                                  ? -ENOMEM
             : (former->flags & VCAP_LF_HOST_MADE) != 0 ? open_hosts(l, former, why, why_size)
                                                        : vcap_open_ledger(l, why, why_size);

    if (rc != 0) {
        free(l);
        return rc;
    }
    /* nobody begins anything in the former any more; who then waits for our mutex finds the new one */
    __atomic_store_n(&former->mine, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&vcap_ledger_current, l, __ATOMIC_SEQ_CST);
    vcap_host_take_over();
    book_again();
    note("file");
    vcap_log(VCAP_LOG_WARN,
             "ledger %s was replaced under this process; its charges are booked in the new one",
             l->path);
    return 0;
}

bool vcap_ledger_follow(void)
{
    static uint64_t last_ns; /* CAS by whoever looks next */
    static char said[VCAP_LEDGER_PATH_MAX + 256];
    struct vcap_ledger *l = vcap_ledger_now();
    uint64_t now = vcap_clock_ns(CLOCK_MONOTONIC_COARSE);
    uint64_t last = __atomic_load_n(&last_ns, __ATOMIC_RELAXED);
    char why[VCAP_LEDGER_PATH_MAX + 256] = "";
    int saved = errno, cancel, rc = 0;
    bool changed = false;
    struct stat st;

    if (l->base == NULL || now - last < LOOK_NS ||
        !__atomic_compare_exchange_n(&last_ns, &last, now, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return false;
    rc = vcap_sys_stat(l->path, &st, AT_SYMLINK_NOFOLLOW);
    if ((rc == 0 && st.st_ino == l->inode && st.st_dev == l->device) ||
        (rc != 0 && rc != -ENOENT && rc != -ENOTDIR))
        return false;
    cancel = vcap_cancel_off();
    pthread_mutex_lock(&vcap_process_mutex);
    if (l == vcap_ledger_now()) {
        rc = change_file(why, sizeof(why));
        changed = rc == 0;
        if (rc != 0 && strcmp(said, why) != 0) {
            snprintf(said, sizeof(said), "%s", why);
            vcap_log(VCAP_LOG_WARN,
                     "ledger %s is not at its place any more and there is no other (%s): this "
                     "process stays in the old one",
                     l->path, why);
        }
    }
    pthread_mutex_unlock(&vcap_process_mutex);
    vcap_cancel_back(cancel);
    errno = saved;
    return changed;
}

bool vcap_slot_renew(void)
{
    struct vcap_ledger *l;
    char problem[VCAP_LEDGER_PATH_MAX + 256] = "";
    int rc = 0, saved = errno, cancel = vcap_cancel_off();

    pthread_mutex_lock(&vcap_process_mutex);
    l = vcap_ledger_now();
    if (!vcap_ledger_owns(l)) {
        bool had_one = l->slot >= 0, unrecorded;

        rc = vcap_ledger_claim(l, vcap_host_mode(&vcap_process.config, l, &unrecorded) ==
                                          VCAP_MODE_AUDIT
                                      ? VCAP_LF_MODE_AUDIT
                                      : VCAP_LF_MODE_ENFORCE);
        if (rc == 0) {
            vcap_devices_place_again(); /* the file may have been made anew */
            book_again();
            if (had_one) {
                note("slot");
                vcap_log(VCAP_LOG_WARN,
                         "this process's slot in ledger %s was taken from it; it has a new one and "
                         "its charges are booked again",
                         l->path);
            }
        } else if (rc == -ESTALE) {
            rc = change_file(problem, sizeof(problem));
        }
    }
    pthread_mutex_unlock(&vcap_process_mutex);
    if (rc != 0) {
        if (problem[0] == 0)
            snprintf(problem, sizeof(problem), "ledger %s: no slot for this process (%s)", l->path,
                     rc == -EUSERS ? "every one is taken by a living process" : strerror(-rc));
        __atomic_store_n(&vcap_mode_word,
                         (uint32_t)vcap_failed(problem, rc == -ENOENT ? -ESTALE : rc),
                         __ATOMIC_RELAXED);
    }
    vcap_cancel_back(cancel);
    errno = saved;
    return rc == 0;
}
