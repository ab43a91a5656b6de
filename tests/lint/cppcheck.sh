#!/bin/sh
# Runs cppcheck over our C files:  cppcheck.sh ROOT BUILD
# System and CUDA headers are not read: what cppcheck knows of libc is enough, and cuda.h alone takes
# it minutes; uthash.h is, for its macros would hide what they assign. A single place that is right says so with: // cppcheck-suppress id ; reason
set -u
cd "$1" || exit 2
command -v cppcheck >/dev/null || {
    echo "skipped: no cppcheck"
    exit 77
}
mkdir -p "$2/cppcheck" || exit 2
folders=
for folder in preload enforcer samples tests bench; do
    # (find, because an empty folder is an error to cppcheck)
    [ -n "$(find "$folder" -name '*.c' 2>/dev/null | head -n 1)" ] && folders="$folders $folder"
done
uthash=$(echo '#include <uthash.h>' | cc -M -x c - 2>/dev/null | tr ' ' '\n' | grep -m 1 'uthash\.h$')
# shellcheck disable=SC2086 # the folders are separate words
cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr \
    --suppress=missingInclude --suppress=missingIncludeSystem --suppress=unmatchedSuppression \
    --error-exitcode=1 --max-configs=4 -D_GNU_SOURCE -D__x86_64__ -D__linux__ -D__GNUC__=12 \
    -DVRAMCAP_VERSION='""' '-DElfW(type)=Elf64_##type' ${uthash:+--include="$uthash"} -I . -j "$(nproc)" --cppcheck-build-dir="$2/cppcheck" $folders && exit 0
case $(cppcheck --version) in
'Cppcheck 2.10'*) exit 1 ;;
esac
echo "skipped: the findings above are those of another release than 2.10, whose word counts here"
exit 77
