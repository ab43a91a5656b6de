/*
 * Reading a ledger that nobody vouches for.  Order of distrust: the name (ledger_read_open.c), the
 * size (bounded before anything is allocated), the header (ledger_check.c), then every single word.
 *
 * Consistency without a lock:
 *   - a slot is believed only if its state word reads the same before and after its identity, its
 *     cells and the question whether its owner lives;
 *   - the sum of the cells is compared with a GPU's total only if that total read the same before
 *     and after all the cells, so that no move came between;
 *   - events are judged one by one (ledger_read_event.c).
 * A word that cannot be is read again (up to VCAP_READ_TRIES) before the ledger is called untrusted.
 */
#include "enforcer/ledger_read.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/ledger_check.h"
#include "enforcer/ledger_read_open.h"
#include "enforcer/ledger_read_part.h"

#define FILE_BYTES_MAX (UINT64_C(64) << 20) /* the largest ledger of version 1 has 10 MiB */
#define AMOUNT_BYTES_MAX (VCAP_LF_UNITS_MAX * VCAP_LF_UNIT_BYTES)
#define LIFE_BUDGET_NS UINT64_C(1000000000) /* for all lock checks of one snapshot together */

uint64_t vcap_read_now_ns(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_MONOTONIC, &t) != 0)
        return 0;
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void format_uuid(char text[VCAP_UUID_TEXT], const uint8_t u[16], bool mig)
{
    (void)snprintf(text, VCAP_UUID_TEXT,
                   "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                   mig ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9],
                   u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* ---- bytes ---- */

int vcap_read_exact(const struct vcap_reading *r, void *buffer, size_t size, uint64_t offset)
{
    unsigned char *at = buffer;
    while (size > 0) {
        ssize_t n = pread(r->fd, at, size, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return vcap_read_refuse(r->why, r->why_size, errno == EINVAL ? EIO : errno, "%s",
                                    strerror(errno));
        if (n == 0)
            return VCAP_READ_UNTRUSTED(r, "truncated while it was read");
        at += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* One table of the checked header to its place in the private copy. */
static int read_table(const struct vcap_reading *r, uint32_t offset, uint32_t stride,
                      uint32_t count)
{
    if (count == 0)
        return 0;
    return vcap_read_exact(r, r->file + offset, (size_t)stride * count, offset);
}

/* ---- validation of single words ---- */

int vcap_read_check_amount(const struct vcap_reading *r, const char *table, uint32_t number,
                           const char *what, uint64_t bytes)
{
    if (bytes <= AMOUNT_BYTES_MAX)
        return 0;
    return VCAP_READ_UNTRUSTED(r, "%s %u: impossible %s of %llu bytes", table, number, what,
                               (unsigned long long)bytes);
}

static int check_gpu(const struct vcap_reading *r, uint32_t row)
{
    const struct vcap_lf_gpu *g = &r->gpus[row];
    uint32_t source = vcap_lf_ceiling_source(g->ceiling);
    uint64_t units = vcap_lf_ceiling_units(g->ceiling);
    int error;
    if (source > VCAP_LF_SOURCE_LAST || (source == VCAP_LF_SOURCE_UNSET && units != 0))
        return VCAP_READ_UNTRUSTED(r, "GPU row %u: ceiling from unknown source %u", row, source);
    if (units > VCAP_LF_UNITS_MAX)
        return VCAP_READ_UNTRUSTED(r, "GPU row %u: impossible ceiling", row);
    if (vcap_lf_total_slot(g->total) >= r->header.slot_count)
        return VCAP_READ_UNTRUSTED(r, "GPU row %u: total moved by slot %u of %u", row,
                                   vcap_lf_total_slot(g->total), r->header.slot_count);
    if (vcap_lf_op(g->total) == 0 && g->total != 0)
        return VCAP_READ_UNTRUSTED(r, "GPU row %u: total without an operation number", row);
    if ((error = vcap_read_check_amount(r, "GPU row", row, "peak", g->peak_bytes)) != 0)
        return error;
    return vcap_read_check_amount(r, "GPU row", row, "amount over the ceiling", g->over_bytes);
}

/* ---- GPUs ---- */

/* Do the cells add up?  Only said of a total that stood still while they were read. */
static bool cells_disagree(const struct vcap_reading *r, uint32_t row)
{
    uint64_t total = r->gpus[row].total, sum = 0, in_flight = 0;
    if (!r->total_is_stable[row])
        return false;
    for (uint32_t s = 0; s < r->copy_count; s++) {
        const struct vcap_lf_cell *c = &r->slots[s].cells[row];
        int64_t delta = vcap_lf_intent_delta(c->intent);
        if (vcap_read_move_is_in_flight(c))
            in_flight += (uint64_t)(delta < 0 ? -delta : delta);
        else if (vcap_lf_op(c->intent) != vcap_lf_op(c->charged))
            return false; /* read in the middle of two moves */
        sum += vcap_read_held_units(c, r->slots[s].number, total);
    }
    uint64_t units = vcap_lf_total_units(total);
    return (sum > units ? sum - units : units - sum) > in_flight;
}

static void fill_gpu(const struct vcap_reading *r, uint32_t row, struct vcap_snapshot_gpu *out)
{
    const struct vcap_lf_gpu *g = &r->gpus[row];
    uint64_t gone_units = 0, overhead = 0, held, room;
    bool overhead_known = true;
    for (uint32_t s = 0; s < r->copy_count; s++) {
        const struct vcap_read_slot *copy = &r->slots[s];
        if (!copy->taken || !vcap_read_uses_gpu(copy, row))
            continue;
        const struct vcap_lf_cell *c = &copy->cells[row];
        if (copy->life == VCAP_LIFE_DEAD)
            gone_units += vcap_read_held_units(c, copy->number, g->total);
        else if (c->overhead_bytes == VCAP_UNKNOWN)
            overhead_known = false;
        else
            overhead += c->overhead_bytes;
    }
    uint64_t total_units = vcap_lf_total_units(g->total);
    if (gone_units > total_units)
        gone_units = total_units;
    out->row = row;
    out->index = g->index;
    out->mig = (g->flags & VCAP_LF_GPU_MIG) != 0;
    format_uuid(out->uuid, g->uuid, out->mig);
    out->card_bytes = g->card_bytes ? g->card_bytes : VCAP_UNKNOWN;
    out->ceiling_bytes = vcap_ceiling_bytes(g->ceiling);
    out->ceiling_source = (enum vcap_lf_source)vcap_lf_ceiling_source(g->ceiling);
    out->gone_bytes = gone_units * VCAP_LF_UNIT_BYTES;
    held = (total_units - gone_units) * VCAP_LF_UNIT_BYTES;
    out->held_bytes = held;
    out->charged_bytes = held > overhead ? held - overhead : 0;
    out->overhead_bytes = overhead_known ? overhead : VCAP_UNKNOWN;
    out->over = held > out->ceiling_bytes;
    room = out->ceiling_bytes < out->card_bytes ? out->ceiling_bytes : out->card_bytes;
    if (out->ceiling_bytes == VCAP_NO_LIMIT)
        out->free_bytes = VCAP_UNKNOWN;
    else
        out->free_bytes = room > held ? room - held : 0;
    out->peak_bytes = g->peak_bytes;
    out->refusals = g->refusals;
    out->refused_bytes = g->refused_bytes;
    out->audit_refusals = g->audit_refusals;
    out->device_full = g->device_full;
    out->over_peak_bytes = g->over_bytes;
    for (uint32_t i = 0; i <= VCAP_LF_SOURCE_LAST - VCAP_LF_SOURCE_FIRST; i++)
        out->source_bytes[i] = g->source_bytes[i] == 0 || g->source_bytes[i] == UINT64_MAX
                                   ? VCAP_UNKNOWN
                                   : g->source_bytes[i] - 1; /* bytes + 1 */
    out->compute_state = g->compute_state > VCAP_LF_COMPUTE_IGNORED
                             ? VCAP_LF_COMPUTE_UNKNOWN
                             : (enum vcap_lf_compute)g->compute_state;
    out->sm_granted = g->sm_granted;
    out->sm_total = g->sm_total;
    out->compute_percent = g->compute_percent > 100 ? 0 : g->compute_percent;
    out->near = g->near != 0;
    out->disagrees = cells_disagree(r, row);
}

static int read_gpus_again(struct vcap_reading *r)
{
    const struct vcap_lf_header *h = &r->header;
    for (uint32_t row = 0; row < h->gpu_count; row++) {
        struct vcap_lf_gpu again;
        if (r->gpus[row].claim == 0)
            continue;
        int error =
            vcap_read_exact(r, &again, sizeof again, h->gpu_offset + (uint64_t)row * h->gpu_stride);
        if (error)
            return error;
        r->total_is_stable[row] = again.total == r->gpus[row].total;
    }
    return 0;
}

/* ---- the whole ---- */

static int fill_events(const struct vcap_reading *r, struct vcap_snapshot *out)
{
    uint64_t next = r->header.event_next; /* as it was a moment ago */
    int error = 0;
    if (!r->wish->taken_only || next > r->wish->events_from)
        error = vcap_read_exact(r, &next, sizeof next, offsetof(struct vcap_lf_header, event_next));
    if (error)
        return error;
    const uint64_t from = r->wish->events_from ? r->wish->events_from : 1;
    if (next <= from) { /* the ring was not read */
        out->event_capacity = r->header.event_count;
        out->event_next = next ? next : 1;
        return 0;
    }
    if (r->wish->taken_only) {
        const struct vcap_lf_header *h = &r->header;
        if ((error = read_table(r, h->event_offset, h->event_stride, h->event_count)) != 0 ||
            (error = vcap_read_exact(r, &next, sizeof next,
                                     offsetof(struct vcap_lf_header, event_next))) != 0)
            return error;
    }
    return vcap_read_events(&r->header, r->file, from, next, r->gpu_position, out, r->why,
                            r->why_size);
}

/* What a process holds less its known overhead, which is shown apart. */
static uint64_t without_overhead(uint64_t held, const struct vcap_lf_cell *c)
{
    if (c->overhead_bytes == VCAP_UNKNOWN)
        return held;
    return held > c->overhead_bytes ? held - c->overhead_bytes : 0;
}

static int fill_processes(const struct vcap_reading *r, struct vcap_snapshot *out)
{
    out->processes = calloc(r->copy_count ? r->copy_count : 1, sizeof *out->processes);
    if (!out->processes)
        return vcap_read_refuse(r->why, r->why_size, ENOMEM, "%s", strerror(ENOMEM));
    for (uint32_t i = 0; i < r->copy_count; i++) {
        const struct vcap_read_slot *copy = &r->slots[i];
        const uint32_t s = copy->number;
        if (!copy->taken)
            continue;
        struct vcap_snapshot_process *p = &out->processes[out->process_count++];
        p->slot = s;
        p->pid = copy->slot.pid;
        p->uid = copy->slot.uid;
        p->pidns = copy->slot.pidns;
        p->start_time = copy->slot.start_time;
        p->claimed_ns = copy->slot.claimed_ns;
        vcap_read_copy_text(p->command, sizeof p->command, copy->slot.command,
                            sizeof copy->slot.command);
        p->life = copy->life;
        p->mode = copy->slot.mode == VCAP_LF_MODE_AUDIT ? VCAP_LF_MODE_AUDIT : VCAP_LF_MODE_ENFORCE;
        p->refusals = copy->slot.refusals;
        p->anomalies = copy->slot.anomalies;
        p->gaps = copy->slot.gaps;
        p->mps = copy->slot.mps > VCAP_LF_MPS_CLIENT ? VCAP_LF_MPS_UNKNOWN
                                                     : (enum vcap_lf_mps)copy->slot.mps;
        p->fault_code = copy->slot.fault_code;
        p->fault_ns = copy->slot.fault_ns;
        p->charges = calloc(out->gpu_count ? out->gpu_count : 1, sizeof *p->charges);
        if (!p->charges)
            return vcap_read_refuse(r->why, r->why_size, ENOMEM, "%s", strerror(ENOMEM));
        for (uint32_t g = 0; g < out->gpu_count; g++) {
            uint32_t row = out->gpus[g].row;
            const struct vcap_lf_cell *c = &copy->cells[row];
            if (!vcap_read_uses_gpu(copy, row))
                continue;
            uint64_t held = vcap_read_held_units(c, s, r->gpus[row].total) * VCAP_LF_UNIT_BYTES;
            p->charges[p->charge_count++] = (struct vcap_snapshot_charge){
                .gpu = g,
                .held_bytes = held,
                .charged_bytes = without_overhead(held, c),
                .overhead_bytes = c->overhead_bytes,
                .peak_bytes = c->peak_bytes,
                .imported_bytes = c->imported_bytes,
                .limit_bytes = c->limit_bytes,
            };
        }
    }
    return 0;
}

/* A row whose claimer has not written the UUID yet, or died before it did, is not there yet.  Two rows of
 * one device no claimer can make: a reader that believed them would name one thing twice. */
static int fill_gpus(struct vcap_reading *r, struct vcap_snapshot *out)
{
    static const uint8_t nobody[sizeof r->gpus[0].uuid];
    out->gpus = calloc((size_t)r->header.gpu_count + 1, sizeof *out->gpus);
    if (!out->gpus)
        return vcap_read_refuse(r->why, r->why_size, ENOMEM, "%s", strerror(ENOMEM));
    for (uint32_t row = 0; row < r->header.gpu_count; row++) {
        r->gpu_position[row] = UINT32_MAX;
        if (r->gpus[row].claim == 0 || !memcmp(r->gpus[row].uuid, nobody, sizeof nobody))
            continue;
        struct vcap_snapshot_gpu *gpu = &out->gpus[out->gpu_count];
        fill_gpu(r, row, gpu);
        for (uint32_t i = 0; i < out->gpu_count; i++)
            if (!strcmp(out->gpus[i].uuid, gpu->uuid))
                return VCAP_READ_UNTRUSTED(r, "GPU rows %u and %u are of one device",
                                           out->gpus[i].row, row);
        r->gpu_position[row] = out->gpu_count++;
    }
    return 0;
}

/* Only the library reads exports; that they are sane says that the file is. */
static int check_exports(const struct vcap_reading *r)
{
    const struct vcap_lf_header *h = &r->header;
    for (uint32_t i = 0; i < h->export_count; i++) {
        struct vcap_lf_export e;
        memcpy(&e, r->file + h->export_offset + (size_t)i * h->export_stride, sizeof e);
        if (e.owner == 0 || e.owner != e.writer || (e.sequence & 1) != 0)
            continue;
        if (vcap_lf_owner_slot(e.owner) >= h->slot_count || e.gpu >= h->gpu_count)
            return VCAP_READ_UNTRUSTED(r, "export %u: of slot %u, GPU row %u", i,
                                       vcap_lf_owner_slot(e.owner), e.gpu);
        int error = vcap_read_check_amount(r, "export", i, "size", e.size);
        if (error)
            return error;
    }
    return 0;
}

static int read_tables(struct vcap_reading *r, struct vcap_snapshot *out)
{
    const struct vcap_lf_header *h = &r->header;
    int error;
    if (!r->wish->taken_only)
        error = vcap_read_exact(r, r->file, r->size, 0);
    else if ((error = read_table(r, h->gpu_offset, h->gpu_stride, h->gpu_count)) == 0 &&
             (error = read_table(r, h->slot_offset, h->slot_stride, h->slot_count)) == 0)
        error = read_table(r, h->export_offset, h->export_stride, h->export_count);
    for (uint32_t row = 0; !error && row < h->gpu_count; row++) {
        memcpy(&r->gpus[row], r->file + h->gpu_offset + (size_t)row * h->gpu_stride,
               sizeof r->gpus[row]);
        if (r->gpus[row].claim != 0)
            error = check_gpu(r, row);
    }
    if (!error)
        error = check_exports(r);
    if (!error)
        error = vcap_read_slots(r, &out->slots_in_flux);
    if (!error)
        error = read_gpus_again(r);
    if (!error)
        error = fill_gpus(r, out);
    if (!error)
        error = fill_processes(r, out);
    if (!error)
        error = fill_events(r, out);
    return error;
}

static void fill_header(const struct vcap_reading *r, const struct stat *st,
                        struct vcap_snapshot *out)
{
    const struct vcap_lf_header *h = &r->header;
    out->version = h->version;
    out->flags = h->flags;
    vcap_read_copy_text(out->key, sizeof out->key, h->key, sizeof h->key);
    vcap_read_copy_text(out->container, sizeof out->container, h->container, sizeof h->container);
    vcap_read_copy_text(out->creator, sizeof out->creator, h->creator, sizeof h->creator);
    out->created_ns = h->created_ns;
    out->default_ceiling_bytes = vcap_ceiling_bytes(h->default_ceiling);
    out->host_changes = h->host_changes;
    out->near_percent = h->near_percent > 100 ? 0 : h->near_percent;
    out->compute_percent = h->compute_percent > 100 ? 0 : h->compute_percent;
    out->anomalies = h->anomalies;
    out->device = st->st_dev;
    out->inode = st->st_ino;
    out->slot_count = h->slot_count;
}

static int check_file(struct vcap_reading *r, struct stat *st)
{
    if (fstat(r->fd, st) != 0)
        return vcap_read_refuse(r->why, r->why_size, errno, "%s", strerror(errno));
    if (!S_ISREG(st->st_mode))
        return VCAP_READ_UNTRUSTED(r, "%s", vcap_read_file_kind(st->st_mode));
    if (st->st_size == 0)
        return VCAP_READ_UNTRUSTED(r, "the file is empty");
    if ((uint64_t)st->st_size < sizeof r->header)
        return VCAP_READ_UNTRUSTED(r, "%lld bytes are too few for a ledger",
                                   (long long)st->st_size);
    if ((uint64_t)st->st_size > (r->wish->bytes_max ? r->wish->bytes_max : FILE_BYTES_MAX))
        return VCAP_READ_UNTRUSTED(r, "%lld bytes are too many for a ledger",
                                   (long long)st->st_size);
    int error = vcap_read_exact(r, &r->header, sizeof r->header, 0);
    if (error)
        return error;
    return vcap_ledger_check_header(&r->header, (uint64_t)st->st_size, 0, r->why, r->why_size);
}

int vcap_snapshot_read_wish(int fd, const struct vcap_read_wish *wish, struct vcap_snapshot *out,
                            char *why, size_t why_size)
{
    struct vcap_reading r = {.fd = fd, .wish = wish, .why = why, .why_size = why_size};
    struct vcap_snapshot snapshot = {0};
    struct stat st;
    int error = check_file(&r, &st);
    if (error)
        return error;
    r.size = (size_t)st.st_size;
    r.pidns = wish->pidns ? wish->pidns : vcap_pidns_inode();
    r.life_deadline_ns = vcap_read_now_ns() + (wish->budget_ns ? wish->budget_ns : LIFE_BUDGET_NS);
    r.file = malloc(r.size);
    if (!r.file) {
        error = vcap_read_refuse(why, why_size, ENOMEM, "%s", strerror(ENOMEM));
        goto out;
    }
    for (int i = 0; i < VCAP_READ_TRIES; i++) {
        vcap_snapshot_free(&snapshot);
        fill_header(&r, &st, &snapshot);
        error = read_tables(&r, &snapshot);
        if (error != -EINVAL)
            break;
    }
    if (error)
        vcap_snapshot_free(&snapshot);
    else
        *out = snapshot;
out:
    free(r.file);
    free(r.slots);
    return error;
}

int vcap_snapshot_read_fd(int fd, struct vcap_snapshot *out, char *why, size_t why_size)
{
    const struct vcap_read_wish all = {0};
    return vcap_snapshot_read_wish(fd, &all, out, why, why_size);
}

int vcap_snapshot_read(const char *path, struct vcap_snapshot *out, char *why, size_t why_size)
{
    int fd = vcap_ledger_read_open(path, why, why_size);
    if (fd < 0)
        return fd;
    int error = vcap_snapshot_read_fd(fd, out, why, why_size);
    (void)close(fd);
    return error;
}

void vcap_snapshot_free(struct vcap_snapshot *snapshot)
{
    for (uint32_t i = 0; i < snapshot->process_count; i++)
        free(snapshot->processes[i].charges);
    free(snapshot->processes);
    free(snapshot->gpus);
    free(snapshot->events);
    *snapshot = (struct vcap_snapshot){0};
}
