/*
 * Liveness and reaping.  Invariants:
 *   - only a slot whose owner is shown to be gone leaves LIVE; unknown counts as alive;
 *   - nobody but its owner ever takes a slot's lock: it is only asked about;
 *   - every step is a CAS on a word read before, so that any number of reapers, some of them killed in
 *     the middle, together do exactly one release of what the dead one held.
 * Must not: wait for anybody, hold a lock, log.
 */
#include "enforcer/ledger_reap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "enforcer/kernel.h"
#include "enforcer/ledger_word.h"

#define LOOKS 4 /* at a slot whose state changes meanwhile; a death takes one more */

uint64_t vcap_pidns_inode(void)
{
    struct stat st;

    return vcap_sys_stat("/proc/self/ns/pid", &st, 0) == 0 ? (uint64_t)st.st_ino : 0;
}

uint64_t vcap_timens_inode(void)
{
    struct stat st;

    return vcap_sys_stat("/proc/self/ns/time", &st, 0) == 0 ? (uint64_t)st.st_ino : 0;
}

/* Is /proc that of our own PID namespace?  After unshare(2) or in a bare sandbox it may be another's. */
static bool proc_is_ours(void)
{
    char self[16];
    int saved = errno;
    ssize_t length = readlink("/proc/self", self, sizeof(self) - 1);
    pid_t pid = 0;

    errno = saved;
    for (ssize_t i = 0; i < length; i++)
        pid = pid * 10 + (self[i] - '0');
    return length > 0 && pid == getpid();
}

uint64_t vcap_start_time(pid_t pid)
{
    char path[48], text[512];
    const char *at;
    uint64_t value = 0;
    int saved = errno;
    ssize_t length;
    int fd;

    if (pid == getpid())
        snprintf(path, sizeof(path), "/proc/self/stat");
    else if (proc_is_ours())
        snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    else
        return 0;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        errno = saved;
        return 0;
    }
    length = read(fd, text, sizeof(text) - 1);
    close(fd);
    errno = saved;
    if (length <= 0)
        return 0;
    text[length] = 0;
    /* the command is in parentheses and may hold anything, also ")": count fields after the last
     * one */
    at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL)
        return 0;
    for (at++; *at >= '0' && *at <= '9'; at++)
        value = value * 10 + (uint64_t)(*at - '0');
    return value;
}

/* Is the process of this identity gone, as far as its number says?  Only for our own PID namespace.
 */
static enum vcap_life life_by_pid(const struct vcap_lf_slot *slot, uint64_t my_pidns, bool thorough)
{
    uint64_t start;

    if (my_pidns == 0 || slot->pidns != my_pidns || slot->pid == 0)
        return VCAP_LIFE_UNKNOWN;
    if (!vcap_sys_pid_exists((pid_t)slot->pid))
        return VCAP_LIFE_DEAD;
    if (!thorough || slot->start_time == 0 ||
        (slot->timens != 0 && slot->timens != vcap_timens_inode()))
        return VCAP_LIFE_ALIVE; /* another time namespace shows other start times */
    start = vcap_start_time((pid_t)slot->pid);
    return start != 0 && start != slot->start_time ? VCAP_LIFE_DEAD : VCAP_LIFE_ALIVE;
}

/*
 * thorough: also compare start times (a file of /proc per slot).  Under LOCK that only finds a slot
 * whose lock went to a child of raw clone(2) and whose number was given to another process since.
 */
static enum vcap_life slot_life(const struct vcap_lf_slot *slot, uint32_t number, int fd,
                                uint64_t my_pidns, bool thorough)
{
    int locked;

    if (vcap_lf_state_kind(slot->state) == VCAP_LF_KIND_PID)
        return life_by_pid(slot, my_pidns, true);
    if (vcap_lf_state_kind(slot->state) != VCAP_LF_KIND_LOCK)
        return VCAP_LIFE_UNKNOWN;
    locked = fd < 0 ? -EBADF : vcap_sys_locked(fd, VCAP_LF_LOCK_SLOT + number);
    if (locked == 0)
        return VCAP_LIFE_DEAD;
    if (locked <
        0) /* no descriptor to ask with: what its number shows is proof enough of a death */
        return life_by_pid(slot, my_pidns, thorough) == VCAP_LIFE_DEAD ? VCAP_LIFE_DEAD
                                                                       : VCAP_LIFE_UNKNOWN;
    return life_by_pid(slot, my_pidns, thorough) == VCAP_LIFE_DEAD ? VCAP_LIFE_DEAD
                                                                   : VCAP_LIFE_ALIVE;
}

