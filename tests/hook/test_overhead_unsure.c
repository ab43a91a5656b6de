/*
 * Overhead beside memory of which nobody says whether MPS counts it: managed, external, another process's; and
 * beside what the driver has taken and is not booked yet.  What is booked is never more than is certain.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/hook/overhead.h"
#include "tests/hook/pair.h"

/* The simulator does not count it; that another driver may is allowed for: see the one after. */
static int managed_memory_never_makes_it_more_than_is_certain(void)
{
    CUdeviceptr managed;
    CUmodule module;

    OK(begin(0));
    OK(api.cuMemAllocManaged(&managed, 100 * MIB, CU_MEM_ATTACH_GLOBAL));
    free_now();
    HOLDS(100 * MIB, CONTEXT);
    module = load(); /* 30 MiB: the driver may have taken them for the managed memory */
    free_now();
    HOLDS(100 * MIB, CONTEXT);
    OK(api.cuModuleUnload(module));
    free_now();
    HOLDS(100 * MIB, CONTEXT);
    CHECK(load() != NULL);
    OK(api.cuMemFree_v2(managed));
    free_now();
    HOLDS(0, CONTEXT + 30 * MIB);
    OK(api.cuMemAllocManaged(&managed, 10 * MIB, CU_MEM_ATTACH_GLOBAL));
    CHECK(load() != NULL); /* of this one 20 MiB are certain */
    free_now();
    HOLDS(10 * MIB, CONTEXT + 50 * MIB);
    return 0;
}

/* Memory of another API, which is charged: the driver may count it for its maker, or here. */
static int external_memory_never_makes_it_more_than_is_certain(void)
{
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc;
    CUexternalMemory external;

    OK(begin(0));
    memset(&desc, 0, sizeof(desc));
    desc.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    desc.handle.fd = dup(2);
    desc.size = 100 * MIB;
    OK(api.cuImportExternalMemory(&external, &desc));
    free_now();
    HOLDS(100 * MIB, CONTEXT);
    OK(api.cuDestroyExternalMemory(external));
    free_now();
    HOLDS(0, CONTEXT);
    return 0;
}

static int managed_memory_of_pools_stops_the_measuring(void)
{
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemPoolCreate(&pool, &props));
    OK(api.cuMemAllocFromPoolAsync(&pointer, 64 * MIB, pool, NULL));
    CHECK(load() != NULL);
    free_now();
    SAME(gpu_row(0).overhead_bytes, CONTEXT);
    OK(api.cuMemFreeAsync(pointer, NULL));
    OK(api.cuCtxSynchronize());
    free_now();
    HOLDS(0, CONTEXT + 30 * MIB);
    return 0;
}

/* ---- a graph's launch ---- */

static CUgraphExec graph_of(size_t bytes)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUgraphNode first, second;
    CUgraphExec exec = NULL;
    CUgraph graph;

    memset(&params, 0, sizeof(params));
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params.bytesize = bytes;
    return api.cuGraphCreate(&graph, 0) == CUDA_SUCCESS &&
                   api.cuGraphAddMemAllocNode(&first, graph, NULL, 0, &params) == CUDA_SUCCESS &&
                   api.cuGraphAddMemFreeNode(&second, graph, &first, 1, params.dptr) ==
                       CUDA_SUCCESS &&
                   api.cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS
               ? exec
               : NULL;
}

struct launching {
    CUcontext context;
    CUgraphExec exec;
};

static void *launch(void *arg)
{
    const struct launching *l = arg;

    return (void *)(uintptr_t)(api.cuCtxSetCurrent(l->context) != CUDA_SUCCESS ||
                               api.cuGraphLaunch(l->exec, NULL) != CUDA_SUCCESS);
}

