/*
 * What every odd or malformed limit string gives: one row each, tried on a process of its own.
 * docs/limit-strings.md is this table; `test_limit_strings --table` prints it.
 *
 * The card has 24576 MiB. For MPS's variable each string is tried twice: as MPS alone takes it, which is the
 * simulator's claim (an entry that it cannot read drops every limit), and under the library.
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/fixture.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

enum variable { MPS, MEMORY, TOOLKIT };
static const char *const names[] = {
    [MPS] = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    [MEMORY] = "VRAMCAP_MEMORY_MIB",
    [TOOLKIT] = "NVIDIA_GPU_MEMORY_LIMIT",
};

#define WHOLE 24576 /* no limit from it */
#define DENIED (-1) /* an error: no device memory at all, and a line that says why */

/* Why: the end of that line. */
#define NO_UNIT "a size is digits and a unit here, K, M or G, such as 1000M"
#define NO_SIZE                                                                                    \
    "a size is digits and an optional unit (K M G T, Ki Mi Gi Ti, KB.., KiB..), such as 4096, 4Gi" \
    " or 4GB"
#define NO_DEVICE                                                                                  \
    "a device is an ordinal such as 0, or GPU- or MIG- and a UUID of 8-4-4-4-12 hex digits"
#define NO_ENTRY "an entry is DEVICE=SIZE here, such as 0=1000M"
#define EMPTY_ENTRY "an entry is empty"
#define ALONE_ONLY "a size without a device stands alone"
#define QUOTED "quotes are no part of the value"
#define TOO_LARGE "8 TiB and more is no ceiling (a number without a unit is MiB, not bytes)"
#define NO_ORDINAL "there is no such ordinal"
#define NO_MIB "it is a whole number of MiB, without a unit"
#define EMPTY "it is empty"
#define NO_GPU "names a GPU that this process sees"

