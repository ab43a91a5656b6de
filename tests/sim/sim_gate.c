/*
 * The slow way into a driver function, and the life of the gate word.
 *
 * Order in sim_enter: configure, journal, delay, scripted failure, hidden symbol,
 * then the state of the process. The journal is opened per line: a descriptor kept
 * open could be closed, and its number reused, by the program under test.
 */
#define _GNU_SOURCE
#include "sim_gate.h"
#include "sim_bounds.h"
#include "sim_config.h"
#include "sim_internal.h"
#include "sim_symbols.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static uint32_t gate_closed; /* stays 0: the gate before configuration */
uint32_t *sim_gate = &gate_closed;

/* 1 from cuInit on, in ordinary memory: 1 with a gate of 0 is a forked child. */
static uint32_t was_initialised;
static pthread_once_t configured = PTHREAD_ONCE_INIT;

static void configure(void)
{
    long page = sysconf(_SC_PAGESIZE);

    sim_config_read();
    void *word =
        mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (word == MAP_FAILED) {
        sim_config.bad = true;
        return;
    }
#ifdef MADV_WIPEONFORK
    (void)madvise(word, (size_t)page, MADV_WIPEONFORK);
#endif
    uint32_t *gate = word;
    __atomic_store_n(gate, SIM_GATE_CONFIGURED | (sim_config_scripted() ? SIM_GATE_SCRIPTED : 0U),
                     __ATOMIC_RELEASE);
    __atomic_store_n(&sim_gate, gate, __ATOMIC_RELEASE);
}

bool sim_forked(void)
{
    return __atomic_load_n(&was_initialised, __ATOMIC_ACQUIRE) == 1 &&
           (sim_gate_load() & SIM_GATE_INITIALISED) == 0;
}

bool sim_initialised(void)
{
    return (sim_gate_load() & SIM_GATE_INITIALISED) != 0;
}

static void child_after_fork(void)
{
    __atomic_store_n(__atomic_load_n(&sim_gate, __ATOMIC_ACQUIRE), 0U, __ATOMIC_RELEASE);
    sim_process_forget();
}

void sim_gate_open(void)
{
    /* was_initialised last: between the two, no thread may take itself for a child. */
    (void)__atomic_fetch_or(sim_gate, SIM_GATE_INITIALISED, __ATOMIC_RELEASE);
    __atomic_store_n(&was_initialised, 1U, __ATOMIC_RELEASE);
    (void)pthread_atfork(NULL, NULL, child_after_fork);
}

void sim_gate_capturing(bool on)
{
    if (on)
        (void)__atomic_fetch_or(sim_gate, SIM_GATE_CAPTURING, __ATOMIC_RELEASE);
    else
        (void)__atomic_fetch_and(sim_gate, ~SIM_GATE_CAPTURING, __ATOMIC_RELEASE);
}

void sim_gate_watch(void)
{
    (void)__atomic_fetch_or(sim_gate, SIM_GATE_WATCHED, __ATOMIC_RELEASE);
}

static void journal_write(const char *symbol)
{
    char line[160];
    int length = snprintf(line, sizeof line, "%d %s\n", (int)getpid(), symbol);
    int fd = open(sim_config.journal, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);

    if (fd < 0)
        return;
    ssize_t written;
    do
        written = write(fd, line, (size_t)length);
    while (written < 0 && errno == EINTR);
    (void)close(fd);
}

static bool listed(const char *list, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = list; at && *at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

bool sim_symbol_present(const char *name, int since)
{
    return since <= sim_config.version && !listed(sim_config.hidden, name);
}

static bool symbol_absent(const char *name)
{
    for (unsigned int i = 0; i < sim_symbol_count; i++)
        if (strcmp(sim_symbols[i].name, name) == 0)
            return !sim_symbol_present(name, sim_symbols[i].since);
    return false;
}

/* VRAMCAP_SIM_FAULT: this call is the fatal one. It strikes the card of the current context. */
static void fault_maybe(const char *symbol)
{
    static uint64_t calls;
    struct sim_context *context = NULL;

    if (!sim_config.fault_symbol || strcmp(sim_config.fault_symbol, symbol) != 0 ||
        !sim_initialised() ||
        __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) != sim_config.fault_nth ||
        sim_context_current(&context) != CUDA_SUCCESS)
        return;
    sim_gate_watch();
    (void)sim_bounds_fault(sim_state, context->owner.card, sim_state->own_row,
                           (uint32_t)sim_config.fault_code);
}

