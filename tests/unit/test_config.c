/*
 * The configuration: the size grammar, ceiling lists in both forms, and the options as a whole.  No
 * case may come out wider than it was written.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "enforcer/config.h"

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)
#define GPU_A "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
#define MIG_A "MIG-41b36352-b5a1-5c4a-a1a0-2a9f53b6f1b9"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define UNTOUCHED UINT64_C(0x5555)

struct size_case {
    const char *text;
    size_t length; /* 0: strlen */
    int rc;
    uint64_t bytes;
};

static const struct size_case size_cases[] = {
    /* plain, zero, leading zeros */
    {"4096", 0, 0, 4096 * MIB},
    {"0", 0, 0, 0},
    {"0m", 0, 0, 0},
    {"000", 0, 0, 0},
    {"08G", 0, 0, 8 * GIB},
    {"010", 0, 0, 10 * MIB},
    {"0000000000000000000000000000000000004G", 0, 0, 4 * GIB},
    {"1", 0, 0, MIB},
    /* every unit, and any case */
    {"3K", 0, 0, 3 * KIB},
    {"3M", 0, 0, 3 * MIB},
    {"3G", 0, 0, 3 * GIB},
    {"3T", 0, 0, 3 * TIB},
    {"3Ki", 0, 0, 3 * KIB},
    {"3Mi", 0, 0, 3 * MIB},
    {"4Gi", 0, 0, 4 * GIB},
    {"3Ti", 0, 0, 3 * TIB},
    {"3KB", 0, 0, 3 * KIB},
    {"3MB", 0, 0, 3 * MIB},
    {"4GB", 0, 0, 4 * GIB},
    {"3TB", 0, 0, 3 * TIB},
    {"3KiB", 0, 0, 3 * KIB},
    {"3MiB", 0, 0, 3 * MIB},
    {"4GiB", 0, 0, 4 * GIB},
    {"3TiB", 0, 0, 3 * TIB},
    {"4gib", 0, 0, 4 * GIB},
    {"4gI", 0, 0, 4 * GIB},
    {"4GIB", 0, 0, 4 * GIB},
    {"1g", 0, 0, GIB},
    /* blanks around */
    {" 4G ", 0, 0, 4 * GIB},
    {"\t4096\r\n", 0, 0, 4096 * MIB},
    /* what is no number */
    {"", 0, -EINVAL, 0},
    {" ", 0, -EINVAL, 0},
    {"-1", 0, -EINVAL, 0},
    {"+1", 0, -EINVAL, 0},
    {"- 1", 0, -EINVAL, 0},
    {"1.5G", 0, -EINVAL, 0},
    {"1,5", 0, -EINVAL, 0},
    {"1_000", 0, -EINVAL, 0},
    {"1'000", 0, -EINVAL, 0},
    {"1 000", 0, -EINVAL, 0},
    {"1e9", 0, -EINVAL, 0},
    {"0x10", 0, -EINVAL, 0},
    {"50%", 0, -EINVAL, 0},
    {"inf", 0, -EINVAL, 0},
    {"unlimited", 0, -EINVAL, 0},
    {"none", 0, -EINVAL, 0},
    {"auto", 0, -EINVAL, 0},
    {"G", 0, -EINVAL, 0},
    {"GiB", 0, -EINVAL, 0},
    /* what is no unit */
    {"4 G", 0, -EINVAL, 0},
    {"4B", 0, -EINVAL, 0},
    {"4i", 0, -EINVAL, 0},
    {"4iB", 0, -EINVAL, 0},
    {"4Gib ytes", 0, -EINVAL, 0},
    {"4GiBs", 0, -EINVAL, 0},
    {"4Gb/s", 0, -EINVAL, 0},
    {"4GBi", 0, -EINVAL, 0},
    {"4GG", 0, -EINVAL, 0},
    {"4MiG", 0, -EINVAL, 0},
    {"4P", 0, -EINVAL, 0},
    {"4x", 0, -EINVAL, 0},
    {"4\x0b", 0, -EINVAL, 0},
    {"4\x07", 0, -EINVAL, 0},
    {"4G;", 0, -EINVAL, 0},
    /* quotes, straight and typographic */
    {"\"4096\"", 0, -EINVAL, 0},
    {"'4096'", 0, -EINVAL, 0},
    {"4096\"", 0, -EINVAL, 0},
    {"\xe2\x80\x9c"
     "4096\xe2\x80\x9d",
     0, -EINVAL, 0},
    {"4096\xe2\x80\x9d", 0, -EINVAL, 0},
    /* other digits, other blanks, NUL */
    {"\xd9\xa4", 0, -EINVAL, 0},
    {"\xc2\xa0"
     "4096",
     0, -EINVAL, 0},
    {"\xef\xbc\x94", 0, -EINVAL, 0},
    {"4\0G", 3, -EINVAL, 0},
    {"4G\0", 3, -EINVAL, 0},
    {"\0", 1, -EINVAL, 0},
    /* the length counts, not a NUL further on */
    {"4096,8192", 4, 0, 4096 * MIB},
    /* what the ledger can hold, and what it cannot */
    {"8191G", 0, 0, 8191 * GIB},
    {"8388607M", 0, 0, 8388607 * MIB},
    {"8589934591K", 0, 0, 8589934591 * KIB},
    {"8589934592K", 0, -EOVERFLOW, 0},
    {"8388608", 0, -EOVERFLOW, 0},
    {"8192G", 0, -EOVERFLOW, 0},
    {"8T", 0, -EOVERFLOW, 0},
    /* bytes given as MiB: 16 GiB and 4 GiB of them */
    {"17179869184", 0, -EOVERFLOW, 0},
    {"4294967296", 0, -EOVERFLOW, 0},
    /* 2^64 bytes exactly, one MiB less, and a product that comes back to 4096 MiB modulo 2^64 */
    {"17592186044416", 0, -EOVERFLOW, 0},
    {"17592186044415", 0, -EOVERFLOW, 0},
    {"17592186048512", 0, -EOVERFLOW, 0},
    {"16777216T", 0, -EOVERFLOW, 0},
    {"17179869184G", 0, -EOVERFLOW, 0},
    /* 2^64 and more as a number, also one that comes back to 4096 */
    {"18446744073709551615", 0, -EOVERFLOW, 0},
    {"18446744073709551616", 0, -EOVERFLOW, 0},
    {"18446744073709555712", 0, -EOVERFLOW, 0},
    {"99999999999999999999", 0, -EOVERFLOW, 0},
    {"99999999999999999999K", 0, -EOVERFLOW, 0},
    {"99999999999999999999x", 0, -EINVAL, 0},
};

