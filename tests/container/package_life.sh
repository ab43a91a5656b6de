#!/bin/sh
# A .deb's life, inside a fresh root:  package_life.sh FOLDER
#
# FOLDER has old.deb, new.deb (a later version of the same), pair and sim/. A container's processes run
# all the while, with the library of the first install mapped.
set -u
share=$1
tmp=$(mktemp -d) || exit 2
holder=
trap '[ -z "$holder" ] || kill "$holder" 2>/dev/null; rm -rf "$tmp"' EXIT

die()
{
    echo "package_life: $*" >&2
    exit 1
}

apt()
{
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=2 "$@" >"$tmp/apt" 2>&1 </dev/null
}

export LD_LIBRARY_PATH="$share/sim" VRAMCAP_SIM_STATE="$tmp/card" VRAMCAP_SIM_CARDS=8192

under() # COMMAND...: in the one container
{
    vramcap run --memory 1024 --ledger /run/vramcap/test.ledger -- "$@"
}

apt install "$share/old.deb" || { apt update && apt install "$share/old.deb"; } || {
    tail -n 5 "$tmp/apt"
    echo "skipped: apt cannot install libjansson4 here (no network?)"
    exit 77
}
[ -d /run/vramcap ] || die "no /run/vramcap after the install"
vramcap version | grep -q '^vramcap ' || die "no vramcap"
dpkg -V vramcap || die "files are not those of the package"

mkfifo "$tmp/hold" || exit 2
vramcap run --memory 1024 --ledger /run/vramcap/test.ledger -- "$share/pair" --ceiling 1024 <"$tmp/hold" >"$tmp/pair" 2>"$tmp/lines" &
holder=$!
exec 3>"$tmp/hold"
tries=100
until grep -q second "$tmp/pair"; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || die "pair says nothing: $(cat "$tmp/lines")"
    sleep 0.1
done
grep -q 'second=CUDA_ERROR_OUT_OF_MEMORY then=CUDA_SUCCESS' "$tmp/pair" || die "no ceiling: $(cat "$tmp/pair")"

shares_the_ceiling() # WHEN
{
    # 128 MiB are left: the old library's processes hold the rest
    [ "$(under "$share/pair" --ask 512 2>/dev/null)" = ask=CUDA_ERROR_OUT_OF_MEMORY ] ||
        die "$1: a new process is not held by what the old ones have"
    [ "$(under "$share/pair" --ask 100 2>/dev/null)" = ask=CUDA_SUCCESS ] || die "$1: no room for the rest"
    [ "$(vramcap dump /run/vramcap/test.ledger | grep -c ' alive ')" -eq 2 ] || die "$1: not two processes"
}
shares_the_ceiling "installed"
echo "installed; a container runs"

dpkg -i "$share/new.deb" >"$tmp/dpkg" 2>&1 || die "upgrade: $(cat "$tmp/dpkg")"
grep -q 'libvramcap.so.*(deleted)' "/proc/$holder/maps" || die "the old library is not mapped any more"
shares_the_ceiling "upgraded"
echo "upgraded: the old library is still mapped, old and new share the ceiling"

apt install --allow-downgrades "$share/old.deb" || die "downgrade: $(cat "$tmp/apt")"
shares_the_ceiling "downgraded"

# A ledger of a later format, as an older vramcap would meet it after a downgrade: bytes 8 to 15 of the
# header are its version and the oldest reader's.
vramcap run --ledger /run/vramcap/later.ledger --memory 1024 -- true || die "no second ledger"
printf '\143\000\000\000\143\000\000\000' |
    dd of=/run/vramcap/later.ledger bs=1 seek=8 conv=notrunc 2>/dev/null || die "cannot write"
said=$(LD_PRELOAD=/usr/lib/libvramcap.so VRAMCAP_ENABLE=1 VRAMCAP_MEMORY_MIB=1024 \
    VRAMCAP_LEDGER=/run/vramcap/later.ledger "$share/pair" --ask 100 2>&1)
echo "$said" | grep -q '^ask=CUDA_ERROR_OUT_OF_MEMORY' || die "a later format is used: $said"
[ "$(echo "$said" | grep -c '^vramcap: .*later.ledger.*99')" -eq 1 ] || die "no clear line: $said"
said=$(vramcap dump /run/vramcap/later.ledger 2>&1) && die "dump reads a later format"
echo "$said" | grep -q 99 || die "dump does not say which format: $said"
echo "downgraded: same format goes on; a later one is refused: $said"

dpkg -P vramcap >"$tmp/dpkg" 2>&1 || die "removal: $(cat "$tmp/dpkg")"
kill -0 "$holder" || die "the container did not survive the removal"
left=$(find / -xdev \( -path /share -o -path /src -o -path /proc -o -path /run -o -path /tmp \) -prune \
    -o -name '*vramcap*' -print)
[ -z "$left" ] || die "left behind: $left"
exec 3>&-
wait "$holder" || die "pair ended with $?: $(cat "$tmp/lines")"
holder=
echo "removed: nothing is left, the container ended well"
