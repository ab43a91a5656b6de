/*
 * `vramcap cdi`: what the specification says, and what is refused.  That a runtime applies it is
 * tests/container's matter.
 */
#include <dirent.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cli/ledger_image.h"
#include "tests/cli/tool.h"

static struct tool t;
static char folder[64], ledger[128], output[128], preload[128];

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state)
{
    (void)state;
    if (!image_folder(folder))
        return -1;
    (void)snprintf(ledger, sizeof ledger, "%s/web.ledger", folder);
    (void)snprintf(output, sizeof output, "%s/vramcap-web.json", folder);
    (void)snprintf(preload, sizeof preload, "%s/ld.so.preload", folder);
    write_text(ledger, "");
    write_text(preload, "/opt/vramcap/libvramcap.so\n");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

#define FILES "--library", STUB_LIBRARY, "--preload-file", preload, "--ledger", ledger
#define CDI(...) TOOL_ARGS("cdi", FILES, __VA_ARGS__)

static const char *string_at(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "(none)";
}

/* Exactly one mount onto `container`, from `host`, with `option` among its options. */
static void has_mount(json_t *edits, const char *host, const char *container, const char *option)
{
    size_t i, j;
    json_t *one, *how;
    unsigned found = 0;
    json_array_foreach(json_object_get(edits, "mounts"), i, one)
    {
        bool with = false;
        if (strcmp(string_at(one, "containerPath"), container) != 0)
            continue;
        assert_string_equal(string_at(one, "hostPath"), host);
        json_array_foreach(json_object_get(one, "options"), j, how) with =
            with || !strcmp(json_string_value(how), option);
        assert_true(with);
        found++;
    }
    assert_int_equal(found, 1);
}

static json_t *edits_of(const char *text, json_t **spec)
{
    json_error_t error;
    json_t *devices, *device;
    *spec = json_loads(text, 0, &error);
    assert_non_null(*spec);
    assert_string_equal(string_at(*spec, "cdiVersion"), "0.5.0");
    assert_string_equal(string_at(*spec, "kind"), "vramcap/ceiling");
    devices = json_object_get(*spec, "devices");
    assert_int_equal(json_array_size(devices), 1);
    device = json_array_get(devices, 0);
    assert_string_equal(string_at(device, "name"), "web");
    return json_object_get(device, "containerEdits");
}

static void the_specification_has_environment_library_loader_file_and_ledger(void **state)
{
    (void)state;
    json_t *spec, *edits;
    char *library = realpath(STUB_LIBRARY, NULL);
    assert_int_equal(tool_run(&t, NULL,
                              CDI("--memory", "0=4096,GPU-3c4d177d-e452-c11c-38b0-5f87b47b3103=8Gi",
                                  "--container", "web")),
                     0);
    assert_string_equal(t.err, "");
    edits = edits_of(t.out, &spec);
    json_t *environment = json_object_get(edits, "env");
    assert_int_equal(json_array_size(environment), 2);
    assert_string_equal(json_string_value(json_array_get(environment, 0)), "VRAMCAP_ENABLE=1");
    assert_string_equal(json_string_value(json_array_get(environment, 1)),
                        "VRAMCAP_MEMORY_MIB=0=4096,GPU-3c4d177d-e452-c11c-38b0-5f87b47b3103=8Gi");
    assert_int_equal(json_array_size(json_object_get(edits, "mounts")), 3);
    has_mount(edits, library, "/opt/vramcap/libvramcap.so", "ro");
    has_mount(edits, preload, "/etc/ld.so.preload", "ro");
    has_mount(edits, ledger, "/run/vramcap/ledger", "rw");
    has_mount(edits, ledger, "/run/vramcap/ledger", "noexec");
    json_decref(spec);
    free(library);
}

static void audit_and_no_memory_leave_the_ceiling_to_the_ledger(void **state)
{
    (void)state;
    json_t *spec, *environment;
    assert_int_equal(tool_run(&t, NULL, CDI("--audit", "-c", "web")), 0);
    environment = json_object_get(edits_of(t.out, &spec), "env");
    assert_int_equal(json_array_size(environment), 1);
    assert_string_equal(json_string_value(json_array_get(environment, 0)), "VRAMCAP_ENABLE=audit");
    json_decref(spec);
}

static void a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(void **state)
{
    (void)state;
    char text[8192] = "";
    struct stat before, after;
    unsigned files = 0;
    json_t *spec;
    write_text(output, "old");
    assert_int_equal(stat(output, &before), 0);
    assert_int_equal(tool_run(&t, NULL, CDI("-m", "4096", "-c", "web", "-o", output)), 0);
    assert_string_equal(t.out, "");
    assert_int_equal(stat(output, &after), 0);
    assert_true(before.st_ino != after.st_ino);
    assert_int_equal(after.st_mode & 0777, 0644);
    FILE *file = fopen(output, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    (void)fclose(file);
    (void)edits_of(text, &spec);
    json_decref(spec);
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory));)
        files += entry->d_name[0] != '.';
    (void)closedir(directory);
    assert_int_equal(files, 3); /* ledger, loader file, output */
}

