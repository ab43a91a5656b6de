/*
 * The real code under a tracer: a victim is stepped through claim, charge, release and reap, and killed
 * after instruction k.  Then the container is not over its ceiling, and a last process gets the whole of
 * it.  `traffic`: while another process charges, releases and reaps.
 *
 * For every k, or as many as VRAMCAP_STEP_SECONDS (per scene; 0 = all; default 4) allow, spread evenly.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"
#include "tests/proof/step.h"

static bool traffic_runs;

static void nothing(void) {}
static void two_dead(void)
{
    step_leave_a_dead_one(2, false, traffic_runs);
    step_leave_a_dead_one(3, true, traffic_runs);
}
static void one_dead(void)
{
    step_leave_a_dead_one(5, false, traffic_runs);
}
static void one_dead_in_charge(void)
{
    step_leave_a_dead_one(5, true, traffic_runs);
}
static void open_only(void)
{
    step_open(VCAP_OPEN_MAKE);
}
static void hold_nothing(void)
{
    step_open(VCAP_OPEN_CLAIM);
}
static void hold_one(void)
{
    step_open(VCAP_OPEN_CLAIM);
    while (step_charge(1) != 0)
        ;
}
static void hold_four(void)
{
    step_open(VCAP_OPEN_CLAIM);
    while (step_charge(4) != 0)
        ;
}
static void do_claim(void)
{
    step_shared->main_result = vcap_ledger_claim(&step_ledger, VCAP_LF_MODE_ENFORCE);
}
static void do_charge(void)
{
    step_shared->main_result = step_charge(2);
}
static void do_charge_most(void)
{
    step_shared->main_result = step_charge(7);
}
static void do_release(void)
{
    step_shared->main_result = step_release(3);
}

static const struct step_scene scenes[] = {
    {"claim", nothing, open_only, do_claim, 4, true},
    {"claim that reaps first", two_dead, open_only, do_claim, 2, false},
    {"charge", nothing, hold_one, do_charge, 4, true},
    {"release", nothing, hold_four, do_release, 4, true},
    {"charge that reaps", one_dead, hold_nothing, do_charge_most, 4, true},
    {"charge that reaps one killed in a charge", one_dead_in_charge, hold_nothing, do_charge_most,
     4, true},
};

/* Everybody else holds nothing: the container is not over, and we get all of it. */
static void check_whole(const struct step_scene *scene, long k)
{
    uint64_t held;
    int rc;

    step_open(VCAP_OPEN_CLAIM);
    held = vcap_ledger_held(&step_ledger, 0) / UNIT;
    if (held > CEILING)
        DIE("%s, killed after %ld: %llu of %d held", scene->name, k, (unsigned long long)held,
            CEILING);
    rc = step_charge(CEILING);
    if (rc != 0)
        DIE("%s, killed after %ld: the last process is refused all (%d), %llu of %d held",
            scene->name, k, rc, (unsigned long long)vcap_ledger_held(&step_ledger, 0) / UNIT,
            CEILING);
    if (vcap_ledger_header(&step_ledger)->anomalies != 0)
        DIE("%s, killed after %ld: an anomaly was counted", scene->name, k);
    if (step_charge(1) != -EDQUOT)
        DIE("%s, killed after %ld: more than all was granted", scene->name, k);
    if (step_release(CEILING) != 0 || vcap_ledger_held(&step_ledger, 0) != 0)
        DIE("%s, killed after %ld: something is left", scene->name, k);
    vcap_ledger_close(&step_ledger);
}

static void pause_traffic(bool pause)
{
    __atomic_store_n(&step_shared->pause, pause, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&step_shared->paused, __ATOMIC_SEQ_CST) != (int)pause)
        if (__atomic_load_n(&step_shared->failed, __ATOMIC_SEQ_CST) != 0)
            DIE("the traffic failed at line %d", step_shared->failed);
}

static void traffic(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    step_open(VCAP_OPEN_CLAIM);
    while (!step_shared->stop) {
        uint64_t units = ++step_shared->rounds % 64 == 0 ? CEILING : 1;
        int rc;

        if (__atomic_load_n(&step_shared->pause, __ATOMIC_SEQ_CST)) {
            __atomic_store_n(&step_shared->paused, 1, __ATOMIC_SEQ_CST);
            while (__atomic_load_n(&step_shared->pause, __ATOMIC_SEQ_CST) && !step_shared->stop)
                usleep(10);
            __atomic_store_n(&step_shared->paused, 0, __ATOMIC_SEQ_CST);
        }
        rc = step_charge(units);
        if (vcap_ledger_held(&step_ledger, 0) > CEILING * UNIT)
            step_shared->failed = __LINE__;
        if (rc != 0 && rc != -EDQUOT)
            step_shared->failed = __LINE__;
        if (rc == 0 && step_release(units) != 0)
            step_shared->failed = __LINE__;
        if (step_shared->failed != 0)
            _exit(1);
    }
    _exit(0);
}

static void kill_at_each(const struct step_scene *scene, bool with_traffic)
{
    uint64_t end = step_deadline();
    long count = 0, done = 0;
    pid_t other = 0, pid;

    memset(step_shared, 0, sizeof(*step_shared));
    step_make_ledger(scene->slots);
    scene->prepare();
    pid = step_start(scene);
    count = step_on(pid, EVERY_INSTRUCTION);
    step_kill(pid);
    if (step_shared->main_result != 0)
        DIE("%s: it answered %d", scene->name, step_shared->main_result);
    check_whole(scene, count);
    if (with_traffic) {
        step_make_ledger(scene->slots + 2);
        other = fork();
        if (other == 0)
            traffic();
        traffic_runs = true;
    }
    for (; done < count && vcap_clock_ns(CLOCK_MONOTONIC) < end; done++) {
        long k = step_nth(done, count);

        if (!with_traffic)
            step_make_ledger(scene->slots);
        scene->prepare();
        pid = step_start(scene);
        step_on(pid, k);
        step_kill(pid);
        if (with_traffic)
            pause_traffic(true);
        check_whole(scene, k);
        if (with_traffic)
            pause_traffic(false);
    }
    if (with_traffic) {
        step_shared->stop = 1;
        traffic_runs = false;
        waitpid(other, NULL, 0);
        if (step_shared->failed != 0)
            DIE("%s: the traffic failed at line %d", scene->name, step_shared->failed);
    }
    printf("%s: killed after %ld of %ld instructions%s", scene->name, done, count,
           with_traffic ? "" : "\n");
    if (with_traffic)
        printf(", %ld rounds of traffic\n", step_shared->rounds);
}

int main(int argc, char **argv)
{
    bool with_traffic = argc > 1 && strcmp(argv[1], "traffic") == 0;

    if (argc != 2 || (!with_traffic && strcmp(argv[1], "alone") != 0)) {
        fputs("usage: single_step alone | traffic\n", stderr);
        return 2;
    }
#ifndef __x86_64__
    puts("single_step: written for x86-64");
    return 77;
#endif
    step_begin();
    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
        if (!with_traffic || scenes[i].with_traffic)
            kill_at_each(&scenes[i], with_traffic);
    return 0;
}
