/*
 * Who is alive, and what becomes of what the dead held: deaths, forks, execs, stops, full tables.
 */
#include "test_ledger_box.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#define WHOLE 40

static struct vcap_ledger ledger;

static void begin(uint32_t slots)
{
    assert_true(box_make(slots, WHOLE));
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), 0);
}

/* The whole ceiling can be had: nobody else counts as alive. */
static void assert_the_whole_is_ours(void)
{
    assert_int_equal(box_charge(&ledger, WHOLE), 0);
    assert_int_equal(box_held(&ledger), WHOLE);
    assert_int_equal(vcap_ledger_header(&ledger)->anomalies, 0);
}

/* ---- the dead ---- */

static int charge_ten_at_a_signal(void *arg)
{
    struct vcap_ledger l;

    (void)arg;
    if (box_open(&l, VCAP_OPEN_CLAIM) != 0)
        return 1;
    box_add(0, 1);
    while (box_get(1) == 0)
        sched_yield();
    if (box_charge(&l, WHOLE / 4) != 0)
        return 2;
    box_add(2, 1);
    return box_await(3, 1) ? 0 : 3;
}

static void killed_owners_charges_come_back_once_under_racing_reapers(void **state)
{
    uint64_t most = 36;

    (void)state;
    begin(8);
    for (int round = 0; round < 30; round++) {
        pid_t pids[4];

        memset(box_shared, 0, 8 * sizeof(uint64_t));
        assert_int_equal(box_run(box_charge_and_die, &most), 0);
        for (int p = 0; p < 4; p++)
            pids[p] = box_start(charge_ten_at_a_signal, NULL);
        assert_true(box_await(0, 4));
        box_put(1, 1);
        assert_true(box_await(2, 4));
        assert_int_equal(box_held(&ledger), WHOLE);
        assert_int_equal(box_charge(&ledger, 1), -EDQUOT);
        box_put(3, 1);
        for (int p = 0; p < 4; p++)
            assert_int_equal(box_end(pids[p]), 0);
        assert_the_whole_is_ours();
        assert_int_equal(vcap_ledger_release(&ledger, 0, WHOLE * UNIT), 0);
    }
    vcap_ledger_close(&ledger);
}

static void nobody_waits_for_the_dead(void **state)
{
    uint64_t one = 1, worst = 0;
    long sleeps = 0;

    (void)state;
    begin(64);
    for (int round = 0; round < 20; round++) {
        uint64_t before, took;
        long slept;

        for (int p = 0; p < WHOLE; p++)
            assert_int_equal(box_run(box_charge_and_die, &one), 0);
        before = box_clock_ns();
        slept = box_sleeps();
        assert_int_equal(box_charge(&ledger, WHOLE), 0); /* takes what every one of them held */
        sleeps += box_sleeps() - slept;
        took = box_clock_ns() - before;
        worst = took > worst ? took : worst;
        assert_int_equal(vcap_ledger_release(&ledger, 0, WHOLE * UNIT), 0);
    }
    print_message("20 charges that reap %d dead, worst %llu us, %ld sleeps\n", (int)WHOLE,
                  (unsigned long long)worst / 1000, sleeps);
    assert_int_equal(sleeps, 0);
    vcap_ledger_close(&ledger);
}

static void what_a_killed_reaper_left_dead_is_finished_by_the_next(void **state)
{
    uint64_t most = 30;
    uint32_t dead = UINT32_MAX;

    (void)state;
    begin(8);
    assert_int_equal(box_run(box_charge_and_die, &most), 0);
    for (uint32_t s = 0; s < ledger.slot_count; s++)
        if ((int32_t)s != ledger.slot &&
            vcap_lf_state_status(ledger.slots[s].state) == VCAP_LF_LIVE)
            dead = s;
    assert_true(dead != UINT32_MAX);
    ledger.slots[dead].state = vcap_lf_state(vcap_lf_state_generation(ledger.slots[dead].state),
                                             VCAP_LF_KIND_LOCK, VCAP_LF_DEAD);
    assert_the_whole_is_ours();
    assert_int_equal(vcap_lf_state_status(ledger.slots[dead].state), VCAP_LF_FREE);
    vcap_ledger_close(&ledger);
}

