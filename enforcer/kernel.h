/*
 * System calls whose libc wrappers are newer than GLIBC_2.17 (fstat and stat became symbols
 * in 2.33) or that have none.  Errors come back as -errno; errno itself is restored, because hooks
 * must keep it.
 */
#ifndef VRAMCAP_ENFORCER_KERNEL_H
#define VRAMCAP_ENFORCER_KERNEL_H

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define VCAP_SYS_CLOSE_RANGE 436 /* on all architectures; glibc before 2.32 has no name for it */

static inline int vcap_sys_fstat(int fd, struct stat *st)
{
    int saved = errno, rc;

    memset(st, 0, sizeof(*st));
    rc = syscall(SYS_fstat, fd, st) == 0 ? 0 : -errno;
    errno = saved;
    return rc;
}

/* open, write, poll and nanosleep are cancellation points: a thread that went there would leave locks behind. */
static inline int vcap_cancel_off(void)
{
    int before = PTHREAD_CANCEL_ENABLE;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}
static inline void vcap_cancel_back(int before)
{
    pthread_setcancelstate(before, NULL);
}

/* flags: AT_SYMLINK_NOFOLLOW or 0 */
static inline int vcap_sys_stat(const char *path, struct stat *st, int flags)
{
    int saved = errno, rc;

    memset(st, 0, sizeof(*st));
    rc = syscall(SYS_newfstatat, AT_FDCWD, path, st, flags) == 0 ? 0 : -errno;
    errno = saved;
    return rc;
}

/* Before Linux 5.9 the first 1024: numbers are given out from the lowest. */
static inline void vcap_sys_close_range(unsigned first, unsigned last)
{
    if (first > last || syscall(VCAP_SYS_CLOSE_RANGE, first, last, 0) == 0)
        return;
    for (unsigned fd = first; fd <= last && fd < 1024; fd++)
        (void)syscall(SYS_close, fd);
}

/*
 * In a forked child that may have to be left behind (it waits in the kernel, where nothing ends it): closes all but
 * two descriptors, which may be one, so that nobody who waits for the end of a file, a socket or a lock of its
 * parent's waits for it.  System calls only.
 */
static inline void vcap_sys_close_all_but(int one, int other)
{
    unsigned low = (unsigned)(one < other ? one : other),
             high = (unsigned)(one < other ? other : one);

    if (low > 0)
        vcap_sys_close_range(0, low - 1);
    if (low < high)
        vcap_sys_close_range(low + 1, high - 1);
    vcap_sys_close_range(high + 1, ~0u);
}

/* Does a process with this number exist in our PID namespace?  Signal 0 is delivered to nobody. */
static inline int vcap_sys_pid_exists(pid_t pid)
{
    int saved = errno;
    int exists = syscall(SYS_kill, pid, 0) == 0 || errno != ESRCH;

    errno = saved;
    return exists;
}

static inline void vcap_sys_futex_wait(uint32_t *word, uint32_t expected)
{
    int saved = errno;

    syscall(SYS_futex, word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, expected, NULL, NULL, 0);
    errno = saved;
}

/* The same, but at most for so long. */
static inline void vcap_sys_futex_sleep(uint32_t *word, uint32_t expected, long at_most_ns)
{
    const struct timespec limit = {0, at_most_ns};
    int saved = errno;

    syscall(SYS_futex, word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, expected, &limit, NULL, 0);
    errno = saved;
}

static inline void vcap_sys_futex_wake(uint32_t *word, int count)
{
    int saved = errno;

    syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count, NULL, NULL, 0);
    errno = saved;
}

static inline uint64_t vcap_clock_ns(clockid_t clock)
{
    struct timespec now = {0, 0};

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* A lock of an open file description.  type F_WRLCK, F_RDLCK or F_UNLCK; one byte at `at`. */
static inline int vcap_sys_lock(int fd, short type, int64_t at)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    int saved = errno;
    int rc;

    do
        rc = fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : -errno;
    while (rc == -EINTR);
    errno = saved;
    return rc == -EACCES ? -EAGAIN : rc;
}

/* Is a write lock by some other open file description on byte `at`?  1 yes, 0 no, -errno. */
static inline int vcap_sys_locked(int fd, int64_t at)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    int saved = errno;
    int rc = fcntl(fd, F_OFD_GETLK, &lock) == 0 ? lock.l_type != F_UNLCK : -errno;

    errno = saved;
    return rc;
}

#endif
