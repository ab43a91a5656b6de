/*
 * `vramcap cdi`: one container's ceiling as a CDI specification (Container Device Interface), which
 * podman, containerd, CRI-O and Docker apply to a container's OCI configuration:
 *
 *     environment   VRAMCAP_ENABLE, VRAMCAP_MEMORY_MIB
 *     mounts        libvramcap.so, the file that becomes /etc/ld.so.preload (both read-only), the ledger
 *
 * The kind is vramcap/ceiling and the device's name the container's, so a host may keep one file for
 * each container.  Versions of the format: 0.5.0 is the oldest in which a device's name may begin with
 * a digit.  Must not: make or change a ledger (`vramcap create` does), start anything, or leave half a
 * file behind: an engine reads /etc/cdi whenever it likes.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "enforcer/cli/command.h"
#include "enforcer/cli/library_path.h"
#include "enforcer/config.h"
#include "enforcer/ledger_path.h"

#define CDI_VERSION "0.5.0"
#define CDI_KIND "vramcap/ceiling"
#define LOADER_FILE "/etc/ld.so.preload"
#define LEDGER_FOLDER "/run/vramcap"
#define NAME_MAX_BYTES 128

enum {
    OPTION_MEMORY,
    OPTION_CONTAINER,
    OPTION_AUDIT,
    OPTION_LEDGER,
    OPTION_LIBRARY,
    OPTION_PRELOAD,
    OPTION_OUTPUT
};

static const struct vcap_option options[] = {
    [OPTION_MEMORY] = {"memory", 'm', "MIB", false,
                       "the ceiling: 4096, 4Gi, or 0=4096,GPU-<uuid>=8192"},
    [OPTION_CONTAINER] = {"container", 'c', "NAME", false,
                          "the container's name, which becomes the device's (required)"},
    [OPTION_AUDIT] = {"audit", 0, NULL, false,
                      "let everything through, record what would be refused"},
    [OPTION_LEDGER] = {"ledger", 'l', "PATH", false,
                       "the host's file; " LEDGER_FOLDER "/NAME.ledger if not given"},
    [OPTION_LIBRARY] = {"library", 0, "PATH", false, "mount this libvramcap.so"},
    [OPTION_PRELOAD] = {"preload-file", 0, "PATH", false,
                        "mount this file onto " LOADER_FILE "; it names\n" VCAP_CONTAINER_LIBRARY},
    [OPTION_OUTPUT] = {"output", 'o', "FILE", false, "write there instead of standard output"},
    {0},
};

struct wish {
    const char *memory, *container, *ledger, *library, *preload, *output;
    bool audit;
};

static int take(int option, const char *value, void *state)
{
    struct wish *wish = state;
    switch (option) {
    case OPTION_MEMORY:
        wish->memory = value;
        break;
    case OPTION_CONTAINER:
        wish->container = value;
        break;
    case OPTION_AUDIT:
        wish->audit = true;
        break;
    case OPTION_LEDGER:
        wish->ledger = value;
        break;
    case OPTION_LIBRARY:
        wish->library = value;
        break;
    case OPTION_PRELOAD:
        wish->preload = value;
        break;
    case OPTION_OUTPUT:
        wish->output = value;
        break;
    }
    return 0;
}

/* What CDI allows as a device's name (without ':', which a command line would make ambiguous). */
static bool is_device_name(const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length > NAME_MAX_BYTES || !isalnum((unsigned char)name[0]) ||
        !isalnum((unsigned char)name[length - 1]))
        return false;
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("_-.", *c))
            return false;
    return true;
}

static json_t *mount(const char *host, const char *container, bool writable)
{
    json_t *how = json_pack("[ssss]", "bind", "nosuid", "nodev", writable ? "rw" : "ro");
    if (how && writable) /* data; the library must stay executable */
        (void)json_array_append_new(how, json_string("noexec"));
    return json_pack("{ss ss so}", "hostPath", host, "containerPath", container, "options", how);
}

static json_t *make_spec(const struct wish *wish, const char *library, const char *preload,
                         const char *ledger)
{
    json_t *environment = json_array(), *mounts = json_array();
    char memory[4096];
    (void)json_array_append_new(
        environment, json_string(wish->audit ? "VRAMCAP_ENABLE=audit" : "VRAMCAP_ENABLE=1"));
    if (wish->memory) {
        int n = snprintf(memory, sizeof memory, "VRAMCAP_MEMORY_MIB=%s", wish->memory);
        (void)json_array_append_new(
            environment, n > 0 && (size_t)n < sizeof memory ? json_string(memory) : NULL);
    }
    (void)json_array_append_new(mounts, mount(library, VCAP_CONTAINER_LIBRARY, false));
    (void)json_array_append_new(mounts, mount(preload, LOADER_FILE, false));
    (void)json_array_append_new(mounts, mount(ledger, VCAP_LEDGER_HOST_PATH, true));
    if (json_array_size(environment) != (wish->memory ? 2u : 1u) || json_array_size(mounts) != 3) {
        json_decref(environment);
        json_decref(mounts);
        return NULL;
    }
    return json_pack("{ss ss s[{ss s{so so}}]}", "cdiVersion", CDI_VERSION, "kind", CDI_KIND,
                     "devices", "name", wish->container, "containerEdits", "env", environment,
                     "mounts", mounts);
}

