#!/usr/bin/env bash
# Prints one table: the bare simulated driver against vramcap in front of it, in one run, alternating, and
# writes the same as JSON beside it.
#   bench/run.sh [BUILD] [--only WORD] [--runs N] [--json FILE]
# BUILD: a Release build folder; default build/release, made if missing.  bench/table.py has the rows.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/release
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    build=$1
    shift
fi
if [ ! -x "$build/bench/bench" ]; then
    cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release >/dev/null
    cmake --build "$build" -j2 >/dev/null
fi
exec python3 "$root/bench/table.py" "$build" "$@"
