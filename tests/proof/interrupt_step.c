/*
 * The real code under a tracer: a victim is stepped through a charge or a claim and interrupted after
 * instruction k, by
 *
 *     signals   a handler that releases and charges: nothing is lost or booked twice
 *     longjmp   a handler that leaves by siglongjmp: the thread goes on charging
 *     lowered   a ceiling lowered by the host: no charge that moves total afterwards is granted above it
 *     reaped    another process that reaps all the dead: a claim still finds a slot
 *     overtaken another process that reaps the dead one whom the victim is reaping, and goes on
 *     helped    another one that got half-way with it and was killed there
 *     marked    another one that has only found out that it is dead, and is slow
 *
 * For every k, or as many as VRAMCAP_STEP_SECONDS (per scene; 0 = all; default 4) allow, spread evenly.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"
#include "enforcer/ledger_reap.h"
#include "tests/proof/step.h"

static sigjmp_buf way_out;
static volatile sig_atomic_t may_jump;

static void nothing(void) {}

static void two_dead(void)
{
    step_leave_a_dead_one(2, false, false);
    step_leave_a_dead_one(3, false, false);
}

static void handler_releases_and_charges(int number)
{
    bool held = step_ledger.local[0].lock !=
                0; /* by the frame that we interrupt: no other thread is here */
    int rc;

    (void)number;
    if (step_release(1) == 0)
        step_shared->charged_less = 1;
    rc = step_charge(1);
    if (rc == 0)
        step_shared->charged_more = 1;
    else if (rc != -EDEADLK)
        step_shared->failed = __LINE__;
    /* a lock that its holder will let go is not ours to let go: another thread may have it by then */
    if (held && rc != -EDEADLK)
        step_shared->failed = __LINE__;
}

static void handler_leaves(int number)
{
    (void)number;
    if (may_jump)
        siglongjmp(way_out, 1);
}

static void hold_three_with_handler(void)
{
    struct sigaction action = {.sa_handler = handler_releases_and_charges};

    sigaction(SIGUSR1, &action, NULL);
    step_open(VCAP_OPEN_CLAIM);
    if (step_charge(3) != 0)
        _exit(1);
}

static void hold_three_and_leave(void)
{
    struct sigaction action = {.sa_handler = handler_leaves};

    sigaction(SIGUSR1, &action, NULL);
    step_open(VCAP_OPEN_CLAIM);
    if (step_charge(3) != 0)
        _exit(1);
}

static void do_charge_and_land(void)
{
    if (sigsetjmp(way_out, 1) == 0) {
        may_jump = 1;
        step_shared->main_result = step_charge(2);
        may_jump = 0;
        return;
    }
    may_jump = 0;
    /* what the thread does next; the two units may be booked or not, the three are */
    step_shared->main_result = step_charge(1);
    if (step_shared->main_result == 0)
        step_shared->main_result = step_release(1);
}

static void one_dead_in_charge(void)
{
    step_leave_a_dead_one(5, true, false);
}

static void hold_nothing(void)
{
    step_open(VCAP_OPEN_CLAIM);
}

static void hold_three(void)
{
    step_open(VCAP_OPEN_CLAIM);
    if (step_charge(3) != 0)
        _exit(1);
}

static void open_only(void)
{
    step_open(VCAP_OPEN_MAKE);
}

static void do_charge(void)
{
    step_shared->main_result = step_charge(2);
}

static void do_charge_most(void)
{
    step_shared->main_result = step_charge(7);
}

static void do_claim(void)
{
    step_shared->main_result = vcap_ledger_claim(&step_ledger, VCAP_LF_MODE_ENFORCE);
}

/* What total and the slots say, in units. */
static void look(uint64_t *held, uint64_t *charged)
{
    step_open(VCAP_OPEN_MAKE);
    *held = vcap_ledger_held(&step_ledger, 0) / UNIT;
    *charged = 0;
    for (uint32_t s = 0; s < step_ledger.slot_count; s++)
        *charged += vcap_lf_charged_units(vcap_ledger_cell(&step_ledger, s, 0)->charged);
}

/* One interruption after k; NULL, or what is wrong. */
typedef const char *(*interruption)(const struct step_scene *scene, pid_t pid, long k);

