/*
 * IPC memory: memory of cuMemAlloc shown to another process. The handle names a share (sim_share.h)
 * into which the first cuIpcGetMemHandle turns the allocation, or, for a small one, the whole 2 MiB
 * slab that it lies in. An opener allocates nothing; what it opens is counted per context and
 * address, is no business of cuMemFree, and keeps the memory while the exporter dies or frees it.
 * Event handles are opaque and open as an event that has been recorded.
 */
#define _GNU_SOURCE
#include "sim_share.h"
#include "sim_window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEMORY_MAGIC UINT64_C(0x31304d454d435049)
#define EVENT_MAGIC UINT64_C(0x3130544e56435049)

struct memory_handle {
    uint64_t magic, share, offset, bytes;
};
_Static_assert(sizeof(struct memory_handle) <= sizeof(CUipcMemHandle), "the handle must fit");

struct event_handle {
    uint64_t magic, pid, id;
};
_Static_assert(sizeof(struct event_handle) <= sizeof(CUipcEventHandle), "the handle must fit");

struct opened {
    struct sim_resource resource; /* first */
    struct sim_window *window;
    uint64_t share, offset;
    unsigned int count;
    struct opened *next;
};
static struct opened *opened_first; /* sim_lock */

/* --- memory ------------------------------------------------------------------------------ */

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    SIM_ENTER(cuIpcGetMemHandle);
    struct memory_handle handle = {.magic = MEMORY_MAGIC};
    struct sim_context *context = NULL;
    struct sim_allocation found;
    CUresult rc = sim_context_current(&context);

    if (!pHandle)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    /* Pools and physical memory have ways of their own; managed memory has none. */
    if (sim_arena_find(dptr, &found) && found.owner && found.owner->context && !found.managed &&
        !sim_window_at(dptr)) {
        rc = sim_arena_share(found.base, &handle.share, &handle.offset);
        handle.bytes = found.bytes;
    } else {
        rc = CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock_drop();
    if (rc == CUDA_SUCCESS) {
        memset(pHandle, 0, sizeof *pHandle);
        memcpy(pHandle, &handle, sizeof handle);
    }
    return rc;
}

static void opened_end(struct sim_resource *resource)
{
    struct opened *opened = (struct opened *)(void *)resource;

    for (struct opened **at = &opened_first; *at; at = &(*at)->next) {
        if (*at == opened) {
            *at = opened->next;
            break;
        }
    }
    sim_window_delete(opened->window);
    sim_share_drop(sim_state, opened->share);
    free(opened);
}

static struct sim_owner *owner_for(struct sim_context *context, unsigned int card)
{
    if (context->owner.card == card)
        return &context->owner;
    for (unsigned int d = 0; d < sim_device_count; d++)
        if (sim_device_card[d] == card)
            return sim_device_owner((CUdevice)d);
    return NULL;
}

/* With sim_lock held, and the share held once for the result. */
static CUresult open_new(struct sim_context *context, const struct memory_handle *handle,
                         const struct sim_share_info *info, struct opened **made)
{
    struct sim_owner *owner = owner_for(context, info->card);
    struct opened *opened = NULL;
    struct sim_window *window = NULL;

    if (!owner)
        return CUDA_ERROR_INVALID_DEVICE;
    if (handle->offset > info->bytes || handle->bytes > info->bytes - handle->offset)
        return CUDA_ERROR_INVALID_VALUE;
    opened = calloc(1, sizeof *opened);
    window = sim_window_new(SIM_WINDOW_IPC, info->bytes, (size_t)1 << 21, 0, owner);
    if (!opened || !window ||
        !sim_share_map(sim_state, handle->share, info->bytes, window->shadow)) {
        if (window)
            sim_window_delete(window);
        free(opened);
        return CUDA_ERROR_MAP_FAILED;
    }
    window->asked = handle->offset + handle->bytes;
    *opened = (struct opened){.window = window,
                              .share = handle->share,
                              .offset = handle->offset,
                              .count = 1,
                              .next = opened_first};
    opened_first = opened;
    sim_resource_add(context, &opened->resource, opened_end);
    *made = opened;
    return CUDA_SUCCESS;
}

/* With sim_lock held. */
static CUresult open_handle(struct sim_context *context, const struct memory_handle *handle,
                            CUdeviceptr *address)
{
    struct sim_share_info info;
    struct opened *opened = opened_first;

    while (opened && (opened->resource.context != context || opened->share != handle->share ||
                      opened->offset != handle->offset))
        opened = opened->next;
    if (opened) {
        opened->count++;
    } else {
        if (sim_share_is_own(sim_state, handle->share))
            return CUDA_ERROR_INVALID_CONTEXT; /* memory of this very process */
        int held = sim_share_hold(sim_state, handle->share, &info);
        if (held != 0)
            return held == -ENOENT ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_MAP_FAILED;
        CUresult rc = open_new(context, handle, &info, &opened);
        if (rc != CUDA_SUCCESS) {
            sim_share_drop(sim_state, handle->share);
            return rc;
        }
    }
    *address = opened->window->span.base + opened->offset;
    return CUDA_SUCCESS;
}

static CUresult ipc_open(CUdeviceptr *pdptr, const CUipcMemHandle *handle, unsigned int flags)
{
    struct sim_context *context = NULL;
    struct memory_handle memory;
    CUresult rc = sim_context_current(&context);

    memcpy(&memory, handle, sizeof memory);
    if (!pdptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || memory.magic != MEMORY_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    rc = open_handle(context, &memory, pdptr);
    sim_lock_drop();
    return rc;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    SIM_ENTER(cuIpcOpenMemHandle);
    return ipc_open(pdptr, &handle, Flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    SIM_ENTER(cuIpcOpenMemHandle_v2);
    return ipc_open(pdptr, &handle, Flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    SIM_ENTER(cuIpcCloseMemHandle);
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (rc != CUDA_SUCCESS)
        return rc;
    sim_lock_take();
    struct opened *opened = opened_first;
    while (opened && opened->window->span.base + opened->offset != dptr)
        opened = opened->next;
    if (opened && --opened->count == 0)
        sim_resource_end(&opened->resource);
    sim_lock_drop();
    return opened ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- events ------------------------------------------------------------------------------ */

CUresult cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event)
{
    SIM_ENTER(cuIpcGetEventHandle);
    const struct sim_object *object = (const struct sim_object *)(const void *)event;
    const unsigned int needed = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;

    if (!pHandle)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object || object->kind != SIM_EVENT)
        return CUDA_ERROR_INVALID_HANDLE;
    if ((object->flags & needed) != needed)
        return CUDA_ERROR_INVALID_VALUE;
    struct event_handle handle = {EVENT_MAGIC, (uint64_t)getpid(), object->id};
    memset(pHandle, 0, sizeof *pHandle);
    memcpy(pHandle, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle)
{
    SIM_ENTER(cuIpcOpenEventHandle);
    struct sim_context *context = NULL;
    struct event_handle event;
    CUresult rc = sim_context_current(&context);

    memcpy(&event, &handle, sizeof event);
    if (!phEvent || event.magic != EVENT_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    if (event.pid == (uint64_t)getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    struct sim_object *object = sim_object_new(context, SIM_EVENT);
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    __atomic_store_n(&object->recorded, 1U, __ATOMIC_RELEASE);
    *phEvent = (CUevent)(void *)object;
    return CUDA_SUCCESS;
}
