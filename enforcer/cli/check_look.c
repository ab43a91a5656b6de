/*
 * Looking at the process that the check is about: its memory map, its environment, files below its root.  A
 * stranger may make whoever reads these wait, for as long as it likes (the lock of its memory map; a file system
 * that it serves itself), and some of these waits cannot be ended from outside.  So a child looks, with a time limit;
 * this process touches nothing of the stranger's.
 */
#include "enforcer/cli/check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "enforcer/agent/proc_file.h"
#include "enforcer/ledger_read_open.h"

#ifndef SYS_openat2
#define SYS_openat2 __NR_openat2 /* glibc before 2.32 has no name for it */
#endif

#define LOOK_MS 3000

struct environment {
    int32_t length; /* or -errno */
    char text[VCAP_CHECK_ENVIRONMENT];
};

struct file_wish {
    pid_t pid;
    char path[256]; /* below the root of the process */
};

struct file_answer {
    int32_t error; /* 0 or -errno */
    char text[2048];
};

/* ---- in the child; of the check's own process, without one ---- */

static void note_file(const char *path, const char *word, char *to, size_t size)
{
    if (to[0] == '\0' && strstr(path, word))
        (void)snprintf(to, size, "%s", path);
}

/* The first mapped files whose names have those words. */
static int read_files(pid_t pid, struct vcap_check_map *map)
{
    char name[64], line[1024];
    FILE *maps;

    (void)snprintf(name, sizeof name, "/proc/%d/maps", (int)pid);
    maps = fopen(name, "re");
    if (!maps)
        return -errno;
    while (fgets(line, sizeof line, maps)) {
        const char *at = strchr(line, '/');
        line[strcspn(line, "\n")] = '\0';
        if (at) {
            note_file(at, "libvramcap", map->library, sizeof map->library);
            note_file(at, "libvgpu", map->other, sizeof map->other);
        }
    }
    (void)fclose(maps);
    return 0;
}

static void ask_map(const void *wish, void *answer)
{
    const pid_t pid = *(const pid_t *)wish;
    struct vcap_check_map *map = answer;

    map->error = read_files(pid, map);
    if (map->error == 0 && !vcap_process_look(pid, LOOK_MS * UINT64_C(1000000), &map->process))
        map->error = -ESRCH;
}

static void ask_environment(const void *wish, void *answer)
{
    struct environment *environment = answer;

    environment->length = (int32_t)vcap_proc_read(*(const pid_t *)wish, "environ",
                                                  environment->text, sizeof environment->text);
}

