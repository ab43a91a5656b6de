/*
 * Bounds of processes: see sim_bounds.h.
 *
 * Nothing here decides who is an MPS client or what its limit is (sim_mps.c does, once, at cuInit);
 * here a bound that is on record is held, under the state file's lock. `sticky` alone is read
 * without it: written once, under the lock, by whoever reports the fault, and paired with the
 * acquire load in sim_bounds_sticky.
 */
#include "sim_bounds.h"
#include "sim_cgroup.h"
#include "sim_share.h"

#include <errno.h>
#include <string.h>

static struct sim_process_row *own(const struct sim_state *state)
{
    return &state->file->row[state->own_row];
}

static uint64_t used_by(const struct sim_file *file, unsigned int row, unsigned int card)
{
    return file->row[row].share[card].used + sim_shares_of_row(file, row, card);
}

static bool is_client_of(const struct sim_process_row *row, int32_t server)
{
    return row->live && row->bounds.role == SIM_MPS_CLIENT && row->bounds.server == server;
}

int sim_bounds_set(struct sim_state *state, const struct sim_bounds *bounds)
{
    int rc = sim_state_lock(state);

    if (rc != 0)
        return rc;
    own(state)->bounds = *bounds;
    state->bounded = true;
    sim_state_unlock(state);
    return 0;
}

bool sim_bounds_server_faulted(struct sim_state *state, int32_t server)
{
    bool faulted = false;

    if (sim_state_lock(state) != 0)
        return false;
    sim_state_reap(state);
    for (unsigned int r = 0; r < SIM_MAX_ROWS; r++) {
        const struct sim_process_row *row = &state->file->row[r];

        /* A client that was terminated alone leaves its server ACTIVE. */
        if (is_client_of(row, server) && row->bounds.sticky != 0 &&
            row->bounds.sticky != SIM_STICKY_TERMINATED)
            faulted = true;
    }
    sim_state_unlock(state);
    return faulted;
}

/* --- contexts ---------------------------------------------------------------------- */

/* May this process have the card, as its compute mode is? */
static bool mode_allows(const struct sim_state *state, unsigned int card, bool served)
{
    const struct sim_file *file = state->file;
    bool client = own(state)->bounds.role == SIM_MPS_CLIENT;

    if (file->card[card].compute_mode == SIM_MODE_PROHIBITED)
        return false;
    if (file->card[card].compute_mode != SIM_MODE_EXCLUSIVE)
        return true;
    if (!client && served)
        return false;
    for (unsigned int r = 0; r < SIM_MAX_ROWS; r++) {
        const struct sim_process_row *row = &file->row[r];

        /* Clients of a server use the card through it, so they do not exclude each other. */
        if (row->live && (int)r != state->own_row && row->bounds.contexts[card] > 0 &&
            !(client && row->bounds.role != SIM_MPS_NONE))
            return false;
    }
    return true;
}

static int clients_allow(const struct sim_state *state, unsigned int card,
                         struct sim_admission admission)
{
    uint64_t contexts = 1, connections = own(state)->bounds.connections;

    for (unsigned int r = 0; r < SIM_MAX_ROWS; r++) {
        const struct sim_process_row *row = &state->file->row[r];

        if (!row->live || row->bounds.role != SIM_MPS_CLIENT)
            continue;
        contexts += row->bounds.contexts[card];
        if ((int)r != state->own_row && row->bounds.contexts[card] > 0)
            connections += row->bounds.connections;
    }
    if (admission.clients != 0 && contexts > admission.clients)
        return -EUSERS;
    return admission.connections != 0 && connections > admission.connections ? -ENOSR : 0;
}

int sim_bounds_admit(struct sim_state *state, unsigned int card, struct sim_admission admission)
{
    int rc = sim_state_lock(state);

    if (rc != 0)
        return rc;
    sim_state_reap(state);
    if (!mode_allows(state, card, admission.served))
        rc = -EBUSY;
    else if (own(state)->bounds.role == SIM_MPS_CLIENT)
        rc = clients_allow(state, card, admission);
    if (rc == 0)
        own(state)->bounds.contexts[card]++;
    sim_state_unlock(state);
    return rc;
}

