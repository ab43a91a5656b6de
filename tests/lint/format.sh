#!/bin/sh
# Runs clang-format over every C file:  format.sh ROOT
set -u
cd "$1" || exit 2
# Releases of clang-format differ in what they make of one style file; this one decides.
major=14
format=clang-format-$major
command -v "$format" >/dev/null || format=clang-format
case $("$format" --version 2>/dev/null) in
*"version $major."*) ;;
*)
    echo "skipped: no clang-format $major, whose layout this tree has"
    exit 77
    ;;
esac
# Folders that hold a build are left out.
builds=$(find . -name CMakeCache.txt -exec dirname {} \;)
files=$(find . -path ./.git -prune -o -path './build*' -prune -o -name '*.[ch]' -print)
for build in $builds; do
    files=$(printf '%s\n' "$files" | grep -v "^$build/")
done
printf '%s\n' "$files" | xargs "$format" --style=file --dry-run -Werror
