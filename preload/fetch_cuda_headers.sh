#!/bin/sh
# Fetches the CUDA headers that the hook table and its coverage test are written against:
#
#   sh preload/fetch_cuda_headers.sh DEST            -> DEST/include/cuda.h, cudaTypedefs.h, ...
#   sh preload/fetch_cuda_headers.sh --newest DEST   the newest that the table is checked against
#
# They come out of NVIDIA's header wheels on the Python package index, pinned by exact version and
# sha256. Only the headers listed here are unpacked, nothing is installed, and nothing is fetched
# when DEST already holds what the pins below name. On failure DEST is left as it was and one line
# on stderr says what to do.
set -eu

# cuda.h and cudaTypedefs.h are what the library is built with and need none of the others; the simulated
# driver defines what cudaProfiler.h declares; the rest is read as text by the coverage test.
headers='cuda.h cudaTypedefs.h cudaProfiler.h cudaProfilerTypedefs.h cudaEGLTypedefs.h cudaGLTypedefs.h
    cudaVDPAUTypedefs.h cupti_driver_cbid.h'

# name==version, then one hash per architecture's wheel (the headers are the same in both).
pins='nvidia-cuda-runtime==13.0.96
 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
 --hash=sha256:ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55
nvidia-cuda-cupti==13.0.85
 --hash=sha256:4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8
 --hash=sha256:796bd679890ee55fb14a94629b698b6db54bcfd833d391d5e94017dd9d7d3151
nvidia-cuda-profiler-api==13.0.85
 --hash=sha256:73d2671deac833db6686d6fbde4753fa3a3a497d87540fc246f081f375243f66
 --hash=sha256:b307d61f574ab60666d0b2cb204738338dbd0e05a9fa609eaab198222f0a13c2'

die()
{
    echo "fetch_cuda_headers: $*" >&2
    exit 1
}

version=13.0
if [ "${1-}" = --newest ]; then
    shift
    version=13.5
    # cudaProfiler.h comes in a wheel of its own, and what is compiled against these does not need it
    headers='cuda.h cudaTypedefs.h cudaEGLTypedefs.h cudaGLTypedefs.h cudaVDPAUTypedefs.h cupti_driver_cbid.h'
    pins='nvidia-cuda-runtime==13.5.37
 --hash=sha256:df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d
 --hash=sha256:de2dc5a7367974228b0a69588a9acc9340d3768bef1bf38bf0801eb08497cd2d
nvidia-cuda-cupti==13.5.25
 --hash=sha256:9dcca41c12a734192b14e7128ae116bc9ce1b9da686e2ebf48ae7a4415f76650
 --hash=sha256:d7e4d908315461b6ecbdadfd3c403cc796ed218b293ad117568c947e811cff28'
fi
if [ $# -ne 1 ] || [ -z "$1" ]; then
    die "usage: fetch_cuda_headers.sh [--newest] DEST"
fi
dest=$1
stamp=$dest/include/.pins

have_all()
{
    [ "$(cat "$stamp" 2>/dev/null)" = "$pins" ] || return 1
    for h in $headers; do
        [ -s "$dest/include/$h" ] || return 1
    done
}
if have_all; then
    exit 0
fi

command -v python3 >/dev/null 2>&1 ||
    die "python3 is missing: install python3 and python3-pip, or point VRAMCAP_CUDA_INCLUDE at a CUDA 13 toolkit's include folder"
python3 -m pip --version >/dev/null 2>&1 ||
    die "python3 has no pip: install python3-pip, or point VRAMCAP_CUDA_INCLUDE at a CUDA 13 toolkit's include folder"
mkdir -p "$dest" 2>/dev/null || die "cannot create $dest: choose a folder that is writable"
tmp=$(mktemp -d "$dest/fetch.XXXXXX" 2>/dev/null) || die "cannot write in $dest: choose a folder that is writable"
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

# A requirement's hashes belong on its own line.
printf '%s\n' "$pins" | sed -e ':a' -e '$!N' -e 's/\n / /' -e 'ta' -e 'P' -e 'D' >"$tmp/requirements.txt"

case $(uname -m) in
aarch64 | arm64) arch=aarch64 ;;
*) arch=x86_64 ;;
esac
# The platform is named rather than left to pip, so that an old pip or libc does not hide the wheels.
if ! python3 -m pip download --no-deps --require-hashes --only-binary :all: \
    --platform "manylinux_2_25_$arch" --platform "manylinux_2_17_$arch" --platform "manylinux2014_$arch" \
    --disable-pip-version-check --no-input -q -d "$tmp/wheels" -r "$tmp/requirements.txt" \
    >"$tmp/log" 2>&1; then
    cp "$tmp/log" "$dest/pip.log" 2>/dev/null || :
    if grep -qi 'do not match the hashes' "$tmp/log"; then
        die "a downloaded header wheel does not have the pinned sha256: it was refused; clear pip's cache and look at the package index or mirror you use (pip's words: $dest/pip.log)"
    elif grep -qi 'no matching distribution\|could not find a version' "$tmp/log"; then
        die "the package index cannot be reached or lacks the pinned header wheels: check network, proxy and mirror, or point VRAMCAP_CUDA_INCLUDE at a CUDA 13 toolkit's include folder (pip's words: $dest/pip.log)"
    else
        die "pip could not download the header wheels: $(grep -i error "$tmp/log" | tail -n 1 | cut -c1-200) (pip's words: $dest/pip.log); or point VRAMCAP_CUDA_INCLUDE at a CUDA 13 toolkit's include folder"
    fi
fi

mkdir "$tmp/include"
# shellcheck disable=SC2086 # the header names are separate words
python3 - "$tmp/wheels" "$tmp/include" $headers <<'PY' || die "the header wheels could not be unpacked into $dest: look for a full disk, then run this again"
import glob, os, sys, zipfile

wheels, out, wanted = sys.argv[1], sys.argv[2], set(sys.argv[3:])
for wheel in sorted(glob.glob(os.path.join(wheels, "*.whl"))):
    with zipfile.ZipFile(wheel) as z:
        for member in z.namelist():
            folder, name = os.path.split(member)
            if os.path.basename(folder) == "include" and name in wanted:
                with open(os.path.join(out, name), "wb") as f:
                    f.write(z.read(member))
                wanted.discard(name)
if wanted:
    sys.exit("not in the wheels: " + " ".join(sorted(wanted)))
PY

printf '%s\n' "$pins" >"$tmp/include/.pins"
rm -rf "$dest/include" "$dest/pip.log"
mv "$tmp/include" "$dest/include" || die "cannot write in $dest: choose a folder that is writable"
echo "fetch_cuda_headers: CUDA $version headers in $dest/include" >&2
