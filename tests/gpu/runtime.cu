// A program of the CUDA runtime, linked with it statically or as a library by run.sh: blocks until
// cudaErrorMemoryAllocation, everything back, once more, a kernel before and after. One line of JSON.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

static __global__ void twice(float *a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        a[i] *= 2.0f;
}

static bool works()
{
    const int n = 1 << 16;
    float *there = nullptr, here[4] = {1, 2, 3, 4};

    if (cudaMalloc(&there, n * sizeof(float)) != cudaSuccess)
        return false;
    cudaMemcpy(there, here, sizeof here, cudaMemcpyHostToDevice);
    twice<<<n / 256, 256>>>(there, n);
    cudaMemcpy(here, there, sizeof here, cudaMemcpyDeviceToHost);
    cudaFree(there);
    return here[3] == 8.0f;
}

static int brim(size_t bytes, const char **error)
{
    std::vector<void *> blocks;
    void *block = nullptr;
    cudaError_t rc;

    while ((rc = cudaMalloc(&block, bytes)) == cudaSuccess)
        blocks.push_back(block);
    *error = cudaGetErrorName(rc);
    cudaGetLastError();
    for (void *b : blocks)
        cudaFree(b);
    return static_cast<int>(blocks.size());
}

int main(int argc, char **argv)
{
    size_t block_mib = argc > 1 ? strtoul(argv[1], nullptr, 10) : 64, free_bytes = 0, total = 0;
    const char *error = "", *again_error = "";

    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
        return 77;
    bool before = works();
    int blocks = brim(block_mib << 20, &error), again = brim(block_mib << 20, &again_error);
    bool after = works();
    printf("{\"total_mib\": %zu, \"free_mib\": %zu, \"model\": %s, \"block_mib\": %zu, \"blocks\": %d, "
           "\"error\": \"%s\", \"blocks_again\": %d, \"model_afterwards\": %s}\n",
           total >> 20, free_bytes >> 20, before ? "true" : "false", block_mib, blocks, error, again,
           after ? "true" : "false");
    return before && after ? 0 : 1;
}
