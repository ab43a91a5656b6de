/*
 * The real code under a tracer.  A victim is stepped instruction by instruction through claim,
 * charge, release and reap; after instruction k it
 *
 *     alone, traffic   is killed: then the container is not over its ceiling, and a last process
 * gets the whole of it (traffic: while another process charges, releases and reaps) signals gets a
 * signal whose handler releases and charges: nothing is lost or booked twice longjmp          gets
 * a signal whose handler leaves by siglongjmp: the thread goes on charging
 *
 * for every k, or as many as VRAMCAP_STEP_SECONDS (per scene; 0 = all; default 4) allow, spread
 * evenly.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"
#include "enforcer/ledger.h"

#define UNIT UINT64_C(512)
#define CEILING 8 /* units */
#define EVERY_INSTRUCTION 100000000L

struct shared {
    int pause;  /* the tracer asks the traffic to hold nothing and wait */
    int paused; /* its answer */
    int stop;
    int failed;       /* of the traffic: what went wrong, a line number */
    int charged_less; /* units that the handler took off */
    int charged_more; /* units that it got */
    int main_result;
    long rounds;
};

static struct shared *shared;
static char folder[64], path[96];
static struct vcap_ledger ledger; /* of whoever runs: victim, traffic or tracer */
static bool traffic_runs;
static sigjmp_buf way_out;
static volatile sig_atomic_t may_jump;

#define DIE(...)                                                                                   \
    do {                                                                                           \
        fprintf(stderr, "single_step: " __VA_ARGS__);                                              \
        fputc('\n', stderr);                                                                       \
        exit(1);                                                                                   \
    } while (0)

static uint64_t now_ns(void)
{
    return vcap_clock_ns(CLOCK_MONOTONIC);
}

static void open_ledger(uint32_t what)
{
    char why[160];
    int rc = vcap_ledger_open(&ledger, path, NULL, what, VCAP_LF_MODE_ENFORCE, why, sizeof(why));

    if (rc != 0)
        DIE("open: %s (%d)", why, rc);
}

static int charge(uint64_t units)
{
    return vcap_ledger_charge(&ledger, 0, units * UNIT, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE, NULL);
}

static int release(uint64_t units)
{
    return vcap_ledger_release(&ledger, 0, units * UNIT);
}

static void make_ledger(uint32_t slots)
{
    const struct vcap_ledger_size size = {.gpus = 1, .slots = slots, .events = 16};
    const uint8_t uuid[16] = {1};
    uint32_t gpu;

    unlink(path);
    if (vcap_ledger_create(path, &size, 0, NULL, NULL) != 0)
        DIE("create failed");
    memset(&ledger, 0, sizeof(ledger));
    open_ledger(VCAP_OPEN_MAKE);
    if (vcap_ledger_gpu(&ledger, uuid, 0, 0, 0, &gpu) != 0 || gpu != 0)
        DIE("no row");
    vcap_ledger_propose_ceiling(&ledger, 0, CEILING * UNIT, VCAP_LF_SOURCE_ENV);
    vcap_ledger_close(&ledger);
}

/* A process that charged and died; in_charge: it died in the middle of one more, total moved. */
static void leave_a_dead_one(uint64_t units, bool in_charge)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        struct vcap_lf_cell *cell;

        open_ledger(VCAP_OPEN_CLAIM);
        for (int tries = 0; charge(units) != 0;
             tries++) /* traffic may be in the way for a moment */
            if (tries > 1000000)
                _exit(1);
        cell = vcap_ledger_cell(&ledger, (uint32_t)ledger.slot, 0);
        /* back to where it had moved total and not yet settled; others that moved total since saw
         * it settled, so the acknowledgement that they would have made comes first */
        if (in_charge) {
            uint64_t op = vcap_lf_op(cell->charged);

            if (traffic_runs)
                __atomic_store_n(&cell->ack, op, __ATOMIC_SEQ_CST);
            __atomic_store_n(&cell->charged, vcap_lf_charged(0, op == 1 ? VCAP_LF_OP_MASK : op - 1),
                             __ATOMIC_SEQ_CST);
        }
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || status != 0)
        DIE("the one that was to die did not (%x)", (unsigned)status);
}

