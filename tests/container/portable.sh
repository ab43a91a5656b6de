#!/bin/sh
# The build that packages are made of: Release, against the oldest supported distribution's libraries.
#
#   tests/container/portable.sh amd64|arm64 BUILD CUDA-INCLUDE
#
# Configures, builds and installs to BUILD/prefix; the samples go there too, into bin/. Quiet unless
# something fails; 77 where a tool or the network is missing.
set -u

[ $# -eq 3 ] || {
    echo "usage: portable.sh amd64|arm64 BUILD CUDA-INCLUDE" >&2
    exit 2
}
source=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
mkdir -p "$2" || exit 2
build=$(cd "$2" && pwd)

# Two tests may want it at once.
if [ "${VRAMCAP_PORTABLE_LOCKED-}" != "$build" ] && command -v flock >/dev/null; then
    VRAMCAP_PORTABLE_LOCKED=$build exec flock "$build/lock" sh "$0" "$@"
fi

quietly() # LOG COMMAND...
{
    log=$1
    shift
    "$@" >"$log" 2>&1 || {
        tail -n 40 "$log"
        echo "portable.sh: '$*' failed"
        exit 1
    }
}

sh "$source/tests/container/sysroot.sh" "$1" "$build/toolchain.cmake" || exit
set -- "$3"
command -v ccache >/dev/null && set -- "$1" -DCMAKE_C_COMPILER_LAUNCHER=ccache
include=$1
shift
quietly "$build/configure.log" cmake -G Ninja -S "$source" -B "$build" \
    "-DCMAKE_TOOLCHAIN_FILE=$build/toolchain.cmake" -DCMAKE_BUILD_TYPE=Release \
    "-DVRAMCAP_CUDA_INCLUDE=$include" -DBUILD_TESTING=OFF -DCMAKE_INSTALL_PREFIX=/usr "$@"
quietly "$build/build.log" cmake --build "$build"
quietly "$build/install.log" cmake --install "$build" --prefix "$build/prefix"
cp "$build/samples/pair" "$build/samples/greedy" "$build/samples/server" "$build/prefix/bin/"
