/*
 * The reader of untrusted ledgers: what it takes for one, what it refuses, and what it makes of a
 * good one.  Images are made by hand (tests/cli/ledger_image.h).
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/ledger_read.h"
#include "tests/cli/hostile_files.h"
#include "tests/cli/ledger_image.h"

static char folder[64], path[128], why[256];
static struct image image;
static struct vcap_snapshot snapshot;
static bool taken_only;

static int setup(void **state)
{
    (void)state;
    if (!image_folder(folder))
        return -1;
    (void)snprintf(path, sizeof path, "%s/ledger", folder);
    image_init(&image);
    image_gpu(&image, 0, 4096, VCAP_LF_SOURCE_ENV);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    vcap_snapshot_free(&snapshot);
    (void)unlink(path);
    (void)rmdir(path);
    return rmdir(folder);
}

/* Both ways: everything, or what the agent reads again and again. */
static int read_path(const char *name)
{
    const struct vcap_read_wish taken = {.taken_only = true};
    if (!taken_only)
        return vcap_snapshot_read(name, &snapshot, why, sizeof why);
    int fd = vcap_ledger_read_open(name, why, sizeof why);
    if (fd < 0)
        return fd;
    int error = vcap_snapshot_read_wish(fd, &taken, &snapshot, why, sizeof why);
    (void)close(fd);
    return error;
}

static int read_image(void)
{
    assert_int_equal(image_write(&image, sizeof image, path), 0);
    vcap_snapshot_free(&snapshot);
    return read_path(path);
}

static void refused_because(const char *reason)
{
    why[0] = '\0';
    assert_int_equal(read_path(path), -EINVAL);
    if (!strstr(why, reason))
        fail_msg("expected '%s', got '%s'", reason, why);
}

static void image_refused_because(const char *reason)
{
    assert_int_equal(image_write(&image, sizeof image, path), 0);
    refused_because(reason);
}

/* ---- names and lengths ---- */

static void anything_but_a_regular_file_is_untrusted(void **state)
{
    (void)state;
    assert_int_equal(mkdir(path, 0700), 0);
    refused_because("a directory");
    assert_int_equal(rmdir(path), 0);

    assert_int_equal(mkfifo(path, 0600), 0);
    refused_because("a FIFO");
    assert_int_equal(unlink(path), 0);

    assert_int_equal(symlink("/dev/null", path), 0);
    refused_because("a symbolic link");
    assert_int_equal(unlink(path), 0);

    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%.100s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    refused_because("a socket");
    (void)close(fd);

    assert_int_equal(read_path("/dev/zero"), -EINVAL);
    assert_string_equal(why, "a device");
    assert_int_equal(read_path("/"), -EINVAL);
    assert_int_equal(read_path(".."), -EINVAL);
    assert_int_equal(read_path("/tmp/"), -EINVAL);
}

static void a_link_to_a_good_ledger_is_untrusted_but_a_linked_folder_is_not(void **state)
{
    (void)state;
    char link[160], through[320];
    assert_int_equal(read_image(), 0);
    (void)snprintf(link, sizeof link, "%s.link", folder);
    assert_int_equal(symlink(folder, link), 0);
    (void)snprintf(through, sizeof through, "%s/ledger", link);
    vcap_snapshot_free(&snapshot);
    int through_folder = read_path(through);
    (void)unlink(link);
    assert_int_equal(symlink(path, link), 0);
    int through_link = read_path(link);
    (void)unlink(link);
    assert_int_equal(through_folder, 0);
    assert_int_equal(through_link, -EINVAL);
}

static void a_lease_cannot_hang_the_reader(void **state)
{
    (void)state;
    assert_int_equal(image_write(&image, sizeof image, path), 0);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    (void)signal(SIGIO, SIG_IGN); /* what the holder is sent when somebody opens the file */
    if (fcntl(fd, F_SETLEASE, F_WRLCK) == 0)
        refused_because("a lease");
    (void)close(fd);
}

