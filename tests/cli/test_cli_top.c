/*
 * `vramcap top` on a pseudo-terminal (size, redrawing, keys, signals, the terminal given back) and
 * without one.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/cli/terminal.h"
#include "tests/cli/ledger_image.h"
#include "tests/cli/tool.h"

#define LEAVE "\033[?25h\033[?1049l"
#define CROWD 100u

static struct tool t;
static struct image image;
static char folder[64], path[128];
static int lock = -1;

static int setup(void **state)
{
    (void)state;
    if (!image_folder(folder))
        return -1;
    (void)snprintf(path, sizeof path, "%s/web-1", folder);
    image_init(&image);
    image_gpu(&image, 0, 4096, VCAP_LF_SOURCE_HOST);
    image.gpus[0].card_bytes = 16384 * IMAGE_MIB;
    image.gpus[0].peak_bytes = 3072 * IMAGE_MIB;
    image.gpus[0].refusals = 9;
    image_process(&image, 1, 0, 2048, "serve");
    image_process(&image, 5, 0, 500, "worker");
    image_event(&image, VCAP_LF_EVENT_REFUSAL, "cuMemAlloc_v2")->bytes = 1536 * IMAGE_MIB;
    if (image_write(&image, sizeof image, path) != 0)
        return -1;
    lock = image_live(path, 1);
    return lock < 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    (void)close(lock);
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void has(const char *text)
{
    if (!strstr(t.out, text))
        fail_msg("no '%s' in:\n%s%s", text, t.out, t.err);
}

/* ---- without a terminal ---- */

static void plain_text_without_a_terminal(void **state)
{
    (void)state;
    assert_int_equal(
        tool_run(&t, TOOL_ARGS("COLUMNS=100"), TOOL_ARGS("top", "--once", "--ledger-dir", folder)),
        0);
    has("1 containers, 1 processes, MiB\n");
    has("GPU 0 GPU-00010203  held 2048.0  ceilings 4096.0  card 16384.0\n");
    has("web-1                    GPU 0  [#####  |  ] 2048.0 of 4096.0  peak 3072.0  "
        "refused 9\n");
    has("  101 serve              2048.0\n");
    has("  105 worker              500.0  gone\n");
    has("web-1 refusal pid 100 cuMemAlloc_v2 1536.0 MiB\n");
    assert_null(strchr(t.out, '\033'));
    assert_null(strchr(t.out, '\r'));
}

static void plain_text_goes_on_until_a_signal(void **state)
{
    (void)state;
    tool_start(&t, TOOL_PIPE, NULL, TOOL_ARGS("top", "--every", "0.05", "-d", folder));
    assert_true(tool_expect(&t, "\n\nvramcap top"));
    assert_int_equal(kill(t.pid, SIGTERM), 0);
    assert_int_equal(tool_wait(&t), 0);
    assert_null(strchr(t.out, '\033'));
}

static void a_dumb_terminal_gets_plain_text(void **state)
{
    (void)state;
    tool_start(&t, TOOL_TERMINAL, TOOL_ARGS("TERM=dumb"), TOOL_ARGS("top", "-o", "-d", folder));
    assert_int_equal(tool_wait(&t), 0);
    has("web-1");
    assert_null(strchr(t.out, '\033'));
}

static void mistakes_are_told_before_the_screen_is_taken(void **state)
{
    (void)state;
    tool_start(&t, TOOL_TERMINAL, TOOL_ARGS("TERM=xterm"), TOOL_ARGS("top", "-d", "/nowhere"));
    assert_int_equal(tool_wait(&t), 2);
    assert_string_equal(t.out, "");
    assert_non_null(strstr(t.err, "/nowhere"));
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("top", "--every", "0")), 2);
}

/* ---- on a terminal ---- */

static struct {
    int master, slave; /* the slave stays open here: its modes are looked at afterwards */
    pid_t pid;
    struct termios before;
    char out[1 << 18];
    size_t length;
} term;

static void start_on_terminal(unsigned short columns, unsigned short rows, const char *no_color)
{
    struct winsize size = {.ws_col = columns, .ws_row = rows};
    memset(&term, 0, sizeof term);
    assert_int_equal(openpty(&term.master, &term.slave, NULL, NULL, &size), 0);
    assert_int_equal(tcgetattr(term.slave, &term.before), 0);
    term.pid = fork();
    if (term.pid == 0) {
        (void)setsid();
        (void)ioctl(term.slave, TIOCSCTTY, 0);
        for (int fd = 0; fd < 3; fd++)
            (void)dup2(term.slave, fd);
        (void)close(term.master); /* or nothing ever hangs up */
        (void)setenv("TERM", "xterm", 1);
        (void)setenv("NO_COLOR", no_color, 1);
        (void)alarm(TOOL_SECONDS);
        (void)execl(tool_path, "vramcap", "top", "--every", "0.1", "-d", folder, (char *)NULL);
        _exit(99);
    }
}