static void a_full_table_says_so_and_a_death_makes_room(void **state)
{
    pid_t pids[4];
    uint64_t none = 0;

    (void)state;
    assert_true(box_make(4, WHOLE));
    for (int p = 0; p < 4; p++)
        pids[p] = box_start(box_stay, &none);
    assert_true(box_await(0, 4));
    assert_int_equal(box_get(10), 0);
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), -EUSERS);
    assert_non_null(strstr(box_why, "slot"));
    kill(pids[2], SIGKILL);
    assert_int_equal(box_end(pids[2]), 1000 + SIGKILL);
    assert_int_equal(box_open(&ledger, VCAP_OPEN_CLAIM), 0);
    for (int p = 0; p < 4; p++)
        if (p != 2) {
            kill(pids[p], SIGKILL);
            box_end(pids[p]);
        }
    assert_the_whole_is_ours();
    vcap_ledger_close(&ledger);
}

static int claim_at_a_signal(void *arg)
{
    struct vcap_ledger l;
    int rc;

    (void)arg;
    if (box_open(&l, VCAP_OPEN_MAKE) != 0)
        return 1;
    box_add(0, 1);
    while (box_get(1) == 0)
        sched_yield();
    rc = vcap_ledger_claim(&l, VCAP_LF_MODE_ENFORCE);
    box_add(2, 1);
    if (rc != 0)
        return 2;
    if (!box_await(3, 1))
        return 3;
    return l.slots[l.slot].pid == (uint32_t)getpid() ? 0 : 4;
}

static void racing_claimers_all_find_room_in_a_table_full_of_dead(void **state)
{
    uint64_t one = 1;

    (void)state;
    for (int round = 0; round < 25; round++) {
        pid_t pids[8];
        int refused = 0;

        memset(box_shared, 0, 8 * sizeof(uint64_t));
        unlink(box_path);
        assert_true(box_make(8, WHOLE));
        for (int p = 0; p < 8; p++)
            pids[p] = box_start(box_stay, &one);
        assert_true(box_await(0, 8));
        for (int p = 0; p < 8; p++) {
            kill(pids[p], SIGKILL);
            box_end(pids[p]);
        }
        box_put(0, 0);
        for (int p = 0; p < 6; p++)
            pids[p] = box_start(claim_at_a_signal, NULL);
        assert_true(box_await(0, 6));
        box_put(1, 1);
        assert_true(box_await(2, 6));
        box_put(3, 1);
        for (int p = 0; p < 6; p++)
            refused += box_end(pids[p]) != 0;
        assert_int_equal(refused, 0);
    }
}

static void slots_that_cannot_be_judged_are_left_alone(void **state)
{
    struct vcap_lf_slot *slot;

    (void)state;
    begin(4);
    slot = &ledger.slots[(ledger.slot + 1) % 4];
    vcap_ledger_cell(&ledger, (uint32_t)(ledger.slot + 1) % 4, 0)->charged = vcap_lf_charged(30, 1);
    ledger.gpus[0].total = vcap_lf_total(30, (uint32_t)(ledger.slot + 1) % 4, 1);
    slot->pid = (uint32_t)getpid();
    slot->pidns = ledger.pidns + 1; /* another namespace: its numbers mean nothing here */
    slot->start_time = 1;
    slot->state = vcap_lf_state(1, VCAP_LF_KIND_PID, VCAP_LF_LIVE);
    assert_int_equal(box_charge(&ledger, 11), -EDQUOT);
    slot->state = vcap_lf_state(1, (enum vcap_lf_kind)7, VCAP_LF_LIVE); /* of a later version? */
    assert_int_equal(box_charge(&ledger, 11), -EDQUOT);
    assert_int_equal(box_charge(&ledger, 10), 0);
    vcap_ledger_close(&ledger);
}

