/*
 * Checks in a sandbox: its command line, and looking for lines.
 */
#include "tests/multi/check_box.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/skip.h"

struct child_output output;

void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

void sandbox(const struct fixture *f, const char *command, bool own_pids, const char **argv)
{
    /* bubblewrap itself runs without what is preloaded: a sanitizer's runtime does not bear its ways */
    static const char *const begin[] = {
        "sh",
        "-c",
        "BOX_PRELOAD=$LD_PRELOAD; export BOX_PRELOAD; unset LD_PRELOAD; exec bwrap \"$@\"",
        "sh",
        "--bind",
        "/",
        "/",
        "--dev-bind",
        "/dev",
        "/dev",
        "--proc",
        "/proc",
        "--tmpfs",
        "/run",
        "--tmpfs",
        "/etc",
        "--die-with-parent"};
    static char inside[2000];
    unsigned n = 0;

    for (size_t i = 0; i < COUNT(begin); i++)
        argv[n++] = begin[i];
    if (own_pids)
        argv[n++] = "--unshare-pid";
    if (access(fixture_path(f, "etc"), F_OK) == 0) {
        argv[n++] = "--ro-bind";
        argv[n++] = fixture_path(f, "etc");
        argv[n++] = "/etc/vramcap";
    }
    if (access(fixture_path(f, "preload"), F_OK) == 0) {
        argv[n++] = "--ro-bind";
        argv[n++] = fixture_path(f, "preload");
        argv[n++] = "/etc/ld.so.preload";
    }
    if (access(fixture_path(f, "cgroup"), F_OK) == 0) { /* what the command execs is number 1 */
        argv[n++] = "--as-pid-1";
        argv[n++] = "--ro-bind";
        argv[n++] = fixture_path(f, "cgroup");
        argv[n++] = "/proc/1/cgroup";
    }
    snprintf(
        inside, sizeof(inside),
        "if [ -n \"$BOX_PRELOAD\" ]; then LD_PRELOAD=$BOX_PRELOAD; export LD_PRELOAD; fi; unset "
        "BOX_PRELOAD; %s",
        command);
    argv[n++] = "sh";
    argv[n++] = "-c";
    argv[n++] = inside;
    argv[n++] = TOOL;
    argv[n++] = CLIENT;
    argv[n] = NULL;
}

void needs_bwrap(const struct fixture *f)
{
    const char *const bare[] = {ALONE, NULL};
    const char *argv[40];

    sandbox(f, "true", true, argv);
    child_run(f, argv, bare, &output);
    if (output.status != 0)
        SKIP_BECAUSE("bubblewrap does not work here: %s", output.err);
}

int check_with(const struct fixture *f, const char *const *extra, const char *command)
{
    const char *argv[40];

    sandbox(f, command, true, argv);
    child_run(f, argv, extra, &output);
    return output.status;
}
int check(const struct fixture *f, const char *const *extra)
{
    return check_with(f, extra, CHECK);
}

bool says(const char *state, const char *kind, const char *words)
{
    static char text[sizeof(output.out)];
    char *rest = text, *line;

    memcpy(text, output.out, sizeof(text));
    while ((line = strsep(&rest, "\n")) != NULL) {
        char is[16], of[32];

        if (sscanf(line, "%15s %31s", is, of) == 2 && strcmp(is, state) == 0 &&
            strcmp(of, kind) == 0 && strstr(line, words) != NULL)
            return true;
    }
    return false;
}
unsigned count_said(const char *kind)
{
    unsigned count = 0;

    for (const char *line = output.out; *line != '\0';) {
        char of[32];
        const char *end = strchr(line, '\n');

        count += sscanf(line, "%*15s %31s", of) == 1 && strcmp(of, kind) == 0;
        line = end == NULL ? strchr(line, '\0') : end + 1;
    }
    return count;
}
bool speaks_of(const char *kind)
{
    return says("ok", kind, "") || says("finding", kind, "") || says("note", kind, "") ||
           says("unknown", kind, "");
}
