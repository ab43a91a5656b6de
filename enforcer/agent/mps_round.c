/*
 * One container after another, the ones that wait longest first, until the round's share of time is
 * used up.  A container that cannot be asked is known as such (a finding), never passed over.
 */
#include "enforcer/agent/mps_round.h"

#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "enforcer/agent/event_line.h"
#include "enforcer/agent/mps_settings.h"
#include "enforcer/kernel.h"

#define SHARE_NS UINT64_C(50000000)

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The bytes of "GPU-8-4-4-4-12" as the reader and NVML write it. */
static bool uuid_bytes(const char *text, uint8_t uuid[16])
{
    size_t at = 0;
    if (strlen(text) != 40)
        return false;
    for (const char *p = text + 4; *p && at < 32; p++) {
        int digit = hex(*p);
        if (*p == '-')
            continue;
        if (digit < 0)
            return false;
        uuid[at / 2] = (uint8_t)(at % 2 ? uuid[at / 2] | digit : digit << 4);
        at++;
    }
    return at == 32;
}

static uint64_t ceiling_of(const struct vcap_watched *w, const char *uuid)
{
    for (uint32_t i = 0; i < w->snapshot.gpu_count; i++)
        if (strcmp(w->snapshot.gpus[i].uuid, uuid) == 0)
            return w->snapshot.gpus[i].ceiling_bytes;
    return w->snapshot.default_ceiling_bytes;
}

/* The daemon that is watched, in what is the same for every container. */
static void fill_daemon(const struct vcap_mps_watch *watch, struct vcap_mps_container *host)
{
    struct stat st;
    if (watch && vcap_mps_watch_status(watch)->state == VCAP_MPS_UP &&
        stat(vcap_mps_watch_pipe_directory(watch), &st) == 0) {
        host->daemon_up = true;
        host->daemon_device = st.st_dev;
        host->daemon_inode = st.st_ino;
    }
}

static void fill_host(const struct vcap_agent *a, const struct vcap_watched *w,
                      struct vcap_mps_gpu *gpus, struct vcap_mps_container *host)
{
    const struct vcap_nvml_sample *n = a->nvml;

    host->gpus = gpus;
    host->all_visible = !w->name.container;
    host->gpus_known = n && n->state == VCAP_NVML_OK && n->gpu_count <= VCAP_MPS_GPUS_MAX;
    for (uint32_t i = 0; host->gpus_known && i < n->gpu_count; i++) {
        struct vcap_mps_gpu *gpu = &gpus[host->gpu_count++];
        *gpu = (struct vcap_mps_gpu){.mig = n->gpus[i].mig,
                                     .card_bytes = n->gpus[i].total_bytes,
                                     .ceiling_bytes = ceiling_of(w, n->gpus[i].uuid)};
        if (!uuid_bytes(n->gpus[i].uuid, gpu->uuid))
            host->gpus_known = false;
    }
}

static void say(const struct vcap_watched *w)
{
    const struct vcap_mps_settings *s = &w->mps;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct vcap_mps_finding *f = &s->findings[i];
        struct vcap_text line = {0};
        vcap_line_begin(&line, f->severity == VCAP_MPS_NOTE ? VCAP_LINE_INFO : VCAP_LINE_WARN,
                        "mps-setting", 0);
        vcap_line_word(&line, "container", w->label);
        vcap_line_word(&line, "finding", vcap_mps_lint_name(f->kind));
        vcap_line_word(&line, "severity", vcap_mps_severity_name(f->severity));
        if (f->pid > 0)
            vcap_line_number(&line, "host_pid", (uint64_t)f->pid);
        if (f->uuid[0])
            vcap_line_word(&line, "gpu_uuid", f->uuid);
        vcap_line_word(&line, "evidence", f->evidence);
        (void)vcap_line_end(&line);
        vcap_text_free(&line);
    }
}

void vcap_mps_round(struct vcap_agent *a, const struct vcap_mps_watch *watch)
{
    const uint64_t begin = vcap_clock_ns(CLOCK_MONOTONIC);
    struct vcap_mps_container daemon = {0};

    fill_daemon(watch, &daemon);
    for (size_t i = 0; i < a->count; i++) {
        struct vcap_watched *w = a->all[(i + a->rounds) % a->count];
        struct vcap_mps_gpu gpus[VCAP_MPS_GPUS_MAX];
        struct vcap_mps_container host = daemon;
        uint64_t now = vcap_clock_ns(CLOCK_MONOTONIC);

        if (!vcap_watched_is_present(w) ||
            !vcap_mps_settings_due(&w->mps, w->host_pids, w->snapshot.process_count, host.daemon_up,
                                   now))
            continue;
        fill_host(a, w, gpus, &host);
        bool was_known = w->mps.known;
        if (vcap_mps_settings_look(&w->mps, &host, w->host_pids, w->snapshot.process_count,
                                   VCAP_MPS_SETTINGS_LOOK_MS, now) &&
            (was_known || w->mps.count > 0))
            say(w);
        if (vcap_clock_ns(CLOCK_MONOTONIC) - begin >= SHARE_NS)
            return;
    }
}

bool vcap_mps_in_force(const struct vcap_watched *w, const char *uuid)
{
    if (!w->mps.known)
        return false;
    for (uint32_t i = 0; i < w->mps.limit_count; i++)
        if (strcmp(w->mps.limits[i], uuid) == 0)
            return true;
    return false;
}

json_t *vcap_mps_settings_json(const struct vcap_watched *w)
{
    json_t *findings;
    if (!w->mps.known)
        return json_null();
    findings = json_array();
    for (uint32_t i = 0; findings && i < w->mps.count; i++) {
        const struct vcap_mps_finding *f = &w->mps.findings[i];
        json_t *one =
            json_pack("{s:s, s:s, s:o, s:s?, s:s}", "finding", vcap_mps_lint_name(f->kind),
                      "severity", vcap_mps_severity_name(f->severity), "host_pid",
                      f->pid > 0 ? json_integer(f->pid) : json_null(), "gpu_uuid",
                      f->uuid[0] ? f->uuid : NULL, "evidence", f->evidence);
        if (json_array_append_new(findings, one) != 0) {
            json_decref(findings);
            return NULL;
        }
    }
    return json_pack("{s:o, s:i}", "findings", findings, "findings_total", (int)w->mps.total);
}
