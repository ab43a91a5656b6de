/*
 * The one validation of a ledger's header.  Input is hostile until it has passed; every comparison
 * is on 64-bit values that cannot wrap (offset and stride are 32 bits, counts are bounded first).
 */
#include "enforcer/ledger_check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int bad(char *why, size_t why_size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int bad(char *why, size_t why_size, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, why_size, format, args);
    va_end(args);
    return -EINVAL;
}

struct table {
    const char *name;
    uint32_t offset, stride, count;
    uint32_t least, most; /* sane counts */
    uint32_t entry_size;  /* what this build knows */
};

static int check_table(const struct table *t, uint64_t header_size, uint64_t file_size, int writer,
                       char *why, size_t why_size)
{
    if (t->count < t->least || t->count > t->most)
        return bad(why, why_size, "%u %ss, from %u to %u can be", t->count, t->name, t->least,
                   t->most);
    if (t->count == 0)
        return 0;
    if (t->stride < t->entry_size || t->stride > 65536 || t->stride % 8 != 0)
        return bad(why, why_size, "a %s of %u bytes", t->name, t->stride);
    if (writer && t->stride != t->entry_size)
        return bad(why, why_size, "a %s of %u bytes, this version writes %u", t->name, t->stride,
                   t->entry_size);
    if (t->offset < header_size || t->offset % 64 != 0 ||
        (uint64_t)t->offset + (uint64_t)t->stride * t->count > file_size)
        return bad(why, why_size, "the table of %ss lies outside the file", t->name);
    return 0;
}

int vcap_ledger_check_header(const struct vcap_lf_header *h, uint64_t file_size, int writer,
                             char *why, size_t why_size)
{
    const struct table tables[] = {
        {"GPU", h->gpu_offset, h->gpu_stride, h->gpu_count, 1, VCAP_LF_GPUS_MAX,
         sizeof(struct vcap_lf_gpu)},
        {"slot", h->slot_offset, h->slot_stride, h->slot_count, 1, VCAP_LF_SLOTS_MAX,
         sizeof(struct vcap_lf_slot)},
        {"cell", h->cell_offset, h->cell_stride, h->cell_count, 1,
         VCAP_LF_SLOTS_MAX * VCAP_LF_GPUS_MAX, sizeof(struct vcap_lf_cell)},
        {"export", h->export_offset, h->export_stride, h->export_count, 0, VCAP_LF_EXPORTS_MAX,
         sizeof(struct vcap_lf_export)},
        {"event", h->event_offset, h->event_stride, h->event_count, 1, VCAP_LF_EVENTS_MAX,
         sizeof(struct vcap_lf_event)},
    };

    if (file_size < sizeof(*h))
        return bad(why, why_size, "%llu bytes, shorter than a ledger's header",
                   (unsigned long long)file_size);
    if (memcmp(h->magic, VCAP_LF_MAGIC, sizeof(h->magic)) != 0)
        return bad(why, why_size, "not a vramcap ledger");
    if (h->byte_order != VCAP_LF_BYTE_ORDER)
        return bad(why, why_size, "made on a machine of another byte order");
    if (writer ? h->version != VCAP_LF_VERSION
               : h->oldest_reader > VCAP_LF_VERSION || h->version < h->oldest_reader ||
                     h->version == 0)
        return bad(why, why_size, "format version %u, this build %s version %u", h->version,
                   writer ? "writes" : "reads up to", VCAP_LF_VERSION);
    if (h->header_size < sizeof(*h) || h->header_size > 65536)
        return bad(why, why_size, "a header of %u bytes", h->header_size);
    if (h->file_size != file_size)
        return bad(why, why_size, "%llu bytes long, its header says %llu (truncated?)",
                   (unsigned long long)file_size, (unsigned long long)h->file_size);
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        int rc = check_table(&tables[i], h->header_size, file_size, writer, why, why_size);

        if (rc != 0)
            return rc;
    }
    if (h->cell_count != h->slot_count * h->gpu_count)
        return bad(why, why_size, "%u cells for %u slots and %u GPUs", h->cell_count, h->slot_count,
                   h->gpu_count);
    if (memchr(h->key, 0, sizeof(h->key)) == NULL ||
        memchr(h->container, 0, sizeof(h->container)) == NULL ||
        memchr(h->creator, 0, sizeof(h->creator)) == NULL)
        return bad(why, why_size, "a name in its header does not end");
    return 0;
}
