/*
 * Graphs of the simulated driver: when memory of nodes appears and goes, what may be
 * instantiated, cloned and updated. Capture is in test_sim_capture.c.
 */
#define _GNU_SOURCE
#include "test_sim_support.h"

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

static CUDA_MEM_ALLOC_NODE_PARAMS allocation(size_t bytes)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params;

    memset(&params, 0, sizeof params);
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params.bytesize = bytes;
    return params;
}

/* --- memory of nodes --------------------------------------------------------------- */

static int chain(void)
{
    CUcontext context = NULL;
    CUgraph graph = NULL, clone = NULL, outer = NULL;
    CUgraphExec executable = NULL, second = NULL;
    CUgraphNode alloc[3], free_[3], node = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS params[3], read_back;
    CUDA_MEMSET_NODE_PARAMS fill = {.value = 7, .elementSize = 1, .width = 1000, .height = 1};
    CUdeviceptr pointer = 0;
    uint64_t zero = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuGraphCreate(&graph, 0));
    for (int i = 0; i < 3; i++) {
        params[i] = allocation(100 * MIB);
        OK(cuGraphAddMemAllocNode(&alloc[i], graph, i ? &free_[i - 1] : NULL, i > 0, &params[i]));
        fill.dst = params[i].dptr;
        OK(cuGraphAddMemsetNode(&node, graph, &alloc[i], 1, &fill, context));
        OK(cuGraphAddMemFreeNode(&free_[i], graph, &node, 1, params[i].dptr));
    }
    CHECK(params[0].dptr != params[1].dptr);
    CHECK(cuGraphAddMemFreeNode(&node, graph, NULL, 0, params[0].dptr) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphAddMemFreeNode(&node, graph, NULL, 0, 4096) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphMemAllocNodeGetParams(alloc[1], &read_back));
    CHECK(read_back.dptr == params[1].dptr && read_back.bytesize == 100 * MIB);
    OK(cuGraphMemFreeNodeGetParams(free_[2], &pointer));
    CHECK(pointer == params[2].dptr);
    CHECK(cuGraphClone(&clone, graph) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphDestroyNode(node) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphCreate(&outer, 0));
    CHECK(cuGraphAddChildGraphNode(&node, outer, NULL, 0, graph) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CHECK(cuGraphInstantiateWithFlags(&second, graph, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(held() == 0 && RESERVED == 0);
    OK(cuGraphUpload(executable, NULL));
    CHECK(held() == 100 * MIB && RESERVED == 100 * MIB); /* one after the other: one is enough */
    OK(cuGraphLaunch(executable, NULL));
    OK(cuGraphLaunch(executable, NULL));
    CHECK(held() == 100 * MIB && USED == 100 * MIB);
    CHECK(cuMemcpyHtoD_v2(params[0].dptr, "x", 1) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphExecDestroy(executable));
    CHECK(cuGraphLaunch(executable, NULL) == CUDA_ERROR_INVALID_VALUE);
    CHECK(RESERVED == 100 * MIB && USED == 0);
    OK(cuDeviceGraphMemTrim(0));
    CHECK(RESERVED == 0 && held() == 0 && get(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 100 * MIB);
    OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero));
    CHECK(get(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 0);
    CHECK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &zero) ==
          CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphInstantiateWithFlags(&second, graph, 0));
    OK(cuGraphDestroy(graph));
    OK(cuGraphLaunch(second, NULL));
    CHECK(held() == 100 * MIB);
    OK(cuGraphExecDestroy(second));
    CHECK(cuDeviceGraphMemTrim(1) == CUDA_ERROR_INVALID_DEVICE);
    return 0;
}

static void memory_of_a_chain_is_reused_and_appears_at_upload(void **state)
{
    (void)state;
    assert_int_equal(sim_run(chain, NULL), 0);
}

