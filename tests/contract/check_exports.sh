#!/bin/sh
# The ABI on record:  check_exports.sh LIBRARY RECORD [--update]
#
# RECORD lists what libvramcap.so exports, one name a line, as released. A name that is gone is a broken
# promise to programs that were linked with it or look for it; a new one is put on record with --update,
# in the change that adds it. (That exports and tables agree is check_library.sh's matter.)
set -u
command -v nm >/dev/null || {
    echo "skipped: no binutils"
    exit 77
}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
nm -D --defined-only "$1" | awk '{ print $NF }' | sed 's/@.*//' | LC_ALL=C sort -u >"$work/found"
[ -s "$work/found" ] || {
    echo "$1 exports nothing"
    exit 1
}
if [ "${3-}" = --update ]; then
    cp "$work/found" "$2"
    exit
fi
diff "$2" "$work/found" >"$work/diff" || {
    echo "exports are not those of $2 (< gone, > not on record):"
    cat "$work/diff"
    exit 1
}