/* The third question about the graphs' memory is the one whose answer is booked: it is late. */
static int what_a_launch_took_and_is_not_booked_yet_is_not_taken_for_overhead(void)
{
    struct launching l;
    pthread_t thread;
    void *bad;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&l.context, 0, 0));
    CHECK((l.exec = graph_of(80 * MIB)) != NULL);
    CHECK(pthread_create(&thread, NULL, launch, &l) == 0);
    while (journal_count("cuDeviceGetGraphMemAttribute") < 3)
        sched_yield();
    while (gpu_row(0).charged_bytes == 0) {
        free_now();
        SAME(gpu_row(0).overhead_bytes, CONTEXT);
    }
    CHECK(pthread_join(thread, &bad) == 0);
    CHECK(bad == NULL);
    free_now();
    HOLDS(80 * MIB, CONTEXT);
    return 0;
}

/* ---- the limit of a context ---- */

static uint64_t all_threads(void)
{
    int processors = 0, each = 0;

    api.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
    api.cuDeviceGetAttribute(&each, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0);
    return (uint64_t)processors * (uint64_t)each;
}

static uint64_t pages(uint64_t bytes)
{
    return (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

static void *widen(void *context)
{
    size_t before = 0;

    return (void *)(uintptr_t)(api.cuCtxSetCurrent(context) != CUDA_SUCCESS ||
                               api.cuCtxGetLimit(&before, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS ||
                               api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before + 17) != CUDA_SUCCESS);
}

/* The driver makes 32 of 17 bytes a thread.  The third question for the limit tells so, late. */
static int what_a_limit_is_rounded_up_by_is_not_taken_for_overhead(void)
{
    CUcontext context;
    pthread_t thread;
    void *bad;

    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&context, 0, 0));
    CHECK(pages(17 * all_threads()) != pages(32 * all_threads()));
    CHECK(pthread_create(&thread, NULL, widen, context) == 0);
    while (journal_count("cuCtxGetLimit") < 3)
        sched_yield();
    for (;;) {
        struct vcap_snapshot_gpu row;

        free_now();
        row = gpu_row(0);
        SAME(row.overhead_bytes, CONTEXT);
        if (row.charged_bytes == pages(32 * all_threads()))
            break;
        SAME(row.charged_bytes, pages(17 * all_threads()));
    }
    CHECK(pthread_join(thread, &bad) == 0);
    CHECK(bad == NULL);
    free_now();
    HOLDS(pages(32 * all_threads()), CONTEXT);
    return 0;
}

/* Another process's memory, opened and mapped here: it counts there, and may count here. */
#define SHARED (100 * MIB)

static int sharer(void)
{
    CUmemGenericAllocationHandle physical;
    CUmemAllocationProp prop;
    CUipcMemHandle handle;
    CUdeviceptr pointer;
    int fd = -1;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, SHARED));
    OK(api.cuIpcGetMemHandle(&handle, pointer));
    CHECK(pair_send(&handle, sizeof(handle), -1));
    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(api.cuMemCreate(&physical, SHARED, &prop, 0));
    OK(api.cuMemExportToShareableHandle(&fd, physical, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                        0));
    CHECK(pair_send("f", 1, fd));
    AWAIT();
    return 0;
}

/* Of another container: nothing of its own is on record, and the importer is charged. */
static int strange_sharer(void)
{
    OK(setenv("VRAMCAP_ENABLE", "0", 1));
    return sharer();
}

static uint64_t own_overhead(void)
{
    uint64_t found = VCAP_UNKNOWN;
    struct vcap_snapshot snapshot;

    if (!ledger_read(self.ledger, &snapshot))
        return VCAP_UNKNOWN;
    for (uint32_t i = 0; i < snapshot.process_count; i++)
        if (snapshot.processes[i].pid == (uint32_t)getpid() &&
            snapshot.processes[i].charge_count == 1)
            found = snapshot.processes[i].charges[0].overhead_bytes;
    vcap_snapshot_free(&snapshot);
    return found;
}

