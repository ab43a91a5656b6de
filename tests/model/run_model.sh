#!/bin/sh
# Checks ledger.pml with spin.
#
#   run_model.sh two               two processes, every interleaving, every moment of a kill
#   run_model.sh mutant NAME       one step broken: fails unless the model shows it
#   run_model.sh three SECONDS     three processes, as far as the time goes, in a random order
#
# 77: no spin or no compiler here.
set -u

model=$(cd "$(dirname "$0")" && pwd)/ledger.pml
for tool in spin "${CC:-gcc}"; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "run_model.sh: no $tool here"
        exit 77
    }
done
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
optimise=-O1 # compiling takes longer than a short search: mutants do without

# A rendezvous in the escape of `unless` and partial order reduction do not go together: NOREDUCE.
build() # SPIN-OPTIONS CC-OPTIONS
{
    # shellcheck disable=SC2086 # both are several words
    spin $1 -a "$model" && "${CC:-gcc}" "$optimise" -w -DSAFETY -DNOREDUCE -DMEMLIM=4000 $2 -o pan pan.c || exit 1
}

trail() # SPIN-OPTIONS: the steps to the error
{
    # shellcheck disable=SC2086
    spin $1 -t -p -g "$model" 2>/dev/null | tail -n 120
}

exhaust() # SPIN-OPTIONS CC-OPTIONS: all of it, without an error
{
    build "$1" "$2"
    ./pan -m200000 -w24 >result 2>&1
    grep -E 'errors:|states, stored|elapsed' result
    if grep -q 'errors: 0' result && ! grep -q 'Search not completed\|max search depth too small\|out of memory' result; then
        return 0
    fi
    cat result
    trail "$1"
    return 1
}

case ${1-} in
two)
    # the only free slot and a dead one
    exhaust '-DLIVES=1 -DOPS=2 -DKILLS=2' -DCOLLAPSE || exit 1
    # a slot for each and a dead one
    exhaust '-DLIVES=1 -DOPS=2 -DKILLS=2 -DSLOTS=3' -DCOLLAPSE || exit 1
    ;;
mutant)
    optimise=-O0
    options="-DMUTANT_$2 -DLIVES=1 -DOPS=2 -DKILLS=2"
    # this one needs a move that is overwritten twice while one process sleeps
    [ "$2" != ACK_WITHOUT_REREAD ] || options="-DMUTANT_$2 -DLIVES=2 -DOPS=1 -DKILLS=1 -DSLOTS=3"
    grep -q "MUTANT_$2\b" "$model" || {
        echo "run_model.sh: the model has no mutant $2"
        exit 2
    }
    build "$options" -DCOLLAPSE
    ./pan -m200000 -w24 >result 2>&1
    grep -E 'pan:1|errors:|states, stored' result
    grep -q '^pan:1: assertion violated' result || {
        echo "run_model.sh: the model does not see that $2 is broken"
        exit 1
    }
    ;;
three)
    seed=${VRAMCAP_SEED:-$(($(date +%s) % 1000000))}
    echo "seed $seed"
    build '-DPROCESSES=3 -DLIVES=1 -DOPS=2 -DKILLS=2 -DSLOTS=3' \
        '-DBITSTATE -DP_RAND -DT_RAND'
    timeout -s INT "$2" ./pan -m200000 -w32 "-RS$seed" >result 2>&1
    status=$?
    grep -E 'errors:|states, stored' result
    if grep -q '^pan:1' result || ls ./*.trail >/dev/null 2>&1; then
        cat result
        trail '-DPROCESSES=3 -DLIVES=1 -DOPS=2 -DKILLS=2 -DSLOTS=3'
        exit 1
    fi
    # 124: the time was up; 0: the whole of it was seen
    [ "$status" -eq 124 ] || [ "$status" -eq 0 ] || {
        cat result
        exit 1
    }
    ;;
*)
    echo "usage: run_model.sh two | mutant NAME | three SECONDS" >&2
    exit 2
    ;;
esac
