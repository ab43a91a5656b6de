/*
 * The ways in which device memory can be had, one after another: 64 times 64 MiB, four times the ceiling.  By
 * each some are granted, the ceiling's worth at most, then none, and the card holds no more than that.
 */
#include <string.h>
#include <unistd.h>

#include "tests/hook/scenario.h"

#define PIECE (64 * MIB)
#define PIECES 64

static CUstream stream;
static size_t heap;

static CUmemoryPool new_pool(void)
{
    CUmemPoolProps properties;
    CUmemoryPool pool = NULL;

    memset(&properties, 0, sizeof(properties));
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return api.cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS ? pool : NULL;
}

static CUresult linear(unsigned i)
{
    CUdeviceptr pointer;

    (void)i;
    return api.cuMemAlloc_v2(&pointer, PIECE);
}

/* Destroyed at once: its pointer lives on. */
static CUresult explicit_pool(unsigned i)
{
    CUmemoryPool pool = new_pool();
    CUdeviceptr pointer;
    CUresult result = api.cuMemAllocFromPoolAsync(&pointer, PIECE, pool, stream);

    (void)i;
    return api.cuMemPoolDestroy(pool) == CUDA_SUCCESS ? result : CUDA_ERROR_UNKNOWN;
}

static CUresult default_pool(unsigned i)
{
    CUdeviceptr pointer;

    (void)i;
    return api.cuMemAllocAsync(&pointer, PIECE, stream);
}

/* Released at once: its mapping lives on. */
static CUresult map_and_release(unsigned i)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    CUdeviceptr range;
    CUresult result;

    (void)i;
    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    result = api.cuMemCreate(&handle, PIECE, &prop, 0);
    if (result == CUDA_SUCCESS)
        result = api.cuMemAddressReserve(&range, PIECE, 0, 0, 0);
    if (result == CUDA_SUCCESS)
        result = api.cuMemMap(range, PIECE, 0, handle, 0);
    return result == CUDA_SUCCESS ? api.cuMemRelease(handle) : result;
}

static CUDA_ARRAY3D_DESCRIPTOR sheet(size_t rows)
{
    CUDA_ARRAY3D_DESCRIPTOR box;

    memset(&box, 0, sizeof(box)); /* Depth 0: not nothing, but two-dimensional */
    box.Width = 4096;
    box.Height = rows;
    box.NumChannels = 4;
    box.Format = CU_AD_FORMAT_FLOAT;
    return box;
}

static CUresult array_of_depth_zero(unsigned i)
{
    const CUDA_ARRAY3D_DESCRIPTOR box = sheet(1024);
    CUarray array;

    (void)i;
    return api.cuArray3DCreate_v2(&array, &box);
}

static CUresult mipmap(unsigned i)
{
    const CUDA_ARRAY3D_DESCRIPTOR box = sheet(768);
    CUmipmappedArray array;

    (void)i;
    return api.cuMipmappedArrayCreate(&array, &box, 10);
}

static CUresult run(CUgraph graph)
{
    CUgraphExec exec;
    CUresult result = api.cuGraphInstantiateWithFlags(&exec, graph, 0);

    return result == CUDA_SUCCESS ? api.cuGraphLaunch(exec, stream) : result;
}

static CUresult graph_node(unsigned i)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUgraphNode node;
    CUgraph graph;
    CUresult result = api.cuGraphCreate(&graph, 0);

    (void)i;
    memset(&params, 0, sizeof(params));
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params.bytesize = PIECE;
    if (result == CUDA_SUCCESS)
        result = api.cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params);
    return result == CUDA_SUCCESS ? run(graph) : result;
}

static CUresult capture(unsigned i)
{
    CUdeviceptr pointer;
    CUgraph graph = NULL;
    CUresult result = api.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED);

    (void)i;
    if (result == CUDA_SUCCESS)
        result = api.cuMemAllocAsync(&pointer, PIECE, stream);
    if (result == CUDA_SUCCESS)
        result = api.cuStreamEndCapture(stream, &graph);
    return result == CUDA_SUCCESS ? run(graph) : result;
}

