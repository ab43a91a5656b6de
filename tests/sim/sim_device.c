/*
 * Devices: which cards the process sees, and what they say about themselves.
 *
 * CUDA_VISIBLE_DEVICES selects and orders: indices and UUIDs (`GPU-`, or `MIG-` for a slice,
 * and a prefix that one card alone has); the first entry that names no card ends the list; a card named
 * twice leaves none, as the real driver does. A MIG slice is a card with a UUID of its own
 * that tells its GPU's to cuDeviceGetUuid; a process sees one slice, as the first device
 * or not at all. Figures other than memory are those of a
 * made-up card of compute capability 9.0.
 */
#define _GNU_SOURCE
#include "sim_internal.h"
#include "sim_mps.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

unsigned int sim_device_count;
unsigned int sim_device_card[SIM_MAX_CARDS];

#define DEVICE_NAME "vramcap Simulated GPU"
#define FIRST_BUS 0x10U

static bool is_slice(unsigned int card)
{
    return sim_config.mig_parent[card] >= 0;
}

/* The card an entry names, or -1. */
static int card_named(const char *entry, size_t length, unsigned int cards)
{
    int found = -1;

    bool slice = length > 4 && strncasecmp(entry, "MIG-", 4) == 0;
    if (slice || (length > 4 && strncasecmp(entry, "GPU-", 4) == 0)) {
        for (unsigned int c = 0; c < cards; c++) {
            unsigned char uuid[16];
            char text[48];

            sim_card_uuid(c, uuid);
            sim_uuid_text(uuid, text);
            if (is_slice(c) != slice || length > strlen(text) ||
                strncasecmp(entry + 4, text + 4, length - 4) != 0)
                continue;
            if (found >= 0)
                return -1;
            found = (int)c;
        }
        return found;
    }
    if (length == 0 || length > 3)
        return -1;
    unsigned int index = 0;
    for (size_t i = 0; i < length; i++) {
        if (entry[i] < '0' || entry[i] > '9')
            return -1;
        index = index * 10 + (unsigned int)(entry[i] - '0');
    }
    return index < cards ? (int)index : -1;
}

int sim_device_named(const char *entry, size_t length)
{
    if (length > 0 && entry[0] >= '0' && entry[0] <= '9') {
        unsigned int ordinal = 0;

        for (size_t i = 0; i < length; i++) {
            if (entry[i] < '0' || entry[i] > '9' || ordinal > SIM_MAX_CARDS)
                return -1;
            ordinal = ordinal * 10 + (unsigned int)(entry[i] - '0');
        }
        return ordinal < sim_device_count ? (int)ordinal : -1;
    }
    int card = card_named(entry, length, sim_card_count(sim_state));
    for (unsigned int d = 0; card >= 0 && d < sim_device_count; d++)
        if (sim_device_card[d] == (unsigned int)card)
            return (int)d;
    return -1;
}

unsigned int sim_devices_select(void)
{
    unsigned int cards = sim_card_count(sim_state);
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    bool seen[SIM_MAX_CARDS] = {false};

    sim_device_count = 0;
    if (!list) {
        for (unsigned int c = 0; c < cards; c++)
            if (!is_slice(c))
                sim_device_card[sim_device_count++] = c;
        for (unsigned int c = 0; c < cards && sim_device_count == 0; c++)
            sim_device_card[sim_device_count++] = c; /* slices only: the first of them */
        return sim_device_count;
    }
    for (const char *at = list;;) {
        at += strspn(at, " \t");
        size_t length = strcspn(at, ","), name = length;

        while (name > 0 && (at[name - 1] == ' ' || at[name - 1] == '\t'))
            name--;
        int card = card_named(at, name, cards);
        if (card < 0)
            break;
        if (seen[card]) {
            sim_device_count = 0;
            break;
        }
        /* A slice goes alone: behind a GPU it ends the list, and nothing comes behind it. */
        if (is_slice((unsigned int)card) && sim_device_count > 0)
            break;
        seen[card] = true;
        sim_device_card[sim_device_count++] = (unsigned int)card;
        if (at[length] == '\0' || is_slice((unsigned int)card))
            break;
        at += length + 1;
    }
    return sim_device_count;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    SIM_ENTER(cuDeviceGet);
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    SIM_ENTER(cuDeviceGetCount);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (int)sim_device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetName);
    if (!name || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    (void)snprintf(name, (size_t)len, "%s%s", DEVICE_NAME,
                   is_slice(sim_device_card[dev]) ? " MIG 1g" : "");
    return CUDA_SUCCESS;
}

