/*
 * Exports.  An entry is taken by a CAS on its owner word and then written by its owner alone, the
 * sequence odd meanwhile, so that a reader never mixes two exports.  A process that dies in the
 * middle leaves an odd sequence and an owner whose slot ends: the next taker goes on from there.
 */
#include "enforcer/ledger_export.h"

#include <errno.h>

#include "enforcer/ledger_reap.h"
#include "enforcer/ledger_word.h"

uint64_t vcap_export_hash(const void *handle, size_t size)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a, 64 bits */
    const unsigned char *bytes = handle;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash == 0 ? 1 : hash;
}

static uint64_t owner_of(uint64_t mine)
{
    return vcap_lf_owner(mine >> 16, vcap_mine_slot(mine));
}

static bool owner_lives(const struct vcap_ledger *l, uint64_t owner)
{
    uint32_t slot = vcap_lf_owner_slot(owner);
    uint64_t state = slot < l->slot_count ? vcap_load(&l->slots[slot].state) : 0;

    return vcap_lf_state_status(state) == VCAP_LF_LIVE &&
           vcap_lf_state_generation(state) == owner >> 16;
}

static int take(struct vcap_ledger *l, uint64_t owner)
{
    for (uint32_t e = 0; e < l->export_count; e++) {
        uint64_t seen = vcap_load(&l->exports[e].owner);

        if ((seen == 0 || !owner_lives(l, seen)) && vcap_cas(&l->exports[e].owner, seen, owner))
            return (int)e;
    }
    return -ENOSPC;
}

int vcap_ledger_export(struct vcap_ledger *l, uint64_t mine, uint32_t gpu, uint64_t size,
                       uint64_t hash, uint32_t *entry)
{
    struct vcap_lf_export *export;
    uint64_t sequence;
    int at;

    if (!vcap_ledger_holds(l, mine))
        return -ESTALE;
    at = take(l, owner_of(mine));
    if (at < 0 && vcap_ledger_reap_all(l) != 0)
        at = take(l, owner_of(mine));
    if (at < 0)
        return at;
    export = &l->exports[at];
    sequence = vcap_load(&export->sequence) | 1; /* odd already: its writer died over it */
    __atomic_store_n(&export->sequence, sequence, __ATOMIC_SEQ_CST);
    __atomic_store_n(&export->hash, hash, __ATOMIC_SEQ_CST);
    __atomic_store_n(&export->size, size, __ATOMIC_SEQ_CST);
    __atomic_store_n(&export->gpu, gpu, __ATOMIC_SEQ_CST);
    __atomic_store_n(&export->writer, owner_of(mine), __ATOMIC_SEQ_CST);
    __atomic_store_n(&export->sequence, sequence + 1, __ATOMIC_SEQ_CST);
    *entry = (uint32_t)at;
    return 0;
}

void vcap_ledger_unexport(struct vcap_ledger *l, uint64_t mine, uint32_t entry)
{
    /* of an older place: dead, and perhaps somebody else's by now */
    if (entry >= l->export_count || !vcap_ledger_holds(l, mine) ||
        vcap_load(&l->exports[entry].owner) != owner_of(mine))
        return;
    __atomic_store_n(&l->exports[entry].writer, 0, __ATOMIC_SEQ_CST);
    vcap_cas(&l->exports[entry].owner, owner_of(mine), 0);
}

bool vcap_ledger_exported(const struct vcap_ledger *l, uint64_t mine, uint64_t size, uint64_t hash,
                          uint32_t *gpu)
{
    for (uint32_t e = 0; e < l->export_count; e++) {
        const struct vcap_lf_export *export = &l->exports[e];
        uint64_t owner = vcap_load(&export->owner), sequence = vcap_load(&export->sequence);
        uint64_t its_hash, its_size;
        uint32_t its_gpu;

        if (owner == 0 || owner == owner_of(mine) || (sequence & 1) != 0 ||
            vcap_load(&export->writer) != owner || !owner_lives(l, owner))
            continue;
        its_hash = vcap_load(&export->hash);
        its_size = vcap_load(&export->size);
        its_gpu = __atomic_load_n(&export->gpu, __ATOMIC_SEQ_CST);
        if (vcap_load(&export->owner) != owner || vcap_load(&export->sequence) != sequence ||
            its_hash != hash || its_gpu >= l->gpu_count)
            continue;
        if (hash == 0 && (its_size != size || its_gpu != *gpu))
            continue;
        *gpu = its_gpu;
        return true;
    }
    return false;
}
