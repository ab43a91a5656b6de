/*
 * Names of containers from /proc/PID/cgroup: a table of what runtimes write.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "enforcer/agent/container_name.h"

#define ID "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define ID2 "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
#define UID "8c6a3f1e-5b1c-4b0e-9d6f-0a1b2c3d4e5f"
#define UID_ "8c6a3f1e_5b1c_4b0e_9d6f_0a1b2c3d4e5f"
#define TASK "00112233445566778899aabbccddeeff"

static const struct row {
    const char *text, *runtime, *id, *pod, *task;
} rows[] = {
    /* Docker */
    {"0::/system.slice/docker-" ID ".scope", "docker", ID, "", ""},
    {"0::/docker/" ID, "docker", ID, "", ""},
    {"12:memory:/docker/" ID "\n11:cpu,cpuacct:/docker/" ID "\n0::/", "docker", ID, "", ""},
    {"0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-" ID ".scope", "docker",
     ID, "", ""},
    {"0::/docker/" ID "/docker/" ID2, "docker", ID2, "", ""},
    {"0::/docker/" ID "/init.scope", "docker", ID, "", ""},
    /* Kubernetes, containerd */
    {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" UID_
     ".slice/cri-containerd-" ID ".scope",
     "containerd", ID, UID, ""},
    {"0::/kubepods.slice/kubepods-pod" UID_ ".slice/cri-containerd-" ID ".scope", "containerd", ID,
     UID, ""},
    {"5:devices:/kubepods/besteffort/pod" UID "/" ID, "kubernetes", ID, UID, ""},
    {"0::/kubepods/pod" UID "/" ID, "kubernetes", ID, UID, ""},
    {"0::/system.slice/containerd.service/kubepods-burstable-pod" UID_ ".slice:cri-containerd:" ID,
     "containerd", ID, UID, ""},
    {"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
     "kubelet-kubepods-besteffort-pod" UID_ ".slice/cri-containerd-" ID ".scope",
     "containerd", ID, UID, ""},
    {"0::/docker/" ID2 "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" UID_
     ".slice/cri-containerd-" ID ".scope",
     "containerd", ID, UID, ""},
    {"0::/kubepods.slice/kubepods-pod" UID_ ".slice/docker-" ID ".scope", "docker", ID, UID, ""},
    {"0::/kubepods/burstable/podaabbccddeeff00112233445566778899/" ID, "kubernetes", ID,
     "aabbccddeeff00112233445566778899", ""},
    {"0::/../../kubepods-pod" UID_ ".slice/cri-containerd-" ID ".scope", "containerd", ID, UID, ""},
    {"0::/default/" ID, "containerd", ID, "", ""},
    {"0::/system.slice/nerdctl-" ID ".scope", "containerd", ID, "", ""},
    /* CRI-O and podman */
    {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" UID_ ".slice/crio-" ID
     ".scope",
     "crio", ID, UID, ""},
    {"0::/kubepods.slice/kubepods-pod" UID_ ".slice/crio-conmon-" ID ".scope", "systemd",
     "crio-conmon-" ID ".scope", UID, ""},
    {"0::/machine.slice/libpod-" ID ".scope/container", "podman", ID, "", ""},
    {"0::/machine.slice/machine-libpod_pod_" ID2 ".slice/libpod-" ID ".scope", "podman", ID, ID2,
     ""},
    {"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" ID ".scope/container",
     "podman", ID, "", ""},
    {"9:memory:/libpod_parent/libpod-" ID, "podman", ID, "", ""},
    {"0::/machine.slice/libpod-conmon-" ID ".scope", "systemd", "libpod-conmon-" ID ".scope", "",
     ""},
    /* Amazon ECS */
    {"0::/ecstasks.slice/ecstasks-" TASK ".slice/docker-" ID ".scope", "ecs", ID, "", TASK},
    {"4:memory:/ecs/" TASK "/" ID, "ecs", ID, "", TASK},
    {"4:memory:/ecs/" UID "/" ID, "ecs", ID, "", UID},
    {"4:memory:/ecs/" TASK "/" TASK "-1122334455", "ecs", TASK "-1122334455", "", TASK},
    /* LXC, machines, units, plain */
    {"0::/lxc/web", "lxc", "web", "", ""},
    {"0::/lxc.payload.web/system.slice/x.service", "lxc", "web", "", ""},
    {"0::/lxc.payload/web", "lxc", "web", "", ""},
    {"0::/machine.slice/machine-web.scope", "machine", "web", "", ""},
    {"0::/machine.slice/systemd-nspawn@web.service/payload", "machine", "web", "", ""},
    {"0::/system.slice/inference.service", "systemd", "inference.service", "", ""},
    {"0::/user.slice/user-1000.slice/session-3.scope", "systemd", "session-3.scope", "", ""},
    {"1:name=systemd:/system.slice/a.service\n0::/", "systemd", "a.service", "", ""},
    {"0::/mine/child", "cgroup", "/mine/child", "", ""},
    {"0::/", "", "", "", ""},
    /* nothing to make sense of */
    {"", "", "", "", ""},
    {"0:", "", "", "", ""},
    {"nonsense\n::\n\n0::", "", "", "", ""},
    {"0::/docker/0123", "cgroup", "/docker/0123", "", ""},
    {"0::/docker-" ID "x.scope", "systemd", "docker-" ID "x.scope", "", ""},
    {"0::/evil-docker-" ID ".scope", "systemd", "evil-docker-" ID ".scope", "", ""},
    {"0::/podzzzzzzzz-5b1c-4b0e-9d6f-0a1b2c3d4e5f/" ID, "containerd", ID, "", ""},
};