static bool collect(int timeout_ms)
{
    struct pollfd p = {.fd = term.master, .events = POLLIN};
    if (poll(&p, 1, timeout_ms) <= 0 || term.length + 1 >= sizeof term.out)
        return false;
    ssize_t n = read(term.master, term.out + term.length, sizeof term.out - 1 - term.length);
    if (n <= 0)
        return false;
    term.length += (size_t)n;
    term.out[term.length] = '\0';
    return true;
}

static void expect(const char *text, size_t from)
{
    for (int i = 0; i < 200 && !strstr(term.out + from, text); i++)
        (void)collect(100);
    if (!strstr(term.out + from, text))
        fail_msg("no '%s' in: %s", text, term.out + from);
}

/* It ends with that status, and everything is as it was. */
static void ends(int status)
{
    int got;
    struct termios after;
    for (int i = 0; i < 200; i++) {
        (void)collect(50);
        pid_t pid = waitpid(term.pid, &got, WNOHANG);
        if (pid == term.pid)
            break;
        if (i == 199) {
            (void)kill(term.pid, SIGKILL);
            fail_msg("it does not end");
        }
    }
    while (collect(100))
        continue;
    assert_true(WIFEXITED(got));
    assert_int_equal(WEXITSTATUS(got), status);
    assert_int_equal(tcgetattr(term.slave, &after), 0);
    assert_int_equal(after.c_lflag, term.before.c_lflag);
    assert_int_equal(after.c_iflag, term.before.c_iflag);
    assert_int_equal(after.c_oflag, term.before.c_oflag);
    assert_true(term.length >= strlen(LEAVE));
    assert_string_equal(term.out + term.length - strlen(LEAVE), LEAVE);
    (void)close(term.master);
    (void)close(term.slave);
}

static void q_quits_and_gives_the_terminal_back(void **state)
{
    struct termios during;
    (void)state;
    start_on_terminal(100, 30, "");
    expect("web-1", 0);
    expect("\033[?1049h\033[?25l", 0);
    assert_int_equal(tcgetattr(term.slave, &during), 0);
    assert_false(during.c_lflag & (ICANON | ECHO));
    expect("\033[32m#####  |", 0); /* a green bar */
    assert_int_equal(write(term.master, "xq", 2), 2);
    ends(0);
    assert_null(strstr(term.out, "xq"));
}

static void signals_quit_and_give_the_terminal_back(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    (void)state;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        start_on_terminal(100, 30, "1");
        expect("web-1", 0);
        assert_int_equal(kill(term.pid, signals[i]), 0);
        ends(0);
    }
    start_on_terminal(100, 30, "1");
    expect("web-1", 0);
    assert_int_equal(write(term.master, "\003", 1), 1); /* the terminal's own interrupt key */
    ends(0);
}

/* Widest line and number of lines of the picture between the two. */
static void measure_picture(const char *from, const char *end, size_t *widest, size_t *lines)
{
    size_t width = 0;
    *widest = 0;
    *lines = 1;
    for (const char *p = from; p < end; p++) {
        if (*p == '\033') {
            while (p < end && *p != 'm' && *p != 'K')
                p++;
        } else if (*p == '\n') {
            ++*lines;
            width = 0;
        } else if (*p != '\r') {
            width++;
        }
        *widest = width > *widest ? width : *widest;
    }
}

/* The next whole picture at or behind p; NULL: none. */
static const char *next_picture(const char *p, const char **end)
{
    const char *begin = strstr(p, "\033[H");
    *end = begin ? strstr(begin, "\033[J") : NULL;
    return *end ? begin + 3 : NULL;
}

/* Of the last whole picture. */
static void measure(size_t *widest, size_t *lines)
{
    const char *last = NULL, *last_end = NULL, *end;
    for (const char *p = term.out; (p = next_picture(p, &end)); p = end) {
        last = p;
        last_end = end;
    }
    assert_non_null(last);
    measure_picture(last, last_end, widest, lines);
}

static unsigned count_pictures_beyond(size_t rows, size_t columns)
{
    unsigned beyond = 0;
    size_t widest, lines;
    const char *end;
    for (const char *p = term.out; (p = next_picture(p, &end)); p = end) {
        measure_picture(p, end, &widest, &lines);
        beyond += widest > columns || lines > rows;
    }
    return beyond;
}

