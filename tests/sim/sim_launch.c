/*
 * Launches: a function that exists and a stream that is valid are all that is checked;
 * nothing is computed. Host functions are called at once. Attributes of functions read 0
 * except the block size.
 */
#include "sim_internal.h"

static CUresult launch(CUfunction function, CUstream stream)
{
	struct sim_context *context = NULL;

	return function ? sim_stream_context(stream, &context) : CUDA_ERROR_INVALID_HANDLE;
}

#define LAUNCH(symbol)                                                                                          \
	CUresult symbol(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,      \
			unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,                 \
			unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)       \
	{                                                                                                       \
		SIM_ENTER(symbol);                                                                              \
		(void)sharedMemBytes;                                                                           \
		(void)kernelParams;                                                                             \
		(void)extra;                                                                                    \
		if (gridDimX == 0 || gridDimY == 0 || gridDimZ == 0 || blockDimX == 0 || blockDimY == 0 ||      \
		    blockDimZ == 0)                                                                             \
			return CUDA_ERROR_INVALID_VALUE;                                                        \
		return launch(f, hStream);                                                                      \
	}
LAUNCH(cuLaunchKernel)
LAUNCH(cuLaunchKernel_ptsz)

#define LAUNCH_EX(symbol)                                                                                   \
	CUresult symbol(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)      \
	{                                                                                                   \
		SIM_ENTER(symbol);                                                                          \
		(void)kernelParams;                                                                         \
		(void)extra;                                                                                \
		return config ? launch(f, config->hStream) : CUDA_ERROR_INVALID_VALUE;                      \
	}
LAUNCH_EX(cuLaunchKernelEx)
LAUNCH_EX(cuLaunchKernelEx_ptsz)

#define LAUNCH_COOPERATIVE(symbol)                                                                         \
	CUresult symbol(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, \
			unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,            \
			unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)                \
	{                                                                                                  \
		SIM_ENTER(symbol);                                                                         \
		(void)sharedMemBytes;                                                                      \
		(void)kernelParams;                                                                        \
		if (gridDimX == 0 || gridDimY == 0 || gridDimZ == 0 || blockDimX == 0 || blockDimY == 0 || \
		    blockDimZ == 0)                                                                        \
			return CUDA_ERROR_INVALID_VALUE;                                                   \
		return launch(f, hStream);                                                                 \
	}
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz)

#define LAUNCH_HOST(symbol)                                                     \
	CUresult symbol(CUstream hStream, CUhostFn fn, void *userData)          \
	{                                                                       \
		SIM_ENTER(symbol);                                              \
		struct sim_context *context = NULL;                             \
		CUresult rc = sim_stream_context(hStream, &context);            \
		if (!fn)                                                        \
			return CUDA_ERROR_INVALID_VALUE;                        \
		if (rc == CUDA_SUCCESS)                                         \
			fn(userData);                                           \
		return rc;                                                      \
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

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
	SIM_ENTER(cuFuncGetAttribute);
	if (!pi || !hfunc || (unsigned int)attrib >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*pi = attrib == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
	return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
	SIM_ENTER(cuFuncSetAttribute);
	(void)value;
	return hfunc && (unsigned int)attrib < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
	SIM_ENTER(cuFuncSetCacheConfig);
	(void)config;
	return hfunc ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
						     size_t dynamicSMemSize)
{
	SIM_ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
	(void)dynamicSMemSize;
	if (!numBlocks || !func || blockSize <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*numBlocks = blockSize > 1024 ? 0 : 2048 / blockSize > 32 ? 32 : 2048 / blockSize;
	return CUDA_SUCCESS;
}