static const struct row {
    enum variable variable;
    const char *text;
    int alone, capped; /* MiB that one process can have; alone: only for MPS's variable */
    const char *why;
} rows[] = {
    /* well formed, odd to look at */
    {MPS, "0=1000M", 1000, 1000, NULL},
    {MPS, " 0 = 1000M ", 1000, 1000, NULL},
    {MPS, "\t0=1000M\t", 1000, 1000, NULL},
    {MPS, "00=1000mb", 1000, 1000, NULL},
    {MPS, "0=0001000M", 1000, 1000, NULL},
    {MPS, "0=1024000K", 1000, 1000, NULL},
    {MPS, "0=1G", 1024, 1024, NULL},
    {MPS, "0=1000MB", 1000, 1000, NULL},
    {MPS, "0=0M", 0, 0, NULL},
    {MPS, "0=4G,0=1000M", 1000, 1000, NULL},
    {MPS, "0=1000M,0=4G", 4096, 1000, NULL},
    {MPS, "", WHOLE, DENIED, "no ceiling: set VRAMCAP_MEMORY_MIB"},
    /* cannot be read: MPS drops its limits, the library gives nothing */
    {MPS, "1000M", WHOLE, DENIED, NO_ENTRY},
    {MPS, "0", WHOLE, DENIED, NO_ENTRY},
    {MPS, "0=1000", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=M", WHOLE, DENIED, NO_UNIT},
    {MPS, "=1000M", WHOLE, DENIED, NO_DEVICE},
    {MPS, "=", WHOLE, DENIED, NO_DEVICE},
    {MPS, "0==1000M", WHOLE, DENIED, NO_UNIT},
    {MPS, "0:1000M", WHOLE, DENIED, NO_ENTRY},
    {MPS, "0=1000M,", WHOLE, DENIED, EMPTY_ENTRY},
    {MPS, ",0=1000M", WHOLE, DENIED, EMPTY_ENTRY},
    {MPS, ",", WHOLE, DENIED, EMPTY_ENTRY},
    {MPS, "0=1000M,,0=1000M", WHOLE, DENIED, EMPTY_ENTRY},
    {MPS, "0=1000M;1=1000M", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=1000M 1=1000M", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=1000 M", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=1 000M", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=1,000M", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=1000MiB", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=1000Mi", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=1000MBB", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=1000B", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=1T", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=1.5G", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=-1000M", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=+1000M", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=1e3M", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=0x3E8M", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=50%", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=max", WHOLE, DENIED, NO_UNIT},
    {MPS, "0=unlimited", WHOLE, DENIED, NO_UNIT},
    {MPS, "\"0=1000M\"", WHOLE, DENIED, QUOTED},
    {MPS, "'0=1000M'", WHOLE, DENIED, QUOTED},
    {MPS,
     "0=\xe2\x80\x9d"
     "1000M\xe2\x80\x9d",
     WHOLE, DENIED, QUOTED},
    {MPS, "0=1000\xc2\xa0M", WHOLE, DENIED, NO_UNIT}, /* a blank that does not break */
    {MPS, "0=99999999999999999999M", WHOLE, DENIED, TOO_LARGE},
    {MPS, "0=17592186044416M", WHOLE, DENIED, TOO_LARGE}, /* 2^64 bytes */
    {MPS, "-1=1000M", WHOLE, DENIED, NO_DEVICE},
    {MPS, "0x0=1000M", WHOLE, DENIED, NO_DEVICE},
    {MPS, "all=1000M", WHOLE, DENIED, NO_DEVICE},
    {MPS, "*=1000M", WHOLE, DENIED, NO_DEVICE},
    {MPS, "0-1=1000M", WHOLE, DENIED, NO_DEVICE},
    {MPS, "GPU-=1000M", WHOLE, DENIED, NO_DEVICE},
    {MPS, "gpu0=1000M", WHOLE, DENIED, NO_DEVICE},
    {MPS, "gpu-3c4d177d=1000M", 1000, DENIED, NO_DEVICE},
    {MPS, "4294967296=1000M", WHOLE, DENIED, NO_ORDINAL},
    /* well formed, for a GPU that this process does not see: MPS drops its limits */
    {MPS, "1=1000M", WHOLE, DENIED, NO_GPU},
    {MPS, "GPU-ffffffff=1000M", WHOLE, DENIED, NO_GPU},
    {MPS, "MIG-ffffffff=1000M", WHOLE, DENIED, NO_GPU},
    {MPS, "0=1000M,1=1000M", WHOLE, 1000, NULL},
    {MPS, "1=4G,0=1000M", WHOLE, 1000, NULL},

    {MEMORY, "1000", 0, 1000, NULL},
    {MEMORY, "  1000 ", 0, 1000, NULL},
    {MEMORY, "0001000", 0, 1000, NULL},
    {MEMORY, "1000M", 0, 1000, NULL},
    {MEMORY, "1000mib", 0, 1000, NULL},
    {MEMORY, "1Gi", 0, 1024, NULL},
    {MEMORY, "1GB", 0, 1024, NULL},
    {MEMORY, "1048576K", 0, 1024, NULL},
    {MEMORY, "0", 0, 0, NULL},
    {MEMORY, "0=1000", 0, 1000, NULL},
    {MEMORY, "0=4096,0=1000", 0, 1000, NULL},
    {MEMORY, "0=1000,1=8192", 0, 1000, NULL},
    {MEMORY, "7T", 0, WHOLE, NULL}, /* above the card */
    {MEMORY, "", 0, DENIED, EMPTY},
    {MEMORY, " ", 0, DENIED, EMPTY},
    {MEMORY, "M", 0, DENIED, NO_SIZE},
    {MEMORY, "-1", 0, DENIED, NO_SIZE},
    {MEMORY, "+1000", 0, DENIED, NO_SIZE},
    {MEMORY, "1e3", 0, DENIED, NO_SIZE},
    {MEMORY, "1000.0", 0, DENIED, NO_SIZE},
    {MEMORY, "1,5", 0, DENIED, ALONE_ONLY},
    {MEMORY, "0x400", 0, DENIED, NO_SIZE},
    {MEMORY, "50%", 0, DENIED, NO_SIZE},
    {MEMORY, "1000 M", 0, DENIED, NO_SIZE},
    {MEMORY, "1000 MiB", 0, DENIED, NO_SIZE},
    {MEMORY, "1000Mb/s", 0, DENIED, NO_SIZE},
    {MEMORY, "1000P", 0, DENIED, NO_SIZE},
    {MEMORY, "none", 0, DENIED, NO_SIZE},
    {MEMORY, "max", 0, DENIED, NO_SIZE},
    {MEMORY, "auto", 0, DENIED, NO_SIZE},
    {MEMORY, "\"1000\"", 0, DENIED, QUOTED},
    {MEMORY,
     "\xe2\x80\x98"
     "1000\xe2\x80\x99",
     0, DENIED, QUOTED},
    {MEMORY, "8T", 0, DENIED, TOO_LARGE},
    {MEMORY, "4294967296", 0, DENIED, TOO_LARGE}, /* bytes where MiB are meant */
    {MEMORY, "18446744073709551616", 0, DENIED, TOO_LARGE},
    {MEMORY, "17592186044416M", 0, DENIED, TOO_LARGE},
    {MEMORY, "4096,1=2048", 0, DENIED, ALONE_ONLY},
    {MEMORY, "0=1000,4096", 0, DENIED, ALONE_ONLY},
    {MEMORY, "0=1000,", 0, DENIED, EMPTY_ENTRY},
    {MEMORY, "0:1000", 0, DENIED, NO_SIZE},
    {MEMORY, "GPU-3c4d=1000", 0, DENIED, NO_DEVICE}, /* only MPS's variable may cut it */
    {MEMORY, "cuda:0=1000", 0, DENIED, NO_DEVICE},
    {MEMORY, "1=1000", 0, DENIED, NO_GPU},
    {MEMORY, "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff=1000", 0, DENIED, NO_GPU},

    {TOOLKIT, "1000", 0, 1000, NULL},
    {TOOLKIT, " 01000 ", 0, 1000, NULL},
    {TOOLKIT, "0", 0, 0, NULL},
    {TOOLKIT, "", 0, DENIED, "no ceiling: set VRAMCAP_MEMORY_MIB"},
    {TOOLKIT, "1000M", 0, DENIED, NO_MIB},
    {TOOLKIT, "1000Mi", 0, DENIED, NO_MIB},
    {TOOLKIT, "0=1000", 0, DENIED, NO_MIB},
    {TOOLKIT, "-1", 0, DENIED, NO_MIB},
    {TOOLKIT, "1e3", 0, DENIED, NO_MIB},
    {TOOLKIT, "1000.5", 0, DENIED, NO_MIB},
    {TOOLKIT, "\"1000\"", 0, DENIED, NO_MIB},
    {TOOLKIT, "18446744073709551616", 0, DENIED, TOO_LARGE},
    {TOOLKIT, "8388608", 0, DENIED, TOO_LARGE}, /* 8 TiB */
};

/* ---- the page ---- */

static void print_text(const char *text)
{
    fputs("`` ", stdout);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '|')
            fputs("\\|", stdout);
        else if (c >= 0x20 && c < 0x7f)
            putchar(c);
        else
            printf("\\x%02x", c);
    }
    fputs(" ``", stdout);
}

