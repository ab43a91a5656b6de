/*
 * Pools between processes: the exporter is charged and an importer shows; a stranger's memory is charged to
 * whoever imports it, and what is off the record is charged as well.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/hook/lost_slot.h"
#include "tests/hook/pair.h"
#include "tests/hook/scenario.h"

static int export_600(int device)
{
    CUmemPoolProps properties;
    CUmemPoolPtrExportData data;
    CUmemoryPool pool;
    CUdeviceptr pointer;
    int fd = -1;

    memset(&properties, 0, sizeof(properties));
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(begin(device));
    OK(api.cuMemPoolCreate(&pool, &properties));
    OK(api.cuMemAllocFromPoolAsync(&pointer, 600 * MIB, pool, NULL));
    OK(api.cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            0));
    OK(api.cuMemPoolExportPointer(&data, pointer));
    CHECK(pair_send(&data, sizeof(data), fd));
    AWAIT();
    OK(api.cuMemFreeAsync(pointer, NULL)); /* and with it the export's record */
    OK(api.cuStreamSynchronize(NULL));
    TELL();
    AWAIT();
    return 0;
}

static int exporter_of_600(void)
{
    return export_600(0);
}

static int exporter_on_the_second_card(void)
{
    return export_600(1);
}

static int passive_stranger(void)
{
    OK(setenv("VRAMCAP_ENABLE", "0", 1));
    return exporter_of_600();
}