static CUresult uuid_get(CUuuid *uuid, CUdevice dev, bool of_gpu)
{
    unsigned char bytes[16];

    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    unsigned int card = sim_device_card[dev];
    if (of_gpu && is_slice(card))
        card = SIM_MAX_CARDS + (unsigned int)sim_config.mig_parent[card]; /* no card has that one */
    sim_card_uuid(card, bytes);
    memcpy(uuid->bytes, bytes, sizeof bytes);
    return CUDA_SUCCESS;
}

/* Of a MIG slice, the first form gives the GPU's. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetUuid);
    return uuid_get(uuid, dev, true);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetUuid_v2);
    return uuid_get(uuid, dev, false);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    SIM_ENTER(cuDeviceTotalMem_v2);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = sim_card_total(sim_state, sim_device_card[dev]);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
    SIM_ENTER(cuDeviceTotalMem);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    uint64_t total = sim_card_total(sim_state, sim_device_card[dev]);
    *bytes = total > UINT_MAX ? UINT_MAX : (unsigned int)total;
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    SIM_ENTER(cuDeviceComputeCapability);
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    *major = (int)sim_config.capability / 10;
    *minor = (int)sim_config.capability % 10;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetProperties);
    if (!prop)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    *prop = (CUdevprop){.maxThreadsPerBlock = 1024,
                        .maxThreadsDim = {1024, 1024, 64},
                        .maxGridSize = {INT_MAX, 65535, 65535},
                        .sharedMemPerBlock = 49152,
                        .totalConstantMemory = 65536,
                        .SIMDWidth = 32,
                        .memPitch = INT_MAX,
                        .regsPerBlock = 65536,
                        .clockRate = 1980000,
                        .textureAlign = 512};
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetPCIBusId);
    if (!pciBusId || len < 13)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    (void)snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", FIRST_BUS + sim_device_card[dev]);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    SIM_ENTER(cuDeviceGetByPCIBusId);
    unsigned int domain = 0, bus = 0, slot = 0, function = 0;

    if (!dev || !pciBusId)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(pciBusId, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3 &&
        sscanf(pciBusId, "%x:%x", &bus, &slot) != 2)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int d = 0; d < sim_device_count; d++) {
        if (bus == FIRST_BUS + sim_device_card[d]) {
            *dev = (CUdevice)d;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

struct attribute {
    CUdevice_attribute id;
    int value;
};

static const struct attribute attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, INT_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, INT_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 52428800},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC},
    {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS, 2048},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 2048},
};

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetAttribute);
    if (!pi || (int)attrib < 1 || attrib >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    if (attrib == CU_DEVICE_ATTRIBUTE_MPS_ENABLED && sim_config.version < 12020)
        return CUDA_ERROR_INVALID_VALUE; /* a number that it does not know */
    *pi = 0;
    if (attrib == CU_DEVICE_ATTRIBUTE_INTEGRATED)
        *pi = sim_config.integrated;
    if (attrib == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
        *pi = (int)(FIRST_BUS + sim_device_card[dev]);
    if (attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        *pi = (int)sim_config.capability / 10;
    if (attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        *pi = (int)sim_config.capability % 10;
    if (attrib == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        *pi = (int)sim_mps_sms();
    if (attrib == CU_DEVICE_ATTRIBUTE_MPS_ENABLED)
        *pi = sim_mps_is_client();
    if (attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)
        *pi = (int)sim_state->file->card[sim_device_card[dev]].compute_mode;
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        if (attributes[i].id == attrib)
            *pi = attributes[i].value;
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    SIM_ENTER(cuDeviceCanAccessPeer);
    if (!canAccessPeer)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(dev) || !sim_device_valid(peerDev))
        return CUDA_ERROR_INVALID_DEVICE;
    *canAccessPeer = dev != peerDev;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                 CUdevice dstDevice)
{
    SIM_ENTER(cuDeviceGetP2PAttribute);
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(srcDevice) || !sim_device_valid(dstDevice) || srcDevice == dstDevice)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attrib == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
}
