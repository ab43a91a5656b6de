/*
 * Reads the simulator's environment. A value that does not parse is one line on
 * stderr and makes cuInit fail: a test must never run with settings that it did not
 * get. Runs once, before any other thread can see the result.
 */
#define _GNU_SOURCE
#include "sim_config.h"
#include "sim_cgroup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim_config sim_config;

static void complain(const char *variable, const char *value)
{
    (void)fprintf(stderr, "vramcap-sim: %s=%s does not parse\n", variable, value);
    sim_config.bad = true;
}

static uint64_t number(const char *variable, uint64_t standard, uint64_t low, uint64_t high)
{
    const char *text = getenv(variable);
    char *end = NULL;

    if (!text || !*text)
        return standard;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *text < '0' || *text > '9' || *end != '\0' || value < low || value > high) {
        complain(variable, text);
        return standard;
    }
    return value;
}

static bool flag(const char *variable)
{
    return number(variable, 0, 0, 1) == 1;
}

static bool digits(const char **text, uint64_t *value)
{
    char *end = NULL;

    if (**text < '0' || **text > '9')
        return false;
    *value = strtoull(*text, &end, 10);
    *text = end;
    return true;
}

/* `symbol:n:code,...` or, for delays, `symbol:microseconds,...` or `symbol:microseconds:n,...` */
static void rules_read(const char *variable, bool delays)
{
    const char *whole = getenv(variable), *text = whole;

    while (text && *text) {
        const char *colon = strchr(text, ':');
        struct sim_rule rule = {.nth = 0};
        uint64_t code = 0;

        if (!colon || colon == text || (size_t)(colon - text) >= sizeof rule.symbol ||
            sim_config.rules == SIM_MAX_RULES) {
            complain(variable, whole);
            return;
        }
        memcpy(rule.symbol, text, (size_t)(colon - text));
        text = colon + 1;
        bool ok = digits(&text, delays ? &rule.delay_us : &rule.nth);
        if (ok && !delays) {
            ok = *text++ == ':' && digits(&text, &code) && code > 0 && code < 1000;
            rule.code = (int)code;
        } else if (ok && *text == ':') {
            text++;
            ok = digits(&text, &rule.nth);
        }
        if (ok && *text == ',')
            text++;
        else if (!ok || *text != '\0') {
            complain(variable, whole);
            return;
        }
        sim_config.rule[sim_config.rules++] = rule;
    }
}

/* `64x8`: bytes and rows */
static void tile_read(struct sim_config *config)
{
    const char *whole = getenv("VRAMCAP_SIM_ARRAY_TILE"), *text = whole;
    uint64_t width = 64, rows = 8;

    if (text && *text &&
        (!digits(&text, &width) || *text++ != 'x' || !digits(&text, &rows) || *text != '\0' ||
         width == 0 || width > 4096 || rows == 0 || rows > 1024)) {
        complain("VRAMCAP_SIM_ARRAY_TILE", whole);
        return;
    }
    config->tile_width = (unsigned int)width;
    config->tile_rows = (unsigned int)rows;
}

/* `card`, `card:gpu`, with commas between them; the gpu is 0 when not given */
static void mig_read(struct sim_config *config)
{
    const char *whole = getenv("VRAMCAP_SIM_MIG"), *text = whole;

    memset(config->mig_parent, -1, sizeof config->mig_parent);
    while (text && *text) {
        uint64_t card = 0, gpu = 0;
        bool ok = digits(&text, &card) && card < sizeof config->mig_parent;

        if (ok && *text == ':') {
            text++;
            ok = digits(&text, &gpu) && gpu < 16;
        }
        if (!ok || (*text != '\0' && *text++ != ',')) {
            complain("VRAMCAP_SIM_MIG", whole);
            return;
        }
        config->mig_parent[card] = (signed char)gpu;
    }
}

/* A copy, for the program may change its environment; NULL if empty or not set. */
static const char *text_of(const char *variable)
{
    const char *text = getenv(variable);

    return text && *text ? strdup(text) : NULL;
}

/* `symbol:n` or `symbol:n:code` */
static void fault_read(struct sim_config *config)
{
    const char *whole = getenv("VRAMCAP_SIM_FAULT");
    const char *colon = whole ? strchr(whole, ':') : NULL, *text = colon ? colon + 1 : NULL;
    uint64_t code = 719; /* CUDA_ERROR_LAUNCH_FAILED */

    if (!whole || !*whole)
        return;
    if (!colon || colon == whole || !digits(&text, &config->fault_nth) || config->fault_nth == 0 ||
        (*text == ':' && (text++, !digits(&text, &code))) || *text != '\0' || code == 0 ||
        code > 999) {
        complain("VRAMCAP_SIM_FAULT", whole);
        return;
    }
    config->fault_symbol = strndup(whole, (size_t)(colon - whole));
    config->fault_code = (int)code;
}

