/*
 * Physical memory that crosses processes: one charge, with whoever allocated it; shown as imported where
 * it is opened; charged to the importer when nobody in the container has it on record.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/hook/lost_slot.h"
#include "tests/hook/pair.h"
#include "tests/hook/scenario.h"

typedef CUmemGenericAllocationHandle physical;

static CUresult create(physical *handle, size_t bytes, CUdevice device,
                       CUmemAllocationHandleType type)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = type;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return api.cuMemCreate(handle, bytes, &prop, 0);
}

/* Exports bytes of a device by descriptor, keeping them; the descriptor goes over the wire. */
static int export_by_descriptor(physical *handle, size_t bytes, CUdevice device)
{
    int fd = -1;

    OK(create(handle, bytes, device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(api.cuMemExportToShareableHandle(&fd, *handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(pair_send("f", 1, fd));
    close(fd);
    return 0;
}

static CUresult import_descriptor(physical *handle)
{
    CUresult result;
    char byte;
    int fd = -1;

    if (!pair_receive(&byte, 1, &fd) || fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    result = api.cuMemImportFromShareableHandle(handle, (void *)(intptr_t)fd,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(fd);
    return result;
}

static CUresult map_anywhere(CUdeviceptr *range, size_t bytes, physical handle)
{
    CUresult result = api.cuMemAddressReserve(range, bytes, 0, 0, 0);

    return result == CUDA_SUCCESS ? api.cuMemMap(*range, bytes, 0, handle, 0) : result;
}

/* ---- one charge ---- */

static int exporter_of_600(void)
{
    physical handle;

    OK(api.cuInit(0));
    OK(export_by_descriptor(&handle, 600 * MIB, 0));
    AWAIT();
    OK(api.cuMemRelease(handle));
    TELL();
    AWAIT();
    return 0;
}

static int an_import_is_shown_and_not_charged(void)
{
    CUdeviceptr range, second;
    physical handle;

    CHECK(pair_start(exporter_of_600));
    OK(api.cuInit(0));
    OK(import_descriptor(&handle));
    SAME(charged(0), 600 * MIB);
    OK(map_anywhere(&range, 600 * MIB, handle));
    OK(map_anywhere(&second, 600 * MIB, handle));
    SAME(charged(0), 600 * MIB);
    SAME(ledger_charged_by(self.ledger, 0, pair_other()), 600 * MIB);
    SAME(imported(0), 600 * MIB); /* once, however often it is mapped */
    OK(api.cuMemUnmap(second, 600 * MIB));
    OK(api.cuMemRelease(handle));
    SAME(imported(0), 600 * MIB);
    TELL(); /* the exporter lets go of it */
    AWAIT();
    SAME(charged(0), 0);
    SAME(imported(0), 600 * MIB);
    OK(api.cuMemUnmap(range, 600 * MIB));
    SAME(imported(0), 0);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

static int an_import_stays_visible_when_its_exporter_is_killed(void)
{
    CUdeviceptr range;
    physical handle;

    CHECK(pair_start(exporter_of_600));
    OK(api.cuInit(0));
    OK(import_descriptor(&handle));
    OK(map_anywhere(&range, 600 * MIB, handle));
    pair_kill();
    SAME(charged(0), 0);
    SAME(imported(0), 600 * MIB);
    OK(api.cuMemUnmap(range, 600 * MIB));
    OK(api.cuMemRelease(handle));
    SAME(imported(0), 0);
    return 0;
}

/* As NCCL does between the ranks of one machine: everybody exports, everybody imports. */
static int rank(CUdevice mine)
{
    physical own, theirs;
    CUdeviceptr here, there;

    OK(api.cuInit(0));
    OK(export_by_descriptor(&own, 100 * MIB, mine));
    OK(import_descriptor(&theirs));
    OK(map_anywhere(&here, 100 * MIB, own));
    OK(map_anywhere(&there, 100 * MIB, theirs));
    SAME(imported((unsigned)!mine), 100 * MIB);
    SAME(imported((unsigned)mine), 0);
    TELL();
    AWAIT();
    SAME(charged(0), 100 * MIB);
    SAME(charged(1), 100 * MIB);
    TELL();
    AWAIT();
    OK(api.cuMemUnmap(there, 100 * MIB));
    OK(api.cuMemRelease(theirs));
    OK(api.cuMemUnmap(here, 100 * MIB));
    OK(api.cuMemRelease(own));
    SAME(imported((unsigned)!mine), 0);
    SAME(ledger_charged_by(self.ledger, (unsigned)mine, getpid()), 0);
    return 0;
}

static int second_rank(void)
{
    return rank(1);
}

static int two_ranks_exchange_buffers_with_one_charge_each(void)
{
    CHECK(pair_start(second_rank));
    OK(rank(0));
    SAME(pair_wait(), 0);
    SAME(charged(0), 0);
    SAME(charged(1), 0);
    return 0;
}

static int exporter_by_fabric(void)
{
    CUmemFabricHandle fabric;
    physical handle, decoy;

    OK(api.cuInit(0));
    OK(create(&decoy, 50 * MIB, 0, CU_MEM_HANDLE_TYPE_FABRIC));
    OK(create(&handle, 300 * MIB, 0, CU_MEM_HANDLE_TYPE_FABRIC));
    OK(api.cuMemExportToShareableHandle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    CHECK(pair_send(&fabric, sizeof(fabric), -1));
    AWAIT();
    return 0;
}

static int a_fabric_handle_is_known_by_its_hash(void)
{
    CUmemFabricHandle fabric;
    CUdeviceptr range;
    physical handle;

    CHECK(pair_start(exporter_by_fabric));
    OK(api.cuInit(0));
    CHECK(pair_receive(&fabric, sizeof(fabric), NULL));
    OK(api.cuMemImportFromShareableHandle(&handle, &fabric, CU_MEM_HANDLE_TYPE_FABRIC));
    OK(map_anywhere(&range, 100 * MIB, handle)); /* a part: the hash is enough */
    SAME(charged(0), 350 * MIB);
    SAME(imported(0), 100 * MIB);
    OK(api.cuMemUnmap(range, 100 * MIB));
    OK(api.cuMemRelease(handle));
    SAME(imported(0), 0);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

/* ---- nobody has it on record ---- */

static int stranger(void)
{
    physical handle;

    OK(api.cuInit(0));
    OK(export_by_descriptor(&handle, 600 * MIB, 0));
    OK(export_by_descriptor(&handle, 600 * MIB, 0));
    AWAIT();
    return 0;
}

/* Of another container: passive, so that nothing of its own is in the ledger. */
static int passive_stranger(void)
{
    OK(setenv("VRAMCAP_ENABLE", "0", 1));
    return stranger();
}

static int a_strangers_memory_is_charged_to_the_importer(void)
{
    CUdeviceptr range, second;
    physical first, more, own;

    CHECK(pair_start(passive_stranger));
    OK(api.cuInit(0));
    OK(import_descriptor(&first));
    OK(import_descriptor(&more));
    CHECK(charged(0) == UINT64_MAX || charged(0) == 0);
    OK(map_anywhere(&range, 600 * MIB, first));
    SAME(charged(0), 600 * MIB);
    SAME(ledger_charged_by(self.ledger, 0, getpid()), 600 * MIB);
    SAME(imported(0), 0);
    REFUSED(map_anywhere(&second, 600 * MIB, more));
    GIVES(api.cuMemUnmap(second, 600 * MIB), CUDA_ERROR_INVALID_VALUE); /* nothing is mapped */
    REFUSED(create(&own, 600 * MIB, 0, CU_MEM_HANDLE_TYPE_NONE));
    SAME(charged(0), 600 * MIB);
    OK(api.cuMemRelease(first));
    SAME(charged(0), 600 * MIB);
    OK(api.cuMemUnmap(range, 600 * MIB));
    SAME(charged(0), 0);
    OK(api.cuMemMap(second, 600 * MIB, 0, more, 0));
    SAME(charged(0), 600 * MIB);
    OK(api.cuMemUnmap(second, 600 * MIB));
    SAME(charged(0), 600 * MIB); /* its handle */
    OK(api.cuMemRelease(more));
    SAME(charged(0), 0);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

/* Its exporter has let go of it before anybody mapped it: whoever keeps it alive pays. */
static int an_export_ends_with_the_exporters_memory(void)
{
    CUdeviceptr range;
    physical handle;

    CHECK(pair_start(exporter_of_600));
    OK(api.cuInit(0));
    OK(import_descriptor(&handle));
    TELL();
    AWAIT();
    SAME(charged(0), 0);
    OK(map_anywhere(&range, 600 * MIB, handle));
    SAME(imported(0), 0);
    SAME(ledger_charged_by(self.ledger, 0, getpid()), 600 * MIB);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

static int a_strangers_memory_mapped_in_growing_parts_is_charged_at_the_largest(void)
{
    CUdeviceptr part, whole;
    physical handle, more;

    CHECK(pair_start(passive_stranger));
    OK(api.cuInit(0));
    OK(import_descriptor(&handle));
    OK(import_descriptor(&more));
    OK(map_anywhere(&part, 100 * MIB, handle));
    SAME(charged(0), 100 * MIB);
    OK(map_anywhere(&whole, 400 * MIB, handle));
    SAME(charged(0), 400 * MIB);
    OK(api.cuMemUnmap(whole, 400 * MIB));
    OK(api.cuMemUnmap(part, 100 * MIB));
    OK(api.cuMemRelease(handle));
    SAME(charged(0), 0);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

static int a_map_that_fails_leaves_no_charge(void)
{
    CUdeviceptr range;
    physical handle, more;

    CHECK(pair_start(passive_stranger));
    OK(api.cuInit(0));
    OK(import_descriptor(&handle));
    OK(import_descriptor(&more));
    GIVES(map_anywhere(&range, 600 * MIB, handle), CUDA_ERROR_LAUNCH_FAILED);
    SAME(charged(0), 0);
    OK(api.cuMemMap(range, 600 * MIB, 0, handle, 0));
    SAME(charged(0), 600 * MIB);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

/* ---- within one process ---- */

static int memory_kept_by_ones_own_import_stays_charged(void)
{
    physical handle, again, more = 0x77;
    CUdeviceptr range;
    int fd = -1;

    OK(api.cuInit(0));
    OK(create(&handle, 700 * MIB, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(api.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(api.cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    OK(map_anywhere(&range, 700 * MIB, again));
    SAME(charged(0), 700 * MIB);
    SAME(imported(0), 0);
    OK(api.cuMemRelease(handle));
    OK(api.cuMemRelease(again));
    SAME(charged(0), 700 * MIB);
    REFUSED(create(&more, 700 * MIB, 0, CU_MEM_HANDLE_TYPE_NONE));
    OK(api.cuMemUnmap(range, 700 * MIB));
    SAME(charged(0), 0);
    SAME(sim_alloc_bytes(&self, 0), 0);
    return 0;
}

/* ---- slots ---- */

static int exporter_that_loses_its_slot(void)
{
    physical handle, other;

    OK(api.cuInit(0));
    OK(export_by_descriptor(&handle, 600 * MIB, 0));
    CHECK(lose_slot());
    OK(create(&other, 2 * MIB, 0, CU_MEM_HANDLE_TYPE_NONE));
    TELL();
    AWAIT();
    return 0;
}

static int exports_are_on_record_again_in_a_new_slot(void)
{
    CUdeviceptr range;
    physical handle;

    CHECK(pair_start(exporter_that_loses_its_slot));
    OK(api.cuInit(0));
    OK(import_descriptor(&handle));
    AWAIT();
    SAME(charged(0), 602 * MIB);
    OK(map_anywhere(&range, 600 * MIB, handle));
    SAME(charged(0), 602 * MIB);
    SAME(imported(0), 600 * MIB);
    CHECK(lose_slot()); /* the importer's, now */
    OK(create(&handle, 2 * MIB, 0, CU_MEM_HANDLE_TYPE_NONE));
    SAME(imported(0), 600 * MIB);
    OK(api.cuMemUnmap(range, 600 * MIB));
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

#define JOINED "VRAMCAP_SIM_CARDS=2x24576"

static const struct scenario scenarios[] = {
    SCENARIO(an_import_is_shown_and_not_charged, NULL),
    SCENARIO(an_import_stays_visible_when_its_exporter_is_killed, NULL),
    SCENARIO(two_ranks_exchange_buffers_with_one_charge_each, JOINED),
    SCENARIO(a_fabric_handle_is_known_by_its_hash, NULL),
    SCENARIO(a_strangers_memory_is_charged_to_the_importer, NULL),
    SCENARIO(an_export_ends_with_the_exporters_memory, NULL),
    SCENARIO(a_strangers_memory_mapped_in_growing_parts_is_charged_at_the_largest, NULL),
    SCENARIO(a_map_that_fails_leaves_no_charge, "VRAMCAP_SIM_FAIL=cuMemMap:1:719"),
    SCENARIO(memory_kept_by_ones_own_import_stays_charged, NULL),
    SCENARIO(exports_are_on_record_again_in_a_new_slot, NULL),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
