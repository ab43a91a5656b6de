/*
 * Which entry names which device, and which of several ceilings holds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "enforcer/ceiling.h"
#include "enforcer/ledger.h"

#define MIB (UINT64_C(1) << 20)
#define TEXT_A "8932f937-d72c-4106-c12f-20bd9faed9f6"

static const uint8_t uuid_a[16] = {0x89, 0x32, 0xf9, 0x37, 0xd7, 0x2c, 0x41, 0x06,
                                   0xc1, 0x2f, 0x20, 0xbd, 0x9f, 0xae, 0xd9, 0xf6};
static const uint8_t uuid_b[16] = {0x89, 0x32, 0xf9, 0x38}; /* seven digits in common with a */

static struct vcap_entries list(const char *text, bool mps)
{
    struct vcap_entries entries;
    char why[400] = "";

    if (vcap_config_parse_entries(text, mps, &entries, why, sizeof(why)) != 0)
        fail_msg("'%s': %s", text, why);
    return entries;
}

static uint64_t match(const char *text, bool mps, uint32_t ordinal, const uint8_t uuid[16],
                      bool mig)
{
    struct vcap_entries entries = list(text, mps);

    return vcap_ceiling_match(&entries, ordinal, uuid, mig, VCAP_NO_LIMIT);
}

static void a_uuid_is_written_as_nvidia_smi_writes_it(void **state)
{
    char text[VCAP_UUID_TEXT_SIZE];

    (void)state;
    vcap_uuid_format(text, uuid_a, false);
    assert_string_equal(text, "GPU-" TEXT_A);
    vcap_uuid_format(text, uuid_a, true);
    assert_string_equal(text, "MIG-" TEXT_A);
}

static void a_bare_size_names_every_device(void **state)
{
    (void)state;
    assert_int_equal(match("4096", false, 0, uuid_a, false), 4096 * MIB);
    assert_int_equal(match("4096", false, 7, uuid_b, true), 4096 * MIB);
}

static void an_ordinal_names_the_device_in_its_place(void **state)
{
    (void)state;
    assert_int_equal(match("0=4096,1=2048", false, 1, uuid_a, false), 2048 * MIB);
    assert_int_equal(match("0=4096,1=2048", false, 0, uuid_a, false), 4096 * MIB);
    assert_true(match("0=4096,1=2048", false, 2, uuid_a, false) == VCAP_NO_LIMIT);
}

static void a_uuid_names_its_device_in_any_case(void **state)
{
    (void)state;
    assert_int_equal(match("GPU-" TEXT_A "=7", false, 3, uuid_a, false), 7 * MIB);
    assert_int_equal(match("GPU-8932F937-D72C-4106-C12F-20BD9FAED9F6=7", false, 3, uuid_a, false),
                     7 * MIB);
    assert_true(match("GPU-" TEXT_A "=7", false, 3, uuid_b, false) == VCAP_NO_LIMIT);
}

static void a_mig_entry_names_mig_devices_only(void **state)
{
    (void)state;
    assert_int_equal(match("MIG-" TEXT_A "=7", false, 0, uuid_a, true), 7 * MIB);
    assert_true(match("MIG-" TEXT_A "=7", false, 0, uuid_a, false) == VCAP_NO_LIMIT);
    assert_true(match("GPU-" TEXT_A "=7", false, 0, uuid_a, true) == VCAP_NO_LIMIT);
}

static void a_prefix_names_every_device_that_begins_with_it(void **state)
{
    (void)state;
    assert_int_equal(match("GPU-8932F937=7M", true, 0, uuid_a, false), 7 * MIB);
    assert_true(match("GPU-8932F937=7M", true, 0, uuid_b, false) == VCAP_NO_LIMIT);
    assert_int_equal(match("GPU-8932f93=7M", true, 0, uuid_b, false), 7 * MIB);
    assert_true(match("GPU-9=7M", true, 0, uuid_a, false) == VCAP_NO_LIMIT);
}

static void the_lowest_of_several_entries_holds(void **state)
{
    (void)state;
    assert_int_equal(match("0=3,0=1,0=2", false, 0, uuid_a, false), 1 * MIB);
    assert_int_equal(match("0=3,GPU-" TEXT_A "=2", false, 0, uuid_a, false), 2 * MIB);
    assert_int_equal(match("GPU-" TEXT_A "=2,0=3", false, 0, uuid_a, false), 2 * MIB);
    assert_int_equal(match("0=3,0=0", false, 0, uuid_a, false), 0);
}

static void no_entry_gives_the_value_for_none(void **state)
{
    struct vcap_entries none = {0};

    (void)state;
    assert_int_equal(vcap_ceiling_match(&none, 0, uuid_a, false, 42), 42);
}

static struct vcap_config config_of(const char *memory, const char *mps)
{
    struct vcap_config config;

    memset(&config, 0, sizeof(config));
    config.memory_set = memory != NULL;
    config.mps_set = mps != NULL;
    if (memory != NULL && memory[0] != '\0')
        config.memory = list(memory, false);
    if (mps != NULL && mps[0] != '\0')
        config.mps = list(mps, true);
    return config;
}

static void check_effective(const char *memory, const char *mps, uint64_t bytes,
                            enum vcap_lf_source source)
{
    struct vcap_config config = config_of(memory, mps);
    struct vcap_ceiling got = vcap_ceiling_effective(&config, 0, uuid_a, false);