static void print_mib(int mib)
{
    if (mib == WHOLE)
        fputs(" | the whole card", stdout);
    else
        printf(" | %d MiB", mib);
}

static int print_table(void)
{
    puts("# Limit strings\n\n"
         "<!-- Printed by tests/multi/test_limit_strings.c, which tries every row; do not edit. "
         "-->\n\n"
         "What a process gets on a card of 24576 MiB, its only one, with `VRAMCAP_ENABLE=1` and "
         "this "
         "string\nas the only source of a ceiling. Denied: no device memory at all "
         "(`VRAMCAP_ON_ERROR=deny`), with one line\nthat has the words shown. \"MPS alone\" is "
         "what the "
         "simulated MPS makes of it, after NVIDIA's documents where they\nsay something: an entry "
         "for a "
         "GPU that the process does not see drops every limit (measured by NVIDIA on driver\n"
         "615.71.09); that one which cannot be read does the same is the simulator's claim. Bytes "
         "that are "
         "not\nprintable ASCII are written as `\\x..`; a blank at either end of a string is the "
         "page's.");
    for (size_t v = 0; v < COUNT(names); v++) {
        printf("\n## `%s`\n\n%s\n", names[v],
               v == MPS ? "| string | MPS alone | with vramcap |\n| --- | --- | --- |"
                        : "| string | with vramcap |\n| --- | --- |");
        for (size_t i = 0; i < COUNT(rows); i++) {
            if (rows[i].variable != v)
                continue;
            fputs("| ", stdout);
            print_text(rows[i].text);
            if (v == MPS)
                print_mib(rows[i].alone);
            if (rows[i].capped == DENIED)
                printf(" | denied: ...%s", rows[i].why);
            else
                print_mib(rows[i].capped);
            puts(" |");
        }
    }
    return 0;
}

