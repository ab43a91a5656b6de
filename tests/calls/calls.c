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
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "tests/support/fixture.h"

/* in no header without OpenGL's and VDPAU's (cudaGL.h, cudaVDPAU.h) */
extern __typeof__(cuCtxCreate) cuGLCtxCreate, cuGLCtxCreate_v2;
extern CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device,
                                         uint32_t vdpau, void *get);
extern __typeof__(cuVDPAUCtxCreate) cuVDPAUCtxCreate_v2;
extern __typeof__(cuMemFreeAsync) cuMemFreeAsync_ptsz;
extern __typeof__(cuMemAllocAsync) cuMemAllocAsync_ptsz;
extern __typeof__(cuMemAllocFromPoolAsync) cuMemAllocFromPoolAsync_ptsz;
extern __typeof__(cuStreamSynchronize) cuStreamSynchronize_ptsz;
extern __typeof__(cuGraphInstantiateWithParams) cuGraphInstantiateWithParams_ptsz;
extern __typeof__(cuGraphUpload) cuGraphUpload_ptsz;
extern __typeof__(cuGraphLaunch) cuGraphLaunch_ptsz;

#define CONTEXT (16 * MIB)
#define CEILING (1024 * MIB)

struct frame {
    CUdeviceptr pointer;
    CUdeviceptr_v1 old;
    size_t bytes, rows, pitch, free, total;
    unsigned old_pitch, old_free, old_total;
    CUcontext context;
    CUdevResourceDesc part;
    CUgreenCtx green;
    CUarray array;
    CUmipmappedArray mipmap;
    CUDA_ARRAY_DESCRIPTOR flat; /* 1024 x 2048 floats in four ABIs */
    CUDA_ARRAY_DESCRIPTOR_v1 old_flat;
    CUDA_ARRAY3D_DESCRIPTOR box;
    CUDA_ARRAY3D_DESCRIPTOR_v1 old_box;
    void *address;
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle, created;
    CUdeviceptr range;
    CUipcMemHandle ipc;
    CUdeviceptr opened;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc;
    CUexternalMemory external;
    /* pools: `pool` has given 40 MiB and has them back, which stay reserved */
    CUmemPoolProps properties;
    CUmemoryPool pool, imported;
    CUmemPoolPtrExportData data;
    CUstream stream;
    CUevent event;
    cuuint64_t threshold;
    uint64_t idle; /* what `pool` has reserved */
    int fd;
    /* a graph with an allocation of 40 MiB and its free, not run yet; for settling, run */
    CUgraph graph;
    CUgraphExec exec;
    CUDA_GRAPH_INSTANTIATE_PARAMS instantiate;
};

enum rule {
    RULE_INIT,
    RULE_RESOLVER,
    RULE_CHARGE_LINEAR,
    RULE_CHARGE_PITCHED,
    RULE_CHARGE_MANAGED,
    RULE_CHARGE_ARRAY,
    RULE_CHARGE_LIMIT,
    RULE_RELEASE_ARRAY,
    RULE_RELEASE,
    RULE_RELEASE_ASYNC,
    RULE_CHARGE_PHYSICAL,
    RULE_RELEASE_PHYSICAL,
    RULE_RETAIN_PHYSICAL,
    RULE_MAP_PHYSICAL,
    RULE_UNMAP_PHYSICAL,
    RULE_IMPORT_PHYSICAL,
    RULE_EXPORT,
    RULE_IMPORT_OPEN,
    RULE_IMPORT_CLOSE,
    RULE_CHARGE_EXTERNAL,
    RULE_RELEASE_EXTERNAL,
    RULE_CONTEXT_CREATE,
    RULE_CONTEXT_DESTROY,
    RULE_PRIMARY_RETAIN,
    RULE_PRIMARY_RELEASE,
    RULE_PRIMARY_RESET,
    RULE_CHARGE_POOL,
    RULE_POOL_CREATE,
    RULE_POOL_DESTROY,
    RULE_POOL_SETTLE,
    RULE_POOL_EXPORT,
    RULE_POOL_IMPORT,
    RULE_POOL_IMPORT_POINTER,
    RULE_POOL_NAMED,
    RULE_SYNCHRONIZE,
    RULE_CHARGE_GRAPH,
    RULE_GRAPH_INSTANTIATE,
    RULE_GRAPH_SETTLE,
    RULE_GREEN_CREATE,
    RULE_GREEN_CONTEXT,
    RULE_GREEN_DESTROY,
    RULE_VIEW_INFO,
    RULE_VIEW_TOTAL
};

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

