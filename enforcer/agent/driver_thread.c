/*
 * The thread that talks to NVML.  Shared under one mutex: the latest sample, the wish for a new one,
 * the end.  The thread never holds the mutex over a call into the library, so that a driver that hangs
 * stops nobody but this thread.
 */
#include "enforcer/agent/driver_seen.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "enforcer/kernel.h"

#define RETRY_MS 30000u /* for a library that is not there or does not start */
#define NS_PER_MS UINT64_C(1000000)

struct vcap_nvml_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked, answered; /* CLOCK_MONOTONIC */
    char library[256];
    uint64_t interval_ms;
    /* under the lock */
    struct vcap_nvml_sample *latest;
    uint64_t busy_since_ns; /* 0: not in the library */
    bool wanted, ended;
};

static struct vcap_nvml_sample *nothing(enum vcap_nvml_state state, const char *why)
{
    struct vcap_nvml_sample *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->users = 1;
    s->state = state;
    s->time_ns = vcap_clock_ns(CLOCK_MONOTONIC);
    (void)snprintf(s->why, sizeof s->why, "%s", why);
    return s;
}

static struct timespec deadline(uint64_t ms)
{
    uint64_t at = vcap_clock_ns(CLOCK_MONOTONIC) + ms * NS_PER_MS;
    return (struct timespec){.tv_sec = (time_t)(at / 1000000000u),
                             .tv_nsec = (long)(at % 1000000000u)};
}

/* Outside the lock. */
static struct vcap_nvml_sample *ask(const char *name, struct vcap_nvml **nvml)
{
    char why[VCAP_NVML_WHY] = "";
    if (!*nvml)
        *nvml = vcap_nvml_open(name, why, sizeof why);
    return *nvml ? vcap_nvml_ask(*nvml) : nothing(VCAP_NVML_ABSENT, why);
}

static void *run(void *argument)
{
    struct vcap_nvml_thread *t = argument;
    struct vcap_nvml *nvml = NULL;
    (void)pthread_mutex_lock(&t->lock);
    while (!t->ended) {
        t->wanted = false;
        t->busy_since_ns = vcap_clock_ns(CLOCK_MONOTONIC);
        (void)pthread_mutex_unlock(&t->lock);
        struct vcap_nvml_sample *sample = ask(t->library, &nvml);
        (void)pthread_mutex_lock(&t->lock);
        t->busy_since_ns = 0;
        uint64_t pause_ms = sample && sample->state == VCAP_NVML_OK ? t->interval_ms : RETRY_MS;
        bool retry = sample && sample->state == VCAP_NVML_OK;
        vcap_nvml_release(t->latest);
        t->latest = sample;
        (void)pthread_cond_broadcast(&t->answered);
        struct timespec until = deadline(pause_ms);
        while (!t->ended && !(t->wanted && retry))
            if (pthread_cond_timedwait(&t->asked, &t->lock, &until) == ETIMEDOUT)
                break;
    }
    (void)pthread_mutex_unlock(&t->lock);
    if (nvml)
        vcap_nvml_close(nvml);
    return NULL;
}

struct vcap_nvml_thread *vcap_nvml_start(const char *library, uint64_t interval_ms)
{
    struct vcap_nvml_thread *t = calloc(1, sizeof *t);
    pthread_condattr_t monotonic;
    if (!t)
        return NULL;
    (void)snprintf(t->library, sizeof t->library, "%s", library);
    t->interval_ms = interval_ms;
    t->wanted = true;
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&t->asked, &monotonic);
    (void)pthread_cond_init(&t->answered, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    if (pthread_create(&t->thread, NULL, run, t) != 0) {
        free(t);
        return NULL;
    }
    return t;
}

static struct vcap_nvml_sample *take(struct vcap_nvml_thread *t)
{
    uint64_t now = vcap_clock_ns(CLOCK_MONOTONIC);
    if (t->busy_since_ns != 0 && now - t->busy_since_ns > 3 * t->interval_ms * NS_PER_MS &&
        (!t->latest || now - t->latest->time_ns > 3 * t->interval_ms * NS_PER_MS))
        return nothing(VCAP_NVML_SILENT, "NVML does not answer");
    if (!t->latest)
        return nothing(VCAP_NVML_OFF, "not asked yet");
    __atomic_add_fetch(&t->latest->users, 1, __ATOMIC_ACQ_REL);
    return t->latest;
}

struct vcap_nvml_sample *vcap_nvml_latest(struct vcap_nvml_thread *t, uint64_t fresh_ms,
                                          uint64_t wait_ms)
{
    struct timespec until = deadline(wait_ms);
    (void)pthread_mutex_lock(&t->lock);
    const uint64_t asked_ns = vcap_clock_ns(CLOCK_MONOTONIC);
    bool hopeless = t->latest && t->latest->state != VCAP_NVML_OK && t->latest->time_ns != 0;
    while (wait_ms > 0 && !hopeless &&
           (!t->latest || t->latest->time_ns + fresh_ms * NS_PER_MS < asked_ns)) {
        t->wanted = true;
        (void)pthread_cond_signal(&t->asked);
        if (pthread_cond_timedwait(&t->answered, &t->lock, &until) == ETIMEDOUT)
            break;
        hopeless = t->latest && t->latest->state != VCAP_NVML_OK;
    }
    struct vcap_nvml_sample *sample = take(t);
    (void)pthread_mutex_unlock(&t->lock);
    return sample;
}

void vcap_nvml_stop(struct vcap_nvml_thread *t)
{
    struct timespec until;
    (void)pthread_mutex_lock(&t->lock);
    t->ended = true;
    (void)pthread_cond_signal(&t->asked);
    (void)pthread_mutex_unlock(&t->lock);
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    if (pthread_timedjoin_np(t->thread, NULL, &until) != 0) {
        (void)pthread_detach(t->thread); /* it hangs in the driver: its memory stays with it */
        return;
    }
    vcap_nvml_release(t->latest);
    (void)pthread_mutex_destroy(&t->lock);
    (void)pthread_cond_destroy(&t->asked);
    (void)pthread_cond_destroy(&t->answered);
    free(t);
}
