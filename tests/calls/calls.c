/*
 * The frames and the rules.  What a call should cost is written here from the rules in words
 * (reference/driver-api.md of the design), not from enforcer/rules.h.  VRAMCAP_CONTEXT_MIB is 16.
 */
#include "tests/calls/calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim_capture.h"
#include "tests/calls/frame.h"

struct call {
    const char *symbol;
    enum rule rule;
    CUresult (*make)(struct frame *f);
};

#include "calls_table.inc"

static uint64_t held(void)
{
    const char *path = getenv("VRAMCAP_LEDGER");
    uint64_t bytes = path != NULL && access(path, F_OK) == 0 ? ledger_charged(path, 0) : 0;

    return bytes == UINT64_MAX ? 0 : bytes; /* no row yet */
}

static int64_t whole_pages(uint64_t bytes)
{
    return (int64_t)((bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB));
}

static int64_t expected(enum rule rule, const struct frame *f)
{
    switch (rule) {
    case RULE_CHARGE_LINEAR:
    case RULE_CHARGE_MANAGED:
        return whole_pages(f->bytes);
    case RULE_CHARGE_PITCHED:
        return whole_pages((f->pitch != 0 ? f->pitch : f->old_pitch) * f->rows);
    case RULE_CHARGE_ARRAY: /* a mipmap of two levels, a quarter more */
        return (int64_t)((f->mipmap != NULL ? 10 : 8) * MIB);
    case RULE_CHARGE_LIMIT:
        return whole_pages(100 * MIB - f->bytes);
    case RULE_RELEASE_ARRAY:
    case RULE_RELEASE:
    case RULE_RELEASE_ASYNC:
        return -(int64_t)(8 * MIB);
    case RULE_CHARGE_PHYSICAL:
        return (int64_t)f->bytes;
    case RULE_CHARGE_EXTERNAL:
        return (int64_t)(6 * MIB);
    case RULE_RELEASE_EXTERNAL:
        return -(int64_t)(6 * MIB);
    case RULE_RELEASE_PHYSICAL:
    case RULE_UNMAP_PHYSICAL:
        return -(int64_t)f->bytes;
    case RULE_CONTEXT_CREATE:
    case RULE_PRIMARY_RETAIN:
    case RULE_GREEN_CREATE:
        return (int64_t)CONTEXT;
    case RULE_CONTEXT_DESTROY:
    case RULE_PRIMARY_RELEASE:
    case RULE_PRIMARY_RESET:
    case RULE_GREEN_DESTROY:
        return -(int64_t)(CONTEXT + 16 * MIB);
    case RULE_CHARGE_POOL: /* by the current pool, or by f->pool, which holds more than that idle */
        return (int64_t)(frame_reserved_current() + frame_reserved(f->pool) - f->idle);
    case RULE_POOL_DESTROY:
    case RULE_SYNCHRONIZE:
        return -(int64_t)f->idle;
    case RULE_CHARGE_GRAPH:
        return 40 * (int64_t)MIB;
    case RULE_GRAPH_INSTANTIATE: /* nothing, or the upload */
    case RULE_GRAPH_SETTLE:
        return (int64_t)frame_reserved_by_graphs() - (int64_t)f->idle;
    case RULE_POOL_SETTLE: /* a trim, or a threshold that lets the next synchronise do it */
        return (int64_t)frame_reserved(f->pool) - (int64_t)f->idle;
    default:
        return 0;
    }
}

static bool told_the_truth(enum rule rule, const struct frame *f)
{
    Dl_info where;

    if (rule == RULE_RESOLVER)
        return f->address != NULL && dladdr(f->address, &where) != 0 &&
               strstr(where.dli_fname, "libvramcap.so") != NULL;
    if (rule == RULE_VIEW_INFO)
        return (f->total == CEILING && f->free == CEILING - CONTEXT) ||
               (f->old_total == CEILING && f->old_free == CEILING - CONTEXT);
    if (rule == RULE_VIEW_TOTAL)
        return f->total == CEILING || f->old_total == CEILING;
    return true;
}

