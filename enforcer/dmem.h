/*
 * The kernel's own limit of device memory: the dmem controller's files of this process's cgroup and
 * of those above it (Linux 6.14 and newer, cgroup version 2; Documentation/admin-guide/cgroup-v2.rst,
 * "DMEM").  Read, never written.  Knows no driver: the caller names a GPU by its PCI address.
 */
#ifndef VRAMCAP_ENFORCER_DMEM_H
#define VRAMCAP_ENFORCER_DMEM_H

#include <stdint.h>

/*
 * The lowest dmem.max, in bytes, that holds for this process on one GPU.  proc: "/proc"; root: where
 * cgroup version 2 is mounted; pci: "0000:3b:00.0", in any case and with a domain of four or eight
 * digits; NULL: not known, and then every region of NVIDIA's counts.
 *
 * A line of dmem.max is a region's name, blank, bytes or "max".  Which name NVIDIA's driver gives a
 * card's memory is not published; a region counts for a GPU if its name holds that GPU's PCI address,
 * or holds "nvidia" and no PCI address at all.
 *
 * 0: *bytes written, UINT64_MAX where nothing limits it.  -EINVAL: a line that counts cannot be
 * understood.  -errno: a file is there and cannot be read.  No dmem file at all is no error.
 */
int vcap_dmem_limit(const char *proc, const char *root, const char *pci, uint64_t *bytes);

#endif
