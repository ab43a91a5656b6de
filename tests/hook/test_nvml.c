/*
 * NVML's memory information: the truth under the ceiling, told to processes with CUDA and without.
 */
#include "tests/hook/scenario.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "enforcer/nvml_abi.h"
#include "sim.h"

#define VERSION_2 ((unsigned)(sizeof(nvmlMemory_v2_t) | 2u << 24))
#define CARD (24576 * MIB)

static struct {
    nvmlReturn_t (*init)(void);
    nvmlReturn_t (*shutdown)(void);
    nvmlReturn_t (*handle)(unsigned index, nvmlDevice_t *device);
    nvml_memory_info memory;
    nvml_memory_info_v2 memory_v2;
} nvml;
static nvmlDevice_t device;

static bool nvml_begin(unsigned card)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

    if (library == NULL)
        return false;
    nvml.init = (nvmlReturn_t(*)(void))(uintptr_t)dlsym(library, "nvmlInit_v2");
    nvml.shutdown = (nvmlReturn_t(*)(void))(uintptr_t)dlsym(library, "nvmlShutdown");
    nvml.handle = (nvmlReturn_t(*)(unsigned, nvmlDevice_t *))(uintptr_t)dlsym(
        library, "nvmlDeviceGetHandleByIndex_v2");
    nvml.memory = (nvml_memory_info)(uintptr_t)dlsym(library, "nvmlDeviceGetMemoryInfo");
    nvml.memory_v2 = (nvml_memory_info_v2)(uintptr_t)dlsym(library, "nvmlDeviceGetMemoryInfo_v2");
    return nvml.init() == NVML_SUCCESS && nvml.handle(card, &device) == NVML_SUCCESS;
}

/* Both structures, filled with garbage before; 0: they agree, and total = free + used. */
static int ask(nvmlMemory_t *m)
{
    nvmlMemory_v2_t m2;

    memset(m, 0xAA, sizeof(*m));
    memset(&m2, 0xAA, sizeof(m2));
    m2.version = VERSION_2;
    GIVES(nvml.memory(device, m), NVML_SUCCESS);
    GIVES(nvml.memory_v2(device, &m2), NVML_SUCCESS);
    SAME(m2.version, VERSION_2);
    SAME(m2.total, m->total);
    SAME(m2.free, m->free);
    SAME(m2.used, m->used);
    SAME(m2.reserved, 0);
    SAME(m->used + m->free, m->total);
    return 0;
}
#define ASK(m) CHECK(ask(m) == 0)

static int every_surface_tells_the_same(void)
{
    size_t free, total, whole;
    CUdeviceptr pointer;
    nvmlMemory_t m;

    OK(begin(0));
    CHECK(nvml_begin(0));
    for (unsigned i = 0; i < 2; i++) {
        OK(api.cuMemGetInfo_v2(&free, &total));
        OK(api.cuDeviceTotalMem_v2(&whole, 0));
        ASK(&m);
        SAME(total, 1024 * MIB);
        SAME(whole, total);
        SAME(m.total, total);
        SAME(m.free, free);
        SAME(m.used, i * 300 * MIB);
        OK(api.cuMemAlloc_v2(&pointer, 300 * MIB));
    }
    SAME(ledger_processes(self.ledger), 1);
    return 0;
}

static int a_process_that_only_asks_nvml_takes_no_slot_and_makes_no_file(void)
{
    nvmlMemory_t m;

    CHECK(nvml_begin(0));
    ASK(&m);
    SAME(m.total, 1024 * MIB);
    SAME(m.free, 1024 * MIB);
    SAME(m.used, 0);
    CHECK(access(self.ledger, F_OK) != 0);
    return 0;
}

