#!/bin/sh
# `vramcap check` in six typical set-ups, each in a sandbox of its own on the simulated card:
#
#   check_examples.sh BUILD write DOC    puts what they print into DOC
#   check_examples.sh BUILD check DOC    fails (1) if DOC has something else
#
# 77: bubblewrap does not work here. Container keys and process numbers are made alike.
set -eu

build=$1 what=$2 doc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
export LC_ALL=C

mkdir -p "$work/run" "$work/lib/bin" "$work/lib/lib"
cp "$build/libvramcap.so" "$work/lib/lib/"
cp "$build/enforcer/cli/vramcap" "$work/lib/bin/"
control=$build/sim/nvidia-cuda-mps-control
[ -x "$control" ] || {
    echo "check_examples: $build is not built"
    exit 1
}
cp "$control" "$work/lib/bin/"

inside() # VARIABLE=VALUE... -- COMMAND...
{
    set -- "$@"
    variables=
    while [ "$1" != -- ]; do
        variables="$variables --setenv ${1%%=*} ${1#*=}"
        shift
    done
    shift
    # shellcheck disable=SC2086 # the values have no blanks
    bwrap --clearenv --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --tmpfs /opt \
        --ro-bind "$work/lib" /opt/vramcap --ro-bind "$build/sim" /opt/driver --tmpfs /run \
        --bind "$work/run" /run/vramcap --tmpfs /dev/shm --unshare-pid --unshare-ipc --die-with-parent \
        --setenv PATH /opt/vramcap/bin:/usr/bin:/bin --setenv LD_LIBRARY_PATH /opt/driver \
        --setenv VRAMCAP_SIM_STATE /tmp/sim-state $variables "$@"
}

if ! inside -- true 2>/dev/null; then
    echo "bubblewrap does not work here"
    exit 77
fi

# What varies from machine to machine.
alike()
{
    sed -e 's#/dev/shm/vramcap-[a-z]*-[0-9a-f-]*#/dev/shm/vramcap-KEY#g' -e 's/process [0-9][0-9]*/process PID/g' \
        -e 's#/dev/shm/vramcap/run-[^, ]*#/dev/shm/vramcap/run-NAME#g'
}

case_() # TITLE WORDS VARIABLE=VALUE... -- COMMAND...
{
    printf '\n### %s\n\n%s\n\n```\n' "$1" "$2"
    shift 2
    status=0
    inside "$@" >"$work/out" 2>"$work/err" || status=$?
    alike <"$work/out"
    grep '^vramcap: refused' "$work/err" | alike || true
    printf '(exit status %s)\n```\n' "$status"
    if [ "$status" -gt 1 ]; then
        cat "$work/err" >&2
        return 1
    fi
}

PRELOAD=LD_PRELOAD=/opt/vramcap/lib/libvramcap.so
# A daemon for as long as the command runs, then the command. Expanded by the sandbox's own shell.
# shellcheck disable=SC2016
WITH_MPS='mkdir -p "$CUDA_MPS_PIPE_DIRECTORY"; env -u LD_PRELOAD nvidia-cuda-mps-control -d; i=0
while [ ! -e "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid" ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done
exec vramcap check'

# shellcheck disable=SC2016 # Markdown in titles
all()
{
    case_ 'Nothing loaded' 'A container with a GPU and no vramcap.' -- vramcap check || return
    case_ '`vramcap run`' 'One command under a ceiling, with `--self-test`.' -- \
        vramcap run --memory 4096 -- vramcap check --self-test || return
    case_ 'Amazon ECS' \
        'What the ECS agent injects, `VRAMCAP_ENABLE=1` and the preloaded library; the daemon is up.' \
        $PRELOAD VRAMCAP_ENABLE=1 CUDA_MPS_PIPE_DIRECTORY=/run/mps-ecs \
        CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30 \
        VRAMCAP_COMPUTE_PERCENT=30 -- sh -c "$WITH_MPS" || return
    case_ 'Kubernetes device plugin' \
        'Only a pipe directory comes from the plugin; the ceiling is vramcap'"'"'s own.' \
        $PRELOAD VRAMCAP_ENABLE=1 VRAMCAP_MEMORY_MIB=6144 CUDA_MPS_PIPE_DIRECTORY=/run/mps -- \
        sh -c "$WITH_MPS" || return
    case_ 'MPS is down' 'The ECS container again; nobody listens in the pipe directory.' \
        $PRELOAD VRAMCAP_ENABLE=1 CUDA_MPS_PIPE_DIRECTORY=/run/mps-ecs \
        CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M -- vramcap check || return
    "$build/enforcer/cli/vramcap" create "$work/run/ledger" --memory 2048 --container web >/dev/null || return
    case_ 'A ledger of the host' \
        'Made by `vramcap create`; the container'"'"'s environment tries to switch it off.' \
        $PRELOAD VRAMCAP_ENABLE=0 VRAMCAP_MEMORY_MIB=9999 -- vramcap check --self-test || return
}

all >"$work/cases" || exit 1
case $what in
write)
    sed '/^<!-- examples -->$/q' "$doc" >"$work/new"
    cat "$work/cases" >>"$work/new"
    cp "$work/new" "$doc"
    ;;
check)
    sed '1,/^<!-- examples -->$/d' "$doc" >"$work/old"
    diff -u "$work/old" "$work/cases" || {
        echo "docs/check.md is not what the tool prints; cmake --build BUILD --target update_check_doc"
        exit 1
    }
    ;;
*)
    echo "usage: check_examples.sh BUILD write|check DOC" >&2
    exit 2
    ;;
esac
