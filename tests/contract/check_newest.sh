#!/bin/sh
# check_newest.sh DEST CC SOURCE GENERATED: the table and the library against the newest CUDA headers that are pinned.
#   - every name of theirs has a row or a reason, and breaking the table is noticed (check_coverage.py)
#   - preload/ compiles with them: every `since` and signature of a HOOK is still what NVIDIA says
# Without network and without the headers in DEST: skipped (77), a failure under VRAMCAP_MUST_WORK=1.
set -eu
dest=$1 cc=$2 source=$3 generated=$4
if ! sh "$source/preload/fetch_cuda_headers.sh" --newest "$dest"; then
    echo "skipped: no newer CUDA headers" >&2
    [ "${VRAMCAP_MUST_WORK:-0}" = 1 ] && exit 1
    exit 77
fi
for more in '' --self-test; do
    # shellcheck disable=SC2086 # an option or nothing
    python3 -B "$source/tests/contract/check_coverage.py" $more --def "$source/preload/cuda_api.def" \
        --cbid "$dest/include/cupti_driver_cbid.h" --typedefs "$dest/include/"
done
for file in "$source"/preload/*.c; do
    "$cc" -fsyntax-only -std=gnu11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion \
        -Wvla -Werror -D_GNU_SOURCE -DVRAMCAP_VERSION='"0"' -I"$source" -I"$generated" -isystem "$dest/include" "$file"
done
echo "preload/ compiles with the headers of CUDA $(sed -n 's/^#define CUDA_VERSION //p' "$dest/include/cuda.h")"
