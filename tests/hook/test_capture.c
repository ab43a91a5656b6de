/*
 * Captures: what a hook asks the driver on its own account must not spoil a capture of any thread.
 */
#include "tests/hook/scenario.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "enforcer/nvml_abi.h"

static CUcontext context;
static pthread_barrier_t step;
static CUmemoryPool pool;
static CUdeviceptr kept;
static int failed;

/* Only calls that a capture in GLOBAL mode of another thread does not forbid. */
static int call_the_hooks(void)
{
    CUdeviceptr pointer;
    CUstream stream;
    CUgraphExec exec;
    CUgraphNode node;
    CUgraph graph;

    OK(api.cuCtxSetCurrent(context));
    OK(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 20; i++) {
        OK(api.cuMemAllocAsync(&pointer, 40 * MIB, stream));
        OK(api.cuMemFreeAsync(pointer, stream));
        OK(api.cuMemAllocFromPoolAsync(&pointer, 40 * MIB, pool, stream));
        OK(api.cuMemFreeAsync(pointer, stream));
        REFUSED(api.cuMemAllocAsync(&pointer, 2000 * MIB, stream)); /* trims on the way */
    }
    OK(api.cuGraphCreate(&graph, 0));
    {
        CUDA_MEM_ALLOC_NODE_PARAMS params;

        memset(&params, 0, sizeof(params));
        params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        params.bytesize = 8 * MIB;
        OK(api.cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    }
    OK(api.cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(api.cuGraphLaunch(exec, stream));
    OK(api.cuGraphExecDestroy(exec));
    return 0;
}

static void *other(void *arg)
{
    pthread_barrier_wait(&step);
    failed = call_the_hooks();
    pthread_barrier_wait(&step);
    return arg;
}

static int a_global_capture_outlives_every_hook_of_another_thread(void)
{
    CUstreamCaptureStatus status;
    CUmemPoolProps properties;
    CUstream stream;
    CUgraph graph = NULL;
    pthread_t thread;

    memset(&properties, 0, sizeof(properties));
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(begin(0));
    OK(api.cuCtxGetCurrent(&context));
    OK(api.cuMemPoolCreate(&pool, &properties));
    OK(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pthread_barrier_init(&step, NULL, 2);
    CHECK(pthread_create(&thread, NULL, other, NULL) == 0);
    OK(api.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(api.cuMemAllocAsync(&kept, 8 * MIB, stream));
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    pthread_join(thread, NULL);
    SAME(failed, 0);
    OK(api.cuStreamIsCapturing(stream, &status));
    SAME(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(api.cuStreamEndCapture(stream, &graph));
    CHECK(graph != NULL);
    return 0;
}

/* The thread's own capture, while it uses another stream in the same mode. */
static int a_thread_that_captures_may_allocate_on_another_stream(void)
{
    CUstream captured, plain;
    CUdeviceptr pointer;
    CUgraph graph = NULL;
    size_t free_bytes, total;

    OK(begin(0));
    OK(api.cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    OK(api.cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
    OK(api.cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(api.cuMemAllocAsync(&pointer, 40 * MIB, plain));
    CHECK(charged(0) >= 40 * MIB);
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    OK(api.cuMemFreeAsync(pointer, plain));
    OK(api.cuStreamSynchronize(plain));
    SAME(charged(0), 0);
    OK(api.cuStreamEndCapture(captured, &graph));
    CHECK(graph != NULL);
    return 0;
}

/* Field case vgpu-manager PR 65: a captured free frees nothing yet. */
static int a_captured_free_keeps_the_charge(void)
{
    CUstream stream;
    CUdeviceptr pointer;
    CUgraph graph;

    OK(begin(0));
    OK(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(api.cuMemAllocManaged(&pointer, 40 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(api.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    api.cuMemFreeAsync(pointer, stream); /* a node, or an error, as the driver likes */
    SAME(charged(0), 40 * MIB);
    api.cuStreamEndCapture(stream, &graph);
    SAME(charged(0), 40 * MIB);
    OK(api.cuMemFree_v2(pointer));
    SAME(charged(0), 0);
    return 0;
}

/*
 * Views of another thread during a GLOBAL capture.  cuMemGetInfo is forbidden then to the program itself, so
 * the other thread asks in RELAXED mode, as a program must; what the hooks ask on top must be no more than
 * that.  cuDeviceTotalMem and NVML are allowed in any mode.
 */
static int (*ask_nvml)(void);

static int views(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    unsigned old_free, old_total;
    size_t free_bytes, total;

    OK(api.cuCtxSetCurrent(context));
    for (int i = 0; i < 20; i++) {
        OK(api.cuDeviceTotalMem_v2(&total, 0));
        SAME(total, 1024 * MIB);
        OK(api.cuDeviceTotalMem(&old_total, 0));
        CHECK(ask_nvml() == 0);
        mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        OK(api.cuThreadExchangeStreamCaptureMode(&mode));
        SAME(mode, CU_STREAM_CAPTURE_MODE_GLOBAL); /* the thread's own, whatever hooks ran before */
        OK(api.cuMemGetInfo_v2(&free_bytes, &total));
        SAME(total, 1024 * MIB);
        OK(api.cuMemGetInfo(&old_free, &old_total));
        OK(api.cuThreadExchangeStreamCaptureMode(&mode));
        SAME(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    }
    return 0;
}

static int nvml_memory(void)
{
    static nvmlReturn_t (*handle_of)(unsigned, nvmlDevice_t *);
    static nvmlReturn_t (*memory_of)(nvmlDevice_t, nvmlMemory_t *);
    static nvmlReturn_t (*start)(void);
    nvmlDevice_t device;
    nvmlMemory_t memory;

    if (memory_of == NULL) {
        void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

        CHECK(library != NULL);
        start = (nvmlReturn_t(*)(void))(uintptr_t)dlsym(library, "nvmlInit_v2");
        handle_of = (nvmlReturn_t(*)(unsigned, nvmlDevice_t *))(uintptr_t)dlsym(
            library, "nvmlDeviceGetHandleByIndex_v2");
        memory_of = (nvmlReturn_t(*)(nvmlDevice_t, nvmlMemory_t *))(uintptr_t)dlsym(
            library, "nvmlDeviceGetMemoryInfo");
        CHECK(start != NULL && handle_of != NULL && memory_of != NULL && start() == NVML_SUCCESS);
    }
    CHECK(handle_of(0, &device) == NVML_SUCCESS);
    CHECK(memory_of(device, &memory) == NVML_SUCCESS);
    SAME(memory.total, 1024 * MIB);
    return 0;
}

static void *viewer(void *arg)
{
    pthread_barrier_wait(&step);
    failed = views();
    pthread_barrier_wait(&step);
    return arg;
}

/* Counts the driver's calls between two points: what a view asks beside the program's own call. */
static int a_global_capture_outlives_every_view_of_another_thread(void)
{
    CUstreamCaptureStatus status;
    CUgraph graph = NULL;
    CUstream stream;
    pthread_t thread;
    CUdeviceptr node;

    OK(begin(0));
    OK(api.cuCtxGetCurrent(&context));
    ask_nvml = nvml_memory;
    OK(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pthread_barrier_init(&step, NULL, 2);
    CHECK(pthread_create(&thread, NULL, viewer, NULL) == 0);
    OK(api.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(api.cuMemAllocAsync(&node, 8 * MIB, stream));
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    pthread_join(thread, NULL);
    SAME(failed, 0);
    OK(api.cuStreamIsCapturing(stream, &status));
    SAME(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(api.cuStreamEndCapture(stream, &graph));
    CHECK(graph != NULL);
    /* and the thread that captures may ask for what its mode allows */
    OK(api.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SAME(nvml_memory(), 0);
    OK(api.cuDeviceTotalMem_v2(&(size_t){0}, 0));
    graph = NULL;
    OK(api.cuStreamEndCapture(stream, &graph));
    CHECK(graph != NULL);
    return 0;
}

static const struct scenario scenarios[] = {
    SCENARIO(a_global_capture_outlives_every_view_of_another_thread, NULL),
    SCENARIO(a_global_capture_outlives_every_hook_of_another_thread, NULL),
    SCENARIO(a_thread_that_captures_may_allocate_on_another_stream, NULL),
    SCENARIO(a_captured_free_keeps_the_charge, NULL),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
