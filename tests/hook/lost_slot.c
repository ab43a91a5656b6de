#include "tests/hook/lost_slot.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "tests/hook/scenario.h"

bool write_owner(int32_t slot, uint32_t pid)
{
    const uint64_t any = 0; /* start time: not known, so not asked */
    struct vcap_lf_header header;
    int fd = open(self.ledger, O_RDWR);
    bool ok = fd >= 0 && read(fd, &header, sizeof(header)) == (ssize_t)sizeof(header);
    off_t at = ok ? (off_t)header.slot_offset + (off_t)slot * header.slot_stride : 0;

    ok = ok &&
         pwrite(fd, &pid, sizeof(pid), at + (off_t)offsetof(struct vcap_lf_slot, pid)) ==
             (ssize_t)sizeof(pid) &&
         pwrite(fd, &any, sizeof(any), at + (off_t)offsetof(struct vcap_lf_slot, start_time)) ==
             (ssize_t)sizeof(any);
    if (fd >= 0)
        close(fd);
    return ok;
}

bool write_state(int32_t slot, uint64_t word)
{
    struct vcap_lf_header header;
    int fd = open(self.ledger, O_RDWR);
    bool ok = fd >= 0 && read(fd, &header, sizeof(header)) == (ssize_t)sizeof(header) &&
              pwrite(fd, &word, sizeof(word),
                     (off_t)header.slot_offset + (off_t)slot * header.slot_stride) ==
                  (ssize_t)sizeof(word);

    if (fd >= 0)
        close(fd);
    return ok;
}

uint64_t read_state(int32_t slot)
{
    struct vcap_lf_header header;
    uint64_t word = UINT64_MAX;
    int fd = open(self.ledger, O_RDONLY);

    if (fd < 0 || read(fd, &header, sizeof(header)) != (ssize_t)sizeof(header) ||
        pread(fd, &word, sizeof(word),
              (off_t)header.slot_offset + (off_t)slot * header.slot_stride) !=
            (ssize_t)sizeof(word))
        word = UINT64_MAX;
    if (fd >= 0)
        close(fd);
    return word;
}

int32_t my_slot(void)
{
    struct vcap_snapshot s;
    int32_t slot = -1;

    if (!ledger_read(self.ledger, &s))
        return -1;
    for (uint32_t i = 0; i < s.process_count; i++)
        if (s.processes[i].pid == (uint32_t)getpid())
            slot = (int32_t)s.processes[i].slot;
    vcap_snapshot_free(&s);
    return slot;
}

bool forget_charges(int32_t slot)
{
    struct vcap_lf_header header;
    struct vcap_lf_cell cell;
    struct vcap_lf_gpu gpu;
    int fd = open(self.ledger, O_RDWR);
    bool ok = fd >= 0 && read(fd, &header, sizeof(header)) == (ssize_t)sizeof(header);

    memset(&cell, 0, sizeof(cell));
    for (uint32_t g = 0; ok && g < header.gpu_count; g++) {
        off_t at =
            (off_t)header.cell_offset + ((off_t)slot * header.gpu_count + g) * header.cell_stride;
        off_t row = (off_t)header.gpu_offset + (off_t)g * header.gpu_stride;

        ok = pwrite(fd, &cell, sizeof(cell), at) == (ssize_t)sizeof(cell) &&
             pread(fd, &gpu, sizeof(gpu), row) == (ssize_t)sizeof(gpu);
        gpu.total = 0;
        ok = ok && pwrite(fd, &gpu, sizeof(gpu), row) == (ssize_t)sizeof(gpu);
    }
    if (fd >= 0)
        close(fd);
    return ok;
}

bool lose_slot(void)
{
    int32_t slot = my_slot();

    return slot >= 0 && forget_charges(slot) &&
           write_state(slot, vcap_lf_state(77, VCAP_LF_KIND_NONE, VCAP_LF_FREE));
}
