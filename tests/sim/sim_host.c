/*
 * Pinned host memory, which takes none of the card, and what a pointer is.
 *
 * Host memory from cuMemHostAlloc is ordinary page-aligned memory; registering
 * remembers a range and nothing else. The list is short in every test, so it is a list.
 */
#define _GNU_SOURCE
#include "sim_internal.h"

#include <stdlib.h>
#include <string.h>

static struct sim_host_range *ranges; /* sim_lock */

struct sim_host_range *sim_host_find(uintptr_t address)
{
    for (struct sim_host_range *range = ranges; range; range = range->next)
        if (address - range->base < range->bytes)
            return range;
    return NULL;
}

static CUresult range_add(void *base, size_t bytes, unsigned int flags, bool registered)
{
    struct sim_host_range *range = calloc(1, sizeof *range);

    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *range = (struct sim_host_range){
        .base = (uintptr_t)base, .bytes = bytes, .flags = flags, .registered = registered};
    sim_lock_take();
    if (registered && sim_host_find((uintptr_t)base)) {
        sim_lock_drop();
        free(range);
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    range->next = ranges;
    ranges = range;
    sim_lock_drop();
    return CUDA_SUCCESS;
}

static CUresult range_remove(void *base, bool registered)
{
    struct sim_host_range *found = NULL;

    sim_lock_take();
    for (struct sim_host_range **at = &ranges; *at; at = &(*at)->next) {
        if ((*at)->base == (uintptr_t)base && (*at)->registered == registered) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    sim_lock_drop();
    if (!found)
        return registered ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_ERROR_INVALID_VALUE;
    free(found);
    if (!registered)
        free(base);
    return CUDA_SUCCESS;
}

static CUresult host_alloc(void **pp, size_t bytes, unsigned int flags)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);
    void *memory = NULL;

    if (!pp || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    if (posix_memalign(&memory, 4096, bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    rc = range_add(memory, bytes, flags, false);
    if (rc == CUDA_SUCCESS)
        *pp = memory;
    else
        free(memory);
    return rc;
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    SIM_ENTER(cuMemHostAlloc);
    return host_alloc(pp, bytesize, Flags);
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    SIM_ENTER(cuMemAllocHost_v2);
    return host_alloc(pp, bytesize, 0);
}

CUresult cuMemAllocHost(void **pp, unsigned int bytesize)
{
    SIM_ENTER(cuMemAllocHost);
    return host_alloc(pp, bytesize, 0);
}

CUresult cuMemFreeHost(void *p)
{
    SIM_ENTER(cuMemFreeHost);
    return p ? range_remove(p, false) : CUDA_SUCCESS;
}

static CUresult host_register(void *p, size_t bytes, unsigned int flags)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (!p || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return rc == CUDA_SUCCESS ? range_add(p, bytes, flags, true) : rc;
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    SIM_ENTER(cuMemHostRegister_v2);
    return host_register(p, bytesize, Flags);
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
    SIM_ENTER(cuMemHostRegister);
    return host_register(p, bytesize, Flags);
}

CUresult cuMemHostUnregister(void *p)
{
    SIM_ENTER(cuMemHostUnregister);
    return p ? range_remove(p, true) : CUDA_ERROR_INVALID_VALUE;
}

/* Unified addressing: the device sees pinned memory where the host does. */
static bool host_range_of(void *p, struct sim_host_range *copy)
{
    sim_lock_take();
    struct sim_host_range *range = sim_host_find((uintptr_t)p);
    if (range)
        *copy = *range;
    sim_lock_drop();
    return range != NULL;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    SIM_ENTER(cuMemHostGetDevicePointer_v2);
    struct sim_host_range range;

    if (!pdptr || Flags != 0 || !host_range_of(p, &range))
        return CUDA_ERROR_INVALID_VALUE;
    *pdptr = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *pdptr, void *p, unsigned int Flags)
{
    SIM_ENTER(cuMemHostGetDevicePointer);
    struct sim_host_range range;

    if (!pdptr || Flags != 0 || !host_range_of(p, &range) || (uintptr_t)p > UINT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *pdptr = (CUdeviceptr_v1)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    SIM_ENTER(cuMemHostGetFlags);
    struct sim_host_range range;

    if (!pFlags || !host_range_of(p, &range))
        return CUDA_ERROR_INVALID_VALUE;
    *pFlags = range.flags;
    return CUDA_SUCCESS;
}

/* --- what a pointer is ------------------------------------------------------- */

struct pointer {
    bool device, host;
    struct sim_allocation allocation;
};

static struct pointer pointer_look(CUdeviceptr address)
{
    struct pointer pointer;

    memset(&pointer, 0, sizeof pointer);
    sim_lock_take();
    pointer.device = sim_arena_find(address, &pointer.allocation);
    struct sim_host_range *range = sim_host_find((uintptr_t)address);
    if (!pointer.device && range) {
        pointer.host = true;
        pointer.allocation.base = range->base;
        pointer.allocation.bytes = range->bytes;
    }
    sim_lock_drop();
    return pointer;
}

static CUdevice device_of_card(unsigned int card)
{
    for (unsigned int d = 0; d < sim_device_count; d++)
        if (sim_device_card[d] == card)
            return (CUdevice)d;
    return CU_DEVICE_INVALID;
}

static CUresult attribute_get(void *data, CUpointer_attribute attribute, CUdeviceptr address,
                              const struct pointer *pointer)
{
    struct sim_owner *owner = pointer->allocation.owner;
    struct sim_context *context = owner ? owner->context : NULL;

    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = context ? sim_context_handle(context) : NULL;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)data = pointer->device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = address;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (pointer->device && !pointer->allocation.managed)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)address;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        *(unsigned int *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = pointer->allocation.base;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned int *)data = pointer->allocation.managed;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = owner ? device_of_card(owner->card) : 0;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = pointer->allocation.base;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = pointer->allocation.bytes;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned int *)data = 1;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS *)data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(void **)data = sim_pool_handle(owner);
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    SIM_ENTER(cuPointerGetAttribute);
    struct pointer pointer = pointer_look(ptr);

    if (!data || (!pointer.device && !pointer.host))
        return CUDA_ERROR_INVALID_VALUE;
    return attribute_get(data, attribute, ptr, &pointer);
}

/* For a pointer that CUDA does not know, each attribute reads 0 and the call succeeds. */
CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                void **data, CUdeviceptr ptr)
{
    SIM_ENTER(cuPointerGetAttributes);
    struct pointer pointer = pointer_look(ptr);

    if (!attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < numAttributes; i++) {
        bool wide = attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_BUFFER_ID ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE ||
                    (int)attributes[i] >= CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;

        if ((pointer.device || pointer.host) &&
            attribute_get(data[i], attributes[i], ptr, &pointer) == CUDA_SUCCESS)
            continue;
        memset(data[i], 0, wide ? 8 : 4);
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data[i] = CU_DEVICE_INVALID;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    SIM_ENTER(cuPointerSetAttribute);
    struct pointer pointer = pointer_look(ptr);

    return value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && pointer.device
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}