void sim_bounds_leave(struct sim_state *state, unsigned int card)
{
    if (sim_state_lock(state) != 0)
        return;
    if (own(state)->bounds.contexts[card] > 0)
        own(state)->bounds.contexts[card]--;
    sim_state_unlock(state);
}

/* --- memory ------------------------------------------------------------------------ */

bool sim_bounds_room(const struct sim_state *state, unsigned int card, uint64_t more)
{
    const struct sim_bounds *bounds = &own(state)->bounds;
    uint64_t used = used_by(state->file, (unsigned int)state->own_row, card);

    if (used > bounds->limit[card] || bounds->limit[card] - used < more)
        return false;
    return sim_cgroup_room(state, bounds->cgroup, card, more);
}

void sim_bounds_moved(const struct sim_state *state, unsigned int card)
{
    sim_cgroup_publish(state, own(state)->bounds.cgroup, card);
}

static uint64_t left(uint64_t limit, uint64_t used)
{
    return used < limit ? limit - used : 0;
}

static uint64_t lower(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

int sim_bounds_view(struct sim_state *state, unsigned int card, uint64_t *free_bytes,
                    uint64_t *total_bytes)
{
    int rc = sim_state_lock(state);

    if (rc != 0)
        return rc;
    sim_state_reap(state);
    const struct sim_file *file = state->file;
    const struct sim_bounds *bounds = &own(state)->bounds;
    uint64_t hard = 0, used = 0;

    *total_bytes = file->card[card].total;
    *free_bytes = left(file->card[card].total, file->card[card].now.used);
    if (state->bounded) {
        /* MPS's limit shows in what is free, never in the total. */
        if (bounds->limit[card] != UINT64_MAX)
            *free_bytes =
                lower(*free_bytes,
                      left(bounds->limit[card], used_by(file, (unsigned int)state->own_row, card)));
        if (sim_cgroup_shown(state, bounds->cgroup, card, &hard, &used)) {
            *total_bytes = lower(*total_bytes, hard);
            *free_bytes = lower(*free_bytes, left(hard, used));
        }
    }
    sim_state_unlock(state);
    return 0;
}

/* --- faults ------------------------------------------------------------------------ */

uint32_t sim_bounds_sticky(const struct sim_state *state)
{
    return __atomic_load_n(&own(state)->bounds.sticky, __ATOMIC_ACQUIRE);
}

static void strike(struct sim_process_row *row, uint32_t code)
{
    __atomic_store_n(&row->bounds.sticky, code, __ATOMIC_RELEASE);
}

int sim_bounds_fault(struct sim_state *state, unsigned int card, int faulty, uint32_t code)
{
    int hit = 0, rc = sim_state_lock(state);

    if (rc != 0)
        return rc;
    sim_state_reap(state);
    if (card >= state->file->cards || faulty >= (int)SIM_MAX_ROWS)
        hit = -EINVAL;
    const struct sim_process_row *one = hit == 0 && faulty >= 0 ? &state->file->row[faulty] : NULL;
    for (unsigned int r = 0; hit >= 0 && r < SIM_MAX_ROWS; r++) {
        struct sim_process_row *row = &state->file->row[r];
        bool server = !one || (one->bounds.role == SIM_MPS_CLIENT &&
                               row->bounds.server == one->bounds.server);

        if (row->live && (row == one || (server && row->bounds.role == SIM_MPS_CLIENT &&
                                         row->bounds.contexts[card] > 0))) {
            strike(row, code);
            hit++;
        }
    }
    sim_state_unlock(state);
    return hit;
}

int sim_bounds_terminate(struct sim_state *state, int32_t server, int32_t pid, uint32_t code)
{
    int rc = sim_state_lock(state);

    if (rc != 0)
        return rc;
    sim_state_reap(state);
    rc = -ESRCH;
    for (unsigned int r = 0; r < SIM_MAX_ROWS; r++) {
        struct sim_process_row *row = &state->file->row[r];

        if (is_client_of(row, server) && row->pid == pid) {
            strike(row, code);
            rc = 0;
        }
    }
    sim_state_unlock(state);
    return rc;
}
