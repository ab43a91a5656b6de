/*
 * nvidia-cuda-mps-control, as far as its users see it: a stand-in for MPS's control daemon and for
 * the command that asks it.
 *
 *   nvidia-cuda-mps-control -d          the daemon, in the background (returns when it listens)
 *   nvidia-cuda-mps-control -f          the daemon, in the foreground
 *   echo get_server_list | nvidia-cuda-mps-control
 *
 * Works in CUDA_MPS_PIPE_DIRECTORY (/tmp/nvidia-mps). The commands are those of the legacy protocol
 * (v2): mps_commands.c has the list. How real clients speak with the daemon is not documented; here they are
 * simulated drivers and speak a protocol of their own over the same socket `control`.
 *
 * Word in VRAMCAP_SIM_MPS_CONTROL (of the command) or in the directory's file sim_behaviour (of both; read
 * at each use, so a test can change it): `answer`; `hang`: no answer, ever; `fail`: as if there were no
 * daemon; `lie`: servers and clients that do not exist. Options that are not known are ignored.
 */
#define _GNU_SOURCE
#include "mps_daemon.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>

static const char *pipe_directory(void)
{
    const char *given = getenv("CUDA_MPS_PIPE_DIRECTORY");

    return given && *given ? given : "/tmp/nvidia-mps";
}

enum mps_behaviour mps_behaviour_read(const char *directory)
{
    static const char *const words[] = {"answer", "hang", "fail", "lie"};
    const char *given = getenv("VRAMCAP_SIM_MPS_CONTROL");
    char path[256], word[32] = "";

    if (given && *given) {
        (void)snprintf(word, sizeof word, "%s", given);
    } else {
        (void)snprintf(path, sizeof path, "%s/%s", directory, MPS_BEHAVIOUR_FILE);
        FILE *file = fopen(path, "re");
        if (file && fscanf(file, "%31s", word) != 1)
            word[0] = '\0';
        if (file)
            (void)fclose(file);
    }
    for (int i = 0; i < 4; i++)
        if (strcmp(word, words[i]) == 0)
            return (enum mps_behaviour)i;
    return MPS_ANSWER;
}

/* --- the command ------------------------------------------------------------------- */

static int no_daemon(void)
{
    (void)printf("Cannot find MPS control daemon process\n");
    return 1;
}

static int daemon_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length =
        snprintf(address.sun_path, sizeof address.sun_path, "%s/control", pipe_directory());

    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

static void lie(const char *line)
{
    if (strncmp(line, "get_server_list", 15) == 0)
        (void)printf("4194303\n");
    else if (strncmp(line, "get_server_status", 17) == 0)
        (void)printf("ACTIVE\n");
    else if (strncmp(line, "get_client_list", 15) == 0)
        (void)printf("4194302\n");
    else if (strstr(line, "thread_percentage"))
        (void)printf("100.0\n");
    else if (strstr(line, "pinned_mem_limit"))
        (void)printf("8192G\n");
}

static int ask(void)
{
    enum mps_behaviour behaviour = mps_behaviour_read(pipe_directory());
    char text[65536], line[1024];
    size_t length = 0;
    ssize_t got;

    while (length < sizeof text - sizeof line && fgets(line, sizeof line, stdin)) {
        if (behaviour == MPS_LIE)
            lie(line);
        length += (size_t)snprintf(text + length, sizeof text - length, "%s", line);
    }
    if (behaviour == MPS_LIE)
        return 0;
    if (behaviour == MPS_HANG)
        for (;;)
            (void)pause();
    int fd = behaviour == MPS_FAIL ? -1 : daemon_connect();
    if (fd < 0)
        return no_daemon();
    if (send(fd, text, length, MSG_NOSIGNAL) != (ssize_t)length || shutdown(fd, SHUT_WR) != 0)
        return no_daemon();
    while ((got = read(fd, text, sizeof text)) > 0)
        (void)fwrite(text, 1, (size_t)got, stdout);
    (void)close(fd);
    return 0;
}

/* --- the daemon ---------------------------------------------------------------------- */

static int foreground(void)
{
    int fd = daemon_connect();

    if (fd >= 0) {
        (void)close(fd);
        (void)fprintf(stderr, "An instance of this daemon is already running\n");
        return 1;
    }
    fd = mps_daemon_listen(pipe_directory());
    return fd < 0 ? 1 : mps_daemon_serve(pipe_directory(), fd);
}

/* The parent returns when the child listens; the listening socket itself passes on. */
static int background(void)
{
    int fd = daemon_connect();

    if (fd >= 0) {
        (void)close(fd);
        (void)fprintf(stderr, "An instance of this daemon is already running\n");
        return 1;
    }
    fd = mps_daemon_listen(pipe_directory());
    if (fd < 0)
        return 1;
    pid_t child = fork();
    if (child != 0)
        return child < 0;
    (void)setsid();
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 3; i++)
        (void)dup2(null, i);
    return mps_daemon_serve(pipe_directory(), fd);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-d") == 0)
            return background();
        if (strcmp(argv[i], "-f") == 0)
            return foreground();
    }
    return ask();
}
