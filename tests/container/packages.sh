#!/bin/sh
# The packages: .deb, .rpm and .tar.gz for both architectures, and a .deb's life in a fresh root.
#
#   tests/container/packages.sh FOLDER CUDA-INCLUDE
#
# FOLDER/amd64 and FOLDER/arm64 are the portable builds, FOLDER/packages has the result. What is shown:
# each package has what it should and nothing that it should not, lintian finds nothing but what
# packaging/debian/lintian-overrides states, no program needs a newer libc than the package says; install,
# upgrade under a running container, downgrade and removal (package_life.sh). 77 where something is missing.
set -u

[ $# -eq 2 ] || {
    echo "usage: packages.sh FOLDER CUDA-INCLUDE" >&2
    exit 2
}
mkdir -p "$1" || exit 2
folder=$(cd "$1" && pwd)
include=$2
here=$(cd "$(dirname "$0")" && pwd) || exit 2
source=$(cd "$here/../.." && pwd) || exit 2
left=
failures=0

skip()
{
    echo "skipped: $*"
    exit 77
}

complain()
{
    echo "packages: $*"
    failures=$((failures + 1))
}

for tool in cpack rpmbuild rpm lintian dpkg-deb objdump readelf; do
    command -v "$tool" >/dev/null || skip "no $tool"
done
tmp=$(mktemp -d "${TMPDIR:-/tmp}/vramcap-packages.XXXXXX") || exit 2
trap 'rm -rf --one-file-system "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
version=$(sed -n 's/^project(vramcap VERSION \([0-9.]*\) .*/\1/p' "$source/CMakeLists.txt")
[ -n "$version" ] || exit 2
rm -rf "$folder/packages"
mkdir -p "$folder/packages" "$tmp/share"

make() # ARCHITECTURE
{
    sh "$here/portable.sh" "$1" "$folder/$1" "$include" || return
    (cd "$folder/$1" && cpack -B "$tmp/$1") >"$tmp/log" 2>&1 || {
        tail -n 20 "$tmp/log"
        return 1
    }
    mv "$tmp/$1"/vramcap*.deb "$tmp/$1"/vramcap*.rpm "$tmp/$1"/vramcap*.tar.gz "$folder/packages/"
}

newest_libc() # FILES...
{
    objdump -T "$@" 2>/dev/null | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -n 1
}

# What every installation has, below its prefix.
wanted='bin/vramcap bin/vramcap-agent lib/systemd/system/vramcap-agent.service share/man/man8/vramcap-agent.8
lib/libvramcap.so lib/vramcap/ld.so.preload lib/tmpfiles.d/vramcap.conf
share/man/man1/vramcap.1 share/man/man5/vramcap-ledger.5 share/man/man7/libvramcap.7
share/bash-completion/completions/vramcap share/zsh/vendor-completions/_vramcap
share/vramcap/cdi/vramcap-web.json share/doc/vramcap/examples/hooks/vramcap.json
share/doc/vramcap/examples/hooks/vramcap-hook'

check_tree() # NAME PREFIX MACHINE
{
    for file in $wanted; do
        [ -s "$2/$file" ] || [ -s "$2/$file.gz" ] || complain "$1 has no $file"
    done
    [ -z "$(find "$2" -name 'libcuda*')" ] || complain "$1 has a libcuda"
    for file in bin/vramcap lib/libvramcap.so; do
        readelf -h "$2/$file" | grep -q "Machine: .*$3" || complain "$1: $file is not for $3"
        readelf -S "$2/$file" | grep -q '\.debug_info' && complain "$1: $file is not stripped"
    done
    [ "$(newest_libc "$2/lib/libvramcap.so")" = 2.17 ] || complain "$1: the library's libc floor moved"
}

