/*
 * What a driver really does, as JSON on standard output: what the rules of enforcer/rules.h and the
 * simulator claim, asked of the card. Nothing is linked: libcuda and NVML are opened by name, and every
 * call goes through dlsym. A call that is missing or fails shows as null, never as 0. What has a rule is followed by
 * NAME_rule_charges, what vramcap charges for it.
 *
 *     gpu_facts            all of it
 *     gpu_facts --probe    one line per device: UUID, name, folder of libcuda; 77 without a device
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "enforcer/rules_array.h"
#include "tests/gpu/driver.h"

static bool first_in_object = true;

static void field(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void field(const char *name, const char *format, ...)
{
    va_list arguments;

    printf("%s\n  \"%s\": ", first_in_object ? "" : ",", name);
    first_in_object = false;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
}

static void bytes_or_null(const char *name, bool known, int64_t bytes)
{
    if (known)
        field(name, "%" PRId64, bytes);
    else
        field(name, "null");
}

/* What the card lost to something, on average of many, and what each is charged. */
static void taken(const char *name, bool known, int64_t bytes, uint64_t rule)
{
    char rule_name[96];

    bytes_or_null(name, known, bytes);
    snprintf(rule_name, sizeof(rule_name), "%s_rule_charges", name);
    field(rule_name, "%" PRIu64, rule);
}

/* What is free now; an error shows as a negative number. */
static int64_t free_now(void)
{
    size_t free_bytes = 0, total = 0;

    return gpu.cuMemGetInfo_v2 != NULL && gpu.cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS
               ? (int64_t)free_bytes
               : -1;
}

/* By how much `count` allocations of a size lower what is free, per allocation. */
static void linear_cost(size_t bytes, unsigned count)
{
    static CUdeviceptr pointer[4096];
    int64_t before = free_now(), after;
    unsigned granted = 0;
    char name[64];

    while (granted < count && gpu.cuMemAlloc_v2(&pointer[granted], bytes) == CUDA_SUCCESS)
        granted++;
    after = free_now();
    snprintf(name, sizeof(name), "alloc_%zu_bytes_each_of_%u", bytes, count);
    taken(name, granted == count && before >= 0 && after >= 0,
          granted == 0 ? 0 : (before - after) / (int64_t)granted, vcap_rule_linear(bytes));
    for (unsigned i = 0; i < granted; i++)
        gpu.cuMemFree_v2(pointer[i]);
}

static void linear(void)
{
    static const size_t sizes[] = {1,       512,     4096,    65536,   524288,  1048576,
                                   1048577, 1572864, 2097152, 2097153, 3145728, 10485761};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        linear_cost(sizes[i], sizes[i] <= 65536 ? 2048 : 64);
}

static void pitched(void)
{
    static const size_t widths[] = {1, 100, 513, 5000};

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        CUdeviceptr pointer;
        size_t pitch = 0;
        char name[64];
        CUresult rc = gpu.cuMemAllocPitch_v2(&pointer, &pitch, widths[i], 1024, 4);

        snprintf(name, sizeof(name), "pitch_of_width_%zu", widths[i]);
        bytes_or_null(name, rc == CUDA_SUCCESS, (int64_t)pitch);
        if (rc == CUDA_SUCCESS)
            gpu.cuMemFree_v2(pointer);
    }
}

