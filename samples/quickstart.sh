#!/bin/sh
# vramcap in one minute, on any machine with Debian 12, Ubuntu 24.04 or newer, with or without a GPU:
#
#   samples/quickstart.sh
#
# Installs what is missing (as root or with sudo), builds into build/quickstart, installs to
# build/quickstart/prefix, and shows one container with a ceiling of 4096 MiB: a server, and a greedy
# neighbour that is refused. Everything that it says happened is checked; the status is 0 only if all of
# it did. It ends its own processes and removes its own files outside build/.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 2
build=$root/build/quickstart
prefix=$build/prefix
ceiling_mib=4096
card_mib=24576
server=
greedy=
tmp=

clean_up()
{
    for pid in $greedy $server; do
        kill -9 "$pid" 2>/dev/null && wait "$pid" 2>/dev/null
    done
    [ -z "$tmp" ] || rm -rf "$tmp"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM

step()
{
    printf '\n--- %s\n' "$*"
}

die()
{
    echo "quickstart: NOT AS PROMISED: $*" >&2
    for log in server greedy; do
        if [ -n "$tmp" ] && [ -s "$tmp/$log" ]; then
            echo "The last lines of the $log:" >&2
            tail -n 8 "$tmp/$log" >&2
        fi
    done
    exit 1
}

quietly() # LOG COMMAND...
{
    log=$1
    shift
    "$@" >"$log" 2>&1 || {
        tail -n 30 "$log" >&2
        die "'$1' failed; all of its output is in $log"
    }
}

wait_for() # FILE PATTERN: until a line matches, 15 s at most
{
    tries=150
    until grep -q "$2" "$1" 2>/dev/null; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || die "no line '$2' within 15 s"
        sleep 0.1
    done
}

# Sets ceiling, charged, free (MiB), refusals and living (process ids) from the ledger.
read_ledger()
{
    "$prefix/bin/vramcap" dump "$tmp/ledger" --json >"$tmp/json" || die "the ledger cannot be read"
    python3 - "$tmp/json" >"$tmp/numbers" <<'PY' || die "the ledger's JSON is not as documented"
import json, sys

ledger = json.load(open(sys.argv[1], encoding="utf-8"))
gpu = ledger["gpus"][0]
print(*(gpu[k] >> 20 for k in ("ceiling_bytes", "charged_bytes", "free_bytes")), gpu["refusals"],
      *(p["pid"] for p in ledger["processes"] if p["state"] == "alive"))
PY
    read -r ceiling charged free refusals living <"$tmp/numbers"
}

lives() # PID: as the ledger sees it
{
    case " $living " in
    *" $1 "*) return 0 ;;
    esac
    return 1
}

# The number of requests served, from the server's last report.
served()
{
    sed -n 's/.*: \([0-9]*\) served.*/\1/p' "$tmp/server" | tail -n 1
}

# COMMAND..., in the one container of this demonstration. Called in the background only: there `exec`
# makes $! the command's own process.
under_ceiling()
{
    exec "$prefix/bin/vramcap" run --memory "$ceiling_mib" --ledger "$tmp/ledger" -- "$@"
}

step "1. Build"
"$root/tests/setup.sh" build || exit 1
mkdir -p "$build" || exit 1
quietly "$build/configure.log" cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_TESTING=OFF -DCMAKE_INSTALL_PREFIX="$prefix"
quietly "$build/build.log" cmake --build "$build" -j "$(nproc)"
quietly "$build/install.log" cmake --install "$build" --prefix "$prefix"
echo "installed in ${prefix#"$root"/}"
tmp=$(mktemp -d) || exit 1

# A demonstration has a configuration of its own.
for name in $(env | sed -n 's/^\(VRAMCAP_[A-Z_]*\)=.*/\1/p') CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; do
    unset "$name"
done

step "2. The GPU"
if gpu=$("$build/samples/server" --probe 2>/dev/null); then
    echo "This machine has a real one, and it is used: $gpu"
else
    LD_LIBRARY_PATH=$prefix/lib/vramcap/sim
    VRAMCAP_SIM_STATE=$tmp/card
    VRAMCAP_SIM_CARDS=$card_mib
    export LD_LIBRARY_PATH VRAMCAP_SIM_STATE VRAMCAP_SIM_CARDS
    gpu=$("$build/samples/server" --probe) || die "the simulated GPU does not answer"
    echo "No NVIDIA GPU answers here: a SIMULATED card of $((card_mib / 1024)) GiB is used. It keeps"
    echo "the driver's books and computes nothing. Its name: $gpu"
