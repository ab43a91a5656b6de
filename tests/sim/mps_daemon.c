/*
 * The stand-in control daemon: its files, its socket, its server.
 *
 * One request at a time: a peer says all its lines and shuts its side, then gets its answers. The
 * server is a child that does nothing but have a row of the state file, with memory on every card,
 * so that NVML lists it; it starts with the first client, dies with the daemon, and is replaced when
 * it was killed. A daemon that is killed leaves its files behind, as a real one does; `quit` removes
 * them. Clients of a server that is gone just go on here.
 */
#define _GNU_SOURCE
#include "mps_daemon.h"
#include "mps_commands.h"
#include "sim_bounds.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SERVER_MIB_STANDARD 28
#define ASKED_SECONDS 2
#define HUNG 64

static const char *const files[] = {"control", "control_lock", "control_privileged", "log",
                                    "nvidia-cuda-mps-control.pid"};
#define FILES (sizeof files / sizeof files[0])

static void path_of(char path[256], const char *directory, const char *name)
{
    (void)snprintf(path, 256, "%s/%s", directory, name);
}

static bool write_file(const char *directory, const char *name, const char *text)
{
    char path[256];

    path_of(path, directory, name);
    FILE *file = fopen(path, "we");
    if (!file)
        return false;
    (void)fputs(text, file);
    return fclose(file) == 0;
}

int mps_daemon_listen(const char *directory)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/control", directory);

    if (length < 0 || (size_t)length >= sizeof address.sun_path) {
        (void)fprintf(stderr, "mps: the path of the control socket is too long\n");
        return -1;
    }
    if (mkdir(directory, 0755) != 0 && errno != EEXIST) {
        (void)fprintf(stderr, "mps: %s: %s\n", directory, strerror(errno));
        return -1;
    }
    (void)unlink(address.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        chmod(address.sun_path, 0666) != 0 || listen(fd, 128) != 0) {
        (void)fprintf(stderr, "mps: %s: %s\n", address.sun_path, strerror(errno));
        if (fd >= 0)
            (void)close(fd);
        return -1;
    }
    return fd;
}

static void files_remove(const char *directory)
{
    char path[256];

    for (size_t i = 0; i < FILES; i++) {
        path_of(path, directory, files[i]);
        (void)unlink(path);
    }
}

/* --- the server -------------------------------------------------------------------------- */

/* In the child: says 0 through `ready` when it has its row and its memory. */
static void server_run(int ready)
{
    const char *text = getenv("VRAMCAP_SIM_MPS_SERVER_MIB");
    int64_t bytes = (int64_t)(text && *text ? strtoul(text, NULL, 10) : SERVER_MIB_STANDARD) << 20;
    struct sim_bounds bounds = {.role = SIM_MPS_SERVER};
    char failed = 1;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Not the listening socket: a daemon that is gone must not seem to listen. */
    for (int fd = 3; fd < 1024; fd++)
        if (fd != ready)
            (void)close(fd);
    (void)prctl(PR_SET_NAME, "nvidia-cuda-mps-server");
    for (unsigned int c = 0; c < SIM_MAX_CARDS; c++)
        bounds.limit[c] = UINT64_MAX;
    struct sim_state *state = sim_state_open(NULL);
    if (state && sim_state_attach(state) == 0) {
        failed = 0;
        for (unsigned int c = 0; c < sim_card_count(state); c++) {
            bounds.contexts[c] = 1;
            failed |=
                sim_state_move(state, c, (struct sim_delta){.used = bytes, .context = bytes}) != 0;
        }
        failed |= sim_bounds_set(state, &bounds) != 0;
    }
    if (write(ready, &failed, 1) != 1 || failed)
        _exit(1);
    for (;;)
        (void)pause();
}

int mps_server_start(struct mps_daemon *daemon)
{
    int ends[2];
    char failed = 1;

    if (daemon->server_pid != 0)
        return 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -errno;
    daemon->server = daemon->defaults;
    pid_t child = fork();
    if (child == 0)
        server_run(ends[1]);
    (void)close(ends[1]);
    bool up = child > 0 && read(ends[0], &failed, 1) == 1 && !failed;
    (void)close(ends[0]);
    if (up)
        daemon->server_pid = child;
    return up ? 0 : -EIO;
}

void mps_server_stop(struct mps_daemon *daemon)
{
    if (daemon->server_pid == 0)
        return;
    (void)kill(daemon->server_pid, SIGKILL);
    (void)waitpid(daemon->server_pid, NULL, 0);
    daemon->server_pid = 0;
}

static void server_look(struct mps_daemon *daemon)
{
    pid_t gone;

    while ((gone = waitpid(-1, NULL, WNOHANG)) > 0)
        if (gone == daemon->server_pid)
            daemon->server_pid = 0;
}

/* --- requests ---------------------------------------------------------------------------- */

static void request_serve(struct mps_daemon *daemon, int peer)
{
    struct timeval patience = {.tv_sec = ASKED_SECONDS};
    char text[65536], *save = NULL, *answer = NULL;
    size_t length = 0, answer_length = 0;
    ssize_t got;

    (void)setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while (length < sizeof text - 1 &&
           (got = read(peer, text + length, sizeof text - 1 - length)) > 0)
        length += (size_t)got;
    text[length] = '\0';
    FILE *out = open_memstream(&answer, &answer_length);
    if (!out)
        return;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        mps_command(daemon, line, out);
    (void)fclose(out);
    for (size_t sent = 0; sent < answer_length; sent += (size_t)got) {
        got = send(peer, answer + sent, answer_length - sent, MSG_NOSIGNAL);
        if (got <= 0)
            break;
    }
    free(answer);
}

int mps_daemon_serve(const char *directory, int listener)
{
    struct mps_daemon daemon = {.defaults = {.percent = 100}};
    int hung[HUNG];
    unsigned int hanging = 0;
    char pid[32];

    (void)snprintf(pid, sizeof pid, "%d", (int)getpid());
    daemon.state = sim_state_open(NULL);
    if (!daemon.state || !write_file(directory, "control_lock", "") ||
        !write_file(directory, "control_privileged", "") || !write_file(directory, "log", "") ||
        !write_file(directory, "nvidia-cuda-mps-control.pid", pid)) {
        (void)fprintf(stderr, "mps: %s: %s\n", directory, strerror(errno));
        return 1;
    }
    while (!daemon.quit) {
        int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

        if (peer < 0)
            continue;
        enum mps_behaviour behaviour = mps_behaviour_read(directory);
        if (behaviour == MPS_HANG && hanging < HUNG) {
            hung[hanging++] = peer;
            continue;
        }
        while (hanging > 0)
            (void)close(hung[--hanging]);
        server_look(&daemon);
        if (behaviour != MPS_FAIL)
            request_serve(&daemon, peer);
        (void)close(peer);
    }
    mps_server_stop(&daemon);
    sim_state_close(daemon.state);
    files_remove(directory);
    (void)close(listener);
    return 0;
}