static void a_missing_file_is_an_error_and_no_finding(void **state)
{
    (void)state;
    assert_int_equal(read_path(path), -ENOENT);
    assert_int_equal(read_path(""), -ENOENT);
    assert_int_equal(read_path("/nowhere/x"), -ENOENT);
}

static void every_wrong_length_is_untrusted(void **state)
{
    (void)state;
    assert_int_equal(image_write("", 0, path), 0);
    refused_because("empty");
    for (size_t size = 1; size < sizeof image; size += 97) {
        assert_int_equal(image_write(&image, size, path), 0);
        assert_int_equal(read_path(path), -EINVAL);
    }
    assert_int_equal(image_write(&image, sizeof image, path), 0);
    assert_int_equal(truncate(path, sizeof image + 1), 0);
    refused_because("truncated?");
    assert_int_equal(truncate(path, (off_t)1 << 40), 0);
    refused_because("too many");
}

/* ---- hostile numbers ---- */

static void other_formats_are_untrusted(void **state)
{
    (void)state;
    image.header.magic[0] = 'X';
    image_refused_because("not a vramcap ledger");
    image.header.magic[0] = 'V';
    image.header.byte_order = 0x04030201;
    image_refused_because("byte order");
    image.header.byte_order = VCAP_LF_BYTE_ORDER;
    image.header.version = image.header.oldest_reader = VCAP_LF_VERSION + 1;
    image_refused_because("version");
    image.header.oldest_reader = VCAP_LF_VERSION; /* a newer file that says it can be read */
    assert_int_equal(read_image(), 0);
}

static void hostile_geometry_is_untrusted(void **state)
{
    (void)state;
    const struct vcap_lf_header good = image.header;
    uint32_t *fields[] = {
        &image.header.gpu_offset,   &image.header.gpu_stride,   &image.header.gpu_count,
        &image.header.slot_offset,  &image.header.slot_stride,  &image.header.slot_count,
        &image.header.cell_offset,  &image.header.cell_stride,  &image.header.cell_count,
        &image.header.event_offset, &image.header.event_stride, &image.header.event_count,
        &image.header.export_count, &image.header.header_size,
    };
    const uint32_t values[] = {1, 7, 0x7fffffff, 0x80000000, 0xfffffff8, 0xffffffff};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            image.header = good;
            *fields[f] = values[v];
            if (read_image() != -EINVAL && values[v] > 7)
                fail_msg("field %zu = %u was believed", f, values[v]);
        }
}

static void every_hostile_file_is_known_for_what_it_is(void **state)
{
    (void)state;
    unsigned made = 0;
    for (size_t i = 0; i < hostile_file_count; i++) {
        const struct hostile_file *f = &hostile_files[i];
        char command[400];
        int status = hostile_make(f, path);
        assert_true(status >= 0);
        if (status == 0) {
            int error = read_path(path);
            if (error != (f->reason ? -EINVAL : 0) || (f->reason && !strstr(why, f->reason)))
                fail_msg("%s: %d, '%s'", f->name, error, error ? why : "");
            if (!f->reason && snapshot.gpus[0].peak_bytes != HOSTILE_PEAK_MIB * IMAGE_MIB)
                fail_msg("%s: a peak of %llu", f->name,
                         (unsigned long long)snapshot.gpus[0].peak_bytes);
            vcap_snapshot_free(&snapshot);
            made++;
        }
        hostile_end();
        (void)snprintf(command, sizeof command, "rm -rf '%s' '%s/.good' '%s/.other'", path, folder,
                       folder);
        assert_int_equal(system(command), 0);
    }
    assert_true(made >= hostile_file_count - 4); /* devices, a foreign owner, a lease */
}

