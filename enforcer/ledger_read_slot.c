/*
 * Slots, their cells and whether their owners live, copied so that all of one slot is of one owner.
 *
 * A slot is believed only if its state word reads the same before and after its identity, its cells and
 * the question about its owner, each read by a call of its own (one pread of a slot can tear).  What
 * many slots need is read for all of them at once: states, identities, cells, locks, states again; a slot
 * that changed hands in between is read again alone.
 */
#include "enforcer/ledger_read_part.h"

#include <stdlib.h>
#include <string.h>

/* Strides may be larger than the structs that this build knows, offsets need not be aligned: copy.
 */
static uint64_t slot_at(const struct vcap_lf_header *h, uint32_t slot)
{
    return h->slot_offset + (uint64_t)slot * h->slot_stride;
}

static uint64_t cells_at(const struct vcap_lf_header *h, uint32_t slot)
{
    return h->cell_offset + (uint64_t)slot * h->gpu_count * h->cell_stride;
}

static void copy_cells(struct vcap_read_slot *copy, const unsigned char *from,
                       const struct vcap_lf_header *h)
{
    for (uint32_t g = 0; g < h->gpu_count; g++)
        memcpy(&copy->cells[g], from + (size_t)g * h->cell_stride, sizeof copy->cells[g]);
}

static int check_state(const struct vcap_reading *r, uint32_t slot, uint64_t state)
{
    uint32_t status = vcap_lf_state_status(state), kind = vcap_lf_state_kind(state);
    if (status > VCAP_LF_DEAD)
        return VCAP_READ_UNTRUSTED(r, "slot %u: unknown status %u", slot, status);
    if (kind > VCAP_LF_KIND_PID || (status != VCAP_LF_FREE && kind == VCAP_LF_KIND_NONE))
        return VCAP_READ_UNTRUSTED(r, "slot %u: unknown liveness kind %u", slot, kind);
    return 0;
}

static int check_cell(const struct vcap_reading *r, uint32_t slot, const struct vcap_lf_cell *c)
{
    int64_t delta = vcap_lf_intent_delta(c->intent);
    int error;
    if (vcap_lf_charged_units(c->charged) > VCAP_LF_UNITS_MAX)
        return VCAP_READ_UNTRUSTED(r, "slot %u: impossible charge", slot);
    if (vcap_lf_op(c->charged) == 0 && c->charged != 0)
        return VCAP_READ_UNTRUSTED(r, "slot %u: charge without an operation number", slot);
    if (delta > (int64_t)VCAP_LF_UNITS_MAX || delta < -(int64_t)VCAP_LF_UNITS_MAX)
        return VCAP_READ_UNTRUSTED(r, "slot %u: impossible intent", slot);
    if (c->ack > VCAP_LF_OP_MASK)
        return VCAP_READ_UNTRUSTED(r, "slot %u: impossible operation number", slot);
    if ((error = vcap_read_check_amount(r, "slot", slot, "peak", c->peak_bytes)) != 0 ||
        (error = vcap_read_check_amount(r, "slot", slot, "import", c->imported_bytes)) != 0)
        return error;
    if (c->overhead_bytes != VCAP_UNKNOWN)
        return vcap_read_check_amount(r, "slot", slot, "overhead", c->overhead_bytes);
    return 0;
}

bool vcap_read_move_is_in_flight(const struct vcap_lf_cell *c)
{
    return vcap_lf_op(c->intent) == vcap_lf_next_op(vcap_lf_op(c->charged));
}

uint64_t vcap_read_held_units(const struct vcap_lf_cell *c, uint32_t slot, uint64_t total)
{
    uint64_t units = vcap_lf_charged_units(c->charged);
    uint64_t op = vcap_lf_op(c->intent);
    if (!vcap_read_move_is_in_flight(c) ||
        !((vcap_lf_total_slot(total) == slot && vcap_lf_op(total) == op) || c->ack == op))
        return units;
    int64_t after = (int64_t)units + vcap_lf_intent_delta(c->intent);
    return after < 0 ? 0 : (uint64_t)after;
}

static int read_state(const struct vcap_reading *r, uint32_t slot, uint64_t *state)
{
    return vcap_read_exact(r, state, sizeof *state, slot_at(&r->header, slot));
}

static enum vcap_life ask_life(const struct vcap_reading *r, uint32_t number,
                               const struct vcap_lf_slot *slot)
{
    if (vcap_lf_state_status(slot->state) == VCAP_LF_DEAD)
        return VCAP_LIFE_DEAD;
    if (vcap_read_now_ns() >= r->life_deadline_ns)
        return VCAP_LIFE_UNKNOWN;
    return vcap_slot_life(slot, number, r->fd, r->pidns);
}

/* Copies slot and cells so that all of it is of one owner.  Left untaken: FREE, or in flux. */
static int read_slot(const struct vcap_reading *r, uint32_t number, struct vcap_read_slot *copy,
                     bool *in_flux)
{
    const struct vcap_lf_header *h = &r->header;
    const size_t cells_size = (size_t)h->gpu_count * h->cell_stride;
    unsigned char *cells = malloc(cells_size);
    if (!cells)
        return vcap_read_refuse(r->why, r->why_size, ENOMEM, "%s", strerror(ENOMEM));
    int error = 0;
    for (int i = 0; i < VCAP_READ_TRIES; i++) {
        uint64_t before, after;
        if ((error = read_state(r, number, &before)) != 0 ||
            (error = check_state(r, number, before)) != 0)
            goto out;
        if (vcap_lf_state_status(before) == VCAP_LF_FREE)
            goto out;
        if ((error = vcap_read_exact(r, &copy->slot, sizeof copy->slot, slot_at(h, number))) != 0 ||
            (error = vcap_read_exact(r, cells, cells_size, cells_at(h, number))) != 0)
            goto out;
        copy_cells(copy, cells, h);
        copy->life = ask_life(r, number, &copy->slot);
        if ((error = read_state(r, number, &after)) != 0)
            goto out;
        if (copy->slot.state == before && after == before) {
            copy->taken = true;
            goto out;
        }
    }
    *in_flux = true;
out:
    free(cells);
    return error;
}

