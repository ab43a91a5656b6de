/*
 * cuGetProcAddress, both contracts: the driver's choice, replaced by the hook of that very variant.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "tests/hook/scenario.h"

static const char *const replaced[] = {
#define HOOK(base, since, suffix, rule) #base #suffix,
#define HOOK_STREAM(base, since, suffix, rule) #base #suffix, #base #suffix "_ptsz",
#define GAP(base, since, suffix, lost) #base #suffix,
#define GAP_STREAM(base, since, suffix, lost) #base #suffix, #base #suffix "_ptsz",
#include "preload/cuda_api.def"
};

static bool is_replaced(const char *symbol)
{
    for (size_t i = 0; i < sizeof(replaced) / sizeof(replaced[0]); i++)
        if (strcmp(replaced[i], symbol) == 0)
            return true;
    return false;
}

static PFN_cuGetProcAddress_v11030 get_v1;
static PFN_cuGetProcAddress_v12000 get_v2;

static bool find_resolvers(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);

    if (driver == NULL)
        return false;
    get_v1 = (PFN_cuGetProcAddress_v11030)(uintptr_t)dlsym(driver, "cuGetProcAddress");
    get_v2 = (PFN_cuGetProcAddress_v12000)(uintptr_t)dlsym(driver, "cuGetProcAddress_v2");
    return true;
}

static bool is_ours(const void *address)
{
    Dl_info where;

    return address != NULL && dladdr(address, &where) != 0 &&
           strstr(where.dli_fname, "libvramcap.so") != NULL;
}

/* ---- the replay: every request of libcudart 13.0, and more, with and without the library ---- */

struct answer {
    char request[128];
    int result, status;
    char module[16];  /* "driver", "vramcap", "none", "other" */
    char symbol[128]; /* that stands at the address */
    long offset;      /* in the module */
};

static void put(FILE *file, const char *request, int result, int status, void *address)
{
    const char *module = "none", *symbol = "-";
    long offset = 0;
    Dl_info where;

    if (address != NULL && dladdr(address, &where) != 0) {
        module = strstr(where.dli_fname, "libvramcap.so") != NULL ? "vramcap"
                 : strstr(where.dli_fname, "libcuda.so") != NULL  ? "driver"
                                                                  : "other";
        symbol = where.dli_saddr == address && where.dli_sname != NULL ? where.dli_sname : "-";
        offset = (long)((char *)address - (char *)where.dli_fbase);
    }
    fprintf(file, "%s %d %d %s %s %ld\n", request, result, status, module, symbol, offset);
}

/* fully: through both resolvers, with and without a status; else with a status only, where there
 * can be one. */
static void ask(FILE *file, const char *name, int version, unsigned long long flags, bool fully)
{
    char request[128];
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)77;
    void *address;
    int result;

    if (get_v1 != NULL && (fully || get_v2 == NULL)) {
        address = (void *)0x77;
        result = (int)get_v1(name, &address, version, flags);
        snprintf(request, sizeof(request), "v1/%s/%d/%llu", name, version, flags);
        put(file, request, result, 0, address == (void *)0x77 ? NULL : address);
    }
    if (get_v2 == NULL)
        return;
    if (fully) {
        address = (void *)0x77;
        result = (int)get_v2(name, &address, version, flags, NULL);
        snprintf(request, sizeof(request), "v2/%s/%d/%llu", name, version, flags);
        put(file, request, result, 0, address == (void *)0x77 ? NULL : address);
    }
    address = (void *)0x77;
    result = (int)get_v2(name, &address, version, flags, &status);
    snprintf(request, sizeof(request), "v2s/%s/%d/%llu", name, version, flags);
    put(file, request, result, (int)status, address == (void *)0x77 ? NULL : address);
}