/* Two branches from one root: what is only freed on the other branch is no one's to reuse. */
static int branches(void)
{
    CUcontext context = NULL;
    CUgraph graph = NULL;
    CUgraphExec executable = NULL, other = NULL;
    CUgraphNode node = NULL;
    CUgraphNode first = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS params = allocation(100 * MIB), small = allocation(10 * MIB);
    CUdeviceptr pointer = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuGraphCreate(&graph, 0));
    for (int i = 0; i < 2; i++) {
        OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
        OK(cuGraphAddMemFreeNode(&first, graph, &node, 1, params.dptr));
    }
    OK(cuGraphAddMemAllocNode(&node, graph, &first, 1, &small));
    OK(cuGraphAddMemFreeNode(&node, graph, &node, 1, small.dptr));
    OK(cuGraphInstantiate_v2(&executable, graph, NULL, NULL, 0));
    OK(cuGraphLaunch(executable, NULL));
    CHECK(RESERVED == 200 * MIB && held() == 200 * MIB);
    /* Another graph shares what an idle one has. */
    CUgraph second = NULL;
    OK(cuGraphCreate(&second, 0));
    OK(cuGraphAddMemAllocNode(&node, second, NULL, 0, &params));
    OK(cuGraphAddMemFreeNode(&node, second, &node, 1, params.dptr));
    OK(cuGraphInstantiateWithFlags(&other, second, 0));
    OK(cuGraphLaunch(other, NULL));
    CHECK(RESERVED == 200 * MIB);
    OK(cuDeviceGraphMemTrim(0));
    OK(cuMemAlloc_v2(&pointer, 870 * MIB)); /* of 1 GiB, 64 MiB of them the context */
    CHECK(cuGraphLaunch(executable, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuGraphUpload(executable, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(RESERVED == 0);
    return 0;
}

static void parallel_branches_do_not_share_and_a_full_card_refuses(void **state)
{
    (void)state;
    assert_int_equal(sim_run(branches, "VRAMCAP_SIM_CARDS=1024"), 0);
}

static int unfreed(void)
{
    CUcontext context = NULL;
    CUgraph graph = NULL, freeing = NULL;
    CUgraphExec executable = NULL, freer = NULL;
    CUgraphNode node = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS params = allocation(100 * MIB);
    CUDA_GRAPH_INSTANTIATE_PARAMS how;
    CUstream stream = NULL;
    char text[4] = {0};

    CHECK(sim_begin(&context) == 0);
    OK(cuStreamCreate(&stream, 0));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    memset(&how, 0, sizeof how);
    how.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    how.hUploadStream = stream;
    OK(cuGraphInstantiateWithParams(&executable, graph, &how));
    CHECK(how.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS && held() == 100 * MIB);
    CHECK(cuMemFree_v2(params.dptr) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphLaunch(executable, stream));
    OK(cuMemcpyHtoD_v2(params.dptr, "abc", 4));
    OK(cuMemcpyDtoH_v2(text, params.dptr, 4));
    CHECK(strcmp(text, "abc") == 0);
    CHECK(cuGraphLaunch(executable, stream) == CUDA_ERROR_INVALID_VALUE);
    OK(cuDeviceGraphMemTrim(0));
    CHECK(RESERVED == 100 * MIB);
    OK(cuMemFreeAsync(params.dptr, stream));
    CHECK(cuMemFreeAsync(params.dptr, stream) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphLaunch(executable, stream));
    OK(cuMemFree_v2(params.dptr));
    OK(cuGraphCreate(&freeing, 0));
    OK(cuGraphAddMemFreeNode(&node, freeing, NULL, 0, params.dptr));
    CHECK(cuGraphAddMemFreeNode(&node, graph, NULL, 0, params.dptr) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphInstantiateWithFlags(&freer, freeing, 0));
    OK(cuGraphLaunch(executable, stream));
    OK(cuGraphLaunch(freer, stream));
    CHECK(cuMemFree_v2(params.dptr) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphLaunch(executable, stream));
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphInstantiateWithFlags(&executable, graph,
                                   CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    OK(cuGraphLaunch(executable, stream));
    OK(cuGraphLaunch(executable, stream));
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
    OK(cuDeviceGraphMemTrim(0));
    CHECK(held() == 100 * MIB); /* the pointer outlives both */
    OK(cuMemFree_v2(params.dptr));
    CHECK(held() == 100 * MIB);
    OK(cuDeviceGraphMemTrim(0));
    CHECK(held() == 0);
    return 0;
}

static void a_pointer_without_free_node_lives_until_it_is_freed(void **state)
{
    (void)state;
    assert_int_equal(sim_run(unfreed, NULL), 0);
}

/* --- structure ------------------------------------------------------------------------ */

static int called;
static void call(void *data)
{
    called += *(int *)data;
}

static int structure(void)
{
    CUcontext context = NULL;
    CUgraph graph = NULL, clone = NULL, inner = NULL, moved = NULL;
    CUgraphExec executable = NULL;
    CUgraphNode a = NULL, b = NULL, child = NULL, found = NULL, list[8], to[8];
    CUgraphNodeType type;
    CUgraphExecUpdateResultInfo result;
    CUgraphNodeParams params;
    int one = 1, ten = 10;
    CUDA_HOST_NODE_PARAMS host = {.fn = call, .userData = &one};
    CUDA_MEM_ALLOC_NODE_PARAMS memory = allocation(10 * MIB);
    size_t count = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddHostNode(&a, graph, NULL, 0, &host));
    OK(cuGraphAddEmptyNode(&b, graph, &a, 1));
    OK(cuGraphNodeGetType(b, &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_EMPTY);
    OK(cuGraphCreate(&inner, 0));
    OK(cuGraphAddHostNode(&found, inner, NULL, 0, &host));
    OK(cuGraphAddChildGraphNode(&child, graph, &b, 1, inner));
    OK(cuGraphDestroy(inner));
    OK(cuGraphChildGraphNodeGetGraph(child, &inner));
    CHECK(cuGraphDestroy(inner) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphGetNodes(inner, NULL, &count));
    CHECK(count == 1);
    count = 8;
    OK(cuGraphGetNodes(graph, list, &count));
    CHECK(count == 3 && list[0] == a && list[2] == child && list[3] == NULL);
    count = 8;
    OK(cuGraphGetRootNodes(graph, list, &count));
    CHECK(count == 1 && list[0] == a);
    count = 8;
    OK(cuGraphGetEdges(graph, list, to, &count));
    CHECK(count == 2 && list[0] == a && to[0] == b);
    OK(cuGraphNodeGetDependentNodes(a, NULL, &count));
    CHECK(count == 1);
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphNodeFindInClone(&found, a, clone));
    CHECK(found != a);
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    OK(cuGraphLaunch(executable, NULL));
    CHECK(called == 2);
    host.userData = &ten;
    OK(cuGraphHostNodeSetParams(found, &host));
    OK(cuGraphExecUpdate_v2(executable, clone, &result));
    OK(cuGraphLaunch(executable, NULL));
    CHECK(called == 13);
    OK(cuGraphExecHostNodeSetParams(executable, a, &host));
    OK(cuGraphAddEmptyNode(&found, clone, NULL, 0));
    CHECK(cuGraphExecUpdate_v2(executable, clone, &result) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CHECK(result.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    OK(cuGraphAddDependencies(graph, &child, &a, 1));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphRemoveDependencies(graph, &child, &a, 1));
    /* A child with memory must be given away. */
    OK(cuGraphCreate(&moved, 0));
    OK(cuGraphAddMemAllocNode(&a, moved, NULL, 0, &memory));
    OK(cuGraphAddMemFreeNode(&a, moved, &a, 1, memory.dptr));
    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_GRAPH;
    params.graph.graph = moved;
    CHECK(cuGraphAddNode_v2(&a, graph, NULL, NULL, 0, &params) == CUDA_ERROR_INVALID_VALUE);
    params.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    OK(cuGraphAddNode_v2(&a, graph, NULL, NULL, 0, &params));
    OK(cuGraphExecDestroy(executable)); /* one at a time from now on */
    CHECK(cuGraphDestroy(moved) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    OK(cuGraphLaunch(executable, NULL));
    CHECK(held() == 10 * MIB);
    OK(cuGraphDestroy(clone));
    OK(cuGraphDestroy(graph));
    CHECK(cuGraphDestroy(graph) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void graphs_have_nodes_edges_clones_children_and_updates(void **state)
{
    (void)state;
    assert_int_equal(sim_run(structure, NULL), 0);
}

/* --- user objects ----------------------------------------------------------------------- */

static unsigned int ended;

static void end_object(void *pointer)
{
    ended += pointer == &ended;
}

static int counting(void)
{
    CUcontext context = NULL;
    CUuserObject object = NULL;
    CUgraph graph = NULL, clone = NULL;
    CUgraphExec executable = NULL;

    CHECK(sim_begin(&context) == 0);
    OK(cuGraphCreate(&graph, 0));
    CHECK(cuUserObjectCreate(&object, &ended, end_object, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) ==
          CUDA_ERROR_INVALID_VALUE);
    OK(cuUserObjectCreate(&object, &ended, end_object, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    CHECK(cuGraphRetainUserObject(graph, object, 2, CU_GRAPH_USER_OBJECT_MOVE) ==
          CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphReleaseUserObject(clone, object, 1));
    CHECK(cuGraphReleaseUserObject(clone, object, 1) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphDestroy(clone));
    OK(cuGraphDestroy(graph));
    OK(cuUserObjectRetain(object, 3));
    OK(cuUserObjectRelease(object, 3));
    CHECK(ended == 0); /* the executable holds it */
    OK(cuGraphExecDestroy(executable));
    CHECK(ended == 1);
    CHECK(cuUserObjectRelease(object, 1) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void user_objects_end_with_the_last_graph_that_holds_them(void **state)
{
    (void)state;
    assert_int_equal(sim_run(counting, NULL), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, sim_test_setup, sim_test_teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(memory_of_a_chain_is_reused_and_appears_at_upload),
        TEST(parallel_branches_do_not_share_and_a_full_card_refuses),
        TEST(a_pointer_without_free_node_lives_until_it_is_freed),
        TEST(graphs_have_nodes_edges_clones_children_and_updates),
        TEST(user_objects_end_with_the_last_graph_that_holds_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
