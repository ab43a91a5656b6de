/*
 * What a bare call finds ready (prepare.c), and the rules that say what it costs (calls.c).
 */
#ifndef VRAMCAP_TESTS_CALLS_FRAME_H
#define VRAMCAP_TESTS_CALLS_FRAME_H

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

/* Everything that has to be there before the call.  0, or the driver's error. */
CUresult frame_prepare(enum rule rule, struct frame *f);

/* A pool of the current context's device that holds 40 MiB idle, in f->pool; f->idle: what it has reserved. */
CUresult frame_idle_pool(struct frame *f);

/* Bytes that the driver has reserved: for a pool, the device's current pool, its graphs. */
uint64_t frame_reserved(CUmemoryPool pool);
uint64_t frame_reserved_current(void);
uint64_t frame_reserved_by_graphs(void);

#endif
