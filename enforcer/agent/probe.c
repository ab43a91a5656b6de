/*
 * One thread waits for work and is used again and again; one that hangs is abandoned, and the next call
 * gets a new one.  What must stay true: after it was abandoned a worker belongs to its own thread alone,
 * which frees it; nothing that a caller may have freed is touched by it.
 */
#include "enforcer/agent/probe.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "enforcer/agent/crowd.h"
#include "enforcer/kernel.h"

#define STACK_BYTES (512u << 10)
#define NS_PER_MS UINT64_C(1000000)

struct worker {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    pthread_t thread;
    /* under the lock */
    bool wanted, done, abandoned, ended;
    pid_t pid;
    int (*work)(void *job);
    void (*undo)(void *job);
    void *job;
    int result;
};

static struct worker *idle; /* the caller's */

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
/* Whose calls were abandoned and have not come back, each once: a process that is asked again while it
 * hangs would by itself use up what hangs at most.  And one crowd has a share of the places, or by itself it would
 * keep everybody from being looked at. */
static struct place {
    pid_t pid; /* 0: free */
    uint64_t crowd;
} hanging[VCAP_PROBE_HANGING]; /* under table_lock */

/* ---- who is not asked ---- */

static void replace(pid_t pid, struct place with)
{
    (void)pthread_mutex_lock(&table_lock);
    for (size_t i = 0; i < VCAP_PROBE_HANGING; i++)
        if (hanging[i].pid == pid) {
            hanging[i] = with;
            break;
        }
    (void)pthread_mutex_unlock(&table_lock);
}

/* 0: it may be asked; -ETIMEDOUT: it hangs; -EBUSY: too many do. */
static int may_be_asked(pid_t pid)
{
    struct place now[VCAP_PROBE_HANGING];
    unsigned all = 0, of_crowd = 0;
    (void)pthread_mutex_lock(&table_lock);
    memcpy(now, hanging, sizeof now);
    (void)pthread_mutex_unlock(&table_lock);
    for (size_t i = 0; i < VCAP_PROBE_HANGING; i++) {
        if (now[i].pid == pid)
            return -ETIMEDOUT;
        all += now[i].pid != 0;
    }
    if (all == 0) /* as a rule: then its crowd need not be found out */
        return 0;
    const uint64_t crowd = vcap_crowd_of(pid);
    for (size_t i = 0; i < VCAP_PROBE_HANGING; i++)
        of_crowd += now[i].pid != 0 && now[i].crowd == crowd;
    return all == VCAP_PROBE_HANGING || of_crowd >= VCAP_PROBE_SHARE ? -EBUSY : 0;
}

/* ---- the thread ---- */

static void free_worker(struct worker *w)
{
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
    free(w->job);
    free(w);
}

static void *run(void *argument)
{
    struct worker *w = argument;
    (void)pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->wanted && !w->ended)
            (void)pthread_cond_wait(&w->changed, &w->lock);
        if (w->ended)
            break;
        w->wanted = false;
        (void)pthread_mutex_unlock(&w->lock);
        int result = w->work(w->job);
        (void)pthread_mutex_lock(&w->lock);
        if (w->abandoned)
            break;
        w->result = result;
        w->done = true;
        (void)pthread_cond_signal(&w->changed);
    }
    bool abandoned = w->abandoned;
    (void)pthread_mutex_unlock(&w->lock);
    if (abandoned) {
        if (w->undo)
            w->undo(w->job);
        replace(w->pid, (struct place){0});
        free_worker(w);
    }
    return NULL;
}

static struct worker *start(void)
{
    struct worker *w = calloc(1, sizeof *w);
    pthread_condattr_t monotonic;
    pthread_attr_t small;
    if (!w)
        return NULL;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    (void)pthread_attr_init(&small);
    (void)pthread_attr_setstacksize(&small, STACK_BYTES);
    int error = pthread_create(&w->thread, &small, run, w);
    (void)pthread_attr_destroy(&small);
    if (error) {
        free_worker(w);
        return NULL;
    }
    return w;
}

/* ---- in the caller ---- */

static bool wait_for(struct worker *w, uint64_t end_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(end_ns / 1000000000u),
                                   .tv_nsec = (long)(end_ns % 1000000000u)};
    while (!w->done)
        if (pthread_cond_timedwait(&w->changed, &w->lock, &until) == ETIMEDOUT)
            break;
    return w->done;
}

int vcap_probe(pid_t pid, int (*work)(void *job), void (*undo)(void *job), void *job, size_t size)
{
    const uint64_t now = vcap_clock_ns(CLOCK_MONOTONIC);
    int refused = may_be_asked(pid);
    if (refused)
        return refused;
    void *copy = malloc(size);
    struct worker *w = idle ? idle : start();
    idle = w;
    if (!copy || !w) {
        free(copy);
        return copy ? -EAGAIN : -ENOMEM;
    }
    memcpy(copy, job, size);
    (void)pthread_mutex_lock(&w->lock);
    free(w->job);
    w->job = copy;
    w->pid = pid;
    w->work = work;
    w->undo = undo;
    w->done = false;
    w->wanted = true;
    (void)pthread_cond_signal(&w->changed);
    bool done = wait_for(w, now + VCAP_PROBE_MS * NS_PER_MS);
    int result = -ETIMEDOUT;
    if (done) {
        memcpy(job, w->job, size);
        result = w->result;
    } else {
        idle = NULL;
        replace(0, (struct place){pid, vcap_crowd_of(pid)}); /* before it can come back */
        w->abandoned = true;
        (void)pthread_detach(w->thread);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return result;
}

void vcap_probe_end(void)
{
    struct worker *w = idle;
    idle = NULL;
    if (!w)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->ended = true;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    free_worker(w);
}
