/*
 * The only file of preload/ that includes NVIDIA's headers.  __CUDA_API_VERSION_INTERNAL turns off
 * the renaming of names to their newest ABI and declares every historic one: from here on
 * cuMemAlloc is the old 32-bit function and cuMemAlloc_v2 the present one.  The declarations get
 * default visibility, since what we define of them is exported.
 */
#ifndef VRAMCAP_PRELOAD_CUDA_ABI_H
#define VRAMCAP_PRELOAD_CUDA_ABI_H

#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#include <cudaTypedefs.h>
#pragma GCC visibility pop

#endif
