/*
 * The state file: a header, then records of two copies and a switch.  The file is made longer before
 * a record beyond its end is touched (a full disk must be an error, not SIGBUS), and only the records
 * ever used are looked at, so that a large capacity costs nothing.
 */
#include "enforcer/agent/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "VCAPSEEN"
#define VERSION 1u
#define CHUNK 32u /* records by which the file grows */

struct header {
    char magic[8];
    uint32_t version, record_size;
    char boot_id[40];
    uint32_t used;       /* records that were ever taken */
    uint32_t mps_outage; /* 1: MPS's outage was announced and has not ended */
};

struct record {
    uint64_t active; /* 0 or 1: the copy that holds; written last */
    struct vcap_memory_record copies[2];
};

struct vcap_memory {
    int fd; /* -1: anonymous */
    bool anew;
    struct header *header;
    struct record *records;
    uint32_t room;                   /* records that the file has space for */
    bool taken[VCAP_MEMORY_RECORDS]; /* by somebody of this run: given to nobody else */
};

#define FILE_HEADER 4096u
#define FILE_BYTES(records) (FILE_HEADER + (size_t)(records) * sizeof(struct record))

_Static_assert(sizeof(struct header) <= FILE_HEADER, "header");

static void boot_id(char text[40])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, 36) : -1;
    if (fd >= 0)
        (void)close(fd);
    memset(text + (n > 0 ? n : 0), 0, (size_t)(40 - (n > 0 ? n : 0)));
}

static bool is_good(const struct vcap_memory *m, off_t size)
{
    char boot[40];
    const struct header *h = m->header;
    boot_id(boot);
    return h != NULL && (size_t)size >= FILE_HEADER && !memcmp(h->magic, MAGIC, sizeof h->magic) &&
           h->version == VERSION && h->record_size == sizeof(struct record) &&
           !memcmp(h->boot_id, boot, sizeof boot) && h->used <= VCAP_MEMORY_RECORDS &&
           FILE_BYTES(h->used) <= (size_t)size;
}

static int begin_anew(struct vcap_memory *m)
{
    if (m->header == NULL)
        return -EINVAL;
    if (m->fd >= 0) {
        int error = ftruncate(m->fd, 0) != 0 ? errno : posix_fallocate(m->fd, 0, FILE_HEADER);
        if (error)
            return -error;
    }
    memcpy(m->header->magic, MAGIC, sizeof m->header->magic);
    m->header->version = VERSION;
    m->header->record_size = sizeof(struct record);
    boot_id(m->header->boot_id);
    m->header->used = 0;
    m->header->mps_outage = 0;
    m->room = m->fd >= 0 ? 0 : VCAP_MEMORY_RECORDS;
    return 0;
}

