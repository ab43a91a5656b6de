/*
 * Starting, stepping and ending a victim; the ledger it works in.
 */
#include "tests/proof/step.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"

struct step_shared *step_shared;
struct vcap_ledger step_ledger;
static char folder[64], path[96];

void step_open(uint32_t what)
{
    char why[160];
    int rc =
        vcap_ledger_open(&step_ledger, path, NULL, what, VCAP_LF_MODE_ENFORCE, why, sizeof(why));

    if (rc != 0)
        DIE("open: %s (%d)", why, rc);
}

int step_charge(uint64_t units)
{
    return vcap_ledger_charge(&step_ledger, 0, units * UNIT, VCAP_NO_LIMIT, VCAP_REFUSE_ABOVE,
                              NULL);
}

int step_release(uint64_t units)
{
    return vcap_ledger_release(&step_ledger, 0, units * UNIT);
}

void step_make_ledger(uint32_t slots)
{
    const struct vcap_ledger_size size = {.gpus = 1, .slots = slots, .events = 16};
    const uint8_t uuid[16] = {1};
    uint32_t gpu;

    unlink(path);
    if (vcap_ledger_create(path, &size, 0, NULL, NULL) != 0)
        DIE("create failed");
    memset(&step_ledger, 0, sizeof(step_ledger));
    step_open(VCAP_OPEN_MAKE);
    if (vcap_ledger_gpu(&step_ledger, uuid, 0, 0, 0, &gpu) != 0 || gpu != 0)
        DIE("no row");
    vcap_ledger_propose_ceiling(&step_ledger, 0, CEILING * UNIT, VCAP_LF_SOURCE_ENV);
    vcap_ledger_close(&step_ledger);
}

void step_leave_a_dead_one(uint64_t units, bool in_charge, bool traffic)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        struct vcap_lf_cell *cell;

        step_open(VCAP_OPEN_CLAIM);
        for (int tries = 0; step_charge(units) != 0;
             tries++) /* traffic may be in the way for a moment */
            if (tries > 1000000)
                _exit(1);
        cell = vcap_ledger_cell(&step_ledger, (uint32_t)step_ledger.slot, 0);
        /* back to where it had moved total and not yet settled; others that moved total since saw
         * it settled, so the acknowledgement that they would have made comes first */
        if (in_charge) {
            uint64_t op = vcap_lf_op(cell->charged);

            if (traffic)
                __atomic_store_n(&cell->ack, op, __ATOMIC_SEQ_CST);
            __atomic_store_n(&cell->charged, vcap_lf_charged(0, op == 1 ? VCAP_LF_OP_MASK : op - 1),
                             __ATOMIC_SEQ_CST);
        }
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || status != 0)
        DIE("the one that was to die did not (%x)", (unsigned)status);
}

pid_t step_start(const struct step_scene *scene)
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

long step_on(pid_t pid, long most)
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

void step_kill(pid_t pid)
{
    int status;

    kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) == pid && !WIFSIGNALED(status))
        ;
}

void step_run(const struct step_scene *scene, pid_t pid, int number, long k)
{
    int status;

    if (ptrace(PTRACE_CONT, pid, NULL, number) != 0 || waitpid(pid, &status, 0) != pid)
        DIE("continue: %s", strerror(errno));
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP)
        DIE("%s, interrupted after %ld: the victim ended (%x)", scene->name, k, (unsigned)status);
}

long step_nth(long i, long count)
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

uint64_t step_deadline(void)
{
    const char *text = getenv("VRAMCAP_STEP_SECONDS");
    double seconds = text == NULL ? 4 : strtod(text, NULL);

    return seconds <= 0 ? UINT64_MAX : vcap_clock_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9);
}

static void tidy(void)
{
    unlink(path);
    rmdir(folder);
}

void step_begin(void)
{
    step_shared =
        mmap(NULL, sizeof(*step_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(folder, sizeof(folder), "%s/vramcap-step-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (step_shared == MAP_FAILED || mkdtemp(folder) == NULL)
        DIE("no place to work");
    snprintf(path, sizeof(path), "%s/ledger", folder);
    setvbuf(stdout, NULL, _IOLBF, 0);
    atexit(tidy);
}
