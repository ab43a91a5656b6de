/*
 * Options that are plain numbers: the compute ceiling, and the limit of NVIDIA's container toolkit.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "enforcer/config.h"

#define MIB (UINT64_C(1) << 20)

static struct vcap_config config;
static char why[512];

struct pair {
    const char *name, *value;
};

static const char *lookup(const char *name, void *arg)
{
    const struct pair *pair = arg;

    return strcmp(name, pair->name) == 0 ? pair->value : NULL;
}

static int read_one(const char *name, const char *value)
{
    struct pair pair = {name, value};

    why[0] = '\0';
    return vcap_config_read(&config, lookup, &pair, why, sizeof(why));
}

static void unset_and_empty_are_no_ceiling(void **state)
{
    (void)state;
    assert_int_equal(read_one("VRAMCAP_COMPUTE_PERCENT", NULL), 0);
    assert_int_equal(config.compute_percent, 0);
    assert_false(config.toolkit_set);
    assert_int_equal(read_one("VRAMCAP_COMPUTE_PERCENT", " "), 0);
    assert_int_equal(config.compute_percent, 0);
    assert_int_equal(read_one("NVIDIA_GPU_MEMORY_LIMIT", ""), 0);
    assert_false(config.toolkit_set);
}

static void a_percentage_is_a_whole_number_from_1_to_100(void **state)
{
    static const char *const bad[] = {"0",   "101", "-1",   "+5",  "50%",  "50.0",
                                      "5e1", "x",   "0x10", "5 5", "“50”", "18446744073709551617"};

    (void)state;
    assert_int_equal(read_one("VRAMCAP_COMPUTE_PERCENT", "1"), 0);
    assert_int_equal(config.compute_percent, 1);
    assert_int_equal(read_one("VRAMCAP_COMPUTE_PERCENT", " 0100\n"), 0);
    assert_int_equal(config.compute_percent, 100);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(read_one("VRAMCAP_COMPUTE_PERCENT", bad[i]), -EINVAL);
        assert_int_equal(config.compute_percent, 1); /* the strictest */
        assert_non_null(strstr(why, "from 1 to 100"));
    }
}

static void the_toolkits_limit_is_mib_without_a_unit(void **state)
{
    static const char *const bad[] = {"4096M", "4G", "-1", "1.5", "0=4096", "x", "1e3"};

    (void)state;
    assert_int_equal(read_one("NVIDIA_GPU_MEMORY_LIMIT", "4096"), 0);
    assert_true(config.toolkit_set);
    assert_int_equal(config.toolkit_bytes, 4096 * MIB);
    assert_int_equal(read_one("NVIDIA_GPU_MEMORY_LIMIT", "0"), 0);
    assert_int_equal(config.toolkit_bytes, 0);
    assert_int_equal(read_one("NVIDIA_GPU_MEMORY_LIMIT", "8388607"), 0);
    assert_int_equal(config.toolkit_bytes, 8388607 * MIB);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(read_one("NVIDIA_GPU_MEMORY_LIMIT", bad[i]), -EINVAL);
        assert_true(config.toolkit_set);
        assert_int_equal(config.toolkit_bytes, 0);
        assert_non_null(strstr(why, "NVIDIA_GPU_MEMORY_LIMIT"));
    }
    assert_int_equal(read_one("NVIDIA_GPU_MEMORY_LIMIT", "17179869184"), -EOVERFLOW);
    assert_int_equal(config.toolkit_bytes, 0);
    assert_int_equal(read_one("NVIDIA_GPU_MEMORY_LIMIT", "99999999999999999999"), -EOVERFLOW);
    assert_int_equal(config.toolkit_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unset_and_empty_are_no_ceiling),
        cmocka_unit_test(a_percentage_is_a_whole_number_from_1_to_100),
        cmocka_unit_test(the_toolkits_limit_is_mib_without_a_unit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
