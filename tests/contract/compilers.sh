#!/bin/sh
# The library by either compiler at every level of optimisation, with link-time optimisation, and as C23:
#
#   compilers.sh FOLDER CUDA-INCLUDE TEST...
#
# Each is built into FOLDER, held to what the library may export and need (check_library.sh), and put under
# the TESTs (programs that take the library from VRAMCAP_TEST_LIBRARY). The tail jump, the initial-exec
# storage and the resolver without libc must not depend on what a compiler happens to do. 77 where a
# compiler is missing, after the other was tried.
set -u

[ $# -ge 3 ] || {
    echo "usage: compilers.sh FOLDER CUDA-INCLUDE TEST..." >&2
    exit 2
}
mkdir -p "$1" || exit 2
folder=$(cd "$1" && pwd)
include=$2
shift 2
source=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
failures=0
left=
standard=11
launcher=
if command -v ccache >/dev/null; then
    launcher=-DCMAKE_C_COMPILER_LAUNCHER=ccache
fi

try() # NAME COMPILER FLAGS TEST...
{
    name=$1
    build=$folder/$1
    compiler=$2
    flags=$3
    shift 3
    # shellcheck disable=SC2086 # one option, or none
    if ! cmake -G Ninja -S "$source" -B "$build" "-DCMAKE_C_COMPILER=$compiler" $launcher \
        -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_C_FLAGS_RELWITHDEBINFO=$flags" -DBUILD_TESTING=OFF \
        "-DCMAKE_C_STANDARD=$standard" \
        "-DVRAMCAP_CUDA_INCLUDE=$include" >"$build.log" 2>&1 ||
        ! cmake --build "$build" --target vramcap_preload >>"$build.log" 2>&1; then
        tail -n 30 "$build.log"
        echo "$name: cannot be built"
        failures=$((failures + 1))
        return
    fi
    sh "$source/tests/contract/check_library.sh" "$build/libvramcap.so" "$build/preload/exports.lds" \
        >"$build.log" 2>&1 || {
        cat "$build.log"
        echo "$name: not what the library may be"
        failures=$((failures + 1))
    }
    for test in "$@"; do
        VRAMCAP_TEST_LIBRARY=$build/libvramcap.so "$test" >"$build.log" 2>&1 </dev/null || {
            tail -n 30 "$build.log"
            echo "$name: $(basename "$test") fails"
            failures=$((failures + 1))
        }
    done
    echo "$name: $(stat -c %s "$build/libvramcap.so") bytes"
}

for compiler in gcc clang; do
    command -v "$compiler" >/dev/null || {
        left="$left $compiler"
        continue
    }
    for level in 0 1 2 3; do
        try "$compiler-O$level" "$compiler" "-O$level" "$@"
    done
done
if command -v gcc >/dev/null; then
    try gcc-lto gcc "-O2 -flto=auto -ffat-lto-objects" "$@"
    standard=23 # bool, nullptr and empty parameter lists mean something else in it
    try gcc-c23 gcc -O2 "$@"
fi

[ "$failures" -eq 0 ] || exit 1
[ -z "$left" ] || {
    echo "skipped: no$left"
    exit 77
}
