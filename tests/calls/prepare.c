/*
 * What has to be there before a bare call, by its rule.
 */
#include "tests/calls/frame.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

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

uint64_t frame_reserved(CUmemoryPool pool)
{
    cuuint64_t bytes = 0;

    return cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS
               ? bytes
               : UINT64_MAX;
}

uint64_t frame_reserved_current(void)
{
    CUmemoryPool pool = NULL;

    return cuDeviceGetMemPool(&pool, 0) == CUDA_SUCCESS ? frame_reserved(pool) : UINT64_MAX;
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
    f->idle = frame_reserved(f->pool);
    return result;
}

uint64_t frame_reserved_by_graphs(void)
{
    cuuint64_t bytes = 0;

    return cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) ==
                   CUDA_SUCCESS
               ? bytes
               : UINT64_MAX;
}

CUresult frame_idle_pool(struct frame *f)
{
    return prepare_pool(RULE_CHARGE_POOL, f);
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
    f->idle = frame_reserved_by_graphs();
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

CUresult frame_prepare(enum rule rule, struct frame *f)
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
