/*
 * Preloaded into programs that run under qemu-user, in front of the library under test: two answers of
 * Linux's that qemu 7 gives wrongly, put right.  Built where CMake cross-compiles for an emulator only.
 *
 *  - A process that opens its own stat file gets one that qemu makes up.  The start time in it is the
 *    emulator's own, a tick beside the kernel's or, after fork, the parent's; other processes see the
 *    kernel's, and take the process for a successor with the same number.  The file of its first thread
 *    says the same and is left alone by qemu.
 *  - mremap with an old size of 0, a second mapping of shared memory, is refused.  Anonymous shared
 *    memory is made of a file here, so that it can be mapped again.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define MADE 256

/* ---- files ---- */

static bool is_own_stat(const char *path)
{
    char own[32];

    (void)snprintf(own, sizeof(own), "/proc/%d/stat", (int)getpid());
    return strcmp(path, "/proc/self/stat") == 0 || strcmp(path, own) == 0;
}

static int open_at(const char *path, int flags, mode_t mode)
{
    char thread[48];

    if (is_own_stat(path)) {
        (void)snprintf(thread, sizeof(thread), "/proc/self/task/%d/stat", (int)getpid());
        path = thread;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

EXPORTED int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list more;

    va_start(more, flags);
    if ((flags & (O_CREAT | O_TMPFILE)) != 0)
        mode = va_arg(more, mode_t);
    va_end(more);
    return open_at(path, flags, mode);
}

EXPORTED int open64(const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list more;

    va_start(more, flags);
    if ((flags & (O_CREAT | O_TMPFILE)) != 0)
        mode = va_arg(more, mode_t);
    va_end(more);
    return open_at(path, flags, mode);
}

/* ---- shared memory ---- */

static struct made {
    uintptr_t at; /* 0: free */
    size_t size;
    int fd;
} made[MADE];
static atomic_flag busy = ATOMIC_FLAG_INIT;

static void take(void)
{
    while (atomic_flag_test_and_set(&busy))
        ;
}

static struct made *made_at(uintptr_t address)
{
    for (size_t i = 0; i < MADE; i++)
        if (made[i].at != 0 && address - made[i].at < made[i].size)
            return &made[i];
    return NULL;
}

static void *plainly(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
}

EXPORTED void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    struct made *entry;
    void *map = MAP_FAILED;

    if ((flags & (MAP_SHARED | MAP_ANONYMOUS)) != (MAP_SHARED | MAP_ANONYMOUS))
        return plainly(at, size, protection, flags, fd, offset);
    take();
    for (entry = made; entry < made + MADE && entry->at != 0; entry++)
        ;
    fd = (int)syscall(SYS_memfd_create, "emulated", 1 /* MFD_CLOEXEC */);
    if (entry < made + MADE && fd >= 0 && ftruncate(fd, (off_t)size) == 0)
        map = plainly(at, size, protection, flags & ~MAP_ANONYMOUS, fd, 0);
    if (map != MAP_FAILED)
        *entry = (struct made){(uintptr_t)map, size, fd};
    else if (fd >= 0)
        (void)close(fd);
    atomic_flag_clear(&busy);
    return map;
}

EXPORTED int munmap(void *at, size_t size)
{
    struct made *entry;

    take();
    entry = made_at((uintptr_t)at);
    if (entry != NULL && entry->at == (uintptr_t)at && entry->size == size) {
        (void)close(entry->fd);
        entry->at = 0;
    }
    atomic_flag_clear(&busy);
    return (int)syscall(SYS_munmap, at, size);
}

EXPORTED void *mremap(void *from, size_t old_size, size_t size, int flags, ...)
{
    struct made *entry;
    void *at = NULL, *map = MAP_FAILED;
    va_list more;

    if ((flags & MREMAP_FIXED) != 0) {
        va_start(more, flags);
        at = va_arg(more, void *);
        va_end(more);
    }
    if (old_size != 0)
        return (void *)syscall(SYS_mremap, from, old_size, size, flags, at);
    errno = EINVAL;
    take();
    entry = made_at((uintptr_t)from);
    if (entry != NULL)
        map = plainly(at, size, PROT_READ | PROT_WRITE,
                      MAP_SHARED | ((flags & MREMAP_FIXED) != 0 ? MAP_FIXED : 0), entry->fd,
                      (off_t)((uintptr_t)from - entry->at));
    atomic_flag_clear(&busy);
    return map;
}
