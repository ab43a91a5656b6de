/*
 * simctl: look at the simulated card, or clear it.
 *
 *   simctl show          per card: total, used, peak, allocated, its peak; the processes on it
 *   simctl reset-peaks   peaks become what is held now
 *   simctl clear         forget every process, dead or alive
 *
 * Works on the state file of the environment (VRAMCAP_SIM_STATE). Exit status: 0 done,
 * 2 usage or the file cannot be opened.
 */
#include "sim.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
                (void)printf("  pid %d %.15s used=%" PRIu64 " alloc=%" PRIu64 " context=%" PRIu64
                             " managed=%" PRIu64 "\n",
                             (int)row->pid, row->command, row->share[c].used, row->share[c].alloc,
                             row->share[c].context, row->share[c].managed);
        }
    }
    free(copy);
    return 0;
}

int main(int argc, char **argv)
{
    const char *verb = argc == 2 ? argv[1] : "";

    if (strcmp(verb, "show") != 0 && strcmp(verb, "reset-peaks") != 0 &&
        strcmp(verb, "clear") != 0) {
        (void)fprintf(stderr, "usage: simctl show | reset-peaks | clear\n");
        return 2;
    }
    struct sim_state *state = sim_state_open(NULL);
    if (!state) {
        (void)fprintf(stderr, "simctl: cannot open the state file: %s\n", strerror(errno));
        return 2;
    }
    int rc = 0;
    if (strcmp(verb, "show") == 0)
        rc = show(state);
    else if (strcmp(verb, "clear") == 0)
        sim_state_clear(state);
    else
        sim_reset_peaks(state);
    sim_state_close(state);
    return rc;
}
