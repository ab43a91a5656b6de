/*
 * What calls cost, in nanoseconds, as one line of JSON: pairs of allocation and free, launches of a kernel
 * that does nothing, and a small loop as an inference server has it (a buffer, copies in and out, kernels, one
 * wait). Run bare and under vramcap in turns by run.sh; only the ratio means something.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/gpu/driver.h"

#define MIB ((size_t)1 << 20)
#define KERNELS 24
#define CHECK(call)                                                                                \
    do {                                                                                           \
        CUresult rc_ = (call);                                                                     \
        if (rc_ != CUDA_SUCCESS) {                                                                 \
            fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, (int)rc_);           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static double linear_pair(size_t bytes, unsigned rounds)
{
    CUdeviceptr pointer;
    uint64_t begin = now_ns();

    for (unsigned i = 0; i < rounds; i++) {
        CHECK(gpu.cuMemAlloc_v2(&pointer, bytes));
        CHECK(gpu.cuMemFree_v2(pointer));
    }
    return (double)(now_ns() - begin) / rounds;
}

static double ordered_pair(size_t bytes, unsigned rounds, CUstream stream)
{
    CUdeviceptr pointer;
    uint64_t begin;

    CHECK(gpu.cuMemAllocAsync(&pointer, bytes, stream));
    begin = now_ns();
    for (unsigned i = 0; i < rounds; i++) {
        CUdeviceptr other;

        CHECK(gpu.cuMemAllocAsync(&other, bytes, stream));
        CHECK(gpu.cuMemFreeAsync(other, stream));
    }
    begin = now_ns() - begin;
    CHECK(gpu.cuMemFreeAsync(pointer, stream));
    CHECK(gpu.cuStreamSynchronize(stream));
    return (double)begin / rounds;
}

static double launch(CUfunction kernel, unsigned rounds, CUstream stream)
{
    uint64_t begin, spent = 0;

    for (unsigned i = 0; i < rounds; i += 256) { /* never so many that the queue is full */
        begin = now_ns();
        for (unsigned j = 0; j < 256; j++)
            CHECK(gpu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
        spent += now_ns() - begin;
        CHECK(gpu.cuStreamSynchronize(stream));
    }
    /* NOLINTNEXTLINE(bugprone-integer-division): rounded up to whole blocks */
    return (double)spent / ((rounds + 255) / 256 * 256);
}

static double request(CUfunction kernel, unsigned rounds, CUstream stream)
{
    CUdeviceptr weights, activation;
    uint64_t begin;
    void *host;

    CHECK(gpu.cuMemAlloc_v2(&weights, 64 * MIB));
    CHECK(gpu.cuMemAllocHost_v2(&host, MIB));
    begin = now_ns();
    for (unsigned i = 0; i < rounds; i++) {
        CHECK(gpu.cuMemAllocAsync(&activation, 4 * MIB, stream));
        CHECK(gpu.cuMemcpyHtoDAsync_v2(activation, host, MIB / 4, stream));
        for (unsigned k = 0; k < KERNELS; k++)
            CHECK(gpu.cuLaunchKernel(kernel, 32, 1, 1, 128, 1, 1, 0, stream, NULL, NULL));
        CHECK(gpu.cuMemcpyDtoHAsync_v2(host, activation, MIB / 16, stream));
        CHECK(gpu.cuMemFreeAsync(activation, stream));
        CHECK(gpu.cuStreamSynchronize(stream));
    }
    begin = now_ns() - begin;
    CHECK(gpu.cuMemFreeHost(host));
    CHECK(gpu.cuMemFree_v2(weights));
    return (double)begin / rounds;
}

int main(int argc, char **argv)
{
    unsigned rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 2000;
    CUcontext context;
    CUdevice device;
    CUfunction kernel;
    CUmodule module;
    CUstream stream;

    if (!gpu_open() || gpu.cuInit(0) != CUDA_SUCCESS || gpu.cuDeviceGet(&device, 0) != CUDA_SUCCESS)
        return 77;
    CHECK(gpu.cuDevicePrimaryCtxRetain(&context, device));
    CHECK(gpu.cuCtxSetCurrent(context));
    CHECK(gpu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(gpu.cuModuleLoadData(&module, gpu_empty_kernel));
    CHECK(gpu.cuModuleGetFunction(&kernel, module, "nothing"));
    (void)launch(kernel, 256, stream);
    printf("{\"alloc_free_64_kib\": %.1f, ", linear_pair(65536, rounds));
    printf("\"alloc_free_16_mib\": %.1f, ", linear_pair(16 * MIB, rounds));
    printf("\"alloc_free_async_1_mib\": %.1f, ", ordered_pair(MIB, rounds, stream));
    printf("\"launch\": %.1f, ", launch(kernel, rounds * 4, stream));
    printf("\"inference_request\": %.1f}\n", request(kernel, rounds / 2, stream));
    return 0;
}
