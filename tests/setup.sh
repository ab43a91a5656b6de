#!/bin/sh
# Installs what building and testing vramcap need on Debian 12, Ubuntu 24.04 and newer:
#
#   tests/setup.sh build    compiler, CMake, libraries: enough for samples/quickstart.sh
#   tests/setup.sh test     also what tests/run.sh uses
#   tests/setup.sh full     also what tests/run.sh --full uses
#
# Only what is missing is installed; where nothing is, no package tool is called and neither root nor
# a network is needed. One line on stderr names the packages where they cannot be installed.
set -u

usage='usage: tests/setup.sh build|test|full'

# package|a command that succeeds where it is there (also when it came from somewhere else)
build_table='
gcc|command -v gcc
libc6-dev|have_header stdlib.h
cmake|command -v cmake
make|command -v make
pkg-config|command -v pkg-config
libjansson-dev|pkg-config --exists jansson
libmicrohttpd-dev|pkg-config --exists libmicrohttpd
uthash-dev|have_header uthash.h
python3|command -v python3
python3-pip|python3 -m pip --version
ca-certificates|test -s /etc/ssl/certs/ca-certificates.crt
'
# shellcheck disable=SC2016 # the probes are expanded where they are run
test_table='
libcmocka-dev|pkg-config --exists cmocka
ninja-build|command -v ninja
binutils|command -v objdump
clang|command -v clang
libclang-rt-dev|have_fuzzer
clang-tidy|command -v clang-tidy
clang-format|command -v clang-format
cppcheck|command -v cppcheck
shellcheck|command -v shellcheck
valgrind|command -v valgrind
spin|command -v spin
bubblewrap|command -v bwrap
util-linux|command -v unshare
btrfs-progs|have_sbin mkfs.btrfs
procps|command -v ps
man-db|command -v man
python3-jsonschema|/usr/bin/python3 -c "import jsonschema"
libjemalloc2|ls /usr/lib/*/libjemalloc.so.2
libtcmalloc-minimal4|ls /usr/lib/*/libtcmalloc_minimal.so.4
'
full_table='
debootstrap|command -v debootstrap
debian-archive-keyring|test -e /usr/share/keyrings/debian-archive-keyring.gpg
gcc-aarch64-linux-gnu|command -v aarch64-linux-gnu-gcc
qemu-user-static|command -v qemu-aarch64-static
prometheus|command -v promtool
systemd-container|command -v systemd-nspawn
runc|command -v runc
podman|command -v podman
crun|command -v crun
conmon|command -v conmon
uidmap|command -v newuidmap
musl-tools|command -v musl-gcc
lintian|command -v lintian
rpm|command -v rpmbuild
gzip|command -v gzip
nodejs|command -v node
libnode-dev|ls /usr/include/node*/node_api.h
default-jdk-headless|command -v javac
golang-go|command -v go
python3-venv|python3 -c "import ensurepip"
ffmpeg|command -v ffmpeg
gstreamer1.0-plugins-bad|ls /usr/lib/*/gstreamer-1.0/libgstnvcodec.so
gstreamer1.0-tools|command -v gst-launch-1.0
'

say()
{
    echo "setup: $*" >&2
}

have_fuzzer()
{
    ls "$(clang -print-resource-dir)"/lib/*/libclang_rt.fuzzer*
}

have_sbin() # not in every user's PATH
{
    command -v "$1" || test -x "/usr/sbin/$1" || test -x "/sbin/$1"
}

have_header()
{
    echo "#include <$1>" | gcc -E -x c - >/dev/null 2>&1
}

case ${1-} in
build) table=$build_table ;;
test) table=$build_table$test_table ;;
full) table=$build_table$test_table$full_table ;;
*)
    echo "$usage" >&2
    exit 2
    ;;
esac
[ $# -eq 1 ] || {
    echo "$usage" >&2
    exit 2
}

# The names of the packages whose probe fails, on one line.
missing()
{
    echo "$table" | while IFS='|' read -r package probe; do
        if [ -n "$package" ] && ! eval "$probe" >/dev/null 2>&1 </dev/null; then
            printf '%s ' "$package"
        fi
    done
}

wanted=$(missing)
if [ -z "$wanted" ]; then
    exit 0
fi

if ! command -v apt-get >/dev/null 2>&1; then
    say "this is neither Debian nor Ubuntu: install what Debian calls: $wanted"
    exit 1
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        say "root (or sudo) is needed to install: $wanted"
        exit 1
    fi
    as_root='sudo'
    [ -t 0 ] || as_root='sudo -n'
    if ! $as_root true; then
        say "root (or sudo) is needed to install: $wanted"
        exit 1
    fi
fi

say "installing: $wanted"
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
trap 'exit 1' HUP INT TERM

apt()
{
    # shellcheck disable=SC2086 # as_root is a command with its option, or nothing
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 \
        -o Acquire::Retries=2 "$@" </dev/null >>"$log" 2>&1
}

# The lists may be there and fresh enough; if not, fetch them once. clang needs its recommended
# runtime for nothing that is done here, so recommended packages stay out.
# shellcheck disable=SC2086 # the package names are separate words
if ! apt install --no-install-recommends $wanted; then
    apt update
    if ! apt install --no-install-recommends $wanted; then
        grep -E '^(E|Err|W):' "$log" | tail -n 3 >&2
        say "apt-get could not install (no network, or a broken package state?): $wanted"
        exit 1
    fi
fi

left=$(missing)
if [ -n "$left" ]; then
    say "installed, but still not usable: $left"
    exit 1
fi