/* The rules that may refuse.  Idle memory of a pool serves what it holds, so pools are left to tests/hook. */
static bool may_refuse(enum rule rule)
{
    return (rule >= RULE_CHARGE_LINEAR && rule <= RULE_CHARGE_LIMIT) ||
           rule == RULE_CHARGE_PHYSICAL || rule == RULE_CHARGE_EXTERNAL ||
           rule == RULE_CONTEXT_CREATE || rule == RULE_PRIMARY_RETAIN ||
           rule == RULE_GREEN_CREATE || rule == RULE_CHARGE_GRAPH;
}

/* Takes what the ceiling has left, but for less than any call needs. */
static CUresult fill(void)
{
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    CUresult result = CUDA_SUCCESS;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    for (uint64_t bytes = 512 * MIB; bytes >= 2 * MIB && result != CUDA_ERROR_UNKNOWN; bytes /= 2)
        while ((result = cuMemCreate(&handle, bytes, &prop, 0)) == CUDA_SUCCESS)
            continue;
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

/* Above the ceiling: 2, the ledger unchanged, and nothing of the caller's touched. */
static int refused(const struct call *call)
{
    static struct frame f, before;
    uint64_t charged;
    CUresult result;

    if (!may_refuse(call->rule))
        return 0;
    memset(&f, 0, sizeof(f));
    result = frame_prepare(call->rule, &f);
    if (result == CUDA_SUCCESS)
        result = fill();
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: what comes before it gave %d\n", call->symbol, (int)result);
        return 3;
    }
    charged = held();
    memcpy(&before, &f, sizeof(f));
    result = call->make(&f);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || held() != charged ||
        /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): both began as the same bytes */
        memcmp(&before, &f, sizeof(f)) != 0) {
        fprintf(
            stderr, "%s above the ceiling: gave %d, %s, the ledger changed by %lld\n", call->symbol,
            (int)result,
            /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): both began as the same bytes */
            memcmp(&before, &f, sizeof(f)) != 0 ? "touched" : "untouched",
            (long long)held() - (long long)charged);
        return 1;
    }
    return 0;
}

/* Does the ledger keep this call's fault: one event, and the process's own word? */
static bool keeps_the_fault(const char *symbol, unsigned code)
{
    struct vcap_snapshot s;
    bool event = false, word = false;

    if (!ledger_read(getenv("VRAMCAP_LEDGER"), &s))
        return false;
    for (uint32_t i = 0; i < s.event_count; i++)
        event = event || (s.events[i].kind == VCAP_LF_EVENT_FAULT && s.events[i].code == code &&
                          strcmp(s.events[i].name, symbol) == 0);
    for (uint32_t i = 0; i < s.process_count; i++)
        word =
            word || (s.processes[i].pid == (uint32_t)getpid() && s.processes[i].fault_code == code);
    vcap_snapshot_free(&s);
    return event && word && ledger_events(getenv("VRAMCAP_LEDGER"), VCAP_LF_EVENT_FAULT) == 1;
}

/* The driver answers with a fault that stays: the caller has it as it is, the ledger keeps it, and what was
 * charged before is charged still. */
static int faulted(const struct call *call)
{
    bool (*fail_next)(const char *, unsigned, int) =
        (bool (*)(const char *, unsigned, int))(uintptr_t)dlsym(RTLD_DEFAULT, "vcapsim_fail");
    CUresult result;
    struct frame f;
    uint64_t before;

    /* a resolver runs nothing on a device, and before cuInit there is no place to keep a fault in */
    if (call->rule == RULE_INIT || call->rule == RULE_RESOLVER)
        return 0;
    memset(&f, 0, sizeof(f));
    result = frame_prepare(call->rule, &f);
    if (result != CUDA_SUCCESS || fail_next == NULL) {
        fprintf(stderr, "%s: what comes before it gave %d\n", call->symbol, (int)result);
        return 3;
    }
    before = held();
    fail_next(call->symbol, 1, CUDA_ERROR_LAUNCH_FAILED);
    result = call->make(&f);
    if (result != CUDA_ERROR_LAUNCH_FAILED || held() != before ||
        !keeps_the_fault(call->symbol, CUDA_ERROR_LAUNCH_FAILED)) {
        fprintf(stderr, "%s faulted: gave %d, %s, the ledger changed by %lld\n", call->symbol,
                (int)result,
                keeps_the_fault(call->symbol, CUDA_ERROR_LAUNCH_FAILED) ? "kept" : "not kept",
                (long long)held() - (long long)before);
        return 1;
    }
    return 0;
}

