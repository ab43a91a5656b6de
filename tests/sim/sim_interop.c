/*
 * The context creators of OpenGL and VDPAU interop, which the toolkit's stub library does not have but a
 * driver has.  There is no display here: they make the context that cuCtxCreate of their time makes and
 * look at nothing of VDPAU's.  Declared by hand from NVIDIA's cudaGLTypedefs.h and cudaVDPAUTypedefs.h
 * (CUDA 13.0), whose own headers need those of OpenGL and VDPAU; a VdpDevice is a uint32_t.
 */
#include "sim_internal.h"

#pragma GCC visibility push(default)
CUresult cuGLCtxCreate(CUcontext *pCtx, unsigned int Flags, CUdevice device);
CUresult cuGLCtxCreate_v2(CUcontext *pCtx, unsigned int Flags, CUdevice device);
CUresult cuVDPAUCtxCreate(CUcontext *pCtx, unsigned int flags, CUdevice device, uint32_t vdpDevice,
                          void *vdpGetProcAddress);
CUresult cuVDPAUCtxCreate_v2(CUcontext *pCtx, unsigned int flags, CUdevice device,
                             uint32_t vdpDevice, void *vdpGetProcAddress);
#pragma GCC visibility pop

CUresult cuGLCtxCreate(CUcontext *pCtx, unsigned int Flags, CUdevice device)
{
    SIM_ENTER(cuGLCtxCreate);
    return sim_context_create(pCtx, Flags, device, 3010, 0);
}

CUresult cuGLCtxCreate_v2(CUcontext *pCtx, unsigned int Flags, CUdevice device)
{
    SIM_ENTER(cuGLCtxCreate_v2);
    return sim_context_create(pCtx, Flags, device, 3020, 0);
}

CUresult cuVDPAUCtxCreate(CUcontext *pCtx, unsigned int flags, CUdevice device, uint32_t vdpDevice,
                          void *vdpGetProcAddress)
{
    SIM_ENTER(cuVDPAUCtxCreate);
    (void)vdpDevice;
    (void)vdpGetProcAddress;
    return sim_context_create(pCtx, flags, device, 3010, 0);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *pCtx, unsigned int flags, CUdevice device,
                             uint32_t vdpDevice, void *vdpGetProcAddress)
{
    SIM_ENTER(cuVDPAUCtxCreate_v2);
    (void)vdpDevice;
    (void)vdpGetProcAddress;
    return sim_context_create(pCtx, flags, device, 3020, 0);
}
