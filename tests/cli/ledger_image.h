/*
 * Ledgers made by hand, byte by byte, for tests of readers: from ledger_format.h alone, without any
 * code of enforcer/.  Living processes are simulated by holding the slots' locks.
 */
#ifndef VRAMCAP_TESTS_CLI_LEDGER_IMAGE_H
#define VRAMCAP_TESTS_CLI_LEDGER_IMAGE_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "enforcer/ledger_format.h"

#define IMAGE_GPUS 4u
#define IMAGE_SLOTS 8u
#define IMAGE_EVENTS 16u
#define IMAGE_EXPORTS 4u
#define IMAGE_MIB (UINT64_C(1) << 20)
#define IMAGE_UNITS(mib) ((uint64_t)(mib) * (IMAGE_MIB / VCAP_LF_UNIT_BYTES))
#define IMAGE_OTHER_PIDNS UINT64_C(4242) /* no PID namespace has this inode: only locks decide */

struct image {
    struct vcap_lf_header header;
    struct vcap_lf_gpu gpus[IMAGE_GPUS];
    struct vcap_lf_slot slots[IMAGE_SLOTS];
    struct vcap_lf_cell cells[IMAGE_SLOTS][IMAGE_GPUS];
    struct vcap_lf_export exports[IMAGE_EXPORTS];
    struct vcap_lf_event events[IMAGE_EVENTS];
};

static inline void image_init(struct image *m)
{
    memset(m, 0, sizeof *m);
    struct vcap_lf_header *h = &m->header;
    memcpy(h->magic, VCAP_LF_MAGIC, 8);
    h->version = VCAP_LF_VERSION;
    h->oldest_reader = VCAP_LF_OLDEST_READER;
    h->byte_order = VCAP_LF_BYTE_ORDER;
    h->header_size = sizeof *h;
    h->file_size = sizeof *m;
    h->gpu_offset = offsetof(struct image, gpus);
    h->gpu_stride = sizeof m->gpus[0];
    h->gpu_count = IMAGE_GPUS;
    h->slot_offset = offsetof(struct image, slots);
    h->slot_stride = sizeof m->slots[0];
    h->slot_count = IMAGE_SLOTS;
    h->cell_offset = offsetof(struct image, cells);
    h->cell_stride = sizeof m->cells[0][0];
    h->cell_count = IMAGE_SLOTS * IMAGE_GPUS;
    h->export_offset = offsetof(struct image, exports);
    h->export_stride = sizeof m->exports[0];
    h->export_count = IMAGE_EXPORTS;
    h->event_offset = offsetof(struct image, events);
    h->event_stride = sizeof m->events[0];
    h->event_count = IMAGE_EVENTS;
    h->created_ns = UINT64_C(1764540637000000000);
    h->event_next = 1;
    (void)snprintf(h->creator, sizeof h->creator, "vramcap test");
}

/* ceiling_mib UINT64_MAX: none. */
static inline void image_gpu(struct image *m, uint32_t row, uint64_t ceiling_mib,
                             enum vcap_lf_source source)
{
    struct vcap_lf_gpu *g = &m->gpus[row];
    g->claim = UINT64_C(0x1111) + row;
    for (unsigned i = 0; i < 16; i++)
        g->uuid[i] = (uint8_t)(row * 16 + i);
    g->index = row;
    g->ceiling = vcap_lf_ceiling(
        ceiling_mib == UINT64_MAX ? VCAP_LF_UNITS_MAX : IMAGE_UNITS(ceiling_mib), source);
}

/* A process with a settled charge, which is added to the GPU's total. */
static inline void image_process(struct image *m, uint32_t slot, uint32_t row, uint64_t mib,
                                 const char *command)
{
    struct vcap_lf_slot *s = &m->slots[slot];
    struct vcap_lf_cell *c = &m->cells[slot][row];
    s->state = vcap_lf_state(1, VCAP_LF_KIND_LOCK, VCAP_LF_LIVE);
    s->pid = 100 + slot;
    s->uid = 1000;
    s->pidns = IMAGE_OTHER_PIDNS;
    s->index_mask |= 1u << row;
    (void)snprintf(s->command, sizeof s->command, "%s", command);
    c->charged = vcap_lf_charged(IMAGE_UNITS(mib), 5);
    c->intent = vcap_lf_intent(1, 5);
    c->peak_bytes = mib * IMAGE_MIB;
    c->overhead_bytes = c->limit_bytes = UINT64_MAX;
    m->gpus[row].total =
        vcap_lf_total(vcap_lf_total_units(m->gpus[row].total) + IMAGE_UNITS(mib), slot, 5);
}

/* The next event of the ring. */
static inline struct vcap_lf_event *image_event(struct image *m, enum vcap_lf_event_kind kind,
                                                const char *name)
{
    uint64_t number = m->header.event_next++;
    struct vcap_lf_event *e = &m->events[number % IMAGE_EVENTS];
    memset(e, 0, sizeof *e);
    e->begin = e->end = number;
    e->time_ns = UINT64_C(1764540637123000000);
    e->kind = kind;
    e->slot = e->gpu = UINT32_MAX;
    e->pid = 100;
    (void)snprintf(e->name, sizeof e->name, "%s", name);
    return e;
}

/* 0, or -1 after saying why. */
static inline int image_write(const void *bytes, size_t size, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int error = fd < 0 || write(fd, bytes, size) != (ssize_t)size;
    if (error)
        perror(path);
    if (fd >= 0)
        (void)close(fd);
    return error ? -1 : 0;
}

/* Holds a slot's lock as its living owner does; the descriptor, or -1. */
static inline int image_live(const char *path, uint32_t slot)
{
    struct flock lock = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = VCAP_LF_LOCK_SLOT + (off_t)slot,
                         .l_len = 1};
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        perror("F_OFD_SETLK");
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* A directory of the test's own. */
static inline char *image_folder(char path[64])
{
    const char *base = getenv("TMPDIR");
    (void)snprintf(path, 64, "%.40s/vramcap-XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(path);
}

#endif