/* ---- the scenes ---- */

static void nothing(void) {}
static void two_dead(void)
{
    leave_a_dead_one(2, false);
    leave_a_dead_one(3, true);
}
static void one_dead(void)
{
    leave_a_dead_one(5, false);
}
static void one_dead_in_charge(void)
{
    leave_a_dead_one(5, true);
}
static void open_only(void)
{
    open_ledger(VCAP_OPEN_MAKE);
}
static void hold_nothing(void)
{
    open_ledger(VCAP_OPEN_CLAIM);
}
static void hold_one(void)
{
    open_ledger(VCAP_OPEN_CLAIM);
    while (charge(1) != 0)
        ;
}
static void hold_four(void)
{
    open_ledger(VCAP_OPEN_CLAIM);
    while (charge(4) != 0)
        ;
}
static void do_claim(void)
{
    shared->main_result = vcap_ledger_claim(&ledger, VCAP_LF_MODE_ENFORCE);
}
static void do_charge(void)
{
    shared->main_result = charge(2);
}
static void do_charge_most(void)
{
    shared->main_result = charge(7);
}
static void do_release(void)
{
    shared->main_result = release(3);
}

struct scene {
    const char *name;
    void (*prepare)(void); /* in the tracer */
    void (*set_up)(void);  /* in the victim, at full speed */
    void (*act)(void);     /* in the victim, stepped */
    uint32_t slots;
    bool with_traffic;
};
static const struct scene scenes[] = {
    {"claim", nothing, open_only, do_claim, 4, true},
    {"claim that reaps first", two_dead, open_only, do_claim, 2, false},
    {"charge", nothing, hold_one, do_charge, 4, true},
    {"release", nothing, hold_four, do_release, 4, true},
    {"charge that reaps", one_dead, hold_nothing, do_charge_most, 4, true},
    {"charge that reaps one killed in a charge", one_dead_in_charge, hold_nothing, do_charge_most,
     4, true},
};

/* ---- the tracer ---- */

static pid_t start_victim(const struct scene *scene)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(77);
        scene->set_up();
        raise(SIGSTOP);
        scene->act();
        raise(SIGSTOP);
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid)
        DIE("waitpid: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        puts("single_step: no ptrace here");
        exit(77);
    }
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP)
        DIE("the victim did not come to its first mark (%x)", (unsigned)status);
    return pid;
}

/* Steps at most `most` instructions; how many until the second mark, or most. */
static long step(pid_t pid, long most)
{
    for (long n = 0; n < most; n++) {
        int status;

        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) != 0 || waitpid(pid, &status, 0) != pid)
            DIE("step: %s", strerror(errno));
        if (!WIFSTOPPED(status))
            DIE("the victim ended (%x)", (unsigned)status);
        if (WSTOPSIG(status) == SIGSTOP)
            return n;
    }
    return most;
}

static void end_victim(pid_t pid)
{
    int status;

    kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) == pid && !WIFSIGNALED(status))
        ;
}

/* Everybody else holds nothing: the container is not over, and we get all of it. */
static void check_whole(const struct scene *scene, long k)
{
    uint64_t held;
    int rc;

    open_ledger(VCAP_OPEN_CLAIM);
    held = vcap_ledger_held(&ledger, 0) / UNIT;
    if (held > CEILING)
        DIE("%s, killed after %ld: %llu of %d held", scene->name, k, (unsigned long long)held,
            CEILING);
    rc = charge(CEILING);
    if (rc != 0)
        DIE("%s, killed after %ld: the last process is refused all (%d), %llu of %d held",
            scene->name, k, rc, (unsigned long long)vcap_ledger_held(&ledger, 0) / UNIT, CEILING);
    if (vcap_ledger_header(&ledger)->anomalies != 0)
        DIE("%s, killed after %ld: an anomaly was counted", scene->name, k);
    if (charge(1) != -EDQUOT)
        DIE("%s, killed after %ld: more than all was granted", scene->name, k);
    if (release(CEILING) != 0 || vcap_ledger_held(&ledger, 0) != 0)
        DIE("%s, killed after %ld: something is left", scene->name, k);
    vcap_ledger_close(&ledger);
}

