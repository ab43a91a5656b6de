#!/bin/sh
# The service file in a machine that boots a real systemd: an overlay of this system's root in
# systemd-nspawn. service_inside.py is what happens in there.
#
#     service_in_nspawn.sh BUILD SOURCE
#
# Ends with 0, 1, or 77 where such a machine cannot be booted (1 where VRAMCAP_MUST_WORK=1).
set -u
build=$1
source=$2

skip()
{
    echo "SKIPPED: $*"
    [ "${VRAMCAP_MUST_WORK:-0}" = 1 ] && exit 1
    exit 77
}

if [ "${3-}" != in-own-mounts ]; then
    [ "$(id -u)" -eq 0 ] || skip "not root"
    command -v systemd-nspawn >/dev/null || skip "systemd-nspawn (Debian: systemd-container) is missing"
    [ -x /lib/systemd/systemd ] || skip "no systemd to boot"
    [ -x /usr/bin/python3 ] || skip "no /usr/bin/python3 to test with inside"
    exec unshare -m "$0" "$build" "$source" in-own-mounts
fi

work=$(mktemp -d) || exit 1
trap 'umount -R "$work" 2>/dev/null; rmdir "$work"' EXIT
trap 'exit 1' HUP INT TERM
mount -t tmpfs -o mode=755 tmpfs "$work" || skip "no tmpfs can be mounted"
mkdir "$work/upper" "$work/work" "$work/root" "$work/out"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root" ||
    skip "no overlay of / can be mounted"

root=$work/root
rm -f "$root/etc/machine-id"
: >"$root/etc/machine-id"
DESTDIR=$root cmake --install "$build" --prefix /usr >/dev/null || exit 1
units=$root/etc/systemd/system
cp "$source/samples/service/vramcap-agent.service" "$units" || exit 1
# what the test changes: a shorter patience, and as many restarts as it kills
mkdir -p "$units/vramcap-agent.service.d"
printf '[Unit]\nStartLimitIntervalSec=0\n[Service]\nWatchdogSec=3\nRestartSec=100ms\n' \
    >"$units/vramcap-agent.service.d/test.conf"
printf '[Unit]\nRequires=inside.service\nAfter=inside.service\nDefaultDependencies=no\n' \
    >"$units/inside.target"
cat >"$units/inside.service" <<'UNIT'
[Unit]
DefaultDependencies=no
Requires=sysinit.target
After=sysinit.target
SuccessAction=poweroff
FailureAction=poweroff
[Service]
Type=oneshot
TimeoutStartSec=100
ExecStart=/bin/sh -c '/usr/bin/python3 /source/tests/agent/service_inside.py >/out/log 2>&1; echo $? >/out/status; journalctl -b --no-pager -u vramcap-agent -o short-iso >/out/journal'
UNIT

timeout 150 systemd-nspawn --quiet --register=no --keep-unit --directory="$root" \
    --machine=vramcap-service-test --capability=CAP_CHECKPOINT_RESTORE \
    --bind="$work/out:/out" --bind-ro="$build:/build" --bind-ro="$source:/source" \
    --boot systemd.unit=inside.target </dev/null >"$work/console" 2>&1
if [ ! -s "$work/out/status" ]; then
    tail -n 20 "$work/console"
    # a machine that never came so far as to run anything says nothing about the service
    grep -q 'Welcome to' "$work/console" || skip "systemd does not boot in systemd-nspawn here"
    echo "the machine ended without a result"
    exit 1
fi
cat "$work/out/log"
status=$(cat "$work/out/status")
[ "$status" -eq 0 ] || grep -v 'event=\(refusal\|attach\|reap\)' "$work/out/journal" | tail -n 40
exit "$status"
