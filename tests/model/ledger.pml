/*
 * The ledger's protocol as enforcer/ledger.c, ledger_word.h, ledger_reap.c and take_slot() in
 * ledger_file.c have it: one GPU, PROCESSES processes with LIVES lives of OPS operations each, and
 * one more slot whose owner is dead from the start.  Every load, store and compare-and-swap of a
 * shared word is a step of its own; a process may be killed before any step, which drops its lock.
 *
 * Shown: total is never above the ceiling, never below what living processes hold by charges that
 * have returned, a FREE slot holds nothing, and after the last death a reap leaves nothing.
 *
 * run_model.sh defines MUTANT_... to break one step each; every one of them must be caught.
 */
#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef LIVES
#define LIVES 1
#endif
#ifndef OPS
#define OPS 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef SLOTS
#define SLOTS PROCESSES /* the dead one's included: who finds none free must reap and reuse */
#endif
#define CEILING 2

/* words: total = {amount, slot, op}, charged = {amount, op}, intent = {delta, op} */
#define TOTAL(amount, slot, op) ((amount) << 6 | (slot) << 4 | (op))
#define TOTAL_AMOUNT(w) ((w) >> 6)
#define TOTAL_SLOT(w) ((w) >> 4 & 3)
#define OP(w) ((w) & 15)
#define CHARGED(amount, op) ((amount) << 4 | (op))
#define AMOUNT(w) ((w) >> 4)
#define INTENT(delta, op) (((delta) + 4) << 4 | (op))
#define DELTA(w) (((w) >> 4) - 4)

#define FREE 0
#define LIVE 1
#define DEAD 2
#define STATE(generation, status) ((generation) << 2 | (status))
#define STATUS(w) ((w) & 3)
#define GENERATION(w) ((w) >> 2)
#define NOBODY 9
#define NOWHERE 15

byte total;
byte charged[SLOTS], intent[SLOTS], ack[SLOTS], state[SLOTS];
byte lock[SLOTS];      /* the kernel's: who holds it */
byte held[PROCESSES];  /* what a process may use: set after a charge, taken off before a release */
chan die[PROCESSES] = [0] of { bit };
byte finished;

inline check()
{
    assert(TOTAL_AMOUNT(total) <= CEILING);
#if PROCESSES == 3
    assert(TOTAL_AMOUNT(total) >= held[0] + held[1] + held[2]);
#else
    assert(TOTAL_AMOUNT(total) >= held[0] + held[1]);
#endif
}

/* Before slot d overwrites t: ok = 0 means from the top. */
inline acknowledge(d)
{
#ifdef MUTANT_NO_ACK
    ok = 1;
#else
    if
    :: TOTAL_SLOT(t) == d || OP(charged[TOTAL_SLOT(t)]) == OP(t) -> ok = 1
    :: else ->
        a = ack[TOTAL_SLOT(t)];
        if
#ifndef MUTANT_ACK_WITHOUT_REREAD
        :: total != t -> ok = 0
#endif
        :: else ->
            atomic {
                if
                :: a == OP(t) -> ok = 1
                :: a != OP(t) && ack[TOTAL_SLOT(t)] == a -> ack[TOTAL_SLOT(t)] = OP(t); ok = 1
                :: else -> ok = 0
                fi
            }
        fi;
        a = 0
    fi
#endif
}

/* One round's end: CAS(total, t, t + delta by (d, op)); over = 1 if it was done. */
inline swap_total(d, op, delta)
{
    acknowledge(d);
    if
    :: ok ->
        atomic {
            if
            :: total == t ->
                assert(TOTAL_AMOUNT(t) + (delta) >= 0);
                total = TOTAL(TOTAL_AMOUNT(t) + (delta), d, op);
                over = 1;
                check()
            :: else
            fi
        }
    :: else
    fi;
    ok = 0
}

/* The owner's whole operation; refused = 1 if there was no room. */
inline operate(delta)
{
    atomic { over = 0; refused = 0; c = charged[me] }
#ifdef MUTANT_CHARGED_BEFORE_TOTAL
    intent[me] = INTENT(delta, OP(c) + 1);
    charged[me] = CHARGED(AMOUNT(c) + (delta), OP(c) + 1);
#elif !defined(MUTANT_INTENT_AFTER_TOTAL)
    intent[me] = INTENT(delta, OP(c) + 1);
#endif
    do
    :: atomic {
        t = total;
        if
        :: (delta) > 0 && TOTAL_AMOUNT(t) + (delta) > CEILING -> refused = 1
        :: else
        fi
       };
       if
       :: refused -> break
       :: else
       fi;
       swap_total(me, OP(c) + 1, delta);
       if
       :: over -> break
       :: else
       fi
    od;
    if
    :: refused
    :: else ->
#ifdef MUTANT_INTENT_AFTER_TOTAL
        intent[me] = INTENT(delta, OP(c) + 1);
#endif
        charged[me] = CHARGED(AMOUNT(c) + (delta), OP(c) + 1);
        if
        :: ack[me] != 0 -> ack[me] = 0
        :: else
        fi
    fi;
    atomic { t = 0; c = 0; over = 0 }
}