static void physical(void)
{
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    size_t least = 0, advised = 0;
    int64_t before;
    CUresult rc;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    rc = gpu.cuMemGetAllocationGranularity(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    bytes_or_null("granularity_minimum", rc == CUDA_SUCCESS, (int64_t)least);
    rc = gpu.cuMemGetAllocationGranularity(&advised, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    bytes_or_null("granularity_recommended", rc == CUDA_SUCCESS, (int64_t)advised);
    before = free_now();
    rc = gpu.cuMemCreate(&handle, 64 << 20, &prop, 0);
    taken("create_64_mib_takes", rc == CUDA_SUCCESS, before - free_now(),
          vcap_rule_physical(64 << 20));
    if (rc == CUDA_SUCCESS)
        gpu.cuMemRelease(handle);
    bytes_or_null("create_64_mib_leaves_after_release", rc == CUDA_SUCCESS, before - free_now());
}

static void pools(CUdevice device)
{
    cuuint64_t reserved = 0;
    CUmemoryPool pool;
    CUdeviceptr pointer[8];
    CUstream stream;
    int64_t before = free_now();
    char name[64];

    if (gpu.cuDeviceGetDefaultMemPool == NULL ||
        gpu.cuDeviceGetDefaultMemPool(&pool, device) != CUDA_SUCCESS ||
        gpu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
        field("pool", "null");
        return;
    }
    for (unsigned i = 0; i < 8; i++) {
        size_t bytes = (size_t)1 << (16 + 2 * (i / 2)); /* 64 KiB to 4 MiB, each twice */

        if (gpu.cuMemAllocAsync(&pointer[i], bytes, stream) != CUDA_SUCCESS)
            return;
        gpu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
        snprintf(name, sizeof(name), "pool_reserved_after_%u_up_to_%zu", i + 1, bytes);
        bytes_or_null(name, true, (int64_t)reserved);
    }
    taken("pool_takes", before >= 0, before - free_now(), reserved);
    for (unsigned i = 0; i < 8; i++)
        gpu.cuMemFreeAsync(pointer[i], stream);
    gpu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    bytes_or_null("pool_reserved_after_frees", true, (int64_t)reserved);
    gpu.cuStreamSynchronize(stream);
    gpu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    bytes_or_null("pool_reserved_after_synchronise", true, (int64_t)reserved);
    gpu.cuMemPoolTrimTo(pool, 0);
    gpu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    bytes_or_null("pool_reserved_after_trim", true, (int64_t)reserved);
    gpu.cuStreamDestroy_v2(stream);
}

static void arrays(void)
{
    static const unsigned shapes[][3] = {
        {1024, 0, 0}, {1024, 1024, 0}, {1000, 1000, 0}, {128, 128, 128}, {100, 100, 100}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const struct vcap_array_format format = {.planes = 1, .plane = {{4, 1, 0, 0}}};
        const struct vcap_array_shape rule_shape = {
            .width = shapes[i][0], .height = shapes[i][1], .depth = shapes[i][2], .levels = 1};
        CUDA_ARRAY3D_DESCRIPTOR shape;
        CUarray array[16];
        unsigned made = 0;
        int64_t before = free_now(), after;
        char name[64];

        memset(&shape, 0, sizeof(shape));
        shape.Width = shapes[i][0];
        shape.Height = shapes[i][1];
        shape.Depth = shapes[i][2];
        shape.Format = CU_AD_FORMAT_FLOAT;
        shape.NumChannels = 1;
        while (made < 16 && gpu.cuArray3DCreate_v2(&array[made], &shape) == CUDA_SUCCESS)
            made++;
        after = free_now();
        snprintf(name, sizeof(name), "array_%ux%ux%u_float_each_of_16", shapes[i][0], shapes[i][1],
                 shapes[i][2]);
        taken(name, made == 16 && before >= 0, (before - after) / 16,
              vcap_rule_array(&format, &rule_shape));
        while (made > 0)
            gpu.cuArrayDestroy(array[--made]);
    }
}

static void managed(void)
{
    CUdeviceptr pointer;
    int64_t before = free_now();
    CUresult rc = gpu.cuMemAllocManaged(&pointer, 64 << 20, CU_MEM_ATTACH_GLOBAL);

    field("managed_result", "%d", (int)rc);
    if (rc != CUDA_SUCCESS)
        return;
    bytes_or_null("managed_64_mib_takes", true, before - free_now());
    rc = gpu.cuMemsetD8_v2(pointer, 1, 64 << 20);
    if (rc == CUDA_SUCCESS)
        rc = gpu.cuCtxSynchronize();
    bytes_or_null("managed_64_mib_takes_when_touched_there", rc == CUDA_SUCCESS,
                  before - free_now());
    gpu.cuMemFree_v2(pointer);
}

/* Do cuGetProcAddress and dlsym give one address? */
static void addresses(void)
{
    static const char *const names[][2] = {
        {"cuMemAlloc", "cuMemAlloc_v2"},        {"cuMemFree", "cuMemFree_v2"},
        {"cuMemAllocAsync", "cuMemAllocAsync"}, {"cuMemCreate", "cuMemCreate"},
        {"cuCtxCreate", "cuCtxCreate_v2"},      {"cuMemGetInfo", "cuMemGetInfo_v2"},
        {"cuGraphLaunch", "cuGraphLaunch"},     {"cuArray3DCreate", "cuArray3DCreate_v2"},
        {"cuLaunchKernel", "cuLaunchKernel"},   {"cuMemAllocManaged", "cuMemAllocManaged"},
    };
    unsigned same = 0, different = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *by_name = dlsym(gpu.library, names[i][1]), *by_version = NULL;

        if (gpu.cuGetProcAddress != NULL &&
            gpu.cuGetProcAddress(names[i][0], &by_version, 11030, 0) == CUDA_SUCCESS) {
            same += by_name == by_version;
            different += by_name != by_version;
        }
    }
    field("addresses_same", "%u", same);
    field("addresses_different", "%u", different);
}

static void context_cost(CUdevice device)
{
    CUcontext second = NULL, before = NULL;
    CUmodule module = NULL;
    int64_t at = free_now(), then;
    CUresult rc;

    gpu.cuCtxGetCurrent(&before);
    rc = gpu.cuCtxCreate_v2(&second, 0, device);
    gpu.cuCtxSetCurrent(before);
    bytes_or_null("second_context_takes", rc == CUDA_SUCCESS, at - free_now());
    if (rc == CUDA_SUCCESS) {
        gpu.cuCtxDestroy_v2(second);
        gpu.cuCtxSetCurrent(before);
    }
    bytes_or_null("second_context_leaves", rc == CUDA_SUCCESS, at - free_now());
    at = free_now();
    rc = gpu.cuModuleLoadData(&module, gpu_empty_kernel);
    then = free_now();
    field("module_result", "%d", (int)rc);
    bytes_or_null("module_takes", rc == CUDA_SUCCESS, at - then);
    if (rc == CUDA_SUCCESS)
        gpu.cuModuleUnload(module);
    bytes_or_null("module_leaves", rc == CUDA_SUCCESS, at - free_now());
}

static void nvml(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void), (*by_index)(unsigned, void **), (*processes)(void *, unsigned *, void *);
    struct {
        unsigned pid;
        unsigned long long used;
        unsigned gpu_instance, compute_instance;
    } list[64];
    unsigned count = 64;
    bool found = false;
    void *device;

    if (library == NULL) {
        field("nvml", "null");
        return;
    }
    init = (int (*)(void))(uintptr_t)dlsym(library, "nvmlInit_v2");
    by_index =
        (int (*)(unsigned, void **))(uintptr_t)dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    processes = (int (*)(void *, unsigned *, void *))(uintptr_t)dlsym(
        library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (init == NULL || by_index == NULL || processes == NULL || init() != 0 ||
        by_index(0, &device) != 0 || processes(device, &count, list) != 0) {
        field("nvml", "null");
        return;
    }
    for (unsigned i = 0; i < count && i < 64; i++)
        if (list[i].pid == (unsigned)getpid()) {
            found = true;
            field("nvml_used_by_this_process", "%llu", list[i].used);
        }
    field("nvml_processes", "%u", count);
    field("nvml_lists_this_process_by_its_own_pid", "%s", found ? "true" : "false");
}

static void attribute(const char *name, CUdevice device, CUdevice_attribute which)
{
    int value = 0;
    CUresult rc = gpu.cuDeviceGetAttribute(&value, which, device);

    bytes_or_null(name, rc == CUDA_SUCCESS, value);
}

static int facts(void)
{
    CUcontext context;
    CUdevice device;
    size_t free_bytes = 0, total = 0, device_total = 0;
    int64_t before;
    int version = 0;
    char name[128] = "", uuid[64] = "";

    if (gpu.cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
        gpu.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS ||
        gpu.cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return 1;
    gpu.cuDriverGetVersion(&version);
    gpu.cuDeviceGetName(name, sizeof(name) - 1, device);
    gpu_uuid_text(device, uuid);
    printf("{");
    field("name", "\"%s\"", name);
    field("uuid", "\"%s\"", uuid);
    field("driver_cuda_version", "%d", version);
    attribute("compute_major", device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    attribute("compute_minor", device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    attribute("multiprocessors", device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    attribute("mps_enabled", device, (CUdevice_attribute)133);
    attribute("integrated", device, CU_DEVICE_ATTRIBUTE_INTEGRATED);
    gpu.cuMemGetInfo_v2(&free_bytes, &total);
    gpu.cuDeviceTotalMem_v2(&device_total, device);
    field("mem_info_free", "%zu", free_bytes);
    field("mem_info_total", "%zu", total);
    field("device_total", "%zu", device_total);
    before = free_now();
    addresses();
    context_cost(device);
    linear();
    pitched();
    physical();
    pools(device);
    arrays();
    managed();
    nvml();
    bytes_or_null("lost_in_all_of_this", true, before - free_now());
    printf("\n}\n");
    return 0;
}

int main(int argc, char **argv)
{
    int count = 0;
    char where[512];

    CUresult rc = gpu_open() ? gpu.cuInit(0) : CUDA_ERROR_NOT_FOUND;

    if (rc != CUDA_SUCCESS || gpu.cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0) {
        if (rc == CUDA_ERROR_NOT_FOUND)
            fprintf(stderr, "there is no libcuda.so.1\n");
        else
            fprintf(stderr, "cuInit gave %d, with %d devices\n", (int)rc, count);
        return 77;
    }
    if (argc != 2 || strcmp(argv[1], "--probe") != 0)
        return facts();
    gpu_folder(where, sizeof(where));
    for (CUdevice device = 0; device < count; device++) {
        char name[128] = "", uuid[64] = "";

        gpu.cuDeviceGetName(name, sizeof(name) - 1, device);
        gpu_uuid_text(device, uuid);
        printf("%s\t%s\t%s\n", uuid, where, name);
    }
    return 0;
}
