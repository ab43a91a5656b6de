/*
 * The process's state: what mode it is in, its configuration, its ledger, its devices.  Set up
 * lazily by the first hook that needs it, renewed in a forked child, never torn down.
 */
#ifndef VRAMCAP_PRELOAD_PRELOAD_H
#define VRAMCAP_PRELOAD_PRELOAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "enforcer/config.h"
#include "enforcer/ledger.h"
#include "enforcer/ledger_path.h"
#include "preload/cuda_api.h"

enum vcap_mode {
    VCAP_MODE_UNKNOWN = 0, /* not started: vcap_mode_if_started only */
    VCAP_MODE_PASSIVE = 1, /* everything goes straight to the driver */
    VCAP_MODE_ENFORCE,
    VCAP_MODE_AUDIT, /* booked, never refused */
    VCAP_MODE_DENY   /* configuration or ledger unusable: nothing is granted */
};

#define VCAP_DEVICES_MAX 64

struct vcap_device {
    uint32_t state; /* 0 unknown, 1 ready; written under vcap_process_mutex */
    uint32_t gpu;   /* row in the ledger */
    uint8_t uuid[16];
    bool mig;
    char name[48];        /* "GPU-..." or "MIG-..." */
    uint64_t limit_bytes; /* this process's own lower ceiling; VCAP_NO_LIMIT = none */
    uint64_t card_bytes;
    enum vcap_lf_mps mps; /* is this process a client of MPS on it? */
    uint64_t dmem_bytes;  /* what the kernel allows this cgroup on it; VCAP_NO_LIMIT = no limit */
    uint64_t mps_bytes; /* MPS's limit by which overhead is measured (overhead.h); 0 = it is not */
    uint32_t in_flight; /* calls under way that take memory, counted while it is measured; atomic */
    uint64_t unsure_bytes; /* charged, and perhaps not counted by MPS; atomic */
    uint64_t
        said_bytes; /* container's ceiling + 1 when VRAMCAP_MEMORY_MIB above it was last said */
};

struct vcap_process {
    struct vcap_config config;
    uint64_t host_changes; /* the ledger's, when this process last looked (host.h) */
    bool unrecorded;       /* pass-through: what would be refused is not even counted */
    struct vcap_device device[VCAP_DEVICES_MAX];
};
extern struct vcap_process vcap_process;
extern struct vcap_ledger *vcap_ledger_current; /* for vcap_ledger_now(); stored by renew.c */
extern pthread_mutex_t vcap_process_mutex;      /* devices, slot renewal, the host's word */

/* This process's ledger (base is NULL: none yet).  It is another one after the file was replaced under the
 * process, and the former stays mapped: ask once, and use one answer for one operation. */
static inline struct vcap_ledger *vcap_ledger_now(void)
{
    return __atomic_load_n(&vcap_ledger_current, __ATOMIC_ACQUIRE);
}

/* One word of a page that fork wipes: 0 until set up, in a child again. */
extern uint32_t *vcap_ready_word;
extern uint32_t vcap_mode_word; /* enum vcap_mode; valid while *vcap_ready_word is 1 */

/* Sets the process up (or a forked child again).  The driver is bound. */
enum vcap_mode vcap_start(void);

static inline enum vcap_mode vcap_mode_now(void)
{
    /* pairs with the release stores of vcap_start */
    const uint32_t *word = __atomic_load_n(&vcap_ready_word, __ATOMIC_ACQUIRE);

    if (__builtin_expect(__atomic_load_n(word, __ATOMIC_ACQUIRE) == 1, 1))
        return (enum vcap_mode)__atomic_load_n(&vcap_mode_word, __ATOMIC_RELAXED);
    return vcap_start();
}

/* The same without starting anything. */
static inline enum vcap_mode vcap_mode_if_started(void)
{
    const uint32_t *word = __atomic_load_n(&vcap_ready_word, __ATOMIC_ACQUIRE);

    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != 1)
        return VCAP_MODE_UNKNOWN;
    return (enum vcap_mode)__atomic_load_n(&vcap_mode_word, __ATOMIC_RELAXED);
}

/*
 * What vcap_start would find, without a slot, a file or a word: for processes that only ask NVML.  False:
 * no ceiling would be enforced, or nothing can be known.
 */
struct vcap_outlook {
    struct vcap_config config;
    char path[VCAP_LEDGER_PATH_MAX]; /* of the ledger; empty: none can be named */
    char key[VCAP_KEY_MAX];          /* demanded of it; empty: none */
};
bool vcap_outlook(struct vcap_outlook *outlook);

/* A device by ordinal, made ready on first use; NULL: the driver does not know it, or (after one
 * line) its row in the ledger cannot be had. */
struct vcap_device *vcap_device_make_ready(CUdevice ordinal);

static inline struct vcap_device *vcap_device(CUdevice ordinal)
{
    struct vcap_device *d = &vcap_process.device[(unsigned)ordinal % VCAP_DEVICES_MAX];

    if (__builtin_expect((unsigned)ordinal < VCAP_DEVICES_MAX &&
                             __atomic_load_n(&d->state, __ATOMIC_ACQUIRE) == 1,
                         1))
        return d;
    return vcap_device_make_ready(ordinal);
}

/*
 * This process's slot was taken from it (reaped, reset, restored elsewhere) or it is a forked child
 * without one: takes a slot and charges what is live again.  False: none can be had (said once);
 * what VRAMCAP_ON_ERROR says then is the mode afterwards.
 */
bool vcap_slot_renew(void);

/* Opens this container's ledger (which one: configuration, host, key) and takes a slot: 0, or -errno with a
 * line in why.  vcap_process_mutex or page.starting is held. */
int vcap_open_ledger(struct vcap_ledger *l, char *why, size_t why_size);

/* What VRAMCAP_ON_ERROR says about an unusable configuration or ledger; problem (a line) is said once.
 * rc: -errno. */
enum vcap_mode vcap_failed(const char *problem, int rc);

/* The record of this key was charged in a slot that is not ours any more: charges it in the present
 * one. */
void vcap_record_follow(uint64_t key);

/* A denied call: where what is missing may have passed, at most once a second, the next one looks again. */
void vcap_deny_again(void);

/* The ceiling that holds for this process on a device: the lower of the container's and its own. */
uint64_t vcap_device_ceiling(const struct vcap_device *device);

/* ---- how every hook begins ---- */

/*
 * Returns from the hook unless it has something to do here: without a driver, from inside the
 * driver, or in passive mode.  args: the call's arguments in parentheses.
 */
#define VCAP_ENTER(function, args)                                                                 \
    do {                                                                                           \
        if (__builtin_expect(!vcap_bind(), 0))                                                     \
            return CUDA_ERROR_NO_DEVICE;                                                           \
        if (__builtin_expect(real.function == NULL, 0))                                            \
            return CUDA_ERROR_NOT_SUPPORTED;                                                       \
        if (vcap_is_inner_call(__builtin_return_address(0)) ||                                     \
            vcap_mode_now() == VCAP_MODE_PASSIVE)                                                  \
            return real.function args;                                                             \
    } while (0)

#endif
