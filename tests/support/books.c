/*
 * What the ledger and the simulated card say.
 */
#include "tests/support/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

bool ledger_read(const char *path, struct vcap_snapshot *snapshot)
{
    /* for ever: where the machine stands still for a while, all lives would be unknown */
    const struct vcap_read_wish wish = {.budget_ns = UINT64_C(600000000000)};
    char why[256] = "";
    int fd = vcap_ledger_read_open(path, why, sizeof(why));
    int error = fd < 0 ? fd : vcap_snapshot_read_wish(fd, &wish, snapshot, why, sizeof(why));

    if (fd >= 0)
        close(fd);
    if (error != 0)
        fprintf(stderr, "ledger %s: %s\n", path, why);
    return error == 0;
}

void card_uuid_text(unsigned card, char text[48])
{
    const char *list = getenv("VRAMCAP_TEST_UUIDS");
    unsigned char uuid[16];

    if (fixture_driver() != NULL && list != NULL) {
        for (; card > 0 && list != NULL; card--)
            list = strchr(list, ',') == NULL ? NULL : strchr(list, ',') + 1;
        snprintf(text, 48, "%.*s", list == NULL ? 0 : (int)strcspn(list, ","),
                 list == NULL ? "" : list);
        return;
    }
    sim_card_uuid(card, uuid);
    sim_uuid_text(uuid, text);
}

static int gpu_of(const struct vcap_snapshot *s, unsigned card)
{
    char text[48];

    card_uuid_text(card, text);
    for (uint32_t i = 0; i < s->gpu_count; i++)
        if (strcmp(s->gpus[i].uuid, text) == 0)
            return (int)i;
    return -1;
}

bool ledger_gpu(const char *path, unsigned card, struct vcap_snapshot_gpu *gpu)
{
    struct vcap_snapshot s;
    int at;

    if (!ledger_read(path, &s))
        return false;
    at = gpu_of(&s, card);
    if (at >= 0)
        *gpu = s.gpus[at];
    vcap_snapshot_free(&s);
    return at >= 0;
}

uint64_t ledger_charged(const char *path, unsigned card)
{
    struct vcap_snapshot_gpu gpu;

    return ledger_gpu(path, card, &gpu) ? gpu.held_bytes : UINT64_MAX;
}

uint64_t ledger_charged_by(const char *path, unsigned card, pid_t pid)
{
    struct vcap_snapshot s;
    uint64_t bytes = UINT64_MAX;
    int at;

    if (!ledger_read(path, &s))
        return UINT64_MAX;
    at = gpu_of(&s, card);
    for (uint32_t p = 0; at >= 0 && p < s.process_count; p++) {
        const struct vcap_snapshot_process *process = &s.processes[p];

        if (process->pid != (uint32_t)pid)
            continue;
        /* a pid may stand in two slots: the one that was taken from it may be in either place */
        bytes = bytes == UINT64_MAX ? 0 : bytes;
        for (uint32_t i = 0; i < process->charge_count; i++)
            if (process->charges[i].gpu == (uint32_t)at)
                bytes += process->charges[i].held_bytes;
    }
    vcap_snapshot_free(&s);
    return bytes;
}

unsigned ledger_processes(const char *path)
{
    struct vcap_snapshot s;
    unsigned alive = 0;

    if (!ledger_read(path, &s))
        return 0;
    for (uint32_t p = 0; p < s.process_count; p++)
        alive += s.processes[p].life != VCAP_LIFE_DEAD;
    vcap_snapshot_free(&s);
    return alive;
}

unsigned ledger_events(const char *path, enum vcap_lf_event_kind kind)
{
    struct vcap_snapshot s;
    unsigned found = 0;

    if (!ledger_read(path, &s))
        return 0;
    for (uint32_t i = 0; i < s.event_count; i++)
        found += s.events[i].kind == (uint32_t)kind;
    vcap_snapshot_free(&s);
    return found;
}

static struct sim_state *books_of(const struct fixture *f)
{
    fixture_needs_simulator();
    return sim_state_open(f->sim);
}

uint64_t sim_alloc_bytes(const struct fixture *f, unsigned card)
{
    struct sim_state *sim = books_of(f);
    uint64_t bytes = sim == NULL ? UINT64_MAX : sim_card_alloc_used(sim, card);

    if (sim != NULL)
        sim_state_close(sim);
    return bytes;
}

uint64_t sim_managed_bytes(const struct fixture *f, unsigned card)
{
    struct sim_state *sim = books_of(f);
    uint64_t bytes = sim == NULL ? UINT64_MAX : sim_card_managed(sim, card);

    if (sim != NULL)
        sim_state_close(sim);
    return bytes;
}
