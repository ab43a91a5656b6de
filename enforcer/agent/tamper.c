/*
 * Are the ceilings in a ledger those that the host set?  The host's note beside the file decides where
 * there is one (host_record.h).  Without it the agent has only its own memory: what the ledger said
 * when it first saw it, and header.host_changes, which whoever writes the ledger can also count up.
 * So without the note a change that comes with that count is taken for the host's, and said to be
 * unverified.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "enforcer/agent/remember.h"
#include "enforcer/cli/host_record.h"

#define HOST_FLAGS (VCAP_LF_HOST_MADE | VCAP_LF_AUDIT | VCAP_LF_PASS_THROUGH)

static uint64_t expected_bytes(const struct vcap_host_record *r, const char *uuid)
{
    for (uint32_t i = 0; i < r->gpu_count; i++)
        if (!strcmp(r->gpus[i].uuid, uuid))
            return r->gpus[i].ceiling_bytes;
    return r->default_bytes;
}

static void amount(char text[32], uint64_t bytes)
{
    if (bytes == VCAP_NO_LIMIT)
        (void)snprintf(text, 32, "none");
    else
        (void)snprintf(text, 32, "%llu bytes", (unsigned long long)bytes);
}

/* True, and the difference in why.  A lower ceiling from another source than the host is none. */
static bool differs(const struct vcap_host_record *r, const struct vcap_snapshot *s, char *why,
                    size_t why_size)
{
    char set[32], found[32];
    if ((s->flags & HOST_FLAGS) != (r->flags & HOST_FLAGS)) {
        (void)snprintf(why, why_size, "flags are %u, the host set %u", s->flags & HOST_FLAGS,
                       r->flags & HOST_FLAGS);
        return true;
    }
    if (s->default_ceiling_bytes != r->default_bytes) {
        amount(set, r->default_bytes);
        amount(found, s->default_ceiling_bytes);
        (void)snprintf(why, why_size, "the default ceiling is %s, the host set %s", found, set);
        return true;
    }
    for (uint32_t i = 0; i < s->gpu_count; i++) {
        const struct vcap_snapshot_gpu *g = &s->gpus[i];
        uint64_t expected = expected_bytes(r, g->uuid);
        bool unset = g->ceiling_source == VCAP_LF_SOURCE_UNSET; /* nobody has used it yet */
        if (unset || g->ceiling_bytes == expected ||
            (g->ceiling_bytes < expected && g->ceiling_source != VCAP_LF_SOURCE_HOST))
            continue;
        amount(set, expected);
        amount(found, g->ceiling_bytes);
        (void)snprintf(why, why_size, "the ceiling of %s is %s, the host set %s", g->uuid, found,
                       set);
        return true;
    }
    return false;
}

/* ---- the agent's memory as a record ---- */

static void remember(struct vcap_memory_record *m, const struct vcap_snapshot *s)
{
    m->host_recorded = 1;
    m->host_changes = s->host_changes;
    m->host_flags = s->flags;
    m->default_ceiling_bytes = s->default_ceiling_bytes;
    for (uint32_t i = 0; i < VCAP_LF_GPUS_MAX; i++)
        m->gpus[i].ceiling_bytes = s->default_ceiling_bytes;
    for (uint32_t i = 0; i < s->gpu_count; i++) {
        if (s->gpus[i].ceiling_source != VCAP_LF_SOURCE_HOST)
            continue;
        struct vcap_memory_gpu *g = vcap_remember_place(m, s, s->gpus[i].uuid);
        if (g)
            g->ceiling_bytes = s->gpus[i].ceiling_bytes;
    }
}

static void as_record(const struct vcap_memory_record *m, struct vcap_host_record *r)
{
    memset(r, 0, sizeof *r);
    r->changes = m->host_changes;
    r->flags = m->host_flags;
    r->default_bytes = m->default_ceiling_bytes;
    for (uint32_t i = 0; i < VCAP_LF_GPUS_MAX; i++) {
        if (!m->gpus[i].uuid[0])
            continue;
        memcpy(r->gpus[r->gpu_count].uuid, m->gpus[i].uuid, sizeof m->gpus[i].uuid);
        r->gpus[r->gpu_count++].ceiling_bytes = m->gpus[i].ceiling_bytes;
    }
}

void vcap_remember_host(struct vcap_watched *w, int fd)
{
    const struct vcap_snapshot *s = &w->snapshot;
    struct vcap_memory_record *m = &w->memory;
    struct vcap_host_record record = {0};
    int error = vcap_host_record_read(fd, &record);
    w->tampered = VCAP_TAMPERED_UNKNOWN;
    w->tampered_why[0] = '\0';
    if (error == 0) {
        w->tampered = differs(&record, s, w->tampered_why, sizeof w->tampered_why)
                          ? VCAP_TAMPERED_YES
                          : VCAP_TAMPERED_NO;
        return;
    }
    if (!m->host_recorded && (s->flags & VCAP_LF_HOST_MADE) == 0) {
        (void)snprintf(w->tampered_why, sizeof w->tampered_why, "the host set no ceiling here");
        return;
    }
    if (!m->host_recorded || s->host_changes != m->host_changes) {
        (void)snprintf(w->tampered_why, sizeof w->tampered_why,
                       m->host_recorded ? "changed with the host's count, and no host's note to "
                                          "compare with"
                                        : "first seen now, and no host's note to compare with");
        remember(m, s);
        w->memory_changed = true;
        return;
    }
    as_record(m, &record);
    w->tampered = differs(&record, s, w->tampered_why, sizeof w->tampered_why) ? VCAP_TAMPERED_YES
                                                                               : VCAP_TAMPERED_NO;
}
