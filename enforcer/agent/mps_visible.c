/*
 * vcap_mps_visible(): which of the host's GPUs a process sees, in the order of its ordinals.
 *
 * NVIDIA_VISIBLE_DEVICES is the container runtime's (indices in NVML's order, UUIDs, all, none; see
 * NVIDIA's container toolkit documentation); CUDA_VISIBLE_DEVICES is the driver's, on top of that
 * (CUDA programming guide: ordinals or unambiguous beginnings of UUIDs; what follows an invalid
 * entry is invisible).  What must stay true: false for every form whose meaning is not certain from
 * the two alone: "void" and unset (CDI may have put in any GPU), MIG by index, a GPU that is split
 * into MIG devices.
 */
#include "enforcer/agent/mps_lint.h"

#include <string.h>

#include "enforcer/ceiling.h"

struct set {
    uint32_t at[VCAP_MPS_GPUS_MAX], count;
};

static char lower(char c)
{
    return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}

/* The position among c->gpus of the only one whose UUID begins with text; -1: none or several. */
static int by_uuid(const struct vcap_mps_container *c, const char *text, size_t length)
{
    int found = -1;
    if (length < 5)
        return -1;
    for (uint32_t g = 0; g < c->gpu_count; g++) {
        char uuid[VCAP_UUID_TEXT_SIZE];
        size_t i = 0;
        vcap_uuid_format(uuid, c->gpus[g].uuid, c->gpus[g].mig);
        while (i < length && lower(text[i]) == lower(uuid[i]) && uuid[i])
            i++;
        if (i < length)
            continue;
        if (found >= 0)
            return -1;
        found = (int)g;
    }
    return found;
}

static bool is_number(const char *text, size_t length, uint32_t *number)
{
    uint32_t sum = 0;
    if (length == 0 || length > 4)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        sum = sum * 10 + (uint32_t)(text[i] - '0');
    }
    *number = sum;
    return true;
}

/* The next entry of a list with commas, blanks cut off; false: no more. */
static bool next_entry(const char **list, const char **entry, size_t *length)
{
    const char *at = *list;
    if (!at)
        return false;
    size_t n = strcspn(at, ",");
    *list = at[n] ? at + n + 1 : NULL;
    while (n > 0 && (*at == ' ' || *at == '\t')) {
        at++;
        n--;
    }
    while (n > 0 && (at[n - 1] == ' ' || at[n - 1] == '\t'))
        n--;
    *entry = at;
    *length = n;
    return true;
}

static bool any_mig(const struct vcap_mps_container *c)
{
    bool any = false;
    for (uint32_t g = 0; g < c->gpu_count; g++)
        any = any || c->gpus[g].mig;
    return any;
}

static bool put(struct set *set, uint32_t gpu)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (set->at[i] == gpu)
            return false;
    if (set->count == VCAP_MPS_GPUS_MAX)
        return false;
    set->at[set->count++] = gpu;
    return true;
}

/* What the container runtime let in, in the host's order, which is the one inside too. */
static bool let_in(const struct vcap_mps_container *c, const struct vcap_mps_value *value,
                   struct set *set)
{
    bool in[VCAP_MPS_GPUS_MAX] = {false};
    const char *list = value->text, *entry;
    size_t length;

    const bool all = c->all_visible || (value->set && strcmp(value->text, "all") == 0);
    if (c->gpu_count > VCAP_MPS_GPUS_MAX || value->cut || (all && any_mig(c)))
        return false;
    if (!all && (!value->set || value->text[0] == '\0' || strcmp(value->text, "void") == 0))
        return false;
    if (!all && strcmp(value->text, "none") != 0)
        while (next_entry(&list, &entry, &length)) {
            uint32_t number;
            int gpu = by_uuid(c, entry, length);
            if (is_number(entry, length, &number) && number < c->gpu_count && !any_mig(c))
                gpu = (int)number;
            if (gpu < 0)
                return false;
            in[gpu] = true;
        }
    for (uint32_t g = 0; g < c->gpu_count; g++)
        if (all || in[g])
            (void)put(set, g);
    return true;
}

bool vcap_mps_visible(const struct vcap_mps_container *c, const struct vcap_mps_look *look,
                      uint32_t visible[VCAP_MPS_GPUS_MAX], uint32_t *count)
{
    const struct vcap_mps_value *value = &look->variable[VCAP_MPS_VAR_VISIBLE];
    struct set inside = {.count = 0}, seen = {.count = 0};
    const char *list = value->text, *entry;
    size_t length;

    if (!c->gpus_known || look->environment_error != 0 || value->cut ||
        !let_in(c, &look->variable[VCAP_MPS_VAR_NVIDIA_VISIBLE], &inside))
        return false;
    if (!value->set)
        seen = inside;
    while (value->set && next_entry(&list, &entry, &length)) {
        uint32_t number, gpu;
        int named = by_uuid(c, entry, length);
        bool there = false;
        if (is_number(entry, length, &number)) {
            if (number >= inside.count)
                break;
            gpu = inside.at[number];
        } else if (named >= 0) {
            gpu = (uint32_t)named;
        } else {
            break;
        }
        for (uint32_t i = 0; i < inside.count; i++)
            there = there || inside.at[i] == gpu;
        if (!there)
            break;
        if (!put(&seen, gpu)) {
            seen.count = 0; /* twice the same: the driver sees none at all */
            break;
        }
    }
    memcpy(visible, seen.at, seen.count * sizeof *visible);
    *count = seen.count;
    return true;
}
