#!/bin/sh
# Programs out of a package of Debian 13, without installing the package:  newer_tool.sh PACKAGE FILE...
#
# Prints the folder below which the FILEs (their paths in the package) are. They are kept in $VRAMCAP_CACHE
# (else ~/.cache/vramcap) and run here if they need no more than the C library. For tools that Debian 12
# has no such version of, and for daemons that a package would start. Ends with 77 where they cannot be had.
set -u

[ $# -ge 2 ] || {
    echo "usage: newer_tool.sh PACKAGE FILE..." >&2
    exit 2
}
package=$1
shift
suite=trixie
cache=${VRAMCAP_CACHE:-${HOME:-/root}/.cache/vramcap}
kept=$cache/tools-$suite/$package
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

skip()
{
    echo "skipped: $*"
    exit 77
}

all_there() # FOLDER FILE...
{
    folder=$1
    shift
    for file in "$@"; do
        [ -x "$folder$file" ] || return 1
    done
}

if ! all_there "$kept" "$@"; then
    command -v apt-get >/dev/null || skip "no apt-get"
    [ -e "$keyring" ] || skip "no keys of Debian's archive"
    mirror=http://deb.debian.org/debian
    if grep -q '^ID=debian' /etc/os-release 2>/dev/null; then
        own=$(sed -n -e 's/^URIs: *\([^ ]*\).*/\1/p' -e 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\).*/\2/p' \
            /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
        mirror=${own:-$mirror}
    fi
    mkdir -p "$cache/tools-$suite" || exit 2
    new=$(mktemp -d "$cache/new.XXXXXX") || exit 2
    trap 'rm -rf "$new"' EXIT
    trap 'exit 1' HUP INT TERM
    mkdir -p "$new/state/lists/partial" "$new/cache/archives/partial" "$new/root"
    echo "deb [signed-by=$keyring] $mirror $suite main" >"$new/list"
    apt()
    {
        (cd "$new" && apt-get -q -o "Dir::State=$new/state" -o Dir::State::status=/dev/null \
            -o "Dir::Cache=$new/cache" -o "Dir::Etc::sourcelist=$new/list" -o Dir::Etc::sourceparts=/dev/null \
            -o APT::Sandbox::User=root -o Acquire::Retries=2 "$@") >>"$new/log" 2>&1
    }
    if ! apt update || ! apt download "$package"; then
        tail -n 3 "$new/log"
        skip "$package of $suite cannot be had (no network?)"
    fi
    for file in "$@"; do
        dpkg-deb --fsys-tarfile "$new/$package"_*.deb | tar -C "$new/root" -xf - ".$file" || exit 1
    done
    rm -rf "$kept" && mv "$new/root" "$kept" || exit 2
fi
echo "$kept"
