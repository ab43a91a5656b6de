/*
 * Pointers of another process's pool.  Whoever allocated the memory is charged for it, as long as the
 * ledger has that export on record; otherwise the importer is (rule 10).  A record refers to the imported
 * pool like one of its own memory, and carries its charge itself, for such a pool has no account.
 */
#include "enforcer/rules.h"
#include "preload/charge.h"
#include "preload/pool.h"
#include "preload/share.h"

static void shown(struct vcap_pool *pool, CUdeviceptr pointer, CUdevice ordinal, uint64_t bytes)
{
    uint64_t mine = vcap_ledger_mine(vcap_ledger_now());
    struct vcap_live stale, record = {.key = pointer,
                                      .mine = mine,
                                      .imported = bytes,
                                      .device = (uint32_t)ordinal,
                                      .pool = pool,
                                      .pool_bytes = bytes};
    const struct vcap_device *device = vcap_device(ordinal);

    if (device == NULL)
        return;
    vcap_pool_live_add(pool, bytes);
    vcap_ledger_note_imported(vcap_ledger_now(), mine, device->gpu, (int64_t)bytes);
    if (vcap_live_enter(&record, &stale) != 0) {
        vcap_record_release(&record);
        return;
    }
    if (stale.key != 0)
        vcap_record_release(&stale);
    if (mine != vcap_ledger_mine(vcap_ledger_now()))
        vcap_record_follow(pointer);
}

static CUresult nothing_to_give_back(uint64_t pointer)
{
    (void)pointer; /* the caller frees it */
    return CUDA_SUCCESS;
}

CUresult vcap_pool_imported(struct vcap_pool *pool, unsigned row, CUdeviceptr pointer,
                            CUdevice ordinal, uint64_t bytes, uint64_t hash)
{
    struct vcap_charge c;
    CUresult result;

    if (vcap_export_by_others(&ordinal, bytes, hash) || vcap_export_is_ours(hash)) {
        shown(pool, pointer, ordinal, bytes);
        return CUDA_SUCCESS;
    }
    result = vcap_charge_begin_on(&c, row, ordinal, vcap_rule_linear(bytes));
    if (result != CUDA_SUCCESS || !c.active)
        return result;
    c.unsure = true;
    c.pool = pool;
    c.pool_bytes = bytes;
    vcap_pool_live_add(pool, bytes);
    result =
        vcap_charge_end(&c, CUDA_SUCCESS, pointer, vcap_rule_linear(bytes), nothing_to_give_back);
    if (result != CUDA_SUCCESS)
        vcap_pool_live_remove(pool, bytes);
    return result;
}
