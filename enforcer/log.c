/*
 * Writing one line.  Owns the level and the file's name; nothing else lasts from line to line.
 *
 * The line goes out of somebody else's process, in the middle of an allocation, so it may not harm
 * it: errno is kept, a reader that is gone or a file that is full raises no signal (SIGPIPE,
 * SIGXFSZ: blocked for this thread, taken back if ours), and a reader that does not read makes us
 * drop the line, not wait.
 */
#include "enforcer/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"

#define LINE_MAX_BYTES 1000 /* with the newline */
#define BURST 5
#define INTERVAL_NS UINT64_C(1000000000)

static const char opening[] = "vramcap: ";

/* Written by vcap_log_setup before other threads log, read by all. */
static enum vcap_log_level max_level = VCAP_LOG_WARN;
static char file_path[512];

void vcap_log_setup(enum vcap_log_level level, const char *file)
{
    size_t length = file != NULL ? strlen(file) : 0;

    max_level = level;
    if (length >= sizeof(file_path))
        length = 0;
    if (length > 0)
        memcpy(file_path, file, length);
    file_path[length] = '\0';
}

bool vcap_log_wants(enum vcap_log_level level)
{
    return level <= max_level;
}

/* One write; a line that finds no room is lost.  The caller sees from -errno which signal is due.
 */
static int write_once(int fd, const char *line, size_t length)
{
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    ssize_t written;

    if (poll(&ready, 1, 0) == 0)
        return -EAGAIN;
    do
        written = write(fd, line, length);
    while (written < 0 && errno == EINTR);
    return written < 0 ? -errno : 0;
}

static void write_quietly(int fd, const char *line, size_t length)
{
    static const struct timespec now = {0, 0};
    sigset_t ours, before, pending;
    int rc;

    /* sigprocmask, which is this thread's alone on Linux: pthread_sigmask has moved between
     * libraries */
    sigemptyset(&ours);
    sigaddset(&ours, SIGPIPE);
    sigaddset(&ours, SIGXFSZ);
    sigaddset(&ours, SIGTTOU); /* of a background process, where the terminal says tostop */
    if (sigpending(&pending) != 0 || sigprocmask(SIG_BLOCK, &ours, &before) != 0)
        return;
    rc = write_once(fd, line, length);
    if (rc == -EPIPE || rc == -EFBIG) {
        int number = rc == -EPIPE ? SIGPIPE : SIGXFSZ;

        sigemptyset(&ours);
        sigaddset(&ours, number);
        if (!sigismember(&pending, number))
            sigtimedwait(&ours, NULL, &now);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* A file that cannot be opened, a FIFO without reader among them, sends the line to stderr. */
static void write_line(const char *line, size_t length)
{
    int fd = -1;

    if (file_path[0] != '\0')
        fd = open(file_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
                  0666);
    write_quietly(fd >= 0 ? fd : STDERR_FILENO, line, length);
    if (fd >= 0)
        close(fd);
}

void vcap_log(enum vcap_log_level level, const char *format, ...)
{
    static const char ending[] = "...";
    char line[LINE_MAX_BYTES];
    size_t length = sizeof(opening) - 1;
    int saved = errno, cancel;
    va_list args;
    int text;

    if (!vcap_log_wants(level))
        return;
    memcpy(line, opening, length);
    va_start(args, format);
    text = vsnprintf(line + length, sizeof(line) - length, format, args);
    va_end(args);
    if (text > 0 && (size_t)text < sizeof(line) - length) {
        length += (size_t)text; /* and the newline goes where the NUL is */
    } else if (text > 0) {
        length = sizeof(line) - 1;
        memcpy(line + length - (sizeof(ending) - 1), ending, sizeof(ending) - 1);
    }
    while (length > sizeof(opening) - 1 && line[length - 1] == '\n')
        length--;
    for (size_t i = 0; i < length; i++) /* one line is one line, whatever a file name holds */
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    line[length++] = '\n';
    cancel = vcap_cancel_off();
    write_line(line, length);
    vcap_cancel_back(cancel);
    errno = saved;
}

bool vcap_log_allow(struct vcap_log_limit *limit, uint32_t *held_back)
{
    uint64_t now = vcap_clock_ns(CLOCK_MONOTONIC);
    uint64_t next;

    /* acquire: whoever sees the burst spent sees a next_ns of the burst too, which pairs with the
     * add */
    if (__atomic_load_n(&limit->passed, __ATOMIC_ACQUIRE) < BURST) {
        __atomic_store_n(&limit->next_ns, now + INTERVAL_NS, __ATOMIC_RELAXED);
        if (__atomic_fetch_add(&limit->passed, 1, __ATOMIC_ACQ_REL) < BURST) {
            *held_back = 0;
            return true;
        }
    } else {
        /* of those who find the second over, the one that wins the CAS writes the line */
        next = __atomic_load_n(&limit->next_ns, __ATOMIC_RELAXED);
        if (now >= next && __atomic_compare_exchange_n(&limit->next_ns, &next, now + INTERVAL_NS,
                                                       false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            *held_back = __atomic_exchange_n(&limit->held_back, 0, __ATOMIC_RELAXED);
            return true;
        }
    }
    __atomic_fetch_add(&limit->held_back, 1, __ATOMIC_RELAXED);
    return false;
}
