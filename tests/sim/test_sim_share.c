/*
 * Physical memory and IPC memory between processes: descriptors by SCM_RIGHTS, fabric handles,
 * exporters that are killed, copies that nobody has imported yet.
 *
 * Synchronisation is by a socket pair and waits, never by time.
 */
#define _GNU_SOURCE
#include "test_sim_support.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CARD "VRAMCAP_SIM_CARDS=1024;VRAMCAP_SIM_CONTEXT_MIB=0"

static int wire[2]; /* 0: the exporter's end, 1: the importer's */

static void wire_open(void)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, wire), 0);
}

static void wire_close(void)
{
    (void)close(wire[0]);
    (void)close(wire[1]);
}

/* `bytes` of `data`, and a descriptor unless that is negative. */
static int message_send(int end, const void *data, size_t bytes, int fd)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    memset(&control, 0, sizeof control);
    if (fd >= 0) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    return sendmsg(end, &message, MSG_NOSIGNAL) == (ssize_t)bytes ? 0 : -1;
}

static int message_receive(int end, void *data, size_t bytes, int *fd)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    memset(&control, 0, sizeof control);
    message.msg_control = control.room;
    message.msg_controllen = sizeof control.room;
    if (recvmsg(end, &message, MSG_CMSG_CLOEXEC) != (ssize_t)bytes)
        return -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (fd)
        *fd = -1;
    if (fd && header)
        memcpy(fd, CMSG_DATA(header), sizeof *fd);
    return 0;
}

#define SAY(end) CHECK(message_send(wire[end], "x", 1, -1) == 0)
#define HEAR(end)                                                                                  \
    do {                                                                                           \
        char heard_;                                                                               \
        CHECK(message_receive(wire[end], &heard_, 1, NULL) == 0);                                  \
    } while (0)

static CUmemAllocationProp exportable(CUmemAllocationHandleType type)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = type;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return prop;
}

static int map_it(CUmemGenericAllocationHandle handle, size_t size, CUdeviceptr *base)
{
    CUmemAccessDesc write = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                             .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    OK(cuMemAddressReserve(base, size, 0, 0, 0));
    OK(cuMemMap(*base, size, 0, handle, 0));
    OK(cuMemSetAccess(*base, size, &write, 1));
    return 0;
}

/* Bytes that the snapshot shows with a process. */
static uint64_t shown_with(pid_t pid)
{
    struct sim_state *state = sim_state_open(NULL);
    struct sim_file *copy = calloc(1, sizeof *copy);
    uint64_t bytes = 0;

    if (state && copy && sim_state_snapshot(state, copy) == 0)
        for (unsigned int r = 0; r < SIM_MAX_ROWS; r++)
            if (copy->row[r].live && copy->row[r].pid == (int32_t)pid)
                bytes = copy->row[r].share[0].used;
    free(copy);
    sim_state_close(state);
    return bytes;
}

/* --- descriptors ------------------------------------------------------------------------ */

/* Exports 400 MiB with four bytes in it, and waits. */
static int exporter(void)
{
    CUmemAllocationProp prop = exportable(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    CUcontext context = NULL;
    int fd = -1;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemCreate(&handle, 400 * MIB, &prop, 0));
    CHECK(map_it(handle, 400 * MIB, &base) == 0);
    OK(cuMemsetD32_v2(base + 100 * MIB, 0x12345678, 1));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(message_send(wire[0], "f", 1, fd) == 0);
    (void)close(fd);
    HEAR(0);
    unsigned int word = 0;
    OK(cuMemcpyDtoH_v2(&word, base + 200 * MIB, 4));
    CHECK(word == 0xabcdef);
    SAY(0);
    HEAR(0);
    return 0;
}

