/*
 * Modules, libraries, functions and the linker: anything is accepted, nothing is read.
 *
 * Modules live in the current context and functions in their module; a library belongs
 * to no context in the real driver, here to the primary context of device 0, which only
 * says when its record ends. There are no globals (NOT_FOUND), since there is no code.
 */
#include "sim_internal.h"

#include <string.h>

static CUresult object_make(enum sim_kind kind, struct sim_object **made)
{
    struct sim_context *context = NULL;
    CUresult rc = sim_context_current(&context);

    if (rc != CUDA_SUCCESS)
        return rc;
    *made = sim_object_new(context, kind);
    return *made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* What a module's code and data take of the card belongs to its context, and ends with it. */
static CUresult module_cost(struct sim_context *context, int64_t bytes)
{
    CUresult rc = CUDA_SUCCESS;

    if (bytes == 0)
        return rc;
    sim_lock_take();
    rc = sim_card_take(context->owner.card, (struct sim_delta){.used = bytes, .context = bytes});
    if (rc == CUDA_SUCCESS)
        context->cost_bytes += (uint64_t)bytes;
    sim_lock_drop();
    return rc;
}

static struct sim_object *object_of(void *handle, enum sim_kind kind)
{
    struct sim_object *object = handle;

    return object && object->kind == kind ? object : NULL;
}

static CUresult module_load(CUmodule *module, const void *image)
{
    struct sim_object *object = NULL;

    if (!module || !image)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = object_make(SIM_MODULE, &object);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = module_cost(object->context, (int64_t)sim_config.module_bytes);
    if (rc == CUDA_SUCCESS)
        *module = (CUmodule)(void *)object;
    else
        sim_object_delete(object);
    return rc;
}

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    SIM_ENTER(cuModuleLoad);
    return module_load(module, fname);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    SIM_ENTER(cuModuleLoadData);
    return module_load(module, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                            CUjit_option *options, void **optionValues)
{
    SIM_ENTER(cuModuleLoadDataEx);
    (void)numOptions;
    (void)options;
    (void)optionValues;
    return module_load(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    SIM_ENTER(cuModuleLoadFatBinary);
    return module_load(module, fatCubin);
}

CUresult cuModuleUnload(CUmodule hmod)
{
    SIM_ENTER(cuModuleUnload);
    struct sim_object *object = object_of(hmod, SIM_MODULE);

    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    (void)module_cost(object->context, -(int64_t)sim_config.module_bytes);
    sim_object_delete(object);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    SIM_ENTER(cuModuleGetLoadingMode);
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

/* A function by name: any name exists. It ends with the context. */
static CUresult function_get(CUfunction *function, struct sim_object *parent, const char *name)
{
    if (!function || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!parent)
        return CUDA_ERROR_INVALID_HANDLE;
    struct sim_object *object = sim_object_new(parent->context, SIM_FUNCTION);
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->parent = parent;
    *function = (CUfunction)(void *)object;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    SIM_ENTER(cuModuleGetFunction);
    return function_get(hfunc, object_of(hmod, SIM_MODULE), name);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    SIM_ENTER(cuModuleGetGlobal_v2);
    (void)dptr;
    (void)bytes;
    return object_of(hmod, SIM_MODULE) && name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleGetGlobal(CUdeviceptr_v1 *dptr, unsigned int *bytes, CUmodule hmod,
                           const char *name)
{
    SIM_ENTER(cuModuleGetGlobal);
    (void)dptr;
    (void)bytes;
    return object_of(hmod, SIM_MODULE) && name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

/* --- libraries ---------------------------------------------------------------- */

static CUresult library_load(CUlibrary *library, const void *code)
{
    if (!library || !code)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_object *object = sim_object_new(sim_primary(0), SIM_LIBRARY);
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *library = (CUlibrary)(void *)object;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                           void **jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions)
{
    SIM_ENTER(cuLibraryLoadData);
    (void)jitOptions;
    (void)jitOptionsValues;
    (void)numJitOptions;
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    return library_load(library, code);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                               void **jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions)
{
    SIM_ENTER(cuLibraryLoadFromFile);
    (void)jitOptions;
    (void)jitOptionsValues;
    (void)numJitOptions;
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    return library_load(library, fileName);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    SIM_ENTER(cuLibraryUnload);
    struct sim_object *object = object_of(library, SIM_LIBRARY);

    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    sim_object_delete(object);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    SIM_ENTER(cuLibraryGetKernel);
    CUfunction function = NULL;

    if (!pKernel)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = function_get(&function, object_of(library, SIM_LIBRARY), name);
    if (rc == CUDA_SUCCESS)
        *pKernel = (CUkernel)(void *)function;
    return rc;
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    SIM_ENTER(cuLibraryGetModule);
    return object_of(library, SIM_LIBRARY) ? module_load(pMod, library) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    SIM_ENTER(cuLibraryGetGlobal);
    (void)dptr;
    (void)bytes;
    return object_of(library, SIM_LIBRARY) && name ? CUDA_ERROR_NOT_FOUND
                                                   : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    SIM_ENTER(cuKernelGetFunction);
    if (!pFunc)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_of(kernel, SIM_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *pFunc = (CUfunction)(void *)kernel;
    return CUDA_SUCCESS;
}

/* --- the linker ----------------------------------------------------------------- */

static char linker;                       /* its address is every CUlinkState */
static char linked_image[] = "simulated"; /* what cuLinkComplete hands out */

static CUresult link_create(CUlinkState *state)
{
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    *state = (CUlinkState)(void *)&linker;
    return CUDA_SUCCESS;
}

#define LINK_CREATE(symbol)                                                                        \
    CUresult symbol(unsigned int numOptions, CUjit_option *options, void **optionValues,           \
                    CUlinkState *stateOut)                                                         \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        (void)numOptions;                                                                          \
        (void)options;                                                                             \
        (void)optionValues;                                                                        \
        return link_create(stateOut);                                                              \
    }
LINK_CREATE(cuLinkCreate)
LINK_CREATE(cuLinkCreate_v2)

#define LINK_ADD_DATA(symbol)                                                                      \
    CUresult symbol(CUlinkState state, CUjitInputType type, void *data, size_t size,               \
                    const char *name, unsigned int numOptions, CUjit_option *options,              \
                    void **optionValues)                                                           \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        (void)type;                                                                                \
        (void)size;                                                                                \
        (void)name;                                                                                \
        (void)numOptions;                                                                          \
        (void)options;                                                                             \
        (void)optionValues;                                                                        \
        return state && data ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;                            \
    }
LINK_ADD_DATA(cuLinkAddData)
LINK_ADD_DATA(cuLinkAddData_v2)

CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut)
{
    SIM_ENTER(cuLinkComplete);
    if (!state || !cubinOut)
        return CUDA_ERROR_INVALID_VALUE;
    *cubinOut = linked_image;
    if (sizeOut)
        *sizeOut = sizeof linked_image;
    return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state)
{
    SIM_ENTER(cuLinkDestroy);
    return state ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
