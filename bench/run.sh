#!/usr/bin/env bash
# Prints one table: the bare simulated driver against vramcap in front of it, in one run, alternating.
#   bench/run.sh [BUILD]     BUILD: a Release build folder; default build/release, made if missing
# Medians of 7 runs; the spread is the least and the greatest of them.  Times are of this machine: only the
# difference between the two columns says something about vramcap.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build/release}
runs=${VRAMCAP_BENCH_RUNS:-7}
if [ ! -x "$build/bench/alloc_pair" ]; then
    cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release >/dev/null
    cmake --build "$build" -j2 >/dev/null
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bare() {
    LD_LIBRARY_PATH=$build/sim VRAMCAP_SIM_BENCH=1 VRAMCAP_SIM_STATE=$work/sim "$@"
}
capped() {
    LD_PRELOAD=$build/libvramcap.so VRAMCAP_ENABLE=1 VRAMCAP_MEMORY_MIB=20000 VRAMCAP_LEDGER=$work/ledger \
        bare "$@"
}
# median least greatest
summary() {
    sort -n "$1" | awk '{v[NR]=$1} END {printf "%s %s %s\n", v[int((NR+1)/2)], v[1], v[NR]}'
}
row() { # text, bar in ns, command...
    local text=$1 bar=$2 b c
    shift 2
    : >"$work/bare"
    : >"$work/capped"
    for _ in $(seq "$runs"); do
        bare "$@" >>"$work/bare"
        capped "$@" >>"$work/capped"
    done
    b=$(summary "$work/bare")
    c=$(summary "$work/capped")
    awk -v text="$text" -v bar="$bar" -v b="$b" -v c="$c" 'BEGIN {
        split(b, x, " "); split(c, y, " "); d = y[1] - x[1]
        printf "%-44s %9.1f %9.1f %9.1f %7s %s   (%s..%s / %s..%s)\n", text, x[1], y[1], d, "<=" bar,
               d <= bar ? "met" : "NOT MET", x[2], x[3], y[2], y[3] }'
}
start_up() { # microseconds per start of COMMAND, over 200 starts
    local begin end
    begin=$(date +%s%N)
    for _ in $(seq 200); do "$@"; done
    end=$(date +%s%N)
    echo $(((end - begin) / 200)) | awk '{printf "%.1f\n", $1 / 1000}'
}
preloaded() {
    LD_PRELOAD=$build/libvramcap.so VRAMCAP_ENABLE=1 start_up "$@"
}

printf '%-44s %9s %9s %9s %7s\n' "ns, median of $runs" bare vramcap added bar
row 'cuMemAlloc_v2+cuMemFree_v2, 1 live' 120 "$build/bench/alloc_pair" 1 1000000
row 'cuMemAlloc_v2+cuMemFree_v2, 10,000 live' 160 "$build/bench/alloc_pair" 10000 1000000
row 'cuMemAlloc_v2+cuMemFree_v2, 100,000 live' 250 "$build/bench/alloc_pair" 100000 500000
row 'cuMemGetInfo_v2' 60 "$build/bench/alloc_pair" 1 2000000 info
: >"$work/bare"
: >"$work/capped"
for _ in $(seq "$runs"); do
    start_up /bin/true >>"$work/bare"
    preloaded /bin/true >>"$work/capped"
done
awk -v b="$(summary "$work/bare")" -v c="$(summary "$work/capped")" 'BEGIN {
    split(b, x, " "); split(c, y, " ")
    printf "%-44s %9.1f %9.1f %9.1f %7s %s\n", "start of /bin/true, microseconds", x[1], y[1], y[1] - x[1], "<=45",
           y[1] - x[1] <= 45 ? "met" : "NOT MET" }'
