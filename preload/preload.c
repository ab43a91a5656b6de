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
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "enforcer/ceiling.h"
#include "enforcer/kernel.h"
#include "enforcer/ledger_path.h"
#include "enforcer/ledger_reap.h"
#include "preload/account.h"
#include "preload/charge.h"
#include "preload/context.h"
#include "preload/graph.h"
#include "preload/limits.h"
#include "preload/pool.h"
#include "preload/share.h"
#include "preload/vmm.h"

struct vcap_process vcap_process;
static uint32_t zero_word;
uint32_t *vcap_ready_word = &zero_word;
uint32_t vcap_mode_word;

/* The page that fork wipes. */
struct page {
    uint32_t ready;    /* 1: set up; release-stored by vcap_start */
    uint32_t starting; /* futex: 1 while a thread is in vcap_start */
};

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER; /* devices, slot renewal */
static bool config_read;                                         /* written under page.starting */
static int config_error;                                         /* of vcap_config_read */
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

static enum vcap_mode mode_of(const struct vcap_config *config)
{
    return config->enable == VCAP_ENABLE_AUDIT ? VCAP_MODE_AUDIT : VCAP_MODE_ENFORCE;
}

/*
 * What VRAMCAP_ON_ERROR says about an unusable configuration or ledger.  problem: said once.  rc: -errno;
 * a shortage (of slots, descriptors, memory) passes, so a denied process looks again (vcap_deny_again).
 */
static enum vcap_mode failed(const char *problem, int rc)
{
    static char said[VCAP_LEDGER_PATH_MAX + 256]; /* under page.starting or process_lock */
    bool allow = vcap_process.config.on_error == VCAP_ON_ERROR_ALLOW;
    bool passes = rc == -EUSERS || rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM ||
                  rc == -EBUSY || rc == -ENOSPC;

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
    if (vcap_process.ledger.base == NULL) /* the next call sets the process up once more */
        __atomic_store_n(vcap_ready_word, 0, __ATOMIC_RELEASE);
    else /* the next charge finds that it has no slot, and takes one */
        __atomic_store_n(&vcap_mode_word, (uint32_t)mode_of(&vcap_process.config),
                         __ATOMIC_RELAXED);
}

/*
 * Has the host spoken, that is: does a ledger of its making lie at the well-known place?  1 yes, 0
 * no, -errno (cause in why): something lies there that is no ledger this version can use.
 */