static int open_and_map(int (*other)(void), uint64_t charged_here)
{
    CUmemGenericAllocationHandle physical;
    CUdeviceptr opened, range;
    CUipcMemHandle handle;
    char byte;
    int fd = -1;

    CHECK(pair_start(other));
    OK(begin(0));
    CHECK(pair_receive(&handle, sizeof(handle), NULL));
    OK(api.cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    free_now();
    SAME(ledger_charged_by(self.ledger, 0, getpid()), CONTEXT + charged_here);
    SAME(own_overhead(), CONTEXT);
    CHECK(pair_receive(&byte, 1, &fd));
    OK(api.cuMemImportFromShareableHandle(&physical, (void *)(intptr_t)fd,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    OK(api.cuMemAddressReserve(&range, SHARED, 0, 0, 0));
    OK(api.cuMemMap(range, SHARED, 0, physical, 0));
    free_now();
    SAME(ledger_charged_by(self.ledger, 0, getpid()), CONTEXT + 2 * charged_here);
    SAME(own_overhead(), CONTEXT);
    OK(api.cuIpcCloseMemHandle(opened));
    OK(api.cuMemUnmap(range, SHARED));
    OK(api.cuMemRelease(physical));
    CHECK(load() != NULL);
    free_now();
    SAME(own_overhead(), CONTEXT + 30 * MIB);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

static int imports_that_are_shown_leave_it_as_it_is(void)
{
    return open_and_map(sharer, 0);
}

static int imports_that_are_charged_leave_it_as_it_is(void)
{
    return open_and_map(strange_sharer, SHARED);
}

/* ---- openings that the driver has done and nobody has booked ---- */

static int sharer_of_a_pool(void)
{
    CUmemPoolPtrExportData name;
    CUmemPoolProps props;
    CUdeviceptr pointer;
    CUmemoryPool pool;
    int fd = -1;

    memset(&props, 0, sizeof(props));
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(begin(0));
    OK(api.cuMemPoolCreate(&pool, &props));
    OK(api.cuMemAllocFromPoolAsync(&pointer, SHARED, pool, NULL));
    OK(api.cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            0));
    OK(api.cuMemPoolExportPointer(&name, pointer));
    CHECK(pair_send(&name, sizeof(name), fd));
    AWAIT();
    return 0;
}

struct opening {
    CUcontext context;
    CUipcMemHandle handle;
    CUmemoryPool pool; /* not NULL: its pointer of this name is opened */
    CUmemPoolPtrExportData name;
    CUmemGenericAllocationHandle physical; /* not 0: it is mapped at pointer */
    CUdeviceptr pointer;
};

static void *open_it(void *arg)
{
    struct opening *o = arg;
    CUresult result = api.cuCtxSetCurrent(o->context);

    if (result == CUDA_SUCCESS && o->pool != NULL)
        result = api.cuMemPoolImportPointer(&o->pointer, o->pool, &o->name);
    else if (result == CUDA_SUCCESS && o->physical != 0)
        result = api.cuMemMap(o->pointer, SHARED, 0, o->physical, 0);
    else if (result == CUDA_SUCCESS)
        result =
            api.cuIpcOpenMemHandle_v2(&o->pointer, o->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    return (void *)(uintptr_t)result;
}

/* late: the call that comes late when the driver has opened it.  A module takes memory meanwhile, which whoever
 * measured would find; once the opening is shown, its bytes may be the other's, and certain is what there was. */
static int nothing_is_measured_during(struct opening *o, const char *late)
{
    unsigned before = journal_count(late);
    pthread_t thread;
    void *bad;

    SAME(own_overhead(), CONTEXT);
    CHECK(pthread_create(&thread, NULL, open_it, o) == 0);
    while (journal_count(late) == before)
        sched_yield();
    CHECK(load() != NULL);
    do {
        free_now();
        SAME(own_overhead(), CONTEXT);
    } while (imported(0) != SHARED);
    CHECK(pthread_join(thread, &bad) == 0);
    CHECK(bad == NULL);
    free_now();
    SAME(own_overhead(), CONTEXT);
    return 0;
}

static int nothing_is_measured_while_a_handle_is_opened(void)
{
    struct opening o = {.pool = NULL};

    CHECK(pair_start(sharer));
    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&o.context, 0, 0));
    CHECK(pair_receive(&o.handle, sizeof(o.handle), NULL));
    CHECK(nothing_is_measured_during(&o, "cuMemGetAddressRange_v2") == 0);
    OK(api.cuIpcCloseMemHandle(o.pointer));
    free_now();
    SAME(own_overhead(), CONTEXT + 30 * MIB);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

static int nothing_is_measured_while_a_pools_pointer_is_opened(void)
{
    struct opening o = {.pool = NULL};
    int fd = -1;

    CHECK(pair_start(sharer_of_a_pool));
    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&o.context, 0, 0));
    CHECK(pair_receive(&o.name, sizeof(o.name), &fd));
    OK(api.cuMemPoolImportFromShareableHandle(&o.pool, (void *)(intptr_t)fd,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(nothing_is_measured_during(&o, "cuMemGetAddressRange_v2") == 0);
    OK(api.cuMemFree_v2(o.pointer));
    free_now();
    SAME(own_overhead(), CONTEXT + 30 * MIB);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

static int nothing_is_measured_while_physical_memory_is_mapped(void)
{
    struct opening o = {.pool = NULL};
    char byte;
    int fd = -1;

    CHECK(pair_start(sharer));
    OK(api.cuInit(0));
    OK(api.cuCtxCreate_v2(&o.context, 0, 0));
    CHECK(pair_receive(&o.handle, sizeof(o.handle), NULL));
    CHECK(pair_receive(&byte, 1, &fd));
    OK(api.cuMemImportFromShareableHandle(&o.physical, (void *)(intptr_t)fd,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    OK(api.cuMemAddressReserve(&o.pointer, SHARED, 0, 0, 0));
    CHECK(nothing_is_measured_during(&o, "cuMemMap") == 0);
    OK(api.cuMemUnmap(o.pointer, SHARED));
    OK(api.cuMemRelease(o.physical));
    free_now();
    SAME(own_overhead(), CONTEXT + 30 * MIB);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct scenario scenarios[] = {
        SCENARIO(managed_memory_never_makes_it_more_than_is_certain, CLIENT LIMIT MODULE(30720)),
        SCENARIO(external_memory_never_makes_it_more_than_is_certain,
                 CLIENT LIMIT ";VRAMCAP_SIM_EXTERNAL=0"),
        SCENARIO(managed_memory_of_pools_stops_the_measuring, CLIENT LIMIT MODULE(30720)),
        SCENARIO(what_a_launch_took_and_is_not_booked_yet_is_not_taken_for_overhead,
                 CLIENT LIMIT ";VRAMCAP_SIM_JOURNAL=@/journal;"
                              "VRAMCAP_SIM_DELAY_US=cuDeviceGetGraphMemAttribute/after:400000:3"),
        SCENARIO(what_a_limit_is_rounded_up_by_is_not_taken_for_overhead,
                 CLIENT LIMIT ";VRAMCAP_SIM_JOURNAL=@/journal;"
                              "VRAMCAP_SIM_PAGE_KIB=2048;"
                              "VRAMCAP_SIM_DELAY_US=cuCtxGetLimit:400000:3"),
        SCENARIO(nothing_is_measured_while_a_handle_is_opened,
                 CLIENT LIMIT MODULE(30720) ";VRAMCAP_SIM_JOURNAL=@/journal;"
                                            "VRAMCAP_SIM_DELAY_US=cuMemGetAddressRange_v2:400000"),
        SCENARIO(nothing_is_measured_while_a_pools_pointer_is_opened,
                 CLIENT LIMIT MODULE(30720) ";VRAMCAP_SIM_JOURNAL=@/journal;"
                                            "VRAMCAP_SIM_DELAY_US=cuMemGetAddressRange_v2:400000"),
        SCENARIO(nothing_is_measured_while_physical_memory_is_mapped,
                 CLIENT LIMIT MODULE(30720) ";VRAMCAP_SIM_JOURNAL=@/journal;"
                                            "VRAMCAP_SIM_DELAY_US=cuMemMap/after:400000"),
        SCENARIO(imports_that_are_shown_leave_it_as_it_is, CLIENT LIMIT MODULE(30720)),
        SCENARIO(imports_that_are_charged_leave_it_as_it_is, CLIENT LIMIT MODULE(30720)),
    };

    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