static int replay(void)
{
    static const int versions[] = {2000, 11000, 12010, 12080, 13000};
    FILE *requests = fopen(TEST_REQUESTS, "r"), *file = fopen(getenv("REPLAY"), "w");
    char line[256], name[128], symbol[128];
    unsigned long long flags;
    unsigned count = 0;
    int version;

    CHECK(find_resolvers() && requests != NULL && file != NULL);
    ask(file, "", 0, 0, true); /* libcudart's very first */
    ask(file, "cuNoSuchThing", 13000, 0, true);
    ask(file, "cuMemAlloc", 1000, 0, true);
    ask(file, "cuMemAlloc", 13000, 3, true);
    ask(file, "cuMemAlloc", 13000, 64, true);
    ask(file, "cuMemAlloc_v2", 13000, 0, true); /* a symbol is no base name */
    while (fgets(line, sizeof(line), requests) != NULL) {
        CHECK(sscanf(line, "%127s %d %llu %127s", name, &version, &flags, symbol) == 4);
        ask(file, name, version, flags, true);
        ask(file, name, version, flags ^ 2, false);
        for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++)
            ask(file, name, versions[i], flags, false);
        count++;
    }
    SAME(count, 439);
    fclose(requests);
    CHECK(fclose(file) == 0);
    return 0;
}

static int the_requests_get_their_symbols(void)
{
    FILE *requests = fopen(TEST_REQUESTS, "r");
    char line[256], name[128], symbol[128];
    unsigned long long flags;
    unsigned hooked = 0;
    int version;

    CHECK(find_resolvers() && requests != NULL);
    while (fgets(line, sizeof(line), requests) != NULL) {
        void *address = NULL;
        Dl_info where;

        CHECK(sscanf(line, "%127s %d %llu %127s", name, &version, &flags, symbol) == 4);
        OK(get_v2(name, &address, version, flags, NULL));
        CHECK(dladdr(address, &where) != 0 && where.dli_sname != NULL);
        if (strcmp(where.dli_sname, symbol) != 0 || is_ours(address) != is_replaced(symbol)) {
            fprintf(stderr, "%s %d %llu gave %s of %s\n", name, version, flags, where.dli_sname,
                    where.dli_fname);
            return 1;
        }
        hooked += is_ours(address);
    }
    fclose(requests);
    CHECK(hooked > 30);
    return 0;
}

static bool next(FILE *file, struct answer *a)
{
    char line[512];

    return fgets(line, sizeof(line), file) != NULL &&
           sscanf(line, "%127s %d %d %15s %127s %ld", a->request, &a->result, &a->status, a->module,
                  a->symbol, &a->offset) == 6;
}

/* named: the bare driver's answers whose addresses have names; bare: the same or, with
 * VRAMCAP_SIM_ALIAS, those in which no address is an export's. */
static unsigned compare(FILE *named, FILE *bare, FILE *hooked)
{
    struct answer n = {.result = 0}, b = n, h = n;
    unsigned wrong = 0, count = 0;

    while (next(named, &n)) {
        bool ours = is_replaced(n.symbol);

        count++;
        if (!next(bare, &b) || !next(hooked, &h) || strcmp(b.request, h.request) != 0 ||
            b.result != h.result || b.status != h.status ||
            strcmp(h.module, ours ? "vramcap" : b.module) != 0 ||
            (ours ? strcmp(h.symbol, n.symbol) != 0 : h.offset != b.offset)) {
            fprintf(stderr, "%s: driver %s %s %d/%d, with us %s %s %d/%d\n", n.request, b.module,
                    n.symbol, b.result, b.status, h.module, h.symbol, h.result, h.status);
            if (++wrong == 10)
                return wrong;
        }
    }
    return wrong;
}

static FILE *replayed(const struct fixture *f, const char *name, const char *driver,
                      const char *more)
{
    static struct child_output output;
    char environment[1024];

    snprintf(environment, sizeof(environment), "SCENARIO_BY=none;REPLAY=@/%s;LD_LIBRARY_PATH=%s;%s",
             name, driver, more);
    scenario_run(f, "replay", environment, &output);
    if (output.status != 0)
        fprintf(stderr, "%s", output.err);
    assert_int_equal(output.status, 0);
    return fopen(fixture_path(f, name), "r");
}

