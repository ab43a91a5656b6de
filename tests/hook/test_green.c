/*
 * Green contexts: parts of a device under its primary context, whose cost and whose memory is the primary
 * context's.
 */
#include "tests/hook/scenario.h"

static CUdevResourceDesc part;

static CUresult prepare(void)
{
    CUdevResource whole;
    CUresult result = api.cuInit(0);

    if (result == CUDA_SUCCESS)
        result = api.cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM);
    return result == CUDA_SUCCESS ? api.cuDevResourceGenerateDesc(&part, &whole, 1) : result;
}

static CUresult make(CUgreenCtx *green, CUcontext *context)
{
    CUresult result = api.cuGreenCtxCreate(green, part, 0, CU_GREEN_CTX_DEFAULT_STREAM);

    return result == CUDA_SUCCESS && context != NULL ? api.cuCtxFromGreenCtx(context, *green)
                                                     : result;
}

static int its_memory_is_the_primary_contexts(void)
{
    CUgreenCtx first, second;
    CUcontext context, other;
    CUdeviceptr pointer;

    OK(prepare());
    OK(make(&first, &context));
    OK(make(&second, &other));
    OK(api.cuCtxSetCurrent(context));
    OK(api.cuMemAlloc_v2(&pointer, 700 * MIB));
    SAME(charged(0), 700 * MIB);
    OK(api.cuGreenCtxDestroy(first)); /* the second holds the primary context, and it the memory */
    SAME(charged(0), 700 * MIB);
    OK(api.cuCtxSetCurrent(other));
    REFUSED(api.cuMemAlloc_v2(&pointer, 700 * MIB));
    OK(api.cuGreenCtxDestroy(second));
    SAME(charged(0), 0);
    OK(make(&first, &context));
    OK(api.cuCtxSetCurrent(context));
    OK(api.cuMemAlloc_v2(&pointer, 700 * MIB));
    return 0;
}

static int the_primary_context_costs_once(void)
{
    CUgreenCtx first, second;
    CUcontext context, other, primary;
    CUdeviceptr pointer;

    OK(prepare());
    OK(make(&first, &context));
    SAME(charged(0), 16 * MIB);
    OK(make(&second, &other));
    OK(api.cuCtxSetCurrent(context));
    OK(api.cuMemAlloc_v2(&pointer, 2 * MIB));
    OK(api.cuCtxSetCurrent(other));
    OK(api.cuMemAlloc_v2(&pointer, 2 * MIB));
    SAME(charged(0), 20 * MIB);
    OK(api.cuDevicePrimaryCtxRetain(&primary, 0));
    OK(api.cuCtxSetCurrent(primary));
    OK(api.cuMemAlloc_v2(&pointer, 2 * MIB));
    SAME(charged(0), 22 * MIB);
    OK(api.cuGreenCtxDestroy(first));
    OK(api.cuGreenCtxDestroy(second));
    SAME(charged(0), 22 * MIB);
    OK(api.cuDevicePrimaryCtxRelease_v2(0));
    SAME(charged(0), 0);
    return 0;
}

static int a_primary_context_that_was_there_costs_nothing_more(void)
{
    CUgreenCtx green;
    CUcontext context, primary;
    CUdeviceptr pointer;

    OK(prepare());
    OK(api.cuDevicePrimaryCtxRetain(&primary, 0));
    SAME(charged(0), 16 * MIB);
    OK(make(&green, &context));
    OK(api.cuCtxSetCurrent(context));
    OK(api.cuMemAlloc_v2(&pointer, 2 * MIB));
    SAME(charged(0), 18 * MIB);
    OK(api.cuDevicePrimaryCtxRelease_v2(0)); /* the green one keeps it */
    SAME(charged(0), 18 * MIB);
    OK(api.cuGreenCtxDestroy(green));
    SAME(charged(0), 0);
    return 0;
}

static int one_that_has_no_room_for_its_primary_context_is_refused(void)
{
    CUgreenCtx green = (CUgreenCtx)(uintptr_t)0x77;

    OK(prepare());
    REFUSED(make(&green, NULL));
    CHECK(green == (CUgreenCtx)(uintptr_t)0x77);
    SAME(gpu_row(0).refusals, 1);
    return 0;
}

static int arguments_and_failures_are_the_drivers(void)
{
    CUgreenCtx green = (CUgreenCtx)(uintptr_t)0x77;
    CUcontext context = (CUcontext)(uintptr_t)0x77;

    OK(prepare());
    CHECK(api.cuGreenCtxCreate(NULL, part, 0, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS);
    CHECK(api.cuGreenCtxCreate(&green, part, 0, 0) != CUDA_SUCCESS);
    CHECK(api.cuGreenCtxCreate(&green, part, 99, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS);
    CHECK(api.cuGreenCtxDestroy(green) != CUDA_SUCCESS);
    CHECK(api.cuCtxFromGreenCtx(&context, green) != CUDA_SUCCESS);
    CHECK(green == (CUgreenCtx)(uintptr_t)0x77);
    CHECK(context == (CUcontext)(uintptr_t)0x77);
    OK(make(&green, NULL));
    CHECK(api.cuCtxFromGreenCtx(NULL, green) != CUDA_SUCCESS);
    SAME(charged(0), 16 * MIB);
    OK(api.cuGreenCtxDestroy(green));
    SAME(charged(0), 0);
    return 0;
}

#define PRICED "VRAMCAP_CONTEXT_MIB=16"

static const struct scenario scenarios[] = {
    SCENARIO(its_memory_is_the_primary_contexts, NULL),
    SCENARIO(the_primary_context_costs_once, PRICED),
    SCENARIO(a_primary_context_that_was_there_costs_nothing_more, PRICED),
    SCENARIO(one_that_has_no_room_for_its_primary_context_is_refused,
             PRICED ";VRAMCAP_MEMORY_MIB=8"),
    SCENARIO(arguments_and_failures_are_the_drivers, PRICED),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