/* Physical memory needs no context. */
static CUresult prepare_physical(enum rule rule, struct frame *f)
{
    CUresult result;

    f->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    f->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    f->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    f->bytes = 6 * MIB;
    result = cuMemAddressReserve(&f->range, f->bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS || rule == RULE_CHARGE_PHYSICAL)
        return result;
    result = cuMemCreate(&f->handle, f->bytes, &f->prop, 0);
    if (result != CUDA_SUCCESS || rule == RULE_RELEASE_PHYSICAL || rule == RULE_MAP_PHYSICAL ||
        rule == RULE_EXPORT)
        return result;
    if (rule == RULE_IMPORT_PHYSICAL)
        return cuMemExportToShareableHandle(&f->fd, f->handle,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    result = cuMemMap(f->range, f->bytes, 0, f->handle, 0);
    if (result == CUDA_SUCCESS)
        result = cuMemRelease(f->handle);
    return result;
}

/* Another process of the container that lets us open 8 MiB.  Forked before cuInit. */
static bool start_exporter(struct frame *f)
{
    int ends[2];

    if (pipe(ends) != 0)
        return false;
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (cuInit(0) == CUDA_SUCCESS && cuCtxCreate_v2(&f->context, 0, 0) == CUDA_SUCCESS &&
            cuMemAlloc_v2(&f->pointer, 8 * MIB) == CUDA_SUCCESS &&
            cuIpcGetMemHandle(&f->ipc, f->pointer) == CUDA_SUCCESS &&
            write(ends[1], &f->ipc, sizeof(f->ipc)) == (ssize_t)sizeof(f->ipc))
            pause();
        _exit(1);
    }
    return read(ends[0], &f->ipc, sizeof(f->ipc)) == (ssize_t)sizeof(f->ipc);
}

static bool of_a_pool(enum rule rule)
{
    return rule >= RULE_CHARGE_POOL && rule <= RULE_SYNCHRONIZE;
}

static uint64_t reserved(CUmemoryPool pool)
{
    cuuint64_t bytes = 0;

    return cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS
               ? bytes
               : UINT64_MAX;
}

/* What the device's current pool has reserved. */
static uint64_t reserved_current(void)
{
    CUmemoryPool pool = NULL;

    return cuDeviceGetMemPool(&pool, 0) == CUDA_SUCCESS ? reserved(pool) : UINT64_MAX;
}