static void a_size_is_what_it_says_or_an_error(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(size_cases); i++) {
        const struct size_case *c = &size_cases[i];
        uint64_t bytes = UNTOUCHED;
        int rc = vcap_config_parse_size(c->text, c->length ? c->length : strlen(c->text), &bytes);

        if (rc != c->rc || bytes != (c->rc == 0 ? c->bytes : UNTOUCHED))
            fail_msg("size '%s': rc %d, %llu bytes; expected rc %d, %llu", c->text, rc,
                     (unsigned long long)bytes, c->rc, (unsigned long long)c->bytes);
    }
}

static int parse(const char *text, bool mps, struct vcap_entries *entries, char why[400])
{
    why[0] = '\0';
    memset(entries, 0xaa, sizeof(*entries));
    return vcap_config_parse_entries(text, mps, entries, why, 400);
}

static void a_bare_size_names_every_gpu(void **state)
{
    struct vcap_entries e;
    char why[400];

    (void)state;
    assert_int_equal(parse(" 4Gi ", false, &e, why), 0);
    assert_int_equal(e.count, 1);
    assert_int_equal(e.entry[0].kind, VCAP_ENTRY_ALL);
    assert_int_equal(e.entry[0].bytes, 4 * GIB);
}

static void a_list_keeps_ordinals_and_uuids_in_order(void **state)
{
    struct vcap_entries e;
    char why[400];

    (void)state;
    assert_int_equal(parse(" 0 = 4096 ,\t" GPU_A "=8G," MIG_A "=2048, 007=1,0=3", false, &e, why),
                     0);
    assert_int_equal(e.count, 5);
    assert_int_equal(e.entry[0].kind, VCAP_ENTRY_ORDINAL);
    assert_int_equal(e.entry[0].ordinal, 0);
    assert_int_equal(e.entry[0].bytes, 4096 * MIB);
    assert_int_equal(e.entry[1].kind, VCAP_ENTRY_UUID);
    assert_string_equal(e.entry[1].uuid, GPU_A);
    assert_int_equal(e.entry[1].bytes, 8 * GIB);
    assert_string_equal(e.entry[2].uuid, MIG_A);
    assert_int_equal(e.entry[2].bytes, 2048 * MIB);
    assert_int_equal(e.entry[3].ordinal, 7);
    assert_int_equal(e.entry[4].ordinal, 0);
    assert_int_equal(e.entry[4].bytes, 3 * MIB);
}

