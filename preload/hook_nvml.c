/*
 * NVML's memory information under the ceiling.  Invariants:
 *   - NVML is asked first, with the caller's own arguments: its errors (a wrong version word among them)
 *     stand, and so do its figures where there is no ceiling below the card's size, or where anything
 *     that is needed to know it is missing;
 *   - a process that only asks NVML reads the ledger and takes no slot, makes no file, keeps nothing open;
 *   - in a process that uses CUDA the figures are those of cuMemGetInfo: of its own ledger.
 */
#include "preload/nvml_api.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/ceiling.h"
#include "enforcer/ledger_look.h"
#include "enforcer/ledger_reap.h"
#include "preload/preload.h"

struct memory {
    unsigned long long total, free, used;
};

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* "GPU-" or "MIG-" and 8-4-4-4-12 digits; other forms ("MIG-GPU-.../1/0" of old drivers) are unknown. */
static bool uuid_parse(const char *text, uint8_t uuid[16], bool *mig)
{
    *mig = strncmp(text, "MIG-", 4) == 0;
    if (!*mig && strncmp(text, "GPU-", 4) != 0)
        return false;
    text += 4;
    for (int i = 0; i < 16; i++) {
        int high, low;

        if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-')
            return false;
        high = hex(text[0]);
        low = high < 0 ? -1 : hex(text[1]);
        if (low < 0)
            return false;
        uuid[i] = (uint8_t)(high << 4 | low);
        text += 2;
    }
    return *text == 0;
}

/*
 * The device's ordinal for entries like "0=4096".  They count what CUDA shows to the process, and only as
 * long as CUDA_VISIBLE_DEVICES is not set is that what NVML counts.  UINT32_MAX, which no entry names:
 * unknown.
 */
static uint32_t ordinal_of(nvmlDevice_t device, bool mig)
{
    unsigned int index = 0;

    if (mig || vcap_config_getenv("CUDA_VISIBLE_DEVICES", NULL) != NULL ||
        real_nvml.nvmlDeviceGetIndex == NULL ||
        real_nvml.nvmlDeviceGetIndex(device, &index) != NVML_SUCCESS)
        return UINT32_MAX;
    return index;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The ceiling and what is held, in a process that has its ledger.  False: no ceiling is known. */
static bool own_view(nvmlDevice_t device, const uint8_t uuid[16], bool mig, uint64_t *ceiling,
                     uint64_t *held)
{
    struct vcap_ledger *l = vcap_ledger_now();
    uint32_t gpu;

    if (l->base == NULL)
        return false;
    for (uint32_t i = 0; i < VCAP_DEVICES_MAX; i++) {
        const struct vcap_device *d = &vcap_process.device[i];

        if (__atomic_load_n(&d->state, __ATOMIC_ACQUIRE) != 1 || memcmp(d->uuid, uuid, 16) != 0)
            continue;
        vcap_ledger_reap_sometimes(l);
        *ceiling = vcap_device_ceiling(d);
        *held = vcap_ledger_held(l, d->gpu);
        return true;
    }
    *ceiling =
        vcap_ceiling_effective(&vcap_process.config, ordinal_of(device, mig), uuid, mig).bytes;
    *held = 0;
    *ceiling = least(*ceiling, vcap_ceiling_bytes(vcap_ledger_default_ceiling(l)));
    if (vcap_ledger_find_gpu(l, uuid, &gpu)) { /* not used here, but by others */
        vcap_ledger_reap_sometimes(l);
        *ceiling = least(
            *ceiling, vcap_ceiling_bytes(__atomic_load_n(&l->gpus[gpu].ceiling, __ATOMIC_ACQUIRE)));
        *held = vcap_ledger_held(l, gpu);
    }
    return true;
}

/* The same in a process that has not started: by what it would find. */
static bool foreign_view(nvmlDevice_t device, const uint8_t uuid[16], bool mig, uint64_t *ceiling,
                         uint64_t *held)
{
    struct vcap_outlook *outlook = malloc(sizeof(*outlook));
    struct vcap_ledger_look look;
    bool known = outlook != NULL && vcap_outlook(outlook);

    if (known) {
        *ceiling =
            vcap_ceiling_effective(&outlook->config, ordinal_of(device, mig), uuid, mig).bytes;
        *held = 0;
        if (outlook->path[0] != 0 &&
            vcap_ledger_look(outlook->path, outlook->key[0] != 0 ? outlook->key : NULL, uuid,
                             &look) == 0) {
            *ceiling = least(*ceiling, look.ceiling_bytes);
            *held = look.held_bytes;
        }
    }
    free(outlook);
    return known;
}

/* Changes the figures to what they are under the ceiling.  False: they stand as they are. */
static bool view(nvmlDevice_t device, struct memory *m)
{
    enum vcap_mode mode = vcap_mode_if_started();
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    uint64_t ceiling, held;
    uint8_t uuid[16];
    bool mig, known;

    if (mode == VCAP_MODE_DENY) { /* nothing will be granted; cuMemGetInfo says the same */
        m->free = 0;
        m->used = m->total;
        return true;
    }
    if ((mode != VCAP_MODE_ENFORCE && mode != VCAP_MODE_UNKNOWN) ||
        real_nvml.nvmlDeviceGetUUID == NULL)
        return false;
    memset(text, 0, sizeof(text));
    if (real_nvml.nvmlDeviceGetUUID(device, text, sizeof(text)) != NVML_SUCCESS ||
        memchr(text, 0, sizeof(text)) == NULL || !uuid_parse(text, uuid, &mig))
        return false;
    known = mode == VCAP_MODE_ENFORCE ? own_view(device, uuid, mig, &ceiling, &held)
                                      : foreign_view(device, uuid, mig, &ceiling, &held);
    if (!known || ceiling >= m->total) /* VCAP_NO_LIMIT among them */
        return false;
    m->total = ceiling;
    m->free = least(m->free, held < ceiling ? ceiling - held : 0);
    m->used = m->total - m->free;
    return true;
}

/* The way in of both: without the library, from inside it, or failing, its own answer is the answer. */
#define ASK(function, device, memory)                                                              \
    do {                                                                                           \
        if (!vcap_nvml_bind())                                                                     \
            return NVML_ERROR_LIBRARY_NOT_FOUND;                                                   \
        if (real_nvml.function == NULL)                                                            \
            return NVML_ERROR_FUNCTION_NOT_FOUND;                                                  \
        result = real_nvml.function(device, memory);                                               \
        if (result != NVML_SUCCESS || (memory) == NULL ||                                          \
            vcap_is_nvml_inner_call(__builtin_return_address(0)))                                  \
            return result;                                                                         \
    } while (0)

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlReturn_t result;
    struct memory m;
    int saved = errno;

    ASK(nvmlDeviceGetMemoryInfo, device, memory);
    m = (struct memory){memory->total, memory->free, memory->used};
    if (view(device, &m)) {
        memory->total = m.total;
        memory->free = m.free;
        memory->used = m.used;
    }
    errno = saved;
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlReturn_t result;
    struct memory m;
    int saved = errno;

    ASK(nvmlDeviceGetMemoryInfo_v2, device, memory);
    m = (struct memory){memory->total, memory->free, memory->used};
    if (view(device, &m)) {
        memory->total = m.total;
        memory->reserved = 0;
        memory->free = m.free;
        memory->used = m.used;
    }
    errno = saved;
    return result;
}
