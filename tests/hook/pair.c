#include "tests/hook/pair.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/hook/scenario.h"

static pid_t other;
static int wire;

bool pair_start(int (*body)(void))
{
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    other = fork();
    wire = ends[other == 0];
    close(ends[other != 0]);
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(body());
    }
    return other > 0;
}

pid_t pair_other(void)
{
    return other;
}

union control {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
};

bool pair_send(const void *data, size_t size, int fd)
{
    union control control;
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    memset(&control, 0, sizeof(control));
    if (fd >= 0) {
        struct cmsghdr *header;

        message.msg_control = control.room;
        message.msg_controllen = sizeof(control.room);
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(fd));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    return sendmsg(wire, &message, MSG_NOSIGNAL) == (ssize_t)size;
}

bool pair_receive(void *data, size_t size, int *fd)
{
    union control control;
    struct iovec part = {.iov_base = data, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    const struct cmsghdr *header;

    memset(&control, 0, sizeof(control));
    message.msg_control = control.room;
    message.msg_controllen = sizeof(control.room);
    if (recvmsg(wire, &message, MSG_CMSG_CLOEXEC) != (ssize_t)size)
        return false;
    header = CMSG_FIRSTHDR(&message);
    if (fd != NULL)
        *fd = -1;
    if (fd != NULL && header != NULL)
        memcpy(fd, CMSG_DATA(header), sizeof(*fd));
    return true;
}

int pair_wait(void)
{
    int status = 0;

    if (waitpid(other, &status, 0) != other)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void pair_kill(void)
{
    kill(other, SIGKILL);
    pair_wait();
}

uint64_t imported(unsigned card)
{
    struct vcap_snapshot s;
    uint64_t bytes = 0;
    char text[48];

    card_uuid_text(card, text);
    if (!ledger_read(self.ledger, &s))
        return UINT64_MAX;
    for (uint32_t p = 0; p < s.process_count; p++)
        for (uint32_t i = 0; i < s.processes[p].charge_count; i++) {
            const struct vcap_snapshot_charge *charge = &s.processes[p].charges[i];

            if (s.processes[p].pid == (uint32_t)getpid() &&
                strcmp(s.gpus[charge->gpu].uuid, text) == 0)
                bytes += charge->imported_bytes;
        }
    vcap_snapshot_free(&s);
    return bytes;
}
