/*
 * Reading and following the host's word.  Invariants:
 *   - where the host has spoken, nothing in the environment widens or switches off what it said;
 *   - a word that cannot be understood denies: it never counts as silence;
 *   - reading it changes nothing and leaves nothing open.
 */
#include "preload/host.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "enforcer/kernel.h"
#include "enforcer/ledger_path.h"
#include "preload/device.h"

static bool conf_enforces; /* the file says VRAMCAP_ENABLE=1; written under page.starting */

static int read_ledger(struct vcap_host_word *word, char *why, size_t why_size)
{
    struct vcap_ledger look;
    struct stat st;
    char reason[160];
    int rc;

    if (vcap_sys_stat(VCAP_LEDGER_HOST_PATH, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return 0;
    rc = vcap_ledger_open(&look, VCAP_LEDGER_HOST_PATH, NULL, VCAP_OPEN_VIEW, VCAP_LF_MODE_ENFORCE,
                          reason, sizeof(reason));
    if (rc != 0) {
        snprintf(why, why_size, "ledger %s: %s; the host must replace it", VCAP_LEDGER_HOST_PATH,
                 reason);
        return rc;
    }
    word->ledger = (look.flags & VCAP_LF_HOST_MADE) != 0;
    word->flags = look.flags;
    word->context_bytes = vcap_ledger_header(&look)->context_bytes;
    word->compute_percent = vcap_ledger_header(&look)->compute_percent;
    vcap_ledger_close(&look);
    return 0;
}

static int read_conf(struct vcap_host_word *word, char *why, size_t why_size)
{
    char reason[300];
    int rc = vcap_conf_read(VCAP_CONF_PATH, &word->file, reason, sizeof(reason));

    if (rc == 0)
        return 0;
    word->conf = true;
    if (rc > 0)
        rc = vcap_config_read(&word->said, vcap_conf_get, &word->file, reason, sizeof(reason));
    if (rc != 0)
        snprintf(why, why_size, "%s: %s; the host must correct it", VCAP_CONF_PATH, reason);
    return rc;
}

int vcap_host_read(struct vcap_host_word *word, char *why, size_t why_size)
{
    int ledger, conf;

    /* file and said are read only where conf is true */
    word->ledger = word->conf = false;
    word->flags = 0;
    word->context_bytes = UINT64_MAX;
    word->compute_percent = 0;
    ledger = read_ledger(word, why, why_size);
    if (ledger != 0) {
        word->ledger = true;
        word->flags = 0;
        return ledger;
    }
    conf = read_conf(word, why, why_size);
    return conf != 0 ? conf : word->ledger || word->conf;
}

static bool file_says(const struct vcap_host_word *word, const char *key)
{
    const char *value = vcap_conf_get(key, (void *)(uintptr_t)&word->file);

    return value != NULL && value[0] != 0;
}

static bool environment_says(const char *name)
{
    return vcap_config_getenv(name, NULL) != NULL;
}

/* The higher of two fixed charges; VCAP_CONTEXT_AUTO is none. */
static uint64_t higher(uint64_t a, uint64_t b)
{
    return a == VCAP_CONTEXT_AUTO ? b : b == VCAP_CONTEXT_AUTO || a > b ? a : b;
}

/* The lower of two compute ceilings; 0 is none. */
static uint32_t lower_percent(uint32_t a, uint32_t b)
{
    return a == 0 ? b : b == 0 || a < b ? a : b;
}

void vcap_host_obey(const struct vcap_host_word *word, struct vcap_config *config,
                    char ignored[VCAP_HOST_IGNORED_SIZE])
{
    const char *ledger = word->conf ? word->said.ledger : "";
    bool enforces =
        word->conf && file_says(word, "VRAMCAP_ENABLE") && word->said.enable == VCAP_ENABLE_ENFORCE;
    uint64_t context =
        higher(word->context_bytes, word->conf ? word->said.context_bytes : VCAP_CONTEXT_AUTO);
    uint32_t percent =
        lower_percent(word->compute_percent, word->conf ? word->said.compute_percent : 0);
    struct vcap_config is = *config;
    size_t at = 0;

    if (word->ledger)
        is.enable = (word->flags & VCAP_LF_AUDIT) != 0 && !enforces ? VCAP_ENABLE_AUDIT
                                                                    : VCAP_ENABLE_ENFORCE;
    else if (!file_says(word, "VRAMCAP_ENABLE"))
        is.enable = VCAP_ENABLE_ENFORCE;
    else if (word->said.enable != VCAP_ENABLE_PASSIVE) /* else the environment may tighten it */
        is.enable = word->said.enable;
    if (!(word->conf && word->said.on_error == VCAP_ON_ERROR_ALLOW &&
          !environment_says("VRAMCAP_ON_ERROR")))
        is.on_error = VCAP_ON_ERROR_DENY;
    else
        is.on_error = VCAP_ON_ERROR_ALLOW;
    if (!(word->conf && word->said.managed == VCAP_MANAGED_IGNORE))
        is.managed = VCAP_MANAGED_CHARGE;
    else if (!environment_says("VRAMCAP_MANAGED"))
        is.managed = VCAP_MANAGED_IGNORE;
    is.context_bytes = higher(context, config->context_bytes);
    is.compute_percent = lower_percent(percent, config->compute_percent);
    snprintf(is.ledger, sizeof(is.ledger), "%s", ledger);
    if (word->conf) {
        is.host_memory = word->said.memory;
        is.host_memory_set = word->said.memory_set;
        if (!environment_says("VRAMCAP_LOG"))
            is.log_level = word->said.log_level;
        if (!environment_says("VRAMCAP_LOG_FILE"))
            memcpy(is.log_file, word->said.log_file, sizeof(is.log_file));
    }
    const struct {
        const char *name;
        bool set;
    } option[] = {
        {" VRAMCAP_LEDGER", config->ledger[0] != 0 && strcmp(config->ledger, ledger) != 0 &&
                                strcmp(config->ledger, VCAP_LEDGER_HOST_PATH) != 0},
        {" VRAMCAP_ENABLE", environment_says("VRAMCAP_ENABLE") && config->enable != is.enable},
        {" VRAMCAP_ON_ERROR",
         config->on_error == VCAP_ON_ERROR_ALLOW && is.on_error != config->on_error},
        {" VRAMCAP_MANAGED",
         config->managed == VCAP_MANAGED_IGNORE && is.managed != config->managed},
        {" VRAMCAP_CONTEXT_MIB", environment_says("VRAMCAP_CONTEXT_MIB") &&
                                     context != VCAP_CONTEXT_AUTO &&
                                     config->context_bytes < context},
        {" VRAMCAP_COMPUTE_PERCENT", percent != 0 && config->compute_percent > percent},
    };

    ignored[0] = 0;
    for (size_t i = 0; i < sizeof(option) / sizeof(option[0]); i++)
        if (option[i].set)
            at += (size_t)snprintf(ignored + at, VCAP_HOST_IGNORED_SIZE - at, "%s", option[i].name);
    *config = is;
    /* what is let through by order must not be denied for a shortage */
    if (word->ledger && (word->flags & VCAP_LF_PASS_THROUGH) != 0)
        config->on_error = VCAP_ON_ERROR_ALLOW;
    conf_enforces = enforces;
}

enum vcap_mode vcap_host_mode(const struct vcap_config *config, const struct vcap_ledger *l,
                              bool *unrecorded)
{
    uint32_t flags =
        l->base == NULL ? 0 : __atomic_load_n(&vcap_ledger_header(l)->flags, __ATOMIC_ACQUIRE);
    bool audit = config->enable == VCAP_ENABLE_AUDIT;

    *unrecorded = false;
    if ((flags & VCAP_LF_HOST_MADE) != 0) {
        *unrecorded = (flags & VCAP_LF_PASS_THROUGH) != 0;
        audit = *unrecorded || ((flags & VCAP_LF_AUDIT) != 0 && !conf_enforces);
    }
    return audit ? VCAP_MODE_AUDIT : VCAP_MODE_ENFORCE;
}

void vcap_host_take_over(void)
{
    struct vcap_ledger *l = vcap_ledger_now();
    uint32_t was = __atomic_load_n(&vcap_mode_word, __ATOMIC_RELAXED);
    enum vcap_mode mode;
    bool unrecorded;

    /* first: what is changed from here on is seen by the next look */
    __atomic_store_n(&vcap_process.host_changes,
                     __atomic_load_n(&vcap_ledger_header(l)->host_changes, __ATOMIC_ACQUIRE),
                     __ATOMIC_RELAXED);
    mode = vcap_host_mode(&vcap_process.config, l, &unrecorded);
    __atomic_store_n(&vcap_process.unrecorded, unrecorded, __ATOMIC_RELAXED);
    if (was == VCAP_MODE_ENFORCE || was == VCAP_MODE_AUDIT)
        __atomic_store_n(&vcap_mode_word, (uint32_t)mode, __ATOMIC_RELAXED);
    if (vcap_ledger_owns(l))
        __atomic_store_n(
            &l->slots[vcap_mine_slot(vcap_ledger_mine(l))].mode,
            (uint32_t)(mode == VCAP_MODE_AUDIT ? VCAP_LF_MODE_AUDIT : VCAP_LF_MODE_ENFORCE),
            __ATOMIC_RELAXED);
    vcap_devices_place_again();
}

void vcap_host_follow(void)
{
    int saved = errno, cancel = vcap_cancel_off();

    pthread_mutex_lock(&vcap_process_mutex);
    vcap_host_take_over();
    pthread_mutex_unlock(&vcap_process_mutex);
    vcap_cancel_back(cancel);
    errno = saved;
}
