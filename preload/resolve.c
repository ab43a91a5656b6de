/*
 * Getting in front of the driver: what dlsym and cuGetProcAddress answer.  Invariants:
 *   - the driver is asked first; only an address that it gave is ever replaced, by the hook or stub of
 *     the row whose function stands at that address; nothing is invented that the driver lacks;
 *   - what libcuda itself looks up stays its own;
 *   - no libc function is called before libcuda is loaded (sanitised programs call dlsym before libc is
 *     ready); this file is compiled without builtins and sanitizers.
 * docs/design.md has the callers, and why each needs its own answer.
 */
#include "preload/cuda_api.h"

#include <dlfcn.h>
#include <stddef.h>

#include "enforcer/kernel.h"
#include "preload/elf.h"
#include "preload/nvml_api.h"
#include "preload/rows.h"
#include "preload/unknown.h"

typedef void *(*dlsym_function)(void *handle, const char *name);
typedef void *(*dlopen_function)(const char *file, int mode);

/* used by dlsym_*.S */
extern dlsym_function vcap_libc_dlsym __attribute__((visibility("hidden")));
dlsym_function vcap_find_libc_dlsym(void);
void *vcap_dlsym(void *handle, const char *name, const void *caller);
extern void *vcap_gap_target[] __attribute__((visibility("hidden")));

dlsym_function vcap_libc_dlsym; /* written by vcap_find_libc_dlsym, always the same value */

struct vcap_binding vcap_binding;

static void *libc_symbol(const char *name)
{
    static const char *const libraries[] = {"libc.so.6",
                                            "libdl.so.2"}; /* since 2.34 all is in libc */
    void *found = NULL;

    for (unsigned i = 0; found == NULL && i < 2; i++) {
        const struct link_map *module = vcap_elf_find(libraries[i]);

        found = module == NULL ? NULL : vcap_elf_symbol(module, name);
    }
    return found;
}

dlsym_function vcap_find_libc_dlsym(void)
{
    dlsym_function found = (dlsym_function)libc_symbol("dlsym");

    __atomic_store_n(&vcap_libc_dlsym, found, __ATOMIC_RELEASE);
    return found;
}

static void bind_rows(const struct link_map *driver)
{
    extern const char __ehdr_start[] __attribute__((visibility("hidden"))); /* the linker's */
    struct vcap_elf_tables t;
    struct link_map own;

    if (!vcap_elf_read(driver, &t))
        t.gnu_hash = t.sysv_hash = NULL; /* finds nothing */
    for (unsigned row = 0; row < VCAP_ROWS; row++)
        if (vcap_row_kind(row) != VCAP_KIND_PASS)
            *vcap_row_real(row) = vcap_elf_lookup(&t, vcap_row_symbol(row));
#define OWN(name) vcap_own.name = (__typeof__(vcap_own.name))vcap_elf_lookup(&t, #name)
    OWN(cuCtxGetCurrent);
    OWN(cuCtxGetDevice);
    OWN(cuCtxGetLimit);
    OWN(cuDeviceGetAttribute);
    OWN(cuDeviceGetUuid);
    OWN(cuDeviceGetCount);
    OWN(cuDeviceGetPCIBusId);
    OWN(cuDeviceGetUuid_v2);
    OWN(cuDevicePrimaryCtxGetState);
    OWN(cuMemGetAllocationPropertiesFromHandle);
    OWN(cuThreadExchangeStreamCaptureMode);
    OWN(cuStreamIsCapturing);
    OWN(cuStreamGetCtx);
    OWN(cuStreamGetDevice);
    OWN(cuDeviceGetDefaultMemPool);
    OWN(cuDeviceGetMemPool);
    OWN(cuMemPoolGetAttribute);
    OWN(cuMemPoolTrimTo);
    OWN(cuMemGetAddressRange_v2);
    OWN(cuGraphGetNodes);
    OWN(cuGraphNodeGetType);
    OWN(cuGraphChildGraphNodeGetGraph);
    OWN(cuGraphMemAllocNodeGetParams);
    OWN(cuDeviceGetGraphMemAttribute);
    OWN(cuDeviceGraphMemTrim);
#undef OWN
    vcap_rows_index();
    vcap_elf_span(driver, &vcap_binding.driver_low, &vcap_binding.driver_high);
    own.l_addr = (uintptr_t)__ehdr_start;
    vcap_elf_span(&own, &vcap_binding.own_low, &vcap_binding.own_high);
}

