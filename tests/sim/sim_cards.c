/*
 * What cards the simulated machine has: their sizes, from VRAMCAP_SIM_CARDS, and
 * their identities, which depend on the index alone so that tests can name a card
 * before any process has touched it.
 *
 * Shared by the simulated driver, NVML, simctl and the tests.
 */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define DEFAULT_CARD_MIB 24576U
#define MAX_CARD_MIB (UINT64_C(1) << 22)

static bool number_read(const char **text, uint64_t *value)
{
    char *end = NULL;

    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    *value = strtoull(*text, &end, 10);
    if (errno != 0)
        return false;
    *text = end;
    return true;
}

/* `24576`, `4x24576`, `24576,16384`, `2x1024,4096`. */
int sim_cards_from_environment(uint64_t bytes[SIM_MAX_CARDS])
{
    const char *text = getenv("VRAMCAP_SIM_CARDS");
    unsigned int count = 0;

    if (!text || !*text) {
        bytes[0] = DEFAULT_CARD_MIB * MIB;
        return 1;
    }
    for (;;) {
        uint64_t repeat = 1, mib = 0;

        if (!number_read(&text, &mib))
            return -1;
        if (*text == 'x') {
            text++;
            repeat = mib;
            if (!number_read(&text, &mib))
                return -1;
        }
        if (mib == 0 || mib > MAX_CARD_MIB || repeat == 0 || repeat > SIM_MAX_CARDS - count)
            return -1;
        while (repeat-- > 0)
            bytes[count++] = mib * MIB;
        if (*text == '\0')
            return (int)count;
        if (*text++ != ',')
            return -1;
    }
}

/* splitmix64: neighbouring indices give unrelated bytes. */
static uint64_t mix(uint64_t value)
{
    value += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

void sim_card_uuid(unsigned int card, unsigned char uuid[16])
{
    for (unsigned int i = 0; i < 16; i++)
        uuid[i] = (unsigned char)(mix(UINT64_C(0x5eed0000) + card * 2U + i / 8) >> (8 * (i % 8)));
}

void sim_uuid_text(const unsigned char uuid[16], char text[48])
{
    char *at = text + sprintf(text, "GPU-");

    for (unsigned int i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                      (unsigned int)uuid[i]);
}

bool sim_compute_mode_from_environment(int *mode)
{
    static const struct {
        const char *name;
        int mode;
    } modes[] = {{"default", SIM_MODE_DEFAULT},
                 {"exclusive", SIM_MODE_EXCLUSIVE},
                 {"prohibited", SIM_MODE_PROHIBITED}};
    const char *text = getenv("VRAMCAP_SIM_COMPUTE_MODE");

    if (!text)
        return true;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (strcmp(text, modes[i].name) == 0) {
            *mode = modes[i].mode;
            return true;
        }
    }
    return false;
}
