/*
 * Memory that crosses processes: IPC handles, descriptors of physical memory, pointers of a pool.  A lender
 * keeps what it lent until the borrower says that it is done; the borrower shows it and is not charged.
 * Messages go round: lent to the right, returned to the left.
 */
#include "tests/property/property.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct message {
    uint32_t number; /* of the loan; lent: kind is set, returned: `returned` is */
    uint32_t kind, card, returned;
    uint64_t size, bytes;
    CUipcMemHandle ipc;
    CUmemPoolPtrExportData data;
};

static uint32_t loans;

static bool post(int socket_, const struct message *m, int fd)
{
    char room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {.iov_base = (void *)(uintptr_t)m, .iov_len = sizeof(*m)};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

    memset(room, 0, sizeof(room));
    if (fd >= 0) {
        struct cmsghdr *control;

        header.msg_control = room;
        header.msg_controllen = sizeof(room);
        control = CMSG_FIRSTHDR(&header);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof(fd));
        memcpy(CMSG_DATA(control), &fd, sizeof(fd));
    }
    return sendmsg(socket_, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(*m);
}

/* 1: a message, 0: none, -1: the neighbour is gone. */
static int fetch(int socket_, struct message *m, int *fd)
{
    char room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {.iov_base = m, .iov_len = sizeof(*m)};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    const struct cmsghdr *control;
    ssize_t got = recvmsg(socket_, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    *fd = -1;
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    control = CMSG_FIRSTHDR(&header);
    if (control != NULL)
        memcpy(fd, CMSG_DATA(control), sizeof(*fd));
    return got == (ssize_t)sizeof(*m) ? 1 : -1; /* 0: closed */
}

/* Only the first thread of a process talks, and only about its own things. */
int do_lend(struct actor *a)
{
    struct message m;
    struct thing *t = NULL;
    unsigned lent = 0;
    int fd = -1;

    if (a->number != 0 || a->world->right < 0)
        return 0;
    for (struct thing *i = a->things; i != NULL; i = i->next)
        lent += i->lent != 0;
    if (lent >= 6)
        return do_neighbours(a);
    memset(&m, 0, sizeof(m));
    switch (draw(a, 3)) {
    case 0:
        t = thing_pick(a, LINEAR);
        if (t == NULL || t->bytes < 2 * MIB || t->context != a->context[0].handle ||
            api.cuIpcGetMemHandle(&m.ipc, t->number) != CUDA_SUCCESS) /* managed memory has none */
            return 0;
        break;
    case 1:
        t = thing_pick(a, PHYSICAL);
        if (t == NULL || t->handles == 0 || t->lent != 0)
            return 0;
        GOOD(api.cuMemExportToShareableHandle(&fd, t->handle[0],
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        break;
    default:
        t = thing_pick(a, POOL_POINTER);
        if (t == NULL || t->home == NULL || t->home->destroyed)
            return 0;
        GOOD(api.cuMemPoolExportToShareableHandle(&fd, (CUmemoryPool)(uintptr_t)t->home->number,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        GOOD(api.cuMemPoolExportPointer(&m.data, t->number));
    }
    m.kind = (uint32_t)t->kind;
    m.card = t->card;
    m.size = t->size;
    m.bytes = t->bytes;
    m.number = ++loans;
    if (post(a->world->right, &m, fd))
        t->lent = m.number;
    if (fd >= 0)
        close(fd);
    return 0;
}

static int returned(struct actor *a, uint32_t number)
{
    for (struct thing *t = a->things; t != NULL; t = t->next)
        if (t->lent == number) {
            t->lent = 0;
            return 0;
        }
    return wrong(a, "loan %u came back and is not known", number);
}

static int say_done(struct actor *a, uint32_t number)
{
    struct message m = {.number = number, .returned = 1};

    if (a->world->left >= 0)
        post(a->world->left, &m, -1);
    return 0;
}

static int borrow(struct actor *a, const struct message *m, int fd)
{
    struct thing *t;
    CUdeviceptr pointer = POISON;

    GOOD(api.cuCtxSetCurrent(a->context[0].handle));
    switch (m->kind) {
    case LINEAR:
        GOOD(api.cuIpcOpenMemHandle_v2(&pointer, m->ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        t = thing_add(a, OPENED, m->card, pointer, 0);
        t->context = a->context[0].handle;
        t->imported = m->bytes;
        break;
    case PHYSICAL: {
        CUmemGenericAllocationHandle handle = POISON;

        GOOD(api.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        t = thing_add(a, BORROWED, m->card, 0, 0);
        t->handle[t->handles++] = handle;
        t->size = m->size;
        break;
    }
    default: {
        CUmemoryPool pool = NULL;
        CUmemPoolPtrExportData data = m->data;

        GOOD(api.cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        GOOD(api.cuMemPoolImportPointer(&pointer, pool, &data));
        GOOD(api.cuMemPoolDestroy(pool));
        t = thing_add(a, WINDOW, m->card, pointer, 0);
        t->imported = m->size;
    }
    }
    t->fd = (int)m->number;
    if (fd >= 0)
        close(fd);
    GOOD(api.cuCtxSetCurrent(here(a)->handle));
    return 0;
}

/* What came from either side.  A borrower that is gone has given back. */
int do_neighbours(struct actor *a)
{
    struct message m;
    int fd, got = 0;

    if (a->number != 0)
        return 0;
    while (a->world->right >= 0 && (got = fetch(a->world->right, &m, &fd)) > 0)
        if (returned(a, m.number) != 0)
            return 1;
    if (got < 0) {
        a->world->right = -1;
        for (struct thing *t = a->things; t != NULL; t = t->next)
            t->lent = 0;
    }
    if (a->world->left >= 0 && fetch(a->world->left, &m, &fd) > 0)
        return borrow(a, &m, fd);
    return 0;
}

int share_end(struct actor *a, struct thing *t)
{
    uint32_t number = (uint32_t)t->fd;

    if (t->kind == OPENED)
        GOOD(api.cuIpcCloseMemHandle(t->number));
    else if (t->kind == WINDOW)
        GOOD(api.cuMemFreeAsync(t->number, a->context[0].stream));
    thing_drop(a, t);
    return say_done(a, number);
}

int do_give_back(struct actor *a)
{
    struct thing *t = thing_pick(a, chance(a, 50) ? OPENED : WINDOW);

    return t == NULL ? 0 : share_end(a, t);
}

bool share_drain(struct actor *a)
{
    bool lent = false;

    if (a->number != 0)
        return true;
    for (int i = 0; i < 16; i++)
        if (do_neighbours(a) != 0)
            return true; /* and said */
    for (struct thing *t = a->things; t != NULL; t = t->next)
        lent |= t->lent != 0;
    return !lent;
}
