/*
 * Directories, environments, children.  Children are started with fork and exec, in a process group
 * of their own, with SIGKILL as their parent-death signal; deadlines are by the monotonic clock.
 */
#include "tests/support/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- the draw ---- */

const struct fixture_draw *fixture_draw(void)
{
    static struct fixture_draw draw;
    static bool drawn;
    static const unsigned pitches[] = {512, 1024, 4096};
    const char *given = getenv("VRAMCAP_TEST_SEED");
    struct timespec now;
    uint32_t bits;

    fixture_needs_simulator();
    if (drawn)
        return &draw;
    clock_gettime(CLOCK_REALTIME, &now);
    draw.seed = given != NULL && given[0] != 0
                    ? (uint32_t)strtoul(given, NULL, 10)
                    : (uint32_t)(now.tv_nsec / 1000) ^ (uint32_t)getpid() << 16;
    bits = (draw.seed ^ draw.seed >> 16) * 0x9e3779b1u;
    draw.page_kib = (bits & 1) != 0 ? 64 : 2048;
    draw.pitch = pitches[(bits >> 8) % 3];
    draw.context_mib = (bits >> 16) % 129;
    drawn = true;
    return &draw;
}

const char *fixture_driver(void)
{
    const char *driver = getenv("VRAMCAP_TEST_DRIVER");

    return driver != NULL && driver[0] != 0 ? driver : NULL;
}

void fixture_needs_simulator(void)
{
    if (fixture_driver() == NULL || getenv("VRAMCAP_TEST_LEDGER") == NULL)
        return;
    fprintf(stderr, "SKIPPED: needs the simulator\n");
    _exit(77);
}

bool fixture_only_own_programs(void)
{
    return TEST_NO_RUNTIME != 0;
}

/* ---- directories ---- */

int fixture_setup(void **state)
{
    const struct fixture_draw *draw = fixture_draw();
    struct fixture *f = calloc(1, sizeof(*f));
    static bool said;

    if (f == NULL)
        return -1;
    if (!said)
        fprintf(stderr, "VRAMCAP_TEST_SEED=%u (simulator: page %u KiB, pitch %u, context %u MiB)\n",
                draw->seed, draw->page_kib, draw->pitch, draw->context_mib);
    said = true;
    f->data = *state;
    snprintf(f->directory, sizeof(f->directory), "/tmp/vramcap-test-XXXXXX");
    if (mkdtemp(f->directory) == NULL) {
        free(f);
        return -1;
    }
    snprintf(f->ledger, sizeof(f->ledger), "%s/ledger", f->directory);
    snprintf(f->sim, sizeof(f->sim), "%s/sim", f->directory);
    *state = f;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

int fixture_teardown(void **state)
{
    struct fixture *f = *state;
    int rc = nftw(f->directory, remove_one, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);

    free(f);
    return rc;
}

const char *fixture_path(const struct fixture *f, const char *name)
{
    static char paths[4][192];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", f->directory, name);
    return path;
}

/* ---- environments ---- */

struct block {
    char **list;
    size_t count, room;
    char *text, *end;
};

static void put(struct block *b, const char *name, const char *value)
{
    size_t length = strlen(name), i;

    for (i = 0; i < b->count; i++)
        if (strncmp(b->list[i], name, length) == 0 && b->list[i][length] == '=')
            break;
    if (value == NULL) {
        if (i < b->count)
            b->list[i] = b->list[--b->count];
        b->list[b->count] = NULL;
        return;
    }
    if (i == b->count && b->count + 1 == b->room)
        abort();
    if ((size_t)(b->end - b->text) < length + strlen(value) + 2)
        abort();
    b->list[i] = b->text;
    b->text += sprintf(b->text, "%s=%s", name, value) + 1;
    if (i == b->count)
        b->list[++b->count] = NULL;
}

static bool is_ours(const char *entry)
{
    static const char *const families[] = {"VRAMCAP_", "CUDA_",  "LD_",  "ASAN_",
                                           "TSAN_",    "UBSAN_", "LSAN_"};

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strncmp(entry, families[i], strlen(families[i])) == 0)
            return true;
    return false;
}

static void put_drawn(struct block *b)
{
    const struct fixture_draw *draw = fixture_draw();
    char number[16];

    snprintf(number, sizeof(number), "%u", draw->page_kib);
    put(b, "VRAMCAP_SIM_PAGE_KIB", number);
    snprintf(number, sizeof(number), "%u", draw->pitch);
    put(b, "VRAMCAP_SIM_PITCH", number);
    snprintf(number, sizeof(number), "%u", draw->context_mib);
    put(b, "VRAMCAP_SIM_CONTEXT_MIB", number);
    snprintf(number, sizeof(number), "%u", draw->seed);
    put(b, "VRAMCAP_TEST_SEED", number);
}

