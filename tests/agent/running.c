/*
 * Starting, asking, stopping.
 */
#include "tests/agent/running.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/cli/ledger_image.h"

#define DEADLINE_MS 30000 /* what is waited for comes at once, but on a machine with more to do */
#define AGENT_SECONDS 150
#define GPU0 "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

bool running_setup(struct running *r)
{
    memset(r, 0, sizeof *r);
    r->buffer = malloc(ANSWER_BYTES);
    if (!r->buffer || !image_folder(r->folder))
        return false;
    (void)snprintf(r->ledgers, sizeof r->ledgers, "%s/ledgers", r->folder);
    (void)snprintf(r->socket, sizeof r->socket, "%s/http", r->folder);
    (void)snprintf(r->state, sizeof r->state, "%s/state", r->folder);
    (void)snprintf(r->log, sizeof r->log, "%s/log", r->folder);
    return mkdir(r->ledgers, 0755) == 0;
}

void running_teardown(struct running *r)
{
    char command[128];
    if (r->pid)
        (void)running_stop(r, SIGKILL);
    free(r->buffer);
    (void)snprintf(command, sizeof command, "rm -rf '%s'", r->folder);
    if (system(command) != 0)
        perror(command);
}

static bool has(const char *const *list, const char *word)
{
    for (size_t i = 0; list && list[i]; i++)
        if (!strcmp(list[i], word))
            return true;
    return false;
}

static void child(const struct running *r, bool with_state, const char *const *environment,
                  const char *const *extra)
{
    char listen[128];
    const char *argv[64] = {VRAMCAP_AGENT, "--listen", listen,   "--ledger-dir", r->ledgers,
                            "--interval",  "0.05",     "--nvml", "none"};
    size_t n = 9;
    (void)snprintf(listen, sizeof listen, "unix:%s", r->socket);
    if (!has(extra, "--scan-interval")) /* whoever says how often wants it */
        argv[n++] = "--no-proc";
    if (!has(extra, "--mps-pipe"))
        argv[n++] = "--no-mps";
    if (with_state) {
        argv[n++] = "--state";
        argv[n++] = r->state;
    }
    for (size_t i = 0; extra && extra[i] && n < 62; i++)
        argv[n++] = extra[i];
    argv[n] = NULL;
    (void)unsetenv("NOTIFY_SOCKET");
    (void)unsetenv("JOURNAL_STREAM");
    for (size_t i = 0; environment && environment[i]; i++)
        (void)putenv((char *)(uintptr_t)environment[i]);
    int log = open(r->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    (void)dup2(log, STDERR_FILENO);
    (void)dup2(log, STDOUT_FILENO);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)alarm(AGENT_SECONDS);
    (void)execv(argv[0], (char **)(uintptr_t)argv);
    _exit(99);
}

bool running_start(struct running *r, bool with_state, const char *const *environment,
                   const char *const *extra)
{
    const uint64_t end = now_ms() + DEADLINE_MS;
    r->pid = fork();
    if (r->pid == 0)
        child(r, with_state, environment, extra);
    while (now_ms() < end) {
        int status;
        if (waitpid(r->pid, &status, WNOHANG) == r->pid) {
            (void)fprintf(stderr, "the agent ended with %x:\n%s", status, running_log(r));
            r->pid = 0;
            return false;
        }
        if (running_get(r, "/healthz") == 200)
            return true;
        (void)usleep(10000);
    }
    return false;
}

