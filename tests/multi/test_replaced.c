/*
 * A ledger that is taken away, replaced, copied or emptied under living processes: they notice, take their
 * place in the one that is there now, and one ceiling holds for all again.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/ledger.h"
#include "tests/sim/sim.h"
#include "tests/support/fixture.h"

static const char *const capped[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=300", NULL};
static struct child_output output;

static void start(struct child *c, const struct fixture *f)
{
    assert_true(client_start(c, f, "getproc", capped));
    assert_int_equal(client_result(c, "init"), 0);
    assert_int_equal(client_result(c, "ctx create 0"), 0);
}

/* The library looks at the path at most every 10 ms. */
static void pass_a_look(void)
{
    usleep(40000);
}

static unsigned lines_with(struct child *c, const char *words)
{
    char text[8192];
    ssize_t got;

    (void)fcntl(c->err, F_SETFL, O_NONBLOCK);
    got = read(c->err, text, sizeof(text) - 1);
    text[got > 0 ? got : 0] = 0;
    return count_lines(text, words);
}

static void a_process_follows_to_the_ledger_that_a_newcomer_made(void **state)
{
    const struct fixture *f = *state;
    struct child a, b;

    start(&a, f);
    assert_int_equal(client_result(&a, "alloc 200m"), 0);
    assert_int_equal(unlink(f->ledger), 0);
    start(&b, f);
    assert_int_equal(ledger_charged(f->ledger, 0), 0);
    pass_a_look();
    assert_int_equal(client_result(&a, "alloc 50m"), 0);
    assert_int_equal(ledger_charged(f->ledger, 0), 250 * MIB);
    assert_int_equal(ledger_charged_by(f->ledger, 0, a.pid), 250 * MIB);
    assert_int_equal(client_result(&b, "alloc 52m"), 2);
    assert_int_equal(client_result(&b, "alloc 50m"), 0);
    assert_int_equal(client_result(&a, "alloc 2m"), 2);
    assert_int_equal(ledger_events(f->ledger, VCAP_LF_EVENT_RENEWED), 1);
    assert_int_equal(lines_with(&a, "was replaced under this process"), 1);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

static void what_is_freed_and_asked_afterwards_is_counted_in_the_new_one(void **state)
{
    const struct fixture *f = *state;
    char answer[64], command[64], expected[64];
    struct child a;

    start(&a, f);
    assert_int_equal(client_result(&a, "alloc 100m"), 0);
    client_ask(&a, answer, sizeof(answer), "alloc 150m");
    assert_int_equal(unlink(f->ledger), 0);
    pass_a_look();
    client_ask(&a, command, sizeof(command), "info"); /* looks, too */
    snprintf(expected, sizeof(expected), "0 %llu %llu", (unsigned long long)(50 * MIB),
             (unsigned long long)(300 * MIB));
    assert_string_equal(command, expected);
    assert_int_equal(ledger_charged(f->ledger, 0), 250 * MIB);
    snprintf(command, sizeof(command), "free %s", strchr(answer, ' ') + 1);
    assert_int_equal(client_result(&a, command), 0);
    assert_int_equal(ledger_charged(f->ledger, 0), 100 * MIB);
    child_kill(&a, SIGKILL);
}

static void small_charges_notice_it_too(void **state)
{
    const struct fixture *f = *state;
    struct child a;

    start(&a, f);
    assert_int_equal(client_result(&a, "alloc 100m"), 0);
    assert_int_equal(unlink(f->ledger), 0);
    pass_a_look();
    for (int i = 0; i < 64; i++)
        assert_int_equal(client_result(&a, "alloc 4k"), 0);
    assert_in_range(ledger_charged(f->ledger, 0), 100 * MIB + 1, 101 * MIB);
    child_kill(&a, SIGKILL);
}

/* Under a driver that waits for itself when it frees: the commands for 40 frees, and the ledger is gone. */
static void start_with_frees(struct child *c, const struct fixture *f, char frees[40][80])
{
    static const char *const inner[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=300",
                                        "VRAMCAP_SIM_INNER=1", NULL};
    char answer[64];

    assert_true(client_start(c, f, "getproc", inner));
    assert_int_equal(client_result(c, "init"), 0);
    assert_int_equal(client_result(c, "ctx create 0"), 0);
    for (unsigned i = 0; i < 40; i++) {
        client_ask(c, answer, sizeof(answer), "alloc 4k");
        snprintf(frees[i], sizeof(frees[i]), "free %s", strchr(answer, ' ') + 1);
    }
    assert_int_equal(unlink(f->ledger), 0);
    pass_a_look();
}

/* A driver that frees waits for itself: there it is in the middle of something, and nothing is begun. */
static void a_driver_that_waits_for_itself_does_not(void **state)
{
    const struct fixture *f = *state;
    char frees[40][80];
    struct child a;

    start_with_frees(&a, f, frees);
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(client_result(&a, frees[i]), 0);
    assert_int_not_equal(access(f->ledger, F_OK), 0);
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(client_result(&a, "sync"), 0);
    assert_int_equal(access(f->ledger, F_OK), 0);
    child_kill(&a, SIGKILL);
}

/* Every second wait is the driver's own: a program's is the one that notices. */
static void waits_of_the_driver_do_not_hide_a_program_that_only_waits(void **state)
{
    const struct fixture *f = *state;
    char frees[40][80];
    struct child a;

    start_with_frees(&a, f, frees);
    for (unsigned i = 0; i < 40; i++) {
        assert_int_equal(client_result(&a, "sync"), 0);
        assert_int_equal(client_result(&a, frees[i]), 0);
    }
    assert_int_equal(access(f->ledger, F_OK), 0);
    child_kill(&a, SIGKILL);
}

static void a_program_that_only_waits_notices_it_too(void **state)
{
    const struct fixture *f = *state;
    struct child a;

    start(&a, f);
    assert_int_equal(client_result(&a, "alloc 100m"), 0);
    assert_int_equal(unlink(f->ledger), 0);
    pass_a_look();
    for (int i = 0; i < 16; i++)
        assert_int_equal(client_result(&a, "sync"), 0);
    assert_int_equal(ledger_charged(f->ledger, 0), 100 * MIB);
    child_kill(&a, SIGKILL);
}

static void copy_over(const struct fixture *f)
{
    static char bytes[1 << 16];
    char copy[160];
    FILE *from = fopen(f->ledger, "re"), *to;
    size_t n;

    snprintf(copy, sizeof(copy), "%s.copy", f->ledger);
    to = fopen(copy, "we");
    assert_non_null(from);
    assert_non_null(to);
    while ((n = fread(bytes, 1, sizeof(bytes), from)) > 0)
        assert_int_equal(fwrite(bytes, 1, n, to), n);
    assert_int_equal(ferror(from), 0);
    assert_int_equal(fclose(to), 0);
    fclose(from);
    assert_int_equal(chmod(copy, 0666), 0);
    assert_int_equal(rename(copy, f->ledger), 0);
}

/* What a restore from an image does: all words of the file as they were, in a file of another inode, with
 * no lock on it. */
static void a_copy_in_its_place_is_joined_and_its_dead_slots_count_nothing(void **state)
{
    const struct fixture *f = *state;
    struct child a, b;

    start(&a, f);
    start(&b, f);
    assert_int_equal(client_result(&a, "alloc 100m"), 0);
    assert_int_equal(client_result(&b, "alloc 60m"), 0);
    copy_over(f);
    pass_a_look();
    assert_int_equal(client_result(&a, "alloc 20m"), 0);
    assert_int_equal(client_result(&b, "alloc 20m"), 0);
    assert_int_equal(ledger_charged(f->ledger, 0), 200 * MIB);
    assert_int_equal(ledger_processes(f->ledger), 2);
    assert_int_equal(client_result(&a, "alloc 102m"), 2);
    assert_int_equal(client_result(&a, "alloc 100m"), 0);
    child_kill(&a, SIGKILL);
    child_kill(&b, SIGKILL);
}

/* A place where no ledger can be made: the process goes on under the ceiling that it has. */
static void without_another_ledger_the_old_one_holds(void **state)
{
    const struct fixture *f = *state;
    char there[128];
    struct child a;

    snprintf(there, sizeof(there), "VRAMCAP_LEDGER=%s", fixture_path(f, "run"));
    assert_int_equal(mkdir(there + strlen("VRAMCAP_LEDGER="), 0755), 0);
    strncat(there, "/ledger", sizeof(there) - strlen(there) - 1);
    {
        const char *const extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=300", there, NULL};

        assert_true(client_start(&a, f, "getproc", extra));
    }
    assert_int_equal(client_result(&a, "init"), 0);
    assert_int_equal(client_result(&a, "ctx create 0"), 0);
    assert_int_equal(client_result(&a, "alloc 200m"), 0);
    assert_int_equal(unlink(there + strlen("VRAMCAP_LEDGER=")), 0);
    assert_int_equal(rmdir(fixture_path(f, "run")), 0);
    pass_a_look();
    assert_int_equal(client_result(&a, "alloc 102m"), 2);
    pass_a_look();
    assert_int_equal(client_result(&a, "alloc 100m"), 0);
    assert_int_equal(lines_with(&a, "stays in the old one"), 1);
    child_kill(&a, SIGKILL);
}

static void host_creates(const struct fixture *f, const char *memory)
{
    const char *const argv[] = {TOOL, "create", "--memory", memory, f->ledger, NULL};
    const char *const bare[] = {"LD_PRELOAD", NULL};

    child_run(f, argv, bare, &output);
    assert_int_equal(output.status, 0);
}

/* What the container does at the place of the host's ledger does not end the host's word. */
static void the_hosts_ledger_is_left_for_the_hosts_alone(void **state)
{
    const char *const enabled[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=8000", NULL};
    const struct fixture *f = *state;
    struct child a;

    host_creates(f, "300");
    assert_true(client_start(&a, f, "getproc", enabled));
    assert_int_equal(client_result(&a, "init"), 0);
    assert_int_equal(client_result(&a, "ctx create 0"), 0);
    assert_int_equal(client_result(&a, "alloc 200m"), 0);
    assert_int_equal(unlink(f->ledger), 0);
    pass_a_look();
    assert_int_equal(client_result(&a, "alloc 102m"), 2);
    assert_int_equal(access(f->ledger, F_OK), -1); /* and none is made in its place */
    assert_int_equal(vcap_ledger_create(f->ledger, NULL, 0, NULL, NULL), 0);
    pass_a_look();
    assert_int_equal(client_result(&a, "alloc 102m"), 2);
    assert_int_equal(lines_with(&a, "the host did not make it"), 1);
    assert_int_equal(unlink(f->ledger), 0);
    host_creates(f, "400");
    pass_a_look();
    assert_int_equal(client_result(&a, "alloc 202m"), 2);
    assert_int_equal(client_result(&a, "alloc 200m"), 0);
    assert_int_equal(ledger_charged(f->ledger, 0), 400 * MIB);
    child_kill(&a, SIGKILL);
}

/* Slot 0 to n of an open ledger are nobody's any more, as after a reset. */
static void free_every_slot(int fd)
{
    struct vcap_lf_header header;

    assert_int_equal(pread(fd, &header, sizeof(header), 0), (ssize_t)sizeof(header));
    for (uint32_t s = 0; s < header.slot_count; s++) {
        uint64_t word = vcap_lf_state(77, VCAP_LF_KIND_NONE, VCAP_LF_FREE);

        assert_int_equal(pwrite(fd, &word, sizeof(word),
                                (off_t)header.slot_offset + (off_t)s * header.slot_stride),
                         (ssize_t)sizeof(word));
    }
}

/* Slot and file are both gone: there is no place to go back to, only one to go to. */
static void a_process_that_lost_slot_and_file_is_not_denied_for_good(void **state)
{
    const struct fixture *f = *state;
    struct child a;
    int fd;

    start(&a, f);
    assert_int_equal(client_result(&a, "alloc 100m"), 0);
    fd = open(f->ledger, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(unlink(f->ledger), 0);
    free_every_slot(fd);
    close(fd);
    assert_int_equal(client_result(&a, "alloc 4k"), 0); /* too small to look at the path for */
    assert_in_range(ledger_charged(f->ledger, 0), 100 * MIB + 1, 101 * MIB);
    assert_int_equal(client_result(&a, "alloc 200m"), 2);
    assert_int_equal(client_result(&a, "alloc 190m"), 0);
    child_kill(&a, SIGKILL);
}

/* The races: threads that allocate and free all the time while the ledger goes again and again. */
static void threads_in_the_middle_of_anything_lose_no_byte(void **state)
{
    const struct fixture *f = *state;
    char answer[128] = "";
    struct child a;

    start(&a, f);
    assert_int_equal(client_result(&a, "alloc 100m"), 0);
    assert_true(child_say(&a, "threads 4 2m 4000"));
    for (int i = 0; i < 40; i++) {
        usleep(15000);
        (void)unlink(f->ledger);
    }
    assert_true(child_line(&a, answer, sizeof(answer), FIXTURE_DEADLINE_MS));
    assert_int_equal(strtol(answer, NULL, 10), 0);
    pass_a_look();
    client_ask(&a, answer, sizeof(answer), "info");
    pass_a_look();
    assert_int_equal(client_result(&a, "alloc 2m"), 0);
    assert_int_equal(ledger_charged(f->ledger, 0), 102 * MIB);
    child_kill(&a, SIGKILL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_process_follows_to_the_ledger_that_a_newcomer_made),
        TEST(what_is_freed_and_asked_afterwards_is_counted_in_the_new_one),
        TEST(small_charges_notice_it_too),
        TEST(a_driver_that_waits_for_itself_does_not),
        TEST(waits_of_the_driver_do_not_hide_a_program_that_only_waits),
        TEST(a_program_that_only_waits_notices_it_too),
        TEST(a_copy_in_its_place_is_joined_and_its_dead_slots_count_nothing),
        TEST(without_another_ledger_the_old_one_holds),
        TEST(a_process_that_lost_slot_and_file_is_not_denied_for_good),
        TEST(the_hosts_ledger_is_left_for_the_hosts_alone),
        TEST(threads_in_the_middle_of_anything_lose_no_byte),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
