#!/bin/sh
# What libvramcap.so shows to the loader:  check_library.sh LIBRARY EXPORTS PROCESSOR
#   - it exports what the table says (EXPORTS: the version script made from cuda_api.def) and nothing else;
#   - it needs libc and the loader only, and no symbol newer than GLIBC_2.17;
#   - every program that loads it pays for two written pages of its file: what is written once (RELRO) is one,
#     what has a first value is the other;
#   - the resolver's objects call no libc function but syscall and errno (given as further arguments).
set -u
library=$1
exports=$2
shift 2
failures=0
complain()
{
    echo "$*"
    failures=$((failures + 1))
}

if ! command -v objdump >/dev/null || ! command -v nm >/dev/null; then
    echo "skipped: no binutils"
    exit 77
fi
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

tr ';' '\n' <"$exports" | sed -n 's/^ *\([A-Za-z_][A-Za-z0-9_]*\)$/\1/p' | sort -u >"$work/wanted"
nm -D --defined-only "$library" | awk '{print $NF}' | sed 's/@.*//' | sort -u >"$work/found"
[ "$(wc -l <"$work/wanted")" -gt 50 ] || complain "the export list has only $(wc -l <"$work/wanted") names"
diff "$work/wanted" "$work/found" >"$work/diff" || complain "exports differ from the table (< missing, > too many):
$(cat "$work/diff")"

needed=$(objdump -p "$library" | awk '/NEEDED/ {print $2}' | grep -v -e '^libc\.so\.6$' -e '^ld-linux')
[ -z "$needed" ] || complain "needs $needed"
newest=$(objdump -T "$library" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
[ "$(printf '%s\n2.17\n' "$newest" | sort -V | tail -n 1)" = 2.17 ] || complain "needs GLIBC_$newest, the floor is 2.17"
objdump -T "$library" | grep GLIBC_PRIVATE && complain "needs a private symbol of glibc"
written=$(readelf -lW "$library" | awk '$1 == "LOAD" && $7 == "RW" {print $3, $5}')
at=${written% *}
bytes=${written#* }
pages=$(((at + bytes - 1) / 4096 - at / 4096 + 1))
[ "$pages" -le 2 ] || complain "$pages pages of it are written to at load: tables with addresses, or variables with first values"
for object in "$@"; do
    called=$(nm -u "$object" | awk '{print $NF}' |
        grep -v -e '^vcap_' -e '^cu[A-Z]' -e '^nvml' -e '^real' -e '^_r_debug$' -e '^syscall$' -e '^__errno_location$' \
            -e '^__ehdr_start$' -e '^_GLOBAL_OFFSET_TABLE_$')
    [ -z "$called" ] || complain "$(basename "$object") calls $called"
done
echo "newest symbol version: GLIBC_$newest; exports: $(wc -l <"$work/found")"
[ "$failures" -eq 0 ]
