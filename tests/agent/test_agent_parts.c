/*
 * The agent's parts, each from inside: what it reads of /proc, what it remembers, what it makes of
 * options and of the host's note.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "enforcer/agent/exchange.h"
#include "enforcer/agent/listen.h"
#include "enforcer/agent/memory.h"
#include "enforcer/agent/proc_file.h"
#include "enforcer/agent/remember.h"
#include "enforcer/agent/text.h"
#include "enforcer/agent/textfile.h"
#include "enforcer/cli/host_record.h"
#include "tests/cli/ledger_image.h"

static char folder[64], path[128], why[256];

static int setup(void **state)
{
    (void)state;
    if (!image_folder(folder))
        return -1;
    (void)snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* ---- /proc ---- */

static struct vcap_process process_of(const char *const *lines)
{
    struct vcap_maps maps = {0};
    struct vcap_process p = {0};
    for (size_t i = 0; lines[i]; i++)
        vcap_maps_line(&maps, lines[i]);
    vcap_maps_end(&maps, &p);
    return p;
}
#define PROCESS(...) process_of((const char *const[]){__VA_ARGS__, NULL})

static void a_ledger_is_known_by_its_anchor_or_its_name(void **state)
{
    (void)state;
    struct vcap_process p =
        PROCESS("7f0000000000-7f0000001000 ---s 00000000 00:2a 77       /any where/web",
                "7f0000100000-7f0000170000 rw-s 00000000 00:2a 77       /any where/web",
                "7f0000200000-7f0000270000 rw-s 00000000 00:2a 78       /any where/other");
    assert_int_equal(p.ledger_count, 1);
    assert_int_equal(p.ledgers[0].inode, 77);
    assert_int_equal(p.ledgers[0].device, makedev(0, 0x2a));
    assert_int_equal(p.ledgers[0].begin, 0x7f0000100000ul);
    assert_int_equal(p.ledgers[0].end, 0x7f0000170000ul);
    assert_string_equal(p.ledgers[0].name, "web");
    p = PROCESS(
        "7f0000100000-7f0000170000 rw-s 00000000 fd:01 5  /run/vramcap/ledger",
        "7f0000200000-7f0000270000 rw-s 00000000 00:19 6  /dev/shm/vramcap-path-1 (deleted)");
    assert_int_equal(p.ledger_count, 2);
    p = PROCESS("7f0000200000-7f0000270000 rw-s 00000000 00:19 6  /dev/shm/vramcap-sim-0");
    assert_int_equal(p.ledger_count, 0);
    p = PROCESS("7f0000100000-7f0000170000 rw-p 00000000 fd:01 5  /run/vramcap/ledger",
                "7f0000100000-7f0000170000 rw-s 00001000 fd:01 5  /run/vramcap/ledger",
                "7f0000100000-7f0000170000 rw-s 00000000 00:00 0  /run/vramcap/ledger",
                "7f0000200000-7f0000270000 rw-s 00000000 00:19 6", "garbage", "-", "1-2 rw", "");
    assert_int_equal(p.ledger_count, 0);
}

static void libraries_and_drivers_are_known_by_their_names(void **state)
{
    (void)state;
    struct vcap_process p = PROCESS("7f00-7f01 r-xp 00000000 fd:01 5  /opt/vramcap/libvramcap.so",
                                    "7f02-7f03 r-xp 00000000 fd:01 6  /usr/lib/libcuda.so.580.1");
    assert_true(p.library && p.driver);
    p = PROCESS("7f00-7f01 rw-s 00000000 00:05 5  /dev/nvidia0");
    assert_true(!p.library && p.driver);
    p = PROCESS("7f00-7f01 r-xp 00000000 fd:01 5  /opt/libvramcap.so/x",
                "7f00-7f01 r-xp 00000000 fd:01 5  libcuda.so.1", "7f00-7f01 r-xp 0 0:0 0 [vdso]");
    assert_true(!p.library && !p.driver);
}

static void an_endless_list_of_mappings_is_bounded(void **state)
{
    (void)state;
    struct vcap_maps maps = {0};
    struct vcap_process p = {0};
    char line[128];
    for (unsigned i = 1; i < 10000; i++) {
        (void)snprintf(line, sizeof line, "%x000-%x000 %s 00000000 00:2a %u  /x", i, i + 1,
                       i % 2 ? "---s" : "rw-s", i / 2);
        vcap_maps_line(&maps, line);
    }
    vcap_maps_end(&maps, &p);
    assert_true(p.ledger_count <= VCAP_PROCESS_LEDGERS);
}