static void strings_come_out_printable_and_ended(void **state)
{
    (void)state;
    image_process(&image, 0, 0, 1, "");
    memcpy(image.slots[0].command, "a\033[2J\xff\n", 8);
    memset(image.slots[0].command + 8, 'b', sizeof image.slots[0].command - 8);
    memset(image.slots[0].command + 7, 'c', 1);
    struct vcap_lf_event *e = image_event(&image, VCAP_LF_EVENT_GAP, "");
    memset(e->name, 'n', sizeof e->name);
    memcpy(image.header.container, "web\t1", 5);
    assert_int_equal(read_image(), 0);
    assert_string_equal(snapshot.processes[0].command, "a?[2J??cbbbbbbbbbbbbbbbbbbbbbbb");
    assert_int_equal(strlen(snapshot.events[0].name), sizeof e->name - 1);
    assert_string_equal(snapshot.container, "web?1");
}

/* ---- meaning ---- */

static void a_live_process_is_alive_and_its_charge_counts(void **state)
{
    (void)state;
    image_process(&image, 1, 0, 1000, "serve");
    image.cells[1][0].imported_bytes = 7 * IMAGE_MIB;
    assert_int_equal(image_write(&image, sizeof image, path), 0);
    int lock = image_live(path, 1);
    assert_int_equal(read_path(path), 0);
    (void)close(lock);
    assert_int_equal(snapshot.gpu_count, 1);
    assert_string_equal(snapshot.gpus[0].uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    assert_int_equal(snapshot.gpus[0].charged_bytes, 1000 * IMAGE_MIB);
    assert_int_equal(snapshot.gpus[0].free_bytes, 3096 * IMAGE_MIB);
    assert_int_equal(snapshot.gpus[0].overhead_bytes, VCAP_UNKNOWN);
    assert_false(snapshot.gpus[0].over);
    assert_false(snapshot.gpus[0].disagrees);
    assert_int_equal(snapshot.process_count, 1);
    assert_int_equal(snapshot.processes[0].life, VCAP_LIFE_ALIVE);
    assert_int_equal(snapshot.processes[0].pid, 101);
    assert_int_equal(snapshot.processes[0].charge_count, 1);
    assert_int_equal(snapshot.processes[0].charges[0].charged_bytes, 1000 * IMAGE_MIB);
    assert_int_equal(snapshot.processes[0].charges[0].imported_bytes, 7 * IMAGE_MIB);
}

static void charges_of_the_gone_are_shown_but_not_counted(void **state)
{
    (void)state;
    image_process(&image, 1, 0, 1000, "alive");
    image_process(&image, 2, 0, 500, "gone");
    image_process(&image, 3, 0, 250, "dead");
    image.slots[3].state = vcap_lf_state(1, VCAP_LF_KIND_LOCK, VCAP_LF_DEAD);
    assert_int_equal(image_write(&image, sizeof image, path), 0);
    int lock = image_live(path, 1), dead = image_live(path, 3); /* DEAD is final, lock or not */
    assert_int_equal(read_path(path), 0);
    (void)close(lock);
    (void)close(dead);
    assert_int_equal(snapshot.gpus[0].charged_bytes, 1000 * IMAGE_MIB);
    assert_int_equal(snapshot.gpus[0].gone_bytes, 750 * IMAGE_MIB);
    assert_int_equal(snapshot.gpus[0].free_bytes, 3096 * IMAGE_MIB);
    assert_int_equal(snapshot.process_count, 3);
    assert_int_equal(snapshot.processes[1].life, VCAP_LIFE_DEAD);
    assert_int_equal(snapshot.processes[2].life, VCAP_LIFE_DEAD);
    assert_int_equal(snapshot.processes[1].charges[0].charged_bytes, 500 * IMAGE_MIB);
}

static void more_gone_than_the_total_is_not_below_zero(void **state)
{
    (void)state;
    image_process(&image, 2, 0, 500, "gone");
    image.gpus[0].total = vcap_lf_total(IMAGE_UNITS(100), 2, 5);
    assert_int_equal(read_image(), 0);
    assert_int_equal(snapshot.gpus[0].charged_bytes, 0);
    assert_true(snapshot.gpus[0].disagrees);
}

static void a_foreign_pid_kind_slot_is_unknown_and_counts(void **state)
{
    (void)state;
    image_process(&image, 2, 0, 500, "pid");
    image.slots[2].state = vcap_lf_state(1, VCAP_LF_KIND_PID, VCAP_LF_LIVE);
    assert_int_equal(read_image(), 0);
    assert_int_equal(snapshot.processes[0].life, VCAP_LIFE_UNKNOWN);
    assert_int_equal(snapshot.gpus[0].charged_bytes, 500 * IMAGE_MIB);
}

static void a_move_in_flight_counts_once_it_took_effect(void **state)
{
    (void)state;
    image_process(&image, 2, 0, 500, "gone");
    /* killed after the move of total and before it settled */
    image.cells[2][0].intent = vcap_lf_intent((int64_t)IMAGE_UNITS(300), 6);
    image.gpus[0].total = vcap_lf_total(IMAGE_UNITS(800), 2, 6);
    assert_int_equal(read_image(), 0);
    assert_int_equal(snapshot.processes[0].charges[0].charged_bytes, 800 * IMAGE_MIB);
    assert_int_equal(snapshot.gpus[0].charged_bytes, 0);
    assert_false(snapshot.gpus[0].disagrees);
    /* the same, but another slot has moved total since and told it */
    image.cells[2][0].ack = 6;
    image.gpus[0].total = vcap_lf_total(IMAGE_UNITS(800), 5, 9);
    assert_int_equal(read_image(), 0);
    assert_int_equal(snapshot.processes[0].charges[0].charged_bytes, 800 * IMAGE_MIB);
    /* killed before the move */
    image.cells[2][0].ack = 0;
    image.gpus[0].total = vcap_lf_total(IMAGE_UNITS(500), 5, 9);
    assert_int_equal(read_image(), 0);
    assert_int_equal(snapshot.processes[0].charges[0].charged_bytes, 500 * IMAGE_MIB);
    assert_int_equal(snapshot.gpus[0].charged_bytes, 0);
}

static void cells_that_do_not_add_up_are_reported(void **state)
{
    (void)state;
    image_process(&image, 2, 0, 500, "x");
    image.gpus[0].total = vcap_lf_total(IMAGE_UNITS(500) + 1, 2, 5);
    assert_int_equal(read_image(), 0);
    assert_true(snapshot.gpus[0].disagrees);
    image.cells[2][0].intent = vcap_lf_intent(1, 6); /* one unit on its way explains it */
    assert_int_equal(read_image(), 0);
    assert_false(snapshot.gpus[0].disagrees);
}

static void ceilings_cards_and_overhead_are_told_apart(void **state)
{
    (void)state;
    image_gpu(&image, 1, UINT64_MAX, VCAP_LF_SOURCE_NONE);
    image_gpu(&image, 3, 9000, VCAP_LF_SOURCE_HOST);
    image.gpus[3].flags = VCAP_LF_GPU_MIG;
    image.gpus[3].card_bytes = 8000 * IMAGE_MIB;
    image_process(&image, 0, 3, 8500, "x");
    image.cells[0][3].overhead_bytes = 300 * IMAGE_MIB;
    image_process(&image, 4, 0, 4097, "y");
    assert_int_equal(image_write(&image, sizeof image, path), 0);
    int lock = image_live(path, 0), other = image_live(path, 4);
    assert_int_equal(read_path(path), 0);
    (void)close(lock);
    (void)close(other);
    assert_int_equal(snapshot.gpu_count, 3);
    assert_true(snapshot.gpus[0].over);
    assert_int_equal(snapshot.gpus[0].free_bytes, 0);
    assert_int_equal(snapshot.gpus[1].ceiling_bytes, VCAP_NO_LIMIT);
    assert_int_equal(snapshot.gpus[1].free_bytes, VCAP_UNKNOWN);
    assert_int_equal(snapshot.gpus[1].card_bytes, VCAP_UNKNOWN);
    assert_int_equal(snapshot.gpus[1].overhead_bytes, 0);
    assert_false(snapshot.gpus[1].over);
    assert_string_equal(vcap_snapshot_source_name(snapshot.gpus[1].ceiling_source), "none");
    assert_string_equal(snapshot.gpus[2].uuid, "MIG-30313233-3435-3637-3839-3a3b3c3d3e3f");
    assert_int_equal(snapshot.gpus[2].row, 3);
    assert_int_equal(snapshot.gpus[2].free_bytes, 0); /* of the card, not of the ceiling */
    assert_int_equal(snapshot.gpus[2].overhead_bytes, 300 * IMAGE_MIB);
    assert_int_equal(snapshot.processes[0].charges[0].gpu, 2);
}

static void events_are_whole_in_order_and_the_lost_are_counted(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) /* 1..4 are overwritten */
        image_event(&image, VCAP_LF_EVENT_ATTACH, "x");
    image.events[7].end = 0;                                  /* 7 never finished */
    image.events[8].begin = image.events[8].end = UINT64_MAX; /* lies */
    image.events[9] = image.events[10];                       /* a double */
    image.events[6].begin = image.events[6].end = 4;          /* of the round before */
    image.events[11].gpu = 3;                                 /* an unclaimed row */
    image.events[12].gpu = 999;
    image.events[13].gpu = 0;
    assert_int_equal(read_image(), 0);
    assert_int_equal(snapshot.event_next, 21);
    assert_int_equal(snapshot.event_count, 12);
    assert_int_equal(snapshot.events_lost, 8);
    assert_int_equal(snapshot.events[0].sequence, 5);
    for (uint32_t i = 1; i < snapshot.event_count; i++)
        assert_true(snapshot.events[i].sequence > snapshot.events[i - 1].sequence);
    assert_int_equal(snapshot.events[snapshot.event_count - 1].sequence, 20);
    for (uint32_t i = 0; i < snapshot.event_count; i++)
        assert_true(snapshot.events[i].gpu == (snapshot.events[i].sequence == 13 ? 0 : UINT32_MAX));
}

