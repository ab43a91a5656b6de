/*
 * One mutex, one condition.  A request that finds a text younger than FRESH_NS takes it, so that many
 * requests at once cost one round.
 */
#include "enforcer/agent/exchange.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"

#define FRESH_NS UINT64_C(50000000)
#define NS_PER_MS UINT64_C(1000000)

struct vcap_exchange {
    int fd;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    /* under the lock */
    struct {
        struct vcap_published *published;
        uint64_t made_ns;
        uint64_t answers; /* puts so far, failed ones included */
        bool wanted;
    } kinds[VCAP_TEXT_KINDS];
    uint64_t round_ns; /* end of the last round; 0: none */
    bool ended;
    uint64_t held_bytes; /* of all texts that are not released; atomic, not under the lock */
};

struct vcap_exchange *vcap_exchange_new(void)
{
    struct vcap_exchange *x = calloc(1, sizeof *x);
    pthread_condattr_t monotonic;
    if (!x)
        return NULL;
    x->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (x->fd < 0) {
        free(x);
        return NULL;
    }
    (void)pthread_mutex_init(&x->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&x->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    return x;
}

void vcap_published_release(struct vcap_published *p)
{
    if (!p || __atomic_sub_fetch(&p->users, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    (void)__atomic_sub_fetch(&p->of->held_bytes, p->length, __ATOMIC_RELAXED);
    free(p);
}

static bool is_crowded(struct vcap_exchange *x, const struct vcap_published *besides)
{
    uint64_t held = __atomic_load_n(&x->held_bytes, __ATOMIC_RELAXED);
    return held > VCAP_EXCHANGE_HELD_BYTES + (besides ? besides->length : 0);
}

bool vcap_exchange_is_crowded(struct vcap_exchange *x)
{
    (void)pthread_mutex_lock(&x->lock);
    const struct vcap_published *largest = NULL;
    for (int i = 0; i < VCAP_TEXT_KINDS; i++) {
        const struct vcap_published *p = x->kinds[i].published;
        if (p && (!largest || p->length > largest->length))
            largest = p;
    }
    bool crowded = is_crowded(x, largest);
    (void)pthread_mutex_unlock(&x->lock);
    return crowded;
}

void vcap_exchange_free(struct vcap_exchange *x)
{
    for (int i = 0; i < VCAP_TEXT_KINDS; i++)
        vcap_published_release(x->kinds[i].published);
    (void)pthread_cond_destroy(&x->changed);
    (void)pthread_mutex_destroy(&x->lock);
    (void)close(x->fd);
    free(x);
}

int vcap_exchange_fd(const struct vcap_exchange *x)
{
    return x->fd;
}

struct vcap_published *vcap_exchange_get(struct vcap_exchange *x, enum vcap_text_kind kind,
                                         uint64_t wait_ms)
{
    const uint64_t one = 1, now = vcap_clock_ns(CLOCK_MONOTONIC), end = now + wait_ms * NS_PER_MS;
    const struct timespec until = {.tv_sec = (time_t)(end / 1000000000u),
                                   .tv_nsec = (long)(end % 1000000000u)};
    struct vcap_published *p = NULL;
    bool good;
    (void)pthread_mutex_lock(&x->lock);
    const uint64_t answers = x->kinds[kind].answers;
    good = x->kinds[kind].published && now - x->kinds[kind].made_ns < FRESH_NS;
    if (!good) {
        x->kinds[kind].wanted = true;
        (void)!write(x->fd, &one, sizeof one);
    }
    while (!good && !x->ended) {
        if (pthread_cond_timedwait(&x->changed, &x->lock, &until) == ETIMEDOUT)
            break;
        good = x->kinds[kind].answers != answers;
    }
    if (good && x->kinds[kind].published && !is_crowded(x, x->kinds[kind].published)) {
        p = x->kinds[kind].published;
        __atomic_add_fetch(&p->users, 1, __ATOMIC_ACQ_REL);
    }
    (void)pthread_mutex_unlock(&x->lock);
    return p;
}

uint64_t vcap_exchange_age_ms(struct vcap_exchange *x)
{
    (void)pthread_mutex_lock(&x->lock);
    uint64_t round_ns = x->round_ns;
    (void)pthread_mutex_unlock(&x->lock);
    return round_ns ? (vcap_clock_ns(CLOCK_MONOTONIC) - round_ns) / NS_PER_MS : UINT64_MAX;
}

unsigned vcap_exchange_wanted(struct vcap_exchange *x)
{
    unsigned wanted = 0;
    uint64_t count;
    (void)pthread_mutex_lock(&x->lock);
    (void)!read(x->fd, &count, sizeof count);
    for (int i = 0; i < VCAP_TEXT_KINDS; i++) {
        wanted |= x->kinds[i].wanted ? 1u << i : 0;
        x->kinds[i].wanted = false;
    }
    (void)pthread_mutex_unlock(&x->lock);
    return wanted;
}

void vcap_exchange_put(struct vcap_exchange *x, enum vcap_text_kind kind, const char *text,
                       size_t length)
{
    struct vcap_published *p = text ? malloc(sizeof *p + length + 1) : NULL;
    if (p) {
        p->of = x;
        p->users = 1;
        p->length = length;
        (void)__atomic_add_fetch(&x->held_bytes, length, __ATOMIC_RELAXED);
        memcpy(p->text, text, length);
        p->text[length] = '\0';
    }
    (void)pthread_mutex_lock(&x->lock);
    struct vcap_published *before = x->kinds[kind].published;
    x->kinds[kind].published = p;
    x->kinds[kind].made_ns = vcap_clock_ns(CLOCK_MONOTONIC);
    x->kinds[kind].answers++;
    (void)pthread_cond_broadcast(&x->changed);
    (void)pthread_mutex_unlock(&x->lock);
    vcap_published_release(before);
}

void vcap_exchange_round(struct vcap_exchange *x)
{
    (void)pthread_mutex_lock(&x->lock);
    x->round_ns = vcap_clock_ns(CLOCK_MONOTONIC);
    (void)pthread_mutex_unlock(&x->lock);
}

void vcap_exchange_end(struct vcap_exchange *x)
{
    (void)pthread_mutex_lock(&x->lock);
    x->ended = true;
    (void)pthread_cond_broadcast(&x->changed);
    (void)pthread_mutex_unlock(&x->lock);
}
