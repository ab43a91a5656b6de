#!/bin/sh
# The library by either compiler at every level of optimisation, and with link-time optimisation:
#
#   compilers.sh FOLDER CUDA-INCLUDE TEST...
#
# Each is built into FOLDER, held to what the library may export, need and call (check_library.sh), and put
# under the TESTs (programs that take the library from VRAMCAP_TEST_LIBRARY). The tail jump, the
# initial-exec storage and the resolver without libc must not depend on what a compiler happens to do. Only
# the library is built, as many variants at once as there are processors. 77 where a compiler is missing,
# after the other was tried.
set -u

[ $# -ge 3 ] || {
    echo "usage: compilers.sh FOLDER CUDA-INCLUDE TEST..." >&2
    exit 2
}
mkdir -p "$1" || exit 2
folder=$(cd "$1" && pwd)
include=$2
source=$(cd "$(dirname "$0")/../.." && pwd) || exit 2

quietly() # COMMAND...: shows the end of what it says only on failure
{
    "$@" >"$build.log" 2>&1 </dev/null || {
        tail -n 30 "$build.log"
        return 1
    }
}

# Called by itself, below: COMPILER-LEVEL, or COMPILER-lto. Says one line, or what is wrong.
if [ -n "${VRAMCAP_VARIANT-}" ]; then
    shift 2
    name=$VRAMCAP_VARIANT
    build=$folder/$name
    standard=11
    case $name in
    *-lto) flags='-O2 -flto' ;;
    *-c23) flags=-O2 standard=23 ;; # bool, nullptr and empty parameter lists mean something else in it
    *) flags=-${name#*-} ;;
    esac
    set -- "$name" "$@"
    launcher=
    if command -v ccache >/dev/null; then
        launcher=-DCMAKE_C_COMPILER_LAUNCHER=ccache
    fi
    # shellcheck disable=SC2086 # one option, or none
    if ! quietly cmake -G Ninja -S "$source" -B "$build" "-DCMAKE_C_COMPILER=${name%%-*}" $launcher \
        -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_C_FLAGS_RELWITHDEBINFO=$flags" -DBUILD_TESTING=OFF \
        "-DCMAKE_C_STANDARD=$standard" "-DVRAMCAP_CUDA_INCLUDE=$include" ||
        ! quietly cmake --build "$build" -j 1 --target vramcap_preload; then
        echo "$name: cannot be built"
        exit 1
    fi
    shift
    failures=0
    (
        set -- "$build"/preload/CMakeFiles/preload_resolver.dir/*.o
        [ -e "$1" ] || {
            echo "$name: where are the resolver's objects?"
            exit 1
        }
        case $name in
        *-lto) set -- ;; # its objects are no machine code yet
        esac
        quietly sh "$source/tests/contract/check_library.sh" "$build/libvramcap.so" \
            "$build/preload/exports.lds" "$@"
    ) || {
        echo "$name: not what the library may be"
        failures=1
    }
    for test in "$@"; do
        VRAMCAP_TEST_LIBRARY=$build/libvramcap.so quietly "$test" || {
            echo "$name: $(basename "$test") fails"
            failures=1
        }
    done
    echo "$name: $(stat -c %s "$build/libvramcap.so") bytes"
    exit "$failures"
fi

variants=
left=
for compiler in gcc clang; do
    if command -v "$compiler" >/dev/null; then
        variants="$variants $compiler-lto"
        for level in 3 2 1 0; do
            variants="$variants $compiler-O$level"
        done
    else
        left="$left $compiler"
    fi
done
command -v gcc >/dev/null && variants="$variants gcc-c23"
# shellcheck disable=SC2086 # the variants are separate words
printf '%s\n' $variants |
    xargs -P "$(nproc)" -I '{}' env VRAMCAP_VARIANT='{}' sh "$0" "$@" || exit 1
[ -z "$left" ] || {
    echo "skipped: no$left"
    exit 77
}