static int open_file(struct vcap_memory *m, const char *path, off_t *size)
{
    struct stat st;
    m->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0600);
    if (m->fd < 0)
        return -errno;
    if (fstat(m->fd, &st) != 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    if (flock(m->fd, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK ? -EBUSY : -errno;
    if (st.st_size > 0 && st.st_size < (off_t)FILE_HEADER) { /* not even a header to look at */
        if (ftruncate(m->fd, 0) != 0)
            return -errno;
        m->anew = true;
        st.st_size = 0;
    }
    *size = st.st_size;
    return 0;
}

struct vcap_memory *vcap_memory_open(const char *path, char *why, size_t why_size)
{
    struct vcap_memory *m = calloc(1, sizeof *m);
    off_t size = 0;
    int error = m ? 0 : -ENOMEM;
    if (m)
        m->fd = -1;
    if (!error && path)
        error = open_file(m, path, &size);
    if (!error && path && size == 0)
        error = -posix_fallocate(m->fd, 0, FILE_HEADER);
    if (!error) {
        void *base =
            mmap(NULL, FILE_BYTES(VCAP_MEMORY_RECORDS), PROT_READ | PROT_WRITE,
                 path ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, m->fd, 0);
        if (base == MAP_FAILED) {
            error = -errno;
        } else {
            m->header = base;
            m->records = (struct record *)((char *)base + FILE_HEADER);
        }
    }
    if (!error && path && size > 0 && is_good(m, size))
        m->room = (uint32_t)(((size_t)size - FILE_HEADER) / sizeof(struct record));
    else if (!error) {
        m->anew = m->anew || size > 0;
        error = begin_anew(m);
    }
    if (!error)
        return m;
    (void)snprintf(why, why_size, "%s",
                   error == -EBUSY    ? "another agent uses it"
                   : error == -EINVAL ? "not a regular file"
                                      : strerror(-error));
    if (m)
        vcap_memory_close(m);
    return NULL;
}

void vcap_memory_close(struct vcap_memory *m)
{
    if (m->header)
        (void)munmap(m->header, FILE_BYTES(VCAP_MEMORY_RECORDS));
    if (m->fd >= 0)
        (void)close(m->fd);
    free(m);
}

bool vcap_memory_began_anew(const struct vcap_memory *m)
{
    return m->anew;
}

static const struct vcap_memory_record *active(const struct vcap_memory *m, uint32_t place)
{
    const struct record *r = &m->records[place];
    return &r->copies[__atomic_load_n(&r->active, __ATOMIC_ACQUIRE) & 1];
}

static bool make_room(struct vcap_memory *m)
{
    if (m->header->used < m->room)
        return true;
    if (m->room >= VCAP_MEMORY_RECORDS)
        return false;
    uint32_t room = m->room + CHUNK < VCAP_MEMORY_RECORDS ? m->room + CHUNK : VCAP_MEMORY_RECORDS;
    if (posix_fallocate(m->fd, 0, (off_t)FILE_BYTES(room)) != 0)
        return false;
    m->room = room;
    return true;
}

int vcap_memory_place(struct vcap_memory *m, const char *label)
{
    int empty = -1, oldest = -1;
    uint64_t oldest_s = UINT64_MAX;
    for (uint32_t i = 0; i < m->header->used; i++) {
        const struct vcap_memory_record *r = active(m, i);
        if (!strncmp(r->label, label, sizeof r->label)) {
            m->taken[i] = true;
            return (int)i;
        }
        if (!*r->label && empty < 0)
            empty = (int)i;
        if (*r->label && !m->taken[i] && r->seen_s < oldest_s) {
            oldest = (int)i;
            oldest_s = r->seen_s;
        }
    }
    if (empty < 0 && make_room(m))
        empty = (int)m->header->used++;
    if (empty < 0)
        empty = oldest;
    if (empty < 0)
        return -1;
    struct vcap_memory_record fresh = {.next_event = 1};
    (void)snprintf(fresh.label, sizeof fresh.label, "%s", label);
    m->taken[empty] = true;
    vcap_memory_write(m, empty, &fresh);
    return empty;
}

void vcap_memory_read(const struct vcap_memory *m, int place, struct vcap_memory_record *record)
{
    *record = *active(m, (uint32_t)place);
    record->label[sizeof record->label - 1] = '\0';
}

void vcap_memory_write(struct vcap_memory *m, int place, const struct vcap_memory_record *record)
{
    struct record *r = &m->records[place];
    uint64_t other = (__atomic_load_n(&r->active, __ATOMIC_RELAXED) & 1) ^ 1;
    r->copies[other] = *record;
    /* release: whoever reads the switch, also after a kill, sees the whole copy */
    __atomic_store_n(&r->active, other, __ATOMIC_RELEASE);
}

void vcap_memory_forget(struct vcap_memory *m, int place)
{
    const struct vcap_memory_record nothing = {0};
    m->taken[place] = false;
    vcap_memory_write(m, place, &nothing);
}

bool vcap_memory_mps_outage(const struct vcap_memory *m)
{
    return m->header->mps_outage == 1;
}

void vcap_memory_note_mps_outage(struct vcap_memory *m, bool outage)
{
    m->header->mps_outage = outage;
}
