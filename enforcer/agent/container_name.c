/*
 * From cgroup paths to names.  Each component of a path is looked at on its own; the last one that
 * names a container wins, so that what a container makes below its own cgroup ("container",
 * "init.scope", "session") does not hide it.  The text is the kernel's, but the names in it were
 * chosen by runtimes and users: every copy is bounded.  Must not: read files, allocate, log.
 *
 * Sources of the forms: systemd.scope and machined documentation; Kubernetes
 * pkg/kubelet/cm (cgroupfs and systemd drivers); CRI-O and podman manuals; Amazon ECS agent
 * (taskresource/cgroup: /ecs/TASK/ID, ecstasks-TASK.slice); nerdctl and LXC manuals.
 */
#include "enforcer/agent/container_name.h"

#include <stddef.h>
#include <string.h>

#define ID_CHARS 64
#define ECS_TASK_CHARS 32

struct word {
    const char *at;
    size_t length;
};

static bool is(struct word w, const char *text)
{
    return w.length == strlen(text) && memcmp(w.at, text, w.length) == 0;
}

static bool strip_front(struct word *w, const char *text)
{
    size_t n = strlen(text);
    if (w->length <= n || memcmp(w->at, text, n) != 0)
        return false;
    w->at += n;
    w->length -= n;
    return true;
}

static bool strip_end(struct word *w, const char *text)
{
    size_t n = strlen(text);
    if (w->length <= n || memcmp(w->at + w->length - n, text, n) != 0)
        return false;
    w->length -= n;
    return true;
}

static bool is_hex(struct word w, size_t length)
{
    if (w.length != length)
        return false;
    for (size_t i = 0; i < length; i++)
        if (!(w.at[i] >= '0' && w.at[i] <= '9') && !(w.at[i] >= 'a' && w.at[i] <= 'f'))
            return false;
    return true;
}

/* 8-4-4-4-12 hexadecimal digits between dashes or, as systemd must have it, underscores; or 32
 * digits (static pods). */
