/*
 * The FUSE protocol as far as one file needs it (linux/fuse.h): a directory, `page` in it, and a read
 * that is never answered.
 */
#include "tests/agent/hanging.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096u
#define LIFE_S 150
#define FILE_NODE 2u
#define CANNOT 77

/* ---- the server ---- */

static void answer(int fuse, uint64_t unique, int error, const void *body, size_t size)
{
    struct fuse_out_header head = {
        .len = (uint32_t)(sizeof head + size), .error = error, .unique = unique};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)(uintptr_t)body, size}};
    (void)!writev(fuse, parts, size ? 2 : 1);
}

static struct fuse_attr attributes(uint64_t node)
{
    return (struct fuse_attr){.ino = node,
                              .size = node == FILE_NODE ? PAGE : 0,
                              .mode = node == FILE_NODE ? S_IFREG | 0644 : S_IFDIR | 0755,
                              .nlink = 1,
                              .blksize = PAGE};
}

static void serve_one(int fuse, const struct fuse_in_header *in, int asked)
{
    const char *name = (const char *)(in + 1); /* of a lookup */
    const struct fuse_init_out init = {
        .major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = PAGE};
    const struct fuse_open_out opened = {.fh = 1};
    const struct fuse_entry_out entry = {.nodeid = FILE_NODE, .attr = attributes(FILE_NODE)};
    const struct fuse_attr_out attr = {.attr = attributes(in->nodeid)};
    switch (in->opcode) {
    case FUSE_INIT:
        answer(fuse, in->unique, 0, &init, sizeof init);
        break;
    case FUSE_LOOKUP:
        if (strncmp(name, HANGING_NAME, strlen(HANGING_NAME)) != 0)
            answer(fuse, in->unique, 0, &entry, sizeof entry);
        break;
    case FUSE_GETATTR:
        answer(fuse, in->unique, 0, &attr, sizeof attr);
        break;
    case FUSE_OPEN:
        answer(fuse, in->unique, 0, &opened, sizeof opened);
        break;
    case FUSE_READ:
        (void)!write(asked, "r", 1);
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        break; /* want no answer */
    default:
        answer(fuse, in->unique, -ENOSYS, NULL, 0);
    }
}

static _Noreturn void serve(int fuse, int asked)
{
    static char request[1 << 17];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        ssize_t n = read(fuse, request, sizeof request);
        if (n >= (ssize_t)sizeof(struct fuse_in_header))
            serve_one(fuse, (const struct fuse_in_header *)(const void *)request, asked);
        else if (n < 0 && errno != EINTR && errno != EAGAIN && errno != ENOENT)
            _exit(0); /* unmounted */
    }
}

/* ---- the process ---- */

/* One page of a new file of that name is mapped. */
static bool map_named(const char *folder, const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    return fd >= 0 && ftruncate(fd, PAGE) == 0 &&
           mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED;
}

/* The whole, shared, and an anchor; in this process alone, for its children make nobody wait. */
static bool map_ledger(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0)
        return false;
    const size_t size = (size_t)st.st_size;
    void *whole = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    void *anchor = mmap(NULL, PAGE, PROT_NONE, MAP_SHARED, fd, 0);
    return whole != MAP_FAILED && anchor != MAP_FAILED &&
           madvise(whole, size, MADV_DONTFORK) == 0 && madvise(anchor, PAGE, MADV_DONTFORK) == 0;
}

static bool mount_fuse(const char *where, int *fuse)
{
    char options[96];
    *fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    (void)snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u", *fuse,
                   getuid(), getgid());
    return *fuse >= 0 && unshare(CLONE_NEWNS) == 0 &&
           mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           (mkdir(where, 0755) == 0 || errno == EEXIST) &&
           mount("fuse", where, "fuse", MS_NOSUID | MS_NODEV, options) == 0;
}

/* A child reads this process's memory at that address, and never gets an answer. */
static void hold_the_lock(const void *page)
{
    char path[64], byte;
    (void)snprintf(path, sizeof path, "/proc/%d/mem", (int)getpid());
    if (fork() != 0)
        return;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    (void)!pread(fd, &byte, 1, (off_t)(uintptr_t)page);
    _exit(0);
}

/* root, pipe that says it is ready, where below the root, whether to map a ledger there */
static _Noreturn void root_main(char **argv)
{
    char where[256], path[300];
    int ready = (int)strtol(argv[2], NULL, 10), fuse, asked[2];
    (void)alarm(LIFE_S);
    (void)snprintf(where, sizeof where, "%s/%s", argv[1], argv[3]);
    (void)snprintf(path, sizeof path, "%s/ledger", where);
    if (!mount_fuse(where, &fuse) || pipe(asked) != 0)
        _exit(CANNOT);
    pid_t server = fork();
    if (server == 0)
        serve(fuse, asked[1]);
    (void)close(fuse);
    if (*argv[4]) {
        int file = open(path, O_RDWR | O_CLOEXEC);
        if (file < 0 || mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED)
            _exit(1);
    }
    if (server < 0 || chroot(argv[1]) != 0 || chdir("/") != 0)
        _exit(1);
    (void)!write(ready, "x", 1);
    for (;;)
        (void)pause();
}