/* ---- the trial ---- */

/* MiB that a process can allocate; all that it says in err. */
static int room(const struct fixture *f, const char *const *extra, char *err, size_t err_size)
{
    static const unsigned sizes[] = {1000, 24, 8, 2};
    unsigned long blocks;
    char answer[128], command[32];
    int mib = 0, result;
    struct pollfd said;
    struct child c;
    ssize_t length;

    assert_true(client_start(&c, f, "getproc", extra));
    said = (struct pollfd){.fd = c.err, .events = POLLIN};
    assert_int_equal(client_result(&c, "init"), 0);
    assert_int_equal(client_result(&c, "ctx create 0"), 0);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        snprintf(command, sizeof(command), "fill %um", sizes[i]);
        client_ask(&c, answer, sizeof(answer), command);
        assert_int_equal(sscanf(answer, "%d %lu", &result, &blocks), 2);
        assert_int_equal(result, 2);
        mib += (int)(blocks * sizes[i]);
    }
    /* what it says, it said before it answered */
    length = poll(&said, 1, 0) == 1 ? read(c.err, err, err_size - 1) : 0;
    err[length > 0 ? length : 0] = '\0';
    child_kill(&c, SIGKILL);
    return mib;
}

static void every_string_has_its_answer(void **state)
{
    const struct fixture *f = *state;
    static char err[8192], problem[512];
    unsigned wrong = 0;

    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct row *row = &rows[i];
        char setting[400];
        const char *const alone[] = {"LD_PRELOAD",
                                     "VRAMCAP_SIM_MPS=/run/mps-ecs",
                                     "CUDA_MPS_PIPE_DIRECTORY=/run/mps-ecs",
                                     "VRAMCAP_SIM_CONTEXT_MIB=0",
                                     setting,
                                     NULL};
        const char *const capped[] = {"VRAMCAP_ENABLE=1",
                                      "VRAMCAP_SIM_MPS=/run/mps-ecs",
                                      "CUDA_MPS_PIPE_DIRECTORY=/run/mps-ecs",
                                      "VRAMCAP_SIM_CONTEXT_MIB=0",
                                      setting,
                                      NULL};
        int mib, mps = row->alone;

        snprintf(setting, sizeof(setting), "%s=%s", names[row->variable], row->text);
        if (row->variable == MPS)
            mps = room(f, alone, err, sizeof(err));
        mib = room(f, capped, err, sizeof(err));
        (void)unlink(
            f->ledger); /* the next one sets its own ceiling; a denied one may have made none */
        problem[0] = '\0';
        if (mps != row->alone)
            snprintf(problem, sizeof(problem), "MPS alone lets %d MiB through", mps);
        else if (mib != (row->capped == DENIED ? 0 : row->capped))
            snprintf(problem, sizeof(problem), "%d MiB were had", mib);
        else if ((row->capped == DENIED) != (strstr(err, "GPU memory is denied") != NULL))
            snprintf(problem, sizeof(problem), "denied or not, stderr says otherwise");
        else if (row->why != NULL && strstr(err, row->why) == NULL)
            snprintf(problem, sizeof(problem), "'%s' is not said", row->why);
        if (problem[0] != '\0') {
            fprintf(stderr, "%s: %s\n%s", setting, problem, err);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_string_has_its_answer, fixture_setup,
                                        fixture_teardown),
    };

    if (argc == 2 && strcmp(argv[1], "--table") == 0)
        return print_table();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