static const char mounts[] = "22 1 0:21 / / rw - overlay overlay rw,lowerdir=/a:/b\n"
                             "23 22 0:25 /vramcap/web /run/vramcap/ledger rw - tmpfs tmpfs rw\n"
                             "24 22 0:26 /vramcap/box /run/vramcap rw,shared:3 - tmpfs tmpfs rw\n"
                             "25 22 0:77 / /mnt/with\\040blank rw - fuse.sshfs host:/ rw\n"
                             "not a mount\n"
                             "26 22 8:1 / /data rw - ext4 /dev/sda1 rw";

static void file_systems_that_may_wait_are_told_from_local_ones(void **state)
{
    (void)state;
    char type[32];
    const struct {
        dev_t device;
        const char *type;
        bool may_wait;
    } cases[] = {{makedev(0, 21), "overlay", false},
                 {makedev(0, 25), "tmpfs", false},
                 {makedev(0, 77), "fuse.sshfs", true},
                 {makedev(8, 1), "ext4", false},
                 {makedev(9, 9), "", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vcap_mountinfo_type(mounts, cases[i].device, type, sizeof type);
        assert_string_equal(type, cases[i].type);
        assert_int_equal(vcap_filesystem_may_wait(type), cases[i].may_wait);
    }
    const char *const remote[] = {"nfs", "nfs4", "cifs", "9p", "fuse", "fuseblk", "ceph", "autofs"};
    for (size_t i = 0; i < sizeof remote / sizeof *remote; i++)
        assert_true(vcap_filesystem_may_wait(remote[i]));
}

static void a_mounted_ledger_is_known_by_the_mounts_alone(void **state)
{
    (void)state;
    assert_true(vcap_mountinfo_binds(mounts, makedev(0, 25), "web"));
    assert_false(vcap_mountinfo_binds(mounts, makedev(0, 25), "eb"));
    assert_false(vcap_mountinfo_binds(mounts, makedev(0, 24), "web"));
    assert_true(vcap_mountinfo_binds(mounts, makedev(0, 26), "box/ledger"));
    assert_false(vcap_mountinfo_binds(mounts, makedev(0, 26), "box"));
    assert_false(vcap_mountinfo_binds("", makedev(0, 26), "box"));
}

/* ---- texts ---- */

static void texts_grow_and_quote(void **state)
{
    (void)state;
    struct vcap_text t = {0};
    for (int i = 0; i < 5000; i++)
        vcap_text_number(&t, (uint64_t)i);
    assert_int_equal(t.length, 10 + 90 * 2 + 900 * 3 + 4000 * 4);
    vcap_text_clear(&t);
    vcap_text_number(&t, UINT64_MAX);
    vcap_text_quoted(&t, "a\"b\\c\nd\x01"
                         "e");
    assert_string_equal(t.data, "18446744073709551615\"a\\\"b\\\\c\\nd?e\"");
    assert_false(t.failed);
    vcap_text_free(&t);
}

static void a_text_file_is_replaced_whole(void **state)
{
    (void)state;
    char text[64], command[160];
    assert_int_equal(vcap_textfile_write(path, "one\n", 4), 0);
    int old = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(vcap_textfile_write(path, "two, longer\n", 12), 0);
    assert_int_equal(read(old, text, sizeof text), 4); /* whoever had it open still has all of it */
    (void)close(old);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, text, sizeof text), 12);
    (void)close(fd);
    (void)snprintf(command, sizeof command, "test \"$(ls -A '%s')\" = file", folder);
    assert_int_equal(system(command), 0); /* nothing is left behind */
    assert_int_equal(vcap_textfile_write("/nowhere/x", "", 0), -ENOENT);
}

static void places_to_listen_are_numbers_or_paths(void **state)
{
    (void)state;
    struct sockaddr_storage address;
    socklen_t length;
    const char *const good[] = {"127.0.0.1:9478", "0.0.0.0:1", "[::1]:9478", "unix:/run/x"};
    const char *const bad[] = {"",        "9478",     ":9478",      "localhost:9478", "127.0.0.1",
                               "::1:947", "[::1]",    "1.2.3.4:x",  "1.2.3.4:65536",  "1.2.3.4:",
                               "unix:",   "unix:rel", "[1.2.3.4]:1"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (vcap_listen_parse(good[i], &address, &length, why, sizeof why) != 0)
            fail_msg("%s: %s", good[i], why);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        why[0] = '\0';
        if (vcap_listen_parse(bad[i], &address, &length, why, sizeof why) != -EINVAL || !*why)
            fail_msg("'%s' was taken", bad[i]);
    }
}