/* A child with CUDA that holds 300 MiB, then is killed. */
static int what_others_hold_is_shown_and_what_the_dead_held_is_not(void)
{
    CUdeviceptr pointer;
    nvmlMemory_t m;
    int ready[2];
    char byte;
    pid_t pid;

    CHECK(pipe(ready) == 0);
    pid = fork();
    if (pid == 0) {
        byte = test_api_bind(&api, "dlsym") && begin(0) == CUDA_SUCCESS &&
               api.cuMemAlloc_v2(&pointer, 300 * MIB) == CUDA_SUCCESS;
        if (write(ready[1], &byte, 1) == 1)
            pause();
        _exit(1);
    }
    CHECK(read(ready[0], &byte, 1) == 1 && byte == 1);
    CHECK(nvml_begin(0));
    ASK(&m);
    SAME(m.total, 1024 * MIB);
    SAME(m.free, 724 * MIB);
    SAME(ledger_processes(self.ledger), 1);
    kill(pid, SIGKILL);
    CHECK(waitpid(pid, NULL, 0) == pid);
    ASK(&m);
    SAME(m.free, 1024 * MIB);
    return 0;
}

static int a_ledgers_ceiling_holds_for_who_asks_with_a_higher_one(void)
{
    CUdeviceptr pointer;
    nvmlMemory_t m;
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        if (!test_api_bind(&api, "dlsym") || begin(0) != CUDA_SUCCESS)
            _exit(1);
        _exit(api.cuMemAlloc_v2(&pointer, MIB) != CUDA_SUCCESS);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    setenv("VRAMCAP_MEMORY_MIB", "2048", 1);
    CHECK(nvml_begin(0));
    ASK(&m);
    SAME(m.total, 1024 * MIB);
    setenv("VRAMCAP_MEMORY_MIB", "512", 1);
    ASK(&m);
    SAME(m.total, 512 * MIB);
    return 0;
}

static int the_cards_own_figures(void)
{
    nvmlMemory_v2_t m2;
    nvmlMemory_t m;

    CHECK(nvml_begin(0));
    ASK(&m);
    SAME(m.total, CARD);
    m2.version = VERSION_2;
    GIVES(nvml.memory_v2(device, &m2), NVML_SUCCESS);
    SAME(m2.total, CARD);
    CHECK(access(self.ledger, F_OK) != 0);
    return 0;
}

static int with_cuda_the_cards_own_figures(void)
{
    CUdeviceptr pointer;
    nvmlMemory_t m;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    CHECK(nvml_begin(0));
    ASK(&m);
    SAME(m.total, CARD);
    CHECK(m.used >= 100 * MIB);
    return 0;
}

static int nothing_is_free_where_memory_is_denied(void)
{
    size_t free, total;
    nvmlMemory_t m;

    OK(begin(0));
    CHECK(nvml_begin(0));
    OK(api.cuMemGetInfo_v2(&free, &total));
    ASK(&m);
    SAME(free, 0);
    SAME(m.free, 0);
    SAME(m.total, total);
    return 0;
}

static bool all_bytes_are(const void *at, size_t size, unsigned char byte)
{
    const unsigned char *bytes = at;

    for (size_t i = 0; i < size; i++)
        if (bytes[i] != byte)
            return false;
    return true;
}

static int nvmls_own_errors_stand(void)
{
    nvmlMemory_v2_t m2;
    nvmlMemory_t m;

    CHECK(nvml_begin(0));
    memset(&m2, 0xAA, sizeof(m2));
    GIVES(nvml.memory_v2(device, &m2), 25); /* ARGUMENT_VERSION_MISMATCH */
    CHECK(all_bytes_are(&m2, sizeof(m2), 0xAA));
    m2.version = (unsigned)(sizeof(m2) | 1u << 24);
    GIVES(nvml.memory_v2(device, &m2), 25);
    GIVES(nvml.memory(device, NULL), 2);
    GIVES(nvml.memory_v2(device, NULL), 2);
    GIVES(nvml.memory(NULL, &m), 2);
    GIVES(nvml.shutdown(), 0);
    GIVES(nvml.memory(device, &m), 1);
    return 0;
}

