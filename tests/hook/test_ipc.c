/*
 * cuIpc*: the exporter is charged, an opener shows; opened twice it is one; a stranger's is charged.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/hook/lost_slot.h"
#include "tests/hook/pair.h"
#include "tests/hook/scenario.h"

#define LAZY CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

static int exporter_of_600(void)
{
    CUipcMemHandle handle;
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    OK(api.cuIpcGetMemHandle(&handle, pointer + 4096)); /* of the whole allocation */
    CHECK(pair_send(&handle, sizeof(handle), -1));
    AWAIT();
    OK(api.cuMemFree_v2(pointer));
    TELL();
    AWAIT();
    return 0;
}

static int passive_stranger(void)
{
    OK(setenv("VRAMCAP_ENABLE", "0", 1));
    return exporter_of_600();
}

static int what_is_opened_is_shown_and_not_charged(void)
{
    CUdeviceptr first, second;
    CUipcMemHandle handle;

    CHECK(pair_start(exporter_of_600));
    OK(begin(0));
    CHECK(pair_receive(&handle, sizeof(handle), NULL));
    OK(api.cuIpcOpenMemHandle_v2(&first, handle, LAZY));
    OK(api.cuIpcOpenMemHandle(&second, handle, LAZY));
    SAME(first, second);
    SAME(charged(0), 600 * MIB);
    SAME(imported(0), 600 * MIB);
    CHECK(api.cuMemFree_v2(first) != CUDA_SUCCESS);
    SAME(imported(0), 600 * MIB);
    OK(api.cuIpcCloseMemHandle(first));
    SAME(imported(0), 600 * MIB);
    TELL();
    AWAIT();
    SAME(charged(0), 0);
    SAME(imported(0), 600 * MIB);
    OK(api.cuIpcCloseMemHandle(first));
    SAME(imported(0), 0);
    CHECK(api.cuIpcCloseMemHandle(first) != CUDA_SUCCESS);
    TELL();
    SAME(pair_wait(), 0);
    return 0;
}

static int a_killed_exporters_memory_is_still_shown(void)
{
    CUipcMemHandle handle;
    CUdeviceptr pointer;

    CHECK(pair_start(exporter_of_600));
    OK(begin(0));
    CHECK(pair_receive(&handle, sizeof(handle), NULL));
    OK(api.cuIpcOpenMemHandle_v2(&pointer, handle, LAZY));
    pair_kill();
    SAME(charged(0), 0);
    SAME(imported(0), 600 * MIB);
    OK(api.cuIpcCloseMemHandle(pointer));
    SAME(imported(0), 0);
    return 0;
}

static int what_a_context_opened_goes_with_it(void)
{
    CUipcMemHandle handle;
    CUdeviceptr pointer;
    CUcontext context;

    CHECK(pair_start(exporter_of_600));
    OK(begin(0));
    OK(api.cuCtxGetCurrent(&context));
    CHECK(pair_receive(&handle, sizeof(handle), NULL));
    OK(api.cuIpcOpenMemHandle_v2(&pointer, handle, LAZY));
    OK(api.cuCtxDestroy_v2(context));
    SAME(imported(0), 0);
    OK(begin(0));
    OK(api.cuIpcOpenMemHandle_v2(&pointer, handle, LAZY));
    SAME(imported(0), 600 * MIB);
    OK(api.cuIpcCloseMemHandle(pointer)); /* the first of its own context */
    SAME(imported(0), 0);
    return 0;
}

static int a_strangers_memory_is_charged_once(void)
{
    CUdeviceptr first, second, more = 0x77;
    CUipcMemHandle handle;

    CHECK(pair_start(passive_stranger));
    OK(begin(0));
    CHECK(pair_receive(&handle, sizeof(handle), NULL));
    OK(api.cuIpcOpenMemHandle_v2(&first, handle, LAZY));
    OK(api.cuIpcOpenMemHandle_v2(&second, handle, LAZY));
    SAME(first, second);
    SAME(charged(0), 600 * MIB);
    SAME(imported(0), 0);
    REFUSED(api.cuMemAlloc_v2(&more, 600 * MIB));
    OK(api.cuIpcCloseMemHandle(first));
    SAME(charged(0), 600 * MIB);
    OK(api.cuIpcCloseMemHandle(first));
    SAME(charged(0), 0);
    OK(api.cuMemAlloc_v2(&more, 600 * MIB));
    TELL();
    TELL();
    return 0;
}

static int a_stranger_without_room_is_refused_and_closed(void)
{
    CUdeviceptr held, pointer = 0x77;
    CUipcMemHandle handle;

    CHECK(pair_start(passive_stranger));
    OK(begin(0));
    CHECK(pair_receive(&handle, sizeof(handle), NULL));
    OK(api.cuMemAlloc_v2(&held, 600 * MIB));
    REFUSED(api.cuIpcOpenMemHandle_v2(&pointer, handle, LAZY));
    REFUSED(api.cuIpcOpenMemHandle(&pointer, handle, LAZY));
    SAME(pointer, 0x77);
    SAME(journal_count("cuIpcCloseMemHandle"), 2);
    SAME(charged(0), 600 * MIB);
    OK(api.cuMemFree_v2(held));
    OK(api.cuIpcOpenMemHandle_v2(&pointer, handle, LAZY));
    SAME(charged(0), 600 * MIB);
    return 0;
}

static int a_close_that_fails_changes_nothing(void)
{
    CUipcMemHandle handle;
    CUdeviceptr pointer;

    CHECK(pair_start(exporter_of_600));
    OK(begin(0));
    CHECK(pair_receive(&handle, sizeof(handle), NULL));
    OK(api.cuIpcOpenMemHandle_v2(&pointer, handle, LAZY));
    GIVES(api.cuIpcCloseMemHandle(pointer), CUDA_ERROR_LAUNCH_FAILED);
    SAME(imported(0), 600 * MIB);
    OK(api.cuIpcCloseMemHandle(pointer));
    SAME(imported(0), 0);
    return 0;
}

static int in_a_new_slot_it_is_shown_again(void)
{
    CUdeviceptr pointer, other;
    CUipcMemHandle handle;

    CHECK(pair_start(exporter_of_600));
    OK(begin(0));
    CHECK(pair_receive(&handle, sizeof(handle), NULL));
    OK(api.cuIpcOpenMemHandle_v2(&pointer, handle, LAZY));
    CHECK(lose_slot());
    SAME(imported(0), 0);
    OK(api.cuMemAlloc_v2(&other, 2 * MIB));
    SAME(imported(0), 600 * MIB);
    OK(api.cuIpcCloseMemHandle(pointer));
    SAME(imported(0), 0);
    return 0;
}

static const struct scenario scenarios[] = {
    SCENARIO(what_is_opened_is_shown_and_not_charged, NULL),
    SCENARIO(a_killed_exporters_memory_is_still_shown, NULL),
    SCENARIO(what_a_context_opened_goes_with_it, NULL),
    SCENARIO(a_strangers_memory_is_charged_once, NULL),
    SCENARIO(a_stranger_without_room_is_refused_and_closed, "VRAMCAP_SIM_JOURNAL=@/journal"),
    SCENARIO(a_close_that_fails_changes_nothing, "VRAMCAP_SIM_FAIL=cuIpcCloseMemHandle:1:719"),
    SCENARIO(in_a_new_slot_it_is_shown_again, NULL),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
