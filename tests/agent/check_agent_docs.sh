#!/bin/sh
# What is written about the agent is what it says: every option of its help is in the manual page, every
# field of /v1/containers is in docs/agent.md, and groff has nothing to complain about.
# Arguments: AGENT VRAMCAP-AGENT.8 AGENT.MD
set -u
agent=$1 page=$2 text=$3
failures=0

complain() {
    echo "$*"
    failures=$((failures + 1))
}

for option in $("$agent" --help | grep -o -e '--[a-z0-9][a-z-]*' | sort -u); do
    grep -q -e "$(printf %s "$option" | sed 's/-/\\\\-/g')" "$page" || complain "vramcap-agent(8) has no $option"
done
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
fields=$("$agent" --once --json --no-proc --nvml none --ledger-dir "$work" | grep -o '"[a-z_]*":' | tr -d '":' | sort -u)
[ -n "$fields" ] || complain "the agent printed no JSON"
# every word in quotes, for an empty directory has no containers to show their fields
source=$(dirname "$0")/../../enforcer/agent/export_json.c
fields="$fields $(grep -o '"[a-z_]\{2,\}"' "$source" | tr -d '"' | sort -u)"
for field in $fields; do
    grep -qw "$field" "$text" || complain "docs/agent.md has no field $field"
done
if command -v groff >/dev/null; then
    said=$(groff -man -Tutf8 -ww -z "$page" 2>&1)
    [ -z "$said" ] || complain "$page: $said"
elif [ "${VRAMCAP_MUST_WORK:-0}" = 1 ]; then
    complain "groff is missing"
fi
exit "$([ "$failures" -eq 0 ] && echo 0 || echo 1)"
