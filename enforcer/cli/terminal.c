/*
 * Plain ANSI, termios, and signals that are let in only while the loop waits (ppoll), so that none
 * is lost between a look and the wait.  What must stay true: on every way out of the loop the modes
 * that were there before are there again, also when the terminal was stopped and continued; the
 * handlers only set flags.
 */
#include "enforcer/cli/terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t quit_asked, size_changed, stop_asked; /* written by the handler */
static struct termios modes_before;
static bool taken, modes_known, keys_ended;

static const int watched[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP};

static void note(int signal_number)
{
    if (signal_number == SIGWINCH)
        size_changed = 1;
    else if (signal_number == SIGTSTP)
        stop_asked = 1;
    else
        quit_asked = 1;
}

static void watched_set(sigset_t *set)
{
    (void)sigemptyset(set);
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
        (void)sigaddset(set, watched[i]);
}

bool vcap_terminal_usable(void)
{
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

static bool put(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t n = write(STDOUT_FILENO, text, length);
        if (n < 0 && errno == EINTR && !quit_asked)
            continue;
        if (n <= 0)
            return false;
        text += n;
        length -= (size_t)n;
    }
    return true;
}

static bool put_text(const char *text)
{
    return put(text, strlen(text));
}

static void enter(void)
{
    struct termios modes;
    if (modes_known) {
        modes = modes_before;
        modes.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        modes.c_cc[VMIN] = 0;
        modes.c_cc[VTIME] = 0;
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &modes);
    }
    (void)put_text(
        "\033[?1049h\033[?25l\033[2J"); /* xterm control sequences; every common terminal's */
}

static void leave(void)
{
    (void)put_text("\033[0m\033[?25h\033[?1049l");
    if (modes_known)
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &modes_before);
}

int vcap_terminal_take(void)
{
    sigset_t set;

    modes_known = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &modes_before) == 0;
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) {
        struct sigaction old, action = {.sa_handler = note};
        watched_set(&action.sa_mask);
        if (sigaction(watched[i], NULL, &old) != 0)
            return -errno;
        /* what the caller's caller ignores (nohup) stays ignored */
        if (old.sa_handler != SIG_IGN && sigaction(watched[i], &action, NULL) != 0)
            return -errno;
    }
    watched_set(&set);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return -errno;
    enter();
    taken = true;
    return 0;
}

void vcap_terminal_give_back(void)
{
    if (taken)
        leave();
    taken = false;
}

static unsigned from_environment(const char *name, unsigned otherwise)
{
    const char *text = getenv(name);
    char *end;
    unsigned long value = text && *text ? strtoul(text, &end, 10) : 0;
    return value >= 1 && value <= 10000 && !*end ? (unsigned)value : otherwise;
}

void vcap_terminal_size(unsigned *columns, unsigned *rows)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
        *columns = size.ws_col;
        *rows = size.ws_row;
        return;
    }
    *columns = from_environment("COLUMNS", 80);
    *rows = from_environment("LINES", 24);
}

/* Stops as the shell's job control expects it, and takes the terminal again afterwards. */
static void stop_here(void)
{
    struct sigaction before, usual = {.sa_handler = SIG_DFL};
    sigset_t one, mask;

    stop_asked = 0;
    leave();
    (void)sigemptyset(&one);
    (void)sigaddset(&one, SIGTSTP);
    (void)sigaction(SIGTSTP, &usual, &before);
    (void)raise(SIGTSTP);
    (void)sigprocmask(SIG_UNBLOCK, &one, &mask); /* stops in here, until SIGCONT */
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);
    (void)sigaction(SIGTSTP, &before, NULL);
    enter();
}

/* Takes the keys there are; true: one of them asks for the end. */
static bool read_keys(void)
{
    char keys[64];
    ssize_t n = read(STDIN_FILENO, keys, sizeof keys);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return false;
    if (n <= 0) {
        keys_ended = true; /* nobody types any more: signals are what is left */
        return false;
    }
    for (ssize_t i = 0; i < n; i++)
        if (keys[i] == 'q' || keys[i] == 'Q' || keys[i] == 3 || keys[i] == 4)
            return true;
    return false;
}

static long now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

enum vcap_terminal_event vcap_terminal_wait(long milliseconds)
{
    const long until = now_ms() + milliseconds;
    sigset_t none;

    (void)sigemptyset(&none);
    for (;;) {
        long left = until - now_ms();
        struct timespec pause = {left > 0 ? left / 1000 : 0, left > 0 ? left % 1000 * 1000000 : 0};
        struct pollfd key = {.fd = modes_known && !keys_ended ? STDIN_FILENO : -1,
                             .events = POLLIN};
        int ready = ppoll(&key, 1, &pause, &none);
        if (quit_asked || (ready > 0 && read_keys()))
            return VCAP_TERMINAL_QUIT;
        if (stop_asked) {
            stop_here();
            return VCAP_TERMINAL_REDRAW;
        }
        if (size_changed) {
            size_changed = 0;
            return VCAP_TERMINAL_REDRAW;
        }
        if (ready == 0 || left <= 0)
            return VCAP_TERMINAL_TIME;
    }
}

/* The bytes of a line that fit in columns; sequences such as "\033[31m" have no width. */
static size_t fitting(const char *line, size_t length, unsigned columns)
{
    size_t i = 0;
    for (unsigned width = 0; i < length;) {
        if (line[i] == '\033') {
            while (i < length && line[i] != 'm')
                i++;
            i += i < length;
            continue;
        }
        if (width++ == columns)
            break;
        i++;
    }
    return i;
}

bool vcap_terminal_draw(const char *text, unsigned columns, unsigned rows)
{
    char *screen = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&screen, &size);
    bool done;

    if (!to)
        return false;
    (void)fputs("\033[H", to);
    for (unsigned row = 0; row < rows && *text; row++) {
        size_t length = strcspn(text, "\n");
        (void)fwrite(text, 1, fitting(text, length, columns), to);
        (void)fputs("\033[0m\033[K", to);
        text += length + (text[length] == '\n');
        if (row + 1 < rows && *text)
            (void)fputs("\r\n", to);
    }
    (void)fputs("\033[J", to);
    done = fclose(to) == 0 && put(screen, size);
    free(screen);
    return done;
}