for architecture in amd64 arm64; do
    make "$architecture" || {
        status=$?
        [ "$status" -eq 77 ] || exit 1
        left="$left $architecture"
        continue
    }
    case $architecture in
    amd64) machine=X86-64 rpm_machine=x86_64 ;;
    arm64) machine=AArch64 rpm_machine=aarch64 ;;
    esac
    deb=$folder/packages/vramcap_${version}_$architecture.deb
    rpm=$folder/packages/vramcap-$version-1.$rpm_machine.rpm
    tar=$folder/packages/vramcap-$version-Linux-$rpm_machine.tar.gz

    mkdir -p "$tmp/$architecture/deb" "$tmp/$architecture/rpm" "$tmp/$architecture/tar"
    dpkg-deb -x "$deb" "$tmp/$architecture/deb" || complain "no $deb"
    check_tree "$(basename "$deb")" "$tmp/$architecture/deb/usr" "$machine"
    [ "$(dpkg-deb -f "$deb" Architecture)" = "$architecture" ] || complain "$deb is for another architecture"
    promised=$(dpkg-deb -f "$deb" Depends | sed -n 's/.*libc6 (>= \([0-9.]*\)).*/\1/p')
    needed=$(newest_libc "$tmp/$architecture/deb/usr/bin/"*)
    [ "$(printf '%s\n%s\n' "$needed" "$promised" | sort -V | tail -n 1)" = "$promised" ] ||
        complain "$deb: its programs need glibc $needed, Depends says $promised"
    said=$(lintian --fail-on error,warning "$deb" 2>&1) || complain "lintian: $said"

    rpm --root "$tmp/$architecture/rpm" --nodeps --noscripts --ignorearch --force-debian -i "$rpm" ||
        complain "$rpm cannot be installed"
    check_tree "$(basename "$rpm")" "$tmp/$architecture/rpm/usr" "$machine"
    [ "$(rpm -qp --qf '%{ARCH}' "$rpm")" = "$rpm_machine" ] || complain "$rpm is for another architecture"
    rpm -qp --requires "$rpm" | grep -q '^libjansson\.so\.4' || complain "$rpm does not ask for jansson"
    rpm -qp --requires "$rpm" | grep python && complain "$rpm asks for what an example needs"
    rpm --root "$tmp/$architecture/rpm" --noscripts --force-debian -e vramcap || complain "$rpm cannot be removed"
    [ -z "$(find "$tmp/$architecture/rpm/usr" -name '*vramcap*' 2>/dev/null)" ] ||
        complain "$rpm leaves something behind"

    tar -C "$tmp/$architecture/tar" -xzf "$tar" || complain "no $tar"
    check_tree "$(basename "$tar")" "$tmp/$architecture/tar/vramcap-$version-Linux-$rpm_machine" "$machine"
done
ls -l "$folder/packages"

# The template is what the installed tool writes.
amd64=$folder/packages/vramcap_${version}_amd64.deb
if [ -e "$amd64" ] && [ "$(uname -m)" = x86_64 ]; then
    tree=$tmp/amd64/deb/usr
    "$tree/bin/vramcap" cdi --memory 4096 --container web 2>/dev/null | sed "s,$tree/,/usr/," |
        diff "$source/samples/deploy/cdi/vramcap-web.json" - || complain "vramcap-web.json is another"
    (cd "$folder/amd64" && cpack -G DEB -D CPACK_PACKAGE_VERSION="$version+1" -B "$tmp/next") >"$tmp/log" 2>&1 ||
        complain "no package of a next version"
    cp "$amd64" "$tmp/share/old.deb" && cp "$tmp/next/"*.deb "$tmp/share/new.deb" &&
        cp -a "$folder/amd64/prefix/bin/pair" "$folder/amd64/prefix/lib/vramcap/sim" "$tmp/share/" || exit 2
    chmod -R a+rX "$tmp"
    VRAMCAP_FRESH_SHARE=$tmp/share sh "$here/fresh_root.sh" bookworm \
        sh tests/container/package_life.sh /share
    status=$?
    case $status in
    0) ;;
    77) left="$left life" ;;
    *) complain "install, upgrade, downgrade, remove: ended with $status" ;;
    esac
else
    left="$left life"
fi

[ "$failures" -eq 0 ] || exit 1
[ -z "$left" ] || skip "not done:$left"
