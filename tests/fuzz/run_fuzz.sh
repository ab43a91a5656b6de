#!/bin/sh
# Builds one libFuzzer target with clang and runs it:  run_fuzz.sh NAME SECONDS SOURCE-ROOT WORK JANSSON-FLAGS...
# The corpus is SOURCE-ROOT/tests/fuzz/corpus/NAME, with the images of tests/golden for the reader; what is
# found new stays in WORK. The last lines have the number of executions.
# VRAMCAP_FUZZ_SECONDS: another time.
set -u
name=$1
seconds=${VRAMCAP_FUZZ_SECONDS:-$2}
root=$3
work=$4/$1
shift 4
sanitize='-fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined'

mkdir -p "$work/new" "$work/seeds" || exit 2
# shellcheck disable=SC2086 # sanitize is several words
if ! echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return !d && n; }' |
    clang $sanitize -x c - -o "$work/probe" 2>"$work/probe.log"; then
    echo "skipped: no clang with libFuzzer (Debian: clang and libclang-rt-dev)"
    exit 77
fi
case $name in
ledger)
    sources="enforcer/ledger_read.c enforcer/ledger_read_event.c enforcer/ledger_read_open.c enforcer/ledger_read_slot.c
        enforcer/ledger_check.c enforcer/ledger_reap.c enforcer/ledger_event.c enforcer/cli/dump_json.c
        enforcer/cli/dump_table.c enforcer/cli/table.c enforcer/cli/units.c"
    for image in "$root"/tests/golden/ledger-*.bin; do
        for first in 0 1; do
            { printf '%b' "\\0$first" && cat "$image"; } >"$work/seeds/$(basename "$image").$first"
        done
    done
    ;;
config) sources='enforcer/config.c enforcer/ceiling.c' ;;
conf) sources='enforcer/config.c enforcer/conf_file.c' ;;
*) exit 2 ;;
esac
cd "$root" || exit 2
# shellcheck disable=SC2086
clang -g -O1 -std=gnu11 -D_GNU_SOURCE -DVRAMCAP_VERSION='"fuzz"' -I. $sanitize "tests/fuzz/fuzz_$name.c" $sources \
    "$@" -o "$work/fuzz" || exit 1
"$work/fuzz" -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$work/" "$work/new" "tests/fuzz/corpus/$name" "$work/seeds" >"$work/log" 2>&1
status=$?
grep -E '^stat::number_of_executed_units|^wrong|^==.*ERROR|^SUMMARY' "$work/log"
[ $status -eq 0 ] || tail -n 40 "$work/log"
exit $status