bool vcap_bind_now(void)
{
    uint32_t seen = __atomic_load_n(&vcap_binding.state, __ATOMIC_ACQUIRE), me;
    const struct link_map *driver;
    struct link_map found;
    dlopen_function open_library;

    if (seen == VCAP_BOUND)
        return true;
    if (!vcap_elf_find_shared(libc_symbol("dl_iterate_phdr"), "libcuda.so.1", &found))
        return false;
    driver = &found;
    /* One more reference, so that our pointers into it stay good when the program closes it.  Before the
     * state is taken: a constructor that calls us holds the loader's lock, and must not wait for whoever
     * waits for that lock. */
    open_library = (dlopen_function)libc_symbol("dlopen");
    if (open_library != NULL && open_library("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) == NULL)
        return false; /* closed in between */
    me = (uint32_t)syscall(SYS_getpid);
    while (seen != VCAP_BOUND &&
           (seen == me || !__atomic_compare_exchange_n(&vcap_binding.state, &seen, me, false,
                                                       __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))) {
        if (seen == me)
            vcap_sys_futex_wait(&vcap_binding.state, me);
        seen = __atomic_load_n(&vcap_binding.state, __ATOMIC_ACQUIRE);
    }
    if (seen == VCAP_BOUND)
        return true;
    bind_rows(driver);
    __atomic_store_n(&vcap_binding.state, VCAP_BOUND, __ATOMIC_RELEASE);
    vcap_sys_futex_wake(&vcap_binding.state, INT32_MAX);
    return true;
}

struct vcap_real_nvml vcap_real_nvml;

bool vcap_nvml_bind_now(void)
{
    const struct link_map *library = vcap_elf_find("libnvidia-ml.so.1");
    uintptr_t low, high;
    dlopen_function open_library;

    if (library == NULL)
        return false;
    /* threads that come here at once write the same; one more reference each, so that it stays loaded */
    open_library = (dlopen_function)libc_symbol("dlopen");
    if (open_library != NULL)
        open_library("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
#define FIND(name)                                                                                 \
    __atomic_store_n(&vcap_real_nvml.name,                                                         \
                     (__typeof__(vcap_real_nvml.name))vcap_elf_symbol(library, #name),             \
                     __ATOMIC_RELAXED)
#define NVML_HOOK(name, rule) FIND(name);
#include "preload/nvml_api.def"
    FIND(nvmlDeviceGetUUID);
    FIND(nvmlDeviceGetIndex);
#undef FIND
    vcap_elf_span(library, &low, &high);
    __atomic_store_n(&vcap_real_nvml.low, low, __ATOMIC_RELAXED);
    __atomic_store_n(&vcap_real_nvml.high, high, __ATOMIC_RELAXED);
    __atomic_store_n(&vcap_real_nvml.bound, 1, __ATOMIC_RELEASE);
    return true;
}

/* Our function for an address that NVML gave; NVML's and the driver's own look-ups keep theirs. */
static void *nvml_answer(void *address, const void *caller)
{
    if (!vcap_nvml_bind() || vcap_is_nvml_inner_call(caller) || vcap_is_inner_call(caller))
        return address;
#define NVML_HOOK(name, rule)                                                                      \
    if (address == (void *)vcap_real_nvml.name)                                                    \
        return (void *)name;
#include "preload/nvml_api.def"
    return address;
}

void *vcap_dlsym(void *handle, const char *name, const void *caller)
{
    dlsym_function libc_dlsym = vcap_libc_dlsym != NULL ? vcap_libc_dlsym : vcap_find_libc_dlsym();
    void *address = libc_dlsym == NULL ? NULL : libc_dlsym(handle, name), *hook = NULL;
    int row;

    if (address != NULL && name[0] == 'n')
        return nvml_answer(address, caller);
    if (address == NULL || !vcap_bind() || vcap_is_inner_call(caller))
        return address;
    row = vcap_row_by_symbol(name);
    if (row < 0 && vcap_unknown_may_allocate(name) && vcap_is_inner_call(address))
        vcap_unknown_met(name, 0);
    if (row < 0 || *vcap_row_real((unsigned)row) != address)
        return address;
    hook = vcap_row_hook((unsigned)row);
    return hook != NULL ? hook : address;
}

void *vcap_answer(const char *name, void *address, int version, uint64_t flags)
{
    int row = name == NULL || address == NULL ? -1 : vcap_row_by_address(name, address);
    void *hook;

    if (name == NULL || address == NULL)
        return address;
    if (row < 0 && vcap_base_is_known(name)) {
        if (version >
            VCAP_TABLE_CUDA_VERSION) {        /* perhaps a newer ABI: our body would not fit it */
            if (vcap_base_is_accounted(name)) /* of what costs nothing, no version does */
                vcap_unknown_met(name, version);
            return address;
        }
        row = vcap_row_by_version(name, version, (flags & VCAP_FLAG_PER_THREAD) != 0);
        if (row >= 0 && *vcap_row_real((unsigned)row) == NULL) /* not exported, only handed out */
            __atomic_store_n(vcap_row_real((unsigned)row), address, __ATOMIC_RELEASE);
    } else if (row < 0 && vcap_unknown_may_allocate(name)) {
        vcap_unknown_met(name, version);
    }
    hook = row < 0 ? NULL : vcap_row_hook((unsigned)row);
    return hook != NULL ? hook : address;
}

static CUresult no_driver(void)
{
    return CUDA_ERROR_NO_DEVICE;
}

static CUresult no_such_function(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

void *vcap_gap_first(uint32_t gap)
{
    unsigned row = vcap_gap_row(gap);
    void *target;

    if (!vcap_bind())
        return (void *)no_driver;
    target = *vcap_row_real(row);
    if (target == NULL)
        return (void *)no_such_function;
    if (__atomic_exchange_n(&vcap_gap_target[gap], target, __ATOMIC_ACQ_REL) == NULL)
        vcap_gap_met(row);
    return target;
}

CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    CUresult result;

    if (!vcap_bind())
        return CUDA_ERROR_NO_DEVICE;
    if (real.cuGetProcAddress == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    result = real.cuGetProcAddress(symbol, pfn, cudaVersion, flags);
    if (result == CUDA_SUCCESS && pfn != NULL && !vcap_is_inner_call(__builtin_return_address(0)))
        *pfn = vcap_answer(symbol, *pfn, cudaVersion, flags);
    return result;
}

CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion,
                                     cuuint64_t flags, CUdriverProcAddressQueryResult *symbolStatus)
{
    CUresult result;

    if (!vcap_bind())
        return CUDA_ERROR_NO_DEVICE;
    if (real.cuGetProcAddress_v2 == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    result = real.cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
    if (result == CUDA_SUCCESS && pfn != NULL && !vcap_is_inner_call(__builtin_return_address(0)))
        *pfn = vcap_answer(symbol, *pfn, cudaVersion, flags);
    return result;
}