static void replay_against(const struct fixture *f, const char *driver, const char *more,
                           const char *alias)
{
    char with_alias[256];
    FILE *file[3];
    char out[256];

    snprintf(out, sizeof(out), "LD_PRELOAD;%s", more);
    file[0] = replayed(f, "named", driver, out);
    snprintf(out, sizeof(out), "LD_PRELOAD;%s%s", more, alias);
    file[1] = replayed(f, "bare", driver, out);
    snprintf(with_alias, sizeof(with_alias), "VRAMCAP_X=1;%s%s", more, alias);
    file[2] = replayed(f, "hooked", driver, with_alias);
    for (int i = 0; i < 3; i++)
        assert_non_null(file[i]);
    assert_int_equal(compare(file[0], file[1], file[2]), 0);
    for (int i = 0; i < 3; i++)
        fclose(file[i]);
}

static void every_request_is_answered_as_by_the_driver(void **state)
{
    replay_against(*state, TEST_SIM, "", "");
}

static void older_driver_versions_are_followed(void **state)
{
    replay_against(*state, TEST_SIM, "VRAMCAP_SIM_VERSION=12010;", "");
    replay_against(*state, TEST_SIM, "VRAMCAP_SIM_VERSION=11040;", "");
}

static void old_drivers_are_followed(void **state)
{
    replay_against(*state, TEST_SIM "/variants/v11_5", "", ""); /* has the first resolver only */
    replay_against(*state, TEST_SIM "/variants/v11_0", "", ""); /* has none */
}

static void a_driver_without_some_symbols_is_followed(void **state)
{
    replay_against(*state, TEST_SIM,
                   "VRAMCAP_SIM_HIDE=cuMemAllocAsync,cuCtxCreate_v3,cuMemFreeAsync_ptsz;", "");
}

static void addresses_that_are_no_exports_are_known_by_name_and_version(void **state)
{
    replay_against(*state, TEST_SIM, "", "VRAMCAP_SIM_ALIAS=1;");
}

/* ---- variants ---- */

#define GET(base, version, flags) get_address(base, version, flags)

static void *get_address(const char *base, int version, cuuint64_t flags)
{
    void *address = NULL;

    return get_v2(base, &address, version, flags, NULL) == CUDA_SUCCESS ? address : NULL;
}

static bool is(const void *address, const char *symbol)
{
    Dl_info where;

    return is_ours(address) && dladdr(address, &where) != 0 && where.dli_sname != NULL &&
           strcmp(where.dli_sname, symbol) == 0;
}

static int version_and_flags_choose_the_variant(void)
{
    CHECK(find_resolvers());
    CHECK(is(GET("cuMemAlloc", 2000, 0), "cuMemAlloc"));
    CHECK(is(GET("cuMemAlloc", 3019, 0), "cuMemAlloc"));
    CHECK(is(GET("cuMemAlloc", 3020, 0), "cuMemAlloc_v2"));
    CHECK(is(GET("cuMemAlloc", 13000, 2), "cuMemAlloc_v2"));
    CHECK(is(GET("cuCtxCreate", 3020, 0), "cuCtxCreate_v2"));
    CHECK(is(GET("cuCtxCreate", 12010, 0), "cuCtxCreate_v3"));
    CHECK(is(GET("cuCtxCreate", 12080, 0), "cuCtxCreate_v4"));
    CHECK(is(GET("cuDevicePrimaryCtxRelease", 7000, 0), "cuDevicePrimaryCtxRelease"));
    CHECK(is(GET("cuDevicePrimaryCtxReset", 11000, 0), "cuDevicePrimaryCtxReset_v2"));
    CHECK(is(GET("cuMemFreeAsync", 11020, 0), "cuMemFreeAsync"));
    CHECK(is(GET("cuMemFreeAsync", 11020, 1), "cuMemFreeAsync"));
    CHECK(is(GET("cuMemFreeAsync", 11020, 2), "cuMemFreeAsync_ptsz"));
    CHECK(!is_ours(GET("cuMemPrefetchAsync", 12000, 0)));
    CHECK(GET("cuMemPrefetchAsync", 12000, 0) != GET("cuMemPrefetchAsync", 12020, 0));
    return 0;
}

