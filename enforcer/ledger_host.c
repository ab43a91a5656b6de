/*
 * The host's words in a ledger.  Invariants:
 *   - a ledger of the host's has its name only with all its ceilings in it, and replaces no other file;
 *   - a ceiling changes by one exchange of its word, so that every process reads the old or the new one;
 *     host_changes is counted up after all changes of one order;
 *   - nothing is emptied while an owner of a slot lives, or cannot be shown to be gone.
 * Must not: log, wait for a process of the container, follow a link.
 */
#include "enforcer/ledger_host.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "enforcer/ceiling.h"
#include "enforcer/kernel.h"
#include "enforcer/ledger_make.h"
#include "enforcer/ledger_near.h"
#include "enforcer/ledger_reap.h"
#include "enforcer/ledger_word.h"

/* PROC_PID_INIT_INO, include/linux/proc_ns.h: from there every process can be seen */
#define INITIAL_PID_NAMESPACE UINT64_C(4026531836)

static int refuse(char *why, size_t why_size, int error, const char *text)
{
    snprintf(why, why_size, "%s", text);
    return -error;
}

/* ---- ceilings ---- */

static uint64_t ceiling_word(uint64_t bytes)
{
    uint64_t units = bytes / VCAP_LF_UNIT_BYTES;

    return vcap_lf_ceiling(units < VCAP_LF_UNITS_MAX ? units : VCAP_LF_UNITS_MAX,
                           VCAP_LF_SOURCE_HOST);
}

