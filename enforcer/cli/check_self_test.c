/*
 * The self-test: a refusal made to happen, on each visible GPU that has a ceiling.  A child of its own tests each,
 * like any program of the container, and looks for its refusal in the slot of the ledger that is its own by
 * namespace, number and start time: another process of the same number may have been refused before.
 */
#include "enforcer/cli/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/ceiling.h"
#include "enforcer/cli/driver_abi.h"
#include "enforcer/cli/units.h"
#include "enforcer/kernel.h"
#include "enforcer/ledger_reap.h"

#define BLOCK_BYTES (UINT64_C(64) << 20) /* above what is free */
#define SMALL_BYTES (UINT64_C(2) << 20)
#define ALL_NS UINT64_C(60000000000) /* after this no further GPU is begun with */

struct wish {
    int32_t device;
    char ledger[VCAP_CONFIG_PATH_MAX]; /* empty: none */
};

struct answer {
    int32_t context_result, info_result, over_result, under_result;
    int32_t refused; /* by vramcap, as the ledger has it */
    uint64_t free_bytes, over_bytes, under_bytes;
};

/* ---- in the child ---- */

static bool refused_by_us(const char *ledger)
{
    struct vcap_snapshot snapshot;
    char why[128];
    const uint64_t pidns = vcap_pidns_inode(), start_time = vcap_start_time(getpid());
    bool is = false;

    if (ledger[0] == '\0' || vcap_snapshot_read(ledger, &snapshot, why, sizeof why) != 0)
        return false;
    for (uint32_t i = 0; i < snapshot.process_count; i++) {
        const struct vcap_snapshot_process *p = &snapshot.processes[i];
        is =
            is || (p->life != VCAP_LIFE_DEAD && p->pid == (uint32_t)getpid() && p->pidns == pidns &&
                   (p->start_time == 0 || p->start_time == start_time) && p->refusals > 0);
    }
    vcap_snapshot_free(&snapshot);
    return is;
}

/* Asks for a block more than is free, then for a small one; both are given back at once. */
static void test(const struct driver *driver, struct answer *out)
{
    unsigned long long pointer = 0;
    size_t free_bytes = 0, total = 0;

    out->info_result = driver->info(&free_bytes, &total);
    if (out->info_result != DRIVER_SUCCESS)
        return;
    out->free_bytes = free_bytes;
    out->over_bytes = free_bytes + BLOCK_BYTES;
    out->under_bytes = SMALL_BYTES;
    out->over_result = driver->alloc(&pointer, (size_t)out->over_bytes);
    if (out->over_result == DRIVER_SUCCESS)
        (void)driver->release(pointer);
    out->under_result = driver->alloc(&pointer, (size_t)out->under_bytes);
    if (out->under_result == DRIVER_SUCCESS)
        (void)driver->release(pointer);
}

static void ask(const void *arg, void *to)
{
    const struct wish *wish = arg;
    struct answer *answer = to;
    struct driver driver = {0};
    char why[256];
    void *context = NULL;

    answer->context_result = -1;
    if (!vcap_check_driver_load(&driver, why, sizeof why) || !driver.init || !driver.create ||
        !driver.destroy || !driver.info || !driver.alloc || !driver.release)
        return;
    answer->context_result = driver.init(0);
    if (answer->context_result == DRIVER_SUCCESS)
        answer->context_result = driver.create(&context, 0, wish->device);
    if (answer->context_result != DRIVER_SUCCESS)
        return;
    test(&driver, answer);
    answer->refused = refused_by_us(wish->ledger);
    (void)driver.destroy(context);
}

static const struct vcap_check_question for_test = {ask, VCAP_CHECK_LIMIT_MS, false};

/* ---- in the parent ---- */