/* The root of the process; a link there leads to something below it and to no file of the host's. */
static int open_root(pid_t pid)
{
    char name[64];

    (void)snprintf(name, sizeof name, "/proc/%d/root", (int)pid);
    return open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static void ask_text(const void *wish, void *answer)
{
    const struct file_wish *file = wish;
    struct file_answer *found = answer;
    char why[128];
    int root = open_root(file->pid);
    int fd =
        root < 0 ? -errno : vcap_read_open_at(root, file->path, RESOLVE_IN_ROOT, why, sizeof why);
    ssize_t n = fd < 0 ? 0 : read(fd, found->text, sizeof found->text - 1);

    found->error = fd < 0 ? fd : n < 0 ? -errno : 0;
}

static void ask_existence(const void *wish, void *answer)
{
    const struct file_wish *file = wish;
    struct file_answer *found = answer;
    struct open_how how = {.flags = O_PATH | O_CLOEXEC,
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    int root = open_root(file->pid);

    if (root < 0 || syscall(SYS_openat2, root, file->path, &how, sizeof how) < 0)
        found->error = -errno;
}

static const struct vcap_check_question for_map = {ask_map, LOOK_MS, true};
static const struct vcap_check_question for_environment = {ask_environment, LOOK_MS, true};
static const struct vcap_check_question for_text = {ask_text, LOOK_MS, true};
static const struct vcap_check_question for_existence = {ask_existence, LOOK_MS, true};

/* ---- in the parent ---- */

static void say_unseen(struct vcap_check *check, const char *what, int error, const char *unknown)
{
    char why[VCAP_CHECK_WHY];

    check->unseen = true;
    if (error == -ETIMEDOUT)
        (void)snprintf(why, sizeof why, "it makes its readers wait (no answer within %d s)",
                       LOOK_MS / 1000);
    else if (error == -ECHILD)
        (void)snprintf(why, sizeof why, "the child that looked ended without an answer");
    else
        (void)snprintf(why, sizeof why, "%s", strerror(-error));
    vcap_check_say(check, "process", NULL, VCAP_CHECK_UNKNOWN,
                   "%s of process %d cannot be looked at: %s; %s", what, (int)check->pid, why,
                   unknown);
}

void vcap_check_look(struct vcap_check *check)
{
    static struct environment environment; /* large */
    int error;

    if (check->self) {
        ask_map(&check->pid, &check->map);
        return;
    }
    error = vcap_check_child(&for_map, &check->pid, &check->map, sizeof check->map);
    if (error != 0)
        check->map.error = error;
    /* it is read through the same memory map */
    if (check->map.error == -ETIMEDOUT)
        error = -ETIMEDOUT;
    else
        error = vcap_check_child(&for_environment, &check->pid, &environment, sizeof environment);
    if (error == 0 && environment.length < 0)
        error = environment.length;
    if (error == 0) {
        memcpy(check->environment, environment.text, sizeof check->environment);
        check->environment_length = (size_t)environment.length;
    }
    check->environment_error = error;
    if (check->map.error != 0)
        say_unseen(check, error != 0 ? "memory map and environment" : "memory map",
                   check->map.error,
                   error != 0 ? "its library, ledger, configuration and container are not known"
                              : "its library, ledger and container are not known");
    else if (error != 0)
        say_unseen(check, "environment", error, "its configuration is not known");
}

bool vcap_check_variable(const struct vcap_check *check, const char *name, char *value, size_t size)
{
    const size_t length = strlen(name);

    if (check->self) {
        const char *text = getenv(name);
        if (text)
            (void)snprintf(value, size, "%s", text);
        return text != NULL;
    }
    for (size_t at = 0; at < check->environment_length; at += strlen(check->environment + at) + 1) {
        const char *entry = check->environment + at;
        if (strncmp(entry, name, length) == 0 && entry[length] == '=') {
            (void)snprintf(value, size, "%s", entry + length + 1);
            return true;
        }
    }
    return false;
}

/* What a child found out about a file of the process's; -ETIMEDOUT is said. */
static int ask_file(struct vcap_check *check, const struct vcap_check_question *question,
                    const char *path, const char *unknown, struct file_answer *answer)
{
    struct file_wish wish = {.pid = check->pid};
    int error;

    memset(answer, 0, sizeof *answer);
    if (snprintf(wish.path, sizeof wish.path, "%s", path) >= (int)sizeof wish.path)
        return -ENAMETOOLONG;
    error = vcap_check_child(question, &wish, answer, sizeof *answer);
    if (error != 0)
        say_unseen(check, path, error, unknown);
    return error != 0 ? error : answer->error;
}

bool vcap_check_preload_file(struct vcap_check *check, char *text, size_t size)
{
    static const char path[] = "/etc/ld.so.preload";
    struct file_answer answer;

    if (check->self) {
        FILE *file = fopen(path, "re");
        size_t n = file ? fread(text, 1, size - 1, file) : 0;
        text[n] = '\0';
        return file && fclose(file) == 0;
    }
    if (ask_file(check, &for_text, path, "whether it names the library is not known", &answer) != 0)
        return false;
    (void)snprintf(text, size, "%s", answer.text);
    return true;
}

int vcap_check_exists(struct vcap_check *check, const char *path)
{
    struct file_answer answer;

    if (check->self)
        return access(path, F_OK) == 0;
    int error = ask_file(check, &for_existence, path, "whether it exists is not known", &answer);
    return error == 0 ? 1 : error == -ENOENT || error == -ENOTDIR ? 0 : -1;
}