static void a_pid_slot_is_judged_by_number_and_start_time(void **state)
{
    struct vcap_lf_slot *slot;
    uint32_t number;
    char path[32];

    (void)state;
    begin(4);
    number = (uint32_t)(ledger.slot + 1) % 4;
    slot = &ledger.slots[number];
    vcap_ledger_cell(&ledger, number, 0)->charged = vcap_lf_charged(30, 1);
    ledger.gpus[0].total = vcap_lf_total(30, number, 1);
    slot->pid = (uint32_t)getppid(); /* one that lives */
    slot->pidns = ledger.pidns;
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)getppid());
    slot->start_time = box_start_time(path);
    slot->state = vcap_lf_state(1, VCAP_LF_KIND_PID, VCAP_LF_LIVE);
    assert_true(slot->start_time != 0);
    assert_int_equal(box_charge(&ledger, 11), -EDQUOT);
    slot->start_time++; /* the number was given to another process */
    assert_the_whole_is_ours();
    vcap_ledger_close(&ledger);
}

/* Same number, same start time, not the slot that we hold: we had it before we executed ourselves. */
static void a_pid_slot_of_our_own_former_self_is_given_back(void **state)
{
    struct vcap_lf_slot *slot;
    uint32_t number;

    (void)state;
    begin(4);
    number = (uint32_t)(ledger.slot + 1) % 4;
    slot = &ledger.slots[number];
    vcap_ledger_cell(&ledger, number, 0)->charged = vcap_lf_charged(30, 1);
    ledger.gpus[0].total = vcap_lf_total(30, number, 1);
    slot->pid = (uint32_t)getpid();
    slot->pidns = ledger.pidns;
    slot->start_time = box_start_time("/proc/self/stat");
    slot->state = vcap_lf_state(1, VCAP_LF_KIND_PID, VCAP_LF_LIVE);
    assert_the_whole_is_ours();
    vcap_ledger_close(&ledger);
}

/* ---- fork, clone, exec, threads, stops ---- */

static void a_forked_child_holds_nothing_of_its_parents(void **state)
{
    int status;
    pid_t pid;

    (void)state;
    begin(8);
    assert_int_equal(box_charge(&ledger, 5), 0);
    pid = fork();
    if (pid == 0) {
        int32_t parents = ledger.slot;

        vcap_ledger_fork_child();
        vcap_ledger_forget(&ledger);
        if (vcap_ledger_owns(&ledger) || box_charge(&ledger, 1) != -ESTALE)
            _exit(1);
        if (vcap_ledger_claim(&ledger, VCAP_LF_MODE_ENFORCE) != 0 || ledger.slot == parents)
            _exit(2);
        _exit(box_charge(&ledger, 3) == 0 && box_charged(&ledger) == 3 ? 0 : 3);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(box_charged(&ledger), 5);
    assert_int_equal(box_held(&ledger), 8);
    assert_int_equal(box_charge(&ledger, WHOLE - 5), 0); /* the child is gone */
    assert_int_equal(box_held(&ledger), WHOLE);
    vcap_ledger_close(&ledger);
}

enum leaves { BY_FORK, BY_CLONE, CLOSE_RANGE, EXEC, MAIN_THREAD_EXITS };

static void *sit(void *arg)
{
    (void)arg;
    box_add(0, 1);
    for (;;)
        pause();
    return NULL;
}

static int live_through(void *arg)
{
    struct vcap_ledger l;
    pthread_t thread;
    pid_t pid;
    int fd;

    if (box_open(&l, VCAP_OPEN_CLAIM) != 0 || box_charge(&l, 30) != 0)
        return 1;
    switch (*(const enum leaves *)arg) {
    case BY_FORK:
    case BY_CLONE:
        pid = *(const enum leaves *)arg == BY_FORK ? fork()
                                                   : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) {
            box_put(5, (uint64_t)syscall(SYS_getpid));
            box_add(0, 1);
            for (;;)
                pause();
        }
        break;
    case CLOSE_RANGE:
        for (fd = 3; fd < 1024; fd++)
            close(fd);
        fd = open(box_path, O_RDWR | O_CLOEXEC); /* and open and close drops POSIX locks */
        close(fd);
        box_add(0, 1);
        break;
    case EXEC:
        box_add(0, 1);
        execlp("sleep", "sleep", "100", (char *)NULL);
        return 2;
    case MAIN_THREAD_EXITS:
        if (pthread_create(&thread, NULL, sit, NULL) != 0)
            return 3;
        pthread_exit(NULL);
    }
    for (;;)
        pause();
}

