#!/bin/sh
# What this project claims about drivers, asked of a real one: builds, runs and reports within 8 minutes on one
# NVIDIA card.
#
#   tests/gpu/run.sh [--build FOLDER] [--simulator] OUT
#
# OUT/report.json: (facts) what the driver does, bare, under a ceiling, under MPS; (cost) alloc, launch and a
# small inference loop, bare against vramcap; (frameworks) the CUDA runtime static and shared, PyTorch, CuPy,
# JAX and numba as installed here, under the ceiling, at it, after it, two processes; (hooks) the hook tests
# that need no simulator, and every hooked call on the bare driver. Ends with 77 without a GPU, 0 when the
# report is there, 1 when its first parts failed, 2 when nothing could be built.
#
# No network is used. --build: an existing build folder of this tree, for machines that lack what building
# needs. --simulator: a rehearsal on the simulated driver; the report says so.
#
# Clocks, power, MIG and compute mode of a card are never touched. MPS is started with a pipe directory of its
# own in the temporary folder and stopped again; not where another control daemon answers.
set -u

usage='usage: tests/gpu/run.sh [--build FOLDER] [--simulator] OUT'
seconds=${VRAMCAP_GPU_SECONDS:-460}
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
build=
simulator=
out=
while [ $# -gt 0 ]; do
    case $1 in
    --build)
        [ $# -ge 2 ] || {
            echo "$usage" >&2
            exit 2
        }
        build=$2
        shift
        ;;
    --simulator) simulator=yes ;;
    -*)
        echo "$usage" >&2
        exit 2
        ;;
    *) out=$1 ;;
    esac
    shift
done
[ -n "$out" ] || {
    echo "$usage" >&2
    exit 2
}
began=$(date +%s)
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd) || exit 2
work=$(mktemp -d "${TMPDIR:-/tmp}/vramcap-gpu-XXXXXX") || exit 2
mps=
daemon= # a control daemon that is ours to stop

say()
{
    echo "gpu: $*" >&2
}

clean_up()
{
    if [ -n "$daemon" ]; then
        echo quit | CUDA_MPS_PIPE_DIRECTORY=$daemon CUDA_MPS_LOG_DIRECTORY=$work/mps-log \
            timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1
    fi
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM

unset LD_PRELOAD CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY CUDA_MPS_PINNED_DEVICE_MEM_LIMIT \
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
for name in $(env | sed -n 's/^\(VRAMCAP_[A-Z_]*\)=.*/\1/p'); do
    case $name in
    VRAMCAP_SIM_*) [ -n "$simulator" ] || unset "$name" ;;
    *) unset "$name" ;;
    esac
done

# ---- a card? Before anything is built, as far as that can be seen.
if [ -z "$simulator" ]; then
    set -- /dev/nvidia[0-9]* /dev/nvhost-gpu /dev/dxg
    found=
    for device in "$@"; do
        [ ! -e "$device" ] || found=$device
    done
    if [ -z "$found" ] && ! timeout 30 nvidia-smi -L >/dev/null 2>&1; then
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
    if ! cmake $generator -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release >"$out/build.log" 2>&1 ||
        ! cmake --build "$build" -j "$(nproc)" >>"$out/build.log" 2>&1; then
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

# The programs of the runtime go beside the others; an existing build folder may be read-only.
nvcc=
for candidate in nvcc "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    [ -n "$nvcc" ] || ! command -v "$candidate" >/dev/null || nvcc=$candidate
done
if [ -n "$nvcc" ] && [ -w "$build/tests/gpu" ]; then
    for kind in static shared; do
        timeout 90 "$nvcc" -O2 -cudart "$kind" -o "$build/tests/gpu/runtime_$kind" \
            "$root/tests/gpu/runtime.cu" >>"$out/build.log" 2>&1 ||
            say "nvcc could not build the $kind program of the runtime"
    done
fi

# ---- which card
timeout 60 "$build/tests/gpu/gpu_facts" --probe >"$work/cards" 2>"$work/probe"
status=$?
if [ "$status" -ne 0 ]; then
    cat "$work/probe" >&2
    say "skipped: no CUDA device answers"
    exit 77
fi
uuids=$(cut -f1 "$work/cards" | paste -s -d , -)
driver=$(head -n 1 "$work/cards" | cut -f2)
say "$(cut -f3 "$work/cards" | paste -s -d , -); driver in $driver"

# ---- MPS: ours alone
why=
if [ -n "$simulator" ]; then
    why="the rehearsal has none"
elif ! command -v nvidia-cuda-mps-control >/dev/null; then
    why="no nvidia-cuda-mps-control"
elif echo get_server_list | timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1; then
    why="another control daemon answers here, and is left alone"
else
    mkdir -p "$work/mps" "$work/mps-log"
    daemon=$work/mps
    if CUDA_MPS_PIPE_DIRECTORY=$daemon CUDA_MPS_LOG_DIRECTORY=$work/mps-log \
        timeout 30 nvidia-cuda-mps-control -d >"$work/mps-said" 2>&1 </dev/null &&
        CUDA_MPS_PIPE_DIRECTORY=$daemon timeout 60 "$build/tests/gpu/gpu_facts" --probe >/dev/null 2>&1; then
        mps=$daemon
    else
        why="it could not be started: $(tail -n 1 "$work/mps-said")"
    fi
fi
[ -z "$why" ] || say "without MPS: $why"

# ---- everything else
left=$((seconds - $(date +%s) + began))
set --
[ -z "$simulator" ] || set -- --rehearsal
python3 -B "$root/tests/gpu/report.py" --build "$build" --out "$out/report.json" --seconds "$left" \
    --driver "$driver" --uuids "$uuids" --mps "$mps" --mps-why "$why" "$@"
