#!/bin/sh
# The aarch64 build: cross-compiled against a Debian root's libraries, then run under qemu:
#
#   tests/container/aarch64.sh BUILD CUDA-INCLUDE
#
# The libraries come from `debootstrap --foreign`, which only downloads and unpacks; they are kept in
# $VRAMCAP_CACHE (else ~/.cache/vramcap). What is shown: everything compiles and links, and the greedy
# sample, on the simulated GPU, is held to its ceiling by the aarch64 libvramcap.so. Skips (77) where a
# tool or the network is missing.
set -u

[ $# -eq 2 ] || {
    echo "usage: aarch64.sh BUILD CUDA-INCLUDE" >&2
    exit 2
}
mkdir -p "$1" || exit 2
build=$(cd "$1" && pwd)
include=$2
source=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
cache=${VRAMCAP_CACHE:-${HOME:-/root}/.cache/vramcap}
sysroot=$cache/sysroot-arm64-1

skip()
{
    echo "skipped: $*"
    exit 77
}

die()
{
    echo "aarch64: $*" >&2
    exit 1
}

quietly() # LOG COMMAND...
{
    log=$1
    shift
    "$@" >"$log" 2>&1 || {
        tail -n 40 "$log"
        return 1
    }
}

command -v aarch64-linux-gnu-gcc >/dev/null || skip "no aarch64-linux-gnu-gcc"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || skip "no qemu for aarch64"
tmp=$(mktemp -d) || exit 2
trap 'rm -rf --one-file-system "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

if [ ! -e "$sysroot/usr/lib/aarch64-linux-gnu/libjansson.so" ]; then
    [ "$(id -u)" -eq 0 ] || skip "only root can make the arm64 root"
    command -v debootstrap >/dev/null || skip "no debootstrap"
    mirror=
    if grep -q '^ID=debian' /etc/os-release 2>/dev/null; then
        mirror=$(sed -n -e 's/^URIs: *\([^ ]*\).*/\1/p' \
            -e 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\).*/\2/p' \
            /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
    fi
    # shellcheck disable=SC2086 # the mirror is one word, or none
    quietly "$tmp/log" debootstrap --foreign --arch=arm64 --variant=minbase \
        --include=libc6-dev,libjansson-dev,libcmocka-dev,uthash-dev bookworm "$tmp/root" $mirror ||
        skip "debootstrap could not make an arm64 root (no network?)"
    for package in "$tmp/root/var/cache/apt/archives/"*.deb; do
        case $package in
        */libc6* | */libcrypt* | */libgcc-s1* | */libjansson* | */libcmocka* | */linux-libc-dev* | */uthash*)
            dpkg-deb -x "$package" "$tmp/sysroot" || die "cannot unpack $package"
            ;;
        esac
    done
    mkdir -p "$cache" && rm -rf "$sysroot" && mv "$tmp/sysroot" "$sysroot" || exit 2
fi

cat >"$build/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_ASM_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_SYSROOT $sysroot)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR $qemu;-L;$sysroot)
END
export PKG_CONFIG_SYSROOT_DIR="$sysroot"
export PKG_CONFIG_LIBDIR="$sysroot/usr/lib/aarch64-linux-gnu/pkgconfig"
quietly "$tmp/configure" cmake -G Ninja -S "$source" -B "$build" \
    -DCMAKE_TOOLCHAIN_FILE="$build/toolchain.cmake" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DVRAMCAP_CUDA_INCLUDE="$include" -DBUILD_TESTING=OFF -DCMAKE_INSTALL_PREFIX="$build/prefix" ||
    die "could not be configured"
quietly "$tmp/build" cmake --build "$build" || die "could not be built"
quietly "$tmp/install" cmake --install "$build" || die "could not be installed"

library=$build/prefix/lib/libvramcap.so
[ -e "$library" ] || die "no $library"
arm() # NAME=VALUE... PROGRAM ARGUMENT...: runs it with this environment, under qemu
{
    set -- "$@"
    words=
    while :; do
        case $1 in
        *=*)
            words="$words -E $1"
            shift
            ;;
        *) break ;;
        esac
    done
    # shellcheck disable=SC2086 # the words are options without blanks
    "$qemu" -L "$sysroot" $words "$@"
}

sim=$build/prefix/lib/vramcap/sim
mkdir -p "$build/run"
rm -f "$build/run/"*
arm LD_LIBRARY_PATH="$sim" LD_PRELOAD="$library" VRAMCAP_ENABLE=1 VRAMCAP_MEMORY_MIB=1024 \
    VRAMCAP_LEDGER="$build/run/ledger" VRAMCAP_SIM_STATE="$build/run/card" VRAMCAP_SIM_CARDS=8192 \
    "$build/samples/greedy" --block 256 >"$build/run/log" 2>&1
status=$?
cat "$build/run/log"
[ "$status" -eq 0 ] || die "the greedy sample ended with $status"
got=$(sed -n 's/.*: got \([0-9]*\) MiB, then CUDA_ERROR_OUT_OF_MEMORY.*/\1/p' "$build/run/log")
case $got in
768 | 1024) ;;
*) die "got '$got' MiB under 1024" ;;
esac
grep -q '^vramcap: refused cuMemAlloc_v2 of 256.0 MiB' "$build/run/log" || die "no refusal line"
arm "$build/prefix/bin/vramcap" dump "$build/run/ledger" || die "the ledger cannot be read"
