/*
 * Graphs with memory nodes: nothing at the node, the device's graph pool at upload and launch.
 */
#include "tests/hook/lost_slot.h"
#include "tests/hook/scenario.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static CUstream stream;

static CUresult alloc_node(CUgraph graph, size_t bytes, CUgraphNode *node, CUdeviceptr *pointer)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUresult result;

    memset(&params, 0, sizeof(params));
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params.bytesize = bytes;
    result = api.cuGraphAddMemAllocNode(node, graph, NULL, 0, &params);
    *pointer = params.dptr;
    return result;
}

/* A graph that allocates and frees. */
static CUgraph graph_of(size_t bytes)
{
    CUgraph graph = NULL;
    CUgraphNode first, second;
    CUdeviceptr pointer;

    return api.cuGraphCreate(&graph, 0) == CUDA_SUCCESS &&
                   alloc_node(graph, bytes, &first, &pointer) == CUDA_SUCCESS &&
                   api.cuGraphAddMemFreeNode(&second, graph, &first, 1, pointer) == CUDA_SUCCESS
               ? graph
               : NULL;
}

static CUresult start(void)
{
    CUresult result = begin(0);

    return result == CUDA_SUCCESS ? api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) : result;
}

static bool nothing(void)
{
    return charged(0) == 0 || charged(0) == UINT64_MAX;
}