static bool is_uid(struct word w)
{
    if (is_hex(w, 32))
        return true;
    if (w.length != 36)
        return false;
    for (size_t i = 0; i < 36; i++) {
        char c = w.at[i];
        bool separator = i == 8 || i == 13 || i == 18 || i == 23;
        if (separator ? c != '-' && c != '_' : !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f'))
            return false;
    }
    return true;
}

static void copy(char *to, size_t size, struct word w)
{
    size_t n = w.length < size - 1 ? w.length : size - 1;
    memcpy(to, w.at, n);
    to[n] = '\0';
}

#define COPY(field, w) copy((field), sizeof(field), (w))

/* "podUID", "kubepods-burstable-podUID.slice", "kubelet-kubepods-podUID.slice",
 * "machine-libpod_pod_ID.slice": what stands behind the last "pod". */
static bool take_pod(struct word w, struct vcap_container_name *name)
{
    (void)strip_end(&w, ".slice");
    for (size_t at = w.length; at-- > 0;) {
        struct word rest = {w.at + at, w.length - at};
        bool podman = strip_front(&rest, "libpod_pod_") && is_hex(rest, ID_CHARS);
        if (!podman) {
            rest = (struct word){w.at + at, w.length - at};
            if ((at > 0 && w.at[at - 1] != '-') || !strip_front(&rest, "pod") || !is_uid(rest))
                continue;
        }
        COPY(name->pod, rest);
        for (char *c = name->pod; *c; c++)
            if (*c == '_')
                *c = '-';
        return true;
    }
    return false;
}

/* A runtime's word in front of a 64-digit id: "docker-ID.scope", "...slice:cri-containerd:ID". */
static bool take_id(struct word parent, struct word w, struct vcap_container_name *name)
{
    static const struct {
        const char *word, *runtime;
    } runtimes[] = {
        {"docker", "docker"},
        {"cri-containerd", "containerd"},
        {"containerd", "containerd"},
        {"nerdctl", "containerd"},
        {"crio", "crio"},
        {"libpod", "podman"},
    };
    (void)strip_end(&w, ".scope");
    if (w.length < ID_CHARS)
        return false;
    struct word id = {w.at + w.length - ID_CHARS, ID_CHARS};
    struct word front = {w.at, w.length - ID_CHARS};
    if (!is_hex(id, ID_CHARS))
        return false;
    if (front.length == 0) { /* the cgroupfs driver: the parent knows */
        const char *runtime = is(parent, "docker")                ? "docker"
                              : is(parent, "libpod_parent")       ? "podman"
                              : *name->pod && *name->runtime == 0 ? "kubernetes"
                                                                  : "containerd";
        copy(name->runtime, sizeof name->runtime, (struct word){runtime, strlen(runtime)});
        COPY(name->id, id);
        return true;
    }
    char separator = front.at[--front.length];
    if (separator != '-' && separator != ':')
        return false;
    for (size_t i = 0; i < sizeof runtimes / sizeof *runtimes; i++) {
        size_t n = strlen(runtimes[i].word);
        struct word last = {front.at + (front.length >= n ? front.length - n : 0), n};
        bool whole = front.length == n;
        if (front.length < n || !is(last, runtimes[i].word) ||
            (!whole && last.at[-1] != ':' && last.at[-1] != '/'))
            continue;
        copy(name->runtime, sizeof name->runtime,
             (struct word){runtimes[i].runtime, strlen(runtimes[i].runtime)});
        if (!whole) /* "kubepods-podUID.slice:cri-containerd:ID" */
            (void)take_pod((struct word){front.at, front.length - n - 1}, name);
        COPY(name->id, id);
        return true;
    }
    return false; /* crio-conmon-ID, libpod-conmon-ID: the runtime's own process */
}

/* ECS: "ecs/TASK", "ecstasks-TASK.slice", and on Fargate "TASK/TASK-NUMBER". */
static bool take_ecs(struct word parent, struct word w, struct vcap_container_name *name)
{
    struct word task = w;
    if (is(parent, "ecs") && (is_hex(w, ECS_TASK_CHARS) || is_uid(w))) {
        COPY(name->ecs_task, w);
        return false;
    }
    if (strip_front(&task, "ecstasks-") && strip_end(&task, ".slice") &&
        is_hex(task, ECS_TASK_CHARS)) {
        COPY(name->ecs_task, task);
        return false;
    }
    if (!is_hex(parent, ECS_TASK_CHARS) || w.length < ECS_TASK_CHARS + 2 ||
        memcmp(parent.at, w.at, ECS_TASK_CHARS) != 0 || w.at[ECS_TASK_CHARS] != '-')
        return false;
    for (size_t i = ECS_TASK_CHARS + 1; i < w.length; i++)
        if (w.at[i] < '0' || w.at[i] > '9')
            return false;
    copy(name->runtime, sizeof name->runtime, (struct word){"ecs", 3});
    COPY(name->ecs_task, parent);
    COPY(name->id, w);
    return true;
}

static bool take_machine(struct word parent, struct word w, struct vcap_container_name *name)
{
    const char *runtime = "lxc";
    struct word id = w;
    if (is(parent, "lxc") || is(parent, "lxc.payload") || strip_front(&id, "lxc.payload.")) {
        /* the name itself */
    } else if ((is(parent, "machine.slice") && strip_front(&id, "machine-") &&
                strip_end(&id, ".scope")) ||
               (strip_front(&id, "systemd-nspawn@") && strip_end(&id, ".service"))) {
        runtime = "machine";
    } else {
        return false;
    }
    copy(name->runtime, sizeof name->runtime, (struct word){runtime, strlen(runtime)});
    COPY(name->id, id);
    return true;
}

static bool is_unit(struct word w)
{
    return strip_end(&w, ".service") || strip_end(&w, ".scope");
}

/* One path of /proc/PID/cgroup. */
static void parse_path(struct word path, struct vcap_container_name *name)
{
    struct word parent = {path.at, 0}, unit = {path.at, 0};
    memset(name, 0, sizeof *name);
    for (size_t at = 0; at < path.length;) {
        const char *slash = memchr(path.at + at, '/', path.length - at);
        struct word w = {path.at + at, (slash ? (size_t)(slash - path.at) : path.length) - at};
        at += w.length + 1;
        if (w.length == 0 || is(w, "..")) /* seen from another cgroup namespace */
            continue;
        if (take_ecs(parent, w, name) || take_id(parent, w, name) || take_machine(parent, w, name))
            name->container = true;
        else
            (void)take_pod(w, name);
        if (is_unit(w))
            unit = w;
        parent = w;
    }
    if (name->container && *name->ecs_task)
        copy(name->runtime, sizeof name->runtime, (struct word){"ecs", 3});
    if (name->container)
        return;
    if (unit.length > 0) {
        copy(name->runtime, sizeof name->runtime, (struct word){"systemd", 7});
        COPY(name->id, unit);
    } else if (path.length > 1 || (path.length == 1 && path.at[0] != '/')) {
        copy(name->runtime, sizeof name->runtime, (struct word){"cgroup", 6});
        COPY(name->id, path);
    }
}

/* A container beats a unit, a unit a plain path, a path nothing. */
static int worth(const struct vcap_container_name *name)
{
    return name->container ? 3 : !strcmp(name->runtime, "systemd") ? 2 : *name->runtime ? 1 : 0;
}

void vcap_container_name_parse(const char *cgroup_text, struct vcap_container_name *name)
{
    struct vcap_container_name one;
    memset(name, 0, sizeof *name);
    for (const char *line = cgroup_text; *line;) {
        size_t length = strcspn(line, "\n");
        const char *end = line + length;
        const char *path = memchr(line, ':', length); /* hierarchy:controllers:path */
        path = path ? memchr(path + 1, ':', (size_t)(end - path - 1)) : NULL;
        if (path) {
            parse_path((struct word){path + 1, (size_t)(end - path - 1)}, &one);
            if (worth(&one) > worth(name))
                *name = one;
        }
        line = end + (*end == '\n');
    }
}

void vcap_container_name_label(const struct vcap_container_name *name,
                               char label[VCAP_CONTAINER_LABEL])
{
    struct word id = {name->id, strlen(name->id)};
    size_t n = is_hex(id, ID_CHARS) ? 12 : id.length;
    if (n >= VCAP_CONTAINER_LABEL)
        n = VCAP_CONTAINER_LABEL - 1;
    for (size_t i = 0; i < n; i++) {
        char c = name->id[i];
        label[i] = (char)(c > 0x20 && c < 0x7f && c != '"' && c != '\\' ? c : '_');
    }
    label[n] = '\0';
}

bool vcap_container_name_same(const struct vcap_container_name *a,
                              const struct vcap_container_name *b)
{
    return a->container && b->container && !strcmp(a->runtime, b->runtime) && !strcmp(a->id, b->id);
}
