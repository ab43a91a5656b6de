/*
 * Setting the process up: configuration, ledger, devices, failure policy, fork.  Invariants:
 *   - nothing happens before a hook finds a driver loaded: no file, descriptor, mapping, thread, output;
 *   - configuration is read once, at the first CUDA call, and a forked child keeps it: what a process
 *     changes in its environment later cannot widen its ceiling;
 *   - an error never ends in a wider ceiling unless VRAMCAP_ON_ERROR=allow says so, and is said once.
 */
#include "preload/preload.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "enforcer/dmem.h"
#include "enforcer/kernel.h"
#include "enforcer/ledger_path.h"
#include "enforcer/ledger_reap.h"
#include "preload/account.h"
#include "preload/charge.h"
#include "preload/context.h"
#include "preload/device.h"
#include "preload/graph.h"
#include "preload/host.h"
#include "preload/limits.h"
#include "preload/overhead.h"
#include "preload/pool.h"
#include "preload/share.h"
#include "preload/unknown.h"
#include "preload/vmm.h"

static struct vcap_ledger first_ledger;
struct vcap_process vcap_process; /* in .bss: every program would pay for its pages */
struct vcap_ledger *vcap_ledger_current = &first_ledger;
pthread_mutex_t vcap_process_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint32_t zero_word;
uint32_t *vcap_ready_word = &zero_word;
uint32_t vcap_mode_word;

/* The page that fork wipes. */
struct page {
    uint32_t ready;    /* 1: set up; release-stored by vcap_start */
    uint32_t starting; /* futex: 1 while a thread is in vcap_start */
};

static bool config_read; /* written under page.starting */
static int config_error; /* of vcap_config_read */
static char config_why[256];
static uint64_t retry_ns; /* when a denied process looks again; 0 = never */
#define RETRY_NS UINT64_C(1000000000)

static void forked_child(void)
{
    struct page *page = (struct page *)(void *)vcap_ready_word;

    vcap_ledger_fork_child();
    if (vcap_ready_word != &zero_word) { /* where MADV_WIPEONFORK is missing (before Linux 4.14) */
        page->ready = 0;
        page->starting = 0;
    }
}

static struct page *get_page(void)
{
    uint32_t *word = __atomic_load_n(&vcap_ready_word, __ATOMIC_ACQUIRE), *expected = &zero_word;
    void *fresh;

    if (word != &zero_word)
        return (struct page *)(void *)word;
    fresh = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED)
        return NULL;
    madvise(fresh, 4096, MADV_WIPEONFORK);
    if (!__atomic_compare_exchange_n(&vcap_ready_word, &expected, (uint32_t *)fresh, false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        munmap(fresh, 4096);
        return (struct page *)(void *)expected;
    }
    pthread_atfork(vcap_ledger_fork_lock, vcap_ledger_fork_unlock, forked_child);
    return fresh;
}

/* What configuration and ledger give; VCAP_MODE_ENFORCE or VCAP_MODE_AUDIT. */
static enum vcap_mode mode_by_word(void)
{
    bool unrecorded;
    enum vcap_mode mode = vcap_host_mode(&vcap_process.config, vcap_ledger_now(), &unrecorded);

    __atomic_store_n(&vcap_process.unrecorded, unrecorded, __ATOMIC_RELAXED);
    return mode;
}

/* A shortage (of slots, descriptors, memory), and a file that is just being replaced, pass: a denied
 * process looks again (vcap_deny_again). */
enum vcap_mode vcap_failed(const char *problem, int rc)
{
    static char said[VCAP_LEDGER_PATH_MAX + 256]; /* under page.starting or vcap_process_mutex */
    bool allow = vcap_process.config.on_error == VCAP_ON_ERROR_ALLOW;
    bool passes = rc == -EUSERS || rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM ||
                  rc == -EBUSY || rc == -ENOSPC || rc == -ESTALE;

    if (strncmp(said, problem, sizeof(said) - 1) != 0)
        vcap_log(VCAP_LOG_ERROR, "%s; %s", problem,
                 allow ? "no ceiling is in force in this process (VRAMCAP_ON_ERROR=allow)"
                       : "GPU memory is denied to this process (VRAMCAP_ON_ERROR=deny)");
    snprintf(said, sizeof(said), "%s", problem);
    __atomic_store_n(&retry_ns, passes ? vcap_clock_ns(CLOCK_MONOTONIC) + RETRY_NS : 0,
                     __ATOMIC_RELAXED);
    return allow ? VCAP_MODE_PASSIVE : VCAP_MODE_DENY;
}