void hanging_main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[0], "hanging-root") == 0)
        root_main(argv);
    if (argc != 5 || strcmp(argv[0], "hanging") != 0)
        return;
    char where[256], path[300], byte;
    int ready = (int)strtol(argv[2], NULL, 10), go = (int)strtol(argv[3], NULL, 10);
    int fuse, asked[2];
    (void)alarm(LIFE_S);
    (void)snprintf(where, sizeof where, "%s/fuse", argv[1]);
    (void)snprintf(path, sizeof path, "%s/page", where);
    if (!mount_fuse(where, &fuse) || pipe(asked) != 0)
        _exit(CANNOT);
    pid_t server = fork();
    if (server == 0)
        serve(fuse, asked[1]);
    (void)close(fuse);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    const void *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    if (server < 0 || file < 0 || page == MAP_FAILED || !map_named(argv[1], "libvramcap.so.0") ||
        !map_named(argv[1], "libcuda.so.1") || (*argv[4] && !map_ledger(argv[4])))
        _exit(1);
    (void)!write(ready, "x", 1);
    (void)!read(go, &byte, 1);
    hold_the_lock(page);
    (void)!read(asked[0], &byte, 1); /* the server has the question */
    for (;;)
        (void)mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* waits in here */
}

/* ---- in the test ---- */

static int go_pipe[2] = {-1, -1};

static void close_pipes(void)
{
    for (int i = 0; i < 2; i++) {
        if (go_pipe[i] >= 0)
            (void)close(go_pipe[i]);
        go_pipe[i] = -1;
    }
}

/* argv[2] is the descriptor that says it is ready: still to be written. */
static int start(const char **argv, const char *const *environment, struct hanging *h)
{
    int ready[2], status = 0;
    char byte, number[16];
    if (pipe(ready) != 0)
        return -1;
    (void)snprintf(number, sizeof number, "%d", ready[1]);
    argv[2] = number;
    h->pid = fork();
    if (h->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execve("/proc/self/exe", (char **)(uintptr_t)argv, (char **)(uintptr_t)environment);
        _exit(9);
    }
    (void)close(ready[1]);
    ssize_t n = read(ready[0], &byte, 1);
    (void)close(ready[0]);
    if (n == 1)
        return 0;
    (void)waitpid(h->pid, &status, 0);
    h->pid = 0;
    close_pipes();
    return WIFEXITED(status) && WEXITSTATUS(status) == CANNOT ? 1 : -1;
}

int hanging_start(const char *folder, const char *ledger, struct hanging *h)
{
    char number[16];
    if (pipe(go_pipe) != 0)
        return -1;
    (void)snprintf(number, sizeof number, "%d", go_pipe[0]);
    const char *argv[] = {"hanging", folder, NULL, number, ledger ? ledger : "", NULL};
    const char *const environment[] = {"VRAMCAP_ENABLE=0", NULL};
    return start(argv, environment, h);
}

int hanging_root_start(const char *root, const char *where, bool maps, const char *variable,
                       struct hanging *h)
{
    const char *argv[] = {"hanging-root", root, NULL, where, maps ? "ledger" : "", NULL};
    const char *const environment[] = {"VRAMCAP_ENABLE=0", variable, NULL};
    return start(argv, environment, h);
}

/* Does a child that lists what is mapped there come to its end? */
static bool makes_wait(pid_t pid)
{
    char path[64];
    int status;
    (void)snprintf(path, sizeof path, "/proc/%d/map_files", (int)pid);
    pid_t looker = fork();
    if (looker == 0) {
        DIR *d = opendir(path);
        while (d && readdir(d))
            continue;
        _exit(0);
    }
    for (int i = 0; i < 100; i++) {
        if (waitpid(looker, &status, WNOHANG) == looker)
            return false;
        (void)usleep(10000);
    }
    (void)kill(looker, SIGKILL);
    (void)waitpid(looker, &status, 0);
    return true;
}

int hanging_go(const struct hanging *h)
{
    (void)!write(go_pipe[1], "x", 1);
    for (int i = 0; i < 200; i++) {
        if (makes_wait(h->pid))
            return 0;
        (void)usleep(20000);
    }
    return 1;
}

void hanging_stop(struct hanging *h)
{
    if (h->pid <= 0)
        return;
    (void)kill(h->pid, SIGKILL);
    (void)waitpid(h->pid, NULL, 0);
    close_pipes();
    h->pid = 0;
}
