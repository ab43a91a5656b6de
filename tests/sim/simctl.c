/*
 * simctl: look at the simulated machine, or change it.
 *
 *   simctl show                    per card: total, used, peak, allocated, its peak; the processes on it
 *   simctl reset-peaks             peaks become what is held now
 *   simctl clear                   forget every process, dead or alive
 *   simctl compute-mode CARD MODE  default, exclusive or prohibited
 *   simctl fault CARD [CODE]       a fatal fault: every MPS client of the card answers CODE (719)
 *   simctl cgroup PATH             makes a cgroup with dmem files below VRAMCAP_SIM_CGROUP_ROOT
 *
 * Works on the state file of the environment (VRAMCAP_SIM_STATE). Exit status: 0 done,
 * 1 not possible, 2 usage or the file cannot be opened.
 */
#include "sim.h"
#include "sim_bounds.h"
#include "sim_cgroup.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show_process(const struct sim_process_row *row, unsigned int card)
{
    static const char *const roles[] = {"", " mps=client", " mps=server"};

    (void)printf("  pid %d %.15s used=%" PRIu64 " alloc=%" PRIu64 " context=%" PRIu64
                 " managed=%" PRIu64 "%s",
                 (int)row->pid, row->command, row->share[card].used, row->share[card].alloc,
                 row->share[card].context, row->share[card].managed, roles[row->bounds.role]);
    if (row->bounds.role == SIM_MPS_CLIENT && row->bounds.limit[card] != UINT64_MAX)
        (void)printf(" limit=%" PRIu64, row->bounds.limit[card]);
    if (row->bounds.sticky != 0)
        (void)printf(" error=%u", row->bounds.sticky);
    (void)printf("\n");
}

static int show(struct sim_state *state)
{
    struct sim_file *copy = calloc(1, sizeof *copy);

    if (!copy || sim_state_snapshot(state, copy) != 0) {
        free(copy);
        (void)fprintf(stderr, "simctl: cannot read the state file\n");
        return 2;
    }
    for (unsigned int c = 0; c < copy->cards; c++) {
        const struct sim_card_row *card = &copy->card[c];
        unsigned char uuid[16];
        char text[48];

        sim_card_uuid(c, uuid);
        sim_uuid_text(uuid, text);
        (void)printf("card %u %s total=%" PRIu64 " used=%" PRIu64 " peak=%" PRIu64 " alloc=%" PRIu64
                     " alloc_peak=%" PRIu64 " context=%" PRIu64 " managed=%" PRIu64
                     " refusals=%" PRIu64 "\n",
                     c, text, card->total, card->now.used, card->peak, card->now.alloc,
                     card->alloc_peak, card->now.context, card->now.managed, card->refusals);
        for (unsigned int r = 0; r < SIM_MAX_ROWS; r++) {
            const struct sim_process_row *row = &copy->row[r];

            if (row->live && (row->share[c].used != 0 || row->share[c].managed != 0))
                show_process(row, c);
        }
    }
    free(copy);
    return 0;
}

static int said(int rc)
{
    if (rc >= 0)
        return 0;
    (void)fprintf(stderr, "simctl: %s\n", strerror(-rc));
    return 1;
}

/* A number from 0 to 999, or -1. */
static int number(const char *text)
{
    char *end = NULL;
    unsigned long value = strtoul(text, &end, 10);

    return *text >= '0' && *text <= '9' && *end == '\0' && value < 1000 ? (int)value : -1;
}

static int compute_mode(struct sim_state *state, int card, const char *name)
{
    static const char *const names[] = {"default", "", "prohibited", "exclusive"};

    for (unsigned int mode = 0; mode < 4; mode++)
        if (*names[mode] != '\0' && strcmp(name, names[mode]) == 0)
            return said(
                sim_compute_mode_set(state, (unsigned int)card, (enum sim_compute_mode)mode));
    return -1;
}

/* -1: usage */
static int run(struct sim_state *state, int argc, char **argv)
{
    const char *verb = argv[1];
    int card = argc > 2 ? number(argv[2]) : -1, code = argc > 3 ? number(argv[3]) : 719;

    if (argc == 2 && strcmp(verb, "show") == 0)
        return show(state);
    if (argc == 2 && strcmp(verb, "clear") == 0) {
        sim_state_clear(state);
        return 0;
    }
    if (argc == 2 && strcmp(verb, "reset-peaks") == 0) {
        sim_reset_peaks(state);
        return 0;
    }
    if (argc == 4 && card >= 0 && strcmp(verb, "compute-mode") == 0)
        return compute_mode(state, card, argv[3]);
    if ((argc == 3 || argc == 4) && card >= 0 && code > 0 && strcmp(verb, "fault") == 0)
        return said(sim_bounds_fault(state, (unsigned int)card, -1, (uint32_t)code));
    if (argc == 3 && strcmp(verb, "cgroup") == 0)
        return said(sim_cgroup_make(state, argv[2]));
    return -1;
}

int main(int argc, char **argv)
{
    struct sim_state *state = argc > 1 ? sim_state_open(NULL) : NULL;

    if (argc > 1 && !state) {
        (void)fprintf(stderr, "simctl: cannot open the state file: %s\n", strerror(errno));
        return 2;
    }
    int rc = state ? run(state, argc, argv) : -1;
    sim_state_close(state);
    if (rc >= 0)
        return rc;
    (void)fprintf(stderr, "usage: simctl show | reset-peaks | clear | compute-mode CARD "
                          "default|exclusive|prohibited | fault CARD [CODE] | cgroup PATH\n");
    return 2;
}