/* ---- memory ---- */

static struct vcap_memory *open_memory(void)
{
    struct vcap_memory *m = vcap_memory_open(path, why, sizeof why);
    if (!m)
        fail_msg("%s", why);
    return m;
}

static void what_is_remembered_is_there_in_the_next_run(void **state)
{
    (void)state;
    struct vcap_memory_record r;
    struct vcap_memory *m = open_memory();
    int web = vcap_memory_place(m, "web"), other = vcap_memory_place(m, "other");
    assert_true(web >= 0 && other >= 0 && web != other);
    vcap_memory_read(m, web, &r);
    assert_int_equal(r.next_event, 1);
    r.next_event = 42;
    vcap_memory_write(m, web, &r);
    assert_null(vcap_memory_open(path, why, sizeof why)); /* in use */
    assert_non_null(strstr(why, "another agent"));
    vcap_memory_close(m);
    m = open_memory();
    assert_false(vcap_memory_began_anew(m));
    assert_int_equal(vcap_memory_place(m, "web"), web);
    vcap_memory_read(m, web, &r);
    assert_int_equal(r.next_event, 42);
    vcap_memory_forget(m, web);
    vcap_memory_read(m, vcap_memory_place(m, "web"), &r);
    assert_int_equal(r.next_event, 1);
    vcap_memory_close(m);
}

static void a_damaged_state_file_begins_anew(void **state)
{
    (void)state;
    const char *const bytes[] = {"x", "VCAPSEEN and then nonsense"};
    for (size_t i = 0; i < 4; i++) {
        struct vcap_memory *m = open_memory();
        (void)vcap_memory_place(m, "web");
        vcap_memory_close(m);
        if (i < 2)
            assert_int_equal(image_write(bytes[i], strlen(bytes[i]), path), 0);
        else
            assert_int_equal(truncate(path, i == 2 ? 4096 : 5000), 0); /* records are missing */
        m = open_memory();
        assert_true(vcap_memory_began_anew(m));
        assert_true(vcap_memory_place(m, "web") >= 0);
        vcap_memory_close(m);
        (void)unlink(path);
    }
    assert_int_equal(mkdir(path, 0700), 0);
    assert_null(vcap_memory_open(path, why, sizeof why));
    assert_int_equal(rmdir(path), 0);
}

static void thousands_of_containers_find_a_place_and_the_oldest_gives_way(void **state)
{
    (void)state;
    struct vcap_memory *m = open_memory();
    struct vcap_memory_record r;
    char label[32];
    for (unsigned i = 0; i < VCAP_MEMORY_RECORDS; i++) {
        (void)snprintf(label, sizeof label, "c%u", i);
        int place = vcap_memory_place(m, label);
        assert_int_equal(place, i);
        vcap_memory_read(m, place, &r);
        r.seen_s = i == 77 ? 1 : i == 78 ? 2 : 1000 + i;
        vcap_memory_write(m, place, &r);
    }
    assert_int_equal(vcap_memory_place(m, "one more"), -1); /* all are in use */
    vcap_memory_close(m);
    m = open_memory(); /* in the next run none is, until it is asked for */
    assert_int_equal(vcap_memory_place(m, "c77"), 77);
    assert_int_equal(vcap_memory_place(m, "one more"), 78);
    vcap_memory_forget(m, 77);
    assert_int_equal(vcap_memory_place(m, "and one"), 77);
    vcap_memory_close(m);
}