/* A pool that holds 40 MiB idle; for synchronising, one that does so until then. */
static CUresult prepare_pool(enum rule rule, struct frame *f)
{
    cuuint64_t threshold = rule == RULE_SYNCHRONIZE ? 0 : UINT64_MAX;
    CUdeviceptr pointer = 0;
    CUresult result;

    f->properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    f->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    if (rule == RULE_POOL_EXPORT || rule == RULE_POOL_IMPORT || rule == RULE_POOL_IMPORT_POINTER)
        f->properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    result = cuStreamCreate(&f->stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = cuMemPoolCreate(&f->pool, &f->properties);
    if (result == CUDA_SUCCESS)
        result = cuMemPoolSetAttribute(f->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    if (result == CUDA_SUCCESS)
        result = cuMemAllocFromPoolAsync(&pointer, 40 * MIB, f->pool, f->stream);
    if (result == CUDA_SUCCESS && rule == RULE_POOL_IMPORT_POINTER)
        result = cuMemPoolExportPointer(&f->data, pointer);
    else if (result == CUDA_SUCCESS && rule == RULE_POOL_EXPORT)
        f->pointer = pointer;
    else if (result == CUDA_SUCCESS && rule != RULE_POOL_IMPORT)
        result = cuMemFreeAsync(pointer, f->stream);
    if (result == CUDA_SUCCESS && f->properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        result = cuMemPoolExportToShareableHandle(&f->fd, f->pool,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS && rule == RULE_POOL_IMPORT_POINTER)
        result = cuMemPoolImportFromShareableHandle(&f->imported, (void *)(intptr_t)f->fd,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS && rule == RULE_SYNCHRONIZE)
        result = cuEventCreate(&f->event, 0);
    if (result == CUDA_SUCCESS && rule == RULE_SYNCHRONIZE)
        result = cuEventRecord(f->event, f->stream);
    f->idle = reserved(f->pool);
    return result;
}

static uint64_t reserved_by_graphs(void)
{
    cuuint64_t bytes = 0;

    return cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) ==
                   CUDA_SUCCESS
               ? bytes
               : UINT64_MAX;
}

static CUresult prepare_graph(enum rule rule, struct frame *f)
{
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    CUgraphNode first, second;
    CUresult result;

    memset(&alloc, 0, sizeof(alloc));
    alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    alloc.bytesize = 40 * MIB;
    f->instantiate.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    result = cuStreamCreate(&f->stream, CU_STREAM_NON_BLOCKING);
    f->instantiate.hUploadStream = f->stream;
    if (result == CUDA_SUCCESS)
        result = cuGraphCreate(&f->graph, 0);
    if (result == CUDA_SUCCESS)
        result = cuGraphAddMemAllocNode(&first, f->graph, NULL, 0, &alloc);
    if (result == CUDA_SUCCESS)
        result = cuGraphAddMemFreeNode(&second, f->graph, &first, 1, alloc.dptr);
    if (result == CUDA_SUCCESS && rule != RULE_GRAPH_INSTANTIATE)
        result = cuGraphInstantiateWithFlags(&f->exec, f->graph, 0);
    if (result == CUDA_SUCCESS && rule == RULE_GRAPH_SETTLE)
        result = cuGraphLaunch(f->exec, f->stream);
    f->idle = reserved_by_graphs();
    return result;
}

static void describe(struct frame *f)
{
    f->flat.Width = f->old_flat.Width = 1024;
    f->flat.Height = f->old_flat.Height = 2048;
    f->flat.NumChannels = f->old_flat.NumChannels = 1;
    f->flat.Format = f->old_flat.Format = CU_AD_FORMAT_FLOAT;
    f->box.Width = f->old_box.Width = 1024;
    f->box.Height = f->old_box.Height = 2048;
    f->box.NumChannels = f->old_box.NumChannels = 1;
    f->box.Format = f->old_box.Format = CU_AD_FORMAT_FLOAT;
}

/* All multiprocessors as one part, and a green context of it. */
static CUresult green(enum rule rule, struct frame *f)
{
    CUdevResource whole;
    CUresult result = cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM);

    if (result == CUDA_SUCCESS)
        result = cuDevResourceGenerateDesc(&f->part, &whole, 1);
    if (result != CUDA_SUCCESS || rule == RULE_GREEN_CREATE)
        return result;
    result = cuGreenCtxCreate(&f->green, f->part, 0, CU_GREEN_CTX_DEFAULT_STREAM);
    if (result == CUDA_SUCCESS && rule == RULE_GREEN_DESTROY)
        result = cuCtxFromGreenCtx(&f->context, f->green);
    if (result == CUDA_SUCCESS && rule == RULE_GREEN_DESTROY)
        result = cuCtxSetCurrent(f->context);
    return result != CUDA_SUCCESS || rule == RULE_GREEN_CONTEXT
               ? result
               : cuMemAlloc_v2(&f->pointer, 16 * MIB);
}

/* Everything that has to be there before the call.  0, or the driver's error. */
static CUresult prepare(enum rule rule, struct frame *f)
{
    CUresult result;

    if ((rule == RULE_IMPORT_OPEN || rule == RULE_IMPORT_CLOSE) && !start_exporter(f))
        return CUDA_ERROR_OPERATING_SYSTEM;
    result = rule == RULE_INIT ? CUDA_SUCCESS : cuInit(0);
    f->bytes = 5 * MIB + 3;
    f->rows = 10000;
    describe(f);
    if (result != CUDA_SUCCESS || rule == RULE_INIT || rule == RULE_RESOLVER ||
        rule == RULE_CONTEXT_CREATE || rule == RULE_PRIMARY_RETAIN || rule == RULE_VIEW_TOTAL)
        return result;
    if (rule >= RULE_CHARGE_PHYSICAL && rule <= RULE_IMPORT_PHYSICAL)
        return prepare_physical(rule, f);
    if (rule == RULE_GREEN_CREATE || rule == RULE_GREEN_CONTEXT || rule == RULE_GREEN_DESTROY)
        return green(rule, f);
    if (rule == RULE_PRIMARY_RELEASE || rule == RULE_PRIMARY_RESET) {
        result = cuDevicePrimaryCtxRetain(&f->context, 0);
        if (result == CUDA_SUCCESS)
            result = cuCtxSetCurrent(f->context);
    } else {
        result = cuCtxCreate_v2(&f->context, 0, 0);
    }
    if (result == CUDA_SUCCESS && rule == RULE_CHARGE_LIMIT)
        result = cuCtxGetLimit(&f->bytes, CU_LIMIT_MALLOC_HEAP_SIZE);
    if (result != CUDA_SUCCESS || rule == RULE_CHARGE_LINEAR || rule == RULE_CHARGE_PITCHED ||
        rule == RULE_CHARGE_MANAGED || rule == RULE_CHARGE_ARRAY || rule == RULE_CHARGE_LIMIT ||
        rule == RULE_VIEW_INFO || rule == RULE_IMPORT_OPEN)
        return result;
    if (rule == RULE_IMPORT_CLOSE)
        return cuIpcOpenMemHandle_v2(&f->opened, f->ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (rule == RULE_CHARGE_EXTERNAL || rule == RULE_RELEASE_EXTERNAL) {
        f->desc.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
        f->desc.handle.fd = dup(2);
        f->desc.size = 6 * MIB;
        return rule == RULE_CHARGE_EXTERNAL ? CUDA_SUCCESS
                                            : cuImportExternalMemory(&f->external, &f->desc);
    }
    if (rule == RULE_CHARGE_GRAPH || rule == RULE_GRAPH_INSTANTIATE || rule == RULE_GRAPH_SETTLE)
        return prepare_graph(rule, f);
    if (of_a_pool(rule))
        return prepare_pool(rule, f);
    if (rule == RULE_RELEASE_ARRAY) {
        result = cuArrayCreate_v2(&f->array, &f->flat);
        return result != CUDA_SUCCESS ? result : cuMipmappedArrayCreate(&f->mipmap, &f->box, 1);
    }
    result = cuMemAlloc_v2(&f->pointer, 8 * MIB);
    if (result == CUDA_SUCCESS)
        result = cuMemAlloc(&f->old, (unsigned)(8 * MIB));
    if (result == CUDA_SUCCESS && rule == RULE_EXPORT)
        result = prepare_physical(rule, f);
    return result;
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
        return (int64_t)(reserved_current() + reserved(f->pool) - f->idle);
    case RULE_POOL_DESTROY:
    case RULE_SYNCHRONIZE:
        return -(int64_t)f->idle;
    case RULE_CHARGE_GRAPH:
        return 40 * (int64_t)MIB;
    case RULE_GRAPH_INSTANTIATE: /* nothing, or the upload */
    case RULE_GRAPH_SETTLE:
        return (int64_t)reserved_by_graphs() - (int64_t)f->idle;
    case RULE_POOL_SETTLE: /* a trim, or a threshold that lets the next synchronise do it */
        return (int64_t)reserved(f->pool) - (int64_t)f->idle;
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
    result = prepare(call->rule, &f);
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
    result = prepare(call->rule, &f);
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

static int make(const struct call *call)
{
    struct frame f;
    CUresult result;
    int64_t before, change;

    memset(&f, 0, sizeof(f));
    result = prepare(call->rule, &f);
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
