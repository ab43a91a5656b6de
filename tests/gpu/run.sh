#!/bin/sh
# What this project claims about drivers, asked of a real one: builds, runs and reports within 8 minutes on one
# NVIDIA card.
#
#   tests/gpu/run.sh [--build FOLDER] [--simulator] OUT
#
# OUT/report.json: (facts) what the driver does, bare, under a ceiling, under MPS; (cost) alloc, launch and a
# small inference loop, bare against vramcap; (frameworks) the CUDA runtime static and shared, PyTorch, CuPy,
# JAX and numba as installed here, under the ceiling, at it, after it, two processes; (hooks) the hook tests
# that need no simulator, and every hooked call on the bare driver; (wrong) what of it is not as it must be.
#
# Exit status: 0 the report is there and nothing in it is wrong; 1 the report is there and says what is wrong, also
# that the driver did not answer; 2 usage, nothing could be built or written; 77 there is no GPU. With 2 and
# 77 there is no report.
#
# No network is used. --build: an existing build folder of this tree, for machines that lack what building
# needs; nothing is written there. --simulator: a rehearsal on the simulated driver; the report says so.
# VRAMCAP_GPU_SECONDS: how long it may take (460). Whatever hangs is cut off and is in the report as such.
#
# Clocks, power, MIG and compute mode of a card are never touched. MPS is started with a pipe directory of its
# own in the temporary folder and stopped again; not where another control daemon answers.
set -u

usage()
{
    echo 'usage: tests/gpu/run.sh [--build FOLDER] [--simulator] OUT' >&2
    exit 2
}

say()
{
    echo "gpu: $*" >&2
}

seconds=${VRAMCAP_GPU_SECONDS:-460}
theirs=${CUDA_MPS_PIPE_DIRECTORY:-}
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
here=$root/tests/gpu
build=
simulator=
out=
while [ $# -gt 0 ]; do
    case $1 in
    --build)
        [ $# -ge 2 ] || usage
        build=$2
        shift
        ;;
    --simulator) simulator=yes ;;
    -* | '') usage ;;
    *)
        [ -z "$out" ] || usage
        out=$1
        ;;
    esac
    shift
done
[ -n "$out" ] || usage
case $seconds in
'' | *[!0-9]* | ??????*)
    say "VRAMCAP_GPU_SECONDS is '$seconds': a number of seconds, please"
    exit 2
    ;;
esac
command -v python3 >/dev/null || {
    say "python3 is needed, and is not here"
    exit 2
}
began=$(date +%s)
# shellcheck disable=SC2188 # an empty file, to see that there can be one
if ! mkdir -p "$out" || ! out=$(cd "$out" && pwd) || ! { >"$out/report.json.new"; } 2>/dev/null; then
    say "nothing can be written in $out: name a folder that is writable"
    exit 2
fi
rm -f "$out/report.json" "$out/report.json.new"
work=$(mktemp -d "${TMPDIR:-/tmp}/vramcap-gpu-XXXXXX") || {
    say "no temporary folder: set TMPDIR to one that is writable"
    exit 2
}
TMPDIR=$work # compilers that are cut off leave files behind
export TMPDIR
mps=
daemon= # a pipe directory whose control daemon is ours to stop
child=

# limited SECONDS [--say TEXT] COMMAND...: ends in time, whatever the command does; 124: cut off. The time is that
# of a run of 460 seconds; a shorter one has less.
limited()
{
    most=$(($1 * (seconds < 460 ? seconds : 460) / 460))
    shift
    python3 -B "$here/limited.py" "$((most > 0 ? most : 1))" "$@" &
    child=$!
    wait "$child"
    limited_status=$?
    child=
    return "$limited_status"
}

control() # WORD PIPE-DIRECTORY: asks the control daemon there; with '' where the driver looks by itself
{
    if [ -n "$2" ]; then
        CUDA_MPS_PIPE_DIRECTORY=$2 CUDA_MPS_LOG_DIRECTORY=$work/mps-log \
            limited 20 --say "$1" nvidia-cuda-mps-control >/dev/null 2>&1
    else
        limited 20 --say "$1" nvidia-cuda-mps-control >/dev/null 2>&1
    fi
}

clean_up()
{
    trap '' INT HUP TERM
    if [ -n "$daemon" ] && ! control quit "$daemon" && [ -f "$daemon/nvidia-cuda-mps-control.pid" ]; then
        kill -KILL "$(cat "$daemon/nvidia-cuda-mps-control.pid")" 2>/dev/null
    fi
    rm -rf "$work"
}

interrupted()
{
    if [ -n "$child" ]; then
        kill -TERM "$child" 2>/dev/null
        wait "$child"
        child=
    fi
    exit "$1"
}
trap clean_up EXIT
trap 'interrupted 130' INT
trap 'interrupted 143' HUP TERM

unset LD_PRELOAD CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY CUDA_MPS_PINNED_DEVICE_MEM_LIMIT \
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
for name in $(env | sed -n 's/^\(VRAMCAP_[A-Z_]*\)=.*/\1/p'); do
    case $name in
    VRAMCAP_SIM_*) [ -n "$simulator" ] || unset "$name" ;;
    *) unset "$name" ;;
    esac
