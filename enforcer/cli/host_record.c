/*
 * Text in an extended attribute.  Only the kernel stands between the container and this text, so it is
 * parsed as strictly as if it were the container's.
 */
#include "enforcer/cli/host_record.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/xattr.h>
#include <unistd.h>

#define TEXT_MAX 4096

static bool read_amount(const char *text, const char **end, uint64_t *value)
{
    if (!strncmp(text, "none", 4)) {
        *value = VCAP_NO_LIMIT;
        *end = text + 4;
        return true;
    }
    char *stop;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *value = strtoull(text, &stop, 10);
    *end = stop;
    return errno == 0;
}

/* "NAME=AMOUNT" and then a blank or the end. */
static bool read_field(const char **at, char *name, size_t size, uint64_t *value)
{
    const char *text = *at;
    size_t length = strcspn(text, "= ");
    if (text[length] != '=' || length == 0 || length >= size)
        return false;
    memcpy(name, text, length);
    name[length] = '\0';
    if (!read_amount(text + length + 1, at, value) || (**at != ' ' && **at != '\0'))
        return false;
    *at += **at == ' ';
    return true;
}

int vcap_host_record_parse(const char *text, struct vcap_host_record *record)
{
    struct vcap_host_record r = {0};
    char name[VCAP_UUID_TEXT];
    uint64_t value, flags;
    const char *at = text + 2;
    if (strncmp(text, "1 ", 2) != 0)
        return -EINVAL;
    if (!read_field(&at, name, sizeof name, &r.changes) || strcmp(name, "changes") != 0 ||
        !read_field(&at, name, sizeof name, &flags) || strcmp(name, "flags") != 0 ||
        flags > UINT32_MAX || !read_field(&at, name, sizeof name, &r.default_bytes) ||
        strcmp(name, "default") != 0)
        return -EINVAL;
    r.flags = (uint32_t)flags;
    while (*at) {
        if (r.gpu_count == VCAP_LF_GPUS_MAX || !read_field(&at, name, sizeof name, &value))
            return -EINVAL;
        memcpy(r.gpus[r.gpu_count].uuid, name, strlen(name));
        r.gpus[r.gpu_count++].ceiling_bytes = value;
    }
    *record = r;
    return 0;
}

static bool add(char *text, size_t size, size_t *at, const char *name, uint64_t value)
{
    int n = value == VCAP_NO_LIMIT
                ? snprintf(text + *at, size - *at, " %s=none", name)
                : snprintf(text + *at, size - *at, " %s=%llu", name, (unsigned long long)value);
    if (n < 0 || (size_t)n >= size - *at)
        return false;
    *at += (size_t)n;
    return true;
}

int vcap_host_record_format(const struct vcap_host_record *r, char *text, size_t size)
{
    size_t at = 1;
    if (size < 2)
        return -ENOSPC;
    memcpy(text, "1", 2);
    if (!add(text, size, &at, "changes", r->changes) || !add(text, size, &at, "flags", r->flags) ||
        !add(text, size, &at, "default", r->default_bytes))
        return -ENOSPC;
    for (uint32_t i = 0; i < r->gpu_count; i++)
        if (!add(text, size, &at, r->gpus[i].uuid, r->gpus[i].ceiling_bytes))
            return -ENOSPC;
    return (int)at;
}

int vcap_host_record_read(int fd, struct vcap_host_record *record)
{
    char text[TEXT_MAX + 1];
    ssize_t length = fgetxattr(fd, VCAP_HOST_RECORD_NAME, text, TEXT_MAX);
    if (length < 0)
        return errno == EINVAL ? -ENOTSUP : -errno;
    text[length] = '\0';
    return strlen(text) == (size_t)length ? vcap_host_record_parse(text, record) : -EINVAL;
}

int vcap_host_record_write(int fd, const struct vcap_host_record *record)
{
    char text[TEXT_MAX];
    int length = vcap_host_record_format(record, text, sizeof text);
    if (length < 0)
        return length;
    return fsetxattr(fd, VCAP_HOST_RECORD_NAME, text, (size_t)length, 0) == 0 ? 0 : -errno;
}

