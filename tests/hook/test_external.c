/*
 * External memory: charged at the size its import names, until it is destroyed or its context is.
 */
#include <string.h>
#include <unistd.h>

#include "tests/hook/scenario.h"

static CUresult import(CUexternalMemory *external, uint64_t bytes)
{
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc;
    CUresult result;

    memset(&desc, 0, sizeof(desc));
    desc.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    desc.handle.fd = dup(2);
    desc.size = bytes;
    result = api.cuImportExternalMemory(external, &desc);
    if (result != CUDA_SUCCESS)
        close(desc.handle.fd); /* else it is the driver's */
    return result;
}

static int an_import_is_charged_until_it_is_destroyed(void)
{
    CUexternalMemory first, second = (CUexternalMemory)0x77;
    CUdeviceptr pointer = 0x77;

    OK(begin(0));
    OK(import(&first, 600 * MIB));
    SAME(charged(0), 600 * MIB);
    REFUSED(import(&second, 600 * MIB));
    REFUSED(import(&second, UINT64_MAX));
    CHECK(second == (CUexternalMemory)0x77);
    REFUSED(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    OK(api.cuDestroyExternalMemory(first));
    SAME(charged(0), 0);
    CHECK(api.cuDestroyExternalMemory(first) != CUDA_SUCCESS);
    OK(import(&second, 600 * MIB));
    return 0;
}

static int what_is_mapped_of_it_is_the_drivers(void)
{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC desc;
    CUexternalMemory external;
    CUdeviceptr pointer;

    memset(&desc, 0, sizeof(desc));
    desc.size = 16 * MIB;
    OK(begin(0));
    OK(import(&external, 64 * MIB));
    OK(api.cuExternalMemoryGetMappedBuffer(&pointer, external, &desc));
    SAME(charged(0), 64 * MIB);
    OK(api.cuMemFree_v2(pointer));
    SAME(charged(0), 64 * MIB);
    OK(api.cuDestroyExternalMemory(external));
    SAME(charged(0), 0);
    return 0;
}

static int it_goes_with_its_context(void)
{
    CUexternalMemory external;
    CUcontext context;

    OK(begin(0));
    OK(api.cuCtxGetCurrent(&context));
    OK(import(&external, 600 * MIB));
    OK(api.cuCtxDestroy_v2(context));
    SAME(charged(0), 0);
    OK(api.cuDevicePrimaryCtxRetain(&context, 0));
    OK(api.cuCtxSetCurrent(context));
    OK(import(&external, 600 * MIB));
    SAME(charged(0), 600 * MIB);
    OK(api.cuDevicePrimaryCtxReset_v2(0));
    SAME(charged(0), 0);
    return 0;
}

static int the_drivers_failures_leave_the_books_right(void)
{
    CUexternalMemory external = (CUexternalMemory)0x77;

    OK(begin(0));
    GIVES(import(&external, 64 * MIB), CUDA_ERROR_ILLEGAL_ADDRESS);
    SAME(charged(0), 0);
    GIVES(import(&external, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(api.cuImportExternalMemory(&external, NULL), CUDA_ERROR_INVALID_VALUE);
    GIVES(import(NULL, 64 * MIB), CUDA_ERROR_INVALID_VALUE);
    CHECK(external == (CUexternalMemory)0x77);
    SAME(charged(0), 0);
    OK(import(&external, 64 * MIB));
    GIVES(api.cuDestroyExternalMemory(external), CUDA_ERROR_LAUNCH_FAILED);
    SAME(charged(0), 64 * MIB);
    OK(api.cuDestroyExternalMemory(external));
    SAME(charged(0), 0);
    return 0;
}

static const struct scenario scenarios[] = {
    SCENARIO(an_import_is_charged_until_it_is_destroyed, NULL),
    SCENARIO(what_is_mapped_of_it_is_the_drivers, NULL),
    SCENARIO(it_goes_with_its_context, NULL),
    SCENARIO(the_drivers_failures_leave_the_books_right,
             "VRAMCAP_SIM_FAIL=cuImportExternalMemory:1:700,cuDestroyExternalMemory:1:719"),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