enum vcap_life vcap_slot_life(const struct vcap_lf_slot *slot, uint32_t number, int fd,
                              uint64_t my_pidns)
{
    return slot_life(slot, number, fd, my_pidns, true);
}

int vcap_ledger_reopen(const struct vcap_ledger *l, int flags)
{
    struct stat st = {0};
    int saved = errno;
    int fd = open(l->path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    int rc = fd < 0 ? -errno : vcap_sys_fstat(fd, &st);

    if (rc == 0 && (st.st_dev != l->device || st.st_ino != l->inode))
        rc = -ESTALE;
    if (rc != 0 && fd >= 0)
        close(fd);
    errno = saved;
    return rc == -ENOENT ? -ESTALE : rc != 0 ? rc : fd;
}

/* Makes the move `intent` of the dead slot d, unless it has been made.  c: charged[d] as read
 * before. */
static void move_for_dead(struct vcap_ledger *l, uint32_t gpu, uint32_t d, uint64_t c,
                          uint64_t intent)
{
    struct vcap_lf_cell *cell = vcap_ledger_cell(l, d, gpu);
    uint64_t *total = &l->gpus[gpu].total;
    uint64_t op = vcap_lf_op(intent);
    uint64_t take = (uint64_t)-vcap_lf_intent_delta(intent);

    for (;;) {
        uint64_t t = vcap_load(total);
        uint64_t units = vcap_lf_total_units(t);

        /* in this order: whoever overwrites our move in total has set ack before */
        if (vcap_lf_total_slot(t) == d && vcap_lf_op(t) == op)
            return;
        if (vcap_load(&cell->ack) == op || vcap_load(&cell->charged) != c)
            return;
        if (!vcap_word_acknowledge(l, gpu, d, t))
            continue;
        if (vcap_cas(total, t, vcap_lf_total(units > take ? units - take : 0, d, op))) {
            if (units < take)
                vcap_ledger_anomaly(l, gpu, (take - units) * VCAP_LF_UNIT_BYTES,
                                    "total below a dead charge");
            return;
        }
    }
}

/* Empties one cell of a dead slot.  False: the state moved on, another reaper has finished. */
static bool reap_cell(struct vcap_ledger *l, uint32_t gpu, uint32_t d, uint64_t state,
                      uint64_t *given_back)
{
    struct vcap_lf_cell *cell = vcap_ledger_cell(l, d, gpu);

    for (;;) {
        uint64_t c = vcap_load(&cell->charged);
        uint64_t i = vcap_load(&cell->intent);
        uint64_t next = vcap_lf_next_op(vcap_lf_op(c));
        uint64_t units = vcap_lf_charged_units(c);
        uint64_t wanted;

        if (vcap_load(&l->slots[d].state) != state)
            return false;
        if (vcap_load(&cell->charged) !=
            c) /* i may belong to a later charge: needs three processes */
            continue;
        if (vcap_lf_op(i) == next) {
            uint64_t t = vcap_load(&l->gpus[gpu].total);
            bool done = vcap_lf_total_slot(t) == d && vcap_lf_op(t) == next;

            done = done || vcap_load(&cell->ack) == next;
            if (vcap_load(&cell->charged) != c || vcap_load(&cell->intent) != i)
                continue;
            if (done) {
                int64_t after = (int64_t)units + vcap_lf_intent_delta(i);

                vcap_cas(&cell->charged, c, vcap_lf_charged(after > 0 ? (uint64_t)after : 0, next));
                continue;
            }
        }
        if (units == 0)
            return true;
        wanted = vcap_lf_intent(-(int64_t)units, next);
        if (!vcap_cas(&cell->intent, i, wanted))
            continue;
        move_for_dead(l, gpu, d, c, wanted);
        if (vcap_cas(&cell->charged, c, vcap_lf_charged(0, next)))
            *given_back += units;
    }
}

static void reap_slot(struct vcap_ledger *l, uint32_t d)
{
    struct vcap_lf_slot *slot = &l->slots[d];
    char command[sizeof(slot->command)];
    struct vcap_event event = {.kind = VCAP_LF_EVENT_REAP, .pid = slot->pid, .name = command};
    uint64_t state = vcap_load(&slot->state);

    memcpy(command, slot->command, sizeof(command) - 1);
    command[sizeof(command) - 1] = 0;
    if (vcap_lf_state_status(state) != VCAP_LF_DEAD)
        return;
    for (uint32_t gpu = 0; gpu < l->gpu_count; gpu++) {
        uint64_t units = 0;

        if (!reap_cell(l, gpu, d, state, &units))
            return;
        if (units != 0) {
            event.gpu = gpu;
            event.bytes = units * VCAP_LF_UNIT_BYTES;
            event.held = vcap_ledger_held(l, gpu);
            vcap_ledger_event(l, &event);
        }
    }
    vcap_cas(&slot->state, state,
             vcap_lf_state(vcap_lf_state_generation(state), VCAP_LF_KIND_NONE, VCAP_LF_FREE));
}

/* A slot of kind PID that this process had before it executed itself: same number and start time, but it
 * is not the one that we hold. */
static bool left_by_exec(const struct vcap_ledger *l, const struct vcap_lf_slot *slot)
{
    return vcap_lf_state_kind(slot->state) == VCAP_LF_KIND_PID && l->pidns != 0 &&
           slot->pidns == l->pidns && slot->pid == (uint32_t)getpid();
}

uint32_t vcap_ledger_reap_all(struct vcap_ledger *l)
{
    static uint64_t thorough_ns; /* CAS by whoever takes the second's thorough look */
    uint64_t now = vcap_clock_ns(CLOCK_MONOTONIC_COARSE), last = vcap_load(&thorough_ns);
    bool thorough = now - last > UINT64_C(1000000000) && vcap_cas(&thorough_ns, last, now);
    int fd = -1, cancel = vcap_cancel_off();
    uint32_t reaped = 0;
    bool opened = false;

    for (uint32_t s = 0; s < l->slot_count; s++) {
        struct vcap_lf_slot *slot = &l->slots[s];
        struct vcap_lf_slot copy;
        uint64_t state = vcap_load(&slot->state);

        /* Who has just become DEAD under us is still to be reaped: whoever said so may be slow, and our
         * caller is refused for what we leave.  Not for ever: whoever writes garbage there goes on. */
        for (int looks = 0; looks < LOOKS && vcap_lf_state_status(state) == VCAP_LF_LIVE;
             looks++, state = vcap_load(&slot->state)) {
            if (__atomic_load_n(&l->slot, __ATOMIC_ACQUIRE) == (int32_t)s &&
                state == __atomic_load_n(&l->state, __ATOMIC_ACQUIRE))
                break;
            if (!opened)
                fd = vcap_ledger_reopen(l, O_RDONLY); /* -errno: then only by number */
            opened = true;
            memcpy(&copy, slot, sizeof(copy));
            if (vcap_load(&slot->state) != state || copy.state != state)
                continue;
            if (!left_by_exec(l, &copy) &&
                slot_life(&copy, s, fd, l->pidns, thorough) != VCAP_LIFE_DEAD)
                break;
            vcap_cas(&slot->state, state,
                     vcap_lf_state(vcap_lf_state_generation(state),
                                   (enum vcap_lf_kind)vcap_lf_state_kind(state), VCAP_LF_DEAD));
        }
        if (vcap_lf_state_status(state) != VCAP_LF_DEAD)
            continue;
        reap_slot(l, s);
        reaped++;
    }
    if (fd >= 0) {
        int saved = errno;

        close(fd);
        errno = saved;
    }
    vcap_cancel_back(cancel);
    return reaped;
}

void vcap_ledger_reap_sometimes(struct vcap_ledger *l)
{
    static uint64_t last_ns; /* CAS by whoever looks next */
    uint64_t now = vcap_clock_ns(CLOCK_MONOTONIC_COARSE), last = vcap_load(&last_ns);

    if (now - last >= UINT64_C(10000000) && vcap_cas(&last_ns, last, now))
        vcap_ledger_reap_all(l);
}