static int importer(void)
{
    CUmemGenericAllocationHandle handle[2] = {0, 0};
    CUmemAllocationProp prop;
    CUdeviceptr base = 0;
    CUcontext context = NULL;
    char byte = 0;
    int fd = -1;

    CHECK(sim_begin(&context) == 0);
    CHECK(message_receive(wire[1], &byte, 1, &fd) == 0 && fd >= 0);
    for (int i = 0; i < 2; i++)
        OK(cuMemImportFromShareableHandle(&handle[i], (void *)(intptr_t)fd,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    (void)close(fd);
    CHECK(handle[0] != handle[1]);
    CHECK(sim_test_used(0) == 400 * MIB && shown_with(getpid()) == 0);
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle[0]));
    CHECK(prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop.location.id == 0);
    CHECK(map_it(handle[0], 400 * MIB, &base) == 0);
    unsigned int word = 0;
    OK(cuMemcpyDtoH_v2(&word, base + 100 * MIB, 4));
    CHECK(word == 0x12345678);
    OK(cuMemsetD32_v2(base + 200 * MIB, 0xabcdef, 1));
    SAY(1);
    HEAR(1);
    OK(cuMemRelease(handle[1]));
    OK(cuMemRelease(handle[0]));
    SAY(1);  /* the exporter may end */
    HEAR(1); /* it has ended */
    CHECK(sim_test_used(0) == 400 * MIB && shown_with(getpid()) == 400 * MIB);
    OK(cuMemcpyDtoH_v2(&word, base + 100 * MIB, 4));
    CHECK(word == 0x12345678);
    OK(cuMemUnmap(base, 400 * MIB));
    CHECK(sim_test_used(0) == 0);
    return 0;
}

static void an_import_is_the_same_memory_and_outlives_the_exporter(void **state)
{
    (void)state;
    wire_open();
    pid_t out = sim_start(exporter, CARD), in = sim_start(importer, CARD);
    assert_int_equal(sim_wait(out), 0);
    assert_int_equal(message_send(wire[0], "x", 1, -1), 0);
    assert_int_equal(sim_wait(in), 0);
    wire_close();
}

