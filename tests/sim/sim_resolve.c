/*
 * cuGetProcAddress: name, CUDA version and stream flag into an address.
 *
 * The mechanical rule of cudaTypedefs.h: of the ABIs that this driver version has, the
 * newest that is not newer than the requested version; with the per-thread flag its
 * _ptsz or _ptds twin, if there is one. A name that is known but only newer than asked
 * for is VERSION_NOT_SUFFICIENT. Not found is CUDA_SUCCESS with a NULL address where the
 * caller gave a status pointer, CUDA_ERROR_NOT_FOUND where it gave none.
 */
#define _GNU_SOURCE
#include "sim_internal.h"
#include "sim_symbols.h"

#include <string.h>

#define NEWEST_KNOWN 13050
#define FLAGS_KNOWN                                                                                \
    (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)

/* VRAMCAP_SIM_NEWER: ABIs that no header of today knows; an extra argument tells them apart. */
static CUresult alloc_newer(CUdeviceptr *dptr, size_t bytesize, unsigned long long flags)
{
    SIM_ENTER(cuMemAlloc_v9);
    (void)flags;
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (!dptr || rc != CUDA_SUCCESS)
        return rc != CUDA_SUCCESS ? rc : CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    rc = sim_arena_alloc(&context->owner, SIM_REGION_MAIN, bytesize, dptr);
    sim_lock_drop();
    return rc;
}

static CUresult context_newer(CUcontext *pctx, void *params, unsigned int flags, CUdevice dev,
                              unsigned int more)
{
    SIM_ENTER(cuCtxCreate_v9);
    (void)params;
    (void)more;
    return sim_context_create(pctx, flags, dev, 3020, 0);
}

static void *newer(const char *base)
{
    if (strcmp(base, "cuMemAlloc") == 0 || strncmp(base, "cuMemAllocElsewhere", 19) == 0)
        return (void *)(uintptr_t)alloc_newer;
    if (strcmp(base, "cuCtxCreate") == 0)
        return (void *)(uintptr_t)context_newer;
    return NULL;
}

static CUdriverProcAddressQueryResult look_up(const char *base, int version, bool per_thread,
                                              void **address)
{
    const struct sim_symbol *best = NULL;
    bool known = false;

    if (sim_config.newer && version > NEWEST_KNOWN && (*address = newer(base)) != NULL)
        return CU_GET_PROC_ADDRESS_SUCCESS;
    for (unsigned int i = 0; i < sim_symbol_count; i++) {
        const struct sim_symbol *symbol = &sim_symbols[i];

        if (strcmp(symbol->base, base) != 0 || !sim_symbol_present(symbol->name, symbol->since))
            continue;
        known = true;
        if (symbol->since > version || (symbol->per_thread && !per_thread))
            continue;
        /* A twin stands behind its legacy form in the table, with the same version. */
        if (!best || symbol->since >= best->since)
            best = symbol;
    }
    if (!best)
        return known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                     : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    sim_address found = sim_config.alias && best->thunk ? best->thunk : best->address;
    *address = (void *)(uintptr_t)found;
    return CU_GET_PROC_ADDRESS_SUCCESS;
}

static CUresult resolve(const char *symbol, void **pfn, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status)
{
    void *address = NULL;

    if (!symbol || !pfn || (flags & ~(cuuint64_t)FLAGS_KNOWN) != 0 || flags == FLAGS_KNOWN)
        return CUDA_ERROR_INVALID_VALUE;
    CUdriverProcAddressQueryResult result = look_up(
        symbol, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, &address);
    *pfn = address;
    if (status)
        *status = result;
    return result == CU_GET_PROC_ADDRESS_SUCCESS || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    SIM_ENTER_EARLY(cuGetProcAddress);
    return resolve(symbol, pfn, cudaVersion, flags, NULL);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus)
{
    SIM_ENTER_EARLY(cuGetProcAddress_v2);
    return resolve(symbol, pfn, cudaVersion, flags, symbolStatus);
}