/* The other process's pool and the name of its pointer. */
static int meet(int (*other)(void), CUmemoryPool *pool, CUmemPoolPtrExportData *data)
{
    int fd = -1;

    CHECK(pair_start(other));
    OK(begin(0));
    CHECK(pair_receive(data, sizeof(*data), &fd));
    OK(api.cuMemPoolImportFromShareableHandle(pool, (void *)(intptr_t)fd,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return 0;
}

static int it_is_shown_on_its_own_card_though_that_was_not_used_here(void)
{
    CUmemPoolPtrExportData data;
    CUdeviceptr window;
    CUmemoryPool pool;

    CHECK(meet(exporter_on_the_second_card, &pool, &data) == 0);
    OK(api.cuMemPoolImportPointer(&window, pool, &data));
    SAME(imported(1), 600 * MIB);
    CHECK(imported(0) == 0 || imported(0) == UINT64_MAX);
    SAME(charged(1), 600 * MIB);
    OK(api.cuMemFreeAsync(window, NULL));
    SAME(imported(1), 0);
    return 0;
}

static int a_pointer_on_record_is_shown_and_not_charged(void)
{
    CUmemPoolPtrExportData data;
    CUdeviceptr window;
    CUmemoryPool pool;

    CHECK(meet(exporter_of_600, &pool, &data) == 0);
    OK(api.cuMemPoolImportPointer(&window, pool, &data));
    SAME(charged(0), 600 * MIB);
    SAME(imported(0), 600 * MIB);
    OK(api.cuMemFreeAsync(window, NULL));
    SAME(imported(0), 0);
    SAME(charged(0), 600 * MIB);
    TELL();
    AWAIT();
    SAME(charged(0), 0);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

static int a_strangers_pointer_is_charged_until_it_is_freed(void)
{
    CUmemPoolPtrExportData data;
    CUdeviceptr window, more = 0x77;
    CUmemoryPool pool;

    CHECK(meet(passive_stranger, &pool, &data) == 0);
    OK(api.cuMemPoolImportPointer(&window, pool, &data));
    SAME(charged(0), 600 * MIB);
    SAME(imported(0), 0);
    REFUSED(api.cuMemAlloc_v2(&more, 600 * MIB));
    SAME(more, 0x77);
    CHECK(lose_slot());
    OK(api.cuMemAlloc_v2(&more, 2 * MIB)); /* in a new one, with what is live */
    SAME(charged(0), 602 * MIB);
    OK(api.cuMemPoolDestroy(pool));
    SAME(charged(0), 602 * MIB);
    OK(api.cuMemFree_v2(window));
    SAME(charged(0), 2 * MIB);
    TELL();
    AWAIT();
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

struct importing {
    CUcontext context;
    CUmemoryPool pool;
    CUmemPoolPtrExportData data;
    CUdeviceptr window;
};

static void *import(void *arg)
{
    struct importing *i = arg;

    return (void *)(uintptr_t)(api.cuCtxSetCurrent(i->context) != CUDA_SUCCESS ||
                               api.cuMemPoolImportPointer(&i->window, i->pool, &i->data) !=
                                   CUDA_SUCCESS);
}

/* The driver has imported it, and not said so yet. */
static int a_pool_that_is_destroyed_meanwhile_hides_no_pointer(void)
{
    struct importing i;
    pthread_t thread;
    void *bad;

    CHECK(meet(passive_stranger, &i.pool, &i.data) == 0);
    OK(api.cuCtxPopCurrent_v2(&i.context));
    OK(api.cuCtxSetCurrent(i.context));
    CHECK(pthread_create(&thread, NULL, import, &i) == 0);
    while (journal_count("cuMemPoolImportPointer") < 1)
        sched_yield();
    usleep(20000); /* if the driver has not begun it yet, it fails, and there is nothing to see */
    OK(api.cuMemPoolDestroy(i.pool));
    CHECK(pthread_join(thread, &bad) == 0);
    SAME(charged(0), bad == NULL ? 600 * MIB : 0);
    if (bad == NULL)
        OK(api.cuMemFree_v2(i.window));
    SAME(charged(0), 0);
    TELL();
    AWAIT();
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

static int a_strangers_pointer_without_room_is_refused_and_given_back(void)
{
    CUmemPoolPtrExportData data;
    CUdeviceptr window = 0x77, more;
    CUmemoryPool pool;

    CHECK(meet(passive_stranger, &pool, &data) == 0);
    OK(api.cuMemAlloc_v2(&more, 500 * MIB));
    REFUSED(api.cuMemPoolImportPointer(&window, pool, &data));
    SAME(window, 0x77);
    SAME(charged(0), 500 * MIB);
    SAME(gpu_row(0).refusals, 1);
    SAME(journal_count("cuMemFree_v2"), 1);
    OK(api.cuMemFree_v2(more));
    OK(api.cuMemPoolImportPointer(&window, pool, &data));
    SAME(charged(0), 600 * MIB);
    TELL();
    AWAIT();
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

/* Its exporter has freed it: from then on nobody's but whoever imports it. */
static int a_pointer_that_its_exporter_freed_is_off_the_record(void)
{
    CUmemPoolPtrExportData data;
    CUmemoryPool pool;
    CUdeviceptr window;

    CHECK(meet(exporter_of_600, &pool, &data) == 0);
    TELL();
    AWAIT();
    SAME(charged(0), 0);
    if (api.cuMemPoolImportPointer(&window, pool, &data) == CUDA_SUCCESS)
        SAME(charged(0), 600 * MIB);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

static const struct scenario scenarios[] = {
    SCENARIO(it_is_shown_on_its_own_card_though_that_was_not_used_here,
             "VRAMCAP_SIM_CARDS=2x24576;VRAMCAP_SIM_POOL_CHUNK_MIB=2"),
    SCENARIO(a_pointer_on_record_is_shown_and_not_charged, "VRAMCAP_SIM_POOL_CHUNK_MIB=2"),
    SCENARIO(a_strangers_pointer_is_charged_until_it_is_freed, NULL),
    SCENARIO(a_pool_that_is_destroyed_meanwhile_hides_no_pointer,
             "VRAMCAP_SIM_JOURNAL=@/journal;"
             "VRAMCAP_SIM_DELAY_US=cuMemPoolImportPointer/after:400000"),
    SCENARIO(a_strangers_pointer_without_room_is_refused_and_given_back,
             "VRAMCAP_SIM_JOURNAL=@/journal"),
    SCENARIO(a_pointer_that_its_exporter_freed_is_off_the_record, NULL),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