static int a_device_has_the_ceiling_of_its_own_entry(void)
{
    nvmlMemory_t m;

    CHECK(nvml_begin(0));
    ASK(&m);
    SAME(m.total, 512 * MIB);
    CHECK(nvml.handle(1, &device) == NVML_SUCCESS);
    ASK(&m);
    SAME(m.total, 2048 * MIB);
    return 0;
}

static int a_uuid_finds_the_device_whatever_cuda_shows(void)
{
    unsigned char uuid[16];
    char text[48], setting[96];
    nvmlMemory_t m;

    sim_card_uuid(1, uuid);
    sim_uuid_text(uuid, text);
    snprintf(setting, sizeof(setting), "%s=768", text);
    setenv("VRAMCAP_MEMORY_MIB", setting, 1);
    CHECK(nvml_begin(1));
    ASK(&m);
    SAME(m.total, 768 * MIB);
    CHECK(nvml.handle(0, &device) == NVML_SUCCESS);
    ASK(&m);
    SAME(m.total, CARD);
    return 0;
}

static int cudas_device_1_is_the_ledgers_row_of_its_uuid(void)
{
    CUdeviceptr pointer;
    nvmlMemory_t m;

    OK(begin(0)); /* card 1 by CUDA_VISIBLE_DEVICES */
    OK(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    CHECK(nvml_begin(1));
    ASK(&m);
    SAME(m.total, 1024 * MIB);
    SAME(m.used, 100 * MIB);
    CHECK(nvml.handle(0, &device) == NVML_SUCCESS);
    ASK(&m);
    SAME(m.used, 0);
    return 0;
}

static int names_that_end_at_the_end_of_a_page_are_looked_up(void)
{
    static const char *const names[] = {"", "n", "nv", "nvm", "nvml", "c", "cu", "nx", "nvx"};
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(library != NULL && pages != MAP_FAILED);
    CHECK(mprotect(pages + 4096, 4096, PROT_NONE) == 0);
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t size = strlen(names[i]) + 1;

        memcpy(pages + 4096 - size, names[i], size);
        CHECK(dlsym(library, pages + 4096 - size) == NULL);
    }
    return 0;
}

static int half_an_nvml_shows_what_it_has(void)
{
    void *library = dlopen(getenv("HALF_NVML"), RTLD_NOW);
    nvmlMemory_t m;

    CHECK(library != NULL);
    nvml.memory = (nvml_memory_info)(uintptr_t)dlsym(library, "nvmlDeviceGetMemoryInfo");
    CHECK(dlsym(library, "nvmlDeviceGetMemoryInfo_v2") == NULL);
    GIVES(nvml.memory(NULL, &m), 0);
    SAME(m.total, 24ull << 30);
    SAME(m.free, 20ull << 30);
    return 0;
}

/* A driver that is lost to NVML for good, or a machine of which NVML has no memory figure: what CUDA says
 * and the ceiling do not depend on it. */
static int an_nvml_that_fails_is_passed_on_and_the_ceiling_holds(void)
{
    void *library = dlopen(getenv("HALF_NVML"), RTLD_NOW);
    unsigned from = 0, code = 0;
    size_t free_bytes, total;
    CUdeviceptr pointer;
    nvmlMemory_t m;

    CHECK(library != NULL && sscanf(getenv("HALF_NVML_FAILS"), "%u:%u", &from, &code) == 2);
    nvml.memory = (nvml_memory_info)(uintptr_t)dlsym(library, "nvmlDeviceGetMemoryInfo");
    OK(begin(0));
    for (unsigned i = 1; i < from + 3; i++) {
        memset(&m, 0xAA, sizeof(m));
        GIVES(nvml.memory(NULL, &m), i < from ? NVML_SUCCESS : code);
        CHECK(i < from || all_bytes_are(&m, sizeof(m), 0xAA));
    }
    OK(api.cuMemAlloc_v2(&pointer, 1000 * MIB));
    REFUSED(api.cuMemAlloc_v2(&pointer, 100 * MIB));
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    SAME(total, 1024 * MIB);
    SAME(free_bytes, 24 * MIB);
    return 0;
}

