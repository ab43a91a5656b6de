#!/bin/sh
# The manual pages say what the tool says: every option of every command's help is in vramcap(1), every
# row of config.def in libvramcap(7), and groff has nothing to complain about.
# Arguments: TOOL VRAMCAP.1 LIBVRAMCAP.7 VRAMCAP-LEDGER.5 CONFIG.DEF
set -u
tool=$1 page1=$2 page7=$3 page5=$4 options=$5
failures=0

complain() {
    echo "$*"
    failures=$((failures + 1))
}

for command in $("$tool" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p'); do
    grep -q "vramcap $command" "$page1" || complain "vramcap(1) has no command $command"
    [ "$command" = help ] && continue
    for option in $("$tool" help "$command" | grep -o -e '--[a-z]*' | sort -u); do
        [ "$option" = -- ] && continue
        grep -q -e "$(printf %s "$option" | sed 's/-/\\\\-/g')" "$page1" ||
            complain "vramcap(1) has no $option of $command"
    done
done
names=$(sed -n 's/^\(OPTION\|FOREIGN\)(\([A-Z_]*\),.*/\2/p' "$options")
for name in $names; do
    grep -q "^\.B $name\$" "$page7" || complain "libvramcap(7) has no $name"
done
if command -v groff >/dev/null; then
    for page in "$page1" "$page7" "$page5"; do
        said=$(groff -man -Tutf8 -ww -z "$page" 2>&1)
        [ -z "$said" ] || complain "$page: $said"
    done
elif [ "${VRAMCAP_MUST_WORK:-0}" = 1 ]; then
    complain "groff is missing"
fi
exit "$([ "$failures" -eq 0 ] && echo 0 || echo 1)"
