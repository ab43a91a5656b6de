/*
 * The kernel's dmem limit, read from made-up /proc and cgroup trees.
 */
#include <errno.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "enforcer/dmem.h"

#define CARD "0000:10:00.0"
#define MIB (UINT64_C(1) << 20)

static char folder[64], proc[96], root[96];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static int tear_down(void **state)
{
    (void)state;
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *where, const char *name, const char *text)
{
    char path[512];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", where, name);
    for (char *slash = strchr(path + strlen(folder) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/vramcap-dmem-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(proc, sizeof(proc), "%s/proc", folder);
    snprintf(root, sizeof(root), "%s/cgroup", folder);
    put(proc, "self/cgroup", "0::/pod/one\n");
    return 0;
}

static uint64_t limit(const char *pci)
{
    uint64_t bytes = 7;

    assert_int_equal(vcap_dmem_limit(proc, root, pci, &bytes), 0);
    return bytes;
}

static void without_files_there_is_no_limit(void **state)
{
    (void)state;
    assert_int_equal(limit(CARD), UINT64_MAX);
    put(root, "pod/one/dmem.max", "");
    assert_int_equal(limit(CARD), UINT64_MAX);
    assert_int_equal(remove(strcat(strcpy((char[256]){0}, proc), "/self/cgroup")), 0);
    assert_int_equal(limit(CARD), UINT64_MAX);
}

static void the_lowest_of_the_cgroup_and_those_above_it_holds(void **state)
{
    (void)state;
    put(root, "pod/one/dmem.max", "nvidia/" CARD "/vidmem 1073741824\n");
    assert_int_equal(limit(CARD), 1024 * MIB);
    put(root, "pod/dmem.max", "nvidia/" CARD "/vidmem 536870912\n");
    assert_int_equal(limit(CARD), 512 * MIB);
    put(root, "dmem.max", "nvidia/" CARD "/vidmem 268435456\n");
    assert_int_equal(limit(CARD), 256 * MIB);
    put(root, "pod/two/dmem.max", "nvidia/" CARD "/vidmem 1\n");
    assert_int_equal(limit(CARD), 256 * MIB);
}

static void a_cgroup_namespace_has_its_file_at_the_root_of_the_mount(void **state)
{
    (void)state;
    put(proc, "self/cgroup", "0::/\n");
    put(root, "dmem.max", "nvidia/" CARD "/vidmem 1048576\n");
    assert_int_equal(limit(CARD), MIB);
    put(proc, "self/cgroup", "12:devices:/old\n1:name=systemd:/x\n0::/../../elsewhere\n");
    assert_int_equal(limit(CARD), MIB);
}

static void only_regions_that_may_be_this_gpus_count(void **state)
{
    (void)state;
    put(root, "pod/one/dmem.max",
        "drm/0000:03:00.0/vram0 4096\n"
        "nvidia/00000000:20:00.0/vidmem 8192\n"
        "nvidia/00000000:10:00.0/vidmem 1048576\n");
    assert_int_equal(limit(CARD), MIB);
    assert_int_equal(limit("00000000:20:00.0"), 8192);
    assert_int_equal(limit("0000:30:00.0"), UINT64_MAX);
    assert_int_equal(limit("0001:10:00.0"), UINT64_MAX);
    /* the address is not known: every region of NVIDIA's, none of others */
    assert_int_equal(limit(NULL), 8192);
    put(root, "pod/one/dmem.max", "drm/0000:03:00.0/vram0 4096\nNVIDIA-vidmem 2097152\n");
    assert_int_equal(limit(CARD), 2 * MIB);
    put(root, "pod/one/dmem.max", "drm/0000:10:00.0/vram0 4096\n");
    assert_int_equal(limit(CARD), 4096);
    put(root, "pod/one/dmem.max", "nvidia/0000:AB:00.0/vidmem 4096\n");
    assert_int_equal(limit("0000:ab:00.0"), 4096);
}

static void values_are_bytes_or_max_and_anything_else_is_an_error(void **state)
{
    static const char *const bad[] = {"", "x", "-1", "1k", "1.5", "0x10", "max1", "+1"};
    char line[160];
    uint64_t bytes = 7;

    (void)state;
    put(root, "pod/one/dmem.max", "nvidia/" CARD "/vidmem max\n");
    assert_int_equal(limit(CARD), UINT64_MAX);
    put(root, "pod/one/dmem.max", "nvidia/" CARD "/vidmem 0\n");
    assert_int_equal(limit(CARD), 0);
    put(root, "pod/one/dmem.max", "nvidia/" CARD "/vidmem 18446744073709551616\n");
    assert_int_equal(limit(CARD), UINT64_MAX);
    put(root, "pod/one/dmem.max", "nvidia/" CARD "/vidmem 4096 \r\n");
    assert_int_equal(limit(CARD), 4096);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(line, sizeof(line), "nvidia/" CARD "/vidmem %s\n", bad[i]);
        put(root, "pod/one/dmem.max", line);
        assert_int_equal(vcap_dmem_limit(proc, root, CARD, &bytes), -EINVAL);
        assert_int_equal(bytes, 7);
        /* another card's line is not this card's error */
        assert_int_equal(limit("0000:99:00.0"), UINT64_MAX);
    }
}

static void a_file_that_cannot_be_read_is_an_error(void **state)
{
    char path[160], *text = malloc(20000);
    uint64_t bytes;

    (void)state;
    snprintf(path, sizeof(path), "%s/pod", root);
    put(root, "pod/one/x", "");
    snprintf(path, sizeof(path), "%s/pod/dmem.max", root);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(vcap_dmem_limit(proc, root, CARD, &bytes), -EISDIR);
    assert_int_equal(remove(path), 0);
    memset(text, 'a', 19999);
    text[19999] = '\0';
    put(root, "pod/dmem.max", text);
    free(text);
    assert_int_equal(vcap_dmem_limit(proc, root, CARD, &bytes), -EFBIG);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(without_files_there_is_no_limit),
        TEST(the_lowest_of_the_cgroup_and_those_above_it_holds),
        TEST(a_cgroup_namespace_has_its_file_at_the_root_of_the_mount),
        TEST(only_regions_that_may_be_this_gpus_count),
        TEST(values_are_bytes_or_max_and_anything_else_is_an_error),
        TEST(a_file_that_cannot_be_read_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