static void a_ledger_that_is_not_there_yet_is_said_and_written_all_the_same(void **state)
{
    (void)state;
    json_t *spec, *edits;
    char *library = realpath(STUB_LIBRARY, NULL);
    assert_int_equal(
        tool_run(&t, NULL,
                 TOOL_ARGS("cdi", "--library", STUB_LIBRARY, "--preload-file", preload, "-c", "web",
                           "-m", "4096", "--ledger", "/no/such/web.ledger")),
        0);
    assert_non_null(strstr(t.err, "there is no ledger /no/such/web.ledger yet"));
    assert_non_null(strstr(t.err, "vramcap create /no/such/web.ledger --memory 4096"));
    edits = edits_of(t.out, &spec);
    has_mount(edits, "/no/such/web.ledger", "/run/vramcap/ledger", "rw");
    json_decref(spec);
    assert_int_equal(tool_run(&t, NULL,
                              TOOL_ARGS("cdi", "--library", STUB_LIBRARY, "--preload-file", preload,
                                        "-c", "no-such-container", "-m", "4096")),
                     0);
    assert_non_null(strstr(t.out, "\"/run/vramcap/no-such-container.ledger\""));
    free(library);
}

static void refused(const char *const *argv, const char *line)
{
    int status = tool_run(&t, NULL, argv);
    if (status != 2 || !strstr(t.err, line))
        print_message("%d: %s", status, t.err);
    assert_int_equal(status, 2);
    assert_non_null(strstr(t.err, line));
    assert_string_equal(t.out, "");
    assert_int_equal(access(output, F_OK), -1);
}

static void mistakes_are_one_line_and_leave_no_file(void **state)
{
    (void)state;
    static const char *const names[] = {"", "-a", "a-", "a b", "a/b", "a:b", ".", "\xc3\xa4"};
    refused(CDI("-m", "4096", "-o", output), "--container is missing");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        refused(CDI("-c", names[i], "-o", output), "letters, digits");
    refused(CDI("-c", "web", "-m", "-1", "-o", output), "--memory '-1'");
    refused(CDI("-c", "web", "-o", output, "extra"), "takes no operand");
    refused(TOOL_ARGS("cdi", "-c", "web", "-o", output, "--library", "/no/such.so"), "/no/such.so");
    refused(CDI("-c", "web", "-o", output, "--ledger", "relative"), "an absolute path");
    refused(CDI("-c", "web", "-o", output, "--ledger", folder), "not a regular file");
    refused(CDI("-c", "web", "-o", output, "--preload-file", "/no/such"),
            "--preload-file /no/such");
    write_text(preload, "/usr/lib/other.so\n");
    refused(CDI("-c", "web", "-o", output), "does not name /opt/vramcap/libvramcap.so");
    write_text(preload, "/opt/vramcap/libvramcap.so\n");
    refused(CDI("-c", "web", "-o", "/no/such/folder/x.json"),
            "cannot write /no/such/folder/x.json");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(
        the_specification_has_environment_library_loader_file_and_ledger, setup, teardown),
    cmocka_unit_test_setup_teardown(audit_and_no_memory_leave_the_ceiling_to_the_ledger, setup,
                                    teardown),
    cmocka_unit_test_setup_teardown(a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it,
                                    setup, teardown),
    cmocka_unit_test_setup_teardown(a_ledger_that_is_not_there_yet_is_said_and_written_all_the_same,
                                    setup, teardown),
    cmocka_unit_test_setup_teardown(mistakes_are_one_line_and_leave_no_file, setup, teardown),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