static void wait_us(uint64_t us)
{
    struct timespec left = {.tv_sec = (time_t)(us / 1000000),
                            .tv_nsec = (long)(us % 1000000) * 1000};

    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

void sim_leave(const char *symbol)
{
    int saved = errno;

    for (unsigned int i = 0; i < sim_config.rules; i++) {
        struct sim_rule *rule = &sim_config.rule[i];

        if (rule->code != 0 || strcmp(rule->symbol, symbol) != 0)
            continue;
        uint64_t call = __atomic_add_fetch(&rule->calls, 1, __ATOMIC_RELAXED);
        if (rule->nth == 0 || rule->nth == call)
            wait_us(rule->delay_us);
    }
    errno = saved;
}

/* What this thread has armed by vcapsim_fail. */
static __thread SIM_TLS struct {
    char symbol[96];
    unsigned int left;
    int code;
} armed;
static uint32_t armed_ever;

__attribute__((visibility("default"))) bool vcapsim_fail(const char *symbol, unsigned int nth,
                                                         int code);
bool vcapsim_fail(const char *symbol, unsigned int nth, int code)
{
    bool spent = armed.left == 0;

    armed.left = 0;
    if (!symbol || nth == 0)
        return spent;
    (void)snprintf(armed.symbol, sizeof armed.symbol, "%s", symbol);
    armed.code = code;
    armed.left = nth;
    __atomic_store_n(&armed_ever, 1U, __ATOMIC_RELEASE);
    (void)__atomic_fetch_or(sim_gate, SIM_GATE_SCRIPTED, __ATOMIC_RELEASE);
    return spent;
}

static int script(const char *symbol)
{
    int code = 0;

    fault_maybe(symbol);

    if (sim_config.journal)
        journal_write(symbol);
    if (armed.left != 0 && strcmp(armed.symbol, symbol) == 0 && --armed.left == 0)
        code = armed.code;
    for (unsigned int i = 0; i < sim_config.rules; i++) {
        struct sim_rule *rule = &sim_config.rule[i];

        if (strcmp(rule->symbol, symbol) != 0 && strcmp(rule->symbol, "*") != 0)
            continue;
        uint64_t call = __atomic_add_fetch(&rule->calls, 1, __ATOMIC_RELAXED);
        if (rule->code == 0) {
            if (rule->nth == 0 || rule->nth == call)
                wait_us(rule->delay_us);
            continue;
        }
        if (code == 0 && (rule->nth == 0 || rule->nth == call))
            code = rule->code;
    }
    if (code == 0 && symbol_absent(symbol))
        code = CUDA_ERROR_NOT_SUPPORTED;
    return code;
}

int sim_enter(const char *symbol, bool needs_init)
{
    int saved = errno;
    int code = 0;

    (void)pthread_once(&configured, configure);
    /* Ask the configuration, not the gate: a forked child's gate is 0. */
    if (sim_config_scripted() || __atomic_load_n(&armed_ever, __ATOMIC_ACQUIRE) != 0)
        code = script(symbol);
    errno = saved;
    if (code == 0 && needs_init && !sim_initialised())
        code = CUDA_ERROR_NOT_INITIALIZED;
    if (code == 0 && needs_init && (sim_gate_load() & SIM_GATE_WATCHED) != 0)
        code = (int)sim_bounds_sticky(sim_state);
    if (code == 0 && sim_gate_is_capturing())
        code = sim_capture_check(symbol);
    return code;
}