static void say(struct vcap_check *check, const char *uuid, const struct answer *a)
{
    char over[VCAP_UNITS_TEXT], under[VCAP_UNITS_TEXT], free_mib[VCAP_UNITS_TEXT];
    bool granted = a->under_result == DRIVER_SUCCESS, room = a->free_bytes >= a->under_bytes;

    (void)vcap_units_mib(over, a->over_bytes, "-");
    (void)vcap_units_mib(under, a->under_bytes, "-");
    (void)vcap_units_mib(free_mib, a->free_bytes, "-");
    if (a->context_result != DRIVER_SUCCESS)
        vcap_check_say(check, "self-test", uuid, VCAP_CHECK_UNKNOWN,
                       "not made: no context could be had (result %d)", a->context_result);
    else if (a->info_result != DRIVER_SUCCESS)
        vcap_check_say(check, "self-test", uuid, VCAP_CHECK_UNKNOWN,
                       "not made: the driver does not say what is free (result %d)",
                       a->info_result);
    else if (a->over_result == DRIVER_SUCCESS)
        vcap_check_say(check, "self-test", uuid, VCAP_CHECK_FINDING,
                       "%s MiB were granted where %s MiB are free: nothing refuses here", over,
                       free_mib);
    else if (a->over_result == DRIVER_OUT_OF_MEMORY && a->refused)
        vcap_check_say(check, "self-test", uuid,
                       granted || !room ? VCAP_CHECK_OK : VCAP_CHECK_FINDING,
                       "%s MiB refused by vramcap with CUDA_ERROR_OUT_OF_MEMORY where %s MiB are "
                       "free (counted in the ledger); %s MiB %s",
                       over, free_mib, under,
                       granted ? "were granted and given back"
                       : !room ? "had no room"
                               : "were not granted either");
    else
        vcap_check_say(check, "self-test", uuid, VCAP_CHECK_FINDING,
                       "%s MiB gave %d where %s MiB are free, and no refusal was counted in a "
                       "ledger: not refused by vramcap",
                       over, a->over_result, free_mib);
}

/* False: it did not answer; to ask the others in vain would take as long for each. */
static bool test_one(struct vcap_check *check, int32_t ordinal)
{
    const struct vcap_check_device *d = &check->driver.device[ordinal];
    struct wish wish = {.device = ordinal};
    struct answer answer = {0};
    char uuid[VCAP_UUID_TEXT_SIZE], why[VCAP_CHECK_WHY];
    int error;

    vcap_uuid_format(uuid, d->uuid, d->mig != 0);
    if (check->have_ledger)
        (void)snprintf(wish.ledger, sizeof wish.ledger, "%s", check->ledger);
    error = vcap_check_child(&for_test, &wish, &answer, sizeof answer);
    if (error == 0)
        say(check, uuid, &answer);
    else
        vcap_check_say(check, "self-test", uuid, VCAP_CHECK_UNKNOWN, "not made: the driver %s",
                       vcap_check_child_why(&for_test, error, why));
    return error == 0;
}

void vcap_check_self_test(struct vcap_check *check)
{
    const uint64_t until = vcap_clock_ns(CLOCK_MONOTONIC) + ALL_NS;
    unsigned wanted = 0, untested = 0;
    bool answers = true;

    for (int32_t i = 0; check->have_driver && i < check->driver.device_count; i++) {
        if (!vcap_check_has_ceiling(check, i))
            continue;
        wanted++;
        if (answers && vcap_clock_ns(CLOCK_MONOTONIC) < until)
            answers = test_one(check, i);
        else
            untested++;
    }
    if (untested > 0)
        vcap_check_say(check, "self-test", NULL, VCAP_CHECK_UNKNOWN,
                       "GPUs with a ceiling that were not tested: %u, for lack of %s", untested,
                       answers ? "time" : "an answer");
    if (wanted == 0)
        vcap_check_say(check, "self-test", NULL,
                       check->have_driver && check->driver.device_count > 0 ? VCAP_CHECK_FINDING
                                                                            : VCAP_CHECK_UNKNOWN,
                       "not made: %s",
                       check->have_driver && check->driver.device_count > 0
                           ? "no visible GPU has a ceiling"
                           : "the driver shows no GPU");
}
