/*
 * libFuzzer: any bytes as a ledger.  The reader must come to an answer, the answer must be sane, and both
 * faces of `dump` must be able to show it.  The first byte of the input says whether the header is made
 * to pass (then what lies behind it is tried), or taken as it comes.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "enforcer/cli/dump.h"
#include "enforcer/cli/host_pid.h"
#include "enforcer/ledger_read.h"

#define AMOUNT_MAX (VCAP_LF_UNITS_MAX * VCAP_LF_UNIT_BYTES)
#define SIZE_MAX_TRIED 65536u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* In place of host_pid.c, whose look through all of /proc would be nearly all the time of a try. */
void vcap_host_pids(const struct vcap_snapshot *snapshot, pid_t *pids)
{
    memset(pids, 0, snapshot->process_count * sizeof *pids);
}

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "wrong: %s\n", what);
    abort();
}

static bool is_text(const char *text, size_t size)
{
    size_t n = strnlen(text, size);
    for (size_t i = 0; i < n; i++)
        if (text[i] < 0x20 || text[i] > 0x7e)
            return false;
    return n < size;
}

static void check(const struct vcap_snapshot *s)
{
    must(s->near_percent <= 100 && s->compute_percent <= 100, "a percentage");
    must(is_text(s->container, sizeof s->container) && is_text(s->key, sizeof s->key), "a name");
    for (uint32_t i = 0; i < s->gpu_count; i++) {
        const struct vcap_snapshot_gpu *g = &s->gpus[i];
        must(g->charged_bytes <= AMOUNT_MAX && g->held_bytes <= AMOUNT_MAX, "an amount");
        must(g->ceiling_bytes == VCAP_NO_LIMIT || g->free_bytes <= g->ceiling_bytes, "free");
    }
    for (uint32_t i = 0; i < s->process_count; i++) {
        must(is_text(s->processes[i].command, sizeof s->processes[i].command), "a command");
        for (uint32_t k = 0; k < s->processes[i].charge_count; k++)
            must(s->processes[i].charges[k].gpu < s->gpu_count, "a GPU");
    }
    for (uint32_t i = 0; i < s->event_count; i++) {
        must(is_text(s->events[i].name, sizeof s->events[i].name), "an event's name");
        must(s->events[i].gpu == UINT32_MAX || s->events[i].gpu < s->gpu_count, "an event's GPU");
        must(i == 0 || s->events[i].sequence > s->events[i - 1].sequence, "the order of events");
    }
    must(s->events_lost < s->event_next, "the number of lost events");
}

/* What the header must be for the tables to be looked at. */
static void make_pass(uint8_t *bytes, size_t size)
{
    struct vcap_lf_header *h = (struct vcap_lf_header *)(void *)bytes;
    if (size < sizeof *h)
        return;
    memcpy(h->magic, VCAP_LF_MAGIC, sizeof h->magic);
    h->version = VCAP_LF_VERSION;
    h->oldest_reader = VCAP_LF_OLDEST_READER;
    h->byte_order = VCAP_LF_BYTE_ORDER;
    h->header_size = sizeof *h;
    h->file_size = size;
    h->cell_count = h->slot_count * h->gpu_count;
    h->key[sizeof h->key - 1] = h->container[sizeof h->container - 1] =
        h->creator[sizeof h->creator - 1] = '\0';
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static _Alignas(8) uint8_t bytes[SIZE_MAX_TRIED];
    static FILE *sink;
    static int fd = -1;
    struct vcap_snapshot snapshot;
    char why[256] = "";
    if (size < 1 || size - 1 > sizeof bytes)
        return 0;
    if (fd < 0)
        fd = memfd_create("ledger", MFD_CLOEXEC);
    if (!sink)
        sink = fopen("/dev/null", "w");
    must(fd >= 0 && sink, "the machine");
    memcpy(bytes, data + 1, size - 1);
    if (data[0] & 1)
        make_pass(bytes, size - 1);
    must(ftruncate(fd, (off_t)(size - 1)) == 0, "the machine");
    must(pwrite(fd, bytes, size - 1, 0) == (ssize_t)(size - 1), "the machine");
    int error = vcap_snapshot_read_fd(fd, &snapshot, why, sizeof why);
    if (error) {
        must(error == -EINVAL && *why && is_text(why, sizeof why), "the answer");
        return 0;
    }
    check(&snapshot);
    must(vcap_dump_table(&snapshot, "ledger", sink, false) == 0, "the table");
    must(vcap_dump_json(&snapshot, sink, true) == 0, "the JSON");
    vcap_snapshot_free(&snapshot);
    return 0;
}