void vcap_deny_again(void)
{
    uint64_t due = __atomic_load_n(&retry_ns, __ATOMIC_RELAXED);

    if (due == 0 || vcap_clock_ns(CLOCK_MONOTONIC) < due ||
        !__atomic_compare_exchange_n(&retry_ns, &due, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    if (vcap_ledger_now()->base == NULL) /* the next call sets the process up once more */
        __atomic_store_n(vcap_ready_word, 0, __ATOMIC_RELEASE);
    else /* the next charge finds that it has no slot, and takes one */
        __atomic_store_n(&vcap_mode_word, (uint32_t)mode_by_word(), __ATOMIC_RELAXED);
}

/*
 * Which file, and what may be done about it (*what).  key: demanded of it, empty if none.  -errno: no key
 * can be had for this container.
 */
static int ledger_place(const struct vcap_config *config, char path[VCAP_LEDGER_PATH_MAX],
                        char key[VCAP_KEY_MAX], uint32_t *what)
{
    struct stat st;
    int rc;

    key[0] = 0;
    *what = VCAP_OPEN_CLAIM | VCAP_OPEN_MAKE | VCAP_OPEN_RENEW;
    if (config->ledger[0] != 0) {
        snprintf(path, VCAP_LEDGER_PATH_MAX, "%s", config->ledger);
        return 0;
    }
    if (vcap_sys_stat(VCAP_LEDGER_HOST_PATH, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        snprintf(path, VCAP_LEDGER_PATH_MAX, "%s", VCAP_LEDGER_HOST_PATH);
        *what = VCAP_OPEN_CLAIM;
        return 0;
    }
    rc = vcap_key_compute("/proc", "/sys/fs/cgroup", key);
    if (rc < 0)
        return rc;
    snprintf(path, VCAP_LEDGER_PATH_MAX, "%s%s", VCAP_LEDGER_SHM_PREFIX, key);
    *what |= VCAP_OPEN_REPLACE;
    return 0;
}

int vcap_open_ledger(struct vcap_ledger *l, char *why, size_t why_size)
{
    struct vcap_config *config = &vcap_process.config;
    enum vcap_lf_mode mode =
        config->enable == VCAP_ENABLE_AUDIT ? VCAP_LF_MODE_AUDIT : VCAP_LF_MODE_ENFORCE;
    char path[VCAP_LEDGER_PATH_MAX], key[VCAP_KEY_MAX], reason[160];
    const char *wanted = key;
    uint32_t what;
    int rc = ledger_place(config, path, key, &what);

    if (rc < 0) {
        snprintf(why, why_size,
                 "ledger: /proc gives no key for this container (%s); set VRAMCAP_LEDGER",
                 strerror(-rc));
        return rc;
    }
    if (key[0] == 0)
        wanted = NULL;
    rc = vcap_ledger_open(l, path, wanted, what, mode, reason, sizeof(reason));
    if (rc != 0)
        snprintf(why, why_size, "ledger %s: %s; %s", path, reason,
                 rc == -EUSERS   ? "end processes, or make a ledger with more slots"
                 : rc == -EBUSY  ? "that process must let go of it"
                 : rc == -EINVAL ? "remove it, or set VRAMCAP_LEDGER to another path"
                 : rc == -EPERM
                     ? "set VRAMCAP_LEDGER to this container's own"
                     : "set VRAMCAP_LEDGER to a path in a folder that this user can write");
    return rc;
}

/* Is there a source of a ceiling at all?  What the kernel says of any GPU of NVIDIA's is one. */
static bool any_ceiling(const struct vcap_config *config)
{
    uint64_t dmem = UINT64_MAX;

    return config->memory_set || config->mps_set || config->host_memory_set ||
           config->toolkit_set ||
           (vcap_dmem_limit("/proc", "/sys/fs/cgroup", NULL, &dmem) == 0 && dmem != UINT64_MAX);
}

/* Does VRAMCAP_LEDGER name a ledger that has the host's ceilings in it? */
static bool names_the_hosts(const struct vcap_config *config)
{
    struct vcap_ledger look;
    char why[160];
    bool is;

    if (config->ledger[0] == 0 || vcap_ledger_open(&look, config->ledger, NULL, VCAP_OPEN_VIEW,
                                                   VCAP_LF_MODE_ENFORCE, why, sizeof(why)) != 0)
        return false;
    is = (look.flags & VCAP_LF_HOST_MADE) != 0;
    vcap_ledger_close(&look);
    return is;
}

static void note_config(struct vcap_ledger *l, const char *name, int rc)
{
    struct vcap_event event = {
        .kind = VCAP_LF_EVENT_CONFIG, .gpu = UINT32_MAX, .name = name, .code = (uint32_t)-rc};

    vcap_ledger_event(l, &event);
}

/* A configuration that cannot be used, where its container's ledger is there to take the event. */
static void note_config_error(const char *problem, int rc)
{
    char path[VCAP_LEDGER_PATH_MAX], key[VCAP_KEY_MAX], why[160];
    struct vcap_ledger l;
    uint32_t what;

    if (ledger_place(&vcap_process.config, path, key, &what) != 0 ||
        vcap_ledger_open(&l, path, key[0] != 0 ? key : NULL, VCAP_OPEN_WRITE, VCAP_LF_MODE_ENFORCE,
                         why, sizeof(why)) != 0)
        return;
    note_config(&l, problem, rc); /* cut at the event's size */
    vcap_ledger_close(&l);
}

static enum vcap_mode set_up(void)
{
    static struct vcap_host_word word; /* under page.starting, as all of this */
    struct vcap_config *config = &vcap_process.config;
    char why[VCAP_LEDGER_PATH_MAX + 400], ignored[VCAP_HOST_IGNORED_SIZE] = "";
    int host, rc;

    if (vcap_ledger_now()->base !=
        NULL) { /* a forked child: the file is mapped, the slot is the parent's */
        const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

        memcpy(&vcap_process_mutex, &fresh,
               sizeof(fresh)); /* its holder may be a thread of the parent */
        vcap_ledger_forget(vcap_ledger_now());
        vcap_ledger_now()->pidns = vcap_pidns_inode();
        vcap_live_forget();
        vcap_context_forget();
        vcap_primaries_forget();
        vcap_limits_forget();
        vcap_accounts_forget();
        vcap_overhead_forget();
        vcap_pools_forget();
        vcap_graphs_forget();
        vcap_physical_forget();
        vcap_shares_forget();
        vcap_opens_forget();
        return mode_by_word();
    }
    if (!config_read) {
        config_error =
            vcap_config_read(config, vcap_config_getenv, NULL, config_why, sizeof(config_why));
        config_read = true;
    }
    host = vcap_host_read(&word, why, sizeof(why));
    if (host != 0)
        vcap_host_obey(&word, config, ignored);
    vcap_log_setup(config->log_level, config->log_file);
    if (host < 0)
        return vcap_failed(why, host);
    if (ignored[0] != 0)
        vcap_log(VCAP_LOG_WARN, "the host made %s; ignored from the environment:%s",
                 word.ledger ? VCAP_LEDGER_HOST_PATH : VCAP_CONF_PATH, ignored);
    if (config_error == 0 && config->enable == VCAP_ENABLE_PASSIVE)
        return VCAP_MODE_PASSIVE;
    if (config_error != 0) {
        note_config_error(config_why, config_error);
        return vcap_failed(config_why, config_error);
    }
    if (!word.ledger && !any_ceiling(config) && !names_the_hosts(config))
        return vcap_failed("VRAMCAP_ENABLE is set but no ceiling: set VRAMCAP_MEMORY_MIB "
                           "(or CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)",
                           -EINVAL);
    rc = vcap_open_ledger(vcap_ledger_now(), why, sizeof(why));
    if (rc != 0)
        return vcap_failed(why, rc);
    if (ignored[0] != 0)
        note_config(vcap_ledger_now(), ignored + 1, 0);
    vcap_host_follow();
    return mode_by_word();
}

bool vcap_outlook(struct vcap_outlook *outlook)
{
    struct vcap_config *config = &outlook->config;
    struct vcap_host_word *word = malloc(sizeof(*word));
    char why[VCAP_LEDGER_PATH_MAX + 256], ignored[VCAP_HOST_IGNORED_SIZE];
    uint32_t what;
    bool enforced = false;
    int error, host;

    if (word == NULL)
        return false;
    error = vcap_config_read(config, vcap_config_getenv, NULL, why, sizeof(why));
    host = vcap_host_read(word, why, sizeof(why));
    if (host < 0)
        goto out;
    if (host != 0)
        vcap_host_obey(word, config, ignored);
    if (error != 0 || config->enable != VCAP_ENABLE_ENFORCE ||
        (word->flags & VCAP_LF_PASS_THROUGH) != 0 ||
        (!word->ledger && !any_ceiling(config) && !names_the_hosts(config)))
        goto out;
    if (ledger_place(config, outlook->path, outlook->key, &what) != 0)
        outlook->path[0] = outlook->key[0] = 0;
    enforced = true;
out:
    free(word);
    return enforced;
}

enum vcap_mode vcap_start(void)
{
    struct page *page = get_page();
    uint32_t seen = 0;
    int saved = errno, cancel;
    enum vcap_mode mode;

    if (page == NULL)
        return VCAP_MODE_DENY; /* not even a page of memory */
    cancel = vcap_cancel_off();
    while (__atomic_load_n(&page->ready, __ATOMIC_ACQUIRE) != 1) {
        seen = 0;
        if (!__atomic_compare_exchange_n(&page->starting, &seen, 1, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_ACQUIRE)) {
            vcap_sys_futex_wait(&page->starting, 1);
            continue;
        }
        if (__atomic_load_n(&page->ready, __ATOMIC_ACQUIRE) != 1) {
            mode = set_up();
            __atomic_store_n(&vcap_mode_word, (uint32_t)mode, __ATOMIC_RELAXED);
            __atomic_store_n(&page->ready, 1, __ATOMIC_RELEASE);
        }
        __atomic_store_n(&page->starting, 0, __ATOMIC_RELEASE);
        vcap_sys_futex_wake(&page->starting, INT32_MAX);
    }
    vcap_unknown_say();
    vcap_cancel_back(cancel);
    errno = saved;
    return (enum vcap_mode)__atomic_load_n(&vcap_mode_word, __ATOMIC_RELAXED);
}