static pid_t start_living_through(enum leaves leaves)
{
    pid_t pid;

    begin(8);
    pid = box_start(live_through, &leaves);
    assert_true(box_await(0, 1));
    return pid;
}

static void assert_alive_then_kill(pid_t pid)
{
    assert_int_equal(box_charge(&ledger, 11), -EDQUOT);
    kill(pid, SIGKILL);
    box_end(pid);
    assert_the_whole_is_ours();
    vcap_ledger_close(&ledger);
}

static void a_forked_child_does_not_keep_its_parents_slot(void **state)
{
    (void)state;
    assert_alive_then_kill(start_living_through(BY_FORK));
    kill((pid_t)box_get(5), SIGKILL);
}

static void a_child_of_raw_clone_does_not_keep_its_parents_slot(void **state)
{
    (void)state;
    assert_alive_then_kill(start_living_through(BY_CLONE));
    kill((pid_t)box_get(5), SIGKILL);
}

static void closing_every_descriptor_does_not_lose_the_slot(void **state)
{
    (void)state;
    assert_alive_then_kill(start_living_through(CLOSE_RANGE));
}

static void the_end_of_the_main_thread_does_not_lose_the_slot(void **state)
{
    pid_t pid;

    (void)state;
    pid = start_living_through(MAIN_THREAD_EXITS);
    usleep(20000);
    assert_alive_then_kill(pid);
}

static void exec_gives_back_what_the_old_image_held(void **state)
{
    pid_t pid;
    int rc = -1;

    (void)state;
    pid = start_living_through(EXEC);
    for (int tries = 0; rc != 0 && tries < 20000; tries++) {
        rc = box_charge(&ledger, WHOLE);
        usleep(1000);
    }
    assert_int_equal(rc, 0);
    assert_int_equal(kill(pid, 0), 0);
    kill(pid, SIGKILL);
    box_end(pid);
    vcap_ledger_close(&ledger);
}

static int charge_forever(void *arg)
{
    struct vcap_ledger l;

    (void)arg;
    if (box_open(&l, VCAP_OPEN_CLAIM) != 0)
        return 1;
    for (box_put(0, 1);;)
        if (box_charge(&l, 1) != 0 || vcap_ledger_release(&l, 0, UNIT) != 0)
            return 2;
}