static int without_nvml_the_exported_name_says_so(void)
{
    nvml_memory_info memory =
        (nvml_memory_info)(uintptr_t)dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo");
    nvmlMemory_t m;

    CHECK(memory != NULL);
    GIVES(memory(NULL, &m), NVML_ERROR_LIBRARY_NOT_FOUND);
    return 0;
}

#define ALONE "SCENARIO_BY=none"

static const struct scenario scenarios[] = {
    SCENARIO(every_surface_tells_the_same, NULL),
    SCENARIO(a_process_that_only_asks_nvml_takes_no_slot_and_makes_no_file, ALONE),
    SCENARIO(what_others_hold_is_shown_and_what_the_dead_held_is_not, ALONE),
    SCENARIO(a_ledgers_ceiling_holds_for_who_asks_with_a_higher_one, ALONE),
    {"above_the_card_the_cards_own_figures", the_cards_own_figures,
     ALONE ";VRAMCAP_MEMORY_MIB=30000", false},
    {"at_the_cards_size_the_cards_own_figures", the_cards_own_figures,
     ALONE ";VRAMCAP_MEMORY_MIB=24576", false},
    {"in_audit_the_cards_own_figures", the_cards_own_figures, ALONE ";VRAMCAP_ENABLE=audit", false},
    {"passive_the_cards_own_figures", the_cards_own_figures, ALONE ";VRAMCAP_ENABLE=0", false},
    {"an_unusable_value_and_no_cuda_the_cards_own_figures", the_cards_own_figures,
     ALONE ";VRAMCAP_MEMORY_MIB=nonsense", false},
    {"an_ordinal_without_meaning_the_cards_own_figures", the_cards_own_figures,
     ALONE ";VRAMCAP_MEMORY_MIB=0=512;CUDA_VISIBLE_DEVICES=0", false},
    {"above_the_card_with_cuda", with_cuda_the_cards_own_figures, "VRAMCAP_MEMORY_MIB=30000",
     false},
    {"in_audit_with_cuda", with_cuda_the_cards_own_figures, "VRAMCAP_ENABLE=audit", false},
    SCENARIO(nothing_is_free_where_memory_is_denied, "VRAMCAP_MEMORY_MIB=nonsense"),
    SCENARIO(nvmls_own_errors_stand, ALONE),
    SCENARIO(a_device_has_the_ceiling_of_its_own_entry,
             ALONE ";VRAMCAP_SIM_CARDS=2x24576;VRAMCAP_MEMORY_MIB=0=512,1=2048"),
    SCENARIO(a_uuid_finds_the_device_whatever_cuda_shows,
             ALONE ";VRAMCAP_SIM_CARDS=2x24576;CUDA_VISIBLE_DEVICES=1"),
    SCENARIO(cudas_device_1_is_the_ledgers_row_of_its_uuid,
             "VRAMCAP_SIM_CARDS=2x24576;CUDA_VISIBLE_DEVICES=1"),
    SCENARIO(names_that_end_at_the_end_of_a_page_are_looked_up, ALONE),
    SCENARIO(half_an_nvml_shows_what_it_has, ALONE ";HALF_NVML=" TEST_HALF_NVML),
    SCENARIO(an_nvml_that_fails_is_passed_on_and_the_ceiling_holds,
             "HALF_NVML_FAILS=4:999;HALF_NVML=" TEST_HALF_NVML),
    {"an_nvml_without_memory_figures_is_passed_on_and_the_ceiling_holds",
     an_nvml_that_fails_is_passed_on_and_the_ceiling_holds,
     "HALF_NVML_FAILS=1:3;HALF_NVML=" TEST_HALF_NVML, false},
    SCENARIO(without_nvml_the_exported_name_says_so, ALONE),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, NULL, 0);
}