static int host_word(char *why, size_t why_size)
{
    struct vcap_ledger look;
    struct stat st;
    int rc = 0;

    if (vcap_sys_stat(VCAP_LEDGER_HOST_PATH, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return 0;
    rc = vcap_ledger_open(&look, VCAP_LEDGER_HOST_PATH, NULL, VCAP_OPEN_VIEW, VCAP_LF_MODE_ENFORCE,
                          why, why_size);
    if (rc != 0)
        return rc;
    rc = (look.flags & VCAP_LF_HOST_MADE) != 0;
    if (rc == 1 && (look.flags & VCAP_LF_AUDIT) != 0)
        rc = 2;
    vcap_ledger_close(&look);
    return rc;
}

/* The host's word beats the environment's: what would loosen it is set back, with one line for all, unless
 * quiet. */
static void obey_host(struct vcap_config *config, bool audit, bool quiet)
{
    enum vcap_enable enable = audit ? VCAP_ENABLE_AUDIT : VCAP_ENABLE_ENFORCE;
    char ignored[160] = "";
    size_t at = 0;
    struct {
        const char *name;
        bool set;
    } option[] = {
        {" VRAMCAP_LEDGER",
         config->ledger[0] != 0 && strcmp(config->ledger, VCAP_LEDGER_HOST_PATH) != 0},
        {" VRAMCAP_ENABLE",
         vcap_config_getenv("VRAMCAP_ENABLE", NULL) != NULL && config->enable != enable},
        {" VRAMCAP_ON_ERROR", config->on_error != VCAP_ON_ERROR_DENY},
        {" VRAMCAP_MANAGED", config->managed != VCAP_MANAGED_CHARGE},
    };

    for (size_t i = 0; i < sizeof(option) / sizeof(option[0]); i++)
        if (option[i].set)
            at += (size_t)snprintf(ignored + at, sizeof(ignored) - at, "%s", option[i].name);
    if (at != 0 && !quiet)
        vcap_log(VCAP_LOG_WARN, "the host made %s; ignored from the environment:%s",
                 VCAP_LEDGER_HOST_PATH, ignored);
    config->ledger[0] = 0;
    config->enable = enable;
    config->on_error = VCAP_ON_ERROR_DENY;
    config->managed = VCAP_MANAGED_CHARGE;
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

static int open_ledger(char *why, size_t why_size)
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
    rc = vcap_ledger_open(&vcap_process.ledger, path, wanted, what, mode, reason, sizeof(reason));
    if (rc != 0)
        snprintf(why, why_size, "ledger %s: %s; %s", path, reason,
                 rc == -EUSERS   ? "end processes, or make a ledger with more slots"
                 : rc == -EINVAL ? "remove it, or set VRAMCAP_LEDGER to another path"
                 : rc == -EPERM
                     ? "set VRAMCAP_LEDGER to this container's own"
                     : "set VRAMCAP_LEDGER to a path in a folder that this user can write");
    return rc;
}

static enum vcap_mode set_up(void)
{
    struct vcap_config *config = &vcap_process.config;
    char why[VCAP_LEDGER_PATH_MAX + 256], reason[160];
    int host, rc;

    if (vcap_process.ledger.base !=
        NULL) { /* a forked child: the file is mapped, the slot is the parent's */
        const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

        memcpy(&process_lock, &fresh, sizeof(fresh)); /* its holder may be a thread of the parent */
        vcap_ledger_forget(&vcap_process.ledger);
        vcap_process.ledger.pidns = vcap_pidns_inode();
        vcap_live_forget();
        vcap_context_forget();
        vcap_primaries_forget();
        vcap_limits_forget();
        vcap_accounts_forget();
        vcap_pools_forget();
        vcap_graphs_forget();
        vcap_physical_forget();
        vcap_shares_forget();
        vcap_opens_forget();
        return mode_of(config);
    }
    if (!config_read) {
        config_error =
            vcap_config_read(config, vcap_config_getenv, NULL, config_why, sizeof(config_why));
        vcap_log_setup(config->log_level, config->log_file);
        config_read = true;
    }
    host = host_word(reason, sizeof(reason));
    if (host != 0)
        obey_host(config, host == 2, false);
    if (host < 0) {
        snprintf(why, sizeof(why), "ledger %s: %s; the host must replace it", VCAP_LEDGER_HOST_PATH,
                 reason);
        return failed(why, host);
    }
    if (config_error == 0 && config->enable == VCAP_ENABLE_PASSIVE)
        return VCAP_MODE_PASSIVE;
    if (config_error != 0)
        return failed(config_why, config_error);
    if (host == 0 && !config->memory_set && !config->mps_set)
        return failed("VRAMCAP_ENABLE is set but no ceiling: set VRAMCAP_MEMORY_MIB "
                      "(or CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)",
                      -EINVAL);
    rc = open_ledger(why, sizeof(why));
    if (rc != 0)
        return failed(why, rc);
    return mode_of(config);
}

bool vcap_outlook(struct vcap_outlook *outlook)
{
    struct vcap_config *config = &outlook->config;
    char why[VCAP_LEDGER_PATH_MAX + 256];
    uint32_t what;
    int error = vcap_config_read(config, vcap_config_getenv, NULL, why, sizeof(why)), host;

    host = host_word(why, sizeof(why));
    if (host < 0)
        return false;
    if (host != 0)
        obey_host(config, host == 2, true);
    if (error != 0 || config->enable != VCAP_ENABLE_ENFORCE ||
        (host == 0 && !config->memory_set && !config->mps_set))
        return false;
    if (ledger_place(config, outlook->path, outlook->key, &what) != 0)
        outlook->path[0] = outlook->key[0] = 0;
    return true;
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
    vcap_cancel_back(cancel);
    errno = saved;
    return (enum vcap_mode)__atomic_load_n(&vcap_mode_word, __ATOMIC_RELAXED);
}

/* The device's row in the ledger and the ceilings that hold for it here.  process_lock is held. */
static int place_device(struct vcap_device *d, uint32_t ordinal)
{
    struct vcap_ledger *l = &vcap_process.ledger;
    struct vcap_ceiling own =
        vcap_ceiling_effective(&vcap_process.config, ordinal, d->uuid, d->mig);
    uint64_t container;
    uint32_t gpu;
    int rc =
        vcap_ledger_gpu(l, d->uuid, d->mig ? VCAP_LF_GPU_MIG : 0, ordinal, d->card_bytes, &gpu);

    if (rc != 0)
        return rc;
    d->gpu = gpu;
    d->limit_bytes = VCAP_NO_LIMIT;
    if (own.bytes != VCAP_NO_LIMIT) {
        uint64_t word = (l->flags & VCAP_LF_HOST_MADE) != 0
                            ? __atomic_load_n(&l->gpus[gpu].ceiling, __ATOMIC_ACQUIRE)
                            : vcap_ledger_propose_ceiling(l, gpu, own.bytes, own.source);

        container = vcap_ceiling_bytes(word);
        if (own.bytes < container)
            d->limit_bytes = own.bytes;
        if (own.bytes > container) {
            struct vcap_event event = {.kind = VCAP_LF_EVENT_CONFIG,
                                       .gpu = gpu,
                                       .bytes = own.bytes,
                                       .limit = container,
                                       .name = "VRAMCAP_MEMORY_MIB above the container's"};

            vcap_log(VCAP_LOG_WARN,
                     "GPU %u (%s): this process asks for a ceiling of %llu MiB, the container's is "
                     "%llu MiB "
                     "and stays",
                     ordinal, d->name, (unsigned long long)(own.bytes >> 20),
                     (unsigned long long)(container >> 20));
            vcap_ledger_event(l, &event);
        }
    }
    return 0;
}

/* The slot's view of a device: which rows it uses, its own ceiling, overhead known or not. */
static void note_device(const struct vcap_device *d)
{
    struct vcap_ledger *l = &vcap_process.ledger;
    uint32_t slot = vcap_mine_slot(vcap_ledger_mine(l));

    if (!vcap_ledger_owns(l))
        return;
    __atomic_fetch_or(&l->slots[slot].index_mask, 1u << d->gpu, __ATOMIC_RELAXED);
    vcap_ledger_cell(l, slot, d->gpu)->limit_bytes = d->limit_bytes;
    if (vcap_process.config.context_bytes != VCAP_CONTEXT_AUTO)
        vcap_ledger_note_overhead(l, d->gpu, 0);
}

static int identify_device(struct vcap_device *d, CUdevice ordinal)
{
    CUuuid parent, own;
    size_t total = 0;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    memset(&parent, 0, sizeof(parent));
    memset(&own, 0, sizeof(own));
    if (vcap_own.cuDeviceGetUuid != NULL)
        result = vcap_own.cuDeviceGetUuid(&parent, ordinal);
    /* v1 gives the parent of a MIG slice, v2 the slice itself: if they differ it is one */
    if (vcap_own.cuDeviceGetUuid_v2 != NULL &&
        vcap_own.cuDeviceGetUuid_v2(&own, ordinal) == CUDA_SUCCESS)
        d->mig = result == CUDA_SUCCESS && memcmp(&own, &parent, sizeof(own)) != 0;
    else if (result == CUDA_SUCCESS)
        own = parent;
    else
        return -ENODEV;
    memcpy(d->uuid, &own, sizeof(d->uuid));
    vcap_uuid_format(d->name, d->uuid, d->mig);
    if (real.cuDeviceTotalMem_v2 != NULL &&
        real.cuDeviceTotalMem_v2(&total, ordinal) == CUDA_SUCCESS)
        d->card_bytes = total;
    return 0;
}

struct vcap_device *vcap_device(CUdevice ordinal)
{
    struct vcap_device *d;
    int rc;

    if (ordinal < 0 || ordinal >= VCAP_DEVICES_MAX)
        return NULL;
    d = &vcap_process.device[ordinal];
    if (__builtin_expect(__atomic_load_n(&d->state, __ATOMIC_ACQUIRE) == 1, 1))
        return d;
    if (vcap_process.ledger.base == NULL)
        return NULL;
    /* two threads may both ask the driver, which is harmless; no lock is held over it */
    {
        struct vcap_device found;

        memset(&found, 0, sizeof(found));
        if (identify_device(&found, ordinal) != 0)
            return NULL;
        pthread_mutex_lock(&process_lock);
        rc = 0;
        if (d->state == 0) {
            /* all but state, which others load meanwhile */
            memcpy((char *)d + offsetof(struct vcap_device, gpu),
                   (const char *)&found + offsetof(struct vcap_device, gpu),
                   sizeof(found) - offsetof(struct vcap_device, gpu));
            rc = place_device(d, (uint32_t)ordinal);
            if (rc == 0) {
                note_device(d);
                __atomic_store_n(&d->state, 1, __ATOMIC_RELEASE);
            }
        }
        pthread_mutex_unlock(&process_lock);
    }
    if (rc != 0) {
        static struct vcap_log_limit limit;
        uint32_t held_back;

        if (vcap_log_allow(&limit, &held_back))
            vcap_log(VCAP_LOG_ERROR,
                     "GPU %d (%s): the ledger has no row left for it; make one with more GPUs",
                     (int)ordinal, d->name);
        return NULL;
    }
    return d;
}

uint64_t vcap_device_ceiling(const struct vcap_device *device)
{
    uint64_t container = vcap_ceiling_bytes(
        __atomic_load_n(&vcap_process.ledger.gpus[device->gpu].ceiling, __ATOMIC_ACQUIRE));

    return container < device->limit_bytes ? container : device->limit_bytes;
}

/* Charges one live record in the present place, unless it is already. */
static void charge_again(struct vcap_live *record, void *arg)
{
    struct vcap_ledger *l = &vcap_process.ledger;
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

bool vcap_slot_renew(void)
{
    enum vcap_lf_mode mode =
        vcap_process.config.enable == VCAP_ENABLE_AUDIT ? VCAP_LF_MODE_AUDIT : VCAP_LF_MODE_ENFORCE;
    struct vcap_ledger *l = &vcap_process.ledger;
    int rc = 0, saved = errno, cancel = vcap_cancel_off();

    pthread_mutex_lock(&process_lock);
    if (!vcap_ledger_owns(l)) {
        bool had_one = l->slot >= 0;

        rc = vcap_ledger_claim(l, mode);
        if (rc == 0) {
            for (uint32_t i = 0; i < VCAP_DEVICES_MAX; i++)
                if (vcap_process.device[i].state == 1 &&
                    place_device(&vcap_process.device[i], i) == 0)
                    note_device(&vcap_process.device[i]); /* the file may have been made anew */
            vcap_live_each(charge_again, NULL);
            vcap_context_charge_again();
            vcap_accounts_charge_again();
            vcap_exports_again();
            if (had_one)
                vcap_log(VCAP_LOG_WARN,
                         "this process's slot in ledger %s was taken from it; it has a new one and "
                         "its charges are booked again",
                         l->path);
        }
    }
    pthread_mutex_unlock(&process_lock);
    if (rc != 0) {
        char problem[VCAP_LEDGER_PATH_MAX + 128];

        snprintf(problem, sizeof(problem), "ledger %s: no slot for this process (%s)", l->path,
                 rc == -EUSERS ? "every one is taken by a living process" : strerror(-rc));
        __atomic_store_n(&vcap_mode_word, (uint32_t)failed(problem, rc), __ATOMIC_RELAXED);
    }
    vcap_cancel_back(cancel);
    errno = saved;
    return rc == 0;
}
