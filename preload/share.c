/*
 * The list of this process's exports.  One entry of the ledger serves all descriptors of one size on
 * one GPU, since nothing tells them apart; the last of them takes it off.
 */
#include "preload/share.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/log.h"
#include "preload/charge.h"
#include "preload/preload.h"

#define NO_ENTRY UINT32_MAX

struct export
{
    struct export *next;
    uint64_t key, size, hash;
    CUdevice ordinal;
    uint64_t mine;  /* the place in the ledger that entry belongs to */
    uint32_t entry; /* NO_ENTRY: the table was full */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct export *exports;
static struct vcap_log_limit full_limit;

static bool alike(const struct export *a, const struct export *b)
{
    return a->size == b->size && a->hash == b->hash && a->ordinal == b->ordinal;
}

/* Gives an export its entry, one that it shares or a new one; the lock is held. */
static void put_on_record(struct export *export)
{
    struct vcap_ledger *l = vcap_ledger_now();
    uint64_t mine = vcap_ledger_mine(l);
    uint32_t held_back;

    export->mine = mine;
    export->entry = NO_ENTRY;
    for (const struct export *e = exports; e != NULL; e = e->next)
        if (e != export && e->mine == mine && e->entry != NO_ENTRY && alike(e, export)) {
            export->entry = e->entry;
            return;
        }
    if (vcap_ledger_export(l, mine, vcap_process.device[export->ordinal].gpu, export->size,
                           export->hash, &export->entry) == -ENOSPC &&
        vcap_log_allow(&full_limit, &held_back))
        vcap_log(
            VCAP_LOG_WARN,
            "the ledger's table of exports is full: memory exported from here is charged again "
            "where it is opened");
}

static void read_device(struct vcap_live *record, void *arg)
{
    *(CUdevice *)arg = (CUdevice)record->device;
}

static void mark(struct vcap_live *record, void *arg)
{
    record->exported = true;
    *(bool *)arg = true;
}

void vcap_export_note(uint64_t key, uint64_t size, uint64_t hash)
{
    struct export *fresh = calloc(1, sizeof(*fresh)), *e;
    bool marked = false;

    if (fresh == NULL)
        return; /* charged again where it is opened: less room than there is, never more */
    *fresh = (struct export){.key = key, .size = size, .hash = hash, .ordinal = -1};
    vcap_live_with(key, read_device, &fresh->ordinal);
    if (fresh->ordinal < 0) {
        free(fresh);
        return;
    }
    pthread_mutex_lock(&lock);
    for (e = exports; e != NULL && !(e->key == key && alike(e, fresh)); e = e->next)
        ;
    if (e == NULL) {
        put_on_record(fresh);
        fresh->next = exports;
        exports = fresh;
        fresh = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(fresh);
    /* in this order: whoever releases the record after this drops the export, and before it we do */
    vcap_live_with(key, mark, &marked);
    if (!marked)
        vcap_exports_drop(key);
}

void vcap_exports_drop(uint64_t key)
{
    struct export *e, *other, *out = NULL;

    pthread_mutex_lock(&lock);
    for (struct export **at = &exports; (e = *at) != NULL;) {
        if (e->key != key) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        for (other = exports; other != NULL; other = other->next)
            if (other->entry == e->entry && other->mine == e->mine)
                break;
        if (other == NULL && e->entry != NO_ENTRY)
            vcap_ledger_unexport(vcap_ledger_now(), e->mine, e->entry);
        e->next = out;
        out = e;
    }
    pthread_mutex_unlock(&lock);
    for (; out != NULL; out = e) {
        e = out->next;
        free(out);
    }
}

bool vcap_export_by_others(CUdevice *ordinal, uint64_t size, uint64_t hash)
{
    struct vcap_ledger *l = vcap_ledger_now();
    const struct vcap_device *device = vcap_device(*ordinal);
    uint32_t gpu;

    if (device == NULL)
        return false;
    gpu = device->gpu;
    if (!vcap_ledger_exported(l, vcap_ledger_mine(l), size, hash, &gpu))
        return false;
    /* made ready here where this process has not used it yet; the first that the driver does not know ends it */
    for (CUdevice i = 0; gpu != device->gpu && (device = vcap_device(i)) != NULL; i++)
        if (device->gpu == gpu)
            *ordinal = i;
    return true;
}

struct vcap_physical *vcap_export_by_us(CUdevice ordinal, uint64_t size, uint64_t hash)
{
    const struct export wanted = {.size = size, .hash = hash, .ordinal = ordinal};
    struct vcap_physical *found = NULL;

    pthread_mutex_lock(&lock);
    for (const struct export *e = exports; e != NULL && found == NULL; e = e->next) {
        uint64_t address = vcap_live_key(VCAP_LIVE_HANDLE, e->key);

        if (address >> 57 != 0 || !alike(e, &wanted))
            continue; /* not physical memory's key, or another */
        found = (struct vcap_physical *)(uintptr_t)address;
        if (!vcap_physical_hold(found))
            found = NULL;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool vcap_export_is_ours(uint64_t hash)
{
    const struct export *e;

    pthread_mutex_lock(&lock);
    for (e = exports; e != NULL && e->hash != hash; e = e->next)
        ;
    pthread_mutex_unlock(&lock);
    return hash != 0 && e != NULL;
}

int vcap_import_enter(enum vcap_live_kind kind, uint64_t handle, void *context, CUdevice ordinal,
                      uint64_t bytes)
{
    struct vcap_ledger *l = vcap_ledger_now();
    uint64_t mine = vcap_ledger_mine(l);
    struct vcap_live record = {.key = vcap_live_key(kind, handle),
                               .mine = mine,
                               .context = context,
                               .imported = bytes,
                               .device = (uint32_t)ordinal,
                               .opens = 1};
    struct vcap_live stale;
    uint32_t gpu = vcap_process.device[ordinal].gpu;
    int rc;

    vcap_ledger_note_imported(l, mine, gpu, (int64_t)bytes);
    rc = vcap_live_enter(&record, &stale);
    if (rc != 0) {
        vcap_ledger_note_imported(l, mine, gpu, -(int64_t)bytes);
        return rc;
    }
    if (stale.key != 0)
        vcap_record_release(&stale);
    if (mine != vcap_ledger_mine(l))
        vcap_record_follow(record.key);
    return 0;
}

void vcap_exports_again(void)
{
    pthread_mutex_lock(&lock);
    for (struct export *e = exports; e != NULL; e = e->next)
        put_on_record(e);
    pthread_mutex_unlock(&lock);
}

void vcap_shares_forget(void)
{
    const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

    memcpy(&lock, &fresh, sizeof(fresh));
    exports = NULL; /* not freed: the parent's allocator may have been in the middle of anything */
}