static void mps_read(struct sim_config *config)
{
    const char *when = getenv("VRAMCAP_SIM_MPS_READ");
    int mode = 0;

    config->mps_pipe = text_of("VRAMCAP_SIM_MPS");
    config->mps_context_bytes =
        number("VRAMCAP_SIM_MPS_CONTEXT_MIB", config->context_bytes >> 20, 0, 65536) << 20;
    config->mps_clients = (unsigned int)number("VRAMCAP_SIM_MPS_CLIENTS", 60, 0, 4096);
    config->mps_connections = (unsigned int)number("VRAMCAP_SIM_MPS_CONNECTIONS", 128, 0, 65536);
    config->sm_step = (unsigned int)number("VRAMCAP_SIM_SM_STEP", 2, 1, 132);
    config->mps_read_at_start = when && strcmp(when, "start") == 0;
    if (when && *when && strcmp(when, "init") != 0 && !config->mps_read_at_start)
        complain("VRAMCAP_SIM_MPS_READ", when);
    if (!sim_compute_mode_from_environment(&mode))
        complain("VRAMCAP_SIM_COMPUTE_MODE", getenv("VRAMCAP_SIM_COMPUTE_MODE"));
    if (!sim_cgroup_environment_is_good())
        complain("VRAMCAP_SIM_MEMACCT, VRAMCAP_SIM_CGROUP_ROOT or VRAMCAP_SIM_CGROUP", "...");
    fault_read(config);
}

void sim_config_read(void)
{
    struct sim_config *config = &sim_config;

    config->version = (int)number("VRAMCAP_SIM_VERSION", (uint64_t)sim_build_version, 11000, 13999);
    if (config->version > sim_build_limit)
        config->version = sim_build_limit;
    config->context_bytes = number("VRAMCAP_SIM_CONTEXT_MIB", 64, 0, 65536) << 20;
    config->module_bytes = number("VRAMCAP_SIM_MODULE_KIB", 0, 0, 1048576) << 10;
    config->page_bytes = number("VRAMCAP_SIM_PAGE_KIB", 2048, 4, 2048) << 10;
    config->pitch_bytes = number("VRAMCAP_SIM_PITCH", 512, 32, 65536);
    if ((config->page_bytes & (config->page_bytes - 1)) != 0)
        complain("VRAMCAP_SIM_PAGE_KIB", getenv("VRAMCAP_SIM_PAGE_KIB"));
    if ((config->pitch_bytes & (config->pitch_bytes - 1)) != 0)
        complain("VRAMCAP_SIM_PITCH", getenv("VRAMCAP_SIM_PITCH"));
    config->pool_chunk_bytes = number("VRAMCAP_SIM_POOL_CHUNK_MIB", 32, 2, 4096) << 20;
    if (config->pool_chunk_bytes % (UINT64_C(2) << 20) != 0)
        complain("VRAMCAP_SIM_POOL_CHUNK_MIB", getenv("VRAMCAP_SIM_POOL_CHUNK_MIB"));
    config->pool_observed = flag("VRAMCAP_SIM_POOL_OBSERVED");
    config->address_bytes = number("VRAMCAP_SIM_ADDRESSES_MIB", 0, 128, 1048576) << 20;
    if (config->address_bytes % (UINT64_C(2) << 20) != 0)
        complain("VRAMCAP_SIM_ADDRESSES_MIB", getenv("VRAMCAP_SIM_ADDRESSES_MIB"));
    config->granularity_bytes = number("VRAMCAP_SIM_GRANULARITY_KIB", 2048, 4, 65536) << 10;
    if ((config->granularity_bytes & (config->granularity_bytes - 1)) != 0)
        complain("VRAMCAP_SIM_GRANULARITY_KIB", getenv("VRAMCAP_SIM_GRANULARITY_KIB"));
    tile_read(config);
    mig_read(config);
    config->capability = (unsigned int)number("VRAMCAP_SIM_CC", 90, 50, 121);
    config->integrated = flag("VRAMCAP_SIM_INTEGRATED");
    config->external_counts = number("VRAMCAP_SIM_EXTERNAL", 1, 0, 1) == 1;
    config->alias = flag("VRAMCAP_SIM_ALIAS");
    config->newer = flag("VRAMCAP_SIM_NEWER");
    config->inner = flag("VRAMCAP_SIM_INNER");
    config->bench = flag("VRAMCAP_SIM_BENCH");
    config->journal = getenv("VRAMCAP_SIM_JOURNAL");
    if (config->journal && !*config->journal)
        config->journal = NULL;
    if (config->journal)
        config->journal = strdup(config->journal); /* the program may change its environment */
    config->hidden = getenv("VRAMCAP_SIM_HIDE");
    if (config->hidden)
        config->hidden = *config->hidden ? strdup(config->hidden) : NULL;
    rules_read("VRAMCAP_SIM_FAIL", false);
    rules_read("VRAMCAP_SIM_DELAY_US", true);
    mps_read(config);
}

bool sim_config_scripted(void)
{
    return !sim_config.bench && (sim_config.journal || sim_config.hidden || sim_config.rules > 0 ||
                                 sim_config.fault_symbol || sim_config.version < 13000);
}