/* Lets slot 2 change hands all the time, by the protocol, between two owners told apart by
 * everything. */
static void change_hands(void)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct image *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (m == MAP_FAILED)
        _exit(1);
    for (uint64_t generation = 2;; generation++) {
        uint32_t owner = (uint32_t)(generation & 1);
        uint64_t *state = &m->slots[2].state;
        __atomic_store_n(state, vcap_lf_state(generation - 1, 0, VCAP_LF_FREE), __ATOMIC_SEQ_CST);
        m->slots[2].pid = 1000 + owner;
        m->cells[2][0].charged = vcap_lf_charged(IMAGE_UNITS(1 + owner), 5);
        m->slots[2].claimed_ns = 1000 + owner;
        __atomic_store_n(state, vcap_lf_state(generation, VCAP_LF_KIND_LOCK, VCAP_LF_LIVE),
                         __ATOMIC_SEQ_CST);
        for (unsigned i = 0; i < 2000; i++) /* long enough to be read in one piece */
            __asm__ volatile("" ::: "memory");
    }
}

static void a_slot_that_changes_hands_is_never_mixed(void **state)
{
    (void)state;
    unsigned seen = 0, mixed = 0;
    image_process(&image, 2, 0, 1, "x");
    assert_int_equal(image_write(&image, sizeof image, path), 0);
    pid_t pid = fork();
    if (pid == 0)
        change_hands();
    for (int i = 0; i < 20000 || (i < 400000 && seen <= 100); i++) {
        vcap_snapshot_free(&snapshot);
        if (read_path(path) != 0 || snapshot.process_count == 0)
            continue;
        const struct vcap_snapshot_process *p = &snapshot.processes[0];
        uint64_t owner = p->pid % 2;
        seen += p->pid >= 1000;
        mixed += p->pid >= 1000 && (p->claimed_ns != 1000 + owner ||
                                    p->charges[0].charged_bytes != (1 + owner) * IMAGE_MIB);
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    assert_true(seen > 100);
    assert_int_equal(mixed, 0);
}

static void reading_changes_nothing_and_holds_no_lock(void **state)
{
    (void)state;
    static unsigned char after[sizeof image];
    image_process(&image, 2, 0, 500, "gone");
    assert_int_equal(read_image(), 0);
    int fd = open(path, O_RDWR);
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &all), 0);
    assert_int_equal(read(fd, after, sizeof after), sizeof after);
    assert_memory_equal(after, &image, sizeof image);
    (void)close(fd);
}

