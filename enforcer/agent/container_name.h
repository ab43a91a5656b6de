/*
 * Which container a process belongs to, by its cgroup: a pure function of the text of
 * /proc/PID/cgroup (versions 1 and 2).  Of containers inside containers the innermost is named.
 *
 * Known: Docker, containerd (Kubernetes' CRI, nerdctl, ctr), CRI-O and podman under both cgroup
 * drivers, their pods, Amazon ECS (instances and Fargate), LXC, systemd-nspawn and other machines of
 * systemd; else the systemd unit; else the plain cgroup.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_CONTAINER_NAME_H
#define VRAMCAP_ENFORCER_AGENT_CONTAINER_NAME_H

#include <stdbool.h>

#define VCAP_CONTAINER_LABEL 80 /* with the NUL; printable ASCII without quotes and backslashes */

struct vcap_container_name {
    char runtime[16];  /* docker containerd crio podman ecs lxc machine; systemd: a unit; cgroup: a
                          plain path; empty: nothing known (the root cgroup) */
    char id[96];       /* container id, LXC or machine name, unit, path; cut if longer */
    char pod[72];      /* Kubernetes pod uid (with dashes) or podman pod id; empty: none */
    char ecs_task[48]; /* ECS task id; empty: none */
    bool container;    /* names a container, not just a unit or a path */
};

/* Never fails: what it cannot make sense of leaves an empty name. */
void vcap_container_name_parse(const char *cgroup_text, struct vcap_container_name *name);

/* Short form for labels and people: the first 12 digits of a hexadecimal id, else the id.  Control
 * characters, quotes and what is not ASCII become '_'. */
void vcap_container_name_label(const struct vcap_container_name *name,
                               char label[VCAP_CONTAINER_LABEL]);

/* The same container?  False if either names none. */
bool vcap_container_name_same(const struct vcap_container_name *a,
                              const struct vcap_container_name *b);

#endif