static void without_room_nobody_s_place_is_given_away(void **state)
{
    (void)state;
    struct vcap_memory *m = open_memory();
    struct rlimit before, none;
    char label[32];
    int place = 0;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_true(vcap_memory_place(m, "c0") == 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    none = before;
    none.rlim_cur = (rlim_t)st.st_size; /* the file cannot grow any more */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    unsigned taken = 1;
    for (; place >= 0 && taken < 1000; taken++) {
        (void)snprintf(label, sizeof label, "c%u", taken);
        place = vcap_memory_place(m, label);
        assert_true(place < 0 || place == (int)taken);
    }
    int again = vcap_memory_place(m, "c0");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(place, -1);
    assert_int_equal(again, 0);
    assert_int_equal(vcap_memory_place(m, label), taken - 1); /* now there is */
    vcap_memory_close(m);
}

/* A kill at any moment of a write leaves one record or the other, whole. */
static void a_killed_writer_leaves_a_whole_record(void **state)
{
    (void)state;
    struct vcap_memory_record r;
    unsigned seen = 0;
    uint64_t highest = 0;
    for (int round = 0; round < 60; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            struct vcap_memory *m = vcap_memory_open(path, why, sizeof why);
            if (!m)
                _exit(1);
            int place = vcap_memory_place(m, "web");
            vcap_memory_read(m, place, &r);
            for (uint64_t n = r.next_event;; n++) {
                r.next_event = r.events_lost = r.ledger_errors = n;
                for (int g = 0; g < (int)VCAP_LF_GPUS_MAX; g++)
                    r.gpus[g].refusals = r.gpus[g].refused_bytes_seen = n;
                vcap_memory_write(m, place, &r);
            }
        }
        (void)usleep(2000 + (useconds_t)(round * 137 % 1000));
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        struct vcap_memory *m = open_memory();
        vcap_memory_read(m, vcap_memory_place(m, "web"), &r);
        bool whole = r.events_lost == r.next_event || r.next_event == 1;
        for (int g = 0; g < (int)VCAP_LF_GPUS_MAX && r.next_event > 1; g++)
            whole = whole && r.gpus[g].refusals == r.next_event &&
                    r.gpus[g].refused_bytes_seen == r.next_event;
        assert_true(whole);
        assert_true(r.next_event >= highest);
        seen += r.next_event > highest;
        highest = r.next_event;
        vcap_memory_close(m);
    }
    assert_true(seen > 10);
}

static void counters_go_on_when_a_ledger_begins_again(void **state)
{
    (void)state;
    struct vcap_snapshot_gpu gpu = {.uuid = "GPU-1", .refusals = 5, .refused_bytes = 500};
    struct vcap_snapshot s = {.gpu_count = 1, .gpus = &gpu, .inode = 7, .event_next = 1};
    struct vcap_memory_record r = {.next_event = 1};
    vcap_remember_begin(&r, &s);
    assert_true(vcap_remember_counters(&r, &s));
    assert_false(vcap_remember_counters(&r, &s));
    assert_int_equal(vcap_remember_gpu(&r, "GPU-1")->refusals, 5);
    s.inode = 8; /* the container was restarted */
    gpu.refusals = 2;
    assert_true(vcap_remember_is_new(&r, &s));
    vcap_remember_begin(&r, &s);
    (void)vcap_remember_counters(&r, &s);
    assert_int_equal(vcap_remember_gpu(&r, "GPU-1")->refusals, 7);
    gpu.refusals = 1; /* somebody wrote a lower number into it */
    (void)vcap_remember_counters(&r, &s);
    assert_int_equal(vcap_remember_gpu(&r, "GPU-1")->refusals, 8);
    gpu.refusals = UINT64_MAX;
    (void)vcap_remember_counters(&r, &s);
    assert_true(vcap_remember_gpu(&r, "GPU-1")->refusals == UINT64_MAX); /* saturates */
    assert_true(vcap_remember_gpu(&r, "GPU-1")->refused_bytes == 1000);
}

/* ---- the host's note ---- */

