/*
 * The container's key, computed in made-up /proc and cgroup trees: one per runtime and way of
 * running.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
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

#include "enforcer/ledger_path.h"

#define ID_A "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define ID_B "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
#define TASK "4bb3ac7d0b6f4e0f8b1c2d3e4f5a6b7c"
#define POD "pod2c48913c_b29f_11e7_9350_020968147796"
#define HOST_CGROUP_NS "cgroup:[4026531835]"

static char folder[64], proc[96], cgroup[96];

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

/* Makes the folders of a path below root and gives the path. */
static const char *place(const char *root, const char *name)
{
    static char path[512];

    snprintf(path, sizeof(path), "%s/%s", root, name);
    for (char *slash = strchr(path + strlen(folder) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    return path;
}

static void put(const char *root, const char *name, const char *text)
{
    int fd = open(place(root, name), O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void link_to(const char *name, const char *target)
{
    const char *path = place(proc, name);

    unlink(path);
    assert_int_equal(symlink(target, path), 0);
}

static void put_process(const char *pid, const char *mount_namespace, unsigned start)
{
    char name[64], text[256];

    snprintf(name, sizeof(name), "%s/ns/mnt", pid);
    if (mount_namespace != NULL)
        link_to(name, mount_namespace);
    snprintf(name, sizeof(name), "%s/stat", pid);
    snprintf(text, sizeof(text),
             "%s (a ) 99 (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %u 20 21 22\n", pid,
             start);
    put(proc, name, text);
}

/* A host without containers: process 1 started at 5, this process at 900. */
static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/vramcap-path-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(proc, sizeof(proc), "%s/proc", folder);
    snprintf(cgroup, sizeof(cgroup), "%s/cgroup", folder);
    put(proc, "sys/kernel/random/boot_id", "f07a1681-962f-46b1-80b4-9d2f6b087319\n");
    put(proc, "self/cgroup", "0::/user.slice/user-1000.slice/session-2.scope\n");
    link_to("self/ns/cgroup", HOST_CGROUP_NS);
    put_process("self", "mnt:[4026531840]", 900);
    put_process("1", "mnt:[4026531840]", 5);
    put_process("900", "mnt:[4026531840]", 900);
    return 0;
}

static const char *key_is(int kind)
{
    static char keys[8][VCAP_KEY_MAX]; /* the last eight answers stay readable */
    static unsigned turn;
    char *key = keys[turn++ % 8];

    memset(key, 'X', VCAP_KEY_MAX);
    errno = ENOTTY;
    assert_int_equal(vcap_key_compute(proc, cgroup, key), kind);
    assert_int_equal(errno, ENOTTY);
    assert_in_range(strlen(key), 5, VCAP_KEY_MAX - 1);
    assert_int_equal(strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789-"), strlen(key));
    return key;
}

/* ---- the container's part of a path ---- */

static void every_runtime_s_path_is_cut_behind_the_container(void **state)
{
    static const struct {
        const char *path, *part; /* NULL: names no container */
    } cases[] = {
        /* Docker: cgroupfs driver, systemd driver, processes moved below */
        {"/docker/" ID_A, "/docker/" ID_A},
        {"/docker/" ID_A "/init", "/docker/" ID_A},
        {"/system.slice/docker-" ID_A ".scope", "/system.slice/docker-" ID_A ".scope"},
        {"/system.slice/docker-" ID_A ".scope/system.slice/sshd.service",
         "/system.slice/docker-" ID_A ".scope"},
        /* Kubernetes: cgroupfs, systemd, containerd's hybrid form, CRI-O */
        {"/kubepods/burstable/" POD "/" ID_A, "/kubepods/burstable/" POD "/" ID_A},
        {"/kubepods.slice/kubepods-" POD ".slice/cri-containerd-" ID_A ".scope",
         "/kubepods.slice/kubepods-" POD ".slice/cri-containerd-" ID_A ".scope"},
        {"/system.slice/containerd.service/kubepods-besteffort-" POD ".slice:cri-containerd:" ID_A,
         "/system.slice/containerd.service/kubepods-besteffort-" POD ".slice:cri-containerd:" ID_A},
        {"/kubepods.slice/kubepods-" POD ".slice/crio-" ID_A ".scope/container",
         "/kubepods.slice/kubepods-" POD ".slice/crio-" ID_A ".scope"},
        {"/kubepods.slice/kubepods-" POD ".slice", NULL},
        {"/k8s.io/" ID_A, "/k8s.io/" ID_A},
        /* podman: root, rootless, cgroupfs */
        {"/machine.slice/libpod-" ID_A ".scope", "/machine.slice/libpod-" ID_A ".scope"},
        {"/machine.slice/libpod-" ID_A ".scope/container", "/machine.slice/libpod-" ID_A ".scope"},
        {"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" ID_A ".scope/container",
         "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" ID_A ".scope"},
        {"/libpod_parent/libpod-" ID_A "/container", "/libpod_parent/libpod-" ID_A},
        /* ECS: Docker below a task, systemd slices, containers without Docker */
        {"/ecs/" TASK "/" ID_A, "/ecs/" TASK "/" ID_A},
        {"/ecs/cluster/" TASK "/" ID_A "/x", "/ecs/cluster/" TASK "/" ID_A},
        {"/ecs/" TASK "/" TASK "-1234567890", "/ecs/" TASK "/" TASK "-1234567890"},
        {"/ecs/" TASK "/" TASK "-1234567890/y", "/ecs/" TASK "/" TASK "-1234567890"},
        {"/ecs/" TASK "/" TASK "-", NULL},
        {"/ecs/" TASK "/" TASK "-12x", NULL},
        {"/ecs/" TASK, NULL},
        {"/ecstasks.slice/ecstasks-" TASK ".slice/docker-" ID_A ".scope",
         "/ecstasks.slice/ecstasks-" TASK ".slice/docker-" ID_A ".scope"},
        {"/ecstasks.slice/ecstasks-" TASK ".slice", NULL},
        /* LXC, LXD, systemd-nspawn */
        {"/lxc/web1/user.slice", "/lxc/web1"},
        {"/lxc.payload.web1/system.slice/sshd.service", "/lxc.payload.web1"},
        {"/lxc.payload/web1/init.scope", "/lxc.payload/web1"},
        {"/lxc.monitor.web1", NULL},
        {"/machine.slice/machine-web1.scope/init.scope", "/machine.slice/machine-web1.scope"},
        {"/machine.slice/systemd-nspawn@web1.service/payload",
         "/machine.slice/systemd-nspawn@web1.service"},
        /* a container in a container is the outer one */
        {"/docker/" ID_A "/docker/" ID_B, "/docker/" ID_A},
        /* hosts */
        {"/", NULL},
        {"", NULL},
        {"/init.scope", NULL},
        {"/user.slice/user-1000.slice/session-2.scope", NULL},
        {"/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/"
         "vte-spawn-2c48913c-b29f-11e7-9350-020968147796.scope",
         NULL},
        {"/system.slice/docker.service", NULL},
        {"/system.slice/containerd.service", NULL},
        {"/machine.slice", NULL},
        {"/system.slice/machine-web1.scope", NULL},
        {"/../../user.slice", NULL},
        /* nearly ids */
        {"/docker/0123456789abcdef", NULL},
        {"/docker/x" ID_A, NULL},
        {"/docker/" ID_A "0", NULL},
        {"/docker/0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char part[512] = "untouched";
        int rc = vcap_key_container_part(cases[i].path, part, sizeof(part));
        const char *expected = cases[i].part != NULL ? cases[i].part : "untouched";

        if (rc != (cases[i].part != NULL ? 0 : -ENOENT) || strcmp(part, expected) != 0)
            fail_msg("path '%s': rc %d, '%s'; expected '%s'", cases[i].path, rc, part, expected);
    }
}

static void a_part_that_does_not_fit_is_not_cut(void **state)
{
    char part[16] = "untouched", whole[80];

    (void)state;
    assert_int_equal(vcap_key_container_part("/docker/" ID_A, part, sizeof(part)), -ENAMETOOLONG);
    assert_string_equal(part, "untouched");
    assert_int_equal(vcap_key_container_part("/docker/" ID_A, whole, 8 + 64), -ENAMETOOLONG);
    assert_int_equal(vcap_key_container_part("/docker/" ID_A, whole, 8 + 64 + 1), 0);
}

/* ---- kind 1 ---- */

static unsigned long long inode_of(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return (unsigned long long)st.st_ino;
}

static void a_cgroup_namespace_of_its_own_is_known_by_its_root(void **state)
{
    char expected[VCAP_KEY_MAX];

    (void)state;
    link_to("self/ns/cgroup", "cgroup:[4026532555]");
    put(proc, "self/cgroup", "0::/\n");
    put(cgroup, "cgroup.procs", "");
    snprintf(expected, sizeof(expected), "cgroup-%llu", inode_of(cgroup));
    assert_string_equal(key_is(VCAP_KEY_CGROUP_NAMESPACE), expected);
    /* a child of the container's cgroup is the container */
    put(proc, "self/cgroup", "0::/child\n");
    assert_string_equal(key_is(VCAP_KEY_CGROUP_NAMESPACE), expected);
}

static void version_1_takes_the_first_hierarchy_of_a_fixed_list(void **state)
{
    char expected[VCAP_KEY_MAX];

    (void)state;
    link_to("self/ns/cgroup", "cgroup:[4026532555]");
    put(cgroup, "pids/cgroup.procs", "");
    put(cgroup, "memory/cgroup.procs", "");
    put(cgroup, "unified/cgroup.procs", "");
    snprintf(expected, sizeof(expected), "cgroup-%llu", inode_of(place(cgroup, "memory")));
    assert_string_equal(key_is(VCAP_KEY_CGROUP_NAMESPACE), expected);
}

static void the_host_s_cgroup_namespace_is_nobody_s_own(void **state)
{
    (void)state;
    put(cgroup, "cgroup.procs", "");
    key_is(VCAP_KEY_MOUNT_NAMESPACE);
    put(proc, "self/cgroup", "0::/system.slice/docker-" ID_A ".scope\n");
    key_is(VCAP_KEY_CGROUP_PATH);
}

static void a_cgroup_namespace_without_a_cgroup_mount_falls_to_the_next_kind(void **state)
{
    (void)state;
    link_to("self/ns/cgroup", "cgroup:[4026532555]");
    put(proc, "self/cgroup", "0::/\n");
    key_is(VCAP_KEY_MOUNT_NAMESPACE);
    put(cgroup, "not-a-cgroup", ""); /* the folder alone is no evidence */
    key_is(VCAP_KEY_MOUNT_NAMESPACE);
    put(proc, "self/cgroup", "0::/docker/" ID_A "\n");
    key_is(VCAP_KEY_CGROUP_PATH);
}

/* ---- kind 2 ---- */

static void a_path_gives_one_key_to_a_container_and_its_children(void **state)
{
    const char *first;

    (void)state;
    put(proc, "self/cgroup", "0::/system.slice/docker-" ID_A ".scope\n");
    first = key_is(VCAP_KEY_CGROUP_PATH);
    put(proc, "self/cgroup", "0::/system.slice/docker-" ID_A ".scope/nested/deeper\n");
    assert_string_equal(key_is(VCAP_KEY_CGROUP_PATH), first);
    put_process("1", "mnt:[4026539999]", 77); /* and nothing else counts */
    put_process("self", "mnt:[4026539999]", 78);
    assert_string_equal(key_is(VCAP_KEY_CGROUP_PATH), first);
    put(proc, "self/cgroup", "0::/system.slice/docker-" ID_B ".scope\n");
    assert_string_not_equal(key_is(VCAP_KEY_CGROUP_PATH), first);
}

static void version_1_takes_the_first_line_that_names_a_container(void **state)
{
    const char *first;

    (void)state;
    put(proc, "self/cgroup",
        "12:memory:/docker/" ID_A "\n11:cpu,cpuacct:/docker/" ID_A "\n"
        "1:name=systemd:/docker/" ID_A "\n0::/system.slice/containerd.service\n");
    first = key_is(VCAP_KEY_CGROUP_PATH);
    /* moved to a child in one hierarchy, out of the container in another */
    put(proc, "self/cgroup",
        "12:memory:/mine\n11:cpu,cpuacct:/docker/" ID_A "/child\n"
        "1:name=systemd:/docker/" ID_A "\n0::/\n");
    assert_string_equal(key_is(VCAP_KEY_CGROUP_PATH), first);
}

static void lines_that_are_none_are_passed_over(void **state)
{
    (void)state;
    put(proc, "self/cgroup", "\nnonsense\n:\n::\n1:docker/" ID_A "\n0::/docker/" ID_A);
    key_is(VCAP_KEY_CGROUP_PATH);
    put(proc, "self/cgroup", "\nnonsense\n1:docker/" ID_A "\n");
    key_is(VCAP_KEY_MOUNT_NAMESPACE);
}

/* ---- kind 3 ---- */

static void a_host_session_is_known_by_mount_namespace_boot_and_first_process(void **state)
{
    const char *first = NULL;

    (void)state;
    first = key_is(VCAP_KEY_MOUNT_NAMESPACE);
    assert_ptr_equal(strstr(first, "mnt-4026531840-"), first);
    /* the same for every process of it */
    put(proc, "self/cgroup", "0::/system.slice/cron.service\n");
    put_process("self", "mnt:[4026531840]", 1234);
    assert_string_equal(key_is(VCAP_KEY_MOUNT_NAMESPACE), first);
    /* another namespace, another boot, another first process: each another key */
    put(proc, "sys/kernel/random/boot_id", "11111111-962f-46b1-80b4-9d2f6b087319\n");
    assert_string_not_equal(key_is(VCAP_KEY_MOUNT_NAMESPACE), first);
    put(proc, "sys/kernel/random/boot_id", "f07a1681-962f-46b1-80b4-9d2f6b087319\n");
    put_process("1", "mnt:[4026531840]", 6);
    assert_string_not_equal(key_is(VCAP_KEY_MOUNT_NAMESPACE), first);
    put_process("1", "mnt:[4026531841]", 5);
    put_process("self", "mnt:[4026531841]", 900);
    assert_string_not_equal(key_is(VCAP_KEY_MOUNT_NAMESPACE), first);
}

static void the_oldest_process_of_the_same_mount_namespace_counts(void **state)
{
    const char *first;

    (void)state;
    /* a mount namespace without a PID namespace: process 1 is somebody else's */
    put_process("self", "mnt:[4026532777]", 900);
    put_process("900", "mnt:[4026532777]", 900);
    put_process("700", "mnt:[4026532777]", 700);
    put_process("600", "mnt:[4026532888]", 600);
    first = key_is(VCAP_KEY_MOUNT_NAMESPACE);
    put_process("self", "mnt:[4026532777]", 800);
    put_process("800", "mnt:[4026532777]", 800);
    assert_string_equal(key_is(VCAP_KEY_MOUNT_NAMESPACE), first);
    put_process("700", "mnt:[4026532777]", 701);
    assert_string_not_equal(key_is(VCAP_KEY_MOUNT_NAMESPACE), first);
}

static void every_uid_finds_the_same_first_process(void **state)
{
    const char *first;

    (void)state;
    put(proc, "1/mountinfo", "43 42 254:0 / / rw - ext4 /dev/vda rw\n44 43 0:1 / /proc rw\n");
    put(proc, "self/mountinfo", "43 42 254:0 / / rw - ext4 /dev/vda rw\n44 43 0:1 / /proc rw\n");
    first = key_is(VCAP_KEY_MOUNT_NAMESPACE);
    /* another UID's link cannot be read, its mounts can */
    unlink(place(proc, "1/ns/mnt"));
    assert_string_equal(key_is(VCAP_KEY_MOUNT_NAMESPACE), first);
    put(proc, "1/mountinfo", "22 27 0:21 / / rw - ext4 /dev/vdb rw\n");
    assert_string_not_equal(key_is(VCAP_KEY_MOUNT_NAMESPACE), first);
}

static void without_a_mount_namespace_there_is_no_key(void **state)
{
    char key[VCAP_KEY_MAX] = "untouched";

    (void)state;
    unlink(place(proc, "self/ns/mnt"));
    assert_int_equal(vcap_key_compute(proc, cgroup, key), -ENOENT);
    assert_string_equal(key, "untouched");
    link_to("self/ns/mnt", "nonsense");
    assert_int_equal(vcap_key_compute(proc, cgroup, key), -EINVAL);
    assert_int_equal(vcap_key_compute("/nonexistent", cgroup, key), -ENOENT);
}

static void this_machine_has_a_key_and_keeps_it(void **state)
{
    char one[VCAP_KEY_MAX], two[VCAP_KEY_MAX];

    (void)state;
    assert_true(vcap_key_compute("/proc", "/sys/fs/cgroup", one) > 0);
    assert_true(vcap_key_compute("/proc", "/sys/fs/cgroup", two) > 0);
    assert_string_equal(one, two);
    print_message("this machine: %s\n", one);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_runtime_s_path_is_cut_behind_the_container),
        cmocka_unit_test(a_part_that_does_not_fit_is_not_cut),
        TEST(a_cgroup_namespace_of_its_own_is_known_by_its_root),
        TEST(version_1_takes_the_first_hierarchy_of_a_fixed_list),
        TEST(the_host_s_cgroup_namespace_is_nobody_s_own),
        TEST(a_cgroup_namespace_without_a_cgroup_mount_falls_to_the_next_kind),
        TEST(a_path_gives_one_key_to_a_container_and_its_children),
        TEST(version_1_takes_the_first_line_that_names_a_container),
        TEST(lines_that_are_none_are_passed_over),
        TEST(a_host_session_is_known_by_mount_namespace_boot_and_first_process),
        TEST(the_oldest_process_of_the_same_mount_namespace_counts),
        TEST(every_uid_finds_the_same_first_process),
        TEST(without_a_mount_namespace_there_is_no_key),
        cmocka_unit_test(this_machine_has_a_key_and_keeps_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