static const char *preloaded(void)
{
    const char *other = getenv("VRAMCAP_TEST_LIBRARY"); /* another build of it */

    return other != NULL ? other : TEST_LIBRARY;
}

char **fixture_environment(const struct fixture *f, const char *const *extra)
{
    enum { ROOM = 512, TEXT = 131072 };
    char **memory = calloc(ROOM + TEXT / sizeof(char *), sizeof(char *));
    char front[1024] = "", behind[1024] = "", preload[4096], name[128];
    const char *library = preloaded();
    struct block b = {.list = memory, .room = ROOM};

    if (memory == NULL)
        abort();
    b.text = (char *)(memory + ROOM);
    b.end = b.text + TEXT;
    for (char **entry = environ; *entry != NULL; entry++)
        if (!is_ours(*entry) && b.count + 32 < ROOM)
            b.list[b.count++] = *entry;
    put(&b, "LD_LIBRARY_PATH", fixture_driver() != NULL ? fixture_driver() : TEST_SIM);
    put(&b, "VRAMCAP_TEST_DRIVER", fixture_driver());
    put(&b, "VRAMCAP_TEST_UUIDS", getenv("VRAMCAP_TEST_UUIDS"));
    put(&b, "VRAMCAP_SIM_ADDRESSES_MIB", getenv("VRAMCAP_SIM_ADDRESSES_MIB"));
    put(&b, "VRAMCAP_LEDGER", f->ledger);
    put(&b, "VRAMCAP_SIM_STATE", f->sim);
    put(&b, "ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0:handle_segv=0");
    put(&b, "UBSAN_OPTIONS", "print_stacktrace=1");
    put(&b, "TSAN_OPTIONS", "die_after_fork=0:exitcode=66:handle_segv=0");
    if (fixture_driver() == NULL)
        put_drawn(&b);
    for (size_t i = 0; extra != NULL && extra[i] != NULL; i++) {
        const char *equals = strchr(extra[i], '=');
        size_t length = equals == NULL ? strlen(extra[i]) : (size_t)(equals - extra[i]);

        if (length >= sizeof(name))
            abort();
        memcpy(name, extra[i], length);
        name[length] = 0;
        if (strcmp(name, "+LD_PRELOAD") == 0)
            snprintf(behind, sizeof(behind), ":%s", equals + 1);
        else if (strcmp(name, "-LD_PRELOAD") == 0)
            snprintf(front, sizeof(front), "%s:", equals + 1);
        else if (strcmp(name, "LD_PRELOAD") == 0 && equals == NULL)
            library = "";
        else
            put(&b, name, equals == NULL ? NULL : equals + 1);
    }
    snprintf(preload, sizeof(preload), "%s%s%s%s%s", TEST_RUNTIME, TEST_RUNTIME[0] != 0 ? ":" : "",
             front, library, behind);
    put(&b, "LD_PRELOAD", preload);
    return b.list;
}

/* ---- copies ---- */

static bool copy(const char *from, const char *to)
{
    char piece[65536];
    ssize_t n = -1;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    bool good = in >= 0 && out >= 0 && fchmod(out, 0755) == 0;

    while (good && (n = read(in, piece, sizeof(piece))) > 0)
        good = write(out, piece, (size_t)n) == n;
    if (in >= 0)
        close(in);
    return (out >= 0 ? close(out) : -1) == 0 && good && n == 0;
}

bool fixture_copies(const struct fixture *f, struct fixture_copies *copies)
{
    const char *folder = fixture_path(f, "build"), *driver = fixture_driver();
    char library[128], sim[128];

    snprintf(copies->client, sizeof(copies->client), "%s/client", folder);
    snprintf(library, sizeof(library), "%s/libvramcap.so", folder);
    snprintf(sim, sizeof(sim), "%s/libcuda.so.1", folder);
    snprintf(copies->library, sizeof(copies->library), "+LD_PRELOAD=%s", library);
    snprintf(copies->sim, sizeof(copies->sim), "LD_LIBRARY_PATH=%s", driver ? driver : folder);
    return mkdir(folder, 0755) == 0 && chmod(folder, 0755) == 0 &&
           copy(TEST_CLIENT, copies->client) && copy(preloaded(), library) &&
           (driver != NULL || copy(TEST_SIM "/libcuda.so.1", sim));
}

/* ---- children ---- */

bool child_start(struct child *c, const struct fixture *f, const char *const *argv,
                 const char *const *extra)
{
    static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPIPE};
    char **environment = fixture_environment(f, extra);
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};

    memset(c, 0, sizeof(*c));
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
        free(environment);
        return false;
    }
    fflush(NULL);
    c->pid = fork();
    if (c->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
            signal(caught[i], SIG_DFL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(err[1], 2);
        execvpe(argv[0], (char *const *)(uintptr_t)argv, environment);
        _exit(127);
    }
    free(environment);
    close(in[0]);
    close(out[1]);
    close(err[1]);
    c->in = in[1];
    c->out = out[0];
    c->err = err[0];
    return c->pid > 0;
}