static void the_host_s_note_says_what_was_written(void **state)
{
    (void)state;
    struct vcap_host_record r = {
        .changes = 3, .flags = 1, .default_bytes = VCAP_NO_LIMIT, .gpu_count = 1};
    struct vcap_host_record back = {0};
    char text[256];
    (void)snprintf(r.gpus[0].uuid, sizeof r.gpus[0].uuid, "GPU-1");
    r.gpus[0].ceiling_bytes = 4096;
    assert_true(vcap_host_record_format(&r, text, sizeof text) > 0);
    assert_string_equal(text, "1 changes=3 flags=1 default=none GPU-1=4096");
    assert_int_equal(vcap_host_record_parse(text, &back), 0);
    assert_memory_equal(&r, &back, sizeof r);
    assert_int_equal(vcap_host_record_format(&r, text, 20), -ENOSPC);
    const char *const bad[] = {"",
                               "2 changes=3 flags=1 default=none",
                               "1 changes=3 flags=1",
                               "1 changes=x flags=1 default=none",
                               "1 changes=3 flags=1 default=none GPU-1",
                               "1 changes=3 flags=1 default=none GPU-1=1x",
                               "1 changes=3 flags=4294967296 default=none",
                               "1 changes=99999999999999999999 flags=1 default=none"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (vcap_host_record_parse(bad[i], &back) != -EINVAL)
            fail_msg("'%s' was taken", bad[i]);
}

static void an_order_changes_what_it_names_in_the_note(void **state)
{
    (void)state;
    struct vcap_host_record r = {.flags = 1, .default_bytes = 4096 * IMAGE_MIB, .gpu_count = 1};
    struct vcap_entries one = {.count = 2,
                               .entry = {{.kind = VCAP_ENTRY_UUID, .bytes = 100 * IMAGE_MIB},
                                         {.kind = VCAP_ENTRY_UUID, .bytes = 50 * IMAGE_MIB}}};
    struct vcap_host_order order = VCAP_HOST_ORDER_NONE;
    (void)snprintf(r.gpus[0].uuid, sizeof r.gpus[0].uuid, "GPU-aa");
    r.gpus[0].ceiling_bytes = 1;
    for (int i = 0; i < 2; i++)
        (void)snprintf(one.entry[i].uuid, sizeof one.entry[i].uuid, "GPU-AA");
    order.memory = &one;
    order.audit = 1;
    vcap_host_record_apply(&r, &order);
    assert_int_equal(r.gpu_count, 1);
    assert_true(r.gpus[0].ceiling_bytes == 50 * IMAGE_MIB);
    assert_true(r.default_bytes == 4096 * IMAGE_MIB);
    assert_int_equal(r.flags, 1 | VCAP_LF_AUDIT);
    one.count = 1;
    one.entry[0].kind = VCAP_ENTRY_ALL;
    order.audit = 0;
    vcap_host_record_apply(&r, &order);
    assert_int_equal(r.gpu_count, 0);
    assert_true(r.default_bytes == 100 * IMAGE_MIB);
    assert_int_equal(r.flags, 1);
}

/* ---- the exchange ---- */

static void who_asks_gets_a_text_made_after_that_or_none(void **state)
{
    (void)state;
    struct vcap_exchange *x = vcap_exchange_new();
    assert_non_null(x);
    assert_null(vcap_exchange_get(x, VCAP_TEXT_METRICS, 20)); /* nobody makes one */
    assert_int_equal(vcap_exchange_wanted(x), 1u << VCAP_TEXT_METRICS);
    assert_int_equal(vcap_exchange_wanted(x), 0);
    vcap_exchange_put(x, VCAP_TEXT_METRICS, "one", 3);
    struct vcap_published *one = vcap_exchange_get(x, VCAP_TEXT_METRICS, 20); /* a moment old */
    assert_non_null(one);
    (void)usleep(80000);
    vcap_exchange_put(x, VCAP_TEXT_CONTAINERS, "other", 5);
    assert_null(vcap_exchange_get(x, VCAP_TEXT_METRICS, 20)); /* the old one is no answer */
    assert_string_equal(one->text, "one");
    vcap_published_release(one);
    assert_true(vcap_exchange_age_ms(x) == UINT64_MAX);
    vcap_exchange_round(x);
    assert_true(vcap_exchange_age_ms(x) < 10000);
    vcap_exchange_end(x);
    vcap_exchange_free(x);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_ledger_is_known_by_its_anchor_or_its_name),
        TEST(libraries_and_drivers_are_known_by_their_names),
        TEST(an_endless_list_of_mappings_is_bounded),
        TEST(file_systems_that_may_wait_are_told_from_local_ones),
        TEST(a_mounted_ledger_is_known_by_the_mounts_alone),
        TEST(texts_grow_and_quote),
        TEST(a_text_file_is_replaced_whole),
        TEST(places_to_listen_are_numbers_or_paths),
        TEST(what_is_remembered_is_there_in_the_next_run),
        TEST(a_damaged_state_file_begins_anew),
        TEST(thousands_of_containers_find_a_place_and_the_oldest_gives_way),
        TEST(without_room_nobody_s_place_is_given_away),
        TEST(a_killed_writer_leaves_a_whole_record),
        TEST(counters_go_on_when_a_ledger_begins_again),
        TEST(the_host_s_note_says_what_was_written),
        TEST(an_order_changes_what_it_names_in_the_note),
        TEST(who_asks_gets_a_text_made_after_that_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