fi

step "3. A server in a container with a ceiling of $ceiling_mib MiB"
echo "\$ vramcap run --memory $ceiling_mib --ledger LEDGER -- server"
under_ceiling "$build/samples/server" --weights 1536 --activation 256 --cache 512 \
    --adapter 1024 >"$tmp/server" 2>&1 &
server=$!
wait_for "$tmp/server" ' served'
fold -s -w 79 "$tmp/server"
grep -q "free [0-9]* of $ceiling_mib MiB" "$tmp/server" ||
    die "the server does not see a card of $ceiling_mib MiB"
echo "It believes that the card has $ceiling_mib MiB: that is all it may plan with."

step "4. A greedy neighbour in the same container takes all that it can get"
echo "\$ vramcap run --memory $ceiling_mib --ledger LEDGER -- greedy --block 256"
under_ceiling "$build/samples/greedy" --block 256 --hold 120 >"$tmp/greedy" 2>&1 &
greedy=$!
wait_for "$tmp/greedy" 'MiB, then CUDA_ERROR_OUT_OF_MEMORY'
fold -s -w 79 "$tmp/greedy"
greedy_mib=$(sed -n 's/.*: got \([0-9]*\) MiB.*/\1/p' "$tmp/greedy")
grep -q '^vramcap: refused cuMemAlloc_v2 of 256.0 MiB' "$tmp/greedy" ||
    die "vramcap did not say why it refused"
[ "$greedy_mib" -gt 0 ] || die "the greedy neighbour got nothing"

step "5. The server lives on"
before=$(served)
kill -USR1 "$server"
wait_for "$tmp/server" 'adapter of 1024 MiB not loaded: CUDA_ERROR_OUT_OF_MEMORY'
sleep 2.2
grep -E 'emptied|adapter|refused' "$tmp/server" | head -n 6 | fold -s -w 79
tail -n 1 "$tmp/server"
kill -0 "$server" 2>/dev/null || die "the server is gone"
after=$(served)
[ "$after" -gt "$before" ] || die "the server serves no longer ($before, then $after requests)"
echo "It had no room for one more model of 1024 MiB, and served $((after - before)) more requests."

step "6. What the ledger says"
echo "\$ vramcap dump LEDGER"
"$prefix/bin/vramcap" dump "$tmp/ledger" || die "the ledger cannot be read"
read_ledger
lives "$server" || die "the ledger does not show the server"
lives "$greedy" || die "the ledger does not show the greedy neighbour"
[ "$ceiling" -eq "$ceiling_mib" ] || die "the ceiling is $ceiling MiB"
[ "$charged" -le "$ceiling_mib" ] || die "$charged MiB are charged under a ceiling of $ceiling_mib"
[ "$charged" -ge $((greedy_mib + 1536)) ] || die "only $charged MiB are charged"
[ "$refusals" -ge 1 ] || die "no refusal was counted"
echo "Together they hold $charged of $ceiling MiB; refused so far: $refusals."
free_before=$free

step "7. The greedy neighbour is killed: its memory comes back"
echo "\$ kill -9 $greedy; vramcap dump LEDGER"
kill -9 "$greedy"
wait "$greedy" 2>/dev/null
killed=$greedy
greedy=
"$prefix/bin/vramcap" dump "$tmp/ledger" || die "the ledger cannot be read"
read_ledger
! lives "$killed" || die "the ledger still counts the killed process"
# (The server's own use goes up and down by a few hundred MiB meanwhile.)
[ "$free" -ge $((free_before + greedy_mib / 2)) ] || die "free: $free_before MiB before, $free after"
echo "Free before: $free_before MiB. Free now: $free MiB."

step "8. The server takes the room"
kill -USR1 "$server"
wait_for "$tmp/server" 'adapter of 1024 MiB loaded'
grep 'adapter of 1024 MiB loaded' "$tmp/server"
kill -TERM "$server"
wait "$server" || die "the server ended with status $?"
server=
tail -n 1 "$tmp/server"
read_ledger
[ "$charged" -le "$ceiling_mib" ] || die "$charged MiB are charged under a ceiling of $ceiling_mib"

step "All of this happened as told, on: $gpu"
echo "Try it yourself:"
[ -z "${VRAMCAP_SIM_STATE-}" ] ||
    echo "  export LD_LIBRARY_PATH=${prefix#"$PWD"/}/lib/vramcap/sim    # the simulated card"
echo "  ${prefix#"$PWD"/}/bin/vramcap run --memory 2048 -- ${build#"$PWD"/}/samples/greedy --block 256"
