#!/bin/sh
# The aarch64 build: cross-compiled against a Debian root's libraries, then run under qemu:
#
#   tests/container/aarch64.sh BUILD CUDA-INCLUDE
#
# The libraries come from sysroot.sh. What is shown: everything compiles and links, the greedy sample, on
# the simulated GPU, is held to its ceiling by the aarch64 libvramcap.so, and all unit and hook tests pass
# but those that emulated.py names. Test programs execute themselves and what is in /bin, so they run in a
# root of arm64 programs and the kernel must know the emulator: it is registered in a user namespace's own
# binfmt_misc, never for the machine. Skips (77) where a tool, the network or such a namespace is missing.
set -u

[ $# -eq 2 ] || {
    echo "usage: aarch64.sh BUILD CUDA-INCLUDE" >&2
    exit 2
}
mkdir -p "$1" || exit 2
build=$(cd "$1" && pwd)
include=$2
source=$(cd "$(dirname "$0")/../.." && pwd) || exit 2

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

said=$(sh "$source/tests/container/sysroot.sh" arm64 "$build/toolchain.cmake") || {
    status=$?
    echo "$said"
    exit "$status"
}
sysroot=$(sed -n 's/^set(CMAKE_SYSROOT \(.*\))$/\1/p' "$build/toolchain.cmake")
set -- -DCMAKE_C_FLAGS=-DFIXTURE_DEADLINE_MS=200000u # an emulator is slow
command -v ccache >/dev/null && set -- "$1" -DCMAKE_C_COMPILER_LAUNCHER=ccache
quietly "$tmp/configure" cmake -G Ninja -S "$source" -B "$build" \
    -DCMAKE_TOOLCHAIN_FILE="$build/toolchain.cmake" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DVRAMCAP_CUDA_INCLUDE="$include" -DCMAKE_INSTALL_PREFIX="$build/prefix" "$@" ||
    die "could not be configured"
quietly "$tmp/build" cmake --build "$build" --target vramcap vramcap-agent vramcap_preload sim_cuda sim_nvml man_pages \
    sample_greedy emulated test_ledger_read tests/unit/all tests/hook/all tests/interpose/all ||
    die "could not be built"
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

# ---- unit and hook tests ----

# The format's line of Debian's own registration, with another interpreter and the flag F: it is opened
# now and need not exist in any root.
format=$(sed -n 's,^\(:qemu-aarch64:.*:\)/[^:]*:[A-Z]*$,\1'"$qemu"':F,p' \
    /usr/lib/binfmt.d/qemu-aarch64.conf 2>/dev/null)
[ -n "$format" ] || skip "Debian's description of aarch64 programs for binfmt_misc is not here"
cat >"$tmp/inside.sh" <<'END'
format=$1 sysroot=$2 source=$3 build=$4 root=$5
shift 5
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc 2>/dev/null &&
    printf '%s\n' "$format" >/proc/sys/fs/binfmt_misc/register || exit 77
# A root of its own, a mount point as anywhere but in a bare chroot; nothing is written to the sysroot.
mount -t tmpfs -o mode=755 tmpfs "$root" || exit 77
for folder in bin sbin lib usr; do
    mkdir "$root/$folder" && mount --bind "$sysroot/$folder" "$root/$folder" || exit 77
done
mkdir -p "$root/etc" "$root/proc" "$root/dev" "$root/tmp" "$root/run" "$root/var/tmp" &&
    chmod 1777 "$root/tmp" && mkdir -p "$root$source" "$root$build" &&
    mount --rbind /proc "$root/proc" && mount --rbind /dev "$root/dev" &&
    mount --bind "$source" "$root$source" && mkdir -p "$root$build" && mount --bind "$build" "$root$build" || exit 77
exec python3 -B "$source/tests/container/emulated.py" "$root" "$build/tests/support/libemulated.so"
END
mkdir "$tmp/root"
ctest --test-dir "$build" -L 'unit|hook' --show-only=json-v1 >"$tmp/commands" || die "ctest knows no tests"
# A user namespace with all users in it: whoever makes it cannot say so, whoever enters it later is root.
unshare --user sleep 3600 &
holder=$!
trap 'kill "$holder" 2>/dev/null; rm -rf --one-file-system "$tmp"' EXIT
while [ "$(readlink "/proc/$holder/ns/user")" = "$(readlink /proc/self/ns/user)" ]; do
    kill -0 "$holder" 2>/dev/null || skip "this machine gives no user namespace"
    sleep 0.05
done
for map in uid_map gid_map; do
    echo '0 0 4294967295' >"/proc/$holder/$map" || skip "only root can give a namespace its users"
done
nsenter --user="/proc/$holder/ns/user" unshare --mount sh "$tmp/inside.sh" "$format" "$sysroot" "$source" \
    "$build" "$tmp/root" <"$tmp/commands"
status=$?
[ "$status" -ne 77 ] || skip "this kernel has no binfmt_misc in user namespaces"
[ "$status" -eq 0 ] || die "tests fail under the emulator"
