/*
 * Where this container's ledger is when nobody says, and whose it is.
 *
 * /dev/shm is not always private to a container (the Kubernetes device plugin's MPS mounts one host
 * folder there into every client; --ipc=host does the same), so the file's name carries a key that
 * is this container's alone: the inode of the cgroup namespace's root where the process has a
 * cgroup namespace of its own; else the container's part of the path in /proc/self/cgroup; else the
 * mount namespace's inode with the boot id and the start time of the namespace's oldest visible
 * process. Processes that come in by exec or ssh, and nested sandboxes of the same container, get
 * the same key, under every UID.
 *
 * Limits: a nested sandbox without /sys/fs/cgroup in it, or one that no cgroup names, has the key
 * of its own mount namespace; a mount namespace without a PID namespace changes its key when the
 * oldest process in it goes.  In both cases the host, or VRAMCAP_LEDGER, says where the ledger is.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_PATH_H
#define VRAMCAP_ENFORCER_LEDGER_PATH_H

#include <stddef.h>

#define VCAP_LEDGER_HOST_PATH "/run/vramcap/ledger"
#define VCAP_LEDGER_SHM_PREFIX "/dev/shm/vramcap-"
#define VCAP_KEY_MAX 64 /* with the NUL; [a-z0-9-] only */

enum vcap_key_kind {
    VCAP_KEY_CGROUP_NAMESPACE = 1,
    VCAP_KEY_CGROUP_PATH = 2,
    VCAP_KEY_MOUNT_NAMESPACE = 3
};

/*
 * Computes the key.  proc and cgroup are "/proc" and "/sys/fs/cgroup" (tests give others).  Returns
 * the kind, or -errno when not even the mount namespace can be read.
 */
int vcap_key_compute(const char *proc, const char *cgroup, char key[VCAP_KEY_MAX]);

/*
 * The container's part of one line's path of /proc/self/cgroup: everything up to and including the
 * first component that names a container (a container inside a container counts as the outer one).
 * Known: 64 hex digits, alone or behind a runtime's name ("docker-<id>.scope", "libpod-<id>",
 * "...:cri-containerd: <id>"), ECS's "<task>/<task>-<number>", LXC's "lxc/<name>",
 * "lxc.payload[.<name>|/<name>]", and systemd's "machine.slice/machine-<name>.scope" and
 * "systemd-nspawn@<name>.service". Returns 0, -ENOENT when the path names none, -ENAMETOOLONG when
 * part is too small.
 */
int vcap_key_container_part(const char *path, char *part, size_t size);

#endif