static int going_on_through_the_answer_stays_hooked(void)
{
    CUdriverProcAddressQueryResult status;
    PFN_cuMemAlloc_v3020 allocate;
    CUdeviceptr pointer;
    void *address;

    CHECK(find_resolvers());
    CHECK(is(GET("cuGetProcAddress", 11030, 0), "cuGetProcAddress"));
    CHECK(is(GET("cuGetProcAddress", 12000, 0), "cuGetProcAddress_v2"));
    for (int i = 0; i < 3; i++) {
        get_v1 = (PFN_cuGetProcAddress_v11030)(uintptr_t)GET("cuGetProcAddress", 11030, 0);
        get_v2 = (PFN_cuGetProcAddress_v12000)(uintptr_t)GET("cuGetProcAddress", 13000, 2);
        CHECK(get_v1 != NULL && get_v2 != NULL);
    }
    OK(get_v1("cuMemAlloc", &address, 11030, 0));
    CHECK(is(address, "cuMemAlloc_v2"));
    OK(get_v2("cuMemAlloc", &address, 12000, 0, &status));
    CHECK(is(address, "cuMemAlloc_v2") && status == CU_GET_PROC_ADDRESS_SUCCESS);
    allocate = (PFN_cuMemAlloc_v3020)(uintptr_t)address;
    OK(begin(0));
    OK(allocate(&pointer, 600 * MIB));
    SAME(charged(0), 600 * MIB);
    REFUSED(allocate(&pointer, 600 * MIB));
    return 0;
}