/* Of the slot table in the private copy. */
static uint64_t copied_state(const struct vcap_reading *r, uint32_t slot)
{
    uint64_t state;
    memcpy(&state, r->file + slot_at(&r->header, slot), sizeof state);
    return state;
}

/* ---- the slots one by one: every cell is read and judged ---- */

static int check_copy(const struct vcap_reading *r, const struct vcap_read_slot *copy)
{
    int error;
    for (uint32_t g = 0; g < r->header.gpu_count; g++)
        if ((error = check_cell(r, copy->number, &copy->cells[g])) != 0)
            return error;
    if (copy->taken && (copy->slot.pid == 0 || copy->slot.pid > INT32_MAX))
        return VCAP_READ_UNTRUSTED(r, "slot %u: impossible pid %u", copy->number, copy->slot.pid);
    return 0;
}

static int read_all(struct vcap_reading *r, uint32_t *in_flux)
{
    const struct vcap_lf_header *h = &r->header;
    int error = 0;
    for (uint32_t s = 0; !error && s < h->slot_count; s++) {
        struct vcap_read_slot *copy = &r->slots[r->copy_count++];
        bool changed = false;
        copy->number = s;
        memcpy(&copy->slot, r->file + slot_at(h, s), sizeof copy->slot);
        copy_cells(copy, r->file + cells_at(h, s), h);
        if (vcap_lf_state_status(copy->slot.state) != VCAP_LF_FREE)
            error = read_slot(r, s, copy, &changed);
        *in_flux += changed;
        if (!error)
            error = check_copy(r, copy);
    }
    return error;
}

/* ---- the taken ones together ---- */

/* The slots first..last, or their cells, to their places in the private copy. */
static int read_range(const struct vcap_reading *r, uint64_t begin, uint64_t end)
{
    return vcap_read_exact(r, r->file + begin, (size_t)(end - begin), begin);
}

static int read_taken(struct vcap_reading *r, uint32_t *in_flux)
{
    const struct vcap_lf_header *h = &r->header;
    int error;
    for (uint32_t s = 0; s < h->slot_count; s++) {
        uint64_t state = copied_state(r, s); /* before */
        if (vcap_lf_state_status(state) == VCAP_LF_FREE)
            continue;
        struct vcap_read_slot *copy = &r->slots[r->copy_count++];
        copy->number = s;
        copy->slot.state = state;
    }
    if (r->copy_count == 0)
        return 0;
    const uint32_t first = r->slots[0].number, end = r->slots[r->copy_count - 1].number + 1;
    if ((error = read_range(r, slot_at(h, first), slot_at(h, end))) != 0 ||
        (error = read_range(r, cells_at(h, first), cells_at(h, end))) != 0)
        return error;
    for (uint32_t i = 0; i < r->copy_count; i++) {
        struct vcap_read_slot *copy = &r->slots[i];
        uint64_t before = copy->slot.state;
        memcpy(&copy->slot, r->file + slot_at(h, copy->number), sizeof copy->slot);
        copy_cells(copy, r->file + cells_at(h, copy->number), h);
        copy->taken = copy->slot.state == before;
        copy->life = copy->taken ? ask_life(r, copy->number, &copy->slot) : VCAP_LIFE_UNKNOWN;
    }
    if ((error = read_range(r, slot_at(h, first), slot_at(h, end))) != 0)
        return error;
    for (uint32_t i = 0; i < r->copy_count; i++) {
        struct vcap_read_slot *copy = &r->slots[i];
        bool changed = false;
        if (!copy->taken || copied_state(r, copy->number) != copy->slot.state) {
            copy->taken = false;
            error = read_slot(r, copy->number, copy, &changed);
        }
        *in_flux += changed;
        if (error || (error = check_copy(r, copy)) != 0)
            return error;
    }
    return 0;
}

int vcap_read_slots(struct vcap_reading *r, uint32_t *in_flux)
{
    uint32_t count = 0;
    int error;
    for (uint32_t s = 0; s < r->header.slot_count; s++) {
        uint64_t state = copied_state(r, s);
        if ((error = check_state(r, s, state)) != 0)
            return error;
        count += !r->wish->taken_only || vcap_lf_state_status(state) != VCAP_LF_FREE;
    }
    free(r->slots);
    r->copy_count = 0;
    r->slots = calloc(count ? count : 1, sizeof *r->slots);
    if (!r->slots)
        return vcap_read_refuse(r->why, r->why_size, ENOMEM, "%s", strerror(ENOMEM));
    return r->wish->taken_only ? read_taken(r, in_flux) : read_all(r, in_flux);
}

bool vcap_read_uses_gpu(const struct vcap_read_slot *copy, uint32_t row)
{
    const struct vcap_lf_cell *c = &copy->cells[row];
    return (copy->slot.index_mask >> row & 1u) || vcap_lf_charged_units(c->charged) != 0 ||
           c->peak_bytes != 0 || c->imported_bytes != 0;
}
