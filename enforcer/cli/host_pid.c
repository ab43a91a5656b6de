/*
 * Host pids by NSpid in /proc/PID/status (proc(5)): its last number is the pid in the process's own
 * namespace, its first the one in the namespace of this /proc.  The namespace is compared by inode
 * where /proc/PID/ns/pid may be read (same user, or root), else the start time stands in for it.
 */
#include "enforcer/cli/host_pid.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INITIAL_PID_NAMESPACE UINT64_C(0xeffffffc) /* PROC_PID_INIT_INO, linux/proc_ns.h */

int vcap_host_pid_levels(const char *pid_text, long pids[], int room)
{
    char path[64], text[4096];
    (void)snprintf(path, sizeof path, "/proc/%.20s/status", pid_text);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    (void)close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    char *at = strstr(text, "\nNSpid:"), *end;
    int count = 0;
    if (!at)
        return 0;
    for (at += strlen("\nNSpid:"); count < room; at = end) {
        while (*at == '\t' || *at == ' ')
            at++;
        if (*at < '0' || *at > '9')
            break;
        pids[count++] = strtol(at, &end, 10);
    }
    return count;
}

static bool is_same(const struct vcap_snapshot_process *p, long outer_pid)
{
    char path[64];
    struct stat st;
    (void)snprintf(path, sizeof path, "/proc/%ld/ns/pid", outer_pid);
    if (stat(path, &st) == 0)
        return (uint64_t)st.st_ino == p->pidns;
    return p->start_time != 0 && vcap_start_time((pid_t)outer_pid) == p->start_time;
}

void vcap_host_pids(const struct vcap_snapshot *snapshot, pid_t *pids)
{
    const uint64_t here = vcap_pidns_inode();
    bool search = false;
    for (uint32_t i = 0; i < snapshot->process_count; i++) {
        const struct vcap_snapshot_process *p = &snapshot->processes[i];
        pids[i] = 0;
        if (p->life == VCAP_LIFE_DEAD || p->pidns == 0)
            continue;
        if (p->pidns == here)
            pids[i] = here == INITIAL_PID_NAMESPACE ? (pid_t)p->pid : 0;
        else
            search = true;
    }
    DIR *proc = search ? opendir("/proc") : NULL;
    if (!proc)
        return;
    for (const struct dirent *entry; (entry = readdir(proc));) {
        long levels[40]; /* MAX_PID_NS_LEVEL is 32 */
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        int depth =
            vcap_host_pid_levels(entry->d_name, levels, (int)(sizeof levels / sizeof *levels));
        if (depth < 2) /* of our own namespace */
            continue;
        for (uint32_t i = 0; i < snapshot->process_count; i++) {
            const struct vcap_snapshot_process *p = &snapshot->processes[i];
            if (pids[i] == 0 && p->life != VCAP_LIFE_DEAD && p->pidns != 0 && p->pidns != here &&
                levels[depth - 1] == (long)p->pid && is_same(p, levels[0]))
                pids[i] = (pid_t)levels[0];
        }
    }
    (void)closedir(proc);
}
