#!/bin/sh
# Real containers: roots of each distribution, eight runtimes, every way of injection.
#
#   tests/container/run.sh BUILD CUDA-INCLUDE            compares docs/platforms.md with what it finds
#   tests/container/run.sh BUILD CUDA-INCLUDE --update   writes it anew
#
# BUILD: where the portable build is kept (portable.sh). Roots come from root.sh and are never written to:
# each is the lower half of an overlay. All mounts are made in a mount namespace of this run's own, all
# containers live below a work folder that goes away. Ends with 77 where something is missing, after what
# could be run was run; a wrong cell or a document that says something else is a failure (1).
set -u

[ $# -ge 2 ] || {
    echo "usage: run.sh BUILD CUDA-INCLUDE [--update] [--only PART]" >&2
    exit 2
}
here=$(cd "$(dirname "$0")" && pwd) || exit 2
source=$(cd "$here/../.." && pwd) || exit 2

skip()
{
    echo "skipped: $*"
    exit 77
}

if [ "${VRAMCAP_MATRIX-}" != inside ]; then
    [ "$(id -u)" -eq 0 ] || skip "only root can make containers of all kinds"
    unshare --mount true 2>/dev/null || skip "this machine gives no mount namespace"
    sh "$here/portable.sh" amd64 "$1" "$2" || exit
    work=$(mktemp -d "${TMPDIR:-/tmp}/vramcap-matrix.XXXXXX") || exit 2
    trap 'rm -rf --one-file-system "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    chmod 755 "$work"
    VRAMCAP_MATRIX=inside VRAMCAP_MATRIX_WORK=$work \
        unshare --mount --propagation private sh "$here/run.sh" "$@" </dev/null
    exit
fi

build=$1
prefix=$build/prefix
work=$VRAMCAP_MATRIX_WORK
shift 2
[ "$(uname -m)" = x86_64 ] || skip "the roots are amd64"

# What the tool needs of the distribution goes beside the simulated driver, which LD_LIBRARY_PATH names.
sysroot=$(sed -n 's/^set(CMAKE_SYSROOT \(.*\))$/\1/p' "$build/toolchain.cmake")
cp "$sysroot/usr/lib/x86_64-linux-gnu/libjansson.so.4" "$prefix/lib/vramcap/sim/" || exit 2

# A root without shell, package manager or anything but the C library, as distroless images are.
make_bare() # FROM TO
{
    libraries=usr/lib/x86_64-linux-gnu
    mkdir -p "$2/$libraries" "$2/usr/lib64" "$2/etc" && ln -s usr/lib "$2/lib" &&
        ln -s usr/lib64 "$2/lib64" && cp "$1/etc/passwd" "$1/etc/group" "$2/etc/" || return 1
    for library in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 ld-linux-x86-64.so.2; do
        cp -L "$1/$libraries/$library" "$2/$libraries/" || return 1
    done
    ln -s ../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 "$2/usr/lib64/ld-linux-x86-64.so.2"
}

over() # NAME LOWER: an overlay with the places for mounts in it; prints its folder
{
    mkdir -p "$work/$1.upper" "$work/$1.work" "$work/roots/$1" &&
        mount -t overlay overlay "-olowerdir=$2,upperdir=$work/$1.upper,workdir=$work/$1.work" \
            "$work/roots/$1" &&
        mkdir -p "$work/roots/$1/proc" "$work/roots/$1/dev" "$work/roots/$1/tmp" "$work/roots/$1/sys" \
            "$work/roots/$1/run/vramcap" "$work/roots/$1/opt/vramcap" "$work/roots/$1/opt/test" &&
        touch "$work/roots/$1/etc/ld.so.preload" "$work/roots/$1/opt/vramcap/libvramcap.so" \
            "$work/roots/$1/run/vramcap/ledger"
}

set -- "$@" --prefix "$prefix" --work "$work" --document "$source/docs/platforms.md" \
    --samples "$source/samples/deploy"
left=
for suite in bullseye bookworm trixie sid; do
    pristine=$(sh "$here/root.sh" "$suite") || {
        echo "$suite: $pristine"
        left="$left $suite"
        continue
    }
    if [ "$suite" = bookworm ]; then
        make_bare "$pristine" "$work/bare" || exit 2
        bare=yes
    fi
    over "$suite" "$pristine" || skip "no overlay can be mounted here"
    set -- "$@" --root "$suite=$work/roots/$suite"
done
if [ "${bare-}" = yes ]; then
    over bare "$work/bare" || exit 2
    set -- "$@" --root "no shell=$work/roots/bare"
fi
# Specifications of this run alone, in a folder that engines read.
mkdir -p /run/cdi && mount -t tmpfs -o mode=755 tmpfs /run/cdi || exit 2
# Tools that judge samples and engines, which a newer Debian has and none of which is installed
newer() # PACKAGE FILE...: prints the folder, or nothing
{
    found=$(sh "$here/newer_tool.sh" "$@") && echo "$found"
}
VRAMCAP_COMPOSE=$(newer docker-compose /usr/libexec/docker/cli-plugins/docker-compose)
VRAMCAP_QUADLET=$(newer podman /usr/libexec/podman/quadlet)
VRAMCAP_CONTAINERD=$(newer containerd /usr/bin/containerd /usr/bin/containerd-shim-runc-v2 /usr/bin/ctr)
VRAMCAP_DOCKERD=$(newer docker.io /usr/sbin/dockerd)
VRAMCAP_DOCKER=$(newer docker-cli /usr/bin/docker)
export VRAMCAP_COMPOSE VRAMCAP_QUADLET VRAMCAP_CONTAINERD VRAMCAP_DOCKERD VRAMCAP_DOCKER
exec python3 -B "$here/platforms.py" "$@" ${left:+--missing "roots:$left"}
