/*
 * What idle memory of pools has to do with room: it is given back before anything is refused, and looked at
 * again whenever it may have gone.  And pools and physical memory of a part of a device.
 */
#include <string.h>

#include "tests/hook/scenario.h"

static CUmemoryPool pool_on(CUmemLocationType type, int id)
{
    cuuint64_t all = UINT64_MAX;
    CUmemPoolProps properties;
    CUmemoryPool pool = NULL;

    memset(&properties, 0, sizeof(properties));
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = type;
    properties.location.id = id;
    if (api.cuMemPoolCreate(&pool, &properties) != CUDA_SUCCESS ||
        api.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all) != CUDA_SUCCESS)
        return NULL;
    return pool;
}

/* A pool that grows by more than was asked for finds room in what another holds idle; so do a context and a
 * limit. */
static int idle_pools_give_back_before_anything_is_refused(void)
{
    CUmemoryPool idle, other;
    CUdeviceptr pointer, more;
    CUcontext first, context;
    size_t heap = 0;

    OK(begin(0)); /* 16 MiB */
    OK(api.cuCtxGetCurrent(&first));
    CHECK((idle = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0)) != NULL);
    CHECK((other = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0)) != NULL);
    OK(api.cuMemAllocFromPoolAsync(&pointer, 32 * MIB, idle, NULL));
    OK(api.cuMemFreeAsync(pointer, NULL));
    OK(api.cuMemAlloc_v2(&more, 8 * MIB));                           /* 56 of 64 */
    OK(api.cuMemAllocFromPoolAsync(&pointer, 4 * MIB, other, NULL)); /* takes 32 */
    SAME(charged(0), 56 * MIB);
    OK(api.cuMemFreeAsync(pointer, NULL)); /* idle again */
    OK(api.cuCtxCreate_v2(&context, 0, 0));
    SAME(charged(0), 40 * MIB);
    OK(api.cuCtxDestroy_v2(context));
    OK(api.cuCtxSetCurrent(first));
    OK(api.cuMemAllocFromPoolAsync(&pointer, 4 * MIB, other, NULL));
    OK(api.cuMemFreeAsync(pointer, NULL)); /* 56 */
    OK(api.cuCtxGetLimit(&heap, CU_LIMIT_MALLOC_HEAP_SIZE));
    OK(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap + 20 * MIB));
    SAME(charged(0), 44 * MIB);
    SAME(gpu_row(0).refusals, 0);
    return 0;
}

/* Once a pool has grown it may be above its threshold with what was idle below it before. */
static int growth_makes_the_next_synchronise_look(void)
{
    cuuint64_t threshold = 8 * MIB;
    CUstream first, second;
    CUdeviceptr one, two;
    CUmemoryPool pool;

    OK(begin(0));
    CHECK((pool = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0)) != NULL);
    OK(api.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(api.cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    OK(api.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    OK(api.cuMemAllocFromPoolAsync(&one, 8 * MIB, pool, first));
    OK(api.cuMemFreeAsync(one, first));
    OK(api.cuStreamSynchronize(second)); /* settles; nothing is above the threshold */
    OK(api.cuMemAllocFromPoolAsync(&two, 6 * MIB, pool, second));
    OK(api.cuStreamSynchronize(first));
    SAME(charged(0), sim_alloc_bytes(&self, 0));
    return 0;
}

/* At the ceiling, another stream's idle memory promises to serve; the driver takes a chunk more, and does not
 * answer when it is asked how much. */
static int growth_that_cannot_be_read_passes_no_ceiling(void)
{
    CUdeviceptr one, two, linear;
    CUstream first, second;
    CUmemoryPool pool;

    OK(begin(0));
    CHECK((pool = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0)) != NULL);
    OK(api.cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    OK(api.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    OK(api.cuMemAllocFromPoolAsync(&one, 32 * MIB, pool, first));
    OK(api.cuMemFreeAsync(one, first));
    OK(api.cuMemAlloc_v2(&linear, 32 * MIB)); /* 64 of 64 */
    OK(api.cuMemAllocFromPoolAsync(&two, 20 * MIB, pool, second));
    CHECK(sim_alloc_bytes(&self, 0) <= 64 * MIB);
    SAME(charged(0), sim_alloc_bytes(&self, 0));
    return 0;
}

/* CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: a part of the memory of device 1. */
static int memory_of_a_locality_domain_is_its_devices(void)
{
    CUmemGenericAllocationHandle handle = 0x77;
    CUmemAllocationProp prop;
    CUdeviceptr pointer;
    CUmemoryPool pool;

    OK(begin(0));
    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = (CUmemLocationType)6;
    prop.location.id = 1; /* its first byte */
    OK(api.cuMemCreate(&handle, 600 * MIB, &prop, 0));
    SAME(charged(1), 600 * MIB);
    handle = 0x77;
    REFUSED(api.cuMemCreate(&handle, 600 * MIB, &prop, 0));
    SAME(handle, 0x77);
    CHECK((pool = pool_on((CUmemLocationType)6, 1)) != NULL);
    OK(api.cuMemAllocFromPoolAsync(&pointer, 64 * MIB, pool, NULL));
    SAME(charged(1), 664 * MIB);
    CHECK(charged(0) == 0 || charged(0) == UINT64_MAX);
    return 0;
}

static const struct scenario scenarios[] = {
    SCENARIO(idle_pools_give_back_before_anything_is_refused,
             "VRAMCAP_MEMORY_MIB=64;VRAMCAP_CONTEXT_MIB=16;VRAMCAP_SIM_POOL_CHUNK_MIB=32"),
    SCENARIO(growth_makes_the_next_synchronise_look, "VRAMCAP_SIM_POOL_CHUNK_MIB=2"),
    SCENARIO(growth_that_cannot_be_read_passes_no_ceiling,
             "VRAMCAP_MEMORY_MIB=64;VRAMCAP_SIM_POOL_CHUNK_MIB=32;"
             "VRAMCAP_SIM_FAIL=cuMemPoolGetAttribute:5:999"),
    SCENARIO(memory_of_a_locality_domain_is_its_devices,
             "VRAMCAP_SIM_VERSION=13050;VRAMCAP_SIM_CARDS=2x24576;VRAMCAP_SIM_POOL_CHUNK_MIB=2"),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