int running_stop(struct running *r, int signal)
{
    int status = 0;
    if (!r->pid)
        return -1;
    (void)kill(r->pid, signal);
    const uint64_t end = now_ms() + DEADLINE_MS;
    while (waitpid(r->pid, &status, WNOHANG) == 0) {
        if (now_ms() > end)
            (void)kill(r->pid, SIGKILL);
        (void)usleep(2000);
    }
    r->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

int running_connect(const struct running *r)
{
    const struct timeval limit = {.tv_sec = DEADLINE_MS / 1000};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)snprintf(to.sun_path, sizeof to.sun_path, "%s", r->socket);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

size_t running_raw(struct running *r, const char *bytes, size_t length, int timeout_ms)
{
    size_t at = 0;
    int fd = running_connect(r);
    r->buffer[0] = '\0';
    if (fd < 0)
        return 0;
    (void)send(fd, bytes, length, MSG_NOSIGNAL);
    const uint64_t end = now_ms() + (uint64_t)timeout_ms;
    while (at + 1 < ANSWER_BYTES) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        uint64_t now = now_ms();
        if (now >= end || poll(&p, 1, (int)(end - now)) <= 0)
            break;
        ssize_t n = recv(fd, r->buffer + at, ANSWER_BYTES - 1 - at, 0);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    (void)close(fd);
    r->buffer[at] = '\0';
    return at;
}

int running_get(struct running *r, const char *path)
{
    char request[256];
    int n = snprintf(request, sizeof request,
                     "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    size_t length = running_raw(r, request, (size_t)n, DEADLINE_MS);
    char *end = strstr(r->buffer, "\r\n\r\n");
    r->status = 0;
    r->head = r->body = r->buffer;
    r->body_length = 0;
    if (!end || strncmp(r->buffer, "HTTP/1.1 ", 9) != 0)
        return 0;
    *end = '\0';
    r->body = end + 4;
    r->body_length = length - (size_t)(r->body - r->buffer);
    r->status = (int)strtol(r->buffer + 9, NULL, 10);
    return r->status;
}

double running_metric(struct running *r, const char *series)
{
    size_t n = strlen(series);
    if (running_get(r, "/metrics") != 200)
        return -2;
    for (const char *line = r->body; line && *line;) {
        if (!strncmp(line, series, n) && line[n] == ' ')
            return strtod(line + n, NULL);
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return -1;
}

static void name_series(char series[256], const char *name, const char *container)
{
    if (strstr(name, "lost") || strstr(name, "errors"))
        (void)snprintf(series, 256, "%s{container=\"%s\"}", name, container);
    else
        (void)snprintf(series, 256, "%s{container=\"%s\",gpu_uuid=\"" GPU0 "\",gpu=\"0\"}", name,
                       container);
}

double running_value(struct running *r, const char *name, const char *container)
{
    char series[256];
    name_series(series, name, container);
    return running_metric(r, series);
}

static int by_text(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* NAME{LABELS} VALUE: a number, and nothing in it that is not printable or escapes something. */
static bool is_series(const char *line)
{
    const char *value = strrchr(line, ' ');
    for (const char *c = line; *c; c++)
        if (*c < 0x20 || *c >= 0x7f || *c == '\\')
            return false;
    return !strncmp(line, "vramcap_", 8) && value && value[1] &&
           strspn(value + 1, "0123456789") == strlen(value + 1);
}

bool running_sound(struct running *r, char *why, size_t why_size)
{
    static char *lines[1 << 16];
    size_t count = 0;
    why[0] = '\0';
    if (running_get(r, "/metrics") != 200)
        (void)snprintf(why, why_size, "status %d", r->status);
    char *text = strdup(r->body), *rest = text;
    for (char *line; !*why && (line = strsep(&rest, "\n"));) {
        if (!*line || *line == '#')
            continue;
        if (!is_series(line) || count == sizeof lines / sizeof *lines)
            (void)snprintf(why, why_size, "no series: %s", line);
        else
            lines[count++] = line;
    }
    for (size_t i = 0; !*why && i < count; i++)
        *strrchr(lines[i], ' ') = '\0';
    qsort(lines, count, sizeof *lines, by_text);
    for (size_t i = 1; !*why && i < count; i++)
        if (!strcmp(lines[i - 1], lines[i]))
            (void)snprintf(why, why_size, "twice: %s", lines[i]);
    free(text);
    return !*why;
}

bool running_until_metric(struct running *r, const char *series, double value)
{
    const uint64_t end = now_ms() + DEADLINE_MS;
    double now = 0;
    while (now_ms() < end) {
        now = running_metric(r, series);
        if (now >= value && now <= value)
            return true;
        (void)usleep(20000);
    }
    (void)fprintf(stderr, "%s is %g, not %g\n%s\n", series, now, value, running_log(r));
    return false;
}

bool running_until(struct running *r, const char *name, const char *container, double value)
{
    char series[256];
    name_series(series, name, container);
    return running_until_metric(r, series, value);
}

json_t *running_json(struct running *r)
{
    json_error_t error;
    if (running_get(r, "/v1/containers") != 200)
        return NULL;
    json_t *json = json_loads(r->body, JSON_REJECT_DUPLICATES, &error);
    if (!json)
        (void)fprintf(stderr, "%s in:\n%s\n", error.text, r->body);
    return json;
}

json_t *running_container(struct running *r, const char *label)
{
    json_t *all = running_json(r), *found = NULL, *one;
    size_t i;
    json_array_foreach(json_object_get(all, "containers"), i, one)
    {
        if (!strcmp(json_string_value(json_object_get(one, "container")), label))
            found = json_incref(one);
    }
    json_decref(all);
    return found;
}

const char *running_log(const struct running *r)
{
    static char *text; /* other ledgers of this machine may fill it with lines, by the megabyte */
    static size_t room;
    size_t length = 0;
    int fd = open(r->log, O_RDONLY | O_CLOEXEC);
    for (ssize_t n = 1; fd >= 0 && n > 0; length += (size_t)(n > 0 ? n : 0)) {
        if (room - length < 2) {
            char *more = realloc(text, room ? room * 2 : 1 << 16);
            if (!more)
                break;
            text = more;
            room = room ? room * 2 : 1 << 16;
        }
        n = read(fd, text + length, room - length - 1);
    }
    if (fd >= 0)
        (void)close(fd);
    if (!text)
        return "";
    text[length] = '\0';
    return text;
}

unsigned running_lines(const struct running *r, const char *one, const char *other)
{
    unsigned count = 0;
    char *text = strdup(running_log(r)), *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));)
        count += strstr(line, one) && strstr(line, other);
    free(text);
    return count;
}

bool running_until_line(const struct running *r, const char *one, const char *other)
{
    const uint64_t end = now_ms() + DEADLINE_MS;
    while (now_ms() < end) {
        if (running_lines(r, one, other) > 0)
            return true;
        (void)usleep(20000);
    }
    (void)fprintf(stderr, "no line with '%s' and '%s' in:\n%s", one, other, running_log(r));
    return false;
}

const char *running_ledger(const struct running *r, const char *name)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", r->ledgers, name);
    return path;
}

