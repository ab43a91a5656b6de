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

#include "enforcer/kernel.h"

#define STACK_BYTES (512u << 10)
#define SHUNNED 64u
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
static struct {
    pid_t pid; /* 0: free */
    uint64_t until_ns;
} shunned[SHUNNED];      /* under table_lock, as the next one is */
static unsigned hanging; /* workers that were abandoned and have not come back */

/* ---- who is not asked ---- */

static bool is_shunned(pid_t pid, uint64_t now_ns)
{
    bool found = false;
    (void)pthread_mutex_lock(&table_lock);
    for (size_t i = 0; i < SHUNNED; i++)
        found = found || (shunned[i].pid == pid && now_ns < shunned[i].until_ns);
    (void)pthread_mutex_unlock(&table_lock);
    return found;
}

/* In the place of the one that is asked again first. */
static void shun(pid_t pid, uint64_t now_ns)
{
    size_t place = 0;
    (void)pthread_mutex_lock(&table_lock);
    for (size_t i = 1; i < SHUNNED; i++)
        if (shunned[i].until_ns < shunned[place].until_ns)
            place = i;
    shunned[place].pid = pid;
    shunned[place].until_ns = now_ns + VCAP_PROBE_SHUN_MS * NS_PER_MS;
    hanging++;
    (void)pthread_mutex_unlock(&table_lock);
}

static void came_back(pid_t pid)
{
    (void)pthread_mutex_lock(&table_lock);
    for (size_t i = 0; i < SHUNNED; i++)
        if (shunned[i].pid == pid)
            shunned[i].pid = 0, shunned[i].until_ns = 0;
    hanging--;
    (void)pthread_mutex_unlock(&table_lock);
}

static bool too_many_hang(void)
{
    (void)pthread_mutex_lock(&table_lock);
    bool many = hanging >= VCAP_PROBE_HANGING;
    (void)pthread_mutex_unlock(&table_lock);
    return many;
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
        came_back(w->pid);
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
    if (is_shunned(pid, now))
        return -ETIMEDOUT;
    if (too_many_hang())
        return -EBUSY;
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
        shun(pid, vcap_clock_ns(CLOCK_MONOTONIC)); /* before it can come back */
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
