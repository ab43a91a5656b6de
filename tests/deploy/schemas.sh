#!/bin/sh
# The deployment samples against published schemas:  schemas.sh SAMPLES-FOLDER
# (schemas.sh --where: prints the folder of the Python packages that it uses.)
#
# The schemas come from the Python package index, pinned by requirements.txt, once; they are kept in
# $VRAMCAP_CACHE (else ~/.cache/vramcap). Ends with 77 where they cannot be had.
set -u
[ $# -eq 1 ] || {
    echo "usage: schemas.sh SAMPLES-FOLDER | --where" >&2
    exit 2
}
here=$(cd "$(dirname "$0")" && pwd) || exit 2
cache=${VRAMCAP_CACHE:-${HOME:-/root}/.cache/vramcap}
version=$(python3 -c 'import sys; print("%d%d" % sys.version_info[:2])') || {
    echo "skipped: no python3"
    exit 77
}
packages=$cache/schemas-$version-$(cksum <"$here/requirements.txt" | cut -d' ' -f1)
if [ ! -d "$packages" ]; then
    mkdir -p "$cache" || exit 2
    new=$(mktemp -d "$cache/new.XXXXXX") || exit 2
    trap 'rm -rf "$new"' EXIT
    trap 'exit 1' HUP INT TERM
    python3 -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --target "$new/packages" -r "$here/requirements.txt" >"$new/log" 2>&1 || {
        tail -n 3 "$new/log"
        echo "skipped: the schemas cannot be had (no network, or another Python)"
        exit 77
    }
    mv -T "$new/packages" "$packages" 2>/dev/null || [ -d "$packages" ] || exit 2
fi
if [ "$1" = --where ]; then
    echo "$packages"
    exit
fi
PYTHONPATH=$packages exec python3 -B "$here/schemas.py" "$packages" "$1"