static void resize(unsigned short columns, unsigned short rows)
{
    struct winsize size = {.ws_col = columns, .ws_row = rows};
    const size_t from = term.length;
    assert_int_equal(ioctl(term.master, TIOCSWINSZ, &size), 0); /* sends SIGWINCH */
    expect("\033[J", from);
    const size_t again = term.length;
    expect("\033[J", again);
}

static void every_size_is_kept_to(void **state)
{
    static const struct {
        unsigned short columns, rows;
    } sizes[] = {{200, 60}, {60, 10}, {40, 5}, {20, 3}, {5, 2}, {1, 1}, {100, 30}};
    size_t widest, lines;
    (void)state;
    start_on_terminal(80, 24, "1");
    expect("web-1", 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        resize(sizes[i].columns, sizes[i].rows);
        measure(&widest, &lines);
        if (widest > sizes[i].columns || lines > sizes[i].rows)
            fail_msg("%zu x %zu on a terminal of %u x %u", widest, lines, sizes[i].columns,
                     sizes[i].rows);
    }
    expect("refusal", 0);
    assert_int_equal(write(term.master, "q", 1), 1);
    ends(0);
}

static void what_has_no_room_is_counted(void **state)
{
    (void)state;
    start_on_terminal(80, 5, "1");
    expect("lines more", 0);
    expect("refusal", 0); /* events are seen all the same */
    assert_int_equal(write(term.master, "q", 1), 1);
    ends(0);
}

/* Whatever is given it: the terminal's own part draws no line and no column more than it was told. */
static void more_text_than_there_is_room_for_is_cut(void **state)
{
    static const struct {
        unsigned columns, rows;
    } sizes[] = {{80, 24}, {20, 5}, {1, 1}};
    size_t widest, lines;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int ends_of[2];
        memset(&term, 0, sizeof term);
        assert_int_equal(pipe(ends_of), 0);
        pid_t pid = fork();
        if (pid == 0) {
            char text[16384] = "";
            size_t n = 0;
            for (int line = 0; line < 100; line++)
                n += (size_t)snprintf(text + n, sizeof text - n, "\033[31m%0*d\033[0m end\n", 100,
                                      line);
            (void)dup2(ends_of[1], STDOUT_FILENO);
            _exit(!vcap_terminal_draw(text, sizes[i].columns, sizes[i].rows));
        }
        int status;
        (void)close(ends_of[1]);
        for (ssize_t got; (got = read(ends_of[0], term.out + term.length,
                                      sizeof term.out - 1 - term.length)) > 0;)
            term.length += (size_t)got;
        (void)close(ends_of[0]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        measure(&widest, &lines);
        assert_int_equal(widest, sizes[i].columns);
        assert_int_equal(lines, sizes[i].rows);
    }
}

/* A hundred processes on one GPU, in one container. */
static void crowd(void)
{
    static struct {
        struct vcap_lf_header header;
        struct vcap_lf_gpu gpus[IMAGE_GPUS];
        struct vcap_lf_slot slots[CROWD];
        struct vcap_lf_cell cells[CROWD][IMAGE_GPUS];
        struct vcap_lf_export exports[IMAGE_EXPORTS];
        struct vcap_lf_event events[IMAGE_EVENTS];
    } m;
    m.header = image.header;
    m.header.file_size = sizeof m;
    m.header.slot_count = CROWD;
    m.header.cell_count = CROWD * IMAGE_GPUS;
    m.header.slot_offset = (uint32_t)((char *)m.slots - (char *)&m);
    m.header.cell_offset = (uint32_t)((char *)m.cells - (char *)&m);
    m.header.export_offset = (uint32_t)((char *)m.exports - (char *)&m);
    m.header.event_offset = (uint32_t)((char *)m.events - (char *)&m);
    memcpy(m.gpus, image.gpus, sizeof m.gpus);
    memcpy(m.events, image.events, sizeof m.events);
    for (uint32_t s = 0; s < CROWD; s++) {
        m.slots[s] = image.slots[1];
        m.slots[s].pid = 1000 + s;
        (void)snprintf(m.slots[s].command, sizeof m.slots[s].command, "worker-%u", s);
        m.cells[s][0] = image.cells[1][0];
        m.cells[s][0].charged = vcap_lf_charged(IMAGE_UNITS(20), 5);
    }
    m.gpus[0].total = vcap_lf_total(IMAGE_UNITS(20) * CROWD, 0, 5);
    (void)close(lock);
    assert_int_equal(image_write(&m, sizeof m, path), 0);
    lock = open(path, O_RDWR | O_CLOEXEC);
    struct flock all = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = VCAP_LF_LOCK_SLOT, .l_len = CROWD};
    assert_int_equal(fcntl(lock, F_OFD_SETLK, &all), 0);
}