done

# report ARGUMENT...: the last part, or words that say why there is none
report()
{
    [ -z "$simulator" ] || set -- "$@" --rehearsal
    python3 -B "$here/report.py" --out "$out/report.json" "$@" &
    child=$!
    wait "$child"
    report_status=$?
    child=
    return "$report_status"
}

# ---- a card? Before anything is built, as far as that can be seen.
if [ -z "$simulator" ]; then
    set -- /dev/nvidia[0-9]* /dev/nvhost-gpu /dev/dxg
    found=
    for device in "$@"; do
        [ ! -e "$device" ] || found=$device
    done
    if [ -z "$found" ] && ! limited 30 nvidia-smi -L >/dev/null 2>&1; then
        say "skipped: no NVIDIA GPU here"
        exit 77
    fi
fi

# ---- build
if [ -z "$build" ]; then
    build=$work/build
    generator=
    ! command -v ninja >/dev/null || generator='-G Ninja'
    # shellcheck disable=SC2086 # generator is an option with its value, or nothing
    if ! limited 60 cmake $generator -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release >"$out/build.log" 2>&1 ||
        ! limited 240 cmake --build "$build" --target gpu_programs -j "$(nproc)" >>"$out/build.log" 2>&1; then
        tail -n 15 "$out/build.log" >&2
        say "this tree could not be built here (all of it is in $out/build.log); --build takes a folder built elsewhere"
        exit 2
    fi
fi
build=$(cd "$build" && pwd) || exit 2
[ -x "$build/tests/gpu/gpu_facts" ] || {
    say "$build has no tests/gpu/gpu_facts: build it with the tests (CMocka is needed)"
    exit 2
}
if [ -n "$simulator" ]; then
    LD_LIBRARY_PATH=$build/sim
    VRAMCAP_SIM_STATE=$work/card
    VRAMCAP_SIM_CARDS=${VRAMCAP_SIM_CARDS:-24576}
    export LD_LIBRARY_PATH VRAMCAP_SIM_STATE VRAMCAP_SIM_CARDS
fi

# The programs of the runtime.
nvcc=
runtime_why='no nvcc'
for candidate in nvcc "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    [ -n "$nvcc" ] || ! command -v "$candidate" >/dev/null || nvcc=$candidate
done
if [ -n "$nvcc" ]; then
    runtime_why="$nvcc could not, see build.log"
    for kind in static shared; do
        limited 50 "$nvcc" -O2 -cudart "$kind" -o "$work/runtime_$kind" "$here/runtime.cu" \
            >>"$out/build.log" 2>&1 || say "$nvcc could not build the $kind program of the runtime"
    done
fi

# ---- which card
limited 60 "$build/tests/gpu/gpu_facts" --probe >"$work/cards" 2>"$work/probe"
status=$?
cat "$work/probe" >&2
case $status in
0) ;;
77)
    say "skipped: no CUDA device answers"
    exit 77
    ;;
126 | 127)
    say "$build/tests/gpu/gpu_facts cannot be started here"
    exit 2
    ;;
124)
    report --failed "the driver did not answer: a program that asks for its devices did not end in time"
    exit
    ;;
*)
    report --failed "a program that asks the driver for its devices ended with $status: $(tail -n 1 "$work/probe")"
    exit
    ;;
esac
uuids=$(cut -f1 "$work/cards" | paste -s -d , -)
driver=$(head -n 1 "$work/cards" | cut -f2)
say "$(cut -f3 "$work/cards" | paste -s -d , -); driver in $driver"

# ---- MPS: ours alone
why=
if ! command -v nvidia-cuda-mps-control >/dev/null; then
    why="no nvidia-cuda-mps-control"
elif control get_server_list '' || { [ -n "$theirs" ] && control get_server_list "$theirs"; }; then
    why="another control daemon answers here, and is left alone"
else
    mkdir -p "$work/mps" "$work/mps-log"
    daemon=$work/mps
    if ! CUDA_MPS_PIPE_DIRECTORY=$daemon CUDA_MPS_LOG_DIRECTORY=$work/mps-log \
        limited 30 nvidia-cuda-mps-control -d >"$work/mps-said" 2>&1; then
        why="it could not be started: $(tail -n 1 "$work/mps-said")"
    elif ! CUDA_MPS_PIPE_DIRECTORY=$daemon limited 60 "$build/tests/gpu/gpu_facts" --probe >/dev/null 2>&1; then
        why="it was started, and no program gets to the GPU through it"
    else
        mps=$daemon
    fi
fi
[ -z "$why" ] || say "without MPS: $why"

# ---- everything else
report --build "$build" --runtime "$work" --runtime-why "$runtime_why" --limit "$seconds" \
    --seconds "$((seconds - $(date +%s) + began))" --driver "$driver" --uuids "$uuids" --mps "$mps" --mps-why "$why"
