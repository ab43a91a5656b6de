#!/bin/sh
# The smallest install of a Debian suite, made by debootstrap:  root.sh SUITE
#
# Prints the folder. It is kept in $VRAMCAP_CACHE (else ~/.cache/vramcap) and must be left untouched.
# The mirror is this machine's own, if it is a Debian; else debootstrap's choice. Ends with 77 where no
# such root can be made.
set -u

[ $# -eq 1 ] || {
    echo "usage: root.sh SUITE" >&2
    exit 2
}
suite=$1
cache=${VRAMCAP_CACHE:-${HOME:-/root}/.cache/vramcap}
pristine=$cache/root-$suite

skip()
{
    echo "skipped: $*"
    exit 77
}

if [ ! -e "$pristine/etc/debian_version" ]; then
    [ "$(id -u)" -eq 0 ] || skip "only root can make a Debian root"
    command -v debootstrap >/dev/null || skip "no debootstrap"
    mirror=
    if grep -q '^ID=debian' /etc/os-release 2>/dev/null; then
        mirror=$(sed -n -e 's/^URIs: *\([^ ]*\).*/\1/p' \
            -e 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\).*/\2/p' \
            /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
    fi
    mkdir -p "$cache" || exit 2
    new=$(mktemp -d "$cache/new.XXXXXX") || exit 2
    trap 'rm -rf --one-file-system "$new" "$new.log"' EXIT
    trap 'exit 1' HUP INT TERM
    chmod 755 "$new"
    # shellcheck disable=SC2086 # the mirror is one word, or none
    if ! debootstrap --variant=minbase "$suite" "$new" $mirror >"$new.log" 2>&1; then
        tail -n 5 "$new.log"
        skip "debootstrap could not make $suite (no network?)"
    fi
    mv "$new" "$pristine" || exit 2
fi
echo "$pristine"
