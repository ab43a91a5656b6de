/*
 * The host's own note of what it set in a ledger, beside the ledger and out of the container's reach: an
 * extended attribute of the file in the kernel's `security` namespace, which anybody who can read the
 * file can read and only CAP_SYS_ADMIN in the user namespace of the mount (the host's) can write or
 * remove (capabilities(7), xattr(7)).  `vramcap create` and `resize` write it, the agent compares.  A
 * file system without such attributes, or a caller without the right, has none: -ENOTSUP, -EPERM.
 *
 * Text, one line: "1 changes=N flags=N default=BYTES GPU-uuid=BYTES MIG-uuid=BYTES ..."; "none" for no
 * ceiling.
 */
#ifndef VRAMCAP_ENFORCER_CLI_HOST_RECORD_H
#define VRAMCAP_ENFORCER_CLI_HOST_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "enforcer/ledger_host.h"
#include "enforcer/ledger_read.h"

#define VCAP_HOST_RECORD_NAME "security.vramcap.host"

struct vcap_host_record {
    uint64_t changes;       /* header.host_changes after it */
    uint32_t flags;         /* header.flags */
    uint64_t default_bytes; /* VCAP_NO_LIMIT: none */
    uint32_t gpu_count;
    struct {
        char uuid[VCAP_UUID_TEXT];
        uint64_t ceiling_bytes;
    } gpus[VCAP_LF_GPUS_MAX];
};

/* 0 or -errno; -ENODATA: none was written, -EINVAL: not of this form. */
int vcap_host_record_read(int fd, struct vcap_host_record *record);
int vcap_host_record_write(int fd, const struct vcap_host_record *record);

/* The two halves, for tests.  Write: the length, or -ENOSPC. */
int vcap_host_record_parse(const char *text, struct vcap_host_record *record);
int vcap_host_record_format(const struct vcap_host_record *record, char *text, size_t size);

/* What a ledger says that nobody can have touched yet. */
void vcap_host_record_of(const struct vcap_snapshot *snapshot, struct vcap_host_record *record);

/* What an order changes in it, as vcap_host_resize() changes the ledger. */
void vcap_host_record_apply(struct vcap_host_record *record, const struct vcap_host_order *order);

/*
 * After `create` (order NULL) and `resize`: writes the note, or renews it.  Where none can be written
 * there is none, and the agent goes by its own memory.  0 or -errno.
 */
int vcap_host_record_keep(const char *path, const struct vcap_host_order *order);

#endif