/* One byte a row, which takes a pitch. */
static CUresult thin_rows(unsigned i)
{
    CUdeviceptr pointer;
    size_t pitch;

    (void)i;
    return api.cuMemAllocPitch_v2(&pointer, &pitch, 1, PIECE / fixture_draw()->pitch, 4);
}

static CUresult managed(unsigned i)
{
    CUdeviceptr pointer;

    (void)i;
    return api.cuMemAllocManaged(&pointer, PIECE, CU_MEM_ATTACH_GLOBAL);
}

static CUresult limit(unsigned i)
{
    return api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap + (i + 1) * PIECE);
}

static CUresult external(unsigned i)
{
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC description;
    CUexternalMemory memory;

    (void)i;
    memset(&description, 0, sizeof(description));
    description.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    description.handle.fd = dup(2);
    description.size = PIECE;
    return api.cuImportExternalMemory(&memory, &description);
}

/* Every way at once, in turn. */
static CUresult (*const all[])(unsigned) = {
    linear,     explicit_pool, default_pool, map_and_release, array_of_depth_zero, mipmap, managed,
    graph_node, capture,       thin_rows,    external};

static CUresult each_in_turn(unsigned i)
{
    return all[i % (sizeof(all) / sizeof(all[0]))](0);
}

static int sixty_four_pieces(CUresult (*take)(unsigned), unsigned least, unsigned most)
{
    unsigned granted = 0;

    OK(begin(0));
    OK(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(api.cuCtxGetLimit(&heap, CU_LIMIT_MALLOC_HEAP_SIZE));
    for (unsigned i = 0; i < PIECES; i++) {
        CUresult result = take(i);

        granted += result == CUDA_SUCCESS;
        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(charged(0) <= 1024 * MIB);
        CHECK(sim_alloc_bytes(&self, 0) + sim_managed_bytes(&self, 0) <= 1024 * MIB);
    }
    REFUSED(take(PIECES));
    SAME(ledger_events(self.ledger, VCAP_LF_EVENT_OVER), 0);
    if (granted < least || granted > most)
        fprintf(stderr, "%u pieces of %u MiB\n", granted, (unsigned)(PIECE / MIB));
    CHECK(granted >= least && granted <= most);
    return 0;
}

#define WAY(name, take, least, most)                                                               \
    static int name(void)                                                                          \
    {                                                                                              \
        return sixty_four_pieces(take, least, most);                                               \
    }
WAY(by_linear_memory, linear, 16, 16)
WAY(by_explicit_pools_that_are_destroyed, explicit_pool, 16, 16)
WAY(by_the_default_pool, default_pool, 16, 16)
WAY(by_physical_memory_mapped_and_released, map_and_release, 16, 16)
WAY(by_arrays_of_depth_zero, array_of_depth_zero, 14, 16)
WAY(by_mipmaps, mipmap, 14, 16)
WAY(by_graph_nodes, graph_node, 16, 16)
WAY(by_captured_allocations, capture, 16, 16)
WAY(by_thin_rows, thin_rows, 16, 16)
WAY(by_managed_memory, managed, 16, 16)
WAY(by_a_limit, limit, 16, 16)
WAY(by_external_memory, external, 16, 16)
WAY(by_every_way_in_turn, each_in_turn, 14, 16)

#define CHUNK "VRAMCAP_SIM_POOL_CHUNK_MIB=2"

static const struct scenario scenarios[] = {
    SCENARIO(by_linear_memory, CHUNK),
    SCENARIO(by_explicit_pools_that_are_destroyed, CHUNK),
    SCENARIO(by_the_default_pool, CHUNK),
    SCENARIO(by_physical_memory_mapped_and_released, CHUNK),
    SCENARIO(by_arrays_of_depth_zero, CHUNK),
    SCENARIO(by_mipmaps, CHUNK),
    SCENARIO(by_graph_nodes, CHUNK),
    SCENARIO(by_captured_allocations, CHUNK),
    SCENARIO(by_thin_rows, CHUNK),
    SCENARIO(by_managed_memory, CHUNK),
    SCENARIO(by_a_limit, CHUNK),
    SCENARIO(by_external_memory, CHUNK),
    SCENARIO(by_every_way_in_turn, CHUNK),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