/* The k that come one after the other: spread over 0..count-1, each once. */
static long nth(long i, long count)
{
    long stride = count * 618 / 1000;

    for (;; stride++) { /* coprime to count */
        long a = stride, b = count;

        while (b != 0) {
            long r = a % b;

            a = b;
            b = r;
        }
        if (a == 1)
            return (long)((long long)i * stride % count);
    }
}

static uint64_t budget_ns(void)
{
    const char *text = getenv("VRAMCAP_STEP_SECONDS");
    double seconds = text == NULL ? 4 : strtod(text, NULL);

    return seconds <= 0 ? UINT64_MAX : (uint64_t)(seconds * 1e9);
}

static void pause_traffic(bool pause)
{
    __atomic_store_n(&shared->pause, pause, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&shared->paused, __ATOMIC_SEQ_CST) != (int)pause)
        if (__atomic_load_n(&shared->failed, __ATOMIC_SEQ_CST) != 0)
            DIE("the traffic failed at line %d", shared->failed);
}

static void traffic(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_ledger(VCAP_OPEN_CLAIM);
    while (!shared->stop) {
        uint64_t units = ++shared->rounds % 64 == 0 ? CEILING : 1;
        int rc;

        if (__atomic_load_n(&shared->pause, __ATOMIC_SEQ_CST)) {
            __atomic_store_n(&shared->paused, 1, __ATOMIC_SEQ_CST);
            while (__atomic_load_n(&shared->pause, __ATOMIC_SEQ_CST) && !shared->stop)
                usleep(10);
            __atomic_store_n(&shared->paused, 0, __ATOMIC_SEQ_CST);
        }
        rc = charge(units);
        if (vcap_ledger_held(&ledger, 0) > CEILING * UNIT)
            shared->failed = __LINE__;
        if (rc != 0 && rc != -EDQUOT)
            shared->failed = __LINE__;
        if (rc == 0 && release(units) != 0)
            shared->failed = __LINE__;
        if (shared->failed != 0)
            _exit(1);
    }
    _exit(0);
}

static void kill_at_each(const struct scene *scene, bool with_traffic)
{
    uint64_t end = budget_ns();
    long count = 0, done = 0;
    pid_t other = 0, pid;

    end = end == UINT64_MAX ? end : now_ns() + end;
    memset(shared, 0, sizeof(*shared));
    make_ledger(scene->slots);
    scene->prepare();
    pid = start_victim(scene);
    count = step(pid, EVERY_INSTRUCTION);
    end_victim(pid);
    if (shared->main_result != 0)
        DIE("%s: it answered %d", scene->name, shared->main_result);
    check_whole(scene, count);
    if (with_traffic) {
        make_ledger(scene->slots + 2);
        other = fork();
        if (other == 0)
            traffic();
        traffic_runs = true;
    }
    for (; done < count && now_ns() < end; done++) {
        long k = nth(done, count);

        if (!with_traffic)
            make_ledger(scene->slots);
        scene->prepare();
        pid = start_victim(scene);
        step(pid, k);
        end_victim(pid);
        if (with_traffic)
            pause_traffic(true);
        check_whole(scene, k);
        if (with_traffic)
            pause_traffic(false);
    }
    if (with_traffic) {
        shared->stop = 1;
        traffic_runs = false;
        waitpid(other, NULL, 0);
        if (shared->failed != 0)
            DIE("%s: the traffic failed at line %d", scene->name, shared->failed);
    }
    printf("%s: killed after %ld of %ld instructions%s", scene->name, done, count,
           with_traffic ? "" : "\n");
    if (with_traffic)
        printf(", %ld rounds of traffic\n", shared->rounds);
}

/* ---- signals ---- */

static void handler_releases_and_charges(int number)
{
    int rc;

    (void)number;
    if (release(1) == 0)
        shared->charged_less = 1;
    rc = charge(1);
    if (rc == 0)
        shared->charged_more = 1;
    else if (rc != -EDEADLK)
        shared->failed = __LINE__;
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
    open_ledger(VCAP_OPEN_CLAIM);
    if (charge(3) != 0)
        _exit(1);
}

