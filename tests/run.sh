#!/bin/sh
# The one command that sets up a machine and runs every test:
#
#   tests/run.sh            gcc, ASan with UBSan, TSan and clang builds, their tests, and lint
#   tests/run.sh --quick    the gcc build and its tests, without lint
#   tests/run.sh --full     also a fresh root of each distribution and the aarch64 build
#
# Builds are kept in build/; the last line is `N passed, N failed, N skipped` over all of them, and the
# status is 0 only if none failed. VRAMCAP_MUST_WORK=1 makes a skipped test a failure (but for those that
# need a GPU). JOBS: how many run at once.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 2
cd "$root" || exit 2
mode=everyday
case ${1-} in
'') ;;
--quick) mode=quick ;;
--full) mode=full ;;
*)
    echo "usage: tests/run.sh [--quick | --full]" >&2
    exit 2
    ;;
esac
jobs=${JOBS:-$(nproc)}
build=build
stages=
results=
targets=
broken=0
began=$(date +%s)

stage() # NAME: the stage before ends here
{
    now=$(date +%s)
    [ -z "${stage_name-}" ] || stages="$stages$(printf '%5d s  %s' $((now - stage_began)) "$stage_name")
"
    stage_name=$1
    stage_began=$now
    [ -z "$1" ] || echo "== $1"
}

fail() # WORDS: a stage that could not do its work counts as one failure
{
    echo "run.sh: $*"
    broken=$((broken + 1))
}

quietly() # LOG COMMAND...: shows the end of the log only on failure
{
    log=$1
    shift
    mkdir -p "$(dirname "$log")"
    "$@" >"$log" 2>&1 || {
        tail -n 60 "$log"
        return 1
    }
}

# targets: empty for all
make_tree() # NAME CMAKE-OPTION...
{
    tree=$1
    shift
    quietly "$build/$tree/configure.log" cmake -G Ninja -S "$root" -B "$build/$tree" "$@" ||
        { fail "$tree: could not be configured" && return 1; }
    # shellcheck disable=SC2086 # the targets are separate words
    quietly "$build/$tree/build.log" cmake --build "$build/$tree" -j "$jobs" ${targets:+--target $targets} ||
        { fail "$tree: could not be built" && return 1; }
}

test_tree() # NAME RESULT-FILE CTEST-OPTION...
{
    tree=$1
    result=$build/$tree/$2
    shift 2
    rm -f "$result"
    # An older TSan cannot take the kernel's widest spread of mappings; -R narrows it.
    as_is=
    [ "$tree" != tsan ] || ! setarch -R true 2>/dev/null || as_is='setarch -R'
    # shellcheck disable=SC2086 # as_is is a command with its option, or nothing
    $as_is ctest --test-dir "$build/$tree" -j "$jobs" --timeout 120 --output-on-failure \
        --no-tests=error --output-junit "$root/$result" "$@" </dev/null
    results="$results $result"
}

finish()
{
    stage ''
    echo
    printf '%s' "$stages"
    printf '%5d s  all\n' $(($(date +%s) - began))
    if [ -z "$results" ]; then
        echo "0 passed, $broken failed, 0 skipped"
        exit 1
    fi
    # shellcheck disable=SC2086 # the files are separate words
    sum=$(python3 -B tests/junit_sum.py $results)
    status=$?
    printf '%s\n' "$sum" | sed '$d'
    printf '%s\n' "$sum" | tail -n 1 | awk -v broken="$broken" '{ $3 += broken; print }'
    [ "$status" -eq 0 ] && [ "$broken" -eq 0 ]
    exit
}

stage 'set up'
case $mode in
full) tests/setup.sh full ;;
*) tests/setup.sh test ;;
esac || {
    fail "this machine lacks what the tests need"
    stage ''
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}
# The coverage test reads NVIDIA's list of names, which few toolkits install where it can be found.
set -- -DCMAKE_BUILD_TYPE=RelWithDebInfo
if sh preload/fetch_cuda_headers.sh "$build/cuda-headers"; then
    set -- "$@" "-DVRAMCAP_CUPTI_INCLUDE=$root/$build/cuda-headers/include"
fi

stage 'gcc: build'
make_tree dev -DCMAKE_C_COMPILER=gcc "$@" || finish
include=$(sed -n 's/^VRAMCAP_CUDA_INCLUDE:[A-Z]*=//p' "$build/dev/CMakeCache.txt")
set -- "$@" "-DVRAMCAP_CUDA_INCLUDE=$include"
stage 'gcc: tests'
test_tree dev junit.xml -LE 'lint|bench'
[ "$mode" != quick ] || finish

# Half the time to compile, and the sanitizers see the same.
lighter='-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1 -g1 -DNDEBUG'
stage 'ASan and UBSan: build'
if make_tree asan -DCMAKE_C_COMPILER=gcc -DVRAMCAP_SANITIZE=address "$@" "$lighter"; then
    stage 'ASan and UBSan: tests'
    test_tree asan junit.xml -LE 'lint|bench|contract|model'
fi
stage 'TSan: build'
if make_tree tsan -DCMAKE_C_COMPILER=gcc -DVRAMCAP_SANITIZE=thread "$@" "$lighter"; then
    stage 'TSan: tests'
    # not what has one thread only
    test_tree tsan junit.xml -LE 'lint|bench|contract|model|calls|cli|sim'
fi
stage 'clang: build'
targets='preload/all enforcer/all tests/sim/all tests/support/all tests/unit/all tests/hook/all tests/interpose/all
    tests/cli/all'
if make_tree clang -DCMAKE_C_COMPILER=clang "$@"; then
    stage 'clang: tests'
    test_tree clang junit.xml -L 'unit|hook'
fi

targets=
stage 'lint'
test_tree dev lint.xml -L lint

if [ "$mode" = full ]; then
    stage 'fresh roots and aarch64'
    test_tree dev full.xml -C full -L full
fi
finish