static uint8_t hex(char c)
{
    return (uint8_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
}

/* text is a full UUID behind its prefix, as the parser leaves it. */
static void uuid_bytes(const char *text, uint8_t uuid[16])
{
    text += 4;
    for (int i = 0; i < 16; i++) {
        text += *text == '-';
        uuid[i] = (uint8_t)(hex(text[0]) << 4 | hex(text[1]));
        text += 2;
    }
}

int vcap_host_check_memory(const struct vcap_entries *memory, char *why, size_t why_size)
{
    for (uint32_t i = 0; i < memory->count; i++)
        if (memory->entry[i].kind == VCAP_ENTRY_ORDINAL) {
            snprintf(why, why_size,
                     "entry %u names GPU %u by its place, which counts what one process sees; name "
                     "it by its UUID (nvidia-smi -L), or give one size for all",
                     i + 1, memory->entry[i].ordinal);
            return -EINVAL;
        }
    return 0;
}

/* A change of one word; quiet: nobody can have seen the old one. */
static void set_ceiling(struct vcap_ledger *l, uint64_t *word, uint32_t gpu, uint64_t bytes,
                        bool quiet)
{
    uint64_t to = ceiling_word(bytes);
    uint64_t from = __atomic_exchange_n(word, to, __ATOMIC_SEQ_CST);
    struct vcap_event event = {.kind = VCAP_LF_EVENT_RESIZE,
                               .gpu = gpu,
                               .bytes = vcap_ceiling_bytes(to),
                               .limit = vcap_ceiling_bytes(from),
                               .name = gpu == UINT32_MAX ? "every GPU" : NULL};

    if (quiet || from == to)
        return;
    event.held = gpu == UINT32_MAX ? 0 : vcap_ledger_held(l, gpu);
    vcap_ledger_event(l, &event);
    if (gpu != UINT32_MAX && event.held > event.bytes)
        vcap_ledger_over(l, gpu, event.held - event.bytes, "vramcap resize");
}

static int set_memory(struct vcap_ledger *l, const struct vcap_entries *memory, bool quiet,
                      char *why, size_t why_size)
{
    struct vcap_lf_header *header = vcap_ledger_header(l);

    for (uint32_t i = 0; i < memory->count; i++) {
        const struct vcap_entry *entry = &memory->entry[i];
        bool mig = entry->uuid[0] == 'M';
        uint8_t uuid[16];
        uint32_t gpu;

        if (entry->kind == VCAP_ENTRY_ALL) {
            set_ceiling(l, &header->default_ceiling, UINT32_MAX, entry->bytes, quiet);
            for (gpu = 0; gpu < l->gpu_count; gpu++)
                if (vcap_load(&l->gpus[gpu].claim) != 0)
                    set_ceiling(l, &l->gpus[gpu].ceiling, gpu, entry->bytes, quiet);
            continue;
        }
        uuid_bytes(entry->uuid, uuid);
        if (vcap_ledger_gpu(l, uuid, (mig ? VCAP_LF_GPU_MIG : 0) | VCAP_LF_GPU_NAMED, i, 0, &gpu) !=
            0)
            return refuse(why, why_size, ENOSPC, "it has rows for fewer GPUs than that");
        /* a GPU that is named twice has the lower ceiling */
        set_ceiling(l, &l->gpus[gpu].ceiling, gpu,
                    vcap_ceiling_match(memory, UINT32_MAX, uuid, mig, VCAP_NO_LIMIT), quiet);
    }
    return 0;
}

static void set_flag(struct vcap_lf_header *header, uint32_t flag, int on)
{
    if (on > 0)
        __atomic_fetch_or(&header->flags, flag, __ATOMIC_SEQ_CST);
    else if (on == 0)
        __atomic_fetch_and(&header->flags, ~flag, __ATOMIC_SEQ_CST);
}

static int apply(struct vcap_ledger *l, const struct vcap_host_order *order, bool quiet, char *why,
                 size_t why_size)
{
    struct vcap_lf_header *header = vcap_ledger_header(l);
    struct vcap_event event = {.kind = VCAP_LF_EVENT_SWITCH, .gpu = UINT32_MAX};
    int rc = 0;

    event.held = __atomic_load_n(&header->flags, __ATOMIC_SEQ_CST);
    if (order->memory != NULL)
        rc = set_memory(l, order->memory, quiet, why, why_size);
    if (rc != 0)
        return rc;
    if (order->near_percent >= 0)
        __atomic_store_n(&header->near_percent, (uint32_t)order->near_percent, __ATOMIC_SEQ_CST);
    if (order->compute_percent >= 0)
        __atomic_store_n(&header->compute_percent, (uint32_t)order->compute_percent,
                         __ATOMIC_SEQ_CST);
    if (order->context_set)
        __atomic_store_n(&header->context_bytes, order->context_bytes, __ATOMIC_SEQ_CST);
    set_flag(header, VCAP_LF_AUDIT, order->audit);
    set_flag(header, VCAP_LF_PASS_THROUGH, order->pass_through);
    event.code = __atomic_load_n(&header->flags, __ATOMIC_SEQ_CST);
    event.name = (event.code & VCAP_LF_PASS_THROUGH) != 0 ? "pass-through"
                 : (event.code & VCAP_LF_AUDIT) != 0      ? "audit"
                                                          : "enforce";
    if (!quiet && event.code != event.held)
        vcap_ledger_event(l, &event);
    for (uint32_t gpu = 0; !quiet && gpu < l->gpu_count; gpu++)
        if (vcap_load(&l->gpus[gpu].claim) != 0)
            vcap_near_look(l, gpu);
    if (!quiet)
        __atomic_fetch_add(&header->host_changes, 1, __ATOMIC_SEQ_CST);
    return 0;
}

/* ---- making one ---- */

/* Everything but the name: at `nameless`, which is nobody's. */
static int prepare(const char *nameless, const struct vcap_host_file *file,
                   const struct vcap_host_order *order, char *why, size_t why_size)
{
    struct vcap_ledger l;
    int rc = vcap_ledger_create(nameless, &file->size, VCAP_LF_HOST_MADE, NULL, file->container);

    if (rc == -EINVAL)
        return refuse(why, why_size, EINVAL, "a ledger has at most 32 GPUs and 512 slots");
    if (rc != 0)
        return refuse(why, why_size, -rc, strerror(-rc));
    rc = vcap_ledger_open(&l, nameless, NULL, VCAP_OPEN_WRITE, VCAP_LF_MODE_ENFORCE, why, why_size);
    if (rc == 0) {
        rc = apply(&l, order, true, why, why_size);
        vcap_ledger_close(&l);
    }
    if (rc == 0 && ((file->uid != (uid_t)-1 && lchown(nameless, file->uid, (gid_t)-1) != 0) ||
                    (file->mode != 0 && chmod(nameless, file->mode) != 0)))
        rc = refuse(why, why_size, errno, strerror(errno));
    if (rc != 0)
        (void)unlink(nameless);
    return rc;
}

int vcap_host_create(const char *path, const struct vcap_host_file *file,
                     const struct vcap_host_order *order, char *why, size_t why_size)
{
    char nameless[VCAP_LEDGER_PATH_MAX + 32];
    int rc, n;

    if (file->container != NULL && strlen(file->container) >= 64)
        return refuse(why, why_size, EINVAL, "a container's name has at most 63 bytes");
    n = snprintf(nameless, sizeof(nameless), "%s.new-%d", path, (int)getpid());
    if (n < 0 || n >= VCAP_LEDGER_PATH_MAX)
        return refuse(why, why_size, ENAMETOOLONG, strerror(ENAMETOOLONG));
    rc = prepare(nameless, file, order, why, why_size);
    if (rc != 0)
        return rc;
    if (linkat(AT_FDCWD, nameless, AT_FDCWD, path, 0) != 0)
        rc = refuse(why, why_size, errno,
                    errno == EEXIST ? "there is a file already; vramcap resize changes a ledger"
                                    : strerror(errno));
    (void)unlink(nameless);
    return rc;
}

/* ---- changing one ---- */

int vcap_host_resize(const char *path, const struct vcap_host_order *order, char *why,
                     size_t why_size)
{
    struct vcap_ledger l;
    int rc = vcap_ledger_open(&l, path, NULL, VCAP_OPEN_WRITE, VCAP_LF_MODE_ENFORCE, why, why_size);

    if (rc != 0)
        return rc;
    if ((l.flags & VCAP_LF_HOST_MADE) == 0)
        rc = refuse(why, why_size, EPERM,
                    "the container made it, with ceilings from its own configuration; only a "
                    "ledger of `vramcap create` can be changed");
    else
        rc = apply(&l, order, false, why, why_size);
    vcap_ledger_close(&l);
    return rc;
}

/* Is a process whose namespaces may not be looked at in none below ours?  Its status, which anybody may
 * read, has its number once per namespace, from ours inwards. */
static bool has_one_number(const char *pid)
{
    char path[300], text[4096];
    const char *at;
    ssize_t got;
    int fd;

    snprintf(path, sizeof(path), "/proc/%s/status", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = 0;
    at = strstr(text, "\nNSpid:\t");
    if (at == NULL)
        return false;
    at += strlen("\nNSpid:\t");
    return at[strspn(at, "0123456789")] == '\n';
}

/*
 * Is there no process any more in a PID namespace that we are not in?  Only the initial namespace sees
 * them all; whoever may not look at a process cannot tell.
 */
static bool namespace_is_gone(uint64_t pidns)
{
    struct dirent *entry;
    bool gone = pidns != 0 && vcap_pidns_inode() == INITIAL_PID_NAMESPACE;
    DIR *all = gone ? opendir("/proc") : NULL;

    while (all != NULL && gone && (entry = readdir(all)) != NULL) {
        char path[300];
        struct stat st;
        int rc;

        if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
            continue;
        snprintf(path, sizeof(path), "/proc/%s/ns/pid", entry->d_name);
        rc = vcap_sys_stat(path, &st, 0);
        /* ENOENT, ESRCH: it ended meanwhile, or is a zombie, which holds nothing */
        gone = rc == 0 ? (uint64_t)st.st_ino != pidns
                       : rc == -ENOENT || rc == -ESRCH || has_one_number(entry->d_name);
    }
    if (all != NULL)
        closedir(all);
    return gone && all != NULL;
}

/* The pid (in its own namespace) of an owner that may live; 0: none. */
static uint32_t owner_that_may_live(const struct vcap_ledger *l, int fd, enum vcap_life *life)
{
    for (uint32_t s = 0; s < l->slot_count; s++) {
        struct vcap_lf_slot slot;

        memcpy(&slot, &l->slots[s], sizeof(slot));
        if (vcap_lf_state_status(slot.state) != VCAP_LF_LIVE)
            continue;
        *life = vcap_slot_life(&slot, s, fd, l->pidns);
        if (*life == VCAP_LIFE_DEAD ||
            (*life == VCAP_LIFE_UNKNOWN && vcap_lf_state_kind(slot.state) == VCAP_LF_KIND_PID &&
             slot.pidns != l->pidns && namespace_is_gone(slot.pidns)))
            continue;
        return slot.pid != 0 ? slot.pid : 1;
    }
    return 0;
}

int vcap_host_reset(const char *path, char *why, size_t why_size)
{
    struct vcap_ledger l;
    enum vcap_life life = VCAP_LIFE_ALIVE;
    uint32_t pid;
    int rc = vcap_ledger_open(&l, path, NULL, VCAP_OPEN_WRITE, VCAP_LF_MODE_ENFORCE, why, why_size);
    int fd;

    if (rc != 0)
        return rc;
    fd = vcap_ledger_reopen(&l, O_RDWR);
    if (fd < 0) {
        rc = refuse(why, why_size, -fd, fd == -ESTALE ? "it was replaced" : strerror(-fd));
    } else if (vcap_sys_lock(fd, F_WRLCK, VCAP_LF_LOCK_INIT) == -EAGAIN) {
        rc = refuse(why, why_size, EBUSY, "a process is joining it");
    } else if ((pid = owner_that_may_live(&l, fd, &life)) != 0) {
        snprintf(why, why_size, "process %u (in its own PID namespace) %s", pid,
                 life == VCAP_LIFE_ALIVE ? "lives in it"
                                         : "cannot be seen from here and may live in it");
        rc = -EBUSY;
    } else {
        vcap_ledger_renew_in_place(l.base, vcap_ledger_header(&l), true);
    }
    if (fd >= 0)
        close(fd);
    vcap_ledger_close(&l);
    return rc;
}