static void hold_three_and_leave(void)
{
    struct sigaction action = {.sa_handler = handler_leaves};

    sigaction(SIGUSR1, &action, NULL);
    open_ledger(VCAP_OPEN_CLAIM);
    if (charge(3) != 0)
        _exit(1);
}

static void do_charge_and_land(void)
{
    if (sigsetjmp(way_out, 1) == 0) {
        may_jump = 1;
        shared->main_result = charge(2);
        may_jump = 0;
        return;
    }
    may_jump = 0;
    /* what the thread does next; the two units may be booked or not, the three are */
    shared->main_result = charge(1);
    if (shared->main_result == 0)
        shared->main_result = release(1);
}

static void signal_at_each(const struct scene *scene, bool jumps)
{
    uint64_t end = budget_ns();
    long count, done = 0, bad = 0;
    pid_t pid;

    end = end == UINT64_MAX ? end : now_ns() + end;
    make_ledger(scene->slots);
    pid = start_victim(scene);
    count = step(pid, EVERY_INSTRUCTION);
    end_victim(pid);
    for (; done < count && now_ns() < end; done++) {
        long k = nth(done, count);
        uint64_t held, charged, expected;
        int status;

        memset(shared, 0, sizeof(*shared));
        make_ledger(scene->slots);
        pid = start_victim(scene);
        step(pid, k);
        if (ptrace(PTRACE_CONT, pid, NULL, SIGUSR1) != 0 || waitpid(pid, &status, 0) != pid)
            DIE("continue: %s", strerror(errno));
        if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP)
            DIE("%s, signal after %ld: the victim ended (%x)", scene->name, k, (unsigned)status);
        open_ledger(VCAP_OPEN_MAKE);
        held = vcap_ledger_held(&ledger, 0) / UNIT;
        charged = 0;
        for (uint32_t s = 0; s < ledger.slot_count; s++)
            charged += vcap_lf_charged_units(vcap_ledger_cell(&ledger, s, 0)->charged);
        vcap_ledger_close(&ledger);
        expected = 3 + 2;
        expected += (uint64_t)shared->charged_more;
        expected -= (uint64_t)shared->charged_less;
        if (shared->main_result != 0 || shared->failed != 0 ||
            (!jumps && (held != expected || charged != expected)) ||
            (jumps && (held < 3 || held > 5 || held != charged))) {
            bad++;
            printf(
                "%s, signal after %ld of %ld: answer %d, %llu held, %llu charged, expected %llu\n",
                scene->name, k, count, shared->main_result, (unsigned long long)held,
                (unsigned long long)charged, (unsigned long long)expected);
        }
        end_victim(pid);
    }
    printf("%s: signal after %ld of %ld instructions, %ld wrong\n", scene->name, done, count, bad);
    if (bad != 0)
        exit(1);
}

static void tidy(void)
{
    unlink(path);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

#ifndef __x86_64__
    puts("single_step: written for x86-64");
    return 77;
#endif
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(folder, sizeof(folder), "%s/vramcap-step-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (shared == MAP_FAILED || mkdtemp(folder) == NULL)
        DIE("no place to work");
    snprintf(path, sizeof(path), "%s/ledger", folder);
    setvbuf(stdout, NULL, _IOLBF, 0);
    atexit(tidy);
    if (strcmp(what, "alone") == 0 || strcmp(what, "traffic") == 0) {
        bool with_traffic = what[0] == 't';

        for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
            if (!with_traffic || scenes[i].with_traffic)
                kill_at_each(&scenes[i], with_traffic);
    } else if (strcmp(what, "signals") == 0) {
        const struct scene scene = {"charge",  nothing, hold_three_with_handler,
                                    do_charge, 4,       false};

        signal_at_each(&scene, false);
    } else if (strcmp(what, "longjmp") == 0) {
        const struct scene scene = {"charge",           nothing, hold_three_and_leave,
                                    do_charge_and_land, 4,       false};

        signal_at_each(&scene, true);
    } else {
        fputs("usage: single_step alone | traffic | signals | longjmp\n", stderr);
        return 2;
    }
    return 0;
}