/* The dead slot d's move {-AMOUNT(c), OP(c) + 1}, unless it has been made. */
inline move_for_dead(d)
{
    over = 0;
    do
    :: over -> break
    :: else ->
#ifdef MUTANT_ACK_BEFORE_TOTAL
       atomic { over = ack[d] == OP(c) + 1; t = 0 };
       t = total;
       over = over || (TOTAL_SLOT(t) == d && OP(t) == OP(c) + 1);
#else
       atomic { t = total; over = TOTAL_SLOT(t) == d && OP(t) == OP(c) + 1 };
       if
       :: !over -> over = ack[d] == OP(c) + 1
       :: else
       fi;
#endif
       if
       :: !over -> over = charged[d] != c
       :: else
       fi;
       if
       :: !over -> swap_total(d, OP(c) + 1, 0 - AMOUNT(c))
       :: else
       fi
    od;
    atomic { over = 0; t = 0 }
}

/* Step by step; at = 0 leaves, 1 goes on from the top, 2 makes the move, 3 has an empty cell. */
inline reap(d)
{
    st = state[d];
    if
    :: STATUS(st) == LIVE && lock[d] == NOBODY ->
        atomic {
            if
            :: state[d] == st -> state[d] = STATE(GENERATION(st), DEAD)
            :: else
            fi
        }
    :: else
    fi;
    atomic { st = state[d]; at = (STATUS(st) == DEAD -> 1 : 0) };
    do
    :: at == 1 ->
        c = charged[d];
        i = intent[d];
        if
#ifndef MUTANT_STATE_NOT_REREAD
        :: state[d] != st -> at = 0
#endif
        :: else ->
            if
#ifndef MUTANT_CHARGED_NOT_REREAD
            :: charged[d] != c -> skip
#endif
            :: else ->
                at = (AMOUNT(c) == 0 -> 3 : 2);
                if
                :: OP(i) == OP(c) + 1 ->
#ifdef MUTANT_ACK_BEFORE_TOTAL
                    ok = ack[d] == OP(i);
                    ok = ok || (TOTAL_SLOT(total) == d && OP(total) == OP(i));
#else
                    ok = TOTAL_SLOT(total) == d && OP(total) == OP(i);
                    if
                    :: !ok -> ok = ack[d] == OP(i)
                    :: else
                    fi;
#endif
                    if
                    :: charged[d] != c -> at = 1
                    :: else ->
                        if
                        :: intent[d] != i -> at = 1
                        :: else ->
                            if
                            :: ok ->
                                atomic {
                                    at = 1;
                                    if
                                    :: charged[d] == c ->
                                        charged[d] = CHARGED(AMOUNT(c) + DELTA(i), OP(i))
                                    :: else
                                    fi
                                }
                            :: else
                            fi
                        fi
                    fi;
                    ok = 0
                :: else
                fi
            fi
        fi
    :: at == 2 ->
        atomic {
            at = 1;
            if
            :: intent[d] == i -> intent[d] = INTENT(0 - AMOUNT(c), OP(c) + 1); at = 4
            :: else
            fi
        };
        if
        :: at == 4 ->
            move_for_dead(d);
            atomic {
                at = 1;
                if
                :: charged[d] == c -> charged[d] = CHARGED(0, OP(c) + 1)
                :: else
                fi
            }
        :: else
        fi
    :: at == 3 ->
        atomic {
            at = 0;
            if
            :: state[d] == st ->
                state[d] = STATE(GENERATION(st), FREE);
                assert(AMOUNT(charged[d]) == 0)
            :: else
            fi
        }
    :: at == 0 -> break
    od;
    atomic { c = 0; i = 0; st = 0; at = 0 }
}

inline reap_others()
{
    d = 0;
    do
    :: d == SLOTS -> break
    :: d < SLOTS ->
        if
        :: d != me -> reap(d)
        :: else
        fi;
        d++
    od;
    d = 0
}