/* Exports and stops, to be killed. */
static int doomed_exporter(void)
{
    CUmemAllocationProp prop = exportable(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle handle = 0;
    int fd = -1;

    OK(cuInit(0));
    OK(cuMemCreate(&handle, 400 * MIB, &prop, 0));
    OK(cuMemCreate(&handle, 100 * MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(message_send(wire[0], "f", 1, fd) == 0);
    (void)pause();
    return 0;
}

static int late_importer(void)
{
    CUmemGenericAllocationHandle handle = 0, mine = 0;
    CUmemAllocationProp prop = exportable(CU_MEM_HANDLE_TYPE_NONE);
    char byte = 0;
    int fd = -1;

    OK(cuInit(0));
    CHECK(message_receive(wire[1], &byte, 1, &fd) == 0 && fd >= 0);
    /* the exporter is dead; its descriptor, in our hand, is all that keeps the memory */
    CHECK(sim_test_used(0) == 100 * MIB && shown_with(getpid()) == 0);
    CHECK(cuMemCreate(&mine, 926 * MIB, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK(shown_with(getpid()) == 100 * MIB);
    OK(cuMemRelease(handle));
    CHECK(sim_test_used(0) == 100 * MIB);
    (void)close(fd);
    CHECK(sim_test_used(0) == 0);
    OK(cuMemCreate(&mine, 926 * MIB, &prop, 0));
    return 0;
}

static void a_killed_exporters_descriptor_keeps_the_memory_until_closed(void **state)
{
    (void)state;
    wire_open();
    pid_t out = sim_start(doomed_exporter, CARD);
    char byte = 0;
    assert_int_equal(recv(wire[1], &byte, 1, MSG_PEEK), 1);
    assert_int_equal(kill(out, SIGKILL), 0);
    assert_int_equal(sim_wait(out), 128 + SIGKILL);
    assert_int_equal(sim_test_used(0), 100 * MIB);
    pid_t in = sim_start(late_importer, CARD);
    assert_int_equal(sim_wait(in), 0);
    assert_int_equal(sim_test_used(0), 0);
    wire_close();
}

static int export_and_release(void)
{
    CUmemAllocationProp prop = exportable(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemAllocationProp plain = exportable(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle handle = 0, again = 0;
    int fd = -1, copy = -1;

    OK(cuInit(0));
    OK(cuMemCreate(&handle, 100 * MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(handle));
    CHECK(sim_test_used(0) == 100 * MIB);
    copy = dup(fd);
    (void)close(fd);
    CHECK(sim_test_used(0) == 100 * MIB);
    OK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)copy,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK(again != handle);
    (void)close(copy);
    CHECK(sim_test_used(0) == 100 * MIB && shown_with(getpid()) == 100 * MIB);
    OK(cuMemRelease(again));
    CHECK(sim_test_used(0) == 0);
    OK(cuMemCreate(&handle, 100 * MIB, &plain, 0));
    CHECK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
          CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(handle));
    CHECK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)0,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
          CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void a_copy_of_a_descriptor_counts(void **state)
{
    (void)state;
    assert_int_equal(sim_run(export_and_release, CARD), 0);
}

/* --- fabric handles --------------------------------------------------------------------- */

static int fabric_exporter(void)
{
    CUmemAllocationProp prop = exportable(CU_MEM_HANDLE_TYPE_FABRIC);
    CUmemGenericAllocationHandle handle = 0;
    CUmemFabricHandle fabric;

    OK(cuInit(0));
    OK(cuMemCreate(&handle, 100 * MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    CHECK(message_send(wire[0], &fabric, sizeof fabric, -1) == 0);
    HEAR(0);
    return 0;
}

static int fabric_importer(void)
{
    CUmemGenericAllocationHandle handle = 0;
    CUmemFabricHandle fabric;

    OK(cuInit(0));
    CHECK(message_receive(wire[1], &fabric, sizeof fabric, NULL) == 0);
    OK(cuMemImportFromShareableHandle(&handle, &fabric, CU_MEM_HANDLE_TYPE_FABRIC));
    CHECK(sim_test_used(0) == 100 * MIB);
    SAY(1);
    HEAR(1); /* the exporter has ended */
    CHECK(sim_test_used(0) == 100 * MIB);
    OK(cuMemRelease(handle));
    CHECK(sim_test_used(0) == 0);
    CHECK(cuMemImportFromShareableHandle(&handle, &fabric, CU_MEM_HANDLE_TYPE_FABRIC) ==
          CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static void a_fabric_handle_names_memory_but_keeps_none(void **state)
{
    (void)state;
    wire_open();
    pid_t out = sim_start(fabric_exporter, CARD), in = sim_start(fabric_importer, CARD);
    assert_int_equal(sim_wait(out), 0);
    assert_int_equal(message_send(wire[0], "x", 1, -1), 0);
    assert_int_equal(sim_wait(in), 0);
    wire_close();
}

/* --- multicast teams -------------------------------------------------------------------- */

static int team_leader(void)
{
    CUmulticastObjectProp prop = {
        .numDevices = 2, .size = 4 * MIB, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    CUmemGenericAllocationHandle object = 0;
    int fd = -1;

    OK(cuInit(0));
    OK(cuMulticastCreate(&object, &prop));
    OK(cuMemExportToShareableHandle(&fd, object, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMulticastAddDevice(object, 0));
    CHECK(message_send(wire[0], "f", 1, fd) == 0);
    HEAR(0);
    CHECK(sim_test_used(0) == 4 * MIB);
    return 0;
}

static int team_member(void)
{
    CUmemAllocationProp prop = exportable(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle object = 0, memory = 0;
    char byte = 0;
    int fd = -1;

    OK(cuInit(0));
    CHECK(message_receive(wire[1], &byte, 1, &fd) == 0 && fd >= 0);
    OK(cuMemImportFromShareableHandle(&object, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(cuMemCreate(&memory, 4 * MIB, &prop, 0));
    OK(cuMulticastAddDevice(object, 0));
    OK(cuMulticastBindMem(object, 0, memory, 0, 4 * MIB, 0));
    SAY(1);
    HEAR(1);
    return 0;
}

static void a_multicast_team_forms_over_two_processes(void **state)
{
    (void)state;
    wire_open();
    pid_t out = sim_start(team_leader, CARD), in = sim_start(team_member, CARD);
    assert_int_equal(sim_wait(out), 0);
    assert_int_equal(message_send(wire[0], "x", 1, -1), 0);
    assert_int_equal(sim_wait(in), 0);
    wire_close();
}

/* --- IPC ------------------------------------------------------------------------------- */

struct ipc_message {
    CUipcMemHandle large, small;
    CUipcEventHandle event;
};

static int ipc_exporter(void)
{
    struct ipc_message message;
    CUdeviceptr large = 0, small = 0, spare = 0, own = 0, managed = 0;
    CUevent event = NULL;
    CUcontext context = NULL;
    unsigned int word = 0;

    CHECK(sim_begin(&context) == 0);
    OK(cuMemAlloc_v2(&large, 100 * MIB));
    OK(cuMemAlloc_v2(&spare, 1000));
    OK(cuMemAlloc_v2(&small, 1000));
    OK(cuMemsetD32_v2(large + 50 * MIB, 0x11111111, 1));
    OK(cuMemsetD32_v2(small, 0x22222222, 1));
    OK(cuMemsetD32_v2(spare, 0x33333333, 1));
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CHECK(sim_test_used(0) == 102 * MIB && sim_test_alloc(0) == 100 * MIB + 2048);
    OK(cuIpcGetMemHandle(&message.large, large));
    OK(cuIpcGetMemHandle(&message.small, small));
    OK(cuIpcGetEventHandle(&message.event, event));
    CHECK(sim_test_used(0) == 102 * MIB && sim_test_alloc(0) == 100 * MIB + 2048);
    CHECK(shown_with(getpid()) == 102 * MIB);
    OK(cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL));
    CHECK(cuIpcGetMemHandle(&message.large, managed) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuIpcOpenMemHandle_v2(&own, message.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
          CUDA_ERROR_INVALID_CONTEXT);
    CHECK(message_send(wire[0], &message, sizeof message, -1) == 0);
    HEAR(0);
    /* what the other wrote is here, what was there before has stayed */
    OK(cuMemcpyDtoH_v2(&word, large + 60 * MIB, 4));
    CHECK(word == 0x44444444);
    OK(cuMemcpyDtoH_v2(&word, spare, 4));
    CHECK(word == 0x33333333);
    OK(cuMemFree_v2(large)); /* still open over there */
    CHECK(sim_test_used(0) == 102 * MIB && shown_with(getpid()) == 2 * MIB);
    SAY(0);
    HEAR(0);
    CHECK(sim_test_used(0) == 2 * MIB);
    OK(cuMemFree_v2(small));
    OK(cuMemFree_v2(spare));
    CHECK(sim_test_used(0) == 0 && sim_test_alloc(0) == 0);
    /* the address is fresh memory again */
    OK(cuMemAlloc_v2(&large, 100 * MIB));
    OK(cuMemcpyDtoH_v2(&word, large + 50 * MIB, 4));
    CHECK(word == 0);
    SAY(0);
    HEAR(0);
    return 0;
}

static int ipc_importer(void)
{
    struct ipc_message message;
    CUdeviceptr large = 0, again = 0, small = 0, base = 0;
    CUevent event = NULL;
    CUcontext context = NULL;
    unsigned int word = 0;
    size_t size = 0;

    CHECK(sim_begin(&context) == 0);
    CHECK(message_receive(wire[1], &message, sizeof message, NULL) == 0);
    CHECK(cuIpcOpenMemHandle_v2(&large, message.large, 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcOpenMemHandle_v2(&large, message.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle(&again, message.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle_v2(&small, message.small, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(large == again && small != large);
    CHECK(sim_test_used(0) == 102 * MIB && shown_with(getpid()) == 0);
    OK(cuMemGetAddressRange_v2(&base, &size, large));
    CHECK(base == large && size == 100 * MIB);
    OK(cuMemcpyDtoH_v2(&word, large + 50 * MIB, 4));
    CHECK(word == 0x11111111);
    OK(cuMemcpyDtoH_v2(&word, small, 4));
    CHECK(word == 0x22222222);
    OK(cuMemsetD32_v2(large + 60 * MIB, 0x44444444, 1));
    OK(cuIpcOpenEventHandle(&event, message.event));
    OK(cuEventQuery(event));
    OK(cuEventDestroy_v2(event));
    CHECK(cuMemFree_v2(large) == CUDA_ERROR_INVALID_VALUE);
    SAY(1);
    HEAR(1);
    CHECK(shown_with(getpid()) == 100 * MIB);
    OK(cuIpcCloseMemHandle(large));
    OK(cuMemcpyDtoH_v2(&word, large + 50 * MIB, 4)); /* once more open */
    CHECK(word == 0x11111111);
    OK(cuIpcCloseMemHandle(large));
    CHECK(cuIpcCloseMemHandle(large) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemcpyDtoH_v2(&word, large + 50 * MIB, 4) == CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxDestroy_v2(context)); /* closes the small one */
    SAY(1);
    HEAR(1);
    OK(cuCtxCreate_v2(&context, 0, 0));
    CHECK(cuIpcOpenMemHandle_v2(&large, message.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
          CUDA_ERROR_INVALID_VALUE);
    SAY(1);
    return 0;
}

static void opened_ipc_memory_is_counted_once_and_closed_by_count(void **state)
{
    (void)state;
    wire_open();
    pid_t out = sim_start(ipc_exporter, CARD), in = sim_start(ipc_importer, CARD);
    assert_int_equal(sim_wait(in), 0);
    assert_int_equal(sim_wait(out), 0);
    wire_close();
}

static int ipc_doomed(void)
{
    struct ipc_message message;
    CUdeviceptr large = 0;
    CUcontext context = NULL;

    memset(&message, 0, sizeof message);
    CHECK(sim_begin(&context) == 0);
    OK(cuMemAlloc_v2(&large, 100 * MIB));
    OK(cuIpcGetMemHandle(&message.large, large));
    OK(cuMemAlloc_v2(&large, 200 * MIB));
    OK(cuIpcGetMemHandle(&message.small, large));
    CHECK(message_send(wire[0], &message, sizeof message, -1) == 0);
    (void)pause();
    return 0;
}

static int ipc_survivor(void)
{
    struct ipc_message message;
    CUdeviceptr address = 0;
    CUcontext context = NULL;

    CHECK(sim_begin(&context) == 0);
    CHECK(message_receive(wire[1], &message, sizeof message, NULL) == 0);
    OK(cuIpcOpenMemHandle_v2(&address, message.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    SAY(1);
    HEAR(1); /* the exporter has been killed */
    CHECK(cuIpcOpenMemHandle_v2(&address, message.small, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(sim_test_used(0) == 100 * MIB && shown_with(getpid()) == 100 * MIB);
    OK(cuMemsetD8_v2(address, 1, 100));
    return 0;
}

static void open_ipc_memory_outlives_a_killed_exporter(void **state)
{
    char byte = 0;

    (void)state;
    wire_open();
    pid_t out = sim_start(ipc_doomed, CARD), in = sim_start(ipc_survivor, CARD);
    assert_int_equal(read(wire[0], &byte, 1), 1);
    assert_int_equal(kill(out, SIGKILL), 0);
    assert_int_equal(sim_wait(out), 128 + SIGKILL);
    assert_int_equal(message_send(wire[0], "x", 1, -1), 0);
    assert_int_equal(sim_wait(in), 0);
    assert_int_equal(sim_test_used(0), 0);
    wire_close();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, sim_test_setup, sim_test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_import_is_the_same_memory_and_outlives_the_exporter),
        TEST(a_killed_exporters_descriptor_keeps_the_memory_until_closed),
        TEST(a_copy_of_a_descriptor_counts),
        TEST(a_fabric_handle_names_memory_but_keeps_none),
        TEST(a_multicast_team_forms_over_two_processes),
        TEST(opened_ipc_memory_is_counted_once_and_closed_by_count),
        TEST(open_ipc_memory_outlives_a_killed_exporter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
