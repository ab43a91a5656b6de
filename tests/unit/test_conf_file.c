/*
 * /etc/vramcap/container.conf: its grammar, and who may have written it.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/skip.h"

#include "enforcer/conf_file.h"
#include "enforcer/config.h"

static struct vcap_conf conf;
static char why[300], folder[64], path[128];

static int parse_bytes(const char *text, size_t length)
{
    memset(&conf, 0x5a, sizeof(conf));
    memcpy(conf.text, text, length);
    conf.text[length] = '\0';
    why[0] = '\0';
    return vcap_conf_parse(&conf, length, why, sizeof(why));
}

static int parse(const char *text)
{
    return parse_bytes(text, strlen(text));
}

static void lines_are_keys_and_values_without_their_blanks(void **state)
{
    (void)state;
    assert_int_equal(
        parse("# the host's\n\n  VRAMCAP_ENABLE = 1 \r\n\tVRAMCAP_MEMORY_MIB=0=4096,1=8192\n"
              "VRAMCAP_LOG=\n   # more\nVRAMCAP_ON_ERROR=deny"),
        0);
    assert_int_equal(conf.count, 4);
    assert_string_equal(vcap_conf_get("VRAMCAP_ENABLE", &conf), "1");
    assert_string_equal(vcap_conf_get("VRAMCAP_MEMORY_MIB", &conf), "0=4096,1=8192");
    assert_string_equal(vcap_conf_get("VRAMCAP_LOG", &conf), "");
    assert_string_equal(vcap_conf_get("VRAMCAP_ON_ERROR", &conf), "deny");
    assert_null(vcap_conf_get("VRAMCAP_MANAGED", &conf));
    assert_int_equal(parse(""), 0);
    assert_int_equal(conf.count, 0);
}

static void whatever_is_not_understood_is_refused_as_a_whole(void **state)
{
    static const struct {
        const char *text, *about;
    } wrong[] = {
        {"VRAMCAP_ENABLE\n", "line 1: it is not KEY=VALUE"},
        {"\n\nVRAMCAP_MEMORY=4096\n", "line 3: no such key"},
        {"VRAMCAP_ENABLE=1\nvramcap_memory_mib=1\n", "line 2: no such key"},
        {"=1\n", "line 1: no such key"},
        {"export VRAMCAP_ENABLE=1\n", "line 1: no such key"},
        {"\xef\xbb\xbfVRAMCAP_ENABLE=1\n", "line 1: no such key"},
        {"VRAMCAP_ENABLE=1\nVRAMCAP_ENABLE=1\n", "line 2: the key is there twice"},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G\n", "line 1: no such key"}, /* MPS's, not ours */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(parse(wrong[i].text), -EINVAL);
        if (strstr(why, wrong[i].about) == NULL)
            fail_msg("'%s' is not about '%s'", why, wrong[i].about);
        assert_int_equal(conf.count, 0);
    }
    assert_int_equal(parse_bytes("VRAMCAP_ENABLE=1\0\n", 18), -EINVAL);
}

static void values_are_those_of_the_variables(void **state)
{
    static struct vcap_config config;

    (void)state;
    assert_int_equal(parse("VRAMCAP_MEMORY_MIB=4Gi\nVRAMCAP_CONTEXT_MIB=400\n"), 0);
    assert_int_equal(vcap_config_read(&config, vcap_conf_get, &conf, why, sizeof(why)), 0);
    assert_true(config.memory_set);
    assert_int_equal(config.memory.entry[0].bytes, UINT64_C(4) << 30);
    assert_int_equal(config.context_bytes, 400 << 20);
    assert_int_equal(parse("VRAMCAP_MEMORY_MIB=\"4096\"\n"), 0);
    assert_int_equal(vcap_config_read(&config, vcap_conf_get, &conf, why, sizeof(why)), -EINVAL);
    assert_non_null(strstr(why, "VRAMCAP_MEMORY_MIB"));
}

/* ---- the file ---- */

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/vramcap-conf-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof(path), "%s/container.conf", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    rmdir(path);
    return rmdir(folder);
}

static void write_file(const char *text, size_t length, mode_t mode)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static int read_conf(void)
{
    why[0] = '\0';
    return vcap_conf_read(path, &conf, why, sizeof(why));
}

static void a_missing_file_says_nothing(void **state)
{
    (void)state;
    assert_int_equal(read_conf(), 0);
    assert_int_equal(vcap_conf_read("/nowhere/at/all", &conf, why, sizeof(why)), 0);
}

static void only_what_root_alone_can_write_is_believed(void **state)
{
    (void)state;
    write_file("VRAMCAP_ENABLE=1\n", 17, 0644);
    if (geteuid() != 0) {
        assert_int_equal(read_conf(), -EPERM);
        SKIP_BECAUSE("needs root");
    }
    assert_int_equal(read_conf(), 1);
    assert_int_equal(chmod(path, 0664), 0);
    assert_int_equal(read_conf(), -EPERM);
    assert_int_equal(chmod(path, 0646), 0);
    assert_int_equal(read_conf(), -EPERM);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(read_conf(), 1);
    assert_int_equal(chown(path, 12345, 0), 0);
    assert_int_equal(read_conf(), -EPERM);
    /* a stranger's file that looks like one that no user here could own */
    assert_int_equal(chown(path, 65534, 0), 0);
    assert_int_equal(read_conf(), -EPERM);
    assert_int_equal(chown(path, 0, 0), 0);
    assert_int_equal(chmod(folder, 0777), 0); /* who may replace the file may write it */
    assert_int_equal(read_conf(), -EPERM);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(chown(folder, 12345, 0), 0);
    assert_int_equal(read_conf(), -EPERM);
    assert_int_equal(chown(folder, 0, 0), 0);
    assert_int_equal(read_conf(), 1);
}

static void no_link_is_followed_and_nothing_is_waited_for(void **state)
{
    char target[160];

    (void)state;
    snprintf(target, sizeof(target), "%s/target", folder);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(read_conf(), -EPERM);
    unlink(path);
    assert_int_equal(mkfifo(path, 0644), 0);
    assert_int_equal(read_conf(), -EPERM);
    unlink(path);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_equal(read_conf(), -EPERM);
}

static void a_file_that_is_too_long_is_refused(void **state)
{
    static char text[VCAP_CONF_BYTES_MAX + 2];

    (void)state;
    if (geteuid() != 0)
        SKIP_BECAUSE("needs root");
    memset(text, '\n', sizeof(text));
    write_file(text, VCAP_CONF_BYTES_MAX, 0644);
    assert_int_equal(read_conf(), 1);
    write_file(text, VCAP_CONF_BYTES_MAX + 1, 0644);
    assert_int_equal(read_conf(), -EINVAL);
}

int main(void)
{
#define FILE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_keys_and_values_without_their_blanks),
        cmocka_unit_test(whatever_is_not_understood_is_refused_as_a_whole),
        cmocka_unit_test(values_are_those_of_the_variables),
        FILE_TEST(a_missing_file_says_nothing),
        FILE_TEST(only_what_root_alone_can_write_is_believed),
        FILE_TEST(no_link_is_followed_and_nothing_is_waited_for),
        FILE_TEST(a_file_that_is_too_long_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