static bool releases(enum rule rule)
{
    return rule == RULE_RELEASE || rule == RULE_RELEASE_ASYNC || rule == RULE_RELEASE_ARRAY ||
           rule == RULE_RELEASE_EXTERNAL || rule == RULE_RELEASE_PHYSICAL;
}

/* What was released is released again: the driver's error, nothing taken off, one anomaly in the ledger. */
static int twice(const struct call *call)
{
    CUresult result, second;
    struct vcap_snapshot s;
    uint64_t before, count;
    struct frame f;

    if (!releases(call->rule))
        return 0;
    memset(&f, 0, sizeof(f));
    result = frame_prepare(call->rule, &f);
    if (result == CUDA_SUCCESS)
        result = call->make(&f);
    before = held();
    second = call->make(&f);
    if (!ledger_read(getenv("VRAMCAP_LEDGER"), &s))
        return 3;
    count = s.process_count == 1 ? s.processes[0].anomalies : UINT64_MAX;
    vcap_snapshot_free(&s);
    if (result != CUDA_SUCCESS || second == CUDA_SUCCESS || held() != before || count != 1 ||
        ledger_events(getenv("VRAMCAP_LEDGER"), VCAP_LF_EVENT_ANOMALY) != 1) {
        fprintf(stderr, "%s twice: gave %d and %d, %llu anomalies, the ledger changed by %lld\n",
                call->symbol, (int)result, (int)second, (unsigned long long)count,
                (long long)held() - (long long)before);
        return 1;
    }
    return 0;
}

/* ---- while another thread captures in GLOBAL mode ---- */

struct capture {
    pthread_barrier_t step;
    int wrong; /* the line */
};

#define DO(call)                                                                                   \
    do {                                                                                           \
        if (c->wrong == 0 && (call) != CUDA_SUCCESS)                                               \
            c->wrong = __LINE__;                                                                   \
    } while (0)

