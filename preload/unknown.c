/*
 * The names that were met, in a table that only grows; a place is taken with a compare-and-swap and said
 * by whoever finds it filled and unsaid once the process is set up.  Nothing here waits or allocates.
 */
#include "preload/unknown.h"

#include <stdint.h>

#include "enforcer/log.h"
#include "preload/preload.h"

#define NAME_MOST 64

enum { EMPTY, FILLING, FILLED, SAID };

static struct {
    uint32_t state;
    uint32_t hash;
    int version;
    char name[NAME_MOST];
} met[VCAP_UNKNOWN_MOST];

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (; *name != 0; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

/* False: known already, or no place is left. */
static bool enter(const char *name, int version)
{
    uint32_t hash = hash_of(name);

    for (unsigned at = 0; at < VCAP_UNKNOWN_MOST; at++) {
        uint32_t state = __atomic_load_n(&met[at].state, __ATOMIC_ACQUIRE);
        unsigned i;

        if (state == EMPTY && __atomic_compare_exchange_n(&met[at].state, &state, FILLING, false,
                                                          __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            met[at].hash = hash;
            met[at].version = version;
            for (i = 0; i + 1 < NAME_MOST && name[i] != 0; i++)
                met[at].name[i] = name[i];
            met[at].name[i] = 0;
            __atomic_store_n(&met[at].state, FILLED, __ATOMIC_RELEASE);
            return true;
        }
        /* of two threads with one new name both may enter it: said twice, which is no harm */
        if (state >= FILLED && met[at].hash == hash)
            return false;
    }
    return false;
}

static void say(const char *name, int version)
{
    vcap_gap_note(name, (uint32_t)version);
    if (version != 0)
        vcap_log(VCAP_LOG_WARN,
                 "%s of CUDA %d.%d is newer than this version of vramcap knows: not accounted; "
                 "install a newer vramcap",
                 name, version / 1000, version % 1000 / 10);
    else
        vcap_log(VCAP_LOG_WARN,
                 "%s is newer than this version of vramcap knows: not accounted; install a newer "
                 "vramcap",
                 name);
}

void vcap_unknown_say(void)
{
    enum vcap_mode mode = vcap_mode_if_started();

    if (mode == VCAP_MODE_UNKNOWN || mode == VCAP_MODE_PASSIVE)
        return;
    for (unsigned at = 0; at < VCAP_UNKNOWN_MOST; at++) {
        uint32_t state = FILLED;

        if (__atomic_compare_exchange_n(&met[at].state, &state, SAID, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE))
            say(met[at].name, met[at].version);
        else if (state == EMPTY)
            break;
    }
}

void vcap_unknown_met(const char *name, int version)
{
    if (enter(name, version))
        vcap_unknown_say();
}
