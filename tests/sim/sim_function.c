/*
 * What programs ask about a kernel before they launch it: attributes, occupancy, the module or library it
 * came from. There is no code, so the figures are those of a kernel that uses 32 registers and no shared
 * memory; names and parameters are not known and their queries stay unsupported.
 */
#include "sim_internal.h"

#define REGISTERS 32
#define BLOCKS_PER_MULTIPROCESSOR 32
#define THREADS_PER_MULTIPROCESSOR 2048
#define THREADS_PER_BLOCK 1024

static struct sim_object *function_of(void *handle)
{
    struct sim_object *object = handle;

    return object && object->kind == SIM_FUNCTION ? object : NULL;
}

static CUresult attribute_of(int *value, CUfunction_attribute attribute)
{
    if (!value || (unsigned int)attribute >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = 0;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        *value = THREADS_PER_BLOCK;
    if (attribute == CU_FUNC_ATTRIBUTE_NUM_REGS)
        *value = REGISTERS;
    if (attribute == CU_FUNC_ATTRIBUTE_PTX_VERSION || attribute == CU_FUNC_ATTRIBUTE_BINARY_VERSION)
        *value = (int)sim_config.capability;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    SIM_ENTER(cuFuncGetAttribute);
    return hfunc ? attribute_of(pi, attrib) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
    SIM_ENTER(cuKernelGetAttribute);
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    return function_of(kernel) ? attribute_of(pi, attrib) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
    SIM_ENTER(cuKernelSetAttribute);
    (void)val;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    if ((unsigned int)attrib >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    return function_of(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
    SIM_ENTER(cuKernelSetCacheConfig);
    (void)config;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    return function_of(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    SIM_ENTER(cuKernelGetLibrary);
    const struct sim_object *function = function_of(kernel);

    if (!pLib)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function || function->parent->kind != SIM_LIBRARY)
        return CUDA_ERROR_INVALID_HANDLE;
    *pLib = (CUlibrary)(void *)function->parent;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    SIM_ENTER(cuFuncGetModule);
    const struct sim_object *function = function_of(hfunc);

    if (!hmod)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function || function->parent->kind != SIM_MODULE)
        return CUDA_ERROR_INVALID_HANDLE;
    *hmod = (CUmodule)(void *)function->parent;
    return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    SIM_ENTER(cuFuncIsLoaded);
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function)
{
    SIM_ENTER(cuFuncLoad);
    return function_of(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult active_blocks(int *blocks, const void *function, int block_size)
{
    if (!blocks || !function || block_size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = block_size > THREADS_PER_BLOCK ? 0 : THREADS_PER_MULTIPROCESSOR / block_size;
    if (*blocks > BLOCKS_PER_MULTIPROCESSOR)
        *blocks = BLOCKS_PER_MULTIPROCESSOR;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize)
{
    SIM_ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    (void)dynamicSMemSize;
    return active_blocks(numBlocks, func, blockSize);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func,
                                                              int blockSize, size_t dynamicSMemSize,
                                                              unsigned int flags)
{
    SIM_ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
    (void)dynamicSMemSize;
    (void)flags;
    return active_blocks(numBlocks, func, blockSize);
}

static CUresult best_block(int *grid, int *block, const void *function, int limit)
{
    if (!grid || !block || !function || limit < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *block = limit == 0 || limit > THREADS_PER_BLOCK ? THREADS_PER_BLOCK : limit;
    *grid = SIM_SM_COUNT * (THREADS_PER_MULTIPROCESSOR / *block);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                          size_t dynamicSMemSize, int blockSizeLimit)
{
    SIM_ENTER(cuOccupancyMaxPotentialBlockSize);
    (void)blockSizeToDynamicSMemSize;
    (void)dynamicSMemSize;
    return best_block(minGridSize, blockSize, func, blockSizeLimit);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize,
                                                   CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit,
                                                   unsigned int flags)
{
    SIM_ENTER(cuOccupancyMaxPotentialBlockSizeWithFlags);
    (void)blockSizeToDynamicSMemSize;
    (void)dynamicSMemSize;
    (void)flags;
    return best_block(minGridSize, blockSize, func, blockSizeLimit);
}
