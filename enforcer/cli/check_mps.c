/*
 * MPS as this process has it: client or not, by the driver's word; its limit, by the lint that the agent
 * uses too; and what MPS's limit does not do.
 */
#include "enforcer/cli/check.h"

#include <stdio.h>
#include <string.h>

#include "enforcer/agent/mps_lint.h"
#include "enforcer/ceiling.h"

#define LOOK_MS 500
#define FINDINGS 24

static void fill_gpus(const struct vcap_check *check, struct vcap_mps_gpu *gpus, uint32_t *count)
{
    *count = 0;
    for (int32_t i = 0; check->have_driver && i < check->driver.device_count; i++) {
        const struct vcap_check_device *d = &check->driver.device[i];
        struct vcap_mps_gpu *g = &gpus[(*count)++];
        char uuid[VCAP_UUID_TEXT_SIZE];

        memcpy(g->uuid, d->uuid, sizeof g->uuid);
        g->mig = d->mig != 0;
        g->card_bytes = VCAP_UNKNOWN; /* the driver's word is under the ceiling already */
        g->ceiling_bytes = VCAP_NO_LIMIT;
        vcap_uuid_format(uuid, d->uuid, g->mig);
        for (uint32_t k = 0; check->have_ledger && k < check->snapshot.gpu_count; k++)
            if (!strcmp(check->snapshot.gpus[k].uuid, uuid))
                g->ceiling_bytes = check->snapshot.gpus[k].ceiling_bytes;
    }
}

static bool lint(struct vcap_check *check)
{
    static struct vcap_mps_look look; /* large */
    static struct vcap_mps_finding findings[FINDINGS];
    struct vcap_mps_gpu gpus[VCAP_CHECK_DEVICES];
    struct vcap_mps_container container = {.process_count = 1, .processes = &look, .gpus = gpus};
    uint32_t count;

    if (vcap_mps_look_at(NULL, check->pid, LOOK_MS, &look) != 0)
        return false;
    fill_gpus(check, gpus, &container.gpu_count);
    container.gpus_known = container.gpu_count > 0;
    container.all_visible = true;
    /* the driver has told what is visible; the variables that chose it must not choose again */
    look.variable[VCAP_MPS_VAR_VISIBLE].set = false;
    look.variable[VCAP_MPS_VAR_NVIDIA_VISIBLE].set = false;
    count = vcap_mps_lint(&container, findings, FINDINGS);
    for (uint32_t i = 0; i < count && i < FINDINGS; i++)
        vcap_check_say(check, "mps-settings", findings[i].uuid[0] ? findings[i].uuid : NULL,
                       findings[i].severity == VCAP_MPS_NOTE ? VCAP_CHECK_NOTE : VCAP_CHECK_FINDING,
                       "%s: %s", vcap_mps_lint_name(findings[i].kind), findings[i].evidence);
    return true;
}

/* What processes of this container found out about MPS's limit, by the events that are still in the ring. */
static void say_events(struct vcap_check *check)
{
    const struct vcap_snapshot *s = &check->snapshot;

    for (uint32_t i = 0; check->have_ledger && i < s->event_count; i++) {
        unsigned times = 0;
        bool first = true;

        if (s->events[i].kind != VCAP_LF_EVENT_MPS)
            continue;
        for (uint32_t k = 0; k < s->event_count; k++) {
            bool same = s->events[k].kind == VCAP_LF_EVENT_MPS &&
                        strcmp(s->events[k].name, s->events[i].name) == 0;
            first = first && !(same && k < i);
            times += same;
        }
        if (first)
            vcap_check_say(check, "mps-events", NULL, VCAP_CHECK_FINDING,
                           "%s: found by %u process%s of this container (vramcap events)",
                           s->events[i].name, times, times == 1 ? "" : "es");
    }
}

/* As the process itself wrote it into its slot; -1: it has none, or did not say. */
static int client_by_slot(const struct vcap_check *check)
{
    const struct vcap_process *process = &check->map.process;

    if (!check->have_ledger || process->pidns == 0)
        return -1;
    for (uint32_t i = 0; i < check->snapshot.process_count; i++) {
        const struct vcap_snapshot_process *p = &check->snapshot.processes[i];
        if (p->life != VCAP_LIFE_DEAD && p->mps != VCAP_LF_MPS_UNKNOWN &&
            p->pidns == process->pidns && p->pid == (uint32_t)process->pid_in_ns &&
            (p->start_time == 0 || p->start_time == process->start_time))
            return p->mps == VCAP_LF_MPS_CLIENT;
    }
    return -1;
}

void vcap_check_mps(struct vcap_check *check)
{
    char limit[VCAP_MPS_VALUE] = "", pipe[256] = "";
    bool has_limit =
        vcap_check_variable(check, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit, sizeof limit);
    bool has_pipe = vcap_check_variable(check, "CUDA_MPS_PIPE_DIRECTORY", pipe, sizeof pipe);
    int client = -1;

    for (int32_t i = 0; check->have_driver && i < check->driver.device_count; i++)
        if (check->driver.device[i].mps > client)
            client = check->driver.device[i].mps;
    if (!check->self)
        client = client_by_slot(check);
    if (client == 1)
        vcap_check_say(
            check, "mps", NULL, VCAP_CHECK_OK,
            "client of MPS, by the driver's word; limit %.60s (for each process of it, not "
            "for the container)",
            has_limit                       ? limit
            : check->environment_error != 0 ? "not known"
                                            : "of the server, or none");
    else if (client == 0 && (has_limit || has_pipe))
        vcap_check_say(
            check, "mps", NULL, VCAP_CHECK_FINDING,
            "no client of MPS, by the driver's word, although %s is set: MPS limits nothing "
            "here, only vramcap's ceiling holds",
            has_limit ? "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" : "CUDA_MPS_PIPE_DIRECTORY");
    else if (client == 0)
        vcap_check_say(check, "mps", NULL, VCAP_CHECK_NOTE, "not in use, by the driver's word");
    else
        vcap_check_say(
            check, "mps", NULL, VCAP_CHECK_UNKNOWN,
            "whether this is a client of MPS, the driver does not say (attribute 133 came "
            "with CUDA 12.2)");
    if ((has_limit || has_pipe) && !lint(check))
        vcap_check_say(check, "mps-settings", NULL, VCAP_CHECK_UNKNOWN,
                       "process %d could not be looked at", (int)check->pid);
    say_events(check);
}
