/*
 * Reading one row.  What the dead hold is left out here, as every reader does: nobody may come who reaps
 * them, and a reader without a slot must not.
 */
#include "enforcer/ledger_look.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "enforcer/ledger_reap.h"
#include "enforcer/ledger_word.h"

bool vcap_ledger_find_gpu(const struct vcap_ledger *l, const uint8_t uuid[16], uint32_t *gpu)
{
    for (uint32_t g = 0; g < l->gpu_count && vcap_load(&l->gpus[g].claim) != 0; g++) {
        if (memcmp(l->gpus[g].uuid, uuid, 16) != 0)
            continue;
        *gpu = g;
        return true;
    }
    return false;
}

uint64_t vcap_ledger_default_ceiling(const struct vcap_ledger *l)
{
    return (l->flags & VCAP_LF_HOST_MADE) == 0 ? 0
                                               : vcap_load(&vcap_ledger_header(l)->default_ceiling);
}

uint64_t vcap_ledger_host_ceiling(struct vcap_ledger *l, uint32_t gpu)
{
    /* The row was claimed before the default is read, and a change of the default sets the claimed rows
     * after it: so either this is the new one, or the change is still to come and overwrites it. */
    uint64_t general = vcap_ledger_default_ceiling(l);

    if (general != 0)
        vcap_cas(&l->gpus[gpu].ceiling, 0, general);
    return vcap_load(&l->gpus[gpu].ceiling);
}

/* Of the row's total, what dead processes hold. */
static uint64_t held_by_the_dead(const struct vcap_ledger *l, uint32_t gpu)
{
    uint64_t bytes = 0;
    int fd = vcap_ledger_reopen(l, O_RDONLY);

    for (uint32_t s = 0; fd >= 0 && s < l->slot_count; s++) {
        uint64_t units = vcap_lf_charged_units(vcap_load(&vcap_ledger_cell(l, s, gpu)->charged));
        struct vcap_lf_slot copy;

        if (units == 0)
            continue;
        memcpy(&copy, &l->slots[s], sizeof(copy));
        if (vcap_slot_life(&copy, s, fd, l->pidns) == VCAP_LIFE_DEAD)
            bytes += units * VCAP_LF_UNIT_BYTES;
    }
    if (fd >= 0)
        close(fd);
    return bytes;
}

int vcap_ledger_look(const char *path, const char *key, const uint8_t uuid[16],
                     struct vcap_ledger_look *look)
{
    struct vcap_ledger l;
    char why[160];
    uint64_t held, dead;
    uint32_t gpu;
    int rc =
        vcap_ledger_open(&l, path, key, VCAP_OPEN_VIEW, VCAP_LF_MODE_ENFORCE, why, sizeof(why));

    if (rc != 0)
        return rc;
    memset(look, 0, sizeof(*look));
    look->ceiling_bytes = vcap_ceiling_bytes(vcap_ledger_default_ceiling(&l));
    look->found = vcap_ledger_find_gpu(&l, uuid, &gpu);
    if (look->found) {
        uint64_t word = vcap_load(&l.gpus[gpu].ceiling);

        if (word != 0)
            look->ceiling_bytes = vcap_ceiling_bytes(word);
        held = vcap_ledger_held(&l, gpu);
        dead = held == 0 ? 0 : held_by_the_dead(&l, gpu);
        look->held_bytes = dead < held ? held - dead : 0;
    }
    vcap_ledger_close(&l);
    return 0;
}
