/*
 * External memory: memory of another API, imported by descriptor.
 *
 * It lives on the card although no CUDA call made it: its size counts there from the import until
 * cuDestroyExternalMemory or the end of the context (VRAMCAP_SIM_EXTERNAL=0: the card does not
 * count it, as if its maker, whom nobody simulates, were counted already). Any descriptor will do; one
 * of a file at least as large as the size shows that file's bytes, any other one zeros. A mapped
 * buffer is freed with cuMemFree, a mapped mipmap destroyed; neither gives the card anything.
 */
#define _GNU_SOURCE
#include "sim_array.h"
#include "sim_handles.h"
#include "sim_window.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOST_PAGE ((size_t)4096)

struct external {
    struct sim_resource resource; /* first */
    uint64_t size;
    unsigned char *bytes; /* shared mapping */
    unsigned int card;
    int64_t cost;
};

struct buffer {
    struct sim_resource resource; /* first */
    struct sim_window *window;
};

static struct sim_handles externals; /* sim_lock */

static struct sim_delta delta_of(int64_t bytes)
{
    return (struct sim_delta){.used = bytes, .alloc = bytes};
}

static unsigned char *bytes_of(int fd, uint64_t size)
{
    struct stat info;
    void *map = MAP_FAILED;

    if (fd >= 0 && fstat(fd, &info) == 0 && info.st_size >= 0 && (uint64_t)info.st_size >= size)
        map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

static void external_end(struct sim_resource *resource)
{
    struct external *external = (struct external *)(void *)resource;

    sim_handles_take(&externals, (uintptr_t)external);
    (void)munmap(external->bytes, external->size);
    sim_card_give(external->card, delta_of(external->cost));
    free(external);
}

/* With sim_lock held. */
static CUresult import(struct sim_context *context, int fd, uint64_t size,
                       struct external **imported)
{
    uint64_t page = sim_config.page_bytes;
    struct external *external = calloc(1, sizeof *external);
    unsigned char *bytes = external ? bytes_of(fd, size) : NULL;
    int64_t cost = sim_config.external_counts ? (int64_t)((size + page - 1) / page * page) : 0;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;

    if (bytes)
        rc = sim_card_take(context->owner.card, delta_of(cost));
    if (rc == CUDA_SUCCESS && !sim_handles_put(&externals, (uintptr_t)external, external)) {
        sim_card_give(context->owner.card, delta_of(cost));
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (rc != CUDA_SUCCESS) {
        if (bytes)
            (void)munmap(bytes, size);
        free(external);
        return rc;
    }
    external->size = size;
    external->bytes = bytes;
    external->card = context->owner.card;
    external->cost = cost;
    sim_resource_add(context, &external->resource, external_end);
    *imported = external;
    return CUDA_SUCCESS;
}

CUresult cuImportExternalMemory(CUexternalMemory *extMem_out,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *memHandleDesc)
{
    SIM_ENTER(cuImportExternalMemory);
    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc = memHandleDesc;
    struct sim_context *context = NULL;
    struct external *external = NULL;
    CUresult rc = sim_context_current(&context);
    int fd = -1;

    if (!extMem_out || !desc || desc->size == 0 || desc->size > (uint64_t)1 << 46 ||
        (desc->flags & ~(unsigned int)CUDA_EXTERNAL_MEMORY_DEDICATED) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    switch ((int)desc->type) {
    case CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD:
        fd = desc->handle.fd;
        if (fd < 0 || fcntl(fd, F_GETFD) < 0)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    case CU_EXTERNAL_MEMORY_HANDLE_TYPE_NVSCIBUF:
        if (!desc->handle.nvSciBufObject)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    default: /* Windows, and dma-buf, which is Tegra's */
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    sim_lock_take();
    rc = import(context, fd, desc->size, &external);
    sim_lock_drop();
    if (rc != CUDA_SUCCESS)
        return rc;
    if (fd >= 0)
        (void)close(fd); /* it is the driver's now */
    *extMem_out = (CUexternalMemory)(void *)external;
    return CUDA_SUCCESS;
}

CUresult cuDestroyExternalMemory(CUexternalMemory extMem)
{
    SIM_ENTER(cuDestroyExternalMemory);
    sim_lock_take();
    struct external *external = sim_handles_get(&externals, (uintptr_t)extMem);
    if (external)
        sim_resource_end(&external->resource);
    sim_lock_drop();
    return external ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* A second mapping of [offset, +size), at `at` unless that is NULL; its first byte is `offset` rounded
 * down to a page. */
static unsigned char *alias(const struct external *external, uint64_t offset, uint64_t size,
                            void *at)
{
    uint64_t first = offset / HOST_PAGE * HOST_PAGE;
    void *map = mremap(external->bytes + first, 0, offset - first + size,
                       MREMAP_MAYMOVE | (at ? MREMAP_FIXED : 0), at);

    return map == MAP_FAILED ? NULL : map;
}

static void buffer_end(struct sim_resource *resource)
{
    struct buffer *buffer = (struct buffer *)(void *)resource;

    sim_window_delete(buffer->window);
    free(buffer);
}

/* With sim_lock held. */
static CUresult map_buffer(struct external *external, uint64_t offset, uint64_t size,
                           CUdeviceptr *address)
{
    struct sim_context *context = external->resource.context;
    size_t before = offset % HOST_PAGE;
    struct buffer *buffer = calloc(1, sizeof *buffer);
    struct sim_window *window =
        buffer ? sim_window_new(SIM_WINDOW_EXTERNAL, before + size, 65536, 0, &context->owner)
               : NULL;

    if (!window || !alias(external, offset, size, window->shadow)) {
        if (window)
            sim_window_delete(window);
        free(buffer);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    buffer->window = window;
    window->holder = &buffer->resource;
    window->pointer = window->span.base + before;
    sim_resource_add(context, &buffer->resource, buffer_end);
    *address = window->pointer;
    return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *devPtr, CUexternalMemory extMem,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *bufferDesc)
{
    SIM_ENTER(cuExternalMemoryGetMappedBuffer);
    CUresult rc = CUDA_ERROR_INVALID_HANDLE;

    if (!devPtr || !bufferDesc || bufferDesc->size == 0 || bufferDesc->flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    struct external *external = sim_handles_get(&externals, (uintptr_t)extMem);
    if (external && (bufferDesc->offset > external->size ||
                     bufferDesc->size > external->size - bufferDesc->offset))
        rc = CUDA_ERROR_INVALID_VALUE;
    else if (external)
        rc = map_buffer(external, bufferDesc->offset, bufferDesc->size, devPtr);
    sim_lock_drop();
    return rc;
}

/* With sim_lock held. */
static CUresult map_mipmap(struct external *external,
                           const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc,
                           CUmipmappedArray *mipmap)
{
    struct sim_format format;
    CUresult rc = sim_array_check(&desc->arrayDesc, true, &format);
    unsigned int most = rc == CUDA_SUCCESS ? sim_levels_most(&desc->arrayDesc) : 0;

    if (rc != CUDA_SUCCESS || desc->numLevels == 0 || desc->numLevels > most)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t size = sim_array_plain_bytes(&desc->arrayDesc, &format, desc->numLevels);
    if (desc->offset > external->size || size > external->size - desc->offset)
        return CUDA_ERROR_INVALID_VALUE;
    size_t before = desc->offset % HOST_PAGE;
    unsigned char *map = alias(external, desc->offset, size, NULL);
    if (!map)
        return CUDA_ERROR_OUT_OF_MEMORY;
    rc = sim_mipmap_over(external->resource.context, &desc->arrayDesc, desc->numLevels, map, before,
                         mipmap);
    if (rc != CUDA_SUCCESS)
        (void)munmap(map, before + size);
    return rc;
}

CUresult
cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *mipmap, CUexternalMemory extMem,
                                        const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *mipmapDesc)
{
    SIM_ENTER(cuExternalMemoryGetMappedMipmappedArray);
    CUresult rc = CUDA_ERROR_INVALID_HANDLE;

    if (!mipmap || !mipmapDesc)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_take();
    struct external *external = sim_handles_get(&externals, (uintptr_t)extMem);
    if (external)
        rc = map_mipmap(external, mipmapDesc, mipmap);
    sim_lock_drop();
    return rc;
}
