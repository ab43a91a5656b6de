/*
 * Makes the image of format 1 that is kept here:  make_image FILE
 *
 * Run once, when a format is released; the image then stays as it is, and every later reader must say of
 * it what ledger-1.json and ledger-1.events say.  All processes are of another PID namespace: kind PID is
 * unknown from here, kind LOCK without its lock is gone.
 */
#include "tests/cli/ledger_image.h"

static void fill_gpus(struct image *m)
{
    image_gpu(m, 0, 4096, VCAP_LF_SOURCE_HOST);
    image_gpu(m, 1, 1000, VCAP_LF_SOURCE_ENV);
    image_gpu(m, 2, UINT64_MAX, VCAP_LF_SOURCE_NONE);
    m->gpus[0].card_bytes = 81920 * IMAGE_MIB;
    m->gpus[0].near = 1;
    m->gpus[0].refusals = 3;
    m->gpus[0].refused_bytes = 3000 * IMAGE_MIB;
    m->gpus[0].peak_bytes = 4000 * IMAGE_MIB;
    m->gpus[0].source_bytes[VCAP_LF_SOURCE_HOST - VCAP_LF_SOURCE_FIRST] = 4096 * IMAGE_MIB + 1;
    m->gpus[0].source_bytes[VCAP_LF_SOURCE_ENV - VCAP_LF_SOURCE_FIRST] = 8192 * IMAGE_MIB + 1;
    m->gpus[0].source_bytes[VCAP_LF_SOURCE_MPS - VCAP_LF_SOURCE_FIRST] = UINT64_MAX;
    m->gpus[1].flags = VCAP_LF_GPU_MIG;
    m->gpus[1].over_bytes = 500 * IMAGE_MIB;
    m->gpus[1].audit_refusals = 7;
    m->gpus[2].device_full = 2;
}

static void fill_processes(struct image *m)
{
    image_process(m, 0, 0, 3000, "serve");
    m->slots[0].state = vcap_lf_state(5, VCAP_LF_KIND_PID, VCAP_LF_LIVE);
    m->slots[0].refusals = 3;
    m->slots[0].fault_code = 700;
    m->slots[0].fault_ns = UINT64_C(1764540638000000000);
    m->cells[0][0].overhead_bytes = 400 * IMAGE_MIB;
    m->cells[0][0].limit_bytes = 3500 * IMAGE_MIB;
    image_process(m, 2, 0, 900, "train");
    image_process(m, 3, 1, 1500, "audited");
    m->slots[3].state = vcap_lf_state(9, VCAP_LF_KIND_PID, VCAP_LF_LIVE);
    m->slots[3].mode = VCAP_LF_MODE_AUDIT;
    m->slots[3].gaps = 1;
    m->slots[3].anomalies = 2;
    m->cells[3][1].imported_bytes = 64 * IMAGE_MIB;
}

static void fill_events(struct image *m)
{
    struct vcap_lf_event *e;

    for (uint32_t kind = VCAP_LF_EVENT_ATTACH; kind <= VCAP_LF_EVENT_RENEWED; kind++) {
        e = image_event(m, (enum vcap_lf_event_kind)kind, "name");
        e->gpu = kind % 4 == 3 ? UINT32_MAX : kind % 4;
        e->bytes = kind * IMAGE_MIB;
        e->held = kind * 2 * IMAGE_MIB;
        e->limit = kind == VCAP_LF_EVENT_RESIZE ? UINT64_MAX : kind * 3 * IMAGE_MIB;
        e->code = kind;
    }
    e->end = 0; /* its writer died */
}

int main(int argc, char **argv)
{
    static struct image m;

    image_init(&m);
    (void)snprintf(m.header.key, sizeof m.header.key, "golden");
    (void)snprintf(m.header.container, sizeof m.header.container, "box");
    m.header.flags = VCAP_LF_HOST_MADE;
    m.header.default_ceiling = vcap_lf_ceiling(IMAGE_UNITS(4096), VCAP_LF_SOURCE_HOST);
    m.header.near_percent = 90;
    m.header.context_bytes = UINT64_MAX;
    m.header.host_changes = 4;
    m.header.anomalies = 2;
    fill_gpus(&m);
    fill_processes(&m);
    fill_events(&m);
    return argc == 2 ? -image_write(&m, sizeof m, argv[1]) : 2;
}