/* Nothing beyond the terminal's rows and columns, from the first picture on, and every way out of it
 * gives it back. */
static void a_hundred_processes_fit_on_a_small_terminal(void **state)
{
    static const struct {
        unsigned short rows, columns;
    } sizes[] = {{24, 80}, {5, 20}};
    static const int ways[] = {0, SIGINT, SIGTERM, SIGHUP};
    size_t widest, lines;
    (void)state;
    crowd();
    assert_int_equal(tool_run(&t, NULL, TOOL_ARGS("top", "--once", "--ledger-dir", folder)), 0);
    has("1 containers, 100 processes, MiB\n"); /* that is how many there are to be drawn */
    has("worker-99");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
            start_on_terminal(sizes[i].columns, sizes[i].rows, way % 2 ? "1" : "");
            expect("vramcap top", 0);
            expect("lines more", 0);
            expect("\033[J", 0);
            const size_t first = term.length;
            expect("\033[J", first); /* and another one over it */
            measure(&widest, &lines);
            if (widest > sizes[i].columns || lines != sizes[i].rows)
                fail_msg("%zu x %zu on a terminal of %u x %u", widest, lines, sizes[i].columns,
                         sizes[i].rows);
            if (ways[way] == 0)
                assert_int_equal(write(term.master, "q", 1), 1);
            else
                assert_int_equal(kill(term.pid, ways[way]), 0);
            ends(0);
            assert_int_equal(count_pictures_beyond(sizes[i].rows, sizes[i].columns), 0);
        }
}

static void changes_are_shown(void **state)
{
    (void)state;
    start_on_terminal(100, 30, "1");
    expect("2048.0 of 4096.0", 0);
    image.gpus[0].refusals = 4711;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(
        pwrite(fd, &image.gpus[0], sizeof image.gpus[0], (off_t)image.header.gpu_offset),
        sizeof image.gpus[0]);
    (void)close(fd);
    expect("refused 4711", 0);
    char other[160];
    (void)snprintf(other, sizeof other, "%s/evil\x1b[31m", folder);
    assert_int_equal(image_write("x", 1, other), 0);
    expect("evil?[31m: untrusted: ", 0);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(write(term.master, "q", 1), 1);
    ends(0);
}

static void stopping_gives_the_terminal_back_until_it_goes_on(void **state)
{
    int status;
    struct termios stopped;
    (void)state;
    start_on_terminal(100, 30, "1");
    expect("web-1", 0);
    assert_int_equal(kill(term.pid, SIGTSTP), 0);
    /* a session leader without a job-control shell is an orphaned group: the kernel drops the stop,
     * so what shows is that the terminal was given back and taken again */
    expect(LEAVE "\033[?1049h", 0);
    assert_int_equal(tcgetattr(term.slave, &stopped), 0);
    assert_int_equal(waitpid(term.pid, &status, WNOHANG), 0);
    const size_t from = term.length;
    expect("web-1", from);
    assert_int_equal(write(term.master, "q", 1), 1);
    ends(0);
}

static void a_terminal_that_goes_away_is_the_end(void **state)
{
    int status;
    (void)state;
    start_on_terminal(100, 30, "1");
    expect("web-1", 0);
    (void)close(term.slave);
    (void)close(term.master);
    for (int i = 0; i < 200 && waitpid(term.pid, &status, WNOHANG) == 0; i++)
        (void)poll(NULL, 0, 50);
    assert_int_equal(kill(term.pid, 0), -1);
    assert_true(WIFEXITED(status));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(plain_text_without_a_terminal),
        TEST(plain_text_goes_on_until_a_signal),
        TEST(a_dumb_terminal_gets_plain_text),
        TEST(mistakes_are_told_before_the_screen_is_taken),
        TEST(q_quits_and_gives_the_terminal_back),
        TEST(signals_quit_and_give_the_terminal_back),
        TEST(every_size_is_kept_to),
        TEST(what_has_no_room_is_counted),
        TEST(more_text_than_there_is_room_for_is_cut),
        TEST(a_hundred_processes_fit_on_a_small_terminal),
        TEST(changes_are_shown),
        TEST(stopping_gives_the_terminal_back_until_it_goes_on),
        TEST(a_terminal_that_goes_away_is_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