    if (got.bytes != bytes || got.source != source)
        fail_msg("memory %s, mps %s: %llu bytes from %d; expected %llu from %d", memory, mps,
                 (unsigned long long)got.bytes, (int)got.source, (unsigned long long)bytes,
                 (int)source);
}

static void the_lower_source_holds_and_is_named(void **state)
{
    (void)state;
    check_effective("4096", NULL, 4096 * MIB, VCAP_LF_SOURCE_ENV);
    check_effective(NULL, "0=1000M", 1000 * MIB, VCAP_LF_SOURCE_MPS);
    check_effective("4096", "0=1000M", 1000 * MIB, VCAP_LF_SOURCE_MPS);
    check_effective("500", "0=1000M", 500 * MIB, VCAP_LF_SOURCE_ENV);
    check_effective("1000", "0=1000M", 1000 * MIB, VCAP_LF_SOURCE_ENV);
    check_effective("0", "0=1000M", 0, VCAP_LF_SOURCE_ENV);
    check_effective("4096", "0=0M", 0, VCAP_LF_SOURCE_MPS);
    check_effective("4096", "1=1000M", 4096 * MIB, VCAP_LF_SOURCE_ENV);
    check_effective("1=4096", "0=1000M", 1000 * MIB, VCAP_LF_SOURCE_MPS);
}

static void no_source_is_no_ceiling(void **state)
{
    (void)state;
    check_effective(NULL, NULL, VCAP_NO_LIMIT, VCAP_LF_SOURCE_NONE);
    check_effective("1=4096", "1=1G", VCAP_NO_LIMIT, VCAP_LF_SOURCE_NONE);
}

static void what_an_unset_list_holds_says_nothing(void **state)
{
    struct vcap_config config;

    (void)state;
    memset(&config, 0xa5, sizeof(config));
    config.memory_set = config.host_memory_set = config.mps_set = config.toolkit_set = false;
    assert_true(vcap_ceiling_effective(&config, 0, uuid_a, false).bytes == VCAP_NO_LIMIT);
    config.mps_set = true;
    config.mps = list("0=5M", true);
    assert_true(vcap_ceiling_effective(&config, 0, uuid_a, false).bytes == 5 * MIB);
}

static void a_list_that_did_not_parse_is_a_ceiling_of_nothing(void **state)
{
    (void)state;
    check_effective("", NULL, 0, VCAP_LF_SOURCE_ENV);
    check_effective("", "0=1G", 0, VCAP_LF_SOURCE_ENV);
    check_effective("4096", "", 0, VCAP_LF_SOURCE_MPS);
}

/* The device that names_invisible complains about, -1 for none; two devices are visible. */
static int invisible(const char *text, uint32_t visible)
{
    static const bool mig[2] = {false, false};
    struct vcap_entries entries = list(text, true);
    uint8_t uuids[2][16];
    uint32_t which = UINT32_MAX;

    memcpy(uuids[0], uuid_a, 16);
    memcpy(uuids[1], uuid_b, 16);
    assert_true(vcap_ceiling_mps_names_invisible(&entries, visible, (const uint8_t(*)[16])uuids,
                                                 mig, NULL) ==
                vcap_ceiling_mps_names_invisible(&entries, visible, (const uint8_t(*)[16])uuids,
                                                 mig, &which));
    return which == UINT32_MAX ? -1 : (int)which;
}

static void mps_entries_for_gpus_out_of_sight_are_found(void **state)
{
    (void)state;
    assert_int_equal(invisible("0=2G", 1), -1);
    assert_int_equal(invisible("0=2G,1=4G", 1), 1);
    assert_int_equal(invisible("0=2G,1=4G", 2), -1);
    assert_int_equal(invisible("0=2G,2=4G", 2), 1);
    assert_int_equal(invisible("GPU-" TEXT_A "=1G", 1), -1);
    assert_int_equal(invisible("GPU-8932f938=1G", 1), 0);
    assert_int_equal(invisible("GPU-8932f938=1G", 2), -1);
    assert_int_equal(invisible("MIG-" TEXT_A "=1G", 2), 0);
    assert_int_equal(invisible("GPU-8932f93=1G", 1), -1);
    assert_int_equal(invisible("GPU-8932f93=1G", 2), 0); /* ambiguous */
    assert_int_equal(invisible("0=1G", 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_uuid_is_written_as_nvidia_smi_writes_it),
        cmocka_unit_test(a_bare_size_names_every_device),
        cmocka_unit_test(an_ordinal_names_the_device_in_its_place),
        cmocka_unit_test(a_uuid_names_its_device_in_any_case),
        cmocka_unit_test(a_mig_entry_names_mig_devices_only),
        cmocka_unit_test(a_prefix_names_every_device_that_begins_with_it),
        cmocka_unit_test(the_lowest_of_several_entries_holds),
        cmocka_unit_test(no_entry_gives_the_value_for_none),
        cmocka_unit_test(the_lower_source_holds_and_is_named),
        cmocka_unit_test(no_source_is_no_ceiling),
        cmocka_unit_test(what_an_unset_list_holds_says_nothing),
        cmocka_unit_test(a_list_that_did_not_parse_is_a_ceiling_of_nothing),
        cmocka_unit_test(mps_entries_for_gpus_out_of_sight_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