static void uuids_are_accepted_in_any_case(void **state)
{
    struct vcap_entries e;
    char why[400];

    (void)state;
    assert_int_equal(parse("GPU-8932F937-D72C-4106-C12F-20BD9FAED9F6=1", false, &e, why), 0);
    assert_string_equal(e.entry[0].uuid, "GPU-8932F937-D72C-4106-C12F-20BD9FAED9F6");
}

static void ordinals_end_at_32_bits(void **state)
{
    struct vcap_entries e;
    char why[400];

    (void)state;
    assert_int_equal(parse("4294967295=1", false, &e, why), 0);
    assert_int_equal(e.entry[0].ordinal, UINT32_MAX);
    assert_int_equal(parse("4294967296=1", false, &e, why), -EOVERFLOW);
    assert_int_equal(parse("18446744073709551616=1", false, &e, why), -EOVERFLOW);
}

struct list_case {
    const char *text;
    int rc;
    const char *says; /* a part of why */
};

static void check_bad_lists(const struct list_case *cases, size_t count, bool mps)
{
    for (size_t i = 0; i < count; i++) {
        struct vcap_entries e;
        char why[400];
        int rc = parse(cases[i].text, mps, &e, why);

        if (rc != cases[i].rc || e.count != 0 || strstr(why, cases[i].says) == NULL)
            fail_msg("list '%s': rc %d, %u entries, '%s'; expected rc %d, 0, '...%s...'",
                     cases[i].text, rc, e.count, why, cases[i].rc, cases[i].says);
    }
}