static void nobody_waits_for_a_process_that_was_stopped_in_the_middle(void **state)
{
    uint64_t worst = 0;
    long sleeps = 0;
    pid_t pid;

    (void)state;
    begin(8);
    pid = box_start(charge_forever, NULL);
    assert_true(box_await(0, 1));
    for (int round = 0; round < 100; round++) {
        uint64_t before, took;
        long slept;
        int status;

        kill(pid, SIGSTOP);
        assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
        assert_true(WIFSTOPPED(status));
        before = box_clock_ns();
        slept = box_sleeps();
        assert_int_equal(box_charge(&ledger, WHOLE - 1), 0);
        assert_int_equal(box_charge(&ledger, 2), -EDQUOT); /* looks for the dead: it is not one */
        assert_int_equal(vcap_ledger_release(&ledger, 0, (WHOLE - 1) * UNIT), 0);
        sleeps += box_sleeps() - slept;
        took = box_clock_ns() - before;
        worst = took > worst ? took : worst;
        kill(pid, SIGCONT);
        usleep(200);
    }
    print_message("100 stops, worst charge and refusal %llu us, %ld sleeps\n",
                  (unsigned long long)worst / 1000, sleeps);
    assert_int_equal(sleeps, 0);
    kill(pid, SIGKILL);
    assert_int_equal(box_end(pid), 1000 + SIGKILL);
    assert_the_whole_is_ours();
    vcap_ledger_close(&ledger);
}

static void *fork_on_and_on(void *arg)
{
    (void)arg;
    while (box_get(1) == 0) {
        pid_t pid = fork();

        if (pid == 0) {
            usleep(300000); /* keeps whatever it was given */
            _exit(0);
        }
        if (pid > 0)
            box_add(2, 1);
        usleep(200);
    }
    return NULL;
}

/* Claims again and again while another thread forks; then no slot but the last may be locked. */
static int claim_in_a_fork_storm(void *arg)
{
    struct vcap_ledger l;
    pthread_t thread;
    int locked = 0, fd;

    (void)arg;
    signal(SIGCHLD, SIG_IGN);
    pthread_atfork(vcap_ledger_fork_lock, vcap_ledger_fork_unlock, vcap_ledger_fork_child);
    if (box_open(&l, VCAP_OPEN_CLAIM) != 0 ||
        pthread_create(&thread, NULL, fork_on_and_on, NULL) != 0)
        return 1;
    for (int i = 0; i < 400 || box_get(2) < 50; i++)
        if (vcap_ledger_claim(&l, VCAP_LF_MODE_ENFORCE) != 0)
            return 2;
    box_put(1, 1);
    pthread_join(thread, NULL);
    fd = open(box_path, O_RDWR | O_CLOEXEC);
    for (uint32_t s = 0; s < l.slot_count; s++)
        locked += (int32_t)s != l.slot && vcap_sys_locked(fd, VCAP_LF_LOCK_SLOT + s) == 1;
    close(fd);
    return locked == 0 ? 0 : 3;
}

static void no_child_of_a_fork_storm_inherits_a_lock(void **state)
{
    (void)state;
    assert_true(box_make(256, WHOLE));
    assert_int_equal(box_run(claim_in_a_fork_storm, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOX_TEST(killed_owners_charges_come_back_once_under_racing_reapers),
        BOX_TEST(nobody_waits_for_the_dead),
        BOX_TEST(what_a_killed_reaper_left_dead_is_finished_by_the_next),
        BOX_TEST(a_full_table_says_so_and_a_death_makes_room),
        BOX_TEST(racing_claimers_all_find_room_in_a_table_full_of_dead),
        BOX_TEST(slots_that_cannot_be_judged_are_left_alone),
        BOX_TEST(a_pid_slot_is_judged_by_number_and_start_time),
        BOX_TEST(a_pid_slot_of_our_own_former_self_is_given_back),
        BOX_TEST(a_forked_child_holds_nothing_of_its_parents),
        BOX_TEST(a_forked_child_does_not_keep_its_parents_slot),
        BOX_TEST(a_child_of_raw_clone_does_not_keep_its_parents_slot),
        BOX_TEST(closing_every_descriptor_does_not_lose_the_slot),
        BOX_TEST(the_end_of_the_main_thread_does_not_lose_the_slot),
        BOX_TEST(exec_gives_back_what_the_old_image_held),
        BOX_TEST(nobody_waits_for_a_process_that_was_stopped_in_the_middle),
        BOX_TEST(no_child_of_a_fork_storm_inherits_a_lock),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
