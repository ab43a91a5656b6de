/*
 * Stream capture of the simulated driver: what becomes of calls on a capturing stream, which
 * calls a capture forbids, and whose capture a forbidden call spoils.
 */
#define _GNU_SOURCE
#include "test_sim_support.h"

#include <pthread.h>
#include <string.h>

#define CONTEXT (64 * MIB)

static uint64_t held(void)
{
    struct sim_state *state = sim_state_open(NULL);
    uint64_t bytes = sim_card_used(state, 0);

    sim_state_close(state);
    return bytes - CONTEXT;
}

static uint64_t get(CUgraphMem_attribute attribute)
{
    cuuint64_t value = 0;

    return cuDeviceGetGraphMemAttribute(0, attribute, &value) == CUDA_SUCCESS ? value : UINT64_MAX;
}

#define RESERVED get(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
#define USED get(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)

static int called;
static void call(void *data)
{
    called += *(int *)data;
}

static int capture_runs(void)
{
    CUcontext context = NULL;
    CUstream stream = NULL, side = NULL;
    CUevent fork = NULL, join = NULL;
    CUgraph graph = NULL, seen = NULL;
    CUgraphExec executable = NULL;
    CUgraphNode list[16];
    const CUgraphNode *last = NULL;
    CUgraphNodeType type;
    CUstreamCaptureStatus status;
    CUdeviceptr fixed = 0, made = 0;
    cuuint64_t id = 0;
    size_t count = 0;
    int ten = 10;
    unsigned char bytes[4] = {0};

    CHECK(sim_begin(&context) == 0);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork, 0));
    OK(cuEventCreate(&join, 0));
    OK(cuMemAlloc_v2(&fixed, 4 * MIB));
    CHECK(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL) ==
          CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_ILLEGAL_STATE);
    OK(cuStreamBeginCapture(stream));
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) ==
          CUDA_ERROR_ILLEGAL_STATE);
    OK(cuMemAllocAsync(&made, 50 * MIB, stream));
    CHECK(held() == 4 * MIB);
    OK(cuMemsetD8Async(made, 3, 4, stream));
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(side, fork, 0));
    OK(cuMemcpyDtoDAsync_v2(fixed, made, 4, side));
    OK(cuLaunchHostFunc(side, call, &ten));
    OK(cuEventRecord(join, side));
    OK(cuStreamGetCaptureInfo_v2(stream, &status, &id, &seen, &last, &count));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0 && count == 1);
    OK(cuGraphNodeGetType(last[0], &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_MEMSET);
    CHECK(cuStreamEndCapture(side, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED &&
          graph == NULL);
    /* once more, the right way */
    OK(cuStreamBeginCapture(stream));
    OK(cuMemAllocAsync(&made, 50 * MIB, stream));
    OK(cuMemsetD8Async(made, 3, 4, stream));
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(side, fork, 0));
    OK(cuMemcpyDtoDAsync_v2(fixed, made, 4, side));
    OK(cuLaunchHostFunc(side, call, &ten));
    OK(cuEventRecord(join, side));
    OK(cuStreamWaitEvent(stream, join, 0));
    OK(cuMemFreeAsync(made, stream));
    CHECK(cuMemFreeAsync(fixed, stream) == CUDA_ERROR_INVALID_VALUE); /* no graph's memory */
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuStreamIsCapturing(side, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE && called == 0 && held() == 4 * MIB);
    CHECK(cuEventQuery(fork) == CUDA_ERROR_CAPTURED_EVENT);
    count = 16;
    OK(cuGraphGetNodes(graph, list, &count));
    CHECK(count == 5);
    OK(cuGraphNodeGetType(list[0], &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    OK(cuGraphNodeGetType(list[4], &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_MEM_FREE);
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    OK(cuGraphLaunch(executable, stream));
    CHECK(held() == 54 * MIB && called == 10);
    OK(cuMemcpyDtoH_v2(bytes, fixed, 4));
    CHECK(bytes[0] == 3 && bytes[3] == 3);
    /* A stream left hanging. */
    OK(cuStreamBeginCapture(stream));
    OK(cuMemsetD8Async(fixed, 3, 4, stream));
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(side, fork, 0));
    OK(cuMemsetD8Async(fixed, 4, 4, side));
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED &&
          graph == NULL);
    /* A launch is a child. */
    CUgraph plain = NULL, given = NULL;
    CUgraphExec child = NULL;
    OK(cuStreamBeginCapture(stream));
    OK(cuMemsetD8Async(fixed, 9, 4, stream));
    OK(cuStreamEndCapture(stream, &plain));
    OK(cuGraphInstantiateWithFlags(&child, plain, 0));
    OK(cuGraphCreate(&given, 0));
    OK(cuStreamBeginCaptureToGraph(stream, given, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuGraphDestroy(given) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphLaunch(child, stream));
    OK(cuStreamEndCapture(stream, &graph));
    CHECK(graph == given);
    OK(cuGraphInstantiateWithFlags(&child, given, 0));
    OK(cuGraphLaunch(child, stream));
    OK(cuMemcpyDtoH_v2(bytes, fixed, 4));
    CHECK(bytes[0] == 9);
    OK(cuStreamBeginCapture(stream));
    CHECK(cuGraphLaunch(executable, stream) ==
          CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); /* has memory nodes */
    OK(cuStreamDestroy_v2(stream));               /* ends it */
    OK(cuMemFree_v2(fixed));
    return 0;
}

static void calls_on_capturing_streams_become_nodes(void **state)
{
    (void)state;
    assert_int_equal(sim_run(capture_runs, NULL), 0);
}

/* --- what a capture forbids ------------------------------------------------------------------- */

static CUstream stream_a;
static CUcontext shared;
static CUmemoryPool shared_pool;

static CUresult unsafe_call(int which)
{
    CUdeviceptr pointer = 0;
    size_t free_bytes = 0;
    uint64_t value = 0;

    switch (which) {
    case 0:
        return cuMemAlloc_v2(&pointer, MIB);
    case 1:
        return cuMemGetInfo_v2(&free_bytes, NULL);
    case 2:
        return cuMemPoolGetAttribute(shared_pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
    case 3:
        return cuMemPoolTrimTo(shared_pool, 0);
    case 4:
        return cuDeviceGraphMemTrim(0);
    default:
        return cuMemAllocManaged(&pointer, MIB, CU_MEM_ATTACH_GLOBAL);
    }
}

struct other {
    CUstreamCaptureMode mode;
    int which;
    CUresult result;
};

static void *other_thread(void *data)
{
    struct other *other = data;

    if (cuCtxSetCurrent(shared) != CUDA_SUCCESS ||
        cuThreadExchangeStreamCaptureMode(&other->mode) != CUDA_SUCCESS)
        return NULL;
    other->result = unsafe_call(other->which);
    return NULL;
}

/* Captures in `mode`, calls from this thread or another in mode `caller`; whether the call
 * was refused and the capture spoiled, which must be one. */
static int refused(CUstreamCaptureMode mode, CUstreamCaptureMode caller, bool elsewhere, int which)
{
    CUgraph graph = NULL;
    CUstreamCaptureStatus status;
    struct other other = {.mode = caller, .which = which, .result = CUDA_ERROR_UNKNOWN};
    pthread_t thread;

    if (cuStreamBeginCapture_v2(stream_a, mode) != CUDA_SUCCESS)
        return -1;
    if (elsewhere) {
        if (pthread_create(&thread, NULL, other_thread, &other) != 0)
            return -1;
        (void)pthread_join(thread, NULL);
    } else {
        CUstreamCaptureMode exchange = caller;

        (void)cuThreadExchangeStreamCaptureMode(&exchange);
        other.result = unsafe_call(which);
        (void)cuThreadExchangeStreamCaptureMode(&exchange);
    }
    if (cuStreamIsCapturing(stream_a, &status) != CUDA_SUCCESS)
        return -1;
    CUresult end = cuStreamEndCapture(stream_a, &graph);
    if (end == CUDA_SUCCESS)
        (void)cuGraphDestroy(graph);
    if (other.result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        return status == CU_STREAM_CAPTURE_STATUS_INVALIDATED &&
                       end == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED && graph == NULL
                   ? 1
                   : -1;
    return other.result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE &&
                   end == CUDA_SUCCESS
               ? 0
               : -1;
}

#define GLOBAL CU_STREAM_CAPTURE_MODE_GLOBAL
#define LOCAL CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED

static int modes(void)
{
    static const struct {
        CUstreamCaptureMode capture, caller;
        bool elsewhere;
        int refused;
    } table[] = {
        {GLOBAL, GLOBAL, false, 1},  {GLOBAL, LOCAL, false, 1},  {GLOBAL, RELAXED, false, 0},
        {LOCAL, GLOBAL, false, 1},   {LOCAL, LOCAL, false, 1},   {LOCAL, RELAXED, false, 0},
        {RELAXED, GLOBAL, false, 0}, {RELAXED, LOCAL, false, 0}, {RELAXED, RELAXED, false, 0},
        {GLOBAL, GLOBAL, true, 1},   {GLOBAL, LOCAL, true, 0},   {GLOBAL, RELAXED, true, 0},
        {LOCAL, GLOBAL, true, 0},    {LOCAL, LOCAL, true, 0},    {LOCAL, RELAXED, true, 0},
        {RELAXED, GLOBAL, true, 0},  {RELAXED, LOCAL, true, 0},  {RELAXED, RELAXED, true, 0},
    };

    CHECK(sim_begin(&shared) == 0);
    OK(cuDeviceGetMemPool(&shared_pool, 0));
    OK(cuStreamCreate(&stream_a, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        for (int which = 0; which < 6; which++) {
            int got = refused(table[i].capture, table[i].caller, table[i].elsewhere, which);

            if (got != table[i].refused)
                (void)fprintf(stderr, "row %zu, call %d: %d\n", i, which, got);
            CHECK(got == table[i].refused);
        }
    }
    OK(unsafe_call(0));
    return 0;
}

static void modes_decide_what_is_forbidden_and_whose_capture_is_spoiled(void **state)
{
    (void)state;
    assert_int_equal(sim_run(modes, NULL), 0);
}

static void *ends_elsewhere(void *data)
{
    CUgraph graph = NULL;

    *(CUresult *)data = cuCtxSetCurrent(shared);
    if (*(CUresult *)data == CUDA_SUCCESS)
        *(CUresult *)data = cuStreamEndCapture(stream_a, &graph);
    return NULL;
}

static int conflicts(void)
{
    CUstream blocking = NULL;
    CUstreamCaptureStatus status;
    CUdeviceptr pointer = 0;
    CUgraph graph = NULL;
    CUevent event = NULL;
    pthread_t thread;
    CUresult result = CUDA_SUCCESS;

    CHECK(sim_begin(&shared) == 0);
    OK(cuMemAlloc_v2(&pointer, MIB));
    OK(cuStreamCreate(&stream_a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&blocking, 0));
    OK(cuEventCreate(&event, 0));
    /* Waiting for what is captured: in no mode. */
    OK(cuStreamBeginCapture_v2(stream_a, RELAXED));
    CHECK(cuStreamSynchronize(stream_a) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuMemsetD8Async(pointer, 1, 1, stream_a) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(cuStreamEndCapture(stream_a, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture_v2(stream_a, RELAXED));
    OK(cuStreamSynchronize(blocking));
    CHECK(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuStreamEndCapture(stream_a, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    /* The legacy stream waits for blocking ones. */
    OK(cuStreamBeginCapture_v2(stream_a, RELAXED));
    OK(cuMemsetD8_v2(pointer, 1, 1));
    OK(cuStreamEndCapture(stream_a, &graph));
    OK(cuStreamBeginCapture_v2(blocking, RELAXED));
    CHECK(cuStreamIsCapturing(NULL, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    OK(cuStreamIsCapturing(blocking, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK(cuMemAllocAsync(&pointer, MIB, NULL) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK(cuStreamEndCapture(blocking, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    /* Events from outside, captures that meet. */
    OK(cuEventRecord(event, NULL));
    OK(cuStreamBeginCapture_v2(stream_a, RELAXED));
    CHECK(cuStreamWaitEvent(stream_a, event, 0) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    CHECK(cuStreamEndCapture(stream_a, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture_v2(stream_a, RELAXED));
    OK(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, RELAXED));
    OK(cuEventRecord(event, stream_a));
    CHECK(cuStreamWaitEvent(CU_STREAM_PER_THREAD, event, 0) == CUDA_ERROR_STREAM_CAPTURE_MERGE);
    CHECK(cuStreamEndCapture(stream_a, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(cuStreamEndCapture_ptsz(NULL, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    /* Another thread may end only a relaxed one. */
    OK(cuStreamBeginCapture_v2(stream_a, LOCAL));
    CHECK(pthread_create(&thread, NULL, ends_elsewhere, &result) == 0 &&
          pthread_join(thread, NULL) == 0);
    CHECK(result == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    (void)cuStreamEndCapture(stream_a, &graph);
    OK(cuStreamBeginCapture_v2(stream_a, RELAXED));
    CHECK(pthread_create(&thread, NULL, ends_elsewhere, &result) == 0 &&
          pthread_join(thread, NULL) == 0);
    CHECK(result == CUDA_SUCCESS);
    /* A context that goes takes its captures with it. */
    OK(cuStreamBeginCapture_v2(stream_a, RELAXED));
    OK(cuCtxDestroy_v2(shared));
    OK(cuCtxCreate_v2(&shared, 0, 0));
    OK(cuMemAlloc_v2(&pointer, MIB));
    return 0;
}

static void captures_mind_waits_the_legacy_stream_and_each_other(void **state)
{
    (void)state;
    assert_int_equal(sim_run(conflicts, NULL), 0);
}

/* --- threads
 * -------------------------------------------------------------------------------------- */

static void *capture_and_launch(void *unused)
{
    CUstream stream = NULL;

    (void)unused;
    if (cuCtxSetCurrent(shared) != CUDA_SUCCESS ||
        cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return "no stream";
    for (int i = 0; i < 150; i++) {
        CUdeviceptr pointer = 0;
        CUgraph graph = NULL;
        CUgraphExec executable = NULL;

        if (cuStreamBeginCapture_v2(stream, LOCAL) != CUDA_SUCCESS ||
            cuMemAllocAsync(&pointer, (size_t)(1 + i % 5) * MIB, stream) != CUDA_SUCCESS ||
            cuMemsetD8Async(pointer, 1, 100, stream) != CUDA_SUCCESS ||
            cuMemFreeAsync(pointer, stream) != CUDA_SUCCESS ||
            cuStreamEndCapture(stream, &graph) != CUDA_SUCCESS)
            return "capture failed";
        if (cuGraphInstantiateWithFlags(&executable, graph, 0) != CUDA_SUCCESS ||
            cuGraphLaunch(executable, stream) != CUDA_SUCCESS ||
            cuGraphExecDestroy(executable) != CUDA_SUCCESS || cuGraphDestroy(graph) != CUDA_SUCCESS)
            return "launch failed";
        CUstreamCaptureMode mode = LOCAL;
        if (cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS ||
            (i % 10 == 0 && cuDeviceGraphMemTrim(0) != CUDA_SUCCESS))
            return "trim failed";
    }
    return NULL;
}

static int threads(void)
{
    pthread_t thread[4];

    CHECK(sim_begin(&shared) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&thread[i], NULL, capture_and_launch, NULL) == 0);
    for (int i = 0; i < 4; i++) {
        void *complaint = NULL;

        (void)pthread_join(thread[i], &complaint);
        if (complaint)
            (void)fprintf(stderr, "%s\n", (char *)complaint);
        CHECK(complaint == NULL);
    }
    CHECK(held() == RESERVED && USED == 0);
    OK(cuDeviceGraphMemTrim(0));
    CHECK(held() == 0);
    return 0;
}

static void threads_capture_and_launch_side_by_side(void **state)
{
    (void)state;
    assert_int_equal(sim_run(threads, NULL), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, sim_test_setup, sim_test_teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(calls_on_capturing_streams_become_nodes),
        TEST(modes_decide_what_is_forbidden_and_whose_capture_is_spoiled),
        TEST(captures_mind_waits_the_legacy_stream_and_each_other),
        TEST(threads_capture_and_launch_side_by_side),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