static const char *by_signal(const struct step_scene *scene, pid_t pid, long k)
{
    uint64_t held, charged, expected;

    step_run(scene, pid, SIGUSR1, k);
    look(&held, &charged);
    vcap_ledger_close(&step_ledger);
    expected = 3 + 2 + (uint64_t)step_shared->charged_more - (uint64_t)step_shared->charged_less;
    if (step_shared->main_result != 0 || step_shared->failed != 0)
        return "a wrong answer";
    return held == expected && charged == expected ? NULL : "a charge or a release is lost";
}

static const char *by_longjmp(const struct step_scene *scene, pid_t pid, long k)
{
    uint64_t held, charged;

    step_run(scene, pid, SIGUSR1, k);
    look(&held, &charged);
    vcap_ledger_close(&step_ledger);
    if (step_shared->main_result != 0)
        return "the thread cannot charge any more";
    return held >= 3 && held <= 5 && held == charged ? NULL : "total and charges differ";
}

static const char *by_lower_ceiling(const struct step_scene *scene, pid_t pid, long k)
{
    uint64_t before, after, charged;

    look(&before, &charged);
    __atomic_store_n(&step_ledger.gpus[0].ceiling, vcap_lf_ceiling(4, VCAP_LF_SOURCE_HOST),
                     __ATOMIC_SEQ_CST);
    vcap_ledger_close(&step_ledger);
    step_run(scene, pid, 0, k);
    look(&after, &charged);
    vcap_ledger_close(&step_ledger);
    if (step_shared->main_result == -EDQUOT)
        return after == 3 && charged == 3 ? NULL : "a refused charge is booked";
    if (step_shared->main_result != 0)
        return "a wrong answer";
    /* granted: only where total had moved before */
    return before == 5 && after == 5 && charged == 5 ? NULL : "granted above the ceiling";
}

static const char *by_reaper(const struct step_scene *scene, pid_t pid, long k)
{
    uint64_t held, charged;

    look(&held, &charged);
    vcap_ledger_reap_all(&step_ledger);
    vcap_ledger_close(&step_ledger);
    step_run(scene, pid, 0, k);
    return step_shared->main_result == 0 ? NULL : "no slot, though all are dead";
}

static const char *by_overtaker(const struct step_scene *scene, pid_t pid, long k)
{
    uint64_t mine = 0, held, charged;
    const char *wrong = NULL;

    step_open(VCAP_OPEN_CLAIM);
    if (step_charge(CEILING) == 0) {
        mine = 2;
        step_release(CEILING - mine);
    }
    step_run(scene, pid, 0, k);
    held = vcap_ledger_held(&step_ledger, 0) / UNIT;
    charged = 0;
    for (uint32_t s = 0; s < step_ledger.slot_count; s++)
        charged += vcap_lf_charged_units(vcap_ledger_cell(&step_ledger, s, 0)->charged);
    if (step_shared->main_result != (mine == 0 ? 0 : -EDQUOT))
        wrong = "a wrong answer";
    else if (held != mine + (mine == 0 ? 7 : 0) || held != charged)
        wrong = "the dead one was reaped twice, or not";
    else if (vcap_ledger_header(&step_ledger)->anomalies != 0)
        wrong = "an anomaly was counted";
    vcap_ledger_close(&step_ledger);
    return wrong;
}

/* What any reaper does first: settles the move that was made, and says that it will take all off. */
static const char *by_helper(const struct step_scene *scene, pid_t pid, long k)
{
    uint64_t held, charged;

    look(&held, &charged);
    for (uint32_t s = 0; s < step_ledger.slot_count; s++) {
        struct vcap_lf_cell *cell = vcap_ledger_cell(&step_ledger, s, 0);
        uint64_t c = cell->charged, i = cell->intent, op = vcap_lf_op(i);
        uint64_t settled = vcap_lf_charged(5, op);

        if (vcap_lf_state_status(step_ledger.slots[s].state) == VCAP_LF_DEAD &&
            vcap_lf_charged_units(c) == 0 && vcap_lf_intent_delta(i) == 5 &&
            op == vcap_lf_next_op(vcap_lf_op(c)) && vcap_lf_op(step_ledger.gpus[0].total) == op &&
            vcap_lf_total_slot(step_ledger.gpus[0].total) == s) {
            __atomic_store_n(&cell->charged, settled, __ATOMIC_SEQ_CST);
            __atomic_store_n(&cell->intent, vcap_lf_intent(-5, vcap_lf_next_op(op)),
                             __ATOMIC_SEQ_CST);
        }
    }
    step_run(scene, pid, 0, k);
    held = vcap_ledger_held(&step_ledger, 0) / UNIT;
    vcap_ledger_close(&step_ledger);
    if (step_shared->main_result != 0)
        return "refused, though all others are dead";
    return held == 7 ? NULL : "the dead one was reaped twice, or not";
}