static void a_malformed_list_is_an_error_and_has_no_entries(void **state)
{
    static const struct list_case cases[] = {
        {"", -EINVAL, "it is empty"},
        {"  ", -EINVAL, "it is empty"},
        {",", -EINVAL, "entry 1, '': an entry is empty"},
        {"0=", -EINVAL, "a size is digits"},
        {"=4096", -EINVAL, "a device is"},
        {"=", -EINVAL, "a device is"},
        {"0=1,", -EINVAL, "entry 2, '': an entry is empty"},
        {"0=1,,", -EINVAL, "entry 2, '': an entry is empty"},
        {",0=1", -EINVAL, "an entry is empty"},
        {"0=1,,1=2", -EINVAL, "an entry is empty"},
        {"a=1", -EINVAL, "a device is"},
        {"-1=1", -EINVAL, "a device is"},
        {"0 0=1", -EINVAL, "a device is"},
        {"0=4096;1=2", -EINVAL, "a size is digits"},
        {"0=4096 1=2", -EINVAL, "a size is digits"},
        {"0:4096", -EINVAL, "a size is digits"},
        {"0=1=2", -EINVAL, "a size is digits"},
        {"0==1", -EINVAL, "a size is digits"},
        {"0=-1", -EINVAL, "a size is digits"},
        {"*=4096", -EINVAL, "a device is"},
        {"all=4096", -EINVAL, "a device is"},
        {"0=17179869184", -EOVERFLOW, "MiB, not bytes"},
        {"0=1,1=8T", -EOVERFLOW, "entry 2, '1=8T': 8 TiB and more"},
        /* a bare size beside others */
        {"4096,8192", -EINVAL, "entry 2, '8192': a size without a device stands alone"},
        {"4096,0=8192", -EINVAL, "stands alone"},
        {"0=8192,4096", -EINVAL, "stands alone"},
        /* UUIDs: short, long, wrong digit, wrong dash, wrong or missing prefix, older MIG form */
        {"GPU-8932f937=1", -EINVAL, "a device is"},
        {"GPU-8932f937-d72c-4106-c12f-20bd9faed9f=1", -EINVAL, "a device is"},
        {"GPU-8932f937-d72c-4106-c12f-20bd9faed9f60=1", -EINVAL, "a device is"},
        {"GPU-8932f937-d72c-4106-c12f-20bd9faed9g6=1", -EINVAL, "a device is"},
        {"GPU-8932f937xd72c-4106-c12f-20bd9faed9f6=1", -EINVAL, "a device is"},
        {"GPU-8932f93-7d72c-4106-c12f-20bd9faed9f6=1", -EINVAL, "a device is"},
        {"GPU-=1", -EINVAL, "a device is"},
        {"GPU=1", -EINVAL, "a device is"},
        {"gpu-8932f937-d72c-4106-c12f-20bd9faed9f6=1", -EINVAL, "a device is"},
        {"8932f937-d72c-4106-c12f-20bd9faed9f6=1", -EINVAL, "a device is"},
        {"MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0=1", -EINVAL, "a device is"},
        /* quotes */
        {"\"0=4096\"", -EINVAL, "quotes"},
        {"'4096'", -EINVAL, "quotes"},
        {"0=4096\xe2\x80\x9d", -EINVAL, "quotes"},
        {"\xe2\x80\x9c"
         "0=4096\xe2\x80\x9d",
         -EINVAL, "quotes"},
    };

    (void)state;
    check_bad_lists(cases, COUNT(cases), false);
}

static void the_mps_form_takes_what_ecs_and_the_device_plugin_send(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"0=1000M", 1000 * MIB},
        {"0=1000MB", 1000 * MIB},
        {"0=1G", GIB},
        {"0=1GB", GIB},
        {"0=512K", 512 * KIB},
        {"0=512KB", 512 * KIB},
        {" 0=1000M ", 1000 * MIB},
        {"0=0M", 0},
        {"00=01G", GIB},
    };
    struct vcap_entries e;
    char why[400];

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(parse(cases[i].text, true, &e, why), 0);
        assert_int_equal(e.count, 1);
        assert_int_equal(e.entry[0].kind, VCAP_ENTRY_ORDINAL);
        assert_int_equal(e.entry[0].ordinal, 0);
        assert_int_equal(e.entry[0].bytes, cases[i].bytes);
    }
    assert_int_equal(parse("0=1G,1=512M", true, &e, why), 0);
    assert_int_equal(e.count, 2);
    assert_int_equal(e.entry[1].ordinal, 1);
    assert_int_equal(e.entry[1].bytes, 512 * MIB);
}

static void the_mps_form_takes_uuids_cut_short(void **state)
{
    struct vcap_entries e;
    char why[400];

    (void)state;
    assert_int_equal(
        parse("GPU-8=1G,GPU-8932f937=1G,GPU-8932f937-=1G," GPU_A "=1G,MIG-41B3=1G", true, &e, why),
        0);
    assert_int_equal(e.count, 5);
    assert_string_equal(e.entry[0].uuid, "GPU-8");
    assert_string_equal(e.entry[2].uuid, "GPU-8932f937-");
    assert_string_equal(e.entry[4].uuid, "MIG-41B3");
}

