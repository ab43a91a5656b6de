/*
 * Launches: a function that exists and a stream that is valid are all that is checked;
 * nothing is computed. Host functions are called at once.
 */
#include "sim_capture.h"

#include <string.h>

static CUresult launch(CUfunction function, CUstream stream)
{
    struct sim_context *context = NULL;
    CUgraphNodeParams params;
    CUresult rc = sim_stream_context(stream, &context);

    if (!function || rc != CUDA_SUCCESS)
        return function ? rc : CUDA_ERROR_INVALID_HANDLE;
    if (sim_gate_is_capturing()) {
        memset(&params, 0, sizeof params);
        params.type = CU_GRAPH_NODE_TYPE_KERNEL;
        params.kernel.func = function; /* the rest of it means nothing here */
        (void)sim_capture_node(stream, context, &params, &rc);
    }
    return rc;
}

/* A host function that a capture took is called by the graph. */
static CUresult launch_host(CUstream stream, CUhostFn function, void *data)
{
    struct sim_context *context = NULL;
    CUgraphNodeParams params;
    CUresult rc = sim_stream_context(stream, &context);

    if (!function || rc != CUDA_SUCCESS)
        return function ? rc : CUDA_ERROR_INVALID_VALUE;
    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_HOST;
    params.host.fn = function;
    params.host.userData = data;
    if (!sim_capture_node(stream, context, &params, &rc))
        function(data);
    return rc;
}

#define LAUNCH(symbol)                                                                             \
    CUresult symbol(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,                    \
                    unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,         \
                    unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,         \
                    void **kernelParams, void **extra)                                             \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        (void)sharedMemBytes;                                                                      \
        (void)kernelParams;                                                                        \
        (void)extra;                                                                               \
        if (gridDimX == 0 || gridDimY == 0 || gridDimZ == 0 || blockDimX == 0 || blockDimY == 0 || \
            blockDimZ == 0)                                                                        \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        return launch(f, hStream);                                                                 \
    }
LAUNCH(cuLaunchKernel)
LAUNCH(cuLaunchKernel_ptsz)

#define LAUNCH_EX(symbol)                                                                          \
    CUresult symbol(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra) \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        (void)kernelParams;                                                                        \
        (void)extra;                                                                               \
        return config ? launch(f, config->hStream) : CUDA_ERROR_INVALID_VALUE;                     \
    }
LAUNCH_EX(cuLaunchKernelEx)
LAUNCH_EX(cuLaunchKernelEx_ptsz)

#define LAUNCH_COOPERATIVE(symbol)                                                                 \
    CUresult symbol(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,                    \
                    unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,         \
                    unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,         \
                    void **kernelParams)                                                           \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        (void)sharedMemBytes;                                                                      \
        (void)kernelParams;                                                                        \
        if (gridDimX == 0 || gridDimY == 0 || gridDimZ == 0 || blockDimX == 0 || blockDimY == 0 || \
            blockDimZ == 0)                                                                        \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        return launch(f, hStream);                                                                 \
    }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz)

#define LAUNCH_HOST(symbol)                                                                        \
    CUresult symbol(CUstream hStream, CUhostFn fn, void *userData)                                 \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        return launch_host(hStream, fn, userData);                                                 \
    }
LAUNCH_HOST(cuLaunchHostFunc)
LAUNCH_HOST(cuLaunchHostFunc_ptsz)

CUresult cuLaunch(CUfunction f)
{
    SIM_ENTER(cuLaunch);
    return launch(f, NULL);
}

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
    SIM_ENTER(cuLaunchGrid);
    return grid_width > 0 && grid_height > 0 ? launch(f, NULL) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    SIM_ENTER(cuFuncSetAttribute);
    (void)value;
    return hfunc && (unsigned int)attrib < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    SIM_ENTER(cuFuncSetCacheConfig);
    (void)config;
    return hfunc ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