static void a_read_only_ledger_of_another_user_can_be_read(void **state)
{
    (void)state;
    image_process(&image, 2, 0, 500, "x");
    assert_int_equal(image_write(&image, sizeof image, path), 0);
    assert_int_equal(chmod(path, 0444), 0);
    int fd = open(path, O_RDONLY);
    assert_int_equal(vcap_snapshot_read_fd(fd, &snapshot, why, sizeof why), 0);
    (void)close(fd);
    assert_int_equal(snapshot.process_count, 1);
}

static void only_events_that_are_new_are_read(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++)
        (void)image_event(&image, VCAP_LF_EVENT_REFUSAL, "cuMemAlloc_v2");
    assert_int_equal(image_write(&image, sizeof image, path), 0);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct vcap_read_wish wish = {.taken_only = taken_only, .events_from = 4};
    assert_int_equal(vcap_snapshot_read_wish(fd, &wish, &snapshot, why, sizeof why), 0);
    assert_int_equal(snapshot.event_count, 2);
    assert_int_equal(snapshot.events[0].sequence, 4);
    assert_int_equal(snapshot.events_lost, 0);
    vcap_snapshot_free(&snapshot);
    wish.events_from = 6;
    assert_int_equal(vcap_snapshot_read_wish(fd, &wish, &snapshot, why, sizeof why), 0);
    assert_int_equal(snapshot.event_count, 0);
    assert_int_equal(snapshot.event_next, 6);
    assert_int_equal(snapshot.events_lost, 0);
    wish.bytes_max = sizeof image - 1;
    vcap_snapshot_free(&snapshot);
    assert_int_equal(vcap_snapshot_read_wish(fd, &wish, &snapshot, why, sizeof why), -EINVAL);
    (void)close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    taken_only = argc > 1 && !strcmp(argv[1], "taken");
    const struct CMUnitTest tests[] = {
        TEST(anything_but_a_regular_file_is_untrusted),
        TEST(a_link_to_a_good_ledger_is_untrusted_but_a_linked_folder_is_not),
        TEST(a_lease_cannot_hang_the_reader),
        TEST(a_missing_file_is_an_error_and_no_finding),
        TEST(every_wrong_length_is_untrusted),
        TEST(other_formats_are_untrusted),
        TEST(hostile_geometry_is_untrusted),
        TEST(every_hostile_file_is_known_for_what_it_is),
        TEST(strings_come_out_printable_and_ended),
        TEST(a_live_process_is_alive_and_its_charge_counts),
        TEST(charges_of_the_gone_are_shown_but_not_counted),
        TEST(more_gone_than_the_total_is_not_below_zero),
        TEST(a_foreign_pid_kind_slot_is_unknown_and_counts),
        TEST(a_move_in_flight_counts_once_it_took_effect),
        TEST(cells_that_do_not_add_up_are_reported),
        TEST(ceilings_cards_and_overhead_are_told_apart),
        TEST(events_are_whole_in_order_and_the_lost_are_counted),
        TEST(a_slot_that_changes_hands_is_never_mixed),
        TEST(reading_changes_nothing_and_holds_no_lock),
        TEST(a_read_only_ledger_of_another_user_can_be_read),
        TEST(only_events_that_are_new_are_read),
    };
    (void)alarm(60); /* a reader that blocks fails the test */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