static void every_runtime_s_path_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct vcap_container_name n;
        vcap_container_name_parse(rows[i].text, &n);
        if (strcmp(n.runtime, rows[i].runtime) != 0 || strcmp(n.id, rows[i].id) != 0 ||
            strcmp(n.pod, rows[i].pod) != 0 || strcmp(n.ecs_task, rows[i].task) != 0)
            fail_msg("%s: runtime '%s' id '%s' pod '%s' task '%s'", rows[i].text, n.runtime, n.id,
                     n.pod, n.ecs_task);
        bool container = *rows[i].runtime && strcmp(rows[i].runtime, "systemd") != 0 &&
                         strcmp(rows[i].runtime, "cgroup") != 0;
        if (n.container != container)
            fail_msg("%s: container %d", rows[i].text, n.container);
    }
}

static void labels_are_short_and_harmless(void **state)
{
    (void)state;
    struct vcap_container_name n;
    char label[VCAP_CONTAINER_LABEL];
    vcap_container_name_parse("0::/system.slice/docker-" ID ".scope", &n);
    vcap_container_name_label(&n, label);
    assert_string_equal(label, "0123456789ab");
    vcap_container_name_parse("0::/lxc/a\"b\\c\xc3\xa9 d", &n);
    vcap_container_name_label(&n, label);
    assert_string_equal(label, "a_b_c___d");
    char longest[400] = "0::/lxc/";
    memset(longest + 8, 'x', 300);
    longest[308] = '\0';
    vcap_container_name_parse(longest, &n);
    vcap_container_name_label(&n, label);
    assert_int_equal(strlen(label), sizeof label - 1);
}

static void only_containers_are_the_same(void **state)
{
    (void)state;
    struct vcap_container_name a, b, c, unit, unit2;
    vcap_container_name_parse("0::/system.slice/docker-" ID ".scope", &a);
    vcap_container_name_parse("0::/system.slice/docker-" ID ".scope/nested", &b);
    vcap_container_name_parse("0::/system.slice/docker-" ID2 ".scope", &c);
    vcap_container_name_parse("0::/system.slice/x.service", &unit);
    vcap_container_name_parse("0::/system.slice/x.service", &unit2);
    assert_true(vcap_container_name_same(&a, &b));
    assert_false(vcap_container_name_same(&a, &c));
    assert_false(vcap_container_name_same(&unit, &unit2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_runtime_s_path_is_named),
        cmocka_unit_test(labels_are_short_and_harmless),
        cmocka_unit_test(only_containers_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
