/*
 * Pools between processes: a memfd behind every pool that can be exported.
 *
 * The file's first page is a label (struct label); chunks follow, each mapped shared over
 * its bytes in the arena. An importer maps single allocations out of the same file, so the
 * bytes are really shared, outlive the exporter, and cost the importer's card nothing.
 */
#define _GNU_SOURCE
#include "sim_pool.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LABEL_MAGIC UINT64_C(0x314c4f4f504d4953) /* "SIMPOOL1" */
#define PAGE UINT64_C(65536)                     /* a multiple of every page size */

struct label {
    uint64_t magic, identity, maker;
    CUmemPoolProps properties;
};

/* What cuMemPoolExportPointer writes into its 64 bytes. */
struct pointer_data {
    uint64_t magic, identity, maker, at, bytes;
};
_Static_assert(sizeof(struct pointer_data) <= sizeof(CUmemPoolPtrExportData),
               "the driver's size is fixed");

CUresult sim_pool_file_make(struct sim_pool *pool)
{
    struct label label;

    memset(&label, 0, sizeof label);
    label.magic = LABEL_MAGIC;
    label.identity = pool->identity;
    label.maker = (uint64_t)getpid();
    label.properties = pool->properties;
    pool->file = memfd_create("vramcap-sim-pool", MFD_CLOEXEC);
    if (pool->file < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (pwrite(pool->file, &label, sizeof label, 0) != (ssize_t)sizeof label)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->file_end = SIM_POOL_GRAIN;
    return CUDA_SUCCESS;
}

/* The host address of a chunk's bytes. */
static void *chunk_bytes(const struct sim_chunk *chunk)
{
    return sim_arena_extent_bytes(chunk->base);
}

bool sim_pool_file_map(struct sim_pool *pool, struct sim_chunk *chunk)
{
    void *bytes = chunk_bytes(chunk);

    if (!pool->imported) {
        if (ftruncate(pool->file, (off_t)(chunk->file_at + chunk->span)) != 0)
            return false;
        pool->file_end = chunk->file_at + chunk->span;
    }
    return bytes && mmap(bytes, chunk->span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                         pool->file, (off_t)chunk->file_at) != MAP_FAILED;
}

void sim_pool_file_unmap(struct sim_pool *pool, struct sim_chunk *chunk)
{
    void *bytes = chunk_bytes(chunk);

    if (bytes)
        (void)mmap(bytes, chunk->span, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    /* The pages go, and read as zero by whoever still maps them: as freed memory may. */
    if (!pool->imported)
        (void)fallocate(pool->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        (off_t)chunk->file_at, (off_t)chunk->span);
}

/* --- export -------------------------------------------------------------------------- */

CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool,
                                          CUmemAllocationHandleType handleType,
                                          unsigned long long flags)
{
    SIM_ENTER(cuMemPoolExportToShareableHandle);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;

    if (!handle_out || flags != 0)
        return rc;
    sim_lock_take();
    struct sim_pool *found = sim_pool_from(pool);
    if (found && found->file >= 0 && !found->imported &&
        handleType == found->properties.handleTypes) {
        int copy = fcntl(found->file, F_DUPFD_CLOEXEC, 0);

        rc = copy >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
        if (copy >= 0)
            *(int *)handle_out = copy;
    }
    sim_lock_drop();
    return rc;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr)
{
    SIM_ENTER(cuMemPoolExportPointer);
    struct sim_allocation found;
    struct pointer_data data;
    bool good = false;

    if (!shareData_out)
        return CUDA_ERROR_INVALID_VALUE;
    memset(&data, 0, sizeof data);
    sim_lock_take();
    struct sim_pool *pool = sim_arena_find(ptr, &found) ? sim_pool_of(found.owner) : NULL;
    for (struct sim_chunk *chunk = pool && pool->file >= 0 ? pool->chunks : NULL; chunk;
         chunk = chunk->next) {
        if (found.base - chunk->base >= chunk->span)
            continue;
        data = (struct pointer_data){.magic = LABEL_MAGIC,
                                     .identity = pool->identity,
                                     .maker = (uint64_t)getpid(),
                                     .at = chunk->file_at + (found.base - chunk->base),
                                     .bytes = found.bytes};
        good = !pool->imported;
    }
    sim_lock_drop();
    if (!good)
        return CUDA_ERROR_INVALID_VALUE;
    memset(shareData_out, 0, sizeof *shareData_out);
    memcpy(shareData_out, &data, sizeof data);
    return CUDA_SUCCESS;
}

/* --- import ---------------------------------------------------------------------------- */

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                            CUmemAllocationHandleType handleType,
                                            unsigned long long flags)
{
    SIM_ENTER(cuMemPoolImportFromShareableHandle);
    int fd = (int)(intptr_t)handle;
    struct label label;

    if (!pool_out || flags != 0 || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        pread(fd, &label, sizeof label, 0) != (ssize_t)sizeof label || label.magic != LABEL_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (label.properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
        !sim_device_valid(label.properties.location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    sim_lock_take();
    struct sim_pool *pool = sim_pool_new(&label.properties);
    if (pool) {
        pool->imported = true;
        pool->file = copy;
        pool->identity = label.identity ^ label.maker << 32;
        *pool_out = (CUmemoryPool)(void *)pool;
    } else {
        (void)close(copy);
    }
    sim_lock_drop();
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A window on one allocation of the exporter, in addresses that cost nothing. */
static CUresult window_new(struct sim_pool *pool, const struct pointer_data *data,
                           CUdeviceptr *address)
{
    struct sim_chunk *chunk = calloc(1, sizeof *chunk);
    struct sim_block *block = calloc(1, sizeof *block);
    CUdeviceptr base = 0;
    uint64_t inside = data->at % PAGE, span = (inside + data->bytes + PAGE - 1) / PAGE * PAGE;

    if (!chunk || !block ||
        sim_arena_reserve(&pool->owner, SIM_REGION_MAIN, span, &base) != CUDA_SUCCESS) {
        free(chunk);
        free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *block = (struct sim_block){.base = base + inside, .span = data->bytes, .bytes = data->bytes};
    *chunk = (struct sim_chunk){.base = base,
                                .span = span,
                                .file_at = data->at - inside,
                                .blocks = block,
                                .next = pool->chunks};
    pool->chunks = chunk;
    pool->live++;
    if (!sim_pool_file_map(pool, chunk)) {
        pool->live--;
        sim_pool_chunk_free(pool, chunk);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *address = base + inside;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool,
                                CUmemPoolPtrExportData *shareData)
{
    SIM_ENTER(cuMemPoolImportPointer);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    struct pointer_data data;
    struct stat info;

    if (!ptr_out || !shareData)
        return rc;
    memcpy(&data, shareData, sizeof data);
    sim_lock_take();
    struct sim_pool *found = sim_pool_from(pool);
    if (found && found->imported && data.magic == LABEL_MAGIC && data.bytes > 0 &&
        found->identity == (data.identity ^ data.maker << 32) && fstat(found->file, &info) == 0 &&
        data.at <= (uint64_t)info.st_size && data.bytes <= (uint64_t)info.st_size - data.at)
        rc = window_new(found, &data, ptr_out);
    sim_lock_drop();
    SIM_LEAVE(cuMemPoolImportPointer);
    return rc;
}