/* Whoever says first that it is dead need not be the first to give back what it held. */
static const char *by_marker(const struct step_scene *scene, pid_t pid, long k)
{
    uint64_t held, charged;

    look(&held, &charged);
    for (uint32_t s = 0; s < step_ledger.slot_count; s++) {
        struct vcap_lf_slot *slot = &step_ledger.slots[s];
        uint64_t state = slot->state;

        if (vcap_lf_state_status(state) == VCAP_LF_LIVE && slot->pid != (uint32_t)pid)
            __atomic_store_n(&slot->state,
                             vcap_lf_state(vcap_lf_state_generation(state),
                                           (enum vcap_lf_kind)vcap_lf_state_kind(state),
                                           VCAP_LF_DEAD),
                             __ATOMIC_SEQ_CST);
    }
    step_run(scene, pid, 0, k);
    held = vcap_ledger_held(&step_ledger, 0) / UNIT;
    vcap_ledger_close(&step_ledger);
    if (step_shared->main_result != 0)
        return "refused, though all others are dead";
    return held == (scene->act == do_claim ? 0 : 7) ? NULL : "the dead were reaped twice, or not";
}

static void interrupt_at_each(const struct step_scene *scene, interruption interrupt)
{
    uint64_t end = step_deadline();
    long count, done = 0, bad = 0;
    pid_t pid;

    step_make_ledger(scene->slots);
    scene->prepare();
    pid = step_start(scene);
    count = step_on(pid, EVERY_INSTRUCTION);
    step_kill(pid);
    for (; done < count && vcap_clock_ns(CLOCK_MONOTONIC) < end; done++) {
        long k = step_nth(done, count);
        const char *wrong;

        memset(step_shared, 0, sizeof(*step_shared));
        step_make_ledger(scene->slots);
        scene->prepare();
        pid = step_start(scene);
        /* the second mark itself is not to be passed */
        wrong = step_on(pid, k) == k ? interrupt(scene, pid, k) : NULL;
        if (wrong != NULL && ++bad <= 20)
            printf("%s, interrupted after %ld of %ld instructions: %s (answer %d)\n", scene->name,
                   k, count, wrong, step_shared->main_result);
        step_kill(pid);
    }
    printf("%s: interrupted after %ld of %ld instructions, %ld wrong\n", scene->name, done, count,
           bad);
    if (bad != 0)
        exit(1);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        struct step_scene scene;
        interruption interrupt;
    } kinds[] = {
        {"signals", {"charge", nothing, hold_three_with_handler, do_charge, 4, false}, by_signal},
        {"longjmp",
         {"charge", nothing, hold_three_and_leave, do_charge_and_land, 4, false},
         by_longjmp},
        {"lowered", {"charge", nothing, hold_three, do_charge, 4, false}, by_lower_ceiling},
        {"overtaken",
         {"charge that reaps", one_dead_in_charge, hold_nothing, do_charge_most, 4, false},
         by_overtaker},
        {"helped",
         {"charge that reaps", one_dead_in_charge, hold_nothing, do_charge_most, 4, false},
         by_helper},
        {"marked",
         {"charge that reaps", one_dead_in_charge, hold_nothing, do_charge_most, 4, false},
         by_marker},
        {"marked", {"claim that reaps first", two_dead, open_only, do_claim, 2, false}, by_marker},
        {"reaped", {"claim that reaps first", two_dead, open_only, do_claim, 2, false}, by_reaper},
    };

#ifndef __x86_64__
    puts("interrupt_step: written for x86-64");
    return 77;
#endif
    bool known = false;

    for (size_t i = 0; argc == 2 && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(argv[1], kinds[i].name) != 0)
            continue;
        if (!known)
            step_begin();
        known = true;
        interrupt_at_each(&kinds[i].scene, kinds[i].interrupt);
    }
    if (known)
        return 0;
    fputs("usage: interrupt_step signals | longjmp | lowered | reaped | overtaken | helped | "
          "marked\n",
          stderr);
    return 2;
}
