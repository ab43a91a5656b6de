/*
 * Looking at the processes of one container and keeping what the lint says.
 *
 * What must stay true: after a process that made its reader wait nothing of its container is looked at
 * for a while, whatever processes come and go in it, so that one container cannot take more than its
 * time from the rounds.
 */
#include "enforcer/agent/mps_settings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/ceiling.h"
#include "enforcer/config.h"
#include "enforcer/ledger.h"

#define AGAIN_NS UINT64_C(60000000000)

/* The same for any order; 0 is nobody's. */
static uint64_t hash_of(const pid_t *pids, uint32_t count)
{
    uint64_t hash = 1;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t x = (uint64_t)pids[i] * UINT64_C(0x9e3779b97f4a7c15);
        hash += pids[i] > 0 ? (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9) : 0;
    }
    return hash;
}

bool vcap_mps_settings_due(const struct vcap_mps_settings *s, const pid_t *pids, uint32_t count,
                           bool daemon_up, uint64_t now_ns)
{
    const uint64_t hash = hash_of(pids, count);
    if (s->hung && now_ns < s->due_ns)
        return false;
    if (!s->known || s->processes != hash)
        return hash != 1 || s->known; /* nobody there: nothing to look at, once */
    return hash != 1 && (now_ns >= s->due_ns || s->daemon_up != daemon_up);
}

static bool has_error(const struct vcap_mps_finding *findings, uint32_t count, pid_t pid)
{
    for (uint32_t i = 0; i < count; i++)
        if (findings[i].pid == pid && findings[i].severity == VCAP_MPS_ERROR)
            return true;
    return false;
}

/* For which GPUs has this process a limit, as far as its settings say? */
static uint64_t limits_of(const struct vcap_mps_container *c, const struct vcap_mps_look *p)
{
    uint32_t visible[VCAP_MPS_GPUS_MAX], count = 0;
    struct vcap_entries entries;
    char why[200];
    uint64_t in_force = 0;

    if (p->environment_error != 0 || p->pipe != VCAP_MPS_PIPE_THERE || !c->daemon_up ||
        !p->variable[VCAP_MPS_VAR_LIMIT].set ||
        vcap_config_parse_entries(p->variable[VCAP_MPS_VAR_LIMIT].text, true, &entries, why,
                                  sizeof why) != 0 ||
        !vcap_mps_visible(c, p, visible, &count))
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct vcap_mps_gpu *gpu = &c->gpus[visible[i]];
        if (vcap_ceiling_match(&entries, i, gpu->uuid, gpu->mig, VCAP_NO_LIMIT) != VCAP_NO_LIMIT)
            in_force |= UINT64_C(1) << visible[i];
    }
    return in_force;
}

static bool same(const struct vcap_mps_settings *s, const struct vcap_mps_finding *findings,
                 uint32_t count, uint32_t total)
{
    return s->known && s->count == count && s->total == total &&
           (count == 0 || memcmp(s->findings, findings, count * sizeof *findings) == 0);
}

bool vcap_mps_settings_look(struct vcap_mps_settings *s, const struct vcap_mps_container *host,
                            const pid_t *pids, uint32_t count, int limit_ms, uint64_t now_ns)
{
    struct vcap_mps_look *looks = calloc(VCAP_MPS_SETTINGS_PROCESSES, sizeof *looks);
    struct vcap_mps_finding *findings = calloc(VCAP_MPS_SETTINGS_FINDINGS, sizeof *findings);
    struct vcap_mps_container c = *host;
    bool hung = false, changed = false;

    if (!looks || !findings)
        goto out;
    c.processes = looks;
    c.process_count = 0;
    for (uint32_t i = 0; i < count && c.process_count < VCAP_MPS_SETTINGS_PROCESSES; i++) {
        struct vcap_mps_look *look = &looks[c.process_count];
        if (pids[i] <= 0)
            continue;
        int error = hung ? -ETIMEDOUT : vcap_mps_look_at(NULL, pids[i], limit_ms, look);
        if (error == -ESRCH)
            continue;
        if (error != 0)
            *look = (struct vcap_mps_look){.pid = pids[i], .environment_error = error};
        hung = hung || error == -ETIMEDOUT || error == -EBUSY;
        c.process_count++;
    }
    uint32_t total = vcap_mps_lint(&c, findings, VCAP_MPS_SETTINGS_FINDINGS);
    uint32_t kept = total < VCAP_MPS_SETTINGS_FINDINGS ? total : VCAP_MPS_SETTINGS_FINDINGS;
    changed = !same(s, findings, kept, total);
    uint64_t in_force = 0;
    for (uint32_t i = 0; i < c.process_count; i++)
        if (!has_error(findings, kept, looks[i].pid))
            in_force |= limits_of(&c, &looks[i]);
    s->limit_count = 0;
    for (uint32_t g = 0; g < c.gpu_count && s->limit_count < VCAP_MPS_SETTINGS_LIMITS; g++)
        if (in_force >> g & 1)
            vcap_uuid_format(s->limits[s->limit_count++], c.gpus[g].uuid, c.gpus[g].mig);
    s->known = true;
    s->processes = hash_of(pids, count);
    s->due_ns = now_ns + AGAIN_NS;
    s->hung = hung;
    s->daemon_up = host->daemon_up;
    s->last_looked = c.process_count;
    if (changed) {
        struct vcap_mps_finding *before = s->findings;
        s->findings = kept > 0 ? findings : NULL;
        s->count = kept;
        s->total = total;
        findings = kept > 0 ? before : findings;
        if (kept == 0)
            free(before);
    }
out:
    free(looks);
    free(findings);
    return changed;
}

void vcap_mps_settings_free(struct vcap_mps_settings *s)
{
    free(s->findings);
    *s = (struct vcap_mps_settings){0};
}