static int null_arguments_are_the_drivers(void)
{
    void *address = (void *)0x77;

    CHECK(find_resolvers());
    GIVES(get_v2(NULL, &address, 13000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    GIVES(get_v2("cuMemAlloc", NULL, 13000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    GIVES(get_v1(NULL, &address, 13000, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(get_v1("cuMemAlloc", NULL, 13000, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK(address == (void *)0x77);
    return 0;
}

static int a_newer_abi_is_the_drivers_own(void)
{
    CHECK(find_resolvers());
    OK(begin(0));
    CHECK(GET("cuMemAlloc", 13090, 0) != NULL && !is_ours(GET("cuMemAlloc", 13090, 0)));
    CHECK(GET("cuCtxCreate", 13090, 0) != NULL && !is_ours(GET("cuCtxCreate", 13090, 0)));
    CHECK(is(GET("cuMemAlloc", 13000, 0), "cuMemAlloc_v2"));
    CHECK(GET("cuMemAllocElsewhere", 13090, 0) != NULL); /* of a family that takes memory */
    CHECK(GET("cuMemAlloc", 13090, 0) != NULL);          /* again */
    CHECK(is(GET("cuMemAllocPitch", 13020, 0),
             "cuMemAllocPitch_v2")); /* its address is known all the same */
    return 0;
}

static int the_first_call_of_all_is_refused_if_too_large(void)
{
    PFN_cuInit_v2000 init;
    PFN_cuCtxCreate_v3020 create;
    PFN_cuMemAlloc_v3020 allocate;
    CUdeviceptr pointer;
    CUcontext context;

    CHECK(find_resolvers());
    init = (PFN_cuInit_v2000)(uintptr_t)GET("cuInit", 2000, 0);
    create = (PFN_cuCtxCreate_v3020)(uintptr_t)GET("cuCtxCreate", 3020, 0);
    allocate = (PFN_cuMemAlloc_v3020)(uintptr_t)GET("cuMemAlloc", 3020, 0);
    OK(init(0));
    OK(create(&context, 0, 0));
    REFUSED(allocate(&pointer, 2048 * MIB));
    OK(allocate(&pointer, 1024 * MIB));
    return 0;
}

static void each_newer_name_is_said_once(void **state)
{
    const struct fixture *f = *state;
    static struct child_output output;

    scenario_run(f, "a_newer_abi_is_the_drivers_own", NULL, &output);
    assert_int_equal(output.status, 0);
    assert_int_equal(count_lines(output.err, "newer than this version of vramcap knows"), 3);
    assert_int_equal(count_lines(output.err, "cuMemAlloc of CUDA 13.9"), 1);
    assert_int_equal(count_lines(output.err, "cuCtxCreate of CUDA 13.9"), 1);
    assert_int_equal(count_lines(output.err, "cuMemAllocElsewhere of CUDA 13.9"), 1);
    assert_int_equal(ledger_events(f->ledger, VCAP_LF_EVENT_GAP), 3);
}

/* Names as nobody counts them: every line costs, and the ring is short. */
static int a_flood_of_newer_names(void)
{
    char name[32];

    CHECK(find_resolvers());
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "cuMemAllocElsewhere%d", i);
        CHECK(GET(name, 13090, 0) != NULL);
    }
    return begin(0) == CUDA_SUCCESS ? 0 : 1;
}

static void newer_names_are_said_up_to_a_bound(void **state)
{
    static struct child_output output;
    unsigned lines;

    scenario_run(*state, "a_flood_of_newer_names", "VRAMCAP_SIM_NEWER=1", &output);
    assert_int_equal(output.status, 0);
    lines = count_lines(output.err, "newer than this version of vramcap knows");
    assert_in_range(lines, 2, 64);
}

/* cuda-bindings 13.5 asks a 13.0 driver so for every name that it knows. */
static int newer_versions_of_what_costs_nothing(void)
{
    CHECK(find_resolvers());
    OK(begin(0));
    CHECK(GET("cuMulticastBindMem", 13060, 0) != NULL);
    CHECK(GET("cuMemGetAllocationGranularity", 13060, 0) != NULL);
    return 0;
}

static void a_newer_version_of_what_costs_nothing_is_not_mentioned(void **state)
{
    static struct child_output output;

    scenario_run(*state, "newer_versions_of_what_costs_nothing", NULL, &output);
    assert_int_equal(output.status, 0);
    assert_int_equal(count_lines(output.err, "newer than this version of vramcap knows"), 0);
}

static const struct scenario scenarios[] = {
    HIDDEN(replay, NULL),
    HIDDEN(newer_versions_of_what_costs_nothing, NULL),
    SCENARIO(the_requests_get_their_symbols, "SCENARIO_BY=none"),
    SCENARIO(version_and_flags_choose_the_variant, "SCENARIO_BY=none"),
    {"version_and_flags_choose_the_variant_by_name", version_and_flags_choose_the_variant,
     "SCENARIO_BY=none;VRAMCAP_SIM_ALIAS=1", false},
    SCENARIO(going_on_through_the_answer_stays_hooked, NULL),
    SCENARIO(null_arguments_are_the_drivers, "SCENARIO_BY=none"),
    HIDDEN(a_flood_of_newer_names, NULL),
    SCENARIO(a_newer_abi_is_the_drivers_own, "VRAMCAP_SIM_NEWER=1"),
    SCENARIO(the_first_call_of_all_is_refused_if_too_large, "SCENARIO_BY=none"),
    {"the_first_call_of_all_is_refused_by_name", the_first_call_of_all_is_refused_if_too_large,
     "SCENARIO_BY=none;VRAMCAP_SIM_ALIAS=1", false},
};

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_request_is_answered_as_by_the_driver),
    cmocka_unit_test(older_driver_versions_are_followed),
    cmocka_unit_test(old_drivers_are_followed),
    cmocka_unit_test(a_driver_without_some_symbols_is_followed),
    cmocka_unit_test(addresses_that_are_no_exports_are_known_by_name_and_version),
    cmocka_unit_test(each_newer_name_is_said_once),
    cmocka_unit_test(newer_names_are_said_up_to_a_bound),
    cmocka_unit_test(a_newer_version_of_what_costs_nothing_is_not_mentioned),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