/* A file beside the final one, then renamed: whoever reads the folder sees all of it or nothing. */
static int write_file(const char *path, const char *text)
{
    char *temporary;
    int fd, error = 0;
    if (asprintf(&temporary, "%s.XXXXXX", path) < 0)
        return -ENOMEM;
    if ((fd = mkostemp(temporary, O_CLOEXEC)) < 0) {
        error = -errno;
        free(temporary);
        return error;
    }
    if (dprintf(fd, "%s\n", text) < 0 || fchmod(fd, 0644) != 0 || fsync(fd) != 0)
        error = -errno;
    if (close(fd) != 0 && !error)
        error = -errno;
    if (!error && rename(temporary, path) != 0)
        error = -errno;
    if (error)
        (void)unlink(temporary);
    free(temporary);
    return error;
}

/* The runtime resolves paths on the host: absolute ones, without links that may change meanwhile. */
static int find_file(const char *what, const char *named, char path[PATH_MAX])
{
    struct stat st;
    if (!realpath(named, path) || stat(path, &st) != 0)
        return vcap_command_fail("cdi: %s %s: %s", what, named, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return vcap_command_fail("cdi: %s %s: not a regular file", what, named);
    return 0;
}

/* A mount of a ledger that is not there fails when the container starts: said now, not refused. */
static int find_ledger(const struct wish *wish, char path[PATH_MAX])
{
    struct stat st;
    int n = wish->ledger ? snprintf(path, PATH_MAX, "%s", wish->ledger)
                         : snprintf(path, PATH_MAX, "%s/%s.ledger", LEDGER_FOLDER, wish->container);
    if (n < 0 || n >= PATH_MAX)
        return vcap_command_fail("cdi: --ledger: its path is too long");
    if (path[0] != '/')
        return vcap_command_fail("cdi: --ledger '%s': an absolute path is needed", path);
    if (lstat(path, &st) != 0 && errno == ENOENT)
        (void)vcap_command_fail("cdi: there is no ledger %s yet; before the container starts: "
                                "vramcap create %s --memory %s --container %s",
                                path, path, wish->memory ? wish->memory : "MIB", wish->container);
    else if (!S_ISREG(st.st_mode))
        return vcap_command_fail("cdi: --ledger %s: not a regular file", path);
    return 0;
}

static int find_preload_file(const char *named, char path[PATH_MAX])
{
    char why[PATH_MAX + 256], text[256] = "";
    if (!named) {
        if (vcap_library_find_file("vramcap/ld.so.preload", path, PATH_MAX, why, sizeof why) != 0)
            return vcap_command_fail("cdi: %s; name it with --preload-file", why);
        return 0;
    }
    int status = find_file("--preload-file", named, path);
    if (status)
        return status;
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        (void)fclose(file);
    if (!memmem(text, n, VCAP_CONTAINER_LIBRARY, strlen(VCAP_CONTAINER_LIBRARY)))
        return vcap_command_fail("cdi: --preload-file %s does not name %s", named,
                                 VCAP_CONTAINER_LIBRARY);
    return 0;
}

static int run(int argc, char **argv)
{
    struct wish wish = {0};
    struct vcap_entries entries;
    char library[PATH_MAX], preload[PATH_MAX], ledger[PATH_MAX], why[PATH_MAX + 256] = "";
    int first;
    int status = vcap_command_parse(&vcap_command_cdi, argc, argv, take, &wish, &first);
    if (status >= 0)
        return status;
    if (first < argc)
        return vcap_command_fail("cdi: takes no operand, got '%s'", argv[first]);
    if (!wish.container)
        return vcap_command_fail("cdi: --container is missing; see: vramcap help cdi");
    if (!is_device_name(wish.container))
        return vcap_command_fail(
            "cdi: --container '%s': letters, digits, '-', '_' and '.', a letter or "
            "digit at both ends",
            wish.container);
    if (wish.memory &&
        vcap_config_parse_entries(wish.memory, false, &entries, why, sizeof why) != 0)
        return vcap_command_fail("cdi: --memory '%s': %s", wish.memory, why);
    if (vcap_library_find(wish.library, library, sizeof library, why, sizeof why) != 0)
        return vcap_command_fail("cdi: %s", why);
    if ((status = find_preload_file(wish.preload, preload)) != 0 ||
        (status = find_ledger(&wish, ledger)) != 0)
        return status;

    json_t *spec = make_spec(&wish, library, preload, ledger);
    char *text = spec ? json_dumps(spec, JSON_INDENT(2)) : NULL;
    json_decref(spec);
    if (!text)
        return vcap_command_fail("cdi: out of memory, or a path or option that is not UTF-8");
    if (!wish.output) {
        (void)printf("%s\n", text);
    } else {
        int error = write_file(wish.output, text);
        status = error
                     ? vcap_command_fail("cdi: cannot write %s: %s", wish.output, strerror(-error))
                     : VCAP_EXIT_DONE;
    }
    free(text);
    return status;
}

const struct vcap_command vcap_command_cdi = {
    .name = "cdi",
    .summary = "a container's ceiling as a CDI specification",
    .operands = "",
    .details = "Without --memory the ceiling is the one of the host's ledger.  Then:\n"
               "  vramcap create " LEDGER_FOLDER "/NAME.ledger --memory 4096 --container NAME\n"
               "  vramcap cdi --memory 4096 --container NAME --output /etc/cdi/vramcap-NAME.json\n"
               "  podman run --device " CDI_KIND "=NAME ...",
    .options = options,
    .run = run,
};
