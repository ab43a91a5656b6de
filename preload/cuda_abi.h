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

/*
 * The context creators of OpenGL and VDPAU interop.  By hand, because the headers that declare them
 * include those of OpenGL and VDPAU: names, versions and arguments from cudaGLTypedefs.h and
 * cudaVDPAUTypedefs.h of CUDA 13.0; a VdpDevice is a uint32_t and VdpGetProcAddress a function type, of
 * which only a pointer is passed (vdpau.h 1.5).
 */
typedef CUresult(CUDAAPI *PFN_cuGLCtxCreate_v2000)(CUcontext *pCtx, unsigned int Flags,
                                                   CUdevice device);
typedef PFN_cuGLCtxCreate_v2000 PFN_cuGLCtxCreate_v3020;
typedef CUresult(CUDAAPI *PFN_cuVDPAUCtxCreate_v3010)(CUcontext *pCtx, unsigned int flags,
                                                      CUdevice device, unsigned int vdpDevice,
                                                      void *vdpGetProcAddress);
typedef PFN_cuVDPAUCtxCreate_v3010 PFN_cuVDPAUCtxCreate_v3020;
_Static_assert(sizeof(unsigned int) == 4, "VdpDevice has 32 bits");
CUresult CUDAAPI cuGLCtxCreate(CUcontext *pCtx, unsigned int Flags, CUdevice device);
CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *pCtx, unsigned int Flags, CUdevice device);
CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *pCtx, unsigned int flags, CUdevice device,
                                  unsigned int vdpDevice, void *vdpGetProcAddress);
CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *pCtx, unsigned int flags, CUdevice device,
                                     unsigned int vdpDevice, void *vdpGetProcAddress);
#pragma GCC visibility pop

#endif