/* Takes a FREE slot; me = NOWHERE if that failed. */
inline claim(p)
{
    if
    :: atomic { STATUS(state[0]) == FREE -> d = 0; st = state[0] }
    :: atomic { STATUS(state[0]) != FREE && STATUS(state[1]) == FREE -> d = 1; st = state[1] }
#if SLOTS == 3
    :: atomic { STATUS(state[0]) != FREE && STATUS(state[1]) != FREE && STATUS(state[2]) == FREE ->
        d = 2;
        st = state[2]
       }
    :: atomic { STATUS(state[0]) != FREE && STATUS(state[1]) != FREE && STATUS(state[2]) != FREE ->
        d = NOWHERE
       }
#else
    :: atomic { STATUS(state[0]) != FREE && STATUS(state[1]) != FREE -> d = NOWHERE }
#endif
    fi;
    if
    :: d == NOWHERE
    :: else ->
        atomic {
            if
            :: lock[d] == NOBODY -> lock[d] = p
            :: else -> d = NOWHERE
            fi
        };
        if
        :: d == NOWHERE
        :: else ->
            /* the state again, under the lock, before the identity is written */
            if
#ifndef MUTANT_STATE_NOT_REREAD_UNDER_LOCK
            :: state[d] != st -> lock[d] = NOBODY
#endif
            :: else ->
#ifdef MUTANT_STATE_NOT_REREAD_UNDER_LOCK
                atomic { state[d] = STATE(GENERATION(st) + 1, LIVE); me = d }
#else
                atomic {
                    if
                    :: state[d] == st -> state[d] = STATE(GENERATION(st) + 1, LIVE); me = d
                    :: else -> lock[d] = NOBODY
                    fi
                }
#endif
            fi
        fi
    fi;
    atomic { d = 0; st = 0 }
}

/* The kernel's part: the lock goes when nothing of the process can run any more. */
inline drop_lock(p)
{
    if
    :: lock[0] == p -> lock[0] = NOBODY
    :: lock[1] == p -> lock[1] = NOBODY
#if SLOTS == 3
    :: lock[2] == p -> lock[2] = NOBODY
#endif
    :: else
    fi
}

/* A rendezvous, because any other escape of `unless` would go before all else: the moment is chosen
 * out here. */
proctype killer()
{
    byte kills = KILLS;

    do
    :: kills == 0 -> break
    :: else ->
end:    if
        :: die[0]!0
        :: die[1]!0
#if PROCESSES == 3
        :: die[2]!0
#endif
        fi;
        kills--
    od
}

proctype process(byte p)
{
    byte me, c, i, t, a, st, at, d, lives, ops;
    bit ok, over, refused;

    do
    :: lives == LIVES -> break
    :: lives < LIVES ->
        {
            me = NOWHERE;
            claim(p);
            if
            :: me == NOWHERE -> reap_others(); claim(p)
            :: else
            fi;
            do
            :: me == NOWHERE || ops == OPS -> break
            :: me != NOWHERE && ops < OPS ->
                ops++;
                if
                :: held[p] == 0 ->
                    operate(1);
                    if
                    :: refused ->
                        reap_others();
                        operate(1)
                    :: else
                    fi;
                    if
                    :: refused
                    :: else -> atomic { held[p] = 1; check() }
                    fi
                :: held[p] == 1 ->
                    held[p] = 0;
                    operate(0 - 1)
                fi;
                refused = 0
            od;
            atomic { drop_lock(p); held[p] = 0; me = 0; ops = 0; lives++ }
        } unless {
            atomic {
                die[p]?_ ->
                drop_lock(p);
                held[p] = 0;
                me = 0; c = 0; i = 0; t = 0; a = 0; st = 0; at = 0; d = 0; ops = 0;
                ok = 0; over = 0; refused = 0;
                lives++
            }
        }
    od;
    finished++
}

init
{
    byte me, c, i, t, a, st, at, d;
    bit ok, over;

    atomic {
        d = 0;
        do
        :: d < SLOTS -> lock[d] = NOBODY; d++
        :: else -> break
        od;
        d = 0;
        /* the last slot's owner died holding something, or in the middle of a charge or a release */
        state[SLOTS - 1] = STATE(1, LIVE);
        if
        :: charged[SLOTS - 1] = CHARGED(2, 1); intent[SLOTS - 1] = INTENT(2, 1);
           total = TOTAL(2, SLOTS - 1, 1)
        :: charged[SLOTS - 1] = CHARGED(1, 1); intent[SLOTS - 1] = INTENT(1, 2);
           total = TOTAL(1, SLOTS - 1, 1)
        :: charged[SLOTS - 1] = CHARGED(1, 1); intent[SLOTS - 1] = INTENT(1, 2);
           total = TOTAL(2, SLOTS - 1, 2)
        :: charged[SLOTS - 1] = CHARGED(0, 1); intent[SLOTS - 1] = INTENT(1, 2);
           total = TOTAL(1, SLOTS - 1, 2)
        :: charged[SLOTS - 1] = CHARGED(0, 1); intent[SLOTS - 1] = INTENT(2, 2);
           total = TOTAL(2, SLOTS - 1, 2)
        :: charged[SLOTS - 1] = CHARGED(1, 1); intent[SLOTS - 1] = INTENT(0 - 1, 2);
           total = TOTAL(0, SLOTS - 1, 2)
        fi;
        run killer();
        run process(0);
        run process(1);
#if PROCESSES == 3
        run process(2);
#endif
    };
    finished == PROCESSES;
    me = NOWHERE;
    reap_others();
    assert(TOTAL_AMOUNT(total) == 0)
}