static void let_go(struct child *c)
{
    int *ends[] = {&c->in, &c->out, &c->err};

    for (size_t i = 0; i < 3; i++) {
        if (*ends[i] > 0)
            close(*ends[i]);
        *ends[i] = 0;
    }
    c->pid = 0;
}

int child_wait(struct child *c, unsigned deadline_ms)
{
    uint64_t end = now_ms() + deadline_ms;
    bool late = false;
    int status = 0;
    pid_t pid = 0;

    if (c->pid <= 0)
        return -1;
    while ((pid = waitpid(c->pid, &status, WNOHANG)) == 0 && now_ms() < end)
        usleep(1000);
    if (pid == 0) {
        late = true;
        kill(c->pid, SIGKILL);
        waitpid(c->pid, &status, 0);
    }
    let_go(c);
    if (late)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void child_kill(struct child *c, int signal_number)
{
    int status;

    if (c->pid <= 0)
        return;
    kill(c->pid, signal_number);
    if (signal_number == SIGKILL) {
        waitpid(c->pid, &status, 0);
        let_go(c);
    }
}

static bool readable(int fd, uint64_t end)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    uint64_t now = now_ms();

    return poll(&ready, 1, now < end ? (int)(end - now) : 0) > 0;
}

bool child_line(struct child *c, char *line, size_t size, unsigned deadline_ms)
{
    uint64_t end = now_ms() + deadline_ms;
    size_t length = 0;
    char byte;

    while (readable(c->out, end) && read(c->out, &byte, 1) == 1) {
        if (byte == '\n') {
            line[length] = 0;
            return true;
        }
        if (length + 1 < size)
            line[length++] = byte;
    }
    return false;
}

bool child_say(struct child *c, const char *line)
{
    char text[1024];
    int length = snprintf(text, sizeof(text), "%s\n", line);

    return length < (int)sizeof(text) && write(c->in, text, (size_t)length) == (ssize_t)length;
}

void child_run(const struct fixture *f, const char *const *argv, const char *const *extra,
               struct child_output *output)
{
    uint64_t end = now_ms() + FIXTURE_DEADLINE_MS;
    size_t length[2] = {0, 0};
    struct child c;
    struct pollfd ends[2];
    char *text[2] = {output->out, output->err}, rest[4096];

    memset(output, 0, sizeof(*output));
    output->status = -1;
    if (!child_start(&c, f, argv, extra))
        return;
    close(c.in);
    c.in = 0;
    ends[0] = (struct pollfd){.fd = c.out, .events = POLLIN};
    ends[1] = (struct pollfd){.fd = c.err, .events = POLLIN};
    while ((ends[0].fd >= 0 || ends[1].fd >= 0) && now_ms() < end) {
        if (poll(ends, 2, (int)(end - now_ms())) <= 0)
            continue;
        for (unsigned i = 0; i < 2; i++) {
            size_t room = sizeof(output->out) - 1 - length[i];
            ssize_t got;

            if (ends[i].fd < 0 || ends[i].revents == 0)
                continue;
            got = room > 0 ? read(ends[i].fd, text[i] + length[i], room)
                           : read(ends[i].fd, rest, sizeof(rest));
            if (got <= 0)
                ends[i].fd = -1;
            else if (room > 0)
                length[i] += (size_t)got;
        }
    }
    output->out_length = length[0];
    output->status = child_wait(&c, now_ms() < end ? (unsigned)(end - now_ms()) : 0);
}

unsigned count_lines(const char *text, const char *with)
{
    unsigned count = 0;

    while (*text != 0) {
        const char *end = strchr(text, '\n');
        size_t length = end == NULL ? strlen(text) : (size_t)(end - text);

        if (with == NULL || memmem(text, length, with, strlen(with)) != NULL)
            count++;
        text += length + (end != NULL);
    }
    return count;
}

/* ---- the client ---- */

bool client_start(struct child *c, const struct fixture *f, const char *how,
                  const char *const *extra)
{
    char by[32];
    const char *argv[] = {strcmp(how, "link") == 0 ? TEST_CLIENT_LINK : TEST_CLIENT, by, NULL};

    snprintf(by, sizeof(by), "--by=%s", how);
    return child_start(c, f, argv, extra);
}

const char *client_ask(struct child *c, char *answer, size_t size, const char *command)
{
    if (c->pid <= 0 || !child_say(c, command) || !child_line(c, answer, size, FIXTURE_DEADLINE_MS))
        snprintf(answer, size, "dead");
    return answer;
}

long client_result(struct child *c, const char *command)
{
    char answer[1024], *end;
    long result = strtol(client_ask(c, answer, sizeof(answer), command), &end, 10);

    return end == answer ? -1 : result;
}