/* ---- clients ---- */

pid_t running_client(const char *path, const char *const *environment)
{
    int ready[2];
    char byte, number[16];
    if (pipe(ready) != 0)
        return -1;
    (void)snprintf(number, sizeof number, "%d", ready[1]);
    const char *const argv[] = {"client", path, number, NULL};
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(ready[0]);
        (void)execve("/proc/self/exe", (char **)(uintptr_t)argv,
                     environment ? (char **)(uintptr_t)environment : environ);
        _exit(9);
    }
    (void)close(ready[1]);
    if (read(ready[0], &byte, 1) != 1)
        pid = -1;
    (void)close(ready[0]);
    return pid;
}

void running_client_main(int argc, char **argv)
{
    if (argc != 3 || strcmp(argv[0], "client") != 0)
        return;
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = VCAP_LF_LOCK_SLOT + 1, .l_len = 1};
    struct stat st;
    int ready = (int)strtol(argv[2], NULL, 10), fd = open(argv[1], O_RDWR | O_CLOEXEC);
    struct image *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const void *anchor = mmap(NULL, 4096, PROT_NONE, MAP_SHARED, fd, 0);
    (void)alarm(AGENT_SECONDS);
    if (m == MAP_FAILED || anchor == MAP_FAILED || fcntl(fd, F_OFD_SETLK, &lock) != 0 ||
        stat("/proc/self/ns/pid", &st) != 0)
        _exit(1);
    m->slots[1].pid = (uint32_t)getpid();
    m->slots[1].pidns = st.st_ino;
    (void)close(fd);
    (void)!write(ready, "x", 1);
    for (;;)
        (void)pause();
}

bool running_put(const struct running *r, const char *name, const struct image *image)
{
    char temporary[512];
    (void)snprintf(temporary, sizeof temporary, "%s/.tmp", r->ledgers);
    return image_write(image, sizeof *image, temporary) == 0 &&
           rename(temporary, running_ledger(r, name)) == 0;
}
