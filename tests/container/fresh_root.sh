#!/bin/sh
# What a newcomer does, in a root that holds nothing but the distribution's smallest install:
#
#   tests/container/fresh_root.sh SUITE COMMAND...     (a Debian suite: bookworm, trixie)
#
# Copies this source tree into it and runs COMMAND there, as root, without standard input. The root comes
# from root.sh and is copied; the copy goes away, the packages that COMMAND installs are kept in
# $VRAMCAP_CACHE (else ~/.cache/vramcap). A folder named by VRAMCAP_FRESH_SHARE is /share in there. How
# this machine reaches its package sources (mirror, proxy, certificates) is passed on. Ends with COMMAND's
# status, or 77 where no such root can be made.
set -u

[ $# -ge 2 ] || {
    echo "usage: fresh_root.sh SUITE COMMAND..." >&2
    exit 2
}
suite=$1
shift
source=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
cache=${VRAMCAP_CACHE:-${HOME:-/root}/.cache/vramcap}

skip()
{
    echo "skipped: $*"
    exit 77
}

# Runs this script again in namespaces of its own: what it mounts and starts there ends with it.
if [ "${VRAMCAP_FRESH_ROOT-}" != inside ]; then
    [ "$(id -u)" -eq 0 ] || skip "only root can make a fresh root"
    unshare --mount --pid --fork true 2>/dev/null || skip "this machine gives no mount namespace"
    work=$(mktemp -d) || exit 2
    trap 'rm -rf --one-file-system "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    VRAMCAP_FRESH_ROOT=inside VRAMCAP_FRESH_WORK=$work unshare --mount --pid --fork --kill-child \
        sh "$source/tests/container/fresh_root.sh" "$suite" "$@" </dev/null
    exit
fi

pristine=$(sh "$source/tests/container/root.sh" "$suite") || {
    status=$?
    echo "$pristine"
    exit "$status"
}

root=$VRAMCAP_FRESH_WORK/root
cp -a "$pristine" "$root" || exit 2
mkdir -p "$root/src" "$cache/packages-$suite/partial" "$root/opt/certificates"
tar -C "$source" --exclude=./.git --exclude='./build*' -cf - . | tar -C "$root/src" -xf - || exit 2

mount_all()
{
    # the root is a mount point, as it is everywhere but in a bare chroot: tests make mounts of their own
    mount --make-rprivate / && mount --bind "$root" "$root" && mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" &&
        mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm" &&
        mount -t tmpfs -o mode=1777 tmpfs "$root/tmp" &&
        mount --bind "$cache/packages-$suite" "$root/var/cache/apt/archives"
}
mount_all || skip "this machine lets nothing be mounted"
if [ -n "${VRAMCAP_FRESH_SHARE-}" ]; then
    mkdir "$root/share" && mount --bind "$VRAMCAP_FRESH_SHARE" "$root/share" || exit 2
fi
rm -f "$root/etc/apt/apt.conf.d/docker-clean"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
    [ ! -e "$file" ] || cp -L "$file" "$root$file"
done
for file in /etc/apt/apt.conf /etc/apt/apt.conf.d/*proxy*; do
    [ ! -f "$file" ] || cp "$file" "$root/etc/apt/apt.conf.d/"
done
# pip is told of the certificates of this machine: a proxy may have its own.
if [ -s /etc/ssl/certs/ca-certificates.crt ]; then
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/opt/certificates/all.crt"
    PIP_CERT=/opt/certificates/all.crt
    REQUESTS_CA_BUNDLE=$PIP_CERT
    SSL_CERT_FILE=$PIP_CERT
    export PIP_CERT REQUESTS_CA_BUNDLE SSL_CERT_FILE
fi
unset PIP_FIND_LINKS CURL_CA_BUNDLE VRAMCAP_FRESH_ROOT VRAMCAP_FRESH_WORK VRAMCAP_FRESH_SHARE VRAMCAP_CACHE
HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
export HOME PATH LC_ALL
# shellcheck disable=SC2016 # expanded in there
exec chroot "$root" /bin/sh -c 'cd /src && exec "$@"' sh "$@"