static void a_malformed_mps_limit_is_an_error_and_has_no_entries(void **state)
{
    static const struct list_case cases[] = {
        {"1000M", -EINVAL, "an entry is DEVICE=SIZE here"},
        {"0=1000M,1000M", -EINVAL, "an entry is DEVICE=SIZE here"},
        {"0=1000", -EINVAL, "a unit here"},
        {"0=0", -EINVAL, "a unit here"},
        {"0=1000Mi", -EINVAL, "a unit here"},
        {"0=1000MiB", -EINVAL, "a unit here"},
        {"0=1T", -EINVAL, "a unit here"},
        {"0=1TB", -EINVAL, "a unit here"},
        {"0=1000 M", -EINVAL, "a unit here"},
        {"0=1.5G", -EINVAL, "a unit here"},
        {"0=-1M", -EINVAL, "a unit here"},
        {"0=100%", -EINVAL, "a unit here"},
        {"0=1G;1=1G", -EINVAL, "a unit here"},
        {"0=1G,", -EINVAL, "an entry is empty"},
        {"", -EINVAL, "it is empty"},
        {"0=1048576000000000K", -EOVERFLOW, "8 TiB"},
        {"GPU-=1G", -EINVAL, "a device is"},
        {"GPU-xyz=1G", -EINVAL, "a device is"},
        {"GPU-8932f9378=1G", -EINVAL, "a device is"},
        {"\xe2\x80\x9c"
         "0=1000M\xe2\x80\x9d",
         -EINVAL, "quotes"},
        {"0=1000M\xe2\x80\x9d", -EINVAL, "quotes"},
        {"\"0=1000M\"", -EINVAL, "quotes"},
    };

    (void)state;
    check_bad_lists(cases, COUNT(cases), true);
}

