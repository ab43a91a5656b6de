#!/bin/sh
# Every ledger that a released version wrote is read as ever:  check.sh TOOL FOLDER
# For each FOLDER/ledger-N.bin there are ledger-N.json (`dump --json`; keys may be added: what is here must
# be there) and ledger-N.events (`events --json`).
set -u
tool=$1
folder=$2
failures=0
seen=0
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

for image in "$folder"/ledger-*.bin; do
    name=${image%.bin}
    seen=$((seen + 1))
    cp "$image" "$work/ledger" || exit 2
    if ! "$tool" dump --json "$work/ledger" >"$work/json" ||
        ! "$tool" events --json "$work/ledger" >"$work/events"; then
        echo "$image is not read"
        failures=$((failures + 1))
        continue
    fi
    diff -u "$name.events" "$work/events" || failures=$((failures + 1))
    python3 -B - "$name.json" "$work/json" <<'PYTHON' || failures=$((failures + 1))
import json
import sys


def lost(want, have, at):
    if isinstance(want, dict) and isinstance(have, dict):
        for key in want:
            if key not in have:
                yield f"{at}.{key} is gone"
            else:
                yield from lost(want[key], have[key], f"{at}.{key}")
    elif isinstance(want, list) and isinstance(have, list) and len(want) == len(have):
        for i, (w, h) in enumerate(zip(want, have)):
            yield from lost(w, h, f"{at}[{i}]")
    elif want != have:
        yield f"{at} is {have!r}, was {want!r}"


with open(sys.argv[1]) as want, open(sys.argv[2]) as have:
    problems = list(lost(json.load(want), json.load(have), "ledger"))
print("\n".join(problems), end="\n" if problems else "")
sys.exit(1 if problems else 0)
PYTHON
done
[ "$seen" -gt 0 ] || echo "no image in $folder"
[ "$seen" -gt 0 ] && [ "$failures" -eq 0 ]
