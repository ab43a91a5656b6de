#!/bin/sh
# The libraries and headers of the oldest distribution that is supported, to build against:
#
#   tests/container/sysroot.sh amd64|arm64 TOOLCHAIN
#
# Writes the CMake toolchain file TOOLCHAIN; a build beside it that had another one is configured anew. What
# is built with it runs on Debian 11 (glibc 2.31) and everything newer. The packages come from
# `debootstrap --foreign`, which only downloads and unpacks; they are kept in $VRAMCAP_CACHE (else
# ~/.cache/vramcap). For arm64 there are a shell, Python and other allocators as well: tests run in there,
# emulated. Ends with 77 where a tool or the network is missing.
set -u

[ $# -eq 2 ] || {
    echo "usage: sysroot.sh amd64|arm64 TOOLCHAIN" >&2
    exit 2
}
architecture=$1
toolchain=$2
suite=bullseye
cache=${VRAMCAP_CACHE:-${HOME:-/root}/.cache/vramcap}
include=libc6-dev,libjansson-dev,libcmocka-dev,uthash-dev,libmicrohttpd-dev,libgnutls30

skip()
{
    echo "skipped: $*"
    exit 77
}

case $architecture in
amd64) triplet=x86_64-linux-gnu processor=x86_64 ;;
arm64)
    triplet=aarch64-linux-gnu processor=aarch64
    include=$include,python3,libjemalloc2,libtcmalloc-minimal4
    ;;
*)
    echo "sysroot.sh: no architecture '$architecture'" >&2
    exit 2
    ;;
esac
sysroot=$cache/sysroot-$architecture-$suite-3
if [ "$(uname -m)" = "$processor" ]; then
    compiler=gcc
else
    compiler=$triplet-gcc
    emulator=$(command -v "qemu-$processor-static" || command -v "qemu-$processor") ||
        skip "no qemu for $processor"
fi
command -v "$compiler" >/dev/null || skip "no $compiler"

if [ ! -e "$sysroot/usr/lib/$triplet/libjansson.so" ]; then
    [ "$(id -u)" -eq 0 ] || skip "only root can make a Debian root"
    command -v debootstrap >/dev/null || skip "no debootstrap"
    mirror=
    if grep -q '^ID=debian' /etc/os-release 2>/dev/null; then
        mirror=$(sed -n -e 's/^URIs: *\([^ ]*\).*/\1/p' -e 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\).*/\2/p' \
            /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
    fi
    mkdir -p "$cache" || exit 2
    tmp=$(mktemp -d "$cache/new.XXXXXX") || exit 2
    trap 'rm -rf --one-file-system "$tmp"' EXIT
    trap 'exit 1' HUP INT TERM
    # shellcheck disable=SC2086 # the mirror is one word, or none
    debootstrap --foreign "--arch=$architecture" --variant=minbase \
        "--include=$include" "$suite" "$tmp/root" $mirror >"$tmp/log" 2>&1 || {
        tail -n 5 "$tmp/log"
        skip "debootstrap could not make a root of $suite for $architecture (no network?)"
    }
    for package in "$tmp/root/var/cache/apt/archives/"*.deb; do
        dpkg-deb -x "$package" "$tmp/sysroot" || exit 1
    done
    # A linker follows links inside the sysroot only.
    find "$tmp/sysroot" -type l -lname '/*' | while IFS= read -r link; do
        ln -sfnr "$tmp/sysroot$(readlink "$link")" "$link"
    done
    rm -rf "$sysroot" && mv "$tmp/sysroot" "$sysroot" || exit 2
    rm -rf --one-file-system "$tmp"
fi

{
    # Without a system's name CMake takes the build for a native one, and runs what it has built.
    if [ "$compiler" != gcc ]; then
        echo "set(CMAKE_SYSTEM_NAME Linux)"
        echo "set(CMAKE_SYSTEM_PROCESSOR $processor)"
        echo "set(CMAKE_CROSSCOMPILING_EMULATOR $emulator;-L;$sysroot)"
    else # a native gcc looks beside itself for the C library before it looks in the sysroot
        echo "set(CMAKE_C_FLAGS_INIT -B$sysroot/usr/lib/$triplet)"
    fi
    cat <<END
set(CMAKE_C_COMPILER $compiler)
set(CMAKE_ASM_COMPILER $compiler)
set(CMAKE_LIBRARY_ARCHITECTURE $triplet)
set(CMAKE_SYSROOT $sysroot)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} $sysroot)
set(ENV{PKG_CONFIG_LIBDIR} $sysroot/usr/lib/$triplet/pkgconfig)
END
} >"$toolchain.new"
# CMake keeps what it found in another sysroot.
if cmp -s "$toolchain.new" "$toolchain"; then
    rm -f "$toolchain.new"
else
    rm -rf "$(dirname "$toolchain")/CMakeCache.txt" "$(dirname "$toolchain")/CMakeFiles"
    mv "$toolchain.new" "$toolchain"
fi