void vcap_host_record_of(const struct vcap_snapshot *s, struct vcap_host_record *r)
{
    memset(r, 0, sizeof *r);
    r->changes = s->host_changes;
    r->flags = s->flags;
    r->default_bytes = s->default_ceiling_bytes;
    for (uint32_t i = 0; i < s->gpu_count && i < VCAP_LF_GPUS_MAX; i++) {
        if (s->gpus[i].ceiling_source != VCAP_LF_SOURCE_HOST)
            continue;
        memcpy(r->gpus[r->gpu_count].uuid, s->gpus[i].uuid, VCAP_UUID_TEXT);
        r->gpus[r->gpu_count++].ceiling_bytes = s->gpus[i].ceiling_bytes;
    }
}

static void set_gpu(struct vcap_host_record *r, const char *uuid, uint64_t bytes)
{
    uint32_t i = 0;
    while (i < r->gpu_count && strcmp(r->gpus[i].uuid, uuid) != 0)
        i++;
    if (i == VCAP_LF_GPUS_MAX)
        return;
    if (i == r->gpu_count) {
        r->gpu_count++;
        (void)snprintf(r->gpus[i].uuid, sizeof r->gpus[i].uuid, "%s", uuid);
    }
    r->gpus[i].ceiling_bytes = bytes;
}

/* Bytes as a ceiling word keeps them. */
static uint64_t in_units(uint64_t bytes)
{
    uint64_t units = bytes / VCAP_LF_UNIT_BYTES;
    return units < VCAP_LF_UNITS_MAX ? units * VCAP_LF_UNIT_BYTES : VCAP_NO_LIMIT;
}

/* Upper-case digits become the reader's lower-case ones; dashes stay. */
static void reader_uuid(const char *from, char to[VCAP_UUID_TEXT])
{
    (void)snprintf(to, VCAP_UUID_TEXT, "%s", from);
    for (size_t i = 4; i < VCAP_UUID_TEXT && to[i]; i++)
        if (to[i] >= 'A' && to[i] <= 'F')
            to[i] = (char)(to[i] - 'A' + 'a');
}

static void set_flag(uint32_t *flags, uint32_t flag, int on)
{
    if (on > 0)
        *flags |= flag;
    else if (on == 0)
        *flags &= ~flag;
}

void vcap_host_record_apply(struct vcap_host_record *r, const struct vcap_host_order *order)
{
    for (uint32_t i = 0; order->memory && i < order->memory->count; i++) {
        const struct vcap_entry *e = &order->memory->entry[i];
        char uuid[VCAP_UUID_TEXT];
        if (e->kind == VCAP_ENTRY_ALL) {
            r->default_bytes = in_units(e->bytes);
            r->gpu_count = 0;
            continue;
        }
        uint64_t lowest = e->bytes; /* a GPU that is named twice has the lower ceiling */
        for (uint32_t k = 0; k < order->memory->count; k++)
            if (order->memory->entry[k].kind == e->kind &&
                !strcasecmp(order->memory->entry[k].uuid, e->uuid) &&
                order->memory->entry[k].bytes < lowest)
                lowest = order->memory->entry[k].bytes;
        reader_uuid(e->uuid, uuid);
        set_gpu(r, uuid, in_units(lowest));
    }
    set_flag(&r->flags, VCAP_LF_AUDIT, order->audit);
    set_flag(&r->flags, VCAP_LF_PASS_THROUGH, order->pass_through);
}

int vcap_host_record_keep(const char *path, const struct vcap_host_order *order)
{
    struct vcap_host_record record = {0};
    struct vcap_snapshot snapshot;
    char why[160];
    int fd = vcap_ledger_read_open(path, why, sizeof why);
    if (fd < 0)
        return fd;
    int error = vcap_snapshot_read_fd(fd, &snapshot, why, sizeof why);
    if (error == 0) {
        if (!order || vcap_host_record_read(fd, &record) != 0)
            vcap_host_record_of(&snapshot, &record);
        else
            vcap_host_record_apply(&record, order);
        record.changes = snapshot.host_changes;
        vcap_snapshot_free(&snapshot);
        error = vcap_host_record_write(fd, &record);
    }
    (void)close(fd);
    return error;
}
