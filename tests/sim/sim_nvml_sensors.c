/*
 * What monitors ask NVML besides memory and processes: the PCI address, modes, and a board's sensors.
 * This card has no board: sensors and utilization answer NOT_SUPPORTED, as they do on cards and slices
 * that lack them, and monitors show nothing for them.
 */
#include "sim_nvml.h"

#include <stdio.h>
#include <string.h>

#define FIRST_BUS 0x10U
#define PCI_DEVICE_ID 0x000010DEU /* NVIDIA's vendor number, no device's */

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");

#pragma GCC visibility push(default)

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    unsigned int card = 0;
    nvmlReturn_t rc = nvmlDeviceGetIndex(device, &card);

    if (rc != NVML_SUCCESS)
        return rc;
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    pci->bus = FIRST_BUS + card;
    pci->pciDeviceId = PCI_DEVICE_ID;
    (void)snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
    (void)snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    return NVML_SUCCESS;
}

static nvmlReturn_t mode(nvmlDevice_t device, unsigned int *value, unsigned int answer)
{
    unsigned int card = 0;
    nvmlReturn_t rc = nvmlDeviceGetIndex(device, &card);

    if (rc != NVML_SUCCESS)
        return rc;
    if (!value)
        return NVML_ERROR_INVALID_ARGUMENT;
    *value = answer;
    return NVML_SUCCESS;
}

#define MODE(symbol, answer)                                                                       \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *value);                                 \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *value)                                  \
    {                                                                                              \
        return mode(device, value, answer);                                                        \
    }
MODE(nvmlDeviceGetPersistenceMode, 1) /* ENABLED */
MODE(nvmlDeviceGetDisplayActive, 0)
MODE(nvmlDeviceGetDisplayMode, 0)

#define NO_PROCESSES(symbol)                                                                       \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, void *infos);                    \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, void *infos)                     \
    {                                                                                              \
        (void)infos;                                                                               \
        return mode(device, count, 0);                                                             \
    }
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)

/* Further arguments are not looked at. */
#define NO_SENSOR(symbol)                                                                          \
    nvmlReturn_t symbol(nvmlDevice_t device);                                                      \
    nvmlReturn_t symbol(nvmlDevice_t device)                                                       \
    {                                                                                              \
        unsigned int card = 0;                                                                     \
        nvmlReturn_t rc = nvmlDeviceGetIndex(device, &card);                                       \
                                                                                                   \
        return rc == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : rc;                                 \
    }
NO_SENSOR(nvmlDeviceGetClockInfo)
NO_SENSOR(nvmlDeviceGetDecoderUtilization)
NO_SENSOR(nvmlDeviceGetDriverModel)
NO_SENSOR(nvmlDeviceGetDriverModel_v2)
NO_SENSOR(nvmlDeviceGetEncoderUtilization)
NO_SENSOR(nvmlDeviceGetEnforcedPowerLimit)
NO_SENSOR(nvmlDeviceGetFanSpeed)
NO_SENSOR(nvmlDeviceGetMaxClockInfo)
NO_SENSOR(nvmlDeviceGetMigMode)
NO_SENSOR(nvmlDeviceGetPerformanceState)
NO_SENSOR(nvmlDeviceGetPowerManagementLimit)
NO_SENSOR(nvmlDeviceGetPowerUsage)
NO_SENSOR(nvmlDeviceGetProcessUtilization)
NO_SENSOR(nvmlDeviceGetTemperature)
NO_SENSOR(nvmlDeviceGetTotalEccErrors)
NO_SENSOR(nvmlDeviceGetUtilizationRates)

#pragma GCC visibility pop