/* Field case vgpu-manager PR 69. */
static int a_captured_allocation_is_charged_at_its_launch(void)
{
    CUdeviceptr pointer, more = 0x77;
    CUgraphExec exec;
    CUgraph graph;

    OK(start());
    OK(api.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(api.cuMemAllocAsync(&pointer, 80 * MIB, stream));
    OK(api.cuMemFreeAsync(pointer, stream));
    OK(api.cuStreamEndCapture(stream, &graph));
    CHECK(nothing());
    OK(api.cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
    CHECK(nothing());
    OK(api.cuGraphLaunch(exec, stream));
    SAME(charged(0), 80 * MIB);
    OK(api.cuGraphLaunch(exec,
                         stream)); /* its memory is there already: nothing is trimmed for it */
    SAME(journal_count("cuDeviceGraphMemTrim"), 0);
    OK(api.cuStreamSynchronize(stream));
    OK(api.cuMemAlloc_v2(&more, 40 * MIB)); /* the pool is idle: it is trimmed first */
    SAME(charged(0), 40 * MIB);
    OK(api.cuMemFree_v2(more));
    OK(api.cuGraphExecDestroy(exec));
    OK(api.cuDeviceGraphMemTrim(0));
    SAME(charged(0), 0);
    return 0;
}

static int an_idle_graph_pool_is_trimmed_before_an_allocation_is_refused(void)
{
    CUdeviceptr linear, ordered, more = 0x77;
    CUgraphExec exec;
    CUgraph graph;

    OK(start());
    CHECK((graph = graph_of(80 * MIB)) != NULL);
    OK(api.cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(api.cuGraphLaunch(exec, stream));
    OK(api.cuStreamSynchronize(stream));
    SAME(charged(0), 80 * MIB);
    OK(api.cuMemAlloc_v2(&linear, 60 * MIB));
    SAME(charged(0), 60 * MIB);
    OK(api.cuMemFree_v2(linear));
    OK(api.cuGraphLaunch(exec, stream));
    OK(api.cuStreamSynchronize(stream));
    SAME(charged(0), 80 * MIB);
    OK(api.cuMemAllocAsync(&ordered, 60 * MIB, stream));
    SAME(gpu_row(0).refusals, 0);
    REFUSED(api.cuMemAlloc_v2(&more, 60 * MIB)); /* in use: nothing to trim */
    SAME(more, 0x77);
    SAME(gpu_row(0).refusals, 1);
    return 0;
}

/* What this process holds is in no slot then, and counts all the same. */
static int a_launch_after_the_slot_was_lost_finds_no_more_room(void)
{
    CUdeviceptr linear;
    CUgraphExec exec;
    CUgraph graph;

    OK(start());
    CHECK((graph = graph_of(80 * MIB)) != NULL);
    OK(api.cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(api.cuMemAlloc_v2(&linear, 60 * MIB));
    CHECK(lose_slot());
    REFUSED(api.cuGraphLaunch(exec, stream));
    SAME(charged(0), 60 * MIB);
    OK(api.cuMemFree_v2(linear));
    OK(api.cuGraphLaunch(exec, stream));
    SAME(charged(0), 80 * MIB);
    return 0;
}

static int without_a_slot_no_graph_that_allocates_is_launched(void)
{
    CUgraphExec exec;
    CUgraph graph;
    uint64_t before;

    OK(start());
    CHECK((graph = graph_of(80 * MIB)) != NULL);
    OK(api.cuGraphInstantiateWithFlags(&exec, graph, 0));
    before = sim_alloc_bytes(&self, 0);
    CHECK(lose_slot());
    OK(unlink(self.ledger));
    OK(mkdir(self.ledger, 0700)); /* at its place there is no ledger, and none can be made */
    REFUSED(api.cuGraphLaunch(exec, stream));
    SAME(sim_alloc_bytes(&self, 0), before);
    OK(rmdir(self.ledger));
    return 0;
}

static int a_node_above_the_room_is_refused_by_launch_and_upload(void)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS params;
    CUgraphExec exec, other = (CUgraphExec)(uintptr_t)0x77;
    CUgraph graph;

    OK(start());
    CHECK((graph = graph_of(120 * MIB)) != NULL);
    OK(api.cuGraphInstantiateWithFlags(&exec, graph, 0));
    REFUSED(api.cuGraphLaunch(exec, stream));
    REFUSED(api.cuGraphUpload(exec, stream));
    CHECK((graph = graph_of(120 * MIB)) != NULL);
    memset(&params, 0, sizeof(params));
    params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    params.hUploadStream = stream;
    REFUSED(api.cuGraphInstantiateWithParams(&other, graph, &params));
    CHECK(other == (CUgraphExec)(uintptr_t)0x77);
    CHECK(charged(0) == 0);
    SAME(sim_alloc_bytes(&self, 0), 0);
    SAME(gpu_row(0).refusals, 3);
    return 0;
}

/* Two allocations one after the other share the same memory: their sum would be a false refusal. */
static int the_sum_of_nodes_is_no_bound(void)
{
    CUgraphNode a, b, c, d;
    CUdeviceptr pointer;
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUgraphExec exec;
    CUgraph graph;

    OK(start());
    OK(api.cuGraphCreate(&graph, 0));
    OK(alloc_node(graph, 80 * MIB, &a, &pointer));
    OK(api.cuGraphAddMemFreeNode(&b, graph, &a, 1, pointer));
    memset(&params, 0, sizeof(params));
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params.bytesize = 80 * MIB;
    OK(api.cuGraphAddMemAllocNode(&c, graph, &b, 1, &params));
    OK(api.cuGraphAddMemFreeNode(&d, graph, &c, 1, params.dptr));
    OK(api.cuGraphInstantiate(&exec, graph, NULL, NULL, 0));
    OK(api.cuGraphUpload(exec, stream));
    SAME(charged(0), 80 * MIB);
    SAME(charged(0), sim_alloc_bytes(&self, 0));
    return 0;
}

static int growth_without_room_is_booked_and_nothing_more_granted(void)
{
    CUgraphNode a, b;
    CUdeviceptr one, two, more = 0x77;
    CUgraphExec exec;
    CUgraph graph;

    OK(start());
    OK(api.cuGraphCreate(&graph, 0));
    OK(alloc_node(graph, 80 * MIB, &a, &one));
    OK(alloc_node(graph, 80 * MIB, &b, &two));
    OK(api.cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(api.cuGraphLaunch(exec, stream));
    SAME(charged(0), 160 * MIB);
    CHECK(gpu_row(0).over);
    CHECK(ledger_events(self.ledger, VCAP_LF_EVENT_OVER) == 1);
    REFUSED(api.cuMemAlloc_v2(&more, MIB));
    /* field case HAMi-core 67: their pointers are freed by either free */
    OK(api.cuMemFree_v2(one));
    OK(api.cuMemFreeAsync(two, stream));
    OK(api.cuDeviceGraphMemTrim(0));
    SAME(charged(0), 0);
    OK(api.cuMemAlloc_v2(&more, MIB));
    return 0;
}

static int a_second_graph_uses_what_the_first_gave_back(void)
{
    CUgraphExec one, two;
    CUgraph a, b;

    OK(start());
    CHECK((a = graph_of(80 * MIB)) != NULL && (b = graph_of(90 * MIB)) != NULL);
    OK(api.cuGraphInstantiateWithFlags(&one, a, 0));
    OK(api.cuGraphInstantiateWithFlags(&two, b, 0));
    for (int i = 0; i < 3; i++) {
        OK(api.cuGraphLaunch(one, stream));
        OK(api.cuGraphLaunch(two, stream));
        CHECK(charged(0) <= 100 * MIB);
        SAME(charged(0), sim_alloc_bytes(&self, 0));
    }
    return 0;
}

static int child_graphs_are_looked_through(void)
{
    CUgraph parent, child;
    CUgraphNode node;
    CUgraphExec exec;
    CUresult result;

    OK(start());
    CHECK((child = graph_of(120 * MIB)) != NULL);
    OK(api.cuGraphCreate(&parent, 0));
    result = api.cuGraphAddChildGraphNode(&node, parent, NULL, 0, child);
    if (result != CUDA_SUCCESS) /* this driver clones no memory nodes */
        return 0;
    OK(api.cuGraphInstantiateWithFlags(&exec, parent, 0));
    REFUSED(api.cuGraphLaunch(exec, stream));
    return 0;
}

static int a_graph_without_memory_asks_the_driver_nothing(void)
{
    CUgraphNode node;
    CUgraphExec exec;
    CUgraph graph;

    OK(start());
    OK(api.cuGraphCreate(&graph, 0));
    OK(api.cuGraphAddEmptyNode(&node, graph, NULL, 0));
    OK(api.cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(api.cuGraphLaunch(exec, stream));
    OK(api.cuGraphExecDestroy(exec));
    SAME(journal_count("cuDeviceGetGraphMemAttribute"), 0);
    SAME(journal_count("cuGraphLaunch"), 1);
    return 0;
}

static int four_gigabytes_of_nodes_do_not_pass(void)
{
    OK(start());
    for (int i = 0; i < 4; i++) {
        CUgraph graph = NULL;
        CUgraphNode node;
        CUdeviceptr pointer;
        CUgraphExec exec;

        OK(api.cuGraphCreate(&graph, 0));
        OK(alloc_node(graph, 1000 * MIB, &node, &pointer));
        OK(api.cuGraphInstantiateWithFlags(&exec, graph, 0));
        GIVES(api.cuGraphLaunch(exec, stream), i == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
        OK(api.cuGraphExecDestroy(exec));
    }
    SAME(charged(0), 1000 * MIB);
    return 0;
}

static int a_failed_query_after_a_launch_is_made_up_for(void)
{
    CUgraphExec exec;
    CUgraph graph;

    OK(start());
    CHECK((graph = graph_of(80 * MIB)) != NULL);
    OK(api.cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(api.cuGraphLaunch(exec, stream));
    OK(api.cuGraphLaunch(exec, stream));
    SAME(charged(0), 80 * MIB);
    OK(api.cuDeviceGraphMemTrim(0));
    SAME(charged(0), 0);
    return 0;
}

static const struct scenario scenarios[] = {
    SCENARIO(a_captured_allocation_is_charged_at_its_launch,
             "VRAMCAP_MEMORY_MIB=100;VRAMCAP_SIM_JOURNAL=@/journal"),
    SCENARIO(an_idle_graph_pool_is_trimmed_before_an_allocation_is_refused,
             "VRAMCAP_MEMORY_MIB=100"),
    SCENARIO(a_launch_after_the_slot_was_lost_finds_no_more_room, "VRAMCAP_MEMORY_MIB=100"),
    SCENARIO(without_a_slot_no_graph_that_allocates_is_launched, "VRAMCAP_MEMORY_MIB=100"),
    SCENARIO(a_node_above_the_room_is_refused_by_launch_and_upload, "VRAMCAP_MEMORY_MIB=100"),
    SCENARIO(the_sum_of_nodes_is_no_bound, "VRAMCAP_MEMORY_MIB=100"),
    SCENARIO(growth_without_room_is_booked_and_nothing_more_granted, "VRAMCAP_MEMORY_MIB=100"),
    SCENARIO(a_second_graph_uses_what_the_first_gave_back, "VRAMCAP_MEMORY_MIB=100"),
    SCENARIO(child_graphs_are_looked_through, "VRAMCAP_MEMORY_MIB=100"),
    SCENARIO(a_graph_without_memory_asks_the_driver_nothing, "VRAMCAP_SIM_JOURNAL=@/journal"),
    SCENARIO(four_gigabytes_of_nodes_do_not_pass, NULL),
    SCENARIO(a_failed_query_after_a_launch_is_made_up_for,
             "VRAMCAP_SIM_FAIL=cuDeviceGetGraphMemAttribute:3:999"),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