static void a_list_has_at_most_64_entries(void **state)
{
    struct vcap_entries e;
    char text[1024] = "", why[400];
    size_t used = 0;

    (void)state;
    for (int i = 0; i < VCAP_CONFIG_ENTRIES_MAX; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%d=1", i ? "," : "", i);
    assert_int_equal(parse(text, false, &e, why), 0);
    assert_int_equal(e.count, VCAP_CONFIG_ENTRIES_MAX);
    snprintf(text + used, sizeof(text) - used, ",64=1");
    assert_int_equal(parse(text, false, &e, why), -E2BIG);
    assert_int_equal(e.count, 0);
    assert_non_null(strstr(why, "64"));
}

/* ---- options ---- */

/* An environment of names and values in turn, ended by NULL. */
static const char *lookup(const char *name, void *arg)
{
    const char *const *pair = arg;

    for (; pair[0] != NULL; pair += 2)
        if (strcmp(pair[0], name) == 0)
            return pair[1];
    return NULL;
}

static struct vcap_config config;
static char why_line[1000];

#define READ(...) read_pairs((const char *const[]){__VA_ARGS__, NULL, NULL})
static int read_pairs(const char *const *pairs)
{
    memset(&config, 0xaa, sizeof(config));
    why_line[0] = '\0';
    return vcap_config_read(&config, lookup, (void *)(uintptr_t)pairs, why_line, sizeof(why_line));
}

static void nothing_set_is_passive_with_every_default(void **state)
{
    (void)state;
    assert_int_equal(READ("HOME", "/root"), 0);
    assert_int_equal(config.enable, VCAP_ENABLE_PASSIVE);
    assert_int_equal(config.on_error, VCAP_ON_ERROR_DENY);
    assert_int_equal(config.managed, VCAP_MANAGED_CHARGE);
    assert_int_equal(config.log_level, VCAP_LOG_WARN);
    assert_true(config.context_bytes == VCAP_CONTEXT_AUTO);
    assert_string_equal(config.ledger, "");
    assert_string_equal(config.log_file, "");
    assert_false(config.memory_set);
    assert_false(config.host_memory_set);
    assert_false(config.mps_set);
    assert_string_equal(why_line, "");
}

static void every_option_is_read_and_blanks_around_it_are_not(void **state)
{
    (void)state;
    assert_int_equal(READ("VRAMCAP_ENABLE", " audit ", "VRAMCAP_MEMORY_MIB", "\t4096\n",
                          "VRAMCAP_LEDGER", " /tmp/a b ", "VRAMCAP_ON_ERROR", "allow ",
                          "VRAMCAP_CONTEXT_MIB", " 300 ", "VRAMCAP_MANAGED", "\r\nignore",
                          "VRAMCAP_LOG", " debug", "VRAMCAP_LOG_FILE", "/tmp/log\n",
                          "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", " 0=1000M "),
                     0);
    assert_int_equal(config.enable, VCAP_ENABLE_AUDIT);
    assert_true(config.memory_set);
    assert_int_equal(config.memory.entry[0].bytes, 4096 * MIB);
    assert_string_equal(config.ledger, "/tmp/a b");
    assert_int_equal(config.on_error, VCAP_ON_ERROR_ALLOW);
    assert_int_equal(config.context_bytes, 300 * MIB);
    assert_int_equal(config.managed, VCAP_MANAGED_IGNORE);
    assert_int_equal(config.log_level, VCAP_LOG_DEBUG);
    assert_string_equal(config.log_file, "/tmp/log");
    assert_true(config.mps_set);
    assert_int_equal(config.mps.entry[0].bytes, 1000 * MIB);
}

static void every_word_means_its_own_value(void **state)
{
    static const char *const logs[] = {"error", "warn", "info", "debug"};
    static const char *const enables[] = {"0", "1", "audit"};

    (void)state;
    for (unsigned i = 0; i < COUNT(logs); i++) {
        assert_int_equal(READ("VRAMCAP_LOG", logs[i]), 0);
        assert_int_equal(config.log_level, i);
    }
    for (unsigned i = 0; i < COUNT(enables); i++) {
        assert_int_equal(READ("VRAMCAP_ENABLE", enables[i]), 0);
        assert_int_equal(config.enable, i);
    }
    assert_int_equal(READ("VRAMCAP_ON_ERROR", "deny", "VRAMCAP_MANAGED", "charge"), 0);
    assert_int_equal(config.on_error, VCAP_ON_ERROR_DENY);
    assert_int_equal(config.managed, VCAP_MANAGED_CHARGE);
}

static void an_empty_value_is_not_set_but_for_the_ceiling(void **state)
{
    (void)state;
    assert_int_equal(READ("VRAMCAP_ENABLE", "", "VRAMCAP_LEDGER", " ", "VRAMCAP_ON_ERROR", "",
                          "VRAMCAP_CONTEXT_MIB", "", "VRAMCAP_MANAGED", "\t", "VRAMCAP_LOG", "",
                          "VRAMCAP_LOG_FILE", "", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""),
                     0);
    assert_int_equal(config.enable, VCAP_ENABLE_PASSIVE);
    assert_int_equal(config.log_level, VCAP_LOG_WARN);
    assert_false(config.mps_set);
    for (int blank = 0; blank < 2; blank++) {
        assert_int_equal(READ("VRAMCAP_MEMORY_MIB", blank ? " \t" : ""), -EINVAL);
        assert_string_equal(why_line, "VRAMCAP_MEMORY_MIB is '': it is empty");
        assert_true(config.memory_set);
        assert_int_equal(config.memory.count, 0);
    }
}

static void zero_is_a_ceiling_and_unset_is_none(void **state)
{
    (void)state;
    assert_int_equal(READ("VRAMCAP_MEMORY_MIB", "0"), 0);
    assert_true(config.memory_set);
    assert_int_equal(config.memory.count, 1);
    assert_int_equal(config.memory.entry[0].bytes, 0);
    assert_int_equal(READ("VRAMCAP_MEMORY_MIB", "0m"), 0);
    assert_int_equal(config.memory.count, 1);
    assert_int_equal(config.memory.entry[0].bytes, 0);
    assert_int_equal(READ("VRAMCAP_ENABLE", "1"), 0);
    assert_false(config.memory_set);
}

static void a_bad_value_keeps_the_strictest_and_names_itself(void **state)
{
    static const char *const bad_enables[] = {"2",  "01",    "00",  "true", "yes",
                                              "on", "AUDIT", "1 1", "-1"};

    (void)state;
    for (size_t i = 0; i < COUNT(bad_enables); i++) {
        assert_int_equal(READ("VRAMCAP_ENABLE", bad_enables[i]), -EINVAL);
        assert_int_equal(config.enable, VCAP_ENABLE_ENFORCE);
    }
    assert_int_equal(READ("VRAMCAP_ENABLE", "yes"), -EINVAL);
    assert_string_equal(why_line, "VRAMCAP_ENABLE is 'yes': it must be one of: 0 1 audit");
    assert_int_equal(READ("VRAMCAP_ON_ERROR", "ALLOW"), -EINVAL);
    assert_int_equal(config.on_error, VCAP_ON_ERROR_DENY);
    assert_int_equal(READ("VRAMCAP_MANAGED", "ignored"), -EINVAL);
    assert_int_equal(config.managed, VCAP_MANAGED_CHARGE);
    assert_int_equal(READ("VRAMCAP_LOG", "verbose"), -EINVAL);
    assert_int_equal(config.log_level, VCAP_LOG_WARN);
    assert_int_equal(READ("VRAMCAP_CONTEXT_MIB", "Auto"), -EINVAL);
    assert_true(config.context_bytes == VCAP_CONTEXT_AUTO);
    assert_non_null(strstr(why_line, "it is auto or a size"));
    assert_int_equal(READ("VRAMCAP_CONTEXT_MIB", "8T"), -EOVERFLOW);
    assert_true(config.context_bytes == VCAP_CONTEXT_AUTO);
    assert_int_equal(READ("VRAMCAP_MEMORY_MIB", "1.5G"), -EINVAL);
    assert_true(config.memory_set);
    assert_int_equal(config.memory.count, 0);
    assert_int_equal(READ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "1000M"), -EINVAL);
    assert_true(config.mps_set);
    assert_int_equal(config.mps.count, 0);
    assert_int_equal(READ("VRAMCAP_MEMORY_MIB", "17179869184"), -EOVERFLOW);
    assert_string_equal(why_line,
                        "VRAMCAP_MEMORY_MIB is '17179869184': 8 TiB and more is no ceiling "
                        "(a number without a unit is MiB, not bytes)");
}

