/*
 * cuInit, versions, error names, and the process's link to the shared card.
 *
 * cuInit either does everything (devices chosen, a row taken, the gate opened) or
 * leaves the process uninitialised; it may be tried again. A child forked after it
 * gets NOT_INITIALIZED for good, as from the real driver.
 */
#define _GNU_SOURCE
#include "sim_internal.h"
#include "sim_mps.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;
struct sim_state *sim_state;

/* VRAMCAP_SIM_INNER: what dlsym on our own handle gave for cuInit, as the WSL2 stub
 * library asks. An interposer that answers with its own hook sends us in a circle. */
static CUresult (*inner_init)(unsigned int);
static __thread unsigned int inner_depth;
#define INNER_DEPTH_LIMIT 32U

/* Our own cuInit, whatever is loaded in front of it. */
extern CUresult sim_own_init(unsigned int flags)
    __attribute__((alias("cuInit"), visibility("hidden")));

__attribute__((constructor)) static void inner_resolve(void)
{
    Dl_info self;

    if (!getenv("VRAMCAP_SIM_INNER") || dladdr((void *)(uintptr_t)sim_own_init, &self) == 0)
        return;
    void *handle = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle)
        return;
    void *found = dlsym(handle, "cuInit");
    memcpy(&inner_init, &found, sizeof inner_init);
    (void)dlclose(handle);
}

void *sim_inner(const char *symbol)
{
    /* not RTLD_DEFAULT: a library that is linked with -Bsymbolic finds its own names there */
    void *program = sim_config.inner ? dlopen(NULL, RTLD_LAZY) : NULL;
    void *found = program ? dlsym(program, symbol) : NULL;

    if (program)
        (void)dlclose(program);
    return found;
}

void sim_process_forget(void)
{
    if (sim_state)
        sim_state_forget(sim_state);
}

static CUresult initialise(void)
{
    if (sim_config.bad)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (!sim_state) {
        struct sim_state *state = sim_config.bench ? sim_state_private() : sim_state_open(NULL);

        if (!state) {
            (void)fprintf(stderr, "vramcap-sim: the state file cannot be opened\n");
            return CUDA_ERROR_SYSTEM_NOT_READY;
        }
        sim_state = state;
    }
    if (sim_devices_select() == 0)
        return CUDA_ERROR_NO_DEVICE;
    CUresult rc = sim_mps_prepare();
    if (rc != CUDA_SUCCESS)
        return rc;
    if (sim_state_attach(sim_state) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    rc = sim_mps_join();
    if (rc != CUDA_SUCCESS)
        return rc;
    sim_contexts_initialise();
    sim_gate_open();
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int Flags)
{
    SIM_ENTER_EARLY(cuInit);
    if (inner_init && sim_config.inner && inner_init != sim_own_init) {
        if (inner_depth >= INNER_DEPTH_LIMIT)
            return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
        inner_depth++;
        CUresult inner = inner_init(Flags);
        inner_depth--;
        return inner;
    }
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_initialised())
        return CUDA_SUCCESS;
    if (sim_forked())
        return CUDA_ERROR_NOT_INITIALIZED;
    sim_lock_take();
    CUresult rc = sim_initialised() ? CUDA_SUCCESS : initialise();
    sim_lock_drop();
    return rc;
}

CUresult cuDriverGetVersion(int *driverVersion)
{
    SIM_ENTER_EARLY(cuDriverGetVersion);
    if (!driverVersion)
        return CUDA_ERROR_INVALID_VALUE;
    *driverVersion = sim_config.version;
    return CUDA_SUCCESS;
}

/* The runtime's undocumented tables: this driver has none (CUDA_ERROR_NOT_FOUND). */
CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    SIM_ENTER_EARLY(cuGetExportTable);
    if (!ppExportTable || !pExportTableId)
        return CUDA_ERROR_INVALID_VALUE;
    *ppExportTable = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

struct error_text {
    CUresult code;
    const char *name, *text;
};

static const struct error_text errors[] = {
#include "sim_errors.inc"
};

static const struct error_text *error_find(CUresult code)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == code)
            return &errors[i];
    return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
    SIM_ENTER_EARLY(cuGetErrorName);
    const struct error_text *found = error_find(error);

    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    *pStr = found ? found->name : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
    SIM_ENTER_EARLY(cuGetErrorString);
    const struct error_text *found = error_find(error);

    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    *pStr = found ? found->text : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