static void *capture_main(void *arg)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    struct capture *c = arg;
    CUcontext context;
    CUgraph graph = NULL;
    CUdeviceptr node;
    CUstream stream;
    size_t nodes = 0;

    DO(cuInit(0));
    DO(cuCtxCreate_v2(&context, 0, 0)); /* of its own: no call ends it or waits for it */
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DO(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    DO(cuMemAllocAsync(&node, MIB, stream));
    pthread_barrier_wait(&c->step);
    pthread_barrier_wait(&c->step);
    DO(cuStreamIsCapturing(stream, &status));
    DO(status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphGetNodes(graph, NULL, &nodes));
    DO(nodes == 1 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
    return NULL;
}

/* A pool with memory that nobody uses, and a ceiling that is full but for it. */
static CUresult fill_but_for_a_pool(void)
{
    CUresult result = CUDA_SUCCESS;
    CUcontext context = NULL;
    struct frame idle;

    memset(&idle, 0, sizeof(idle));
    cuCtxGetCurrent(&context);
    if (context == NULL)
        result = cuCtxCreate_v2(&context, 0, 0);
    if (result == CUDA_SUCCESS)
        result = frame_idle_pool(&idle);
    return result == CUDA_SUCCESS ? fill() : result;
}

/*
 * The other thread's capture ends valid, and this thread's own mode is as it was.  A call that the capture
 * forbids to the program is made in RELAXED mode, as a program has to; any other in GLOBAL mode, where the
 * hook's own questions to the driver would spoil the capture if they were asked in the program's mode.
 */
static int captured(const struct call *call, bool full)
{
    const CUstreamCaptureMode mine = sim_capture_unsafe(call->symbol)
                                         ? CU_STREAM_CAPTURE_MODE_RELAXED
                                         : CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUstreamCaptureMode mode = mine;
    struct capture c = {.wrong = 0};
    CUresult result;
    pthread_t thread;
    struct frame f;

    if (full && !may_refuse(call->rule) && call->rule != RULE_CHARGE_POOL)
        return 0;
    memset(&f, 0, sizeof(f));
    result = frame_prepare(call->rule, &f);
    pthread_barrier_init(&c.step, NULL, 2);
    if (result != CUDA_SUCCESS || pthread_create(&thread, NULL, capture_main, &c) != 0) {
        fprintf(stderr, "%s: what comes before it gave %d\n", call->symbol, (int)result);
        return 3;
    }
    pthread_barrier_wait(&c.step);
    cuThreadExchangeStreamCaptureMode(&mode);
    if (full) {
        CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

        cuThreadExchangeStreamCaptureMode(&relaxed);
        result = fill_but_for_a_pool();
        cuThreadExchangeStreamCaptureMode(&relaxed);
    }
    if (result == CUDA_SUCCESS)
        result = call->make(&f);
    if (full && result == CUDA_ERROR_OUT_OF_MEMORY)
        result = CUDA_SUCCESS;
    mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    cuThreadExchangeStreamCaptureMode(&mode);
    pthread_barrier_wait(&c.step);
    pthread_join(thread, NULL);
    if (result != CUDA_SUCCESS || mode != mine || c.wrong != 0) {
        fprintf(stderr, "%s beside a capture: gave %d, mode %d, not %d; the capture: line %d\n",
                call->symbol, (int)result, (int)mode, (int)mine, c.wrong);
        return 1;
    }
    return 0;
}

static int make(const struct call *call)
{
    struct frame f;
    CUresult result;
    int64_t before, change;

    memset(&f, 0, sizeof(f));
    result = frame_prepare(call->rule, &f);
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: what comes before it gave %d\n", call->symbol, (int)result);
        return 3;
    }
    before = (int64_t)held();
    result = call->make(&f);
    change = (int64_t)held() - before;
    if (getenv("VRAMCAP_TEST_BARE") != NULL) { /* tests/gpu: a driver without the library */
        if (result != CUDA_SUCCESS)
            fprintf(stderr, "%s: gave %d\n", call->symbol, (int)result);
        return result == CUDA_SUCCESS ? 0 : 1;
    }
    if (result != CUDA_SUCCESS || change != expected(call->rule, &f) ||
        !told_the_truth(call->rule, &f)) {
        fprintf(stderr, "%s: gave %d, the ledger changed by %lld, not %lld\n", call->symbol,
                (int)result, (long long)change, (long long)expected(call->rule, &f));
        return 1;
    }
    return 0;
}

static void *thread_main(void *arg)
{
    return (void *)(intptr_t)make(arg);
}

static int in_thread(const struct call *call)
{
    pthread_t thread;
    void *result;

    if (pthread_create(&thread, NULL, thread_main, (void *)(uintptr_t)call) != 0)
        return 4;
    pthread_join(thread, &result);
    return (int)(intptr_t)result;
}

static int in_child(const struct call *call)
{
    int status;
    pid_t pid = fork(); /* before cuInit: after it a child of the driver is no more than its
                           parent's shadow */

    if (pid == 0)
        _exit(make(call));
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 4;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int calls_run(const char *symbol, const char *frame)
{
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        if (strcmp(calls[i].symbol, symbol) != 0)
            continue;
        if (strcmp(frame, "refused") == 0)
            return refused(&calls[i]);
        if (strncmp(frame, "captured", 8) == 0)
            return captured(&calls[i], strcmp(frame, "captured_full") == 0);
        if (strcmp(frame, "twice") == 0)
            return twice(&calls[i]);
        if (strcmp(frame, "faulted") == 0)
            return faulted(&calls[i]);
        if (strcmp(frame, "thread") == 0)
            return in_thread(&calls[i]);
        if (strcmp(frame, "child") == 0)
            return in_child(&calls[i]);
        return make(&calls[i]);
    }
    return 2;
}

__attribute__((constructor)) static void at_load(void)
{
    const char *call = getenv("CALLS");
    char symbol[128];

    if (call == NULL || sscanf(call, "%127s", symbol) != 1)
        return;
    fflush(NULL);
    _exit(calls_run(symbol, "constructor"));
}