static void a_path_is_absolute_and_fits(void **state)
{
    char path[VCAP_CONFIG_PATH_MAX + 1];

    (void)state;
    assert_int_equal(READ("VRAMCAP_LEDGER", "ledger"), -EINVAL);
    assert_string_equal(config.ledger, "");
    assert_int_equal(READ("VRAMCAP_LOG_FILE", "./log"), -EINVAL);
    memset(path, 'a', sizeof(path));
    path[0] = '/';
    path[VCAP_CONFIG_PATH_MAX] = '\0';
    assert_int_equal(READ("VRAMCAP_LEDGER", path), -E2BIG);
    assert_string_equal(config.ledger, "");
    path[VCAP_CONFIG_PATH_MAX - 1] = '\0';
    assert_int_equal(READ("VRAMCAP_LEDGER", path), 0);
    assert_string_equal(config.ledger, path);
}

static void one_bad_option_leaves_the_others_readable(void **state)
{
    (void)state;
    assert_int_equal(READ("VRAMCAP_MEMORY_MIB", "4x", "VRAMCAP_ON_ERROR", "allow",
                          "VRAMCAP_LOG_FILE", "/tmp/log", "VRAMCAP_LOG", "debug", "VRAMCAP_MANAGED",
                          "bad", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"),
                     -EINVAL);
    assert_int_equal(config.on_error, VCAP_ON_ERROR_ALLOW);
    assert_string_equal(config.log_file, "/tmp/log");
    assert_int_equal(config.log_level, VCAP_LOG_DEBUG);
    assert_int_equal(config.mps.count, 1);
    assert_ptr_equal(strstr(why_line, "VRAMCAP_MEMORY_MIB is '4x': "), why_line);
}

static void a_message_is_one_printable_line_and_cuts_the_value(void **state)
{
    char value[4096], small[16];

    (void)state;
    assert_int_equal(READ("VRAMCAP_MEMORY_MIB", "0=4\n\x1b[1m\x9d\\"), -EINVAL);
    assert_ptr_equal(strstr(why_line, "VRAMCAP_MEMORY_MIB is '0=4\\x0a\\x1b[1m\\x9d\\x5c': "),
                     why_line);
    memset(value, 0xe2, sizeof(value));
    value[sizeof(value) - 1] = '\0';
    assert_int_equal(READ("VRAMCAP_MEMORY_MIB", value), -EINVAL);
    for (const char *c = why_line; *c != '\0'; c++)
        assert_in_range(*c, 0x20, 0x7e);
    assert_non_null(strstr(why_line, "\\xe2..."));
    assert_in_range(strlen(why_line), 240, 600);
    memset(small, 'x', sizeof(small));
    assert_int_equal(vcap_config_read(&config, lookup,
                                      (void *)(uintptr_t)(const char *const[]){"VRAMCAP_MEMORY_MIB",
                                                                               value, NULL, NULL},
                                      small, 8),
                     -EINVAL);
    assert_string_equal(small, "VRAMCAP");
    assert_int_equal(small[8], 'x');
}

static void the_environment_is_the_process_s_own(void **state)
{
    (void)state;
    assert_null(vcap_config_getenv("VRAMCAP_NO_SUCH_VARIABLE", NULL));
    assert_non_null(vcap_config_getenv("PATH", NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_size_is_what_it_says_or_an_error),
        cmocka_unit_test(a_bare_size_names_every_gpu),
        cmocka_unit_test(a_list_keeps_ordinals_and_uuids_in_order),
        cmocka_unit_test(uuids_are_accepted_in_any_case),
        cmocka_unit_test(ordinals_end_at_32_bits),
        cmocka_unit_test(a_malformed_list_is_an_error_and_has_no_entries),
        cmocka_unit_test(the_mps_form_takes_what_ecs_and_the_device_plugin_send),
        cmocka_unit_test(the_mps_form_takes_uuids_cut_short),
        cmocka_unit_test(a_malformed_mps_limit_is_an_error_and_has_no_entries),
        cmocka_unit_test(a_list_has_at_most_64_entries),
        cmocka_unit_test(nothing_set_is_passive_with_every_default),
        cmocka_unit_test(every_option_is_read_and_blanks_around_it_are_not),
        cmocka_unit_test(every_word_means_its_own_value),
        cmocka_unit_test(an_empty_value_is_not_set_but_for_the_ceiling),
        cmocka_unit_test(zero_is_a_ceiling_and_unset_is_none),
        cmocka_unit_test(a_bad_value_keeps_the_strictest_and_names_itself),
        cmocka_unit_test(a_path_is_absolute_and_fits),
        cmocka_unit_test(one_bad_option_leaves_the_others_readable),
        cmocka_unit_test(a_message_is_one_printable_line_and_cuts_the_value),
        cmocka_unit_test(the_environment_is_the_process_s_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
